//! The interface of a raw host to its target, which a test or another program implements.

use std::net::SocketAddr;

use rdma::Provider;

pub(crate) const NQN: &str = "nqn.2026-11.org.windlass:test";
pub(crate) const HOST: &str = "nqn.2026-11.org.windlass:host";

/// The interface of a host to its target.
pub(crate) trait World: Sized {
    /// The host's RDMA provider.
    type Provider: Provider;

    /// Turns after which a wait has failed.
    const TURNS: usize;

    /// The host's side.
    fn host_machine(&self) -> Self::Provider;

    /// The NQN of the subsystem that it attaches to.
    fn subsystem(&self) -> &str {
        NQN
    }

    /// The target's address.
    fn address(&self) -> SocketAddr;

    /// Runs a turn of the target.
    fn turn(&mut self);

    /// Runs turns until `done` returns true.
    #[track_caller]
    fn turn_until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        for _ in 0..Self::TURNS {
            if done(self) {
                return;
            }
            self.turn();
        }
        panic!("{what} did not come true in {} turns", Self::TURNS);
    }
}
