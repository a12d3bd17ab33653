//! Computes the required size of `memory` for a configuration.
//!
//! The arena has two uses. Fixed allocations are made at start: the queues and lists of each drive
//! for each reactor, and the receives of each RDMA device for each reactor, of which there are
//! fewer in a small arena. The rest is for requests: each that moves data has one slice of the
//! smallest class that fits, or of a larger class if that one is exhausted, from its arrival to its
//! response. The number in flight is bounded by what devices take at once and by what hosts may
//! send; further requests wait in their queues for any size of `memory`.
//!
//! `recommended` is the smallest arena in which that many requests of up to [`USUAL_BYTES`] have a
//! slice each, and all receives theirs; `without_waits` is the same for requests of `max_transfer`;
//! `least` is the minimum for a start.

use appliance_config::{Backing, Config, Listener, Transport, limits};
use hugemem::Slices;
use nvme_rdma::RdmaConfig;
use serde::Serialize;

use super::Finding;
use super::machine::Machine;
use crate::quantity::bytes;
use crate::reactor_setup::{COMMANDS_MAX, DEVICE_QUEUE_DEPTH};

/// Data size of frequent requests; only a few larger ones are in flight together.
const USUAL_BYTES: usize = 16 << 10;
/// Arena sizes are rounded up to this: a page of 2 MiB.
const STEP_BYTES: u64 = 2 << 20;

/// The required sizes of `memory`, in bytes, and the numbers from which they follow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Needs {
    /// The configured size.
    configured: u64,
    /// The start fails with less.
    least: u64,
    /// No request of usual size waits.
    recommended: u64,
    /// No request of any size waits; none: no valid arena is that large.
    without_waits: Option<u64>,
    /// Requests that may be in flight at once.
    in_flight: u64,
    /// Requests that devices take at once.
    devices: u64,
    /// Requests that hosts may send at once.
    hosts: u64,
    /// Bytes of the fixed allocations, including all receives.
    fixed: u64,
    /// The receives, if there is RDMA.
    receives: Option<ReceiveNeeds>,
    /// For each request size, the number of requests that have a slice in the configured arena.
    room: Vec<RequestCapacity>,
}

/// The number of requests of one size that fit into an arena.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct RequestCapacity {
    request_bytes: u64,
    requests: u64,
}

/// The receives of all reactors and devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
struct ReceiveNeeds {
    wanted: u64,
    /// In the configured arena.
    granted: u64,
}

/// The fixed allocations, which are made at start.
struct Fixed {
    /// The size of each allocation in bytes.
    pieces: Vec<usize>,
    receives: Option<Receives>,
}

impl Fixed {
    fn bytes(&self) -> u64 {
        let pieces: usize = self.pieces.iter().sum();
        let receives = self.receives.map_or(0, |it| it.all() * it.bytes as u64);
        pieces as u64 + receives
    }
}

/// Receives with in-capsule data.
#[derive(Clone, Copy)]
struct Receives {
    bytes: usize,
    /// Per reactor and device.
    count: u32,
    sharers: u32,
}

impl Receives {
    fn all(self) -> u64 {
        u64::from(self.count) * u64::from(self.sharers)
    }
}

