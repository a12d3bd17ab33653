//! A minimal scanner for Rust that finds keywords and a file's leading attributes.
//!
//! The Rust Reference: comments, character and string literals, inner attributes.

/// Replaces comments, and the content of string and character literals, by spaces.
pub(crate) fn without_comments_and_literals(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut code = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let end = at + blank_length(bytes, at);
        if end == at {
            code.push(bytes[at]);
            at += 1;
        } else {
            code.extend(
                bytes[at..end]
                    .iter()
                    .map(|&b| if b == b'\n' { b'\n' } else { b' ' }),
            );
            at = end;
        }
    }
    String::from_utf8_lossy(&code).into_owned()
}

/// Length of the comment or literal that begins at `at`; 0 if there is none.
fn blank_length(bytes: &[u8], at: usize) -> usize {
    let rest = &bytes[at..];
    let after_word = at > 0 && is_word(bytes[at - 1]);
    match rest {
        [b'/', b'/', ..] => find(rest, b"\n").unwrap_or(rest.len()),
        [b'/', b'*', ..] => block_comment_length(rest),
        [b'"', ..] => quoted_length(rest, b'"'),
        [b'\'', ..] => character_length(rest),
        [b'r', ..] if !after_word => raw_string_length(&rest[1..]).map_or(0, |length| length + 1),
        [b'b' | b'c', b'r', ..] if !after_word => {
            raw_string_length(&rest[2..]).map_or(0, |length| length + 2)
        }
        _ => 0,
    }
}

fn find(text: &[u8], wanted: &[u8]) -> Option<usize> {
    text.windows(wanted.len())
        .position(|window| window == wanted)
}

fn block_comment_length(text: &[u8]) -> usize {
    let (mut depth, mut at) = (0_usize, 0);
    while at < text.len() {
        match &text[at..] {
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            return at;
        }
    }
    text.len()
}

/// Length of a literal including its closing `quote`, which a backslash may escape.
fn quoted_length(text: &[u8], quote: u8) -> usize {
    let mut at = 1;
    while at < text.len() {
        match text[at] {
            b'\\' => at += 2,
            byte if byte == quote => return at + 1,
            _ => at += 1,
        }
    }
    text.len()
}

/// Length of a character literal; 0 for a lifetime, which has no second quote after one character.
fn character_length(text: &[u8]) -> usize {
    let first = match text.get(1) {
        Some(b'\\') => return quoted_length(text, b'\''),
        Some(&byte) => byte,
        None => return 0,
    };
    let width = match first {
        0xF0.. => 4,
        0xE0.. => 3,
        0xC0.. => 2,
        _ => 1,
    };
    if text.get(1 + width) == Some(&b'\'') {
        width + 2
    } else {
        0
    }
}

/// Length of a raw string after its `r`.
fn raw_string_length(text: &[u8]) -> Option<usize> {
    let hashes = text.iter().take_while(|&&byte| byte == b'#').count();
    if text.get(hashes) != Some(&b'"') {
        return None;
    }
    let mut end = vec![b'"'];
    end.resize(hashes + 1, b'#');
    let inside = hashes + 1;
    Some(find(&text[inside..], &end).map_or(text.len(), |length| inside + length + end.len()))
}

fn is_word(byte: u8) -> bool {
    byte == b'_' || byte.is_ascii_alphanumeric() || byte >= 0x80
}

/// Whether `word` occurs as a whole word in code without comments and literals.
pub(crate) fn has_word(code: &str, word: &str) -> bool {
    code.match_indices(word).any(|(at, _)| {
        let bytes = code.as_bytes();
        let before = at.checked_sub(1).map(|index| bytes[index]);
        let after = bytes.get(at + word.len()).copied();
        !before.is_some_and(is_word) && !after.is_some_and(is_word)
    })
}

/// The `#![…]` attributes at the beginning, without white space.
pub(crate) fn leading_attributes(code: &str) -> Vec<String> {
    let mut attributes = Vec::new();
    let mut rest = code.trim_start();
    while rest.starts_with("#![") {
        let Some(length) = bracketed_length(rest) else {
            break;
        };
        attributes.push(
            rest[..length]
                .chars()
                .filter(|c| !c.is_whitespace())
                .collect(),
        );
        rest = rest[length..].trim_start();
    }
    attributes
}

fn bracketed_length(text: &str) -> Option<usize> {
    let mut depth = 0_usize;
    for (at, character) in text.char_indices() {
        match character {
            '[' => depth += 1,
            ']' => {
                depth -= 1;
                if depth == 0 {
                    return Some(at + 1);
                }
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn has_unsafe(text: &str) -> bool {
        has_word(&without_comments_and_literals(text), "unsafe")
    }

    #[test]
    fn keyword_in_code_is_found() {
        for text in [
            "unsafe fn f() {}",
            "let x = unsafe { y };",
            "/* c */unsafe{}",
            "let c = '\"'; unsafe {}",
            "let c = '\\''; unsafe {}",
            "fn f<'a>(x: &'a str) { unsafe {} }",
            "let s = \"\\\"\"; unsafe {}",
            "let s = r\"\\\"; unsafe {}",
            "let s = r#\"a\"b\"#; unsafe {}",
            "let s = 'ü'; unsafe {}",
            "// comment\nunsafe {}",
            "/* a /* b */ c */ unsafe {}",
        ] {
            assert!(has_unsafe(text), "{text}");
        }
    }

    #[test]
    fn keyword_in_comments_and_literals_is_ignored() {
        for text in [
            "",
            "unsafe_code",
            "#![forbid(unsafe_code)]",
            "not_unsafe()",
            "// unsafe",
            "/// unsafe\nfn f() {}",
            "/* unsafe /* unsafe */ unsafe */",
            "let s = \"unsafe\";",
            "let s = \"\\\" unsafe\";",
            "let s = b\"unsafe\";",
            "let s = r#\"\" unsafe \"#;",
            "let s = br##\"\"# unsafe \"##;",
            "let s = \"unterminated unsafe",
            "/* unterminated unsafe",
        ] {
            assert!(!has_unsafe(text), "{text}");
        }
    }

    #[test]
    fn line_numbers_are_preserved() {
        let text = "a /* 1\n2 */ \"x\ny\" // z\nb";
        let code = without_comments_and_literals(text);
        assert_eq!(code.lines().count(), text.lines().count());
        assert!(code.ends_with("\nb"));
    }

    #[test]
    fn multi_line_attributes_after_comments_are_found() {
        let text = "//! Docs.\n\n#![no_std]\n#![expect(\n    unsafe_code,\n    \
                    reason = \"a ]\"\n)]\n\
                    use x;\n#![late]\n";
        assert_eq!(
            leading_attributes(&without_comments_and_literals(text)),
            ["#![no_std]", "#![expect(unsafe_code,reason=)]"]
        );
        assert!(leading_attributes("#![unclosed(").is_empty());
        assert!(leading_attributes("use x;").is_empty());
    }
}
