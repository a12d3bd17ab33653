//! Tests percentiles, medians, tables and the round trip through JSON.

use super::*;

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
fn latency_percentiles_match_the_values() {
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
fn empty_histogram_gives_zero_latency() {
    assert_eq!(Latency::from_histogram(&histogram()), Latency::default());
}

#[test]
fn unoptimised_build_is_flagged_in_the_report() {
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
