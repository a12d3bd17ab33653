//! A reactor that sleeps without spinning has its device connect the interrupt first, which then
//! wakes the reactor.

#[expect(dead_code, reason = "the tests of the transport use all of it")]
#[path = "tcp_transport/harness/mod.rs"]
mod harness;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use block::{
    CompletionBatch, Device, DeviceIdentity, DeviceQueue, Drain, Geometry, Health, OpenError,
    QueueOptions, Refusal, Request,
};
use harness::{Server, Setup, attach, ram};
use reactors::IdlePolicy;
use rustix::event::{EventfdFlags, eventfd};

/// The drive's response time: long enough for the reactor to sleep.
const DRIVE_TAKES: Duration = Duration::from_millis(5);

/// A RAM device that signals completions by an interrupt.
struct Drive {
    inner: Arc<dyn Device>,
    sleeps: Arc<AtomicU32>,
}

impl Device for Drive {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn identity(&self) -> &DeviceIdentity {
        self.inner.identity()
    }

    fn health(&self) -> Health {
        self.inner.health()
    }

    fn open_queue(&self, options: QueueOptions) -> Result<Box<dyn DeviceQueue>, OpenError> {
        Ok(Box::new(DriveQueue {
            inner: self.inner.open_queue(options)?,
            interrupt: interrupt(),
            pending: false,
            connected: Arc::default(),
            sleeps: Arc::clone(&self.sleeps),
        }))
    }
}

fn interrupt() -> Arc<OwnedFd> {
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    Arc::new(eventfd(0, flags).expect("a descriptor"))
}

struct DriveQueue {
    inner: Box<dyn DeviceQueue>,
    interrupt: Arc<OwnedFd>,
    /// A request was submitted for which no interrupt has been sent.
    pending: bool,
    /// Whether the interrupt is connected to its descriptor.
    connected: Arc<(Mutex<bool>, Condvar)>,
    sleeps: Arc<AtomicU32>,
}

impl DeviceQueue for DriveQueue {
    fn submit(&mut self, request: Request) -> Result<(), Refusal> {
        self.inner.submit(request)?;
        self.pending = true;
        let interrupt = Arc::clone(&self.interrupt);
        let connected = Arc::clone(&self.connected);
        std::thread::spawn(move || {
            std::thread::sleep(DRIVE_TAKES);
            let (connected, changed) = &*connected;
            let is_connected = connected.lock().expect("no panic holds it");
            let waited = changed.wait_while(is_connected, |connected| !*connected);
            drop(waited.expect("no panic holds it"));
            rustix::io::write(&*interrupt, &1_u64.to_ne_bytes()).expect("room for one");
        });
        Ok(())
    }

    fn give_up(&mut self, is_unwanted: &mut dyn FnMut(u64) -> bool) {
        self.inner.give_up(is_unwanted);
    }

    fn abandon(&mut self, is_overdue: &mut dyn FnMut(u64) -> bool) {
        self.inner.abandon(is_overdue);
    }

    fn flush(&mut self) {
        self.inner.flush();
    }

    fn poll(&mut self, completions: &mut CompletionBatch) -> usize {
        let mut count = [0; 8];
        if self.pending && rustix::io::read(&*self.interrupt, &mut count).is_err() {
            return 0;
        }
        if std::mem::take(&mut self.pending) {
            *self.connected.0.lock().expect("no panic holds it") = false;
        }
        self.inner.poll(completions)
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight()
    }

    fn wake_source(&self) -> Option<BorrowedFd<'_>> {
        Some(self.interrupt.as_fd())
    }

    fn has_ready(&self) -> bool {
        !self.pending && self.inner.has_ready()
    }

    fn prepare_sleep(&mut self) -> bool {
        self.sleeps.fetch_add(1, Ordering::Relaxed);
        *self.connected.0.lock().expect("no panic holds it") = true;
        self.connected.1.notify_all();
        !self.has_ready()
    }

    fn drain(&mut self) -> Drain {
        self.inner.drain()
    }
}

#[test]
fn an_interrupt_wakes_a_sleeping_reactor() {
    let sleeps = Arc::new(AtomicU32::new(0));
    let drive = Drive {
        inner: ram(),
        sleeps: Arc::clone(&sleeps),
    };
    let server = Server::start(Setup {
        device: Arc::new(drive),
        idle: IdlePolicy::Sleep,
        ..Setup::default()
    });
    let mut attached = attach(&server);
    for round in 0..8 {
        attached.check_io(u64::from(round), round);
    }
    assert!(
        sleeps.load(Ordering::Relaxed) >= 16,
        "it slept for each command"
    );
    drop(attached);
    server.stop();
}
