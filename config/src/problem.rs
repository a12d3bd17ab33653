//! Problems of a configuration: their kind, their place and their text.

use std::error::Error;
use std::fmt;
use std::ops::Range;

use crate::limits::PROBLEMS_MAX;
use crate::suggest::{excerpt_of, replace_control_character};

/// The kind of a problem, for programs; people read the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum ProblemKind {
    /// The file is larger than [`FILE_BYTES_MAX`](crate::limits::FILE_BYTES_MAX).
    FileTooLarge,
    /// The file is not UTF-8.
    NotUtf8,
    /// The file is not TOML.
    Syntax,
    /// A key occurs twice in one table.
    DuplicateKey,
    /// An unknown key.
    UnknownKey,
    /// A required key or table is missing.
    Missing,
    /// A value does not have the TOML type of its key.
    WrongType,
    /// A value of the right type is invalid.
    BadValue,
    /// A value exceeds a limit.
    OutOfRange,
    /// A value that must be unique occurs twice.
    Duplicate,
    /// A reference to a name that does not exist.
    UnknownName,
    /// Keys or values that exclude each other.
    Conflict,
}

impl ProblemKind {
    /// Whether keys and values cannot be checked before this is fixed.
    fn blocks_further_checks(self) -> bool {
        matches!(
            self,
            ProblemKind::FileTooLarge | ProblemKind::NotUtf8 | ProblemKind::Syntax
        )
    }
}

/// The location of a problem in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    line: usize,
    column: usize,
    excerpt: String,
    caret_start: usize,
    caret_chars: usize,
}

impl Place {
    /// The line, counted from 1.
    pub fn line(&self) -> usize {
        self.line
    }

    /// The column in characters, counted from 1.
    pub fn column(&self) -> usize {
        self.column
    }

    /// The line's text, shortened around the column if it is long.
    pub fn excerpt(&self) -> &str {
        &self.excerpt
    }
}

/// One problem of a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    kind: ProblemKind,
    place: Option<Place>,
    path: String,
    message: String,
    hint: Option<String>,
}

impl Problem {
    /// The kind of the problem.
    pub fn kind(&self) -> ProblemKind {
        self.kind
    }

    /// Its location; `None` if something is missing from the file as a whole.
    pub fn place(&self) -> Option<&Place> {
        self.place.as_ref()
    }

    /// The path of the key, array elements counted from 0: `device[1].size`. Empty for the file.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The description of the problem, in one line.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// How to fix it, in one line.
    pub fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
    }
}

/// The problems of one file: at least one, in the order of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems {
    source_name: String,
    list: Vec<Problem>,
    omitted: usize,
}

/// Whether the printed text uses terminal colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colour {
    /// Plain text.
    Never,
    /// ANSI escape sequences.
    Always,
}

impl Problems {
    /// The problems, in the order of the file; those without a place last.
    pub fn iter(&self) -> std::slice::Iter<'_, Problem> {
        self.list.iter()
    }

    /// The number of problems, including those that are only counted.
    pub fn count(&self) -> usize {
        self.list.len().saturating_add(self.omitted)
    }

    /// The name of the file as it was given to the parser.
    pub fn source_name(&self) -> &str {
        &self.source_name
    }

    /// The text for people, with or without colours.
    pub fn display(&self, colour: Colour) -> impl fmt::Display + '_ {
        Rendering {
            problems: self,
            paint: Paint {
                on: colour == Colour::Always,
            },
        }
    }
}

impl<'p> IntoIterator for &'p Problems {
    type Item = &'p Problem;
    type IntoIter = std::slice::Iter<'p, Problem>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl Error for Problems {}

impl fmt::Display for Problems {
    /// Plain text: several lines for each problem, and a line with their number.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.display(Colour::Never).fmt(f)
    }
}

/// A problem before its location is resolved.
#[derive(Clone, Debug)]
pub(crate) struct Finding {
    pub(crate) kind: ProblemKind,
    /// Range of bytes in the source text.
    pub(crate) span: Option<Range<usize>>,
    pub(crate) path: String,
    pub(crate) message: String,
    pub(crate) hint: Option<String>,
}

