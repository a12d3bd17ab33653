//! The screen at all sizes, and the effects of keys.

use std::collections::BTreeMap;

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::*;
use crate::client::tests::status;
use crate::observe::model::{self, DeviceState, History, Severity};

fn history() -> History {
    let values = |value: f32| vec![Some(value); 60];
    let series: BTreeMap<String, Vec<Option<f32>>> = [
        ("total//read_iops", values(1000.0)),
        ("total//write_iops", values(10.0)),
    ]
    .into_iter()
    .map(|(name, values)| (name.to_owned(), values))
    .collect();
    History {
        now_unix_ms: 0,
        step: 60,
        step_ms: 1000,
        keys: Vec::new(),
        left_out: 0,
        series,
    }
}

/// Two samples two seconds apart, between which the device completed 2000 reads of 4 KiB.
fn samples() -> [Sample; 2] {
    let event = model::Event {
        id: 1,
        unix_ms: status().now_unix_ms - 90_000,
        severity: Severity::Warning,
        what: "device".to_owned(),
        subject: "fast0".to_owned(),
        text: "is resetting".to_owned(),
    };
    let before = Sample {
        status: status(),
        history: history(),
        events: vec![event],
    };
    let mut after = before.clone();
    after.status.now_unix_ms += 2000;
    let totals = |totals: &mut model::Totals| {
        totals.reads += 2000;
        totals.bytes_read += 2000 * 4096;
    };
    totals(&mut after.status.devices[0].totals);
    totals(&mut after.status.exports[0].totals);
    [before, after]
}

fn screen() -> Screen {
    let mut screen = Screen::new(View::Exports, Duration::from_secs(1));
    samples().into_iter().for_each(|sample| screen.take(sample));
    screen
}

fn drawn(screen: &Screen, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("it has room");
    let draw = |frame: &mut ratatui::Frame<'_>| draw::screen(frame, screen);
    terminal.draw(draw).expect("it cannot fail");
    terminal.backend().to_string()
}

fn press(screen: &mut Screen, code: KeyCode) -> Action {
    screen.key(KeyEvent::new(code, KeyModifiers::NONE))
}

#[track_caller]
fn expect(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
}

#[test]
fn rates_and_latencies_are_on_the_screen() {
    let text = drawn(&screen(), 140, 30);
    expect(
        &text,
        &[
            "rack7-a: up 3 h 12 min",
            "1000 reads/s (3.9 MiB/s)",
            "reads p50 80.0 µs, p99 1.23 ms, p99.9 2.00 ms; writes p50 -, p99 -",
            "core 2 0.0 %",
            "R-P99",
            "nqn.2026-11.org.windlass:rack7-a.fast",
            " 1 exports ",
            "q quit",
        ],
    );
}

#[test]
fn every_view_shows_its_rows() {
    let mut screen = screen();
    let expected = [
        "HOSTS",
        "41 °C",
        "uuid:1",
        "STALLS",
        "FREE %",
        "192.0.2.10",
        "Unrecovered Read Error",
        "is resetting",
        "DELAYED/S",
        "METADATA",
        "ACCESS",
        "LOOKUP",
    ];
    // The last views have no digit.
    let digits = ('1'..='9').map(KeyCode::Char);
    let keys = digits.chain(std::iter::repeat(KeyCode::Tab));
    for (key, part) in keys.zip(expected) {
        press(&mut screen, key);
        expect(&drawn(&screen, 160, 30), &[part]);
        let table = screen.table().expect("there is a look");
        let headings: Vec<&str> = table.columns.iter().map(|it| it.heading).collect();
        assert_eq!(headings, screen.view().columns());
        // A rate limit, and an export that waits for another.
        let rows = if screen.view() == View::Limits { 2 } else { 1 };
        assert_eq!(table.rows.len(), rows);
    }
    press(&mut screen, KeyCode::Tab);
    assert_eq!(screen.view(), View::Exports);
    press(&mut screen, KeyCode::BackTab);
    assert_eq!(screen.view(), View::Operations);
    press(&mut screen, KeyCode::Char('8'));
    assert_eq!(screen.view(), View::Events);
    expect(&drawn(&screen, 100, 30), &["1 min 32 s", "warning"]);
}

#[test]
fn every_terminal_size_is_drawn() {
    let mut screen = screen();
    for sample in &mut samples() {
        sample.status.devices[0].state = DeviceState::Removed;
        screen.take(sample.clone());
    }
    for (width, height) in [(1, 1), (7, 3), (20, 5), (40, 10), (80, 24), (500, 200)] {
        for view in ['1', '2', '3', '4', '5', '6', '7', '8', '9', 'h'] {
            press(&mut screen, KeyCode::Char(view));
            drawn(&screen, width, height);
        }
        press(&mut screen, KeyCode::Esc);
    }
    let empty = Screen::new(View::Hosts, Duration::from_secs(1));
    expect(&drawn(&empty, 60, 5), &["waiting for the appliance"]);
}

