//! A small, strict parser of the OpenMetrics 1.0 text format.

use std::collections::{BTreeMap, BTreeSet};

type Labels = BTreeMap<String, String>;

/// All samples.
pub(super) struct Metrics(BTreeMap<(String, Labels), f64>);

impl Metrics {
    /// The only sample with exactly these labels.
    #[track_caller]
    pub(super) fn value(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let labels = labels
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        let key = (name.to_owned(), labels.collect());
        *self
            .0
            .get(&key)
            .unwrap_or_else(|| panic!("no {key:?} in {:?}", self.0.keys()))
    }
}

/// Parses all samples; panics if a rule is broken: names, order of families, suffixes by type,
/// units, escapes, no duplicate sample, the end mark.
pub(super) fn parse(text: &str) -> Metrics {
    let body = text
        .strip_suffix("# EOF\n")
        .expect("the end mark, once and last");
    let mut samples = BTreeMap::new();
    let mut families = BTreeSet::new();
    let mut family: Option<(String, String)> = None;
    let mut helped = String::new();
    for line in body.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').expect("a help text");
            assert!(families.insert(name.to_owned()), "{name} comes twice");
            assert!(help.ends_with('.') && !help.ends_with(".."), "{line}");
            assert!(name.starts_with("windlass_") && is_name(name), "{line}");
            name.clone_into(&mut helped);
            family = None;
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("a type");
            assert_eq!(name, helped);
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            assert!(!name.ends_with("_total"), "{line}");
            family = Some((name.to_owned(), kind.to_owned()));
        } else if let Some(rest) = line.strip_prefix("# UNIT ") {
            let (name, unit) = rest.split_once(' ').expect("a unit");
            assert!(
                name == helped && name.ends_with(&format!("_{unit}")),
                "{line}"
            );
        } else {
            let (name, labels, value) = sample(line);
            let (family, kind) = family.as_ref().expect("a type before the sample");
            let expected: &[&str] = match kind.as_str() {
                "counter" => &["_total"],
                "histogram" => &["_sum", "_count", "_bucket"],
                _ => &[""],
            };
            let suffix = name.strip_prefix(family.as_str());
            assert!(suffix.is_some_and(|it| expected.contains(&it)), "{line}");
            assert_eq!(
                suffix == Some("_bucket"),
                labels.contains_key("le"),
                "{line}"
            );
            assert!(value >= 0.0, "{line}");
            assert!(
                samples.insert((name, labels), value).is_none(),
                "twice: {line}"
            );
        }
    }
    check_histograms(&samples);
    Metrics(samples)
}

/// Checks that buckets are cumulative, and the last one has the total.
fn check_histograms(samples: &BTreeMap<(String, Labels), f64>) {
    let counts = samples.keys().filter_map(|(name, labels)| {
        let family = name.strip_suffix("_count")?;
        Some((family, labels))
    });
    for (family, labels) in counts {
        let bucket = format!("{family}_bucket");
        let buckets = samples.iter().filter_map(|((name, found), value)| {
            let mut found = found.clone();
            let bound = (*name == bucket).then(|| found.remove("le"))??;
            let bound = bound.replace("+Inf", "inf").parse::<f64>();
            (found == *labels).then_some((bound.expect("a number"), *value))
        });
        let mut buckets: Vec<_> = buckets.collect();
        buckets.sort_by(|one, other| one.0.total_cmp(&other.0));
        assert!(
            buckets.is_sorted_by(|one, next| one.1 <= next.1),
            "{buckets:?}"
        );
        let last = buckets.last().expect("a histogram has buckets");
        let count = samples[&(format!("{family}_count"), labels.clone())];
        assert_eq!(*last, (f64::INFINITY, count), "{family} {labels:?}");
    }
}

fn is_name(name: &str) -> bool {
    let mut chars = name.chars();
    chars.next().is_some_and(|c| c.is_ascii_lowercase())
        && chars.all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}

fn sample(line: &str) -> (String, Labels, f64) {
    let end = line.find(['{', ' ']).expect("a value");
    let (name, mut rest) = line.split_at(end);
    assert!(is_name(name), "{line}");
    let mut labels = Labels::new();
    if let Some(inner) = rest.strip_prefix('{') {
        rest = inner;
        while !rest.starts_with('}') {
            rest = rest.strip_prefix(',').unwrap_or(rest);
            let (key, after) = rest.split_once("=\"").expect("a label");
            assert!(is_name(key), "{line}");
            let (value, after) = quoted(after);
            assert!(labels.insert(key.to_owned(), value).is_none(), "{line}");
            rest = after;
        }
        rest = &rest[1..];
    }
    let value = rest.strip_prefix(' ').expect("one blank");
    (
        name.to_owned(),
        labels,
        value.parse().expect("a number and nothing else"),
    )
}

/// The value before its closing quotation mark, and the rest of the text.
fn quoted(text: &str) -> (String, &str) {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return (value, &text[at + 1..]),
            '\\' => match chars.next() {
                Some((_, 'n')) => value.push('\n'),
                Some((_, escaped @ ('"' | '\\'))) => value.push(escaped),
                other => panic!("unknown escape {other:?}"),
            },
            _ => value.push(c),
        }
    }
    panic!("no end of {text:?}");
}
