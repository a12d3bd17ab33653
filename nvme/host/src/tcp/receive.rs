//! Understanding what the target sends: each PDU is checked against the protocol and against the
//! command it names.
//!
//! Every length and identifier here is the target's word: nothing is believed before it was
//! compared with the command in flight. What does not hold ends the connection with a
//! [`ProtocolError`], except for a wrong data digest, which fails its command only (TCP 1.1
//! §3.3.1.1: a data digest error is not fatal).

use std::ops::{Deref, DerefMut};

use nvme_spec::tcp::{C2hData, CapsuleResp, CommonHeader, DIGEST_BYTES, PduType, R2t, TermReq};
use nvme_spec::tcp::{Framing, TERM_PDU_MAX_BYTES};
use nvme_spec::{Cqe, Status};
use zerocopy::{FromBytes, IntoBytes};

use crate::error::{HostError, ProtocolError};
use crate::link::{Completion, Completions};
use crate::tcp::connection::{Connection, Direction, Grant};
use crate::tcp::digest::digest;
use crate::tcp::inbox::{Arrival, Phase};
use crate::tcp::stream::ByteStream;

/// A header that has arrived whole and fits the protocol; what it says of its command is not
/// checked yet.
#[derive(Debug, Clone, Copy)]
enum Header {
    Response(CapsuleResp),
    Data(C2hData),
    Request(R2t),
    Termination(TermReq),
}

/// Checks the first eight bytes of a PDU against what a controller may send (TCP 1.1 §3.6.1).
pub(crate) fn check_common(ch: &CommonHeader, framing: Framing) -> Result<(), ProtocolError> {
    let kind = ch.pdu_type;
    let from_controller = matches!(
        kind,
        PduType::CAPSULE_RESP | PduType::C2H_DATA | PduType::R2T | PduType::C2H_TERM_REQ
    );
    let (true, Some(expected)) = (from_controller, kind.header_bytes()) else {
        return Err(ProtocolError::UnexpectedPdu(kind));
    };
    if ch.hlen != expected {
        return Err(ProtocolError::HeaderLength {
            kind,
            found: ch.hlen,
            expected,
        });
    }
    let plen = ch.plen.get();
    if kind == PduType::C2H_TERM_REQ {
        let fits = (u32::from(expected)..=TERM_PDU_MAX_BYTES as u32).contains(&plen);
        return if fits {
            Ok(())
        } else {
            Err(ProtocolError::PduLength { kind, found: plen })
        };
    }
    let digests = ch.flags.hdgstf() == framing.header_digest
        && (kind != PduType::C2H_DATA || ch.flags.ddgstf() == framing.data_digest);
    if !digests {
        return Err(ProtocolError::Flags {
            kind,
            found: ch.flags.into_bits(),
        });
    }
    if kind != PduType::C2H_DATA {
        let whole = ch.digested_header_bytes() == plen;
        return if whole {
            Ok(())
        } else {
            Err(ProtocolError::PduLength { kind, found: plen })
        };
    }
    // This host asks for no alignment beyond a dword (HPDA 0, TCP 1.1 §3.6.2.2).
    if u32::from(ch.pdo) < ch.digested_header_bytes() || !ch.pdo.is_multiple_of(4) {
        return Err(ProtocolError::DataOffset {
            kind,
            found: ch.pdo,
        });
    }
    Ok(())
}

