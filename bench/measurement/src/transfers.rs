//! Compares ways of transferring data by RDMA: which end issues the transfer, which data is sent in
//! messages, and the cost of memory registration.
//!
//! Two ends run on one thread with any provider: a server that has the data, and a client that
//! requests it. In the WRITE-based way the client describes its memory, and the server writes to it
//! and then sends a message (like NVMe/RDMA). In the READ-based way the server describes its
//! memory, and the client reads it and then sends a message; the server's memory is in use until
//! then. In the message-based way the message contains the data, and the client copies it from its
//! receive buffer. Results are only comparable with each other in the same run, because both ends
//! share a core.

mod ends;
mod memory;
mod pair;
mod report;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rdma::{Provider, SendOperation};

pub use memory::registration_costs;
pub use pair::{PairOptions, PairReport, measure_pair};
pub use report::{
    MessageRow, MovementRow, RegistrationRow, TransfersReport, inline_threshold_bytes,
};

use bench::report::{histogram, nanos};
use bench::units::format_size;
use ends::{Ends, Room, SLOT_BYTES_MAX, Side};

/// Memory for the default maximum number of transfers in flight and the default maximum size.
const ROOM: Room = Room {
    slots: 16,
    slot_bytes: SLOT_BYTES_MAX,
};

/// The reason why a measurement failed.
#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    /// A step of the set-up failed.
    #[error("{step}: {source}")]
    Rdma {
        /// The step.
        step: &'static str,
        /// The error.
        source: rdma::Error,
    },
    /// The number of transfers in flight is out of range.
    #[error("a depth of {0} is not possible: choose 1 to {1}")]
    Depth(usize, usize),
    /// The size of the data is out of range.
    #[error(
        "requests of {} are not possible: choose 1 byte to {}",
        format_size(*.0 as u64), format_size(*.1 as u64)
    )]
    Data(usize, usize),
    /// Memory is not available.
    #[error("no memory: {0}")]
    Memory(String),
    /// A work request failed.
    #[error("a work request failed: {0}")]
    Work(String),
    /// The two ends did not connect.
    #[error("the two ends cannot connect: {0}")]
    Apart(String),
    /// The received data differs from the sent data.
    #[error("{0} bytes arrived wrong")]
    WrongData(usize),
}

pub(crate) fn step(step: &'static str) -> impl Fn(rdma::Error) -> TransferError {
    move |source| TransferError::Rdma { step, source }
}

/// How data is transferred from the server to the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransferMethod {
    /// The server writes to the client's memory.
    Write,
    /// The client reads the server's memory.
    Read,
    /// In the message, from registered memory.
    Message,
    /// In the message, copied into the work request (inline data).
    Inline,
}

/// Parameters of the measurement.
#[derive(Debug, Clone)]
pub struct TransferOptions {
    /// Sizes of WRITE-based and READ-based transfers in bytes.
    pub sizes: Vec<usize>,
    /// Sizes of data in messages in bytes.
    pub message_sizes: Vec<usize>,
    /// Numbers of transfers in flight.
    pub depths: Vec<usize>,
    /// Number of rounds in which the ways alternate; results are medians.
    pub rounds: usize,
    /// Duration of each measurement of a round.
    pub duration: Duration,
}

impl Default for TransferOptions {
    fn default() -> Self {
        let kib = |count: usize| count << 10;
        Self {
            sizes: vec![kib(4), kib(16), kib(64), kib(128), kib(512), kib(1024)],
            message_sizes: vec![16, 64, 128, 256, 512, kib(1), kib(2), kib(4)],
            depths: vec![1, 16],
            rounds: 5,
            duration: Duration::from_millis(100),
        }
    }
}

/// The results of one way.
#[derive(Debug, Clone)]
pub struct Measured {
    /// Transfers per second.
    pub per_second: f64,
    /// Work requests of both ends per transfer.
    pub work_requests: f64,
    /// Bytes that this program copied per transfer.
    pub copied_bytes: f64,
    /// Time from the request to the data's arrival in nanoseconds.
    pub latencies: Histogram<u64>,
}

