//! Two clients on devices that take or defer requests.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use reactors::Nanos;

use super::*;
use crate::request::Operation;

/// State and behaviour of a scripted queue.
#[derive(Default)]
struct Script {
    /// Number of requests that it takes before it defers others.
    room: Cell<usize>,
    refuses: Cell<bool>,
    taken: RefCell<VecDeque<u64>>,
    given_up: RefCell<Vec<u64>>,
    polls: Cell<usize>,
    flushes: Cell<usize>,
    fails: Cell<bool>,
}

struct Scripted(Rc<Script>);

impl DeviceQueue for Scripted {
    fn submit(&mut self, request: Request) -> Result<(), Refusal> {
        if self.0.refuses.get() {
            return Err(Refusal::Never(request, DeviceError::ReadOnly));
        }
        let Some(room) = self.0.room.get().checked_sub(1) else {
            return Err(Refusal::Later(request));
        };
        self.0.room.set(room);
        self.0.taken.borrow_mut().push_back(request.tag);
        Ok(())
    }

    fn give_up(&mut self, is_unwanted: &mut dyn FnMut(u64) -> bool) {
        let taken = self.0.taken.borrow();
        let unwanted = taken.iter().copied().filter(|tag| is_unwanted(*tag));
        self.0.given_up.borrow_mut().extend(unwanted);
    }

    fn flush(&mut self) {
        self.0.flushes.set(self.0.flushes.get() + 1);
    }

    fn poll(&mut self, completions: &mut CompletionBatch) -> usize {
        self.0.polls.set(self.0.polls.get() + 1);
        let mut count = 0;
        while !completions.is_full()
            && let Some(tag) = self.0.taken.borrow_mut().pop_front()
        {
            let result = if self.0.fails.get() {
                Err(DeviceError::Internal)
            } else {
                Ok(())
            };
            completions.push(Completion {
                tag,
                result,
                data: None,
            });
            count += 1;
        }
        count
    }

    fn in_flight(&self) -> usize {
        self.0.taken.borrow().len()
    }

    fn has_ready(&self) -> bool {
        !self.0.taken.borrow().is_empty()
    }

    fn drain(&mut self) -> Drain {
        match self.in_flight() {
            0 => Drain::Done,
            requests => Drain::Outstanding(requests),
        }
    }
}

fn request(tag: u64) -> Request {
    Request {
        tag,
        operation: Operation::Flush,
        lba: 0,
        blocks: 0,
        data: None,
    }
}

fn script(room: usize) -> Rc<Script> {
    let script = Rc::new(Script::default());
    script.room.set(room);
    script
}

/// A set with these devices.
fn set_of(devices: &[&Rc<Script>]) -> DeviceSet {
    let set = DeviceSet::new();
    for (place, script) in devices.iter().enumerate() {
        set.attach_queue(place, Box::new(Scripted(Rc::clone(script))), place > 0);
    }
    set
}

/// A completion: its client, its tag, and its result.
type Seen = (ClientId, u64, Result<(), DeviceError>);

/// Completions of one poll.
fn polled(set: &DeviceSet) -> Vec<Seen> {
    let mut seen = Vec::new();
    set.poll(Nanos::ZERO, |client, completions| {
        seen.extend(completions.map(|it| (client, it.tag, it.result)));
    });
    seen
}

#[test]
fn completions_reach_their_client_with_its_tags() {
    let device = script(100);
    let set = set_of(&[&device]);
    let (one, two) = (set.register(64), set.register(64));
    for (client, tag) in [(one, 7), (one, 8), (two, 7), (one, 9)] {
        let submitted = set.submit(client, 0, request(tag));
        assert_eq!(submitted, Ok(Submitted::Taken));
    }
    let expected = [(one, 7), (one, 8), (two, 7), (one, 9)];
    assert_eq!(
        polled(&set),
        expected.map(|(client, tag)| (client, tag, Ok(())))
    );
    assert_eq!(polled(&set), []);
}

