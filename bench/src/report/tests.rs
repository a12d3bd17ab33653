//! Percentiles, medians, tables and the round trip through JSON.

use super::*;
use crate::ceiling::histogram;

fn machine() -> Machine {
    Machine {
        processor: "test".into(),
        cores: 2,
        kernel: "6.1".into(),
        congestion_control: "cubic".into(),
        optimised: true,
    }
}

#[test]
fn percentiles_are_those_of_the_values() {
    let mut values = histogram();
    for value in 1..=1000_u64 {
        values.record(value * 1000).expect("within bounds");
    }
    let latency = Latency::from_histogram(&values);
    assert_eq!(latency.count, 1000);
    let near = |value: u64, expected: u64| value.abs_diff(expected) <= expected / 500;
    assert!(near(latency.min_ns, 1_000), "{latency:?}");
    assert!(near(latency.p50_ns, 500_000), "{latency:?}");
    assert!(near(latency.p99_ns, 990_000), "{latency:?}");
    assert!(near(latency.p999_ns, 999_000), "{latency:?}");
    assert!(near(latency.max_ns, 1_000_000), "{latency:?}");
    assert!((latency.mean_ns - 500_500.0).abs() < 1_000.0, "{latency:?}");
}

#[test]
fn no_values_are_all_zero() {
    assert_eq!(Latency::from_histogram(&histogram()), Latency::default());
}

fn round(depth: usize, ceiling: f64, target: f64) -> CompareRound {
    let one = depth == 1;
    CompareRound {
        depth,
        ceiling_requests_per_second: ceiling,
        target_requests_per_second: target,
        ceiling_p50_ns: if one { 10_000 } else { 0 },
        target_p50_ns: if one { 13_000 } else { 0 },
    }
}

#[test]
fn a_ratio_is_the_median_of_the_rounds_ratios() {
    // The machine runs at half speed in the second round; the ratio does not show it.
    let rounds = [
        round(128, 400_000.0, 280_000.0),
        round(1, 50_000.0, 40_000.0),
        round(128, 200_000.0, 140_000.0),
        round(128, 400_000.0, 284_000.0),
    ];
    let row = CompareRow::from_rounds(128, &rounds);
    assert_eq!(row.requests_ratio, 0.7);
    assert_eq!(row.ceiling_requests_per_second, 400_000.0);
    assert_eq!(row.latency_ratio, 0.0);
    assert_eq!(row.best_target_requests_per_second, 284_000.0);
    assert_eq!(row.best_requests_ratio, 0.71);
    let single = CompareRow::from_rounds(1, &rounds);
    assert_eq!(
        (single.ceiling_p50_ns, single.target_p50_ns),
        (10_000, 13_000)
    );
    assert_eq!(single.latency_ratio, 1.3);
}

#[test]
fn a_comparison_without_a_base_is_no_division_by_zero() {
    assert_eq!(
        CompareRow::from_rounds(128, &[round(128, 0.0, 1.0)]).requests_ratio,
        0.0
    );
    assert_eq!(CompareRow::from_rounds(64, &[]).requests_ratio, 0.0);
}

#[test]
fn a_comparison_prints_what_it_found_and_survives_json() {
    let rounds = vec![
        round(128, 400_000.0, 280_000.0),
        round(1, 50_000.0, 40_000.0),
    ];
    let report = CompareReport {
        machine: machine(),
        transport: "tcp".into(),
        target_core: 0,
        host_core: 1,
        start_to_accept_ns: 42_000_000,
        arena_bytes: 256 << 20,
        host: HostCosts {
            completed: 1000,
            placed_bytes: 385,
            copied_bytes: 615,
            receives: 30,
            empty_receives: 7,
            sends: 20,
        },
        rows: vec![
            CompareRow::from_rounds(128, &rounds),
            CompareRow::from_rounds(1, &rounds),
        ],
        rounds,
    };
    let text = report.to_string();
    for part in [
        "400 000",
        "280 000",
        "0.70",
        "1.30",
        "42.0 ms",
        "256 MiB",
        "61.5 %",
        "0.05 system calls",
    ] {
        assert!(text.contains(part), "no {part} in:\n{text}");
    }
    let json = serde_json::to_string(&report).expect("encodes");
    assert_eq!(
        serde_json::from_str::<CompareReport>(&json).expect("decodes"),
        report
    );
}

#[test]
fn a_ceiling_prints_its_rows() {
    let report = CeilingReport {
        machine: machine(),
        transport: "tcp".into(),
        request_bytes: 72,
        response_bytes: 4120,
        rows: vec![CeilingRow {
            window: 128,
            requests_per_second: 512_345.6,
            mib_per_second: 2001.35,
            latency: None,
        }],
    };
    let text = report.to_string();
    assert!(text.contains("512 345") && text.contains("2001"), "{text}");
}

#[test]
fn the_machine_says_when_figures_mean_nothing() {
    assert!(!machine().to_string().contains("say nothing"));
    let slow = Machine {
        optimised: false,
        ..machine()
    };
    assert!(slow.to_string().contains("say nothing"));
    assert!(Machine::here().cores > 0);
}

#[test]
fn a_report_that_cannot_be_written_names_the_file() {
    let error = save_json(&machine(), Path::new("/nonexistent/report.json")).expect_err("refused");
    assert!(
        error.to_string().contains("/nonexistent/report.json"),
        "{error}"
    );
}
