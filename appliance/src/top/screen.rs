//! The contents of the screen, and the actions of keys.

use std::time::Duration;

use clap::ValueEnum;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::DELAY_SECONDS;
use super::sampler::Sample;
use crate::client::delta::StatusDelta;
use crate::client::{ClientError, views};
use crate::error::with_causes;
use crate::observe::model::{Event, History, Status};
use crate::table::Table;

/// Rows that a page key scrolls.
const PAGE: usize = 10;

/// The views of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum View {
    Exports,
    Devices,
    Hosts,
    Reactors,
    Pools,
    Listeners,
    Errors,
    Events,
    Limits,
    Volumes,
    Shares,
    Operations,
}

impl View {
    pub(super) fn word(self) -> &'static str {
        match self {
            View::Exports => "exports",
            View::Devices => "devices",
            View::Hosts => "hosts",
            View::Reactors => "reactors",
            View::Pools => "pools",
            View::Listeners => "listeners",
            View::Errors => "errors",
            View::Events => "events",
            View::Limits => "limits",
            View::Volumes => "volumes",
            View::Shares => "shares",
            View::Operations => "operations",
        }
    }

    fn table(self, delta: &StatusDelta, events: &[Event]) -> Table {
        match self {
            View::Exports => views::exports(delta),
            View::Devices => views::devices(delta),
            View::Hosts => views::hosts(delta),
            View::Reactors => views::reactors(delta),
            View::Pools => views::pools(delta),
            View::Listeners => views::listeners(delta),
            View::Errors => views::errors(delta),
            View::Events => views::events(events, delta.now.now_unix_ms),
            View::Limits => views::rate_limits(delta),
            View::Volumes => views::volumes(delta),
            View::Shares => views::shares(delta),
            View::Operations => views::file_operations(delta),
        }
    }

    /// The headings of the view.
    pub(super) fn columns(self) -> Vec<&'static str> {
        let columns = match self {
            View::Exports => views::EXPORTS,
            View::Devices => views::DEVICES,
            View::Hosts => views::HOSTS,
            View::Reactors => views::REACTORS,
            View::Pools => views::POOLS,
            View::Listeners => views::LISTENERS,
            View::Errors => views::ERRORS,
            View::Events => views::EVENTS,
            View::Limits => views::RATE_LIMITS,
            View::Volumes => views::VOLUMES,
            View::Shares => views::SHARES,
            View::Operations => views::FILE_OPERATIONS,
        };
        let columns = columns.iter().flat_map(|part| part.iter());
        columns.map(|column| column.heading).collect()
    }

    fn index(self) -> usize {
        self as usize
    }
}

/// The sort order of rows; none: the appliance's order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Order {
    pub(super) column: Option<usize>,
    pub(super) is_reversed: bool,
}

/// The action that a key requires of the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    None,
    /// Take a sample immediately.
    Sample,
    /// The delay has changed.
    Delay,
    Quit,
}

/// The contents of the screen.
#[derive(Debug)]
pub(super) struct Screen {
    view: View,
    orders: Vec<Order>,
    /// The first visible row.
    first_row: usize,
    delay: Duration,
    is_paused: bool,
    shows_help: bool,
    latest: Option<Status>,
    delta: Option<StatusDelta>,
    history: Option<History>,
    events: Vec<Event>,
    problem: Option<String>,
}

impl Screen {
    pub(super) fn new(view: View, delay: Duration) -> Self {
        Self {
            view,
            orders: vec![Order::default(); View::value_variants().len()],
            first_row: 0,
            delay,
            is_paused: false,
            shows_help: false,
            latest: None,
            delta: None,
            history: None,
            events: Vec::new(),
            problem: None,
        }
    }

    /// Shows a new sample, unless the screen is paused.
    pub(super) fn take(&mut self, sample: Sample) {
        if self.is_paused {
            return;
        }
        self.problem = None;
        let before = self.latest.replace(sample.status.clone());
        self.delta = Some(StatusDelta::new(before, sample.status));
        self.history = Some(sample.history);
        self.events = sample.events;
    }

    /// Shows why there is no new sample; the last one stays visible.
    pub(super) fn fail(&mut self, error: &ClientError) {
        // The next sample, possibly after a restart, is not compared with this one.
        self.latest = None;
        self.problem = Some(with_causes(error));
    }

    pub(super) fn view(&self) -> View {
        self.view
    }

    pub(super) fn delay(&self) -> Duration {
        self.delay
    }

