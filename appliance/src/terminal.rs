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

/// Text as one word of a shell.
pub(crate) fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-/:,+=@%".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_for_a_shell() {
        assert_eq!(quoted("/etc/a-b_c.key"), "/etc/a-b_c.key");
        assert_eq!(quoted("a b"), "'a b'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted(""), "''");
    }
}
