//! A drive on an emulated controller in virtual time, and a client with one reactor's requests.
#![expect(dead_code, reason = "each test binary uses its own part")]

use std::collections::HashMap;
use std::sync::Arc;

use block::{
    CompletionBatch, Device, DeviceError, DeviceQueue, Operation, QueueOptions, Refusal, Request,
    SharedQueues,
};
use hugemem::{Arena, ArenaConfig, DeviceLease, Lease, PagePolicy, Pool};
use nvme_driver::backing::DeviceBacking;
use nvme_driver::{
    BringUp, BringUpState, Deadlines, Drive, DriveError, DriveOptions, DriveOwner, DriveState,
    REACTORS_MAX,
};
use nvme_driver_testing::{EmulatedController, EmulatedOptions, EmulatorControl};
use reactors::{Nanos, Poller};

/// Default step of virtual time.
pub(crate) const MS: Nanos = Nanos::from_millis(1);

/// Choices, determined by a seed.
#[derive(Clone, Debug)]
pub(crate) struct Seeded(reactors::sim::Seeded);

impl Seeded {
    pub(crate) fn new(seed: u64) -> Self {
        let mut seeded = reactors::sim::Seeded::at(seed.wrapping_mul(0xD1B5_4A32_D192_ED03));
        seeded.draw();
        Self(seeded)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0.draw()
    }

    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0.below(bound)
    }

    /// Returns true with a probability of 1 in `many`.
    pub(crate) fn one_in(&mut self, many: u64) -> bool {
        self.below(many) == 0
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

pub(crate) fn arena() -> Arc<Arena> {
    let config = ArenaConfig {
        bytes: 32 << 20,
        pages: PagePolicy::Ordinary,
        max_transfer: 1 << 20,
    };
    Arena::new(config).expect("32 MiB")
}

/// Number of slices of the arena that are taken.
pub(crate) fn taken(arena: &Arena) -> u64 {
    let classes = arena.counters().classes;
    classes.iter().map(|class| class.taken).sum()
}

/// Deadlines within a second of virtual time.
pub(crate) const DEADLINES: Deadlines = Deadlines {
    command: Nanos::from_millis(40),
    abort: Nanos::from_millis(20),
    reset: Nanos::from_millis(200),
    quiesce: Nanos::from_millis(20),
    shutdown: Nanos::from_millis(20),
};

/// Maximum duration of a request in virtual time, whatever happens: deadline, abort, detection, and
/// a reset that takes its full time, with CAP.TO twice.
pub(crate) const PATIENCE: Nanos = Nanos::from_secs(3);

pub(crate) fn drive_options(reactors: usize) -> DriveOptions {
    DriveOptions {
        reactors,
        deadlines: DEADLINES,
        ..DriveOptions::new("drive")
    }
}

/// A started drive with its owner, in virtual time.
pub(crate) struct Rig {
    pub(crate) arena: Arc<Arena>,
    pub(crate) controller: Arc<EmulatedController>,
    pub(crate) control: EmulatorControl,
    pub(crate) drive: Arc<Drive>,
    pub(crate) owner: DriveOwner,
    pub(crate) now: Nanos,
    /// What the queues of each reactor share.
    shared: Vec<SharedQueues>,
}

impl Rig {
    pub(crate) fn new(emulated: EmulatedOptions, options: DriveOptions) -> Self {
        Self::try_new(&arena(), emulated, options).expect("a drive")
    }

    /// Starts a drive. Returns its error if that fails.
    pub(crate) fn try_new(
        arena: &Arc<Arena>,
        emulated: EmulatedOptions,
        options: DriveOptions,
    ) -> Result<Self, DriveError> {
        let controller = EmulatedController::new(arena.region(), emulated).expect("a controller");
        let controller = Arc::new(controller);
        Self::on(arena, controller, options)
    }

    /// Starts a drive on an existing controller.
    pub(crate) fn on(
        arena: &Arc<Arena>,
        controller: Arc<EmulatedController>,
        options: DriveOptions,
    ) -> Result<Self, DriveError> {
        let backing = Arc::clone(&controller) as Arc<dyn DeviceBacking>;
        let mut bring_up = BringUp::new(backing, arena, options)?;
        let mut now = Nanos::ZERO;
        loop {
            controller.tick(now);
            match bring_up.poll(now) {
                BringUpState::Pending => now += MS,
                BringUpState::Ready((drive, owner)) => {
                    return Ok(Self {
                        arena: Arc::clone(arena),
                        control: controller.control(),
                        controller,
                        drive,
                        owner,
                        now,
                        shared: (0..REACTORS_MAX).map(|_| SharedQueues::default()).collect(),
                    });
                }
                BringUpState::Failed(error) => return Err(error),
            }
            assert!(now < Nanos::from_secs(300), "the start does not end");
        }
    }

    /// Advances time, and runs controller, owner and control thread.
    pub(crate) fn step(&mut self, span: Nanos) {
        self.now += span;
        self.controller.tick(self.now);
        self.owner.poll(self.now);
        self.owner.flush(self.now);
        if self.drive.function_reset_needed() {
            // Some tests make it fail; the driver must handle that.
            let _ = self.drive.function_reset();
        }
        let violation = self.arena.take_dma_violation();
        assert_eq!(
            violation, None,
            "the drive reached memory that it was not given"
        );
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.drive.state() == DriveState::Ready
    }

    pub(crate) fn is_gone(&self) -> bool {
        matches!(self.drive.state(), DriveState::Gone(_))
    }

    /// The reactors of `other` poll this drive too.
    pub(crate) fn join(&mut self, other: &Self) {
        self.shared.clone_from(&other.shared);
    }

    /// Closes the drive, and returns whether that took less than [`PATIENCE`].
    pub(crate) fn close(&mut self) -> bool {
        self.drive.close();
        let deadline = self.now + PATIENCE;
        while !self.drive.is_closed() && self.now < deadline {
            self.step(MS);
        }
        self.drive.is_closed()
    }

    /// Opens a namespace as a device.
    pub(crate) fn device(&self, nsid: u32) -> Arc<dyn Device> {
        let device = self.drive.device(nsid, "ns", [nsid as u8; 16]);
        device.expect("a usable namespace")
    }

    pub(crate) fn client(&self, nsid: u32, reactor: usize, depth: usize) -> Client {
        let shared = self.shared[reactor].clone();
        Client::new(&*self.device(nsid), &self.arena, reactor, depth, shared)
    }
}

/// The result of a request.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) tag: u64,
    pub(crate) result: Result<(), DeviceError>,
    /// For reads: the content of the lease.
    pub(crate) data: Option<Vec<u8>>,
}

