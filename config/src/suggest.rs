//! "Did you mean …?": finds the word nearest to a misspelt one.

/// Most names that a hint lists.
pub(crate) const NAMES_LISTED_MAX: usize = 8;

/// Longest text, in characters, for which a suggestion is made.
const CHARS_MAX: usize = 64;

/// The candidate nearest to `word`, if one is near enough.
///
/// The limit is one edit per three characters, and at least one. Letter case and `-` instead of `_`
/// do not count; the same words in another order (`queues_max` for `max_queues`) are near.
pub(crate) fn nearest<'c>(
    word: &str,
    candidates: impl IntoIterator<Item = &'c str>,
) -> Option<&'c str> {
    let word = folded(word);
    if word.is_empty() || word.len() > CHARS_MAX {
        return None;
    }
    candidates
        .into_iter()
        .filter_map(|candidate| {
            let other = folded(candidate);
            if other.is_empty() || other.len() > CHARS_MAX {
                return None;
            }
            let edits = distance(&word, &other);
            let allowed = (word.len().max(other.len()) / 3).max(1);
            // A word whose every letter differs is a different word.
            let near = edits <= allowed && edits < word.len().min(other.len());
            let same_words = word_set(&word) == word_set(&other);
            (near || same_words).then_some((edits, candidate))
        })
        .min_by_key(|(edits, _)| *edits)
        .map(|(_, candidate)| candidate)
}

/// `a, b and c`, each in backticks; at most `count_max` of them.
pub(crate) fn listed<'c>(words: impl IntoIterator<Item = &'c str>, count_max: usize) -> String {
    let mut words: Vec<&str> = words.into_iter().collect();
    let left_out = words.len().saturating_sub(count_max);
    words.truncate(count_max);
    let quoted: Vec<String> = words
        .iter()
        .map(|word| format!("`{}`", excerpt_of(word)))
        .collect();
    match (quoted.as_slice(), left_out) {
        ([], _) => "none".to_owned(),
        ([one], 0) => one.clone(),
        ([init @ .., last], 0) => format!("{} and {last}", init.join(", ")),
        (some, more) => format!("{} and {more} more", some.join(", ")),
    }
}

/// Longest excerpt of the file's text in a message, in characters.
const SHOWN_CHARS_MAX: usize = 64;

/// The text for a message: shortened, and without characters that control a terminal.
pub(crate) fn excerpt_of(text: &str) -> String {
    let mut excerpt: String = text
        .chars()
        .take(SHOWN_CHARS_MAX)
        .map(replace_control_character)
        .collect();
    if text.chars().nth(SHOWN_CHARS_MAX).is_some() {
        excerpt.push('…');
    }
    excerpt
}

/// The character itself, or a replacement of the same width for one that moves the cursor, changes
/// colours or reverses the writing direction.
pub(crate) fn replace_control_character(c: char) -> char {
    let turns = matches!(
        c,
        '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
    );
    match c {
        '\t' => ' ',
        _ if c.is_control() || turns => '\u{fffd}',
        _ => c,
    }
}

fn folded(word: &str) -> Vec<char> {
    word.chars()
        .take(CHARS_MAX + 1)
        .map(|c| {
            if c == '-' {
                '_'
            } else {
                c.to_ascii_lowercase()
            }
        })
        .collect()
}

fn word_set(word: &[char]) -> Vec<&[char]> {
    let mut words: Vec<&[char]> = word.split(|c| *c == '_').collect();
    words.sort_unstable();
    words
}

/// Levenshtein distance in which a transposition of neighbours is one edit (optimal string
/// alignment).
fn distance(left: &[char], right: &[char]) -> usize {
    let mut before: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=right.len()).collect();
    for (row, l) in left.iter().enumerate() {
        let mut current = Vec::with_capacity(right.len() + 1);
        current.push(row + 1);
        for (column, r) in right.iter().enumerate() {
            let replaced = above[column] + usize::from(l != r);
            let mut least = replaced.min(above[column + 1] + 1).min(current[column] + 1);
            let swapped = row > 0 && column > 0 && *l == right[column - 1] && left[row - 1] == *r;
            if swapped {
                least = least.min(before[column - 1] + 1);
            }
            current.push(least);
        }
        before = above;
        above = current;
    }
    above.last().copied().unwrap_or(left.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_counts_edits_and_swaps() {
        let count = |l: &str, r: &str| distance(&folded(l), &folded(r));
        assert_eq!(count("", "abc"), 3);
        assert_eq!(count("abc", ""), 3);
        assert_eq!(count("size", "size"), 0);
        assert_eq!(count("szie", "size"), 1);
        assert_eq!(count("memory", "memery"), 1);
        assert_eq!(count("kitten", "sitting"), 3);
    }

    #[test]
    fn only_near_words_are_suggested() {
        let keys = [
            "name",
            "type",
            "size",
            "path",
            "block_size",
            "read_only",
            "max_io_queues",
        ];
        assert_eq!(nearest("szie", keys), Some("size"));
        assert_eq!(nearest("block-size", keys), Some("block_size"));
        assert_eq!(nearest("blocksize", keys), Some("block_size"));
        assert_eq!(nearest("io_queues_max", keys), Some("max_io_queues"));
        assert_eq!(nearest("Name", keys), Some("name"));
        assert_eq!(nearest("tls", keys), None);
        assert_eq!(nearest("b", ["a"]), None);
        assert_eq!(nearest("", keys), None);
        assert_eq!(nearest(&"x".repeat(1_000_000), keys), None);
    }

    #[test]
    fn word_lists_are_limited() {
        assert_eq!(listed([], 3), "none");
        assert_eq!(listed(["a"], 3), "`a`");
        assert_eq!(listed(["a", "b", "c"], 3), "`a`, `b` and `c`");
        assert_eq!(listed(["a", "b", "c", "d"], 2), "`a`, `b` and 2 more");
    }

    #[test]
    fn excerpt_removes_terminal_control_characters() {
        assert_eq!(
            excerpt_of("a\u{1b}[31mb\tc\u{202e}"),
            "a\u{fffd}[31mb c\u{fffd}"
        );
        assert_eq!(excerpt_of(&"x".repeat(65)), format!("{}…", "x".repeat(64)));
        assert_eq!(excerpt_of(&"x".repeat(64)), "x".repeat(64));
    }
}
