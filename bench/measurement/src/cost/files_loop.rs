//! The file service with its transport at one end and clients at the other, connected by the loopback
//! interface, on one thread: reads and writes of a file on a volume in memory.
//!
//! Requests are made before they are counted, and replies are only counted, so that nothing of the
//! protocol is executed at the clients' end meanwhile.

use std::cell::RefCell;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use block::{Device, DevicePoller, DeviceSet, QueueOptions, ReactorDevices};
use files_client::ReplyStream;
use files_client_testing::{Connection, Slot, create_file, name};
use files_server::{Clients, Now, Server, ServerOptions, Share, ShareNumber, Squash, VolumeIndex};
use files_spec::Status;
use files_spec::attributes::Attributes;
use files_spec::operations::{CloseArgs, CreateArgs, Operation};
use files_spec::rpc::Fragment;
use files_spec::types::{CreateType, StateId};
use files_spec::xdr::Opaque;
use files_store::{FormatOptions, InodeId, ShareId, Time, Uuid, VolatileOptions, Volume};
use files_tcp::{
    DeviceOfVolume, FilePoller, FileService, FileServiceOptions, ServiceCounters, Sockets, stored,
    system_time,
};
use hugemem::allocation_counter::allocations_on_this_thread;
use hugemem::{Arena, ArenaConfig, PagePolicy, Pool};
use reactors::{Nanos, Poller};

use crate::cost::LoopCounts;
use crate::cost::measure::CostError;
use crate::cost::rig::{BLOCK_BYTES, DEVICE_BYTES, ram, setup};
use crate::cost::tcp_loop::{counting_begins, counting_ends};
use bench::random::Random;

/// The case with a goal in the issue.
pub const FILES_MAIN_CASE: &str = "ram-read-4k-128";

/// Slots of a session, which a client uses all.
const SLOTS: u32 = 64;

/// Size of the file in bytes.
const FILE_BYTES: u64 = 8 << 20;

/// Limit of the metadata, and size of the log, in bytes.
const MEMORY_BYTES: u64 = 16 << 20;
const LOG_BYTES: u64 = 8 << 20;

/// Virtual time of one turn.
const TURN: Nanos = Nanos::from_micros(50);

/// Time in which everything that was sent over the loopback interface has arrived.
const ARRIVAL: Duration = Duration::from_millis(2);

/// Time between two turns while clients prepare: few turns, also on a busy machine.
const PREPARATION: Duration = Duration::from_micros(200);

/// Number of warm-up batches.
const WARM_UP_BATCHES: u64 = 8;

/// Maximum number of turns of one batch.
const TURNS_MAX: u32 = 1000;

/// What clients ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Job {
    Read,
    Write,
    MakeDirectory,
    /// It is closed by the same request.
    CreateFile,
}

/// Requests that are sent together and answered before the next ones.
#[derive(Debug, Clone, Copy)]
pub(super) struct Load {
    pub(super) job: Job,
    /// Size of the data in bytes.
    pub(super) bytes: u32,
    /// Requests in flight on each connection.
    pub(super) depth: u32,
    pub(super) connections: usize,
}

/// Where the files are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Storage {
    /// A volume without a log.
    Volatile,
    /// A volume with a log, on a device that is as fast.
    Durable,
}

/// A counted case.
#[derive(Debug, Clone, Copy)]
struct Case {
    name: &'static str,
    load: Load,
    batches: u64,
}

const fn case(name: &'static str, job: Job, bytes: u32, shape: (u32, usize, u64)) -> Case {
    let (depth, connections, batches) = shape;
    Case {
        name,
        load: Load {
            job,
            bytes,
            depth,
            connections,
        },
        batches,
    }
}

const CASES: [Case; 5] = [
    case(FILES_MAIN_CASE, Job::Read, 4096, (SLOTS, 2, 20)),
    case("ram-read-4k-1", Job::Read, 4096, (1, 1, 500)),
    case("ram-read-1m-4", Job::Read, 1 << 20, (4, 1, 20)),
    case("ram-write-4k-8", Job::Write, 4096, (8, 1, 100)),
    case("ram-write-4k-1", Job::Write, 4096, (1, 1, 500)),
];

