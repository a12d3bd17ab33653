//! The receiver: turns received bytes into checked PDUs. Framing, header checks and header digests.
//!
//! It decides whether bytes are a well-formed PDU in the current state of the connection. The
//! connection interprets the PDU and chooses where its data is stored. TCP 1.1 §3.3 and §3.6.2.

use arrayvec::ArrayVec;
use nvme_spec::Sqe;
use nvme_spec::tcp::{
    ADMIN_IN_CAPSULE_DATA_BYTES, CapsuleCmd, CommonHeader, FatalError, Framing, H2cData, IcReq,
    PduLayout, PduType, TERM_DATA_MAX_BYTES, TermReq, offset,
};
use zerocopy::{FromBytes, IntoBytes};

use crate::digest::{DIGEST_BYTES, digest};

/// A protocol violation by the host, which ends its connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Violation {
    /// Fatal Error Status of the termination request.
    pub(crate) status: FatalError,
    /// Fatal Error Information: the offset of the field in error, or the digest that arrived.
    pub(crate) information: u32,
    /// The received part of the header of the PDU in error.
    pub(crate) header: ArrayVec<u8, TERM_DATA_MAX_BYTES>,
}

impl Violation {
    /// A violation in a PDU with `header`, truncated to what a termination request may carry.
    pub(crate) fn new(status: FatalError, information: u32, header: &[u8]) -> Box<Self> {
        let header = header.iter().copied().take(TERM_DATA_MAX_BYTES).collect();
        Box::new(Self {
            status,
            information,
            header,
        })
    }

    /// The likely cause, for the log.
    pub(crate) fn hint(&self) -> &'static str {
        /// The beginning of a ClientHello's record: a handshake, and the legacy version (RFC 8446
        /// §5.1).
        const TLS_HANDSHAKE: [u8; 2] = [22, 3];
        if self.header.starts_with(&TLS_HANDSHAKE) {
            ": it uses TLS, and the listener does not: write tls = \"allowed\" or \"required\", or \
             connect without --tls"
        } else {
            ""
        }
    }
}

/// The data of a PDU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Payload {
    /// Bytes of data, at least one.
    pub(crate) bytes: u32,
    /// Whether a data digest follows.
    pub(crate) digest: bool,
}

/// A PDU whose header is complete and valid. Its data, if any, is not yet received.
#[derive(Debug)]
pub(crate) enum Pdu {
    Initialise(Box<IcReq>),
    /// [`Receiver::command`] returns the command, so that its 64 bytes are copied once.
    Command(Option<Payload>),
    HostData(H2cData, Payload),
    Terminate(TermReq),
}

/// The PDUs that are in order in the current state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// The first PDU must be an ICReq (TCP 1.1 §3.1).
    Initialise,
    /// Commands and data.
    Operate,
}

/// The rules for the next PDU.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    pub(crate) order: Order,
    /// The negotiated digests.
    pub(crate) framing: Framing,
    /// Data that a command capsule may carry, in bytes.
    pub(crate) in_capsule_bytes_max: u32,
    /// Data that an H2CData PDU may carry, in bytes.
    pub(crate) host_data_bytes_max: u32,
    /// The common header of a command capsule without data.
    bare_command: Option<CommonHeader>,
}

impl Rules {
    pub(crate) fn before_initialisation(host_data_bytes_max: u32) -> Self {
        Self {
            order: Order::Initialise,
            framing: Framing::default(),
            in_capsule_bytes_max: ADMIN_IN_CAPSULE_DATA_BYTES,
            host_data_bytes_max,
            bare_command: None,
        }
    }

    /// Permits commands and data, with the framing that the initialisation negotiated.
    pub(crate) fn operate(&mut self, framing: Framing) {
        self.order = Order::Operate;
        self.framing = framing;
        self.bare_command = Some(CapsuleCmd::new(Sqe::default(), 0, framing).ch);
    }

    /// Bytes of a command capsule without data or padding.
    #[inline]
    fn command_bytes(&self) -> usize {
        size_of::<CapsuleCmd>()
            + if self.framing.header_digest {
                DIGEST_BYTES
            } else {
                0
            }
    }
}

/// Bytes that a connection keeps at most when it returns its reactor's receive buffer: an
/// incomplete header, with its padding and digest.
pub(crate) const PARTIAL_HEADER_BYTES_MAX: usize = 512;

// PDO, the offset of data, is one byte. A data digest can follow data that was cut off there.
const _: () = assert!(PARTIAL_HEADER_BYTES_MAX > u8::MAX as usize + DIGEST_BYTES);

/// Bytes that a connection has received and not consumed, in a buffer of its reactor.
#[derive(Debug)]
pub(crate) struct Receiver {
    /// The reactor's buffer while this connection has it; otherwise empty.
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    command: Sqe,
    /// The header of the last command capsule with data; the next one is likely equal.
    expected_header: Option<(CommonHeader, Payload)>,
    partial_header: ArrayVec<u8, PARTIAL_HEADER_BYTES_MAX>,
}

