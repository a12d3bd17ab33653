//! The ceiling: what a bare socket pair on loopback does with NVMe/TCP's byte pattern and no NVMe.
//!
//! One thread stands in for the target, one for the host, each pinned to its own core. A request is
//! 72 bytes (a command capsule without digests), its answer 24 + 4096 bytes (a C2HData PDU that
//! also completes the command). Both sides poll a non-blocking socket and do one receive and one
//! send per poll at most, exactly as the target and the host do, but they look at nothing except
//! the number of bytes, and their buffers stay in the cache.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use crate::pinning::{PinError, pin_to_core};
use crate::report::Latency;

/// Bytes of a request on the wire: an 8-byte common header and a 64-byte submission queue entry.
pub const REQUEST_BYTES: usize = 72;
/// Bytes of a 4 KiB answer on the wire: a 24-byte C2HData header and the data.
pub const RESPONSE_BYTES: usize = 24 + 4096;
/// Receive buffer of either side, bytes: some tens of answers, and small enough to stay in the
/// second-level cache.
const RECEIVE_BUFFER_BYTES: usize = 128 * 1024;
/// Congestion control of the pair, where the system has it: loopback loses nothing, and one that
/// paces its sending is only in the way, now more, now less.
const CONGESTION_CONTROL: &str = "reno";
/// Answers in the sender's prepared buffer: one send carries up to this many.
const PREPARED_RESPONSES: usize = 128;

/// What to drive, and where.
#[derive(Debug, Clone, Copy)]
pub struct CeilingOptions {
    /// Requests kept in flight.
    pub window: usize,
    /// Core of the thread that answers.
    pub server_core: Option<usize>,
    /// Core of the thread that asks.
    pub client_core: Option<usize>,
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
    /// Time from request to answer; filled for a window of 1 only, where it is exact.
    pub latency: Option<Latency>,
}

impl CeilingMeasurement {
    /// Requests per second.
    #[must_use]
    pub fn requests_per_second(&self) -> f64 {
        crate::units::per_second(self.requests, self.elapsed)
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
    /// A window of 0, or of more than the sender has prepared.
    #[error("a window of {0} cannot be driven: choose 1 to {PREPARED_RESPONSES}")]
    Window(usize),
    /// The answering thread came to an unexpected end.
    #[error("the answering thread panicked")]
    ServerPanicked,
}

/// Drives a bare socket pair with NVMe/TCP's byte pattern.
///
/// # Errors
/// [`CeilingError`] where a socket or a core is not to be had.
pub fn measure_tcp(options: CeilingOptions) -> Result<CeilingMeasurement, CeilingError> {
    if options.window == 0 || options.window > PREPARED_RESPONSES {
        return Err(CeilingError::Window(options.window));
    }
    let (client, server) = socket_pair()?;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let answering = scope.spawn(|| {
            let result = pin(options.server_core).and_then(|()| answer(&server, &stop));
            if result.is_err() {
                // The client must see the end of the stream rather than wait for ever.
                let _ = server.shutdown(std::net::Shutdown::Both);
            }
            result
        });
        let asked = pin_and_ask(&client, options);
        stop.store(true, Ordering::Relaxed);
        let answered = answering.join().map_err(|_| CeilingError::ServerPanicked)?;
        // The answering side's failure is the cause, and the asking side's only its echo.
        answered?;
        asked
    })
}

fn pin(core: Option<usize>) -> Result<(), CeilingError> {
    core.map_or(Ok(()), |core| Ok(pin_to_core(core)?))
}

fn pin_and_ask(
    socket: &TcpStream,
    options: CeilingOptions,
) -> Result<CeilingMeasurement, CeilingError> {
    std::thread::scope(|scope| {
        // A thread of its own, so that the caller's affinity stays as it was.
        let asking = scope.spawn(|| {
            pin(options.client_core)?;
            Ok(ask(socket, options)?)
        });
        asking.join().map_err(|_| CeilingError::ServerPanicked)?
    })
}

fn socket_pair() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
    let client = TcpStream::connect(listener.local_addr()?)?;
    let (server, _) = listener.accept()?;
    for socket in [&client, &server] {
        // Without it the pair is as fast as the system's own choice lets it be.
        let _ = rustix::net::sockopt::set_tcp_congestion(socket, CONGESTION_CONTROL);
        socket.set_nodelay(true)?;
        socket.set_nonblocking(true)?;
    }
    Ok((client, server))
}

/// Receives what is there; 0 where nothing is.
fn receive(socket: &TcpStream, buffer: &mut [u8]) -> io::Result<usize> {
    match rustix::net::recv(socket, &mut *buffer, RecvFlags::DONTWAIT) {
        Ok((_, 0)) => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok((_, bytes)) => Ok(bytes),
        Err(Errno::AGAIN | Errno::INTR) => Ok(0),
        Err(errno) => Err(errno.into()),
    }
}

