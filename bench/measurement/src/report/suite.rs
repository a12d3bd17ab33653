//! Figures with goals: rounds, medians of ratios, and the table.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Machine, MemoryReport};
use bench::table::Table;
use bench::units::{format_count, format_nanos, median};

/// The goal of a ratio.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Goal {
    /// At least this value.
    AtLeast(f64),
    /// At most this value.
    AtMost(f64),
}

impl Goal {
    /// Whether `ratio` meets the goal.
    #[must_use]
    pub fn is_met(self, ratio: f64) -> bool {
        match self {
            Self::AtLeast(least) => ratio >= least,
            Self::AtMost(most) => ratio <= most,
        }
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtLeast(least) => write!(f, "≥ {least:.2}"),
            Self::AtMost(most) => write!(f, "≤ {most:.2}"),
        }
    }
}

/// The unit of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Requests per second.
    RequestsPerSecond,
    /// Nanoseconds.
    Nanoseconds,
    /// Processor cores.
    Cores,
}

impl Unit {
    fn format(self, value: f64) -> String {
        match self {
            Self::RequestsPerSecond => format!("{}/s", format_count(value as u64)),
            Self::Nanoseconds => format_nanos(value as u64),
            Self::Cores => format!("{value:.3}"),
        }
    }
}

/// The value of a figure in one round.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    /// Its value.
    pub value: f64,
    /// Requests per second of busy time of the target's core; `None` if the figure does not count
    /// requests, or the time is unknown.
    pub per_core_second: Option<f64>,
    /// The same for the host's core.
    pub per_host_core_second: Option<f64>,
}

impl From<f64> for Sample {
    fn from(value: f64) -> Self {
        Self {
            value,
            per_core_second: None,
            per_host_core_second: None,
        }
    }
}

/// Requests per second of a core's busy time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CoreSeconds {
    /// The median.
    pub requests_per_core_second: f64,
    /// In each round.
    pub rounds: Vec<f64>,
}

impl CoreSeconds {
    /// Adds another round.
    fn add(this: &mut Option<Self>, sample: Option<f64>) {
        if let Some(requests) = sample {
            let this = this.get_or_insert_default();
            this.rounds.push(requests);
            this.requests_per_core_second = median(&this.rounds);
        }
    }
}

/// A reference for a figure.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reference {
    /// Its description.
    pub what: String,
    /// Its value in each round.
    pub rounds: Vec<f64>,
    /// The median of the ratios of our value to this one, each taken within a round.
    pub ratio: f64,
    /// The goal of the ratio; `None` for information only.
    pub goal: Option<Goal>,
    /// Its efficiency on the target's core.
    #[serde(default)]
    pub core: Option<CoreSeconds>,
    /// Its efficiency on the host's core.
    #[serde(default)]
    pub host_core: Option<CoreSeconds>,
}

/// A measured figure of ours.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// Its short name.
    pub name: String,
    /// Its description.
    pub what: String,
    /// Its unit.
    pub unit: Unit,
    /// Its value in each round.
    pub rounds: Vec<f64>,
    /// The references with which it is compared.
    pub against: Vec<Reference>,
    /// The efficiency of the target's core.
    #[serde(default)]
    pub core: Option<CoreSeconds>,
    /// The efficiency of our host's core.
    #[serde(default)]
    pub host_core: Option<CoreSeconds>,
}

/// Collects figures over rounds.
#[derive(Debug, Default)]
pub struct Figures(Vec<Figure>);

impl Figures {
    /// Adds a round of the figure `name`: its value, and its references by name, value and goal.
    pub fn add(
        &mut self,
        name: &str,
        what: &str,
        unit: Unit,
        ours: Sample,
        against: &[(&str, Sample, Option<Goal>)],
    ) {
        let found = self.0.iter().position(|figure| figure.name == name);
        let index = found.unwrap_or_else(|| {
            let begin = |(what, _, goal): &(&str, Sample, Option<Goal>)| Reference {
                what: (*what).to_owned(),
                rounds: Vec::new(),
                ratio: 0.0,
                goal: *goal,
                core: None,
                host_core: None,
            };
            self.0.push(Figure {
                name: name.to_owned(),
                what: what.to_owned(),
                unit,
                rounds: Vec::new(),
                against: against.iter().map(begin).collect(),
                core: None,
                host_core: None,
            });
            self.0.len() - 1
        });
        let figure = &mut self.0[index];
        figure.rounds.push(ours.value);
        CoreSeconds::add(&mut figure.core, ours.per_core_second);
        CoreSeconds::add(&mut figure.host_core, ours.per_host_core_second);
        for (one, (_, sample, _)) in figure.against.iter_mut().zip(against) {
            one.rounds.push(sample.value);
            CoreSeconds::add(&mut one.core, sample.per_core_second);
            CoreSeconds::add(&mut one.host_core, sample.per_host_core_second);
            let ratios: Vec<f64> = figure
                .rounds
                .iter()
                .zip(&one.rounds)
                .filter(|(_, base)| **base > 0.0)
                .map(|(ours, base)| ours / base)
                .collect();
            one.ratio = median(&ratios);
        }
    }
}

impl From<Figures> for Vec<Figure> {
    fn from(figures: Figures) -> Self {
        figures.0
    }
}

/// All figures of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SuiteReport {
    /// The machine of the measurement.
    pub machine: Machine,
    /// Core of the target and of the bare pairs' responding side.
    pub target_core: usize,
    /// Core of the host and of the bare pairs' requesting side.
    pub host_core: usize,
    /// The memory of the target and of the bare pairs.
    pub memory: MemoryReport,
    /// Congestion control of target, host and pairs.
    pub congestion_control: String,
    /// Number of rounds.
    pub rounds: usize,
    /// Counted seconds of each measurement.
    pub seconds: f64,
    /// The figures.
    pub figures: Vec<Figure>,
    /// Figures that could not be measured, and the reasons.
    pub notes: Vec<String>,
}

