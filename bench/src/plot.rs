//! Renders reports as SVG pictures.

use std::error::Error;
use std::ops::Range;

use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;

use crate::report::Latency;
use crate::sweep::{Over, SweepPoint, SweepReport};
use crate::units::{format_count, format_nanos};

/// Size of a picture in pixels: two charts, one above the other.
const SIZE: (u32, u32) = (860, 900);

/// Width for the names of several curves in pixels.
const NAMES_WIDTH: u32 = 124;

/// Space above the highest value, as a factor.
const HEADROOM: f64 = 1.15;

/// Colours of curves that colour-blind people can distinguish (Okabe and Ito, 2008).
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(213, 94, 0),
    RGBColor(86, 180, 233),
];

/// A picture could not be drawn: a defect, or an output error.
#[derive(Debug, thiserror::Error)]
#[error("cannot draw the plot: {0}")]
pub struct PlotError(String);

impl<E: Error + Send + Sync> From<DrawingAreaErrorKind<E>> for PlotError {
    fn from(error: DrawingAreaErrorKind<E>) -> Self {
        Self(error.to_string())
    }
}

/// A named line through points.
struct Curve {
    name: String,
    points: Vec<(f64, f64)>,
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// A percentile's name and its accessor.
type Percentile = (&'static str, fn(&Latency) -> u64);

/// The percentiles in a chart.
const PERCENTILES: [Percentile; 3] = [
    ("p50", |latency| latency.p50_ns),
    ("p99", |latency| latency.p99_ns),
    ("p99.9", |latency| latency.p999_ns),
];

fn latency_curves(points: &[SweepPoint], x: impl Fn(&SweepPoint) -> f64) -> Vec<Curve> {
    type Kind = fn(&SweepPoint) -> Option<&Latency>;
    let kinds: [(&str, Kind); 2] = [
        ("reads", |point| point.reads.as_ref()),
        ("writes", |point| point.writes.as_ref()),
    ];
    let mut curves = Vec::new();
    for (kind, of) in kinds {
        for (percentile, value) in PERCENTILES {
            let points: Vec<_> = points
                .iter()
                .filter_map(|point| Some((x(point), value(of(point)?) as f64)))
                .collect();
            if !points.is_empty() {
                let name = format!("{kind}, {percentile}");
                curves.push(Curve { name, points });
            }
        }
    }
    curves
}

/// The range from the lowest to the highest of `values`, with margins; never empty.
fn logarithmic_range(values: impl Iterator<Item = f64>) -> Range<f64> {
    let positive = values.filter(|value| *value > 0.0);
    let (low, high) = positive.fold((f64::MAX, 0.0_f64), |(low, high), value| {
        (low.min(value), high.max(value))
    });
    if high <= 0.0 {
        return 1.0..10.0;
    }
    low / HEADROOM..high * HEADROOM * HEADROOM
}

/// Extends a range to contain at least two powers of ten, because only those have labels.
fn with_two_labels(range: Range<f64>) -> Range<f64> {
    let (low, high) = (range.start.log10(), range.end.log10());
    if high.floor() - low.ceil() >= 1.0 {
        range
    } else {
        10_f64.powf(low.floor())..10_f64.powf(high.ceil())
    }
}

fn linear_range(values: impl Iterator<Item = f64>) -> Range<f64> {
    0.0..(values.fold(0.0, f64::max) * HEADROOM).max(1.0)
}

/// An axis: its range, its name and the format of its values.
struct Axis<'a, S> {
    range: S,
    name: &'a str,
    format: fn(&f64) -> String,
}

/// Draws curves into axes. The names of several curves are beside the axes, where they hide no
/// curve; a single curve has its name on its axis.
fn chart<X, Y>(
    area: &Area<'_>,
    caption: &str,
    curves: &[Curve],
    x: Axis<'_, X>,
    y: Axis<'_, Y>,
) -> Result<(), PlotError>
where
    X: AsRangedCoord<Value = f64, CoordDescType: ValueFormatter<f64>>,
    Y: AsRangedCoord<Value = f64, CoordDescType: ValueFormatter<f64>>,
{
    let mut builder = ChartBuilder::on(area);
    builder
        .margin(12)
        .x_label_area_size(38)
        .y_label_area_size(84);
    if !caption.is_empty() {
        builder.caption(caption, ("sans-serif", 17));
    }
    // Always set, so that the axes of both charts align.
    builder.margin_right(NAMES_WIDTH);
    let mut chart = builder.build_cartesian_2d(x.range, y.range)?;
    chart
        .configure_mesh()
        .x_desc(x.name)
        .y_desc(y.name)
        .x_label_formatter(&x.format)
        .y_label_formatter(&y.format)
        .light_line_style(WHITE)
        .draw()?;
    for (curve, colour) in curves.iter().zip(COLOURS.iter().cycle()) {
        let line = LineSeries::new(curve.points.clone(), colour.stroke_width(2));
        chart.draw_series(line.point_size(3))?;
    }
    if curves.len() > 1 {
        write_names(area, curves)?;
    }
    Ok(())
}

/// Writes the names of curves with their colours at the right of the picture.
fn write_names(area: &Area<'_>, curves: &[Curve]) -> Result<(), PlotError> {
    let left = area.dim_in_pixel().0 as i32 - NAMES_WIDTH as i32 + 12;
    for ((curve, colour), line) in curves.iter().zip(COLOURS.iter().cycle()).zip(0..) {
        let top = 48 + 18 * line;
        let dash = [(left, top), (left + 18, top)];
        area.draw(&PathElement::new(dash, colour.stroke_width(2)))?;
        let place = (left + 24, top - 6);
        area.draw(&Text::new(curve.name.clone(), place, ("sans-serif", 12)))?;
    }
    Ok(())
}

fn count(value: &f64) -> String {
    format_count(*value as u64)
}

fn time(value: &f64) -> String {
    format_nanos(*value as u64)
}

fn xs(curves: &[Curve]) -> impl Iterator<Item = f64> {
    curves
        .iter()
        .flat_map(|curve| curve.points.iter().map(|point| point.0))
}

fn ys(curves: &[Curve]) -> impl Iterator<Item = f64> {
    curves
        .iter()
        .flat_map(|curve| curve.points.iter().map(|point| point.1))
}

/// A logarithmic axis with this base.
fn logarithmic(
    range: Range<f64>,
    base: f64,
) -> impl AsRangedCoord<Value = f64, CoordDescType: ValueFormatter<f64>> {
    range.log_scale().base(base)
}

fn over_depth(area: &Area<'_>, report: &SweepReport) -> Result<(), PlotError> {
    let depth = |point: &SweepPoint| f64::from(point.depth);
    let rates = [Curve {
        name: "requests a second".to_owned(),
        points: report
            .points
            .iter()
            .map(|it| (depth(it), it.iops))
            .collect(),
    }];
    let latencies = latency_curves(&report.points, depth);
    let x = || Axis {
        range: logarithmic(logarithmic_range(xs(&rates)), 2.0),
        name: "requests in flight on each queue",
        format: count,
    };
    let (above, below) = area.split_vertically(SIZE.1 / 2);
    let title = title(report);
    chart(&above, &title, &rates, x(), rate_axis(&rates))?;
    chart(
        &below,
        "",
        &latencies,
        x(),
        latency_axis(&latencies, "latency"),
    )
}

fn over_load(area: &Area<'_>, report: &SweepReport) -> Result<(), PlotError> {
    let rate = |point: &SweepPoint| point.rate.unwrap_or(point.iops);
    let rates = [Curve {
        name: "requests a second answered".to_owned(),
        points: report.points.iter().map(|it| (rate(it), it.iops)).collect(),
    }];
    let latencies = latency_curves(&report.points, rate);
    let x = || Axis {
        range: linear_range(xs(&rates)),
        name: "requests a second asked for",
        format: count,
    };
    let (above, below) = area.split_vertically(SIZE.1 / 2);
    let title = format!("{} of depth {}", title(report), report.load.depth);
    let y = latency_axis(&latencies, "latency from when due");
    chart(&above, &title, &latencies, x(), y)?;
    chart(&below, "", &rates, x(), rate_axis(&rates))
}

fn over_number(area: &Area<'_>, of: &str, points: &[NumberPoint]) -> Result<(), PlotError> {
    let curve = |name: &str, value: fn(&NumberPoint) -> f64| {
        let points = points.iter();
        [Curve {
            name: name.to_owned(),
            points: points.map(|point| (point.number, value(point))).collect(),
        }]
    };
    let rates = curve("requests a second", |point| point.iops);
    let costs = curve("target's processor time for a request", |point| {
        point.target_ns_per_request
    });
    let x = || Axis {
        range: logarithmic(logarithmic_range(xs(&rates)), 2.0),
        name: of,
        format: count,
    };
    let (above, below) = area.split_vertically(SIZE.1 / 2);
    let title = "4 KiB random reads from RAM over TCP";
    chart(&above, title, &rates, x(), rate_axis(&rates))?;
    let y = Axis {
        range: linear_range(ys(&costs)),
        name: &costs[0].name,
        format: time,
    };
    chart(&below, "", &costs, x(), y)
}

/// The axis of one curve of rates, starting at 0.
fn rate_axis(rates: &[Curve; 1]) -> Axis<'_, Range<f64>> {
    Axis {
        range: linear_range(ys(rates)),
        name: &rates[0].name,
        format: count,
    }
}

