//! Invalid input over TCP (`SECURITY.md`): each test sends an error over a real socket and checks
//! the exact response, and that a second connection still works.

use crate::harness::{
    Attached, BLOCK_BYTES, NAMESPACE_BYTES, STRANGER, Server, Setup, attach, names,
};
use nvme_host_testing::HostSteps;
use nvme_host_testing::Names;
use nvme_host_testing::pdu::{capsule, h2c_data};
use nvme_host_testing::tcp::{RawClient, Received};
use nvme_spec::fabrics::CNTLID_DYNAMIC;
use nvme_spec::sgl::SglDescriptor;
use nvme_spec::tcp::{CommonHeader, DigestFlags, FatalError, IcReq, PduType, offset};
use nvme_spec::{Sqe, Status};
use nvme_tcp::{DigestPolicy, PortSettings, TcpConfig};
use reactors::Nanos;
use zerocopy::IntoBytes;

/// Runs `attack` on the bytes of a new, initialised connection. A second host must not be affected.
fn beside_a_witness(attack: impl FnOnce(&Server)) {
    let server = Server::start(Setup::default());
    let mut witness = attach(&server);
    witness.check_io(7, 0x11);
    attack(&server);
    witness.check_io(7, 0x22);
    drop(witness);
    server.stop();
}

fn initialised(server: &Server, header_digest: bool, data_digest: bool) -> RawClient {
    let mut client = server.client();
    client
        .initialize(header_digest, data_digest)
        .expect("an ICResp");
    client
}

/// The connection must end with this termination request.
#[track_caller]
fn expect_termination(client: &mut RawClient, status: FatalError, information: u32) -> Vec<u8> {
    let pdu = client
        .expect_close()
        .expect("the target closes")
        .expect("it says why");
    let (found, at, header) = pdu.termination().expect("a C2HTermReq");
    assert_eq!((found, at), (status, information));
    header.to_vec()
}

#[test]
fn garbage_as_the_first_bytes_is_refused_at_the_type() {
    beside_a_witness(|server| {
        let mut client = server.client();
        client
            .send(b"GET / HTTP/1.1\r\nHost: storage\r\n\r\n")
            .expect("sent");
        expect_termination(
            &mut client,
            FatalError::INVALID_HEADER_FIELD,
            offset::PDU_TYPE,
        );
        assert_eq!(server.count(|counters| counters.violations.get()), 1);
    });
}

#[test]
fn a_command_before_initialisation_is_a_sequence_error() {
    beside_a_witness(|server| {
        let mut client = server.client();
        client.send_capsule(Sqe::keep_alive(), &[]).expect("sent");
        let header = expect_termination(&mut client, FatalError::SEQUENCE_ERROR, 0);
        assert_eq!(header[0], PduType::CAPSULE_CMD.0);
    });
}

#[test]
fn initialising_twice_is_a_sequence_error() {
    beside_a_witness(|server| {
        let mut client = initialised(server, false, false);
        client
            .send(IcReq::new(0, DigestFlags::new(), 0).as_bytes())
            .expect("sent");
        expect_termination(&mut client, FatalError::SEQUENCE_ERROR, 0);
    });
}

#[test]
fn an_initialisation_of_another_version_or_alignment_is_refused_at_the_field() {
    beside_a_witness(|server| {
        let mut client = server.client();
        let mut request = IcReq::new(0, DigestFlags::new(), 0);
        request.pfv.set(1);
        client.send(request.as_bytes()).expect("sent");
        expect_termination(&mut client, FatalError::UNSUPPORTED_PARAMETER, offset::PFV);
        let mut client = server.client();
        client
            .send(IcReq::new(32, DigestFlags::new(), 0).as_bytes())
            .expect("sent");
        expect_termination(&mut client, FatalError::INVALID_HEADER_FIELD, offset::PDA);
    });
}

