use std::cell::RefCell;

use super::*;
use crate::mesh::{self, Port};
use crate::poller::{Poller, StopState};

/// Passes a token around the mesh and records each holder and time.
struct Relay {
    port: Port<u32>,
    clock: VirtualClock,
    hops: Rc<RefCell<Vec<(usize, Nanos)>>>,
    holds: Option<(Nanos, u32)>,
}

impl Poller for Relay {
    fn name(&self) -> &str {
        "relay"
    }

    fn poll(&mut self, now: Nanos) -> Progress {
        if let Some((_, token)) = self.port.recv_in_turn() {
            self.hops.borrow_mut().push((self.port.index(), now));
            self.holds = Some((now + Nanos::from_millis(10), token));
            return Progress::Busy(1);
        }
        match self.holds.take() {
            Some((until, token)) if until <= self.clock.now() => {
                let next = (self.port.index() + 1) % self.port.reactors();
                self.port
                    .send(next, token + 1)
                    .expect("one token, room for one");
                Progress::Busy(1)
            }
            holds => {
                self.holds = holds;
                Progress::Idle
            }
        }
    }

    fn next_deadline(&self) -> Option<Nanos> {
        self.holds.map(|(until, _)| until)
    }
}

fn relay(seed: u64) -> Vec<(usize, Nanos)> {
    let configs = vec![ReactorConfig::default(); 3];
    let mut simulation = Simulation::new(seed, configs).expect("eventfds");
    let hops = Rc::new(RefCell::new(Vec::new()));
    let mut ports = mesh::mesh(3, 1);
    ports[2].send(0, 0).expect("there is room");
    for (index, port) in ports.into_iter().enumerate() {
        let (clock, hops) = (simulation.clock(), Rc::clone(&hops));
        let relay = Relay {
            port,
            clock,
            hops,
            holds: None,
        };
        simulation
            .reactor(index)
            .register(Box::new(relay))
            .expect("there is room");
    }
    assert!(simulation.run_until(Nanos::from_secs(10), || hops.borrow().len() == 100));
    drop(simulation);
    Rc::into_inner(hops)
        .expect("the relays are gone")
        .into_inner()
}

#[test]
fn simulated_time_jumps_to_the_next_deadline() {
    let hops = relay(1);
    for (index, &(reactor, at)) in hops.iter().enumerate() {
        assert_eq!(reactor, index % 3);
        // Ten milliseconds per hop, plus a few rounds of a microsecond.
        let earliest = Nanos::from_millis(10 * index as u64);
        assert!(
            at >= earliest && at < earliest + Nanos::from_millis(1),
            "{at} for hop {index}"
        );
    }
}

#[test]
fn equal_seeds_give_equal_runs() {
    assert_eq!(relay(7), relay(7));
    assert_ne!(
        relay(7),
        relay(8),
        "another order of turns gives other times"
    );
}

#[test]
fn idle_simulation_ends_at_its_limit() {
    let mut simulation = Simulation::new(0, vec![ReactorConfig::default()]).expect("eventfds");
    assert!(!simulation.run_until(Nanos::from_secs(3_600), || false));
    assert_eq!(simulation.clock().now(), Nanos::from_secs(3_600));
}

#[test]
fn busy_simulation_ends_at_its_limit() {
    struct Busy;
    impl Poller for Busy {
        fn name(&self) -> &str {
            "busy"
        }
        fn poll(&mut self, _now: Nanos) -> Progress {
            Progress::Busy(1)
        }
    }
    let mut simulation = Simulation::new(0, vec![ReactorConfig::default()]).expect("eventfds");
    simulation
        .reactor(0)
        .register(Box::new(Busy))
        .expect("there is room");
    assert!(!simulation.run_until(Nanos::from_millis(5), || false));
}

#[test]
fn simulated_stop_ends_all_reactors_together() {
    struct Draining(u32);
    impl Poller for Draining {
        fn name(&self) -> &str {
            "draining"
        }
        fn poll(&mut self, _now: Nanos) -> Progress {
            self.0 = self.0.saturating_sub(1);
            Progress::Idle
        }
        fn stop(&mut self, _now: Nanos) -> StopState {
            if self.0 == 0 {
                StopState::Stopped
            } else {
                StopState::Outstanding(self.0)
            }
        }
    }
    let configs = vec![ReactorConfig::default(); 2];
    let mut simulation = Simulation::new(5, configs).expect("eventfds");
    for (index, items) in [3, 30].into_iter().enumerate() {
        let poller = Box::new(Draining(items));
        simulation
            .reactor(index)
            .register(poller)
            .expect("there is room");
    }
    simulation.request_stop(Nanos::from_secs(1));
    for _ in 0..29 {
        simulation.round();
        assert!(!simulation.reactor(0).is_finished() && !simulation.reactor(1).is_finished());
    }
    // The reactor that took its turn first sees only in its next turn that the other is quiet.
    simulation.round();
    simulation.round();
    assert!(simulation.is_finished());
    assert!(
        !simulation.run_until(Nanos::MAX, || false),
        "there is nothing left to run"
    );
}
