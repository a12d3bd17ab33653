//! The thread that accepts, initialises and closes connections for all reactors.
//!
//! The kernel's part of accepting and closing a socket takes longer than everything that a reactor
//! does for a host's set-up, so a storm of connects would take the reactors' time from busy hosts.
//! The thread owns the listening sockets. It passes accepted sockets to the reactor that a listener
//! belongs to and closes the sockets of ended connections, through one bounded ring for each
//! direction and reactor. It accepts only what the ring has room for; the rest waits in the kernel's
//! backlog. Reactors place connections and count them, so limits do not depend on this thread.
//!
//! It also answers the ICReq of hosts that send a valid one without delay, because the send of the
//! ICResp is one of the dearest parts of a host's set-up. Connections of all other hosts go to their
//! reactor as they are, which handles errors and deadlines.
//!
//! Connections of listeners with TLS take another way: to the thread of handshakes and back, which
//! exists when such a listener does.

use std::io;
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use nvme_spec::tcp::Framing;
use reactors::Waker;
use reactors::ring::{self, Receiver, Sender};
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{SocketFlags, acceptfrom_with};

use crate::handshakes::{Arriving, Finished, Handshakes, Origin};
use crate::initialisation::InitialisationTerms;
use crate::network::Accepted;
use crate::socket_stream::SocketStream;
use crate::stream::{Broken, TcpSocket};
use crate::tls::{SharedTlsKeys, TlsCounters, TlsPolicy, TlsRecords};

/// Accepted sockets that may wait for their reactor. Each occupies a descriptor beyond the limit on
/// connections.
const ACCEPTED_MAX: usize = 128;
/// Sockets of ended connections of one reactor that may wait to be closed. The reactor closes
/// further ones itself.
const CLOSING_MAX: usize = 128;
/// New listeners of one reactor that may wait to be watched.
const LISTEN_REQUESTS_MAX: usize = 64;
/// Accepted sockets of all listeners whose ICReq has not been received. Further ones go to their
/// reactor at once.
const NEWCOMERS_MAX: usize = 64;
/// Time within which an ICReq must be received to be answered here.
const NEWCOMER_WAIT: Duration = Duration::from_millis(5);
/// Connections that may wait in the kernel until they are accepted, up to the kernel's own limit
/// (net.core.somaxconn). Beyond it a host has to repeat its SYN, which takes a second.
const BACKLOG: i32 = 4096;
/// Connections accepted in a row from one listener, before the others have their turn.
const ACCEPTS_IN_A_ROW_MAX: usize = 64;
/// Events taken from epoll at once.
const EVENTS_MAX: usize = 64;
/// Pause of a listener after a failed accept (no descriptors left), which prevents a busy loop.
const FAILURE_PAUSE: Duration = Duration::from_millis(100);
/// Pause of a listener whose reactor has not taken the accepted sockets yet.
const FULL_PAUSE: Duration = Duration::from_millis(1);
/// Pause after the thread of handshakes could not be started.
const HANDSHAKES_RETRY: Duration = Duration::from_secs(1);
/// Interval at which an active thread checks its rings, so that reactors need not wake it.
const ACTIVE_TURN: Duration = Duration::from_millis(1);
/// Time without work after which the thread sleeps until it is woken.
const ACTIVE_FOR: Duration = Duration::from_millis(10);
/// The data of the waker's epoll events. Listeners have numbers from 0, newcomers numbers with
/// [`NEWCOMER_BIT`].
const WAKER_DATA: u64 = u64::MAX;
/// Distinguishes the numbers of newcomers from those of listeners.
const NEWCOMER_BIT: u64 = 1 << 63;

/// A thread that has newcomers is active, so it checks their deadlines in each turn.
const _: () = assert!(NEWCOMER_WAIT.as_millis() < ACTIVE_FOR.as_millis());
const _: () = assert!(NEWCOMERS_MAX < ACCEPTED_MAX);

/// The running thread, which ends when this is dropped.
#[derive(Debug)]
pub struct Acceptor {
    stopping: Arc<AtomicBool>,
    paused: Arc<AtomicBool>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

impl Acceptor {
    /// Starts the thread, which runs `prepare` first. Returns the port of each reactor.
    ///
    /// # Errors
    /// The system's.
    pub fn start(
        reactors: usize,
        prepare: impl FnOnce() + Send + 'static,
    ) -> io::Result<(Self, Vec<AcceptorPort>)> {
        Self::start_with(reactors, AcceptorTls::default(), prepare)
    }

