//! Checks that a seed determines the whole run, and that a shortened run is a prefix of the full
//! one.

use simulation::faults::{Fault, Faults};
use simulation::run::run;
use simulation::swarm::{Limits, Scenario};

#[test]
fn simulation_is_reproducible_from_its_seed() {
    let limits = Limits::default();
    for seed in [2, 13, 26, 37] {
        let (one, two) = (run(seed, &limits), run(seed, &limits));
        assert!(one.failure.is_none(), "{}", one.failure.expect("some"));
        assert_eq!(one.hash, two.hash, "seed {seed}");
        assert_eq!(one.figures, two.figures, "seed {seed}");
        assert!(one.figures.ios > 0 && one.figures.blocks_judged > 0);
    }
}

#[test]
fn simulation_of_files_is_reproducible_from_its_seed() {
    let limits = Limits {
        scenario: Scenario::Files,
        ..Limits::default()
    };
    for seed in 0..12 {
        let (one, two) = (run(seed, &limits), run(seed, &limits));
        assert!(one.failure.is_none(), "{}", one.failure.expect("some"));
        assert_eq!(one.hash, two.hash, "seed {seed}");
        assert_eq!(one.figures, two.figures, "seed {seed}");
        let files = one.figures.files;
        assert!(files.operations > 0 && files.bytes_judged > 0 && files.kills > 0);
    }
}

#[test]
fn seeds_differ() {
    let limits = Limits {
        events: Some(20),
        ..Limits::default()
    };
    assert_ne!(run(1, &limits).hash, run(2, &limits).hash);
}

/// `ARCHITECTURE.md` §9.1: hosts keep their connections and notice a pause, at any moment.
#[test]
fn hosts_do_not_notice_a_hand_over() {
    let limits = Limits {
        with: Faults::default().with(Fault::Handover),
        ..Limits::default()
    };
    for seed in [16, 51, 83, 113, 125] {
        let outcome = run(seed, &limits);
        assert!(
            outcome.failure.is_none(),
            "{}",
            outcome.failure.expect("some")
        );
        assert!(
            outcome.figures.faults.contains_key(&Fault::Handover),
            "seed {seed}"
        );
    }
}
