//! `measure files`: what one core serves by NFS, beside NVMe/TCP from a device of the same kind.
//!
//! Server and clients take turns on one thread, as in [`files_loop`](super::files_loop), and only the
//! server's turns are timed, with the kernel's part in them. So the rates are those of a core that
//! does nothing but serve, and the speed of clients does not matter. Rounds of all rows alternate,
//! and ratios are taken within a round.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use bench::random::Random;
use bench::report::Machine;
use bench::table::Table;
use bench::units::{format_count, median};

use super::files_loop::{Client, Job, Load, Rig, Storage, run_batch};
use super::measure::CostError;
use super::rig::{DEVICE_BYTES, Extent, ram};
use super::tcp_host::{Batch, Host};
use super::tcp_rig;

/// What a row has to reach.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Goal {
    /// This ratio to NVMe/TCP.
    Ratio(f64),
    /// This number of requests per second.
    Rate(f64),
}

/// A row with its load.
struct Row {
    name: &'static str,
    goal: Goal,
    storage: Storage,
    load: Load,
    batches: usize,
}

/// Requests of a batch of metadata on one connection.
const DEPTH: u32 = 64;

const fn metadata(name: &'static str, storage: Storage, job: Job, rate: f64) -> Row {
    Row {
        name,
        goal: Goal::Rate(rate),
        storage,
        load: Load {
            job,
            bytes: 0,
            depth: DEPTH,
            connections: 2,
        },
        batches: 3,
    }
}

const fn read(name: &'static str, ratio: f64, bytes: u32, shape: (u32, usize, usize)) -> Row {
    let (depth, connections, batches) = shape;
    Row {
        name,
        goal: Goal::Ratio(ratio),
        storage: Storage::Volatile,
        load: Load {
            job: Job::Read,
            bytes,
            depth,
            connections,
        },
        batches,
    }
}

const ROWS: [Row; 6] = [
    read("read 4 KiB, 128 in flight", 0.7, 4096, (64, 2, 50)),
    read("read 1 MiB, 1 in flight", 0.9, 1 << 20, (1, 1, 200)),
    metadata(
        "make a directory, volatile",
        Storage::Volatile,
        Job::MakeDirectory,
        100_000.0,
    ),
    metadata(
        "create and close a file, volatile",
        Storage::Volatile,
        Job::CreateFile,
        100_000.0,
    ),
    metadata(
        "make a directory, durable",
        Storage::Durable,
        Job::MakeDirectory,
        50_000.0,
    ),
    metadata(
        "create and close a file, durable",
        Storage::Durable,
        Job::CreateFile,
        50_000.0,
    ),
];

/// The results of a row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RateRow {
    /// Its name.
    pub name: String,
    /// What it has to reach.
    pub goal: Goal,
    /// Requests per second of the server's core, of each round.
    pub rates: Vec<f64>,
    /// The same of NVMe/TCP, if it is compared.
    pub nvme_rates: Vec<f64>,
}

impl RateRow {
    /// The median ratio to NVMe/TCP.
    #[must_use]
    pub fn ratio(&self) -> Option<f64> {
        let pairs = self.rates.iter().zip(&self.nvme_rates);
        let ratios: Vec<f64> = pairs.map(|(own, nvme)| own / nvme).collect();
        (!ratios.is_empty()).then(|| median(&ratios))
    }

    /// Whether it reaches its goal.
    #[must_use]
    pub fn meets_goal(&self) -> bool {
        match self.goal {
            Goal::Ratio(least) => self.ratio().is_some_and(|it| it >= least),
            Goal::Rate(least) => median(&self.rates) >= least,
        }
    }
}

/// All results.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FilesReport {
    /// The machine.
    pub machine: Machine,
    /// The rows.
    pub rows: Vec<RateRow>,
}

impl fmt::Display for FilesReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rounds = self.rows.first().map_or(0, |row| row.rates.len());
        writeln!(
            f,
            "requests of files per second of the server's core, medians of {rounds} rounds\n  on {}\n",
            self.machine
        )?;
        let mut table = Table::new(&["", "NFS", "NVMe/TCP", "ratio", "goal", ""]);
        for row in &self.rows {
            let rate = |rates: &[f64]| match rates {
                [] => String::new(),
                rates => format_count(median(rates) as u64),
            };
            let ratio = row.ratio().map(|it| format!("{it:.2}"));
            table.row([
                row.name.clone(),
                rate(&row.rates),
                rate(&row.nvme_rates),
                ratio.unwrap_or_default(),
                match row.goal {
                    Goal::Ratio(least) => format!("{least:.2} of it"),
                    Goal::Rate(least) => format_count(least as u64),
                },
                if row.meets_goal() { "met" } else { "missed" }.to_owned(),
            ]);
        }
        write!(f, "{table}")
    }
}

