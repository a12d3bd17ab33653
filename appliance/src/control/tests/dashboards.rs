//! Checks the metrics that `deploy/dashboards` query from Prometheus.

use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use appliance_config::AnaState;

use super::client::get;
use super::{LIMIT, Lab, clients};
use crate::control::ControlPlane;
use crate::nvme::tests::{Host, started};

const GRAFANA: &str = include_str!("../../../../deploy/dashboards/grafana.json");
const ALERTS: &str = include_str!("../../../../deploy/dashboards/alerts.yml");

/// The names of metrics in a text.
fn named(text: &str) -> BTreeSet<&str> {
    let is_part = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    let at = |(start, _)| {
        let rest: &str = &text[start..];
        let end = rest.bytes().position(|byte| !is_part(byte));
        &rest[..end.unwrap_or(rest.len())]
    };
    text.match_indices("windlass_").map(at).collect()
}

/// The names of samples in a response of `/metrics`.
fn measured(http: SocketAddr) -> BTreeSet<String> {
    let response = get(TcpStream::connect(http).expect("it listens"), "/metrics");
    let text = std::str::from_utf8(&response.body).expect("UTF-8");
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    samples
        .filter_map(|line| Some(line.split(['{', ' ']).next()?.to_owned()))
        .collect()
}

#[test]
fn dashboards_and_alerts_use_existing_metrics() {
    serde_json::from_str::<serde_json::Value>(GRAFANA).expect("JSON");
    // Some metrics exist only with drives, a host, written data and an error.
    let (mut appliance, _slots) = started();
    let mut host = Host::attach(&appliance);
    assert!(host.write(1, 0, 7).is_success());
    assert!(host.read(1, 1 << 40).is_err());
    appliance.open_control(None);
    let http = appliance.control().and_then(ControlPlane::http);
    let http = http.expect("a free port");
    let files = Lab::new(clients::FILES);
    for (file, text, least) in [("grafana.json", GRAFANA, 25), ("alerts.yml", ALERTS, 12)] {
        let asked = named(text);
        assert!(asked.len() >= least, "{file}: {asked:?}");
        let began = Instant::now();
        loop {
            // Drives report their health only after the first check.
            appliance.poll(Instant::now());
            let mut measured = measured(http.address);
            measured.extend(self::measured(files.http()));
            let unknown: Vec<_> = asked.iter().filter(|it| !measured.contains(**it)).collect();
            if unknown.is_empty() {
                break;
            }
            assert!(
                began.elapsed() < LIMIT,
                "{file}: {unknown:?} of {measured:?}"
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    assert!(appliance.stop_quietly());
}

/// The words between the quotes of `state="…"` and `state=~"…"`, after each `start` in the alerts.
fn alerted_states(start: &str) -> Vec<&'static str> {
    let after = ALERTS.split(start).skip(1);
    let lists = after.filter_map(|text| text.split('"').nth(1));
    lists.flat_map(|list| list.split('|')).collect()
}

/// Each ANA state is either served, or reported by one alert. The panel names them all.
#[test]
fn alerts_and_panels_know_all_ana_states() {
    let served = alerted_states("unless sum by (export, group) (windlass_ana_state{");
    let reported = alerted_states("expr: windlass_ana_state{");
    for state in AnaState::ALL {
        let word = state.word();
        let is_accessible = matches!(state, AnaState::Optimized | AnaState::NonOptimized);
        let count = |words: &[&str]| words.iter().filter(|it| **it == word).count();
        assert_eq!(count(&served), usize::from(is_accessible), "{word}");
        assert_eq!(count(&reported), usize::from(!is_accessible), "{word}");
        let asked = format!("state=\\\"{word}\\\"");
        let shown = format!("\"text\": \"{word}\"");
        assert!(GRAFANA.contains(&asked), "{word}");
        assert!(GRAFANA.contains(&shown), "{word}");
    }
    assert_eq!(served.len() + reported.len(), AnaState::ALL.len());
}