    /// The same with keys for listeners with TLS.
    ///
    /// # Errors
    /// The system's.
    pub fn start_with(
        reactors: usize,
        tls: AcceptorTls,
        prepare: impl FnOnce() + Send + 'static,
    ) -> io::Result<(Self, Vec<AcceptorPort>)> {
        let (mut service, ports) = Service::new(reactors, tls)?;
        let waker = service.waker.clone();
        let stopping = Arc::clone(&service.stopping);
        let paused = Arc::clone(&service.paused);
        let thread = std::thread::Builder::new()
            .name("acceptor".to_owned())
            .spawn(move || {
                prepare();
                service.run();
            })?;
        let acceptor = Self {
            stopping,
            paused,
            waker,
            thread: Some(thread),
        };
        Ok((acceptor, ports))
    }

    /// While it is paused, new connections wait in the kernel's backlog. Those that were accepted
    /// before reach their reactors within [`NEWCOMER_WAIT`].
    pub fn set_paused(&self, paused: bool) {
        self.paused.store(paused, Ordering::Release);
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Relaxed);
        self.waker.wake();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the acceptor thread panicked");
        }
    }
}

/// What the handshakes of listeners with TLS use.
#[derive(Clone, Debug, Default)]
pub struct AcceptorTls {
    /// The keys of hosts.
    pub keys: SharedTlsKeys,
    /// Their counters.
    pub counters: Arc<TlsCounters>,
}

/// A message from a reactor.
#[derive(Debug)]
enum Request {
    /// Wake the reactor with this when a socket was accepted for it.
    Attach(Waker),
    /// Accept connections.
    Listen {
        index: u16,
        socket: TcpListener,
        control: Arc<ListenerControl>,
    },
}

/// What a reactor decides about its listener.
#[derive(Debug, Default)]
struct ListenerControl {
    /// The listener is to be closed.
    closed: AtomicBool,
    /// What its hosts are offered. The reactor locks it only when its settings change.
    terms: Mutex<Option<InitialisationTerms>>,
}

impl ListenerControl {
    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    fn terms(&self) -> Option<InitialisationTerms> {
        *self.terms.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tls(&self) -> TlsPolicy {
        self.terms().map_or(TlsPolicy::Off, |it| it.tls)
    }
}

/// A reactor's end of the rings to the thread.
#[derive(Debug)]
pub struct AcceptorPort {
    requests: Sender<Request>,
    closing: Sender<SocketStream>,
    accepted: Receiver<Accepted<SocketStream>>,
    waker: Waker,
    /// Of each listener that is not closed.
    listeners: Vec<Option<Arc<ListenerControl>>>,
}

impl AcceptorPort {
    /// From now on, an accepted socket wakes this reactor if it sleeps.
    pub(crate) fn attach(&mut self, waker: Waker) -> io::Result<()> {
        self.request(Request::Attach(waker))
    }

    /// Begins to accept the connections of `socket`.
    pub(crate) fn listen(&mut self, index: u16, socket: TcpListener) -> io::Result<()> {
        TcpSocket::set_inherited_options(&socket)?;
        rustix::net::listen(&socket, BACKLOG)?;
        let control = Arc::clone(self.control(index));
        self.request(Request::Listen {
            index,
            socket,
            control,
        })
    }

    /// What is decided about a listener, or will be about the next one of this number.
    fn control(&mut self, index: u16) -> &Arc<ListenerControl> {
        let index = usize::from(index);
        if self.listeners.len() <= index {
            self.listeners.resize(index + 1, None);
        }
        self.listeners[index].get_or_insert_default()
    }

    /// What hosts that connect to the listener are offered from now on, also before it is open.
    /// Without an offer, none is initialised by the thread.
    pub(crate) fn offer(&mut self, index: u16, terms: InitialisationTerms) {
        let control = self.control(index);
        let mut offered = control.terms.lock().unwrap_or_else(PoisonError::into_inner);
        *offered = Some(terms);
        drop(offered);
        if terms.tls != TlsPolicy::Off {
            // It starts the thread of handshakes.
            self.waker.wake();
        }
    }

