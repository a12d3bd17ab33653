//! The target and its TCP transport at one end, a host at the other, with the loopback interface
//! between them, on one thread.
//!
//! Both take turns: a batch of requests is sent, the target has turns until all is answered, and
//! only then comes the next batch. So each run counts the same, which two threads would not.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use block::{Device, DirectIo, FileDevice, FileOptions, NullDevice, NullOptions, QueueOptions};
use hugemem::allocation_counter::allocations_on_this_thread;
use hugemem::{Arena, ArenaConfig, PagePolicy};
use nvme_host::raw::{RawClient, RawError, RawNames};
use nvme_spec::Sqe;
use nvme_spec::sgl::SglDescriptor;
use nvme_spec::tcp::{
    C2hData, CapsuleCmd, CapsuleResp, CommonHeader, Framing, H2cData, PduType, R2t,
};
use nvme_target::{CoreLimits, PortId, TargetCore, TransportKind};
use nvme_tcp::{ConnectionSet, Handoff, TcpConfig, TcpCounters, TcpTransport};
use reactors::mesh::{self, Port};
use reactors::{Nanos, Placement, Poller};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::ioctl_fionread;
use zerocopy::{FromBytes, IntoBytes};

use crate::ceiling::CONGESTION_CONTROL;
use crate::cost::LoopCounts;
use crate::cost::measure::CostError;
use crate::cost::rig::{BLOCK_BYTES, DEVICE_BYTES, HOST_NQN, NQN, ram, setup, target};
use crate::cost::tcp_cases::{Backing, Case};
use crate::random::Random;

/// Entries of the I/O queue: one more than requests in flight.
const ENTRIES: u16 = 129;

/// Batches before anything is counted.
const WARM_UP_BATCHES: u64 = 8;

/// Virtual time of one turn: several pass before a socket no longer counts as recently active.
const TURN: Nanos = Nanos::from_micros(50);

/// Nothing on the loopback interface takes this long.
const LIMIT: Duration = Duration::from_secs(20);

/// How long to wait for bytes that are certain to come unless the target needs another turn.
const SHORTLY: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 2_000_000,
};

/// The most bytes that the target sends in one batch, and as much again.
const INCOMING_BYTES: usize = 2 << 20;

/// Callgrind knows this function by its name, and begins to count here.
#[inline(never)]
fn counting_begins() {
    std::hint::black_box("begins");
}

/// Callgrind knows this function by its name, and writes down here what it counted. Its body differs
/// from that of the other, or the compiler would make one of both.
#[inline(never)]
fn counting_ends() {
    std::hint::black_box("ends");
}

struct Rig {
    /// Behind a pointer, as a reactor has it: what is inlined into the loop would count as its own.
    transport: Box<dyn Poller>,
    devices: Vec<Arc<dyn Device>>,
    counters: Arc<TcpCounters>,
    /// Hands accepted sockets to the transport.
    door: Port<Handoff>,
    listener: TcpListener,
    now: Nanos,
    allocations: u64,
    turns: u64,
    /// The file of the file device, for as long as it is served.
    _folder: tempfile::TempDir,
}

fn devices(
    arena: &Arc<Arena>,
    folder: &std::path::Path,
) -> Result<Vec<Arc<dyn Device>>, CostError> {
    let path = folder.join("device");
    // Written, not left out, so that all of it is in the page cache.
    let filled = File::create(&path).and_then(|mut file| {
        let block = vec![0x5a; 1 << 20];
        (0..DEVICE_BYTES / block.len() as u64).try_for_each(|_| file.write_all(&block))
    });
    filled.map_err(|error| setup("the file", &error))?;
    let file = FileDevice::open(FileOptions {
        block_size: BLOCK_BYTES,
        direct: DirectIo::Never,
        arena: Some(Arc::clone(arena)),
        ..FileOptions::new("file", path)
    });
    let null = NullDevice::new(NullOptions {
        name: "null".to_owned(),
        uuid: [9; 16],
        size_bytes: DEVICE_BYTES,
        block_size: BLOCK_BYTES,
    });
    let devices: [Arc<dyn Device>; Backing::ALL.len()] = [
        ram()?,
        Arc::new(file.map_err(|error| setup("the file device", &error))?),
        Arc::new(null.map_err(|error| setup("the null device", &error))?),
    ];
    Ok(devices.into())
}

