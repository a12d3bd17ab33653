//! Who watches the runs of a command, and the interruption that ends them early.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bench::load::Watch;
use bench::load::run::Unwatched;
use bench::progress;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

/// Exit code of a command that was interrupted, as shells have it: 128 and SIGINT.
pub(super) const EXIT_INTERRUPTED: u8 = 130;

/// How the runs of a command are watched.
#[derive(Debug)]
pub(super) struct Watching {
    shown: bool,
    interrupted: Arc<AtomicBool>,
}

impl Watching {
    /// From now on SIGINT and SIGTERM end a run with what it has measured, and a second one ends the
    /// process. `shown` for progress on standard error.
    pub(super) fn begin(shown: bool) -> io::Result<Self> {
        let interrupted = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            flag::register_conditional_default(signal, Arc::clone(&interrupted))?;
            flag::register(signal, Arc::clone(&interrupted))?;
        }
        Ok(Self { shown, interrupted })
    }

    /// Whether there was an interruption.
    pub(super) fn interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }

    /// Who watches a run that has standard error for itself.
    pub(super) fn one(&self, label: &str) -> Box<dyn Watch> {
        self.with(label, progress::for_standard_error)
    }

    /// Who watches one of several runs at once.
    pub(super) fn one_of_several(&self, label: &str) -> Box<dyn Watch> {
        self.with(label, progress::lines)
    }

    fn with(&self, label: &str, shown: fn(&str) -> Box<dyn Watch>) -> Box<dyn Watch> {
        let watch = if self.shown {
            shown(label)
        } else {
            Box::new(Unwatched)
        };
        progress::until(&self.interrupted, watch)
    }
}
