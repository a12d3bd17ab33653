//! Operations that the kernel does not complete: their requests end, and writes that they could
//! overwrite are not acknowledged. An operation that was queued in the ring but not submitted
//! represents a stuck one.

use super::*;

/// Ends the request with tag 1 by force. Its operation is in the ring.
fn abandon(bench: &mut Bench) -> Completion {
    bench.queue.give_up(&mut |tag| tag == 1);
    let mut batch = CompletionBatch::new();
    assert_eq!(bench.queue.poll(&mut batch), 0, "it is in the kernel");
    bench.queue.abandon(&mut |tag| tag == 1);
    bench.queue.abandon(&mut |tag| tag == 1);
    assert_eq!(bench.queue.poll(&mut batch), 1);
    batch.pop().unwrap()
}

#[test]
fn stuck_write_is_aborted_and_marks_the_device_damaged() {
    for operation in [WRITE, FUA_WRITE, ZEROES, FUA_ZEROES] {
        let mut bench = Bench::new(2);
        let mut other = bench.other_queue();
        let at_rest = bench.taken();
        bench.start_one(operation);
        let taken = bench.taken();
        let completion = abandon(&mut bench);
        assert_eq!(completion.result, Err(DeviceError::Aborted));
        assert!(completion.data.is_none(), "the kernel has the data");
        assert_eq!(bench.taken(), taken, "{operation:?}");
        assert_eq!(
            cause(&bench),
            Some(DamageCause::WriteStuck),
            "{operation:?}"
        );
        std::mem::swap(&mut bench.queue, &mut other);
        for promising in PROMISING {
            assert_eq!(bench.run(promising), Err(DeviceError::Damaged));
        }
        assert_eq!(bench.run(Operation::Read), Ok(()));
        let error = bench.device.reopen().expect_err("the write is still there");
        assert!(
            matches!(error, ReopenError::WriteStuck { writes: 1 }),
            "{error}"
        );
        // The kernel completes the operation later.
        std::mem::swap(&mut bench.queue, &mut other);
        assert_eq!(bench.queue.in_flight(), 1);
        bench.queue.flush();
        let mut batch = CompletionBatch::new();
        while bench.queue.in_flight() > 0 {
            assert_eq!(bench.queue.poll(&mut batch), 0, "it completes once");
        }
        assert_eq!(bench.taken(), at_rest, "{operation:?}");
        bench.device.reopen().unwrap();
        for _ in 0..2 {
            assert_eq!(bench.run(WRITE), Ok(()));
            assert_eq!(bench.run(Operation::Flush), Ok(()));
            std::mem::swap(&mut bench.queue, &mut other);
        }
    }
}

#[test]
fn stuck_read_compare_or_flush_is_no_damage() {
    for operation in [Operation::Read, Operation::Compare, Operation::Flush] {
        let mut bench = Bench::new(2);
        bench.start_one(operation);
        let completion = abandon(&mut bench);
        assert_eq!(
            completion.result,
            Err(DeviceError::Aborted),
            "{operation:?}"
        );
        assert_eq!(cause(&bench), None, "{operation:?}");
        assert_eq!(bench.run(WRITE), Ok(()), "{operation:?}");
        while bench.queue.in_flight() > 0 {
            let mut batch = CompletionBatch::new();
            assert_eq!(bench.queue.poll(&mut batch), 0, "it completes once");
        }
        assert_eq!(cause(&bench), None, "{operation:?}");
    }
}

#[test]
fn stuck_operation_keeps_its_ring_slot_and_delays_drain() {
    let mut bench = Bench::new(1);
    bench.start_one(Operation::Read);
    abandon(&mut bench);
    let request = Request {
        tag: 2,
        operation: Operation::Flush,
        lba: 0,
        blocks: 0,
        data: None,
    };
    let refused = bench.queue.submit(request).expect_err("there is no room");
    let Refusal::Later(request) = refused else {
        panic!("refused for good")
    };
    assert_eq!(bench.queue.drain(), Drain::Outstanding(1));
    bench.queue.flush();
    while bench.queue.drain() != Drain::Done {
        bench.queue.poll(&mut CompletionBatch::new());
    }
    assert!(matches!(
        bench.queue.submit(request),
        Err(Refusal::Never(_, DeviceError::Removed))
    ));
}

/// A failed sync counts as damage even if the host of its flush has disconnected.
#[test]
fn error_of_an_abandoned_sync_is_damage() {
    let mut bench = Bench::new(2);
    bench.start_one(Operation::Flush);
    abandon(&mut bench);
    bench.empty_ring();
    bench.queue.advance(Done {
        tag: 0,
        result: Err(Failure::Errno(Errno::IO)),
        lease: None,
    });
    assert_eq!(cause(&bench), Some(DamageCause::SyncFailed));
    assert_eq!(bench.queue.in_flight(), 0);
}

/// A request that was given up takes no further step, whatever the result of its last one.
#[test]
fn cancelled_write_zeroes_takes_no_further_step() {
    let mut bench = Bench::new(2);
    bench.start_one(ZEROES);
    assert!(matches!(bench.queue.job(0).stage, Stage::Allocate(_)));
    bench.queue.give_up(&mut |tag| tag == 1);
    bench.empty_ring();
    bench.queue.advance(Done {
        tag: 0,
        result: Err(Failure::Errno(Errno::IO)),
        lease: None,
    });
    assert_eq!(bench.wait(1)[0].result, Err(DeviceError::Aborted));
    assert_eq!(bench.queue.in_flight(), 0);
}
