//! What a raw host needs of the target that it speaks to, be that a test's or another program.

use std::net::SocketAddr;

use rdma::Provider;

pub(crate) const NQN: &str = "nqn.2026-11.org.windlass:test";
pub(crate) const HOST: &str = "nqn.2026-11.org.windlass:host";

/// What a host needs of the target that it speaks to.
pub(crate) trait World: Sized {
    /// The host's RDMA.
    type Provider: Provider;

    /// Turns after which something that should have happened has not.
    const TURNS: usize;

    /// The host's side.
    fn host_machine(&self) -> Self::Provider;

    /// What it attaches.
    fn subsystem(&self) -> &str {
        NQN
    }

    /// Where the target listens.
    fn address(&self) -> SocketAddr;

    /// Lets the target go on.
    fn turn(&mut self);

    /// Turns until `done` holds.
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
