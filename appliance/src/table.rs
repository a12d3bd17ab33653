//! Tables with sortable columns, as text or on a terminal's screen.

use std::cmp::Ordering;
use std::fmt::Write as _;

use crate::quantity::NOTHING;

/// Spaces between columns.
pub(crate) const GAP: usize = 2;

/// A column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Column {
    pub(crate) heading: &'static str,
    /// Numbers are right-aligned, names left-aligned.
    pub(crate) is_number: bool,
}

/// A column of names.
pub(crate) const fn name(heading: &'static str) -> Column {
    Column {
        heading,
        is_number: false,
    }
}

/// A column of numbers.
pub(crate) const fn number(heading: &'static str) -> Column {
    Column {
        heading,
        is_number: true,
    }
}

/// The highlighting of a cell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Mark {
    #[default]
    Plain,
    Good,
    Warning,
    Bad,
}

/// A cell: its text, and its value for sorting if it is a number.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Cell {
    pub(crate) text: String,
    value: Option<f64>,
    pub(crate) mark: Mark,
}

impl Cell {
    /// A cell with a name.
    pub(crate) fn text(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            ..Self::default()
        }
    }

    /// A cell with a number, shown as `text`.
    pub(crate) fn number(value: f64, text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            value: Some(value),
            mark: Mark::Plain,
        }
    }

    /// A cell with a value that may be unknown.
    pub(crate) fn known<T>(value: Option<T>, cell: impl FnOnce(T) -> Self) -> Self {
        value.map_or_else(|| Self::text(NOTHING), cell)
    }

    pub(crate) fn marked(self, mark: Mark) -> Self {
        Self { mark, ..self }
    }

    /// Names alphabetically, numbers ascending, unknown values first.
    fn compare(&self, other: &Self) -> Ordering {
        match (self.value, other.value) {
            (Some(one), Some(two)) => one.total_cmp(&two),
            (None, None) => self.text.cmp(&other.text),
            (None, Some(_)) => Ordering::Less,
            (Some(_), None) => Ordering::Greater,
        }
    }
}

/// Columns and rows; every row has a cell in each column.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Table {
    pub(crate) columns: Vec<Column>,
    pub(crate) rows: Vec<Vec<Cell>>,
}

impl Table {
    pub(crate) fn new(columns: &[Column]) -> Self {
        Self {
            columns: columns.to_vec(),
            rows: Vec::new(),
        }
    }

    pub(crate) fn push(&mut self, row: Vec<Cell>) {
        debug_assert_eq!(row.len(), self.columns.len());
        self.rows.push(row);
    }

    /// Sorts rows by a column: numbers descending and names alphabetically, or the reverse. The
    /// sort is stable.
    pub(crate) fn sort(&mut self, column: usize, is_reversed: bool) {
        let Some(Column { is_number, .. }) = self.columns.get(column) else {
            return;
        };
        let largest_first = *is_number != is_reversed;
        self.rows.sort_by(|one, two| {
            let order = one[column].compare(&two[column]);
            if largest_first {
                order.reverse()
            } else {
                order
            }
        });
    }

    /// The width of each column in characters.
    pub(crate) fn widths(&self) -> Vec<usize> {
        let width = |index: usize, column: &Column| {
            let cells = self.rows.iter().map(|row| row[index].text.chars().count());
            cells.chain([column.heading.chars().count()]).max()
        };
        self.columns
            .iter()
            .enumerate()
            .filter_map(|(index, column)| width(index, column))
            .collect()
    }

    /// The headings and the rows as lines, without line terminators.
    pub(crate) fn lines(&self) -> Vec<String> {
        let widths = self.widths();
        let headings = self.columns.iter().map(|column| column.heading);
        let rows = self.rows.iter();
        let mut lines = vec![self.line(&widths, headings)];
        lines.extend(rows.map(|row| self.line(&widths, row.iter().map(|cell| &*cell.text))));
        lines
    }

    fn line<'a>(&self, widths: &[usize], cells: impl Iterator<Item = &'a str>) -> String {
        let mut line = String::new();
        for ((cell, width), column) in cells.zip(widths).zip(&self.columns) {
            let _ = if column.is_number {
                write!(line, "{cell:>width$}")
            } else {
                write!(line, "{cell:width$}")
            };
            line.push_str(&" ".repeat(GAP));
        }
        line.truncate(line.trim_end().len());
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new(&[name("NAME"), number("SIZE")]);
        table.push(vec![Cell::text("b"), Cell::number(9.0, "9 B")]);
        table.push(vec![
            Cell::text("long name"),
            Cell::known(None::<&str>, Cell::text),
        ]);
        table.push(vec![Cell::text("a"), Cell::number(10.0, "10 µB")]);
        table
    }

    fn names(table: &Table) -> Vec<&str> {
        table.rows.iter().map(|row| &*row[0].text).collect()
    }

    #[test]
    fn table_right_aligns_numbers_without_trailing_spaces() {
        let lines = table().lines();
        assert_eq!(
            lines,
            [
                "NAME        SIZE",
                "b            9 B",
                "long name      -",
                "a          10 µB"
            ]
        );
    }

    #[test]
    fn table_sorts_numbers_descending_and_names_alphabetically() {
        let mut table = table();
        table.sort(1, false);
        assert_eq!(names(&table), ["a", "b", "long name"]);
        table.sort(1, true);
        assert_eq!(names(&table), ["long name", "b", "a"]);
        table.sort(0, false);
        assert_eq!(names(&table), ["a", "b", "long name"]);
        table.sort(0, true);
        assert_eq!(names(&table), ["long name", "b", "a"]);
        table.sort(9, false);
        assert_eq!(names(&table), ["long name", "b", "a"]);
    }
}
