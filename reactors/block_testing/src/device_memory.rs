//! Memory of a device for tests: what it holds, and devices that have data of requests there.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use block::{
    COPY_SOURCE_BYTES, CompletionBatch, CopyLimits, CopyOrigin, CopySource, DataPath, Device,
    DeviceError, DeviceIdentity, DeviceQueue, Drain, ErrorRecord, Geometry, Health, OpenError,
    Operation, QueueOptions, Refusal, Request,
};
use hugemem::{
    Arena, Borrow, Data, DeviceLease, DeviceMemory, DmaBuf, Export, Lease, PagePolicy, Pool,
    Region, SharedRegion, Sharing,
};

/// What is in memory that was not written, or that has lost its content.
const LOST_BYTE: u8 = 0xdb;

/// Tags of requests of a [`MemoryUser`] at the device below; the lower bits are a place in its table.
const OWN_TAGS: u64 = 0xff << 56;

/// Memory of one device, which others reach too. Its content and its addresses are lost with each reset.
pub struct TestMemory {
    slice_bytes: usize,
    current: Mutex<Current>,
    resets: AtomicU64,
    is_exported: bool,
}

struct Current {
    memory: Arc<DeviceMemory>,
    content: Arc<SharedRegion>,
}

impl Current {
    fn new(slices: u64, slice_bytes: usize, number: u64, is_exported: bool) -> Self {
        let own = Sharing::Own("it is of a test".to_owned());
        // No address is used twice.
        let address = (1 << 40) + (number << 32);
        let bytes = slices * slice_bytes as u64;
        let region = Region::map(bytes as usize, PagePolicy::Ordinary).expect("memory of a test");
        let descriptor = region.as_fd().try_clone_to_owned();
        let export = match is_exported {
            true => Export::DmaBuf(DmaBuf::new(descriptor.expect("a descriptor"), 0)),
            false => Export::Refused("it is of a test".to_owned()),
        };
        let memory = DeviceMemory::with_export(address, bytes, slice_bytes, own, export);
        let current = Self {
            memory: memory.expect("it has a slice"),
            content: Arc::new(SharedRegion::new(region).expect("a second mapping")),
        };
        current.lose();
        current
    }

