//! Runs a seed, reports the result, and shrinks a failure.

use std::cell::RefCell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use reactors::Nanos;

use crate::faults::{Fault, Faults};
use crate::figures::Figures;
use crate::files::{FileSwarm, FileWorld};
use crate::judge::Violation;
use crate::swarm::{Limits, Scenario, Swarm};
use crate::trace::LINES_DEFAULT;
use crate::world::World;

thread_local! {
    /// The last panic of this thread, with its location.
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// A failed run.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// What the run was cut down to.
    pub limits: Limits,
    /// The violation.
    pub violation: Violation,
    /// The event in which the violation was detected.
    pub event: u64,
    /// The virtual time of the violation.
    pub at: Nanos,
    /// The faults that were on.
    pub faults: Faults,
    /// The last lines of the trace.
    pub story: Vec<String>,
}

impl Failure {
    /// The command that replays it.
    #[must_use]
    pub fn command(&self) -> String {
        let mut command = format!("cargo xtask sim --seed {}", self.seed);
        if self.limits.scenario != Scenario::default() {
            command += &format!(" --scenario {}", self.limits.scenario.name());
        }
        if let Some(events) = self.limits.events {
            command += &format!(" --events {events}");
        }
        if let Some(hosts) = self.limits.hosts {
            command += &format!(" --hosts {hosts}");
        }
        let without: Vec<&str> = self.limits.without.iter().map(Fault::name).collect();
        if !without.is_empty() {
            command += &format!(" --without {}", without.join(","));
        }
        let with: Vec<&str> = self.limits.with.iter().map(Fault::name).collect();
        if !with.is_empty() {
            command += &format!(" --with {}", with.join(","));
        }
        command
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.story {
            writeln!(f, "{line}")?;
        }
        writeln!(
            f,
            "seed {} fails at event {}, after {}: {}",
            self.seed, self.event, self.at, self.violation
        )?;
        let faults: Vec<&str> = self.faults.iter().map(Fault::name).collect();
        writeln!(f, "faults that were on: {}", faults.join(" "))?;
        write!(f, "replay: {}", self.command())
    }
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Counters of the run.
    pub figures: Figures,
    /// Hash of the trace; equal for equal runs.
    pub hash: u64,
    /// The failure, if any.
    pub failure: Option<Failure>,
}

/// Installs a panic hook that records panics instead of printing them, because they are part of a
/// run's result.
pub fn note_panics() {
    std::panic::set_hook(Box::new(|panic| {
        PANIC.with(|last| *last.borrow_mut() = Some(panic.to_string()));
    }));
}

/// Runs a seed.
#[must_use]
pub fn run(seed: u64, limits: &Limits) -> Outcome {
    run_with_trace(seed, limits, LINES_DEFAULT)
}

/// Runs a seed. A failure contains the last `lines` lines of the trace.
#[must_use]
pub fn run_with_trace(seed: u64, limits: &Limits, lines: usize) -> Outcome {
    match limits.scenario {
        Scenario::Fabrics => run_fabrics(seed, limits, lines),
        Scenario::Files => run_files(seed, limits, lines),
    }
}

/// The last panic of this thread.
fn last_panic() -> Violation {
    let text = PANIC.with(|last| last.borrow_mut().take());
    let text = text.unwrap_or_else(|| "a panic".to_owned());
    Violation::Panic(text.replace('\n', " "))
}

fn run_files(seed: u64, limits: &Limits, lines: usize) -> Outcome {
    let swarm = FileSwarm::of(seed, limits.events, limits.hosts);
    let failure = |violation, event, at, story| Failure {
        seed,
        limits: limits.clone(),
        violation,
        event,
        at,
        faults: Faults::default(),
        story,
    };
    let mut world = match FileWorld::new(seed, swarm) {
        Ok(world) => world,
        Err(error) => {
            let violation = Violation::Rule(error);
            return Outcome {
                figures: Figures::default(),
                hash: 0,
                failure: Some(failure(violation, 0, Nanos::ZERO, Vec::new())),
            };
        }
    };
    world.trace.keep(lines);
    let violation = match catch_unwind(AssertUnwindSafe(|| world.run())) {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(Violation::Rule(error)),
        Err(_) => Some(last_panic()),
    };
    let story = world.trace.last_lines();
    Outcome {
        figures: world.figures(),
        hash: world.trace.hash(),
        failure: violation.map(|it| failure(it, world.event, world.time.now(), story)),
    }
}

fn run_fabrics(seed: u64, limits: &Limits, lines: usize) -> Outcome {
    let mut world = World::new(seed, limits);
    world.env.trace.keep(lines);
    let ended = catch_unwind(AssertUnwindSafe(|| {
        let ended = world.run();
        world.end();
        ended
    }));
    let violation = match &ended {
        Ok(Ok(())) => None,
        Ok(Err(violation)) => Some(violation.clone()),
        Err(_) => Some(last_panic()),
    };
    let failure = violation.map(|violation| Failure {
        seed,
        limits: limits.clone(),
        violation,
        event: world.event,
        at: world.env.time.now(),
        faults: Swarm::of(seed, limits).faults,
        story: world.env.trace.last_lines(),
    });
    let outcome = Outcome {
        figures: world.env.figures.clone(),
        hash: world.env.trace.hash(),
        failure,
    };
    if ended.is_err() {
        // After a panic the world may be in any state, so it must not be dropped.
        std::mem::forget(world);
    }
    outcome
}

/// Shrinks a failure: fewer faults, fewer hosts, fewer events. The result still fails, possibly
/// with another violation.
#[must_use]
pub fn shrink(failure: Failure) -> Failure {
    let mut smallest = failure;
    let try_limits = |smallest: &mut Failure, limits: Limits| {
        let failure = run(smallest.seed, &limits).failure;
        let fails = failure.is_some();
        if let Some(failure) = failure {
            *smallest = failure;
        }
        fails
    };
    let events = smallest.event.max(1);
    let limits = Limits {
        events: Some(events),
        ..smallest.limits.clone()
    };
    try_limits(&mut smallest, limits);
    let (seed, limits) = (smallest.seed, smallest.limits.clone());
    let (hosts, faults) = match limits.scenario {
        Scenario::Fabrics => {
            let swarm = Swarm::of(seed, &limits);
            (swarm.hosts.len(), swarm.faults)
        }
        Scenario::Files => {
            let swarm = FileSwarm::of(seed, limits.events, limits.hosts);
            (swarm.clients, Faults::default())
        }
    };
    for hosts in 1..hosts {
        let limits = Limits {
            hosts: Some(hosts),
            ..smallest.limits.clone()
        };
        if try_limits(&mut smallest, limits) {
            break;
        }
    }
    for fault in faults.iter() {
        let limits = Limits {
            without: smallest.limits.without.with(fault),
            ..smallest.limits.clone()
        };
        try_limits(&mut smallest, limits);
    }
    let (mut low, mut high) = (0, smallest.limits.events.unwrap_or(smallest.event));
    while low + 1 < high {
        let middle = low + (high - low) / 2;
        let limits = Limits {
            events: Some(middle),
            ..smallest.limits.clone()
        };
        if try_limits(&mut smallest, limits) {
            high = middle.min(smallest.event.max(1));
        } else {
            low = middle;
        }
    }
    smallest
}
