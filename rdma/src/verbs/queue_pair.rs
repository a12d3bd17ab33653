//! Queue pairs.
#![expect(unsafe_code, reason = "calls libibverbs and librdmacm")]

use std::ffi::c_int;
use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Arc;

use rdma_sys::{
    ibv_post_recv, ibv_post_send, ibv_qp, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_cap,
    ibv_qp_init_attr, ibv_qp_state, ibv_qp_type,
};

use super::Verbs;
use super::completion_queue;
use super::device::VerbsDevice;
use super::domain::VerbsDomain;
use super::handle::{Handle, ObjectState};
use super::identifier::{Identifier, IdentifierContext, Link, is_set};
use super::library::Functions;
use super::receive_list::ReceiveList;
use super::registration::VerbsRegistration;
use super::send_list::SendList;
use super::shared_receive_queue::{self, VerbsSharedReceiveQueue};
use super::system::{checked_code, error_of};
use super::window::VerbsWindow;
use crate::device::{QueuePairCapacity, QueuePairState};
use crate::error::{Error, FlushError, PostError};
use crate::provider::{Device, Domain, QueuePair, QueuePairOptions};
use crate::request::{ReceiveRequest, SendRequest, WindowBinding};

/// The lower limit for retries with fewer inline bytes.
const INLINE_BYTES_MIN: u32 = 16;

/// 0.64 ms in the encoding of RNR NAK timers (InfiniBand Architecture Specification, volume 1,
/// table 45).
const RNR_TIMER_CODE: u8 = 12;

/// A queue pair of libibverbs.
#[derive(Debug)]
pub struct VerbsQueuePair {
    queue_pair: Handle<ibv_qp>,
    sends: SendList,
    /// `None` with a shared receive queue.
    receives: Option<ReceiveList>,
    number: u32,
    capacity: QueuePairCapacity,
    /// Whether this side moved it to the error state.
    has_failed: bool,
    life: ObjectState,
    link: Arc<Link>,
    label: Arc<IdentifierContext>,
    domain: VerbsDomain,
    send_completions: Arc<completion_queue::Queue>,
    receive_completions: Arc<completion_queue::Queue>,
    shared_receives: Option<Arc<shared_receive_queue::Queue>>,
}

impl VerbsQueuePair {
    pub(super) fn new(
        link: &Arc<Link>,
        label: &Arc<IdentifierContext>,
        device: &VerbsDevice,
        domain: &VerbsDomain,
        options: &QueuePairOptions<'_, Verbs>,
    ) -> Result<Self, Error> {
        let sends = options.send_completions.shared();
        let receives = options.receive_completions.shared();
        let shared = options.shared_receives.map(VerbsSharedReceiveQueue::shared);
        let of_one_device = domain.device().is_same(device)
            && sends.device().is_same(device)
            && receives.device().is_same(device)
            && shared.is_none_or(|queue| queue.domain().is_same(domain));
        if !of_one_device {
            return Err(Error::Misuse(
                "a queue pair's domain and queues must be of its connection's device",
            ));
        }
        check_capacity(device, &options.capacity, shared.is_some())?;
        let mut wanted = ibv_qp_init_attr {
            // libibverbs stores the token as an opaque number for events.
            qp_context: ptr::without_provenance_mut(label.token.0 as usize),
            send_cq: sends.handle().get(),
            recv_cq: receives.handle().get(),
            srq: shared.map_or(ptr::null_mut(), |queue| queue.handle().get()),
            cap: capacity_of(&options.capacity, shared.is_some()),
            qp_type: ibv_qp_type::IBV_QPT_RC,
            sq_sig_all: 0,
        };
        let made = link.with(|identifier| make(identifier, device, domain, &mut wanted));
        let queue_pair = made.ok_or(Error::Misuse("the connection ended"))??;
        let capacity = granted(&options.capacity, &wanted.cap);
        // SAFETY: the queue pair was just created, and this field never changes.
        let number = unsafe { (*queue_pair.get()).qp_num };
        Ok(Self {
            queue_pair,
            sends: SendList::new(&capacity),
            receives: shared
                .is_none()
                .then(|| ReceiveList::new(capacity.receive_requests, capacity.receive_sges)),
            number,
            capacity,
            has_failed: false,
            life: ObjectState::Alive,
            link: Arc::clone(link),
            label: Arc::clone(label),
            domain: domain.clone(),
            send_completions: Arc::clone(sends),
            receive_completions: Arc::clone(receives),
            shared_receives: shared.cloned(),
        })
    }

