//! Formats and parses sizes, rates and durations.

use std::time::Duration;

/// The reason why a size could not be parsed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// Not a whole number with an optional unit.
    #[error("'{0}' is not a size: write a whole number with an optional unit: 4096, 4k, 64KiB, 1G")]
    Malformed(String),
    /// More than 2^64 - 1 bytes.
    #[error("'{0}' is more than 2^64 - 1 bytes")]
    TooLarge(String),
}

/// Parses a size in bytes: a whole number with an optional unit. `k`, `K`, `KiB`, `KB` all mean
/// 1024, as in other storage tools.
///
/// # Errors
/// [`SizeError`] with the given text.
pub fn parse_size(text: &str) -> Result<u64, SizeError> {
    let trimmed = text.trim();
    let digits = trimmed.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = trimmed.split_at(digits);
    if number.is_empty() {
        return Err(SizeError::Malformed(text.to_owned()));
    }
    let shift = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err(SizeError::Malformed(text.to_owned())),
    };
    let too_large = || SizeError::TooLarge(text.to_owned());
    let number: u64 = number.parse().map_err(|_| too_large())?;
    number.checked_mul(1 << shift).ok_or_else(too_large)
}

/// A size with the largest binary unit that is precise enough: `4 KiB`, `1.5 GiB`, `512 B`.
#[must_use]
pub fn format_size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if value.fract() == 0.0 {
        format!("{value:.0} {}", UNITS[unit])
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

/// Nanoseconds with a unit that leaves at most four digits before the point: `850 ns`, `12.3 µs`,
/// `4.56 ms`, `1.20 s`.
#[must_use]
pub fn format_nanos(nanos: u64) -> String {
    let value = nanos as f64;
    match nanos {
        0..1_000 => format!("{nanos} ns"),
        1_000..1_000_000 => format!("{} µs", three_digits(value / 1e3)),
        1_000_000..1_000_000_000 => format!("{} ms", three_digits(value / 1e6)),
        _ => format!("{:.2} s", value / 1e9),
    }
}

fn three_digits(value: f64) -> String {
    if value >= 99.95 {
        format!("{value:.0}")
    } else {
        format!("{value:.1}")
    }
}

/// A count with a thin separator between thousands: `1 234 567`.
#[must_use]
pub fn format_count(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

/// `count` events in `elapsed` as events per second; 0 if no time passed.
#[must_use]
pub fn per_second(count: u64, elapsed: Duration) -> f64 {
    let seconds = elapsed.as_secs_f64();
    if seconds > 0.0 {
        count as f64 / seconds
    } else {
        0.0
    }
}

/// `bytes` in `elapsed` as MiB/s; 0 if no time passed.
#[must_use]
pub fn mib_per_second(bytes: u64, elapsed: Duration) -> f64 {
    per_second(bytes, elapsed) / (1024.0 * 1024.0)
}

/// The median of `values`: the middle one, or the mean of the two in the middle; 0 if empty.
#[must_use]
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[n / 2],
        n => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_and_without_units() {
        for (text, bytes) in [
            ("0", 0),
            ("512", 512),
            ("4k", 4096),
            ("4 KiB", 4096),
            ("64KB", 65_536),
            (" 1M ", 1 << 20),
            ("3g", 3 << 30),
            ("2TiB", 2 << 40),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn malformed_sizes_are_refused_with_their_text() {
        for text in ["", "k", "-4k", "4x", "1.5k", "4 k k"] {
            assert_eq!(
                parse_size(text),
                Err(SizeError::Malformed(text.to_owned())),
                "{text}"
            );
        }
        for text in ["99999999999999999999", "99999999999T"] {
            assert_eq!(
                parse_size(text),
                Err(SizeError::TooLarge(text.to_owned())),
                "{text}"
            );
        }
    }

    #[test]
    fn sizes_durations_and_counts_are_formatted() {
        assert_eq!(format_size(512), "512 B");
        assert_eq!(format_size(4096), "4 KiB");
        assert_eq!(format_size(1536 << 20), "1.5 GiB");
        assert_eq!(format_nanos(0), "0 ns");
        assert_eq!(format_nanos(850), "850 ns");
        assert_eq!(format_nanos(12_345), "12.3 µs");
        assert_eq!(format_nanos(123_456), "123 µs");
        assert_eq!(format_nanos(4_560_000), "4.6 ms");
        assert_eq!(format_nanos(1_200_000_000), "1.20 s");
        assert_eq!(format_count(7), "7");
        assert_eq!(format_count(1_234), "1 234");
        assert_eq!(format_count(1_234_567), "1 234 567");
    }

    #[test]
    fn rates_and_medians_of_nothing_are_zero() {
        assert_eq!(per_second(10, Duration::ZERO), 0.0);
        assert_eq!(mib_per_second(3 << 20, Duration::from_millis(1500)), 2.0);
        assert_eq!(median(&[]), 0.0);
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
    }
}
