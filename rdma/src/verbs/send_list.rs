//! Sends that are posted together, in preallocated storage.
#![expect(unsafe_code, reason = "links structures of C into a list")]

use std::ffi::{c_int, c_uint};
use std::ptr;
use std::sync::{Arc, Weak};

use rdma_sys::{
    bind_mw_t, bind_mw_tso_union_t, ibv_access_flags, ibv_mw_bind_info, ibv_qp, ibv_send_flags,
    ibv_send_wr, ibv_sge, ibv_wr_opcode, imm_data_invalidated_rkey_union_t, qp_type_t, rdma_t,
    tso_t, wr_t, xrc_t,
};

use super::handle::Handle;
use super::receive_list::{empty_sges, flush_error, index_of, put_sges};
use super::registration::Registered;
use super::window::{QueuedWindow, Window};
use crate::device::QueuePairCapacity;
use crate::error::{FlushError, PostError};
use crate::request::{Payload, SendOperation, SendRequest, WindowBinding};

/// Sends for one queue pair.
pub(super) struct SendList {
    requests: Box<[ibv_send_wr]>,
    /// `sges_each` entries per request.
    sges: Box<[ibv_sge]>,
    /// `inline_each` bytes per request.
    inline: Box<[u8]>,
    sges_each: usize,
    inline_each: usize,
    queued: usize,
    /// The window bindings among the requests, in order. Never grows beyond its initial capacity.
    bindings: Vec<Binding>,
    /// Windows that are, or were, bound by posted requests.
    bound: Vec<Weak<Window>>,
}

struct Binding {
    at: usize,
    window: QueuedWindow,
    /// Keeps the memory that the request names alive.
    _registration: Arc<Registered>,
}

// SAFETY: the pointers in the requests are unused between calls of `post`, which sets those that it
// passes on; the objects that bindings name are kept alive beside them, and may be used from any
// thread.
unsafe impl Send for SendList {}

impl std::fmt::Debug for SendList {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SendList")
            .field("requests", &self.requests.len())
            .field("sges_each", &self.sges_each)
            .field("inline_each", &self.inline_each)
            .field("queued", &self.queued)
            .finish_non_exhaustive()
    }
}

fn empty_request() -> ibv_send_wr {
    ibv_send_wr {
        wr_id: 0,
        next: ptr::null_mut(),
        sg_list: ptr::null_mut(),
        num_sge: 0,
        opcode: 0,
        send_flags: 0,
        imm_data_invalidated_rkey_union: imm_data_invalidated_rkey_union_t { imm_data: 0 },
        wr: wr_t {
            rdma: rdma_t {
                remote_addr: 0,
                rkey: 0,
            },
        },
        qp_type: qp_type_t {
            xrc: xrc_t { remote_srqn: 0 },
        },
        bind_mw_tso_union: bind_mw_tso_union_t {
            tso: tso_t {
                hdr: ptr::null_mut(),
                hdr_sz: 0,
                mss: 0,
            },
        },
    }
}

impl SendList {
    /// A list for as many requests as the queue pair has room for.
    pub(super) fn new(capacity: &QueuePairCapacity) -> Self {
        let requests = capacity.send_requests as usize;
        let sges_each = capacity.send_sges.max(1) as usize;
        let inline_each = capacity.inline_bytes as usize;
        Self {
            requests: (0..requests).map(|_| empty_request()).collect(),
            sges: empty_sges(requests * sges_each),
            inline: vec![0; requests * inline_each].into(),
            sges_each,
            inline_each,
            queued: 0,
            bindings: Vec::with_capacity(requests),
            bound: Vec::with_capacity(requests),
        }
    }

