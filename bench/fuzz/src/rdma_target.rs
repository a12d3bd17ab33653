//! Whole NVMe/RDMA connections over the in-process fabric: arbitrary private data, capsules of any
//! length and content, invalid keys and addresses, disconnects at any time, and a fabric that
//! delays and drops.
//!
//! Invariants: a host that has sent only commands gets one response for each of them, or its
//! connection is closed; a second, correct host (the witness) is served; nothing is left at the
//! end.

use std::collections::HashMap;

use nvme_spec::command::AdminOpcode;
use nvme_spec::fabrics::ConnectAttributes;
use nvme_spec::rdma::ConnectRequest;
use nvme_spec::sgl::SglDescriptor;
use nvme_spec::{Sqe, Status};
use rdma::CompletionStatus;
use rdma_testing::fake::{FabricConfig, Fault, Operation, Pattern};
use reactors::Nanos;
use zerocopy::{FromBytes, IntoBytes};

use crate::input::Input;
use crate::memory::Memory;
use crate::rdma_harness::host::{Call, connect_data};
use crate::rdma_harness::{FakeHost, Setup, Stage, TARGET_MACHINE};
use crate::tcp_target::likely_command;

/// Limit of the steps; longer inputs reach no new code.
const STEPS_MAX: usize = 24;
const HOSTS_MAX: usize = 4;
/// Turns after which all work has ended: the fabric's delays are shorter.
const DRAIN_TURNS: usize = 200;
/// Limit of the delay of one of the target's requests, in ticks.
const DELAY_MAX_TICKS: u8 = 32;
/// Number of command identifiers that a host uses.
const IDENTIFIERS: u16 = 24;
/// Bytes of a host's memory for commands.
const DATA_BYTES: usize = 32 << 10;

/// Runs one input.
pub(crate) fn run(input: &[u8]) {
    let mut input = Input::new(input);
    let memory = Memory::of_thread();
    {
        let mut setup = Setup {
            fabric: FabricConfig::manual(u64::from(input.u8())),
            memory: Some((memory.arena.clone(), memory.device.clone())),
            ..Setup::default()
        };
        setup.rdma.receives = 32;
        setup.rdma.connections_max = 8;
        let mut stage = Stage::with(setup);
        act(&mut stage, &mut input);
    }
    assert_eq!(memory.taken(), 0, "leases are still in use");
}

fn call(qid: u16, depth: u16, cntlid: u16) -> Call {
    Call {
        data_bytes: DATA_BYTES,
        // One for each command, because the host cannot know when the fabric has read one.
        capsules: STEPS_MAX + 2,
        ..Call::queue(qid, depth, cntlid)
    }
}

fn act(stage: &mut Stage, input: &mut Input<'_>) {
    let (mut admin, cntlid) = FakeHost::admin_by(stage, &call(0, 32, 0), 0);
    let mut witness = FakeHost::connect(stage, &call(1, 16, cntlid)).expect("accepted");
    let opened = witness.open_queue(stage, 1, 16, cntlid);
    assert_eq!(opened.status(), Status::SUCCESS);
    witness.check_io(stage, 1, 1);
    stage.turn();
    let leases = stage.leases_out();

    let mut hosts = Vec::new();
    let other = FakeHost::connect(stage, &call(2, 16, cntlid)).expect("accepted");
    let mut other = TestHost::new(other);
    other.connect(2, 15, cntlid);
    hosts.push(other);
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        step(stage, &mut hosts, cntlid, input);
        hosts.iter_mut().for_each(TestHost::take);
    }
    stage.fabric.clear_faults();
    for _ in 0..DRAIN_TURNS {
        stage.turn();
        hosts.iter_mut().for_each(TestHost::take);
    }
    hosts.iter().for_each(TestHost::check_completed);
    witness.check_io(stage, 2, 2);
    drop(hosts);
    for _ in 0..200 {
        stage.pass(Nanos::from_millis(100));
        admin.poll();
        witness.poll();
        if stage.set.len() == 2 {
            break;
        }
    }
    assert_eq!(
        stage.set.len(),
        2,
        "connections of hosts that are gone stay"
    );
    for _ in 0..8 {
        stage.turn();
    }
    assert_eq!(stage.leases_out(), leases, "leases are still in use");
}

