//! A well-behaved host beside hosts that take all available resources: the latency of its requests,
//! and the maximum.
//!
//! The host has one request in flight, so each latency is that of one request. The others hold
//! memory, blocks, controllers and queue entries, but not the processor: they send requests once
//! and are silent afterwards. Two rows are floods of commands that a target has to refuse cheaply.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nvme_host_testing::HostSteps;
use nvme_host_testing::Names;
use nvme_host_testing::tcp::{RawClient, RawError};
use nvme_spec::Sqe;
use nvme_spec::sgl::SglDescriptor;
use nvme_spec::tcp::PduType;
use serde::Serialize;

use super::{LIMIT, StormError, names};
use crate::compare::target::Target;
use bench::table::Table;
use bench::units::per_second;

/// Connections of the greedy host.
const GREEDY_CONNECTIONS: u16 = 170;
/// Commands on each of them: the maximum of a queue with 128 entries.
const COMMANDS_PER_QUEUE: u16 = 127;
/// Queues of the greedy host on one controller.
const QUEUES_PER_CONTROLLER: u16 = 32;
/// Requests of the well-behaved host, alone and beside the others.
pub(super) const REQUESTS: usize = 400;
/// Number of writes that wait for a block that a slow reader borrows.
const WAITING_WRITES: u16 = 1000;
/// Block size of the target's namespaces in bytes.
const BLOCK_BYTES: usize = 4096;
/// Namespaces of the target: RAM, and a null device, which only needs memory for written data.
const RAM: u32 = 1;
const NULL: u32 = 2;
/// Maximum time until a borrowed block is writable again.
const BORROWED_MS_MAX: f64 = 150.0;
/// Maximum time for which other hosts may delay a host.
const WAIT_MS_MAX: f64 = 50.0;
/// Request sizes, which are also the sizes of the memory that they need.
const SIZES: [usize; 5] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];

/// The results beside one kind of host.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BesideRow {
    /// The behaviour of the others.
    pub others: String,
    /// The host's request.
    pub request: String,
    /// Median latency alone in milliseconds.
    pub alone_p50_ms: f64,
    /// 99th percentile of the latency alone in milliseconds.
    pub alone_p99_ms: f64,
    /// Median latency beside the others in milliseconds.
    pub beside_p50_ms: f64,
    /// 99th percentile of the latency beside the others in milliseconds.
    pub beside_p99_ms: f64,
    /// Maximum latency beside the others in milliseconds.
    pub beside_longest_ms: f64,
    /// The promise and its result, as text.
    pub promise: String,
    /// Whether the promise was kept.
    pub kept: bool,
}

/// All rows as a table.
pub(super) fn table(rows: &[BesideRow]) -> Table {
    let head = [
        "one host beside",
        "its request",
        "p50 alone",
        "p99 alone",
        "p50 beside",
        "p99 beside",
        "longest",
        "promise",
        "kept",
    ];
    let mut table = Table::new(&head);
    let ms = |value: f64| format!("{value:.2} ms");
    for row in rows {
        table.row([
            row.others.clone(),
            row.request.clone(),
            ms(row.alone_p50_ms),
            ms(row.alone_p99_ms),
            ms(row.beside_p50_ms),
            ms(row.beside_p99_ms),
            ms(row.beside_longest_ms),
            row.promise.clone(),
            if row.kept { "yes" } else { "NO" }.to_owned(),
        ]);
    }
    table
}

/// Sorted latencies in milliseconds.
pub(super) struct Latencies(Vec<f64>);

impl Latencies {
    pub(super) fn of(
        mut request: impl FnMut(usize) -> Result<(), RawError>,
    ) -> Result<Self, RawError> {
        let mut found = Vec::with_capacity(REQUESTS);
        for number in 0..REQUESTS {
            let began = Instant::now();
            request(number)?;
            found.push(began.elapsed().as_secs_f64() * 1e3);
        }
        Ok(Self::sorted(found))
    }

    /// Of these latencies in milliseconds, at least one.
    pub(super) fn sorted(mut found: Vec<f64>) -> Self {
        found.sort_unstable_by(f64::total_cmp);
        Self(found)
    }

    fn part(&self, permille: usize) -> f64 {
        let place = self.0.len() * permille / 1000;
        self.0[place.min(self.0.len() - 1)]
    }

    fn longest(&self) -> f64 {
        self.part(1000)
    }
}

