//! Writes text to standard output.

use std::io::Write as _;

/// Prints text; a closed pipe is not an error.
pub(crate) fn print(text: &str) {
    if let Err(error) = std::io::stdout().lock().write_all(text.as_bytes()) {
        tracing::debug!(%error, "nobody reads the output");
    }
}
