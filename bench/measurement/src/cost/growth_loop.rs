//! Busy connections with a growing number of other objects, on one thread: a target for each
//! number, and requests of each kind.

use std::sync::Arc;

use block::Device;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::cost::LoopCounts;
use crate::cost::growth::{GrowthDimension, KINDS, Kind, name};
use crate::cost::measure::CostError;
use crate::cost::rig::{Extent, ram};
use crate::cost::tcp_host::{Batch, Host};
use crate::cost::tcp_loop::{counting_begins, counting_ends};
use crate::cost::tcp_rig::Rig;
use bench::random::Random;

/// Size of a request in bytes.
const REQUEST_BYTES: u32 = 4096;

/// Size of each device in bytes.
const DEVICE_BYTES: u64 = 1 << 20;

/// Maximum number of devices of a target.
const DEVICES_MAX: usize = 128;

/// Number of turns after which no socket counts as recently active.
const TURNS_OF_REST: u32 = 64;

/// Number of warm-up batches.
const WARM_UP_BATCHES: u64 = 8;

impl GrowthDimension {
    fn extent(self, number: usize) -> Extent {
        let one = Extent::ONE;
        match self {
            Self::IdleConnections => Extent {
                idle_hosts: number / 2,
                ..one
            },
            Self::Exports => Extent {
                exports: number,
                ..one
            },
            Self::Namespaces => Extent {
                namespaces: number,
                ..one
            },
            Self::Reactors => Extent {
                reactors: number,
                ..one
            },
        }
    }
}

fn devices(extent: &Extent) -> Result<Vec<Arc<dyn Device>>, CostError> {
    let count = (extent.exports * extent.namespaces).min(DEVICES_MAX);
    (0..count)
        .map(|_| Ok(ram(DEVICE_BYTES)? as Arc<dyn Device>))
        .collect()
}

/// Counts requests of each kind for one number, and adds the counters by name.
fn run_beside(
    beside: GrowthDimension,
    number: usize,
    counted: &mut Vec<(String, LoopCounts)>,
) -> Result<(), CostError> {
    let extent = beside.extent(number);
    let mut rig = Rig::new(&extent, |_| devices(&extent))?;
    let idle = (0..extent.idle_hosts).map(|_| rig.attach_idle());
    let _idle = idle.collect::<Result<Vec<_>, _>>()?;
    // The last objects are the busy ones, so that a linear search would be visible.
    let hosts = (0..extent.reactors).map(|reactor| rig.attach(extent.exports - 1, reactor));
    let mut hosts = hosts.collect::<Result<Vec<_>, _>>()?;
    for _ in 0..TURNS_OF_REST {
        rig.turn_all();
    }
    for host in &mut hosts {
        rig.sync_sent_count(host);
    }
    let mut random = Random::new(1);
    for kind in KINDS {
        let counts = run_kind(&mut rig, &mut hosts, &extent, kind, &mut random)?;
        counted.push((name(beside, number, kind), counts));
    }
    Ok(())
}

fn run_kind(
    rig: &mut Rig,
    hosts: &mut [Host],
    extent: &Extent,
    kind: Kind,
    random: &mut Random,
) -> Result<LoopCounts, CostError> {
    let batch = Batch {
        nsid: extent.namespaces as u32,
        device_bytes: DEVICE_BYTES,
        write: kind.write,
        bytes: REQUEST_BYTES,
        depth: kind.depth,
    };
    let mut batches = |rig: &mut Rig, count: u64| {
        (0..count).try_for_each(|_| {
            let mut hosts = hosts.iter_mut();
            hosts.try_for_each(|host| rig.run_batch(host, &batch, random))
        })
    };
    batches(rig, WARM_UP_BATCHES)?;
    let turns = rig.turns;
    rig.allocations = 0;
    counting_begins();
    batches(rig, kind.batches)?;
    counting_ends();
    Ok(LoopCounts {
        requests: kind.batches * u64::from(kind.depth) * extent.reactors as u64,
        allocations: rig.allocations,
        counted: vec![("turns".to_owned(), rig.turns - turns)],
    })
}

/// Runs every point. Returns the counters by name.
///
/// # Errors
/// [`CostError::Setup`], such as too few open files for the idle connections.
pub fn run() -> Result<Vec<(String, LoopCounts)>, CostError> {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    // If this fails, opening a connection reports the error.
    let _ = setrlimit(Resource::Nofile, raised);
    let mut counted = Vec::new();
    for beside in GrowthDimension::ALL {
        for &number in beside.numbers() {
            run_beside(beside, number, &mut counted)?;
        }
    }
    Ok(counted)
}
