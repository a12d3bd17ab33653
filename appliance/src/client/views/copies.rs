//! The table of copies of devices.

use super::super::delta::StatusDelta;
use super::{count, size, table};
use crate::observe::model::{CopyState, CopyStatus};
use crate::quantity;
use crate::table::{Cell, Column, Mark, Table, name, number};

/// Columns of [`copies`].
const COPIES: &[&[Column]] = &[&[
    number("COPY"),
    name("SOURCE"),
    name("DESTINATION"),
    name("STATE"),
    number("SIZE"),
    number("COPIED"),
    number("COPIED %"),
    number("PER SECOND"),
    number("SOURCE CHANGES"),
]];

/// The copies of devices, with their progress.
pub(crate) fn copies(delta: &StatusDelta) -> Table {
    let mut table = table(COPIES);
    for copy in &delta.now.copies {
        let rate = delta.rate_of(|then| {
            let mut copies = then.copies.iter();
            let same = copies.find(|it| it.number == copy.number);
            same.map_or(0, |it| it.written_bytes)
        });
        table.push(vec![
            count(u64::from(copy.number)),
            Cell::text(&*copy.source),
            Cell::text(&*copy.destination),
            state(copy),
            size(copy.bytes),
            size(copy.written_bytes),
            percent(copy),
            Cell::number(rate, quantity::byte_rate(rate)),
            count(copy.source_changes),
        ]);
    }
    table
}

fn state(copy: &CopyStatus) -> Cell {
    let (word, mark) = match copy.state {
        CopyState::Running => ("running", Mark::Plain),
        CopyState::Complete => ("complete", Mark::Good),
        CopyState::Failed => ("failed", Mark::Bad),
        CopyState::Aborted => ("aborted", Mark::Warning),
    };
    Cell::text(word).marked(mark)
}

fn percent(copy: &CopyStatus) -> Cell {
    let percent = copy.percent();
    Cell::number(percent as f64, format!("{percent} %"))
}
