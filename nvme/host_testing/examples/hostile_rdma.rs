//! Attacks a target over real verbs. Checks that each violation gets the response that the
//! specification requires, and that another queue is not disturbed.
//!
//!     hostile_rdma ADDRESS:PORT NQN
//!
//! The subsystem must have a namespace 1 and allow any host. Prints a line for each violation;
//! exits with 1 at the first wrong response.

#![forbid(unsafe_code)]

use std::net::SocketAddr;
use std::process::ExitCode;

use nvme_host::{HostError, Rejection};
use nvme_host_testing::Names;
use nvme_host_testing::rdma::{Ending, RawOptions, RawRdmaClient, RawRdmaError};
use nvme_spec::rdma::RejectReason;
use nvme_spec::sgl::SglDescriptor;
use nvme_spec::{Sqe, Status};
use rdma::Verbs;
use zerocopy::IntoBytes;

type Client = RawRdmaClient<Verbs>;

struct TestTarget {
    verbs: Verbs,
    address: SocketAddr,
    names: Names,
    /// A controller and a queue that the attacks must not disturb.
    _admin: Client,
    undisturbed: Client,
    cntlid: u16,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, nqn] = &arguments[..] else {
        eprintln!("hostile_rdma ADDRESS:PORT NQN");
        return ExitCode::from(2);
    };
    match attack(address, nqn) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("FAILED: {error}");
            ExitCode::FAILURE
        }
    }
}

