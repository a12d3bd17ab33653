//! The ceiling: what a bare socket pair on loopback does with NVMe/TCP's byte pattern and no NVMe.
//!
//! One thread stands in for the target, one for the host, each pinned to its own core. They move the
//! same bytes in the same order as target and host do, poll non-blocking sockets, and do one receive
//! and one send per poll and connection at most, for all that is ready; but they look at nothing
//! except the number of bytes.
//!
//! Where the target's data lies decides as much as the sockets do, so there are two ceilings: random
//! blocks of as much memory as a target has to serve, sent and received there by scatter lists, and
//! one buffer that stays in the cache.

mod copies;
mod ends;
mod occupation;
mod passes;

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use hugemem::{PagePolicy, RegionError, Store};
use rustix::event::Timespec;
use rustix::net::sockopt::set_tcp_congestion;
use rustix::net::{AddressFamily, SocketType};

pub use copies::measure_copies;

use crate::cpu_limit::{CpuLimit, CpuLimitError};
use crate::load::options::SIZE_MAX_BYTES;
use crate::pinning::{PinError, pin_to_core};
use crate::report::Latency;
use crate::units::format_size;

/// Bytes of a command capsule on the wire: an 8-byte common header and a 64-byte submission queue
/// entry (TCP 1.1 §3.6.2.5).
const REQUEST_BYTES: usize = 72;
/// Bytes of every other header: C2HData, H2CData, R2T, and the response capsule.
const HEADER_BYTES: usize = 24;
/// Bytes of a small request's data, and the unit of [`AnswerMemory`].
const DATA_BYTES: usize = 4096;
/// What a command capsule of ours carries with it at most, bytes; the target asks for more by R2T.
const IN_CAPSULE_BYTES: usize = 16 << 10;
/// Congestion control of the pair, and of a target beside it: loopback loses nothing, and one that
/// paces its sending is only in the way, now more, now less. Reno is in every kernel.
pub const CONGESTION_CONTROL: &str = "reno";
/// Requests in flight on one connection at most.
const WINDOW_MAX: usize = 128;
/// Data of a request at most, bytes: what one request of a load carries at most.
const DATA_MAX_BYTES: usize = SIZE_MAX_BYTES as usize;
/// Bytes of a buffer that is to stay in the cache at most: 128 requests of 4 KiB, or 8 of 128 KiB, with
/// their headers.
const HOT_MAX_BYTES: usize = (1 << 20) + (4 << 10);

/// Memory that data is sent from, taken as a target takes a RAM device: in huge pages where there
/// are any. Cheap to clone.
#[derive(Debug, Clone)]
pub struct AnswerMemory(Arc<Store>);

impl AnswerMemory {
    /// Takes `bytes`, of which whole blocks are used.
    ///
    /// # Errors
    /// [`CeilingError`] for less than 4 KiB, or more than there is.
    pub fn take(bytes: u64) -> Result<Self, CeilingError> {
        let len = usize::try_from(bytes).unwrap_or(usize::MAX);
        if len < DATA_BYTES {
            return Err(CeilingError::too_small(bytes, DATA_BYTES));
        }
        Ok(Self(Store::new(len, PagePolicy::Auto)?))
    }

    /// Bytes there are.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.0.len() as u64
    }

    /// Bytes of each of its pages.
    #[must_use]
    pub fn page_bytes(&self) -> u64 {
        self.0.region().page_size().bytes() as u64
    }
}

/// Where the target's data lies.
#[derive(Debug, Clone)]
pub enum Answers {
    /// A random block for each request: what a target must do that serves memory. The host sends the
    /// data of writes from as much memory as is in flight, since it keeps it until it is answered.
    Memory(AnswerMemory),
    /// One buffer, again and again: it stays in the cache.
    HotBuffer,
}

/// What a request moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exchange {
    /// Whether the data goes to the target.
    pub write: bool,
    /// Bytes of data, 1 to 1 MiB: up to 16 KiB go to the target within the command capsule, more after
    /// an R2T.
    pub data_bytes: usize,
}

