//! The connection manager's identifiers, used by listeners, requests and connections.
#![expect(unsafe_code, reason = "calls librdmacm")]

use std::net::SocketAddr;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rdma_sys::{ibv_context, rdma_cm_id, rdma_port_space};

use super::address::{destination_of, source_of};
use super::channel::Channel;
use super::handle::Handle;
use super::library::Functions;
use super::system::{checked, last_error};
use crate::connection::Token;
use crate::error::Error;

/// The data that an event finds by its identifier: the owner's token and the state of the
/// connection.
#[derive(Debug)]
pub(super) struct IdentifierContext {
    pub(super) token: Token,
    pub(super) is_listener: bool,
    /// Whether the peer requested the connection.
    pub(super) is_passive: bool,
    /// Whether the connection was established.
    pub(super) is_connected: AtomicBool,
    /// Whether either side has disconnected.
    pub(super) is_disconnected: AtomicBool,
    /// What an accept granted, because the passive side's event does not carry it.
    pub(super) initiator_depth: AtomicU8,
    pub(super) responder_resources: AtomicU8,
}

impl IdentifierContext {
    pub(super) fn of_listener(token: Token) -> Arc<Self> {
        Self::new(token, true, true)
    }

    pub(super) fn of_connection(token: Token, is_passive: bool) -> Arc<Self> {
        Self::new(token, false, is_passive)
    }

    fn new(token: Token, is_listener: bool, is_passive: bool) -> Arc<Self> {
        Arc::new(Self {
            token,
            is_listener,
            is_passive,
            is_connected: AtomicBool::new(false),
            is_disconnected: AtomicBool::new(false),
            initiator_depth: AtomicU8::new(0),
            responder_resources: AtomicU8::new(0),
        })
    }

    /// The label of an identifier whose event is being converted; `None` for a request that was not
    /// turned into a connection.
    ///
    /// # Safety
    /// The identifier's channel is locked, and stays so for `'a`.
    pub(super) unsafe fn of_identifier<'a>(id: *mut rdma_cm_id) -> Option<&'a IdentifierContext> {
        // SAFETY: an event names an identifier that is alive, and that is not destroyed without the
        // lock, which the caller holds.
        let label = unsafe { (*id).context };
        // SAFETY: a context that is not null is a label, which its identifier outlives.
        unsafe { label.cast::<IdentifierContext>().as_ref() }
    }
}

/// An identifier, which is destroyed when this is dropped.
#[derive(Debug)]
pub(super) struct Identifier {
    channel: Arc<Channel>,
    id: Handle<rdma_cm_id>,
    label: Option<Arc<IdentifierContext>>,
}

impl Identifier {
    /// Creates an identifier whose events are delivered to `channel`.
    pub(super) fn new(
        channel: &Arc<Channel>,
        label: &Arc<IdentifierContext>,
    ) -> Result<Self, Error> {
        let mut id = ptr::null_mut();
        let context = Arc::as_ptr(label).cast_mut().cast();
        let create = channel.functions().rdma_create_id;
        let space = rdma_port_space::RDMA_PS_TCP;
        // SAFETY: the channel is alive, and the call writes the place.
        let result = unsafe { create(channel.handle().get(), &raw mut id, context, space) };
        checked("rdma_create_id", result)?;
        let id = Handle::new(id).ok_or_else(|| last_error("rdma_create_id"))?;
        Ok(Self {
            channel: Arc::clone(channel),
            id,
            label: Some(Arc::clone(label)),
        })
    }

    /// The identifier of a request; it has no label yet.
    pub(super) fn of_request(channel: Arc<Channel>, id: Handle<rdma_cm_id>) -> Self {
        Self {
            channel,
            id,
            label: None,
        }
    }

    /// Calls the library with the identifier, with exclusive access to it.
    pub(super) fn with<R>(&self, call: impl FnOnce(&Functions, *mut rdma_cm_id) -> R) -> R {
        let _lock = self.channel.lock();
        call(self.channel.functions(), self.id.get())
    }

