//! The trait behind which RDMA is, and what its objects do.
//!
//! Calls on the I/O path are [`QueuePair::queue_send`], [`QueuePair::queue_receive`],
//! [`QueuePair::flush`], their likes of [`SharedReceiveQueue`], and [`CompletionQueue::poll`]: they
//! do not allocate, lock a contended lock, or enter the kernel (a device in software excepted).
//! Everything else is control: bounded, but it may enter the kernel and allocate.
//!
//! Objects keep what they were made from alive, in any order of dropping. Dropping never waits for
//! another thread. A queue pair that is destroyed takes its posted work with it: no completion of it
//! comes, save those already in the completion queue, and the device no longer accesses its memory.
//! Where the device refuses that, [`QueuePair::destroy`] says so, and whoever posted never uses the
//! memory again; the queue pair and what it was made from then stay until the process ends.

use std::fmt::Debug;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use crate::completion::WorkCompletion;
use crate::connection::{ConnectParameters, Event, PrivateData, Token};
use crate::device::{DeviceEvent, DeviceIndex, DeviceLimits, QueuePairCapacity, QueuePairState};
use crate::error::{Error, FlushError, PostError};
use crate::memory::{Access, MemoryRange};
use crate::request::{ReceiveRequest, SendRequest, WindowBinding};

/// RDMA: real verbs, or an in-process fabric. Cheap to clone, one for the process.
pub trait Provider: Clone + Debug + Send + Sync + Sized + 'static {
    /// A device.
    type Device: Device<Provider = Self>;
    /// A protection domain.
    type Domain: Domain<Provider = Self>;
    /// A memory registration.
    type Registration: Registration;
    /// A memory window.
    type Window: MemoryWindow;
    /// A completion queue.
    type CompletionQueue: CompletionQueue;
    /// A shared receive queue.
    type SharedReceiveQueue: SharedReceiveQueue;
    /// A queue pair.
    type QueuePair: QueuePair<Provider = Self>;
    /// A source of events.
    type EventChannel: EventChannel<Provider = Self>;
    /// A listener.
    type Listener: Listener;
    /// A peer's wish to connect.
    type ConnectRequest: ConnectRequest<Provider = Self>;
    /// A connection.
    type Connection: Connection<Provider = Self>;

    /// The devices there are now: for reports, and to prepare domains before the first request.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when there are none.
    fn devices(&self) -> Result<Vec<Self::Device>, Error>;

    /// A new source of events, for one owner: a reactor, or a host.
    ///
    /// # Errors
    /// [`Error::Unavailable`], or the system's.
    fn event_channel(&self) -> Result<Self::EventChannel, Error>;
}

/// An open device. Cheap to clone; clones are the same device.
pub trait Device: Clone + Debug + Send + Sync + 'static {
    /// Whose device this is.
    type Provider: Provider;

    /// Its index in tables.
    fn index(&self) -> DeviceIndex;

    /// Its name: `rxe0`, `mlx5_0`.
    fn name(&self) -> &str;

    /// What it allows.
    fn limits(&self) -> &DeviceLimits;

    /// Whether a port, counted from 1, carries traffic.
    ///
    /// # Errors
    /// [`Error::DeviceGone`], or the system's.
    fn port_is_up(&self, port: u8) -> Result<bool, Error>;

    /// A new protection domain. A process needs one per device.
    ///
    /// # Errors
    /// The device's.
    fn create_domain(&self) -> Result<<Self::Provider as Provider>::Domain, Error>;

    /// The next thing that happened to it, without waiting. Each event is told once, whichever
    /// clone is asked: let one owner ask, and pass on what concerns others.
    fn next_event(&self) -> Option<DeviceEvent>;

    /// Readable when [`next_event`](Self::next_event) has something.
    fn descriptor(&self) -> BorrowedFd<'_>;
}

