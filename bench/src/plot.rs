//! Reports as pictures: SVG that any browser shows.

use std::error::Error;
use std::ops::Range;

use plotters::coord::Shift;
use plotters::prelude::*;

use crate::report::Latency;
use crate::scale::{Dimension, ScalePoint, ScaleReport};
use crate::sweep::{Over, SweepPoint, SweepReport};
use crate::units::{format_count, format_nanos};

/// Size of a picture, pixels: two charts, one above the other.
const SIZE: (u32, u32) = (860, 900);

/// Space beyond the highest value, as a factor.
const HEADROOM: f64 = 1.15;

/// Colours of curves, told apart by those who see red and green alike too (Okabe and Ito, 2008).
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(213, 94, 0),
    RGBColor(86, 180, 233),
];

/// A picture could not be drawn: a fault of ours, or of what it is written to.
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

/// A percentile's name, and how it is read.
type Percentile = (&'static str, fn(&Latency) -> u64);

/// Percentiles that are drawn.
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

/// From the lowest to the highest of `values`, with room; never empty.
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

fn linear_range(values: impl Iterator<Item = f64>) -> Range<f64> {
    0.0..(values.fold(0.0, f64::max) * HEADROOM).max(1.0)
}

/// Draws curves into axes that have been laid out already.
macro_rules! draw {
    ($chart:ident, $curves:expr, $x:expr, $y:expr, $x_format:expr, $y_format:expr) => {{
        $chart
            .configure_mesh()
            .x_desc($x)
            .y_desc($y)
            .x_label_formatter(&$x_format)
            .y_label_formatter(&$y_format)
            .light_line_style(WHITE)
            .draw()?;
        for (curve, colour) in $curves.iter().zip(COLOURS.iter().cycle()) {
            let line = LineSeries::new(curve.points.clone(), colour.stroke_width(2));
            $chart
                .draw_series(line.point_size(3))?
                .label(&curve.name)
                .legend(|(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
        }
        $chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.85))
            .border_style(BLACK.mix(0.3))
            .draw()?;
    }};
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

fn over_depth(area: &Area<'_>, report: &SweepReport) -> Result<(), PlotError> {
    let depth = |point: &SweepPoint| f64::from(point.depth);
    let (above, below) = area.split_vertically(SIZE.1 / 2);
    let rates = [Curve {
        name: "requests a second".to_owned(),
        points: report
            .points
            .iter()
            .map(|it| (depth(it), it.iops))
            .collect(),
    }];
    let x = logarithmic_range(xs(&rates));
    let mut chart = ChartBuilder::on(&above)
        .caption(title(report), ("sans-serif", 17))
        .margin(12)
        .x_label_area_size(38)
        .y_label_area_size(84)
        .build_cartesian_2d(x.clone().log_scale().base(2.0), linear_range(ys(&rates)))?;
    draw!(
        chart,
        rates,
        "requests in flight on each queue",
        "requests a second",
        count,
        count
    );
    let latencies = latency_curves(&report.points, depth);
    let mut chart = ChartBuilder::on(&below)
        .margin(12)
        .x_label_area_size(38)
        .y_label_area_size(84)
        .build_cartesian_2d(
            x.log_scale().base(2.0),
            logarithmic_range(ys(&latencies)).log_scale(),
        )?;
    draw!(
        chart,
        latencies,
        "requests in flight on each queue",
        "latency",
        count,
        time
    );
    Ok(())
}

fn over_load(area: &Area<'_>, report: &SweepReport) -> Result<(), PlotError> {
    let rate = |point: &SweepPoint| point.rate.unwrap_or(point.iops);
    let (above, below) = area.split_vertically(SIZE.1 / 2);
    let rates = [Curve {
        name: "answered".to_owned(),
        points: report.points.iter().map(|it| (rate(it), it.iops)).collect(),
    }];
    let x = linear_range(xs(&rates));
    let latencies = latency_curves(&report.points, rate);
    let mut chart = ChartBuilder::on(&above)
        .caption(title(report), ("sans-serif", 17))
        .margin(12)
        .x_label_area_size(38)
        .y_label_area_size(84)
        .build_cartesian_2d(x.clone(), logarithmic_range(ys(&latencies)).log_scale())?;
    draw!(
        chart,
        latencies,
        "requests a second asked for",
        "latency from when due",
        count,
        time
    );
    let mut chart = ChartBuilder::on(&below)
        .margin(12)
        .x_label_area_size(38)
        .y_label_area_size(84)
        .build_cartesian_2d(x, linear_range(ys(&rates)))?;
    draw!(
        chart,
        rates,
        "requests a second asked for",
        "requests a second",
        count,
        count
    );
    Ok(())
}

fn over_number(area: &Area<'_>, report: &ScaleReport) -> Result<(), PlotError> {
    type Number = fn(&ScalePoint) -> f64;
    let (number, of): (Number, &str) = match report.over {
        Dimension::Reactors => (|point| point.reactors as f64, "reactors"),
        Dimension::Connections => (|point| point.connections as f64, "connections"),
    };
    let curve = |name: &str, value: Number| {
        let points = report.points.iter();
        [Curve {
            name: name.to_owned(),
            points: points.map(|point| (number(point), value(point))).collect(),
        }]
    };
    let (above, below) = area.split_vertically(SIZE.1 / 2);
    let rates = curve("requests a second", |point| point.iops);
    let costs = curve("target's time", |point| point.target_ns_per_request);
    let x = logarithmic_range(xs(&rates)).log_scale().base(2.0);
    let mut chart = ChartBuilder::on(&above)
        .caption("4 KiB random reads from RAM over TCP", ("sans-serif", 17))
        .margin(12)
        .x_label_area_size(38)
        .y_label_area_size(84)
        .build_cartesian_2d(x, linear_range(ys(&rates)))?;
    draw!(chart, rates, of, "requests a second", count, count);
    let x = logarithmic_range(xs(&costs)).log_scale().base(2.0);
    let mut chart = ChartBuilder::on(&below)
        .margin(12)
        .x_label_area_size(38)
        .y_label_area_size(84)
        .build_cartesian_2d(x, linear_range(ys(&costs)))?;
    draw!(
        chart,
        costs,
        of,
        "target's processor time for a request",
        count,
        time
    );
    Ok(())
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
/// [`PlotError`], which no report brings about.
pub fn sweep(report: &SweepReport) -> Result<String, PlotError> {
    picture(|area| match report.over {
        Over::Depth => over_depth(area, report),
        Over::Load => over_load(area, report),
    })
}

/// Throughput and the target's time for a request over reactors or connections, as SVG.
///
/// # Errors
/// [`PlotError`], which no report brings about.
pub fn scale(report: &ScaleReport) -> Result<String, PlotError> {
    picture(|area| over_number(area, report))
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