/// The axis of latencies, which span several orders of magnitude.
fn latency_axis<'a>(
    latencies: &[Curve],
    name: &'a str,
) -> Axis<'a, impl AsRangedCoord<Value = f64, CoordDescType: ValueFormatter<f64>>> {
    Axis {
        range: logarithmic(with_two_labels(logarithmic_range(ys(latencies))), 10.0),
        name,
        format: time,
    }
}

fn title(report: &SweepReport) -> String {
    let load = &report.load;
    let sizes: Vec<String> = load
        .sizes_bytes
        .iter()
        .map(|&size| crate::units::format_size(u64::from(size)))
        .collect();
    let plural = if load.queues == 1 { "" } else { "s" };
    format!(
        "{} {} % reads of {} over {}, {} queue{plural}",
        load.pattern,
        load.read_percent,
        sizes.join(", "),
        load.transport,
        load.queues
    )
}

/// A sweep as SVG: throughput and latency over depth, or latency and throughput over load.
///
/// # Errors
/// [`PlotError`], which no report causes.
pub fn sweep(report: &SweepReport) -> Result<String, PlotError> {
    picture(|area| match report.over {
        Over::Depth => over_depth(area, report),
        Over::Load => over_load(area, report),
    })
}

/// A result of [`scale`].
#[derive(Debug, Clone, Copy)]
pub struct NumberPoint {
    /// The number of reactors or connections.
    pub number: f64,
    /// Requests per second.
    pub iops: f64,
    /// Processor time of the target per request in nanoseconds.
    pub target_ns_per_request: f64,
}