/// Collects findings up to a limit.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    list: Vec<Finding>,
    omitted: usize,
}

impl Findings {
    /// Adds the finding that `finding` creates. Beyond the limit it is only counted and not
    /// created.
    pub(crate) fn add(&mut self, finding: impl FnOnce() -> Finding) {
        if self.list.len() < PROBLEMS_MAX {
            self.list.push(finding());
        } else {
            self.omitted = self.omitted.saturating_add(1);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The problems of `text`; there must be at least one.
    pub(crate) fn into_problems(mut self, source_name: &str, text: &str) -> Problems {
        debug_assert!(!self.list.is_empty(), "what was refused has a reason");
        self.list
            .sort_by_key(|finding| finding.span.as_ref().map_or(usize::MAX, |s| s.start));
        let lines = Lines::new(text);
        let list = self.list.into_iter().map(|finding| Problem {
            kind: finding.kind,
            place: finding.span.map(|span| lines.place(span)),
            path: finding.path,
            message: printable(&finding.message),
            hint: finding.hint.as_deref().map(printable),
        });
        let list = list.collect();
        Problems {
            source_name: source_name.to_owned(),
            list,
            omitted: self.omitted,
        }
    }
}

/// The lines of a text, to find the line of a byte.
pub(crate) struct Lines<'t> {
    text: &'t str,
    starts: Vec<usize>,
}

/// Most characters of a line that an excerpt shows.
const EXCERPT_CHARS_MAX: usize = 96;
/// Characters shown before the caret in a shortened line.
const EXCERPT_LEAD_CHARS: usize = 32;

impl<'t> Lines<'t> {
    pub(crate) fn new(text: &'t str) -> Lines<'t> {
        let ends = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        let starts = std::iter::once(0)
            .chain(ends.map(|(at, _)| at + 1))
            .collect();
        Lines { text, starts }
    }

    /// The line of the byte at `offset`, counted from 1.
    pub(crate) fn line(&self, offset: usize) -> usize {
        self.starts.partition_point(|start| *start <= offset)
    }

    fn place(&self, span: Range<usize>) -> Place {
        let start = self.text.floor_char_boundary(span.start);
        let line = self.line(start);
        let line_start = self
            .starts
            .get(line.saturating_sub(1))
            .copied()
            .unwrap_or(0);
        let content = self.text.get(line_start..).unwrap_or("");
        let content = content.split('\n').next().unwrap_or("");
        let content = content.strip_suffix('\r').unwrap_or(content);
        // A position at the end of the line is one column after its last character.
        let in_line = (start - line_start).min(content.len());
        let end = self.text.floor_char_boundary(span.end).max(start);
        let marked_end = (end - line_start).clamp(in_line, content.len());
        let column = content[..in_line].chars().count();
        let marked = content[in_line..marked_end].chars().count().max(1);
        cut(content, line, column, marked)
    }
}

/// The place with its line shortened around the column (counted from 0 here).
fn cut(content: &str, line: usize, column: usize, marked: usize) -> Place {
    let chars = content.chars().count();
    let skipped = if chars > EXCERPT_CHARS_MAX {
        column
            .saturating_sub(EXCERPT_LEAD_CHARS)
            .min(chars - EXCERPT_CHARS_MAX)
    } else {
        0
    };
    let mut excerpt = String::new();
    let mut caret_start = column - skipped;
    if skipped > 0 {
        excerpt.push('…');
        caret_start += 1;
    }
    excerpt.extend(
        content
            .chars()
            .skip(skipped)
            .take(EXCERPT_CHARS_MAX)
            .map(replace_control_character),
    );
    if chars > skipped + EXCERPT_CHARS_MAX {
        excerpt.push('…');
    }
    let shown_chars = excerpt.chars().count();
    let caret_chars = marked.min(shown_chars.saturating_sub(caret_start)).max(1);
    Place {
        line,
        column: column + 1,
        excerpt,
        caret_start,
        caret_chars,
    }
}

/// ANSI escape sequences, or empty strings.
#[derive(Clone, Copy)]
struct Paint {
    on: bool,
}

impl Paint {
    fn error(self) -> &'static str {
        if self.on { "\u{1b}[1;31m" } else { "" }
    }

