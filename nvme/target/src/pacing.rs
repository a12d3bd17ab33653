//! Pacing: subsystems wait so that others keep a latency target, or get their share of a disk.
//!
//! A pace is a rate that all queues of a subsystem share, like those of rate limits (`rates.rs`),
//! whose speed changes. [`Target::adjust_paces`](crate::Target::adjust_paces) measures every
//! [`PACING_INTERVAL`] what each paced subsystem has done, and sets the speeds by the rules of
//! `control.rs`. Reactors do not take part in this: for them a pace is a rate.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use reactors::Nanos;

use crate::config::{DeviceIndex, TargetError};
use crate::rate::Rate;
use crate::rates::Throttled;
use crate::stages::Stage;
use crate::target::Target;
use crate::view::SubsystemView;

pub(crate) mod control;

use control::{Control, DiskSample, PaceSample, Sample, TargetSample};

/// The time between two adjustments.
pub const PACING_INTERVAL: Nanos = Nanos::from_millis(100);

/// The weight of a subsystem that has none.
pub const WEIGHT_DEFAULT: u32 = 100;

/// The largest weight.
pub const WEIGHT_MAX: u32 = 10_000;

/// The unused time that a pace catches up at once. It adds to the latency of others.
const BURST: Nanos = Nanos::from_millis(1);

/// How a subsystem shares the appliance with the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pacing {
    /// The subsystem's name.
    pub subsystem: String,
    /// The latency that 99 % of its reads and writes should not exceed. While they do, subsystems
    /// without such a target are slowed down.
    pub latency_target: Option<Nanos>,
    /// Its share of a disk that is the bottleneck, in proportion to the weights of the others that
    /// use the disk: 1 to [`WEIGHT_MAX`]; [`WEIGHT_DEFAULT`] without one.
    pub weight: Option<u32>,
    /// The disk of each of its devices. Devices with equal names of disks share one.
    pub disks: Vec<(DeviceIndex, String)>,
}

/// Why a subsystem may have to wait.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PaceReason {
    /// For the latency target of other subsystems.
    Latency,
    /// For its share of this disk.
    Share(String),
}

/// A pace and its effect so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PaceSnapshot {
    /// The subsystem that waits.
    pub subsystem: String,
    /// Why.
    pub reason: PaceReason,
    /// Its current limit: bytes in a second, where a command counts for 4096 bytes beside those
    /// that it moves; `None` while it does not wait.
    pub limit: Option<u64>,
    /// The subsystem that missed its latency target last.
    pub missed_by: Option<String>,
    /// What it has delayed.
    pub throttled: Throttled,
}

/// A pace of one subsystem.
pub(crate) struct Pace {
    pub(crate) subsystem: String,
    pub(crate) reason: PaceReason,
    weight: u32,
    /// The devices whose commands it counts; `None` for all.
    devices: Option<Vec<DeviceIndex>>,
    pub(crate) rate: Arc<Rate>,
}

impl Pace {
    /// The devices whose commands it counts, of those that a host sees; `None` for all.
    pub(crate) fn devices_of(&self, seen: &SubsystemView) -> Option<Vec<u8>> {
        let devices = self.devices.as_ref()?.iter();
        let seen = seen.devices();
        let places = devices.map(|device| device.place());
        Some(
            places
                .filter(|it| seen.contains(&usize::from(*it)))
                .collect(),
        )
    }
}

/// The paces of a configuration, and what they depend on.
#[derive(Clone, Default)]
pub(crate) struct PaceRules(Arc<Rules>);

#[derive(Default)]
struct Rules {
    paces: Vec<Pace>,
    targets: BTreeMap<String, Nanos>,
    /// The devices of each disk that subsystems share by weights.
    disks: BTreeMap<String, BTreeSet<DeviceIndex>>,
}

