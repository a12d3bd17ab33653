//! The trait of RDMA providers and the traits of their objects.
//!
//! The calls of the I/O path are [`QueuePair::queue_send`], [`QueuePair::queue_receive`],
//! [`QueuePair::flush`], the same calls of [`SharedReceiveQueue`], and [`CompletionQueue::poll`].
//! They do not allocate, do not take a contended lock and do not enter the kernel (except with a
//! software device). All other calls are control calls: bounded, but they may enter the kernel and
//! allocate.
//!
//! Objects keep the objects that they were created from alive, in any order of dropping. Dropping
//! never waits for another thread. A destroyed queue pair discards its posted work: it produces no
//! further completions beyond those already in the completion queue, and the device no longer
//! accesses its memory. If the device refuses to destroy it, [`QueuePair::destroy`] returns an
//! error, and the poster must never use the memory again; the queue pair and its parents then stay
//! until the process ends.

use std::fmt::Debug;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use crate::completion::WorkCompletion;
use crate::connection::{ConnectParameters, Event, PrivateData, Token};
use crate::device::{DeviceEvent, DeviceIndex, DeviceLimits, QueuePairCapacity, QueuePairState};
use crate::error::{Error, FlushError, PostError};
use crate::memory::{Access, DeviceRange, MemoryRange};
use crate::request::{ReceiveRequest, SendRequest, WindowBinding};

/// RDMA, by real verbs or an in-process fabric. Cheap to clone; one per process.
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
    /// A channel of connection events.
    type EventChannel: EventChannel<Provider = Self>;
    /// A listener.
    type Listener: Listener;
    /// A connection request of a peer.
    type ConnectRequest: ConnectRequest<Provider = Self>;
    /// A connection.
    type Connection: Connection<Provider = Self>;

    /// The devices present now, for reports and to create domains before the first request.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if there are none.
    fn devices(&self) -> Result<Vec<Self::Device>, Error>;

    /// Creates an event channel for one owner: a reactor or a host.
    ///
    /// # Errors
    /// [`Error::Unavailable`], or an error of the system.
    fn event_channel(&self) -> Result<Self::EventChannel, Error>;
}

/// An open device. Cheap to clone; clones are the same device.
pub trait Device: Clone + Debug + Send + Sync + 'static {
    /// The provider of this device.
    type Provider: Provider;

    /// The index of this device in tables.
    fn index(&self) -> DeviceIndex;

    /// The name, such as `rxe0` or `mlx5_0`.
    fn name(&self) -> &str;

    /// The limits of this device.
    fn limits(&self) -> &DeviceLimits;

    /// Whether a port, counted from 1, carries traffic.
    ///
    /// # Errors
    /// [`Error::DeviceGone`], or an error of the system.
    fn port_is_up(&self, port: u8) -> Result<bool, Error>;

    /// Creates a protection domain. A process needs one per device.
    ///
    /// # Errors
    /// An error of the device.
    fn create_domain(&self) -> Result<<Self::Provider as Provider>::Domain, Error>;

    /// The next event of the device, without waiting. Each event is returned once, to one of the
    /// clones: let one owner call this and pass events on to other users.
    fn next_event(&self) -> Option<DeviceEvent>;

    /// Readable if [`next_event`](Self::next_event) has an event.
    fn descriptor(&self) -> BorrowedFd<'_>;
}

/// A protection domain. Cheap to clone; clones are the same domain.
pub trait Domain: Clone + Debug + Send + Sync + 'static {
    /// The provider of this domain.
    type Provider: Provider;

    /// The device of this domain.
    fn device(&self) -> &<Self::Provider as Provider>::Device;

    /// Registers and pins memory. Dropping the registration ends it; work that is still posted with
    /// its keys then fails.
    ///
    /// # Errors
    /// [`Error::Limit`] if the range is longer than [`DeviceLimits::registration_bytes`] or exceeds
    /// the memory that the process may pin; an error of the system.
    fn register(
        &self,
        range: MemoryRange<'_>,
        access: Access,
    ) -> Result<<Self::Provider as Provider>::Registration, Error>;

    /// Registers memory of another device. Dropping the registration ends it; work that is still posted
    /// with its keys then fails.
    ///
    /// # Errors
    /// [`Error::NoDeviceMemory`] if the device, its driver or its library registers none;
    /// [`Error::Limit`], or an error of the system.
    fn register_device_memory(
        &self,
        range: DeviceRange<'_>,
        access: Access,
    ) -> Result<<Self::Provider as Provider>::Registration, Error>;

    /// Creates an unbound memory window of type 2.
    ///
    /// # Errors
    /// [`Error::Limit`] if the device has no (more) windows.
    fn create_window(&self) -> Result<<Self::Provider as Provider>::Window, Error>;

    /// Creates a completion queue of at least `entries` entries. Device events carry `token`.
    ///
    /// # Errors
    /// [`Error::Limit`], or an error of the device.
    fn create_completion_queue(
        &self,
        entries: u32,
        token: Token,
    ) -> Result<<Self::Provider as Provider>::CompletionQueue, Error>;

    /// Creates a shared receive queue of at least `requests` receives with up to `sges` pieces of
    /// memory each. Device events carry `token`.
    ///
    /// # Errors
    /// [`Error::Limit`], or an error of the device.
    fn create_shared_receive_queue(
        &self,
        requests: u32,
        sges: u32,
        token: Token,
    ) -> Result<<Self::Provider as Provider>::SharedReceiveQueue, Error>;
}