#[test]
fn a_truncated_pdu_closes_the_connection() {
    beside_a_witness(|server| {
        let before = server.count(|counters| counters.connections.get());
        let mut client = initialised(server, false, false);
        let whole = capsule(Sqe::keep_alive(), &[], client.framing);
        client.send(&whole[..40]).expect("sent");
        client.finish_sending().expect("half closed");
        assert!(client.expect_close().expect("the target closes").is_none());
        server.await_that("the connection is gone", |server| {
            server.count(|counters| counters.connections.get()) == before
        });
    });
}

#[test]
fn a_pdu_of_another_length_than_its_type_has_is_refused_at_plen() {
    beside_a_witness(|server| {
        for plen in [0_u32, 71, 76] {
            let mut client = initialised(server, false, false);
            let mut bytes = capsule(Sqe::keep_alive(), &[], client.framing);
            bytes[4..8].copy_from_slice(&plen.to_le_bytes());
            // A data offset of 72 permits data, so that only the length is wrong.
            bytes[3] = 76;
            client.send(&bytes).expect("sent");
            expect_termination(&mut client, FatalError::INVALID_HEADER_FIELD, offset::PLEN);
        }
    });
}

#[test]
fn a_pdu_longer_than_announced_is_beyond_the_limit() {
    beside_a_witness(|server| {
        let mut client = initialised(server, false, false);
        // An admin queue takes 8,192 bytes in a capsule (TCP 1.1 §3.3.1).
        let bytes = capsule(Sqe::keep_alive(), &[0; 8196], client.framing);
        client.send(&bytes).expect("sent");
        expect_termination(&mut client, FatalError::DATA_LIMIT_EXCEEDED, 0);

        let mut second = attach_second(server);
        let bytes = capsule(Sqe::write(1, 0, 15, false), &[0; 8192], second.io.framing);
        second.io.send(&bytes).expect("sent");
        expect_termination(&mut second.io, FatalError::DATA_LIMIT_EXCEEDED, 0);
    });
}

/// A second association beside the witness's.
fn attach_second(server: &Server) -> Attached {
    attach(server)
}

#[test]
fn a_wrong_header_digest_is_fatal_and_quotes_the_digest() {
    beside_a_witness(|server| {
        let mut client = initialised(server, true, false);
        let mut bytes = capsule(Sqe::keep_alive(), &[], client.framing);
        bytes[74] ^= 0x40;
        let received_digest = u32::from_le_bytes(bytes[72..76].try_into().expect("four bytes"));
        client.send(&bytes).expect("sent");
        expect_termination(
            &mut client,
            FatalError::HEADER_DIGEST_ERROR,
            received_digest,
        );
        assert_eq!(
            server.count(|counters| counters.header_digest_errors.get()),
            1
        );
    });
}

/// An admin connection, and an I/O queue whose data has digests.
fn attached_with_data_digests(server: &Server) -> (RawClient, RawClient) {
    let mut admin = server.client();
    let cntlid = admin
        .open_admin(&names())
        .expect("the export takes the host");
    let mut io = initialised(server, false, true);
    let connected = io
        .connect_queue(&names(), cntlid, 1, 31)
        .expect("a response");
    assert_eq!(connected.status(), Status::SUCCESS);
    (admin, io)
}

#[test]
fn a_wrong_data_digest_fails_the_command_alone() {
    beside_a_witness(|server| {
        let (_admin, mut io) = attached_with_data_digests(server);
        let sqe = Sqe::write(1, 0, 0, false)
            .with_cid(9)
            .with_sgl(SglDescriptor::in_capsule(0, 512));
        let mut bytes = capsule(sqe, &[0xab; 512], io.framing);
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        io.send(&bytes).expect("sent");
        let pdu = io.expect(PduType::CAPSULE_RESP).expect("a response");
        let completion = pdu.completion().expect("a completion");
        assert_eq!(completion.cid.get(), 9);
        assert!(completion.status().is(Status::TRANSIENT_TRANSPORT_ERROR));
        assert!(!completion.status().dnr(), "a retry may well succeed");
        assert_eq!(
            server.count(|counters| counters.data_digest_errors.get()),
            1
        );
        // The block is unchanged, and the connection still works.
        let (cqe, found) = io
            .command(Sqe::read(1, 0, 0), &[], 512)
            .expect("a response");
        assert_eq!(cqe.status(), Status::SUCCESS);
        assert_eq!(found, [0; 512]);
    });
}

