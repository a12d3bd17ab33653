//! One busy connection beside many others: idle ones, and ones that connect and disconnect.
//!
//! Each round measures twice alone and twice beside others, in an order that cancels out a steady
//! change of the machine's speed (alone, beside, beside, alone; reversed in the next round). Only
//! the median of the ratios per round is reported. Hosts that connect and disconnect run on the
//! busy host's own core, so the ratio is a lower bound.
//!
//! After that it measures a host with one request in flight beside hosts that hold memory, blocks
//! and controllers: see `beside`.

mod beside;
mod handshakes;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nvme_host_testing::Names;
use nvme_host_testing::tcp::{RawClient, RawError};
use serde::Serialize;

use self::beside::BesideRow;
use crate::compare::target::{NQN, Target, TargetOptions};
use crate::compare::{CompareError, CompareOptions, Load, measure_target};
use bench::pinning::{PinError, pin_to_core};
use bench::report::Machine;
use bench::table::Table;
use bench::units::{format_count, median, per_second};

/// Requests in flight on the busy connection.
const DEPTH: usize = 128;
/// Number of threads for hosts that connect and disconnect: each waits for the target's responses,
/// and for the scheduler to preempt the busy host, which polls on the same core.
const STORM_THREADS: u32 = 32;
/// Maximum duration of one step of a host.
const LIMIT: Duration = Duration::from_secs(20);

/// Parameters of the measurement.
#[derive(Debug, Clone)]
pub struct StormOptions {
    /// The appliance's binary.
    pub windlass: PathBuf,
    /// Core of the target.
    pub target_core: usize,
    /// Core of the busy host.
    pub host_core: usize,
    /// Number of rounds; results are medians.
    pub rounds: usize,
    /// Counted time of one measurement.
    pub duration: Duration,
    /// Number of open idle connections: two for each host.
    pub idle: u16,
    /// Connections opened and closed per second.
    pub connects_per_second: u32,
}

/// The reason why the measurement failed.
#[derive(Debug, thiserror::Error)]
pub enum StormError {
    /// An error of the target or the load.
    #[error(transparent)]
    Compare(#[from] CompareError),
    /// A host that connects and disconnects cannot be on its core.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// An error of a host that is idle, or that connects and disconnects.
    #[error("a connection beside the busy one: {0}")]
    Beside(#[from] RawError),
}

/// Requests per second on the busy connection, each the mean of two measurements.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct RatePair {
    /// Alone.
    pub alone: f64,
    /// Beside others.
    pub beside: f64,
}

impl RatePair {
    /// The remaining share of its rate.
    fn remaining_share(&self) -> f64 {
        self.beside / self.alone
    }
}

/// The results of one round.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct StormRound {
    /// Beside idle connections.
    pub idle: RatePair,
    /// Beside connections that open and close.
    pub storm: RatePair,
    /// The actual number of these per second.
    pub connects_per_second: f64,
}

/// All rounds.
#[derive(Debug, Clone, Serialize)]
pub struct StormReport {
    /// The machine of the measurement.
    pub machine: Machine,
    /// Idle connections.
    pub idle: u16,
    /// Each round.
    pub rounds: Vec<StormRound>,
    /// The target's busy share while hosts connected and disconnected, scaled to 5,000 of them per
    /// second.
    pub busy_per_5000_connects: f64,
    /// The number per second at which this was measured.
    pub connects_measured: f64,
    /// One host beside others that take all available resources.
    pub beside: Vec<BesideRow>,
}

impl StormReport {
    /// The busy connection's rate beside idle ones, relative to its rate alone: the median.
    #[must_use]
    pub fn idle_ratio(&self) -> f64 {
        self.median_of(|round| round.idle.remaining_share())
    }

    /// The same beside those that open and close.
    #[must_use]
    pub fn storm_ratio(&self) -> f64 {
        self.median_of(|round| round.storm.remaining_share())
    }

    fn median_of(&self, value: impl Fn(&StormRound) -> f64) -> f64 {
        median(&self.rounds.iter().map(value).collect::<Vec<_>>())
    }
}

