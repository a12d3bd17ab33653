//! Hosts that make no progress: they do not send solicited data, or do not receive the data of
//! their reads.
//!
//! The time for which such a connection holds memory is limited. Borrows end after
//! [`BORROWED_MAX`]: reads whose PDU is not partly sent borrow again when the stream accepts bytes,
//! and the data of a partly sent PDU is copied if a writer waits for it. Leases are freed when the
//! connection ends, after [`PROGRESS_TIMEOUT`], or after [`PROGRESS_TIMEOUT_CONTENDED`] if a host
//! without leases waits for memory of that size.
//!
//! A host that does nothing wrong can make no progress either: in-capsule data that waits for a lease
//! stops the stream, and solicited data for the leases that its host has may be behind it. Such a
//! connection takes the lease from the reserve, which returns when the device has executed the
//! command: no more data from the host is needed for that.

use hugemem::{Account, Lease, WaiterToken};
use reactors::Nanos;

use super::{
    BORROWED_CHECK_INTERVAL, BORROWED_MAX, Connection, Context, Ended, Expecting,
    PROGRESS_CHECK_INTERVAL, PROGRESS_TIMEOUT, PROGRESS_TIMEOUT_CONTENDED, RESERVE_RETRY_INTERVAL,
    Sink,
};
use crate::digest::DIGEST_BYTES;
use crate::slot::{Fetch, SlotState, is_fetching};
use crate::stream::ByteStream;
use crate::transmit::Suspended;

impl<S: ByteStream> Connection<S> {
    /// Called when a request begins to wait for data from the host.
    pub(super) fn begin_fetch(&mut self, now: Nanos) {
        if self.solicited == 0 {
            self.data_at = now;
        }
        self.watch_progress(now);
    }

    pub(super) fn watch_progress(&mut self, now: Nanos) {
        self.progress_check_at
            .get_or_insert(now + PROGRESS_CHECK_INTERVAL);
    }

    /// Called when the stream accepts no more bytes.
    #[cold]
    pub(super) fn send_blocked(&mut self, cx: &Context<'_>) {
        let sent_bytes = self.transmitter.bytes_sent();
        let first = self.borrows_until.is_none() && !self.is_slow;
        if sent_bytes != self.sent_bytes || first {
            self.sent_bytes = sent_bytes;
            self.sent_at = cx.now;
        }
        self.watch_progress(cx.now);
        if !self.is_slow {
            self.borrows_until.get_or_insert(cx.now + BORROWED_MAX);
            return;
        }
        // These borrows were for this send only, and their data was not sent.
        let suspended = self.transmitter.suspend_borrows();
        cx.counters.loans_suspended.add(suspended as u64);
        self.borrows_until = match self.transmitter.partly_sent_borrow() {
            None => None,
            Some(partly_sent) if self.partly_sent_borrow == Some(partly_sent) => self.borrows_until,
            Some(_) => Some(cx.now + BORROWED_MAX),
        };
        self.partly_sent_borrow = self.transmitter.partly_sent_borrow();
    }

    /// Suspends the borrow of a read that completed while the stream accepts no bytes.
    #[cold]
    pub(super) fn suspend_if_slow(&mut self, cx: &Context<'_>) {
        if self.is_slow && self.awaits_writable {
            let suspended = self.transmitter.suspend_newest();
            cx.counters.loans_suspended.add(suspended as u64);
        }
    }

    /// Ends the borrows of a host that receives no data, so that the ranges can be written.
    pub(super) fn stop_borrowing(&mut self, cx: &Context<'_>) -> Result<(), Ended> {
        self.borrows_until = None;
        self.partly_sent_borrow = None;
        self.is_slow = true;
        let suspended = self.transmitter.suspend_borrows();
        cx.counters.loans_suspended.add(suspended as u64);
        if self.transmitter.partly_sent_borrow().is_some()
            && !self.transmitter.partly_sent_borrow_is_awaited()
        {
            // No writer waits, so a copy would only use memory.
            self.partly_sent_borrow = self.transmitter.partly_sent_borrow();
            self.borrows_until = Some(cx.now + BORROWED_CHECK_INTERVAL);
            return Ok(());
        }
        // The reserve of the host's admin account may be used for this.
        let reserve = self.account.host().map_or(Account::SYSTEM, Account::admin);
        let copy = |len| {
            let lease = cx.pool.take_for(self.account, len);
            lease.or_else(|| cx.pool.take_for(reserve, len))
        };
        match self.transmitter.copy_partly_sent_borrow(copy) {
            Suspended::Nothing => Ok(()),
            Suspended::Copied(bytes) => {
                cx.counters.bytes_copied.add(bytes as u64);
                Ok(())
            }
            Suspended::NoMemory => {
                self.report_stalled(cx, "takes no data and there is no memory to keep it in");
                Err(Ended::NoCopy)
            }
        }
    }