    /// Begins to close the listener. [`Accepted::ListenerClosed`] follows its last connection.
    pub(crate) fn close_listener(&mut self, index: u16) {
        if let Some(control) = self
            .listeners
            .get_mut(usize::from(index))
            .and_then(Option::take)
        {
            control.closed.store(true, Ordering::Release);
            self.waker.wake();
        }
    }

    /// The next accepted connection.
    #[inline]
    pub(crate) fn accept(&mut self) -> Option<Accepted<SocketStream>> {
        self.accepted.recv()
    }

    pub(crate) fn has_accepted(&self) -> bool {
        !self.accepted.is_empty()
    }

    /// Closes a socket, without waiting until it is closed.
    pub(crate) fn close(&mut self, socket: SocketStream) {
        // A socket that the ring has no room for is closed here: this takes longer, and leaves no
        // descriptor open.
        let _ = self.closing.send(socket);
    }

    fn request(&mut self, request: Request) -> io::Result<()> {
        let sent = self.requests.send(request);
        sent.map_err(|_| io::Error::other("the acceptor takes no more listeners for now"))
    }
}

/// Whether the thread watches a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WatchState {
    /// Epoll reports its connections.
    Watched,
    /// It is watched again at this time.
    Paused(Instant),
}

#[derive(Debug)]
struct Listening {
    /// The data of its epoll events.
    number: u64,
    reactor: usize,
    index: u16,
    /// `None` after it was closed, until its reactor has been notified.
    socket: Option<TcpListener>,
    control: Arc<ListenerControl>,
    state: WatchState,
}

/// An accepted connection whose ICReq is awaited.
#[derive(Debug)]
struct Newcomer {
    /// The data of its epoll events.
    number: u64,
    /// The number of its listener.
    listener: u64,
    reactor: usize,
    /// The number that its reactor gave to the listener.
    index: u16,
    terms: InitialisationTerms,
    stream: TcpSocket,
    /// Its reactor receives it without an ICReq then.
    until: Instant,
}

/// The thread's ends of the rings of one reactor.
#[derive(Debug)]
struct ReactorEnd {
    requests: Receiver<Request>,
    closing: Receiver<SocketStream>,
    accepted: Sender<Accepted<SocketStream>>,
    /// Newcomers that will need a place in `accepted`.
    newcomers: usize,
}

impl ReactorEnd {
    /// Whether the ring has room beside what the newcomers will need.
    fn has_room(&mut self) -> bool {
        self.accepted.vacant() > self.newcomers
    }
}

/// What the thread does, turn by turn.
struct Service {
    epoll: OwnedFd,
    /// The data of the last events.
    events: ArrayVec<u64, EVENTS_MAX>,
    waker: Waker,
    stopping: Arc<AtomicBool>,
    /// Nothing is accepted.
    paused: Arc<AtomicBool>,
    reactors: Vec<ReactorEnd>,
    listeners: Vec<Listening>,
    /// In the order of their deadlines.
    newcomers: Vec<Newcomer>,
    next_number: u64,
    tls: AcceptorTls,
    /// The thread of handshakes. Once there was a listener with TLS.
    handshakes: Option<Handshakes>,
    /// When to try again to start it.
    handshakes_retry_at: Option<Instant>,
}

impl Service {
    fn new(reactors: usize, tls: AcceptorTls) -> io::Result<(Self, Vec<AcceptorPort>)> {
        let waker = Waker::new()?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let data = epoll::EventData::new_u64(WAKER_DATA);
        epoll::add(&epoll, &waker, data, epoll::EventFlags::IN)?;
        let pair = |_| {
            let (mut requests, request_receiver) = ring::channel(LISTEN_REQUESTS_MAX);
            let (mut closing, closing_receiver) = ring::channel(CLOSING_MAX);
            let (accepted, accepted_receiver) = ring::channel(ACCEPTED_MAX);
            requests.attach(waker.clone());
            closing.attach(waker.clone());
            let end = ReactorEnd {
                requests: request_receiver,
                closing: closing_receiver,
                accepted,
                newcomers: 0,
            };
            let port = AcceptorPort {
                requests,
                closing,
                accepted: accepted_receiver,
                waker: waker.clone(),
                listeners: Vec::new(),
            };
            (end, port)
        };
        let (ends, ports) = (0..reactors).map(pair).unzip();
        let service = Self {
            epoll,
            events: ArrayVec::new(),
            waker,
            stopping: Arc::default(),
            paused: Arc::default(),
            reactors: ends,
            listeners: Vec::new(),
            newcomers: Vec::with_capacity(NEWCOMERS_MAX),
            next_number: 0,
            tls,
            handshakes: None,
            handshakes_retry_at: None,
        };
        Ok((service, ports))
    }

