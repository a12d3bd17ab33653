//! Our host with a faulty target: between the two, PDUs of a correct target are damaged,
//! duplicated, dropped, and mixed with others.
//!
//! Invariants: every step of the host ends, with a value or an error; every accepted command is
//! returned once, completed or abandoned; no lease is left in use.

use std::cell::RefCell;
use std::collections::{HashSet, VecDeque};
use std::io::{IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::time::Duration;

use nvme_host::pdu::assemble;
use nvme_host::{
    ByteStream, ConnectOptions, Controller, HostCompletions, HostError, HostIdentity, IoQueue,
    StreamResult, Transport, discover, read_log,
};
use nvme_host_testing::pdu::{PduInbox, fix_header_digest};
use nvme_spec::command::{FeatureId, LogPageId};
use nvme_spec::tcp::{CommonHeader, PduFlags, PduType};
use zerocopy::IntoBytes;

use crate::input::Input;
use crate::memory::{BLOCK_BYTES, Memory};
use crate::tcp_harness::{HOST, NQN, TcpHarness, Wire};

/// The largest number of PDUs that the target sends in one run; then it closes every connection.
const PDUS_MAX: u32 = 256;
/// The largest number of bytes waiting for the host.
const PENDING_BYTES_MAX: usize = 1 << 20;

/// Runs one input.
pub(crate) fn run(input: &[u8]) {
    let mut input = Input::new(input);
    let scenario = input.u8();
    let header_digest = scenario & 0x40 != 0;
    let data_digest = scenario & 0x80 != 0;
    let interference: VecDeque<u8> = input.take(4096).iter().copied().collect();
    HOST_RUN.set(Some(HostRun {
        harness: TcpHarness::new(),
        links: Vec::new(),
        interference,
        pdus: 0,
    }));
    let options = ConnectOptions {
        header_digest,
        data_digest,
        transport: Transport::tcp_over(|_| Ok(open_connection())),
        // Far longer than a run: a target that does not respond ends the stream instead.
        timeout: Duration::from_secs(30),
        ..ConnectOptions::new(
            SocketAddr::from(([127, 0, 0, 1], 4420)),
            NQN,
            HostIdentity {
                nqn: HOST.to_owned(),
                id: [7; 16],
            },
        )
    };
    // Any result is correct, as long as the host returns.
    let _ = match scenario & 3 {
        0 => discover(options).map(|_| ()),
        1 => exercise_control_path(options),
        _ => exercise_io_queue(options),
    };
    let host_run = HOST_RUN.take().expect("set above");
    host_run.harness.finish();
}

/// Requests everything that a host can request of a controller.
fn exercise_control_path(options: ConnectOptions) -> Result<(), HostError> {
    let mut controller = Controller::connect(options)?;
    let _ = controller.transfer_bytes_max();
    for namespace in controller.namespaces()? {
        let _ = (namespace.bytes(), format!("{namespace:?}"));
        for id in controller.namespace_ids(namespace.nsid)? {
            let _ = format!("{id:?}");
        }
    }
    let _ = format!("{:?}", controller.identity());
    for page in [LogPageId::SMART_HEALTH, LogPageId::ERROR_INFORMATION] {
        controller.log_page(0, page, 0, 512)?;
    }
    let _ = read_log(&mut controller)?;
    controller.get_feature(FeatureId::NUMBER_OF_QUEUES, 0)?;
    controller.request_event()?;
    controller.abort(0, 1)?;
    controller.keep_alive()?;
    while let Some(event) = controller.poll_event()? {
        let _ = format!("{event:?}");
    }
    controller.reset()?;
    controller.shut_down()
}

/// Reads and writes, and checks that every command is returned.
fn exercise_io_queue(options: ConnectOptions) -> Result<(), HostError> {
    let pool = Memory::of_thread().arena.pool(0);
    let mut controller = Controller::connect(options)?;
    controller.request_io_queues(1)?;
    let depth = controller.queue_depth_max().min(8);
    let mut queue = controller.open_io_queue(1, depth, pool)?;
    let mut open = HashSet::new();
    let result = exchange(&mut queue, &mut open);
    if result.is_err() {
        while let Some((token, _)) = queue.take_failed_command() {
            assert!(open.remove(&token), "command {token} was over already");
        }
    }
    assert!(open.is_empty(), "commands are lost: {open:?}");
    assert_eq!(queue.in_flight(), 0);
    result
}

fn exchange(queue: &mut IoQueue, open: &mut HashSet<u64>) -> Result<(), HostError> {
    let mut token = 0;
    for round in 0..4_u64 {
        for blocks in [1, 8, 32] {
            let lease = |bytes: usize| queue.pool().take(bytes).expect("the arena is large");
            let bytes = blocks as usize * BLOCK_BYTES;
            let (read, write) = (lease(bytes), lease(bytes));
            let taken = [
                queue.submit_read(1, round, blocks, read, token).is_ok(),
                queue
                    .submit_write(1, (round, blocks), false, write, token + 1)
                    .is_ok(),
                queue.submit_flush(1, token + 2).is_ok(),
            ];
            for is_taken in taken {
                if is_taken {
                    open.insert(token);
                }
                token += 1;
            }
            queue.flush()?;
        }
        while queue.in_flight() > 0 {
            let mut completions = HostCompletions::new();
            queue.flush()?;
            // Completions that were returned before a failure are valid.
            let polled = queue.poll(&mut completions);
            for completion in &completions {
                assert!(open.remove(&completion.token), "completed twice");
            }
            polled?;
            if completions.is_empty() {
                queue.wait(Duration::from_secs(30));
            }
        }
    }
    Ok(())
}

thread_local! {
    /// The run to which the streams of this run belong. Streams must be `Send`, so they only hold
    /// an index into it.
    static HOST_RUN: RefCell<Option<HostRun>> = const { RefCell::new(None) };
}

/// A target, and the interference with its PDUs.
struct HostRun {
    harness: TcpHarness,
    links: Vec<Link>,
    interference: VecDeque<u8>,
    pdus: u32,
}

/// One connection.
struct Link {
    wire: Option<Wire>,
    /// Bytes from the target, until they are a complete PDU.
    inbox: PduInbox,
    pending: VecDeque<u8>,
    /// The host has waited, and received nothing.
    waited: bool,
}

/// Opens a connection to the target.
fn open_connection() -> Stream {
    with_host_run(|host_run| {
        let wire = host_run.harness.connect(usize::MAX);
        host_run.links.push(Link {
            wire,
            inbox: PduInbox::default(),
            pending: VecDeque::new(),
            waited: false,
        });
        Stream(host_run.links.len() - 1)
    })
}

fn with_host_run<T>(action: impl FnOnce(&mut HostRun) -> T) -> T {
    HOST_RUN.with_borrow_mut(|host_run| action(host_run.as_mut().expect("a run goes on")))
}

/// The host's end of a connection, as an index into the run.
#[derive(Debug)]
struct Stream(usize);

impl ByteStream for Stream {
    fn receive(&mut self, buffers: &mut [IoSliceMut<'_>]) -> StreamResult {
        with_host_run(|host_run| {
            host_run.advance(self.0);
            let link = &mut host_run.links[self.0];
            let mut moved = 0;
            for buffer in buffers {
                let bytes = buffer.len().min(link.pending.len());
                for (to, from) in buffer.iter_mut().zip(link.pending.drain(..bytes)) {
                    *to = from;
                }
                moved += bytes;
            }
            let is_closed = link.waited || link.wire.as_ref().is_none_or(Wire::ended);
            match moved {
                0 if is_closed => StreamResult::Ended,
                0 => StreamResult::Nothing,
                bytes => StreamResult::Bytes(bytes),
            }
        })
    }

    fn send(&mut self, buffers: &[IoSlice<'_>]) -> StreamResult {
        with_host_run(|host_run| {
            let link = &host_run.links[self.0];
            let Some(wire) = link.wire.as_ref().filter(|wire| !wire.ended()) else {
                return StreamResult::Failed(rustix::io::Errno::PIPE);
            };
            let mut moved = 0;
            for buffer in buffers {
                wire.send(buffer);
                moved += buffer.len();
            }
            match moved {
                0 => StreamResult::Nothing,
                bytes => StreamResult::Bytes(bytes),
            }
        })
    }

    fn wait(&self, _to_send: bool, _limit: Duration) {
        with_host_run(|host_run| {
            host_run.advance(self.0);
            let link = &mut host_run.links[self.0];
            // A target without anything to send stays so, because time does not advance.
            link.waited = link.pending.is_empty();
        });
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        with_host_run(|host_run| {
            if let Some(wire) = &host_run.links[self.0].wire {
                wire.close();
            }
        });
    }
}

impl HostRun {
    /// Runs the target, and interferes with the PDUs that it sends.
    fn advance(&mut self, link: usize) {
        self.harness.settle(|| {});
        while let Some(pdu) = self.next_pdu(link) {
            self.pdus += 1;
            if self.pdus > PDUS_MAX {
                self.links[link].wire = None;
                return;
            }
            self.forward(link, pdu);
        }
    }

    fn next_pdu(&mut self, link: usize) -> Option<Vec<u8>> {
        let Link { wire, inbox, .. } = &mut self.links[link];
        let channel = &wire.as_ref()?.channel;
        inbox
            .buffer()
            .extend(channel.borrow_mut().to_host.drain(..));
        let pdu = inbox.next_pdu().expect("a possible length")?;
        Some(pdu.bytes)
    }

    fn byte(&mut self) -> u8 {
        self.interference.pop_front().unwrap_or(0)
    }

    fn bytes(&mut self, most: usize) -> Vec<u8> {
        let most = most.min(self.interference.len());
        self.interference.drain(..most).collect()
    }

    /// Passes a PDU on to the host, or replaces it.
    fn forward(&mut self, link: usize, mut pdu: Vec<u8>) {
        let choice = self.byte();
        match choice & 15 {
            1 => self.damage(&mut pdu, 24),
            2 => {
                let bytes = pdu.len();
                self.damage(&mut pdu, bytes);
            }
            3 => self.overwrite(&mut pdu),
            4 => self.deliver(link, &pdu.clone()),
            5 => pdu.clear(),
            6 => {
                let kept = usize::from(self.byte()) % pdu.len();
                pdu.truncate(kept);
            }
            7 => {
                let other = self.other_pdu();
                self.deliver(link, &other);
            }
            8 => {
                let junk = usize::from(self.byte());
                let junk = self.bytes(junk);
                self.deliver(link, &junk);
            }
            _ => {}
        }
        if choice & 0x80 != 0 {
            fix_header_digest(&mut pdu);
        }
        self.deliver(link, &pdu);
    }

    fn deliver(&mut self, link: usize, bytes: &[u8]) {
        let pending = &mut self.links[link].pending;
        if pending.len() + bytes.len() <= PENDING_BYTES_MAX {
            pending.extend(bytes);
        }
    }

    /// Changes a byte among the first `range`.
    fn damage(&mut self, pdu: &mut [u8], range: usize) {
        let at = usize::from(u16::from_le_bytes([self.byte(), self.byte()]));
        let at = at % range.min(pdu.len());
        pdu[at] = self.byte();
    }

    /// Replaces a part of the data of a data PDU, after its header.
    fn overwrite(&mut self, pdu: &mut [u8]) {
        let at = 24 + usize::from(u16::from_le_bytes([self.byte(), self.byte()])) % 4096;
        let bytes = usize::from(self.byte());
        let bytes = self.bytes(bytes);
        if let Some(part) = pdu.get_mut(at..at + bytes.len()) {
            part.copy_from_slice(&bytes);
        }
    }

    /// A PDU with fields from the input.
    fn other_pdu(&mut self) -> Vec<u8> {
        let common = CommonHeader {
            pdu_type: PduType(self.byte() % 16),
            flags: PduFlags::from_bits(self.byte()),
            hlen: [8, 24, 72, 128][usize::from(self.byte()) % 4],
            pdo: [0, 24, 28, 128][usize::from(self.byte()) % 4],
            plen: u32::from(u16::from_le_bytes([self.byte(), self.byte()]) % 2048).into(),
        };
        let mut header = common.as_bytes().to_vec();
        header.extend(self.bytes(usize::from(common.hlen) - 8));
        let data = usize::from(self.byte());
        let data = self.bytes(data);
        assemble(&header, common, &data)
    }
}
