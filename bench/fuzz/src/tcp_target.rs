//! Whole NVMe/TCP connections of misbehaving hosts: well-formed commands and data in any order,
//! PDUs with wrong fields, arbitrary bytes, disconnects at any time, and a device that holds and
//! fails requests.
//!
//! Invariants: the target's own PDUs are valid; a host that has sent only well-formed capsules gets
//! one response for each command, or its connection is closed; a second, correct host (the witness)
//! is served; nothing is left at the end.

use std::collections::HashMap;

use nvme_host::pdu::{Header, assemble};
use nvme_host_testing::pdu::{Pdu, PduInbox, capsule, fix_header_digest, h2c_data, in_capsule};
use nvme_spec::command::{AdminOpcode, IoOpcode};
use nvme_spec::fabrics::{CNTLID_DYNAMIC, ConnectAttributes, PropertySize};
use nvme_spec::registers::{Cc, Register};
use nvme_spec::sgl::SglDescriptor;
use nvme_spec::tcp::{CommonHeader, DigestFlags, Framing, IcReq, PduFlags, PduType, R2t};
use nvme_spec::{Cqe, Sqe};
use reactors::Nanos;
use zerocopy::{FromBytes, IntoBytes};

use crate::input::Input;
use crate::memory::BLOCK_BYTES;
use crate::tcp_harness::{TcpHarness, Wire, names};

/// Limit of the steps; longer inputs reach no new code.
const STEPS_MAX: usize = 64;
/// Data of one H2CData PDU of these hosts; the target accepts 16 KiB.
const HOST_DATA_BYTES_MAX: u32 = 8 << 10;
/// Number of command identifiers that a host uses.
const IDENTIFIERS: u16 = 24;

/// Runs one input.
pub(crate) fn run(input: &[u8]) {
    let mut input = Input::new(input);
    let mut harness = TcpHarness::new();
    let mut witness = Association::open(&mut harness, DigestFlags::new(), usize::MAX);
    let digests = DigestFlags::from_bits(input.u8() & 3);
    let chunk_bytes = input.pick(&[usize::MAX, usize::MAX, 600, 73, 24]);
    let mut hosts = Association::open(&mut harness, digests, chunk_bytes).into_hosts();
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        step(&mut harness, &mut hosts, &mut input);
        hosts.iter_mut().for_each(Host::take_all);
    }
    harness.device_faults.end();
    for _ in 0..4 {
        harness.settle(|| hosts.iter_mut().for_each(Host::take_all));
        for host in &mut hosts {
            host.send_requested_data();
        }
    }
    harness.settle(|| hosts.iter_mut().for_each(Host::take_all));
    hosts.iter().for_each(Host::check_completed);
    witness.check_io(&mut harness);
    harness.finish();
}

/// Executes one step.
fn step(harness: &mut TcpHarness, hosts: &mut Vec<Host>, input: &mut Input<'_>) {
    let choice = input.u8();
    let which = usize::from(choice >> 5) % hosts.len();
    let host = &mut hosts[which];
    match choice & 31 {
        0..=9 => host.send_likely(input),
        10..=11 => host.send_any_command(input),
        12..=14 => host.send_for_r2t(input),
        15 => host.send_damaged(input),
        16 => host.send_any_pdu(input),
        17 => host.send_bytes(input.bytes()),
        18 => host.wire.close(),
        19 => harness.device_faults.switch(choice >> 5, true),
        20 => harness.device_faults.switch(choice >> 5, false),
        21 => harness.device_faults.release(),
        22 => harness.advance_time(Nanos::from_millis(u64::from(input.u8()) * 50)),
        23 => {
            let digests = DigestFlags::from_bits(choice >> 5);
            if let Some(host) = Host::open_connection(harness, digests, usize::MAX) {
                hosts.push(host);
            }
        }
        24 => host.send_any_connect(input),
        25 => host.set_configuration(input),
        _ => {
            for _ in 0..=choice & 7 {
                harness.turn();
            }
        }
    }
}

/// One connection of a host.
struct Host {
    wire: Wire,
    inbox: PduInbox,
    framing: Framing,
    requested_digests: DigestFlags,
    /// Only well-formed commands have been sent, so that responses can be expected.
    is_well_formed: bool,
    /// Commands without a response, by identifier: their number, and how many of them may wait for
    /// an event.
    outstanding_commands: HashMap<u16, (u32, u32)>,
    /// R2Ts, with the number of bytes sent for each.
    r2ts: Vec<(R2t, u32)>,
    /// The target ended the connection by a termination request.
    terminated: bool,
    last: Option<Cqe>,
}

