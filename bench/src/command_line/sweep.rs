//! `bench sweep`: one load at several strengths, as a table, JSON and a picture.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::plot;
use crate::report::{RunReport, save_json, save_text};
use crate::sweep::{Over, SweepPoint, SweepReport};
use clap::Args;

use super::Failure;
use super::job::{JobArgs, JobPlan};
use super::run_watcher::{EXIT_INTERRUPTED, RunWatcher};

pub(super) const EXAMPLES: &str = "\
Examples:
  # Throughput and latency over depth, with a picture.
  bench sweep depth --nsid 1 --block-size 4k --mix 100/0 --time 5 --svg depth.svg

  # Latency from 10 to 90 % of what depth 64 gives without a limit.
  bench sweep load --nsid 1 --block-size 4k --mix 100/0 --depth 64 --time 5 --svg load.svg";

/// Rates of a load sweep as percentages of the unlimited rate.
const LOADS_PERCENT: [u32; 8] = [10, 25, 40, 55, 70, 80, 90, 95];

/// Default depths of a sweep over depth.
const DEPTHS: [u16; 8] = [1, 2, 4, 8, 16, 32, 64, 127];

#[derive(Debug, Args)]
pub(crate) struct SweepArgs {
    /// What changes from point to point
    #[arg(value_enum)]
    over: Over,
    #[command(flatten)]
    job: JobArgs,
    /// Depths of a sweep over depth; default 1, 2, 4, 8, 16, 32, 64 and 127
    #[arg(long, value_name = "DEPTH,…", value_delimiter = ',',
        value_parser = clap::value_parser!(u16).range(1..))]
    depths: Vec<u16>,
    /// Show progress
    #[arg(long)]
    progress: bool,
    /// Also write the report as JSON
    #[arg(long, value_name = "FILE", value_parser = crate::arguments::parse_report_file)]
    json: Option<PathBuf>,
    /// Also draw it, as SVG
    #[arg(long, value_name = "FILE", value_parser = crate::arguments::parse_report_file)]
    svg: Option<PathBuf>,
}

/// The points of a sweep so far, and the load at the first.
#[derive(Debug, Default)]
struct Points {
    load: Option<RunReport>,
    points: Vec<SweepPoint>,
}

/// Runs `plan` as one point. Returns the point and its report.
fn measure(plan: &JobPlan, watcher: &RunWatcher) -> Result<(SweepPoint, RunReport), Failure> {
    let mut first = None;
    plan.run(&mut |label| watcher.for_single_run(label), &mut |report| {
        first.get_or_insert(report);
    })?;
    let report = first.ok_or("the job has no namespace")?;
    if let Some(trouble) = &report.trouble {
        return Err(trouble.clone().into());
    }
    if report.interrupted {
        return Err("interrupted".into());
    }
    let point = SweepPoint::of(&report).ok_or("the job has no main phase")?;
    Ok((point, report))
}

impl SweepArgs {
    /// Rejects options that this kind of sweep does not use.
    fn check(&self) -> Result<(), Failure> {
        let ignored = match self.over {
            Over::Depth => self
                .job
                .load
                .depth
                .map(|_| "--depth: a sweep over depth has --depths"),
            Over::Load if !self.depths.is_empty() => {
                Some("--depths: a sweep over load has one --depth")
            }
            Over::Load => {
                let rate = self.job.load.rate;
                rate.map(
                    |_| "--rate: a sweep over load tries rates up to what there is without one",
                )
            }
        };
        ignored.map_or(Ok(()), |ignored| Err(ignored.into()))
    }

    /// Measures the points one after the other until an error occurs.
    fn take(&self, watcher: &RunWatcher, taken: &mut Points) -> Result<(), Failure> {
        self.check()?;
        let mut plan = self.job.plan()?;
        if matches!(&plan, JobPlan::Target(plans) if plans.len() > 1) {
            return Err("a sweep is of one namespace: name it with --nsid".into());
        }
        let mut add = |plan: &JobPlan, load_percent: Option<u32>| -> Result<(), Failure> {
            let (point, mut report) = measure(plan, watcher)?;
            if load_percent.is_some() {
                report.rate = None;
            }
            taken.load.get_or_insert(report);
            taken.points.push(SweepPoint {
                load_percent,
                ..point
            });
            Ok(())
        };
        match self.over {
            Over::Depth => {
                let depths = match &self.depths[..] {
                    [] => &DEPTHS[..],
                    depths => depths,
                };
                for &depth in depths {
                    plan.change(|workload| workload.depth = depth);
                    add(&plan, None)?;
                }
            }
            Over::Load => {
                let (unlimited, _) = measure(&plan, watcher)?;
                for percent in LOADS_PERCENT {
                    let rate = unlimited.iops * f64::from(percent) / 100.0;
                    plan.change(|workload| workload.rate = Some(rate.max(1.0)));
                    add(&plan, Some(percent))?;
                }
            }
        }
        Ok(())
    }

