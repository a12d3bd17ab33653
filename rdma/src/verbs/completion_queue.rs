//! Completion queues.
#![expect(unsafe_code, reason = "calls libibverbs")]

use std::ffi::{c_int, c_uint};
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::Arc;

use rdma_sys::{ibv_comp_channel, ibv_cq, ibv_poll_cq, ibv_req_notify_cq, ibv_wc};

use super::device::VerbsDevice;
use super::handle::Handle;
use super::system::would_block;
use super::system::{checked_code, descriptor_of, error_of, last_error, set_nonblocking};
use crate::completion::{CompletionFlags, CompletionOpcode, CompletionStatus, WorkCompletion};
use crate::connection::Token;
use crate::error::Error;
use crate::provider::{CompletionQueue, Device};

/// Largest number of completions that one call of the library returns.
const POLL_BATCH: usize = 32;

/// A completion queue of libibverbs, with a notification channel of its own.
#[derive(Debug)]
pub struct VerbsCompletionQueue {
    inner: Arc<Queue>,
    batch: Batch,
}

/// The part that queue pairs on the queue keep alive.
#[derive(Debug)]
pub(super) struct Queue {
    device: VerbsDevice,
    queue: Handle<ibv_cq>,
    /// Dropped after the queue.
    channel: Channel,
    entries: u32,
}

#[derive(Debug)]
struct Channel {
    device: VerbsDevice,
    channel: Handle<ibv_comp_channel>,
}

/// Buffer for the library's completions.
struct Batch(Box<[ibv_wc; POLL_BATCH]>);

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Batch")
    }
}

impl Batch {
    fn new() -> Self {
        Self(Box::new(std::array::from_fn(|_| ibv_wc {
            wr_id: 0,
            status: 0,
            opcode: 0,
            vendor_err: 0,
            byte_len: 0,
            imm_data_invalidated_rkey_union: rdma_sys::imm_data_invalidated_rkey_union_t {
                invalidated_rkey: 0,
            },
            qp_num: 0,
            src_qp: 0,
            wc_flags: 0,
            pkey_index: 0,
            slid: 0,
            sl: 0,
            dlid_path_bits: 0,
        })))
    }
}

impl Channel {
    fn new(device: &VerbsDevice) -> Result<Self, Error> {
        // SAFETY: the device's context is open.
        let channel =
            unsafe { (device.functions().ibv_create_comp_channel)(device.context().get()) };
        let channel = Handle::new(channel).ok_or_else(|| last_error("ibv_create_comp_channel"))?;
        let channel = Self {
            device: device.clone(),
            channel,
        };
        set_nonblocking(channel.descriptor())?;
        Ok(channel)
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
        // SAFETY: its one queue is gone, so this is its last use.
        unsafe { (self.device.functions().ibv_destroy_comp_channel)(self.channel.get()) };
    }
}

impl VerbsCompletionQueue {
    pub(super) fn new(device: &VerbsDevice, entries: u32, token: Token) -> Result<Self, Error> {
        let limit = device.limits().completion_queue_entries;
        let wanted = c_int::try_from(entries).ok().filter(|_| entries <= limit);
        let Some(wanted) = wanted else {
            return Err(Error::Limit {
                what: "entries of a completion queue",
                wanted: entries.into(),
                limit: limit.into(),
            });
        };
        let channel = Channel::new(device)?;
        let create = device.functions().ibv_create_cq;
        // libibverbs stores the token as an opaque number for events.
        let token = ptr::without_provenance_mut(token.0 as usize);
        let context = device.context().get();
        // SAFETY: context and channel are alive; vector 0 exists on every device.
        let queue = unsafe { create(context, wanted.max(1), token, channel.channel.get(), 0) };
        let queue = Handle::new(queue).ok_or_else(|| last_error("ibv_create_cq"))?;
        // SAFETY: the queue was just created.
        let granted = unsafe { (*queue.get()).cqe };
        Ok(Self {
            inner: Arc::new(Queue {
                device: device.clone(),
                queue,
                channel,
                entries: u32::try_from(granted).unwrap_or(entries),
            }),
            batch: Batch::new(),
        })
    }

    pub(super) fn shared(&self) -> &Arc<Queue> {
        &self.inner
    }
}

impl Queue {
    pub(super) fn handle(&self) -> Handle<ibv_cq> {
        self.queue
    }

    pub(super) fn device(&self) -> &VerbsDevice {
        &self.device
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // Every notification was acknowledged when it was received, so this does not wait.
        // SAFETY: queue pairs on the queue keep it alive, so this is its last use.
        unsafe { (self.device.functions().ibv_destroy_cq)(self.queue.get()) };
    }
}

impl CompletionQueue for VerbsCompletionQueue {
    fn entries(&self) -> u32 {
        self.inner.entries
    }