impl Host {
    /// Opens and initialises a connection.
    fn open_connection(
        harness: &mut TcpHarness,
        requested_digests: DigestFlags,
        chunk_bytes: usize,
    ) -> Option<Self> {
        let wire = harness.connect(chunk_bytes)?;
        wire.send(IcReq::new(0, requested_digests, 0).as_bytes());
        let mut host = Self {
            wire,
            inbox: PduInbox::default(),
            framing: Framing::default(),
            requested_digests,
            is_well_formed: true,
            outstanding_commands: HashMap::new(),
            r2ts: Vec::new(),
            terminated: false,
            last: None,
        };
        harness.settle(|| host.take_all());
        Some(host)
    }

    fn send_command(&mut self, sqe: Sqe, data: &[u8]) {
        let waits = sqe.opcode == AdminOpcode::ASYNC_EVENT_REQUEST.0;
        let counts = self.outstanding_commands.entry(sqe.cid.get()).or_default();
        counts.0 += 1;
        counts.1 += u32::from(waits);
        self.wire.send(&capsule(sqe, data, self.framing));
    }

    /// Sends arbitrary bytes; responses can no longer be counted afterwards.
    fn send_bytes(&mut self, bytes: &[u8]) {
        self.is_well_formed = false;
        self.wire.send(bytes);
    }

    /// Sends a typical command, or a slightly wrong one.
    fn send_likely(&mut self, input: &mut Input<'_>) {
        let (sqe, bytes) = likely_command(input);
        let cid = u16::from(input.u8()) % IDENTIFIERS;
        let sqe = sqe.with_cid(cid);
        let data = vec![input.u8(); bytes];
        match input.u8() % 8 {
            0..=2 if bytes <= 4096 => {
                let sgl = SglDescriptor::in_capsule(0, bytes as u32);
                self.send_command(sqe.with_sgl(sgl), &data);
            }
            6 => {
                let (offset, length) = (u64::from(input.u16()), input.u32());
                let sgl = SglDescriptor::in_capsule(offset, length);
                self.send_command(sqe.with_sgl(sgl), input.bytes());
            }
            7 => self.send_command(sqe.with_sgl(SglDescriptor::transport(input.u32())), &[]),
            _ => self.send_command(sqe.with_sgl(SglDescriptor::transport(bytes as u32)), &[]),
        }
    }

    /// Sends 64 bytes of the input as a command, in a valid capsule.
    fn send_any_command(&mut self, input: &mut Input<'_>) {
        let sqe = any_command(input);
        let cid = sqe.cid.get() % IDENTIFIERS;
        self.send_command(sqe.with_cid(cid), input.bytes());
    }

    /// Sends data for one of the R2Ts, sometimes deviating from the request.
    fn send_for_r2t(&mut self, input: &mut Input<'_>) {
        let deviation = input.u8();
        if self.r2ts.is_empty() {
            return;
        }
        let which = usize::from(deviation >> 4) % self.r2ts.len();
        if deviation & 15 < 12 {
            self.send_part(which);
            return;
        }
        self.is_well_formed = false;
        let (request, _) = self.r2ts[which];
        let tags = (
            request.cccid.get() ^ u16::from(input.u8() & 3),
            request.ttag.get() ^ u16::from(input.u8() & 3),
        );
        let offset = input.u32() % (256 << 10);
        let data = vec![0; usize::from(input.u16())];
        let is_last = input.one_in(2);
        let pdu = h2c_data(tags, offset, &data, is_last, self.framing);
        self.wire.send(&pdu);
    }

    /// Sends the next part of the data for an R2T, correctly.
    fn send_part(&mut self, which: usize) {
        let (request, sent) = &mut self.r2ts[which];
        let left = request.r2tl.get() - *sent;
        let bytes = left.min(HOST_DATA_BYTES_MAX);
        let tags = (request.cccid.get(), request.ttag.get());
        let offset = request.r2to.get() + *sent;
        *sent += bytes;
        let data = vec![0x5a; bytes as usize];
        let is_last = left == bytes;
        if is_last {
            self.r2ts.swap_remove(which);
        }
        let pdu = h2c_data(tags, offset, &data, is_last, self.framing);
        self.wire.send(&pdu);
    }

    /// Sends all data that R2Ts still request.
    fn send_requested_data(&mut self) {
        while !self.r2ts.is_empty() {
            self.send_part(0);
        }
    }

    /// Sends a valid capsule with some bytes changed.
    fn send_damaged(&mut self, input: &mut Input<'_>) {
        let (sqe, bytes) = likely_command(input);
        let data = vec![1; bytes.min(4096)];
        let sgl = SglDescriptor::in_capsule(0, data.len() as u32);
        let mut pdu = capsule(sqe.with_sgl(sgl), &data, self.framing);
        for _ in 0..=input.below(3) {
            let at = usize::from(input.u8()) % pdu.len().min(96);
            pdu[at] = input.u8();
        }
        if self.framing.header_digest && input.one_in(2) {
            fix_header_digest(&mut pdu);
        }
        self.send_bytes(&pdu);
    }