impl std::fmt::Display for StormReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "4 KiB reads over one connection, {DEPTH} in flight")?;
        writeln!(f, "  on {}\n", self.machine)?;
        let mut table = Table::new(&["beside", "alone/s", "beside them/s", "ratio"]);
        let rate = |value: f64| format_count(value as u64);
        table.row([
            format!("{} idle connections", self.idle),
            rate(self.median_of(|round| round.idle.alone)),
            rate(self.median_of(|round| round.idle.beside)),
            format!("{:.3}", self.idle_ratio()),
        ]);
        let connects = self.median_of(|round| round.connects_per_second);
        table.row([
            format!("{connects:.0} connects and disconnects a second"),
            rate(self.median_of(|round| round.storm.alone)),
            rate(self.median_of(|round| round.storm.beside)),
            format!("{:.3}", self.storm_ratio()),
        ]);
        writeln!(f, "{table}")?;
        let percent = 100.0 * self.busy_per_5000_connects;
        writeln!(
            f,
            "5,000 connects a second keep the target busy for {percent:.1} % of its time \
             (measured at {:.0} a second)\n",
            self.connects_measured
        )?;
        write!(f, "{}", beside::table(&self.beside))
    }
}

/// Measures round by round; calls `report_step` before each.
///
/// # Errors
/// [`StormError`].
pub fn measure(
    options: &StormOptions,
    mut report_step: impl FnMut(&str),
) -> Result<StormReport, StormError> {
    let compare = CompareOptions {
        windlass: options.windlass.clone(),
        target_core: options.target_core,
        host_core: options.host_core,
        rounds: options.rounds,
        duration: options.duration,
        warm_up: Duration::from_millis(300),
        namespace_bytes: 64 << 20,
        starts: 1,
    };
    let start = |tls| {
        let target = Target::start(&TargetOptions {
            more: "[limits]\nmax_connections = 8192\nmax_controllers = 4096\n",
            tls,
            ..compare.target()
        });
        target.map_err(CompareError::from)
    };
    let target = start(false)?;
    let busy = || -> Result<f64, StormError> {
        Ok(measure_target(&compare, target.address, &Load::reads(DEPTH))?.requests_per_second)
    };
    let mut rounds = Vec::new();
    let (busy_per_5000_connects, connects_measured) = busy_with_connects(&target, options)?;
    for round in 0..options.rounds {
        report_step(&format!("round {} of {}", round + 1, options.rounds));
        let mut idle = None;
        let beside_idle = balanced(round, |beside| {
            match (beside, &idle) {
                (true, None) => idle = Some(connect_idle(target.address, options.idle)?),
                (true, Some(_)) => {}
                (false, _) => idle = None,
            }
            busy()
        })?;
        drop(idle);
        let mut connects = Vec::new();
        let beside_storm = balanced(round, |beside| {
            if !beside {
                return busy();
            }
            let (rate, connects_per_second) = during_storm(target.address, options, busy)?;
            connects.push(connects_per_second);
            Ok(rate)
        })?;
        rounds.push(StormRound {
            idle: beside_idle,
            storm: beside_storm,
            connects_per_second: median(&connects),
        });
    }
    let mut beside = beside::measure(&target, &mut report_step)?;
    drop(target);
    report_step("TLS handshakes");
    beside.push(handshakes::measure(&start(true)?)?);
    Ok(StormReport {
        machine: Machine::here(),
        idle: options.idle,
        rounds,
        busy_per_5000_connects,
        connects_measured,
        beside,
    })
}

/// Measures twice alone and twice beside others; `measure` is passed which. A steady change over
/// the four measurements affects both means equally.
fn balanced<E>(
    round: usize,
    mut measure: impl FnMut(bool) -> Result<f64, E>,
) -> Result<RatePair, E> {
    let mut rates = RatePair::default();
    let first_beside = round % 2 == 1;
    for beside in [first_beside, !first_beside, !first_beside, first_beside] {
        let rate = measure(beside)? / 2.0;
        if beside {
            rates.beside += rate;
        } else {
            rates.alone += rate;
        }
    }
    Ok(rates)
}

fn names(host: u16) -> Names {
    Names {
        host: format!("nqn.2026-11.org.windlass:host{host}"),
        host_id: [host as u8 | 1; 16],
        subsystem: NQN.to_owned(),
    }
}

