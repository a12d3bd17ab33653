//! The response to an ICReq (TCP 1.1 §3.1).
//!
//! A reactor initialises its connections itself. The acceptor's thread does it for hosts whose ICReq
//! is complete and acceptable, by the same rules, so that a storm of connects costs reactors less.

use nvme_spec::tcp::{
    DATA_ALIGNMENT_MAX_Z, DigestFlags, FatalError, Framing, IcReq, IcResp, PFV_1_0, PduType, offset,
};
use zerocopy::FromBytes as _;

use crate::config::DigestPolicy;
use crate::tls::{TlsPolicy, TlsRecords};

/// What a listener offers to the hosts that connect to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InitialisationTerms {
    /// Header digest.
    pub header_digest: DigestPolicy,
    /// Data digest.
    pub data_digest: DigestPolicy,
    /// Largest data of one H2CData PDU in bytes (MAXH2CDATA).
    pub host_data_bytes_max: u32,
    /// Whether its connections are protected by TLS.
    pub tls: TlsPolicy,
    /// What seals and opens the records then.
    pub tls_records: TlsRecords,
}

impl InitialisationTerms {
    /// The response to a well-formed request, and the framing that both sides use after it.
    ///
    /// # Errors
    /// The fatal error of the termination request, and the offset of the field in error.
    pub(crate) fn agree(&self, request: &IcReq) -> Result<(IcResp, Framing), (FatalError, u32)> {
        if request.pfv.get() != PFV_1_0 {
            return Err((FatalError::UNSUPPORTED_PARAMETER, offset::PFV));
        }
        if request.hpda_z > DATA_ALIGNMENT_MAX_Z {
            return Err((FatalError::INVALID_HEADER_FIELD, offset::PDA));
        }
        let (Some(header_digest), Some(data_digest)) = (
            choose_digest(self.header_digest, request.dgst.header()),
            choose_digest(self.data_digest, request.dgst.data()),
        ) else {
            return Err((FatalError::UNSUPPORTED_PARAMETER, offset::DGST));
        };
        let digests = DigestFlags::new()
            .with_header(header_digest)
            .with_data(data_digest);
        let framing = Framing {
            header_digest,
            data_digest,
            alignment_z: request.hpda_z,
        };
        Ok((IcResp::new(0, digests, self.host_data_bytes_max), framing))
    }

    /// The same for received bytes; `None` unless they are an ICReq without an error.
    pub(crate) fn agree_to_bytes(
        &self,
        bytes: &[u8; size_of::<IcReq>()],
    ) -> Option<(IcResp, Framing)> {
        let request = IcReq::ref_from_bytes(bytes).ok()?;
        let is_request = request.ch.pdu_type == PduType::IC_REQ;
        let is_whole = is_request && request.ch.layout(Framing::default()).is_ok();
        is_whole.then(|| self.agree(request).ok()).flatten()
    }
}

/// Whether a digest is used; `None` if the host's request is refused.
fn choose_digest(policy: DigestPolicy, asked: bool) -> Option<bool> {
    match (policy, asked) {
        (DigestPolicy::Off, _) => Some(false),
        (DigestPolicy::Allowed, asked) => Some(asked),
        (DigestPolicy::Required, true) => Some(true),
        (DigestPolicy::Required, false) => None,
    }
}