/// Sends a write of 8 KiB that needs an R2T, and returns the R2T.
fn solicit(io: &mut RawClient) -> nvme_spec::tcp::R2t {
    let sqe = Sqe::write(1, 0, 15, false)
        .with_cid(5)
        .with_sgl(SglDescriptor::transport(8192));
    io.send_capsule(sqe, &[]).expect("sent");
    io.expect(PduType::R2T)
        .expect("an R2T")
        .r2t()
        .expect("an R2T")
}

/// Two writes with one command identifier: TTAG identifies the request of the data (TCP 1.1
/// §3.6.2.8), so each write gets its own data and completes.
#[test]
fn data_is_matched_to_its_write_by_transfer_tag() {
    beside_a_witness(|server| {
        let mut host = attach_second(server);
        let io = &mut host.io;
        for (lba, blocks) in [(0, 16_u16), (32, 8)] {
            let bytes = u32::from(blocks) * 512;
            let sqe = Sqe::write(1, lba, blocks - 1, false).with_cid(5);
            let sqe = sqe.with_sgl(SglDescriptor::transport(bytes));
            io.send_capsule(sqe, &[]).expect("sent");
        }
        let requests = [(); 2].map(|()| {
            let request = io.expect(PduType::R2T).expect("an R2T");
            request.r2t().expect("an R2T")
        });
        let [first, second] = requests.map(|it| (it.cccid.get(), it.ttag.get()));
        assert_eq!((first.0, second.0), (5, 5));
        assert_ne!(first.1, second.1);
        assert_eq!(requests.map(|it| it.r2tl.get()), [8192, 4096]);
        // The second write's data is sent first.
        io.send_data(&requests[1], 0, &[0xB2; 4096], true)
            .expect("sent");
        io.send_data(&requests[0], 0, &[0xA1; 8192], true)
            .expect("sent");
        for _ in requests {
            let pdu = io.expect(PduType::CAPSULE_RESP).expect("a response");
            let completion = pdu.completion().expect("a completion");
            assert_eq!(completion.cid.get(), 5);
            assert_eq!(completion.status(), Status::SUCCESS);
        }
        for (lba, blocks, byte) in [(8, 8_u16, 0xA1), (32, 8, 0xB2)] {
            let bytes = usize::from(blocks) * 512;
            let read = io.command(Sqe::read(1, lba, blocks - 1), &[], bytes as u32);
            let (cqe, found) = read.expect("a response");
            assert_eq!(cqe.status(), Status::SUCCESS);
            assert_eq!(found, vec![byte; bytes], "block {lba}");
        }
    });
}

/// Solicited data without a digest is received directly into a RAM device; data with one is not.
#[test]
fn solicited_data_with_a_wrong_digest_changes_no_block() {
    beside_a_witness(|server| {
        let (_admin, mut io) = attached_with_data_digests(server);
        let tag = solicit(&mut io).ttag.get();
        // The first half is valid, the second is not.
        let first = h2c_data((5, tag), 0, &[0xab; 4096], false, io.framing);
        let mut second = h2c_data((5, tag), 4096, &[0xab; 4096], true, io.framing);
        let last = second.len() - 1;
        second[last] ^= 1;
        io.send(&first).expect("sent");
        io.send(&second).expect("sent");
        let pdu = io.expect(PduType::CAPSULE_RESP).expect("a response");
        let completion = pdu.completion().expect("a completion");
        assert!(completion.status().is(Status::TRANSIENT_TRANSPORT_ERROR));
        let (cqe, found) = io
            .command(Sqe::read(1, 0, 15), &[], 8192)
            .expect("a response");
        assert_eq!(cqe.status(), Status::SUCCESS);
        // The witness writes to one of the blocks.
        let first = found.iter().position(|byte| *byte == 0xab);
        assert_eq!((found.len(), first), (8192, None));
    });
}