impl PaceRules {
    /// The rules for `pacing`. A pace that stays keeps its rate.
    pub(crate) fn changed(&self, pacing: &[Pacing]) -> Result<Self, TargetError> {
        let in_range = |weight: u32| (1..=WEIGHT_MAX).contains(&weight);
        let wrong = pacing
            .iter()
            .find(|it| !it.weight.is_none_or(in_range) || it.latency_target == Some(Nanos::ZERO));
        if let Some(wrong) = wrong {
            let nqn = wrong.subsystem.clone();
            return Err(TargetError::Pacing { nqn });
        }
        let mut rules = Rules::default();
        for it in pacing {
            let target = it
                .latency_target
                .map(|target| (it.subsystem.clone(), target));
            rules.targets.extend(target);
        }
        if !rules.targets.is_empty() {
            let others = pacing.iter().filter(|it| it.latency_target.is_none());
            for it in others {
                rules.paces.push(self.pace(it, PaceReason::Latency, None));
            }
        }
        for (disk, users) in shared_disks(pacing) {
            for (it, devices) in users {
                let all = rules.disks.entry(disk.to_owned()).or_default();
                all.extend(&devices);
                let reason = PaceReason::Share(disk.to_owned());
                rules.paces.push(self.pace(it, reason, Some(devices)));
            }
        }
        Ok(Self(Arc::new(rules)))
    }

    fn pace(&self, of: &Pacing, reason: PaceReason, devices: Option<Vec<DeviceIndex>>) -> Pace {
        let is_same = |pace: &&Pace| pace.subsystem == of.subsystem && pace.reason == reason;
        let same = self.0.paces.iter().find(is_same);
        let rate = same.map_or_else(
            || Arc::new(Rate::adapted(BURST)),
            |pace| Arc::clone(&pace.rate),
        );
        Pace {
            subsystem: of.subsystem.clone(),
            reason,
            weight: of.weight.unwrap_or(WEIGHT_DEFAULT),
            devices,
            rate,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.paces.is_empty()
    }

    /// The paces of a subsystem.
    pub(crate) fn of<'r>(&'r self, subsystem: &'r str) -> impl Iterator<Item = &'r Pace> {
        self.0
            .paces
            .iter()
            .filter(move |pace| pace.subsystem == subsystem)
    }

    /// Measures what has happened since the last call, and sets the speed of each pace.
    pub(crate) fn adjust(&self, control: &mut Control, target: &Target, now: Nanos) {
        let sample = self.sample(target, now);
        for (pace, limit) in self.0.paces.iter().zip(control.adjust(&sample)) {
            pace.rate.adapt(limit);
        }
    }

    fn sample(&self, target: &Target, now: Nanos) -> Sample {
        let latency = target.latency();
        let targets = self.0.targets.iter().filter_map(|(subsystem, target)| {
            let counts = latency.subsystem(subsystem)?[Stage::Total].together();
            Some(TargetSample {
                subsystem: subsystem.clone(),
                target: *target,
                counts,
            })
        });
        let disks = self.0.disks.iter().map(|(disk, devices)| {
            let of_devices = devices.iter();
            let of_devices = of_devices.filter_map(|it| latency.devices.get(usize::from(it.0)));
            let in_device = of_devices.map(|it| it.read.sum_ns.wrapping_add(it.write.sum_ns));
            DiskSample {
                disk: disk.clone(),
                in_device: in_device.fold(0, u64::wrapping_add),
            }
        });
        let paces = self.0.paces.iter().map(|pace| PaceSample {
            subsystem: pace.subsystem.clone(),
            reason: pace.reason.clone(),
            weight: pace.weight,
            admitted: pace.rate.admitted(),
            throttled: pace.rate.throttled().0,
        });
        Sample {
            at: now,
            targets: targets.collect(),
            disks: disks.collect(),
            paces: paces.collect(),
        }
    }

    pub(crate) fn snapshot(&self, control: &Control) -> Vec<PaceSnapshot> {
        let paces = self.0.paces.iter().map(|pace| {
            let (commands, waited) = pace.rate.throttled();
            PaceSnapshot {
                subsystem: pace.subsystem.clone(),
                reason: pace.reason.clone(),
                limit: control.limit(&pace.subsystem, &pace.reason),
                missed_by: match pace.reason {
                    PaceReason::Latency => control.missed_by().map(str::to_owned),
                    PaceReason::Share(_) => None,
                },
                throttled: Throttled { commands, waited },
            }
        });
        paces.collect()
    }
}

/// A subsystem that uses a disk, and its devices there.
type DiskUser<'p> = (&'p Pacing, Vec<DeviceIndex>);

