//! A device without a medium: every request completes immediately and no data moves. It is the
//! upper bound in measurements of other devices.

use std::sync::Arc;

use hugemem::{Borrow, Data, PagePolicy, RegionError, Store, StoreHandle};

use crate::device::{
    Deallocate, Device, DeviceIdentity, DeviceQueue, Drain, Geometry, QueueOptions,
};
use crate::error::OpenError;
use crate::health::{Health, HealthCounters, HealthState};
use crate::ledger::{EndedRequest, Ledger};
use crate::request::{CompletionBatch, Operation, Refusal, Request};
use crate::shape::{
    GrowingGeometry, ShapeError, TRANSFER_BYTES_MAX, block_count, max_transfer_blocks,
};

/// Parameters of a [`NullDevice`].
#[derive(Clone, Debug)]
pub struct NullOptions {
    /// Name from the configuration.
    pub name: String,
    /// The device's UUID.
    pub uuid: [u8; 16],
    /// Reported capacity in bytes.
    pub size_bytes: u64,
    /// Bytes per block: 512 or 4096.
    pub block_size: u32,
}

/// Why a null device could not be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NullError {
    /// The size is invalid.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// There is no memory for the zeroes that reads borrow.
    #[error("no memory for the zeroes of a null device")]
    Memory(#[from] RegionError),
}

/// A device without a medium. Reads without a lease receive a borrow of zeroes; reads with a lease
/// return it unchanged; writes are discarded; compares report equality.
pub struct NullDevice {
    name: String,
    identity: DeviceIdentity,
    geometry: Arc<GrowingGeometry>,
    zeroes: Arc<Store>,
    counters: Arc<HealthCounters>,
}

impl NullDevice {
    /// Creates the device, with [`TRANSFER_BYTES_MAX`] of memory for the zeroes that reads borrow.
    ///
    /// # Errors
    /// [`NullError`].
    pub fn new(options: NullOptions) -> Result<Self, NullError> {
        let geometry = Geometry {
            block_size: options.block_size,
            block_count: block_count(options.size_bytes, options.block_size)?,
            volatile_write_cache: false,
            optimal_io_blocks: 1,
            deallocate: Deallocate::Unspecified,
            max_transfer_blocks: max_transfer_blocks(options.block_size),
            read_only: false,
            atomic: crate::AtomicWrites::BLOCK,
        };
        Ok(Self {
            name: options.name,
            identity: DeviceIdentity {
                uuid: options.uuid,
                model: "Windlass null".into(),
            },
            geometry: Arc::new(GrowingGeometry::new(geometry)),
            zeroes: Store::new(TRANSFER_BYTES_MAX, PagePolicy::Ordinary)?,
            counters: Arc::default(),
        })
    }
}

impl NullDevice {
    /// Grows the device to `size_bytes`; queues are notified by [`DeviceQueue::device_grew`].
    ///
    /// # Errors
    /// The size is invalid, or less than the current size.
    pub fn grow(&self, size_bytes: u64) -> Result<(), ShapeError> {
        self.geometry.grow(self.geometry.larger(size_bytes)?);
        Ok(())
    }
}

impl Device for NullDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn geometry(&self) -> Geometry {
        self.geometry.now()
    }

    fn identity(&self) -> &DeviceIdentity {
        &self.identity
    }

    fn health(&self) -> Health {
        self.counters.sum(HealthState::Ready)
    }

    fn open_queue(&self, options: QueueOptions) -> Result<Box<dyn DeviceQueue>, OpenError> {
        let counters = self.counters.open_queue();
        let ledger = Ledger::new(options.depth, self.geometry.now(), true, counters)?;
        Ok(Box::new(NullQueue {
            ledger,
            shape: Arc::clone(&self.geometry),
            zeroes: self.zeroes.handle(),
        }))
    }
}

struct NullQueue {
    ledger: Ledger,
    shape: Arc<GrowingGeometry>,
    zeroes: StoreHandle,
}

