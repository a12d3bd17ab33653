//! The addresses of hosts, and the judge of the limits on controllers per host and per address.
//!
//! Each host may use controllers of exports until only a reserve of 1/8 of them is left. The reserve
//! is for hosts with at most 1/64 of the controllers each. For hosts that no export lists, all hosts
//! of an address together are limited in the same way. If exports list hosts, the others leave 1/4
//! to them. Fewer than 128 controllers are first come, first served.
//!
//! The judge counts the controllers that exist after every turn. It does not use the target's
//! accounts. A controller that exceeds a limit is an error, and so is a Connect that is refused
//! although no limit was reached while it was under way.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use nvme_target::{ControllerKind, ControllerSnapshot};
use reactors::Nanos;

use crate::host::HostEnv;
use crate::judge::Violation;
use crate::plan::{ServedConfig, host_name};

/// The address of unknown hosts and of hosts of the discovery subsystem, which have no controllers
/// of exports.
pub const UNKNOWN_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(203, 0, 113, 1));
/// Number of addresses that many anonymous hosts share.
pub const SHARED_ADDRESSES: u64 = 4;
/// Marks host identifiers that contain the host's address.
const MARK: [u8; 12] = [0xA0; 12];

/// Fewer controllers than this are not divided into shares.
const SHARED_CAPACITY_MIN: usize = 128;
/// The reserve: one in this number.
const RESERVED_PART: usize = 8;
/// The share of the reserve of each host and each address: one in this number.
const SMALL_PART: usize = 64;
/// The part that is for listed hosts: one in this number.
const LISTED_PART: usize = 4;
/// Time after which a change of the configuration is in effect.
const SETTLING_TIME: Nanos = Nanos::from_secs(2);

/// The address of configured host `number`, over TCP and RDMA.
#[must_use]
pub fn host_address(number: usize) -> IpAddr {
    Ipv4Addr::new(192, 0, 2, 10 + number as u8).into()
}

/// One of the addresses that many anonymous hosts share.
#[must_use]
pub fn shared_address(number: u64) -> Ipv4Addr {
    Ipv4Addr::new(198, 51, 100, number as u8)
}

/// The address of an anonymous host that is alone there.
#[must_use]
pub fn own_address(number: u64) -> Ipv4Addr {
    let [.., high, middle, low] = number.to_be_bytes();
    Ipv4Addr::new(10, high, middle, low)
}

/// The identifier of an anonymous host, which names its address.
#[must_use]
pub fn host_id(address: Ipv4Addr) -> [u8; 16] {
    let mut id = [0; 16];
    id[..MARK.len()].copy_from_slice(&MARK);
    id[MARK.len()..].copy_from_slice(&address.octets());
    id
}

/// The address in the identifier of an anonymous host.
fn address_of(host_id: &[u8; 16]) -> Option<Ipv4Addr> {
    let (mark, octets) = host_id.split_at(MARK.len());
    let octets: [u8; 4] = octets.try_into().ok()?;
    (mark == MARK).then(|| octets.into())
}

/// The limits of a configuration.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    capacity: usize,
    has_lists: bool,
}

impl Limits {
    /// The limits on the controllers of exports.
    #[must_use]
    pub fn of(serving: &ServedConfig) -> Self {
        Self {
            capacity: usize::from(serving.keys.controllers),
            has_lists: serving.names_hosts(),
        }
    }

    fn are_shared(self) -> bool {
        self.capacity >= SHARED_CAPACITY_MIN
    }

    /// Controllers that leave the reserve.
    fn unreserved(self) -> usize {
        self.capacity - self.capacity / RESERVED_PART
    }

    /// Controllers of unlisted hosts together.
    fn unlisted(self) -> usize {
        match self.has_lists {
            true => self.capacity - self.capacity / LISTED_PART,
            false => self.capacity,
        }
    }

    /// Controllers of a host or an address within the reserve.
    fn small(self) -> usize {
        self.capacity / SMALL_PART
    }

    /// Controllers that unlisted hosts of one address can have if no other host has any.
    #[must_use]
    pub fn of_one_address(self) -> usize {
        self.unreserved().min(self.unlisted())
    }

    /// Whether one more controller of an unlisted host may be refused.
    fn may_refuse(self, now: Use) -> bool {
        let over_share = now.of_host.max(now.of_address) >= self.small();
        let over_reserve = now.total >= self.unreserved() && over_share;
        let over_lists = now.unlisted >= self.unlisted();
        now.total >= self.capacity || (self.are_shared() && (over_reserve || over_lists))
    }
}

/// Numbers of controllers of exports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Use {
    total: usize,
    /// Those of hosts that no export lists, at most.
    unlisted: usize,
    /// Those of one host.
    of_host: usize,
    /// Those of one address.
    of_address: usize,
}

