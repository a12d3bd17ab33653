//! `measure scale`: requests per second over reactors or connections.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use crate::compare::windlass_beside_this_binary;
use crate::scale::{Dimension, ScaleOptions, ScalePoint, measure};
use bench::pinning::available_cores;
use bench::plot::{self, NumberPoint};
use bench::report::{save_json, save_text};
use clap::Args;

use super::{Failure, parse_seconds, parse_seconds_or_none};

/// Default numbers of connections.
const CONNECTIONS: [usize; 7] = [1, 4, 16, 64, 256, 1024, 4096];

#[derive(Debug, Args)]
pub(crate) struct ScaleArgs {
    /// What changes from point to point
    #[arg(value_enum)]
    over: Dimension,
    /// Its values; default 1, 2, 4 … to the target's cores, or 1 to 4,096 connections
    #[arg(long, value_name = "NUMBER,…", value_delimiter = ',')]
    numbers: Vec<usize>,
    /// Cores for reactors; by default the upper half of the available ones
    #[arg(long, value_name = "CORE,…", value_delimiter = ',')]
    target_cores: Vec<usize>,
    /// Cores for the host's threads; by default those that are not the target's
    #[arg(long, value_name = "CORE,…", value_delimiter = ',')]
    host_cores: Vec<usize>,
    /// Seconds of each point
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = parse_seconds)]
    time: Duration,
    /// Seconds of warm-up before each point
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = parse_seconds_or_none)]
    warm_up: Duration,
    /// Path of the appliance's binary; by default in the directory of this one
    #[arg(long, value_name = "FILE")]
    windlass: Option<PathBuf>,
    /// Also write the report as JSON
    #[arg(long, value_name = "FILE", value_parser = super::parse_report_file)]
    json: Option<PathBuf>,
    /// Also draw it, as SVG
    #[arg(long, value_name = "FILE", value_parser = super::parse_report_file)]
    svg: Option<PathBuf>,
}

/// 1, 2, 4 and so on, and finally `most`.
fn doubling(most: usize) -> Vec<usize> {
    let powers = std::iter::successors(Some(1), |number| Some(number * 2));
    let mut numbers: Vec<usize> = powers.take_while(|number| *number < most).collect();
    numbers.push(most);
    numbers
}

impl ScaleArgs {
    fn options(&self, cores: &[usize]) -> ScaleOptions {
        let target_cores = if self.target_cores.is_empty() {
            cores[cores.len() / 2..].to_vec()
        } else {
            self.target_cores.clone()
        };
        let mut host_cores = self.host_cores.clone();
        if host_cores.is_empty() {
            let others = cores.iter().filter(|core| !target_cores.contains(core));
            host_cores = others.copied().collect();
        }
        if host_cores.is_empty() {
            host_cores = cores.to_vec();
        }
        let numbers = match (self.over, self.numbers.is_empty()) {
            (_, false) => self.numbers.clone(),
            (Dimension::Reactors, true) => doubling(target_cores.len()),
            (Dimension::Connections, true) => CONNECTIONS.to_vec(),
        };
        ScaleOptions {
            windlass: self
                .windlass
                .clone()
                .unwrap_or_else(windlass_beside_this_binary),
            over: self.over,
            numbers,
            target_cores,
            host_cores,
            duration: self.time,
            warm_up: self.warm_up,
        }
    }
}

pub(super) fn execute(args: &ScaleArgs) -> Result<ExitCode, Failure> {
    let options = args.options(&available_cores());
    let report = measure(&options, |step| eprintln!("  {step}"))?;
    print!("{report}");
    if let Some(path) = &args.json {
        save_json(&report, path)?;
    }
    if let Some(path) = &args.svg {
        let (number, of): (fn(&ScalePoint) -> usize, &str) = match report.over {
            Dimension::Reactors => (|point| point.reactors, "reactors"),
            Dimension::Connections => (|point| point.connections, "connections"),
        };
        let point = |point: &ScalePoint| NumberPoint {
            number: number(point) as f64,
            iops: point.iops,
            target_ns_per_request: point.target_ns_per_request,
        };
        let points: Vec<_> = report.points.iter().map(point).collect();
        save_text(&plot::scale(of, &points)?, path)?;
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::{Arguments, Command};
    use super::*;

    fn options(arguments: &str, cores: &[usize]) -> ScaleOptions {
        let all = ["measure", "scale"].into_iter();
        let all = all.chain(arguments.split_whitespace());
        match Arguments::try_parse_from(all).expect("accepted").command {
            Command::Scale(args) => args.options(cores),
            _ => panic!("another command"),
        }
    }

    #[test]
    fn target_and_host_divide_the_cores() {
        let divided = options("reactors", &[0, 1, 2, 3, 4, 5]);
        assert_eq!(divided.target_cores, [3, 4, 5]);
        assert_eq!(divided.host_cores, [0, 1, 2]);
        assert_eq!(divided.numbers, [1, 2, 3]);
        let named = options("reactors --target-cores 0,1 --numbers 2", &[0, 1]);
        assert_eq!((named.host_cores, named.numbers), (vec![0, 1], vec![2]));
        let alone = options("connections", &[0]);
        assert_eq!((alone.target_cores, alone.host_cores), (vec![0], vec![0]));
        assert_eq!(alone.numbers, CONNECTIONS);
    }
}
