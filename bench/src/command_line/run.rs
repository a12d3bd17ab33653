//! `bench run`: one job as typed, or the jobs of a workload file.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::load::Watch;
use crate::report::{RunReport, RunReports, save_json};
use crate::workload_file::{self, Job};
use clap::{Args, Parser};

use super::Failure;
use super::job::{JobArgs, JobPlan};
use super::run_watcher::{EXIT_INTERRUPTED, RunWatcher};

pub(super) const EXAMPLES: &str = "\
Examples:
  # Five seconds of checked reads and writes on every namespace of the one subsystem there is.
  # What the namespaces held is lost.
  bench run --all-namespaces --verify --progress --time 5

  # How fast are random 4 KiB reads from namespace 1?
  bench run --nsid 1 --block-size 4k --depth 127 --mix 100/0

  # The same over RDMA, by a bench that was built with the feature verbs.
  bench run --transport rdma --address 192.0.2.10 --block-size 4k --depth 127 --mix 100/0

  # A mix of sizes over four queues, two threads, with both digests.
  bench run --block-size 4k,16k,128k --queues 4 --threads 2 --header-digest --data-digest

  # 50,000 requests a second on few hot places, each timed from when it was due.
  bench run --rate 50k --pattern zipf:1.1

  # The jobs of a file; what is typed beside it holds for all of them.
  bench run --workload mixed.toml --address 192.0.2.10

  # The same load on a file of this machine, with no target between.
  bench run --device file:/srv/vol0.img --block-size 4k --depth 128 --mix 100/0";

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// Jobs from a file (see bench/README.md); other options apply to all of them
    #[arg(long, value_name = "FILE")]
    workload: Option<PathBuf>,
    #[command(flatten)]
    pub(super) job: JobArgs,
    /// Show progress: a bar on a terminal, otherwise lines
    #[arg(long)]
    progress: bool,
    /// Also write the report as JSON
    #[arg(long, value_name = "FILE", value_parser = crate::arguments::parse_report_file)]
    json: Option<PathBuf>,
}

/// The arguments of one job of a file.
#[derive(Debug, Parser)]
#[command(no_binary_name = true)]
struct FileJob {
    #[command(flatten)]
    job: JobArgs,
}

/// Options of the command that do not apply to jobs, and whether they have a value.
const OWN_OPTIONS: [(&str, bool); 3] = [
    ("--workload", true),
    ("--json", true),
    ("--progress", false),
];

/// The options after `bench run` that apply to each job.
fn options_for_jobs(typed: impl IntoIterator<Item = String>) -> Vec<String> {
    let mut typed = typed.into_iter();
    let mut kept = Vec::new();
    while let Some(argument) = typed.next() {
        let own = OWN_OPTIONS.iter().find(|(name, _)| {
            let rest = argument.strip_prefix(name);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
        });
        match own {
            Some((_, true)) if !argument.contains('=') => {
                typed.next();
            }
            Some(_) => {}
            None => kept.push(argument),
        }
    }
    kept
}

/// The option that an argument sets.
fn option(argument: &str) -> &str {
    argument.split('=').next().unwrap_or(argument)
}

/// A job with its name, ready to run.
type Named = (Option<String>, JobPlan);

fn jobs_of_file(jobs: &[Job], path: &Path, typed: &[String]) -> Result<Vec<Named>, Failure> {
    let mut plans = Vec::with_capacity(jobs.len());
    for job in jobs {
        let is_typed =
            |argument: &&String| typed.iter().any(|typed| option(typed) == option(argument));
        let of_file = job.arguments.iter().filter(|argument| !is_typed(argument));
        let arguments = of_file.chain(typed);
        let of_job = |error: String| format!("{}, job '{}': {error}", path.display(), job.name);
        let parsed = FileJob::try_parse_from(arguments)
            .map_err(|error| of_job(crate::arguments::one_line(&error.to_string())))?;
        let plan = parsed
            .job
            .plan()
            .map_err(|error| of_job(error.to_string()))?;
        plans.push((Some(job.name.clone()), plan));
    }
    Ok(plans)
}