    /// Sends a PDU with arbitrary fields.
    fn send_any_pdu(&mut self, input: &mut Input<'_>) {
        let common = CommonHeader {
            pdu_type: PduType(input.u8() % 16),
            flags: PduFlags::from_bits(input.u8()),
            hlen: input.pick(&[8, 24, 72, 128, 0]),
            pdo: input.pick(&[0, 24, 28, 72, 76, 128]),
            plen: u32::from(input.u16()).into(),
        };
        let mut header = common.as_bytes().to_vec();
        header.extend(input.take(usize::from(common.hlen).saturating_sub(8)));
        let pdu = assemble(&header, common, input.bytes());
        self.send_bytes(&pdu);
    }

    /// Sends a Connect with fields from the input.
    fn send_any_connect(&mut self, input: &mut Input<'_>) {
        let attributes = ConnectAttributes::from_bits(input.u8());
        let (qid, entries_z) = (u16::from(input.u8() % 6), u16::from(input.u8()));
        let keep_alive_ms = u32::from(input.u16());
        let cntlid = input.pick(&[CNTLID_DYNAMIC, 0, 1, 2, 3, 0xfffe]);
        let mut data = names().connect_data(cntlid).as_bytes().to_vec();
        for _ in 0..input.below(4) {
            let at = usize::from(input.u16()) % data.len();
            data[at] = input.u8();
        }
        let sqe = Sqe::connect_queue(qid, entries_z, attributes, keep_alive_ms);
        let sgl = SglDescriptor::in_capsule(0, data.len() as u32);
        let cid = u16::from(input.u8()) % IDENTIFIERS;
        self.send_command(sqe.with_cid(cid).with_sgl(sgl), &data);
    }

    fn set_configuration(&mut self, input: &mut Input<'_>) {
        let enabled = Cc::enabled_nvm().into_bits();
        let value = input.pick(&[0, enabled, enabled | 1 << 14, enabled | 2 << 14, u32::MAX]);
        let sqe = Sqe::set_property(Register::CC.0, PropertySize::BYTES_4, u64::from(value));
        self.send_command(sqe.with_cid(3), &[]);
    }

    /// Takes every complete PDU that has been received.
    fn take_all(&mut self) {
        let channel = &self.wire.channel;
        self.inbox
            .buffer()
            .extend(channel.borrow_mut().to_host.drain(..));
        while let Some(pdu) = self.inbox.next_pdu().expect("a possible length") {
            self.take(&pdu);
        }
    }

    fn take(&mut self, pdu: &Pdu) {
        assert!(!self.terminated, "a PDU behind a termination request");
        let checked = pdu.check(self.framing);
        match checked.expect("the target sends right PDUs").0 {
            Header::Initialized => {
                let answer = pdu.ic_resp().expect("it is one");
                assert!(
                    !answer.dgst.header()
                        || self.requested_digests.header()
                        || !self.is_well_formed
                );
                self.framing = Framing {
                    header_digest: answer.dgst.header(),
                    data_digest: answer.dgst.data(),
                    alignment_z: answer.cpda_z,
                };
            }
            Header::Response(response) => {
                self.completed(response.cqe.cid.get());
                self.last = Some(response.cqe);
            }
            Header::Data(header) => {
                if header.ch.flags.success() {
                    self.completed(header.cccid.get());
                }
            }
            Header::Request(request) => self.r2ts.push((request, 0)),
            Header::Termination(_) => self.terminated = true,
        }
    }

    fn completed(&mut self, cid: u16) {
        if !self.is_well_formed {
            return;
        }
        let counts = self.outstanding_commands.get_mut(&cid);
        let counts = counts.unwrap_or_else(|| panic!("an answer to no command: {cid}"));
        assert!(counts.0 > 0, "command {cid} was completed twice");
        counts.0 -= 1;
        if counts.0 == 0 {
            counts.1 = 0;
        }
    }

    /// Checks that each command has its response, unless it waits for an event.
    fn check_completed(&self) {
        let is_closed = self.wire.ended() || self.wire.channel.borrow().closed;
        if !self.is_well_formed || self.terminated || is_closed {
            return;
        }
        for (cid, &(open, waiting)) in &self.outstanding_commands {
            assert!(open <= waiting, "command {cid} is never completed");
        }
    }
}

