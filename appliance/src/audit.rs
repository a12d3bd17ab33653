//! Audit records: one line in the log for each change that somebody requested while the appliance
//! runs, and for each attempt that was refused.
//!
//! In the journal, `journalctl -u windlass TARGET=audit` selects them. They are written whatever
//! `--log` selects.

use std::fmt::Display;

/// The target of the records.
pub(crate) const TARGET: &str = "audit";
/// Most characters of an outcome in a record.
const OUTCOME_CHARS_MAX: usize = 2000;

/// Records that `client` requested `action`, and its outcome.
pub(crate) fn record(client: &dyn Display, action: &str, is_done: bool, outcome: &str) {
    let outcome = printable(outcome);
    let result = if is_done { "done" } else { "refused" };
    tracing::info!(
        target: TARGET,
        client = %client,
        action,
        result,
        "audit: {action} requested by {client}: {result}: {outcome}"
    );
}

/// The text in one line of limited length.
fn printable(text: &str) -> String {
    let mut characters = text.chars();
    let head = characters.by_ref().take(OUTCOME_CHARS_MAX);
    let mut line: String = head
        .map(|it| if it.is_control() { ' ' } else { it })
        .collect();
    if characters.next().is_some() {
        line.push('…');
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_are_one_line_of_limited_length() {
        assert_eq!(printable("a\nb\x1b[31m\tc"), "a b [31m c");
        let longest = "λ".repeat(OUTCOME_CHARS_MAX);
        assert_eq!(printable(&longest), longest);
        assert_eq!(printable(&format!("{longest}x")), format!("{longest}…"));
    }
}
