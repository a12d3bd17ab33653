//! Copies of one device to another while the appliance serves, as a service of the reactors: the
//! last reactor executes them (the first one has the file service).
//!
//! The control thread alone begins copies, so that no change of the configuration or hand-over to a
//! new process happens between the check and the start. Both are refused while a copy needs the
//! devices. The control plane aborts copies, and any thread reads their progress.

mod check;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use appliance_config::Name;
use block::{
    COPIES_MAX, Copier, CopyEnd, CopyFailure, CopyMessage, CopyProgress, CopyStart, CopyStep,
    CopyStop, Health, ReactorDevices,
};
use hugemem::Arena;
use reactors::ring::Receiver;
use reactors::{InitError, ReactorHandle, ReactorSetup};

use crate::devices::Devices;
use crate::messages::MessageRings;
use crate::reactor_setup::{ReactorParts, Service};
pub use check::CopyWanted;
pub(crate) use check::{Checked, CopyRefusal, check};

/// Copies that are remembered, including those that run.
const REMEMBERED_MAX: usize = 32;

const _: () = assert!(COPIES_MAX < REMEMBERED_MAX);

/// A copy, as one moment sees it.
#[derive(Clone, Debug)]
pub(crate) struct CopySample {
    /// Counts from 1 since the start of the process.
    pub(crate) number: u32,
    pub(crate) source: Name,
    pub(crate) destination: Name,
    /// The beginning of the range in bytes, on both devices.
    pub(crate) offset: u64,
    /// The length of the range in bytes.
    pub(crate) bytes: u64,
    pub(crate) block_bytes: u32,
    pub(crate) written_bytes: u64,
    pub(crate) drive_memory_bytes: u64,
    pub(crate) drive_bytes: u64,
    pub(crate) drive_failures: u64,
    pub(crate) drive_memory_failures: u64,
    pub(crate) memory_waits: u64,
    pub(crate) began_unix_ms: u64,
    /// How long it ran, or has run so far.
    pub(crate) took: Duration,
    /// The changes that the source had counted when the copy began.
    changes_before: u64,
    /// Changes of the source while it ran; `None` while it runs.
    changes_during: Option<u64>,
    pub(crate) end: Option<CopyEnd>,
}

impl CopySample {
    /// Requests that have changed the source since the copy began. `health` is that of the source.
    pub(crate) fn source_changes(&self, health: Option<&Health>) -> u64 {
        let so_far = || health.map_or(0, |it| changes(it).saturating_sub(self.changes_before));
        self.changes_during.unwrap_or_else(so_far)
    }

    /// Bytes from the beginning of the range that are all written; `None` while it runs.
    pub(crate) fn intact_bytes(&self) -> Option<u64> {
        match self.end? {
            CopyEnd::Complete => Some(self.bytes),
            CopyEnd::Stopped { written_blocks, .. } => {
                Some(written_blocks * u64::from(self.block_bytes))
            }
        }
    }

    /// What failed, if a request did.
    pub(crate) fn failure(&self) -> Option<CopyFailure> {
        match self.end? {
            CopyEnd::Stopped {
                cause: CopyStop::Failed(failure),
                ..
            } => Some(failure),
            CopyEnd::Complete | CopyEnd::Stopped { .. } => None,
        }
    }

    /// Why it did not copy everything, for people; `None` if it did, and while it runs.
    pub(crate) fn error(&self) -> Option<String> {
        let CopyEnd::Stopped { cause, .. } = self.end? else {
            return None;
        };
        let intact = self.offset + self.intact_bytes().unwrap_or_default();
        let text = match cause {
            CopyStop::Failed(CopyFailure {
                step: CopyStep::Flush,
                error,
                ..
            }) => format!(
                "device {} was not flushed: {error}: what was written may be lost: repair it, and \
                 copy again",
                self.destination
            ),
            CopyStop::Failed(failure) => {
                let first = failure.first_block * u64::from(self.block_bytes);
                let bytes = failure.blocks * u64::from(self.block_bytes);
                let (verb, device) = match failure.step {
                    CopyStep::Read => ("reading", &self.source),
                    CopyStep::Copy => ("the drive's own copy of", &self.destination),
                    CopyStep::Write | CopyStep::Flush => ("writing", &self.destination),
                };
                format!(
                    "{verb} {bytes} bytes at {first} of device {device} failed: {}: repair it, and \
                     continue with --offset {intact}",
                    failure.error
                )
            }
            CopyStop::Aborted => {
                format!("it was aborted: continue with --offset {intact}")
            }
            CopyStop::ReactorStops => {
                format!("the appliance stopped: continue with --offset {intact}")
            }
        };
        Some(text)
    }
}