    /// The points until the end or an error, and that error.
    fn sweep(&self, watcher: &RunWatcher) -> (Option<SweepReport>, Result<(), Failure>) {
        let mut taken = Points::default();
        let ended = self.take(watcher, &mut taken);
        let report = taken.load.map(|load| SweepReport {
            over: self.over,
            load,
            points: taken.points,
        });
        (report, ended)
    }
}

pub(super) fn execute(args: &SweepArgs) -> Result<ExitCode, Failure> {
    let watcher = RunWatcher::begin(args.progress)?;
    let (report, ended) = args.sweep(&watcher);
    if let Some(report) = &report {
        print!("{report}");
        if let Some(path) = &args.json {
            save_json(report, path)?;
        }
        if let Some(path) = &args.svg {
            save_text(&plot::sweep(report)?, path)?;
        }
    }
    if watcher.interrupted() {
        eprintln!("bench: the sweep was interrupted");
        return Ok(ExitCode::from(EXIT_INTERRUPTED));
    }
    match ended {
        Err(error) if report.is_some() => Err(format!("the sweep ended early: {error}").into()),
        ended => ended.map(|()| ExitCode::SUCCESS),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::{Arguments, Command};
    use super::*;

    fn sweep_args(arguments: &str) -> SweepArgs {
        let all = ["bench", "sweep"].into_iter();
        let all = all.chain(arguments.split_whitespace());
        match Arguments::try_parse_from(all).expect("accepted").command {
            Command::Sweep(args) => *args,
            _ => panic!("another command"),
        }
    }

    fn unwatched() -> RunWatcher {
        RunWatcher::begin(false).expect("signals can be had")
    }

    #[test]
    fn points_measured_before_a_failure_are_saved() {
        let directory = tempfile::tempdir().expect("a directory");
        let json = directory.path().join("depth.json");
        let args = sweep_args(&format!(
            "depth --device memory:1M --ops 50 --depths 1,9000,2 --json {}",
            json.display()
        ));
        let error = execute(&args).expect_err("no queue is as deep");
        let text = error.to_string();
        assert!(
            text.starts_with("the sweep ended early: ") && text.contains("9000"),
            "{text}"
        );
        let kept = std::fs::read_to_string(json).expect("a report");
        let kept: SweepReport = serde_json::from_str(&kept).expect("of its own form");
        assert_eq!(kept.points.len(), 1);
    }

    #[test]
    fn options_ignored_by_a_sweep_are_refused() {
        for (arguments, part) in [
            ("depth --device null:1M --ops 9 --depth 4", "has --depths"),
            (
                "load --device null:1M --ops 9 --depths 4",
                "has one --depth",
            ),
            ("load --device null:1M --ops 9 --rate 9", "tries rates"),
        ] {
            let (report, ended) = sweep_args(arguments).sweep(&unwatched());
            assert!(report.is_none());
            let error = ended.expect_err("refused").to_string();
            assert!(error.contains(part), "{arguments}: {error}");
        }
    }

    #[test]
    fn depth_sweep_writes_table_json_and_svg() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = |name: &str| directory.path().join(name);
        let (json, svg) = (file("depth.json"), file("depth.svg"));
        let args = sweep_args(&format!(
            "depth --device memory:1M --ops 200 --depths 1,4 --mix 50/50 --json {} --svg {}",
            json.display(),
            svg.display()
        ));
        execute(&args).expect("swept");
        let text = std::fs::read_to_string(json).expect("a report");
        let report: SweepReport = serde_json::from_str(&text).expect("of its own form");
        let depths: Vec<u16> = report.points.iter().map(|point| point.depth).collect();
        assert_eq!(depths, [1, 4]);
        for point in &report.points {
            let counted = [point.reads, point.writes].map(|it| it.map_or(0, |it| it.count));
            assert_eq!(counted.iter().sum::<u64>(), 200);
        }
        assert!(report.most_iops() > 0.0);
        let picture = std::fs::read_to_string(svg).expect("a picture");
        for text in ["reads, p50", "writes, p99.9", "requests a second"] {
            assert!(picture.contains(text), "{text}");
        }
    }

    #[test]
    fn load_sweep_uses_fractions_of_the_unlimited_rate() {
        let args = sweep_args("load --device null:1M --ops 100 --mix 100/0");
        let (report, ended) = args.sweep(&unwatched());
        ended.expect("swept");
        let report = report.expect("points");
        let rates: Vec<f64> = report.points.iter().filter_map(|it| it.rate).collect();
        assert_eq!(rates.len(), LOADS_PERCENT.len());
        let percents: Vec<u32> = report
            .points
            .iter()
            .filter_map(|it| it.load_percent)
            .collect();
        assert_eq!(percents, LOADS_PERCENT);
        assert_eq!(report.load.rate, None);
        assert!(rates.is_sorted());
        assert!((rates[7] / rates[0] - 9.5).abs() < 0.01, "{rates:?}");
        assert!(plot::sweep(&report).expect("drawn").contains("answered"));
    }
}
