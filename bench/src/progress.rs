//! Progress of a run: a bar on a terminal, otherwise plain lines.

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::load::run::PhaseTotal;
use crate::load::{Phase, PhaseStats, Watch};
use crate::units::{format_count, mib_per_second, per_second};

/// Interval between plain lines.
const LINE_INTERVAL: Duration = Duration::from_secs(2);

/// Resolution of a bar.
const BAR_STEPS: u64 = 1000;

/// The watch for standard error: a bar on a terminal, otherwise lines.
#[must_use]
pub fn for_standard_error(label: &str) -> Box<dyn Watch> {
    if std::io::stderr().is_terminal() {
        Box::new(Bar::new(label))
    } else {
        lines(label)
    }
}

/// A watch that prints lines, for several concurrent runs.
#[must_use]
pub fn lines(label: &str) -> Box<dyn Watch> {
    Box::new(Lines::new(label))
}

/// A watch that can end the run.
struct Interruptible {
    watch: Box<dyn Watch>,
    interrupted: Arc<AtomicBool>,
}

/// Wraps a watch to end the run when `interrupted` is set.
#[must_use]
pub fn until(interrupted: &Arc<AtomicBool>, watch: Box<dyn Watch>) -> Box<dyn Watch> {
    let interrupted = Arc::clone(interrupted);
    Box::new(Interruptible { watch, interrupted })
}

impl Watch for Interruptible {
    fn phase_begins(&mut self, phase: Phase, total: PhaseTotal) {
        self.watch.phase_begins(phase, total);
    }

    fn phase_progresses(&mut self, operations: u64, bytes: u64, elapsed: Duration) {
        self.watch.phase_progresses(operations, bytes, elapsed);
    }

    fn phase_ends(&mut self, phase: Phase, stats: &PhaseStats) {
        self.watch.phase_ends(phase, stats);
    }

    fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }
}

/// The completed share of a phase, 0 to 1.
fn share(total: PhaseTotal, operations: u64, bytes: u64, elapsed: Duration) -> f64 {
    let (done, all) = match total {
        PhaseTotal::Bytes(all) => (bytes as f64, all as f64),
        PhaseTotal::Operations(all) => (operations as f64, all as f64),
        PhaseTotal::Time(all) => (elapsed.as_secs_f64(), all.as_secs_f64()),
    };
    if all > 0.0 {
        (done / all).clamp(0.0, 1.0)
    } else {
        1.0
    }
}

fn rates(operations: u64, bytes: u64, elapsed: Duration) -> String {
    let iops = format_count(per_second(operations, elapsed) as u64);
    format!("{iops} IOPS, {:.0} MiB/s", mib_per_second(bytes, elapsed))
}

/// Operations and bytes of a finished phase.
fn totals(stats: &PhaseStats) -> (u64, u64) {
    let operations = stats.reads.operations + stats.writes.operations;
    (operations, stats.reads.bytes + stats.writes.bytes)
}

/// A bar on a terminal, which is removed at the end.
struct Bar {
    label: String,
    total: PhaseTotal,
    bar: ProgressBar,
}

impl Bar {
    fn new(label: &str) -> Self {
        let total = PhaseTotal::Operations(0);
        Self {
            label: label.to_owned(),
            total,
            bar: ProgressBar::hidden(),
        }
    }
}

impl Watch for Bar {
    fn phase_begins(&mut self, phase: Phase, total: PhaseTotal) {
        self.total = total;
        self.bar = ProgressBar::new(BAR_STEPS);
        // The template is a constant that a test compiles.
        if let Ok(style) = style() {
            self.bar.set_style(style);
        }
        self.bar
            .set_prefix(format!("{}, {}", self.label, phase.name));
    }

    fn phase_progresses(&mut self, operations: u64, bytes: u64, elapsed: Duration) {
        let share = share(self.total, operations, bytes, elapsed);
        self.bar.set_message(rates(operations, bytes, elapsed));
        self.bar.set_position((share * BAR_STEPS as f64) as u64);
    }

    fn phase_ends(&mut self, _: Phase, _: &PhaseStats) {
        self.bar.finish_and_clear();
    }
}

/// The style of a bar for a terminal of 80 columns.
fn style() -> Result<ProgressStyle, indicatif::style::TemplateError> {
    let template = "  {prefix:<22} {bar:20.cyan} {percent:>3} %  {msg}";
    Ok(ProgressStyle::with_template(template)?.progress_chars("━╸ "))
}

/// Prints a line at intervals.
struct Lines {
    label: String,
    phase: &'static str,
    total: PhaseTotal,
    next: Duration,
}

impl Lines {
    fn new(label: &str) -> Self {
        let total = PhaseTotal::Operations(0);
        Self {
            label: label.to_owned(),
            phase: "",
            total,
            next: LINE_INTERVAL,
        }
    }
}

impl Watch for Lines {
    fn phase_begins(&mut self, phase: Phase, total: PhaseTotal) {
        (self.phase, self.total, self.next) = (phase.name, total, LINE_INTERVAL);
    }

    fn phase_progresses(&mut self, operations: u64, bytes: u64, elapsed: Duration) {
        if elapsed >= self.next {
            self.next = elapsed + LINE_INTERVAL;
            let percent = share(self.total, operations, bytes, elapsed) * 100.0;
            let rates = rates(operations, bytes, elapsed);
            eprintln!("  {}, {}: {percent:.0} %, {rates}", self.label, self.phase);
        }
    }

    fn phase_ends(&mut self, phase: Phase, stats: &PhaseStats) {
        let (operations, bytes) = totals(stats);
        let rates = rates(operations, bytes, stats.elapsed);
        let end = if stats.trouble.is_some() {
            "failed"
        } else {
            "done"
        };
        eprintln!("  {}, {}: {end}, {rates}", self.label, phase.name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_share_is_at_most_one() {
        let second = Duration::from_secs(1);
        assert_eq!(share(PhaseTotal::Bytes(200), 0, 50, second), 0.25);
        assert_eq!(share(PhaseTotal::Operations(10), 20, 0, second), 1.0);
        assert_eq!(share(PhaseTotal::Time(second * 4), 0, 0, second), 0.25);
        assert_eq!(share(PhaseTotal::Time(Duration::ZERO), 0, 0, second), 1.0);
    }

    #[test]
    fn progress_bar_template_is_valid() {
        assert!(style().is_ok());
    }

    #[test]
    fn rates_are_per_second() {
        let text = rates(5000, 10 << 20, Duration::from_millis(500));
        assert_eq!(text, "10 000 IOPS, 20 MiB/s");
    }
}
