use std::sync::Arc;

use super::*;

#[test]
fn full_ring_returns_the_value() {
    let (mut sender, mut receiver) = channel(3);
    assert_eq!((sender.capacity(), receiver.capacity()), (3, 3));
    for value in 0..3 {
        assert_eq!(sender.send(value), Ok(()));
    }
    assert_eq!(sender.vacant(), 0);
    assert_eq!(sender.send(99), Err(99));
    assert_eq!(receiver.recv(), Some(0));
    assert_eq!(sender.send(3), Ok(()));
    assert_eq!(sender.send(99), Err(99));
    assert_eq!(receiver.len(), 3);
    assert_eq!(
        [receiver.recv(), receiver.recv(), receiver.recv()],
        [Some(1), Some(2), Some(3)]
    );
    assert_eq!(receiver.recv(), None);
    assert!(receiver.is_empty());
}

#[test]
fn ring_preserves_order_across_wraps() {
    for capacity in [1, 2, 3, 5, 8] {
        let (mut sender, mut receiver) = channel(capacity);
        let (mut sent, mut received) = (0_usize, 0);
        while received < 1_000 {
            while sender.send(sent).is_ok() {
                sent += 1;
            }
            assert_eq!(sent - received, capacity);
            for _ in 0..=sent % capacity {
                assert_eq!(receiver.recv(), Some(received));
                received += 1;
            }
        }
    }
}

#[test]
fn remaining_values_are_dropped_once() {
    let counted = Arc::new(());
    let (mut sender, mut receiver) = channel(4);
    for _ in 0..4 {
        sender.send(Arc::clone(&counted)).expect("there is room");
    }
    drop(receiver.recv());
    sender.send(Arc::clone(&counted)).expect("there is room");
    assert_eq!(Arc::strong_count(&counted), 5);
    drop(sender);
    assert_eq!(Arc::strong_count(&counted), 5);
    drop(receiver);
    assert_eq!(Arc::strong_count(&counted), 1);
}

#[test]
fn each_end_detects_that_the_other_was_dropped() {
    let (mut sender, mut receiver) = channel(2);
    assert!(!sender.is_abandoned() && !receiver.is_abandoned());
    sender.send(7).expect("there is room");
    drop(sender);
    assert!(receiver.is_abandoned());
    assert_eq!(receiver.recv(), Some(7));
    let (sender, receiver) = channel::<u32>(2);
    drop(receiver);
    assert!(sender.is_abandoned());
}

#[test]
#[should_panic(expected = "at least one slot")]
fn empty_ring_is_refused() {
    let _ = channel::<u8>(0);
}

#[test]
fn two_threads_exchange_all_values_in_order() {
    const COUNT: u64 = 300_000;
    // Boxes, so that a sanitizer also detects a slot that is read twice or too early.
    let (mut sender, mut receiver) = channel::<Box<u64>>(7);
    let producer = std::thread::spawn(move || {
        for value in 0..COUNT {
            let mut parcel = Box::new(value);
            while let Err(back) = sender.send(parcel) {
                parcel = back;
                std::thread::yield_now();
            }
        }
    });
    let mut expected = 0;
    while expected < COUNT {
        match receiver.recv() {
            Some(value) => {
                assert_eq!(*value, expected);
                expected += 1;
            }
            None => std::thread::yield_now(),
        }
    }
    producer.join().expect("the producer does not panic");
    assert_eq!(receiver.recv(), None);
}