/// Registered memory.
pub trait Registration: Debug + Send + Sync + 'static {
    /// Virtual address of the first byte; for memory of another device, its bus address.
    fn address(&self) -> usize;

    /// Length in bytes.
    fn bytes(&self) -> usize;

    /// The key for local work requests.
    fn lkey(&self) -> u32;

    /// The key for the peer, with the rights that [`Access`] gives it.
    fn rkey(&self) -> u32;
}

/// A memory window of type 2: its key can be invalidated, also by the peer.
pub trait MemoryWindow: Debug + Send + 'static {
    /// The current key: that of the last binding that was queued.
    fn rkey(&self) -> u32;
}

/// A completion queue.
pub trait CompletionQueue: Debug + Send + 'static {
    /// Number of entries. If more completions arrive without a poll, the queue fails together with
    /// every queue pair on it ([`DeviceEvent::CompletionQueueFailed`]).
    fn entries(&self) -> u32;

    /// Moves completions to the front of `completions` and returns their number.
    ///
    /// # Errors
    /// The queue failed and does not recover.
    fn poll(&mut self, completions: &mut [WorkCompletion]) -> Result<usize, Error>;

    /// Requests one notification for the next completion after this call; with `solicited_only`,
    /// for the next receive of a solicited message or the next failure.
    ///
    /// Before sleeping, call [`acknowledge`](Self::acknowledge), `arm` and once more
    /// [`poll`](Self::poll), because completions that arrived before `arm` cause no notification.
    ///
    /// # Errors
    /// An error of the device.
    fn arm(&mut self, solicited_only: bool) -> Result<(), Error>;

    /// Consumes the pending notifications, so that the descriptor is no longer readable. Returns
    /// whether there was one.
    ///
    /// # Errors
    /// An error of the device.
    fn acknowledge(&mut self) -> Result<bool, Error>;

    /// Readable if there is a notification.
    fn descriptor(&self) -> BorrowedFd<'_>;
}

/// A receive queue that several queue pairs share.
pub trait SharedReceiveQueue: Debug + Send + 'static {
    /// The largest number of posted receives.
    fn requests(&self) -> u32;

    /// Adds a receive to those that the next [`flush`](Self::flush) posts.
    ///
    /// # Errors
    /// [`PostError`]: this receive was not added; receives added before it stay queued.
    fn queue_receive(&mut self, request: &ReceiveRequest) -> Result<(), PostError>;

    /// Posts the queued receives.
    ///
    /// # Errors
    /// [`FlushError`]: some receives were not posted.
    fn flush(&mut self) -> Result<(), FlushError>;

    /// Destroys the queue, which rejects further receives. Dropping it does the same without
    /// reporting the result. Further calls return the same result, but retry if the error was that
    /// a queue pair uses the queue.
    ///
    /// # Errors
    /// The device may still write to the memory of posted receives, because the device refused or
    /// because a queue pair still uses the queue.
    fn destroy(&mut self) -> Result<(), Error>;

    /// Asks for one [`DeviceEvent::ReceivesLow`] when fewer than `requests` receives are left.
    ///
    /// # Errors
    /// An error of the device.
    fn set_low_limit(&mut self, requests: u32) -> Result<(), Error>;
}

