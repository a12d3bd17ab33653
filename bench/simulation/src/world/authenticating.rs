//! Keys of hosts: an administrator exchanges them while hosts authenticate themselves again.

use super::World;
use crate::authentication::VERSIONS;
use crate::faults::Fault;
use crate::judge::Violation;

/// Probability that a host authenticates itself again in an event, per thousand.
const AGAIN_PERMILLE: u32 = 40;
/// Probability of a change of keys in an event, per thousand.
const CHANGES_PERMILLE: u32 = 20;
/// Probability that a change ends the authentication of a host instead, per thousand.
const END_PERMILLE: u32 = 150;

impl World {
    /// Sometimes changes the keys of a host, or has one authenticate itself again.
    pub(super) fn authenticate_hosts(&mut self) -> Result<(), Violation> {
        if !self.env.swarm.faults.has(Fault::Chap) {
            return Ok(());
        }
        let host = self.key_random.below(self.hosts.len() as u64) as usize;
        if self.key_random.permille(AGAIN_PERMILLE) {
            self.hosts[host].authenticate_again(&mut self.env.for_hosts())?;
        }
        if self.changing || !self.key_random.permille(CHANGES_PERMILLE) {
            return Ok(());
        }
        if self.reconfigure(Fault::Chap, 0, host)? {
            self.env.figures.fault(Fault::Chap);
        }
        Ok(())
    }

    /// Adds a key to those of a host, removes the older one of two, or ends or begins the need of
    /// one.
    pub(super) fn vary_secrets(&mut self, secrets: &mut [Vec<u32>], host: usize) {
        let secrets = &mut secrets[self.env.swarm.hosts[host].identity];
        let random = &mut self.key_random;
        match secrets.as_slice() {
            [] => secrets.push(random.below(u64::from(VERSIONS - 1)) as u32),
            _ if random.permille(END_PERMILLE) => secrets.clear(),
            [only] if *only + 1 < VERSIONS => secrets.push(only + 1),
            [_] => {}
            [_, ..] => {
                secrets.remove(0);
            }
        }
    }
}