/// 64 bytes of an input as a command.
fn any_command(input: &mut Input<'_>) -> Sqe {
    let mut bytes = [0; size_of::<Sqe>()];
    let there = input.take(bytes.len());
    bytes[..there.len()].copy_from_slice(there);
    Sqe::read_from_bytes(&bytes).expect("64 bytes")
}

/// A typical command of a host, and its number of data bytes.
pub(crate) fn likely_command(input: &mut Input<'_>) -> (Sqe, usize) {
    let lba = u64::from(input.u8());
    let nlb_z = u16::from(input.pick(&[0, 0, 0, 1, 7, 31, 255]) as u8);
    let bytes = (usize::from(nlb_z) + 1) * BLOCK_BYTES;
    let opcode = input.pick(&[
        IoOpcode::READ.0,
        IoOpcode::WRITE.0,
        IoOpcode::READ.0,
        IoOpcode::WRITE.0,
        IoOpcode::FLUSH.0,
        IoOpcode::COMPARE.0,
        IoOpcode::WRITE_ZEROES.0,
        IoOpcode::DATASET_MANAGEMENT.0,
        AdminOpcode::IDENTIFY.0,
        AdminOpcode::GET_LOG_PAGE.0,
        AdminOpcode::GET_FEATURES.0,
        AdminOpcode::SET_FEATURES.0,
        AdminOpcode::ABORT.0,
        AdminOpcode::ASYNC_EVENT_REQUEST.0,
        AdminOpcode::KEEP_ALIVE.0,
        0x7f,
    ]);
    let nsid = input.pick(&[1, 1, 1, 1, 0, 2, u32::MAX]);
    let mut sqe = Sqe::read(nsid, lba, nlb_z);
    sqe.opcode = opcode;
    if opcode == IoOpcode::DATASET_MANAGEMENT.0 {
        let ranges_z = input.u8() & 3;
        let command = Sqe::deallocate(nsid, ranges_z).dataset_management();
        let bytes = command.data_length_bytes();
        return (sqe.with_dataset_management(command), bytes);
    }
    if opcode >= 0x7f || nsid == u32::MAX {
        // Arbitrary fields; the first dwords have the most effect.
        sqe.nsid = input.u32().into();
        sqe.specific.cdw10 = input.u32().into();
        sqe.specific.cdw11 = input.u32().into();
    } else if !matches!(opcode, 0..=2) {
        sqe.specific.cdw10 = u32::from(input.u16()).into();
        sqe.specific.cdw11 = u32::from(input.u8()).into();
    }
    (sqe, bytes)
}

/// An admin queue and an I/O queue of one host.
pub(crate) struct Association {
    admin: Host,
    io: Host,
}

impl Association {
    pub(crate) fn open(harness: &mut TcpHarness, digests: DigestFlags, chunk_bytes: usize) -> Self {
        let mut admin = Host::open_connection(harness, digests, chunk_bytes).expect("room");
        let cqe = admin.connect(harness, 0, CNTLID_DYNAMIC);
        let cntlid = cqe.connect_success().cntlid();
        let cc = u64::from(Cc::enabled_nvm().into_bits());
        let enable = Sqe::set_property(Register::CC.0, PropertySize::BYTES_4, cc);
        assert!(admin.command(harness, enable, &[]).status().is_success());
        let mut io = Host::open_connection(harness, digests, chunk_bytes).expect("room");
        io.connect(harness, 1, cntlid);
        Self { admin, io }
    }

    fn into_hosts(self) -> Vec<Host> {
        vec![self.admin, self.io]
    }

    fn check_io(&mut self, harness: &mut TcpHarness) {
        let write = Sqe::write(1, 40, 0, false);
        let cqe = self.io.command(harness, write, &[9; BLOCK_BYTES]);
        assert!(cqe.status().is_success(), "{}", cqe.status());
        let keep_alive = self.admin.command(harness, Sqe::keep_alive(), &[]);
        assert!(keep_alive.status().is_success(), "{}", keep_alive.status());
    }
}

impl Host {
    fn connect(&mut self, harness: &mut TcpHarness, qid: u16, cntlid: u16) -> Cqe {
        let connect = Sqe::connect_queue(qid, 31, ConnectAttributes::new(), 0);
        let cqe = self.command(harness, connect, names().connect_data(cntlid).as_bytes());
        assert!(cqe.status().is_success(), "{}", cqe.status());
        cqe
    }

    /// Sends one command with in-capsule data, and waits for its response.
    fn command(&mut self, harness: &mut TcpHarness, sqe: Sqe, data: &[u8]) -> Cqe {
        self.last = None;
        self.send_command(sqe.with_cid(0).with_sgl(in_capsule(data)), data);
        harness.settle(|| self.take_all());
        self.last
            .take()
            .expect("a well-formed command gets a response")
    }
}