/// A queue of one reactor for one namespace.
pub(crate) struct Client {
    pub(crate) queue: Box<dyn DeviceQueue>,
    pub(crate) pool: Pool,
    pub(crate) block_size: usize,
    reads: HashMap<u64, bool>,
    next_tag: u64,
}

/// A request without data in the arena.
pub(crate) fn request(operation: Operation, lba: u64, blocks: u32) -> Request {
    Request {
        tag: 1,
        operation,
        lba,
        blocks,
        data: None,
    }
}

impl Client {
    /// Submits a request whose data is in device memory.
    pub(crate) fn submit_in_device(
        &mut self,
        request: Request,
        lease: &mut DeviceLease,
    ) -> Result<(), DeviceError> {
        match self.queue.submit_in_device(request, lease, 0) {
            Ok(()) => Ok(()),
            Err(Refusal::Never(_, error)) => Err(error),
            Err(Refusal::Later(_)) => panic!("the queue is not full"),
        }
    }

    pub(crate) fn new(
        device: &dyn Device,
        arena: &Arc<Arena>,
        reactor: usize,
        depth: usize,
        shared: SharedQueues,
    ) -> Self {
        let pool = arena.pool(0);
        let options = QueueOptions {
            shared,
            ..QueueOptions::new(reactor, depth, pool.clone())
        };
        let queue = device.open_queue(options).expect("a queue");
        Self {
            queue,
            pool,
            block_size: device.geometry().block_size as usize,
            reads: HashMap::new(),
            next_tag: 0,
        }
    }

    pub(crate) fn lease(&self, data: &[u8]) -> Lease {
        let mut lease = self.pool.take(data.len()).expect("a large arena");
        lease.copy_from_slice(data);
        lease
    }