impl Exchange {
    /// A read of 4 KiB.
    pub const READ_4K: Self = Self {
        write: false,
        data_bytes: DATA_BYTES,
    };

    /// Bytes that a request comes to on the wire: those to the target, and those from it.
    #[must_use]
    pub fn wire_bytes(self) -> (usize, usize) {
        ends::Cycle::of(self, 1).bytes()
    }
}

/// What to drive, and where.
#[derive(Debug, Clone)]
pub struct CeilingOptions {
    /// What a request moves.
    pub exchange: Exchange,
    /// Where the target's data lies.
    pub answers: Answers,
    /// Connections, all driven by the same two threads.
    pub connections: usize,
    /// Requests kept in flight on each connection.
    pub window: usize,
    /// Core of the thread that answers.
    pub server_core: Option<usize>,
    /// Core of the thread that asks.
    pub client_core: Option<usize>,
    /// The part of its core that the thread that answers may take, percent; all of it otherwise. With a
    /// part it sleeps where nothing has come, since its waiting would be taken off that part.
    pub answering_percent: Option<u32>,
    /// Time before anything is counted.
    pub warm_up: Duration,
    /// Time that is counted.
    pub duration: Duration,
}

/// What the pair did.
#[derive(Debug, Clone)]
pub struct CeilingMeasurement {
    /// Requests answered within the counted time.
    pub requests: u64,
    /// The counted time.
    pub elapsed: Duration,
    /// Time from request to answer; filled for one request in flight only, where it is exact.
    pub latency: Option<Latency>,
    /// The part of its time in which the answering side had something to do; with a part of its core,
    /// its processor time in that time.
    pub answering_share: f64,
    /// The part of its time in which the asking side had something to do.
    pub asking_share: f64,
}

impl CeilingMeasurement {
    /// Requests per second.
    #[must_use]
    pub fn requests_per_second(&self) -> f64 {
        crate::units::per_second(self.requests, self.elapsed)
    }

    /// Requests per second of the answering side's time in which it had something to do.
    #[must_use]
    pub fn requests_per_core_second(&self) -> f64 {
        self.requests_per_second() / self.answering_share
    }

    /// Requests per second of the asking side's time in which it had something to do.
    #[must_use]
    pub fn requests_per_host_core_second(&self) -> f64 {
        self.requests_per_second() / self.asking_share
    }
}

