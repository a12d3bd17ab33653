//! Tests medians, tables and the round trip through JSON.

use bench::report::HostCosts;

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

/// The pair performs `memory` requests per second from memory, and twice that from a hot buffer.
fn round(depth: usize, memory: f64, target: f64) -> CompareRound {
    let one = depth == 1;
    let pair = |requests_per_second, p50_ns| CeilingRound {
        requests_per_second,
        p50_ns: if one { p50_ns } else { 0 },
    };
    CompareRound {
        depth,
        target_requests_per_second: target,
        target_p50_ns: if one { 13_000 } else { 0 },
        same_memory: pair(memory, 10_000),
        one_hot_buffer: pair(memory * 2.0, 5_000),
    }
}

#[test]
fn comparison_ratio_is_the_median_of_per_round_ratios() {
    // The machine has half the speed in the second round, which does not affect the ratio.
    let rounds = [
        round(128, 400_000.0, 280_000.0),
        round(1, 50_000.0, 40_000.0),
        round(128, 200_000.0, 140_000.0),
        round(128, 400_000.0, 284_000.0),
    ];
    let row = CompareRow::from_rounds(128, &rounds);
    let (memory, buffer) = (&row.same_memory, &row.one_hot_buffer);
    assert_eq!((memory.requests_ratio, buffer.requests_ratio), (0.7, 0.35));
    assert_eq!(memory.requests_per_second, 400_000.0);
    assert_eq!(buffer.requests_per_second, 800_000.0);
    assert_eq!((memory.latency_ratio, buffer.latency_ratio), (0.0, 0.0));
    assert_eq!(row.target_requests_per_second, 280_000.0);
    assert_eq!(row.best_target_requests_per_second, 284_000.0);
    assert_eq!(
        (memory.best_requests_ratio, buffer.best_requests_ratio),
        (0.71, 0.355)
    );
    let single = CompareRow::from_rounds(1, &rounds);
    assert_eq!(single.target_p50_ns, 13_000);
    let (memory, buffer) = (&single.same_memory, &single.one_hot_buffer);
    assert_eq!((memory.p50_ns, buffer.p50_ns), (10_000, 5_000));
    assert_eq!((memory.latency_ratio, buffer.latency_ratio), (1.3, 2.6));
}

#[test]
fn comparison_with_zero_base_has_ratio_zero() {
    let nothing = CompareRow::from_rounds(128, &[round(128, 0.0, 1.0)]);
    assert_eq!(nothing.same_memory.requests_ratio, 0.0);
    assert_eq!(nothing.one_hot_buffer.best_requests_ratio, 0.0);
    let none = CompareRow::from_rounds(64, &[]);
    assert_eq!(none.same_memory.requests_ratio, 0.0);
}

#[test]
fn comparison_prints_both_ratios_and_round_trips_as_json() {
    let rounds = vec![
        round(128, 400_000.0, 280_000.0),
        round(1, 50_000.0, 40_000.0),
    ];
    let report = CompareReport {
        machine: machine(),
        transport: "tcp".into(),
        target_core: 0,
        host_core: 1,
        memory: MemoryReport {
            size_bytes: 64 << 20,
            page_bytes: 4096,
        },
        congestion_control: "reno".into(),
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
    let line = |name: &str| {
        let line = text.lines().find(|line| line.contains(name));
        line.unwrap_or_else(|| panic!("no {name} in:\n{text}"))
            .split("  ")
            .map(str::trim)
            .filter(|cell| !cell.is_empty())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        line("windlass"),
        [
            "windlass",
            "same memory",
            "ratio",
            "one hot buffer",
            "ratio"
        ]
    );
    assert_eq!(
        line("depth 128: requests/s")[1..],
        ["280 000", "400 000", "0.70", "800 000", "0.35"]
    );
    assert_eq!(
        line("depth 1: latency p50")[1..],
        ["13.0 µs", "10.0 µs", "1.30", "5.0 µs", "2.60"]
    );
    for part in [
        "\n  same memory: a bare pair sends",
        "\n    64 MiB of RAM in pages of 4 KiB",
        "\n  one hot buffer: a bare pair sends",
        "reno for target, host and pairs",
        "42.0 ms",
        "256 MiB",
        "61.5 %",
        "0.05 system calls",
    ] {
        assert!(text.contains(part), "no {part} in:\n{text}");
    }
    assert!(
        text.lines().all(|line| line.chars().count() <= 100),
        "{text}"
    );
    let json = serde_json::to_string(&report).expect("encodes");
    assert!(
        json.contains(r#""same_memory":{"requests_per_second""#),
        "{json}"
    );
    assert!(
        json.contains(r#""one_hot_buffer":{"requests_per_second""#),
        "{json}"
    );
    assert_eq!(
        serde_json::from_str::<CompareReport>(&json).expect("decodes"),
        report
    );
}

fn ceiling(write: bool, latency: Option<Latency>) -> CeilingReport {
    let row = |answers, requests_per_second| CeilingRow {
        answers,
        window: 8,
        requests_per_second,
        mib_per_second: 2001.35,
        latency,
    };
    CeilingReport {
        machine: machine(),
        transport: "tcp".into(),
        write,
        data_bytes: 128 << 10,
        request_bytes: if write { 131_168 } else { 72 },
        response_bytes: if write { 48 } else { 131_096 },
        memory: Some(MemoryReport {
            size_bytes: 64 << 20,
            page_bytes: 2 << 20,
        }),
        congestion_control: "reno".into(),
        rows: vec![
            row(ReportedLocation::Memory, 512_345.6),
            row(ReportedLocation::OneHotBuffer, 987_654.3),
        ],
    }
}

#[test]
fn read_ceiling_report_describes_its_rows() {
    let mut report = ceiling(false, None);
    let text = report.to_string();
    for part in [
        "reads of 128 KiB\n",
        "each 72 bytes in and 131 096 bytes out",
        "data from",
        "\n  memory          ",
        "512 345",
        "2001",
        "\n  one hot buffer  ",
        "987 654",
        "a random 128 KiB block of",
        "64 MiB of RAM in pages of 2 MiB",
        "congestion control: reno",
    ] {
        assert!(text.contains(part), "no {part} in:\n{text}");
    }
    assert!(!text.contains("p50"), "no latency was taken:\n{text}");
    report.memory = None;
    report.rows.remove(0);
    let text = report.to_string();
    assert!(
        !text.contains("of RAM") && text.contains("987 654"),
        "{text}"
    );
}

#[test]
fn write_ceiling_report_describes_incoming_data() {
    let text = ceiling(true, Some(Latency::default())).to_string();
    for part in [
        "writes of 128 KiB\n",
        "each 131 168 bytes in and 48 bytes out",
        "data goes to",
        "p99.9",
        "the data of each request goes to a random 128 KiB block",
        "all data goes to one buffer",
    ] {
        assert!(text.contains(part), "no {part} in:\n{text}");
    }
    assert!(!text.contains("answer"), "{text}");
    assert!(
        text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
}
