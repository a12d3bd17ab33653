//! Draws the screen, or writes the same as text.

use std::fmt::Write as _;
use std::time::Duration;

use clap::ValueEnum as _;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize as _};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Padding, Paragraph, Row, Sparkline, Table as Rows};

use super::screen::{Screen, View};
use crate::client::delta::StatusDelta;
use crate::client::views;
use crate::observe::model::History;
use crate::quantity;
use crate::table::{Cell, GAP, Mark, Table};

/// Minimum number of lines above the table: three of text, the reactors, the tabs.
const HEAD_LINES: u16 = 4;
/// Lines of the throughput curve, if the terminal is high enough.
const CURVE_LINES: u16 = 3;
/// Minimum height of a terminal with the curve, in lines.
const CURVE_FROM_LINES: u16 = 24;
/// Most problems that are shown.
const PROBLEMS_MAX: usize = 3;
/// Smallest width of a shortened name.
const NAME_CHARS_MIN: usize = 20;

const HELP: &str = "\
1-9  Tab  Shift-Tab  the views: exports, devices, hosts, …
< >  ← →             sort by the column before, after
r                    reverse the order
o                    the configuration's order
↑ ↓ PgUp PgDn Home End  scroll
+ -                  halve, double the update rate
Space                update now
p                    pause, resume
h  ?                 this help
q  Ctrl-C            end

R-P50 is the median latency of reads in the last seconds,
W-P99 what one write in a hundred exceeds. BUSY is a
reactor's share of time in work. WAITS are requests that had
to wait for a buffer: `windlass doctor` says how large
`memory` should be.";