#[test]
fn an_offset_that_does_not_match_the_r2t_is_out_of_range() {
    beside_a_witness(|server| {
        for (begin, bytes) in [(512_u32, 8192 - 512), (8192, 512), (0, 8192 + 512)] {
            let mut host = attach_second(server);
            let request = solicit(&mut host.io);
            assert_eq!((request.r2to.get(), request.r2tl.get()), (0, 8192));
            let data = vec![1; bytes];
            host.io
                .send_data(&request, begin, &data, true)
                .expect("sent");
            expect_termination(&mut host.io, FatalError::DATA_OUT_OF_RANGE, 0);
        }
    });
}

#[test]
fn data_for_an_unknown_tag_or_another_command_is_refused_at_the_field() {
    beside_a_witness(|server| {
        let mut host = attach_second(server);
        let request = solicit(&mut host.io);
        let (cid, tag) = (request.cccid.get(), request.ttag.get());
        let bytes = h2c_data((cid, tag ^ 0x55), 0, &[1; 512], false, host.io.framing);
        host.io.send(&bytes).expect("sent");
        expect_termination(&mut host.io, FatalError::INVALID_HEADER_FIELD, offset::TTAG);

        let mut host = attach_second(server);
        let request = solicit(&mut host.io);
        let tag = request.ttag.get();
        let bytes = h2c_data((cid ^ 1, tag), 0, &[1; 512], false, host.io.framing);
        host.io.send(&bytes).expect("sent");
        expect_termination(
            &mut host.io,
            FatalError::INVALID_HEADER_FIELD,
            offset::CCCID,
        );

        let mut host = attach_second(server);
        let request = solicit(&mut host.io);
        host.io
            .send_data(&request, 0, &[1; 512], true)
            .expect("sent");
        expect_termination(
            &mut host.io,
            FatalError::INVALID_HEADER_FIELD,
            offset::FLAGS,
        );
    });
}

#[test]
fn a_disconnect_during_data_frees_its_leases() {
    beside_a_witness(|server| {
        let mut host = attach_second(server);
        let request = solicit(&mut host.io);
        let bytes = h2c_data(
            (request.cccid.get(), request.ttag.get()),
            0,
            &[1; 8192],
            true,
            host.io.framing,
        );
        host.io.send(&bytes[..3000]).expect("sent");
        server.await_that("the lease is out", |server| server.leases_out() == 1);
        drop(host);
        server.await_that("the lease came home", |server| server.leases_out() == 0);
    });
}

/// A command must complete with this status and Do Not Retry bit.
#[track_caller]
fn expect_status(client: &mut RawClient, sqe: Sqe, data: &[u8], read: u32, status: Status) {
    let (cqe, _) = client.command(sqe, data, read).expect("a response");
    assert_eq!(cqe.status().with_more(false), status);
}