/// The servers of one storage, with their clients.
struct Files {
    rig: Rig,
    clients: Vec<Client>,
}

impl Files {
    fn new(storage: Storage) -> Result<Self, CostError> {
        let mut rig = Rig::new(storage)?;
        let clients = rig.clients()?;
        Ok(Self { rig, clients })
    }

    /// Requests per second of the server's core.
    fn rate(&mut self, row: &Row, random: &mut Random) -> Result<f64, CostError> {
        let clients = &mut self.clients[..row.load.connections];
        let before = self.rig.busy;
        for _ in 0..row.batches {
            let batch: Vec<Vec<u8>> = clients
                .iter_mut()
                .map(|it| it.batch(&row.load, random))
                .collect();
            run_batch(&mut self.rig, clients, &row.load, &batch)?;
        }
        let requests = row.batches * row.load.connections * row.load.depth as usize;
        Ok(requests as f64 / (self.rig.busy - before).as_secs_f64())
    }
}

/// NVMe/TCP from a RAM device.
struct Nvme {
    rig: tcp_rig::Rig,
    host: Host,
}

impl Nvme {
    fn new() -> Result<Self, CostError> {
        let mut rig = tcp_rig::Rig::new(&Extent::ONE, |_| {
            let device: Arc<dyn block::Device> = ram(DEVICE_BYTES)?;
            Ok(vec![device])
        })?;
        let mut host = rig.attach(0, 0)?;
        rig.sync_sent_count(&mut host);
        Ok(Self { rig, host })
    }

    fn rate(&mut self, row: &Row, random: &mut Random) -> Result<f64, CostError> {
        let depth = row.load.depth as usize * row.load.connections;
        let batch = Batch {
            nsid: 1,
            device_bytes: DEVICE_BYTES,
            write: false,
            bytes: row.load.bytes,
            depth: depth as u16,
        };
        let before = self.rig.busy;
        for _ in 0..row.batches {
            self.rig.run_batch(&mut self.host, &batch, random)?;
        }
        let requests = row.batches * depth;
        Ok(requests as f64 / (self.rig.busy - before).as_secs_f64())
    }
}

/// Measures all rows in `rounds` rounds, after one that does not count.
///
/// # Errors
/// [`CostError::Setup`].
pub fn measure(rounds: usize) -> Result<FilesReport, CostError> {
    let mut volatile = Files::new(Storage::Volatile)?;
    let mut durable = Files::new(Storage::Durable)?;
    let mut nvme = Nvme::new()?;
    let mut random = Random::new(1);
    let mut rows: Vec<RateRow> = ROWS
        .iter()
        .map(|row| RateRow {
            name: row.name.to_owned(),
            goal: row.goal,
            rates: Vec::new(),
            nvme_rates: Vec::new(),
        })
        .collect();
    for round in 0..=rounds {
        for (row, results) in ROWS.iter().zip(&mut rows) {
            let files = match row.storage {
                Storage::Volatile => &mut volatile,
                Storage::Durable => &mut durable,
            };
            let rate = files.rate(row, &mut random)?;
            let beside = match row.goal {
                Goal::Ratio(_) => Some(nvme.rate(row, &mut random)?),
                Goal::Rate(_) => None,
            };
            if round > 0 {
                results.rates.push(rate);
                results.nvme_rates.extend(beside);
            }
        }
    }
    Ok(FilesReport {
        machine: Machine::here(),
        rows,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(goal: Goal, rates: &[f64], nvme_rates: &[f64]) -> RateRow {
        RateRow {
            name: "row".to_owned(),
            goal,
            rates: rates.to_vec(),
            nvme_rates: nvme_rates.to_vec(),
        }
    }

    #[test]
    fn goals_are_those_of_medians() {
        let ratio = Goal::Ratio(0.7);
        // The ratios are 0.6, 0.8 and 0.7.
        let all = row(ratio, &[60.0, 160.0, 7.0], &[100.0, 200.0, 10.0]);
        assert!(all.meets_goal());
        assert!(!row(ratio, &[69.0], &[100.0]).meets_goal());
        assert!(!row(ratio, &[], &[]).meets_goal());
        assert!(row(Goal::Rate(50.0), &[1.0, 50.0, 900.0], &[]).meets_goal());
        assert!(!row(Goal::Rate(50.0), &[49.0], &[]).meets_goal());
        assert_eq!(row(Goal::Rate(50.0), &[49.0], &[]).ratio(), None);
    }

    #[test]
    fn reports_tell_missed_goals() {
        let report = FilesReport {
            machine: Machine::here(),
            rows: vec![row(Goal::Ratio(0.7), &[30.0], &[100.0])],
        };
        let text = report.to_string();
        for part in ["0.30", "0.70 of it", "missed"] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
    }
}
