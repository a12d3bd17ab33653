//! The raw client: the PDUs that it builds are valid until a test damages them, and it receives
//! everything that a target sends.

#[expect(dead_code, reason = "the faults are another test's")]
#[path = "../../host/tests/fake/mod.rs"]
mod fake;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use fake::{BLOCK, FakeTarget, LIMIT, NQN, TargetBehavior};
use nvme_host_testing::HostSteps;
use nvme_host_testing::Names;
use nvme_host_testing::pdu::{Pdu, capsule, digest, fix_header_digest, h2c_data};
use nvme_host_testing::tcp::{RawClient, RawError, Received};
use nvme_spec::fabrics::{CNTLID_DYNAMIC, PropertySize};
use nvme_spec::tcp::{FatalError, Framing, PduType, TermReq};
use nvme_spec::{Sqe, Status};
use zerocopy::IntoBytes;

fn names() -> Names {
    Names {
        host: "nqn.2026-11.org.windlass:host".into(),
        host_id: [3; 16],
        subsystem: NQN.into(),
    }
}

const DIGESTS: Framing = Framing {
    header_digest: true,
    data_digest: true,
    alignment_z: 0,
};

#[test]
fn raw_client_opens_queues_and_runs_commands() {
    let target = FakeTarget::start(TargetBehavior {
        c2h_bytes: 300,
        ..TargetBehavior::default()
    });
    let mut admin = RawClient::connect(target.address, LIMIT).expect("connected");
    let cntlid = admin.open_admin(&names()).expect("ready");
    assert_eq!(cntlid, 5);
    assert_eq!(
        admin
            .get_property(0x1c, PropertySize::BYTES_4)
            .expect("CSTS")
            & 1,
        1
    );
    let mut io = RawClient::connect(target.address, LIMIT).expect("connected");
    io.open_io(&names(), cntlid, 1).expect("opened");
    let (cqe, _) = io
        .command(Sqe::write(1, 3, 0, false), &[0x42; BLOCK], 0)
        .expect("answered");
    assert!(cqe.status().is_success());
    let (cqe, data) = io
        .command(Sqe::read(1, 3, 0), &[], BLOCK as u32)
        .expect("answered");
    assert_eq!((cqe.status(), data), (Status::SUCCESS, vec![0x42; BLOCK]));
}

#[test]
fn r2ts_are_served_manually() {
    let target = FakeTarget::start(TargetBehavior {
        in_capsule_bytes: 0,
        ..TargetBehavior::default()
    });
    let mut io = RawClient::connect(target.address, LIMIT).expect("connected");
    io.initialize(true, true).expect("initialised");
    assert!(io.framing.header_digest && io.framing.data_digest);
    assert!(
        io.connect_queue(&names(), 5, 1, 31)
            .expect("answered")
            .status()
            .is_success()
    );
    let sgl = nvme_spec::sgl::SglDescriptor::transport(BLOCK as u32);
    let cid = io.next_cid();
    io.send_capsule(Sqe::write(1, 0, 0, false).with_cid(cid).with_sgl(sgl), &[])
        .expect("sent");
    let request = io.expect(PduType::R2T).expect("R2T").r2t().expect("R2T");
    assert_eq!(
        (request.cccid.get(), request.r2tl.get()),
        (cid, BLOCK as u32)
    );
    io.send_data(&request, 0, &[1; 256], false).expect("sent");
    io.send_data(&request, 256, &[2; 256], true).expect("sent");
    let done = io
        .expect(PduType::CAPSULE_RESP)
        .expect("a response")
        .completion()
        .expect("one");
    assert!(done.status().is_success());
    assert_eq!(
        target.memory.lock().expect("not poisoned")[255..257],
        [1, 2]
    );
}

#[test]
fn a_refused_connect_is_returned() {
    let target = FakeTarget::start(TargetBehavior::default());
    let stranger = Names {
        subsystem: "nqn.2026-11.org.windlass:no".into(),
        ..names()
    };
    let mut client = RawClient::connect(target.address, LIMIT).expect("connected");
    client.initialize(false, false).expect("initialised");
    let cqe = client
        .connect_queue(&stranger, CNTLID_DYNAMIC, 0, 31)
        .expect("answered");
    assert_eq!(cqe.status().code(), Status::CONNECT_INVALID_PARAMETERS);
    assert!(cqe.connect_invalid_parameters().in_data());
    let mut client = RawClient::connect(target.address, LIMIT).expect("connected");
    assert!(matches!(
        client.open_admin(&stranger),
        Err(RawError::Refused(_))
    ));
}