/// Computes the memory needs of `config` with `reactors` reactors.
pub(super) fn needs(machine: &Machine, config: &Config, reactors: usize) -> Needs {
    let fixed = fixed_pieces(machine, config, reactors);
    let hosts = from_hosts(config, reactors);
    let devices = in_devices(config, reactors);
    let in_flight = hosts.min(devices);
    let max_transfer = config.limits.max_transfer.bytes() as usize;
    let usual = USUAL_BYTES.min(max_transfer);
    let configured = config.appliance.memory.bytes();
    let holds = |request: usize, count: u64| {
        let of_all = fixed.receives.map_or(0, Receives::all);
        least(|arena| {
            let room = room(arena, max_transfer, &fixed, request);
            room.is_some_and(|it| it.requests >= count && it.receives >= of_all)
        })
    };
    let starts = |arena| {
        let room = room(arena, max_transfer, &fixed, max_transfer);
        room.is_some_and(|it| it.requests > 0)
    };
    let least = least(starts).unwrap_or(limits::MEMORY_MAX.bytes());
    Needs {
        configured,
        least,
        recommended: holds(usual, in_flight).unwrap_or(least).max(least),
        without_waits: holds(max_transfer, in_flight),
        in_flight,
        devices,
        hosts,
        fixed: fixed.bytes(),
        receives: fixed.receives.map(|wanted| {
            let room = room(configured, max_transfer, &fixed, usual);
            ReceiveNeeds {
                wanted: wanted.all(),
                granted: room.map_or(0, |room| room.receives),
            }
        }),
        room: rooms(configured, max_transfer, &fixed),
    }
}

/// The findings about `memory`.
pub(super) fn check(config: &Config, needs: &Needs) -> Vec<Finding> {
    const AREA: &str = "memory";
    let memory = config.appliance.memory;
    let room: Vec<String> = needs
        .room
        .iter()
        .map(|room| format!("{} of {}", room.requests, bytes(room.request_bytes)))
        .collect();
    let set = |wanted: u64| format!("memory = \"{}MiB\" in [appliance]", wanted >> 20);
    let few = needs.receives.filter(|it| it.granted < it.wanted);
    let few = few.map(|it| {
        format!(
            "\n{} of {} receives for RDMA fit: hosts that send more commands at once are delayed",
            it.granted, it.wanted
        )
    });
    let how = format!(
        "\n{} requests may be in flight: hosts may send {}, devices take {}\n{} are allocated at \
         start; the rest holds {} at once{}",
        needs.in_flight,
        needs.hosts,
        needs.devices,
        bytes(needs.fixed),
        room.join(", or "),
        few.unwrap_or_default()
    );
    let always = match needs.without_waits {
        Some(wanted) => format!("\nno request would wait with {}", bytes(wanted)),
        None => String::new(),
    };
    vec![if needs.configured < needs.least {
        let text = format!(
            "memory = \"{memory}\" is too little to start with, {} is the least{how}",
            bytes(needs.least)
        );
        Finding::broken(AREA, text, set(needs.recommended))
    } else if needs.configured < needs.recommended {
        let text = format!(
            "memory = \"{memory}\": below {1} requests of up to {0} will wait for each other{how}\
             {always}",
            bytes(USUAL_BYTES as u64),
            bytes(needs.recommended)
        );
        Finding::slow(AREA, text, set(needs.recommended))
    } else {
        Finding::fine(
            AREA,
            format!("memory = \"{memory}\" is enough{how}{always}"),
        )
    }]
}

/// The fixed allocations in the arena.
fn fixed_pieces(machine: &Machine, config: &Config, reactors: usize) -> Fixed {
    let mut pieces = Vec::new();
    for drive in crate::nvme::wanted(config) {
        pieces.extend(nvme_driver::arena_pieces(reactors, drive.queue_depth()));
    }
    let listeners = config.listeners.iter();
    let rdma = listeners.filter(|listener| listener.transport == Transport::Rdma);
    let in_capsule = rdma.map(|listener| listener.in_capsule_data.bytes() as usize);
    let receives = in_capsule.max().filter(|bytes| *bytes > 0).map(|bytes| {
        let cards = machine.names("sys/class/infiniband").len().max(1);
        Receives {
            bytes,
            count: RdmaConfig::default().receives,
            sharers: u32::try_from(cards * reactors).unwrap_or(u32::MAX),
        }
    });
    Fixed { pieces, receives }
}

