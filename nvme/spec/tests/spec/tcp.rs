//! NVMe/TCP PDUs: headers byte by byte, layout with digests and alignment, headers of a hostile
//! peer.

use nvme_spec::command::CommandDwords;
use nvme_spec::tcp::*;
use nvme_spec::{Cqe, Sqe, Status, U32};
use proptest::prelude::*;
use zerocopy::{FromBytes, IntoBytes};

const PLAIN: Framing = Framing {
    header_digest: false,
    data_digest: false,
    alignment_z: 0,
};
const DIGESTS: Framing = Framing {
    header_digest: true,
    data_digest: true,
    alignment_z: 0,
};

#[test]
fn initialize_connection_wire_forms() {
    let request = IcReq::new(3, DigestFlags::new().with_header(true).with_data(true), 15);
    let mut expected = [0; 128];
    expected[..16].copy_from_slice(&[0, 0, 128, 0, 128, 0, 0, 0, 0, 0, 3, 3, 15, 0, 0, 0]);
    assert_eq!(request.as_bytes(), expected);
    assert_eq!(request.maxr2t(), 16);
    assert_eq!(
        IcReq::new(0, DigestFlags::new(), u32::MAX).maxr2t(),
        1 << 32
    );

    let response = IcResp::new(0, DigestFlags::new().with_data(true), 0x0002_0000);
    expected[..16].copy_from_slice(&[1, 0, 128, 0, 128, 0, 0, 0, 0, 0, 0, 2, 0, 0, 2, 0]);
    assert_eq!(response.as_bytes(), expected);
}

#[test]
fn termination_request_wire_forms() {
    let request = TermReq::from_controller(FatalError::INVALID_HEADER_FIELD, offset::HLEN, 72);
    let mut expected = [0; 24];
    expected[..14].copy_from_slice(&[3, 0, 24, 0, 96, 0, 0, 0, 1, 0, 2, 0, 0, 0]);
    assert_eq!(request.as_bytes(), expected);
    assert_eq!(request.fatal_error(), FatalError::INVALID_HEADER_FIELD);

    let cut = TermReq::from_host(FatalError::HEADER_DIGEST_ERROR, 0xdead_beef, 4096);
    assert_eq!(cut.ch.pdu_type, PduType::H2C_TERM_REQ);
    assert_eq!(cut.ch.plen.get() as usize, TERM_PDU_MAX_BYTES);
    assert_eq!(cut.ch.plen.get(), 152);
    assert_eq!(cut.as_bytes()[10..14], [0xef, 0xbe, 0xad, 0xde]);
}

#[test]
fn capsule_wire_forms() {
    let sqe = Sqe::new(2, 1);
    let command = CapsuleCmd::new(sqe, 0, PLAIN);
    assert_eq!(command.as_bytes()[..8], [4, 0, 72, 0, 72, 0, 0, 0]);
    let with_data = CapsuleCmd::new(sqe, 4096, PLAIN);
    assert_eq!(with_data.as_bytes()[..8], [4, 0, 72, 72, 0x48, 0x10, 0, 0]);
    let with_digests = CapsuleCmd::new(sqe, 4096, DIGESTS);
    assert_eq!(
        with_digests.as_bytes()[..8],
        [4, 3, 72, 76, 0x50, 0x10, 0, 0]
    );
    // Without data there is no data digest.
    assert_eq!(
        CapsuleCmd::new(sqe, 0, DIGESTS).as_bytes()[..8],
        [4, 1, 72, 0, 76, 0, 0, 0]
    );

    let cqe = Cqe::new(5, Status::SUCCESS);
    let response = CapsuleResp::new(cqe, PLAIN);
    assert_eq!(response.as_bytes()[..8], [5, 0, 24, 0, 24, 0, 0, 0]);
    assert_eq!(
        CapsuleResp::new(cqe, DIGESTS).as_bytes()[..8],
        [5, 1, 24, 0, 28, 0, 0, 0]
    );
}