/// The parts of a queue pair. Both completion queues may be the same one.
#[derive(Debug)]
pub struct QueuePairOptions<'a, P: Provider> {
    /// Completion queue of sends.
    pub send_completions: &'a P::CompletionQueue,
    /// Completion queue of receives.
    pub receive_completions: &'a P::CompletionQueue,
    /// The shared receive queue, if the queue pair has no receive queue of its own.
    pub shared_receives: Option<&'a P::SharedReceiveQueue>,
    /// The requested capacity.
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
    /// The provider of this queue pair.
    type Provider: Provider;

    /// Its number, as in completions and device events.
    fn number(&self) -> u32;

    /// The granted capacity: at least the requested one, except for inline bytes.
    fn capacity(&self) -> QueuePairCapacity;

    /// Its state.
    ///
    /// # Errors
    /// An error of the device.
    fn state(&self) -> Result<QueuePairState, Error>;

    /// Moves the queue pair to the error state, which flushes everything posted.
    ///
    /// # Errors
    /// An error of the device.
    fn set_error(&mut self) -> Result<(), Error>;

    /// Destroys the queue pair, which rejects further requests. Dropping it does the same without
    /// reporting the result. Further calls return the same result.
    ///
    /// # Errors
    /// The device refuses, and may still access the memory of posted requests.
    fn destroy(&mut self) -> Result<(), Error>;

    /// Adds a request to those that the next [`flush`](Self::flush) posts, in this order. Inline
    /// bytes are copied.
    ///
    /// # Errors
    /// [`PostError`]: this request was not added; requests added before it stay queued.
    fn queue_send(&mut self, request: &SendRequest<'_>) -> Result<(), PostError>;

    /// Makes the newest queued request signalled, whatever its own flag says, so that a caller need
    /// not know in advance which request is the last of a turn. Does nothing if no request is
    /// queued.
    fn signal_last(&mut self);

    /// Adds a request that binds `window` to a part of `registration` and gives the window a new
    /// key. It executes in the order of sends, so a later message may carry the key.
    ///
    /// # Errors
    /// [`PostError`]: the request was not added, and the key is unchanged.
    fn queue_bind(
        &mut self,
        window: &mut <Self::Provider as Provider>::Window,
        registration: &<Self::Provider as Provider>::Registration,
        binding: &WindowBinding,
    ) -> Result<(), PostError>;

    /// Adds a receive to those that the next [`flush`](Self::flush) posts. Not for queue pairs with
    /// a shared receive queue.
    ///
    /// # Errors
    /// [`PostError`]: this receive was not added; receives added before it stay queued.
    fn queue_receive(&mut self, request: &ReceiveRequest) -> Result<(), PostError>;

    /// Posts the queued requests, receives first, with one doorbell per kind. Does nothing if no
    /// request is queued.
    ///
    /// # Errors
    /// [`FlushError`]: some requests were not posted. If receives were refused, the sends were
    /// still posted.
    fn flush(&mut self) -> Result<(), FlushError>;
}

/// A channel of connection events with one owner. It creates listeners and connections, whose
/// events it delivers.
pub trait EventChannel: Debug + Send + 'static {
    /// The provider of this channel.
    type Provider: Provider;

    /// The next event, without waiting.
    ///
    /// # Errors
    /// An error of the system: the channel no longer works.
    fn next_event(&mut self) -> Result<Option<Event<Self::Provider>>, Error>;

    /// Readable if [`next_event`](Self::next_event) has an event.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// Listens on `address`. The port may be 0; the address may be unspecified, which means every
    /// device. Up to `backlog` requests wait for [`next_event`](Self::next_event); further ones are
    /// rejected.
    ///
    /// # Errors
    /// [`Unavailable::NotOnDevice`](crate::Unavailable::NotOnDevice), or an error of the system,
    /// such as an address in use.
    fn listen(
        &mut self,
        address: SocketAddr,
        backlog: u32,
        token: Token,
    ) -> Result<<Self::Provider as Provider>::Listener, Error>;

    /// Creates a connection for the active side.
    ///
    /// # Errors
    /// An error of the system.
    fn connection(
        &mut self,
        token: Token,
    ) -> Result<<Self::Provider as Provider>::Connection, Error>;
}

/// A listener. Dropping it stops listening and rejects the requests that still wait.
pub trait Listener: Debug + Send + 'static {
    /// The address, with the assigned port.
    fn local_address(&self) -> SocketAddr;
}

