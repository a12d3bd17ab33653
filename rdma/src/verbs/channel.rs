//! Event channels, and conversion of their events.
#![expect(unsafe_code, reason = "calls librdmacm")]

use std::ffi::c_int;
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rdma_sys::{
    rdma_cm_event, rdma_cm_event_type, rdma_cm_id, rdma_conn_param, rdma_event_channel,
};

use super::Verbs;
use super::connect_request::{Details, VerbsConnectRequest};
use super::connection::{VerbsConnection, failure_kind};
use super::handle::Handle;
use super::identifier::{Identifier, IdentifierContext, set};
use super::library::Functions;
use super::listener::{UNKNOWN_ADDRESS, VerbsListener};
use super::queue_pair::set_rnr_timer;
use super::system::{descriptor_of, error_of, set_nonblocking, would_block};
use super::table::{DeviceTable, no_devices};
use crate::connection::{ConnectionEvent, Event, PrivateData, RejectReason, Token};
use crate::error::Error;
use crate::provider::EventChannel;

/// An event channel of librdmacm, for one owner.
///
/// Each poll for an event is a system call, so poll when the descriptor is readable, or
/// occasionally.
#[derive(Debug)]
pub struct VerbsEventChannel {
    channel: Arc<Channel>,
    devices: Arc<DeviceTable>,
}

/// The part of a channel that its listeners, requests and connections keep alive and lock.
#[derive(Debug)]
pub(super) struct Channel {
    functions: &'static Functions,
    channel: Handle<rdma_event_channel>,
    /// See the documentation of the module `verbs`.
    lock: Mutex<()>,
}

impl Channel {
    pub(super) fn functions(&self) -> &'static Functions {
        self.functions
    }

    pub(super) fn handle(&self) -> Handle<rdma_event_channel> {
        self.channel
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, ()> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is alive, and this field never changes.
        let number = unsafe { (*self.channel.get()).fd };
        // SAFETY: the channel lives for as long as this borrow.
        unsafe { descriptor_of(number) }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: its identifiers keep it alive and are all gone, so this is its last use.
        unsafe { (self.functions.rdma_destroy_event_channel)(self.channel.get()) };
    }
}

/// The content of an event after its acknowledgement.
enum FetchedEvent {
    Nothing,
    Event(Event<Verbs>),
    Request {
        listener: Token,
        id: Handle<rdma_cm_id>,
        private_data: PrivateData,
        initiator_depth: u8,
        responder_resources: u8,
    },
}

impl VerbsEventChannel {
    pub(super) fn new(devices: Arc<DeviceTable>) -> Result<Self, Error> {
        let functions = devices.functions();
        // SAFETY: any thread may create a channel.
        let channel = unsafe { (functions.rdma_create_event_channel)() };
        let channel = Handle::new(channel).ok_or_else(|| no_devices(io::Error::last_os_error()))?;
        let channel = Channel {
            functions,
            channel,
            lock: Mutex::new(()),
        };
        set_nonblocking(channel.descriptor())?;
        Ok(Self {
            channel: Arc::new(channel),
            devices,
        })
    }

    pub(super) fn shared(&self) -> &Arc<Channel> {
        &self.channel
    }

