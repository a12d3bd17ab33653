//! The thread that performs the TLS handshakes of all listeners, so that no reactor waits for one.
//!
//! The acceptor passes it the connections of listeners with TLS, through a bounded ring. The thread
//! looks at a connection's first byte: a TLS record begins a handshake, any other byte is that of a
//! plain connection. Plain and protected streams return to the acceptor through another ring, and go
//! to their reactors from there.
//!
//! What strangers can occupy is bounded: the number of handshakes in all and for each origin, and the
//! time and the bytes of each ([`HANDSHAKE_TIME_MAX`], `HANDSHAKE_BYTES_MAX`). Beyond that, the
//! oldest handshake of the origin with the most makes room if it has had half a second; otherwise
//! the new connection is refused.

mod handshake;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use nvme_target::network_of;
use nvme_tls::{HEADER_BYTES, PLAINTEXT_BYTES_MAX};
use nvme_tls_handshake::{HANDSHAKE_TIME_MAX, HandshakeError};
use reactors::ring::{self, Receiver, Sender};
use reactors::{LogLimit, Nanos, Waker};
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use crate::socket_stream::SocketStream;
use crate::stream::{ByteStream as _, TcpSocket};
use crate::tls::{SharedTlsKeys, TlsCounters, TlsPolicy, TlsRecords};
use handshake::{End, Handshake, Step};

/// Connections of all origins whose handshake is in progress.
const HANDSHAKES_MAX: usize = 512;
/// The same of one origin: an IPv4 address, or the network of an IPv6 address. Hosts set up their
/// connections one after the other.
const HANDSHAKES_PER_ORIGIN_MAX: usize = 64;
/// Time that a handshake has at least, before it may make room for another one.
const EVICTABLE_AFTER: Duration = Duration::from_millis(500);
/// Connections that may wait for the thread, and results that may wait for the acceptor.
const RING_PLACES: usize = 256;
/// Events taken from epoll at once.
const EVENTS_MAX: usize = 64;
/// Pause after a failure of epoll, which prevents a busy loop.
const FAILURE_PAUSE: Duration = Duration::from_millis(100);
/// Time after which results are passed again that the acceptor had no room for.
const FULL_PAUSE: Duration = Duration::from_millis(1);
/// The data of the waker's epoll events. Handshakes have numbers from 0.
const WAKER_DATA: u64 = u64::MAX;
/// Most bytes that a handshake asks for at once.
const RECORD_BYTES: usize = HEADER_BYTES + PLAINTEXT_BYTES_MAX;

const _: () = assert!(HANDSHAKES_PER_ORIGIN_MAX < HANDSHAKES_MAX);

/// The listener of a connection, as the acceptor knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    /// The acceptor's number.
    pub(crate) listener: u64,
    pub(crate) reactor: usize,
    /// The number that its reactor gave to the listener.
    pub(crate) index: u16,
}

/// A connection on its way to the thread.
#[derive(Debug)]
pub(crate) struct Arriving {
    pub(crate) stream: TcpSocket,
    pub(crate) origin: Origin,
    pub(crate) policy: TlsPolicy,
    pub(crate) records: TlsRecords,
}

/// A connection on its way back.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) stream: SocketStream,
    pub(crate) origin: Origin,
}

/// The acceptor's end of the rings to the running thread, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Handshakes {
    arriving: Sender<Arriving>,
    finished: Receiver<Finished>,
    stopping: Arc<AtomicBool>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

impl Handshakes {
    /// Starts the thread. Results wake `acceptor`.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn start(
        keys: SharedTlsKeys,
        counters: Arc<TlsCounters>,
        acceptor: Waker,
    ) -> io::Result<Self> {
        let (mut service, mut handshakes) = Service::new(keys, counters, acceptor)?;
        let thread = std::thread::Builder::new()
            .name("handshakes".to_owned())
            .spawn(move || {
                reactors::lower_priority();
                if let Err(error) = nvme_tls_handshake::prepare() {
                    tracing::error!(%error, "TLS cannot be used");
                }
                service.run();
            })?;
        handshakes.thread = Some(thread);
        Ok(handshakes)
    }

    /// Whether there is room for another connection.
    pub(crate) fn has_room(&mut self) -> bool {
        self.arriving.vacant() > 0
    }

    /// Passes a connection to the thread, which has room.
    pub(crate) fn begin(&mut self, arriving: Arriving) {
        let _ = self.arriving.send(arriving);
    }

    /// The next connection whose handshake is complete, or that needs none.
    pub(crate) fn next_finished(&mut self) -> Option<Finished> {
        self.finished.recv()
    }

    pub(crate) fn has_finished(&self) -> bool {
        !self.finished.is_empty()
    }
}

impl Drop for Handshakes {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Relaxed);
        self.waker.wake();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of handshakes panicked");
        }
    }
}