/// The names of all cases.
pub fn names() -> impl Iterator<Item = &'static str> {
    CASES.iter().map(|case| case.name)
}

/// The server's end of the loop.
pub(super) struct Rig {
    /// Boxed, as in a reactor: code inlined into the loop would count as the loop's.
    files: Box<dyn Poller>,
    devices: Box<dyn Poller>,
    counters: Arc<ServiceCounters>,
    address: SocketAddr,
    now: Nanos,
    turns: u64,
    allocations: u64,
    /// Time of all turns.
    pub(super) busy: Duration,
}

impl Rig {
    /// A server of one volume.
    pub(super) fn new(storage: Storage) -> Result<Self, CostError> {
        let arena = Arena::new(ArenaConfig {
            bytes: 64 << 20,
            pages: PagePolicy::Ordinary,
            max_transfer: 1 << 20,
        });
        let arena = arena.map_err(|error| setup("memory", &error))?;
        let device = ram(DEVICE_BYTES)?;
        let set = Rc::new(DeviceSet::new());
        let pool = arena.pool(16);
        let options = QueueOptions::new(0, 1024, pool.clone());
        let volume = volume(storage, &*device, &pool)?;
        let opened = set.attach(0, &*device, options);
        opened.map_err(|error| setup("a device's queue", &error))?;
        let devices = ReactorDevices::new(Rc::clone(&set));
        let listener = TcpListener::bind("127.0.0.1:0").and_then(|listener| {
            listener.set_nonblocking(true)?;
            Ok(listener)
        });
        let listener = listener.map_err(|error| setup("the listener", &error))?;
        let address = listener.local_addr();
        let address = address.map_err(|error| setup("the listener", &error))?;
        let counters = Arc::<ServiceCounters>::default();
        let geometry = device.geometry();
        let service = FileService::new(FileServiceOptions {
            server: server(volume),
            devices: vec![DeviceOfVolume {
                place: 0,
                block_bytes: BLOCK_BYTES,
                transfer_bytes: (geometry.max_transfer_blocks * BLOCK_BYTES) as usize,
                keeps_cache: false,
                levels: Arc::default(),
            }],
            set,
            pool,
            network: Sockets::new(vec![listener]).map_err(|error| setup("epoll", &error))?,
            time_of_day: system_time,
            records: None,
            counters: Arc::clone(&counters),
            messages: None,
        });
        let service = service.map_err(|error| setup("the service", &error))?;
        let service = Rc::new(RefCell::new(service));
        devices.add(service.clone());
        let devices = DevicePoller::new(devices).map_err(|error| setup("the devices", &error))?;
        let files = FilePoller::new(service).map_err(|error| setup("the service", &error))?;
        Ok(Self {
            files: Box::new(files),
            devices: Box::new(devices),
            counters,
            address,
            now: Nanos::from_secs(1),
            turns: 0,
            allocations: 0,
            busy: Duration::ZERO,
        })
    }

    fn turn(&mut self) {
        self.now += TURN;
        let begin = Instant::now();
        let before = allocations_on_this_thread();
        self.files.poll(self.now);
        self.devices.poll(self.now);
        self.files.flush(self.now);
        self.devices.flush(self.now);
        self.allocations += allocations_on_this_thread() - before;
        self.busy += begin.elapsed();
        self.turns += 1;
    }

    /// Runs turns while a client works on a thread of its own.
    fn serve<T: Send + 'static>(
        &mut self,
        client: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, CostError> {
        let client = std::thread::spawn(client);
        while !client.is_finished() {
            self.turn();
            // Callgrind counts some system calls of before the beginning, too.
            std::thread::sleep(PREPARATION);
        }
        let ended = client.join();
        ended.map_err(|_| CostError::Setup("the client panicked".to_owned()))
    }