    /// Fetches, converts and acknowledges one event under the channel's lock.
    fn fetch(&self) -> Result<Option<FetchedEvent>, Error> {
        let functions = self.channel.functions;
        let _lock = self.channel.lock();
        let mut event = ptr::null_mut();
        let get = functions.rdma_get_cm_event;
        // SAFETY: the channel is alive and does not block; with the lock held, no other thread
        // accesses the identifier of the event.
        if unsafe { get(self.channel.channel.get(), &raw mut event) } != 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::Interrupted => Ok(Some(FetchedEvent::Nothing)),
                _ if would_block(&error) => Ok(None),
                _ => Err(error_of("rdma_get_cm_event", error)),
            };
        }
        // SAFETY: the event belongs to this function until it is acknowledged.
        let fetched = unsafe { &*event };
        let converted = convert_event(fetched);
        if let FetchedEvent::Event(_) = converted {
            self.handle_event(fetched.event, fetched.id);
        }
        // SAFETY: the event came from the call above and is acknowledged once.
        unsafe { (functions.rdma_ack_cm_event)(event) };
        Ok(Some(converted))
    }

    /// Reacts to an event on this side's behalf, so that the owner of the connection need not. The
    /// channel is locked.
    fn handle_event(&self, kind: rdma_cm_event_type::Type, id: *mut rdma_cm_id) {
        let functions = self.channel.functions;
        match kind {
            rdma_cm_event_type::RDMA_CM_EVENT_DISCONNECTED => {
                // Flushes the work, and answers the peer's disconnect. Fails if this side
                // disconnected first.
                // SAFETY: the identifier is alive, and its channel is locked.
                let _ = unsafe { (functions.rdma_disconnect)(id) };
            }
            rdma_cm_event_type::RDMA_CM_EVENT_ESTABLISHED => {
                // SAFETY: the identifier is alive, and its channel is locked.
                let queue_pair = unsafe { (*id).qp };
                if let Some(queue_pair) = Handle::new(queue_pair) {
                    set_rnr_timer(functions, queue_pair);
                }
            }
            rdma_cm_event_type::RDMA_CM_EVENT_DEVICE_REMOVAL => {
                // SAFETY: the identifier is alive, and its channel is locked.
                let context = unsafe { (*id).verbs };
                if let Some(context) = Handle::new(context) {
                    self.devices.remove(context);
                }
            }
            _ => {}
        }
    }

    /// Turns a connection request into a [`VerbsConnectRequest`]; `None` if its device was removed
    /// meanwhile.
    fn request(
        &self,
        id: Handle<rdma_cm_id>,
        private_data: PrivateData,
        initiator_depth: u8,
        responder_resources: u8,
    ) -> Option<VerbsConnectRequest> {
        let identifier = Identifier::of_request(Arc::clone(&self.channel), id);
        let device = identifier
            .verbs()
            .map(|context| self.devices.device_of(context));
        let Some(Ok(device)) = device else {
            let _ = identifier.reject(&[]);
            return None;
        };
        let details = Details {
            devices: Arc::clone(&self.devices),
            device,
            private_data,
            initiator_depth,
            responder_resources,
            local_address: identifier.local_address().unwrap_or(UNKNOWN_ADDRESS),
            peer_address: identifier.peer_address().unwrap_or(UNKNOWN_ADDRESS),
        };
        Some(VerbsConnectRequest::new(identifier, details))
    }
}

impl EventChannel for VerbsEventChannel {
    type Provider = Verbs;

    fn next_event(&mut self) -> Result<Option<Event<Verbs>>, Error> {
        while let Some(converted) = self.fetch()? {
            match converted {
                FetchedEvent::Nothing => {}
                FetchedEvent::Event(event) => return Ok(Some(event)),
                FetchedEvent::Request {
                    listener,
                    id,
                    private_data,
                    initiator_depth,
                    responder_resources,
                } => {
                    let request =
                        self.request(id, private_data, initiator_depth, responder_resources);
                    if let Some(request) = request {
                        return Ok(Some(Event::ConnectRequest { listener, request }));
                    }
                }
            }
        }
        Ok(None)
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.channel.descriptor()
    }

    fn listen(
        &mut self,
        address: SocketAddr,
        backlog: u32,
        token: Token,
    ) -> Result<VerbsListener, Error> {
        VerbsListener::new(&self.channel, address, backlog, token)
    }

    fn connection(&mut self, token: Token) -> Result<VerbsConnection, Error> {
        VerbsConnection::active(&self.channel, token, Arc::clone(&self.devices))
    }
}

/// Converts an event. Its channel is locked.
fn convert_event(event: &rdma_cm_event) -> FetchedEvent {
    if event.event == rdma_cm_event_type::RDMA_CM_EVENT_CONNECT_REQUEST {
        return convert_request(event);
    }
    // SAFETY: the caller holds the lock of the channel.
    let Some(label) = (unsafe { IdentifierContext::of_identifier(event.id) }) else {
        return FetchedEvent::Nothing;
    };
    let token = label.token;
    if label.is_listener {
        return match event.event {
            rdma_cm_event_type::RDMA_CM_EVENT_TIMEWAIT_EXIT => FetchedEvent::Nothing,
            _ => FetchedEvent::Event(Event::ListenerFailed { listener: token }),
        };
    }
    let event = connection_event(label, event);
    FetchedEvent::Event(Event::Connection { token, event })
}

