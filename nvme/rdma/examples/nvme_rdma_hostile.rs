//! What an appliance answers to a host that is wrong, over real verbs: bad private data, wrong
//! queue sizes, a key that is not valid, lengths that do not match, capsules that are too short.
//!
//! `nvme_rdma_hostile ADDRESS:PORT NQN`: writes to the first blocks of namespace 1. Ends with
//! "passed", or with the first answer that is another.

#[path = "../tests/harness/host.rs"]
#[expect(dead_code, reason = "tests use more of it")]
mod host;
#[path = "../tests/harness/world.rs"]
mod world;

use std::net::SocketAddr;
use std::time::Duration;

use host::{Call, Host, Refused};
use nvme_spec::rdma::{ConnectRequest, RejectReason};
use nvme_spec::sgl::SglDescriptor;
use nvme_spec::{Sqe, Status};
use rdma::Verbs;
use world::World;
use zerocopy::IntoBytes;

/// An appliance somewhere.
struct Remote {
    provider: Verbs,
    address: SocketAddr,
    subsystem: String,
}

impl World for Remote {
    type Provider = Verbs;

    const TURNS: usize = 30_000;

    fn host_machine(&self) -> Verbs {
        self.provider.clone()
    }

    fn subsystem(&self) -> &str {
        &self.subsystem
    }

    fn address(&self) -> SocketAddr {
        self.address
    }

    fn turn(&mut self) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let usage = "ADDRESS:PORT NQN";
    let address = arguments.next().expect(usage).parse().expect(usage);
    let subsystem = arguments.next().expect(usage);
    let provider = Verbs::open().expect("RDMA");
    let mut remote = Remote {
        provider,
        address,
        subsystem,
    };
    private_data(&mut remote);
    let (mut admin, cntlid) = Host::admin(&mut remote);
    let mut good = Host::io(&mut remote, cntlid, 1, 32);
    good.prove_alive(&mut remote, 1, 1);
    keys(&mut remote, cntlid);
    lengths(&mut remote, cntlid);
    short_capsules(&mut remote, cntlid);
    good.prove_alive(&mut remote, 1, 2);
    let flush = Sqe::get_property(0x1c, nvme_spec::fabrics::PropertySize::BYTES_4);
    let cqe = admin.command(&mut remote, flush);
    assert_eq!(cqe.status(), Status::SUCCESS, "the others are unharmed");
    println!("passed");
}

/// RDMA 1.1 §3: each field of the private data has its reason.
fn private_data(remote: &mut Remote) {
    for (byte, value, reason) in [
        (0, 1, RejectReason::INVALID_RECORD_FORMAT),
        (3, 9, RejectReason::INVALID_QUEUE_ID),
        (6, 0, RejectReason::INVALID_HSQSIZE),
        (7, 0xff, RejectReason::INVALID_HSQSIZE),
        (4, 31, RejectReason::INVALID_HRQSIZE),
        (9, 0xff, RejectReason::INVALID_CNTLID),
    ] {
        let mut bytes = ConnectRequest::new(1, 32, 31, 0xf1).as_bytes().to_vec();
        bytes[byte] = value;
        let answer = Host::connect(remote, &Call::with(&bytes)).err();
        assert_eq!(answer, Some(Refused::Rejected(reason)), "byte {byte}");
        println!("byte {byte} = {value:#x}: rejected, {reason}");
    }
}

fn keys(remote: &mut Remote, cntlid: u16) {
    for sqe in [Sqe::read(1, 0, 0), Sqe::write(1, 0, 0, false)] {
        let mut victim = Host::io(remote, cntlid, 2, 8);
        let (address, key) = (victim.address(0), victim.key() ^ 0x5a5a00);
        let sgl = SglDescriptor::keyed(address, 512, key, false).expect("short");
        victim.send(sqe.with_sgl(sgl), &[]);
        victim.await_end(remote);
        assert!(victim.responses.is_empty(), "there is no way to answer");
        println!("{}, wrong key: the connection ended", sqe.io_opcode());
    }
}

fn lengths(remote: &mut Remote, cntlid: u16) {
    let mut host = Host::io(remote, cntlid, 2, 8);
    let length = Status::DATA_SGL_LENGTH_INVALID.with_dnr();
    for bytes in [0, 511, 513, 4096] {
        for sqe in [Sqe::read(1, 0, 0), Sqe::write(1, 0, 0, false)] {
            let sgl = host.keyed(0, bytes);
            let cqe = host.command(remote, sqe.with_sgl(sgl));
            assert_eq!(cqe.status(), length, "{bytes}");
        }
    }
    for carried in [0, 511, 513] {
        let sgl = SglDescriptor::in_capsule(0, 512);
        host.send(Sqe::write(1, 0, 0, false).with_sgl(sgl), &vec![0; carried]);
        let (cqe, _) = host.await_response(remote);
        assert_eq!(cqe.status(), length, "{carried}");
    }
    host.prove_alive(remote, 2, 3);
    println!("wrong lengths: {length}, and the connection lives");
}

fn short_capsules(remote: &mut Remote, cntlid: u16) {
    for bytes in [1, 63] {
        let mut victim = Host::io(remote, cntlid, 3, 8);
        victim.send_bytes(&vec![0xff; bytes]);
        victim.await_end(remote);
        println!("a capsule of {bytes} bytes: the connection ended");
    }
}
