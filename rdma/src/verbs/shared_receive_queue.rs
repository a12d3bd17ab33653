//! Shared receive queues.
#![expect(unsafe_code, reason = "calls libibverbs")]

use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;

use rdma_sys::{ibv_post_srq_recv, ibv_srq, ibv_srq_attr, ibv_srq_attr_mask, ibv_srq_init_attr};

use super::domain::VerbsDomain;
use super::handle::{Handle, ObjectState};
use super::receive_list::ReceiveList;
use super::system::{checked_code, last_error};
use crate::connection::Token;
use crate::error::{Error, FlushError, PostError};
use crate::provider::{Device, Domain, SharedReceiveQueue};
use crate::request::ReceiveRequest;

/// A shared receive queue of libibverbs.
#[derive(Debug)]
pub struct VerbsSharedReceiveQueue {
    inner: Arc<Queue>,
    is_disconnected: bool,
    receives: ReceiveList,
    requests: u32,
}

/// The part that queue pairs on the queue keep alive.
#[derive(Debug)]
pub(super) struct Queue {
    domain: VerbsDomain,
    queue: Handle<ibv_srq>,
    life: ObjectState,
}

impl VerbsSharedReceiveQueue {
    pub(super) fn new(
        domain: &VerbsDomain,
        requests: u32,
        sges: u32,
        token: Token,
    ) -> Result<Self, Error> {
        let limits = domain.device().limits();
        for (what, wanted, limit) in [
            ("shared receive queues", 1, limits.shared_receive_queues),
            (
                "requests of a shared receive queue",
                requests,
                limits.shared_receive_requests,
            ),
            (
                "pieces of memory in a shared receive",
                sges,
                limits.shared_receive_sges,
            ),
        ] {
            if wanted > limit {
                return Err(Error::Limit {
                    what,
                    wanted: wanted.into(),
                    limit: limit.into(),
                });
            }
        }
        let mut attributes = ibv_srq_init_attr {
            // libibverbs stores the token as an opaque number for events.
            srq_context: ptr::without_provenance_mut(token.0 as usize),
            attr: ibv_srq_attr {
                max_wr: requests.max(1),
                max_sge: sges.max(1),
                srq_limit: 0,
            },
        };
        let create = domain.device().functions().ibv_create_srq;
        // SAFETY: the domain is alive; the call reads the attributes and writes what it granted.
        let queue = unsafe { create(domain.handle().get(), &raw mut attributes) };
        let queue = Handle::new(queue).ok_or_else(|| last_error("ibv_create_srq"))?;
        let granted = attributes.attr.max_wr.max(requests);
        Ok(Self {
            inner: Arc::new(Queue {
                domain: domain.clone(),
                queue,
                life: ObjectState::Alive,
            }),
            is_disconnected: false,
            receives: ReceiveList::new(granted, sges),
            requests: granted,
        })
    }

    pub(super) fn shared(&self) -> &Arc<Queue> {
        &self.inner
    }
}

impl Queue {
    pub(super) fn handle(&self) -> Handle<ibv_srq> {
        self.queue
    }

    pub(super) fn domain(&self) -> &VerbsDomain {
        &self.domain
    }
}

impl Queue {
    fn destroy(&mut self) -> Result<(), Error> {
        if self.life == ObjectState::Alive {
            let destroy = self.domain.device().functions().ibv_destroy_srq;
            // SAFETY: queue pairs on the queue keep it alive, so there are none, and in another
            // state it is not used any more.
            let result = unsafe { destroy(self.queue.get()) };
            self.life = ObjectState::after_destruction(result, self.domain.device());
            if let ObjectState::Refused(_) = self.life {
                std::mem::forget(self.domain.clone());
            }
        }
        self.life.outcome("ibv_destroy_srq")
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // A poster that needs the result calls `destroy` itself.
        let _ = self.destroy();
    }
}

impl SharedReceiveQueue for VerbsSharedReceiveQueue {
    fn requests(&self) -> u32 {
        self.requests
    }

    #[inline]
    fn queue_receive(&mut self, request: &ReceiveRequest) -> Result<(), PostError> {
        self.receives.push(request)
    }

    fn destroy(&mut self) -> Result<(), Error> {
        self.is_disconnected = true;
        match Arc::get_mut(&mut self.inner) {
            Some(queue) => queue.destroy(),
            None => Err(Error::Misuse("a queue pair takes receives from the queue")),
        }
    }

    #[inline]
    fn flush(&mut self) -> Result<(), FlushError> {
        if self.is_disconnected {
            return Ok(());
        }
        let queue = self.inner.queue.get();
        self.receives.post(|first, refused| {
            // SAFETY: the queue is alive; the list is complete and terminated, and does not change
            // during the call, which copies what it takes.
            unsafe { ibv_post_srq_recv(queue, first, refused) }
        })
    }

    fn set_low_limit(&mut self, requests: u32) -> Result<(), Error> {
        if self.is_disconnected {
            return Err(Error::Misuse("the shared receive queue was destroyed"));
        }
        let mut attributes = ibv_srq_attr {
            max_wr: 0,
            max_sge: 0,
            srq_limit: requests,
        };
        let modify = self.inner.domain.device().functions().ibv_modify_srq;
        let mask = ibv_srq_attr_mask::IBV_SRQ_LIMIT.0 as c_int;
        // SAFETY: the queue is alive; the call reads the attributes in the mask.
        let result = unsafe { modify(self.inner.queue.get(), &raw mut attributes, mask) };
        checked_code("ibv_modify_srq", result)
    }
}
