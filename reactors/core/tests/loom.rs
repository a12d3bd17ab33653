//! Explores every interleaving of the lock-free modules with loom. They are compiled here again
//! with loom's atomics and cells in place of those of `src/sync.rs`.

#[path = "../src/wake/flag.rs"]
mod flag;
#[path = "../src/mailbox.rs"]
mod mailbox;
#[path = "../src/ring/raw.rs"]
mod raw;
#[path = "../src/recorder/raw.rs"]
mod recorder;

mod sync {
    use std::collections::VecDeque;

    pub(crate) use loom::cell::UnsafeCell;
    pub(crate) use loom::sync::Arc;
    use loom::sync::Mutex;

    /// A bounded queue with a lock, in place of crossbeam's: these tests explore the code that uses
    /// it.
    pub(crate) struct Queue<T> {
        values: Mutex<VecDeque<T>>,
        capacity: usize,
    }

    impl<T> Queue<T> {
        pub(crate) fn new(capacity: usize) -> Self {
            Self {
                values: Mutex::new(VecDeque::new()),
                capacity,
            }
        }

        pub(crate) fn push(&self, value: T) -> Result<(), T> {
            let mut values = self.values.lock().expect("not poisoned");
            if values.len() == self.capacity {
                return Err(value);
            }
            values.push_back(value);
            Ok(())
        }

        pub(crate) fn pop(&self) -> Option<T> {
            self.values.lock().expect("not poisoned").pop_front()
        }

        pub(crate) fn len(&self) -> usize {
            self.values.lock().expect("not poisoned").len()
        }

        pub(crate) fn is_empty(&self) -> bool {
            self.len() == 0
        }
    }

    pub(crate) mod atomic {
        pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
    }
}

use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

use flag::SleepFlag;
use mailbox::{Mailbox, PushError};

/// A model of the eventfd: a token that remains until it is taken.
struct Doorbell {
    rung: Mutex<bool>,
    changed: Condvar,
}

impl Doorbell {
    fn new() -> Doorbell {
        Doorbell {
            rung: Mutex::new(false),
            changed: Condvar::new(),
        }
    }

    fn ring(&self) {
        *self.rung.lock().expect("not poisoned") = true;
        self.changed.notify_one();
    }

    /// Blocks like `ppoll` without a time-out: loom fails the test if no thread can ring any more.
    fn wait(&self) {
        let mut rung = self.rung.lock().expect("not poisoned");
        while !*rung {
            rung = self.changed.wait(rung).expect("not poisoned");
        }
        *rung = false;
    }
}

/// A reactor's sleep as in `reactor/rest.rs`: announce, check, block or retract.
fn receive_sleeping<T>(
    consumer: &mut raw::Consumer<T>,
    flag: &SleepFlag,
    doorbell: &Doorbell,
) -> T {
    loop {
        if let Some(value) = consumer.pop() {
            return value;
        }
        flag.announce();
        if consumer.len() == 0 {
            doorbell.wait();
        }
        flag.cancel_announcement();
    }
}

