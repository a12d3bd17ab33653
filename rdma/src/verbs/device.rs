//! Devices: their limits and events.
#![expect(unsafe_code, reason = "calls libibverbs")]

use std::ffi::{CStr, c_int, c_uint};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use rdma_sys::{
    ibv_context, ibv_cq, ibv_device_attr, ibv_device_cap_flags, ibv_event_type, ibv_port_attr,
    ibv_port_state, ibv_qp, ibv_srq, ibv_transport_type,
};

use super::Verbs;
use super::domain::VerbsDomain;
use super::handle::Handle;
use super::library::Functions;
use super::system::{checked_code, descriptor_of, set_nonblocking};
use crate::connection::Token;
use crate::device::{DeviceEvent, DeviceIndex, DeviceLimits, QueuePairFault, Transport};
use crate::error::Error;
use crate::provider::Device;
use crate::request::SGES_MAX;

/// `IBV_LINK_LAYER_ETHERNET` of `infiniband/verbs.h`, from an enumeration without a name.
const LINK_LAYER_ETHERNET: u8 = 2;

/// Vendor of soft RoCE (`RXE_VENDOR_ID` of the Linux kernel's rxe_param.h).
const VENDOR_SOFT_ROCE: u32 = 0x00ff_ffff;

/// `IBV_WC_WITH_INV`: the flag of a completion whose message invalidated a key.
const FLAG_INVALIDATED: c_uint = 1 << 3;
/// The kernel's flag for the same, `IB_WC_WITH_INVALIDATE`. Soft RoCE returns it untranslated; for
/// other devices this bit, bit 2, means that a checksum was correct.
const FLAG_INVALIDATED_KERNEL: c_uint = 1 << 2;

/// A device of libibverbs.
#[derive(Clone, Debug)]
pub struct VerbsDevice {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    functions: &'static Functions,
    /// Open during the lifetime of this object.
    context: Handle<ibv_context>,
    index: DeviceIndex,
    name: String,
    limits: DeviceLimits,
    flags_invalidated: c_uint,
    /// The most inline bytes that a queue pair may request, as learnt from refusals.
    inline_bytes: AtomicU32,
    /// Whether the connection manager reported the removal of the device.
    is_removed: AtomicBool,
    /// Whether the removal was reported to the owner.
    is_gone: AtomicBool,
}

/// A device that may have been closed.
#[derive(Debug)]
pub(super) struct WeakDevice(Weak<Inner>);

impl WeakDevice {
    pub(super) fn upgrade(&self) -> Option<VerbsDevice> {
        self.0.upgrade().map(|inner| VerbsDevice { inner })
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: any thread may allocate memory.
        let list = unsafe { libc::calloc(2, size_of::<*mut ibv_context>()) };
        let list: *mut *mut ibv_context = list.cast();
        if list.is_null() {
            return;
        }
        // SAFETY: the list has room for two entries, of which the second stays null.
        unsafe { *list = self.context.get() };
        // SAFETY: the list has the form that librdmacm creates; the reference in it is this
        // device's, which was its last user.
        unsafe { (self.functions.rdma_free_devices)(list) };
    }
}

/// `struct ibv_async_event`, with a number where `rdma_sys` has an enumeration: a library newer
/// than the headers may return events that the enumeration does not have.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct AsyncEvent {
    element: Element,
    pub(super) event_type: c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
union Element {
    cq: *mut ibv_cq,
    qp: *mut ibv_qp,
    srq: *mut ibv_srq,
    port_num: c_int,
}