/// Draws the whole screen in the available area.
pub(super) fn screen(frame: &mut Frame<'_>, screen: &Screen) {
    let problems = problems(screen);
    let has_curve = frame.area().height >= CURVE_FROM_LINES && screen.history().is_some();
    let [head, curve, alarm, tabs, table, foot] = Layout::vertical([
        Constraint::Length(HEAD_LINES),
        Constraint::Length(if has_curve { CURVE_LINES } else { 0 }),
        Constraint::Length(problems.len() as u16),
        Constraint::Length(1),
        Constraint::Fill(1),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    let lines: Vec<Line<'_>> = head_lines(screen).into_iter().map(Line::from).collect();
    frame.render_widget(Paragraph::new(lines), head);
    if has_curve && let Some(history) = screen.history() {
        let values = throughput(history, usize::from(curve.width));
        let curve_of = Sparkline::default().data(values).cyan();
        frame.render_widget(curve_of, curve);
    }
    let alarms = problems.into_iter().map(|text| Line::from(text).red());
    frame.render_widget(Paragraph::new(alarms.collect::<Vec<_>>()), alarm);
    frame.render_widget(Paragraph::new(tab_line(screen)), tabs);
    if let Some(rows) = screen.table() {
        draw_table(frame, screen, &rows, table);
    }
    let keys = "h help  1-9 view  <> sort  r reverse  p hold  q quit";
    frame.render_widget(Paragraph::new(keys).dim(), foot);
    if screen.shows_help() {
        draw_help(frame);
    }
}

/// The screen as text: the head and the rows of one view.
pub(super) fn text(screen: &Screen) -> String {
    let mut lines = head_lines(screen);
    lines.extend(problems(screen));
    lines.push(String::new());
    if let Some(table) = screen.table() {
        lines.extend(table.lines());
    }
    let mut text = lines.join("\n");
    text.push('\n');
    text
}

/// The appliance's name, throughput, latencies and the load of the reactors.
fn head_lines(screen: &Screen) -> Vec<String> {
    let Some(delta) = screen.delta() else {
        return vec!["windlass top: waiting for the appliance".to_owned()];
    };
    let appliance = &delta.now.appliance;
    let up = quantity::duration(Duration::from_secs(appliance.uptime_s));
    let held = if screen.is_paused() { ", held" } else { "" };
    let (hosts, delay) = (delta.now.hosts.len(), screen.delay().as_secs_f64());
    vec![
        format!(
            "{}: up {up}, windlass {}, {hosts} controllers; every {delay} s{held}",
            appliance.name, appliance.version
        ),
        views::throughput_line(delta),
        format!("latency: {}", views::latency_line(delta)),
        reactors(delta),
    ]
}

fn reactors(delta: &StatusDelta) -> String {
    let mut line = "busy:".to_owned();
    for reactor in &delta.now.reactors {
        let busy = delta.busy_permille(reactor.index).unwrap_or(0);
        // Writing to a String cannot fail.
        let _ = write!(line, "  core {} {}", reactor.core, quantity::percent(busy));
    }
    let classes = &delta.now.memory.classes;
    let waiting: u64 = classes.iter().map(|class| class.waiting).sum();
    let _ = write!(line, "   buffers waited for: {waiting}");
    line
}

/// The reason for missing data, and the problems of the appliance.
fn problems(screen: &Screen) -> Vec<String> {
    let mut problems: Vec<String> = screen
        .problem()
        .map(ToOwned::to_owned)
        .into_iter()
        .collect();
    if let Some(delta) = screen.delta() {
        problems.extend(views::active_problems(&delta.now));
    }
    problems.truncate(PROBLEMS_MAX);
    problems
}

/// Reads plus writes of the last steps, at most one value per column.
fn throughput(history: &History, columns: usize) -> Vec<u64> {
    let series = |what: &str| history.series.get(&format!("total//{what}"));
    let (Some(reads), Some(writes)) = (series("read_iops"), series("write_iops")) else {
        return Vec::new();
    };
    let sums = reads.iter().zip(writes).map(|(read, write)| {
        let sum = read.unwrap_or(0.0) + write.unwrap_or(0.0);
        sum as u64
    });
    let sums: Vec<u64> = sums.collect();
    let skipped = sums.len().saturating_sub(columns);
    sums[skipped..].to_vec()
}

fn tab_line(screen: &Screen) -> Line<'static> {
    let tabs = View::value_variants().iter().enumerate();
    let spans = tabs.map(|(index, view)| {
        let text = format!(" {} {} ", index + 1, view.word());
        if *view == screen.view() {
            Span::from(text).reversed()
        } else {
            Span::from(text)
        }
    });
    Line::from(spans.collect::<Vec<_>>())
}

fn draw_table(frame: &mut Frame<'_>, screen: &Screen, table: &Table, area: Rect) {
    let widths = fit(table, usize::from(area.width));
    let order = screen.order();
    let headings = table.columns.iter().zip(&widths).enumerate();
    let headings = headings.map(|(index, (column, width))| {
        let style = if order.column == Some(index) {
            Style::new().add_modifier(Modifier::REVERSED)
        } else {
            Style::new().add_modifier(Modifier::BOLD)
        };
        Span::styled(aligned(column.heading, *width, column.is_number), style)
    });
    let header = Row::new(headings.collect::<Vec<_>>());
    let columns = &table.columns;
    let rows = table.rows.iter().map(|row| {
        let cells = row.iter().zip(columns).zip(&widths);
        Row::new(cells.map(|((cell, column), width)| {
            let text = aligned(&shortened(&cell.text, *width), *width, column.is_number);
            Span::styled(text, style(cell))
        }))
    });
    let constraints = widths.iter().map(|width| Constraint::Length(*width as u16));
    let drawn = Rows::new(rows, constraints)
        .header(header)
        .column_spacing(GAP as u16);
    frame.render_widget(drawn, area);
}

fn aligned(text: &str, width: usize, is_number: bool) -> String {
    if is_number {
        format!("{text:>width$}")
    } else {
        format!("{text:width$}")
    }
}

fn style(cell: &Cell) -> Style {
    match cell.mark {
        Mark::Plain => Style::new(),
        Mark::Good => Style::new().fg(Color::Green),
        Mark::Warning => Style::new().fg(Color::Yellow),
        Mark::Bad => Style::new().fg(Color::Red),
    }
}

/// The widths of the columns that fit: the widest names are shortened first, then columns at the
/// right are dropped.
fn fit(table: &Table, room: usize) -> Vec<usize> {
    let mut widths = table.widths();
    let taken = |widths: &[usize]| widths.iter().map(|width| width + GAP).sum::<usize>();
    while taken(&widths) > room + GAP {
        let names = (0..widths.len()).filter(|index| !table.columns[*index].is_number);
        let widest = names.max_by_key(|index| widths[*index]);
        match widest {
            Some(index) if widths[index] > NAME_CHARS_MIN => widths[index] -= 1,
            _ if widths.len() > 1 => drop(widths.pop()),
            _ => break,
        }
    }
    widths
}

/// A text shortened to `width` characters. An NQN keeps its end, which distinguishes it; other
/// texts keep their beginning.
fn shortened(text: &str, width: usize) -> String {
    let length = text.chars().count();
    if length <= width {
        return text.to_owned();
    }
    let visible = width.saturating_sub(1);
    if text.starts_with("nqn.") {
        let end = text.chars().skip(length - visible);
        return std::iter::once('…').chain(end).collect();
    }
    text.chars().take(visible).chain(['…']).collect()
}

fn draw_help(frame: &mut Frame<'_>) {
    let area = frame.area();
    let width = HELP.lines().map(|line| line.chars().count()).max();
    let width = (width.unwrap_or(0) as u16 + 4).min(area.width);
    let height = (HELP.lines().count() as u16 + 2).min(area.height);
    let place = Rect {
        x: (area.width - width) / 2,
        y: (area.height - height) / 2,
        width,
        height,
    };
    frame.render_widget(Clear, place);
    let help = Paragraph::new(HELP).block(
        Block::bordered()
            .title(" windlass top ")
            .padding(Padding::horizontal(1)),
    );
    frame.render_widget(help, place);
}
