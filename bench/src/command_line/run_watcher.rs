//! Progress and interruption of the runs of a command.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::load::Watch;
use crate::load::run::NoWatch;
use crate::progress;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

/// Exit code of an interrupted command, as in shells: 128 and SIGINT.
pub(super) const EXIT_INTERRUPTED: u8 = 130;

/// Progress and interruption of the runs.
#[derive(Debug)]
pub(super) struct RunWatcher {
    shown: bool,
    interrupted: Arc<AtomicBool>,
}

impl RunWatcher {
    /// Makes SIGINT and SIGTERM end a run with its results so far, and a second signal end the
    /// process. `shown`: shows progress on standard error.
    pub(super) fn begin(shown: bool) -> io::Result<Self> {
        let interrupted = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            flag::register_conditional_default(signal, Arc::clone(&interrupted))?;
            flag::register(signal, Arc::clone(&interrupted))?;
        }
        Ok(Self { shown, interrupted })
    }

    /// Whether the command was interrupted.
    pub(super) fn interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }

    /// The watch of a run that uses standard error alone.
    pub(super) fn for_single_run(&self, label: &str) -> Box<dyn Watch> {
        self.with(label, progress::for_standard_error)
    }

    /// The watch of one of several concurrent runs.
    pub(super) fn for_concurrent_run(&self, label: &str) -> Box<dyn Watch> {
        self.with(label, progress::lines)
    }

    fn with(&self, label: &str, shown: fn(&str) -> Box<dyn Watch>) -> Box<dyn Watch> {
        let watch = if self.shown {
            shown(label)
        } else {
            Box::new(NoWatch)
        };
        progress::until(&self.interrupted, watch)
    }
}
