//! `bench sweep`: one load at several strengths, as a table, JSON and a picture.

use std::path::PathBuf;
use std::process::ExitCode;

use bench::load::Watch;
use bench::load::run::Unwatched;
use bench::plot;
use bench::progress;
use bench::report::{RunReport, save_json, save_text};
use bench::sweep::{Over, SweepPoint, SweepReport};
use clap::Args;

use super::Failure;
use super::job::{JobArgs, JobPlan};

pub(super) const EXAMPLES: &str = "\
Examples:
  # Throughput and latency over depth, with a picture.
  bench sweep depth --nsid 1 --block-size 4k --mix 100/0 --time 5 --svg depth.svg

  # Latency from 10 to 90 % of what depth 64 gives without a limit.
  bench sweep load --nsid 1 --block-size 4k --mix 100/0 --depth 64 --time 5 --svg load.svg";

/// Parts of the unlimited rate that a load sweep asks for, percent.
const LOADS_PERCENT: [u32; 8] = [10, 25, 40, 55, 70, 80, 90, 95];

#[derive(Debug, Args)]
pub(crate) struct SweepArgs {
    /// What changes from point to point
    #[arg(value_enum)]
    over: Over,
    #[command(flatten)]
    job: JobArgs,
    /// Depths of a sweep over depth
    #[arg(
        long,
        value_name = "DEPTH,…",
        value_delimiter = ',',
        default_values_t = [1, 2, 4, 8, 16, 32, 64, 127]
    )]
    depths: Vec<u16>,
    /// Show how it goes
    #[arg(long)]
    progress: bool,
    /// Also write the report as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Also draw it, as SVG
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

impl SweepArgs {
    /// One point, and all that was found at it.
    fn measure(&self, plan: &JobPlan) -> Result<(SweepPoint, RunReport), Failure> {
        let mut watch = |label: &str| -> Box<dyn Watch> {
            if self.progress {
                progress::for_standard_error(label)
            } else {
                Box::new(Unwatched)
            }
        };
        let report = plan.run(&mut watch)?.into_iter().next();
        let report = report.ok_or("the job has no namespace")?;
        if let Some(trouble) = &report.trouble {
            return Err(format!("the sweep ended early: {trouble}").into());
        }
        let point = SweepPoint::of(&report).ok_or("the job has no main phase")?;
        Ok((point, report))
    }

    fn sweep(&self) -> Result<SweepReport, Failure> {
        let mut plan = self.job.plan()?;
        if matches!(&plan, JobPlan::Target(plans) if plans.len() > 1) {
            return Err("a sweep is of one namespace: name it with --nsid".into());
        }
        let mut points = Vec::new();
        let mut load = None;
        let mut add = |plan: &JobPlan| -> Result<f64, Failure> {
            let (point, report) = self.measure(plan)?;
            load.get_or_insert(report);
            points.push(point);
            Ok(point.iops)
        };
        match self.over {
            Over::Depth => {
                for &depth in &self.depths {
                    plan.change(|workload| workload.depth = depth);
                    add(&plan)?;
                }
            }
            Over::Load => {
                let (unlimited, _) = self.measure(&plan)?;
                for percent in LOADS_PERCENT {
                    let rate = unlimited.iops * f64::from(percent) / 100.0;
                    plan.change(|workload| workload.rate = Some(rate.max(1.0)));
                    add(&plan)?;
                }
            }
        }
        Ok(SweepReport {
            over: self.over,
            load: load.ok_or("a sweep needs one depth at least")?,
            points,
        })
    }
}

pub(super) fn execute(args: &SweepArgs) -> Result<ExitCode, Failure> {
    let report = args.sweep()?;
    print!("{report}");
    if let Some(path) = &args.json {
        save_json(&report, path)?;
    }
    if let Some(path) = &args.svg {
        save_text(&plot::sweep(&report)?, path)?;
    }
    Ok(ExitCode::SUCCESS)
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

    #[test]
    fn a_sweep_over_depth_leaves_a_table_a_report_and_a_picture() {
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
    fn a_sweep_over_load_asks_for_parts_of_what_there_was_without_a_limit() {
        let args = sweep_args("load --device null:1M --ops 100 --mix 100/0");
        let report = args.sweep().expect("swept");
        let rates: Vec<f64> = report.points.iter().filter_map(|it| it.rate).collect();
        assert_eq!(rates.len(), LOADS_PERCENT.len());
        assert!(rates.is_sorted());
        assert!((rates[7] / rates[0] - 9.5).abs() < 0.01, "{rates:?}");
        assert!(plot::sweep(&report).expect("drawn").contains("answered"));
    }
}