/// Measures all ways between `server` and `client`, which may be the same provider.
///
/// # Errors
/// [`TransferError`].
pub fn measure<P: Provider>(
    server: &P,
    client: &P,
    address: SocketAddr,
    options: &TransferOptions,
    mut step: impl FnMut(&str),
) -> Result<TransfersReport, TransferError> {
    let mut ends = Ends::connect(server, client, address, ROOM)?;
    let mut report = TransfersReport::new(&ends.device_name());
    report.inline_bytes = ends.inline_bytes();
    for &depth in &options.depths {
        for &bytes in &options.sizes {
            step(&format!("{bytes} bytes, {depth} in flight"));
            let methods = [TransferMethod::Write, TransferMethod::Read];
            let [write, read] = in_turn(&mut ends, methods, bytes, depth, options)?;
            report
                .movements
                .push(MovementRow::new(bytes, depth, &write, &read));
        }
        for &bytes in &options.message_sizes {
            step(&format!("{bytes} bytes in messages, {depth} in flight"));
            let methods = [TransferMethod::Write, TransferMethod::Message];
            let (write, message, inline) = if bytes <= ends.inline_bytes() {
                let methods = [
                    TransferMethod::Write,
                    TransferMethod::Message,
                    TransferMethod::Inline,
                ];
                let [write, message, inline] = in_turn(&mut ends, methods, bytes, depth, options)?;
                (write, message, Some(inline))
            } else {
                let [write, message] = in_turn(&mut ends, methods, bytes, depth, options)?;
                (write, message, None)
            };
            report.messages.push(MessageRow::new(
                bytes,
                depth,
                &write,
                &message,
                inline.as_ref(),
            ));
        }
    }
    step("registrations");
    report.registrations = registration_costs::<P>(ends.domain(), &options.sizes)?;
    Ok(report)
}

/// The kinds of the server's and the client's messages, in their first byte.
const REQUEST: u8 = 1;
const RESPONSE: u8 = 2;
const DONE: u8 = 3;

/// Size of every message without data, in bytes.
const MESSAGE_BYTES: usize = 16;

fn message(kind: u8, slot: usize) -> [u8; MESSAGE_BYTES] {
    let mut bytes = [0; MESSAGE_BYTES];
    bytes[0] = kind;
    bytes[1..9].copy_from_slice(&(slot as u64).to_le_bytes());
    bytes
}

fn slot_of(bytes: &[u8]) -> usize {
    let mut slot = [0; 8];
    slot.copy_from_slice(&bytes[1..9]);
    u64::from_le_bytes(slot) as usize
}

/// The median of each way over rounds in which the ways alternate, so that other load on the
/// machine affects all of them.
fn in_turn<P: Provider, const N: usize>(
    ends: &mut Ends<P>,
    methods: [TransferMethod; N],
    bytes: usize,
    depth: usize,
    options: &TransferOptions,
) -> Result<[Measured; N], TransferError> {
    let mut rounds = [const { Vec::new() }; N];
    for _ in 0..options.rounds.max(1) {
        for (method, measured) in methods.iter().zip(&mut rounds) {
            measured.push(run(ends, *method, bytes, depth, options.duration)?);
        }
    }
    Ok(rounds.map(|mut measured: Vec<Measured>| {
        measured.sort_by(|a, b| a.per_second.total_cmp(&b.per_second));
        measured.swap_remove(measured.len() / 2)
    }))
}

/// Transfers data in one way for a time.
fn run<P: Provider>(
    ends: &mut Ends<P>,
    method: TransferMethod,
    bytes: usize,
    depth: usize,
    duration: Duration,
) -> Result<Measured, TransferError> {
    ends.prepare(bytes, depth);
    let mut started = vec![None; depth];
    let (mut ended, mut copied) = (0_u64, 0_u64);
    let mut latencies = histogram();
    let begun = Instant::now();
    let requests_before = ends.work_requests();
    loop {
        let now = Instant::now();
        let over = now - begun >= duration;
        for (slot, start) in started.iter_mut().enumerate() {
            if start.is_none() && !over {
                *start = Some(now);
                ends.send(Side::Client, &message(REQUEST, slot))?;
            }
        }
        if over && started.iter().all(Option::is_none) {
            break;
        }
        ends.flush(Side::Client)?;
        let served = serve(ends, method, bytes)?;
        ends.flush(Side::Server)?;
        let finished = collect(ends, method, bytes, &mut copied)?;
        if served == 0 && finished.is_empty() {
            // A software device may need this core.
            std::thread::yield_now();
        }
        for slot in finished {
            if let Some(start) = started[slot].take() {
                ended += 1;
                latencies.saturating_record(nanos(start.elapsed()));
            }
        }
    }
    let elapsed = begun.elapsed();
    ends.check(method, bytes)?;
    Ok(Measured {
        per_second: ended as f64 / elapsed.as_secs_f64(),
        work_requests: (ends.work_requests() - requests_before) as f64 / ended.max(1) as f64,
        copied_bytes: copied as f64 / ended.max(1) as f64,
        latencies,
    })
}