/// Executes one step.
fn step(stage: &mut Stage, hosts: &mut Vec<TestHost>, cntlid: u16, input: &mut Input<'_>) {
    let choice = input.u8();
    if hosts.is_empty() || choice & 31 == 31 {
        open_connection(stage, hosts, cntlid, input);
        return;
    }
    let which = usize::from(choice >> 5) % hosts.len();
    let host = &mut hosts[which];
    match choice & 31 {
        0..=9 => host.send_likely(input),
        10..=11 => host.send_any_command(input),
        12 => {
            host.is_well_formed = false;
            host.host.send_bytes(input.bytes());
        }
        13 => {
            host.is_well_formed = false;
            let bytes = usize::from(input.u16()) % 12_000;
            host.host.send_bytes(&vec![input.u8(); bytes]);
        }
        14 => host.connect(u16::from(input.u8() % 4), u16::from(input.u8()), cntlid),
        15 => {
            hosts.swap_remove(which);
        }
        16..=17 => fault(stage, input),
        18 => stage.fabric.clear_faults(),
        19 => stage.pass(Nanos::from_millis(u64::from(input.u8()) * 50)),
        _ => {
            for _ in 0..=choice & 7 {
                stage.turn();
            }
        }
    }
}

/// Opens another connection, with valid or modified private data.
fn open_connection(
    stage: &mut Stage,
    hosts: &mut Vec<TestHost>,
    cntlid: u16,
    input: &mut Input<'_>,
) {
    if hosts.len() >= HOSTS_MAX {
        return;
    }
    // Faults during connection setup are not the subject of this target.
    stage.fabric.clear_faults();
    let mut private = ConnectRequest::new(3, 16, 15, cntlid).as_bytes().to_vec();
    for _ in 0..input.below(4) {
        let at = usize::from(input.u8()) % private.len();
        private[at] = input.u8();
    }
    if input.one_in(8) {
        private = input.bytes().to_vec();
        private.truncate(rdma::CONNECT_PRIVATE_DATA_MAX);
    }
    let call = Call {
        private_data: private,
        reads: input.u8() % 9,
        ..call(3, 16, cntlid)
    };
    if let Ok(host) = FakeHost::connect(stage, &call) {
        hosts.push(TestHost::new(host));
    }
}

/// Injects a fault of one of the target's next requests.
fn fault(stage: &mut Stage, input: &mut Input<'_>) {
    let operation = input.pick(&[Operation::Send, Operation::Write, Operation::Read]);
    let pattern = Pattern::ONCE.of(operation).on(TARGET_MACHINE);
    let pattern = pattern.after(u64::from(input.u8() % 4));
    let ticks = u32::from(input.u8() % DELAY_MAX_TICKS);
    let fault = match input.u8() % 7 {
        0 => Fault::DropConnection,
        1 => Fault::NotReady(ticks),
        2 => Fault::DelayRequest(ticks),
        3 => Fault::DelayCompletion(ticks),
        4 => Fault::QueuePairFatal,
        5 => Fault::Fail(CompletionStatus::REMOTE_ACCESS_ERROR),
        _ => Fault::Fail(CompletionStatus::RETRIES_EXCEEDED),
    };
    stage.fabric.add_fault(pattern, fault);
}

/// A host and its outstanding commands.
struct TestHost {
    host: FakeHost,
    is_well_formed: bool,
    /// Commands without a response, by identifier: their number, and how many of them may wait for
    /// an event.
    outstanding_commands: HashMap<u16, (u32, u32)>,
}

impl TestHost {
    fn new(host: FakeHost) -> Self {
        Self {
            host,
            is_well_formed: true,
            outstanding_commands: HashMap::new(),
        }
    }

    fn send(&mut self, sqe: Sqe, data: &[u8]) {
        let waits = sqe.opcode == AdminOpcode::ASYNC_EVENT_REQUEST.0;
        let counts = self.outstanding_commands.entry(sqe.cid.get()).or_default();
        counts.0 += 1;
        counts.1 += u32::from(waits);
        self.host.send(sqe, data);
    }