/// Why the ceiling could not be measured.
#[derive(Debug, thiserror::Error)]
pub enum CeilingError {
    /// The socket pair failed.
    #[error("the socket pair failed: {0}")]
    Socket(#[from] io::Error),
    /// A thread could not be pinned.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// A window of 0, or of more than a sender prepares for.
    #[error("a window of {0} cannot be driven: choose 1 to {WINDOW_MAX}")]
    Window(usize),
    /// No data, or more than a request carries.
    #[error(
        "requests of {} cannot be driven: choose 1 byte to {}",
        format_size(*.0 as u64), format_size(DATA_MAX_BYTES as u64)
    )]
    Data(usize),
    /// Too little memory to take blocks from.
    #[error(
        "a memory of {bytes} bytes has not enough blocks to move: give it {} at least",
        format_size(*least)
    )]
    MemoryTooSmall {
        /// What there is.
        bytes: u64,
        /// What is needed, bytes.
        least: u64,
    },
    /// The memory could not be had.
    #[error("cannot take the memory that answers are sent from: {0}")]
    Memory(#[from] RegionError),
    /// The answering thread cannot be given a part of its core.
    #[error(transparent)]
    Limit(#[from] CpuLimitError),
    /// The answering thread came to an unexpected end.
    #[error("the answering thread panicked")]
    ServerPanicked,
}

impl CeilingError {
    fn too_small(bytes: u64, least: usize) -> Self {
        let least = least as u64;
        Self::MemoryTooSmall { bytes, least }
    }
}

/// Drives bare socket pairs with NVMe/TCP's byte pattern.
///
/// # Errors
/// [`CeilingError`] where a socket or a core is not to be had.
pub fn measure_tcp(options: &CeilingOptions) -> Result<CeilingMeasurement, CeilingError> {
    if options.window == 0 || options.window > WINDOW_MAX {
        return Err(CeilingError::Window(options.window));
    }
    if !(1..=DATA_MAX_BYTES).contains(&options.exchange.data_bytes) {
        return Err(CeilingError::Data(options.exchange.data_bytes));
    }
    let pairs = (0..options.connections.max(1)).map(|_| socket_pair());
    let (clients, servers): (Vec<_>, Vec<_>) =
        pairs.collect::<io::Result<Vec<_>>>()?.into_iter().unzip();
    let stop = AtomicBool::new(false);
    // Removed when the thread that it holds has ended.
    let limit = options.answering_percent.map(CpuLimit::new).transpose()?;
    std::thread::scope(|scope| {
        let answering = scope.spawn(|| {
            let result = pin_and_answer(&servers, options, limit.as_ref(), &stop);
            if result.is_err() {
                // The client must see the end of the streams rather than wait for ever.
                for server in &servers {
                    let _ = server.shutdown(std::net::Shutdown::Both);
                }
            }
            result
        });
        let asked = pin_and_ask(&clients, options);
        stop.store(true, Ordering::Relaxed);
        let answered = answering.join().map_err(|_| CeilingError::ServerPanicked)?;
        // The answering side's failure is the cause, and the asking side's only its echo.
        let answering_share = answered?;
        Ok(CeilingMeasurement {
            answering_share,
            ..asked?
        })
    })
}

fn pin(core: Option<usize>) -> Result<(), CeilingError> {
    core.map_or(Ok(()), |core| Ok(pin_to_core(core)?))
}

fn pin_and_answer(
    sockets: &[TcpStream],
    options: &CeilingOptions,
    limit: Option<&CpuLimit>,
    stop: &AtomicBool,
) -> Result<f64, CeilingError> {
    pin(options.server_core)?;
    let Some(limit) = limit else {
        return ends::answer(sockets, options, stop);
    };
    limit.hold_this_thread()?;
    let begun = Instant::now();
    let busy_share = ends::answer(sockets, options, stop)?;
    let whole = begun.elapsed().as_secs_f64();
    let taken = limit.cpu_time();
    Ok(taken.map_or(busy_share, |taken| taken.as_secs_f64() / whole))
}

fn pin_and_ask(
    sockets: &[TcpStream],
    options: &CeilingOptions,
) -> Result<CeilingMeasurement, CeilingError> {
    std::thread::scope(|scope| {
        // A thread of its own, so that the caller's affinity stays as it was.
        let asking = scope.spawn(|| {
            pin(options.client_core)?;
            ends::ask(sockets, options)
        });
        asking.join().map_err(|_| CeilingError::ServerPanicked)?
    })
}

fn socket_pair() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
    let client = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None)?;
    // Before there is a connection, as target and host have it: one that began with a control that
    // paces its sending stays paced. Without ours the pair is as fast as the system's lets it be.
    let _ = set_tcp_congestion(&listener, CONGESTION_CONTROL);
    let _ = set_tcp_congestion(&client, CONGESTION_CONTROL);
    rustix::net::connect(&client, &listener.local_addr()?)?;
    let client = TcpStream::from(client);
    let (server, _) = listener.accept()?;
    for socket in [&client, &server] {
        socket.set_nodelay(true)?;
        socket.set_nonblocking(true)?;
    }
    Ok((client, server))
}

/// The longest sleep of a loop that waits for something to come, after which it looks whether it is
/// to stop.
pub(crate) const SLEEP_MAX: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 10_000_000,
};

/// An empty latency histogram, nanoseconds, three significant digits.
#[must_use]
pub fn histogram() -> Histogram<u64> {
    // Bounds and precision are constants that the constructor accepts: a test constructs one.
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("constant bounds are valid")
}

/// A duration in nanoseconds, as a histogram takes it.
#[must_use]
pub fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
