//! The store of reservations: takes a random time, sometimes fails, and survives the appliance.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nvme_reservations::{NamespaceIdentity, PersistenceSupport, decode};
use nvme_target::{DeviceIndex, InitialReservations, ReservationStore, StoreRequest};
use reactors::Nanos;

use crate::random::Random;
use crate::reservations::model::{Held, Reservations};
use crate::time::SharedTime;

/// Usual and longest time to store a state.
const LATENCY_USUAL: Nanos = Nanos::from_micros(300);
const LATENCY_MAX: Nanos = Nanos::from_millis(200);
/// Share of slow requests, per thousand.
const SLOW_PERMILLE: u32 = 100;
/// Share of requests that fail, per thousand.
const FAILURES_PERMILLE: u32 = 100;

/// The result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreResult {
    /// The disk.
    pub disk: usize,
    /// The device of the disk.
    pub device: DeviceIndex,
    /// The number of the request.
    pub number: u64,
    /// Whether the state is stored.
    pub is_stored: bool,
}

struct Contents {
    time: SharedTime,
    random: Random,
    /// Requests with the time of their completion, and whether they fail.
    requests: Vec<(Nanos, bool, StoreRequest)>,
    /// The stored states, by disk.
    stored: BTreeMap<usize, Vec<u8>>,
    /// Share of requests that fail, per thousand.
    failures_permille: u32,
}

/// The store.
#[derive(Clone)]
pub struct SimStore(Arc<Mutex<Contents>>);

/// The name under which the state of a disk is stored.
fn identity_of(disk: usize) -> NamespaceIdentity {
    NamespaceIdentity([disk as u8 + 1; 16])
}

fn disk_of(identity: NamespaceIdentity) -> usize {
    usize::from(identity.0[0]).wrapping_sub(1)
}

impl SimStore {
    /// The empty store of a seed.
    #[must_use]
    pub fn new(seed: u64, time: SharedTime) -> Self {
        Self(Arc::new(Mutex::new(Contents {
            time,
            random: Random::new(seed, 0xA3),
            requests: Vec::new(),
            stored: BTreeMap::new(),
            failures_permille: FAILURES_PERMILLE,
        })))
    }

    fn contents(&self) -> MutexGuard<'_, Contents> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends all failures of further requests.
    pub fn disable_faults(&self) {
        self.contents().failures_permille = 0;
    }

    /// When the next request is completed.
    #[must_use]
    pub fn next_due(&self) -> Option<Nanos> {
        self.contents().requests.iter().map(|it| it.0).min()
    }

    /// Completes the requests that are due.
    #[must_use]
    pub fn take_due(&self) -> Vec<StoreResult> {
        let mut contents = self.contents();
        let now = contents.time.now();
        let requests = std::mem::take(&mut contents.requests).into_iter();
        let (due, left): (Vec<_>, Vec<_>) = requests.partition(|(at, _, _)| *at <= now);
        contents.requests = left;
        let mut results = Vec::new();
        for (_, fails, request) in due {
            let disk = disk_of(request.identity);
            results.push(StoreResult {
                disk,
                device: request.device,
                number: request.number,
                is_stored: !fails,
            });
            if !fails {
                contents.stored.insert(disk, request.bytes);
            }
        }
        results
    }

    /// Handles the end of the appliance: each request in flight has been carried out or not.
    pub fn appliance_ended(&self) {
        let mut contents = self.contents();
        for (_, fails, request) in std::mem::take(&mut contents.requests) {
            if !fails && contents.random.coin() {
                let disk = disk_of(request.identity);
                contents.stored.insert(disk, request.bytes);
            }
        }
    }

    /// Forgets the state of a disk whose device was closed, with its requests in flight.
    pub fn forget(&self, disk: usize) {
        let mut contents = self.contents();
        contents.stored.remove(&disk);
        let requests = &mut contents.requests;
        requests.retain(|(_, _, request)| disk_of(request.identity) != disk);
    }

    /// The reservations with which the device of a disk begins: what was stored, unless it does not
    /// persist.
    ///
    /// # Errors
    /// What is wrong with the stored state.
    pub fn initial(&self, disk: usize) -> Result<InitialReservations, String> {
        let contents = self.contents();
        let identity = identity_of(disk);
        let state = match contents.stored.get(&disk) {
            Some(bytes) => {
                let mut state = decode(bytes, identity).map_err(|error| error.to_string())?;
                state.apply_power_loss();
                state.set_persistence_support(PersistenceSupport::Supported);
                state
            }
            None => nvme_reservations::Reservations::new(PersistenceSupport::Supported),
        };
        Ok(InitialReservations::Persistent { identity, state })
    }

    /// Whether this state of a disk is stored, or, if it does not persist, none that does.
    #[must_use]
    pub fn holds(&self, disk: usize, state: &Reservations) -> bool {
        let contents = self.contents();
        let bytes = contents.stored.get(&disk);
        let Some(stored) = bytes.and_then(|bytes| decode(bytes, identity_of(disk)).ok()) else {
            return !state.persists;
        };
        // Later commands change a state that does not persist without storing it.
        if !state.persists {
            return !stored.persists();
        }
        let registrants = stored.registrants().iter();
        let identity = |host: [u8; 16]| usize::from(host[0]).wrapping_sub(1);
        let holder = stored.holder().map(|it| identity(it.0));
        *state
            == Reservations {
                keys: registrants
                    .map(|it| (identity(it.host.0), it.key))
                    .collect(),
                held: stored.reservation().map(|kind| Held {
                    rtype: kind.wire().0,
                    holder,
                }),
                generation: stored.generation(),
                persists: stored.persists(),
                can_persist: state.can_persist,
            }
    }
}

impl ReservationStore for SimStore {
    fn store(&self, request: StoreRequest) {
        let mut contents = self.contents();
        let failures_permille = contents.failures_permille;
        let random = &mut contents.random;
        let longest = match random.permille(SLOW_PERMILLE) {
            true => LATENCY_MAX,
            false => LATENCY_USUAL,
        };
        let latency = Nanos(random.below(longest.as_nanos()) + 1);
        let fails = random.permille(failures_permille);
        let due = contents.time.now() + latency;
        contents.requests.push((due, fails, request));
    }
}