    /// Adds a request.
    #[inline]
    pub(super) fn push(&mut self, request: &SendRequest<'_>) -> Result<(), PostError> {
        let at = self.queued;
        let Some(place) = self.requests.get_mut(at) else {
            return Err(PostError::QueueFull);
        };
        let mut flags = flag(request.signalled, ibv_send_flags::IBV_SEND_SIGNALED)
            | flag(request.solicited, ibv_send_flags::IBV_SEND_SOLICITED)
            | flag(request.fence, ibv_send_flags::IBV_SEND_FENCE);
        let sges = &mut self.sges[at * self.sges_each..];
        place.num_sge = match request.payload {
            Payload::Memory(pieces) => {
                if pieces.len() > self.sges_each {
                    return Err(PostError::TooManyPieces);
                }
                put_sges(sges, pieces);
                pieces.len() as c_int
            }
            Payload::Inline([]) => 0,
            Payload::Inline(bytes) => {
                let is_read = matches!(request.operation, SendOperation::Read(_));
                if is_read || bytes.len() > self.inline_each {
                    return Err(PostError::InlineTooLong);
                }
                let copy = &mut self.inline[at * self.inline_each..][..bytes.len()];
                copy.copy_from_slice(bytes);
                sges[0] = ibv_sge {
                    addr: copy.as_ptr().expose_provenance() as u64,
                    length: bytes.len() as u32,
                    lkey: 0,
                };
                flags |= ibv_send_flags::IBV_SEND_INLINE.0;
                1
            }
        };
        if !set_operation(place, request.operation) {
            return Err(PostError::NotPossible);
        }
        place.wr_id = request.wr_id;
        place.send_flags = flags;
        self.queued += 1;
        Ok(())
    }

    /// Makes the newest request signalled.
    #[inline]
    pub(super) fn signal_last(&mut self) {
        if let Some(last) = self.requests[..self.queued].last_mut() {
            last.send_flags |= ibv_send_flags::IBV_SEND_SIGNALED.0;
        }
    }

    /// Adds a binding of a window that was taken for it.
    pub(super) fn push_binding(
        &mut self,
        window: QueuedWindow,
        registration: &Arc<Registered>,
        binding: &WindowBinding,
    ) {
        let at = self.queued;
        let access = access_flag(
            binding.remote_read,
            ibv_access_flags::IBV_ACCESS_REMOTE_READ,
        ) | access_flag(
            binding.remote_write,
            ibv_access_flags::IBV_ACCESS_REMOTE_WRITE,
        );
        self.requests[at] = ibv_send_wr {
            wr_id: binding.wr_id,
            opcode: ibv_wr_opcode::IBV_WR_BIND_MW,
            send_flags: flag(binding.signalled, ibv_send_flags::IBV_SEND_SIGNALED),
            bind_mw_tso_union: bind_mw_tso_union_t {
                bind_mw: bind_mw_t {
                    mw: window.handle.get(),
                    rkey: window.key,
                    bind_info: ibv_mw_bind_info {
                        mr: registration.handle().get(),
                        addr: binding.address,
                        length: binding.length,
                        mw_access_flags: access,
                    },
                },
            },
            ..empty_request()
        };
        self.bindings.push(Binding {
            at,
            window,
            _registration: Arc::clone(registration),
        });
        self.queued += 1;
    }

    /// Returns the windows of the bindings after a post: the first `posted` requests were posted.
    #[cold]
    fn return_windows(&mut self, queue_pair: Handle<ibv_qp>, posted: usize) {
        for binding in self.bindings.drain(..) {
            if binding.at >= posted {
                binding.window.cancel_binding();
            } else if let Some(window) = binding.window.binding_posted(queue_pair) {
                if self.bound.len() == self.bound.capacity() {
                    self.bound.retain(|window| window.strong_count() > 0);
                }
                self.bound.push(window);
            }
        }
    }

    fn abandon_bindings(&mut self) {
        for binding in self.bindings.drain(..) {
            binding.window.cancel_binding();
        }
    }

    /// Before the queue pair is destroyed: discards the queued requests, and unbinds the windows
    /// that are bound on it.
    pub(super) fn end(&mut self, queue_pair: Handle<ibv_qp>) {
        self.abandon_bindings();
        for window in self.bound.drain(..) {
            if let Some(window) = window.upgrade() {
                window.unbind(queue_pair);
            }
        }
    }

    /// Whether the list is full.
    pub(super) fn is_full(&self) -> bool {
        self.queued == self.requests.len()
    }

