//! A log of several concurrent programs: each line has its time and its source.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Instant;

/// A log file that is also shown on standard output.
#[derive(Debug)]
pub(crate) struct Log {
    file: Mutex<File>,
    began: Instant,
}

impl Log {
    /// Creates or truncates the file.
    pub(crate) fn create(path: &Path) -> Result<Arc<Log>, String> {
        let file = File::create(path).map_err(|e| format!("{}: {e}", path.display()))?;
        Ok(Arc::new(Log {
            file: Mutex::new(file),
            began: Instant::now(),
        }))
    }

    /// Adds one line; write errors are ignored.
    pub(crate) fn line(&self, source: &str, text: &str) {
        let line = format!(
            "[{:8.3}] {source}: {text}\n",
            self.began.elapsed().as_secs_f64()
        );
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = file.write_all(line.as_bytes());
        // Tests capture only print!, but that panics if standard output is closed.
        if !cfg!(test) {
            let _ = std::io::stdout().write_all(line.as_bytes());
        }
    }

    /// Adds every line of a stream until its end, and passes each to `seen` first.
    pub(crate) fn follow(
        self: &Arc<Log>,
        source: &'static str,
        stream: impl Read + Send + 'static,
        mut seen: impl FnMut(&str) + Send + 'static,
    ) -> JoinHandle<()> {
        let log = Arc::clone(self);
        thread::spawn(move || {
            let mut reader = BufReader::new(stream);
            let mut line = Vec::new();
            while reader
                .read_until(b'\n', &mut line)
                .is_ok_and(|length| length > 0)
            {
                let text = String::from_utf8_lossy(&line);
                let text = text.trim_end();
                seen(text);
                log.line(source, text);
                line.clear();
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_lines_of_several_sources_are_not_mixed() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("x.log");
        let log = Log::create(&path).unwrap();
        let first = log.follow("one", &b"a\nb \xff\nlast"[..], |_| {});
        let second = log.follow("two", &b"c\n"[..], |text| assert_eq!(text, "c"));
        first.join().unwrap();
        second.join().unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let mut lines: Vec<&str> = text
            .lines()
            .map(|line| line.split_once("] ").unwrap().1)
            .collect();
        lines.sort_unstable();
        assert_eq!(lines, ["one: a", "one: b \u{fffd}", "one: last", "two: c"]);
    }

    #[test]
    fn log_creation_failure_is_an_error() {
        assert!(Log::create(Path::new("/nonexistent/x.log")).is_err());
    }
}