/// Without a bound these models take from ten seconds to minutes; three preemptions suffice to show
/// the possible failures.
fn bounded(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

#[test]
fn ring_keeps_order_when_it_is_full_and_when_it_wraps() {
    loom::model(|| {
        let (mut producer, mut consumer) = raw::ring(2);
        let sender = thread::spawn(move || {
            for value in 0..3 {
                let mut value = Box::new(value);
                while let Err(back) = producer.push(value) {
                    value = back;
                    thread::yield_now();
                }
            }
        });
        for expected in 0..3 {
            loop {
                if let Some(value) = consumer.pop() {
                    assert_eq!(*value, expected);
                    break;
                }
                thread::yield_now();
            }
        }
        sender.join().expect("no panic");
        assert!(consumer.pop().is_none());
    });
}

#[test]
fn ring_drops_remaining_values_when_both_ends_are_dropped() {
    loom::model(|| {
        let (mut producer, mut consumer) = raw::ring(2);
        let counted = Arc::new(());
        let second = Arc::clone(&counted);
        let sender = thread::spawn(move || {
            assert!(producer.push(Arc::clone(&counted)).is_ok());
            assert!(producer.push(counted).is_ok());
        });
        drop(consumer.pop());
        drop(consumer);
        sender.join().expect("no panic");
        assert_eq!(Arc::strong_count(&second), 1);
    });
}

#[test]
fn abandoned_ring_delivers_all_sent_values() {
    loom::model(|| {
        let (mut producer, mut consumer) = raw::ring(1);
        assert_eq!((producer.capacity(), consumer.capacity()), (1, 1));
        let sender = thread::spawn(move || {
            assert_eq!(producer.vacant(), 1);
            assert_eq!(producer.push(7), Ok(()));
            // The result depends on the interleaving; the call must be sound.
            let _ = producer.is_abandoned();
        });
        if consumer.is_abandoned() {
            assert_eq!(consumer.pop(), Some(7));
        }
        sender.join().expect("no panic");
    });
}

#[test]
fn recorder_reader_sees_only_whole_records() {
    bounded(|| {
        let ring = Arc::new(recorder::Ring::<2>::new());
        let written = Arc::clone(&ring);
        let writer = thread::spawn(move || {
            for number in 0..4 {
                written.push([number, 100 + number]);
            }
        });
        let (first, words) = ring.read(0);
        for (number, entry) in (first..).zip(words) {
            assert_eq!(entry, [number, 100 + number]);
        }
        writer.join().expect("no panic");
        assert_eq!(ring.read(0), (3, vec![[3, 103]]));
    });
}

#[test]
fn no_wakeup_is_lost() {
    bounded(|| {
        let (mut producer, mut consumer) = raw::ring(2);
        let shared = Arc::new((SleepFlag::new(), Doorbell::new()));
        let waker = Arc::clone(&shared);
        let sender = thread::spawn(move || {
            for value in 0..2 {
                assert_eq!(producer.push(value), Ok(()));
                if waker.0.take_wake_duty() {
                    waker.1.ring();
                }
            }
        });
        for expected in 0..2 {
            assert_eq!(
                receive_sleeping(&mut consumer, &shared.0, &shared.1),
                expected
            );
        }
        sender.join().expect("no panic");
        assert!(!shared.0.is_announced());
    });
}

#[test]
fn two_senders_waking_one_sleeper_lose_no_message() {
    bounded(|| {
        let (mut first, mut from_first) = raw::ring(1);
        let (mut second, mut from_second) = raw::ring(1);
        let shared = Arc::new((SleepFlag::new(), Doorbell::new()));
        let spawn = |mut send: Box<dyn FnMut() + Send>| {
            let waker = Arc::clone(&shared);
            thread::spawn(move || {
                send();
                if waker.0.take_wake_duty() {
                    waker.1.ring();
                }
            })
        };
        let a = spawn(Box::new(move || assert!(first.push(1).is_ok())));
        let b = spawn(Box::new(move || assert!(second.push(2).is_ok())));
        let mut sum = 0;
        while sum < 3 {
            let got = from_first.pop().unwrap_or(0) + from_second.pop().unwrap_or(0);
            sum += got;
            if got == 0 {
                shared.0.announce();
                if from_first.len() + from_second.len() == 0 {
                    shared.1.wait();
                }
                shared.0.cancel_announcement();
            }
        }
        a.join().expect("no panic");
        b.join().expect("no panic");
    });
}

/// A message that counts its drops.
struct Message(Arc<Mutex<u32>>);

impl Drop for Message {
    fn drop(&mut self) {
        *self.0.lock().expect("not poisoned") += 1;
    }
}

#[test]
fn closed_mailbox_drops_its_messages() {
    bounded(|| {
        let mailbox = Arc::new(Mailbox::new(2));
        let ended = Arc::new(Mutex::new(0));
        let senders = [(), ()].map(|()| {
            let (mailbox, ended) = (Arc::clone(&mailbox), Arc::clone(&ended));
            thread::spawn(move || match mailbox.push(Message(ended)) {
                Ok(()) | Err(PushError::Closed) => {}
                Err(PushError::Full(_)) => panic!("there is room for both"),
            })
        });
        drop(mailbox.pop());
        mailbox.close();
        for sender in senders {
            sender.join().expect("no panic");
        }
        assert!(mailbox.is_closed() && mailbox.is_empty());
        // Both have ended, either run or dropped.
        assert_eq!(*ended.lock().expect("not poisoned"), 2);
    });
}

#[test]
fn full_mailbox_returns_the_message() {
    loom::model(|| {
        let mailbox = Arc::new(Mailbox::new(1));
        let sender = {
            let mailbox = Arc::clone(&mailbox);
            thread::spawn(move || mailbox.push(1).is_ok())
        };
        let second = mailbox.push(2).is_ok();
        let first = sender.join().expect("no panic");
        assert!(first != second, "there is room for one");
        assert_eq!(mailbox.len(), 1);
    });
}