/// Throughput and the target's time per request over a number of what `of` names, as SVG.
///
/// # Errors
/// [`PlotError`], which no report causes.
pub fn scale(of: &str, points: &[NumberPoint]) -> Result<String, PlotError> {
    picture(|area| over_number(area, of, points))
}

fn picture(draw: impl FnOnce(&Area<'_>) -> Result<(), PlotError>) -> Result<String, PlotError> {
    let mut svg = String::new();
    let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    draw(&area)?;
    area.present()?;
    drop(area);
    Ok(svg)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latency_axis_has_at_least_two_labels() {
        assert_eq!(with_two_labels(20e3..80e3), 10e3..100e3);
        assert_eq!(with_two_labels(90e3..110e3), 10e3..1e6);
        assert_eq!(with_two_labels(9e3..110e3), 9e3..110e3);
    }

    #[test]
    fn legend_is_drawn_for_several_curves() {
        let curve = |name: &str| Curve {
            name: name.to_owned(),
            points: vec![(1.0, 20e3), (2.0, 80e3)],
        };
        let drawn = |curves: &[Curve]| {
            picture(|area| {
                let x = Axis {
                    range: 0.0..2.0,
                    name: "across",
                    format: count,
                };
                chart(area, "A picture", curves, x, latency_axis(curves, "up"))
            })
            .expect("drawn")
        };
        let two = drawn(&[curve("one"), curve("other")]);
        for text in [
            "A picture",
            "across",
            "up",
            "10.0 µs",
            "100 µs",
            "one",
            "other",
        ] {
            assert!(two.contains(&format!("\n{text}\n")), "no {text} in {two}");
        }
        // No name begins to the left of the axes' end.
        let place = |name: &str| {
            let before = two.split(&format!("\n{name}\n")).next().expect("there");
            let tag = before.rsplit("<text ").next().expect("a text");
            let x = tag
                .split("x=\"")
                .nth(1)
                .and_then(|rest| rest.split('"').next());
            x.and_then(|x| x.parse::<u32>().ok()).expect("a place")
        };
        for name in ["one", "other"] {
            assert!(
                place(name) > SIZE.0 - NAMES_WIDTH,
                "{name} at {}",
                place(name)
            );
        }
        assert!(
            !drawn(&[curve("one")]).contains("\none\n"),
            "its axis says what it is"
        );
    }
}