impl Use {
    /// The larger of each number.
    fn max(self, other: Use) -> Use {
        Use {
            total: self.total.max(other.total),
            unlisted: self.unlisted.max(other.unlisted),
            of_host: self.of_host.max(other.of_host),
            of_address: self.of_address.max(other.of_address),
        }
    }
}

/// An anonymous host, as far as limits on its controllers depend on it.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Its host NQN.
    pub name: String,
    /// Its address.
    pub address: Ipv4Addr,
    /// The largest use while its Connect was under way.
    pub peak: Use,
}

impl Identity {
    /// A host before its Connect.
    #[must_use]
    pub fn new(name: String, address: Ipv4Addr) -> Self {
        Self {
            name,
            address,
            peak: Use::default(),
        }
    }

    /// Whether its Connect may be refused for want of room.
    #[must_use]
    pub fn may_be_refused(&self, serving: &ServedConfig) -> bool {
        Limits::of(serving).may_refuse(self.peak)
    }
}

/// The controllers of exports after a turn.
#[derive(Debug, Default)]
struct Tally {
    /// By controller identifier and host name.
    controllers: BTreeSet<(u16, String)>,
    hosts: BTreeMap<String, usize>,
    addresses: BTreeMap<Ipv4Addr, usize>,
    /// Those of anonymous hosts.
    anonymous: usize,
}

impl Tally {
    fn new(controllers: &[ControllerSnapshot]) -> Self {
        let mut tally = Self::default();
        for it in controllers {
            if it.kind != ControllerKind::Io {
                continue;
            }
            let name = it.host_nqn.clone();
            *tally.hosts.entry(name.clone()).or_default() += 1;
            tally.controllers.insert((it.controller_id, name));
            if let Some(address) = address_of(&it.host_id) {
                *tally.addresses.entry(address).or_default() += 1;
                tally.anonymous += 1;
            }
        }
        tally
    }

    fn of_host(&self, name: &str) -> usize {
        self.hosts.get(name).copied().unwrap_or(0)
    }

    fn of_address(&self, address: Ipv4Addr) -> usize {
        self.addresses.get(&address).copied().unwrap_or(0)
    }

    fn use_of(&self, identity: &Identity) -> Use {
        let total = self.controllers.len();
        Use {
            total,
            unlisted: total,
            of_host: self.of_host(&identity.name),
            of_address: self.of_address(identity.address),
        }
    }
}

/// Judges every admission of a controller, while it is informed after every turn.
#[derive(Debug, Default)]
pub struct Admissions {
    before: Option<Tally>,
}

impl Admissions {
    /// Forgets the controllers. The next turn is not judged.
    pub fn pause(&mut self) {
        self.before = None;
    }

    /// Judges the controllers that are new after a turn, and updates the peaks of `connecting`.
    ///
    /// # Errors
    /// A limit is exceeded.
    pub fn turn_ended<'a>(
        &mut self,
        env: &mut HostEnv<'_>,
        controllers: &[ControllerSnapshot],
        connecting: impl Iterator<Item = &'a mut Identity>,
    ) -> Result<(), Violation> {
        let tally = Tally::new(controllers);
        let limits = Limits::of(env.serving);
        for identity in connecting {
            let now = tally.use_of(identity);
            let before = self.before.as_ref().map(|it| it.use_of(identity));
            identity.peak = identity.peak.max(now).max(before.unwrap_or_default());
        }
        note_full_shares(env, &tally, limits);
        if tally.anonymous > limits.unlisted() {
            *env.crowded_out_at = env.now;
        }
        let is_settled = !env.changing && env.changed_at + SETTLING_TIME < env.now;
        let judged = match &self.before {
            Some(before) if is_settled => judge(before, &tally, limits),
            _ => Ok(()),
        };
        self.before = Some(tally);
        judged.map_err(Violation::Rule)
    }
}

/// Notes which configured hosts may be refused another controller.
fn note_full_shares(env: &mut HostEnv<'_>, tally: &Tally, limits: Limits) {
    for (number, host) in env.swarm.hosts.iter().enumerate() {
        let total = tally.controllers.len();
        // The paths of a host have addresses of their own, with at most as many controllers.
        let of_host = tally.of_host(&host_name(host.identity));
        let now = Use {
            total,
            unlisted: total,
            of_host,
            of_address: of_host,
        };
        if limits.may_refuse(now) {
            env.at_share[number] = env.now;
        }
    }
}