/// The promise of a row.
#[derive(Clone, Copy)]
pub(super) enum Promise {
    /// The p99 is at most three times that alone, and no request takes long.
    Fair,
    /// No request takes longer than a block may be borrowed.
    Borrowed,
    /// The median is at most this multiple of that alone.
    Median(f64),
    /// The p99 is at most this multiple of that alone.
    P99(f64),
}

impl Promise {
    fn of(self, alone: &Latencies, beside: &Latencies) -> (String, bool) {
        match self {
            Self::Fair => {
                let kept = beside.part(990) <= 3.0 * alone.part(990);
                let text = format!("p99 ≤ 3 × alone, longest ≤ {WAIT_MS_MAX} ms");
                (text, kept && beside.longest() <= WAIT_MS_MAX)
            }
            Self::Borrowed => {
                let text = format!("longest ≤ {BORROWED_MS_MAX} ms");
                (text, beside.longest() <= BORROWED_MS_MAX)
            }
            Self::Median(most) => {
                let text = format!("p50 ≤ {most} × alone");
                (text, beside.part(500) <= most * alone.part(500))
            }
            Self::P99(most) => {
                let text = format!("p99 ≤ {most} × alone");
                (text, beside.part(990) <= most * alone.part(990))
            }
        }
    }
}

pub(super) fn row(
    (others, request): (&str, &str),
    alone: &Latencies,
    beside: &Latencies,
    promise: Promise,
) -> BesideRow {
    let (promise, kept) = promise.of(alone, beside);
    BesideRow {
        others: others.to_owned(),
        request: request.to_owned(),
        alone_p50_ms: alone.part(500),
        alone_p99_ms: alone.part(990),
        beside_p50_ms: beside.part(500),
        beside_p99_ms: beside.part(990),
        beside_longest_ms: beside.longest(),
        promise,
        kept,
    }
}

/// Measures every row; calls `report_step` before each.
pub(super) fn measure(
    target: &Target,
    mut report_step: impl FnMut(&str),
) -> Result<Vec<BesideRow>, StormError> {
    let address = target.address;
    let mut rows = Vec::new();
    for bytes in SIZES {
        report_step(&format!("writes of {} KiB without data", bytes >> 10));
        rows.push(beside_greedy(address, bytes, Greedy::Writes)?);
        report_step(&format!("reads of {} KiB that are not taken", bytes >> 10));
        rows.push(beside_greedy(address, bytes, Greedy::Reads)?);
    }
    report_step("a reader that takes nothing");
    rows.push(beside_reader(address)?);
    report_step("anonymous hosts");
    rows.push(beside_anonymous(address)?);
    report_step("waiting writes");
    rows.push(beside_waiting_writes(address)?);
    report_step("a flood of Aborts");
    rows.push(beside_aborts(address)?);
    Ok(rows)
}

fn host(number: u16) -> Names {
    names(50_000 + number)
}

fn connect(address: SocketAddr) -> Result<RawClient, RawError> {
    RawClient::connect(address, LIMIT)
}

/// A host with an admin queue and I/O queues of 128 entries.
pub(super) struct Host {
    admin: RawClient,
    pub(super) queues: Vec<RawClient>,
}

impl Host {
    pub(super) fn attach(
        address: SocketAddr,
        names: &Names,
        queues: u16,
    ) -> Result<Self, RawError> {
        let mut admin = connect(address)?;
        let cntlid = admin.open_admin(names)?;
        let mut open = Vec::new();
        for qid in 1..=queues {
            let mut queue = connect(address)?;
            queue.initialize(false, false)?;
            queue.connect_queue(names, cntlid, qid, COMMANDS_PER_QUEUE)?;
            open.push(queue);
        }
        Ok(Self {
            admin,
            queues: open,
        })
    }
}

/// The requests of the greedy host.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Greedy {
    /// Writes whose data it does not send.
    Writes,
    /// Reads whose data it does not receive.
    Reads,
}

/// Opens all connections of the greedy host, each with the maximum number of commands.
fn open_greedy(address: SocketAddr, bytes: usize, kind: Greedy) -> Result<Vec<Host>, RawError> {
    let names = host(1);
    let mut hosts = Vec::new();
    let mut left = GREEDY_CONNECTIONS;
    while left > 0 {
        let queues = left.min(QUEUES_PER_CONTROLLER);
        left -= queues;
        let mut host = Host::attach(address, &names, queues)?;
        for queue in &mut host.queues {
            let blocks = (bytes / BLOCK_BYTES - 1) as u16;
            for cid in 0..COMMANDS_PER_QUEUE {
                let sqe = match kind {
                    Greedy::Writes => Sqe::write(NULL, 0, blocks, false),
                    Greedy::Reads => Sqe::read(NULL, 0, blocks),
                };
                let sgl = SglDescriptor::transport(bytes as u32);
                queue.send_capsule(sqe.with_cid(cid).with_sgl(sgl), &[])?;
            }
        }
        hosts.push(host);
    }
    Ok(hosts)
}

