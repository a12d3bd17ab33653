//! The thread that computes the exponentiations of hosts that authenticate themselves, so that no
//! reactor does.

use std::io;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use nvme_target::Target;

use crate::affinity::avoid_reactor_cores;

/// Longest wait for an exponentiation; only a bound.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// The thread; it ends when this is dropped.
pub(crate) struct AuthenticationThread {
    target: Arc<Target>,
    thread: Option<JoinHandle<()>>,
}

impl AuthenticationThread {
    /// Starts the thread beside the reactors' cores, if there are others.
    pub(crate) fn start(target: &Arc<Target>, cores: &[usize]) -> io::Result<Self> {
        let (shared, cores) = (Arc::clone(target), cores.to_vec());
        let thread = Builder::new()
            .name("authentication".to_owned())
            .spawn(move || {
                avoid_reactor_cores(&cores);
                reactors::lower_priority();
                shared.exponentiations().prepare();
                while shared.exponentiations().wait(WAIT_MAX) {
                    while shared.run_exponentiation() {}
                }
            })?;
        Ok(Self {
            target: Arc::clone(target),
            thread: Some(thread),
        })
    }
}

impl Drop for AuthenticationThread {
    fn drop(&mut self) {
        self.target.exponentiations().close();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the authentication thread has panicked");
        }
    }
}