/// A protection domain: what belongs together. Cheap to clone; clones are the same domain.
pub trait Domain: Clone + Debug + Send + Sync + 'static {
    /// Whose domain this is.
    type Provider: Provider;

    /// Its device.
    fn device(&self) -> &<Self::Provider as Provider>::Device;

    /// Registers memory, which pins it. Dropping the registration ends it, and whatever is still
    /// posted with its keys then fails.
    ///
    /// # Errors
    /// [`Error::Limit`] when the range is longer than
    /// [`DeviceLimits::registration_bytes`] or the process may not pin so much; the system's.
    fn register(
        &self,
        range: MemoryRange<'_>,
        access: Access,
    ) -> Result<<Self::Provider as Provider>::Registration, Error>;

    /// A memory window of type 2, not bound.
    ///
    /// # Errors
    /// [`Error::Limit`] when the device has none (left).
    fn create_window(&self) -> Result<<Self::Provider as Provider>::Window, Error>;

    /// A completion queue of at least `entries` entries. `token` comes back in device events.
    ///
    /// # Errors
    /// [`Error::Limit`], or the device's.
    fn create_completion_queue(
        &self,
        entries: u32,
        token: Token,
    ) -> Result<<Self::Provider as Provider>::CompletionQueue, Error>;

    /// A shared receive queue of at least `requests` receives with up to `sges` pieces of memory.
    /// `token` comes back in device events.
    ///
    /// # Errors
    /// [`Error::Limit`], or the device's.
    fn create_shared_receive_queue(
        &self,
        requests: u32,
        sges: u32,
        token: Token,
    ) -> Result<<Self::Provider as Provider>::SharedReceiveQueue, Error>;
}

/// Registered memory.
pub trait Registration: Debug + Send + Sync + 'static {
    /// Virtual address of the first byte.
    fn address(&self) -> usize;

    /// Bytes.
    fn bytes(&self) -> usize;

    /// The key that local work requests name it by.
    fn lkey(&self) -> u32;

    /// The key that the peer names it by, as far as its [`Access`] allows.
    fn rkey(&self) -> u32;
}

/// A memory window of type 2: a key that can be invalidated, by the peer too.
pub trait MemoryWindow: Debug + Send + 'static {
    /// Its key of now: that of the last binding that was queued.
    fn rkey(&self) -> u32;
}

/// A completion queue.
pub trait CompletionQueue: Debug + Send + 'static {
    /// Entries that it has. More completions than that without a poll, and it is lost, with every
    /// queue pair on it ([`DeviceEvent::CompletionQueueFailed`]).
    fn entries(&self) -> u32;

    /// Takes completions into the front of `completions`; returns how many.
    ///
    /// # Errors
    /// The queue failed and never works again.
    fn poll(&mut self, completions: &mut [WorkCompletion]) -> Result<usize, Error>;

    /// Asks for one notification, at the next completion that comes after this call; with
    /// `solicited_only`, at the next receive of a solicited message or failure.
    ///
    /// Before sleeping: [`acknowledge`](Self::acknowledge), `arm`, and a last
    /// [`poll`](Self::poll), since what came before is not told.
    ///
    /// # Errors
    /// The device's.
    fn arm(&mut self, solicited_only: bool) -> Result<(), Error>;

    /// Takes in the notifications that there are, so that the descriptor is no longer readable.
    /// Returns whether there was one.
    ///
    /// # Errors
    /// The device's.
    fn acknowledge(&mut self) -> Result<bool, Error>;

    /// Readable when there is a notification.
    fn descriptor(&self) -> BorrowedFd<'_>;
}

/// Receives that several queue pairs take from.
pub trait SharedReceiveQueue: Debug + Send + 'static {
    /// Receives that it holds at most.
    fn requests(&self) -> u32;

    /// Adds a receive to those that the next [`flush`](Self::flush) posts.
    ///
    /// # Errors
    /// [`PostError`]: this receive was not added; what was added before stays.
    fn queue_receive(&mut self, request: &ReceiveRequest) -> Result<(), PostError>;

    /// Posts what was queued.
    ///
    /// # Errors
    /// [`FlushError`]: some were not posted.
    fn flush(&mut self) -> Result<(), FlushError>;

    /// Ends the queue, which takes nothing more then. Dropping it does the same and does not tell how
    /// it went. Again, it says the same again.
    ///
    /// # Errors
    /// The device may still write to the memory of what is posted: the device refuses, or a queue
    /// pair on the queue exists.
    fn destroy(&mut self) -> Result<(), Error>;

    /// Asks for one [`DeviceEvent::ReceivesLow`] when fewer than `requests` receives are left.
    ///
    /// # Errors
    /// The device's.
    fn set_low_limit(&mut self, requests: u32) -> Result<(), Error>;
}

/// What a queue pair is made of. The completion queues may be the same one.
#[derive(Debug)]
pub struct QueuePairOptions<'a, P: Provider> {
    /// Where its sends complete.
    pub send_completions: &'a P::CompletionQueue,
    /// Where its receives complete.
    pub receive_completions: &'a P::CompletionQueue,
    /// Where its receives come from, when not from its own queue.
    pub shared_receives: Option<&'a P::SharedReceiveQueue>,
    /// How much it shall hold.
    pub capacity: QueuePairCapacity,
}