    /// Runs until the appliance stops.
    fn run(&mut self) {
        let mut active_until = Instant::now();
        while !self.stopping.load(Ordering::Relaxed) {
            let now = Instant::now();
            if self.turn(now) {
                active_until = now + ACTIVE_FOR;
            }
            if now < active_until {
                self.wait(Some(ACTIVE_TURN));
            } else {
                self.sleep(now);
            }
        }
    }

    /// Blocks until there is work or a paused listener is due.
    fn sleep(&mut self, now: Instant) {
        self.waker.announce_sleep();
        // From here on every sender wakes this thread; earlier messages are visible now.
        if !self.has_messages() {
            let due = self.listeners.iter().filter_map(|it| match it.state {
                WatchState::Paused(until) => Some(until.saturating_duration_since(now)),
                WatchState::Watched => None,
            });
            // A closed listener whose reactor was not notified is tried again soon.
            let is_unreported = self.listeners.iter().any(|it| it.socket.is_none());
            self.wait(due.chain(is_unreported.then_some(FULL_PAUSE)).min());
        }
        self.waker.retract_sleep();
    }

    fn has_messages(&self) -> bool {
        let waits = |it: &ReactorEnd| !it.requests.is_empty() || !it.closing.is_empty();
        let is_closing = |it: &Listening| it.socket.is_some() && it.control.is_closed();
        self.has_finished()
            || self.stopping.load(Ordering::Relaxed)
            || self.reactors.iter().any(waits)
            || self.listeners.iter().any(is_closing)
    }