    /// Moves a request to another channel, and gives it a label.
    pub(super) fn move_to(
        &mut self,
        channel: &Arc<Channel>,
        label: &Arc<IdentifierContext>,
    ) -> Result<(), Error> {
        if !Arc::ptr_eq(&self.channel, channel) {
            let to = channel.handle().get();
            // SAFETY: both channels are alive. No event of the identifier is unacknowledged, so
            // the call does not wait.
            let result = self.with(|functions, id| unsafe { (functions.rdma_migrate_id)(id, to) });
            checked("rdma_migrate_id", result)?;
            self.channel = Arc::clone(channel);
        }
        let context = Arc::as_ptr(label).cast_mut().cast();
        // SAFETY: the identifier is alive, and its channel is locked.
        self.with(|_, id| unsafe { (*id).context = context });
        self.label = Some(Arc::clone(label));
        Ok(())
    }

    /// The context of the device to which the identifier is bound.
    pub(super) fn verbs(&self) -> Option<Handle<ibv_context>> {
        // SAFETY: the identifier is alive, and its channel is locked.
        Handle::new(self.with(|_, id| unsafe { (*id).verbs }))
    }

    /// Whether it has a queue pair.
    pub(super) fn has_queue_pair(&self) -> bool {
        // SAFETY: the identifier is alive, and its channel is locked.
        !self.with(|_, id| unsafe { (*id).qp }).is_null()
    }

    /// Removes its queue pair, which is about to be destroyed or may outlive the identifier.
    pub(super) fn forget_queue_pair(&self) {
        // SAFETY: the identifier is alive, and its channel is locked, so no event that would move
        // the queue pair is being fetched.
        self.with(|_, id| unsafe { (*id).qp = ptr::null_mut() });
    }

    pub(super) fn local_address(&self) -> Option<SocketAddr> {
        // SAFETY: the identifier is alive, and its channel is locked, so its route does not change.
        self.with(|_, id| source_of(unsafe { &(*id).route.addr }))
    }

    pub(super) fn peer_address(&self) -> Option<SocketAddr> {
        // SAFETY: the identifier is alive, and its channel is locked, so its route does not change.
        self.with(|_, id| destination_of(unsafe { &(*id).route.addr }))
    }

    /// Rejects a request.
    pub(super) fn reject(&self, private_data: &[u8]) -> Result<(), Error> {
        let length = private_data.len() as u8;
        let data = private_data.as_ptr().cast();
        // SAFETY: the identifier is alive, and the call copies this many bytes.
        let result =
            self.with(|functions, id| unsafe { (functions.rdma_reject)(id, data, length) });
        checked("rdma_reject", result)
    }

    /// Disconnects, which flushes the queue pair's work.
    pub(super) fn disconnect(&self) -> Result<(), Error> {
        // SAFETY: the identifier is alive.
        let result = self.with(|functions, id| unsafe { (functions.rdma_disconnect)(id) });
        checked("rdma_disconnect", result)
    }
}

impl Drop for Identifier {
    fn drop(&mut self) {
        // No event is unacknowledged while the lock is held, so this does not wait for one.
        // SAFETY: this is its last use; unfetched events are dropped with it.
        let result = self.with(|functions, id| unsafe { (functions.rdma_destroy_id)(id) });
        if result != 0 {
            // The identifier still exists, and so may events that find its label.
            std::mem::forget(self.label.take());
            std::mem::forget(Arc::clone(&self.channel));
        }
    }
}

/// The identifier that a connection and its queue pair share until the connection is dropped.
#[derive(Debug)]
pub(super) struct Link(Mutex<Option<Identifier>>);

impl Link {
    pub(super) fn new(identifier: Identifier) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Some(identifier))))
    }

    /// Calls with the identifier, if there still is one.
    pub(super) fn with<R>(&self, call: impl FnOnce(&Identifier) -> R) -> Option<R> {
        let identifier = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        identifier.as_ref().map(call)
    }

    /// Takes the identifier away from both.
    pub(super) fn take(&self) -> Option<Identifier> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Loads a flag with the memory order of all flags of a label, which are set while the channel is
/// locked.
pub(super) fn is_set(flag: &AtomicBool) -> bool {
    flag.load(Ordering::Acquire)
}

/// Sets a flag; returns whether it was set before.
pub(super) fn set(flag: &AtomicBool) -> bool {
    flag.swap(true, Ordering::AcqRel)
}