fn beside_greedy(address: SocketAddr, bytes: usize, kind: Greedy) -> Result<BesideRow, StormError> {
    let mut modest = Host::attach(address, &host(2), 1)?;
    let queue = &mut modest.queues[0];
    let (blocks, data) = ((bytes / BLOCK_BYTES - 1) as u16, vec![7; bytes]);
    let mut write = |_| {
        let write = Sqe::write(NULL, 0, blocks, false).with_cid(7);
        queue.send_capsule(write.with_sgl(SglDescriptor::transport(bytes as u32)), &[])?;
        let unexpected = RawError::Malformed(PduType::R2T);
        let request = queue.expect(PduType::R2T)?.r2t().ok_or(unexpected)?;
        queue.send_data(&request, 0, &data, true)?;
        let unexpected = RawError::Malformed(PduType::CAPSULE_RESP);
        let response = queue.expect(PduType::CAPSULE_RESP)?;
        succeeded(&response.completion().ok_or(unexpected)?)
    };
    let alone = Latencies::of(&mut write)?;
    let greedy = open_greedy(address, bytes, kind)?;
    std::thread::sleep(Duration::from_millis(300));
    let beside = Latencies::of(&mut write)?;
    drop(greedy);
    let size = bytes >> 10;
    let others = match kind {
        Greedy::Writes => {
            format!("170 connections of a host, each with 127 writes of {size} KiB and no data")
        }
        Greedy::Reads => {
            format!("170 connections of a host, each with 127 reads of {size} KiB not taken")
        }
    };
    let request = format!("write of {size} KiB, asked for by R2T");
    Ok(row((&others, &request), &alone, &beside, Promise::Fair))
}

/// Writes to blocks that another host reads without receiving, while one size class of memory is
/// exhausted.
fn beside_reader(address: SocketAddr) -> Result<BesideRow, StormError> {
    let mut modest = Host::attach(address, &host(2), 1)?;
    let queue = &mut modest.queues[0];
    let mut write = |number: usize| {
        let lba = (number % usize::from(COMMANDS_PER_QUEUE)) as u64 * 256 % 12_000;
        let (cqe, _) = queue.command(Sqe::write(RAM, lba, 0, false), &[7; BLOCK_BYTES], 0)?;
        succeeded(&cqe)
    };
    let alone = Latencies::of(&mut write)?;
    let greedy = open_greedy(address, 1 << 20, Greedy::Writes)?;
    let mut reader = Host::attach(address, &host(1), 1)?;
    for cid in 0..COMMANDS_PER_QUEUE {
        let read = Sqe::read(RAM, u64::from(cid) * 256 % 12_000, 255).with_cid(cid);
        let sgl = SglDescriptor::transport(1 << 20);
        reader.queues[0].send_capsule(read.with_sgl(sgl), &[])?;
    }
    std::thread::sleep(Duration::from_millis(5));
    let beside = Latencies::of(&mut write)?;
    drop((greedy, reader));
    let what = "a reader of the whole namespace that takes nothing, memory taken by writes";
    let names = (what, "write of 4 KiB to what is read");
    Ok(row(names, &alone, &beside, Promise::Borrowed))
}

/// Connects of a host to an export, beside the maximum number of discovery controllers.
fn beside_anonymous(address: SocketAddr) -> Result<BesideRow, StormError> {
    let attach = |_| Host::attach(address, &host(2), 1).map(drop);
    let alone = Latencies::of(attach)?;
    let mut anonymous = Vec::new();
    for number in 0..512 {
        let names = Names {
            subsystem: nvme_spec::nqn::DISCOVERY_NQN.to_owned(),
            ..host(100 + number)
        };
        let mut admin = connect(address)?;
        // Refused ones hold nothing.
        if admin.open_admin(&names).is_ok() {
            anonymous.push(admin);
        }
    }
    let beside = Latencies::of(attach)?;
    let what = format!("{} discovery controllers of made-up hosts", anonymous.len());
    let names = (what.as_str(), "connect of two queues to an export");
    Ok(row(names, &alone, &beside, Promise::Median(3.0)))
}

