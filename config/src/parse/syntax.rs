//! Reads the file as TOML: size, encoding, depth, syntax.

use std::collections::HashSet;
use std::ops::Range;

use toml::de::DeTable;

use crate::limits::{FILE_BYTES_MAX, SYNTAX_RECOVERY_BYTES_MAX};
use crate::problem::{Finding, Findings, Lines, ProblemKind, Problems};
use crate::suggest::{excerpt_of, replace_control_character};
use crate::value::ByteSize;

pub(super) fn too_large(bytes: usize) -> Finding {
    Finding {
        kind: ProblemKind::FileTooLarge,
        span: None,
        path: String::new(),
        message: format!(
            "the file has {bytes} bytes, the maximum is {}",
            ByteSize::from_bytes(FILE_BYTES_MAX as u64)
        ),
        hint: Some("is this the configuration file?".to_owned()),
    }
}

/// The problem of a file with an invalid byte at `offset`.
pub(super) fn not_utf8(source_name: &str, bytes: &[u8], offset: usize) -> Problems {
    let text = String::from_utf8_lossy(bytes);
    let byte = bytes.get(offset).copied().unwrap_or_default();
    let mut findings = Findings::default();
    findings.add(|| Finding {
        kind: ProblemKind::NotUtf8,
        // The text before the first invalid byte is the same in both.
        span: Some(offset..offset),
        path: String::new(),
        message: format!("the file is not UTF-8: byte {offset} is 0x{byte:02x}"),
        hint: Some("save it as UTF-8; `file` names the encoding that it has".to_owned()),
    });
    findings.into_problems(source_name, &text)
}

/// The file's root table; `None` if it is too damaged for further checks.
///
/// The TOML parser bounds the depth: 80 brackets, 80 parts of a key. Tables of that depth are
/// dropped within a thread's usual stack of 2 MiB.
pub(super) fn parse<'t>(text: &'t str, findings: &mut Findings) -> Option<DeTable<'t>> {
    if text.len() > FILE_BYTES_MAX {
        findings.add(|| too_large(text.len()));
        return None;
    }
    let (root, errors) = if text.len() <= SYNTAX_RECOVERY_BYTES_MAX {
        DeTable::parse_recoverable(text)
    } else {
        match DeTable::parse(text) {
            Ok(root) => (root, Vec::new()),
            Err(error) => (toml::Spanned::new(0..0, DeTable::new()), vec![error]),
        }
    };
    let lines = Lines::new(text);
    let mut lines_seen = HashSet::new();
    let mut only_duplicates = true;
    for error in &errors {
        let span = error.span().unwrap_or(0..0);
        let finding = syntax_error(text, error.message(), span.clone());
        only_duplicates &= finding.kind == ProblemKind::DuplicateKey;
        // A second error on one line is most often a consequence of the first.
        if lines_seen.insert(lines.line(span.start)) {
            findings.add(|| finding);
        }
    }
    // A duplicate key leaves the rest of the file intact; any other syntax error loses parts of it.
    let whole = only_duplicates && text.len() <= SYNTAX_RECOVERY_BYTES_MAX;
    (errors.is_empty() || whole).then(|| root.into_inner())
}

fn syntax_error(text: &str, message: &str, span: Range<usize>) -> Finding {
    if message.starts_with("duplicate key") {
        let key = excerpt_of(text.get(span.clone()).unwrap_or(""));
        return Finding {
            kind: ProblemKind::DuplicateKey,
            span: Some(span),
            path: String::new(),
            message: format!("`{key}` occurs twice"),
            hint: Some(
                "remove one; a further device, listener or export begins with double brackets, \
                 like [[device]]"
                    .to_owned(),
            ),
        };
    }
    let message = message
        .strip_suffix(", expected nothing")
        .unwrap_or(message);
    let message: String = message.chars().map(replace_control_character).collect();
    Finding {
        kind: ProblemKind::Syntax,
        hint: syntax_hint(text, span.start),
        span: Some(span),
        path: String::new(),
        message: format!("not TOML: {message}"),
    }
}

/// A hint for an error in a value that most likely lacks its quotes.
fn syntax_hint(text: &str, offset: usize) -> Option<String> {
    let before = text.get(..offset)?;
    let line_start = before.rfind('\n').map_or(0, |at| at + 1);
    let line = text.get(line_start..)?.lines().next()?;
    let (key, value) = line.split_once('=')?;
    let value = value.split_once('#').map_or(value, |(value, _)| value);
    let (key, value) = (key.trim(), value.trim());
    if matches!(
        value.to_ascii_lowercase().as_str(),
        "true" | "false" | "yes" | "no"
    ) {
        return Some("a boolean is `true` or `false`, in small letters".to_owned());
    }
    let begins = value.starts_with(|c: char| c.is_alphanumeric() || matches!(c, '/' | '.'));
    let number = value.chars().all(|c| c.is_ascii_digit() || c == '_');
    let plain = !value.contains(['"', '\'', '\\']);
    (begins && !number && plain && !key.is_empty()).then(|| {
        format!(
            "a string stands in quotes: `{} = \"{}\"`",
            excerpt_of(key),
            excerpt_of(value)
        )
    })
}