#[test]
fn invalid_commands_complete_with_their_status() {
    beside_a_witness(|server| {
        let mut host = attach_second(server);
        let io = &mut host.io;
        let dnr = Status::with_dnr;
        expect_status(io, Sqe::new(0x7e, 1), &[], 0, dnr(Status::INVALID_OPCODE));
        let bad_nsid = dnr(Status::INVALID_NAMESPACE_OR_FORMAT);
        for nsid in [0, 1025, 0xffff_fffe, 0xffff_ffff] {
            expect_status(io, Sqe::read(nsid, 0, 0), &[], 512, bad_nsid);
        }
        let blocks = NAMESPACE_BYTES / BLOCK_BYTES as u64;
        let range = dnr(Status::LBA_OUT_OF_RANGE);
        expect_status(io, Sqe::read(1, blocks, 0), &[], 512, range);
        expect_status(io, Sqe::read(1, blocks - 1, 1), &[], 1024, range);
        expect_status(io, Sqe::read(1, u64::MAX, 0), &[], 512, range);
        expect_status(io, Sqe::write(1, blocks, 0, false), &[0; 512], 0, range);
        let length = dnr(Status::DATA_SGL_LENGTH_INVALID);
        expect_status(io, Sqe::read(1, 0, 1), &[], 512, length);
        expect_status(io, Sqe::write(1, 0, 1, false), &[0; 512], 0, length);
        expect_status(
            &mut host.admin,
            Sqe::new(0x7e, 0),
            &[],
            0,
            dnr(Status::INVALID_OPCODE),
        );
        // Two blocks more than MDTS allows.
        let long = Sqe::read(1, 0, 2049);
        expect_status(
            &mut host.io,
            long,
            &[],
            2050 * 512,
            dnr(Status::INVALID_FIELD),
        );
        host.check_io(0, 0x33);
    });
}

#[test]
fn in_capsule_data_that_does_not_fit_its_descriptor_fails_the_command_alone() {
    beside_a_witness(|server| {
        let mut host = attach_second(server);
        for (descriptor, status) in [
            (
                SglDescriptor::in_capsule(0, 1024),
                Status::DATA_SGL_LENGTH_INVALID,
            ),
            (
                SglDescriptor::in_capsule(512, 512),
                Status::SGL_OFFSET_INVALID,
            ),
        ] {
            let nlb_z = if descriptor == SglDescriptor::in_capsule(0, 1024) {
                1
            } else {
                0
            };
            let sqe = Sqe::write(1, 0, nlb_z, false)
                .with_cid(3)
                .with_sgl(descriptor);
            host.io.send_capsule(sqe, &[1; 512]).expect("sent");
            let pdu = host.io.expect(PduType::CAPSULE_RESP).expect("a response");
            assert_eq!(
                pdu.completion().expect("a completion").status(),
                status.with_dnr().with_more(true)
            );
        }
        host.check_io(0, 0x44);
    });
}

#[test]
fn an_invalid_connect_is_rejected_with_its_status() {
    beside_a_witness(|server| {
        let unknown = Names {
            subsystem: "nqn.2026-11.org.windlass:nobody".to_owned(),
            ..names()
        };
        let stranger = Names {
            host: STRANGER.to_owned(),
            ..names()
        };
        for (names, cntlid, qid, sqsize_z, expected) in [
            (
                unknown,
                CNTLID_DYNAMIC,
                0,
                31,
                Status::CONNECT_INVALID_PARAMETERS,
            ),
            (
                stranger,
                CNTLID_DYNAMIC,
                0,
                31,
                Status::CONNECT_INVALID_HOST,
            ),
            (
                names(),
                CNTLID_DYNAMIC,
                0,
                0,
                Status::CONNECT_INVALID_PARAMETERS,
            ),
            (names(), 0x7777, 1, 31, Status::CONNECT_INVALID_PARAMETERS),
        ] {
            let mut client = initialised(server, false, false);
            let cqe = client
                .connect_queue(&names, cntlid, qid, sqsize_z)
                .expect("a response");
            assert_eq!(
                cqe.status().code(),
                expected,
                "queue {qid} of size {sqsize_z}"
            );
            assert!(cqe.status().dnr());
            assert!(client.expect_close().expect("the target closes").is_none());
        }
    });
}

#[test]
fn queue_identifiers_and_sizes_out_of_range_are_refused() {
    beside_a_witness(|server| {
        let host = attach_second(server);
        for (qid, sqsize_z) in [(9, 31), (0xffff, 31), (2, 0), (2, 128), (2, 0xffff)] {
            let mut client = initialised(server, false, false);
            let cqe = client
                .connect_queue(&names(), host.cntlid, qid, sqsize_z)
                .expect("answer");
            let status = cqe.status().code();
            assert_eq!(
                status,
                Status::CONNECT_INVALID_PARAMETERS,
                "{qid}, {sqsize_z}"
            );
        }
    });
}

