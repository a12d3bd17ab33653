//! Runs seeds and prints the results; `cargo xtask sim` builds and starts it.

#![forbid(unsafe_code)]

use std::num::NonZeroUsize;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Parser;
use simulation::defects::{Defect, IS_PLANTED, look_for, page as page_of};
use simulation::faults::Fault;
use simulation::figures::Figures;
use simulation::run::{self, Failure};
use simulation::swarm::{Limits, Scenario};
use simulation::trace::LINES_DEFAULT;

/// Seeds that run by default.
const SEEDS_DEFAULT: u64 = 100;

/// Simulate the appliance with faults, seed by seed, and check everything that its hosts receive.
#[derive(Parser)]
struct Arguments {
    /// Run only this seed, and print the last lines of its trace.
    #[arg(long, conflicts_with_all = ["seeds", "count", "minutes", "hours"])]
    seed: Option<u64>,
    /// Run these seeds.
    #[arg(long, value_name = "A..B")]
    seeds: Option<Seeds>,
    /// Run this number of random seeds, after those of --seeds.
    #[arg(long, value_name = "N", conflicts_with_all = ["minutes", "hours"])]
    count: Option<u64>,
    /// Run random seeds for this number of minutes, after those of --seeds.
    #[arg(long, value_name = "N")]
    minutes: Option<f64>,
    /// Run random seeds for this number of hours, after those of --seeds.
    #[arg(long, value_name = "N", conflicts_with = "minutes")]
    hours: Option<f64>,
    /// Draw the random seeds from this number, in place of the time of day.
    #[arg(long, value_name = "N")]
    draw: Option<u64>,
    /// Look for every planted defect, and write what was found to this file; needs a build with
    /// the patches of bench/simulation/defects.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["seed", "seeds", "count", "minutes", "hours"])]
    defects: Option<PathBuf>,
    /// With --defects: search only for these.
    #[arg(long, value_name = "NAME", value_delimiter = ',', requires = "defects")]
    only: Vec<String>,
    /// List the planted defects that tests must detect: name, program and test, one per line.
    #[arg(long)]
    tested: bool,
    /// Simulate only this: fabrics or files. Otherwise, each seed simulates both.
    #[arg(long)]
    scenario: Option<Scenario>,
    /// Cut every run to this many events.
    #[arg(long)]
    events: Option<u64>,
    /// Cut every run to this many hosts.
    #[arg(long)]
    hosts: Option<usize>,
    /// Print this number of last trace lines of a failing seed.
    #[arg(long, value_name = "LINES", default_value_t = LINES_DEFAULT)]
    story: usize,
    /// Leave these faults off.
    #[arg(long, value_delimiter = ',')]
    without: Vec<Fault>,
    /// Switch these faults on, besides those that a seed selects.
    #[arg(long, value_delimiter = ',')]
    with: Vec<Fault>,
}

#[derive(Clone)]
struct Seeds(Range<u64>);

impl FromStr for Seeds {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let range = || {
            let (first, end) = text.split_once("..")?;
            Some(first.parse().ok()?..end.parse().ok()?)
        };
        range()
            .map(Seeds)
            .ok_or_else(|| format!("{text:?} is not a range such as 0..100"))
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let limits = Limits {
        scenario: arguments.scenario.unwrap_or_default(),
        events: arguments.events,
        hosts: arguments.hosts,
        without: arguments.without.iter().copied().collect(),
        with: arguments.with.iter().copied().collect(),
    };
    run::note_panics();
    if arguments.tested {
        return tested();
    }
    if let Some(page) = &arguments.defects {
        return defects(page, &arguments.only);
    }
    if let Some(seed) = arguments.seed {
        return scenarios(arguments.scenario, &limits)
            .map(|limits| one(seed, &limits, arguments.story))
            .find(|code| *code != ExitCode::SUCCESS)
            .unwrap_or(ExitCode::SUCCESS);
    }
    let minutes = arguments
        .hours
        .map(|hours| hours * 60.0)
        .or(arguments.minutes);
    let began = Instant::now();
    let end = minutes.map(|minutes| began + Duration::from_secs_f64(minutes.max(0.0) * 60.0));
    let count = match end {
        Some(_) => u64::MAX,
        None => arguments.count.unwrap_or(0),
    };
    let fixed = match arguments.seeds {
        Some(Seeds(range)) => range,
        None if count > 0 => 0..0,
        None => 0..SEEDS_DEFAULT,
    };
    let random = random_seeds(arguments.draw.unwrap_or_else(time_of_day))
        .zip(0..count)
        .map(|(seed, _)| seed)
        .take_while(|_| end.is_none_or(|end| Instant::now() < end));
    let limits: Vec<Limits> = scenarios(arguments.scenario, &limits).collect();
    many(fixed.chain(random), began, &limits)
}