    /// Posts all queued requests, and empties the list. `post` gets the first request and a place
    /// for the first rejected one, and returns an error number.
    #[inline]
    pub(super) fn post(
        &mut self,
        queue_pair: Handle<ibv_qp>,
        post: impl FnOnce(*mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int,
    ) -> Result<(), FlushError> {
        let queued = std::mem::take(&mut self.queued);
        if queued == 0 {
            return Ok(());
        }
        let first = self.requests.as_mut_ptr();
        let pieces = self.sges.as_mut_ptr();
        for at in 0..queued {
            let next = if at + 1 < queued {
                first.wrapping_add(at + 1)
            } else {
                ptr::null_mut()
            };
            // SAFETY: `at` is below the number of requests, which no other code accesses.
            let request = unsafe { &mut *first.wrapping_add(at) };
            request.next = next;
            request.sg_list = pieces.wrapping_add(at * self.sges_each);
        }
        let mut refused = ptr::null_mut();
        let code = post(first, &raw mut refused);
        let posted = if code == 0 {
            queued
        } else {
            index_of(first, refused, queued)
        };
        if !self.bindings.is_empty() {
            self.return_windows(queue_pair, posted);
        }
        if code == 0 {
            return Ok(());
        }
        let wr_id = self.requests[posted].wr_id;
        Err(flush_error(code, wr_id, queued - posted))
    }
}

impl Drop for SendList {
    fn drop(&mut self) {
        self.abandon_bindings();
    }
}

#[inline]
fn flag(is_set: bool, flag: ibv_send_flags) -> c_uint {
    if is_set { flag.0 } else { 0 }
}

fn access_flag(is_set: bool, flag: ibv_access_flags) -> c_uint {
    if is_set { flag.0 } else { 0 }
}

/// Sets the operation of a request whose payload is set; returns whether the two are compatible.
#[inline]
fn set_operation(place: &mut ibv_send_wr, operation: SendOperation) -> bool {
    let key = match operation {
        SendOperation::Send => {
            place.opcode = ibv_wr_opcode::IBV_WR_SEND;
            return true;
        }
        SendOperation::Write(remote) => {
            place.opcode = ibv_wr_opcode::IBV_WR_RDMA_WRITE;
            place.wr.rdma.remote_addr = remote.address;
            place.wr.rdma.rkey = remote.rkey;
            return true;
        }
        SendOperation::Read(remote) => {
            place.opcode = ibv_wr_opcode::IBV_WR_RDMA_READ;
            place.wr.rdma.remote_addr = remote.address;
            place.wr.rdma.rkey = remote.rkey;
            return true;
        }
        SendOperation::SendWithInvalidate { rkey } => {
            place.opcode = ibv_wr_opcode::IBV_WR_SEND_WITH_INV;
            rkey
        }
        SendOperation::LocalInvalidate { rkey } => {
            if place.num_sge != 0 {
                return false;
            }
            place.opcode = ibv_wr_opcode::IBV_WR_LOCAL_INV;
            rkey
        }
    };
    place.imm_data_invalidated_rkey_union = imm_data_invalidated_rkey_union_t {
        invalidated_rkey: key,
    };
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{RemoteAddress, Sge};

    const CAPACITY: QueuePairCapacity = QueuePairCapacity {
        send_requests: 4,
        receive_requests: 0,
        send_sges: 2,
        receive_sges: 0,
        inline_bytes: 8,
    };

    /// A queue pair that is never accessed.
    fn queue_pair() -> Handle<ibv_qp> {
        Handle::new(ptr::dangling_mut()).unwrap()
    }

    const REMOTE: RemoteAddress = RemoteAddress {
        address: 0x1000,
        rkey: 0x22,
    };

    const PIECES: [Sge; 3] = [Sge {
        address: 0x2000,
        length: 16,
        lkey: 9,
    }; 3];

    fn send(wr_id: u64, operation: SendOperation) -> SendRequest<'static> {
        SendRequest::new(wr_id, operation, Payload::Memory(&PIECES[..1]))
    }

    /// Posts, and passes every request of the list to `check`.
    fn post(list: &mut SendList, mut check: impl FnMut(&ibv_send_wr)) {
        let outcome = list.post(queue_pair(), |mut request, _| {
            while !request.is_null() {
                // SAFETY: the list is complete and terminated.
                let one = unsafe { &*request };
                check(one);
                request = one.next;
            }
            0
        });
        assert_eq!(outcome, Ok(()));
    }

