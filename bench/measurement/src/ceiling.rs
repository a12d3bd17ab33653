//! The ceiling: the performance of a bare socket pair on loopback with NVMe/TCP's byte pattern and
//! without NVMe.
//!
//! One thread acts as the target and one as the host, each pinned to its own core. They transfer
//! the same bytes in the same order as target and host, poll non-blocking sockets, and perform at
//! most one receive and one send per poll and connection for everything that is ready, but they
//! only count bytes.
//!
//! The location of the target's data is as important as the sockets, so there are two ceilings:
//! random blocks of a memory as large as a target serves, sent and received by scatter lists, and
//! one buffer that stays in the cache.

mod busy_time;
mod copies;
mod ends;
mod passes;
mod sealed;

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hugemem::{PagePolicy, RegionError, Store};
use rustix::event::Timespec;
use rustix::net::sockopt::set_tcp_congestion;
use rustix::net::{AddressFamily, SocketType};

pub use copies::measure_copies;

use crate::cpu_limit::{CpuLimit, CpuLimitError};
use bench::load::options::SIZE_MAX_BYTES;
use bench::pinning::{PinError, pin_to_core};
use bench::report::Latency;
use bench::units::format_size;

/// Bytes of a command capsule on the wire: an 8-byte common header and a 64-byte submission queue
/// entry (TCP 1.1 §3.6.2.6).
const REQUEST_BYTES: usize = 72;
/// Size of every other header: C2HData, H2CData, R2T, and the response capsule.
const HEADER_BYTES: usize = 24;
/// Size of a small request's data, and the unit of [`DataMemory`].
const DATA_BYTES: usize = 4096;
/// Maximum in-capsule data of our command capsules in bytes; the target requests more by R2T.
const IN_CAPSULE_BYTES: usize = 16 << 10;
/// Congestion control of the pair, and of a target beside it: loopback loses nothing, and an
/// algorithm with pacing only disturbs, with varying effect. Reno is in every kernel.
pub const CONGESTION_CONTROL: &str = "reno";
/// Maximum number of requests in flight on one connection.
const WINDOW_MAX: usize = 128;
/// Maximum data of a request in bytes, which is also that of one request of a load.
const DATA_MAX_BYTES: usize = SIZE_MAX_BYTES as usize;
/// Maximum size of a buffer that has to stay in the cache: 128 requests of 4 KiB, or 8 of 128 KiB,
/// with their headers.
const HOT_MAX_BYTES: usize = (1 << 20) + (4 << 10);

/// Memory from which data is sent, allocated like the memory of a RAM device: in huge pages if
/// available. Cheap to clone.
#[derive(Debug, Clone)]
pub struct DataMemory(Arc<Store>);

impl DataMemory {
    /// Allocates `bytes`, of which complete blocks are used.
    ///
    /// # Errors
    /// [`CeilingError`] if it is less than 4 KiB or not available.
    pub fn take(bytes: u64) -> Result<Self, CeilingError> {
        let len = usize::try_from(bytes).unwrap_or(usize::MAX);
        if len < DATA_BYTES {
            return Err(CeilingError::too_small(bytes, DATA_BYTES));
        }
        Ok(Self(Store::new(len, PagePolicy::Auto)?))
    }

    /// Its size in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.0.len() as u64
    }

    /// All of it, to send from. One borrow for a whole run, so that the loop costs no more than its
    /// sockets.
    fn borrow_all(&self) -> impl Deref<Target = [u8]> {
        let borrow = self.0.handle().try_borrow_read(0, self.0.len());
        borrow.expect("the store is ours, and nobody writes to it")
    }

    /// The size of its pages in bytes.
    #[must_use]
    pub fn page_bytes(&self) -> u64 {
        self.0.region().page_size().bytes() as u64
    }
}

/// The location of the target's data.
#[derive(Debug, Clone)]
pub enum DataLocation {
    /// A random block for each request, as a target that serves memory needs. The host sends the
    /// data of writes from as much memory as is in flight, because it keeps the data until the
    /// response.
    Memory(DataMemory),
    /// One buffer for all requests, which stays in the cache.
    HotBuffer,
}

