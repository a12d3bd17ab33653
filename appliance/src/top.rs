//! `windlass top`: shows the activity of a running appliance, periodically, on a terminal or as
//! text.
//!
//! A separate thread sends the requests, so that keys respond even if the appliance does not. The
//! terminal is restored whether the program ends by a key, a signal or a panic.

mod draw;
mod sampler;
mod screen;

use std::io::{self, IsTerminal as _};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::client::{Client, SocketArguments};
use crate::error::Failure;
use crate::terminal::print;
use sampler::{Sample, Sampler};
use screen::{Action, Screen, View};

/// Interval of the check for keys and signals.
const KEY_INTERVAL: Duration = Duration::from_millis(100);
/// The shortest and the longest interval between two samples, in seconds.
const DELAY_SECONDS: std::ops::RangeInclusive<f64> = 0.1..=3600.0;

const _: () = assert!(KEY_INTERVAL.as_millis() <= 100);

/// What `top` takes.
#[derive(Args, Debug)]
pub(crate) struct TopArguments {
    /// Seconds between two looks.
    #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = delay)]
    delay: Duration,
    /// Print text instead of using the terminal, one look after another.
    #[arg(short, long)]
    batch: bool,
    /// Stop after this number of updates; with --batch.
    #[arg(short = 'n', long, value_name = "LOOKS", requires = "batch")]
    iterations: Option<u64>,
    /// Print one look as text, as --batch -n 1.
    #[arg(long, conflicts_with_all = ["batch", "iterations"])]
    once: bool,
    /// What to begin with.
    #[arg(long, value_name = "VIEW", default_value = "exports")]
    view: View,
    /// Sort by the column of this heading.
    #[arg(long, value_name = "COLUMN")]
    sort: Option<String>,
    /// Turn the order of rows around.
    #[arg(long, requires = "sort")]
    reverse: bool,
    #[command(flatten)]
    socket: SocketArguments,
}

fn delay(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "no number".to_owned())?;
    if !DELAY_SECONDS.contains(&seconds) {
        let (least, most) = (DELAY_SECONDS.start(), DELAY_SECONDS.end());
        return Err(format!("{least} to {most} seconds"));
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// Why `top` cannot start.
#[derive(Debug, thiserror::Error)]
enum TopError {
    #[error(
        "not a terminal: `windlass top --once` or `--batch` prints text, and `windlass \
         status --json` is for programs"
    )]
    NoTerminal,
    #[error("{view} has no column {wanted:?}, only {known}")]
    NoColumn {
        wanted: String,
        view: String,
        known: String,
    },
}

/// Shows the activity of an appliance until the user quits.
pub(crate) fn top(arguments: &TopArguments) -> Result<ExitCode, Failure> {
    let mut screen = Screen::new(arguments.view, arguments.delay);
    if let Some(heading) = &arguments.sort {
        sort_by(&mut screen, heading, arguments.reverse)?;
    }
    if arguments.batch || arguments.once {
        let samples = match arguments.once {
            true => Some(1),
            false => arguments.iterations,
        };
        let client = Client::find(&arguments.socket)?;
        return run_batch(&client, screen, samples);
    }
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
    if is_dumb || !io::stdout().is_terminal() {
        return Err(TopError::NoTerminal.into());
    }
    let client = Client::find(&arguments.socket)?;
    let ended = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&ended))?;
    }
    // From here on, a panic restores the terminal first.
    let mut terminal = ratatui::try_init()?;
    let outcome = on_terminal(&mut terminal, client, screen, &ended);
    ratatui::try_restore()?;
    outcome?;
    Ok(ExitCode::SUCCESS)
}

fn sort_by(screen: &mut Screen, heading: &str, is_reversed: bool) -> Result<(), TopError> {
    let columns = screen.view().columns();
    let Some(column) = columns
        .iter()
        .position(|known| known.eq_ignore_ascii_case(heading))
    else {
        return Err(TopError::NoColumn {
            wanted: heading.to_owned(),
            view: screen.view().word().to_owned(),
            known: columns.join(", "),
        });
    };
    screen.sort(column, is_reversed);
    Ok(())
}

/// Prints `samples` samples, or samples until the output is closed.
fn run_batch(
    client: &Client,
    mut screen: Screen,
    samples: Option<u64>,
) -> Result<ExitCode, Failure> {
    // Rates need an earlier sample.
    screen.take(Sample::take(client)?);
    let mut seen = 0;
    while samples.is_none_or(|samples| seen < samples) {
        std::thread::sleep(screen.delay());
        screen.take(Sample::take(client)?);
        let mut text = draw::text(&screen);
        if samples != Some(1) {
            text.push('\n');
        }
        print(&text);
        seen += 1;
    }
    Ok(ExitCode::SUCCESS)
}

fn on_terminal(
    terminal: &mut DefaultTerminal,
    client: Client,
    mut screen: Screen,
    ended: &AtomicBool,
) -> Result<(), Failure> {
    let sampler = Sampler::start(client, screen.delay())?;
    terminal.draw(|frame| draw::screen(frame, &screen))?;
    while !ended.load(Ordering::Relaxed) {
        let mut is_changed = false;
        // Resizing the terminal is an event too.
        if event::poll(KEY_INTERVAL)? {
            is_changed = true;
            if let Event::Key(key) = event::read()? {
                match screen.key(key) {
                    Action::None => {}
                    Action::Sample => sampler.sample_now(),
                    Action::Delay => sampler.set_delay(screen.delay()),
                    Action::Quit => break,
                }
            }
        }
        while let Some(sample) = sampler.next() {
            is_changed = true;
            match sample {
                Ok(sample) => screen.take(sample),
                Err(error) => screen.fail(&error),
            }
        }
        if is_changed {
            terminal.draw(|frame| draw::screen(frame, &screen))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
