//! Checks that a seed determines the whole run, and that a shortened run is a prefix of the full
//! one.

use simulation::run::run;
use simulation::swarm::Limits;

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
fn seeds_differ() {
    let limits = Limits {
        events: Some(20),
        ..Limits::default()
    };
    assert_ne!(run(1, &limits).hash, run(2, &limits).hash);
}