impl VerbsDevice {
    /// The device of a context. Takes over a reference to it from a list of librdmacm.
    pub(super) fn new(
        functions: &'static Functions,
        context: Handle<ibv_context>,
        index: DeviceIndex,
    ) -> Result<Self, Error> {
        let mut attributes = MaybeUninit::<ibv_device_attr>::zeroed();
        // SAFETY: the context is open, and the call writes the attributes.
        let result =
            unsafe { (functions.ibv_query_device)(context.get(), attributes.as_mut_ptr()) };
        checked_code("ibv_query_device", result)?;
        // SAFETY: the attributes are integers, for which zeroes are valid too.
        let attributes = unsafe { attributes.assume_init() };
        // SAFETY: the context is open, and this field never changes.
        let device = unsafe { (*context.get()).device };
        // SAFETY: an open context's device exists, and this field never changes.
        let transport = unsafe { (*device).transport_type };
        // SAFETY: the device exists; the name is a string within it.
        let name = unsafe { (functions.ibv_get_device_name)(device) };
        // SAFETY: the library ends names with a zero.
        let name = unsafe { CStr::from_ptr(name) }
            .to_string_lossy()
            .into_owned();
        // SAFETY: the context is open, and this field never changes.
        let descriptor = unsafe { (*context.get()).async_fd };
        // SAFETY: the context is open during the call.
        set_nonblocking(unsafe { descriptor_of(descriptor) })?;
        let link_layer = query_port(functions, context, 1)?.link_layer;
        let transport = transport_of(transport, link_layer);
        Ok(Self {
            inner: Arc::new(Inner {
                functions,
                context,
                index,
                name,
                limits: limits_of(&attributes, transport),
                flags_invalidated: if attributes.vendor_id == VENDOR_SOFT_ROCE {
                    FLAG_INVALIDATED | FLAG_INVALIDATED_KERNEL
                } else {
                    FLAG_INVALIDATED
                },
                inline_bytes: AtomicU32::new(u32::MAX),
                is_removed: AtomicBool::new(false),
                is_gone: AtomicBool::new(false),
            }),
        })
    }

    pub(super) fn functions(&self) -> &'static Functions {
        self.inner.functions
    }

    pub(super) fn context(&self) -> Handle<ibv_context> {
        self.inner.context
    }

    pub(super) fn downgrade(&self) -> WeakDevice {
        WeakDevice(Arc::downgrade(&self.inner))
    }

    /// Records that the device is being removed, for drivers whose devices do not report it
    /// themselves.
    pub(super) fn mark_removed(&self) {
        self.inner.is_removed.store(true, Ordering::Relaxed);
    }

    /// The event that the device is gone, once.
    fn end(&self) -> Option<DeviceEvent> {
        let is_news = !self.inner.is_gone.swap(true, Ordering::Relaxed);
        is_news.then_some(DeviceEvent::Fatal)
    }

    pub(super) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Completion flags of which any means that the message invalidated a key.
    pub(super) fn flags_invalidated(&self) -> c_uint {
        self.inner.flags_invalidated
    }

    /// The most inline bytes worth requesting.
    pub(super) fn inline_bytes_max(&self) -> u32 {
        self.inner.inline_bytes.load(Ordering::Relaxed)
    }

    /// Records that the device refused more than `bytes`.
    pub(super) fn limit_inline_bytes(&self, bytes: u32) {
        self.inner.inline_bytes.fetch_min(bytes, Ordering::Relaxed);
    }

    fn event_of(&self, event: &AsyncEvent) -> DeviceEvent {
        // SAFETY: every value of the union's bytes is a number.
        let port = unsafe { event.element.port_num };
        let port = u8::try_from(port).unwrap_or(u8::MAX);
        match event.event_type {
            IS_CQ_ERROR => DeviceEvent::CompletionQueueFailed {
                token: completion_queue_token(event),
            },
            IS_QP_FATAL => queue_pair_event(event, QueuePairFault::Fatal),
            IS_QP_REQUEST_ERROR => queue_pair_event(event, QueuePairFault::InvalidRequest),
            IS_QP_ACCESS_ERROR => queue_pair_event(event, QueuePairFault::AccessViolation),
            IS_QP_ESTABLISHED => queue_pair_event(event, QueuePairFault::CommunicationEstablished),
            IS_PATH_MIGRATED | IS_PATH_ERROR => queue_pair_event(event, QueuePairFault::Path),
            IS_QP_LAST_RECEIVE => queue_pair_event(event, QueuePairFault::LastReceive),
            IS_SRQ_ERROR => DeviceEvent::SharedReceiveQueueFailed {
                token: receive_queue_token(event),
            },
            IS_SRQ_LIMIT => DeviceEvent::ReceivesLow {
                token: receive_queue_token(event),
            },
            IS_DEVICE_FATAL => {
                let _ = self.end();
                DeviceEvent::Fatal
            }
            IS_PORT_ACTIVE => DeviceEvent::PortUp(port),
            IS_PORT_ERROR => DeviceEvent::PortDown(port),
            IS_LID_CHANGE | IS_PKEY_CHANGE | IS_SM_CHANGE | IS_REREGISTER | IS_GID_CHANGE => {
                DeviceEvent::PortChanged(port)
            }
            other => DeviceEvent::Other(other),
        }
    }
}