    pub(super) fn delta(&self) -> Option<&StatusDelta> {
        self.delta.as_ref()
    }

    pub(super) fn history(&self) -> Option<&History> {
        self.history.as_ref()
    }

    pub(super) fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    pub(super) fn is_paused(&self) -> bool {
        self.is_paused
    }

    pub(super) fn shows_help(&self) -> bool {
        self.shows_help
    }

    pub(super) fn order(&self) -> Order {
        self.orders[self.view.index()]
    }

    /// The rows of the view in order, from the first visible one.
    pub(super) fn table(&self) -> Option<Table> {
        let mut table = self.view.table(self.delta.as_ref()?, &self.events);
        let order = self.order();
        match order.column {
            Some(column) => table.sort(column, order.is_reversed),
            None if order.is_reversed => table.rows.reverse(),
            None => {}
        }
        let hidden = self.first_row.min(table.rows.len().saturating_sub(1));
        table.rows.drain(..hidden);
        Some(table)
    }

    /// Sorts the current view.
    pub(super) fn sort(&mut self, column: usize, is_reversed: bool) {
        self.orders[self.view.index()] = Order {
            column: Some(column),
            is_reversed,
        };
    }

    /// Executes the action of a key.
    pub(super) fn key(&mut self, key: KeyEvent) -> Action {
        if key.kind == KeyEventKind::Release {
            return Action::None;
        }
        let has_control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if has_control => return Action::Quit,
            KeyCode::Char('q') => return Action::Quit,
            // Any other key closes the help.
            _ if self.shows_help => self.shows_help = false,
            KeyCode::Char('h' | '?') | KeyCode::F(1) => self.shows_help = true,
            KeyCode::Char(digit @ '1'..='9') => {
                let index = digit as usize - '1' as usize;
                self.show(View::value_variants()[index]);
            }
            KeyCode::Tab => self.turn(1),
            KeyCode::BackTab => self.turn(View::value_variants().len() - 1),
            KeyCode::Right | KeyCode::Char('>') => self.next_column(true),
            KeyCode::Left | KeyCode::Char('<') => self.next_column(false),
            KeyCode::Char('r' | 'R') => {
                let order = &mut self.orders[self.view.index()];
                order.is_reversed = !order.is_reversed;
            }
            KeyCode::Char('o') => self.orders[self.view.index()] = Order::default(),
            KeyCode::Char('p') => self.is_paused = !self.is_paused,
            KeyCode::Char(' ') => {
                self.is_paused = false;
                return Action::Sample;
            }
            KeyCode::Char('+') => return self.change_delay(2.0),
            KeyCode::Char('-') => return self.change_delay(0.5),
            KeyCode::Down | KeyCode::Char('j') => self.scroll(1),
            KeyCode::Up | KeyCode::Char('k') => self.scroll_back(1),
            KeyCode::PageDown => self.scroll(PAGE),
            KeyCode::PageUp => self.scroll_back(PAGE),
            KeyCode::Home => self.first_row = 0,
            KeyCode::End => self.scroll(usize::MAX),
            _ => {}
        }
        Action::None
    }

    fn show(&mut self, view: View) {
        self.view = view;
        self.first_row = 0;
    }

    fn turn(&mut self, by: usize) {
        let all = View::value_variants();
        self.show(all[(self.view.index() + by) % all.len()]);
    }

    /// Cycles through the appliance's own order and the columns.
    fn next_column(&mut self, is_forward: bool) {
        let places = self.view.columns().len() + 1;
        let order = &mut self.orders[self.view.index()];
        let place = order.column.map_or(0, |column| column + 1);
        let by = if is_forward { 1 } else { places - 1 };
        order.column = ((place + by) % places).checked_sub(1);
    }

    fn change_delay(&mut self, factor: f64) -> Action {
        let seconds = self.delay.as_secs_f64() * factor;
        let seconds = seconds.clamp(*DELAY_SECONDS.start(), *DELAY_SECONDS.end());
        self.delay = Duration::from_secs_f64(seconds);
        Action::Delay
    }

    fn scroll(&mut self, rows: usize) {
        let all = match &self.delta {
            Some(delta) => self.view.table(delta, &self.events).rows.len(),
            None => 0,
        };
        let last = all.saturating_sub(1);
        self.first_row = self.first_row.saturating_add(rows).min(last);
    }

    fn scroll_back(&mut self, rows: usize) {
        self.first_row = self.first_row.saturating_sub(rows);
    }
}
