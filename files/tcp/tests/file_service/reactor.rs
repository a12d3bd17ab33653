//! A thread that runs the service as a reactor does, on one device.

use std::cell::RefCell;
use std::net::{SocketAddr, TcpListener};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use block::{Device, DeviceSet, MemoryDevice, MemoryOptions, QueueOptions, ReactorDevices};
use files_server::{Clients, Now, Server, ServerOptions, Share, ShareNumber, Squash, VolumeIndex};
use files_store::{InodeId, ShareId, Time, Uuid, VolatileOptions, Volume};
use files_tcp::{
    DeviceOfVolume, FileMessage, FilePoller, FileService, FileServiceOptions, ServiceCounters,
    Sockets, VolumeLevels, system_time,
};
use hugemem::PagePolicy;
use reactors::{Nanos, Poller as _, StopState, ring};

/// Any port of this machine.
pub(crate) const LOOPBACK: &str = "127.0.0.1:0";

pub(crate) const DEVICE_BYTES: u64 = 64 << 20;
/// Size of the blocks of the device in bytes.
const BLOCK_BYTES: u32 = 512;

/// Limit of messages on the way.
const MESSAGES_MAX: usize = 4;

/// What the thread reports and obeys.
#[derive(Default)]
struct Shared {
    stops: AtomicBool,
    removes_device: AtomicBool,
    connections: AtomicUsize,
    requests: AtomicUsize,
}

/// The running service.
pub(crate) struct Reactor {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
    pub(crate) levels: Arc<VolumeLevels>,
    pub(crate) counters: Arc<ServiceCounters>,
    /// What operators ask for.
    pub(crate) messages: ring::Sender<FileMessage>,
    thread: Option<JoinHandle<()>>,
}

impl Reactor {
    /// Starts the service of a volatile volume at an address of this machine.
    pub(crate) fn start(address: &str) -> Self {
        let volume = Volume::volatile(&VolatileOptions {
            uuid: Uuid([3; 16]),
            device_bytes: DEVICE_BYTES,
            memory_bytes: 16 << 20,
        });
        Self::start_on(address, memory_device(), volume, 77)
    }

    /// Starts the service of a volume on a device. `instance` differs for each start.
    pub(crate) fn start_on(
        address: &str,
        device: Arc<dyn Device>,
        volume: Volume,
        instance: u64,
    ) -> Self {
        let listener = TcpListener::bind(address).expect("the address is free");
        listener.set_nonblocking(true).expect("a socket");
        let address = listener.local_addr().expect("bound");
        let shared = Arc::new(Shared::default());
        let of_thread = Arc::clone(&shared);
        let levels = Arc::<VolumeLevels>::default();
        let counters = Arc::<ServiceCounters>::default();
        let of_service = (Arc::clone(&levels), Arc::clone(&counters));
        let (messages, received) = ring::channel(MESSAGES_MAX);
        let server = server(volume, instance);
        let thread = std::thread::spawn(move || {
            serve(
                (listener, received),
                &*device,
                server,
                of_service,
                &of_thread,
            );
        });
        Self {
            address,
            shared,
            levels,
            counters,
            messages,
            thread: Some(thread),
        }
    }

    /// Number of connections and of requests in flight.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (
            self.shared.connections.load(Ordering::Relaxed),
            self.shared.requests.load(Ordering::Relaxed),
        )
    }

    pub(crate) fn remove_device(&self) {
        self.shared.removes_device.store(true, Ordering::Relaxed);
    }
}

impl Drop for Reactor {
    fn drop(&mut self) {
        self.shared.stops.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
            && !std::thread::panicking()
        {
            panic!("the service has panicked");
        }
    }
}

/// A device in memory.
pub(crate) fn memory_device() -> Arc<dyn Device> {
    let device = MemoryDevice::new(MemoryOptions {
        name: "ram".to_owned(),
        uuid: [1; 16],
        size_bytes: DEVICE_BYTES,
        block_size: BLOCK_BYTES,
        pages: PagePolicy::Ordinary,
        read_only: false,
    });
    Arc::new(device.expect("memory"))
}

fn server(volume: Volume, instance: u64) -> Server {
    let now = Now {
        monotonic_ms: 0,
        time: Time::default(),
    };
    let share = Share {
        number: ShareNumber(1),
        name: "data".to_owned(),
        volume: VolumeIndex(0),
        directory: InodeId(1),
        part: ShareId(0),
        is_read_only: false,
        squash: Squash::None,
        clients: Clients::Any,
        counters: Arc::default(),
    };
    let options = ServerOptions {
        identity: b"test".to_vec(),
        instance,
        volumes: vec![volume],
        shares: vec![share],
        reclaiming: Vec::new(),
        keeps_records: false,
        counters: Arc::default(),
    };
    Server::new(options, &now)
}

fn serve(
    (listener, messages): (TcpListener, ring::Receiver<FileMessage>),
    device: &dyn Device,
    server: Server,
    (levels, counters): (Arc<VolumeLevels>, Arc<ServiceCounters>),
    shared: &Shared,
) {
    let arena = block_testing::conformance::arena();
    let set = Rc::new(DeviceSet::new());
    let options = QueueOptions::new(0, 1024, arena.pool(16));
    set.attach(0, device, options).expect("a queue");
    let devices = ReactorDevices::new(Rc::clone(&set));
    let geometry = device.geometry();
    let service = FileService::new(FileServiceOptions {
        server,
        devices: vec![DeviceOfVolume {
            place: 0,
            block_bytes: geometry.block_size,
            transfer_bytes: (geometry.max_transfer_blocks * geometry.block_size) as usize,
            keeps_cache: false,
            levels,
        }],
        set,
        pool: arena.pool(16),
        network: Sockets::new(vec![listener]).expect("epoll"),
        time_of_day: system_time,
        records: None,
        counters,
        messages: Some(messages),
    });
    let service = Rc::new(RefCell::new(service.expect("a service")));
    devices.add(service.clone());
    let mut poller = FilePoller::new(Rc::clone(&service)).expect("a descriptor");
    let began = Instant::now();
    let mut is_removed = false;
    loop {
        let now = Nanos::from_micros(began.elapsed().as_micros() as u64);
        let received = poller.poll(now).is_busy();
        let moved = devices.poll(now) > 0;
        poller.flush(now);
        devices.flush();
        let (connections, requests) = service.borrow().counts();
        shared.connections.store(connections, Ordering::Relaxed);
        shared.requests.store(requests, Ordering::Relaxed);
        if shared.removes_device.load(Ordering::Relaxed) && !is_removed {
            is_removed = true;
            devices.remove_now(0, now);
        }
        if shared.stops.load(Ordering::Relaxed) && poller.stop(now) == StopState::Stopped {
            return;
        }
        if !received && !moved {
            std::thread::yield_now();
        }
    }
}
