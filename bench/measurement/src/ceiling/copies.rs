//! The ceiling of copying: only the copies of request data between random blocks of memory and a
//! buffer that stays in the cache.

use std::hint::black_box;
use std::time::{Duration, Instant};

use super::ends::RECEIVE_BYTES;
use super::{CeilingError, DataMemory, Exchange, pin};
use bench::random::Random;
use bench::units::per_second;

/// Copies between two readings of the clock.
const COPIES_PER_LOOK: u64 = 64;

/// Number of blocks that `core` copies per second: out of `memory` for reads, into it for writes.
///
/// # Errors
/// [`CeilingError`] if the core is not available, or the memory has no block of that size.
pub fn measure_copies(
    exchange: Exchange,
    memory: &DataMemory,
    core: Option<usize>,
    duration: Duration,
) -> Result<f64, CeilingError> {
    let Exchange { write, data_bytes } = exchange;
    let block_count = memory.0.len().checked_div(data_bytes).unwrap_or(0);
    if block_count == 0 {
        return Err(CeilingError::too_small(memory.bytes(), data_bytes));
    }
    let copy_all = || {
        pin(core)?;
        let mut hot = vec![0x5a_u8; RECEIVE_BYTES.max(data_bytes)];
        let pieces = hot.len() / data_bytes;
        let mut measured = 0.0;
        let mut copy = |blocks: &mut [u8]| {
            let mut random = Random::new(1);
            measured = copies_per_second(duration, |number| {
                let from = random.below(block_count as u64) as usize * data_bytes;
                let block = &mut blocks[from..from + data_bytes];
                let from = number as usize % pieces * data_bytes;
                let piece = &mut hot[from..from + data_bytes];
                if write {
                    block.copy_from_slice(piece);
                } else {
                    piece.copy_from_slice(block);
                }
                black_box((block, piece));
            });
        };
        let filled = memory
            .0
            .handle()
            .try_fill(0, block_count * data_bytes, &mut copy);
        assert!(filled, "the memory is ours, and nobody holds it");
        Ok(measured)
    };
    // A separate thread preserves the caller's affinity.
    std::thread::scope(|scope| scope.spawn(copy_all).join())
        .map_err(|_| CeilingError::ServerPanicked)?
}

/// Measures how often `copy` runs per second; its argument is the number of previous calls.
fn copies_per_second(duration: Duration, mut copy: impl FnMut(u64)) -> f64 {
    let began = Instant::now();
    let mut copied = 0;
    loop {
        for _ in 0..COPIES_PER_LOOK {
            copy(copied);
            copied += 1;
        }
        let elapsed = began.elapsed();
        if elapsed >= duration {
            return per_second(copied, elapsed);
        }
    }
}