#[test]
fn a_second_connect_is_refused_on_the_connection_and_for_the_queue() {
    beside_a_witness(|server| {
        let mut host = attach_second(server);
        // On the same connection the queue already exists: a command out of sequence.
        let cqe = host
            .io
            .connect_queue(&names(), host.cntlid, 1, 31)
            .expect("a response");
        let status = Status::COMMAND_SEQUENCE_ERROR.with_dnr();
        assert_eq!(cqe.status(), status.with_more(true));
        // On another connection the queue identifier is in use.
        let mut other = initialised(server, false, false);
        let cqe = other
            .connect_queue(&names(), host.cntlid, 1, 31)
            .expect("a response");
        assert!(!cqe.status().is_success());
        host.check_io(3, 0x55);
    });
}

#[test]
fn another_first_command_than_connect_is_out_of_sequence() {
    beside_a_witness(|server| {
        let mut client = initialised(server, false, false);
        let (cqe, _) = client
            .command(Sqe::keep_alive(), &[], 0)
            .expect("a response");
        assert_eq!(cqe.status().code(), Status::COMMAND_SEQUENCE_ERROR);
    });
}

#[test]
fn more_commands_than_the_queue_has_entries_end_the_connection() {
    beside_a_witness(|server| {
        let mut admin = server.client();
        let cntlid = admin
            .open_admin(&names())
            .expect("the export takes the host");
        let mut io = initialised(server, false, false);
        let cqe = io
            .connect_queue(&names(), cntlid, 1, 1)
            .expect("a response");
        assert_eq!(cqe.status(), Status::SUCCESS);
        for cid in 0..3 {
            let sqe = Sqe::write(1, 0, 15, false).with_cid(cid);
            let sqe = sqe.with_sgl(SglDescriptor::transport(8192));
            io.send_capsule(sqe, &[]).expect("sent");
        }
        expect_termination(&mut io, FatalError::SEQUENCE_ERROR, 0);
    });
}

#[test]
fn a_host_that_never_finishes_its_setup_is_closed() {
    let tcp = TcpConfig {
        setup_timeout: Nanos::from_millis(50),
        ..TcpConfig::default()
    };
    let server = Server::start(Setup {
        tcp,
        ..Setup::default()
    });
    let mut silent = server.client();
    let mut half = server.client();
    half.initialize(false, false).expect("an ICResp");
    assert!(silent.expect_close().expect("the target closes").is_none());
    assert!(half.expect_close().expect("the target closes").is_none());
    assert_eq!(server.count(|counters| counters.setup_timeouts.get()), 2);
    server.stop();
}

#[test]
fn a_full_table_rejects_new_connections() {
    let tcp = TcpConfig {
        connections_max: 2,
        ..TcpConfig::default()
    };
    let server = Server::start(Setup {
        tcp,
        ..Setup::default()
    });
    let mut host = attach(&server);
    let mut third = server.client();
    assert_eq!(third.receive().expect("an end"), Received::Closed);
    assert_eq!(
        server.count(|counters| counters.connections_refused.get()),
        1
    );
    host.check_io(1, 0x66);
    drop(host);
    server.stop();
}