    /// Flushes the work of an identifier's queue pair, if it has one.
    pub(super) fn fail(identifier: &Identifier) {
        identifier.with(|functions, id| {
            // SAFETY: the identifier is alive, and its channel is locked.
            let queue_pair = unsafe { (*id).qp };
            if let Some(queue_pair) = Handle::new(queue_pair) {
                // This fails only for a queue pair of a device that is gone.
                let _ = set_error(functions, queue_pair);
            }
        });
    }

    /// Repeats the transition to the error state: the device should flush receives that are posted
    /// in that state, but soft RoCE does not process its receive queue again until then.
    #[cold]
    fn flush_late_receives(&self) {
        let _ = set_error(self.functions(), self.queue_pair);
    }

    fn functions(&self) -> &'static Functions {
        self.domain.device().functions()
    }

    fn check_alive(&self) -> Result<(), Error> {
        if self.life == ObjectState::Alive {
            return Ok(());
        }
        Err(Error::Misuse("the queue pair was destroyed"))
    }

    /// Keeps the parents of the queue pair, which still exists, until the process ends.
    #[cold]
    fn leak_parents(&self) {
        std::mem::forget(self.domain.clone());
        std::mem::forget(Arc::clone(&self.label));
        std::mem::forget(Arc::clone(&self.send_completions));
        std::mem::forget(Arc::clone(&self.receive_completions));
        std::mem::forget(self.shared_receives.clone());
    }
}

impl Drop for VerbsQueuePair {
    fn drop(&mut self) {
        // A poster that needs the result calls `destroy` itself.
        let _ = self.destroy();
    }
}

impl QueuePair for VerbsQueuePair {
    type Provider = Verbs;

    fn number(&self) -> u32 {
        self.number
    }

    fn capacity(&self) -> QueuePairCapacity {
        self.capacity
    }

    fn state(&self) -> Result<QueuePairState, Error> {
        self.check_alive()?;
        let mut attributes = MaybeUninit::<ibv_qp_attr>::zeroed();
        let mut initial = MaybeUninit::<ibv_qp_init_attr>::zeroed();
        let query = self.functions().ibv_query_qp;
        let mask = ibv_qp_attr_mask::IBV_QP_STATE.0 as c_int;
        let (attributes, initial) = (attributes.as_mut_ptr(), initial.as_mut_ptr());
        // SAFETY: the queue pair is alive, and the call writes both structures.
        let result = unsafe { query(self.queue_pair.get(), attributes, mask, initial) };
        checked_code("ibv_query_qp", result)?;
        // SAFETY: the structure is plain data, made of zeroes or written by the call.
        Ok(state_of(unsafe { (*attributes).qp_state }))
    }

    fn destroy(&mut self) -> Result<(), Error> {
        if self.life == ObjectState::Alive {
            self.link.with(Identifier::forget_queue_pair);
            self.sends.end(self.queue_pair);
            // SAFETY: its identifier has just dropped it, or did so before, and in another state it
            // is not used any more.
            let result = unsafe { (self.functions().ibv_destroy_qp)(self.queue_pair.get()) };
            self.life = ObjectState::after_destruction(result, self.domain.device());
            if let ObjectState::Refused(_) = self.life {
                self.leak_parents();
            }
        }
        self.life.outcome("ibv_destroy_qp")
    }

    fn set_error(&mut self) -> Result<(), Error> {
        self.check_alive()?;
        self.has_failed = true;
        set_error(self.functions(), self.queue_pair)
    }

    #[inline]
    fn queue_send(&mut self, request: &SendRequest<'_>) -> Result<(), PostError> {
        self.sends.push(request)
    }

