//! Checks citations of specifications: each names a document and a section of the table in
//! `nvme_spec::citations`, and the table has no entry that nothing cites.
//!
//! A citation is the name of a document and a section, `TCP 1.1 §3.6.2.8`; a list of sections
//! names its document once: `Base 2.1 §6.5 and §6.6`.

use std::collections::BTreeSet;

use table::{DOCUMENTS, Document};

// The source of the table rather than the crate, because xtask uses no crate of the workspace.
#[expect(unreachable_pub, reason = "the items are public in nvme_spec")]
#[path = "../../../nvme/spec/src/citations.rs"]
mod table;

const SECTION: char = '§';
/// A document whose sections another check compares with its headings.
const CHECKED_ELSEWHERE: &str = "ARCHITECTURE.md";
/// Documents that must be in the table even if they are cited without a section.
const NUMBERED_SERIES: &str = "RFC ";

/// The citations of files.
#[derive(Debug, Default)]
pub(crate) struct Citations {
    /// Documents and sections; the section is empty for a document that is cited as a whole.
    cited: BTreeSet<(&'static str, String)>,
    problems: Vec<String>,
}

impl Citations {
    /// Adds the citations of a file.
    pub(crate) fn add(&mut self, file: &str, text: &str) {
        let text = joined(text);
        let mut last: Option<(&'static Document, usize)> = None;
        for (at, _) in text.match_indices(SECTION) {
            let Some((number, end)) = number_at(&text, at + SECTION.len_utf8()) else {
                continue;
            };
            let before = text[..at].trim_end_matches([' ', '`']);
            if before.ends_with(CHECKED_ELSEWHERE) {
                last = None;
                continue;
            }
            let named = DOCUMENTS.iter().find(|it| is_name_at_end(before, it.name));
            let continued = last.filter(|&(_, end)| is_list_separator(&text[end..at]));
            let Some(document) = named.or(continued.map(|(document, _)| document)) else {
                let shown = excerpt(&text, at, end);
                self.problem(
                    file,
                    &format!("cites a section of no known document: {shown}"),
                );
                continue;
            };
            last = Some((document, end));
            if document.sections.iter().any(|it| it.0 == number) {
                self.cited.insert((document.name, number.to_owned()));
            } else {
                let (name, title) = (document.name, document.title);
                let unknown = format!(
                    "cites {name} {SECTION}{number} ({title}), which nvme_spec::citations lacks"
                );
                self.problem(file, &unknown);
            }
        }
        self.add_whole_documents(file, &text);
        self.add_other_forms(file, &text);
    }

    /// Adds the documents of a numbered series that are cited with or without a section.
    fn add_whole_documents(&mut self, file: &str, text: &str) {
        for (at, _) in text.match_indices(NUMBERED_SERIES) {
            let Some((_, end)) = number_at(text, at + NUMBERED_SERIES.len()) else {
                continue;
            };
            let name = &text[at..end];
            match DOCUMENTS.iter().find(|it| it.name == name) {
                Some(document) => {
                    self.cited.insert((document.name, String::new()));
                }
                None => self.problem(
                    file,
                    &format!("cites {name}, which nvme_spec::citations lacks"),
                ),
            }
        }
    }

    /// Reports sections that are cited in another form, which this check would miss.
    fn add_other_forms(&mut self, file: &str, text: &str) {
        let words = ["section ", "sections ", "Section ", "Sections "];
        let names = DOCUMENTS.iter().map(|it| it.name);
        for word in words.into_iter().chain(names) {
            for (at, _) in text.match_indices(word) {
                let behind = at + word.len();
                let begin = behind + leading(&text[behind..], |c| c == ',' || c == ' ');
                let is_word_before = text[..at].ends_with(|c: char| c.is_alphanumeric());
                let Some((number, end)) = number_at(text, begin) else {
                    continue;
                };
                let is_name = !word.ends_with(' ');
                if is_word_before || !number.contains('.') || (is_name && begin == behind) {
                    continue;
                }
                let shown = excerpt(text, at, end);
                self.problem(file, &format!("cites a section without {SECTION}: {shown}"));
            }
        }
    }

    fn problem(&mut self, file: &str, problem: &str) {
        self.problems.push(format!("{file} {problem}"));
    }

    /// The problems of all files, and the entries of the table that none of them cites.
    pub(crate) fn problems(mut self) -> Vec<String> {
        for document in &DOCUMENTS {
            let sections = document.sections.iter().map(|it| it.0);
            let whole = document.sections.is_empty().then_some("");
            for section in sections.chain(whole) {
                if !self.cited.contains(&(document.name, section.to_owned())) {
                    let entry = format!("{} {section}", document.name);
                    let entry = entry.trim_end();
                    self.problems
                        .push(format!("nvme_spec::citations has {entry}, uncited"));
                }
            }
        }
        self.problems
    }
}

/// The text in one line, without indentation and the marks that begin comments, so that a citation
/// may be broken over lines.
fn joined(text: &str) -> String {
    let mut joined = String::with_capacity(text.len());
    for line in text.lines() {
        let line = line.trim_start();
        let line = ["///", "//!", "//", "#!", "#"]
            .iter()
            .find_map(|mark| line.strip_prefix(mark))
            .unwrap_or(line);
        joined.push_str(line.trim());
        joined.push(' ');
    }
    joined
}

/// The number of a section at `at`, such as `3.6.2.8` or `B.5`, and where it ends.
fn number_at(text: &str, at: usize) -> Option<(&str, usize)> {
    let rest = &text[at..];
    let is_annex = rest.starts_with(|c: char| c.is_ascii_uppercase()) && rest[1..].starts_with('.');
    let begin = usize::from(is_annex);
    let length = begin + leading(&rest[begin..], |c| c.is_ascii_digit() || c == '.');
    let number = rest[..length].trim_end_matches('.');
    let has_digit = number.contains(|c: char| c.is_ascii_digit());
    (has_digit && !number.starts_with('.')).then_some((number, at + number.len()))
}

fn leading(text: &str, is_part: impl Fn(char) -> bool) -> usize {
    text.find(|c| !is_part(c)).unwrap_or(text.len())
}

fn is_name_at_end(text: &str, name: &str) -> bool {
    text.strip_suffix(name)
        .is_some_and(|before| !before.ends_with(|c: char| c.is_alphanumeric()))
}

/// Whether the text between two sections belongs to a list: a remark in parentheses, and commas or
/// conjunctions.
fn is_list_separator(text: &str) -> bool {
    let mut text = text.trim();
    if let Some((_, behind)) = text.strip_prefix('(').and_then(|it| it.split_once(')')) {
        text = behind.trim();
    }
    let words = text.trim_start_matches([',', ';']).trim();
    ["", "and", "or", "to"].contains(&words) && !text.is_empty()
}

/// A citation with the words before it.
fn excerpt(text: &str, begin: usize, end: usize) -> &str {
    let before = text[..begin].char_indices().rev().nth(30);
    &text[before.map_or(0, |(at, _)| at)..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text with `$` replaced by the section sign and `_` by a space: this file is checked too,
    /// and must not contain the citations of its tests.
    fn spelled(text: &str) -> String {
        text.replace('$', "§").replace('_', " ")
    }

    fn problems(text: &str) -> Vec<String> {
        let mut citations = Citations::default();
        citations.add("x.rs", &spelled(text));
        citations.problems
    }

    #[test]
    fn section_numbers_and_titles_are_ordered_and_unique() {
        let key = |number: &str| -> Vec<u32> {
            let part = |part: &str| part.parse().unwrap_or(1_000);
            number.split('.').map(part).collect()
        };
        for document in DOCUMENTS {
            let numbers = document.sections.iter().map(|&(number, _)| key(number));
            assert!(numbers.is_sorted_by(|a, b| a < b), "{}", document.name);
            assert!(document.sections.iter().all(|(_, title)| !title.is_empty()));
            let named = DOCUMENTS.iter().filter(|it| it.name == document.name);
            assert_eq!(named.count(), 1, "{}", document.name);
        }
    }

    #[test]
    fn known_sections_are_accepted_in_lists_and_across_lines() {
        let texts = [
            "/// H2CData (TCP 1.1 $3.6.2.8).",
            "//! Properties (Base\n//! 2.1 $6.5, $6.6; TCP 1.1 $3.1).",
            "// Base 2.1 $3.1.4.5 and $3.1.4.6 (CC, CSTS), $3.5 (initialisation).",
            "# Base 2.1 $7.5 to $7.8, $B.5.",
            "`ARCHITECTURE.md` $99.9, ARCHITECTURE.md $99",
            "RFC_3385, RFC_9562 $5.5",
            "a cross-section of 3.1 and TCP 1.1 (\"TCP 1.1\"), Base 2.1, 3 times",
        ];
        for text in texts {
            assert_eq!(problems(text), [""; 0], "{text}");
        }
    }

    #[test]
    fn unknown_sections_documents_and_forms_are_problems() {
        let cases = [
            ("TCP 1.1 $3.6.2.11", "x.rs cites TCP 1.1 $3.6.2.11 (NVM Exp"),
            (
                "TCP 1.0 $3.6.2.8",
                "x.rs cites a section of no known document: TCP 1.0 $3.6",
            ),
            (
                "see $6.3",
                "x.rs cites a section of no known document: see $6.3",
            ),
            (
                "Base 2.1 $6.3. And $6.4",
                "x.rs cites a section of no known document: ",
            ),
            ("RFC_1", "x.rs cites RFC_1, which"),
            (
                "RFC_9562,_section_5.5",
                "x.rs cites a section without $: RFC_9562,_section_5.5",
            ),
            (
                "Base_2.1,_4.2.3",
                "x.rs cites a section without $: Base_2.1,_4.2.3",
            ),
        ];
        for (text, expected) in cases {
            let found = problems(text);
            let expected = spelled(expected);
            assert!(
                found.len() == 1 && found[0].starts_with(&expected),
                "{text}: {found:?}"
            );
        }
    }

    #[test]
    fn uncited_entries_are_problems() {
        let mut citations = Citations::default();
        citations.add("x.rs", &spelled("RFC_3385, TCP 1.1 $3.5"));
        let problems = citations.problems();
        let has = |text: &str| problems.iter().any(|it| it.ends_with(&spelled(text)));
        assert!(has("TCP 1.1_3.6, uncited") && has("RFC_5737, uncited"));
        assert!(!has("TCP 1.1_3.5, uncited") && !has("RFC_3385, uncited"));
    }
}
