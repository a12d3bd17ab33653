//! Formats quantities for people: bytes, counts, times.

use std::time::Duration;

/// Bytes in the largest unit with a value of at least one, with one decimal.
pub(crate) fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut unit_bytes = 1024_u64;
    let mut unit = 0;
    while unit + 1 < UNITS.len() && bytes / unit_bytes >= 1024 {
        unit_bytes *= 1024;
        unit += 1;
    }
    let tenths = u128::from(bytes) * 10 / u128::from(unit_bytes);
    let (whole, tenth) = (tenths / 10, tenths % 10);
    if tenth == 0 {
        format!("{whole} {}", UNITS[unit])
    } else {
        format!("{whole}.{tenth} {}", UNITS[unit])
    }
}

/// Bytes per second. Zero is a dash, so that activity stands out.
pub(crate) fn byte_rate(per_second: f64) -> String {
    if per_second < 0.5 {
        return NOTHING.to_owned();
    }
    bytes(per_second.round() as u64)
}

/// A rate per second in at most five characters: `950`, `12.3k`, `1.25M`.
pub(crate) fn rate(per_second: f64) -> String {
    if per_second <= 0.0 {
        return NOTHING.to_owned();
    }
    if per_second < 9.95 {
        return format!("{per_second:.1}");
    }
    count(per_second.round() as u64)
}

/// A number in at most five characters.
pub(crate) fn count(number: u64) -> String {
    const UNITS: [&str; 6] = ["k", "M", "G", "T", "P", "E"];
    if number < 10_000 {
        return number.to_string();
    }
    let mut scaled = number as f64 / 1e3;
    let mut unit = 0;
    while scaled >= 999.5 && unit + 1 < UNITS.len() {
        scaled /= 1e3;
        unit += 1;
    }
    let decimals = match scaled {
        ..9.995 => 2,
        ..99.95 => 1,
        _ => 0,
    };
    format!("{scaled:.decimals$}{}", UNITS[unit])
}

/// A latency in three or four digits: `850 ns`, `12.3 µs`, `1.20 ms`, `3.00 s`.
pub(crate) fn latency(ns: u64) -> String {
    const UNITS: [(f64, &str); 3] = [(1e3, "µs"), (1e6, "ms"), (1e9, "s")];
    if ns < 1000 {
        return format!("{ns} ns");
    }
    let ns = ns as f64;
    let (unit_ns, unit) = UNITS
        .into_iter()
        .rev()
        // A value that rounds to 1000 is shown in the next unit.
        .find(|(unit_ns, _)| ns >= unit_ns * 0.9995)
        .unwrap_or(UNITS[0]);
    let scaled = ns / unit_ns;
    let decimals = match scaled {
        ..9.995 => 2,
        ..99.95 => 1,
        _ => 0,
    };
    format!("{scaled:.decimals$} {unit}")
}

/// A duration in its two largest units.
pub(crate) fn duration(lasted: Duration) -> String {
    let seconds = lasted.as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    if days > 0 {
        format!("{days} d {} h", hours % 24)
    } else if hours > 0 {
        format!("{hours} h {} min", minutes % 60)
    } else if minutes > 0 {
        format!("{minutes} min {} s", seconds % 60)
    } else {
        format!("{seconds} s")
    }
}

/// Thousandths as a percentage.
pub(crate) fn percent(permille: u32) -> String {
    format!("{}.{} %", permille / 10, permille % 10)
}

/// The placeholder for a missing or unknown value.
pub(crate) const NOTHING: &str = "-";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_one_decimal_at_most() {
        assert_eq!(bytes(0), "0 KiB");
        assert_eq!(bytes(512), "0.5 KiB");
        assert_eq!(bytes(1024), "1 KiB");
        assert_eq!(bytes(1536 << 20), "1.5 GiB");
        assert_eq!(bytes(u64::MAX), "15.9 EiB");
        assert_eq!(byte_rate(0.2), "-");
        assert_eq!(byte_rate(2048.4), "2 KiB");
    }

    #[test]
    fn rates_fit_into_five_characters() {
        assert_eq!(rate(0.0), "-");
        assert_eq!(rate(0.25), "0.2");
        assert_eq!(rate(9.94), "9.9");
        assert_eq!(rate(9.96), "10");
        assert_eq!(rate(9_999.0), "9999");
        assert_eq!(rate(12_345.0), "12.3k");
        assert_eq!(rate(999_499.0), "999k");
        assert_eq!(rate(999_500.0), "1.00M");
        assert_eq!(rate(1_250_000.0), "1.25M");
        for power in 0..64 {
            assert!(count(1 << power).len() <= 5, "{power}");
            assert!(count((1 << power) - 1).len() <= 5, "{power}");
        }
    }

    #[test]
    fn latencies_have_three_digits() {
        assert_eq!(latency(0), "0 ns");
        assert_eq!(latency(999), "999 ns");
        assert_eq!(latency(1_000), "1.00 µs");
        assert_eq!(latency(12_345), "12.3 µs");
        assert_eq!(latency(999_400), "999 µs");
        assert_eq!(latency(999_600), "1.00 ms");
        assert_eq!(latency(17_000_000_000), "17.0 s");
    }

    #[test]
    fn durations_have_their_two_largest_units() {
        let formatted = |seconds| duration(Duration::from_secs(seconds));
        assert_eq!(formatted(59), "59 s");
        assert_eq!(formatted(61), "1 min 1 s");
        assert_eq!(formatted(3 * 3600 + 720), "3 h 12 min");
        assert_eq!(formatted(90_000), "1 d 1 h");
        assert_eq!(percent(1000), "100.0 %");
        assert_eq!(percent(7), "0.7 %");
    }
}