    fn connect(&mut self, qid: u16, entries_z: u16, cntlid: u16) {
        self.host.write(0, connect_data(cntlid).as_bytes());
        let sqe = Sqe::connect_queue(qid, entries_z, ConnectAttributes::new(), 0);
        let sgl = self.host.keyed(0, 1024);
        self.send(sqe.with_cid(0).with_sgl(sgl), &[]);
    }

    /// Sends a typical command, or a slightly wrong one.
    fn send_likely(&mut self, input: &mut Input<'_>) {
        let (sqe, bytes) = likely_command(input);
        let sqe = sqe.with_cid(u16::from(input.u8()) % IDENTIFIERS);
        let bytes = bytes.min(DATA_BYTES) as u32;
        let whole = self.host.keyed(0, bytes);
        match input.u8() % 8 {
            0 if bytes <= 4096 => {
                let sgl = SglDescriptor::in_capsule(0, bytes);
                self.send(sqe.with_sgl(sgl), &vec![3; bytes as usize]);
            }
            1 => {
                let key = self.host.key() ^ u32::from(input.u8());
                let address = self.host.address(0) ^ u64::from(input.u32());
                let length = bytes ^ u32::from(input.u16());
                let invalidate = input.one_in(2);
                let sgl = SglDescriptor::keyed(address, length, key, invalidate);
                self.send(sqe.with_sgl(sgl.unwrap_or(whole)), &[]);
            }
            2 => self.send_segment(sqe, bytes, input),
            3 => {
                let sgl = SglDescriptor::in_capsule(u64::from(input.u16()), input.u32());
                self.send(sqe.with_sgl(sgl), input.bytes());
            }
            _ => self.send(sqe.with_sgl(whole), &[]),
        }
    }

    /// Sends a command with descriptors in its capsule, most of them valid.
    fn send_segment(&mut self, sqe: Sqe, bytes: u32, input: &mut Input<'_>) {
        let pieces = u32::from(input.u8() % 17) + 1;
        let piece = bytes / pieces;
        let mut segment = Vec::new();
        for number in 0..pieces {
            let length = match pieces - number {
                1 => bytes - piece * number,
                _ => piece,
            };
            let descriptor = self.host.keyed((piece * number) as usize, length);
            segment.extend_from_slice(descriptor.as_bytes());
        }
        if input.one_in(4) {
            let at = usize::from(input.u16()) % segment.len();
            segment[at] ^= input.u8();
        }
        let length = match input.one_in(8) {
            true => input.u32(),
            false => segment.len() as u32,
        };
        let sgl = SglDescriptor::last_segment_in_capsule(0, length);
        self.send(sqe.with_sgl(sgl), &segment);
    }

    /// Sends 64 bytes of the input as a command.
    fn send_any_command(&mut self, input: &mut Input<'_>) {
        let mut bytes = [0; size_of::<Sqe>()];
        let there = input.take(bytes.len());
        bytes[..there.len()].copy_from_slice(there);
        let sqe = Sqe::read_from_bytes(&bytes).expect("64 bytes");
        let cid = sqe.cid.get() % IDENTIFIERS;
        self.send(sqe.with_cid(cid), input.bytes());
    }

    /// Takes the responses.
    fn take(&mut self) {
        self.host.poll();
        for (cqe, _) in std::mem::take(&mut self.host.responses) {
            if !self.is_well_formed {
                continue;
            }
            let cid = cqe.cid.get();
            let counts = self.outstanding_commands.get_mut(&cid);
            let counts = counts.unwrap_or_else(|| panic!("an answer to no command: {cid}"));
            assert!(counts.0 > 0, "command {cid} was completed twice");
            counts.0 -= 1;
            if counts.0 == 0 {
                counts.1 = 0;
            }
        }
    }

    /// Checks that each command has its response, unless it waits for an event.
    fn check_completed(&self) {
        let is_closed = self.host.disconnected || !self.host.failures.is_empty();
        if !self.is_well_formed || is_closed {
            return;
        }
        for (cid, &(open, waiting)) in &self.outstanding_commands {
            assert!(open <= waiting, "command {cid} is never completed");
        }
    }
}