/// Runs the server. Returns the number of received messages.
fn serve<P: Provider>(
    ends: &mut Ends<P>,
    method: TransferMethod,
    bytes: usize,
) -> Result<usize, TransferError> {
    let messages = ends.poll(Side::Server)?.messages;
    let count = messages.len();
    for arrived in messages {
        let slot = slot_of(&arrived);
        if arrived[0] != REQUEST {
            // The client has read the data: the server's memory is free.
            continue;
        }
        match method {
            TransferMethod::Write => {
                let to = ends.remote(Side::Client, slot);
                ends.move_data(Side::Server, SendOperation::Write(to), slot, bytes)?;
                ends.send(Side::Server, &message(RESPONSE, slot))?;
            }
            TransferMethod::Read => ends.send(Side::Server, &message(RESPONSE, slot))?,
            TransferMethod::Message | TransferMethod::Inline => {
                ends.send_data(
                    slot,
                    bytes,
                    method == TransferMethod::Inline,
                    &message(RESPONSE, slot),
                )?;
            }
        }
    }
    Ok(count)
}

/// Runs the client. Returns the completed transfers.
fn collect<P: Provider>(
    ends: &mut Ends<P>,
    method: TransferMethod,
    bytes: usize,
    copied: &mut u64,
) -> Result<Vec<usize>, TransferError> {
    let polled = ends.poll(Side::Client)?;
    let mut ended = Vec::new();
    for arrived in polled.messages {
        let slot = slot_of(&arrived);
        match method {
            TransferMethod::Write => ended.push(slot),
            TransferMethod::Read => {
                let from = ends.remote(Side::Server, slot);
                ends.move_data(Side::Client, SendOperation::Read(from), slot, bytes)?;
            }
            TransferMethod::Message | TransferMethod::Inline => {
                let data = &arrived[arrived.len() - bytes.min(arrived.len())..];
                ends.place(slot, data);
                *copied += data.len() as u64;
                ended.push(slot);
            }
        }
    }
    for slot in polled.reads {
        ends.send(Side::Client, &message(DONE, slot))?;
        ended.push(slot);
    }
    if method == TransferMethod::Read {
        ends.flush(Side::Client)?;
    }
    Ok(ended)
}

#[cfg(test)]
mod tests {
    use rdma_testing::fake::{DeviceConfig, Fabric, FabricConfig};

    use super::*;

    #[test]
    fn every_transfer_method_moves_data_and_counts_work() {
        let fabric = Fabric::new(FabricConfig::IMMEDIATE);
        let machine = |name, address: [u8; 4]| {
            let device = DeviceConfig::new(name, address.into());
            fabric.machine(&[device]).expect("a machine")
        };
        let (server, client) = (machine("a", [10, 0, 0, 1]), machine("b", [10, 0, 0, 2]));
        let options = TransferOptions {
            sizes: vec![4096, 1 << 20],
            message_sizes: vec![64, 4096],
            depths: vec![1, 4],
            rounds: 1,
            duration: Duration::from_millis(5),
        };
        let address = SocketAddr::from(([10, 0, 0, 1], 0));
        let report = measure(&server, &client, address, &options, |_| {}).expect("measured");
        assert_eq!((report.movements.len(), report.messages.len()), (4, 4));
        for row in &report.movements {
            // A request, the data, a response; a READ needs one more message.
            assert!((row.write.work_requests - 3.0).abs() < 0.01, "{row:?}");
            assert!((row.read.work_requests - 4.0).abs() < 0.01, "{row:?}");
            assert_eq!((row.write.copied_bytes, row.read.copied_bytes), (0.0, 0.0));
        }
        for row in &report.messages {
            assert!((row.message.work_requests - 2.0).abs() < 0.01, "{row:?}");
            assert_eq!(row.message.copied_bytes, row.bytes as f64);
            assert_eq!(row.inline.is_some(), row.bytes == 64);
        }
        assert_eq!(report.registrations.len(), 2);
        assert!(report.to_string().contains("WRITE-based"));
    }
}