    /// Waits for events, for the next turn.
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
                // Without a pause this would be a busy loop.
                std::thread::sleep(FAILURE_PAUSE);
            }
        }
    }

    /// Carries out the reactors' requests, and accepts the connections that the last wait reported.
    /// Returns whether there was work. Does not block.
    fn turn(&mut self, now: Instant) -> bool {
        let mut is_busy = self.take_requests();
        is_busy |= self.close_listeners();
        self.start_handshakes(now);
        is_busy |= self.take_finished();
        for position in 0..self.events.len() {
            match self.events[position] {
                WAKER_DATA => self.waker.drain(),
                number if number & NEWCOMER_BIT != 0 => {
                    is_busy = true;
                    self.initialise(number);
                }
                number => {
                    is_busy = true;
                    if let Some(at) = self.listeners.iter().position(|it| it.number == number) {
                        self.accept(at, now);
                    }
                }
            }
        }
        self.events.clear();
        self.hand_over_late(now);
        self.resume(now);
        is_busy
    }

    fn take_requests(&mut self) -> bool {
        let mut is_busy = false;
        for reactor in 0..self.reactors.len() {
            while let Some(socket) = self.reactors[reactor].closing.recv() {
                drop(socket);
                is_busy = true;
            }
            while let Some(request) = self.reactors[reactor].requests.recv() {
                self.carry_out(reactor, request);
                is_busy = true;
            }
        }
        is_busy
    }

    fn carry_out(&mut self, reactor: usize, request: Request) {
        match request {
            Request::Attach(waker) => self.reactors[reactor].accepted.attach(waker),
            Request::Listen {
                index,
                socket,
                control,
            } => {
                let number = self.take_number();
                let data = epoll::EventData::new_u64(number);
                let added = epoll::add(&self.epoll, &socket, data, epoll::EventFlags::IN);
                if let Err(error) = added {
                    tracing::error!(%error, "a listener cannot be watched");
                }
                self.listeners.push(Listening {
                    number,
                    reactor,
                    index,
                    socket: Some(socket),
                    control,
                    state: WatchState::Watched,
                });
            }
        }
    }

    fn has_finished(&self) -> bool {
        let handshakes = self.handshakes.as_ref();
        handshakes.is_some_and(Handshakes::has_finished)
    }

    /// Starts the thread of handshakes for the first listener with TLS.
    fn start_handshakes(&mut self, now: Instant) {
        let is_needed = |it: &Listening| it.control.tls() != TlsPolicy::Off;
        if self.handshakes.is_some()
            || self.handshakes_retry_at.is_some_and(|at| now < at)
            || !self.listeners.iter().any(is_needed)
        {
            return;
        }
        let AcceptorTls { keys, counters } = self.tls.clone();
        match Handshakes::start(keys, counters, self.waker.clone()) {
            Ok(handshakes) => self.handshakes = Some(handshakes),
            Err(error) => {
                tracing::error!(%error, "the thread of handshakes cannot be started");
                self.handshakes_retry_at = Some(now + HANDSHAKES_RETRY);
            }
        }
    }

    /// Passes the connections whose handshakes are complete to their reactors, as far as these have
    /// room.
    fn take_finished(&mut self) -> bool {
        let mut is_busy = false;
        let has_room = |it: &mut ReactorEnd| it.has_room();
        while self.reactors.iter_mut().all(has_room) {
            let finished = self.handshakes.as_mut().and_then(Handshakes::next_finished);
            let Some(Finished { stream, origin }) = finished else {
                break;
            };
            is_busy = true;
            let Origin {
                listener,
                reactor,
                index,
            } = origin;
            // The number of a closed listener may be that of another one by now.
            let mut listeners = self.listeners.iter();
            if listeners.any(|it| it.number == listener && it.socket.is_some()) {
                self.hand_over(reactor, index, stream, None);
            }
        }
        // Those that the reactors have no room for are passed in a later turn.
        is_busy || self.has_finished()
    }

    fn take_number(&mut self) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        number
    }

    /// Closes the listeners that are to be closed, with their newcomers, and notifies their reactors.
    fn close_listeners(&mut self) -> bool {
        let before = self.listeners.len();
        let Self {
            epoll,
            reactors,
            listeners,
            newcomers,
            ..
        } = self;
        listeners.retain_mut(|it| {
            let reactor = &mut reactors[it.reactor];
            if !it.control.is_closed() && !reactor.accepted.is_abandoned() {
                return true;
            }
            if let Some(socket) = it.socket.take() {
                // The control thread may have a duplicate, which would remain watched.
                let _ = epoll::delete(&*epoll, &socket);
                let before = newcomers.len();
                newcomers.retain(|newcomer| newcomer.listener != it.number);
                reactor.newcomers -= before - newcomers.len();
            }
            let accepted = &mut reactor.accepted;
            let note = Accepted::ListenerClosed(it.index);
            accepted.send(note).is_err() && !accepted.is_abandoned()
        });
        listeners.len() < before
    }

    /// Accepts the waiting connections of a listener, as far as its reactor has room for them.
    fn accept(&mut self, at: usize, now: Instant) {
        let Listening {
            index,
            reactor,
            number,
            control,
            ..
        } = &self.listeners[at];
        let (index, reactor, listener) = (*index, *reactor, *number);
        let terms = control.terms();
        for _ in 0..ACCEPTS_IN_A_ROW_MAX {
            let Some(socket) = &self.listeners[at].socket else {
                return;
            };
            let tls = terms.map_or(TlsPolicy::Off, |it| it.tls);
            let has_room = match tls {
                TlsPolicy::Off => self.reactors[reactor].has_room(),
                _ => self.handshakes.as_mut().is_some_and(Handshakes::has_room),
            };
            if !has_room || self.paused.load(Ordering::Acquire) {
                return self.pause(at, now + FULL_PAUSE);
            }
            match accept_from(socket) {
                Ok(Some(stream)) if tls != TlsPolicy::Off => {
                    let origin = Origin {
                        listener,
                        reactor,
                        index,
                    };
                    let records = terms.map_or(TlsRecords::Own, |it| it.tls_records);
                    self.begin_handshake(Arriving {
                        stream,
                        origin,
                        policy: tls,
                        records,
                    });
                }
                Ok(Some(stream)) => match terms {
                    Some(terms) if self.newcomers.len() < NEWCOMERS_MAX => {
                        let number = self.take_number() | NEWCOMER_BIT;
                        self.await_request(Newcomer {
                            number,
                            listener,
                            reactor,
                            index,
                            terms,
                            stream,
                            until: now + NEWCOMER_WAIT,
                        });
                    }
                    _ => self.hand_over(reactor, index, stream, None),
                },
                Ok(None) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept connections for now");
                    return self.pause(at, now + FAILURE_PAUSE);
                }
            }
        }
    }

    /// Passes a connection to the thread of handshakes, which has room.
    fn begin_handshake(&mut self, arriving: Arriving) {
        if let Some(handshakes) = &mut self.handshakes {
            handshakes.begin(arriving);
        }
    }

    fn await_request(&mut self, newcomer: Newcomer) {
        let data = epoll::EventData::new_u64(newcomer.number);
        match epoll::add(&self.epoll, &newcomer.stream, data, epoll::EventFlags::IN) {
            Ok(()) => {
                self.reactors[newcomer.reactor].newcomers += 1;
                self.newcomers.push(newcomer);
            }
            Err(error) => {
                tracing::warn!(%error, "a new connection cannot be watched");
                self.hand_over(newcomer.reactor, newcomer.index, newcomer.stream, None);
            }
        }
    }

    /// Passes a connection to its reactor. There is room, and only this thread sends.
    fn hand_over(
        &mut self,
        reactor: usize,
        listener: u16,
        stream: impl Into<SocketStream>,
        framing: Option<Framing>,
    ) {
        let _ = self.reactors[reactor].accepted.send(Accepted::Stream {
            listener,
            stream: stream.into(),
            framing,
        });
    }

    /// Answers the ICReq of a newcomer that has sent something, and passes it to its reactor.
    fn initialise(&mut self, number: u64) {
        let Some(at) = self.newcomers.iter().position(|it| it.number == number) else {
            return;
        };
        let mut newcomer = self.take_newcomer(at);
        match newcomer.stream.initialise(&newcomer.terms) {
            Ok(framing) => {
                self.hand_over(newcomer.reactor, newcomer.index, newcomer.stream, framing);
            }
            // Part of the ICResp was lost, and nothing else can be sent.
            Err(Broken) => drop(newcomer),
        }
    }

    /// Passes the newcomers that have sent nothing for too long to their reactors.
    fn hand_over_late(&mut self, now: Instant) {
        while self.newcomers.first().is_some_and(|it| it.until <= now) {
            let it = self.take_newcomer(0);
            self.hand_over(it.reactor, it.index, it.stream, None);
        }
    }

    fn take_newcomer(&mut self, at: usize) -> Newcomer {
        let newcomer = self.newcomers.remove(at);
        self.reactors[newcomer.reactor].newcomers -= 1;
        let _ = epoll::delete(&self.epoll, &newcomer.stream);
        newcomer
    }

    fn pause(&mut self, at: usize, until: Instant) {
        self.listeners[at].state = WatchState::Paused(until);
        self.watch(at, epoll::EventFlags::empty());
    }

    fn resume(&mut self, now: Instant) {
        for at in 0..self.listeners.len() {
            if let WatchState::Paused(until) = self.listeners[at].state
                && until <= now
            {
                self.listeners[at].state = WatchState::Watched;
                self.watch(at, epoll::EventFlags::IN);
            }
        }
    }

    fn watch(&self, at: usize, flags: epoll::EventFlags) {
        let Listening {
            number,
            socket: Some(socket),
            ..
        } = &self.listeners[at]
        else {
            return;
        };
        let data = epoll::EventData::new_u64(*number);
        if let Err(error) = epoll::modify(&self.epoll, socket, data, flags) {
            tracing::error!(%error, "a listener can no longer be watched");
        }
    }
}

/// Accepts the next connection; `None` if it has ended already.
fn accept_from(listener: &TcpListener) -> io::Result<Option<TcpSocket>> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let (socket, host) = match acceptfrom_with(listener, flags) {
        Ok(accepted) => accepted,
        Err(errno) if is_about_the_peer(errno) => return Ok(None),
        Err(errno) => return Err(errno.into()),
    };
    let host = host.and_then(|host| SocketAddr::try_from(host).ok());
    Ok(TcpSocket::accepted(TcpStream::from(socket), host).ok())
}

/// Whether an accept failed because of the peer's connection, not for lack of resources.
fn is_about_the_peer(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::CONNABORTED
            | Errno::CONNRESET
            | Errno::INTR
            | Errno::HOSTUNREACH
            | Errno::NETUNREACH
            | Errno::NETDOWN
    )
}

#[cfg(test)]
mod tests;