/// Commands that hosts may have outstanding.
fn from_hosts(config: &Config, reactors: usize) -> u64 {
    let depths = config.listeners.iter().map(|it| it.queue_depth);
    let depth = depths.max().unwrap_or(Listener::QUEUE_DEPTH_DEFAULT);
    let queues = u64::from(config.limits.max_connections);
    let by_queues = queues * u64::from(depth);
    by_queues.min((reactors * COMMANDS_MAX) as u64)
}

/// Requests that all devices together take at once. A memory device completes requests immediately;
/// they are in flight only while their data arrives: one host queue for each reactor.
fn in_devices(config: &Config, reactors: usize) -> u64 {
    let concurrent = u64::from(Listener::QUEUE_DEPTH_DEFAULT);
    let drives = crate::nvme::wanted(config).into_iter();
    let drives: u64 = drives.map(|drive| u64::from(drive.queue_depth())).sum();
    let others = config.devices.iter().map(|device| match device.backing {
        Backing::File { .. } => DEVICE_QUEUE_DEPTH as u64,
        Backing::Memory { .. } | Backing::Null { .. } => concurrent,
        Backing::Nvme(_) => 0,
    });
    (drives + others.sum::<u64>()) * reactors as u64
}

/// The contents that fit into an arena.
struct ArenaContents {
    /// Requests of one size with a slice each.
    requests: u64,
    receives: u64,
}

/// What fits into an arena in addition to `fixed`; none: such an arena is not valid, or `fixed`
/// does not fit.
fn room(arena: u64, max_transfer: usize, fixed: &Fixed, request: usize) -> Option<ArenaContents> {
    let mut slices = Slices::of(usize::try_from(arena).ok()?, max_transfer)?;
    for piece in &fixed.pieces {
        slices.take_buffer(*piece)?;
    }
    let mut receives = 0;
    if let Some(wanted) = fixed.receives {
        for _ in 0..wanted.sharers {
            let granted = slices.promise(wanted.bytes, wanted.count, wanted.sharers)?;
            receives += u64::from(granted);
        }
    }
    let large = slices.left();
    let large = large.iter().filter(|(bytes, _)| *bytes >= request);
    Some(ArenaContents {
        requests: large.map(|(_, left)| u64::from(*left)).sum(),
        receives,
    })
}

fn rooms(arena: u64, max_transfer: usize, fixed: &Fixed) -> Vec<RequestCapacity> {
    let slices = usize::try_from(arena).ok();
    let slices = slices.and_then(|bytes| Slices::of(bytes, max_transfer));
    let sizes = slices.into_iter().flat_map(|slices| slices.left());
    let rooms = sizes.filter(|(_, count)| *count > 0).map(|(bytes, _)| {
        let held = room(arena, max_transfer, fixed, bytes);
        RequestCapacity {
            request_bytes: bytes as u64,
            requests: held.map_or(0, |held| held.requests),
        }
    });
    rooms.collect()
}

