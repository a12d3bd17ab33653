//! The cost of memory that is not registered yet: registration for each transfer, a look-up in the
//! registration cache, or a copy through registered memory.

use std::hint::black_box;
use std::time::Instant;

use hugemem::{PagePolicy, Region};
use rdma::{Access, CacheConfig, Domain, Error, MemoryRange, Provider, RegistrationCache};

use super::report::RegistrationRow;
use super::{TransferError, step};

/// Size of the memory that is registered in pieces, in bytes.
const MEMORY_BYTES: usize = 64 << 20;

/// Number of rounds; the result is the median.
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

/// The median time of a round in nanoseconds.
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
        // Capacity for one registration: every round evicts one and creates another.
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
