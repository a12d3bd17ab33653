//! The thread that adjusts the paces of exports, so that no reactor does.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use nvme_target::{PACING_INTERVAL, Target};
use reactors::{Clock as _, TscClock};

use crate::affinity::avoid_reactor_cores;

/// The time between two looks for a configuration with paces.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// The thread; it ends when this is dropped.
pub(crate) struct PacingThread {
    stops: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl PacingThread {
    /// Starts the thread beside the reactors' cores, if there are others.
    pub(crate) fn start(target: &Arc<Target>, cores: &[usize]) -> io::Result<Self> {
        let stops = Arc::new(AtomicBool::new(false));
        let (target, cores, stopped) = (Arc::clone(target), cores.to_vec(), Arc::clone(&stops));
        let clock = TscClock::new();
        let thread = Builder::new().name("pacing".to_owned()).spawn(move || {
            avoid_reactor_cores(&cores);
            while !stopped.load(Ordering::Acquire) {
                if target.has_paces() {
                    target.adjust_paces(clock.now());
                    std::thread::park_timeout(Duration::from_nanos(PACING_INTERVAL.0));
                } else {
                    std::thread::park_timeout(LOOK_INTERVAL);
                }
            }
        })?;
        Ok(Self {
            stops,
            thread: Some(thread),
        })
    }
}

impl Drop for PacingThread {
    fn drop(&mut self) {
        self.stops.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            if thread.join().is_err() {
                tracing::error!("the pacing thread has panicked");
            }
        }
    }
}
