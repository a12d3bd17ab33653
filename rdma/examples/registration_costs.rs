//! Measures the cost of using unregistered memory: registering it for each transfer, finding it in
//! the registration cache, or copying it through registered memory. Runs on real verbs, for example
//! in the lab.
//!
//!     registration_costs
//!
//! Prints the median of each in nanoseconds, and the speed-up of the cache over the other two.

use std::process::ExitCode;
use std::time::Instant;

use hugemem::{PagePolicy, Region, Store};
use rdma::{
    Access, CacheConfig, Device, Domain, Error, MemoryRange, Provider, RegistrationCache, Verbs,
};

/// Bytes of the memory that is registered in pieces.
const MEMORY_BYTES: usize = 64 << 20;
/// Number of rounds of which the median is taken.
const ROUNDS: usize = 101;
const SIZES: [usize; 6] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20];

fn main() -> ExitCode {
    match measure() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// The median time of a round, in nanoseconds.
fn median(mut round: impl FnMut(usize) -> Result<(), Error>) -> Result<u64, Error> {
    let mut times = Vec::with_capacity(ROUNDS);
    for at in 0..ROUNDS {
        let began = Instant::now();
        round(at)?;
        times.push(began.elapsed().as_nanos() as u64);
    }
    times.sort_unstable();
    Ok(times[ROUNDS / 2])
}

fn measure() -> Result<(), Error> {
    let verbs = Verbs::open()?;
    let devices = verbs.devices()?;
    let device = &devices[0];
    let domain = device.create_domain()?;
    let region = memory(Region::map(MEMORY_BYTES, PagePolicy::Ordinary))?;
    let store = memory(Store::new(MEMORY_BYTES, PagePolicy::Ordinary))?;
    let store = store.handle();
    println!(
        "{} ({}), {ROUNDS} rounds",
        device.name(),
        device.limits().transport
    );
    println!("   bytes  register  cache miss  cache hit      copy  register/hit  copy/hit");
    for bytes in SIZES {
        let places = MEMORY_BYTES / bytes;
        let range = |round: usize| {
            let start = round % places * bytes;
            MemoryRange::of_region(&region, start..start + bytes)
        };
        let register = median(|round| domain.register(range(round), Access::LOCAL).map(drop))?;
        // Room for one: every round ends the other registration and creates its own.
        let mut cache =
            RegistrationCache::<Verbs>::new(domain.clone(), Access::LOCAL, config(bytes));
        let miss = median(|round| cache.acquire(range(round % 2 * 2)).map(drop))?;
        let mut cache =
            RegistrationCache::<Verbs>::new(domain.clone(), Access::LOCAL, config(MEMORY_BYTES));
        let known = places.min(8);
        for round in 0..known {
            cache.acquire(range(round))?;
        }
        let hit = median(|round| cache.acquire(range(round % known)).map(drop))?;
        assert_eq!(cache.counters().hits, ROUNDS as u64);
        let mut copy_of = vec![1; bytes];
        let copy = median(|round| {
            let copied = store.try_read(round % places * bytes, &mut copy_of);
            assert!(copied, "nobody else holds the store");
            Ok(())
        })?;
        let times = |other: u64| other as f64 / hit.max(1) as f64;
        println!(
            "{bytes:8}  {register:8}  {miss:10}  {hit:9}  {copy:8}  {:12.1}  {:8.1}",
            times(register),
            times(copy),
        );
    }
    Ok(())
}

fn config(pinned_bytes_max: usize) -> CacheConfig {
    CacheConfig {
        pinned_bytes_max,
        entries_max: 1024,
        granule_bytes: 4096,
    }
}

fn memory<T>(taken: Result<T, hugemem::RegionError>) -> Result<T, Error> {
    taken.map_err(|error| Error::System {
        step: "taking memory",
        source: std::io::Error::other(error),
    })
}