/// A connection request of a peer, which any reactor may accept. Dropping it rejects it.
pub trait ConnectRequest: Debug + Send + 'static {
    /// The provider of this request.
    type Provider: Provider;

    /// The local device that received the request.
    fn device(&self) -> &<Self::Provider as Provider>::Device;

    /// The peer's private data; see [`PrivateData`] for its length.
    fn private_data(&self) -> &PrivateData;

    /// RDMA reads that the peer answers concurrently: an upper bound for
    /// [`ConnectParameters::initiator_depth`] of the accept.
    fn initiator_depth(&self) -> u8;

    /// RDMA reads that the peer wants to have outstanding, for
    /// [`ConnectParameters::responder_resources`] of the accept.
    fn responder_resources(&self) -> u8;

    /// The local address that received the request.
    fn local_address(&self) -> SocketAddr;

    /// The peer's address.
    fn peer_address(&self) -> SocketAddr;

    /// Turns the request into a connection whose events are delivered to `channel` with `token`.
    ///
    /// # Errors
    /// An error of the system; the request is then rejected.
    fn into_connection(
        self,
        channel: &mut <Self::Provider as Provider>::EventChannel,
        token: Token,
    ) -> Result<<Self::Provider as Provider>::Connection, Error>;

    /// Rejects the request.
    ///
    /// # Errors
    /// [`Error::PrivateDataTooLong`] or an error of the system; the request is then rejected
    /// without private data.
    fn reject(self, private_data: &[u8]) -> Result<(), Error>;
}

/// A connection, established or in setup. Dropping it disconnects; its pending events are
/// discarded.
pub trait Connection: Debug + Send + 'static {
    /// The provider of this connection.
    type Provider: Provider;

    /// Its token.
    fn token(&self) -> Token;

    /// Its device, known from [`AddressResolved`](crate::ConnectionEvent::AddressResolved) on.
    fn device(&self) -> Option<<Self::Provider as Provider>::Device>;

    /// This side's address, once known.
    fn local_address(&self) -> Option<SocketAddr>;

    /// The peer's address, once known.
    fn peer_address(&self) -> Option<SocketAddr>;

    /// Active side: finds the device that reaches `peer`. Ends in
    /// [`AddressResolved`](crate::ConnectionEvent::AddressResolved) or
    /// [`AddressFailed`](crate::ConnectionEvent::AddressFailed).
    ///
    /// # Errors
    /// [`Unavailable::NotOnDevice`](crate::Unavailable::NotOnDevice) for `source`, or an error of
    /// the system.
    fn resolve_address(
        &mut self,
        source: Option<SocketAddr>,
        peer: SocketAddr,
        timeout: Duration,
    ) -> Result<(), Error>;

    /// Active side: finds the route to the peer. Ends in
    /// [`RouteResolved`](crate::ConnectionEvent::RouteResolved) or
    /// [`RouteFailed`](crate::ConnectionEvent::RouteFailed).
    ///
    /// # Errors
    /// An error of the system.
    fn resolve_route(&mut self, timeout: Duration) -> Result<(), Error>;

    /// Creates the queue pair of this connection, once. Receives may be posted immediately, sends
    /// after [`Established`](crate::ConnectionEvent::Established).
    ///
    /// # Errors
    /// [`Error::Limit`]; [`Error::Misuse`] for a domain or queues of another device; an error of
    /// the device.
    fn create_queue_pair(
        &mut self,
        domain: &<Self::Provider as Provider>::Domain,
        options: &QueuePairOptions<'_, Self::Provider>,
    ) -> Result<<Self::Provider as Provider>::QueuePair, Error>;

    /// Active side: sends the connection request. Ends in
    /// [`Established`](crate::ConnectionEvent::Established),
    /// [`Rejected`](crate::ConnectionEvent::Rejected),
    /// [`Unreachable`](crate::ConnectionEvent::Unreachable) or
    /// [`ConnectFailed`](crate::ConnectionEvent::ConnectFailed).
    ///
    /// # Errors
    /// [`Error::PrivateDataTooLong`], or an error of the system.
    fn connect(&mut self, parameters: &ConnectParameters<'_>) -> Result<(), Error>;

    /// Passive side: accepts the request. Ends in
    /// [`Established`](crate::ConnectionEvent::Established) or
    /// [`ConnectFailed`](crate::ConnectionEvent::ConnectFailed).
    ///
    /// # Errors
    /// [`Error::PrivateDataTooLong`], or an error of the system.
    fn accept(&mut self, parameters: &ConnectParameters<'_>) -> Result<(), Error>;

    /// Passive side: rejects the request, in place of [`accept`](Self::accept).
    ///
    /// # Errors
    /// [`Error::PrivateDataTooLong`], or an error of the system.
    fn reject(&mut self, private_data: &[u8]) -> Result<(), Error>;

    /// Disconnects: the queue pair enters the error state, its posted work is flushed, and both
    /// sides receive [`Disconnected`](crate::ConnectionEvent::Disconnected). Does nothing if
    /// already disconnected or not yet connected.
    ///
    /// # Errors
    /// An error of the system.
    fn disconnect(&mut self) -> Result<(), Error>;
}