/// Counted requests that change a device.
fn changes(health: &Health) -> u64 {
    health.writes + health.write_zeroes + health.deallocates
}

/// A copy that runs or has ended.
struct Copy {
    sample: CopySample,
    began: Instant,
    progress: Arc<CopyProgress>,
}

impl Copy {
    /// Whether its end has been reported.
    fn is_reported(&self) -> bool {
        self.sample.changes_during.is_some()
    }

    fn uses(&self, device: &Name) -> bool {
        [&self.sample.source, &self.sample.destination].contains(&device)
    }

    fn sample(&self) -> CopySample {
        let mut sample = self.sample.clone();
        sample.written_bytes = self.progress.written_blocks() * u64::from(sample.block_bytes);
        sample.drive_memory_bytes =
            self.progress.in_device_blocks() * u64::from(sample.block_bytes);
        sample.drive_bytes = self.progress.by_device_blocks() * u64::from(sample.block_bytes);
        sample.drive_failures = self.progress.own_copy_failures();
        sample.drive_memory_failures = self.progress.device_memory_failures();
        sample.memory_waits = self.progress.memory_waits();
        sample.end = self.progress.end();
        let took = self.progress.took().map(|it| Duration::from_nanos(it.0));
        sample.took = took.unwrap_or_else(|| self.began.elapsed());
        sample
    }
}

/// A device is needed by a copy that runs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "copy {number} of device {from} to {to} is running: wait for its end, or abort it with \
     `windlass copy --abort {number}`"
)]
pub(crate) struct CopyRunning {
    number: u32,
    from: Name,
    to: Name,
}

/// Why a copy is not aborted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AbortRefusal {
    #[error("there is no copy {0}: `windlass status` lists copies")]
    Unknown(u32),
    #[error("copy {0} has ended: `windlass status` has its result")]
    Ended(u32),
    #[error("the reactor accepts no more messages: it has ended or is stuck")]
    NoReactor,
}

/// The service of the whole appliance.
pub(crate) struct Copies {
    /// The reactor that executes copies.
    reactor: usize,
    messages: MessageRings<CopyMessage>,
    /// Taken once by the reactor. The control path only.
    receiver: Mutex<Option<Receiver<CopyMessage>>>,
    /// In the order of their numbers. The control path only.
    all: Mutex<VecDeque<Copy>>,
}

impl Copies {
    /// The service of an appliance with this number of reactors.
    pub(crate) fn new(reactors: usize) -> Self {
        let (messages, receivers) = MessageRings::new(1);
        Self {
            reactor: reactors.saturating_sub(1),
            messages,
            receiver: Mutex::new(receivers.into_iter().next()),
            all: Mutex::default(),
        }
    }

    /// Makes every message wake the reactor from now on.
    pub(crate) fn set_wakers(&self, reactors: &[ReactorHandle]) {
        if let Some(reactor) = reactors.get(self.reactor) {
            self.messages.set_wakers(std::slice::from_ref(reactor));
        }
    }