/// The data transfer of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exchange {
    /// Whether the data is sent to the target.
    pub write: bool,
    /// Size of the data, 1 byte to 1 MiB: up to 16 KiB are sent in the command capsule, more after
    /// an R2T.
    pub data_bytes: usize,
}

impl Exchange {
    /// A read of 4 KiB.
    pub const READ_4K: Self = Self {
        write: false,
        data_bytes: DATA_BYTES,
    };

    /// Bytes of a request on the wire: those to the target, and those from it.
    #[must_use]
    pub fn wire_bytes(self) -> (usize, usize) {
        ends::Cycle::of(self, 1).bytes()
    }
}

/// Parameters of the measurement.
#[derive(Debug, Clone)]
pub struct CeilingOptions {
    /// The data transfer of a request.
    pub exchange: Exchange,
    /// The location of the target's data.
    pub answers: DataLocation,
    /// Whether both ends seal what they send in TLS records. Only reads.
    pub sealed: bool,
    /// Connections, all driven by the same two threads.
    pub connections: usize,
    /// Requests in flight on each connection.
    pub window: usize,
    /// Core of the thread that responds.
    pub server_core: Option<usize>,
    /// Core of the thread that sends requests.
    pub client_core: Option<usize>,
    /// CPU share of the responding thread in percent of its core; `None` for the whole core. With a
    /// share it sleeps while nothing has arrived, because polling would count against the share.
    pub responder_percent: Option<u32>,
    /// Warm-up time, which is not counted.
    pub warm_up: Duration,
    /// Counted time.
    pub duration: Duration,
}

/// The result of the measurement.
#[derive(Debug, Clone)]
pub struct CeilingMeasurement {
    /// Requests completed within the counted time.
    pub requests: u64,
    /// The counted time.
    pub elapsed: Duration,
    /// Time from request to response; only measured with one request in flight, where it is exact.
    pub latency: Option<Latency>,
    /// The share of its time for which the responding side was busy; if its CPU share is limited,
    /// its processor time per elapsed time.
    pub responder_busy_share: f64,
    /// The share of its time for which the requesting side was busy.
    pub requester_busy_share: f64,
}

impl CeilingMeasurement {
    /// Requests per second.
    #[must_use]
    pub fn requests_per_second(&self) -> f64 {
        bench::units::per_second(self.requests, self.elapsed)
    }

    /// Requests per second of busy time of the responding side.
    #[must_use]
    pub fn requests_per_core_second(&self) -> f64 {
        self.requests_per_second() / self.responder_busy_share
    }

    /// Requests per second of busy time of the requesting side.
    #[must_use]
    pub fn requests_per_host_core_second(&self) -> f64 {
        self.requests_per_second() / self.requester_busy_share
    }
}