    fn strong(self) -> &'static str {
        if self.on { "\u{1b}[1m" } else { "" }
    }

    fn frame(self) -> &'static str {
        if self.on { "\u{1b}[34m" } else { "" }
    }

    fn hint(self) -> &'static str {
        if self.on { "\u{1b}[36m" } else { "" }
    }

    fn end(self) -> &'static str {
        if self.on { "\u{1b}[0m" } else { "" }
    }
}

struct Rendering<'p> {
    problems: &'p Problems,
    paint: Paint,
}

impl fmt::Display for Rendering<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for problem in self.problems {
            self.problem(f, problem)?;
            writeln!(f)?;
        }
        let name = printable(&self.problems.source_name);
        let (strong, end) = (self.paint.strong(), self.paint.end());
        let count = self.problems.count();
        let noun = if count == 1 { "problem" } else { "problems" };
        write!(f, "{strong}{name}: {count} {noun}")?;
        if self.problems.omitted > 0 {
            write!(f, ", the first {} shown", self.problems.list.len())?;
        }
        if self
            .problems
            .iter()
            .any(|problem| problem.kind.blocks_further_checks())
        {
            write!(f, "; its keys are checked once it is TOML")?;
        }
        writeln!(f, "{end}")
    }
}

impl Rendering<'_> {
    fn problem(&self, f: &mut fmt::Formatter<'_>, problem: &Problem) -> fmt::Result {
        let (frame, end) = (self.paint.frame(), self.paint.end());
        let (error, strong) = (self.paint.error(), self.paint.strong());
        writeln!(f, "{error}error{end}{strong}: {}{end}", problem.message)?;
        let name = printable(&self.problems.source_name);
        let gutter = problem
            .place
            .as_ref()
            .map_or(0, |place| place.line.to_string().len());
        match &problem.place {
            None => writeln!(f, "{frame} -->{end} {name}")?,
            Some(place) => {
                let Place {
                    line,
                    column,
                    excerpt,
                    caret_start,
                    caret_chars,
                } = place;
                writeln!(f, "{frame}{:gutter$}-->{end} {name}:{line}:{column}", "")?;
                writeln!(f, "{frame}{:gutter$} |{end}", "")?;
                writeln!(f, "{frame}{line} |{end} {}", excerpt.trim_end())?;
                let carets = "^".repeat(*caret_chars);
                writeln!(
                    f,
                    "{frame}{:gutter$} |{end} {:caret_start$}{error}{carets}{end}",
                    "", ""
                )?;
            }
        }
        if !problem.path.is_empty() {
            writeln!(f, "{frame}{:gutter$} ={end} at: {}", "", problem.path)?;
        }
        if let Some(hint) = &problem.hint {
            writeln!(
                f,
                "{frame}{:gutter$} ={end} {}hint{end}: {hint}",
                "",
                self.paint.hint()
            )?;
        }
        Ok(())
    }
}

/// A text in full, without the characters that control a terminal. Texts quote names of the file,
/// also invalid ones.
fn printable(text: &str) -> String {
    text.chars().map(replace_control_character).collect()
}

/// The path of a key or table, from the root.
#[derive(Clone, Debug, Default)]
pub(crate) struct Path(String);

impl Path {
    pub(crate) fn key(&self, key: &str) -> Path {
        let bare = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
        let point = if self.0.is_empty() { "" } else { "." };
        if !key.is_empty() && key.chars().all(bare) {
            Path(format!("{}{point}{}", self.0, excerpt_of(key)))
        } else {
            Path(format!("{}{point}\"{}\"", self.0, excerpt_of(key)))
        }
    }

    pub(crate) fn index(&self, index: usize) -> Path {
        Path(format!("{}[{index}]", self.0))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}