/// Compares the controllers that are new after a turn with the limits.
fn judge(before: &Tally, after: &Tally, limits: Limits) -> Result<(), String> {
    let ended = before.controllers.difference(&after.controllers).count();
    let new: Vec<_> = after.controllers.difference(&before.controllers).collect();
    // The target may have admitted the new ones after all others of the turn had ended.
    let least = before.controllers.len() - ended;
    if new.is_empty() {
        return Ok(());
    }
    if least + new.len() > limits.capacity {
        let total = least + new.len();
        return Err(format!(
            "{total} controllers of exports, {} at most",
            limits.capacity
        ));
    }
    if !limits.are_shared() {
        return Ok(());
    }
    let anonymous_before = before.anonymous.saturating_sub(ended);
    let unlisted = limits.unlisted().max(anonymous_before);
    if limits.has_lists && after.anonymous > unlisted {
        return Err(format!(
            "{} controllers of hosts that no export lists, {unlisted} at most",
            after.anonymous
        ));
    }
    let unreserved = limits.unreserved().saturating_sub(least);
    let within_reserve = new.len().saturating_sub(unreserved);
    // A host or address takes from the reserve only while it has few.
    let rooms = |held: &BTreeMap<Ipv4Addr, usize>| -> usize {
        after
            .addresses
            .iter()
            .map(|(address, now)| {
                let had = held.get(address).copied().unwrap_or(0);
                let room = limits.small().saturating_sub(had.saturating_sub(ended));
                now.saturating_sub(had.saturating_sub(ended)).min(room)
            })
            .sum()
    };
    let of_hosts: usize = after
        .hosts
        .iter()
        .map(|(name, now)| {
            let had = before.of_host(name).saturating_sub(ended);
            now.saturating_sub(had)
                .min(limits.small().saturating_sub(had))
        })
        .sum();
    // Listed hosts are not limited by address.
    let configured = new.iter().filter(|(_, name)| {
        let names = 0..=u8::MAX;
        names
            .map(|it| host_name(usize::from(it)))
            .any(|it| it == *name)
    });
    let of_addresses = rooms(&before.addresses) + configured.count();
    let most = of_hosts.min(of_addresses);
    if within_reserve > most {
        let names: Vec<&str> = new.iter().map(|(_, name)| name.as_str()).collect();
        return Err(format!(
            "{names:?} took {within_reserve} controllers of the reserve, where their hosts and \
             addresses may have {most}: {least} of {} were in use before",
            limits.capacity
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        capacity: 128,
        has_lists: false,
    };

    /// Controllers of hosts with names of their own at each address.
    fn tally(addresses: &[(u8, usize)]) -> Tally {
        let mut tally = Tally::default();
        for (address, count) in addresses {
            for number in 0..*count {
                let cntlid = tally.controllers.len() as u16 + 1;
                let name = format!("{address}.{number}");
                tally.controllers.insert((cntlid, name.clone()));
                *tally.hosts.entry(name).or_default() += 1;
                let address = shared_address(u64::from(*address));
                *tally.addresses.entry(address).or_default() += 1;
                tally.anonymous += 1;
            }
        }
        tally
    }

    #[test]
    fn hosts_of_one_address_leave_the_reserve() {
        let most = tally(&[(1, 112)]);
        assert_eq!(judge(&tally(&[(1, 111)]), &most, LIMITS), Ok(()));
        assert!(judge(&most, &tally(&[(1, 113)]), LIMITS).is_err());
    }

    #[test]
    fn another_address_uses_its_share_of_the_reserve() {
        let full = |others| tally(&[(1, 112), (2, others)]);
        assert_eq!(judge(&full(1), &full(2), LIMITS), Ok(()));
        assert!(judge(&full(2), &full(3), LIMITS).is_err());
    }

    #[test]
    fn refusals_below_every_limit_are_wrong() {
        let at = |address, held: &[(u8, usize)]| {
            let name = format!("{address}.new");
            let identity = Identity::new(name, shared_address(address));
            LIMITS.may_refuse(tally(held).use_of(&identity))
        };
        assert!(!at(1, &[(1, 111)]));
        assert!(at(1, &[(1, 112)]));
        assert!(!at(2, &[(1, 112), (2, 1)]));
        assert!(at(2, &[(1, 112), (2, 2)]));
        assert!(at(3, &[(1, 128)]));
    }

    #[test]
    fn unlisted_hosts_leave_a_quarter_to_listed_hosts() {
        let limits = Limits {
            has_lists: true,
            ..LIMITS
        };
        let most = tally(&[(1, 90), (2, 6)]);
        assert_eq!(judge(&tally(&[(1, 90), (2, 5)]), &most, limits), Ok(()));
        assert!(judge(&most, &tally(&[(1, 90), (2, 7)]), limits).is_err());
    }
}