    /// Submits a request. Returns its tag, or the reason of the refusal.
    pub(crate) fn submit(
        &mut self,
        operation: Operation,
        lba: u64,
        blocks: u32,
        data: Option<&[u8]>,
    ) -> Result<u64, Option<DeviceError>> {
        self.next_tag += 1;
        let garbage;
        let data = match (operation, data) {
            (Operation::Read, _) => {
                garbage = vec![0xEE; blocks as usize * self.block_size];
                Some(&garbage[..])
            }
            (_, data) => data,
        };
        let request = Request {
            tag: self.next_tag,
            operation,
            lba,
            blocks,
            data: data.map(|data| self.lease(data)),
        };
        match self.queue.submit(request) {
            Ok(()) => {
                let is_read = operation == Operation::Read;
                self.reads.insert(self.next_tag, is_read);
                Ok(self.next_tag)
            }
            Err(Refusal::Later(_)) => Err(None),
            Err(Refusal::Never(_, error)) => Err(Some(error)),
        }
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.reads.len()
    }

    /// Runs one turn: doorbells, then completions.
    pub(crate) fn turn(&mut self) -> Vec<Ended> {
        self.queue.flush();
        let mut batch = CompletionBatch::new();
        self.queue.poll(&mut batch);
        let ended = batch.drain(..).map(|completion| {
            let read = self.reads.remove(&completion.tag);
            let read = read.expect("a completion of a request in flight, once");
            let whole = read && completion.result.is_ok();
            Ended {
                tag: completion.tag,
                result: completion.result,
                data: completion.data.filter(|_| whole).map(|data| data.to_vec()),
            }
        });
        let ended: Vec<_> = ended.collect();
        assert_eq!(
            self.queue.in_flight(),
            self.reads.len(),
            "in_flight is exact"
        );
        ended
    }

    /// Steps the rig until all requests are completed, within [`PATIENCE`].
    pub(crate) fn finish(&mut self, rig: &mut Rig) -> Vec<Ended> {
        let deadline = rig.now + PATIENCE;
        let mut all = self.turn();
        while self.in_flight() > 0 {
            assert!(rig.now < deadline, "{} requests are lost", self.in_flight());
            rig.step(MS);
            all.extend(self.turn());
        }
        all
    }

    /// Runs one request to completion. Advances time while the drive refuses it with "later".
    pub(crate) fn run(
        &mut self,
        rig: &mut Rig,
        operation: Operation,
        lba: u64,
        data: &[u8],
    ) -> Result<Option<Vec<u8>>, DeviceError> {
        let blocks = (data.len() / self.block_size) as u32;
        let deadline = rig.now + PATIENCE;
        let wanted = operation.has_data().then_some(data);
        let tag = loop {
            match self.submit(operation, lba, blocks, wanted) {
                Ok(tag) => break tag,
                Err(Some(error)) => return Err(error),
                Err(None) => {
                    assert!(rig.now < deadline, "refused for too long");
                    rig.step(MS);
                    self.turn();
                }
            }
        };
        let ended = self.finish(rig);
        let ended = ended.into_iter().find(|ended| ended.tag == tag);
        let ended = ended.expect("the request");
        ended.result.map(|()| ended.data)
    }

    pub(crate) fn write(&mut self, rig: &mut Rig, lba: u64, byte: u8) -> Result<(), DeviceError> {
        let data = vec![byte; self.block_size];
        self.run(rig, Operation::Write { fua: false }, lba, &data)?;
        Ok(())
    }

    /// Reads a block whose bytes are all equal. Returns its first byte.
    pub(crate) fn read(&mut self, rig: &mut Rig, lba: u64) -> Result<u8, DeviceError> {
        let room = vec![0; self.block_size];
        let data = self.run(rig, Operation::Read, lba, &room)?;
        let data = data.expect("a read's data");
        assert!(data.iter().all(|byte| *byte == data[0]), "torn in a block");
        Ok(data[0])
    }

    pub(crate) fn flush(&mut self, rig: &mut Rig) -> Result<(), DeviceError> {
        self.run(rig, Operation::Flush, 0, &[])?;
        Ok(())
    }
}