/// What the thread does, turn by turn.
struct Service {
    epoll: OwnedFd,
    /// The data of the last events.
    events: ArrayVec<u64, EVENTS_MAX>,
    waker: Waker,
    stopping: Arc<AtomicBool>,
    arriving: Receiver<Arriving>,
    finished: Sender<Finished>,
    /// Results that the ring had no room for.
    waiting: VecDeque<Finished>,
    keys: SharedTlsKeys,
    counters: Arc<TlsCounters>,
    /// By number, so in the order of their beginnings.
    handshakes: BTreeMap<u64, Handshake>,
    next_number: u64,
    /// For received bytes of any handshake.
    buffer: Box<[u8]>,
    log: LogLimit,
    started: Instant,
}

impl Service {
    /// A service, and the acceptor's end without a thread.
    fn new(
        keys: SharedTlsKeys,
        counters: Arc<TlsCounters>,
        acceptor: Waker,
    ) -> io::Result<(Self, Handshakes)> {
        let waker = Waker::new()?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let data = epoll::EventData::new_u64(WAKER_DATA);
        epoll::add(&epoll, &waker, data, epoll::EventFlags::IN)?;
        let (mut arriving, arriving_receiver) = ring::channel(RING_PLACES);
        let (mut finished, finished_receiver) = ring::channel(RING_PLACES);
        arriving.attach(waker.clone());
        finished.attach(acceptor);
        let stopping = Arc::<AtomicBool>::default();
        let handshakes = Handshakes {
            arriving,
            finished: finished_receiver,
            stopping: Arc::clone(&stopping),
            waker: waker.clone(),
            thread: None,
        };
        let service = Self {
            epoll,
            events: ArrayVec::new(),
            waker,
            stopping,
            arriving: arriving_receiver,
            finished,
            waiting: VecDeque::new(),
            keys,
            counters,
            handshakes: BTreeMap::new(),
            next_number: 0,
            buffer: vec![0; RECORD_BYTES].into(),
            log: LogLimit::default(),
            started: Instant::now(),
        };
        Ok((service, handshakes))
    }

    /// Runs until the acceptor stops.
    fn run(&mut self) {
        while !self.stopping.load(Ordering::Relaxed) {
            self.turn(Instant::now());
            self.sleep();
        }
    }

    /// Blocks until there is work or a handshake is due.
    fn sleep(&mut self) {
        self.waker.announce_sleep();
        // From here on the acceptor wakes this thread; earlier messages are visible now.
        let has_messages = !self.arriving.is_empty() || self.stopping.load(Ordering::Relaxed);
        let timeout = if has_messages {
            Some(Duration::ZERO)
        } else {
            let first = self.handshakes.values().next();
            let due = first.map(|it| it.until().saturating_duration_since(Instant::now()));
            let retry = (!self.waiting.is_empty()).then_some(FULL_PAUSE);
            due.into_iter().chain(retry).min()
        };
        self.wait(timeout);
        self.waker.retract_sleep();
    }

    fn wait(&mut self, at_most: Option<Duration>) {
        self.events.clear();
        let timeout = at_most.and_then(|it| Timespec::try_from(it).ok());
        let mut buffer = [MaybeUninit::uninit(); EVENTS_MAX];
        match epoll::wait(&self.epoll, &mut buffer, timeout.as_ref()) {
            Ok((found, _)) => self
                .events
                .extend(found.iter().map(|event| event.data.u64())),
            Err(Errno::INTR) => {}
            Err(error) => {
                tracing::error!(%error, "epoll failed");
                std::thread::sleep(FAILURE_PAUSE);
            }
        }
    }

    /// Takes new connections, and continues the handshakes that the last wait reported. Does not
    /// block.
    fn turn(&mut self, now: Instant) {
        while let Some(arriving) = self.arriving.recv() {
            self.admit(arriving, now);
        }
        for position in 0..self.events.len() {
            match self.events[position] {
                WAKER_DATA => self.waker.drain(),
                number => self.advance(number, now),
            }
        }
        self.events.clear();
        self.expire(now);
        self.pass_on();
        let open = self.handshakes.len() as u64;
        self.counters.handshakes_open.set(open);
    }

    /// Begins with a connection, if there is room.
    fn admit(&mut self, arriving: Arriving, now: Instant) {
        let network = network_of_host(&arriving.stream);
        if !self.make_room(network, now) {
            self.counters.handshakes_rejected.add(1);
            self.log_end(&arriving.stream, now, "refused: too many are in progress");
            return;
        }
        let number = self.next_number;
        self.next_number += 1;
        let data = epoll::EventData::new_u64(number);
        let added = epoll::add(&self.epoll, &arriving.stream, data, epoll::EventFlags::IN);
        if let Err(error) = added {
            tracing::warn!(%error, "a new connection cannot be watched");
            return;
        }
        let handshake = Handshake::new(arriving, network, now);
        self.handshakes.insert(number, handshake);
    }

