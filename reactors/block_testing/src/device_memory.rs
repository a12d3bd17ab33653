//! Memory of a device for tests: what it holds, and devices that have data of requests there.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use block::{
    CompletionBatch, DataPath, Device, DeviceError, DeviceIdentity, DeviceQueue, Drain,
    ErrorRecord, Geometry, Health, OpenError, Operation, QueueOptions, Refusal, Request,
};
use hugemem::{Arena, Borrow, DeviceLease, DeviceMemory, Pool, Sharing};

/// Unit of the content: the smallest block.
const UNIT_BYTES: usize = 512;

/// Memory of one device, which others reach too. Its content and its addresses are lost with each reset.
pub struct TestMemory {
    slice_bytes: usize,
    current: Mutex<Arc<DeviceMemory>>,
    resets: AtomicU64,
    /// By address.
    content: Mutex<HashMap<u64, [u8; UNIT_BYTES]>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl TestMemory {
    /// Memory with this number of slices of a size in bytes.
    #[must_use]
    pub fn new(slices: u64, slice_bytes: usize) -> Arc<Self> {
        Arc::new(Self {
            slice_bytes,
            current: Mutex::new(Self::create(slices, slice_bytes, 0)),
            resets: AtomicU64::new(0),
            content: Mutex::default(),
        })
    }

    fn create(slices: u64, slice_bytes: usize, number: u64) -> Arc<DeviceMemory> {
        let own = Sharing::Own("it is of a test".to_owned());
        // No address is used twice.
        let address = (1 << 40) + (number << 32);
        let bytes = slices * slice_bytes as u64;
        DeviceMemory::new(address, bytes, slice_bytes, own).expect("it has a slice")
    }

    /// The memory as it is now.
    #[must_use]
    pub fn current(&self) -> Arc<DeviceMemory> {
        Arc::clone(&lock(&self.current))
    }

    /// Resets the device: its memory ends, and is there again, with this number of slices.
    pub fn reset(&self, slices: u64) {
        let number = self.resets.fetch_add(1, Ordering::Relaxed) + 1;
        let mut current = lock(&self.current);
        current.end();
        *current = Self::create(slices, self.slice_bytes, number);
    }

    fn load(&self, address: u64, data: &mut [u8]) {
        let content = lock(&self.content);
        let addresses = (address..).step_by(UNIT_BYTES);
        for (address, unit) in addresses.zip(data.chunks_mut(UNIT_BYTES)) {
            let stored = content.get(&address).expect("nothing was written there");
            unit.copy_from_slice(stored);
        }
    }

    fn store(&self, address: u64, data: &[u8]) {
        let mut content = lock(&self.content);
        let addresses = (address..).step_by(UNIT_BYTES);
        for (address, unit) in addresses.zip(data.chunks(UNIT_BYTES)) {
            content.insert(address, unit.try_into().expect("whole blocks"));
        }
    }
}

/// What a test changes of a [`MemoryUser`], and counts.
#[derive(Debug, Default)]
pub struct MemoryUserControl {
    /// Requests in memory that are refused for now.
    pub refusals: AtomicU64,
    /// The longest request in memory that it takes, in blocks.
    pub blocks_max: AtomicU64,
    /// Requests in memory that it took.
    pub taken: AtomicU64,
    /// Whether requests in memory are refused as [`DeviceError::Unsupported`].
    pub refuses_all: AtomicBool,
}

/// A device that has data of requests in a [`TestMemory`]. The device below moves the data, by leases
/// of an arena of its own.
pub struct MemoryUser {
    inner: Arc<dyn Device>,
    memory: Arc<TestMemory>,
    arena: Arc<Arena>,
    data_path: DataPath,
    control: Arc<MemoryUserControl>,
}

impl MemoryUser {
    /// A device over `inner`, with a data path. `arena` is only for its own use.
    #[must_use]
    pub fn new(
        inner: Arc<dyn Device>,
        memory: &Arc<TestMemory>,
        arena: &Arc<Arena>,
        data_path: DataPath,
    ) -> Self {
        let blocks = memory.slice_bytes as u64 / u64::from(inner.geometry().block_size);
        let control = MemoryUserControl {
            blocks_max: AtomicU64::new(blocks),
            ..MemoryUserControl::default()
        };
        Self {
            inner,
            memory: Arc::clone(memory),
            arena: Arc::clone(arena),
            data_path,
            control: Arc::new(control),
        }
    }

    /// Its control.
    #[must_use]
    pub fn control(&self) -> Arc<MemoryUserControl> {
        Arc::clone(&self.control)
    }
}

impl Device for MemoryUser {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn identity(&self) -> &DeviceIdentity {
        self.inner.identity()
    }

