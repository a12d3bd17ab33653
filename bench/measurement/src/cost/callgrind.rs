//! Parses callgrind's files: the own cost of each function by source file, and its calls.
//!
//! Format: Valgrind manual, "Callgrind Format Specification", version 1, with full names and
//! positions (`--compress-strings=no --compress-pos=no`).

use std::collections::{BTreeSet, HashMap};

/// Costs of a part of the program.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Cost {
    /// Instructions.
    pub instructions: f64,
    /// System calls.
    pub system_calls: f64,
}

impl Cost {
    /// Adds `other`, multiplied by `factor`.
    pub fn add(&mut self, other: Self, factor: f64) {
        self.instructions += other.instructions * factor;
        self.system_calls += other.system_calls * factor;
    }
}

/// The reason why a file could not be parsed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProfileError {
    /// There is no `events:` line with instructions.
    #[error("callgrind's file names no instructions among its events")]
    NoInstructions,
    /// A line violates the format.
    #[error("line {0} of callgrind's file is not understood")]
    Line(usize),
}

/// The costs of a run. Functions have callgrind's names, files their paths.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Profile {
    /// Own costs of functions, by function and source file of the line, which differs from the
    /// function's file for inlined code.
    pub own: HashMap<(String, String), Cost>,
    /// Inclusive costs of calls, by caller and callee.
    pub calls: HashMap<(String, String), Cost>,
    /// The files of each function: callgrind names two if a function's parts or instances begin with
    /// lines of different files, in an order that changes from run to run.
    pub files: HashMap<String, BTreeSet<String>>,
}

/// The columns of the used events in a cost line.
#[derive(Debug, Clone, Copy, Default)]
struct Columns {
    instructions: Option<usize>,
    system_calls: Option<usize>,
}

impl Columns {
    fn of(events: &str) -> Self {
        let position = |name| events.split_whitespace().position(|event| event == name);
        Self {
            instructions: position("Ir"),
            system_calls: position("sysCount"),
        }
    }

    /// The costs of a line: a position, then a number for each event; trailing zeroes are omitted.
    fn read(self, line: &str) -> Option<Cost> {
        let mut values = [0.0; 8];
        let mut words = line.split_whitespace();
        words.next()?;
        for (place, word) in values.iter_mut().zip(words) {
            *place = word.parse().ok()?;
        }
        let at = |column: Option<usize>| column.and_then(|at| values.get(at)).copied();
        Some(Cost {
            instructions: at(self.instructions)?,
            system_calls: at(self.system_calls).unwrap_or(0.0),
        })
    }
}

impl Profile {
    /// Parses a file.
    ///
    /// # Errors
    /// [`ProfileError`].
    pub fn parse(text: &str) -> Result<Self, ProfileError> {
        let mut profile = Self::default();
        let mut columns = Columns::default();
        let (mut function, mut file) = (String::new(), String::new());
        let mut callee = String::new();
        let mut is_call = false;
        for (number, line) in text.lines().enumerate() {
            if let Some(events) = line.strip_prefix("events:") {
                columns = Columns::of(events);
            } else if let Some(name) = line.strip_prefix("fn=") {
                name.clone_into(&mut function);
                profile
                    .files
                    .entry(function.clone())
                    .or_default()
                    .insert(file.clone());
            } else if let Some(name) = ["fl=", "fi=", "fe="]
                .iter()
                .find_map(|key| line.strip_prefix(key))
            {
                name.clone_into(&mut file);
            } else if let Some(name) = line.strip_prefix("cfn=") {
                name.clone_into(&mut callee);
            } else if line.starts_with("calls=") {
                is_call = true;
            } else if line.starts_with(|first: char| first.is_ascii_digit()) {
                let cost = columns.read(line).ok_or(ProfileError::Line(number + 1))?;
                let place = if std::mem::take(&mut is_call) {
                    let key = (function.clone(), callee.clone());
                    profile.calls.entry(key).or_default()
                } else {
                    let key = (function.clone(), file.clone());
                    profile.own.entry(key).or_default()
                };
                place.add(cost, 1.0);
            }
        }
        match columns.instructions {
            Some(_) => Ok(profile),
            None => Err(ProfileError::NoInstructions),
        }
    }

    /// The additional cost of this run compared with `less`, which did the same fewer times.
    #[must_use]
    pub fn beyond(&self, less: &Self) -> Self {
        let mut rest = self.clone();
        for (key, cost) in &less.own {
            rest.own.entry(key.clone()).or_default().add(*cost, -1.0);
        }
        for (key, cost) in &less.calls {
            rest.calls.entry(key.clone()).or_default().add(*cost, -1.0);
        }
        rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "\
# callgrind format
version: 1
creator: callgrind-3.19.0
positions: line
events: Ir sysCount sysTime

ob=/bin/program
fl=/src/a.rs
fn=a::outer
10 5
fi=/src/inlined.rs
3 7
fe=/src/a.rs
11 1
cob=/lib/libc.so
cfi=/src/b.rs
cfn=b::inner
calls=2 20
12 100 4 9

fl=/src/b.rs
fn=b::inner
20 90
21 10 4 9
fl=/src/a.rs
fn=a::outer
10 2
";

    #[test]
    fn own_and_call_costs_are_distinguished() {
        let profile = Profile::parse(FILE).expect("understood");
        let own = |function: &str, file: &str| {
            let key = (function.to_owned(), file.to_owned());
            profile.own.get(&key).map(|cost| cost.instructions)
        };
        assert_eq!(own("a::outer", "/src/a.rs"), Some(8.0));
        assert_eq!(own("a::outer", "/src/inlined.rs"), Some(7.0));
        assert_eq!(own("b::inner", "/src/b.rs"), Some(100.0));
        let call = profile.calls[&("a::outer".to_owned(), "b::inner".to_owned())];
        assert_eq!((call.instructions, call.system_calls), (100.0, 4.0));
        let files = |function: &str| profile.files[function].iter().collect::<Vec<_>>();
        assert_eq!(files("b::inner"), ["/src/b.rs"]);
        assert_eq!(files("a::outer"), ["/src/a.rs"]);
    }

    #[test]
    fn parts_of_a_function_in_different_files_give_it_both_in_any_order() {
        let part = |file: &str| format!("fl={file}\nfn=a::outer\n1 1\n");
        let (a, b) = (part("/src/a.rs"), part("/src/b.rs"));
        let profile = |first, second| Profile::parse(&format!("events: Ir\n{first}{second}"));
        let files = |profile: Profile| profile.files["a::outer"].clone();
        let both = files(profile(&a, &b).expect("understood"));
        assert_eq!(both.len(), 2);
        assert_eq!(files(profile(&b, &a).expect("understood")), both);
    }

    #[test]
    fn profile_difference_is_the_excess_of_the_second_run() {
        let once = Profile::parse(FILE).expect("understood");
        let mut twice = once.clone();
        for cost in twice.own.values_mut().chain(twice.calls.values_mut()) {
            cost.add(*cost, 1.0);
        }
        let rest = twice.beyond(&once);
        assert_eq!(rest.own, once.own);
        assert_eq!(rest.calls, once.calls);
    }

    #[test]
    fn malformed_callgrind_output_is_refused() {
        assert_eq!(Profile::parse(""), Err(ProfileError::NoInstructions));
        let other = "events: Cycles\nfn=x\n1 2\n";
        assert!(Profile::parse(other).is_err());
        let broken = "events: Ir\nfn=x\n1 many\n";
        assert_eq!(Profile::parse(broken), Err(ProfileError::Line(3)));
    }
}