/// The disks that several subsystems use, at least one of them with a weight.
fn shared_disks(pacing: &[Pacing]) -> BTreeMap<&str, Vec<DiskUser<'_>>> {
    let mut disks: BTreeMap<&str, Vec<DiskUser<'_>>> = BTreeMap::new();
    for it in pacing {
        for (device, disk) in &it.disks {
            let users = disks.entry(disk).or_default();
            match users
                .iter_mut()
                .find(|(user, _)| user.subsystem == it.subsystem)
            {
                Some((_, devices)) => devices.push(*device),
                None => users.push((it, vec![*device])),
            }
        }
    }
    disks.retain(|_, users| users.len() > 1 && users.iter().any(|(it, _)| it.weight.is_some()));
    disks
}

#[cfg(test)]
mod tests {
    use reactors::Nanos;

    use super::BURST;
    use crate::rate::{ADAPTED_WAIT_MAX, Rate, patience};

    /// A pace of one byte in a second delays commands by seconds, not by hours, and commands
    /// behind many others too.
    #[test]
    fn no_command_waits_long_however_slow_a_pace_is() {
        let rate = Rate::adapted(BURST);
        rate.adapt(Some(1));
        let mut now = Nanos::from_secs(100);
        let since = now;
        assert!(rate.take(4096, 1, now));
        assert!(!rate.take(4096, 1, now));
        let mut started = 0;
        for _ in 0..1000 {
            let turn = rate.reserve(4096, since + ADAPTED_WAIT_MAX, now);
            assert!(turn <= since + Nanos::from_secs(2));
            assert!(turn <= now + Nanos::from_millis(500));
            now = now.max(turn);
            started += 1;
        }
        assert_eq!(started, 1000);
        assert_eq!(now, since + Nanos::from_secs(2));
        // A later command is delayed again.
        assert!(!rate.take(4096, 1, now));
        let turn = rate.reserve(4096, now + ADAPTED_WAIT_MAX, now);
        assert_eq!(turn, now + Nanos::from_millis(500));
    }

    /// Commands whose data stops the stream are not received before those in front of them have
    /// started. Linux hosts give up after 30 s.
    #[test]
    fn no_command_waits_long_in_its_stream_however_slow_a_pace_is() {
        let rate = Rate::adapted(BURST);
        rate.adapt(Some(1));
        for depth in [1, 2, 128, 1024] {
            let begin = Nanos::from_secs(1000 * u64::from(depth));
            let mut now = begin;
            // Another queue has used the pace.
            rate.reserve(4096, begin, begin);
            for _ in 0..depth {
                now = now.max(rate.reserve(4096, now + patience(true, depth), now));
            }
            assert!(
                now > begin + Nanos::from_millis(400),
                "{depth}: not slowed down"
            );
            assert!(now <= begin + Nanos::from_secs(10), "{depth}: {now}");
        }
    }

    /// What does not start is given back, whatever the speed has become.
    #[test]
    fn given_back_cost_is_not_counted() {
        let rate = Rate::adapted(BURST);
        let now = Nanos::from_secs(100);
        assert!(rate.take(512, 1, now));
        assert_eq!(rate.admitted(), 4608);
        for speed in [Some(1), Some(u64::MAX), None] {
            rate.adapt(speed);
            rate.give_back(512, 1);
            assert_eq!(rate.admitted(), 0);
            rate.reserve(512, now, now);
            assert_eq!(rate.admitted(), 4608);
        }
    }
}