#[test]
fn data_pdu_wire_forms() {
    let h2c = H2cData::new(0x0102, 0x0304, 0x1000, 0x2000, true, PLAIN);
    let expected = [
        6, 4, 24, 24, 0x18, 0x20, 0, 0, 2, 1, 4, 3, 0, 0x10, 0, 0, 0, 0x20, 0, 0, 0, 0, 0, 0,
    ];
    assert_eq!(h2c.as_bytes(), expected);

    let c2h = C2hData::new(0x0102, 0, 512, C2hEnd::Success, DIGESTS);
    let expected = [
        7, 0x0f, 24, 28, 0x20, 2, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0,
    ];
    assert_eq!(c2h.as_bytes(), expected);
    for framing in [PLAIN, DIGESTS] {
        let one = C2hData::new(0, 0, 1, C2hEnd::Success, framing);
        let whole = C2hData::new(7, 0, 65_536, C2hEnd::Success, framing);
        assert_eq!(one.for_command(7, 65_536), whole);
    }
    let flags = |end| C2hData::new(0, 0, 1, end, PLAIN).ch.flags;
    assert_eq!(flags(C2hEnd::More), PduFlags::new());
    assert_eq!(flags(C2hEnd::Last), PduFlags::LAST_PDU);
    assert_eq!(
        flags(C2hEnd::Success),
        PduFlags::LAST_PDU.union(PduFlags::SUCCESS)
    );

    let r2t = R2t::new(0x0102, 0x0304, 0x1000, 0x2000, DIGESTS);
    let expected = [
        9, 1, 24, 0, 28, 0, 0, 0, 2, 1, 4, 3, 0, 0x10, 0, 0, 0, 0x20, 0, 0, 0, 0, 0, 0,
    ];
    assert_eq!(r2t.as_bytes(), expected);
}

#[test]
fn alignment_shifts_the_data_offset() {
    let framing = |header_digest, alignment_z| Framing {
        header_digest,
        data_digest: false,
        alignment_z,
    };
    assert_eq!(framing(false, 0).data_offset(24), 24);
    assert_eq!(framing(true, 0).data_offset(24), 28);
    assert_eq!(framing(true, 1).data_offset(24), 32);
    assert_eq!(framing(false, 7).data_offset(24), 32);
    assert_eq!(framing(false, 15).data_offset(72), 128);
    assert_eq!(framing(true, DATA_ALIGNMENT_MAX_Z).data_offset(72), 128);
    assert_eq!(framing(false, DATA_ALIGNMENT_MAX_Z).alignment_bytes(), 128);
}

#[test]
fn pdu_flags() {
    let all = PduFlags::HDGSTF.union(PduFlags::DDGSTF);
    assert!(all.contains(PduFlags::DDGSTF));
    assert!(!PduFlags::DDGSTF.contains(all));
    assert_eq!(PduType::CAPSULE_RESP.valid_flags(), PduFlags::HDGSTF);
    assert_eq!(PduType::R2T.valid_flags(), PduFlags::HDGSTF);
    assert_eq!(PduType::CAPSULE_CMD.valid_flags(), all);
    assert_eq!(
        PduType::H2C_DATA.valid_flags(),
        all.union(PduFlags::LAST_PDU)
    );
    let c2h = all.union(PduFlags::LAST_PDU).union(PduFlags::SUCCESS);
    assert_eq!(PduType::C2H_DATA.valid_flags(), c2h);
    assert_eq!(PduType::IC_REQ.valid_flags(), PduFlags::new());
    assert_eq!(PduType(0xfe).valid_flags(), PduFlags::new());
}

#[test]
fn pdu_types() {
    let table = [
        (PduType::IC_REQ, 128, true),
        (PduType::IC_RESP, 128, false),
        (PduType::H2C_TERM_REQ, 24, true),
        (PduType::C2H_TERM_REQ, 24, false),
        (PduType::CAPSULE_CMD, 72, true),
        (PduType::CAPSULE_RESP, 24, false),
        (PduType::H2C_DATA, 24, true),
        (PduType::C2H_DATA, 24, false),
        (PduType::R2T, 24, false),
    ];
    for (pdu_type, header, host) in table {
        assert_eq!(pdu_type.header_bytes(), Some(header), "{pdu_type}");
        assert_eq!(pdu_type.is_from_host(), host, "{pdu_type}");
        assert_eq!(
            pdu_type.may_have_digest(),
            pdu_type.valid_flags().contains(PduFlags::HDGSTF),
            "{pdu_type}"
        );
        assert_eq!(
            pdu_type.may_have_data(),
            pdu_type.valid_flags().contains(PduFlags::DDGSTF),
            "{pdu_type}"
        );
        assert!(usize::from(header) <= HEADER_MAX_BYTES);
    }
    assert_eq!(PduType(0x08).header_bytes(), None);
    assert_eq!(PduType(0xff).header_bytes(), None);
}