impl<S: ByteStream, B: Deref<Target = [u8]> + DerefMut> Connection<S, B> {
    /// Understands what has arrived, until more is needed or `completions` holds `most`.
    pub(crate) fn parse(
        &mut self,
        completions: &mut Completions<B>,
        most: usize,
    ) -> Result<(), HostError> {
        while completions.len() < most {
            let progress = match self.inbox.phase {
                Phase::Header => match self.next_response() {
                    Some(cqe) => self.take_response(cqe, completions).map(|()| true)?,
                    None => match self.next_header()? {
                        Some(header) => self.dispatch(header, completions)?,
                        None => return Ok(()),
                    },
                },
                Phase::Data(arrival) => self.copy_data(arrival, completions)?,
                Phase::Digest(arrival) => self.check_data_digest(arrival, completions)?,
            };
            if !progress {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Takes a response capsule without digests off the inbox, where that is what comes next and has
    /// arrived whole. Its common header can be one value alone, so there is no need to look at each
    /// field; one that is anything else is for [`Self::next_header`].
    fn next_response(&mut self) -> Option<Cqe> {
        let plain = self.plain_response.as_ref()?;
        let (response, _) = CapsuleResp::read_from_prefix(self.inbox.pending()).ok()?;
        if response.ch.as_bytes() != plain.as_bytes() {
            return None;
        }
        self.inbox.note_header(size_of::<CapsuleResp>());
        self.inbox.consume(size_of::<CapsuleResp>());
        Some(response.cqe)
    }

    /// Takes a header off the inbox, up to where its data begins, once all of it has arrived.
    fn next_header(&mut self) -> Result<Option<Header>, HostError> {
        let Ok((common, _)) = CommonHeader::read_from_prefix(self.inbox.pending()) else {
            return Ok(None);
        };
        if let Err(error) = check_common(&common, self.settled.framing) {
            self.inbox.note_header(size_of::<CommonHeader>());
            return Err(error.into());
        }
        let needed = match common.pdu_type {
            PduType::C2H_DATA => usize::from(common.pdo),
            _ => common.plen.get() as usize,
        };
        if self.inbox.pending().len() < needed {
            return Ok(None);
        }
        self.check_header_digest(&common)?;
        let header = self.decode(common.pdu_type);
        self.inbox.note_header(usize::from(common.hlen));
        self.inbox.consume(needed);
        header.map(Some)
    }

    fn check_header_digest(&mut self, common: &CommonHeader) -> Result<(), ProtocolError> {
        if !common.pdu_type.may_have_digest() || !self.settled.framing.header_digest {
            return Ok(());
        }
        let (header, rest) = self.inbox.pending().split_at(usize::from(common.hlen));
        let Some(found) = rest.first_chunk::<4>() else {
            return Ok(());
        };
        if *found == digest(header) {
            return Ok(());
        }
        let found = u32::from_le_bytes(*found);
        self.inbox.note_header(usize::from(common.hlen));
        Err(ProtocolError::HeaderDigest {
            kind: common.pdu_type,
            found,
        })
    }

    /// Reads the header of a type that [`check_common`] let through.
    fn decode(&self, kind: PduType) -> Result<Header, HostError> {
        let pending = self.inbox.pending();
        let header = match kind {
            PduType::CAPSULE_RESP => CapsuleResp::read_from_prefix(pending)
                .map(|(pdu, _)| Header::Response(pdu))
                .ok(),
            PduType::C2H_DATA => C2hData::read_from_prefix(pending)
                .map(|(pdu, _)| Header::Data(pdu))
                .ok(),
            PduType::R2T => R2t::read_from_prefix(pending)
                .map(|(pdu, _)| Header::Request(pdu))
                .ok(),
            _ => TermReq::read_from_prefix(pending)
                .map(|(pdu, _)| Header::Termination(pdu))
                .ok(),
        };
        header.ok_or(ProtocolError::UnexpectedPdu(kind).into())
    }

    fn dispatch(
        &mut self,
        header: Header,
        completions: &mut Completions<B>,
    ) -> Result<bool, HostError> {
        match header {
            Header::Response(response) => self.take_response(response.cqe, completions)?,
            Header::Data(data) => self.begin_data(&data)?,
            Header::Request(request) => self.take_request(&request)?,
            Header::Termination(request) => {
                return Err(HostError::Terminated {
                    status: request.fatal_error(),
                    information: request.fei.get(),
                });
            }
        }
        Ok(true)
    }

    /// The index of the command in flight that a PDU names.
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
            return Err(ProtocolError::CompletedTooSoon { cid });
        }
        let slot = self.slots.get(index);
        let short = slot.direction == Direction::FromTarget && slot.moved != slot.expected;
        if short && cqe.status().is_success() {
            let (found, expected) = (slot.moved, slot.expected);
            return Err(ProtocolError::ShortData {
                cid,
                found,
                expected,
            });
        }
        self.complete(index, cqe, completions);
        Ok(())
    }

    /// Hands out a command that is over.
    fn complete(&mut self, index: u16, mut cqe: Cqe, completions: &mut Completions<B>) {
        let slot = self.slots.get(index);
        let read = matches!(
            slot.direction,
            Direction::FromTarget | Direction::FromTargetUpTo
        );
        let received = if read { slot.moved } else { 0 };
        if slot.data_damaged && cqe.status().is_success() {
            // Base 2.1 §4.2.3.1: the status of a command whose transfer failed for the transport's
            // sake.
            cqe = Cqe::new(slot.cid(), Status::TRANSIENT_TRANSPORT_ERROR);
        }
        let slot = self.slots.get_mut(index);
        completions.push(Completion {
            token: slot.token,
            cqe,
            received,
            data: slot.data.take(),
        });
        self.slots.give_back(index);
    }

    /// Checks a data PDU against its command (TCP 1.1 §3.3.2.1, §3.6.2.9).
    fn begin_data(&mut self, pdu: &C2hData) -> Result<(), ProtocolError> {
        let kind = PduType::C2H_DATA;
        let cid = pdu.cccid.get();
        let index = self.find(kind, cid)?;
        if !self.is_sent(index) {
            return Err(ProtocolError::CompletedTooSoon { cid });
        }
        let slot = self.slots.get_mut(index);
        if !matches!(
            slot.direction,
            Direction::FromTarget | Direction::FromTargetUpTo
        ) {
            return Err(ProtocolError::NoDataWanted { cid });
        }
        if slot.last_seen {
            return Err(ProtocolError::DataAfterLast { cid });
        }
        let (offset, length) = (pdu.datao.get(), pdu.datal.get());
        match pdu.ch.data_bytes() {
            Some(bytes) if bytes == length => {}
            Some(bytes) => {
                return Err(ProtocolError::DataLength {
                    cid,
                    found: length,
                    most: bytes,
                });
            }
            None => {
                return Err(ProtocolError::PduLength {
                    kind,
                    found: pdu.ch.plen.get(),
                });
            }
        }
        if offset != slot.moved {
            return Err(ProtocolError::DataOutOfOrder {
                cid,
                found: offset,
                expected: slot.moved,
            });
        }
        let most = slot.expected - slot.moved;
        if length == 0 || length > most {
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
        slot.last_seen = pdu.ch.flags.last_pdu();
        slot.moved += length;
        let start = offset as usize;
        let end = start + length as usize;
        self.inbox.expect_data(Arrival {
            slot: index,
            start,
            next: start,
            end,
            success,
        });
        Ok(())
    }

    /// Copies what came with other things into place. False where more must arrive.
    fn copy_data(
        &mut self,
        mut arrival: Arrival,
        completions: &mut Completions<B>,
    ) -> Result<bool, HostError> {
        let pending = self.inbox.pending();
        let len = pending.len().min(arrival.end - arrival.next);
        if let Some(data) = self.slots.get_mut(arrival.slot).data.as_deref_mut() {
            data[arrival.next..arrival.next + len].copy_from_slice(&pending[..len]);
        }
        self.inbox.consume(len);
        self.counters.copied_bytes += len as u64;
        arrival.next += len;
        if arrival.next < arrival.end {
            self.inbox.phase = Phase::Data(arrival);
            return Ok(false);
        }
        if self.settled.framing.data_digest {
            self.inbox.phase = Phase::Digest(arrival);
        } else {
            self.finish_data(arrival, completions)?;
        }
        Ok(true)
    }

    fn check_data_digest(
        &mut self,
        arrival: Arrival,
        completions: &mut Completions<B>,
    ) -> Result<bool, HostError> {
        let Some(found) = self
            .inbox
            .pending()
            .first_chunk::<{ DIGEST_BYTES as usize }>()
        else {
            return Ok(false);
        };
        let slot = self.slots.get(arrival.slot);
        let data = slot
            .data
            .as_deref()
            .and_then(|data| data.get(arrival.start..arrival.end));
        if data.map(digest) != Some(*found) {
            self.counters.data_digest_errors += 1;
            self.slots.get_mut(arrival.slot).data_damaged = true;
        }
        self.inbox.consume(DIGEST_BYTES as usize);
        self.finish_data(arrival, completions)?;
        Ok(true)
    }

    /// A data PDU is in; with SUCCESS its command is over (TCP 1.1 §3.3.2.1).
    fn finish_data(
        &mut self,
        arrival: Arrival,
        completions: &mut Completions<B>,
    ) -> Result<(), ProtocolError> {
        self.inbox.phase = Phase::Header;
        if arrival.success {
            let slot = self.slots.get(arrival.slot);
            let cid = slot.cid();
            if slot.direction == Direction::FromTarget && slot.moved != slot.expected {
                let (found, expected) = (slot.moved, slot.expected);
                return Err(ProtocolError::ShortData {
                    cid,
                    found,
                    expected,
                });
            }
            self.complete(arrival.slot, Cqe::new(cid, Status::SUCCESS), completions);
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
        let in_order = offset == slot.moved;
        if !in_order || length == 0 || length > slot.expected - slot.moved {
            let (sent, total) = (slot.moved, slot.expected);
            return Err(ProtocolError::R2tRange {
                cid,
                offset,
                length,
                sent,
                total,
            });
        }
        slot.moved += length;
        self.grant(
            index,
            Grant {
                ttag: pdu.ttag.get(),
                offset,
                remaining: length,
            },
        );
        Ok(())
    }
}
