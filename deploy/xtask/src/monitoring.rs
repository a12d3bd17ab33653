//! Checks our metrics and alert rules with Prometheus' own tool: `promtool check`.
//!
//! In Debian, promtool is in the package of the server, which starts when it is installed. The
//! package is therefore only downloaded, and the program extracted.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use crate::process;

const FOLDER: &str = "target/promtool";
const ALERTS: &str = "deploy/dashboards/alerts.yml";

/// The path of promtool, if available.
fn promtool() -> Option<PathBuf> {
    let ours = process::root().join(FOLDER).join("usr/bin/promtool");
    if process::is_installed("promtool") {
        Some("promtool".into())
    } else {
        ours.is_file().then_some(ours)
    }
}

/// Provides promtool, or prints why it is not available.
pub(crate) fn ensure_installed() {
    if promtool().is_some() {
        return;
    }
    println!("packages: fetching promtool");
    if let Err(error) = fetch(&process::root().join(FOLDER)) {
        println!("packages: no promtool: {error}");
    }
}

fn fetch(folder: &Path) -> Result<(), String> {
    fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut download = process::program("apt-get");
    download.args(["-q", "-o", "Acquire::Retries=5", "download", "prometheus"]);
    process::run(download.current_dir(folder))?;
    let entries = fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut packages = entries.flatten().map(|entry| entry.path());
    let package = packages
        .find(|path| path.extension().is_some_and(|extension| extension == "deb"))
        .ok_or("apt-get downloaded nothing")?;
    let mut unpack = process::program("dpkg-deb");
    process::run(unpack.arg("--extract").arg(&package).arg(folder))?;
    fs::remove_file(&package).map_err(|error| format!("{}: {error}", package.display()))
}

/// Checks the rules and this response of `/metrics`.
pub(crate) fn check(metrics: &str) -> Result<(), String> {
    let Some(promtool) = promtool() else {
        println!("monitoring: without promtool nothing was checked");
        return Ok(());
    };
    process::run(process::program(&promtool).args(["check", "rules", ALERTS]))?;
    let mut check = process::program(&promtool);
    check.args(["check", "metrics"]).stdin(Stdio::piped());
    let failed = |error: std::io::Error| format!("promtool: {error}");
    let mut child = check.spawn().map_err(failed)?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin
            .write_all(to_text_format(metrics).as_bytes())
            .map_err(failed)?;
    }
    let status = child.wait().map_err(failed)?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("promtool finds fault with the metrics: {status}"))
    }
}

/// Converts OpenMetrics to the older text format, the only one that promtool reads: counters are
/// described by their samples' names, and units and the end mark do not exist.
fn to_text_format(metrics: &str) -> String {
    let counters: BTreeSet<&str> = metrics
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter"))
        .collect();
    let mut text = String::new();
    for line in metrics.lines() {
        let mut words = line.splitn(4, ' ');
        let is_unknown = line.starts_with("# UNIT ") || line == "# EOF";
        match (words.next(), words.next(), words.next(), words.next()) {
            _ if is_unknown => continue,
            (Some("#"), Some(kind), Some(name), Some(rest)) if counters.contains(name) => {
                text += &format!("# {kind} {name}_total {rest}\n");
            }
            _ => text += &format!("{line}\n"),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counter_help_uses_the_sample_name() {
        let metrics = "# HELP a_x What it is.\n# TYPE a_x counter\na_x_total{b=\"1 2\"} 3\n\
                       # HELP y_seconds Time.\n# TYPE y_seconds gauge\n# UNIT y_seconds seconds\n\
                       y_seconds 1.5\n# EOF\n";
        let expected = "# HELP a_x_total What it is.\n# TYPE a_x_total counter\n\
                        a_x_total{b=\"1 2\"} 3\n\
                        # HELP y_seconds Time.\n# TYPE y_seconds gauge\ny_seconds 1.5\n";
        assert_eq!(to_text_format(metrics), expected);
    }
}
