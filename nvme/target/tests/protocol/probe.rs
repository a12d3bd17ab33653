//! A RAM device that records its requests and can report a volatile cache, a sensor, wear, and a
//! drive's counters.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, Mutex};

use block::{
    AtomicWrites, CompletionBatch, Deallocate, Device, DeviceIdentity, DeviceQueue, Drain,
    DriveHealth, ErrorRecord, Geometry, Health, MemoryDevice, MemoryOptions, OpenError, Operation,
    QueueOptions, Refusal, Request,
};
use hugemem::{Borrow, PagePolicy};

/// A recorded request: operation, first block, blocks.
pub(crate) type RecordedRequest = (Operation, u64, u32);

/// The properties that a probe reports, and its recorded requests.
#[derive(Default)]
pub(crate) struct Record {
    recorded: Mutex<Vec<RecordedRequest>>,
    temperature_kelvin: AtomicU16,
    spare_percent: AtomicU16,
    drive: Mutex<Option<DriveHealth>>,
    errors: Mutex<Vec<ErrorRecord>>,
    has_work_before_sleep: AtomicBool,
    prepare_sleep_calls: AtomicU16,
    recording_stopped: AtomicBool,
}

impl Record {
    /// Stops recording, which allocates.
    pub(crate) fn stop_recording(&self) {
        self.recording_stopped.store(true, Ordering::Relaxed);
    }

    /// The requests since the last call.
    pub(crate) fn take(&self) -> Vec<RecordedRequest> {
        std::mem::take(&mut self.recorded.lock().unwrap())
    }

    pub(crate) fn set_temperature(&self, kelvin: u16) {
        self.temperature_kelvin.store(kelvin, Ordering::Relaxed);
    }

    /// Makes it a namespace of a drive with this health.
    pub(crate) fn set_drive(&self, drive: DriveHealth) {
        *self.drive.lock().unwrap() = Some(drive);
    }

    /// Sets the drive's error log, newest first.
    pub(crate) fn set_errors(&self, records: &[ErrorRecord]) {
        *self.errors.lock().unwrap() = records.to_vec();
    }

    /// Sets whether it finds work when it is requested to connect its interrupt.
    pub(crate) fn set_has_work_before_sleep(&self, has_work_before_sleep: bool) {
        self.has_work_before_sleep
            .store(has_work_before_sleep, Ordering::Relaxed);
    }

    /// Number of requests to connect its interrupt.
    pub(crate) fn prepare_sleep_calls(&self) -> u16 {
        self.prepare_sleep_calls.load(Ordering::Relaxed)
    }

    /// Sets the available spare; 0 is unknown.
    pub(crate) fn set_spare(&self, percent: u16) {
        self.spare_percent.store(percent, Ordering::Relaxed);
    }
}

/// The device.
pub(crate) struct Probe {
    inner: MemoryDevice,
    geometry: Geometry,
    record: Arc<Record>,
}

/// The properties of a probe.
#[derive(Clone, Copy)]
pub(crate) struct ProbeOptions {
    pub(crate) block_size: u32,
    pub(crate) block_count: u64,
    pub(crate) volatile: bool,
    pub(crate) deallocate: Deallocate,
    pub(crate) read_only: bool,
    pub(crate) optimal_io_blocks: u32,
    pub(crate) atomic: AtomicWrites,
}

impl Probe {
    pub(crate) fn new(name: &str, options: ProbeOptions) -> (Self, Arc<Record>) {
        let inner = MemoryDevice::new(MemoryOptions {
            name: name.to_owned(),
            uuid: [9; 16],
            size_bytes: options.block_count * u64::from(options.block_size),
            block_size: options.block_size,
            pages: PagePolicy::Ordinary,
            read_only: options.read_only,
        })
        .expect("a small RAM device");
        let geometry = Geometry {
            volatile_write_cache: options.volatile,
            deallocate: options.deallocate,
            optimal_io_blocks: options.optimal_io_blocks,
            atomic: options.atomic,
            ..inner.geometry()
        };
        let record = Arc::new(Record::default());
        (
            Self {
                inner,
                geometry,
                record: Arc::clone(&record),
            },
            record,
        )
    }
}

impl Device for Probe {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn identity(&self) -> &DeviceIdentity {
        self.inner.identity()
    }

    fn health(&self) -> Health {
        let kelvin = self.record.temperature_kelvin.load(Ordering::Relaxed);
        let spare = self.record.spare_percent.load(Ordering::Relaxed);
        Health {
            temperature_kelvin: (kelvin != 0).then_some(kelvin),
            available_spare_percent: (spare != 0).then_some(spare as u8),
            drive: *self.record.drive.lock().unwrap(),
            ..self.inner.health()
        }
    }

    fn error_log(&self, records: &mut Vec<ErrorRecord>) {
        records.extend_from_slice(&self.record.errors.lock().unwrap());
    }

    fn open_queue(&self, options: QueueOptions) -> Result<Box<dyn DeviceQueue>, OpenError> {
        let inner = self.inner.open_queue(options)?;
        Ok(Box::new(ProbeQueue {
            inner,
            record: Arc::clone(&self.record),
        }))
    }
}

struct ProbeQueue {
    inner: Box<dyn DeviceQueue>,
    record: Arc<Record>,
}

impl DeviceQueue for ProbeQueue {
    fn can_borrow_read(&self, lba: u64, blocks: u32) -> bool {
        self.inner.can_borrow_read(lba, blocks)
    }

    fn borrow_read(&mut self, lba: u64, blocks: u32) -> Option<Borrow> {
        self.inner.borrow_read(lba, blocks)
    }

    fn write_inline(&mut self, lba: u64, data: &[u8]) -> bool {
        self.inner.write_inline(lba, data)
    }

    fn supports_direct_placement(&self) -> bool {
        self.inner.supports_direct_placement()
    }

    fn place_directly(&mut self, lba: u64, bytes: usize, fill: &mut dyn FnMut(&mut [u8])) -> bool {
        self.inner.place_directly(lba, bytes, fill)
    }

    fn count_placed_write(&mut self) {
        self.inner.count_placed_write();
    }

    fn submit(&mut self, request: Request) -> Result<(), Refusal> {
        let recorded = (request.operation, request.lba, request.blocks);
        self.inner.submit(request)?;
        if !self.record.recording_stopped.load(Ordering::Relaxed) {
            self.record.recorded.lock().unwrap().push(recorded);
        }
        Ok(())
    }

    fn give_up(&mut self, is_unwanted: &mut dyn FnMut(u64) -> bool) {
        self.inner.give_up(is_unwanted);
    }

    fn abandon(&mut self, is_overdue: &mut dyn FnMut(u64) -> bool) {
        self.inner.abandon(is_overdue);
    }

    fn flush(&mut self) {
        self.inner.flush();
    }

    fn poll(&mut self, completions: &mut CompletionBatch) -> usize {
        self.inner.poll(completions)
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight()
    }

    fn wake_source(&self) -> Option<BorrowedFd<'_>> {
        self.inner.wake_source()
    }

    fn has_ready(&self) -> bool {
        self.inner.has_ready()
    }

    fn prepare_sleep(&mut self) -> bool {
        self.record
            .prepare_sleep_calls
            .fetch_add(1, Ordering::Relaxed);
        !self.record.has_work_before_sleep.load(Ordering::Relaxed) && self.inner.prepare_sleep()
    }

    fn drain(&mut self) -> Drain {
        self.inner.drain()
    }
}
