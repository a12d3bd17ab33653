//! A plain text table with aligned columns, for terminals and logs alike.

use std::fmt;

/// Rows of cells under a heading. The first column is left-aligned, the others are right-aligned.
#[derive(Debug, Clone)]
pub struct Table {
    heading: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these column headings and no rows.
    #[must_use]
    pub fn new(heading: &[&str]) -> Self {
        Self {
            heading: heading.iter().map(ToString::to_string).collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row; missing cells stay blank, cells beyond the heading are dropped.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let mut row: Vec<String> = cells.into_iter().take(self.heading.len()).collect();
        row.resize(self.heading.len(), String::new());
        self.rows.push(row);
    }

    fn widths(&self) -> Vec<usize> {
        let mut widths: Vec<usize> = self
            .heading
            .iter()
            .map(|cell| cell.chars().count())
            .collect();
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        widths
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widths = self.widths();
        let line = |f: &mut fmt::Formatter<'_>, cells: &[String]| {
            let mut text = String::new();
            for (index, (cell, &width)) in cells.iter().zip(&widths).enumerate() {
                if index == 0 {
                    text.push_str(&format!("  {cell:<width$}"));
                } else {
                    text.push_str(&format!("  {cell:>width$}"));
                }
            }
            writeln!(f, "{}", text.trim_end())
        };
        line(f, &self.heading)?;
        let rules: Vec<String> = widths.iter().map(|&width| "─".repeat(width)).collect();
        line(f, &rules)?;
        for row in &self.rows {
            line(f, row)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_columns_are_aligned() {
        let mut table = Table::new(&["what", "IOPS", "p50"]);
        table.row(["read".into(), "1 234".into(), "12.3 µs".into()]);
        table.row(["a longer name".into(), "7".into()]);
        let expected = "\
\x20 what            IOPS      p50
  ─────────────  ─────  ───────
  read           1 234  12.3 µs
  a longer name      7
";
        assert_eq!(table.to_string(), expected);
    }

    #[test]
    fn extra_cells_are_dropped() {
        let mut table = Table::new(&["one"]);
        table.row(["a".into(), "b".into()]);
        assert!(!table.to_string().contains('b'));
    }
}