impl DeviceQueue for NullQueue {
    fn can_borrow_read(&self, lba: u64, blocks: u32) -> bool {
        self.ledger.readable_range(lba, blocks).is_some()
    }

    #[inline]
    fn borrow_read(&mut self, lba: u64, blocks: u32) -> Option<Borrow> {
        // The reported size may exceed any memory, so only the length is checked.
        let (_, len) = self.ledger.readable_range(lba, blocks)?;
        let borrow = self.zeroes.try_borrow_read(0, len)?;
        self.ledger.count_read(len);
        Some(borrow)
    }

    #[inline]
    fn write_inline(&mut self, lba: u64, data: &[u8]) -> bool {
        let taken = self.ledger.writable_offset(lba, data.len()).is_some();
        if taken {
            self.ledger.count_write(data.len());
        }
        taken
    }

    fn submit(&mut self, request: Request) -> Result<(), Refusal> {
        let request = self.ledger.admit(request)?;
        let ended = EndedRequest::of(&request, self.ledger.geometry());
        let data = match request.data {
            Some(lease) => Some(Data::Lease(lease)),
            // The zeroes are never written, so a borrow cannot fail.
            None if request.operation == Operation::Read => self
                .zeroes
                .try_borrow_read(0, ended.bytes as usize)
                .map(Data::Borrow),
            None => None,
        };
        self.ledger.end(ended, Ok(()), data);
        Ok(())
    }

    fn flush(&mut self) {}

    fn poll(&mut self, completions: &mut CompletionBatch) -> usize {
        self.ledger.take_ready(completions)
    }

    fn in_flight(&self) -> usize {
        self.ledger.in_flight()
    }

    fn has_ready(&self) -> bool {
        self.ledger.has_ready()
    }

    fn device_grew(&mut self) {
        self.ledger.set_geometry(self.shape.now());
    }

    fn drain(&mut self) -> Drain {
        self.ledger.drain()
    }
}

#[cfg(test)]
mod tests {
    use hugemem::{Arena, ArenaConfig};

    use super::*;
    use crate::request::Request;

    #[test]
    fn null_device_completes_immediately_without_copying() {
        let options = NullOptions {
            name: "null".into(),
            uuid: [0; 16],
            size_bytes: 1 << 50,
            block_size: 512,
        };
        let device = NullDevice::new(options).unwrap();
        let config = ArenaConfig {
            bytes: 1 << 20,
            pages: PagePolicy::Ordinary,
            max_transfer: 4096,
        };
        let pool = Arena::new(config).unwrap().pool(0);
        let options = QueueOptions::new(0, 2, pool.clone());
        let mut queue = device.open_queue(options).unwrap();
        let mut run = |operation, blocks, data| {
            queue
                .submit(Request {
                    tag: 9,
                    operation,
                    lba: 1 << 40,
                    blocks,
                    data,
                })
                .unwrap();
            assert!(queue.has_ready());
            let mut batch = CompletionBatch::new();
            assert_eq!(queue.poll(&mut batch), 1);
            assert_eq!((batch[0].tag, batch[0].result), (9, Ok(())));
            batch.remove(0).data
        };
        let longest = device.geometry().max_transfer_blocks;
        let Some(Data::Borrow(zeroes)) = run(Operation::Read, longest, None) else {
            panic!("a read without a lease returns a borrow")
        };
        assert!(zeroes.len() == TRANSFER_BYTES_MAX && zeroes.iter().all(|&byte| byte == 0));
        for operation in [
            Operation::Read,
            Operation::Write { fua: true },
            Operation::Compare,
        ] {
            let mut lease = pool.take(512).unwrap();
            lease.fill(7);
            let data = run(operation, 1, Some(lease));
            assert_eq!(data.as_deref(), Some(&[7; 512][..]), "{operation:?}");
        }
        for operation in [Operation::Flush, Operation::Deallocate] {
            assert!(run(operation, 0, None).is_none());
        }
        assert_eq!(device.health().reads, 2);
    }
}