fn rig() -> Result<Rig, CostError> {
    let folder = tempfile::tempdir().map_err(|error| setup("a folder", &error))?;
    let arena = Arena::new(ArenaConfig {
        bytes: 64 << 20,
        pages: PagePolicy::Ordinary,
        max_transfer: 1 << 20,
    })
    .map_err(|error| setup("memory", &error))?;
    let devices = devices(&arena, folder.path())?;
    let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
        .map_err(|error| setup("the listener", &error))?;
    let _ = rustix::net::sockopt::set_tcp_congestion(&listener, CONGESTION_CONTROL);
    let address = listener.local_addr();
    let address = address.map_err(|error| setup("the listener", &error))?;
    let target = target(
        &arena,
        devices.clone(),
        TransportKind::Tcp,
        address,
        2 * ENTRIES,
    )?;
    let pool = arena.pool(4096);
    let mut queues = Vec::with_capacity(devices.len());
    for device in &devices {
        let queue = device.open_queue(QueueOptions {
            core: 0,
            depth: 2 * usize::from(ENTRIES),
            pool: pool.clone(),
        });
        queues.push(queue.map_err(|error| setup("a device's queue", &error))?);
    }
    let core = TargetCore::new(target, 0, queues, CoreLimits::default());
    let counters = Arc::new(TcpCounters::default());
    let set = ConnectionSet::new(
        Rc::new(RefCell::new(core)),
        pool,
        TcpConfig::default(),
        Arc::clone(&counters),
    );
    let mut ports = mesh::mesh(2, 4);
    let (Some(door), Some(own)) = (ports.pop(), ports.pop()) else {
        return Err(CostError::Setup("two ports of a mesh".to_owned()));
    };
    let transport = TcpTransport::new(set, own, Placement::new(1), Vec::new())
        .map_err(|error| setup("the transport", &error))?;
    Ok(Rig {
        transport: Box::new(transport),
        devices,
        counters,
        door,
        listener,
        now: Nanos::from_secs(1),
        allocations: 0,
        turns: 0,
        _folder: folder,
    })
}

impl Rig {
    /// One turn of a reactor.
    fn turn(&mut self) {
        self.now += TURN;
        let before = allocations_on_this_thread();
        self.transport.poll(self.now, 64);
        self.transport.flush(self.now);
        self.allocations += allocations_on_this_thread() - before;
        self.turns += 1;
    }

    /// Accepts a connection and hands it to the transport; gives the target's end of it as well, to
    /// look at what has arrived there.
    fn accept(&mut self) -> io::Result<TcpStream> {
        let (stream, _) = self.listener.accept()?;
        let end = stream.try_clone()?;
        let handoff = Handoff {
            stream,
            port: PortId(0),
        };
        let handed = self.door.send(0, handoff);
        handed.map_err(|_| io::Error::other("the transport takes no connection"))?;
        Ok(end)
    }

    /// Attaches a host, which waits for its answers on a thread of its own meanwhile.
    fn attach(&mut self) -> Result<Host, CostError> {
        let address = self.listener.local_addr();
        let address = address.map_err(|error| setup("the listener", &error))?;
        // Both have connected before either is accepted.
        let admin =
            RawClient::connect(address, LIMIT).map_err(|error| setup("the host", &error))?;
        let io = RawClient::connect(address, LIMIT).map_err(|error| setup("the host", &error))?;
        let accepted = self.accept().and_then(|_| self.accept());
        let target_end = accepted.map_err(|error| setup("the connection", &error))?;
        let opening = std::thread::spawn(move || open(admin, io));
        while !opening.is_finished() {
            self.turn();
            // Few turns, since their number differs from run to run.
            std::thread::sleep(Duration::from_millis(1));
        }
        let opened = opening.join();
        let opened = opened.map_err(|_| CostError::Setup("the host panicked".to_owned()))?;
        let (admin, io) = opened.map_err(|error| setup("the host", &error))?;
        let stream = io.into_stream();
        let configured = stream.set_nonblocking(true);
        configured.map_err(|error| setup("the host's socket", &error))?;
        Ok(Host {
            _admin: admin,
            stream,
            target_end,
            outgoing: Vec::with_capacity(INCOMING_BYTES),
            sent: 0,
            sent_in_all: self.counters.bytes_received.get(),
            incoming: vec![0; INCOMING_BYTES].into_boxed_slice(),
            filled: 0,
            in_flight: 0,
            data: vec![0xa5; 128 << 10],
        })
    }