impl Receiver {
    pub(crate) fn new() -> Self {
        Self {
            buffer: Box::default(),
            start: 0,
            end: 0,
            command: Sqe::default(),
            expected_header: None,
            partial_header: ArrayVec::new(),
        }
    }

    /// Size of its buffer in bytes; 0 without a buffer.
    pub(crate) fn buffer_bytes(&self) -> usize {
        self.buffer.len()
    }

    /// Whether it has a buffer.
    #[inline]
    pub(crate) fn has_buffer(&self) -> bool {
        !self.buffer.is_empty()
    }

    /// Takes the buffer at `place` and puts the kept bytes of the previous buffer into it.
    #[inline]
    pub(crate) fn attach(&mut self, place: &mut Box<[u8]>) {
        debug_assert!(!self.has_buffer(), "one buffer at a time");
        std::mem::swap(&mut self.buffer, place);
        if !self.partial_header.is_empty() {
            (self.start, self.end) = (0, self.partial_header.len());
            self.buffer[..self.end].copy_from_slice(&self.partial_header);
            self.partial_header.clear();
        }
    }

    /// Keeps the unconsumed bytes outside of the buffer, so that [`release`](Self::release) loses
    /// none. Returns `false` if they are too many.
    #[inline]
    pub(crate) fn save_partial_header(&mut self) -> bool {
        self.start == self.end || {
            let partial_header = &self.buffer[self.start..self.end];
            self.partial_header
                .try_extend_from_slice(partial_header)
                .is_ok()
        }
    }

    /// Returns the buffer to `place`, which must be empty, and discards its contents.
    #[inline]
    pub(crate) fn release(&mut self, place: &mut Box<[u8]>) {
        debug_assert!(place.is_empty(), "a buffer is not lost");
        (self.start, self.end) = (0, 0);
        std::mem::swap(&mut self.buffer, place);
    }

    /// The command of the last [`Pdu::Command`].
    pub(crate) fn command(&self) -> &Sqe {
        &self.command
    }

    /// Bytes received and not yet consumed.
    pub(crate) fn buffered(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Number of bytes received and not yet consumed, with or without a buffer.
    pub(crate) fn received_bytes(&self) -> usize {
        self.end - self.start + self.partial_header.len()
    }

    /// Space for the next receive: at least one byte if the caller consumes complete headers.
    pub(crate) fn room(&mut self) -> &mut [u8] {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.buffer.len() - self.end < self.buffer.len() / 4 && self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        &mut self.buffer[self.end..]
    }

    /// Records that `bytes` were received into the space.
    pub(crate) fn filled(&mut self, bytes: usize) {
        self.end += bytes;
        debug_assert!(self.end <= self.buffer.len());
    }

    /// Drops `bytes` from the front.
    pub(crate) fn consume(&mut self, bytes: usize) {
        self.start += bytes;
        debug_assert!(self.start <= self.end);
    }

    /// Moves buffered bytes into `destination`; returns their number.
    pub(crate) fn copy_into(&mut self, destination: &mut [u8]) -> usize {
        let bytes = destination.len().min(self.end - self.start);
        destination[..bytes].copy_from_slice(&self.buffer[self.start..self.start + bytes]);
        self.start += bytes;
        bytes
    }

    /// Takes the data digest that follows data; `None` until its four bytes are received.
    pub(crate) fn take_digest(&mut self) -> Option<[u8; DIGEST_BYTES]> {
        let found = *self.buffered().first_chunk()?;
        self.consume(DIGEST_BYTES);
        Some(found)
    }

    /// The next PDU; `None` until its header is complete. The caller then takes data and data
    /// digest.
    ///
    /// # Errors
    /// The violation of the host. Nothing is consumed.
    #[inline]
    pub(crate) fn next_pdu(&mut self, rules: &Rules) -> Result<Option<Pdu>, Box<Violation>> {
        // Nearly all PDUs of hosts that read, or that write with one transfer size, have one of two
        // known headers, so one comparison each recognises them.
        if let Some(expected) = &rules.bare_command
            && let Ok((capsule, behind)) = CapsuleCmd::ref_from_prefix(self.buffered())
        {
            let is_like = |header: &CommonHeader| capsule.ch.as_bytes() == header.as_bytes();
            let payload = match &self.expected_header {
                _ if is_like(expected) => Some(None),
                Some((header, payload)) if is_like(header) => Some(Some(*payload)),
                Some(_) | None => None,
            };
            let is_right = || behind.first_chunk() == Some(&digest(capsule.as_bytes()));
            if let Some(payload) = payload
                && (!rules.framing.header_digest || is_right())
            {
                self.command = capsule.sqe;
                self.consume(rules.command_bytes());
                return Ok(Some(Pdu::Command(payload)));
            }
        }
        self.next_checked_pdu(rules)
    }

    /// Forgets the last header, because the rules for headers have changed.
    pub(crate) fn clear_expected_header(&mut self) {
        self.expected_header = None;
    }

    #[inline(never)]
    fn next_checked_pdu(&mut self, rules: &Rules) -> Result<Option<Pdu>, Box<Violation>> {
        let bytes = self.buffered();
        let Ok((common, _)) = CommonHeader::ref_from_prefix(bytes) else {
            return Ok(None);
        };
        let check = HeaderCheck {
            common,
            bytes,
            rules,
        };
        let layout = check.layout()?;
        let header_bytes = layout.header_bytes as usize;
        if bytes.len() < header_bytes {
            return Ok(None);
        }
        check.header_digest(&layout)?;
        if common.pdu_type == PduType::CAPSULE_CMD {
            let (capsule, _) =
                CapsuleCmd::ref_from_prefix(bytes).map_err(|_| check.field(offset::HLEN))?;
            let CapsuleCmd { ch, sqe } = *capsule;
            let payload = payload(&layout);
            self.command = sqe;
            if header_bytes == rules.command_bytes() {
                self.expected_header = payload.map(|payload| (ch, payload));
            }
            self.consume(header_bytes);
            return Ok(Some(Pdu::Command(payload)));
        }
        let pdu = check.decode(&layout)?;
        self.consume(header_bytes);
        Ok(Some(pdu))
    }
}

/// The check of one header.
struct HeaderCheck<'a> {
    common: &'a CommonHeader,
    bytes: &'a [u8],
    rules: &'a Rules,
}

