//! Other work of the machine that is limited by the memory bus: a thread that copies memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::DeviceMemoryError;
use bench::pinning::pin_to_core;

/// Bytes that are copied between two looks at the flags.
const CHUNK_BYTES: usize = 256 << 10;

/// Interval in which a paused neighbour looks whether it continues.
const PAUSE: Duration = Duration::from_millis(1);

#[derive(Default)]
struct Shared {
    copied: AtomicU64,
    is_running: AtomicBool,
    has_ended: AtomicBool,
}

/// The thread; it ends when this is dropped.
pub(super) struct Neighbour {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// What was copied at one time.
#[derive(Clone, Copy)]
pub(super) struct Copied {
    bytes: u64,
    at: Instant,
}

impl Neighbour {
    /// Starts it, paused, with this much memory.
    pub(super) fn start(bytes: usize, core: Option<usize>) -> Result<Self, DeviceMemoryError> {
        let half = bytes / 2 / CHUNK_BYTES * CHUNK_BYTES;
        if half == 0 {
            let why = format!("{bytes} bytes of memory are too few: at least 512 KiB");
            return Err(DeviceMemoryError::Neighbour(why));
        }
        let shared = Arc::<Shared>::default();
        let of_thread = Arc::clone(&shared);
        let (pinned, is_pinned) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let result = core.map_or(Ok(()), pin_to_core);
            let failed = result.is_err();
            let told = pinned.send(result.map_err(|error| error.to_string()));
            if !failed && told.is_ok() {
                copy_memory(half, &of_thread);
            }
        });
        let neighbour = Self {
            shared,
            thread: Some(thread),
        };
        match is_pinned.recv() {
            Ok(Ok(())) => Ok(neighbour),
            Ok(Err(why)) => Err(DeviceMemoryError::Neighbour(why)),
            Err(_) => Err(DeviceMemoryError::Neighbour("it has ended".to_owned())),
        }
    }

    /// Continues or pauses it.
    pub(super) fn set_running(&self, is_running: bool) {
        self.shared.is_running.store(is_running, Ordering::Relaxed);
    }

    pub(super) fn copied(&self) -> Copied {
        Copied {
            bytes: self.shared.copied.load(Ordering::Relaxed),
            at: Instant::now(),
        }
    }

    /// Bytes per second since then.
    pub(super) fn rate_since(&self, since: Copied) -> f64 {
        let now = self.copied();
        let elapsed = now.at - since.at;
        (now.bytes - since.bytes) as f64 / elapsed.as_secs_f64()
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        self.shared.has_ended.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It cannot panic, and its result is nothing.
            let _ = thread.join();
        }
    }
}

/// Copies one half of its memory to the other one again and again.
fn copy_memory(half: usize, shared: &Shared) {
    let mut memory = vec![0x5a_u8; 2 * half];
    let mut chunk = 0;
    while !shared.has_ended.load(Ordering::Relaxed) {
        if !shared.is_running.load(Ordering::Relaxed) {
            std::thread::sleep(PAUSE);
            continue;
        }
        let from = chunk * CHUNK_BYTES;
        memory.copy_within(from..from + CHUNK_BYTES, half + from);
        std::hint::black_box(&mut memory);
        chunk = (chunk + 1) % (half / CHUNK_BYTES);
        shared
            .copied
            .fetch_add(CHUNK_BYTES as u64, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbour_copies_only_while_it_runs() {
        assert!(Neighbour::start(CHUNK_BYTES, None).is_err());
        let neighbour = Neighbour::start(2 * CHUNK_BYTES, None).expect("memory");
        assert_eq!(neighbour.copied().bytes, 0);
        neighbour.set_running(true);
        let begun = Instant::now();
        while neighbour.copied().bytes == 0 {
            assert!(begun.elapsed() < Duration::from_secs(60), "it does not run");
            std::thread::sleep(PAUSE);
        }
        drop(neighbour);
    }
}