    #[test]
    fn operations_and_flags_have_the_header_values() {
        let mut list = SendList::new(&CAPACITY);
        let mut first = send(1, SendOperation::Write(REMOTE)).signalled(false);
        first.fence = true;
        list.push(&first).unwrap();
        let mut second = send(2, SendOperation::SendWithInvalidate { rkey: 0x77 });
        second.solicited = true;
        list.push(&second).unwrap();
        list.push(&send(3, SendOperation::Read(REMOTE))).unwrap();
        let nothing = Payload::Memory(&[]);
        let local = SendOperation::LocalInvalidate { rkey: 0x88 };
        list.push(&SendRequest::new(4, local, nothing)).unwrap();
        assert!(list.is_full());
        let mut seen = Vec::new();
        post(&mut list, |one| {
            // SAFETY: both members are numbers of the same size.
            let key = unsafe { one.imm_data_invalidated_rkey_union.invalidated_rkey };
            seen.push((one.wr_id, one.opcode, one.send_flags, one.num_sge, key));
            if one.wr_id == 1 || one.wr_id == 3 {
                // SAFETY: writes and reads have this member.
                let remote = unsafe { one.wr.rdma };
                assert_eq!((remote.remote_addr, remote.rkey), (0x1000, 0x22));
            }
        });
        // IBV_SEND_FENCE 1, SIGNALED 2, SOLICITED 4.
        assert_eq!((seen[0].1, seen[0].2, seen[0].3), (0, 1, 1));
        assert_eq!(seen[1], (2, 9, 6, 1, 0x77));
        assert_eq!((seen[2].1, seen[2].2, seen[2].3), (4, 2, 1));
        assert_eq!(seen[3], (4, 7, 2, 0, 0x88));
    }

    #[test]
    fn last_request_can_be_signalled_after_queueing() {
        let mut list = SendList::new(&CAPACITY);
        list.signal_last();
        for wr_id in 1..=3 {
            let request = send(wr_id, SendOperation::Write(REMOTE)).signalled(false);
            list.push(&request).unwrap();
        }
        list.signal_last();
        let mut flags = Vec::new();
        post(&mut list, |one| flags.push(one.send_flags));
        assert_eq!(flags, [0, 0, 2]);
    }

    #[test]
    fn inline_bytes_are_copied_when_they_are_queued() {
        let mut list = SendList::new(&CAPACITY);
        for wr_id in 0..2_u8 {
            let bytes = vec![wr_id + 1; 8];
            let payload = Payload::Inline(&bytes);
            list.push(&SendRequest::new(
                wr_id.into(),
                SendOperation::Send,
                payload,
            ))
            .unwrap();
        }
        let mut seen = Vec::new();
        post(&mut list, |one| {
            // IBV_SEND_INLINE 8.
            assert_eq!((one.num_sge, one.send_flags & 8), (1, 8));
            // SAFETY: the request has one piece.
            let piece = unsafe { &*one.sg_list };
            let copy = ptr::with_exposed_provenance::<u8>(piece.addr as usize);
            // SAFETY: the piece names this many bytes of the list's storage.
            seen.push(unsafe { std::slice::from_raw_parts(copy, piece.length as usize) }.to_vec());
        });
        assert_eq!(seen, [vec![1; 8], vec![2; 8]]);
    }

    #[test]
    fn invalid_send_is_refused_and_queued_ones_are_kept() {
        let mut list = SendList::new(&CAPACITY);
        list.push(&send(1, SendOperation::Send)).unwrap();
        let long = [0; 9];
        let refusals = [
            (
                SendRequest::new(2, SendOperation::Send, Payload::Inline(&long)),
                PostError::InlineTooLong,
            ),
            (
                SendRequest::new(2, SendOperation::Read(REMOTE), Payload::Inline(&long[..1])),
                PostError::InlineTooLong,
            ),
            (
                send(2, SendOperation::LocalInvalidate { rkey: 1 }),
                PostError::NotPossible,
            ),
        ];
        for (request, error) in refusals {
            assert_eq!(list.push(&request), Err(error));
        }
        let request = SendRequest::new(2, SendOperation::Send, Payload::Memory(&PIECES));
        assert_eq!(list.push(&request), Err(PostError::TooManyPieces));
        for wr_id in 2..=4 {
            list.push(&send(wr_id, SendOperation::Send)).unwrap();
        }
        assert_eq!(
            list.push(&send(5, SendOperation::Send)),
            Err(PostError::QueueFull)
        );
        let mut seen = Vec::new();
        post(&mut list, |one| seen.push(one.wr_id));
        assert_eq!(seen, [1, 2, 3, 4]);
    }

    #[test]
    fn post_error_names_the_first_and_counts_refused_requests() {
        let mut list = SendList::new(&CAPACITY);
        for wr_id in 10..13 {
            list.push(&send(wr_id, SendOperation::Send)).unwrap();
        }
        let error = list.post(queue_pair(), |first, refused| {
            // SAFETY: the place is there for this, and the list has a second request.
            unsafe { *refused = first.wrapping_add(1) };
            libc::ENOMEM
        });
        let error = error.unwrap_err();
        assert_eq!((error.first_wr_id, error.refused), (11, 2));
        assert_eq!(
            list.post(queue_pair(), |_, _| panic!("nothing is left")),
            Ok(())
        );
    }
}
