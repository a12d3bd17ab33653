//! The control thread's event loop, for code that waits: the clock, one iteration of the loop, and
//! a thread for blocking work. A simulation has its own implementation.

use std::thread;
use std::time::{Duration, Instant};

/// Time between two iterations while a change waits.
const LOOK_INTERVAL: Duration = Duration::from_millis(2);

/// Runs the control thread's other work while a change waits.
pub trait EventLoop {
    /// The present time.
    fn now(&self) -> Instant;

    /// Runs one iteration.
    fn run_once(&mut self);

    /// The longest time between two calls of [`run_once`](Self::run_once) during a wait.
    fn pause(&self) -> Duration;

    /// Runs blocking work to completion, and iterations meanwhile. Returns false if the work
    /// panicked.
    fn run(&mut self, work: &mut (dyn FnMut() + Send)) -> bool;

    /// Sleeps briefly, and runs one iteration.
    fn rest(&mut self) {
        thread::sleep(self.pause());
        self.run_once();
    }
}

/// The machine's clock and threads. The function runs one iteration; its argument is the present
/// time.
pub(crate) struct RealTime<F>(pub(crate) F);

impl<F: FnMut(Instant)> EventLoop for RealTime<F> {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn run_once(&mut self) {
        (self.0)(Instant::now());
    }

    fn pause(&self) -> Duration {
        LOOK_INTERVAL
    }

    fn run(&mut self, work: &mut (dyn FnMut() + Send)) -> bool {
        thread::scope(|scope| {
            let worker = scope.spawn(work);
            while !worker.is_finished() {
                self.rest();
            }
            worker.join().is_ok()
        })
    }
}

/// Runs blocking work in parallel with the event loop, and returns its result.
///
/// # Errors
/// The work's error, or that it panicked.
pub(crate) fn aside<T: Send>(
    event_loop: &mut dyn EventLoop,
    work: impl FnOnce() -> Result<T, String> + Send,
) -> Result<T, String> {
    let (mut work, mut done) = (Some(work), None);
    let ended = event_loop.run(&mut || done = work.take().map(|work| work()));
    let done = done.filter(|_| ended);
    done.unwrap_or_else(|| Err("it panicked; see the log".to_owned()))
}
