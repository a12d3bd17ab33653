//! Assigns functions and files to stages: the measured path by module, and the other end.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::cost::callgrind::{Cost, Profile};

/// The assignment of code from a source file; the order is from the most definite owner to none.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum CodeOwner {
    /// The measured path, with the name of the stage.
    Ours(String),
    /// The other end of the loop or the loop itself, with its name.
    Other(&'static str),
    /// A crate that both ends use: its cost belongs to the caller, under this name.
    Shared(&'static str),
    /// Other code, such as the standard library: its cost belongs to the caller's stage.
    Unknown,
}

/// The assignment of directories; the first match applies.
#[derive(Debug, Clone, Copy)]
pub struct Map {
    /// The other end: directory and name.
    pub other: &'static [(&'static str, &'static str)],
    /// The measured path: the `src` directory of a crate, and its name.
    pub ours: &'static [(&'static str, &'static str)],
    /// Crates that both ends use.
    pub shared: &'static [(&'static str, &'static str)],
}

/// The assignment for `measure cost driver`.
pub const DRIVER: Map = Map {
    other: &[
        ("nvme/driver_testing/src/", "emulated controller"),
        ("bench/measurement/src/", "loop"),
        ("bench/src/", "loop"),
    ],
    ours: &[
        ("nvme/driver/src/", "nvme_driver"),
        ("reactors/block/src/", "block"),
    ],
    shared: &[
        ("reactors/hugemem/src/", "hugemem"),
        ("reactors/core/src/", "reactors"),
    ],
};

/// The assignment for `measure cost rdma`.
pub const RDMA: Map = Map {
    other: &[
        ("rdma/testing/src/", "in-process fabric"),
        ("nvme/host/src/", "host"),
        ("bench/measurement/src/", "loop"),
        ("bench/src/", "loop"),
    ],
    ours: &[
        ("nvme/rdma/src/", "nvme_rdma"),
        ("nvme/fabrics/src/", "nvme_fabrics"),
        ("nvme/target/src/", "nvme_target"),
        ("reactors/block/src/", "block"),
    ],
    shared: &[
        ("/rdma/src/", "rdma"),
        ("reactors/hugemem/src/", "hugemem"),
        ("reactors/core/src/", "reactors"),
    ],
};

/// The assignment for `measure cost drive-memory`.
pub const DRIVE_MEMORY: Map = Map {
    other: &[
        ("nvme/driver_testing/src/", "emulated controller"),
        ("rdma/testing/src/", "in-process fabric"),
        ("nvme/host/src/", "host"),
        ("bench/measurement/src/", "loop"),
        ("bench/src/", "loop"),
    ],
    ours: &[
        ("nvme/rdma/src/", "nvme_rdma"),
        ("nvme/fabrics/src/", "nvme_fabrics"),
        ("nvme/target/src/", "nvme_target"),
        ("nvme/driver/src/", "nvme_driver"),
        ("reactors/block/src/", "block"),
    ],
    shared: RDMA.shared,
};

/// The assignment for `measure cost tcp`.
pub const TCP: Map = Map {
    other: &[
        ("nvme/host/src/", "host"),
        ("bench/measurement/src/", "loop"),
        ("bench/src/", "loop"),
    ],
    ours: &[
        ("nvme/tcp/src/", "nvme_tcp"),
        ("nvme/fabrics/src/", "nvme_fabrics"),
        ("nvme/target/src/", "nvme_target"),
        ("reactors/block/src/", "block"),
        ("reactors/uring/src/", "uring"),
    ],
    shared: &[
        ("reactors/hugemem/src/", "hugemem"),
        ("reactors/core/src/", "reactors"),
    ],
};

/// The assignment for `measure cost files`.
pub const FILES: Map = Map {
    other: &[
        ("files/client/src/", "client"),
        ("files/client_testing/src/", "client"),
        ("bench/measurement/src/", "loop"),
        ("bench/src/", "loop"),
    ],
    ours: &[
        ("files/service/src/", "files_service"),
        ("files/tcp/src/", "files_tcp"),
        ("files/server/src/", "files_server"),
        ("files/store/src/", "files_store"),
        ("files/spec/src/", "files_spec"),
        ("reactors/block/src/", "block"),
    ],
    shared: &[
        ("reactors/hugemem/src/", "hugemem"),
        ("reactors/core/src/", "reactors"),
    ],
};

/// The assignment for `measure cost tcp-host`.
pub const HOST: Map = Map {
    other: &[
        ("nvme/tcp/src/", "target"),
        ("nvme/target/src/", "target"),
        ("reactors/block/src/", "target"),
        ("reactors/uring/src/", "target"),
        ("bench/measurement/src/", "loop"),
        ("bench/src/arguments", "loop"),
    ],
    ours: &[
        ("nvme/host/src/tcp/", "nvme_host::tcp"),
        ("nvme/host/src/", "nvme_host"),
        ("bench/src/load/", "load"),
    ],
    shared: &[
        ("reactors/hugemem/src/", "hugemem"),
        ("reactors/core/src/", "reactors"),
    ],
};

impl Map {
    /// The assignment of a file.
    #[must_use]
    pub fn place(&self, file: &str) -> CodeOwner {
        if let Some((_, name)) = self.other.iter().find(|(folder, _)| file.contains(folder)) {
            return CodeOwner::Other(name);
        }
        for (folder, name) in self.ours {
            if let Some((_, rest)) = file.split_once(folder) {
                return CodeOwner::Ours(stage(name, rest));
            }
        }
        self.shared
            .iter()
            .find(|(folder, _)| file.contains(folder))
            .map_or(CodeOwner::Unknown, |(_, name)| CodeOwner::Shared(name))
    }

    /// The assignment of a function with parts in these files: the part of the most definite owner
    /// decides, because the others begin with inlined code.
    fn place_of_function(&self, files: &BTreeSet<String>) -> CodeOwner {
        let places = files.iter().map(|file| self.place(file));
        places.min().unwrap_or(CodeOwner::Unknown)
    }
}

/// The stage of a crate's file: its top-level module.
fn stage(name: &str, rest: &str) -> String {
    let module = rest.split('/').next().unwrap_or(rest);
    match module.trim_end_matches(".rs") {
        "lib" => name.to_owned(),
        module => format!("{name}::{module}"),
    }
}

/// Costs by place.
pub type Costs = BTreeMap<CodeOwner, Cost>;

/// Shares of a function's cost by assignment; their sum is 1.
type Shares = BTreeMap<CodeOwner, f64>;

/// Number of passes that propagate shares from callers to callees. Deeper chains of functions
/// without an assignment do not occur.
const ROUNDS: usize = 12;

/// A divided profile.
#[derive(Debug, Clone, Default)]
pub struct Divided {
    /// Costs by assignment.
    pub places: Costs,
    /// Our costs, by the function into which the code was inlined.
    pub functions: BTreeMap<String, Cost>,
}

/// Divides a profile. The cost of functions without an assignment is divided among their callers,
/// in proportion to the cost of the calls.
#[must_use]
pub fn divide(profile: &Profile, map: &Map) -> Divided {
    let places: HashMap<&str, CodeOwner> = profile
        .files
        .iter()
        .map(|(function, files)| (function.as_str(), map.place_of_function(files)))
        .collect();
    let shares = shares(profile, &places);
    let mut divided = Divided::default();
    for ((function, file), cost) in &profile.own {
        for (place, share) in shares_of(function, map.place(file), &shares, &places) {
            if let CodeOwner::Ours(_) = place {
                let function = divided.functions.entry(function.clone()).or_default();
                function.add(*cost, share);
            }
            divided.places.entry(place).or_default().add(*cost, share);
        }
    }
    divided
}

/// The shares of the assignments in a line of `function` from a file at `place`.
fn shares_of(
    function: &str,
    place: CodeOwner,
    shares: &HashMap<&str, Shares>,
    places: &HashMap<&str, CodeOwner>,
) -> Vec<(CodeOwner, f64)> {
    let own = places.get(function).unwrap_or(&CodeOwner::Unknown);
    let callers = || match own {
        CodeOwner::Ours(_) | CodeOwner::Other(_) => vec![(own.clone(), 1.0)],
        CodeOwner::Shared(_) | CodeOwner::Unknown => shares.get(function).map_or_else(
            || vec![(CodeOwner::Other("start and end"), 1.0)],
            |shares| shares.clone().into_iter().collect(),
        ),
    };
    match place {
        CodeOwner::Ours(_) | CodeOwner::Other(_) => vec![(place, 1.0)],
        CodeOwner::Unknown => match own {
            // A shared crate's own use of the standard library.
            CodeOwner::Shared(name) => renamed(callers(), name),
            _ => callers(),
        },
        CodeOwner::Shared(name) => renamed(callers(), name),
    }
}

/// Moves our part of these shares to a stage of this name.
fn renamed(shares: Vec<(CodeOwner, f64)>, name: &str) -> Vec<(CodeOwner, f64)> {
    let rename = |place| match place {
        CodeOwner::Ours(_) => CodeOwner::Ours(name.to_owned()),
        other => other,
    };
    shares
        .into_iter()
        .map(|(place, share)| (rename(place), share))
        .collect()
}

/// The callers' shares of every function without an assignment.
fn shares<'a>(
    profile: &'a Profile,
    places: &HashMap<&'a str, CodeOwner>,
) -> HashMap<&'a str, Shares> {
    let mut shares: HashMap<&str, Shares> = HashMap::new();
    let has_place = |function: &str| {
        matches!(
            places.get(function),
            Some(CodeOwner::Ours(_) | CodeOwner::Other(_))
        )
    };
    for _ in 0..ROUNDS {
        let mut next: HashMap<&str, Shares> = HashMap::new();
        for ((caller, callee), cost) in &profile.calls {
            if has_place(callee) || caller == callee || cost.instructions <= 0.0 {
                continue;
            }
            let into = next.entry(callee.as_str()).or_default();
            if let Some(place @ (CodeOwner::Ours(_) | CodeOwner::Other(_))) =
                places.get(caller.as_str())
            {
                *into.entry(place.clone()).or_default() += cost.instructions;
            } else if let Some(above) = shares.get(caller.as_str()) {
                for (place, share) in above {
                    *into.entry(place.clone()).or_default() += cost.instructions * share;
                }
            }
        }
        for shares in next.values_mut() {
            let sum: f64 = shares.values().sum();
            if sum > 0.0 {
                shares.values_mut().for_each(|share| *share /= sum);
            }
        }
        shares = next;
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(instructions: f64) -> Cost {
        Cost {
            instructions,
            system_calls: 0.0,
        }
    }

    fn instructions(costs: &Costs, place: &CodeOwner) -> f64 {
        costs.get(place).map_or(0.0, |cost| cost.instructions)
    }

    #[test]
    fn source_files_map_to_code_owners() {
        for (file, expected) in [
            ("/w/nvme/driver/src/pair.rs", "nvme_driver::pair"),
            ("nvme/driver/src/pair/deep.rs", "nvme_driver::pair"),
            ("/w/nvme/driver/src/lib.rs", "nvme_driver"),
            ("/w/reactors/block/src/request.rs", "block::request"),
        ] {
            assert_eq!(DRIVER.place(file), CodeOwner::Ours(expected.to_owned()));
        }
        let other = CodeOwner::Other("emulated controller");
        assert_eq!(DRIVER.place("/w/nvme/driver_testing/src/bus.rs"), other);
        assert_eq!(DRIVER.place("/w/nvme/driver_testing/src/lib.rs"), other);
        assert_eq!(
            DRIVER.place("/w/reactors/hugemem/src/lease.rs"),
            CodeOwner::Shared("hugemem")
        );
        assert_eq!(
            DRIVER.place("/rustc/abc/library/core/src/x.rs"),
            CodeOwner::Unknown
        );
        assert_eq!(
            RDMA.place("/w/rdma/src/registered.rs"),
            CodeOwner::Shared("rdma")
        );
        assert_eq!(
            RDMA.place("/w/nvme/rdma/src/slot.rs"),
            CodeOwner::Ours("nvme_rdma::slot".to_owned())
        );
        for (file, expected) in [
            ("/w/nvme/host/src/tcp/sender.rs", "nvme_host::tcp::sender"),
            ("/w/nvme/host/src/tcp.rs", "nvme_host::tcp"),
            ("/w/bench/src/load/lane.rs", "load::lane"),
        ] {
            assert_eq!(HOST.place(file), CodeOwner::Ours(expected.to_owned()));
        }
        assert_eq!(
            HOST.place("/w/bench/measurement/src/cost/host_loop.rs"),
            CodeOwner::Other("loop")
        );
        let fabric = CodeOwner::Other("in-process fabric");
        assert_eq!(RDMA.place("/w/rdma/testing/src/fake/engine.rs"), fabric);
        assert_eq!(RDMA.place("/w/rdma/testing/src/fake.rs"), fabric);
    }

    /// The driver calls memcpy for 30 and the emulated controller for 70; the driver contains 5
    /// inlined lines of the library and 2 of the emulated controller.
    fn profile() -> Profile {
        let driver = "/w/nvme/driver/src/pair.rs";
        let emulated = "/w/nvme/driver_testing/src/bus.rs";
        let library = "/lib/memcpy.S";
        let mut profile = Profile::default();
        for (function, file) in [("pair", driver), ("bus", emulated), ("memcpy", library)] {
            profile.files.insert(function.into(), [file.into()].into());
        }
        let mut own = |function: &str, file: &str, instructions| {
            let key = (function.to_owned(), file.to_owned());
            profile.own.insert(key, cost(instructions));
        };
        own("pair", driver, 100.0);
        own("pair", library, 5.0);
        own("pair", emulated, 2.0);
        own("bus", emulated, 1000.0);
        own("memcpy", library, 100.0);
        for (caller, instructions) in [("pair", 30.0), ("bus", 70.0)] {
            let key = (caller.to_owned(), "memcpy".to_owned());
            profile.calls.insert(key, cost(instructions));
        }
        let key = ("pair".to_owned(), "bus".to_owned());
        profile.calls.insert(key, cost(1070.0));
        profile
    }

    #[test]
    fn a_part_of_a_function_that_begins_with_shared_code_belongs_to_the_function() {
        let mut profile = profile();
        let files = profile.files.get_mut("pair").expect("a function");
        files.insert("/w/reactors/core/src/returns.rs".into());
        let costs = divide(&profile, &DRIVER).places;
        let pair = CodeOwner::Ours("nvme_driver::pair".to_owned());
        assert_eq!(instructions(&costs, &pair), 135.0);
    }

    #[test]
    fn library_costs_are_charged_to_their_callers() {
        let divided = divide(&profile(), &DRIVER);
        let costs = divided.places;
        let pair = CodeOwner::Ours("nvme_driver::pair".to_owned());
        assert_eq!(instructions(&costs, &pair), 135.0);
        let emulated = CodeOwner::Other("emulated controller");
        assert_eq!(instructions(&costs, &emulated), 1072.0);
        let sum: f64 = costs.values().map(|cost| cost.instructions).sum();
        assert_eq!(sum, 1207.0, "nothing is lost");
        let of = |name: &str| divided.functions.get(name).map(|cost| cost.instructions);
        assert_eq!(
            (of("pair"), of("memcpy"), of("bus")),
            (Some(105.0), Some(30.0), None)
        );
    }
}
