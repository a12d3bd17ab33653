//! The time that a change takes, and what goes on meanwhile: everything that a change waits for or
//! goes by is asked here, so that it may be another than the machine's.

use std::thread;
use std::time::{Duration, Instant};

/// How often something that is on its way out is looked after.
const LOOK_INTERVAL: Duration = Duration::from_millis(2);

/// What goes on while a change is carried out.
pub trait Meanwhile {
    /// The present time.
    fn now(&self) -> Instant;

    /// Looks after everything else, once.
    fn tend(&mut self);

    /// How long whoever waits may be kept from [`tend`](Self::tend) by a single wait.
    fn pause(&self) -> Duration;

    /// Runs what takes its time to its end, with everything else looked after. False: it did not
    /// come to its end.
    fn run(&mut self, work: &mut (dyn FnMut() + Send)) -> bool;

    /// Waits a moment for what is on its way, and looks after everything else.
    fn rest(&mut self) {
        thread::sleep(self.pause());
        self.tend();
    }
}

/// The machine's time, and a thread for what takes its time; everything else is looked after by a
/// function of the present time.
pub(crate) struct RealTime<F>(pub(crate) F);

impl<F: FnMut(Instant)> Meanwhile for RealTime<F> {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn tend(&mut self) {
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

/// What takes its time, and what it came to.
///
/// # Errors
/// Its own, or that it did not come to its end.
pub(crate) fn aside<T: Send>(
    meanwhile: &mut dyn Meanwhile,
    work: impl FnOnce() -> Result<T, String> + Send,
) -> Result<T, String> {
    let (mut work, mut done) = (Some(work), None);
    let ended = meanwhile.run(&mut || done = work.take().map(|work| work()));
    let done = done.filter(|_| ended);
    done.unwrap_or_else(|| Err("it ended in a panic, which the log tells of".to_owned()))
}