#[test]
fn long_names_are_shortened_at_the_front() {
    for (width, has_all) in [(140, true), (80, false), (60, false)] {
        let text = drawn(&screen(), width, 30);
        expect(&text, &["rack7-a.fast ", "READ/S", "1000 "]);
        assert_eq!(text.contains("W-P99"), has_all, "{text}");
    }
}

#[test]
fn long_lists_can_be_sorted_and_scrolled() {
    let mut sample = samples()[1].clone();
    let one = sample.status.devices[0].clone();
    sample.status.devices = (0..30)
        .map(|index| model::DeviceStatus {
            name: format!("device{index:02}"),
            block_count: Some(1000 + (index * 7) % 30),
            ..one.clone()
        })
        .collect();
    let mut screen = Screen::new(View::Devices, Duration::from_secs(1));
    screen.take(sample);
    let first = |screen: &Screen| screen.table().expect("a look").rows[0][0].text.clone();
    assert_eq!(first(&screen), "device00");
    // The fourth column is the size: 7 × 17 % 30 = 29.
    for _ in 0..4 {
        press(&mut screen, KeyCode::Char('>'));
    }
    assert_eq!(first(&screen), "device17");
    press(&mut screen, KeyCode::Char('r'));
    assert_eq!(first(&screen), "device00");
    press(&mut screen, KeyCode::Down);
    assert_eq!(first(&screen), "device13");
    press(&mut screen, KeyCode::End);
    assert_eq!(first(&screen), "device17");
    press(&mut screen, KeyCode::PageDown);
    assert_eq!(first(&screen), "device17");
    press(&mut screen, KeyCode::Home);
    press(&mut screen, KeyCode::Char('o'));
    assert_eq!(first(&screen), "device00");
    // Before the first column is the appliance's own order, and before that the last column.
    press(&mut screen, KeyCode::Left);
    assert_eq!(
        screen.order().column,
        Some(View::Devices.columns().len() - 1)
    );
}

#[test]
fn paused_screen_is_unchanged_and_any_key_closes_help() {
    let [before, after] = samples();
    let mut screen = Screen::new(View::Exports, Duration::from_secs(1));
    screen.take(before);
    press(&mut screen, KeyCode::Char('p'));
    screen.take(after);
    expect(&drawn(&screen, 100, 30), &["held", "100 reads/s"]);
    assert_eq!(press(&mut screen, KeyCode::Char(' ')), Action::Sample);
    press(&mut screen, KeyCode::Char('?'));
    expect(&drawn(&screen, 100, 30), &["Ctrl-C", "median latency"]);
    press(&mut screen, KeyCode::Char('3'));
    assert_eq!(screen.view(), View::Exports);
    assert!(!drawn(&screen, 100, 30).contains("median latency"));
}

#[test]
fn keys_quit_and_change_the_delay_within_limits() {
    let mut screen = screen();
    assert_eq!(press(&mut screen, KeyCode::Char('q')), Action::Quit);
    let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert_eq!(screen.key(control_c), Action::Quit);
    for _ in 0..20 {
        assert_eq!(press(&mut screen, KeyCode::Char('-')), Action::Delay);
    }
    assert_eq!(screen.delay(), Duration::from_millis(100));
    for _ in 0..20 {
        press(&mut screen, KeyCode::Char('+'));
    }
    assert_eq!(screen.delay(), Duration::from_secs(3600));
    assert!(delay("0").is_err() && delay("x").is_err() && delay("NaN").is_err());
    assert_eq!(delay("0.5"), Ok(Duration::from_millis(500)));
}

#[test]
fn errors_are_shown_with_the_last_sample() {
    let mut screen = screen();
    screen.fail(&crate::client::ClientError::NoAppliance {
        looked_at: vec!["/run/windlass/control.sock".into()],
    });
    let text = drawn(&screen, 140, 30);
    expect(&text, &["no appliance runs here", "rack7-a"]);
}

#[test]
fn sort_columns_are_case_insensitive() {
    let mut screen = screen();
    sort_by(&mut screen, "read/s", true).expect("there is one");
    assert_eq!(screen.order().column, Some(4));
    let error = sort_by(&mut screen, "speed", false).expect_err("there is none");
    assert!(error.to_string().contains("READ/S"), "{error}");
}

#[test]
fn text_output_matches_the_screen() {
    let text = draw::text(&screen());
    expect(&text, &["rack7-a: up", "1000 reads/s", "EXPORT", "3.9 MiB"]);
    assert!(text.ends_with('\n'));
}
