//! The ceiling: what a bare socket pair on loopback does with NVMe/TCP's byte pattern and no NVMe.
//!
//! One thread stands in for the target, one for the host, each pinned to its own core. A request is
//! 72 bytes (a command capsule without digests), its answer 24 + 4096 bytes (a C2HData PDU that
//! also completes the command). Both sides poll a non-blocking socket and do one receive and one
//! send per poll at most, exactly as the target and the host do, but they look at nothing except
//! the number of bytes.
//!
//! Where the answers' data comes from decides as much as the sockets do, so there are two ceilings:
//! random blocks of as much memory as a target has to read, and one buffer that stays in the cache.

use std::io::{self, IoSlice};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use hugemem::{PagePolicy, RegionError, Store};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags};

use crate::pinning::{PinError, pin_to_core};
use crate::random::Random;
use crate::report::Latency;

/// Bytes of a request on the wire: an 8-byte common header and a 64-byte submission queue entry.
pub const REQUEST_BYTES: usize = 72;
/// Bytes of a 4 KiB answer on the wire: a 24-byte C2HData header and the data.
pub const RESPONSE_BYTES: usize = HEADER_BYTES + DATA_BYTES;
/// Bytes of an answer's header.
const HEADER_BYTES: usize = 24;
/// Bytes of an answer's data.
const DATA_BYTES: usize = 4096;
/// Receive buffer of either side, bytes: some tens of answers, and small enough to stay in the
/// second-level cache.
const RECEIVE_BUFFER_BYTES: usize = 128 * 1024;
/// Congestion control of the pair, and of a target beside it: loopback loses nothing, and one that
/// paces its sending is only in the way, now more, now less. Reno is in every kernel.
pub const CONGESTION_CONTROL: &str = "reno";
/// Answers that one send carries at most.
const PREPARED_RESPONSES: usize = 128;

// One vectored send takes a header and a block for each answer, IOV_MAX (1024) pieces at most.
const _: () = assert!(PREPARED_RESPONSES * 2 <= 1024);

/// Memory that answers are sent from, taken as a target takes a RAM device: in huge pages where
/// there are any. Cheap to clone.
#[derive(Debug, Clone)]
pub struct AnswerMemory(Arc<Store>);