/// The smallest sufficient arena, in whole steps. `is_enough` is monotonic.
fn least(is_enough: impl Fn(u64) -> bool) -> Option<u64> {
    let (mut low, mut high) = (
        limits::MEMORY_MIN.bytes() / STEP_BYTES,
        limits::MEMORY_MAX.bytes() / STEP_BYTES,
    );
    if !is_enough(high * STEP_BYTES) {
        return None;
    }
    while low < high {
        let middle = low.midpoint(high);
        if is_enough(middle * STEP_BYTES) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    Some(low * STEP_BYTES)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn config(text: &str) -> Config {
        let text = format!(
            "{text}\n[[listener]]\nname = \"l\"\ntransport = \"tcp\"\naddress = \"127.0.0.1:0\"\n\
             [[export]]\nnqn = \"nqn.2026-11.org.windlass:x\"\ndevices = [\"d\"]\n\
             listeners = [\"l\"]\nallow_any_host = true\n"
        );
        Config::parse("test", &text).expect("a right configuration")
    }

    fn needs_of(config: &Config, reactors: usize) -> Needs {
        needs(&Machine::at(Path::new("/nowhere")), config, reactors)
    }

    const DRIVE: &str = "[[device]]\nname = \"d\"\ntype = \"nvme\"\npci = \"0000:01:00.0\"\n";

    #[test]
    fn devices_and_hosts_limit_requests_in_flight() {
        let one = needs_of(&config(DRIVE), 1);
        assert_eq!((one.devices, one.hosts, one.in_flight), (256, 65_536, 256));
        let four = needs_of(&config(DRIVE), 4);
        assert_eq!((four.devices, four.hosts), (1024, 131_072));
        let few = config(&format!("[limits]\nmax_connections = 1\n{DRIVE}"));
        assert_eq!(needs_of(&few, 4).in_flight, 128);
    }

    #[test]
    fn recommended_memory_is_the_least_for_all_requests_in_flight() {
        let config = config(DRIVE);
        let needs = needs_of(&config, 4);
        let fixed = fixed_pieces(&Machine::at(Path::new("/nowhere")), &config, 4);
        let holds = |arena, request| {
            let held = room(arena, 1 << 20, &fixed, request);
            held.map_or(0, |held| held.requests)
        };
        assert!(holds(needs.recommended, USUAL_BYTES) >= needs.in_flight);
        assert!(holds(needs.recommended - STEP_BYTES, USUAL_BYTES) < needs.in_flight);
        let always = needs.without_waits.expect("it can be had");
        assert!(holds(always, 1 << 20) >= needs.in_flight);
        assert!(needs.least <= needs.recommended && needs.recommended <= always);
    }

    #[test]
    fn startup_allocations_are_counted() {
        let drive = needs_of(&config(DRIVE), 2);
        // Two queue pairs of 257 entries with 128 KiB of lists each, and the allocations of every
        // drive.
        let pair = 257 * (64 + 16) + (128 << 10);
        assert_eq!(
            drive.fixed,
            2 * pair + (28 << 10) + (8 << 10) + (64 << 10) + (32 << 10)
        );
        let null = "[[device]]\nname = \"d\"\ntype = \"null\"\nsize = \"1GiB\"\n";
        assert_eq!(needs_of(&config(null), 2).fixed, 0);
    }

    #[test]
    fn rdma_receives_leave_memory_for_requests() {
        let rdma = |memory: &str| {
            config(&format!(
                "[appliance]\nmemory = \"{memory}\"\n{DRIVE}[[listener]]\nname = \"r\"\n\
                 transport = \"rdma\"\naddress = \"192.0.2.1:4420\"\n\
                 in_capsule_data = \"64KiB\"\n"
            ))
        };
        let small = needs_of(&rdma("64MiB"), 2);
        // Half of the slices of 64 KiB: three sixteenths of the memory.
        let receives = small.receives.expect("there is RDMA");
        assert_eq!((receives.granted, receives.wanted), (96, 2048));
        assert!(small.room.iter().all(|room| room.requests > 0));
        assert!(
            small.least <= 64 << 20,
            "a start takes no more receives than there are"
        );
        let enough = needs_of(&rdma("2GiB"), 2);
        let receives = enough.receives.expect("there is RDMA");
        assert_eq!(receives.granted, receives.wanted);
        assert!((64 << 20..2 << 30).contains(&enough.recommended));
        let config = rdma("64MiB");
        let text = check(&config, &small)[0].text.clone();
        assert!(text.contains("96 of 2048 receives"), "{text}");
    }

    #[test]
    fn memory_size_verdicts() {
        use super::super::Verdict;
        let verdict = |memory: &str| {
            let config = config(&format!("[appliance]\nmemory = \"{memory}\"\n{DRIVE}"));
            let needs = needs_of(&config, 128);
            check(&config, &needs)[0].verdict
        };
        assert_eq!(verdict("16MiB"), Verdict::Broken);
        assert_eq!(verdict("1GiB"), Verdict::Slow);
        assert_eq!(verdict("16GiB"), Verdict::Fine);
    }
}