/// The limits of a seed's runs: one for each scenario.
fn scenarios(only: Option<Scenario>, limits: &Limits) -> impl Iterator<Item = Limits> {
    let chosen = Scenario::ALL.into_iter();
    let chosen = chosen.filter(move |it| only.is_none_or(|only| only == *it));
    chosen.map(|scenario| Limits {
        scenario,
        ..limits.clone()
    })
}

fn one(seed: u64, limits: &Limits, lines: usize) -> ExitCode {
    let outcome = run::run_with_trace(seed, limits, lines);
    match outcome.failure {
        None => {
            println!("seed {seed}: nothing wrong, hash {:016x}", outcome.hash);
            println!("{}", outcome.figures);
            ExitCode::SUCCESS
        }
        Some(failure) => {
            println!("{failure}");
            println!("hash {:016x}, commit {}", outcome.hash, commit());
            ExitCode::FAILURE
        }
    }
}

/// Prints the defects that tests must detect.
fn tested() -> ExitCode {
    let defects = match simulation::defects::read() {
        Ok(defects) => defects,
        Err(error) => return refused(&error),
    };
    for Defect { name, test, .. } in defects {
        if let Some(test) = test {
            println!("{name} {test}");
        }
    }
    ExitCode::SUCCESS
}

/// Searches for every planted defect that the simulation must find, or for those in `only`, on every
/// core.
fn defects(page: &Path, only: &[String]) -> ExitCode {
    if !IS_PLANTED {
        return refused("nothing is planted in this build: use cargo xtask sim --defects");
    }
    let all = match simulation::defects::read() {
        Ok(defects) => defects,
        Err(error) => return refused(&error),
    };
    if let Some(unknown) = only
        .iter()
        .find(|name| all.iter().all(|it| it.name != **name))
    {
        return refused(&format!("no patch plants {unknown}"));
    }
    let (tested, simulated): (Vec<_>, Vec<_>) = all.into_iter().partition(|it| it.test.is_some());
    let wanted = |it: &&Defect| only.is_empty() || only.contains(&it.name);
    let next = Mutex::new(simulated.iter().filter(wanted));
    let found = Mutex::new(Vec::new());
    on_every_core(|| {
        loop {
            let Some(defect) = lock(&next).next() else {
                return;
            };
            let finding = look_for(defect.clone());
            let result = finding.failure.as_ref();
            let result = result.map(|it| format!("seed {}: {}", it.seed, it.violation));
            let result = result.unwrap_or_else(|| "NOT FOUND".to_owned());
            println!("{}: {result}", defect.name);
            lock(&found).push(finding);
        }
    });
    let mut findings = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    let place = |name: &str| simulated.iter().position(|it| it.name == name);
    findings.sort_by_key(|it| place(&it.defect.name));
    if let Err(error) = std::fs::write(page, page_of(&findings, &tested)) {
        return refused(&format!("{}: {error}", page.display()));
    }
    let missed = findings.iter().filter(|it| it.failure.is_none()).count();
    println!(
        "{} defects by simulation, {missed} not found",
        findings.len()
    );
    ExitCode::from(u8::from(missed > 0))
}

fn refused(why: &str) -> ExitCode {
    println!("{why}");
    ExitCode::FAILURE
}

fn on_every_core(work: impl Fn() + Sync) -> usize {
    let threads = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(&work);
        }
    });
    threads
}

fn random_seeds(draw: u64) -> impl Iterator<Item = u64> + Send {
    let mut random = simulation::random::Random::new(draw, 0);
    std::iter::repeat_with(move || random.bits() >> 24)
}

fn time_of_day() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.as_nanos() as u64)
}

/// Runs seeds on every core until one fails or none is left.
fn many(seeds: impl Iterator<Item = u64> + Send, began: Instant, limits: &[Limits]) -> ExitCode {
    let next = Mutex::new(seeds);
    let found = Mutex::new((Figures::default(), None::<Failure>));
    let threads = on_every_core(|| {
        loop {
            let seed = lock(&next).next();
            let Some(seed) = seed.filter(|_| lock(&found).1.is_none()) else {
                return;
            };
            for limits in limits {
                let outcome = run::run(seed, limits);
                let (figures, failure) = &mut *lock(&found);
                figures.add(&outcome.figures);
                if failure.is_none() {
                    *failure = outcome.failure;
                }
            }
        }
    });
    let (figures, failure) = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    println!("{figures}");
    println!("{:.1} s on {threads} cores", began.elapsed().as_secs_f64());
    let Some(failure) = failure else {
        println!("nothing wrong");
        return ExitCode::SUCCESS;
    };
    println!("seed {} fails: {}", failure.seed, failure.violation);
    println!("replay: {}", failure.command());
    println!("shrinking …");
    println!("{}", run::shrink(failure));
    println!("commit {}", commit());
    ExitCode::FAILURE
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The simulated commit, from `git describe`.
fn commit() -> String {
    let mut git = std::process::Command::new("git");
    let output = git
        .args(["describe", "--always", "--dirty", "--abbrev=40"])
        .output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    text.ok()
        .filter(|text| !text.is_empty())
        .unwrap_or_else(|| "unknown".to_owned())
}
