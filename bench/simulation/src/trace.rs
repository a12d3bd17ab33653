//! The trace of a run: lines of text, and a hash for comparison.

use std::collections::VecDeque;
use std::fmt;

use reactors::Nanos;

use crate::content::mixed;

/// Lines kept for a failure's report by default.
pub const LINES_DEFAULT: usize = 60;

/// The trace of a run.
#[derive(Clone, Debug)]
pub struct Trace {
    hash: u64,
    lines: VecDeque<String>,
    lines_max: usize,
}

impl Default for Trace {
    fn default() -> Self {
        Self {
            hash: 0,
            lines: VecDeque::new(),
            lines_max: LINES_DEFAULT,
        }
    }
}

impl Trace {
    /// Sets the number of last lines to keep.
    pub fn keep(&mut self, lines_max: usize) {
        self.lines_max = lines_max;
    }

    /// Records an event at `now`.
    pub fn note(&mut self, now: Nanos, what: fmt::Arguments<'_>) {
        let line = format!("{:>14.6} ms  {what}", now.as_nanos() as f64 / 1e6);
        for chunk in line.as_bytes().chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.hash = mixed(self.hash ^ u64::from_le_bytes(word));
        }
        if self.lines.len() >= self.lines_max {
            self.lines.pop_front();
        }
        self.lines.push_back(line);
    }

    /// A hash over all events, their order and their times; equal for two runs only if these are
    /// equal.
    #[must_use]
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// The last lines of the trace.
    #[must_use]
    pub fn last_lines(&self) -> Vec<String> {
        self.lines.iter().cloned().collect()
    }
}