    fn lose(&self) {
        let bytes = self.memory.bytes() as usize;
        self.content.view().write(0, &vec![LOST_BYTE; bytes]);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl TestMemory {
    /// Memory with this number of slices of a size in bytes.
    #[must_use]
    pub fn new(slices: u64, slice_bytes: usize) -> Arc<Self> {
        Self::create(slices, slice_bytes, true)
    }

    /// The same for memory that devices outside of the address space cannot register.
    #[must_use]
    pub fn not_exported(slices: u64, slice_bytes: usize) -> Arc<Self> {
        Self::create(slices, slice_bytes, false)
    }

    fn create(slices: u64, slice_bytes: usize, is_exported: bool) -> Arc<Self> {
        let current = Current::new(slices, slice_bytes, 0, is_exported);
        Arc::new(Self {
            slice_bytes,
            current: Mutex::new(current),
            resets: AtomicU64::new(0),
            is_exported,
        })
    }

    /// The memory as it is now.
    #[must_use]
    pub fn current(&self) -> Arc<DeviceMemory> {
        Arc::clone(&lock(&self.current).memory)
    }

    /// Resets the device: its memory ends, and is there again, with this number of slices. Does not
    /// wait for requests of neighbours.
    pub fn reset(&self, slices: u64) {
        let number = self.resets.fetch_add(1, Ordering::Relaxed) + 1;
        let mut current = lock(&self.current);
        current.memory.end();
        current.memory.revoke_exports();
        current.lose();
        *current = Current::new(slices, self.slice_bytes, number, self.is_exported);
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
    /// Copies that it has executed by itself.
    pub copies: AtomicU64,
    /// Whether copies from another device are refused as [`DeviceError::Unsupported`].
    pub refuses_copies: AtomicBool,
    /// Whether the device can be the source or the destination of no copy now.
    pub is_no_origin: AtomicBool,
    /// Copies by itself that are refused for now.
    pub copies_refused: AtomicU64,
    /// Sources of a copy that are copied; the request then completes as the device below says.
    pub copied_sources_max: AtomicU64,
}

/// A device that has data of requests in a [`TestMemory`]. The device below moves the data, by leases
/// of an arena of its own.
pub struct MemoryUser {
    inner: Arc<dyn Device>,
    memory: Arc<TestMemory>,
    arena: Arc<Arena>,
    data_path: DataPath,
    control: Arc<MemoryUserControl>,
    copies: Option<OwnCopies>,
    origin: Option<CopyOrigin>,
    /// The medium of the device that it copies from.
    source: Option<Arc<dyn Device>>,
}

/// How a [`MemoryUser`] copies by itself.
#[derive(Clone)]
struct OwnCopies {
    /// Where it reads and writes at once, which is below the device that completes the request.
    medium: Arc<dyn Device>,
    limits: CopyLimits,
}

impl MemoryUser {
    /// Makes it execute copies by itself within these limits: on `medium`, which completes requests at once
    /// and is below its own device. That completes a flush for each copy, with its faults.
    #[must_use]
    pub fn copying(mut self, medium: Arc<dyn Device>, limits: CopyLimits) -> Self {
        self.copies = Some(OwnCopies { medium, limits });
        self
    }

    /// Makes it a device of a drive that copies by itself between its devices.
    #[must_use]
    pub fn of_drive(mut self, origin: CopyOrigin) -> Self {
        self.origin = Some(origin);
        self
    }

    /// Makes it execute copies from another device of its drive, as [`copying`](Self::copying) does within
    /// itself. `source` is the medium of that device.
    #[must_use]
    pub fn copying_from(mut self, source: Arc<dyn Device>) -> Self {
        self.source = Some(source);
        self
    }

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
            copied_sources_max: AtomicU64::new(u64::MAX),
            ..MemoryUserControl::default()
        };
        Self {
            inner,
            memory: Arc::clone(memory),
            arena: Arc::clone(arena),
            data_path,
            control: Arc::new(control),
            copies: None,
            origin: None,
            source: None,
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
        let copies = self.copies.as_ref().map(|it| {
            let medium = it.medium.open_queue(options.clone());
            medium.map(|medium| (medium, it.limits))
        });
        let source = self.source.as_ref();
        let source = source.map(|source| source.open_queue(options.clone()));
        Ok(Box::new(MemoryUserQueue {
            copies: copies.transpose()?,
            origin: self.origin,
            source: source.transpose()?,
            inner: self.inner.open_queue(options)?,
            memory: Arc::clone(&self.memory),
            pool: self.arena.pool(0),
            data_path: self.data_path,
            block_bytes: self.geometry().block_size as usize,
            control: Arc::clone(&self.control),
            in_memory: Vec::new(),
        }))
    }
}

struct MemoryUserQueue {
    copies: Option<(Box<dyn DeviceQueue>, CopyLimits)>,
    origin: Option<CopyOrigin>,
    source: Option<Box<dyn DeviceQueue>>,
    inner: Box<dyn DeviceQueue>,
    memory: Arc<TestMemory>,
    pool: Pool,
    data_path: DataPath,
    block_bytes: usize,
    control: Arc<MemoryUserControl>,
    /// Requests in flight in memory.
    in_memory: Vec<Option<InMemory>>,
}

/// A request whose data is in memory.
struct InMemory {
    tag: u64,
    /// Of a read: where its data goes.
    into: Option<(Arc<SharedRegion>, usize)>,
    /// Of a copy by the device itself: its lease.
    list: Option<Lease>,
}

impl MemoryUserQueue {
    fn place(&mut self) -> usize {
        let free = self.in_memory.iter().position(Option::is_none);
        free.unwrap_or_else(|| {
            self.in_memory.push(None);
            self.in_memory.len() - 1
        })
    }

    /// The user's tag of a request of the device below.
    fn tag_of(in_memory: &[Option<InMemory>], tag: u64) -> u64 {
        let place = tag.checked_sub(OWN_TAGS).map(|it| it as usize);
        let request = place.and_then(|it| in_memory[it].as_ref());
        request.map_or(tag, |it| it.tag)
    }
}

impl MemoryUserQueue {
    /// Executes a copy by itself, from its own medium or that of the other device.
    fn copy_from(
        &mut self,
        mut request: Request,
        (sources, list_at): (&[CopySource], usize),
        limits: CopyLimits,
        is_from_other: bool,
    ) -> Result<(), Refusal> {
        let control = Arc::clone(&self.control);
        let Some((medium, _)) = &mut self.copies else {
            return Err(Refusal::Never(request, DeviceError::Unsupported));
        };
        let blocks: u32 = sources.iter().map(|it| it.blocks).sum();
        assert_eq!(blocks, request.blocks, "the sources fill the range");
        assert!(blocks <= limits.blocks_max && sources.len() <= limits.sources_max as usize);
        let list = request.data.as_mut().expect("room for the list");
        for (at, source) in sources.iter().enumerate() {
            assert!((1..=limits.source_blocks_max).contains(&source.blocks));
            list[list_at + at * COPY_SOURCE_BYTES..][..COPY_SOURCE_BYTES].fill(0xcc);
        }
        let refused = &control.copies_refused;
        if refused.load(Ordering::Relaxed) > 0 {
            refused.fetch_sub(1, Ordering::Relaxed);
            return Err(Refusal::Later(request));
        }
        let copied = control.copied_sources_max.load(Ordering::Relaxed) as usize;
        let mut to = request.lba;
        for source in sources.iter().take(copied) {
            let bytes = source.blocks as usize * self.block_bytes;
            let data = self.pool.take(bytes).expect("memory of the test");
            let step = (Operation::Read, source.lba, source.blocks);
            let data = match &mut self.source {
                Some(other) if is_from_other => run_at_once(&mut **other, step, data),
                Some(_) | None => run_at_once(&mut **medium, step, data),
            };
            run_at_once(&mut **medium, (request.operation, to, source.blocks), data);
            to += u64::from(source.blocks);
        }
        let place = self.place();
        let flush = Request {
            tag: OWN_TAGS + place as u64,
            operation: Operation::Flush,
            lba: 0,
            blocks: 0,
            data: None,
        };
        if let Err(refusal) = self.inner.submit(flush) {
            return Err(match refusal {
                Refusal::Later(_) => Refusal::Later(request),
                Refusal::Never(_, error) => Refusal::Never(request, error),
            });
        }
        control.copies.fetch_add(1, Ordering::Relaxed);
        self.in_memory[place] = Some(InMemory {
            tag: request.tag,
            into: None,
            list: request.data.take(),
        });
        Ok(())
    }
}

/// Executes a request of a device that completes it at once.
fn run_at_once(
    medium: &mut dyn DeviceQueue,
    (operation, lba, blocks): (Operation, u64, u32),
    data: Lease,
) -> Lease {
    const POLLS_MAX: usize = 1000;
    let request = Request {
        tag: 0,
        operation,
        lba,
        blocks,
        data: Some(data),
    };
    medium.submit(request).expect("room");
    let mut batch = CompletionBatch::new();
    for _ in 0..POLLS_MAX {
        medium.flush();
        medium.poll(&mut batch);
        if let Some(completion) = batch.pop() {
            completion.result.expect("the medium has no faults");
            match completion.data {
                Some(Data::Lease(lease)) => return lease,
                _ => panic!("the lease returns"),
            }
        }
    }
    panic!("the medium completes at once");
}

impl DeviceQueue for MemoryUserQueue {
    fn can_borrow_read(&self, lba: u64, blocks: u32) -> bool {
        // A drive lends nothing.
        self.data_path == DataPath::Host && self.inner.can_borrow_read(lba, blocks)
    }

    fn borrow_read(&mut self, lba: u64, blocks: u32) -> Option<Borrow> {
        match self.data_path {
            DataPath::Host => self.inner.borrow_read(lba, blocks),
            DataPath::DeviceMemory | DataPath::Best => None,
        }
    }

    fn write_inline(&mut self, lba: u64, data: &[u8]) -> bool {
        self.data_path == DataPath::Host && self.inner.write_inline(lba, data)
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
        let slice_bytes = lease.memory().slice_bytes();
        assert!(
            offset % slice_bytes + bytes <= slice_bytes,
            "it exceeds the slice"
        );
        let content = {
            let current = lock(&self.memory.current);
            assert!(Arc::ptr_eq(&current.memory, lease.memory()));
            Arc::clone(&current.content)
        };
        let address = lease.begin(offset) - lease.memory().address();
        let address = address as usize;
        let mut data = self.pool.take(bytes).expect("memory of the test");
        let tag = request.tag;
        let is_read = request.operation == Operation::Read;
        if !is_read {
            content.view().read(address, &mut data);
        }
        let place = self.place();
        self.in_memory[place] = Some(InMemory {
            tag,
            into: is_read.then_some((content, address)),
            list: None,
        });
        request.tag = OWN_TAGS + place as u64;
        request.data = Some(data);
        match self.inner.submit(request) {
            Ok(()) => {
                self.control.taken.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            Err(refusal) => {
                lease.complete_at(offset);
                self.in_memory[place] = None;
                let error = match &refusal {
                    Refusal::Later(_) => None,
                    Refusal::Never(_, error) => Some(*error),
                };
                let mut request = refusal.into_request();
                (request.tag, request.data) = (tag, None);
                Err(match error {
                    None => Refusal::Later(request),
                    Some(error) => Refusal::Never(request, error),
                })
            }
        }
    }

    fn copy_limits(&self) -> Option<CopyLimits> {
        self.copies.as_ref().map(|(_, limits)| *limits)
    }

    fn submit_copy(
        &mut self,
        request: Request,
        sources: &[CopySource],
        list_at: usize,
    ) -> Result<(), Refusal> {
        let Some((_, limits)) = self.copies else {
            return Err(Refusal::Never(request, DeviceError::Unsupported));
        };
        for source in sources {
            let end = source.lba + u64::from(source.blocks);
            let behind = request.lba + u64::from(request.blocks);
            assert!(source.lba >= behind || end <= request.lba, "an overlap");
        }
        self.copy_from(request, (sources, list_at), limits, false)
    }

    fn copy_origin(&self) -> Option<CopyOrigin> {
        let is_missing = self.control.is_no_origin.load(Ordering::Relaxed);
        self.origin.filter(|_| !is_missing)
    }

    fn submit_copy_from(
        &mut self,
        request: Request,
        origin: &CopyOrigin,
        copy: (&[CopySource], usize),
    ) -> Result<(), Refusal> {
        let own = self.origin.expect("it is of a drive");
        let limits = origin.limits_to(&own).expect("of the same drive");
        if self.control.refuses_copies.load(Ordering::Relaxed) {
            return Err(Refusal::Never(request, DeviceError::Unsupported));
        }
        self.copy_from(request, copy, limits, true)
    }

    fn give_up(&mut self, is_unwanted: &mut dyn FnMut(u64) -> bool) {
        let Self {
            inner, in_memory, ..
        } = self;
        inner.give_up(&mut |tag| is_unwanted(Self::tag_of(in_memory, tag)));
    }

    fn abandon(&mut self, is_overdue: &mut dyn FnMut(u64) -> bool) {
        let Self {
            inner, in_memory, ..
        } = self;
        inner.abandon(&mut |tag| is_overdue(Self::tag_of(in_memory, tag)));
    }

    fn flush(&mut self) {
        self.inner.flush();
    }

    fn poll(&mut self, completions: &mut CompletionBatch) -> usize {
        let mut batch = CompletionBatch::new();
        let count = self.inner.poll(&mut batch);
        for mut completion in batch {
            if let Some(place) = completion.tag.checked_sub(OWN_TAGS)
                && let Some(request) = self.in_memory[place as usize].take()
            {
                let data = completion.data.take();
                completion.tag = request.tag;
                if let (Some(data), Some((content, address))) = (data, request.into) {
                    content.view().write(address, &data);
                }
                if let Some(list) = request.list {
                    completion.data = Some(Data::Lease(list));
                }
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