fn convert_request(event: &rdma_cm_event) -> FetchedEvent {
    let Some(id) = Handle::new(event.id) else {
        return FetchedEvent::Nothing;
    };
    // A request starts with its listener's context; it gets its own label when it is taken.
    // SAFETY: the event gives this side a new identifier, which no other code knows.
    unsafe { (*id.get()).context = ptr::null_mut() };
    // SAFETY: the caller holds the lock of the channel, and the event names its listener.
    let Some(label) = (unsafe { IdentifierContext::of_identifier(event.listen_id) }) else {
        return FetchedEvent::Nothing;
    };
    // SAFETY: events of reliable connections have this member.
    let parameters = unsafe { &event.param.conn };
    FetchedEvent::Request {
        listener: label.token,
        id,
        private_data: private_data_of(parameters),
        initiator_depth: parameters.initiator_depth,
        responder_resources: parameters.responder_resources,
    }
}

fn connection_event(label: &IdentifierContext, event: &rdma_cm_event) -> ConnectionEvent {
    use rdma_cm_event_type as kind;

    let status = event.status;
    // SAFETY: events of reliable connections have this member; in events without parameters the
    // library left zeroes.
    let parameters = unsafe { &event.param.conn };
    match event.event {
        kind::RDMA_CM_EVENT_ADDR_RESOLVED => ConnectionEvent::AddressResolved,
        kind::RDMA_CM_EVENT_ADDR_ERROR => ConnectionEvent::AddressFailed(failure_kind(status)),
        kind::RDMA_CM_EVENT_ROUTE_RESOLVED => ConnectionEvent::RouteResolved,
        kind::RDMA_CM_EVENT_ROUTE_ERROR => ConnectionEvent::RouteFailed(failure_kind(status)),
        kind::RDMA_CM_EVENT_CONNECT_ERROR => ConnectionEvent::ConnectFailed(failure_kind(status)),
        // The peer accepted, but the queue pair was dropped.
        kind::RDMA_CM_EVENT_CONNECT_RESPONSE => {
            ConnectionEvent::ConnectFailed(io::ErrorKind::NotConnected)
        }
        kind::RDMA_CM_EVENT_UNREACHABLE => ConnectionEvent::Unreachable,
        kind::RDMA_CM_EVENT_REJECTED => ConnectionEvent::Rejected {
            reason: RejectReason(status),
            private_data: private_data_of(parameters),
        },
        kind::RDMA_CM_EVENT_ESTABLISHED => {
            set(&label.is_connected);
            established(label, parameters)
        }
        kind::RDMA_CM_EVENT_DISCONNECTED => {
            set(&label.is_disconnected);
            ConnectionEvent::Disconnected
        }
        kind::RDMA_CM_EVENT_DEVICE_REMOVAL => ConnectionEvent::DeviceRemoved,
        kind::RDMA_CM_EVENT_ADDR_CHANGE => ConnectionEvent::AddressChanged,
        kind::RDMA_CM_EVENT_TIMEWAIT_EXIT => ConnectionEvent::TimewaitExit,
        other => ConnectionEvent::Other {
            event: other as c_int,
            status,
        },
    }
}

/// The active side's event carries the accept's parameters. The passive side's event carries none,
/// so this function reports what this side granted.
fn established(label: &IdentifierContext, parameters: &rdma_conn_param) -> ConnectionEvent {
    if label.is_passive {
        return ConnectionEvent::Established {
            private_data: PrivateData::EMPTY,
            initiator_depth: label.initiator_depth.load(Ordering::Relaxed),
            responder_resources: label.responder_resources.load(Ordering::Relaxed),
        };
    }
    ConnectionEvent::Established {
        private_data: private_data_of(parameters),
        initiator_depth: parameters.initiator_depth,
        responder_resources: parameters.responder_resources,
    }
}

fn private_data_of(parameters: &rdma_conn_param) -> PrivateData {
    let bytes = parameters.private_data.cast::<u8>();
    let length = usize::from(parameters.private_data_len);
    if bytes.is_null() || length == 0 {
        return PrivateData::EMPTY;
    }
    // SAFETY: the event holds this many bytes until it is acknowledged, which its borrow outlasts.
    PrivateData::new(unsafe { std::slice::from_raw_parts(bytes, length) })
}