    /// Whether another handshake from `network` may begin, after the end of an old one if need be.
    fn make_room(&mut self, network: Option<IpAddr>, now: Instant) -> bool {
        let mut counts = BTreeMap::<Option<IpAddr>, usize>::new();
        for it in self.handshakes.values() {
            *counts.entry(it.network()).or_default() += 1;
        }
        let own = counts.get(&network).copied().unwrap_or(0);
        let crowded = if own >= HANDSHAKES_PER_ORIGIN_MAX {
            network
        } else if self.handshakes.len() + self.waiting.len() < HANDSHAKES_MAX {
            return true;
        } else {
            let most = counts.into_iter().max_by_key(|(_, count)| *count);
            match most {
                Some((crowded, count)) if count > own => crowded,
                _ => return false,
            }
        };
        let oldest = self.handshakes.iter().find(|it| it.1.network() == crowded);
        let evictable = oldest.filter(|it| now >= it.1.began() + EVICTABLE_AFTER);
        let Some(number) = evictable.map(|(number, _)| *number) else {
            return false;
        };
        self.counters.handshakes_rejected.add(1);
        if let Some(evicted) = self.handshakes.remove(&number) {
            self.log_end(evicted.stream(), now, "ended to make room for another one");
        }
        true
    }

    /// Continues with a handshake whose stream is ready.
    fn advance(&mut self, number: u64, now: Instant) {
        let Some(mut handshake) = self.handshakes.remove(&number) else {
            return;
        };
        let sends = handshake.awaits_writable();
        let step = handshake.advance(&self.keys, &mut self.buffer);
        match step {
            Step::Waits => {
                if sends != handshake.awaits_writable() {
                    self.watch(number, &handshake);
                }
                self.handshakes.insert(number, handshake);
            }
            Step::Plain => {
                let (stream, origin) = handshake.into_parts();
                let _ = epoll::delete(&self.epoll, &stream);
                let stream = SocketStream::Plain(stream);
                self.waiting.push_back(Finished { stream, origin });
            }
            Step::Established(secrets, description) => {
                self.counters.handshakes.add(1);
                let records = handshake.records();
                let (stream, origin) = handshake.into_parts();
                let _ = epoll::delete(&self.epoll, &stream);
                match SocketStream::protect(stream, &secrets, description, records) {
                    Ok(stream) => self.waiting.push_back(Finished { stream, origin }),
                    Err((stream, error)) => {
                        self.counters.handshakes_failed.add(1);
                        let reason = format!(
                            "is complete, but the kernel does not protect the connection \
                             ({error}): write tls_records = \"own\""
                        );
                        self.log_end(&stream, now, &reason);
                    }
                }
            }
            Step::Ended(end) => {
                self.count(&end);
                self.report(handshake.stream(), &end, now);
                handshake.close();
            }
        }
    }

    fn watch(&self, number: u64, handshake: &Handshake) {
        let flags = match handshake.awaits_writable() {
            true => epoll::EventFlags::OUT,
            false => epoll::EventFlags::IN,
        };
        let data = epoll::EventData::new_u64(number);
        if let Err(error) = epoll::modify(&self.epoll, handshake.stream(), data, flags) {
            tracing::error!(%error, "a connection can no longer be watched");
        }
    }

    fn pass_on(&mut self) {
        while let Some(finished) = self.waiting.pop_front() {
            if let Err(finished) = self.finished.send(finished) {
                return self.waiting.push_front(finished);
            }
        }
    }

    fn expire(&mut self, now: Instant) {
        while let Some(first) = self.handshakes.first_entry() {
            if first.get().until() > now {
                return;
            }
            let handshake = first.remove();
            self.counters.handshake_timeouts.add(1);
            let reason = format!(
                "was not completed within {} s",
                HANDSHAKE_TIME_MAX.as_secs()
            );
            self.log_end(handshake.stream(), now, &reason);
        }
    }

    fn count(&self, end: &End) {
        let counters = &self.counters;
        let counter = match end {
            End::Unused => return,
            End::Plain => &counters.plain_connections_refused,
            End::Failed(HandshakeError::Refused(_)) => &counters.handshakes_refused,
            End::Disconnected | End::Failed(_) => &counters.handshakes_failed,
        };
        counter.add(1);
    }

    /// Logs why a connection ends, with the likely cause and its fix.
    fn report(&self, stream: &TcpSocket, end: &End, now: Instant) {
        match end {
            End::Unused | End::Disconnected => {}
            End::Plain => self.log_end(
                stream,
                now,
                "refused: the host connects without TLS, and the listener requires it: connect \
                 with --tls and a key, or write tls = \"allowed\"",
            ),
            End::Failed(error) => self.log_end(stream, now, &format!("failed: {error}")),
        }
    }

    fn log_end(&self, stream: &TcpSocket, now: Instant, reason: &str) {
        let now = now.saturating_duration_since(self.started);
        let now = Nanos(u64::try_from(now.as_nanos()).unwrap_or(u64::MAX));
        if let Some(withheld) = self.log.admit(now) {
            let host = stream.host_address().map(|it| it.ip().to_canonical());
            let host = host.map_or_else(|| "unknown".to_owned(), |it| it.to_string());
            tracing::warn!(
                withheld,
                "host at address {host}: the TLS handshake {reason}"
            );
        }
    }
}

/// The network of a stream's host.
fn network_of_host(stream: &TcpSocket) -> Option<IpAddr> {
    stream.host_address().map(|it| network_of(it.ip()))
}

#[cfg(test)]
mod tests;
