//! `windlass doctor`: checks this machine for a configuration, and reports what is fine, what costs
//! speed, what is broken, and the command that fixes it.
//!
//! Reads files of sysfs, procfs and `/dev` below a root that tests choose, and the objects that the
//! configuration names. Needs no running appliance; one that answers at the configured socket
//! reports how long requests wait. Changes nothing.

mod cores;
mod drives;
mod files;
mod kernel;
mod limits;
mod machine;
mod memory;
mod network;
mod pages;
mod running;
mod volumes;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use appliance_config::{Backing, Colour, Config, Device, LoadError};
use clap::Args;
use serde::Serialize;

use crate::error::Failure;
use crate::terminal::print;
use machine::Machine;

/// The configuration file of the service.
const SERVICE_FILE: &str = "etc/windlass/windlass.toml";

/// Exit code: something costs speed.
const EXIT_SLOW: u8 = 3;
/// Exit code: something is broken.
const EXIT_BROKEN: u8 = 4;

const EXIT_CODES: &str = "Exit codes:\n  0  everything is fine\n  1  nothing could be examined\n  \
    2  the command line is wrong\n  3  something costs speed\n  4  something is broken";

/// What `doctor` takes.
#[derive(Args, Debug)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct DoctorArguments {
    /// The configuration to check the machine for; by default that of the service, or else the
    /// embedded default.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// A tree with `sys`, `proc`, `dev` and `etc` in the place of this machine's: for tests.
    #[arg(long, hide = true, value_name = "DIR", default_value = "/")]
    root: PathBuf,
}

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Fine,
    /// It works, but slower than possible.
    Slow,
    Broken,
}

impl Verdict {
    fn word(self) -> &'static str {
        match self {
            Verdict::Fine => "fine",
            Verdict::Slow => "SLOW",
            Verdict::Broken => "BROKEN",
        }
    }
}

/// A check and its result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Finding {
    /// The subject: `memory`, `pages`, `limits`, `cores`, `kernel`, `drives`, `network`, `files`,
    /// `configuration`, `running`.
    area: &'static str,
    verdict: Verdict,
    /// The finding, and its cost if it is not fine.
    text: String,
    /// The command that fixes it, or the action if there is no command.
    fix: Option<String>,
}

impl Finding {
    fn fine(area: &'static str, text: impl Into<String>) -> Self {
        Self {
            area,
            verdict: Verdict::Fine,
            text: text.into(),
            fix: None,
        }
    }

    fn slow(area: &'static str, text: impl Into<String>, fix: impl Into<String>) -> Self {
        Self {
            verdict: Verdict::Slow,
            fix: Some(fix.into()),
            ..Self::fine(area, text)
        }
    }

    fn broken(area: &'static str, text: impl Into<String>, fix: impl Into<String>) -> Self {
        Self {
            verdict: Verdict::Broken,
            ..Self::slow(area, text, fix)
        }
    }
}

/// All findings.
#[derive(Debug, Serialize)]
struct Report {
    /// The configuration file; none for the embedded default.
    config: Option<String>,
    worst: Verdict,
    /// The required size of `memory`.
    memory: memory::Needs,
    findings: Vec<Finding>,
}

impl Report {
    fn add(&mut self, findings: impl IntoIterator<Item = Finding>) {
        for finding in findings {
            self.worst = self.worst.max(finding.verdict);
            self.findings.push(finding);
        }
    }
}

/// Checks the machine; the exit code gives the worst result.
pub(crate) fn doctor(arguments: &DoctorArguments) -> Result<ExitCode, Failure> {
    let machine = Machine::at(&arguments.root);
    let file = match &arguments.config {
        Some(file) => Some(file.clone()),
        None => Some(arguments.root.join(SERVICE_FILE)).filter(|file| file.exists()),
    };
    let (config, problems) = configuration(file.as_deref())?;
    let mut report = examine(&machine, &config, file.as_deref(), problems);
    if arguments.root == Path::new("/") {
        report.add(running::check(&config));
    }
    if arguments.json {
        print(&(serde_json::to_string_pretty(&report)? + "\n"));
    } else {
        print(&text(&report));
    }
    Ok(match report.worst {
        Verdict::Fine => ExitCode::SUCCESS,
        Verdict::Slow => ExitCode::from(EXIT_SLOW),
        Verdict::Broken => ExitCode::from(EXIT_BROKEN),
    })
}