impl HeaderCheck<'_> {
    fn violation(&self, status: FatalError, information: u32) -> Box<Violation> {
        let shown = usize::from(self.common.hlen).max(size_of::<CommonHeader>());
        Violation::new(
            status,
            information,
            &self.bytes[..shown.min(self.bytes.len())],
        )
    }

    fn field(&self, offset: u32) -> Box<Violation> {
        self.violation(FatalError::INVALID_HEADER_FIELD, offset)
    }

    /// Checks type, order and lengths, which only need the common header.
    fn layout(&self) -> Result<PduLayout, Box<Violation>> {
        let kind = self.common.pdu_type;
        if !kind.is_from_host() {
            return Err(self.field(offset::PDU_TYPE));
        }
        let in_order = match self.rules.order {
            Order::Initialise => matches!(kind, PduType::IC_REQ | PduType::H2C_TERM_REQ),
            Order::Operate => kind != PduType::IC_REQ,
        };
        if !in_order {
            return Err(self.violation(FatalError::SEQUENCE_ERROR, 0));
        }
        // The CPDA of zero in the ICResp requires dword alignment (TCP 1.1 §3.6.2.3).
        let framing = self.rules.framing.dword_aligned();
        let layout = self.common.layout(framing);
        let layout = layout.map_err(|fault| self.field(fault.offset()))?;
        let limit = match kind {
            PduType::H2C_DATA => self.rules.host_data_bytes_max,
            _ => self.rules.in_capsule_bytes_max,
        };
        if layout.data_bytes > limit {
            return Err(self.violation(FatalError::DATA_LIMIT_EXCEEDED, 0));
        }
        Ok(layout)
    }

    fn header_digest(&self, layout: &PduLayout) -> Result<(), Box<Violation>> {
        if !layout.header_digest {
            return Ok(());
        }
        let header_bytes = usize::from(self.common.hlen);
        let found = &self.bytes[header_bytes..header_bytes + DIGEST_BYTES];
        if found == digest(&self.bytes[..header_bytes]) {
            return Ok(());
        }
        // FEI holds the digest that arrived (TCP 1.1 §3.6.2.5).
        let found = found
            .first_chunk()
            .map_or(0, |found| u32::from_le_bytes(*found));
        Err(self.violation(FatalError::HEADER_DIGEST_ERROR, found))
    }

    /// Decodes a complete header.
    fn decode(&self, layout: &PduLayout) -> Result<Pdu, Box<Violation>> {
        let short = || self.field(offset::HLEN);
        match self.common.pdu_type {
            PduType::IC_REQ => {
                let (request, _) = IcReq::read_from_prefix(self.bytes).map_err(|_| short())?;
                Ok(Pdu::Initialise(Box::new(request)))
            }
            PduType::H2C_DATA => {
                let (header, _) = H2cData::read_from_prefix(self.bytes).map_err(|_| short())?;
                match payload(layout) {
                    Some(payload) if header.datal.get() == payload.bytes => {
                        Ok(Pdu::HostData(header, payload))
                    }
                    _ => Err(self.field(offset::DATAL)),
                }
            }
            _ => {
                let (request, _) = TermReq::read_from_prefix(self.bytes).map_err(|_| short())?;
                Ok(Pdu::Terminate(request))
            }
        }
    }
}

fn payload(layout: &PduLayout) -> Option<Payload> {
    (layout.data_bytes > 0).then_some(Payload {
        bytes: layout.data_bytes,
        digest: layout.data_digest,
    })
}

#[cfg(test)]
mod tests;