impl Device for VerbsDevice {
    type Provider = Verbs;

    fn index(&self) -> DeviceIndex {
        self.inner.index
    }

    fn name(&self) -> &str {
        &self.inner.name
    }

    fn limits(&self) -> &DeviceLimits {
        &self.inner.limits
    }

    fn port_is_up(&self, port: u8) -> Result<bool, Error> {
        let attributes = query_port(self.inner.functions, self.inner.context, port)?;
        Ok(attributes.state == ibv_port_state::IBV_PORT_ACTIVE)
    }

    fn create_domain(&self) -> Result<VerbsDomain, Error> {
        VerbsDomain::new(self)
    }

    fn next_event(&self) -> Option<DeviceEvent> {
        let functions = self.inner.functions;
        let mut event = AsyncEvent {
            element: Element { port_num: 0 },
            event_type: -1,
        };
        let pointer = std::ptr::from_mut(&mut event).cast();
        // SAFETY: the context is open, its descriptor does not block, and the structure has the
        // layout that the call writes.
        let result = unsafe { (functions.ibv_get_async_event)(self.inner.context.get(), pointer) };
        if result != 0 {
            let is_gone = io::Error::last_os_error().raw_os_error() == Some(libc::EIO)
                || self.inner.is_removed.load(Ordering::Relaxed);
            return if is_gone { self.end() } else { None };
        }
        // The object that the event names is not destroyed before the event is acknowledged.
        let translated = self.event_of(&event);
        let pointer = std::ptr::from_mut(&mut event).cast();
        // SAFETY: the event came from the call above and is acknowledged once.
        unsafe { (functions.ibv_ack_async_event)(pointer) };
        Some(translated)
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the context is open, and this field never changes.
        let number = unsafe { (*self.inner.context.get()).async_fd };
        // SAFETY: the context stays open for as long as this borrow.
        unsafe { descriptor_of(number) }
    }
}

const IS_CQ_ERROR: c_int = ibv_event_type::IBV_EVENT_CQ_ERR as c_int;
const IS_QP_FATAL: c_int = ibv_event_type::IBV_EVENT_QP_FATAL as c_int;
const IS_QP_REQUEST_ERROR: c_int = ibv_event_type::IBV_EVENT_QP_REQ_ERR as c_int;
const IS_QP_ACCESS_ERROR: c_int = ibv_event_type::IBV_EVENT_QP_ACCESS_ERR as c_int;
const IS_QP_ESTABLISHED: c_int = ibv_event_type::IBV_EVENT_COMM_EST as c_int;
const IS_PATH_MIGRATED: c_int = ibv_event_type::IBV_EVENT_PATH_MIG as c_int;
const IS_PATH_ERROR: c_int = ibv_event_type::IBV_EVENT_PATH_MIG_ERR as c_int;
const IS_QP_LAST_RECEIVE: c_int = ibv_event_type::IBV_EVENT_QP_LAST_WQE_REACHED as c_int;
const IS_SRQ_ERROR: c_int = ibv_event_type::IBV_EVENT_SRQ_ERR as c_int;
const IS_SRQ_LIMIT: c_int = ibv_event_type::IBV_EVENT_SRQ_LIMIT_REACHED as c_int;
const IS_DEVICE_FATAL: c_int = ibv_event_type::IBV_EVENT_DEVICE_FATAL as c_int;
const IS_PORT_ACTIVE: c_int = ibv_event_type::IBV_EVENT_PORT_ACTIVE as c_int;
const IS_PORT_ERROR: c_int = ibv_event_type::IBV_EVENT_PORT_ERR as c_int;
const IS_LID_CHANGE: c_int = ibv_event_type::IBV_EVENT_LID_CHANGE as c_int;
const IS_PKEY_CHANGE: c_int = ibv_event_type::IBV_EVENT_PKEY_CHANGE as c_int;
const IS_SM_CHANGE: c_int = ibv_event_type::IBV_EVENT_SM_CHANGE as c_int;
const IS_REREGISTER: c_int = ibv_event_type::IBV_EVENT_CLIENT_REREGISTER as c_int;
const IS_GID_CHANGE: c_int = ibv_event_type::IBV_EVENT_GID_CHANGE as c_int;