fn attack(address: &str, nqn: &str) -> Result<(), String> {
    let mut victim = TestTarget::connect(address, nqn)?;
    victim.private_data()?;
    victim.keys()?;
    victim.lengths()?;
    victim.capsules()?;
    victim.depth()
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

impl TestTarget {
    fn connect(address: &str, nqn: &str) -> Result<Self, String> {
        let address: SocketAddr = address.parse().map_err(text)?;
        let verbs = Verbs::open().map_err(text)?;
        let names = Names {
            host: "nqn.2026-11.org.windlass:hostile".to_owned(),
            host_id: [7; 16],
            subsystem: nqn.to_owned(),
        };
        let (admin, cntlid) = Client::open_admin(&verbs, address, &names).map_err(text)?;
        let undisturbed = Client::open_io(&verbs, address, &names, cntlid, 1).map_err(text)?;
        Ok(Self {
            verbs,
            address,
            names,
            _admin: admin,
            undisturbed,
            cntlid,
        })
    }

    /// Reads a block on the queue that must stay undisturbed.
    fn check_undisturbed(&mut self, violation: &str) -> Result<(), String> {
        let read = self.undisturbed.command(Sqe::read(1, 0, 0), 512);
        match read {
            Ok(cqe) if cqe.status().is_success() => {
                println!("{violation}");
                Ok(())
            }
            Ok(cqe) => Err(format!(
                "{violation}: the undisturbed queue got {}",
                cqe.status()
            )),
            Err(error) => Err(format!(
                "{violation}: the undisturbed queue failed: {error}"
            )),
        }
    }

    /// An I/O queue of another controller, for an attack.
    fn queue(&self) -> Result<(Client, Client), String> {
        let admin = Client::open_admin(&self.verbs, self.address, &self.names);
        let (admin, cntlid) = admin.map_err(text)?;
        let io = Client::open_io(&self.verbs, self.address, &self.names, cntlid, 1);
        Ok((admin, io.map_err(text)?))
    }

    fn private_data(&mut self) -> Result<(), String> {
        let good = RawOptions::queue(1, 32, self.cntlid).private_data;
        let with = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = good.clone();
            change(&mut bytes);
            bytes
        };
        let cases = [
            (
                "an invalid record format",
                with(&|it| it[0] = 9),
                RejectReason::INVALID_RECORD_FORMAT,
            ),
            (
                "a queue of one entry",
                with(&|it| it[6] = 0),
                RejectReason::INVALID_HSQSIZE,
            ),
            (
                "fewer receives than commands",
                with(&|it| it[4] = 31),
                RejectReason::INVALID_HRQSIZE,
            ),
        ];
        for (what, private_data, expected) in cases {
            let options = RawOptions {
                private_data,
                ..RawOptions::queue(1, 32, self.cntlid)
            };
            let response = Client::connect(&self.verbs, self.address, &options);
            let status = match response {
                Err(RawRdmaError::Host(HostError::Rejected { status, .. })) => status,
                Err(error) => return Err(format!("{what}: {error}")),
                Ok(_) => return Err(format!("{what}: accepted")),
            };
            if status != Rejection::ByTarget(expected) {
                return Err(format!("{what}: {status}, not {expected}"));
            }
            self.check_undisturbed(&format!("{what}: rejected, {status}"))?;
        }
        Ok(())
    }

    fn keys(&mut self) -> Result<(), String> {
        for (what, write) in [
            ("a read with an unknown key", false),
            ("a write with an unknown key", true),
        ] {
            let (_admin, mut io) = self.queue()?;
            let sgl = SglDescriptor::keyed(io.memory_address(), 4096, io.unknown_key(), false);
            let sqe = if write {
                Sqe::write(1, 0, 7, false)
            } else {
                Sqe::read(1, 0, 7)
            };
            let sqe = sqe
                .with_cid(io.next_cid())
                .with_sgl(sgl.unwrap_or_default());
            io.send(sqe.as_bytes()).map_err(text)?;
            let ending = io.wait_end().map_err(text)?;
            self.check_undisturbed(&format!("{what}: the connection ended, {ending}"))?;
        }
        Ok(())
    }

    fn lengths(&mut self) -> Result<(), String> {
        let (_admin, mut io) = self.queue()?;
        for (what, len) in [("too short", 2048), ("empty", 0)] {
            let sqe = Sqe::read(1, 0, 7)
                .with_cid(io.next_cid())
                .with_sgl(io.keyed_descriptor(0, len, false));
            let cqe = io.exchange(&sqe, &[]).map_err(text)?;
            let expected = Status::DATA_SGL_LENGTH_INVALID.with_dnr();
            if cqe.status().with_more(false) != expected {
                let found = cqe.status();
                return Err(format!(
                    "a descriptor that is {what}: {found}, not {expected}"
                ));
            }
            self.check_undisturbed(&format!("a descriptor that is {what}: {expected}"))?;
        }
        let cqe = io.command(Sqe::read(1, 0, 7), 4096).map_err(text)?;
        if !cqe.status().is_success() {
            return Err(format!("a later command failed: {}", cqe.status()));
        }
        Ok(())
    }

    fn capsules(&mut self) -> Result<(), String> {
        for (what, bytes) in [("of 32 bytes", 32), ("of 100,000 bytes", 100_000)] {
            let (_admin, mut io) = self.queue()?;
            io.send(&vec![0; bytes]).map_err(text)?;
            let ending = io.wait_end().map_err(text)?;
            self.check_undisturbed(&format!("a capsule {what}: the connection ended, {ending}"))?;
        }
        Ok(())
    }

    fn depth(&mut self) -> Result<(), String> {
        let (_admin, mut io) = self.queue()?;
        let sgl = io.keyed_descriptor(0, 65_536, false);
        let sqe = Sqe::read(1, 0, 127).with_cid(1).with_sgl(sgl);
        io.send(sqe.as_bytes()).map_err(text)?;
        // Far more commands than the 31 of the queue, all with the same identifier.
        let sent = io.repeat_send(size_of::<Sqe>(), 200);
        let ending = match sent {
            Ok(()) => io.wait_end().map_err(text)?,
            Err(_) => Ending::Flushed,
        };
        self.check_undisturbed(&format!(
            "more commands than entries: the connection ended, {ending}"
        ))
    }
}