impl<P: Provider> Clone for QueuePairOptions<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Provider> Copy for QueuePairOptions<'_, P> {}

/// A reliable connected queue pair.
pub trait QueuePair: Debug + Send + 'static {
    /// Whose queue pair this is.
    type Provider: Provider;

    /// Its number, as completions and device events name it.
    fn number(&self) -> u32;

    /// How much it holds: at least what was asked for, save for inline bytes.
    fn capacity(&self) -> QueuePairCapacity;

    /// Its state.
    ///
    /// # Errors
    /// The device's.
    fn state(&self) -> Result<QueuePairState, Error>;

    /// Puts it into the error state: everything posted is flushed.
    ///
    /// # Errors
    /// The device's.
    fn set_error(&mut self) -> Result<(), Error>;

    /// Ends the queue pair, which takes nothing more then. Dropping it does the same and does not tell
    /// how it went. Again, it says the same again.
    ///
    /// # Errors
    /// The device refuses, and may still access the memory of what is posted.
    fn destroy(&mut self) -> Result<(), Error>;

    /// Adds a request to those that the next [`flush`](Self::flush) posts, in this order. Inline
    /// bytes are copied out.
    ///
    /// # Errors
    /// [`PostError`]: this request was not added; what was added before stays.
    fn queue_send(&mut self, request: &SendRequest<'_>) -> Result<(), PostError>;

    /// Gives the newest request that is queued and not posted a completion on success, whatever it
    /// said of itself: so whoever queues need not know which one ends the turn. Nothing queued,
    /// nothing done.
    fn signal_last(&mut self);

    /// Adds a request that binds `window` to a part of `registration`, and gives the window a new
    /// key. The order is that of sends: a message behind it may carry the key.
    ///
    /// # Errors
    /// [`PostError`]: the request was not added, and the key is as it was.
    fn queue_bind(
        &mut self,
        window: &mut <Self::Provider as Provider>::Window,
        registration: &<Self::Provider as Provider>::Registration,
        binding: &WindowBinding,
    ) -> Result<(), PostError>;

    /// Adds a receive to those that the next [`flush`](Self::flush) posts; not with a shared
    /// receive queue.
    ///
    /// # Errors
    /// [`PostError`]: this receive was not added; what was added before stays.
    fn queue_receive(&mut self, request: &ReceiveRequest) -> Result<(), PostError>;

    /// Posts what was queued, receives first: one doorbell for each kind. Nothing queued costs
    /// nothing.
    ///
    /// # Errors
    /// [`FlushError`]: some were not posted. Where receives were refused, the sends were still
    /// tried.
    fn flush(&mut self) -> Result<(), FlushError>;
}

/// A source of connection events for one owner, and the maker of listeners and connections, whose
/// events come here.
pub trait EventChannel: Debug + Send + 'static {
    /// Whose channel this is.
    type Provider: Provider;

    /// The next event, without waiting.
    ///
    /// # Errors
    /// The system's: the channel no longer works.
    fn next_event(&mut self) -> Result<Option<Event<Self::Provider>>, Error>;

    /// Readable when [`next_event`](Self::next_event) has something.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// Listens on `address`, whose port may be 0 and whose address may be unspecified (every
    /// device's). Up to `backlog` requests wait for [`next_event`](Self::next_event); more are
    /// turned away.
    ///
    /// # Errors
    /// [`Unavailable::NotOnDevice`](crate::Unavailable::NotOnDevice); the system's, such as an
    /// address in use.
    fn listen(
        &mut self,
        address: SocketAddr,
        backlog: u32,
        token: Token,
    ) -> Result<<Self::Provider as Provider>::Listener, Error>;

    /// A connection to be made from this side.
    ///
    /// # Errors
    /// The system's.
    fn connection(
        &mut self,
        token: Token,
    ) -> Result<<Self::Provider as Provider>::Connection, Error>;
}

/// A listener; dropping it ends the listening, and requests that still wait are rejected.
pub trait Listener: Debug + Send + 'static {
    /// The address, with the port that it got.
    fn local_address(&self) -> SocketAddr;
}