impl SuiteReport {
    /// Figures that miss their goal, by name.
    #[must_use]
    pub fn missed(&self) -> Vec<&str> {
        let misses = |figure: &&Figure| {
            let mut held = figure.against.iter();
            held.any(|one| one.goal.is_some_and(|goal| !goal.is_met(one.ratio)))
        };
        let missed = self.figures.iter().filter(misses);
        missed.map(|figure| figure.name.as_str()).collect()
    }

    fn table(&self) -> Table {
        let mut table = Table::new(&["", "windlass", "against", "", "ratio", "goal", ""]);
        for figure in &self.figures {
            for (index, one) in figure.against.iter().enumerate() {
                let first = |text: String| if index == 0 { text } else { String::new() };
                table.row([
                    first(figure.what.clone()),
                    first(figure.unit.format(median(&figure.rounds))),
                    one.what.clone(),
                    figure.unit.format(median(&one.rounds)),
                    format!("{:.2}", one.ratio),
                    one.goal.map_or_else(String::new, |goal| goal.to_string()),
                    match one.goal {
                        Some(goal) if goal.is_met(one.ratio) => "reached".to_owned(),
                        Some(_) => "missed".to_owned(),
                        None => String::new(),
                    },
                ]);
            }
        }
        table
    }

    /// The efficiency of our ends and of the references on one of the cores, if known.
    fn core_table(
        &self,
        ours: fn(&Figure) -> Option<&CoreSeconds>,
        theirs: fn(&Reference) -> Option<&CoreSeconds>,
    ) -> Table {
        let mut table = Table::new(&["", "windlass", "against", "", "ratio"]);
        for figure in &self.figures {
            let Some(ours) = ours(figure) else {
                continue;
            };
            let each =
                |core: &CoreSeconds| Unit::RequestsPerSecond.format(core.requests_per_core_second);
            let known = figure.against.iter();
            let known = known.filter_map(|one| Some((one, theirs(one)?)));
            for (index, (one, theirs)) in known.enumerate() {
                let first = |text: String| if index == 0 { text } else { String::new() };
                let ratios: Vec<f64> = (ours.rounds.iter().zip(&theirs.rounds))
                    .map(|(ours, theirs)| ours / theirs)
                    .collect();
                table.row([
                    first(figure.what.clone()),
                    first(each(ours)),
                    one.what.clone(),
                    each(theirs),
                    format!("{:.2}", median(&ratios)),
                ]);
            }
        }
        table
    }
}

impl fmt::Display for SuiteReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Our target over TCP, and what it is held against")?;
        writeln!(f, "  on {}", self.machine)?;
        writeln!(
            f,
            "  target on core {}, host on core {}\n",
            self.target_core, self.host_core
        )?;
        writeln!(f, "{}", self.table())?;
        if self.figures.iter().any(|figure| figure.core.is_some()) {
            let table = self.core_table(|figure| figure.core.as_ref(), |one| one.core.as_ref());
            writeln!(f, "Requests per second of the target's core\n\n{table}")?;
            let table = self.core_table(
                |figure| figure.host_core.as_ref(),
                |one| one.host_core.as_ref(),
            );
            writeln!(f, "Requests per second of the host's core\n\n{table}")?;
            writeln!(
                f,
                "  of the time in which a turn of the core had something to do; where the target has a \
                 part\n    of its core, of the processor time that it took"
            )?;
        }
        writeln!(
            f,
            "  medians of {} alternating rounds of {} s, each with a fresh target and other memory;\n    \
             ratios are taken within a round",
            self.rounds, self.seconds
        )?;
        writeln!(
            f,
            "  same memory: the pair's target side sends from, or receives to, random blocks of\n    \
             {}; one hot buffer: always the same",
            self.memory
        )?;
        writeln!(
            f,
            "  congestion control: {} for target, host and pairs",
            self.congestion_control
        )?;
        for note in &self.notes {
            writeln!(f, "  {note}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_medians_of_per_round_ratios() {
        let mut figures = Figures::default();
        for (ours, base) in [(90.0, 100.0), (50.0, 50.0), (160.0, 200.0)] {
            let base = Sample {
                value: base,
                per_core_second: Some(2.0 * base),
                per_host_core_second: None,
            };
            let against = [
                ("base", base, Some(Goal::AtLeast(0.9))),
                ("nothing", 0.0.into(), Some(Goal::AtMost(0.5))),
            ];
            let ours = Sample {
                value: ours,
                per_core_second: Some(ours + 10.0),
                per_host_core_second: None,
            };
            figures.add("a", "An a", Unit::RequestsPerSecond, ours, &against);
        }
        let figures: Vec<Figure> = figures.into();
        let [figure] = &figures[..] else {
            panic!("one figure, not {figures:?}")
        };
        assert_eq!(figure.rounds, [90.0, 50.0, 160.0]);
        assert_eq!(figure.against[0].ratio, 0.9);
        assert_eq!(figure.against[1].ratio, 0.0);
        let core = |core: &Option<CoreSeconds>| core.clone().map(|it| it.requests_per_core_second);
        assert_eq!(core(&figure.core), Some(100.0));
        assert_eq!(core(&figure.against[0].core), Some(200.0));
        assert_eq!(core(&figure.against[1].core), None);
    }

    #[test]
    fn goals_have_a_direction() {
        assert!(Goal::AtLeast(0.85).is_met(0.85) && !Goal::AtLeast(0.85).is_met(0.84));
        assert!(Goal::AtMost(1.15).is_met(1.15) && !Goal::AtMost(1.15).is_met(1.16));
    }
}