/// The configuration to check the machine for, and the problems of its file. An invalid file is
/// replaced by the embedded default, so that the machine is still checked.
fn configuration(file: Option<&Path>) -> Result<(Config, Vec<Finding>), Failure> {
    let Some(file) = file else {
        return Ok((embedded()?, Vec::new()));
    };
    match Config::load(file) {
        Ok(config) => Ok((config, Vec::new())),
        Err(LoadError::Problems(problems)) => {
            let text = problems.display(Colour::Never).to_string();
            let text = format!(
                "{}\nthe following checks use the embedded default",
                text.trim_end()
            );
            let fix = format!("$EDITOR {0} && windlass check {0}", file.display());
            let finding = Finding::broken("configuration", text, fix);
            Ok((embedded()?, vec![finding]))
        }
        Err(other) => Err(other.into()),
    }
}

/// The embedded default without its file, because the start creates the file and its directory.
fn embedded() -> Result<Config, Failure> {
    let mut config = Config::default_embedded(Path::new("/demo.img"))?;
    let is_file = |device: &Device| matches!(device.backing, Backing::File { .. });
    let files: Vec<Device> = config.devices.extract_if(.., |it| is_file(it)).collect();
    for export in &mut config.exports {
        let mut files = files.iter();
        export
            .namespaces
            .retain(|namespace| !files.any(|file| file.name == namespace.device));
    }
    Ok(config)
}

fn examine(
    machine: &Machine,
    config: &Config,
    file: Option<&Path>,
    problems: Vec<Finding>,
) -> Report {
    let cores = cores::resolve(machine, config);
    let needs = memory::needs(machine, config, cores.len());
    let mut findings = problems;
    let notices = config.notices();
    findings.extend(notices.iter().map(|notice| {
        let fix = file.map_or_else(
            || "none: it is the embedded default".to_owned(),
            |file| format!("$EDITOR {}", file.display()),
        );
        Finding::slow("configuration", notice.to_string(), fix)
    }));
    findings.extend(memory::check(config, &needs));
    findings.extend(pages::check(machine, config, &cores));
    findings.extend(limits::check(machine, config));
    findings.extend(cores::check(machine, config));
    findings.extend(kernel::check(machine, config));
    findings.extend(drives::check(machine, config, &cores));
    findings.extend(network::check(machine, config, &cores));
    findings.extend(files::check(machine, config));
    findings.extend(volumes::check(config));
    let verdicts = findings.iter().map(|finding| finding.verdict);
    Report {
        config: file.map(|file| file.display().to_string()),
        worst: verdicts.max().unwrap_or(Verdict::Fine),
        memory: needs,
        findings,
    }
}

fn text(report: &Report) -> String {
    let examined = report.config.as_deref().unwrap_or("the embedded default");
    let mut text = format!("examined for {examined}\n\n");
    for finding in &report.findings {
        let (verdict, area) = (finding.verdict.word(), finding.area);
        let indented = finding.text.replace('\n', "\n                       ");
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{verdict:7} {area:13}  {indented}");
        if let Some(fix) = &finding.fix {
            let _ = writeln!(text, "{:23}fix: {fix}", "");
        }
    }
    let count = |verdict| {
        let all = report.findings.iter();
        all.filter(|finding| finding.verdict == verdict).count()
    };
    let (broken, slow) = (count(Verdict::Broken), count(Verdict::Slow));
    let _ = match (broken, slow) {
        (0, 0) => writeln!(text, "\neverything is fine"),
        _ => writeln!(text, "\n{broken} broken, {slow} cost speed"),
    };
    text
}

#[cfg(test)]
mod tests;