/// A peer that sends `bytes` and then closes after the client.
fn sender(bytes: Vec<u8>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let address = listener.local_addr().expect("bound");
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a client");
        stream.write_all(&bytes).expect("taken");
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let _ = stream.read(&mut [0; 1]);
    });
    address
}

#[test]
fn closes_and_termination_requests_are_received() {
    let request = TermReq::from_controller(FatalError::SEQUENCE_ERROR, 5, 3);
    let bytes = [request.as_bytes(), &[7, 8, 9]].concat();
    let mut client = RawClient::connect(sender(bytes.clone()), LIMIT).expect("connected");
    let pdu = client
        .expect_close()
        .expect("closed")
        .expect("a termination request");
    let expected = (FatalError::SEQUENCE_ERROR, 5, &[7_u8, 8, 9][..]);
    assert_eq!(pdu.termination(), Some(expected));
    let mut client = RawClient::connect(sender(bytes), LIMIT).expect("connected");
    assert!(matches!(
        client.expect(PduType::R2T),
        Err(RawError::Unexpected { .. })
    ));
    let mut client = RawClient::connect(sender(vec![]), LIMIT).expect("connected");
    assert_eq!(client.receive().expect("the end"), Received::Closed);
    let mut client =
        RawClient::connect(sender(vec![5, 0, 24, 0, 24, 0, 0, 0, 1]), LIMIT).expect("connected");
    assert!(
        matches!(client.receive(), Err(RawError::Malformed(_))),
        "cut short"
    );
    let mut client = RawClient::connect(sender(vec![0xff; 64]), LIMIT).expect("connected");
    assert!(
        matches!(client.receive(), Err(RawError::Malformed(_))),
        "4 GiB announced"
    );
}

#[test]
fn a_silent_peer_times_out() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let address = listener.local_addr().expect("bound");
    let mut client = RawClient::connect(address, Duration::from_millis(100)).expect("connected");
    assert!(matches!(client.receive(), Err(RawError::TimedOut(_))));
    assert!(matches!(
        client.initialize(false, false),
        Err(RawError::TimedOut(_))
    ));
}

/// Whether the digests announced by the flags are correct; true if none is announced.
fn digests_match(pdu: &Pdu) -> bool {
    let common = pdu.common();
    let (header, rest) = pdu.bytes.split_at(usize::from(common.hlen));
    let header_right = !common.flags.hdgstf() || rest.first_chunk() == Some(&digest(header));
    let data_right = !common.flags.ddgstf()
        || pdu
            .bytes
            .split_last_chunk()
            .is_some_and(|(rest, found)| digest(&rest[usize::from(common.pdo)..]) == *found);
    header_right && data_right
}

#[test]
fn built_pdus_are_valid_and_damage_is_detected() {
    for framing in [
        Framing::default(),
        DIGESTS,
        Framing {
            alignment_z: 31,
            ..DIGESTS
        },
    ] {
        for bytes in [
            capsule(Sqe::read(1, 0, 0), &[], framing),
            capsule(Sqe::write(1, 0, 0, false), &[5; 512], framing),
            h2c_data((1, 2), 0, &[5; 100], true, framing),
        ] {
            let pdu = Pdu { bytes };
            assert_eq!(pdu.common().plen.get() as usize, pdu.bytes.len());
            assert!(digests_match(&pdu));
            if framing.header_digest {
                let mut damaged = pdu.clone();
                damaged.bytes[10] ^= 1;
                assert!(!digests_match(&damaged), "header");
                fix_header_digest(&mut damaged.bytes);
                assert!(digests_match(&damaged), "header digest computed anew");
                let mut damaged = pdu.clone();
                if let Some(last) = damaged.bytes.last_mut() {
                    *last ^= 1;
                }
                assert!(!digests_match(&damaged), "the last digest");
            }
        }
    }
}
