//! H2CData PDUs that violate a rule, and the required termination of the connection for each (TCP
//! 1.1 §3.6.2.8, §3.6.2.4).

use nvme_spec::U32;
use nvme_spec::tcp::{FatalError, Framing, H2cData, R2t};

use crate::random::Random;

/// The violated rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WrongData {
    /// DATAO does not continue the data.
    Offset,
    /// The PDU contains more data than the R2T requested.
    Excess,
    /// TTAG belongs to no R2T.
    Tag,
    /// CCCID belongs to another command.
    CommandId,
    /// LAST_PDU is set before the last PDU, or not set in it.
    Last,
    /// DATAL is not the length of the data.
    Length,
    /// Another PDU follows the one with LAST_PDU.
    AfterLast,
}

impl WrongData {
    /// A random rule.
    pub(super) fn pick(random: &mut Random) -> Self {
        random.pick(&[
            Self::Offset,
            Self::Excess,
            Self::Tag,
            Self::CommandId,
            Self::Last,
            Self::Length,
            Self::AfterLast,
        ])
    }

    /// Whether valid data is sent first, so that some of it may be written.
    pub(super) fn begins_well(self) -> bool {
        matches!(self, Self::AfterLast | Self::Excess)
    }

    /// The PDUs that respond to an R2T for `data`, in pieces of at most `piece_max` bytes, and the
    /// error for which the target must terminate the connection.
    pub(super) fn pdus<'d>(
        self,
        request: &R2t,
        data: &'d [u8],
        piece_max: usize,
        framing: Framing,
    ) -> (Vec<(H2cData, &'d [u8])>, FatalError) {
        let (cid, tag) = (request.cccid.get(), request.ttag.get());
        let begin = request.r2to.get();
        let first = data.len().min(piece_max);
        let is_last = first == data.len();
        let new = |cid, tag, offset, bytes: usize, last| {
            H2cData::new(cid, tag, offset, bytes as u32, last, framing)
        };
        let field = FatalError::INVALID_HEADER_FIELD;
        let header = new(cid, tag, begin, first, is_last);
        let piece = &data[..first];
        match self {
            Self::Excess if data.len() < piece_max && data.len() > 4 => {
                // All but the last four bytes are sent correctly, followed by eight bytes.
                let split = data.len() - 4;
                let header = new(cid, tag, begin, split, false);
                let excess = new(cid, tag, begin + split as u32, 8, true);
                let pdus = vec![(header, &data[..split]), (excess, &data[..8])];
                (pdus, FatalError::DATA_OUT_OF_RANGE)
            }
            Self::Offset | Self::Excess => {
                let header = new(cid, tag, begin + 4, first, is_last);
                (vec![(header, piece)], FatalError::DATA_OUT_OF_RANGE)
            }
            Self::Tag => {
                let header = new(cid, tag ^ 0x4000, begin, first, is_last);
                (vec![(header, piece)], field)
            }
            Self::CommandId => {
                let header = new(cid ^ 0x8000, tag, begin, first, is_last);
                (vec![(header, piece)], field)
            }
            Self::Last => {
                let header = new(cid, tag, begin, first, !is_last);
                (vec![(header, piece)], field)
            }
            Self::Length => {
                let mut header = header;
                header.datal = U32::new(header.datal.get() ^ 4);
                (vec![(header, piece)], field)
            }
            Self::AfterLast => {
                let mut pdus = Vec::new();
                let mut offset = 0;
                for piece in data.chunks(piece_max & !3) {
                    let end = offset + piece.len();
                    let last = end == data.len();
                    let header = new(cid, tag, begin + offset as u32, piece.len(), last);
                    pdus.push((header, piece));
                    offset = end;
                }
                pdus.push((header, piece));
                (pdus, field)
            }
        }
    }
}
