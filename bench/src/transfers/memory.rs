//! What memory costs that is not registered yet: registering it for each transfer, finding it in
//! the registration cache, or copying it through memory that is registered.

use std::hint::black_box;
use std::time::Instant;

use hugemem::{PagePolicy, Region};
use rdma::{Access, CacheConfig, Domain, Error, MemoryRange, Provider, RegistrationCache};

use super::report::RegistrationRow;
use super::{TransferError, step};

/// Bytes of the memory that is registered piece by piece.
const MEMORY_BYTES: usize = 64 << 20;

/// Rounds whose median is taken.
const ROUNDS: usize = 101;

/// The machine's page size.
const GRANULE_BYTES: usize = 4096;

fn config(pinned_bytes_max: usize) -> CacheConfig {
    CacheConfig {
        pinned_bytes_max,
        entries_max: 1024,
        granule_bytes: GRANULE_BYTES,
    }
}

/// The median time of a round, nanoseconds.
fn median(mut round: impl FnMut(usize) -> Result<(), Error>) -> Result<u64, TransferError> {
    let mut times = Vec::with_capacity(ROUNDS);
    for at in 0..ROUNDS {
        let began = Instant::now();
        round(at).map_err(step("a registration"))?;
        times.push(began.elapsed().as_nanos() as u64);
    }
    times.sort_unstable();
    Ok(times[ROUNDS / 2])
}

/// Measures each size.
///
/// # Errors
/// [`TransferError`].
pub fn registration_costs<P: Provider>(
    domain: &P::Domain,
    sizes: &[usize],
) -> Result<Vec<RegistrationRow>, TransferError> {
    let region = Region::map(MEMORY_BYTES, PagePolicy::Ordinary)
        .map_err(|error| TransferError::Memory(error.to_string()))?;
    let mut rows = Vec::new();
    for &bytes in sizes {
        let places = MEMORY_BYTES / bytes;
        let range = |round: usize| {
            let start = round % places * bytes;
            MemoryRange::of_region(&region, start..start + bytes)
        };
        let register = |round| domain.register(range(round), Access::LOCAL).map(drop);
        let each_time = median(register)?;
        let cache =
            |bytes| RegistrationCache::<P>::new(domain.clone(), Access::LOCAL, config(bytes));
        // Room for one: every round ends another registration and begins its own.
        let mut narrow = cache(bytes.next_multiple_of(GRANULE_BYTES));
        let miss = median(|round| narrow.acquire(range(round % 2 * 2)).map(drop))?;
        let mut wide = cache(MEMORY_BYTES);
        let known = places.min(8);
        for round in 0..known {
            wide.acquire(range(round)).map_err(step("a registration"))?;
        }
        let hit = median(|round| wide.acquire(range(round % known)).map(drop))?;
        let source = vec![1_u8; bytes * known];
        let mut target = vec![0_u8; bytes];
        let copy = median(|round| {
            let start = round % known * bytes;
            target.copy_from_slice(black_box(&source[start..start + bytes]));
            black_box(&target);
            Ok(())
        })?;
        rows.push(RegistrationRow {
            bytes,
            each_time_ns: each_time,
            miss_ns: miss,
            hit_ns: hit,
            copy_ns: copy,
        });
    }
    Ok(rows)
}