    /// Adds the copier to the devices of reactor `index`, if that executes the copies.
    ///
    /// # Errors
    /// It has been added before.
    pub(crate) fn attach(
        &self,
        index: usize,
        devices: &ReactorDevices,
        arena: &Arc<Arena>,
    ) -> Result<(), &'static str> {
        if index != self.reactor {
            return Ok(());
        }
        let mut receiver = self.receiver.lock().unwrap_or_else(PoisonError::into_inner);
        let messages = receiver.take().ok_or("copies are set up once")?;
        let copier = Copier::new(Rc::clone(devices.set()), arena.pool(0), messages);
        devices.add(Rc::new(RefCell::new(copier)));
        Ok(())
    }

    fn all(&self) -> MutexGuard<'_, VecDeque<Copy>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The copies, in the order of their numbers.
    pub(crate) fn samples(&self) -> Vec<CopySample> {
        self.all().iter().map(Copy::sample).collect()
    }

    /// A copy that runs and that `predicate` selects.
    fn running_with(&self, predicate: impl Fn(&Copy) -> bool) -> Option<CopyRunning> {
        let all = self.all();
        let mut running = all.iter().filter(|it| it.progress.end().is_none());
        let found = running.find(|it| predicate(it))?;
        Some(CopyRunning {
            number: found.sample.number,
            from: found.sample.source.clone(),
            to: found.sample.destination.clone(),
        })
    }

    /// A copy that runs.
    pub(crate) fn running(&self) -> Option<CopyRunning> {
        self.running_with(|_| true)
    }

    /// A copy that runs and reads or writes a device.
    pub(crate) fn using(&self, device: &Name) -> Option<CopyRunning> {
        self.running_with(|it| it.uses(device))
    }

    /// A copy that runs and writes a device.
    pub(crate) fn writing(&self, device: &Name) -> Option<CopyRunning> {
        self.running_with(|it| it.sample.destination == *device)
    }

    /// Begins a checked copy. Returns its number. For the control thread.
    ///
    /// # Errors
    /// There are too many, or the reactor has ended.
    pub(crate) fn start(&self, checked: Checked) -> Result<u32, CopyRefusal> {
        let mut all = self.all();
        let running = all.iter().filter(|it| it.progress.end().is_none()).count();
        if running >= COPIES_MAX {
            return Err(CopyRefusal::TooMany);
        }
        let Checked {
            source,
            destination,
            plan,
            source_health,
        } = checked;
        let number = all.back().map_or(1, |last| last.sample.number + 1);
        let progress = Arc::<CopyProgress>::default();
        let start = CopyStart {
            number,
            plan,
            progress: Arc::clone(&progress),
        };
        let sent = self.messages.send(0, CopyMessage::Start(start));
        sent.map_err(|_| CopyRefusal::NoReactor)?;
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let block_bytes = u64::from(plan.block_bytes);
        while all.len() >= REMEMBERED_MAX
            && let Some(oldest) = all.iter().position(Copy::is_reported)
        {
            all.remove(oldest);
        }
        all.push_back(Copy {
            sample: CopySample {
                number,
                source,
                destination,
                offset: plan.first_block * block_bytes,
                bytes: plan.blocks * block_bytes,
                block_bytes: plan.block_bytes,
                written_bytes: 0,
                drive_memory_bytes: 0,
                drive_bytes: 0,
                drive_failures: 0,
                drive_memory_failures: 0,
                memory_waits: 0,
                began_unix_ms: since.map_or(0, |it| it.as_millis() as u64),
                took: Duration::ZERO,
                changes_before: changes(&source_health),
                changes_during: None,
                end: None,
            },
            began: Instant::now(),
            progress,
        });
        Ok(number)
    }

    /// The progress of a copy, if it is remembered.
    pub(crate) fn progress(&self, number: u32) -> Option<Arc<CopyProgress>> {
        let all = self.all();
        let found = all.iter().find(|it| it.sample.number == number)?;
        Some(Arc::clone(&found.progress))
    }

    /// Aborts a copy; it ends when its requests have.
    ///
    /// # Errors
    /// There is no such copy, or it has ended.
    pub(crate) fn abort(&self, number: u32) -> Result<(), AbortRefusal> {
        let all = self.all();
        let mut copies = all.iter();
        let found = copies.find(|it| it.sample.number == number);
        let found = found.ok_or(AbortRefusal::Unknown(number))?;
        if found.progress.end().is_some() {
            return Err(AbortRefusal::Ended(number));
        }
        let sent = self.messages.send(0, CopyMessage::Abort(number));
        sent.map_err(|_| AbortRefusal::NoReactor)
    }

    /// Aborts all copies; each ends when its requests have.
    pub(crate) fn abort_all(&self) {
        for number in self
            .all()
            .iter()
            .map(|it| it.sample.number)
            .collect::<Vec<_>>()
        {
            // Those that have ended are not aborted.
            let _ = self.abort(number);
        }
    }

    /// Reports copies that have ended since the last call. For the control thread.
    pub(crate) fn report_ended(&self, devices: &Devices) {
        for copy in &mut *self.all() {
            if copy.progress.end().is_none() || copy.is_reported() {
                continue;
            }
            let mut sample = copy.sample();
            let health = devices.get(&sample.source);
            let health = health.map(|(_, device)| device.health());
            sample.changes_during = Some(sample.source_changes(health.as_ref()));
            report(&sample);
            copy.sample = sample;
        }
    }
}

fn report(sample: &CopySample) {
    let CopySample {
        number,
        source,
        destination,
        ..
    } = sample;
    match sample.error() {
        Some(error) => tracing::error!("copy {number} of {source} to {destination}: {error}"),
        None => tracing::info!(
            "copy {number} of {source} to {destination} is complete: {} bytes in {:?}",
            sample.bytes,
            sample.took
        ),
    }
    let changes = sample.source_changes(None);
    if changes > 0 {
        tracing::warn!(
            "copy {number}: {changes} request(s) changed {source} while it was copied: the copy may \
             have blocks of different moments"
        );
    }
}

impl Service for Copies {
    fn set_up(&self, parts: &ReactorParts, setup: &mut ReactorSetup<'_>) -> Result<(), InitError> {
        self.attach(setup.index(), &parts.devices, &parts.arena)?;
        Ok(())
    }
}