/// The reason why the ceiling could not be measured.
#[derive(Debug, thiserror::Error)]
pub enum CeilingError {
    /// The socket pair failed.
    #[error("the socket pair failed: {0}")]
    Socket(#[from] io::Error),
    /// A thread could not be pinned.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// A window of 0, or larger than a sender supports.
    #[error("a window of {0} is not possible: choose 1 to {WINDOW_MAX}")]
    Window(usize),
    /// A data size of 0, or larger than the maximum of a request.
    #[error(
        "requests of {} are not possible: choose 1 byte to {}",
        format_size(*.0 as u64), format_size(DATA_MAX_BYTES as u64)
    )]
    Data(usize),
    /// Writes in TLS records.
    #[error("only reads are measured in TLS records: where a target places the data is its own")]
    SealedWrite,
    /// Too little memory for one block.
    #[error(
        "a memory of {bytes} bytes has not enough blocks to move: give it {} at least",
        format_size(*least)
    )]
    MemoryTooSmall {
        /// The available size.
        bytes: u64,
        /// The required size in bytes.
        least: u64,
    },
    /// The memory could not be allocated.
    #[error("cannot allocate the memory of the data: {0}")]
    Memory(#[from] RegionError),
    /// The CPU share of the responding thread cannot be limited.
    #[error(transparent)]
    Limit(#[from] CpuLimitError),
    /// The responding thread panicked.
    #[error("the responding thread panicked")]
    ServerPanicked,
}

impl CeilingError {
    fn too_small(bytes: u64, least: usize) -> Self {
        let least = least as u64;
        Self::MemoryTooSmall { bytes, least }
    }
}

/// Measures bare socket pairs with NVMe/TCP's byte pattern.
///
/// # Errors
/// [`CeilingError`] if a socket or a core is not available.
pub fn measure_tcp(options: &CeilingOptions) -> Result<CeilingMeasurement, CeilingError> {
    if options.window == 0 || options.window > WINDOW_MAX {
        return Err(CeilingError::Window(options.window));
    }
    if !(1..=DATA_MAX_BYTES).contains(&options.exchange.data_bytes) {
        return Err(CeilingError::Data(options.exchange.data_bytes));
    }
    if options.sealed && options.exchange.write {
        return Err(CeilingError::SealedWrite);
    }
    let pairs = (0..options.connections.max(1)).map(|_| socket_pair());
    let (clients, servers): (Vec<_>, Vec<_>) =
        pairs.collect::<io::Result<Vec<_>>>()?.into_iter().unzip();
    let stop = AtomicBool::new(false);
    // Removed after the thread in it has ended.
    let limit = options.responder_percent.map(CpuLimit::new).transpose()?;
    std::thread::scope(|scope| {
        let responding = scope.spawn(|| {
            let result = pin_and_respond(&servers, options, limit.as_ref(), &stop);
            if result.is_err() {
                // The client must detect the end of the streams instead of waiting forever.
                for server in &servers {
                    let _ = server.shutdown(std::net::Shutdown::Both);
                }
            }
            result
        });
        let measured = pin_and_request(&clients, options);
        stop.store(true, Ordering::Relaxed);
        let busy_share = responding
            .join()
            .map_err(|_| CeilingError::ServerPanicked)?;
        // The failure of the responding side is the cause; that of the requesting side is only the
        // consequence.
        let responder_busy_share = busy_share?;
        Ok(CeilingMeasurement {
            responder_busy_share,
            ..measured?
        })
    })
}

fn pin(core: Option<usize>) -> Result<(), CeilingError> {
    core.map_or(Ok(()), |core| Ok(pin_to_core(core)?))
}

fn pin_and_respond(
    sockets: &[TcpStream],
    options: &CeilingOptions,
    limit: Option<&CpuLimit>,
    stop: &AtomicBool,
) -> Result<f64, CeilingError> {
    pin(options.server_core)?;
    let Some(limit) = limit else {
        return ends::respond(sockets, options, stop);
    };
    limit.add_this_thread()?;
    let begun = Instant::now();
    let busy_share = ends::respond(sockets, options, stop)?;
    let whole = begun.elapsed().as_secs_f64();
    let taken = limit.cpu_time();
    Ok(taken.map_or(busy_share, |taken| taken.as_secs_f64() / whole))
}

fn pin_and_request(
    sockets: &[TcpStream],
    options: &CeilingOptions,
) -> Result<CeilingMeasurement, CeilingError> {
    std::thread::scope(|scope| {
        // A separate thread preserves the caller's affinity.
        let requesting = scope.spawn(|| {
            pin(options.client_core)?;
            ends::run_requester(sockets, options)
        });
        requesting
            .join()
            .map_err(|_| CeilingError::ServerPanicked)?
    })
}

fn socket_pair() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
    let client = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None)?;
    // Set before connecting, as target and host do: a connection that starts with a pacing
    // algorithm remains paced. If this fails, the system's algorithm applies.
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

/// The longest sleep of a loop that waits for data, after which it checks whether it has to stop.
pub(crate) const SLEEP_MAX: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 10_000_000,
};

#[cfg(test)]
mod tests;