#[test]
fn an_inconsistent_header_reports_the_field() {
    let header = |pdu_type, hlen, pdo, plen, flags| CommonHeader {
        pdu_type,
        flags,
        hlen,
        pdo,
        plen: U32::new(plen),
    };
    let none = PduFlags::new();
    let data = |hlen, pdo, plen| header(PduType::C2H_DATA, hlen, pdo, plen, none).layout(PLAIN);
    assert_eq!(data(23, 24, 28), Err(HeaderError::HeaderLength));
    // Shorter than its own header, or without data.
    assert_eq!(data(24, 24, 8), Err(HeaderError::PduLength));
    assert_eq!(data(24, 24, 24), Err(HeaderError::PduLength));
    // Data that begins inside the header, between two dwords, or after the end.
    assert_eq!(data(24, 8, 512), Err(HeaderError::DataOffset));
    assert_eq!(data(24, 26, 512), Err(HeaderError::DataOffset));
    assert_eq!(data(24, 200, 100), Err(HeaderError::PduLength));
    let longest = data(24, 24, u32::MAX).expect("no contradiction");
    assert_eq!(
        (longest.header_bytes, longest.data_bytes),
        (24, u32::MAX - 24)
    );

    // Digests other than negotiated, and no room for one.
    let digested = |plen, flags| header(PduType::C2H_DATA, 24, 28, plen, flags).layout(DIGESTS);
    let both = PduFlags::HDGSTF.union(PduFlags::DDGSTF);
    assert_eq!(digested(100, PduFlags::HDGSTF), Err(HeaderError::Flags));
    assert_eq!(digested(100, PduFlags::DDGSTF), Err(HeaderError::Flags));
    assert_eq!(digested(30, both), Err(HeaderError::PduLength));
    assert_eq!(digested(32, both), Err(HeaderError::PduLength));
    assert_eq!(digested(33, both).map(|layout| layout.data_bytes), Ok(1));

    // Types that never carry data.
    let response = |plen, flags| header(PduType::CAPSULE_RESP, 24, 0, plen, flags);
    assert_eq!(
        response(24, none).layout(PLAIN).map(|it| it.data_bytes),
        Ok(0)
    );
    assert_eq!(
        response(28, none).layout(PLAIN),
        Err(HeaderError::PduLength)
    );
    assert_eq!(response(28, none).layout(DIGESTS), Err(HeaderError::Flags));
    let response_layout = response(28, PduFlags::HDGSTF).layout(DIGESTS);
    assert_eq!(
        response_layout.map(|it| (it.header_bytes, it.header_digest)),
        Ok((28, true))
    );
    let initialise = header(PduType::IC_RESP, 128, 0, 129, none);
    assert_eq!(initialise.layout(DIGESTS), Err(HeaderError::PduLength));
    // A termination request is accepted with any header that it contains.
    let end = header(PduType::C2H_TERM_REQ, 24, 0, 152, none);
    assert_eq!(end.layout(DIGESTS).map(|it| it.header_bytes), Ok(24));

    let unknown = header(PduType(0x08), 24, 0, 24, none).layout(PLAIN);
    assert_eq!(unknown, Err(HeaderError::PduType));
    let fields = [
        (HeaderError::PduType, 0),
        (HeaderError::Flags, 1),
        (HeaderError::HeaderLength, 2),
        (HeaderError::DataOffset, 3),
        (HeaderError::PduLength, 4),
    ];
    for (fault, offset) in fields {
        assert_eq!(fault.offset(), offset);
    }
}

fn framings() -> impl Strategy<Value = Framing> {
    (any::<bool>(), any::<bool>(), 0..=DATA_ALIGNMENT_MAX_Z).prop_map(
        |(header_digest, data_digest, alignment_z)| Framing {
            header_digest,
            data_digest,
            alignment_z,
        },
    )
}