/// Reads a block of the null device.
pub(super) fn read_null(queue: &mut RawClient) -> Result<(), RawError> {
    let (cqe, _) = queue.command(Sqe::read(NULL, 0, 0), &[], BLOCK_BYTES as u32)?;
    succeeded(&cqe)
}

/// Reads of another device beside writes that wait for a block that a slow reader borrows.
fn beside_waiting_writes(address: SocketAddr) -> Result<BesideRow, StormError> {
    let mut modest = Host::attach(address, &host(2), 1)?;
    let queue = &mut modest.queues[0];
    let mut read = |_| read_null(queue);
    let alone = Latencies::of(&mut read)?;
    // The blocks are borrowed for a tenth of a second, so the requests are measured in short
    // series.
    let mut found = Vec::new();
    while found.len() < REQUESTS {
        let mut reader = Host::attach(address, &host(1), 1)?;
        let mut writer = Host::attach(address, &host(3), WAITING_WRITES.div_ceil(100))?;
        for cid in 0..8 {
            let read = Sqe::read(RAM, 0, 255).with_cid(cid);
            let sgl = SglDescriptor::transport(1 << 20);
            reader.queues[0].send_capsule(read.with_sgl(sgl), &[])?;
        }
        std::thread::sleep(Duration::from_millis(5));
        for queue in &mut writer.queues {
            for cid in 0..100 {
                let write = Sqe::write(RAM, u64::from(cid) % 200, 0, false).with_cid(cid);
                let sgl = SglDescriptor::in_capsule(0, BLOCK_BYTES as u32);
                queue.send_capsule(write.with_sgl(sgl), &[1; BLOCK_BYTES])?;
            }
        }
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(40) && found.len() < REQUESTS {
            let request = Instant::now();
            read(0)?;
            found.push(request.elapsed().as_secs_f64() * 1e3);
        }
    }
    let what = format!("{WAITING_WRITES} writes that wait for a block");
    let names = (what.as_str(), "read of 4 KiB of another device");
    Ok(row(
        names,
        &alone,
        &Latencies::sorted(found),
        Promise::Median(1.2),
    ))
}

/// Reads beside a host that sends Aborts continuously.
fn beside_aborts(address: SocketAddr) -> Result<BesideRow, StormError> {
    let mut modest = Host::attach(address, &host(2), 1)?;
    let queue = &mut modest.queues[0];
    let mut read = |_| read_null(queue);
    let alone = Latencies::of(&mut read)?;
    let (over, began) = (AtomicBool::new(false), Instant::now());
    let Host { mut admin, queues } = Host::attach(address, &host(1), 1)?;
    let (beside, aborts) = std::thread::scope(|scope| {
        let flood = scope.spawn(|| {
            let mut aborts = 0;
            while !over.load(Ordering::Acquire)
                && admin.command(Sqe::abort_command(1, 7), &[], 0).is_ok()
            {
                aborts += 1;
            }
            aborts
        });
        let beside = Latencies::of(&mut read);
        over.store(true, Ordering::Release);
        (beside, flood.join().unwrap_or(0))
    });
    drop(queues);
    let rate = per_second(aborts, began.elapsed());
    let what = format!("a host that sends {rate:.0} Aborts a second, one after the other");
    let names = (what.as_str(), "read of 4 KiB");
    Ok(row(names, &alone, &beside?, Promise::Median(3.0)))
}

fn succeeded(cqe: &nvme_spec::Cqe) -> Result<(), RawError> {
    match cqe.status().is_success() {
        true => Ok(()),
        false => Err(RawError::Malformed(PduType::CAPSULE_RESP)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_promise_is_judged_by_its_criterion() {
        let latencies = |longest: f64| {
            Latencies(
                (1..=100)
                    .map(|it| f64::from(it) * longest / 100.0)
                    .collect(),
            )
        };
        let (alone, slower, slow) = (latencies(1.0), latencies(2.9), latencies(160.0));
        let kept = |promise: Promise, beside: &Latencies| promise.of(&alone, beside).1;
        assert!(kept(Promise::Fair, &slower) && !kept(Promise::Fair, &slow));
        assert!(
            !Promise::Fair.of(&latencies(60.0), &latencies(60.0)).1,
            "50 ms are too long"
        );
        assert!(kept(Promise::Borrowed, &slower) && !kept(Promise::Borrowed, &slow));
        assert!(kept(Promise::Median(3.0), &slower) && !kept(Promise::Median(1.2), &slower));
        let row = row(("others", "read"), &alone, &slow, Promise::Borrowed);
        let text = table(&[row]).to_string();
        assert!(text.contains("160.00 ms") && text.contains("NO"), "{text}");
    }
}