    fn health(&self) -> Health {
        self.inner.health()
    }

    fn error_log(&self, records: &mut Vec<ErrorRecord>) {
        self.inner.error_log(records);
    }

    fn device_memory(&self) -> Option<Arc<DeviceMemory>> {
        Some(self.memory.current())
    }

    fn open_queue(&self, options: QueueOptions) -> Result<Box<dyn DeviceQueue>, OpenError> {
        Ok(Box::new(MemoryUserQueue {
            inner: self.inner.open_queue(options)?,
            memory: Arc::clone(&self.memory),
            pool: self.arena.pool(0),
            data_path: self.data_path,
            block_bytes: self.geometry().block_size as usize,
            control: Arc::clone(&self.control),
            in_memory: HashMap::new(),
        }))
    }
}

struct MemoryUserQueue {
    inner: Box<dyn DeviceQueue>,
    memory: Arc<TestMemory>,
    pool: Pool,
    data_path: DataPath,
    block_bytes: usize,
    control: Arc<MemoryUserControl>,
    /// Requests in flight by tag: the address of a read, `None` for a write.
    in_memory: HashMap<u64, Option<u64>>,
}

impl DeviceQueue for MemoryUserQueue {
    fn can_borrow_read(&self, lba: u64, blocks: u32) -> bool {
        self.inner.can_borrow_read(lba, blocks)
    }

    fn borrow_read(&mut self, lba: u64, blocks: u32) -> Option<Borrow> {
        self.inner.borrow_read(lba, blocks)
    }

    fn write_inline(&mut self, lba: u64, data: &[u8]) -> bool {
        self.inner.write_inline(lba, data)
    }

    fn submit(&mut self, request: Request) -> Result<(), Refusal> {
        self.inner.submit(request)
    }

    fn device_memory(&self) -> Option<Arc<DeviceMemory>> {
        Some(self.memory.current())
    }

    fn data_path(&self) -> DataPath {
        self.data_path
    }

    fn blocks_in(&self, memory: &Arc<DeviceMemory>) -> u32 {
        match Arc::ptr_eq(&self.memory.current(), memory) {
            true => self.control.blocks_max.load(Ordering::Relaxed) as u32,
            false => 0,
        }
    }

    fn submit_in_device(
        &mut self,
        mut request: Request,
        lease: &mut DeviceLease,
        offset: usize,
    ) -> Result<(), Refusal> {
        let refusals = &self.control.refusals;
        if refusals.load(Ordering::Relaxed) > 0 {
            refusals.fetch_sub(1, Ordering::Relaxed);
            return Err(Refusal::Later(request));
        }
        if self.control.refuses_all.load(Ordering::Relaxed) {
            return Err(Refusal::Never(request, DeviceError::Unsupported));
        }
        if !lease.is_valid() {
            return Err(Refusal::Never(request, DeviceError::Interrupted));
        }
        let bytes = request.blocks as usize * self.block_bytes;
        let most = self.control.blocks_max.load(Ordering::Relaxed);
        assert!(u64::from(request.blocks) <= most, "too long");
        assert!(
            offset + bytes <= lease.memory().slice_bytes(),
            "it exceeds the slice"
        );
        let address = lease.begin() + offset as u64;
        let mut data = self.pool.take(bytes).expect("memory of the test");
        let tag = request.tag;
        let is_read = request.operation == Operation::Read;
        if !is_read {
            self.memory.load(address, &mut data);
        }
        self.in_memory.insert(tag, is_read.then_some(address));
        request.data = Some(data);
        match self.inner.submit(request) {
            Ok(()) => {
                self.control.taken.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            Err(refusal) => {
                lease.complete();
                self.in_memory.remove(&tag);
                let error = match &refusal {
                    Refusal::Later(_) => None,
                    Refusal::Never(_, error) => Some(*error),
                };
                let mut request = refusal.into_request();
                request.data = None;
                Err(match error {
                    None => Refusal::Later(request),
                    Some(error) => Refusal::Never(request, error),
                })
            }
        }
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
        let mut batch = CompletionBatch::new();
        let count = self.inner.poll(&mut batch);
        for mut completion in batch {
            if let Some(address) = self.in_memory.remove(&completion.tag)
                && let Some(data) = completion.data.take()
                && let Some(address) = address
            {
                self.memory.store(address, &data);
            }
            completions.push(completion);
        }
        count
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight()
    }

    fn has_ready(&self) -> bool {
        self.inner.has_ready()
    }

    fn drain(&mut self) -> Drain {
        self.inner.drain()
    }
}
