//! The cost of idle reactors, measured with the process's CPU clock. The only test in its process,
//! for that reason.

use std::thread;
use std::time::{Duration, Instant};

use reactors::{IdlePolicy, Nanos, Poller, Progress, ReactorConfig, Reactors};
use rustix::time::{ClockId, clock_gettime};

fn process_cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::try_from(time).expect("time spent is not negative")
}

struct Nothing;

impl Poller for Nothing {
    fn name(&self) -> &str {
        "nothing"
    }

    fn poll(&mut self, _now: Nanos) -> Progress {
        Progress::Idle
    }
}

/// Requirement: an idle appliance uses under 2 % of a core with the default policy. This test is
/// stricter: without anything to wait for, there is not a single wake-up.
#[test]
fn idle_reactors_use_under_two_percent_of_a_core() {
    const WATCHED: Duration = Duration::from_secs(2);
    let configs = vec![ReactorConfig::default(); 4];
    assert_eq!(configs[0].idle, IdlePolicy::adaptive(), "the default");
    let reactors = Reactors::start(configs, |_, setup| {
        setup.register(Box::new(Nothing))?;
        Ok(())
    })
    .expect("reactors");
    let asleep = || {
        reactors
            .handles()
            .iter()
            .all(|handle| handle.stats().is_asleep())
    };
    let start = Instant::now();
    while !asleep() {
        assert!(
            start.elapsed() < Duration::from_secs(30),
            "they must come to rest"
        );
        thread::sleep(Duration::from_millis(1));
    }
    let turns = || {
        reactors
            .handles()
            .iter()
            .map(|handle| handle.stats().turns())
            .sum::<u64>()
    };
    let (cpu, turned, start) = (process_cpu_time(), turns(), Instant::now());
    thread::sleep(WATCHED);
    let (cpu, turned, elapsed) = (process_cpu_time() - cpu, turns() - turned, start.elapsed());
    assert_eq!(turned, 0, "nothing can have woken them");
    assert!(cpu < elapsed / 50, "{cpu:?} of CPU time in {elapsed:?}");
    let now = reactors::Clock::now(&reactors.clock());
    for handle in reactors.handles() {
        assert!(handle.stats().busy_permille(now) < 20);
        assert!(handle.stats().snapshot(now).asleep);
    }
    assert!(reactors.stop(Nanos::from_secs(30)).is_clean());
}