impl AnswerMemory {
    /// Takes `bytes`, of which whole 4 KiB blocks are used.
    ///
    /// # Errors
    /// [`CeilingError`] for less than a block, or more than there is.
    pub fn take(bytes: u64) -> Result<Self, CeilingError> {
        let len = usize::try_from(bytes).unwrap_or(usize::MAX);
        if len < DATA_BYTES {
            return Err(CeilingError::MemoryTooSmall(bytes));
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

/// Where the data of the answers comes from.
#[derive(Debug, Clone)]
pub enum Answers {
    /// A random block for each: what a target must do that reads its data.
    Memory(AnswerMemory),
    /// One buffer, sent again and again: it stays in the cache.
    HotBuffer,
}

/// What to drive, and where.
#[derive(Debug, Clone)]
pub struct CeilingOptions {
    /// Where the data of the answers comes from.
    pub answers: Answers,
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
    /// Too little memory to take blocks from.
    #[error("a memory of {0} bytes has no 4 KiB block to send")]
    MemoryTooSmall(u64),
    /// The memory could not be had.
    #[error("cannot take the memory that answers are sent from: {0}")]
    Memory(#[from] RegionError),
    /// The answering thread came to an unexpected end.
    #[error("the answering thread panicked")]
    ServerPanicked,
}

/// Drives a bare socket pair with NVMe/TCP's byte pattern.
///
/// # Errors
/// [`CeilingError`] where a socket or a core is not to be had.
pub fn measure_tcp(options: &CeilingOptions) -> Result<CeilingMeasurement, CeilingError> {
    if options.window == 0 || options.window > PREPARED_RESPONSES {
        return Err(CeilingError::Window(options.window));
    }
    let (client, server) = socket_pair()?;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let answering = scope.spawn(|| {
            let result = pin(options.server_core).and_then(|()| match &options.answers {
                Answers::Memory(memory) => answer_from_memory(&server, memory, &stop),
                Answers::HotBuffer => answer_from_buffer(&server, &stop),
            });
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
    options: &CeilingOptions,
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

/// Sends what the socket takes of `parts`; 0 where it takes nothing.
fn send_parts(socket: &TcpStream, parts: &[IoSlice<'_>]) -> io::Result<usize> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    match rustix::net::sendmsg(socket, parts, &mut SendAncillaryBuffer::default(), flags) {
        Ok(sent) => Ok(sent),
        Err(Errno::AGAIN | Errno::INTR) => Ok(0),
        Err(errno) => Err(errno.into()),
    }
}

/// The target's part: for each request a header and a random block of `memory`, until told to stop.
fn answer_from_memory(
    socket: &TcpStream,
    memory: &AnswerMemory,
    stop: &AtomicBool,
) -> Result<(), CeilingError> {
    let mut requests = vec![0_u8; RECEIVE_BUFFER_BYTES];
    let header = [0x5a_u8; HEADER_BYTES];
    // One loan for the whole run: the loop is to cost no more than its sockets.
    let loan = memory.0.handle().try_lend(0, memory.0.len());
    let loan = loan.expect("the store is ours, and nobody writes to it");
    let (blocks, _) = loan.as_chunks::<DATA_BYTES>();
    let mut random = Random::new(1);
    let mut unanswered_bytes = 0;
    let mut unsent = Vec::with_capacity(2 * PREPARED_RESPONSES);
    while !stop.load(Ordering::Relaxed) {
        unanswered_bytes += receive(socket, &mut requests)?;
        for _ in 0..unanswered_bytes / REQUEST_BYTES {
            let block = random.below(blocks.len() as u64) as usize;
            unsent.extend([IoSlice::new(&header), IoSlice::new(&blocks[block])]);
        }
        unanswered_bytes %= REQUEST_BYTES;
        if !unsent.is_empty() {
            let sent = send_parts(socket, &unsent)?;
            forget_sent(&mut unsent, sent);
        }
    }
    Ok(())
}

/// Takes what was sent off the front of `parts`.
fn forget_sent(parts: &mut Vec<IoSlice<'_>>, sent: usize) {
    let before = parts.len();
    let mut left = parts.as_mut_slice();
    IoSlice::advance_slices(&mut left, sent);
    let gone = before - left.len();
    parts.drain(..gone);
}

/// The target's part with one buffer for all answers, until told to stop.
fn answer_from_buffer(socket: &TcpStream, stop: &AtomicBool) -> Result<(), CeilingError> {
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
fn ask(socket: &TcpStream, options: &CeilingOptions) -> io::Result<CeilingMeasurement> {
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
    use std::io::{Read, Write};

    use super::*;

    fn memory() -> Answers {
        Answers::Memory(AnswerMemory::take(1 << 20).expect("1 MiB of memory"))
    }

    fn short(window: usize, answers: Answers) -> CeilingOptions {
        CeilingOptions {
            answers,
            window,
            server_core: None,
            client_core: None,
            warm_up: Duration::from_millis(5),
            duration: Duration::from_millis(50),
        }
    }

    #[test]
    fn a_window_is_answered_and_counted() {
        for (window, answers) in [
            (16, Answers::HotBuffer),
            (16, memory()),
            (PREPARED_RESPONSES, memory()),
        ] {
            let measured = measure_tcp(&short(window, answers)).expect("loopback is there");
            assert!(measured.requests > 0);
            assert!(measured.elapsed >= Duration::from_millis(50));
            assert!(measured.latency.is_none());
        }
    }

    #[test]
    fn one_at_a_time_gives_latencies() {
        for answers in [Answers::HotBuffer, memory()] {
            let measured = measure_tcp(&short(1, answers)).expect("loopback is there");
            let latency = measured.latency.expect("exact for a window of one");
            assert!(latency.p50_ns > 0 && latency.p50_ns <= latency.max_ns);
            // A request whose answer straddles the end of counting is the only one without one.
            assert!(latency.count <= measured.requests && latency.count + 1 >= measured.requests);
        }
    }

    #[test]
    fn windows_that_cannot_be_driven_are_refused() {
        for window in [0, PREPARED_RESPONSES + 1] {
            let error = measure_tcp(&short(window, Answers::HotBuffer)).expect_err("refused");
            assert!(matches!(error, CeilingError::Window(w) if w == window));
        }
    }

    #[test]
    fn memory_without_a_block_or_beyond_the_machine_is_refused() {
        let error = AnswerMemory::take(4095).expect_err("refused");
        assert!(error.to_string().contains("4095 bytes"), "{error}");
        let error = AnswerMemory::take(u64::MAX).expect_err("refused");
        assert!(matches!(error, CeilingError::Memory(_)), "{error}");
        // What is no whole block at the end is never sent.
        assert_eq!(AnswerMemory::take(5000).expect("small").bytes(), 5000);
    }

    #[test]
    fn answers_from_memory_are_a_header_and_a_block_each_in_whatever_pieces_they_go() {
        const BLOCKS: usize = 16;
        let memory = AnswerMemory::take((BLOCKS * DATA_BYTES) as u64).expect("64 KiB");
        for block in 0..BLOCKS {
            let bytes = [block as u8; DATA_BYTES];
            assert!(memory.0.handle().try_write(block * DATA_BYTES, &bytes));
        }
        let (mut client, server) = socket_pair().expect("loopback");
        // So small that answers go out in pieces.
        rustix::net::sockopt::set_socket_send_buffer_size(&server, 4096).expect("a socket option");
        client.set_nonblocking(false).expect("a socket option");
        let stop = AtomicBool::new(false);
        let mut answers = vec![0; PREPARED_RESPONSES * RESPONSE_BYTES];
        std::thread::scope(|scope| {
            let answering = scope.spawn(|| answer_from_memory(&server, &memory, &stop));
            let requests = [0; PREPARED_RESPONSES * REQUEST_BYTES];
            client.write_all(&requests).expect("sent");
            client.read_exact(&mut answers).expect("answered");
            stop.store(true, Ordering::Relaxed);
            answering.join().expect("no panic").expect("no failure");
        });
        let mut seen = [false; BLOCKS];
        for answer in answers.chunks(RESPONSE_BYTES) {
            let (header, data) = answer.split_at(HEADER_BYTES);
            assert_eq!(header, [0x5a; HEADER_BYTES]);
            assert_eq!(data, [data[0]; DATA_BYTES]);
            seen[usize::from(data[0])] = true;
        }
        assert_eq!(seen, [true; BLOCKS]);
    }

    #[test]
    fn what_was_sent_is_taken_off_the_front() {
        let (header, data) = ([1; HEADER_BYTES], [2; DATA_BYTES]);
        let parts = || {
            vec![
                IoSlice::new(&header),
                IoSlice::new(&data),
                IoSlice::new(&header),
            ]
        };
        for (sent, lengths) in [
            (0, &[24, 4096, 24][..]),
            (23, &[1, 4096, 24]),
            (24, &[4096, 24]),
            (25, &[4095, 24]),
            (4143, &[1]),
            (4144, &[]),
        ] {
            let mut parts = parts();
            forget_sent(&mut parts, sent);
            let left: Vec<usize> = parts.iter().map(|part| part.len()).collect();
            assert_eq!(left, lengths, "{sent} sent");
        }
    }

    #[test]
    fn a_core_that_is_not_there_ends_the_run_with_its_name() {
        let options = CeilingOptions {
            server_core: Some(1023),
            ..short(4, Answers::HotBuffer)
        };
        let error = measure_tcp(&options).expect_err("refused");
        assert!(error.to_string().contains("core 1023"), "{error}");
    }
}
