//! The termination request that the controller sends after a protocol violation (TCP 1.1 §3.6.2.5).

use arrayvec::ArrayVec;
use nvme_spec::tcp::{TERM_PDU_MAX_BYTES, TermReq};
use zerocopy::IntoBytes;

use crate::receive::Violation;

/// The C2HTermReq for `violation`: status, offset of the field, and the header in error.
pub(crate) fn termination_request(violation: &Violation) -> ArrayVec<u8, TERM_PDU_MAX_BYTES> {
    let Violation {
        status,
        information,
        header,
    } = violation;
    let request = TermReq::from_controller(*status, *information, header.len());
    request.as_bytes().iter().chain(header).copied().collect()
}
