//! Writes text to standard output and standard error.

use std::io::{self, Write as _};

/// Prints text; a closed pipe is not an error.
pub(crate) fn print(text: &str) {
    if let Err(error) = write(text) {
        tracing::debug!(%error, "nobody reads the output");
    }
}

/// Prints text that is lost if this fails.
pub(crate) fn write(text: &str) -> io::Result<()> {
    let mut output = io::stdout().lock();
    output.write_all(text.as_bytes())?;
    output.flush()
}

/// Prints text beside the output, to standard error; a closed pipe is not an error.
pub(crate) fn print_aside(text: &str) {
    if let Err(error) = io::stderr().lock().write_all(text.as_bytes()) {
        tracing::debug!(%error, "nobody reads the errors");
    }
}
