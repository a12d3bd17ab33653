//! Results of transfer measurements, as JSON and as tables.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::Measured;
use bench::report::{Latency, Machine};
use bench::table::Table;
use bench::units::{format_count, format_nanos, format_size};

/// The results of one way.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct MethodReport {
    /// Transfers per second.
    pub per_second: f64,
    /// Work requests of both ends per transfer.
    pub work_requests: f64,
    /// Bytes that the program copied per transfer.
    pub copied_bytes: f64,
    /// Latency from the request to the data's arrival.
    pub latency: Latency,
}

impl MethodReport {
    fn new(measured: &Measured) -> Self {
        Self {
            per_second: measured.per_second,
            work_requests: measured.work_requests,
            copied_bytes: measured.copied_bytes,
            latency: Latency::from_histogram(&measured.latencies),
        }
    }
}

/// Comparison of WRITE-based and READ-based transfers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct MovementRow {
    /// Size of a transfer in bytes.
    pub bytes: usize,
    /// Number of transfers in flight.
    pub depth: usize,
    /// The server writes.
    pub write: MethodReport,
    /// The client reads.
    pub read: MethodReport,
}

impl MovementRow {
    pub(crate) fn new(bytes: usize, depth: usize, write: &Measured, read: &Measured) -> Self {
        Self {
            bytes,
            depth,
            write: MethodReport::new(write),
            read: MethodReport::new(read),
        }
    }
}

/// Comparison of data in messages and WRITE-based transfers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct MessageRow {
    /// Size of the data in bytes.
    pub bytes: usize,
    /// Number of transfers in flight.
    pub depth: usize,
    /// By RDMA WRITE, followed by the response.
    pub write: MethodReport,
    /// In the response, from registered memory.
    pub message: MethodReport,
    /// In the response, copied into the work request, if that has enough room.
    pub inline: Option<MethodReport>,
}

impl MessageRow {
    pub(crate) fn new(
        bytes: usize,
        depth: usize,
        write: &Measured,
        message: &Measured,
        inline: Option<&Measured>,
    ) -> Self {
        Self {
            bytes,
            depth,
            write: MethodReport::new(write),
            message: MethodReport::new(message),
            inline: inline.map(MethodReport::new),
        }
    }

    /// Whether data in the message was faster than a WRITE.
    fn message_wins(&self) -> bool {
        let inline = self.inline.map_or(0.0, |inline| inline.per_second);
        self.message.per_second.max(inline) > self.write.per_second
    }
}

/// Costs of memory that is not registered yet, as medians in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegistrationRow {
    /// Size of a transfer in bytes.
    pub bytes: usize,
    /// Registration and deregistration for each transfer.
    pub each_time_ns: u64,
    /// A miss in the registration cache, with an eviction.
    pub miss_ns: u64,
    /// A hit in the registration cache.
    pub hit_ns: u64,
    /// A copy to registered memory.
    pub copy_ns: u64,
}

/// All results of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TransfersReport {
    /// The machine of the measurement.
    pub machine: Machine,
    /// The RDMA device.
    pub device: String,
    /// Maximum inline data of a work request, in addition to a message.
    pub inline_bytes: usize,
    /// WRITE-based and READ-based transfers.
    pub movements: Vec<MovementRow>,
    /// Data in messages.
    pub messages: Vec<MessageRow>,
    /// Registration for each transfer, and the cache.
    pub registrations: Vec<RegistrationRow>,
}

impl TransfersReport {
    pub(crate) fn new(device: &str) -> Self {
        Self {
            machine: Machine::here(),
            device: device.to_owned(),
            inline_bytes: 0,
            movements: Vec::new(),
            messages: Vec::new(),
            registrations: Vec::new(),
        }
    }
}

/// The largest size up to which data in a message was always faster than a WRITE.
#[must_use]
pub fn inline_threshold_bytes(rows: &[MessageRow], depth: usize) -> Option<usize> {
    rows.iter()
        .filter(|row| row.depth == depth)
        .take_while(|row| row.message_wins())
        .last()
        .map(|row| row.bytes)
}

fn size(bytes: usize) -> String {
    format_size(bytes as u64)
}

fn rate(method: &MethodReport) -> String {
    format_count(method.per_second as u64)
}

impl TransfersReport {
    fn write_movements(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "WRITE-based and READ-based transfers\n")?;
        let mut table = Table::new(&[
            "size",
            "in flight",
            "WRITE/s",
            "p50",
            "READ/s",
            "p50",
            "WRITE : READ",
            "requests W",
            "requests R",
        ]);
        for row in &self.movements {
            table.row([
                size(row.bytes),
                row.depth.to_string(),
                rate(&row.write),
                format_nanos(row.write.latency.p50_ns),
                rate(&row.read),
                format_nanos(row.read.latency.p50_ns),
                format!(
                    "{:.2}",
                    row.write.per_second / row.read.per_second.max(1e-9)
                ),
                format!("{:.2}", row.write.work_requests),
                format!("{:.2}", row.read.work_requests),
            ]);
        }
        writeln!(f, "{table}")
    }

    fn write_messages(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Data within the answer, or by WRITE before it\n")?;
        let mut table = Table::new(&[
            "size",
            "in flight",
            "WRITE/s",
            "message/s",
            "inline/s",
            "message : WRITE",
        ]);
        for row in &self.messages {
            table.row([
                size(row.bytes),
                row.depth.to_string(),
                rate(&row.write),
                rate(&row.message),
                row.inline.as_ref().map_or_else(|| "-".to_owned(), rate),
                format!(
                    "{:.2}",
                    row.message.per_second / row.write.per_second.max(1e-9)
                ),
            ]);
        }
        writeln!(f, "{table}")?;
        let mut depths: Vec<usize> = self.messages.iter().map(|row| row.depth).collect();
        depths.dedup();
        for depth in depths {
            let threshold = inline_threshold_bytes(&self.messages, depth);
            let threshold = threshold.map_or_else(|| "nothing".to_owned(), size);
            writeln!(
                f,
                "  {depth} in flight: within the message up to {threshold}"
            )?;
        }
        writeln!(f)
    }
}

impl fmt::Display for TransfersReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} on {}\n", self.device, self.machine)?;
        self.write_movements(f)?;
        self.write_messages(f)?;
        writeln!(f, "Memory that is not registered yet, median times\n")?;
        let mut table = Table::new(&[
            "size",
            "register each time",
            "cache miss",
            "cache hit",
            "copy",
            "register : hit",
        ]);
        for row in &self.registrations {
            table.row([
                size(row.bytes),
                format_nanos(row.each_time_ns),
                format_nanos(row.miss_ns),
                format_nanos(row.hit_ns),
                format_nanos(row.copy_ns),
                format!("{:.1}", row.each_time_ns as f64 / row.hit_ns.max(1) as f64),
            ]);
        }
        write!(f, "{table}")
    }
}