proptest! {
    /// The receiver finds as many bytes of data as the sender put in, at an aligned offset.
    #[test]
    fn both_sides_compute_the_same_layout(
        framing in framings(),
        data_bytes in 0..=PDU_DATA_MAX_BYTES,
    ) {
        for pdu_type in [PduType::CAPSULE_CMD, PduType::H2C_DATA, PduType::C2H_DATA] {
            let hlen = pdu_type.header_bytes().unwrap();
            let header = framing.header(pdu_type, hlen, data_bytes);
            prop_assert!(pdu_type.valid_flags().contains(header.flags));
            if data_bytes == 0 && pdu_type.must_have_data() {
                prop_assert_eq!(header.layout(framing), Err(HeaderError::PduLength));
                continue;
            }
            let layout = header.layout(framing).unwrap();
            prop_assert_eq!(layout.data_bytes, data_bytes);
            prop_assert_eq!(layout.header_digest, framing.header_digest);
            let bare = u32::from(hlen) + if framing.header_digest { 4 } else { 0 };
            if data_bytes == 0 {
                prop_assert_eq!((layout.header_bytes, layout.data_digest), (bare, false));
                continue;
            }
            prop_assert_eq!(layout.data_digest, framing.data_digest);
            prop_assert_eq!(layout.header_bytes, u32::from(header.pdo));
            prop_assert_eq!(layout.header_bytes % framing.alignment_bytes(), 0);
            prop_assert!(layout.header_bytes - bare < framing.alignment_bytes());
            let digest = if framing.data_digest { 4 } else { 0 };
            prop_assert_eq!(header.plen.get(), layout.header_bytes + data_bytes + digest);
        }
    }

    #[test]
    fn arbitrary_headers(raw: [u8; 8], framing in framings()) {
        let header = CommonHeader::read_from_bytes(&raw).unwrap();
        if let Ok(layout) = header.layout(framing)
            && !header.pdu_type.is_termination()
        {
            let digest = if layout.data_digest { 4 } else { 0 };
            let whole = u64::from(layout.header_bytes) + u64::from(layout.data_bytes) + digest;
            prop_assert_eq!(whole, u64::from(header.plen.get()));
        }
        let _ = (header.pdu_type.header_bytes(), header.pdu_type.valid_flags());
        let _ = format!("{header:?} {}", header.pdu_type);
        prop_assert_eq!(header.as_bytes(), raw);
    }

    #[test]
    fn arbitrary_pdus(raw in proptest::collection::vec(any::<u8>(), 128)) {
        let _ = format!("{:?}", IcReq::read_from_prefix(&raw).unwrap().0.maxr2t());
        let _ = format!("{:?}", IcResp::read_from_prefix(&raw).unwrap());
        let _ = format!("{}", TermReq::read_from_prefix(&raw).unwrap().0.fatal_error());
        let _ = format!("{:?}", CapsuleCmd::read_from_prefix(&raw).unwrap());
        let _ = format!("{:?}", CapsuleResp::read_from_prefix(&raw).unwrap());
        let _ = format!("{:?}", H2cData::read_from_prefix(&raw).unwrap());
        let _ = format!("{:?}", C2hData::read_from_prefix(&raw).unwrap());
        let _ = format!("{:?}", R2t::read_from_prefix(&raw).unwrap());
    }

    #[test]
    fn pdu_builder_arguments_round_trip(
        framing in framings(),
        dwords: [u32; 6],
        cccid: u16,
        ttag: u16,
        at: u32,
        length in 1..=PDU_DATA_MAX_BYTES,
        last: bool,
    ) {
        let h2c = H2cData::new(cccid, ttag, at, length, last, framing);
        let seen = (h2c.cccid.get(), h2c.ttag.get(), h2c.datao.get(), h2c.datal.get());
        prop_assert_eq!(seen, (cccid, ttag, at, length));
        prop_assert_eq!(h2c.ch.flags.last_pdu(), last);
        prop_assert_eq!(h2c.ch.layout(framing).map(|it| it.data_bytes), Ok(length));

        let r2t = R2t::new(cccid, ttag, at, length, framing);
        let seen = (r2t.cccid.get(), r2t.ttag.get(), r2t.r2to.get(), r2t.r2tl.get());
        prop_assert_eq!(seen, (cccid, ttag, at, length));
        prop_assert_eq!(r2t.ch.layout(framing).map(|it| it.data_bytes), Ok(0));

        let mut sqe = Sqe::new(1, 2).with_cid(cccid);
        sqe.specific = CommandDwords {
            cdw10: dwords[0].into(),
            cdw11: dwords[1].into(),
            cdw12: dwords[2].into(),
            cdw13: dwords[3].into(),
            cdw14: dwords[4].into(),
            cdw15: dwords[5].into(),
        };
        prop_assert_eq!(CapsuleCmd::new(sqe, length, framing).sqe, sqe);
    }
}