/// Hosts that connect an admin queue and an I/O queue and then stay idle.
fn connect_idle(
    address: SocketAddr,
    connections: u16,
) -> Result<Vec<(RawClient, RawClient)>, RawError> {
    (0..connections / 2)
        .map(|host| {
            let mut admin = RawClient::connect(address, LIMIT)?;
            let cntlid = admin.open_admin(&names(host))?;
            let mut io = RawClient::connect(address, LIMIT)?;
            io.open_io(&names(host), cntlid, 1)?;
            Ok((admin, io))
        })
        .collect()
}

/// The target's busy share when 5,000 hosts per second connect and disconnect, extrapolated from
/// the actual number, which is returned too.
fn busy_with_connects(target: &Target, options: &StormOptions) -> Result<(f64, f64), StormError> {
    let time = Duration::from_secs(2);
    let busy_before = target.busy_time().unwrap_or_default();
    let pause = || {
        std::thread::sleep(time);
        Ok(0.0)
    };
    let (_, rate) = during_storm(target.address, options, pause)?;
    let busy = target
        .busy_time()
        .unwrap_or_default()
        .saturating_sub(busy_before);
    let share = busy.as_secs_f64() / time.as_secs_f64();
    Ok((share * 5000.0 / rate.max(1.0), rate))
}

/// Runs `busy` while hosts connect their admin queue and disconnect at this rate. Returns its
/// result, and the actual number per second.
fn during_storm(
    address: SocketAddr,
    options: &StormOptions,
    busy: impl Fn() -> Result<f64, StormError>,
) -> Result<(f64, f64), StormError> {
    let connects_per_second = options.connects_per_second;
    let over = AtomicBool::new(false);
    let connects = AtomicU64::new(0);
    let between = Duration::from_secs(1) * STORM_THREADS / connects_per_second.max(1);
    let began = Instant::now();
    std::thread::scope(|scope| {
        let come_and_go = |thread: u32| -> Result<(), StormError> {
            // On the target's core they would take its time, which counts as busy.
            pin_to_core(options.host_core)?;
            let mut due = began + between * thread / STORM_THREADS;
            while !over.load(Ordering::Acquire) {
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
                due += between;
                let mut admin = RawClient::connect(address, LIMIT)?;
                admin.open_admin(&names(u16::MAX - thread as u16))?;
                connects.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        };
        let threads: Vec<_> = (0..STORM_THREADS)
            .map(|thread| scope.spawn(move || come_and_go(thread)))
            .collect();
        let measured = busy();
        let rate = per_second(connects.load(Ordering::Relaxed), began.elapsed());
        over.store(true, Ordering::Release);
        for thread in threads {
            if let Ok(result) = thread.join() {
                result?;
            }
        }
        Ok((measured?, rate))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn storm_ratios_are_taken_within_a_round() {
        let round = |alone: f64, beside: f64| StormRound {
            idle: RatePair { alone, beside },
            storm: RatePair {
                alone,
                beside: beside / 2.0,
            },
            connects_per_second: 1000.0,
        };
        let report = StormReport {
            machine: Machine::here(),
            idle: 2000,
            rounds: vec![round(100.0, 95.0), round(10.0, 9.9), round(200.0, 100.0)],
            busy_per_5000_connects: 0.2,
            connects_measured: 4000.0,
            beside: Vec::new(),
        };
        assert!((report.idle_ratio() - 0.95).abs() < 1e-9);
        assert!((report.storm_ratio() - 0.475).abs() < 1e-9);
        let text = report.to_string();
        assert!(
            text.contains("2000 idle connections") && text.contains("0.950"),
            "{text}"
        );
        assert!(
            text.contains("1000 connects and disconnects a second"),
            "{text}"
        );
    }

    #[test]
    fn steady_slowdown_does_not_affect_the_ratio() {
        for round in [0, 1] {
            let mut rate = 1000.0;
            let rates = balanced(round, |beside| {
                rate -= 100.0;
                Ok::<_, RawError>(if beside { 0.9 * rate } else { rate })
            });
            let rates = rates.expect("measured");
            assert!((rates.remaining_share() - 0.9).abs() < 1e-9, "{rates:?}");
        }
    }

    #[test]
    fn a_missing_binary_is_an_error() {
        let options = StormOptions {
            windlass: PathBuf::from("/nonexistent/windlass"),
            target_core: 0,
            host_core: 0,
            rounds: 1,
            duration: Duration::from_millis(10),
            idle: 1,
            connects_per_second: 1,
        };
        assert!(measure(&options, |_| {}).is_err());
    }
}