fn completion_queue_token(event: &AsyncEvent) -> Token {
    // SAFETY: events of this kind name a completion queue.
    let queue = unsafe { event.element.cq };
    // SAFETY: the queue is not destroyed before the event is acknowledged.
    Token(unsafe { (*queue).cq_context }.addr() as u64)
}

fn receive_queue_token(event: &AsyncEvent) -> Token {
    // SAFETY: events of this kind name a shared receive queue.
    let queue = unsafe { event.element.srq };
    // SAFETY: the queue is not destroyed before the event is acknowledged.
    Token(unsafe { (*queue).srq_context }.addr() as u64)
}

fn queue_pair_event(event: &AsyncEvent, fault: QueuePairFault) -> DeviceEvent {
    // SAFETY: events of this kind name a queue pair.
    let queue_pair = unsafe { event.element.qp };
    // SAFETY: the queue pair is not destroyed before the event is acknowledged.
    let context = unsafe { (*queue_pair).qp_context };
    // SAFETY: as above.
    let qp_number = unsafe { (*queue_pair).qp_num };
    DeviceEvent::QueuePair {
        token: Token(context.addr() as u64),
        qp_number,
        fault,
    }
}

fn query_port(
    functions: &'static Functions,
    context: Handle<ibv_context>,
    port: u8,
) -> Result<ibv_port_attr, Error> {
    let mut attributes = MaybeUninit::<ibv_port_attr>::zeroed();
    let pointer = attributes.as_mut_ptr().cast();
    // SAFETY: the context is open; the function behind this symbol writes an older form of the
    // structure, which is a prefix of it.
    let result = unsafe { (functions.ibv_query_port)(context.get(), port, pointer) };
    checked_code("ibv_query_port", result)?;
    // SAFETY: the attributes are integers, for which zeroes are valid too.
    Ok(unsafe { attributes.assume_init() })
}

fn transport_of(transport: ibv_transport_type::Type, link_layer: u8) -> Transport {
    match transport {
        ibv_transport_type::IBV_TRANSPORT_IB if link_layer == LINK_LAYER_ETHERNET => {
            Transport::Roce
        }
        ibv_transport_type::IBV_TRANSPORT_IB => Transport::InfiniBand,
        ibv_transport_type::IBV_TRANSPORT_IWARP => Transport::Iwarp,
        other => Transport::Other(other),
    }
}

fn limits_of(attributes: &ibv_device_attr, transport: Transport) -> DeviceLimits {
    let count = |value: c_int| u32::try_from(value).unwrap_or(0);
    let reads = |value: c_int| u8::try_from(value.clamp(0, c_int::from(u8::MAX))).unwrap_or(0);
    let sges = |value: c_int| count(value).min(SGES_MAX as u32);
    let windows_of_type_2 = ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW_TYPE_2A.0
        | ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW_TYPE_2B.0;
    let has_windows = attributes.device_cap_flags & windows_of_type_2 != 0;
    DeviceLimits {
        transport,
        ports: attributes.phys_port_cnt,
        queue_pairs: count(attributes.max_qp),
        queue_pair_requests: count(attributes.max_qp_wr),
        sges: sges(attributes.max_sge),
        // Drivers that do not set it support at least one.
        read_sges: sges(attributes.max_sge_rd).max(1),
        completion_queues: count(attributes.max_cq),
        completion_queue_entries: count(attributes.max_cqe),
        shared_receive_queues: count(attributes.max_srq),
        shared_receive_requests: count(attributes.max_srq_wr),
        shared_receive_sges: sges(attributes.max_srq_sge),
        reads_incoming: reads(attributes.max_qp_rd_atom),
        reads_outgoing: reads(attributes.max_qp_init_rd_atom),
        registrations: count(attributes.max_mr),
        registration_bytes: attributes.max_mr_size,
        windows: if has_windows {
            count(attributes.max_mw)
        } else {
            0
        },
    }
}