/// Sends what the socket takes; 0 where it takes nothing.
fn send(socket: &TcpStream, bytes: &[u8]) -> io::Result<usize> {
    match rustix::net::send(socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
        Ok(sent) => Ok(sent),
        Err(Errno::AGAIN | Errno::INTR) => Ok(0),
        Err(errno) => Err(errno.into()),
    }
}

/// The target's part: one answer for each request, until told to stop.
fn answer(socket: &TcpStream, stop: &AtomicBool) -> Result<(), CeilingError> {
    let mut requests = vec![0_u8; RECEIVE_BUFFER_BYTES];
    let responses = vec![0x5a_u8; PREPARED_RESPONSES * RESPONSE_BYTES];
    let mut unanswered_bytes = 0;
    let mut owed_bytes = 0;
    while !stop.load(Ordering::Relaxed) {
        unanswered_bytes += receive(socket, &mut requests)?;
        owed_bytes += unanswered_bytes / REQUEST_BYTES * RESPONSE_BYTES;
        unanswered_bytes %= REQUEST_BYTES;
        if owed_bytes > 0 {
            let batch = owed_bytes.min(responses.len());
            owed_bytes -= send(socket, &responses[..batch])?;
        }
    }
    Ok(())
}

/// The host's part: keeps `window` requests in flight and counts answers.
fn ask(socket: &TcpStream, options: CeilingOptions) -> io::Result<CeilingMeasurement> {
    let mut responses = vec![0_u8; RECEIVE_BUFFER_BYTES];
    let requests = vec![0xa5_u8; options.window * REQUEST_BYTES];
    let mut histogram = histogram();
    let exact_latency = options.window == 1;
    let mut unsent_bytes = requests.len();
    let mut partial_bytes = 0;
    let mut counted = 0_u64;
    let mut asked_at = Instant::now();
    let mut counting_from = None;
    let warm_from = asked_at;
    let mut polls_to_clock = 0_u32;
    loop {
        if unsent_bytes > 0 {
            if exact_latency && unsent_bytes == REQUEST_BYTES {
                asked_at = Instant::now();
            }
            unsent_bytes -= send(socket, &requests[..unsent_bytes])?;
        }
        partial_bytes += receive(socket, &mut responses)?;
        let answered = partial_bytes / RESPONSE_BYTES;
        partial_bytes %= RESPONSE_BYTES;
        unsent_bytes += answered * REQUEST_BYTES;
        counted += answered as u64;
        if exact_latency && answered == 1 && counting_from.is_some() {
            histogram.saturating_record(nanos(asked_at.elapsed()));
        }
        polls_to_clock += 1;
        if polls_to_clock < 64 {
            continue;
        }
        polls_to_clock = 0;
        let now = Instant::now();
        match counting_from {
            None if now - warm_from >= options.warm_up => {
                counting_from = Some(now);
                counted = 0;
            }
            Some(start) if now - start >= options.duration => {
                let latency = exact_latency.then(|| Latency::from_histogram(&histogram));
                return Ok(CeilingMeasurement {
                    requests: counted,
                    elapsed: now - start,
                    latency,
                });
            }
            _ => {}
        }
    }
}

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
mod tests {
    use super::*;

    fn short(window: usize) -> CeilingOptions {
        CeilingOptions {
            window,
            server_core: None,
            client_core: None,
            warm_up: Duration::from_millis(5),
            duration: Duration::from_millis(50),
        }
    }

    #[test]
    fn a_window_is_answered_and_counted() {
        let measured = measure_tcp(short(16)).expect("loopback is there");
        assert!(measured.requests > 0);
        assert!(measured.elapsed >= Duration::from_millis(50));
        assert!(measured.latency.is_none());
    }

    #[test]
    fn one_at_a_time_gives_latencies() {
        let measured = measure_tcp(short(1)).expect("loopback is there");
        let latency = measured.latency.expect("exact for a window of one");
        assert!(latency.p50_ns > 0 && latency.p50_ns <= latency.max_ns);
        // A request whose answer straddles the end of counting is the only one without a latency.
        assert!(latency.count <= measured.requests && latency.count + 1 >= measured.requests);
    }

    #[test]
    fn windows_that_cannot_be_driven_are_refused() {
        for window in [0, PREPARED_RESPONSES + 1] {
            let error = measure_tcp(short(window)).expect_err("refused");
            assert!(matches!(error, CeilingError::Window(w) if w == window));
        }
    }

    #[test]
    fn a_core_that_is_not_there_ends_the_run_with_its_name() {
        let options = CeilingOptions {
            server_core: Some(1023),
            ..short(4)
        };
        let error = measure_tcp(options).expect_err("refused");
        assert!(error.to_string().contains("core 1023"), "{error}");
    }
}
