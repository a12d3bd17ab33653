//! The error type of the crate's upper layers, and the format of errors with causes.

use std::error::Error;

/// An error of any kind, with its causes.
pub(crate) type Failure = Box<dyn Error>;

/// An error and its causes in one line; a text with several lines is unchanged.
pub(crate) fn one_line(error: &dyn Error) -> String {
    let text = error.to_string();
    if text.contains('\n') {
        return text.trim_end().to_owned();
    }
    format!("windlass: {}", with_causes(error))
}

/// An error and its causes, separated by colons.
pub(crate) fn with_causes(error: &dyn Error) -> String {
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(source) = cause {
        let text = source.to_string();
        // Some errors already print their cause.
        if !line.ends_with(&text) {
            line.push_str(": ");
            line.push_str(&text);
        }
        cause = source.source();
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("the arena cannot be had")]
    struct Outer(#[source] std::io::Error);

    #[test]
    fn error_causes_are_joined_in_one_line() {
        let outer = Outer(std::io::Error::other("no memory"));
        assert_eq!(
            one_line(&outer),
            "windlass: the arena cannot be had: no memory"
        );
    }
}