/// A peer's wish to connect, which any reactor may answer. Dropping it rejects it.
pub trait ConnectRequest: Debug + Send + 'static {
    /// Whose request this is.
    type Provider: Provider;

    /// The device that the peer reached.
    fn device(&self) -> &<Self::Provider as Provider>::Device;

    /// The peer's private data; see [`PrivateData`] for its length.
    fn private_data(&self) -> &PrivateData;

    /// RDMA reads that the peer answers at once: an upper bound for
    /// [`ConnectParameters::initiator_depth`] of the accept.
    fn initiator_depth(&self) -> u8;

    /// RDMA reads that the peer wants to have outstanding: what
    /// [`ConnectParameters::responder_resources`] of the accept is about.
    fn responder_resources(&self) -> u8;

    /// The address that the peer reached.
    fn local_address(&self) -> SocketAddr;

    /// The peer's address.
    fn peer_address(&self) -> SocketAddr;

    /// Makes it a connection whose events come to `channel` with `token`.
    ///
    /// # Errors
    /// The system's; the request is then rejected.
    fn into_connection(
        self,
        channel: &mut <Self::Provider as Provider>::EventChannel,
        token: Token,
    ) -> Result<<Self::Provider as Provider>::Connection, Error>;

    /// Says no.
    ///
    /// # Errors
    /// [`Error::PrivateDataTooLong`] or the system's; the request is then rejected without.
    fn reject(self, private_data: &[u8]) -> Result<(), Error>;
}

/// A connection, or one being made. Dropping it disconnects without a word to the event channel,
/// and no event of it comes any more.
pub trait Connection: Debug + Send + 'static {
    /// Whose connection this is.
    type Provider: Provider;

    /// Its token.
    fn token(&self) -> Token;

    /// Its device; known from
    /// [`AddressResolved`](crate::ConnectionEvent::AddressResolved) on.
    fn device(&self) -> Option<<Self::Provider as Provider>::Device>;

    /// This side's address, once known.
    fn local_address(&self) -> Option<SocketAddr>;

    /// The peer's address, once known.
    fn peer_address(&self) -> Option<SocketAddr>;

    /// Active side: finds the device that `peer` is reached by. Ends in
    /// [`AddressResolved`](crate::ConnectionEvent::AddressResolved) or
    /// [`AddressFailed`](crate::ConnectionEvent::AddressFailed).
    ///
    /// # Errors
    /// [`Unavailable::NotOnDevice`](crate::Unavailable::NotOnDevice) for `source`; the system's.
    fn resolve_address(
        &mut self,
        source: Option<SocketAddr>,
        peer: SocketAddr,
        timeout: Duration,
    ) -> Result<(), Error>;

    /// Active side: finds the way to the peer. Ends in
    /// [`RouteResolved`](crate::ConnectionEvent::RouteResolved) or
    /// [`RouteFailed`](crate::ConnectionEvent::RouteFailed).
    ///
    /// # Errors
    /// The system's.
    fn resolve_route(&mut self, timeout: Duration) -> Result<(), Error>;

    /// Makes its queue pair, once. Receives may be posted at once, sends when
    /// [`Established`](crate::ConnectionEvent::Established) has come.
    ///
    /// # Errors
    /// [`Error::Limit`]; [`Error::Misuse`] for a domain or queues of another device; the device's.
    fn create_queue_pair(
        &mut self,
        domain: &<Self::Provider as Provider>::Domain,
        options: &QueuePairOptions<'_, Self::Provider>,
    ) -> Result<<Self::Provider as Provider>::QueuePair, Error>;

    /// Active side: asks the peer. Ends in [`Established`](crate::ConnectionEvent::Established),
    /// [`Rejected`](crate::ConnectionEvent::Rejected),
    /// [`Unreachable`](crate::ConnectionEvent::Unreachable) or
    /// [`ConnectFailed`](crate::ConnectionEvent::ConnectFailed).
    ///
    /// # Errors
    /// [`Error::PrivateDataTooLong`]; the system's.
    fn connect(&mut self, parameters: &ConnectParameters<'_>) -> Result<(), Error>;

    /// Passive side: says yes. Ends in [`Established`](crate::ConnectionEvent::Established) or
    /// [`ConnectFailed`](crate::ConnectionEvent::ConnectFailed).
    ///
    /// # Errors
    /// [`Error::PrivateDataTooLong`]; the system's.
    fn accept(&mut self, parameters: &ConnectParameters<'_>) -> Result<(), Error>;

    /// Passive side: says no after all, in place of [`accept`](Self::accept).
    ///
    /// # Errors
    /// [`Error::PrivateDataTooLong`]; the system's.
    fn reject(&mut self, private_data: &[u8]) -> Result<(), Error>;

    /// Ends the connection: the queue pair goes into the error state, what is posted is flushed,
    /// and both sides get [`Disconnected`](crate::ConnectionEvent::Disconnected). Again or before
    /// being connected, it does nothing.
    ///
    /// # Errors
    /// The system's.
    fn disconnect(&mut self) -> Result<(), Error>;
}