    /// Waits until the target has something to do: bytes that are on their way to it have arrived,
    /// or its file device is done.
    fn await_work(&self, host: &Host) -> Result<(), CostError> {
        if let Some(source) = self.transport.wake_source() {
            let mut watched = [PollFd::new(&source, PollFlags::IN)];
            wait(&mut watched)?;
        }
        for _ in 0..1000 {
            let expected = host.sent_in_all - self.counters.bytes_received.get();
            let waiting = ioctl_fionread(&host.target_end);
            let waiting = waiting.map_err(|error| setup("the target's socket", &error))?;
            if waiting >= expected || host.sent < host.outgoing.len() {
                break;
            }
            std::thread::yield_now();
        }
        Ok(())
    }
}

fn wait(watched: &mut [PollFd<'_>]) -> Result<(), CostError> {
    match poll(watched, Some(&SHORTLY)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(errno) => Err(setup("poll", &errno)),
    }
}

fn open(mut admin: RawClient, mut io: RawClient) -> Result<(RawClient, RawClient), RawError> {
    let names = RawNames {
        host: HOST_NQN.to_owned(),
        host_id: [5; 16],
        subsystem: NQN.to_owned(),
    };
    let cntlid = admin.open_admin(&names)?;
    io.initialize(false, false)?;
    let connected = io.connect_queue(&names, cntlid, 1, ENTRIES - 1)?.status();
    if connected.is_success() {
        Ok((admin, io))
    } else {
        Err(RawError::Refused(connected))
    }
}

/// The host's end of an I/O queue.
struct Host {
    _admin: RawClient,
    stream: TcpStream,
    target_end: TcpStream,
    outgoing: Vec<u8>,
    /// Of `outgoing`.
    sent: usize,
    sent_in_all: u64,
    incoming: Box<[u8]>,
    filled: usize,
    in_flight: u64,
    data: Vec<u8>,
}

impl Host {
    /// Makes a batch of requests.
    fn submit(&mut self, case: &Case, random: &mut Random) {
        debug_assert_eq!(self.sent, self.outgoing.len(), "a batch is sent as a whole");
        self.outgoing.clear();
        self.sent = 0;
        let blocks = (case.bytes / BLOCK_BYTES) as u16;
        let framing = Framing::default();
        for cid in 0..case.depth {
            let lba = random.below(DEVICE_BYTES / u64::from(case.bytes)) * u64::from(blocks);
            let in_capsule = case.write && case.bytes <= 4096;
            let sqe = if case.write {
                Sqe::write(case.backing.nsid(), lba, blocks - 1, false)
            } else {
                Sqe::read(case.backing.nsid(), lba, blocks - 1)
            };
            let (sgl, data_bytes) = if in_capsule {
                (SglDescriptor::in_capsule(0, case.bytes), case.bytes)
            } else {
                (SglDescriptor::transport(case.bytes), 0)
            };
            let sqe = sqe.with_cid(cid).with_sgl(sgl);
            let capsule = CapsuleCmd::new(sqe, data_bytes, framing);
            self.outgoing.extend_from_slice(capsule.as_bytes());
            self.outgoing
                .extend_from_slice(&self.data[..data_bytes as usize]);
        }
        self.in_flight = u64::from(case.depth);
    }

    /// Sends what the socket takes.
    fn send(&mut self) -> Result<(), CostError> {
        while self.sent < self.outgoing.len() {
            match self.stream.write(&self.outgoing[self.sent..]) {
                Ok(bytes) => {
                    self.sent += bytes;
                    self.sent_in_all += bytes as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(setup("the host's socket", &error)),
            }
        }
        Ok(())
    }

    /// Takes in answers until the batch is answered, the target asks for data, or nothing more
    /// comes.
    fn collect(&mut self, certain: bool) -> Result<(), CostError> {
        let mut waited = false;
        while self.in_flight > 0 {
            match self.stream.read(&mut self.incoming[self.filled..]) {
                Ok(0) => return Err(CostError::Setup("the connection ended".to_owned())),
                Ok(bytes) => {
                    self.filled += bytes;
                    waited = false;
                    self.take_pdus()?;
                    if self.sent < self.outgoing.len() {
                        return Ok(());
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if waited || !certain {
                        return Ok(());
                    }
                    wait(&mut [PollFd::new(&self.stream, PollFlags::IN)])?;
                    waited = true;
                }
                Err(error) => return Err(setup("the host's socket", &error)),
            }
        }
        Ok(())
    }

    fn take_pdus(&mut self) -> Result<(), CostError> {
        let mut begin = 0;
        while let Ok((common, _)) =
            CommonHeader::read_from_prefix(&self.incoming[begin..self.filled])
        {
            let bytes = common.plen.get() as usize;
            if self.filled - begin < bytes {
                break;
            }
            self.take_pdu(begin, &common)?;
            begin += bytes;
        }
        self.incoming.copy_within(begin..self.filled, 0);
        self.filled -= begin;
        Ok(())
    }

    fn take_pdu(&mut self, begin: usize, common: &CommonHeader) -> Result<(), CostError> {
        let bytes = &self.incoming[begin..self.filled];
        let unexpected = || CostError::Setup(format!("an answer: {common:?}"));
        match common.pdu_type {
            PduType::C2H_DATA => {
                let (header, _) = C2hData::ref_from_prefix(bytes).map_err(|_| unexpected())?;
                self.in_flight -= u64::from(header.ch.flags.success());
            }
            PduType::CAPSULE_RESP => {
                let (capsule, _) = CapsuleResp::ref_from_prefix(bytes).map_err(|_| unexpected())?;
                if !capsule.cqe.status().is_success() {
                    return Err(unexpected());
                }
                self.in_flight -= 1;
            }
            PduType::R2T => {
                let (request, _) = R2t::ref_from_prefix(bytes).map_err(|_| unexpected())?;
                let (cid, tag) = (request.cccid.get(), request.ttag.get());
                let (offset, length) = (request.r2to.get(), request.r2tl.get());
                let header = H2cData::new(cid, tag, offset, length, true, Framing::default());
                if self.sent == self.outgoing.len() {
                    self.outgoing.clear();
                    self.sent = 0;
                }
                self.outgoing.extend_from_slice(header.as_bytes());
                self.outgoing
                    .extend_from_slice(&self.data[..length as usize]);
            }
            _ => return Err(unexpected()),
        }
        Ok(())
    }
}

/// One batch from its first request to its last answer.
fn batch(
    rig: &mut Rig,
    host: &mut Host,
    case: &Case,
    random: &mut Random,
) -> Result<(), CostError> {
    host.submit(case, random);
    for _ in 0..100_000 {
        host.send()?;
        rig.await_work(host)?;
        let sends = rig.counters.sends.get();
        rig.turn();
        host.collect(rig.counters.sends.get() > sends)?;
        if host.in_flight == 0 {
            return Ok(());
        }
    }
    Err(CostError::Setup(format!("{} is not answered", case.name())))
}

/// Runs every case, or the one that is named, each after a warm-up: what was counted, by name.
///
/// # Errors
/// [`CostError::Setup`].
pub fn run(only: Option<&str>) -> Result<Vec<(String, LoopCounts)>, CostError> {
    let mut rig = rig()?;
    let mut host = rig.attach()?;
    let mut random = Random::new(1);
    let mut counted = Vec::new();
    for case in Case::all().filter(|case| only.is_none_or(|only| case.name() == only)) {
        for _ in 0..WARM_UP_BATCHES {
            batch(&mut rig, &mut host, &case, &mut random)?;
        }
        let before = Snapshot::take(&rig, &case);
        rig.allocations = 0;
        counting_begins();
        for _ in 0..case.batches {
            batch(&mut rig, &mut host, &case, &mut random)?;
        }
        counting_ends();
        let after = Snapshot::take(&rig, &case);
        let counts = LoopCounts {
            requests: case.requests(),
            allocations: rig.allocations,
            counted: after.beyond(&before),
        };
        counted.push((case.name(), counts));
    }
    Ok(counted)
}

/// Counters at one moment.
struct Snapshot {
    values: Vec<(&'static str, u64)>,
}

impl Snapshot {
    fn take(rig: &Rig, case: &Case) -> Self {
        let counters = &rig.counters;
        let device = &rig.devices[case.backing.nsid() as usize - 1];
        // A RAM device's write is a copy; a file's is the kernel's.
        let copied_by_device = match case.backing {
            Backing::Ram => device.health().bytes_written,
            Backing::File | Backing::Null => 0,
        };
        Self {
            values: vec![
                ("receives", counters.receives.get()),
                ("sends", counters.sends.get()),
                ("turns", rig.turns),
                ("bytes placed", counters.bytes_placed.get()),
                ("bytes copied", counters.bytes_copied.get()),
                ("bytes copied by the device", copied_by_device),
            ],
        }
    }

    fn beyond(&self, before: &Self) -> Vec<(String, u64)> {
        self.values
            .iter()
            .zip(&before.values)
            .map(|((name, after), (_, before))| ((*name).to_owned(), after - before))
            .collect()
    }
}