    /// Two clients with the same file.
    pub(super) fn clients(&mut self) -> Result<Vec<Client>, CostError> {
        let address = self.address;
        let owners = [("first", true), ("second", false)];
        let client = |(owner, fills)| self.serve(move || Client::new(address, owner, fills));
        owners.into_iter().map(client).collect()
    }

    fn values(&self) -> [(&'static str, u64); 4] {
        let it = &self.counters;
        [
            ("turns", self.turns),
            ("bytes borrowed", it.read_bytes_borrowed.get()),
            ("bytes inline", it.write_bytes_inline.get()),
            (
                "bytes copied",
                it.read_bytes_copied.get() + it.write_bytes_copied.get(),
            ),
        ]
    }
}

fn volume(storage: Storage, device: &dyn Device, pool: &Pool) -> Result<Volume, CostError> {
    let (uuid, device_bytes) = (Uuid([3; 16]), device.geometry().bytes());
    if storage == Storage::Volatile {
        return Ok(Volume::volatile(&VolatileOptions {
            uuid,
            device_bytes,
            memory_bytes: MEMORY_BYTES,
        }));
    }
    let options = FormatOptions {
        uuid,
        salt: 5,
        device_bytes,
        memory_bytes: MEMORY_BYTES,
        log_bytes: LOG_BYTES,
    };
    let formatted = stored::format(&mut own(device, pool), &options);
    let opened = formatted.and_then(|()| stored::open(&mut own(device, pool)));
    opened.map_err(|error| setup("the volume", &error))
}

/// A queue of a device for the functions of `stored`.
fn own(device: &dyn block::Device, pool: &hugemem::Pool) -> stored::OwnQueue {
    stored::OwnQueue::new(device, pool).expect("a queue")
}

fn server(volume: Volume) -> Server {
    let options = ServerOptions {
        identity: b"cost".to_vec(),
        instance: 77,
        volumes: vec![volume],
        shares: vec![Share {
            number: ShareNumber(1),
            name: "data".to_owned(),
            volume: VolumeIndex(0),
            directory: InodeId(1),
            part: ShareId(0),
            is_read_only: false,
            squash: Squash::None,
            clients: Clients::Any,
            counters: Arc::default(),
        }],
        reclaiming: Vec::new(),
        keeps_records: false,
        counters: Arc::default(),
    };
    let now = Now {
        monotonic_ms: 1000,
        time: Time::default(),
    };
    Server::new(options, &now)
}

/// A client with an open file, and the file's handle.
pub(super) struct Client {
    connection: Connection,
    slots: Vec<Slot>,
    handle: Vec<u8>,
    /// The handle of the share's directory.
    directory: Vec<u8>,
    /// Number of names that were used.
    names: u64,
    owner: &'static str,
    incoming: ReplyStream,
}

impl Client {
    /// Fills the file, if it is the first client.
    fn new(address: SocketAddr, owner: &'static str, fills: bool) -> Self {
        let mut connection = Connection::new(address);
        let mut first = Slot::new(&mut connection, owner.as_bytes());
        if fills {
            let data = vec![0x5a; 1 << 20];
            for offset in (0..FILE_BYTES).step_by(data.len()) {
                let write = first.write(offset, &data);
                let answer = first.call(&mut connection, &write);
                assert_eq!(answer.parts().0, Status::OK, "the file has room");
            }
        }
        let handle = first.handle(&mut connection);
        let directory = first.directory_handle(&mut connection);
        let others = (1..SLOTS).map(|slotid| first.other(slotid));
        let slots = std::iter::once(first).chain(others).collect();
        let client = Self {
            connection,
            slots,
            handle,
            directory,
            names: 0,
            owner,
            incoming: ReplyStream::default(),
        };
        let stream = &client.connection.stream;
        stream.set_nonblocking(true).expect("a socket");
        // All replies of a batch fit, so that each connection sends once.
        let _ = rustix::net::sockopt::set_socket_recv_buffer_size(stream, 4 << 20);
        client
    }