/// The limit on connections applies to all reactors together, exactly.
#[test]
fn the_limit_on_connections_holds_over_all_reactors() {
    const CONNECTIONS_MAX: usize = 8;
    let server = Server::start(Setup {
        reactors: 2,
        connections_max: Some(CONNECTIONS_MAX),
        ..Setup::default()
    });
    let mut hosts: Vec<_> = (0..CONNECTIONS_MAX / 2).map(|_| attach(&server)).collect();
    for _ in 0..4 {
        let mut beyond = server.client();
        assert_eq!(beyond.receive().expect("an end"), Received::Closed);
    }
    assert_eq!(
        server.count(|counters| counters.connections_refused.get()),
        4
    );
    for (lba, host) in hosts.iter_mut().enumerate() {
        host.check_io(lba as u64, 0x66);
    }
    drop(hosts.pop());
    server.await_that("two have gone", |server| {
        server.count(|counters| counters.connections.get()) == CONNECTIONS_MAX as u64 - 2
    });
    attach(&server).check_io(1, 0x77);
    drop(hosts);
    server.stop();
}

/// Connections that are not attached to an export are evicted for a host that attaches, starting
/// with those that were silent longest.
#[test]
fn idle_connections_make_room() {
    const CONNECTIONS_MAX: usize = 16;
    for (is_discovery, reactors) in [(false, 1), (true, 1), (false, 2), (true, 2)] {
        let server = Server::start(Setup {
            reactors,
            connections_max: Some(CONNECTIONS_MAX),
            ..Setup::default()
        });
        let discovery = Names {
            subsystem: nvme_spec::nqn::DISCOVERY_NQN.to_owned(),
            ..names()
        };
        let mut idle: Vec<_> = (0..CONNECTIONS_MAX)
            .map(|_| {
                let mut client = server.client();
                if is_discovery {
                    client.open_admin(&discovery).expect("anybody may discover");
                }
                client
            })
            .collect();
        server.await_that("the table is full", |server| {
            server.count(|counters| counters.connections.get()) == CONNECTIONS_MAX as u64
        });
        std::thread::sleep(std::time::Duration::from_millis(600));
        let mut host = attach(&server);
        host.check_io(1, 0x55);
        // Two reactors have the longest silent one each, and their load decides which one is used.
        if reactors == 1 {
            assert_eq!(idle[0].receive().expect("an end"), Received::Closed);
        }
        assert_eq!(
            server.count(|counters| counters.connections.get()),
            CONNECTIONS_MAX as u64
        );
        drop((host, idle));
        server.stop();
    }
}

#[test]
fn digests_that_are_required_or_off_are_negotiated_so() {
    let required = PortSettings {
        header_digest: DigestPolicy::Required,
        ..Setup::default().port
    };
    let server = Server::start(Setup {
        port: required,
        ..Setup::default()
    });
    let mut client = server.client();
    client
        .send(IcReq::new(0, DigestFlags::new(), 0).as_bytes())
        .expect("sent");
    expect_termination(&mut client, FatalError::UNSUPPORTED_PARAMETER, offset::DGST);
    let mut client = server.client();
    assert!(
        client
            .initialize(true, false)
            .expect("an ICResp")
            .dgst
            .header()
    );
    drop(client);
    server.stop();

    let off = PortSettings {
        data_digest: DigestPolicy::Off,
        ..Setup::default().port
    };
    let server = Server::start(Setup {
        port: off,
        ..Setup::default()
    });
    let pdu = server.client().initialize(true, true).expect("an ICResp");
    assert!(pdu.dgst.header() && !pdu.dgst.data());
    server.stop();
}

#[test]
fn broken_connections_affect_no_other_host() {
    beside_a_witness(|server| {
        for round in 0..200_usize {
            let mut client = server.client();
            let mut bytes = IcReq::new(0, DigestFlags::new(), 0).as_bytes().to_vec();
            bytes.extend(capsule(Sqe::read(1, 0, 0), &[], client.framing));
            let flipped = (round * 37) % bytes.len();
            bytes[flipped] ^= 1 << (round % 8);
            bytes.truncate(size_of::<CommonHeader>() + round % bytes.len());
            // The target may close while this is being sent.
            let _ = client.send(&bytes);
        }
        server.await_that("only the witness is left", |server| {
            server.count(|counters| counters.connections.get()) == 2
        });
        assert_eq!(server.leases_out(), 0);
    });
}