#[test]
fn deferred_requests_are_fifo_and_cancellable() {
    let device = script(0);
    let set = set_of(&[&device]);
    let (one, two) = (set.register(8), set.register(8));
    let mut names = Vec::new();
    for (client, tag) in [(one, 1), (two, 1), (one, 2), (two, 2)] {
        match set.submit(client, 0, request(tag)) {
            Ok(Submitted::Waiting(name)) => names.push(name),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((set.waiting(), polled(&set)), (4, vec![]));
    assert!(
        set.next_deadline().is_some(),
        "nothing else wakes the reactor"
    );
    assert!(!set.cancel(two, names[0], 1), "it is the other's");
    assert!(set.cancel(one, names[2], 2));
    assert!(!set.cancel(one, names[2], 2), "once");
    device.room.set(1);
    // Submitted again, taken, and completed by the next poll.
    assert_eq!(polled(&set), []);
    assert!(!set.cancel(one, names[0], 1), "the device has it");
    assert_eq!(polled(&set), [(one, 1, Ok(()))]);
    // Later requests do not overtake waiting ones.
    device.room.set(1);
    let last = set.submit(one, 0, request(3));
    assert!(matches!(last, Ok(Submitted::Waiting(_))), "{last:?}");
    device.room.set(100);
    assert_eq!(polled(&set), []);
    assert_eq!(set.waiting(), 0);
    let expected = [(two, 1), (two, 2), (one, 3)];
    assert_eq!(
        polled(&set),
        expected.map(|(client, tag)| (client, tag, Ok(())))
    );
    assert_eq!(set.next_deadline(), None);
}

#[test]
fn deferred_request_refused_later_completes_with_the_error() {
    let device = script(0);
    let set = set_of(&[&device]);
    let client = set.register(100);
    for tag in 0..100 {
        assert!(matches!(
            set.submit(client, 0, request(tag)),
            Ok(Submitted::Waiting(_))
        ));
    }
    device.refuses.set(true);
    let mut seen = Vec::new();
    for _ in 0..8 {
        seen.extend(polled(&set));
    }
    let expected = (0..100).map(|tag| (client, tag, Err(DeviceError::ReadOnly)));
    assert_eq!(seen, expected.collect::<Vec<_>>());
    assert_eq!(
        set.submit(client, 0, request(1)),
        Err(DeviceError::ReadOnly)
    );
    assert_eq!(set.submit(client, 5, request(1)), Err(DeviceError::Removed));
}

/// Completions without a request are ignored and counted.
#[test]
fn completions_without_a_request_are_counted() {
    let device = script(0);
    let set = set_of(&[&device]);
    let client = set.register(8);
    let made_up = [
        ClientId::SET.tag(0),
        ClientId::SET.tag(5000),
        ClientId(3).tag(1),
        u64::MAX,
    ];
    device.taken.borrow_mut().extend(made_up);
    device.taken.borrow_mut().push_back(client.tag(4));
    set.busy.set(1);
    assert_eq!(polled(&set), [(client, 4, Ok(()))]);
    assert_eq!(
        (set.take_stale_completions(), set.take_stale_completions()),
        (4, 0)
    );
    assert!(!set.has_failed_to_flush());
}

#[test]
fn a_completion_may_submit_the_next_request() {
    let device = script(100);
    let set = set_of(&[&device]);
    let client = set.register(8);
    set.submit(client, 0, request(1)).expect("room");
    for tag in 2..5 {
        let mut seen = 0;
        set.poll(Nanos::ZERO, |_, completions| {
            for completion in completions {
                seen = completion.tag;
                set.submit(client, 0, request(tag)).expect("room");
            }
        });
        assert_eq!(seen, tag - 1);
    }
}

#[test]
fn busy_devices_are_polled_every_turn_and_idle_ones_in_rotation() {
    let devices = [(); 4].map(|()| script(0));
    let set = set_of(&[&devices[0], &devices[1], &devices[2], &devices[3]]);
    let client = set.register(8);
    // Taken and never completed.
    devices[2].room.set(1);
    set.submit(client, 2, request(1)).expect("room");
    set.flush();
    assert_eq!(devices[2].flushes.get(), 1);
    devices[2].taken.borrow_mut().clear();
    devices[2].taken.borrow_mut().push_back(client.tag(1));
    let polls = |of: &[Rc<Script>; 4]| [0, 1, 2, 3].map(|place: usize| of[place].polls.get());
    for _ in 0..TURNS_PER_IDLE_POLL {
        polled(&set);
    }
    assert_eq!(polls(&devices), [1, 0, 1, 0]);
    for _ in 0..3 * TURNS_PER_IDLE_POLL {
        polled(&set);
    }
    // It is idle since the first poll and polled in its turn like the others.
    assert_eq!(polls(&devices), [1, 1, 2, 1]);
    set.flush();
    set.flush();
    let flushes = [0, 1, 2, 3].map(|place: usize| devices[place].flushes.get());
    assert_eq!(
        flushes,
        [0, 0, 2, 0],
        "what completed requests is flushed once more"
    );
}

#[test]
fn give_up_affects_only_the_given_client() {
    let device = script(100);
    let set = set_of(&[&device]);
    let (one, two) = (set.register(8), set.register(8));
    for (client, tag) in [(one, 1), (two, 1), (two, 2)] {
        set.submit(client, 0, request(tag)).expect("room");
    }
    set.give_up(two, 1, &mut |tag| tag == 1);
    assert_eq!(*device.given_up.borrow(), [two.tag(1)]);
}

#[test]
fn detach_waits_for_requests_and_immediate_removal_does_not() {
    let (slow, removed) = (script(1), script(0));
    let set = set_of(&[&slow, &removed]);
    let client = set.register(8);
    set.submit(client, 0, request(1)).expect("room");
    assert_eq!(set.detach(0), Drain::Outstanding(1));
    assert_eq!(set.attached(), 0b10);
    assert_eq!(polled(&set), [(client, 1, Ok(()))]);
    assert_eq!(set.detach(0), Drain::Done);
    assert_eq!(set.submit(client, 0, request(2)), Err(DeviceError::Removed));
    let Ok(Submitted::Waiting(name)) = set.submit(client, 1, request(3)) else {
        panic!("it takes nothing");
    };
    assert_eq!(set.detach(1), Drain::Outstanding(1));
    set.remove_now(1);
    assert!(!set.cancel(client, name, 3));
    assert_eq!(
        (set.waiting(), set.attached(), polled(&set)),
        (0, 0, vec![])
    );
    assert_eq!(Rc::strong_count(&removed), 1, "the queue is closed");
}

#[test]
fn volatile_caches_are_flushed_before_the_queues_close() {
    for fails in [false, true] {
        let (lasting, volatile) = (script(1), script(0));
        volatile.fails.set(fails);
        let set = set_of(&[&lasting, &volatile]);
        let client = set.register(8);
        assert_eq!(set.drain(), Drain::Outstanding(1));
        polled(&set);
        assert_eq!(set.drain(), Drain::Outstanding(1), "the flush waits");
        volatile.room.set(1);
        polled(&set);
        assert_eq!(polled(&set), [], "a flush of the set's own is no client's");
        assert_eq!(set.drain(), Drain::Done);
        assert_eq!(set.has_failed_to_flush(), fails);
        assert_eq!(lasting.taken.borrow().len(), 0, "it has no volatile cache");
        let _ = client;
    }
}