    fn poll(&mut self, completions: &mut [WorkCompletion]) -> Result<usize, Error> {
        let flags_invalidated = self.inner.device.flags_invalidated();
        let mut filled = 0;
        while filled < completions.len() {
            let room = (completions.len() - filled).min(POLL_BATCH);
            let batch = self.batch.0.as_mut_ptr();
            // SAFETY: the queue is alive and the batch has room for that many. The driver locks the
            // queue against queue pairs that other threads destroy.
            let taken = unsafe { ibv_poll_cq(self.inner.queue.get(), room as i32, batch) };
            let Ok(taken) = usize::try_from(taken) else {
                if filled > 0 {
                    break;
                }
                return Err(error_of(
                    "ibv_poll_cq",
                    io::Error::from_raw_os_error(taken.saturating_abs()),
                ));
            };
            let taken = taken.min(room);
            let places = &mut completions[filled..filled + taken];
            for (place, completion) in places.iter_mut().zip(self.batch.0.iter()) {
                *place = completion_of(completion, flags_invalidated);
            }
            filled += taken;
            if taken < room {
                break;
            }
        }
        Ok(filled)
    }

    fn arm(&mut self, solicited_only: bool) -> Result<(), Error> {
        // SAFETY: the queue is alive; any thread may call this.
        let result = unsafe { ibv_req_notify_cq(self.inner.queue.get(), solicited_only.into()) };
        checked_code("ibv_req_notify_cq", result)
    }

    fn acknowledge(&mut self) -> Result<bool, Error> {
        let functions = self.inner.device.functions();
        let mut taken_count: c_uint = 0;
        let outcome = loop {
            let mut queue = ptr::null_mut();
            let mut token = ptr::null_mut();
            let channel = self.inner.channel.channel.get();
            let get = functions.ibv_get_cq_event;
            // SAFETY: the channel is alive and does not block; both places are written by the call.
            let result = unsafe { get(channel, &raw mut queue, &raw mut token) };
            if result == 0 {
                taken_count += 1;
                continue;
            }
            let error = io::Error::last_os_error();
            break match error.kind() {
                io::ErrorKind::Interrupted => continue,
                _ if would_block(&error) => Ok(taken_count > 0),
                _ => Err(error_of("ibv_get_cq_event", error)),
            };
        };
        if taken_count > 0 {
            // SAFETY: the channel has no other queue, and so many notifications of it were taken.
            unsafe { (functions.ibv_ack_cq_events)(self.inner.queue.get(), taken_count) };
        }
        outcome
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.inner.channel.descriptor()
    }
}

#[inline]
fn completion_of(completion: &ibv_wc, flags_invalidated: c_uint) -> WorkCompletion {
    let status = CompletionStatus(completion.status);
    let opcode = CompletionOpcode(completion.opcode);
    let is_invalidation = completion.wc_flags & flags_invalidated != 0
        && status == CompletionStatus::SUCCESS
        && opcode.0 & CompletionOpcode::RECEIVE.0 != 0;
    // SAFETY: both members are numbers of the same size.
    let key = unsafe { completion.imm_data_invalidated_rkey_union.invalidated_rkey };
    WorkCompletion {
        wr_id: completion.wr_id,
        status,
        opcode,
        byte_len: completion.byte_len,
        qp_number: completion.qp_num,
        vendor_error: completion.vendor_err,
        flags: if is_invalidation {
            CompletionFlags::WITH_INVALIDATE
        } else {
            CompletionFlags::default()
        },
        invalidated_rkey: key,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `IBV_WC_WITH_INV`, and with the kernel's flag that soft RoCE sets.
    const SPECIFIED: c_uint = 1 << 3;
    const SOFT_ROCE: c_uint = 1 << 3 | 1 << 2;

    fn completion(status: u32, opcode: u32, flags: c_uint) -> ibv_wc {
        let [mut one, ..] = *Batch::new().0;
        one.status = status;
        one.opcode = opcode;
        one.wc_flags = flags;
        one.wr_id = u64::MAX;
        one.qp_num = 17;
        one.imm_data_invalidated_rkey_union.invalidated_rkey = 0x1234;
        one
    }

    #[test]
    fn invalidated_key_is_reported_by_the_devices_flag() {
        for (flags, device, key) in [
            (1 << 3, SPECIFIED, Some(0x1234)),
            (1 << 2, SPECIFIED, None),
            (1 << 2, SOFT_ROCE, Some(0x1234)),
            (1 << 1, SOFT_ROCE, None),
        ] {
            let converted = completion_of(&completion(0, 128, flags), device);
            assert_eq!(
                converted.invalidated(),
                key,
                "flags {flags:#x} of {device:#x}"
            );
        }
    }

    #[test]
    fn failed_and_send_completions_have_no_invalidated_key() {
        assert_eq!(
            completion_of(&completion(5, 128, 8), SPECIFIED).invalidated(),
            None
        );
        assert_eq!(
            completion_of(&completion(0, 0, 8), SPECIFIED).invalidated(),
            None
        );
    }

    #[test]
    fn unknown_completion_codes_are_preserved() {
        let converted = completion_of(&completion(99, 0x7654, 0), SPECIFIED);
        assert_eq!((converted.status.0, converted.opcode.0), (99, 0x7654));
        assert_eq!((converted.wr_id, converted.qp_number), (u64::MAX, 17));
        assert!(!converted.is_success() && converted.status.name().is_none());
    }
}