    /// Ends the connection of a host that has made no progress for too long.
    pub(super) fn check_progress(&mut self, cx: &mut Context<'_>) -> Result<(), Ended> {
        self.progress_check_at = None;
        let is_throttled = self.is_throttled();
        if self.solicited > 0 {
            while self.leave_stall(cx) {}
            if self.is_stalled() {
                if is_throttled {
                    // What the host has sent is not received.
                    self.data_at = cx.now;
                }
                self.progress_check_at = Some(cx.now + RESERVE_RETRY_INTERVAL);
            }
        }
        let fetches = self.slots.iter().any(is_fetching);
        if fetches {
            let idle = cx.now.saturating_sub(self.data_at);
            let needed = |state: &SlotState| match state {
                SlotState::FetchingData(fetch) => cx.pool.is_scarce(&fetch.lease),
                _ => false,
            };
            if idle >= PROGRESS_TIMEOUT
                || (idle >= PROGRESS_TIMEOUT_CONTENDED && self.slots.iter().any(needed))
            {
                cx.counters.data_timeouts.add(1);
                self.report_stalled(cx, "does not send the data that it was asked for");
                self.close(cx);
                return Ok(());
            }
        }
        let is_sending = !self.transmitter.is_empty();
        if is_sending && self.transmitter.bytes_sent() == self.sent_bytes {
            let idle = cx.now.saturating_sub(self.sent_at);
            if idle >= PROGRESS_TIMEOUT
                || (idle >= PROGRESS_TIMEOUT_CONTENDED
                    && self.transmitter.any_lease(|lease| cx.pool.is_scarce(lease)))
            {
                self.report_stalled(cx, "does not take the data that it asked for");
                return Err(Ended::SendTimeout);
            }
        }
        if fetches || is_sending {
            self.watch_progress(cx.now);
        }
        Ok(())
    }

    /// Lets the stream continue if in-capsule data waits for a lease: takes one from the reserve if
    /// all of this data has been received. Returns whether it did.
    fn leave_stall(&mut self, cx: &mut Context<'_>) -> bool {
        let Expecting::Data {
            sink: Sink::Slot(slot),
            remaining,
            digest,
            ..
        } = self.expecting
        else {
            return false;
        };
        let (SlotState::AwaitingBuffer(work) | SlotState::AwaitingRate(work, _)) =
            self.slots.state(slot)
        else {
            return false;
        };
        let bytes = work.bytes() as usize;
        let awaited = remaining + if digest { DIGEST_BYTES } else { 0 };
        if self.receiver.received_bytes() + self.stream.available() < awaited {
            return false;
        }
        let reserve = self.account.host().map_or(Account::SYSTEM, Account::admin);
        let Some(lease) = cx.pool.take_for(reserve, bytes) else {
            return false;
        };
        if self.is_throttled() {
            self.receive_throttled(cx, slot, lease);
            return true;
        }
        let waiter = WaiterToken(self.token.with_slot(slot).into_bits());
        cx.pool
            .cancel_waits(Some(self.account), |token| token == waiter);
        self.granted(cx, slot, lease);
        true
    }

    /// Whether in-capsule data waits for a rate, so that nothing behind it can be received.
    fn is_throttled(&mut self) -> bool {
        let Expecting::Data {
            sink: Sink::Slot(slot),
            ..
        } = self.expecting
        else {
            return false;
        };
        matches!(self.slots.state(slot), SlotState::AwaitingRate(..))
    }

    /// Receives the in-capsule data of a command that waits for a rate, so that the stream goes on.
    fn receive_throttled(&mut self, cx: &mut Context<'_>, slot: u16, mut lease: Lease) {
        let SlotState::AwaitingRate(work, _) = self.slots.take_state(slot) else {
            return;
        };
        lease.resize(work.bytes() as usize);
        let fetch = Fetch {
            work,
            lease,
            filled: 0,
            placed: 0,
            block_bytes: None,
            solicited: false,
            corrupt: false,
            awaits_rate: true,
        };
        self.slots.set(slot, SlotState::FetchingData(fetch));
        cx.buffers.attach_buffer(&mut self.receiver);
        self.consume(cx);
        cx.buffers.detach_buffer(&mut self.receiver, self.account);
    }

    fn report_stalled(&self, cx: &Context<'_>, what: &str) {
        if let Some(withheld) = cx.log.admit(cx.now) {
            let host = self.stream.host_address();
            tracing::warn!(
                ?host,
                withheld,
                "closing the connection of a host that {what}"
            );
        }
    }
}
