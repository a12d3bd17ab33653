//! Reads of 4 KiB of a RAM device by the target over RDMA.

use std::sync::Arc;

use block::MemoryDevice;
use nvme_spec::Sqe;
use reactors::Nanos;

use crate::cost::measure::CostError;
use crate::cost::rdma_rig::{Parts, Rig, arena};
use crate::cost::rig::{BLOCK_BYTES, DEVICE_BYTES, ram};
use crate::cost::{DEPTH, LoopCounts, REQUEST_BYTES, WARM_UP_REQUESTS};
use bench::random::Random;

/// Runs `requests` requests after a warm-up.
///
/// # Errors
/// [`CostError::Setup`].
pub fn run(requests: u64) -> Result<LoopCounts, CostError> {
    let device = ram(DEVICE_BYTES)?;
    let parts = Parts {
        devices: vec![Arc::<MemoryDevice>::clone(&device)],
        region: Some(device.store().region()),
        depth: DEPTH,
        ..Parts::default()
    };
    let mut rig = Rig::new(arena()?, parts, Nanos::from_secs(1))?;
    let mut host = rig.attach()?;
    let mut random = Random::new(1);
    let blocks = REQUEST_BYTES as u64 / u64::from(BLOCK_BYTES);
    let mut next = || {
        let lba = random.below(DEVICE_BYTES / REQUEST_BYTES as u64) * blocks;
        Sqe::read(1, lba, blocks as u16 - 1)
    };
    rig.drive(&mut host, (WARM_UP_REQUESTS, REQUEST_BYTES), &mut next)?;
    let before: Vec<(&str, u64)> = rig.counters.each().collect();
    rig.allocations = 0;
    let counted = rig.drive(&mut host, (requests, REQUEST_BYTES), &mut next)?;
    let after: Vec<(&str, u64)> = rig.counters.each().collect();
    let beyond = |name: &str| {
        let value = |list: &[(&str, u64)]| {
            let found = list.iter().find(|(one, _)| *one == name);
            found.map_or(0, |(_, value)| *value)
        };
        value(&after) - value(&before)
    };
    let work_requests = beyond("reads") + beyond("writes") + beyond("sends");
    Ok(LoopCounts {
        requests: counted,
        allocations: rig.allocations,
        counted: vec![
            ("work requests".to_owned(), work_requests),
            ("completions".to_owned(), beyond("completions")),
            ("doorbells".to_owned(), beyond("doorbells")),
            ("bytes copied".to_owned(), beyond("bytes_copied")),
        ],
    })
}