    #[inline]
    fn signal_last(&mut self) {
        self.sends.signal_last();
    }

    fn queue_bind(
        &mut self,
        window: &mut VerbsWindow,
        registration: &VerbsRegistration,
        binding: &WindowBinding,
    ) -> Result<(), PostError> {
        let registration = registration.shared();
        if self.sends.is_full() {
            return Err(PostError::QueueFull);
        }
        if !registration.domain().is_same(&self.domain) || !window.is_of(&self.domain) {
            return Err(PostError::NotPossible);
        }
        let window = window.take()?;
        self.sends.push_binding(window, registration, binding);
        Ok(())
    }

    #[inline]
    fn queue_receive(&mut self, request: &ReceiveRequest) -> Result<(), PostError> {
        match &mut self.receives {
            Some(receives) => receives.push(request),
            None => Err(PostError::NotPossible),
        }
    }

    #[inline]
    fn flush(&mut self) -> Result<(), FlushError> {
        if self.life != ObjectState::Alive {
            return Ok(());
        }
        let queue_pair = self.queue_pair.get();
        let mut receives_posted = false;
        let received = self.receives.as_mut().map_or(Ok(()), |receives| {
            receives.post(|first, refused| {
                receives_posted = true;
                // SAFETY: the queue pair is alive; the list is complete and terminated, and does
                // not change during the call, which copies what it takes.
                unsafe { ibv_post_recv(queue_pair, first, refused) }
            })
        });
        if receives_posted && (self.has_failed || is_set(&self.label.is_disconnected)) {
            self.flush_late_receives();
        }
        let sent = self.sends.post(self.queue_pair, |first, refused| {
            // SAFETY: as above; the list keeps the windows and registrations that it names alive.
            unsafe { ibv_post_send(queue_pair, first, refused) }
        });
        received.and(sent)
    }
}

/// Creates the queue pair, with fewer inline bytes if the device refuses the wanted number.
fn make(
    identifier: &Identifier,
    device: &VerbsDevice,
    domain: &VerbsDomain,
    wanted: &mut ibv_qp_init_attr,
) -> Result<Handle<ibv_qp>, Error> {
    let cap = wanted.cap;
    let mut inline_bytes = cap.max_inline_data.min(device.inline_bytes_max());
    let mut is_limited = false;
    loop {
        wanted.cap = cap;
        wanted.cap.max_inline_data = inline_bytes;
        let pointer = &raw mut *wanted;
        let error = identifier.with(|functions, id| {
            // SAFETY: identifier, domain and queues are alive and of one device; the call reads the
            // attributes and writes what it granted.
            let result = unsafe { (functions.rdma_create_qp)(id, domain.handle().get(), pointer) };
            if result != 0 {
                return Err(io::Error::last_os_error());
            }
            // SAFETY: the identifier is alive, and its channel is locked.
            Handle::new(unsafe { (*id).qp }).ok_or_else(io::Error::last_os_error)
        });
        let error = match error {
            Ok(queue_pair) => {
                if is_limited {
                    device.limit_inline_bytes(inline_bytes);
                }
                return Ok(queue_pair);
            }
            Err(error) => error,
        };
        let may_be_inline = matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOMEM));
        if inline_bytes == 0 || !may_be_inline {
            return Err(error_of("rdma_create_qp", error));
        }
        is_limited = true;
        inline_bytes = match inline_bytes / 2 {
            fewer if fewer < INLINE_BYTES_MIN => 0,
            fewer => fewer,
        };
    }
}

