//! What happened, as lines for people and as one number for comparison.

use std::collections::VecDeque;
use std::fmt;

use reactors::Nanos;

use crate::content::mixed;

/// Lines kept for a failure's report, unless more are asked for.
pub const LINES_DEFAULT: usize = 60;

/// The story of a run.
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
    /// Keeps so many of the last lines from now on.
    pub fn keep(&mut self, lines_max: usize) {
        self.lines_max = lines_max;
    }

    /// Notes something that happened at `now`.
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

    /// A number that two runs share only if the same things happened in both, in the same order and
    /// at the same times.
    #[must_use]
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// The last things that happened.
    #[must_use]
    pub fn last_lines(&self) -> Vec<String> {
        self.lines.iter().cloned().collect()
    }
}