pub(super) fn execute(args: &RunArgs) -> Result<ExitCode, Failure> {
    let (jobs, together) = match &args.workload {
        None => (vec![(None, args.job.plan()?)], false),
        Some(path) => {
            let file = workload_file::load(path)?;
            // Skips the command's name and `run`.
            let typed = options_for_jobs(std::env::args().skip(2));
            (jobs_of_file(&file.jobs, path, &typed)?, file.together)
        }
    };
    let watcher = RunWatcher::begin(args.progress)?;
    let mut runs = Vec::new();
    let ended = if together {
        run_together(&jobs, &watcher, &mut runs)
    } else {
        run_in_turn(&jobs, &watcher, &mut runs)
    };
    let failed = runs.iter().any(|report| report.trouble.is_some());
    // Results from before an error are saved.
    if let Some(path) = &args.json
        && (ended.is_ok() || !runs.is_empty())
    {
        save_json(&RunReports { runs }, path)?;
    }
    ended?;
    Ok(if watcher.interrupted() {
        ExitCode::from(EXIT_INTERRUPTED)
    } else if failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// Runs a job; `done` receives its reports with the job's name.
fn run_job(
    (name, plan): &Named,
    watch: &mut dyn FnMut(&str) -> Box<dyn Watch>,
    done: &mut dyn FnMut(RunReport),
) -> Result<(), String> {
    let of_job = |text: &str| match name {
        Some(name) => format!("{name}, {text}"),
        None => text.to_owned(),
    };
    let mut named = |report| {
        done(RunReport {
            job: name.clone(),
            ..report
        });
    };
    plan.run(&mut |label| watch(&of_job(label)), &mut named)
        .map_err(|error| of_job(&error.to_string()))
}

fn run_in_turn(
    jobs: &[Named],
    watcher: &RunWatcher,
    runs: &mut Vec<RunReport>,
) -> Result<(), Failure> {
    let mut done = |report: RunReport| {
        println!("{report}");
        runs.push(report);
    };
    for job in jobs {
        run_job(job, &mut |label| watcher.for_single_run(label), &mut done)?;
        if watcher.interrupted() {
            break;
        }
    }
    Ok(())
}

/// Runs all jobs concurrently, each with its own connections and threads.
fn run_together(
    jobs: &[Named],
    watcher: &RunWatcher,
    runs: &mut Vec<RunReport>,
) -> Result<(), Failure> {
    let run = |job: &Named| {
        let mut reports = Vec::new();
        let ended = run_job(
            job,
            &mut |label| watcher.for_concurrent_run(label),
            &mut |report| reports.push(report),
        );
        (reports, ended)
    };
    let lost = |_| (Vec::new(), Err("a job's thread panicked".to_owned()));
    let ended: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = jobs.iter().map(|job| scope.spawn(|| run(job))).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(lost))
            .collect()
    });
    let mut errors = Vec::new();
    for (reports, ended) in ended {
        for report in &reports {
            println!("{report}");
        }
        runs.extend(reports);
        errors.extend(ended.err());
    }
    if errors.is_empty() {
        Ok(())
    } else {
        Err(errors.join("; ").into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strings(words: &str) -> Vec<String> {
        words.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn command_line_options_apply_to_each_job() {
        let typed =
            strings("--workload w.toml --depth 4 --json=x --progress --workload=y --verify");
        assert_eq!(options_for_jobs(typed), strings("--depth 4 --verify"));
    }

    #[test]
    fn command_line_overrides_the_file_and_errors_name_the_job() {
        let job = |arguments: &str| Job {
            name: "oltp".to_owned(),
            arguments: strings(arguments),
        };
        let file = Path::new("w.toml");
        let device = strings("--device memory:1M --block-size=8k --depth=2");
        let jobs = [job("--block-size=4k,16k --depth=64")];
        let plans = jobs_of_file(&jobs, file, &device).expect("accepted");
        let JobPlan::Local(plan) = &plans[0].1 else {
            panic!("a local device");
        };
        assert_eq!(plan.workload.sizes_bytes, [8192]);
        assert_eq!(plan.workload.depth, 2);
        let error = jobs_of_file(&[job("--blok-size=4k")], file, &[])
            .err()
            .expect("refused");
        let text = error.to_string();
        assert!(
            text.starts_with("w.toml, job 'oltp': ") && text.contains("--block-size"),
            "{text}"
        );
    }
}
