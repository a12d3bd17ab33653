//! Log lines for systemd's journal: structured if the journal is reachable, otherwise with a
//! priority before each line on standard error.

use std::io;
use std::os::unix::fs::MetadataExt as _;

use tracing_journald::{Priority, PriorityMappings};

/// The identifier of the records, and the prefix of their fields: `journalctl WINDLASS_EXPORT=…`.
const IDENTIFIER: &str = "windlass";
const FIELD_PREFIX: &str = "WINDLASS";
/// `LOG_ERR` of syslog(3) as a line prefix, as in sd-daemon(3).
const ERROR_PREFIX: &str = "<3>";

/// The journal's layer, if standard error is connected to the journal and the journal is reachable.
pub(crate) fn journal() -> Option<tracing_journald::Layer> {
    if !stderr_is_the_journal() {
        return None;
    }
    let priorities = PriorityMappings {
        info: Priority::Informational,
        debug: Priority::Debug,
        ..PriorityMappings::new()
    };
    let layer = tracing_journald::layer().ok()?;
    Some(
        layer
            .with_syslog_identifier(IDENTIFIER.to_owned())
            .with_field_prefix(Some(FIELD_PREFIX.to_owned()))
            .with_priority_mappings(priorities),
    )
}

/// Prints why the process ends. A text of several lines is kept; in the journal each line is an
/// error.
pub(crate) fn report_failure(text: &str) {
    if stderr_is_the_journal() {
        eprintln!("{}", with_priority(text));
    } else {
        eprintln!("{text}");
    }
}

fn with_priority(text: &str) -> String {
    let lines = text.lines().map(|line| format!("{ERROR_PREFIX}{line}"));
    lines.collect::<Vec<_>>().join("\n")
}

/// Whether standard error is the stream to the journal, whose device and inode are in
/// `$JOURNAL_STREAM` (systemd.exec(5)). They are compared because standard error may have been
/// redirected since.
fn stderr_is_the_journal() -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else {
        return false;
    };
    stderr_identity().is_ok_and(|identity| stream_is(&stream, identity))
}

fn stderr_identity() -> io::Result<(u64, u64)> {
    let metadata = std::fs::metadata("/proc/self/fd/2")?;
    Ok((metadata.dev(), metadata.ino()))
}

fn stream_is(stream: &str, (device, inode): (u64, u64)) -> bool {
    stream == format!("{device}:{inode}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn journal_stream_is_matched_by_device_and_inode() {
        assert!(stream_is("9:38277", (9, 38277)));
        for other in ["9:38278", "8:38277", "9", "", "9:38277:1", "x:y"] {
            assert!(!stream_is(other, (9, 38277)), "{other}");
        }
    }

    #[test]
    fn every_failure_line_has_a_priority_prefix() {
        assert_eq!(with_priority("one"), "<3>one");
        assert_eq!(with_priority("a:1: x\n  |\n"), "<3>a:1: x\n<3>  |");
    }
}