/// Shortens the pause after which a peer retries a message that found no receive: the connection
/// manager leaves it at the maximum, 655 ms. A refusal of the device is ignored, because it only
/// means longer pauses.
pub(super) fn set_rnr_timer(functions: &Functions, queue_pair: Handle<ibv_qp>) {
    let mut attributes = MaybeUninit::<ibv_qp_attr>::zeroed();
    let pointer = attributes.as_mut_ptr();
    // SAFETY: the structure belongs to this function and is all zeroes.
    unsafe { (*pointer).qp_state = ibv_qp_state::IBV_QPS_RTS };
    // SAFETY: as above.
    unsafe { (*pointer).min_rnr_timer = RNR_TIMER_CODE };
    let mask = ibv_qp_attr_mask::IBV_QP_STATE.0 | ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER.0;
    // SAFETY: the queue pair is alive; the call reads the fields in the mask.
    let _ = unsafe { (functions.ibv_modify_qp)(queue_pair.get(), pointer, mask as c_int) };
}

fn set_error(functions: &Functions, queue_pair: Handle<ibv_qp>) -> Result<(), Error> {
    let mut attributes = MaybeUninit::<ibv_qp_attr>::zeroed();
    let pointer = attributes.as_mut_ptr();
    // SAFETY: the structure belongs to this function and is all zeroes.
    unsafe { (*pointer).qp_state = ibv_qp_state::IBV_QPS_ERR };
    let mask = ibv_qp_attr_mask::IBV_QP_STATE.0 as c_int;
    // SAFETY: the queue pair is alive; the call reads the fields in the mask.
    let result = unsafe { (functions.ibv_modify_qp)(queue_pair.get(), pointer, mask) };
    checked_code("ibv_modify_qp", result)
}

fn check_capacity(
    device: &VerbsDevice,
    wanted: &QueuePairCapacity,
    is_shared: bool,
) -> Result<(), Error> {
    let limits = device.limits();
    let receive_requests = if is_shared {
        0
    } else {
        wanted.receive_requests
    };
    let receive_sges = if is_shared { 0 } else { wanted.receive_sges };
    for (what, wanted, limit) in [
        (
            "requests of a send queue",
            wanted.send_requests,
            limits.queue_pair_requests,
        ),
        (
            "requests of a receive queue",
            receive_requests,
            limits.queue_pair_requests,
        ),
        ("pieces of memory in a send", wanted.send_sges, limits.sges),
        ("pieces of memory in a receive", receive_sges, limits.sges),
    ] {
        if wanted > limit {
            return Err(Error::Limit {
                what,
                wanted: wanted.into(),
                limit: limit.into(),
            });
        }
    }
    Ok(())
}

fn capacity_of(wanted: &QueuePairCapacity, is_shared: bool) -> ibv_qp_cap {
    ibv_qp_cap {
        max_send_wr: wanted.send_requests.max(1),
        max_recv_wr: if is_shared {
            0
        } else {
            wanted.receive_requests
        },
        max_send_sge: wanted.send_sges.max(1),
        max_recv_sge: if is_shared { 0 } else { wanted.receive_sges },
        max_inline_data: wanted.inline_bytes,
    }
}

/// The granted capacity that is used: more pieces or inline bytes than requested would only take
/// storage.
fn granted(wanted: &QueuePairCapacity, given: &ibv_qp_cap) -> QueuePairCapacity {
    QueuePairCapacity {
        send_requests: given.max_send_wr.max(wanted.send_requests),
        receive_requests: given.max_recv_wr.max(wanted.receive_requests),
        send_sges: wanted.send_sges,
        receive_sges: wanted.receive_sges,
        inline_bytes: given.max_inline_data.min(wanted.inline_bytes),
    }
}

fn state_of(state: ibv_qp_state::Type) -> QueuePairState {
    match state {
        ibv_qp_state::IBV_QPS_RESET => QueuePairState::Reset,
        ibv_qp_state::IBV_QPS_INIT => QueuePairState::Initialized,
        ibv_qp_state::IBV_QPS_RTR => QueuePairState::ReadyToReceive,
        ibv_qp_state::IBV_QPS_RTS => QueuePairState::ReadyToSend,
        ibv_qp_state::IBV_QPS_SQD => QueuePairState::SendQueueDrained,
        ibv_qp_state::IBV_QPS_SQE => QueuePairState::SendQueueError,
        ibv_qp_state::IBV_QPS_ERR => QueuePairState::Error,
        other => QueuePairState::Other(other as i32),
    }
}