    /// The bytes of a batch of requests.
    pub(super) fn batch(&mut self, load: &Load, random: &mut Random) -> Vec<u8> {
        let data = vec![0xa5; load.bytes as usize];
        let mut bytes = Vec::new();
        for slot in &mut self.slots[..load.depth as usize] {
            self.names += 1;
            let text = format!("{}-{}", self.owner, self.names);
            let places = FILE_BYTES / u64::from(load.bytes.max(1));
            let offset = random.below(places) * u64::from(load.bytes);
            let in_directory = Operation::PutFh(Opaque(&self.directory));
            let to_file = Operation::PutFh(Opaque(&self.handle));
            let operations: &[Operation<'_>] = match load.job {
                Job::Read => &[to_file, slot.read(offset, load.bytes)[3]],
                Job::Write => &[to_file, slot.write(offset, &data)[3]],
                Job::MakeDirectory => &[
                    in_directory,
                    Operation::Create(CreateArgs {
                        objtype: CreateType::Directory,
                        objname: name(&text),
                        createattrs: Attributes::default(),
                    }),
                ],
                Job::CreateFile => &[
                    in_directory,
                    create_file(&text),
                    Operation::Close(CloseArgs {
                        seqid: 0,
                        open_stateid: StateId::CURRENT,
                    }),
                ],
            };
            let record = slot.record(&mut self.connection, operations, false);
            bytes.extend(Fragment::whole(record.len()).encode());
            bytes.extend(record);
        }
        bytes
    }

    fn stream(&mut self) -> &mut TcpStream {
        &mut self.connection.stream
    }

    /// Takes what has arrived. Returns the number of whole replies.
    fn collect(&mut self) -> io::Result<u32> {
        let mut replies = 0;
        loop {
            match self.connection.stream.read(self.incoming.room()) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.incoming.received(count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(replies),
                Err(error) => return Err(error),
            }
            let ended = |error| io::Error::other(format!("{error:?}"));
            while let Some(record) = self.incoming.next_record().map_err(ended)? {
                // The status follows the header of an accepted reply.
                let status = record.get(24..28);
                if status != Some(&[0; 4]) {
                    return Err(io::Error::other(format!("status {status:?}")));
                }
                replies += 1;
            }
        }
    }
}

/// Sends a batch of each client, and runs turns until all are answered.
pub(super) fn run_batch(
    rig: &mut Rig,
    clients: &mut [Client],
    load: &Load,
    batches: &[Vec<u8>],
) -> Result<(), CostError> {
    let failed = |error: io::Error| setup("a client", &error);
    let mut sent = vec![0; clients.len()];
    let mut missing = load.depth * clients.len() as u32;
    for _ in 0..TURNS_MAX {
        for ((client, bytes), sent) in clients.iter_mut().zip(batches).zip(&mut sent) {
            while *sent < bytes.len() {
                match client.stream().write(&bytes[*sent..]) {
                    Ok(count) => *sent += count,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) => return Err(failed(error)),
                }
            }
        }
        std::thread::sleep(ARRIVAL);
        rig.turn();
        for client in &mut *clients {
            missing -= client.collect().map_err(failed)?;
        }
        if missing == 0 {
            return Ok(());
        }
    }
    Err(CostError::Setup(format!("{load:?} is not completed")))
}

/// Runs every case, or the named one, each after a warm-up. Returns the counters by name.
///
/// # Errors
/// [`CostError::Setup`].
pub fn run(only: Option<&str>) -> Result<Vec<(String, LoopCounts)>, CostError> {
    let mut rig = Rig::new(Storage::Volatile)?;
    let mut clients = rig.clients()?;
    let mut random = Random::new(1);
    let mut counted = Vec::new();
    for case in CASES
        .iter()
        .filter(|it| only.is_none_or(|only| it.name == only))
    {
        let clients = &mut clients[..case.load.connections];
        let batches: Vec<Vec<Vec<u8>>> = (0..WARM_UP_BATCHES + case.batches)
            .map(|_| {
                let each = clients
                    .iter_mut()
                    .map(|it| it.batch(&case.load, &mut random));
                each.collect()
            })
            .collect();
        let (warm_up, measured) = batches.split_at(WARM_UP_BATCHES as usize);
        for batch in warm_up {
            run_batch(&mut rig, clients, &case.load, batch)?;
        }
        let before = rig.values();
        rig.allocations = 0;
        counting_begins();
        for batch in measured {
            run_batch(&mut rig, clients, &case.load, batch)?;
        }
        counting_ends();
        let values = rig.values().into_iter().zip(before);
        let counts = LoopCounts {
            requests: case.batches * u64::from(case.load.depth) * case.load.connections as u64,
            allocations: rig.allocations,
            counted: values
                .map(|((name, after), (_, before))| (name.to_owned(), after - before))
                .collect(),
        };
        counted.push((case.name.to_owned(), counts));
    }
    Ok(counted)
}

