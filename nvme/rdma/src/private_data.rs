//! Checks of the private data of a connection request (RDMA 1.1 §3).

use nvme_spec::fabrics::CNTLID_MAX;
use nvme_spec::rdma::{ConnectRequest, RECORD_FORMAT, RejectReason};
use nvme_target::{ADMIN_QUEUE_DEPTH_MAX_RDMA, IO_QUEUES_MAX};
use zerocopy::FromBytes;

/// Smallest number of entries of a submission queue (Base 2.1 §6.3).
const QUEUE_DEPTH_MIN: u32 = 2;
/// The controller identifier that stands for none. Zero means the same, for hosts of revisions in
/// which the field was reserved.
const CNTLID_NONE: u16 = 0xffff;

/// The queue parameters that a host requested, within the target's limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NegotiatedParameters {
    /// Queue identifier; 0 is the admin queue.
    pub(crate) qid: u16,
    /// Entries of the submission queue: capsules that the host may have outstanding.
    pub(crate) depth: u16,
    /// The controller of an I/O queue, if the host names it.
    pub(crate) cntlid: Option<u16>,
    /// Concurrent RDMA reads that the host serves, at least 1.
    pub(crate) reads: u8,
}

/// The limits for a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// Entries of an I/O queue at most.
    pub(crate) queue_depth_max: u16,
    /// Concurrent RDMA reads that the host serves, according to the connection manager.
    pub(crate) reads: u8,
}

/// Checks `data`, whose length is an upper bound of what the host sent.
pub(crate) fn negotiate(data: &[u8], terms: Terms) -> Result<NegotiatedParameters, RejectReason> {
    let Ok((request, _)) = ConnectRequest::read_from_prefix(data) else {
        return Err(RejectReason::INVALID_PRIVATE_DATA_LENGTH);
    };
    if request.recfmt.get() != RECORD_FORMAT {
        return Err(RejectReason::INVALID_RECORD_FORMAT);
    }
    let qid = request.qid.get();
    if qid > IO_QUEUES_MAX {
        return Err(RejectReason::INVALID_QUEUE_ID);
    }
    let depth_max = if qid == 0 {
        ADMIN_QUEUE_DEPTH_MAX_RDMA
    } else {
        terms.queue_depth_max
    };
    let depth = request.hsqsize();
    if !(QUEUE_DEPTH_MIN..=u32::from(depth_max)).contains(&depth) {
        return Err(RejectReason::INVALID_HSQSIZE);
    }
    // Each outstanding command needs a receive for its response.
    if u32::from(request.hrqsize.get()) < depth {
        return Err(RejectReason::INVALID_HRQSIZE);
    }
    let cntlid = match (qid, request.cntlid.get()) {
        (_, 0 | CNTLID_NONE) => None,
        (1.., cntlid) if cntlid <= CNTLID_MAX => Some(cntlid),
        // The association of an admin queue does not exist yet.
        _ => return Err(RejectReason::INVALID_CNTLID),
    };
    // The data of commands is fetched by reading host memory.
    if terms.reads == 0 {
        return Err(RejectReason::INVALID_IRD);
    }
    Ok(NegotiatedParameters {
        qid,
        // Not truncated: at most depth_max.
        depth: depth as u16,
        cntlid,
        reads: terms.reads,
    })
}

#[cfg(test)]
mod tests {
    use nvme_spec::U16;
    use proptest::prelude::*;
    use zerocopy::IntoBytes;

    use super::*;

    const TERMS: Terms = Terms {
        queue_depth_max: 128,
        reads: 16,
    };

    fn io() -> ConnectRequest {
        ConnectRequest::new(1, 128, 127, 1)
    }

    fn negotiation_of(request: ConnectRequest) -> Result<NegotiatedParameters, RejectReason> {
        negotiate(request.as_bytes(), TERMS)
    }

    #[test]
    fn a_right_request_is_granted() {
        let negotiated = NegotiatedParameters {
            qid: 1,
            depth: 128,
            cntlid: Some(1),
            reads: 16,
        };
        assert_eq!(negotiation_of(io()), Ok(negotiated));
        let mut padded = [0; 56];
        padded[..32].copy_from_slice(io().as_bytes());
        assert_eq!(negotiate(&padded, TERMS), Ok(negotiated));
        let admin = ConnectRequest::new(0, 32, 31, 0);
        let granted = negotiation_of(admin).expect("as the kernel's host asks");
        assert_eq!((granted.depth, granted.cntlid), (32, None));
    }

    #[test]
    fn too_little_private_data_is_rejected() {
        for len in 0..32 {
            let reason = RejectReason::INVALID_PRIVATE_DATA_LENGTH;
            assert_eq!(
                negotiate(&io().as_bytes()[..len], TERMS),
                Err(reason),
                "{len}"
            );
        }
    }

    #[test]
    fn each_wrong_field_has_its_reason() {
        let wrong = |change: fn(&mut ConnectRequest)| {
            let mut request = io();
            change(&mut request);
            negotiation_of(request).expect_err("a wrong field")
        };
        let format = wrong(|it| it.recfmt = U16::new(1));
        assert_eq!(format, RejectReason::INVALID_RECORD_FORMAT);
        let queue = wrong(|it| it.qid = U16::new(IO_QUEUES_MAX + 1));
        assert_eq!(queue, RejectReason::INVALID_QUEUE_ID);
        for size_z in [0, 128, u16::MAX] {
            let request = ConnectRequest::new(1, u16::MAX, size_z, 1);
            assert_eq!(negotiation_of(request), Err(RejectReason::INVALID_HSQSIZE));
        }
        let admin = ConnectRequest::new(0, u16::MAX, ADMIN_QUEUE_DEPTH_MAX_RDMA, 0);
        assert_eq!(negotiation_of(admin), Err(RejectReason::INVALID_HSQSIZE));
        let receives = wrong(|it| it.hrqsize = U16::new(127));
        assert_eq!(receives, RejectReason::INVALID_HRQSIZE);
        let controller = wrong(|it| it.cntlid = U16::new(CNTLID_MAX + 1));
        assert_eq!(controller, RejectReason::INVALID_CNTLID);
        let admin = ConnectRequest::new(0, 32, 31, 5);
        assert_eq!(negotiation_of(admin), Err(RejectReason::INVALID_CNTLID));
        let deaf = Terms { reads: 0, ..TERMS };
        let reads = negotiate(io().as_bytes(), deaf);
        assert_eq!(reads, Err(RejectReason::INVALID_IRD));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]

        #[test]
        fn granted_parameters_are_within_bounds(
            data in proptest::collection::vec(any::<u8>(), 0..64),
            narrow in proptest::collection::vec(0u8..3, 32),
        ) {
            for bytes in [&data, &narrow] {
                if let Ok(negotiated) = negotiate(bytes, TERMS) {
                    prop_assert!(negotiated.qid <= IO_QUEUES_MAX);
                    prop_assert!((2..=TERMS.queue_depth_max).contains(&negotiated.depth));
                    prop_assert!(negotiated.cntlid.is_none_or(|id| id <= CNTLID_MAX && negotiated.qid > 0));
                }
            }
        }
    }
}
