//! Parses PDUs from the target. Each is checked against the protocol and against its command.
//!
//! Every length and identifier is untrusted until it was compared with the command in flight. A
//! violation ends the connection with a [`ProtocolError`], except for a wrong data digest, which
//! fails only its command (TCP 1.1 §3.3.1.1: a data digest error is not fatal).

use std::ops::{Deref, DerefMut};

use nvme_spec::tcp::{
    C2hData, CapsuleResp, CommonHeader, DIGEST_BYTES, Framing, IcResp, PduLayout, PduType, R2t,
    TermReq,
};
use nvme_spec::{Cqe, Status};
use zerocopy::{FromBytes, IntoBytes};

use crate::error::{HostError, ProtocolError};
use crate::link::{Completion, Completions};
use crate::tcp::connection::{Connection, Direction, PendingR2t};
use crate::tcp::inbox::{IncomingData, Phase};
use crate::tcp::pdu::{Header, digest, negotiate, read_header};
use crate::tcp::stream::ByteStream;

impl<S: ByteStream, B: Deref<Target = [u8]> + DerefMut> Connection<S, B> {
    /// Parses received bytes, until more are needed or `completions` has `most` entries.
    pub(crate) fn parse(
        &mut self,
        completions: &mut Completions<B>,
        most: usize,
    ) -> Result<(), HostError> {
        while completions.len() < most {
            let progress = match self.inbox.phase {
                Phase::Initialization => self.take_initialization()?,
                Phase::Header => match self.next_response() {
                    Some(cqe) => self.take_response(cqe, completions).map(|()| true)?,
                    None if self.inbox.pending().len() < size_of::<CommonHeader>() => {
                        return Ok(());
                    }
                    None => match self.next_header(self.parameters.framing)? {
                        Some((header, layout)) => {
                            self.inbox.consume(layout.header_bytes as usize);
                            self.dispatch(header, layout, completions)?
                        }
                        None => return Ok(()),
                    },
                },
                Phase::Data(incoming) => self.copy_data(incoming, completions)?,
                Phase::Digest(incoming) => self.check_data_digest(incoming, completions)?,
            };
            if !progress {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Takes a response capsule without digests from the inbox, if it is the next PDU and complete.
    /// Its common header has only one valid value, so a single comparison checks all fields;
    /// [`Self::next_header`] handles everything else.
    fn next_response(&mut self) -> Option<Cqe> {
        let plain = self.expected_response_header.as_ref()?;
        let (response, _) = CapsuleResp::read_from_prefix(self.inbox.pending()).ok()?;
        if response.ch.as_bytes() != plain.as_bytes() {
            return None;
        }
        self.inbox.copy_header(size_of::<CapsuleResp>());
        self.inbox.consume(size_of::<CapsuleResp>());
        Some(response.cqe)
    }

    /// Handles the ICResp. Returns false if more bytes are needed.
    #[inline(never)]
    fn take_initialization(&mut self) -> Result<bool, HostError> {
        let Some((header, layout)) = self.next_header(Framing::default())? else {
            return Ok(false);
        };
        if let Header::Termination(request) = header {
            return Err(terminated(&request));
        }
        let response = IcResp::read_from_prefix(self.inbox.pending());
        let (response, _) = response.map_err(|_| ProtocolError::UnexpectedPdu(PduType::IC_RESP))?;
        let negotiated = negotiate(&response, self.requested)?;
        self.inbox.consume(layout.header_bytes as usize);
        self.inbox.phase = Phase::Header;
        self.initialized(negotiated);
        Ok(true)
    }

    /// The header at the start of the inbox, if it is complete with digest and padding.
    ///
    /// Always inlined, like the functions that it calls, so that the header is read into place and
    /// not copied as the result of each.
    #[inline(always)]
    fn next_header(&mut self, framing: Framing) -> Result<Option<(Header, PduLayout)>, HostError> {
        // This host requests only dword alignment (HPDA 0, TCP 1.1 §3.6.2.2).
        let framing = framing.dword_aligned();
        let read = self.check_order();
        let read = read.and_then(|()| read_header(self.inbox.pending(), framing));
        match &read {
            Ok(Some((Header::Initialized, layout))) => {
                self.inbox.copy_header(layout.header_bytes as usize);
            }
            Ok(Some(_)) | Err(ProtocolError::HeaderDigest { .. }) => {
                self.inbox.copy_header(size_of::<CapsuleResp>());
            }
            Ok(None) => {}
            Err(_) => self.inbox.copy_header(size_of::<CommonHeader>()),
        }
        Ok(read?)
    }

    /// Checks that an ICResp is the first PDU and is not repeated. A termination request is always
    /// allowed.
    fn check_order(&self) -> Result<(), ProtocolError> {
        let is_first = matches!(self.inbox.phase, Phase::Initialization);
        match self.inbox.pending().first().map(|&kind| PduType(kind)) {
            None | Some(PduType::C2H_TERM_REQ) => Ok(()),
            Some(kind) if (kind == PduType::IC_RESP) == is_first => Ok(()),
            Some(kind) => Err(ProtocolError::UnexpectedPdu(kind)),
        }
    }

    fn dispatch(
        &mut self,
        header: Header,
        layout: PduLayout,
        completions: &mut Completions<B>,
    ) -> Result<bool, HostError> {
        match header {
            Header::Response(response) => self.take_response(response.cqe, completions)?,
            Header::Data(data) => self.begin_data(&data, layout.data_bytes)?,
            Header::Request(request) => self.take_request(&request)?,
            Header::Initialized => {
                return Err(ProtocolError::UnexpectedPdu(PduType::IC_RESP).into());
            }
            Header::Termination(request) => return Err(terminated(&request)),
        }
        Ok(true)
    }

    /// The index of the command in flight for a PDU.
    fn find(&self, kind: PduType, cid: u16) -> Result<u16, ProtocolError> {
        let found = self.slots.find(cid);
        found.ok_or(ProtocolError::UnknownCommand { kind, cid })
    }

    fn take_response(
        &mut self,
        cqe: Cqe,
        completions: &mut Completions<B>,
    ) -> Result<(), ProtocolError> {
        let cid = cqe.cid.get();
        let index = self.find(PduType::CAPSULE_RESP, cid)?;
        if !self.is_sent(index) {
            return Err(ProtocolError::CompletedBeforeSent { cid });
        }
        let slot = self.slots.get(index);
        let short = slot.direction == Direction::FromTarget && slot.transferred != slot.expected;
        if short && cqe.status().is_success() {
            let (found, expected) = (slot.transferred, slot.expected);
            return Err(ProtocolError::ShortData {
                cid,
                found,
                expected,
            });
        }
        self.complete(index, cqe, completions);
        Ok(())
    }

    /// Completes a command.
    fn complete(&mut self, index: u16, mut cqe: Cqe, completions: &mut Completions<B>) {
        let slot = self.slots.get(index);
        let read = matches!(
            slot.direction,
            Direction::FromTarget | Direction::FromTargetUpTo
        );
        let received = if read { slot.transferred } else { 0 };
        if slot.digest_failed && cqe.status().is_success() {
            // Base 2.1 §4.2.3.1: the status of a command whose transfer failed in the transport.
            cqe = Cqe::new(slot.cid(), Status::TRANSIENT_TRANSPORT_ERROR);
        }
        let slot = self.slots.get_mut(index);
        completions.push(Completion {
            token: slot.token,
            cqe,
            received,
            data: slot.data.take(),
        });
        self.slots.release_in_place(index);
    }

    /// Checks a data PDU against its command (TCP 1.1 §3.3.2.1, §3.6.2.9).
    fn begin_data(&mut self, pdu: &C2hData, bytes: u32) -> Result<(), ProtocolError> {
        let kind = PduType::C2H_DATA;
        let cid = pdu.cccid.get();
        let index = self.find(kind, cid)?;
        if !self.is_sent(index) {
            return Err(ProtocolError::CompletedBeforeSent { cid });
        }
        let slot = self.slots.get_mut(index);
        if !matches!(
            slot.direction,
            Direction::FromTarget | Direction::FromTargetUpTo
        ) {
            return Err(ProtocolError::UnexpectedData { cid });
        }
        if slot.last_pdu_received {
            return Err(ProtocolError::DataAfterLast { cid });
        }
        let (offset, length) = (pdu.datao.get(), pdu.datal.get());
        if length != bytes {
            return Err(ProtocolError::DataLength {
                cid,
                found: length,
                most: bytes,
            });
        }
        if offset != slot.transferred {
            return Err(ProtocolError::DataOutOfOrder {
                cid,
                found: offset,
                expected: slot.transferred,
            });
        }
        let most = slot.expected - slot.transferred;
        if length > most {
            return Err(ProtocolError::DataLength {
                cid,
                found: length,
                most,
            });
        }
        let success = pdu.ch.flags.success();
        if success && !pdu.ch.flags.last_pdu() {
            return Err(ProtocolError::SuccessWithoutLast { cid });
        }
        slot.last_pdu_received = pdu.ch.flags.last_pdu();
        slot.transferred += length;
        let start = offset as usize;
        let end = start + length as usize;
        self.inbox.expect_data(IncomingData {
            slot: index,
            start,
            next: start,
            end,
            success,
        });
        Ok(())
    }

    /// Copies data from the inbox to its place. Returns false if more bytes are needed.
    fn copy_data(
        &mut self,
        mut incoming: IncomingData,
        completions: &mut Completions<B>,
    ) -> Result<bool, HostError> {
        let pending = self.inbox.pending();
        let len = pending.len().min(incoming.end - incoming.next);
        if let Some(data) = self.slots.get_mut(incoming.slot).data.as_deref_mut() {
            data[incoming.next..incoming.next + len].copy_from_slice(&pending[..len]);
        }
        self.inbox.consume(len);
        self.counters.copied_bytes += len as u64;
        incoming.next += len;
        if incoming.next < incoming.end {
            self.inbox.phase = Phase::Data(incoming);
            return Ok(false);
        }
        if self.parameters.framing.data_digest {
            self.inbox.phase = Phase::Digest(incoming);
        } else {
            self.finish_data(incoming, completions)?;
        }
        Ok(true)
    }

    fn check_data_digest(
        &mut self,
        incoming: IncomingData,
        completions: &mut Completions<B>,
    ) -> Result<bool, HostError> {
        let Some(found) = self
            .inbox
            .pending()
            .first_chunk::<{ DIGEST_BYTES as usize }>()
        else {
            return Ok(false);
        };
        let slot = self.slots.get(incoming.slot);
        let data = slot
            .data
            .as_deref()
            .and_then(|data| data.get(incoming.start..incoming.end));
        if data.map(digest) != Some(*found) {
            self.counters.data_digest_errors += 1;
            self.slots.get_mut(incoming.slot).digest_failed = true;
        }
        self.inbox.consume(DIGEST_BYTES as usize);
        self.finish_data(incoming, completions)?;
        Ok(true)
    }

    /// Ends a data PDU; with SUCCESS its command completes (TCP 1.1 §3.3.2.1).
    fn finish_data(
        &mut self,
        incoming: IncomingData,
        completions: &mut Completions<B>,
    ) -> Result<(), ProtocolError> {
        self.inbox.phase = Phase::Header;
        if incoming.success {
            let slot = self.slots.get(incoming.slot);
            let cid = slot.cid();
            if slot.direction == Direction::FromTarget && slot.transferred != slot.expected {
                let (found, expected) = (slot.transferred, slot.expected);
                return Err(ProtocolError::ShortData {
                    cid,
                    found,
                    expected,
                });
            }
            self.complete(incoming.slot, Cqe::new(cid, Status::SUCCESS), completions);
        }
        Ok(())
    }

    /// Checks an R2T against its command (TCP 1.1 §3.3.2.2, §3.6.2.10).
    fn take_request(&mut self, pdu: &R2t) -> Result<(), ProtocolError> {
        let cid = pdu.cccid.get();
        let index = self.find(PduType::R2T, cid)?;
        if self.slots.get(index).direction != Direction::OnRequest {
            return Err(ProtocolError::NoDataToSend { cid });
        }
        if !self.is_sent(index) {
            return Err(ProtocolError::R2tLimit { cid });
        }
        let slot = self.slots.get_mut(index);
        let (offset, length) = (pdu.r2to.get(), pdu.r2tl.get());
        let in_order = offset == slot.transferred;
        if !in_order || length == 0 || length > slot.expected - slot.transferred {
            let (sent, total) = (slot.transferred, slot.expected);
            return Err(ProtocolError::R2tRange {
                cid,
                offset,
                length,
                sent,
                total,
            });
        }
        slot.transferred += length;
        self.add_r2t(
            index,
            PendingR2t {
                ttag: pdu.ttag.get(),
                offset,
                remaining: length,
            },
        );
        Ok(())
    }
}

fn terminated(request: &TermReq) -> HostError {
    HostError::Terminated {
        status: request.fatal_error(),
        information: request.fei.get(),
    }
}