#[cfg(test)]
mod tests {
    use bench::files::metadata::{MetadataPlan, measure};
    use bench::files::{FilesPlan, FilesTarget, run_files};
    use bench::load::run::NoWatch;
    use bench::load::{Limit, Pattern, Workload};
    use files_spec::types::Stable;

    use super::*;

    fn target(rig: &Rig) -> FilesTarget {
        FilesTarget {
            address: rig.address,
            path: "/data/".to_owned(),
            minor_version: 2,
            uid: 0,
        }
    }

    fn plan(rig: &Rig, limit: Limit) -> FilesPlan {
        FilesPlan {
            target: target(rig),
            workload: Workload {
                sizes_bytes: Vec::new(),
                depth: 8,
                queues: 2,
                threads: 1,
                read_percent: 50,
                pattern: Pattern::Random,
                rate: None,
                limit,
                warm_up: Duration::ZERO,
                verify: true,
                region_bytes: Some(2 << 20),
                seed: 7,
            },
            cores: Vec::new(),
            stable: Stable::UNSTABLE,
        }
    }

    #[test]
    fn load_on_files_is_verified() {
        for storage in [Storage::Volatile, Storage::Durable] {
            let mut rig = Rig::new(storage).expect("a server");
            let plan = plan(&rig, Limit::Operations(2000));
            let outcome = rig.serve(move || run_files(&plan, &mut NoWatch));
            let outcome = outcome.expect("it ends").expect("it runs");
            assert_eq!(outcome.phases.len(), 3);
            for (phase, stats) in &outcome.phases {
                assert!(stats.trouble.is_none(), "{phase:?}: {:?}", stats.trouble);
            }
            let (_, main) = &outcome.phases[1];
            assert_eq!(main.reads.operations + main.writes.operations, 2000);
            assert!(main.checked.right > 0 && main.checked.unknown == 0);
        }
    }

    #[test]
    fn names_are_created_and_removed() {
        let mut rig = Rig::new(Storage::Durable).expect("a server");
        let plan = MetadataPlan {
            target: target(&rig),
            connections: 3,
            threads: 2,
            depth: 4,
            items: 50,
        };
        // A second round finds nothing of the first one.
        for _ in 0..2 {
            let plan = plan.clone();
            let report = rig.serve(move || measure(&plan, &|| false));
            let report = report.expect("it ends").expect("it runs");
            assert_eq!(report.trouble, None);
            let operations: Vec<u64> = report.phases.iter().map(|it| it.operations).collect();
            assert_eq!(operations, [150; 6]);
        }
    }

    #[test]
    fn a_server_that_ends_meanwhile_is_reported() {
        let mut rig = Rig::new(Storage::Volatile).expect("a server");
        let plan = plan(&rig, Limit::Time(Duration::from_secs(60)));
        let client = std::thread::spawn(move || run_files(&plan, &mut NoWatch));
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(1) {
            rig.turn();
            std::thread::yield_now();
        }
        drop(rig);
        let ended = client.join().expect("it ends");
        let text = match ended {
            Ok(outcome) => {
                let (_, last) = outcome.phases.last().expect("a phase");
                let trouble = last.trouble.as_ref().expect("the server has ended");
                trouble.to_string()
            }
            // A slow machine has not begun.
            Err(error) => error.to_string(),
        };
        assert!(text.contains("the server closed the connection"), "{text}");
    }
}
