//! Cases about requests that fail, and about the requests queued after them.

use std::slice;

use super::harness::{Harness, MEMORY_BYTES, Pair, PairOptions, REQUESTS, arena, memory, pattern};
use rdma::{
    Access, CompletionStatus, Device, Domain, Error, MemoryRange, Payload, PostError, Provider,
    QueuePair, QueuePairState, ReceiveRequest, RemoteAddress, SendOperation, SendRequest, SgeList,
    Token,
};

/// Checks that the client's access to `remote` fails and changes no memory.
fn assert_refused<P: Provider>(
    harness: &mut Harness<'_, P>,
    mut pair: Pair<P>,
    operation: SendOperation,
) {
    let before = pattern(MEMORY_BYTES, 3);
    pair.server.memory.fill(0, MEMORY_BYTES, 3);
    pair.client.post(1, operation, (0, 64));
    let status = CompletionStatus::REMOTE_ACCESS_ERROR;
    harness.expect(&mut pair.client, 1, status);
    let state = pair.client.queue_pair.state().expect("a state");
    assert_eq!(state, QueuePairState::Error);
    assert_eq!(pair.server.memory.bytes(0, MEMORY_BYTES), before);
}

pub(super) fn a_wrong_remote_key_is_an_access_error<P: Provider>(harness: &mut Harness<'_, P>) {
    for read in [false, true] {
        let pair = harness.pair();
        let remote = RemoteAddress {
            rkey: pair.server.memory.remote(0).rkey ^ 0x00ff_ff00,
            ..pair.server.memory.remote(0)
        };
        let operation = match read {
            true => SendOperation::Read(remote),
            false => SendOperation::Write(remote),
        };
        assert_refused(harness, pair, operation);
    }
}

pub(super) fn writing_beyond_a_registration_is_an_access_error<P: Provider>(
    harness: &mut Harness<'_, P>,
) {
    let pair = harness.pair();
    let remote = pair.server.memory.remote(MEMORY_BYTES - 63);
    assert_refused(harness, pair, SendOperation::Write(remote));
    let pair = harness.pair();
    let mut remote = pair.server.memory.remote(0);
    remote.address -= 1;
    assert_refused(harness, pair, SendOperation::Read(remote));
    let pair = harness.pair();
    let mut remote = pair.server.memory.remote(0);
    remote.address = u64::MAX - 16;
    assert_refused(harness, pair, SendOperation::Write(remote));
}

pub(super) fn writing_without_the_right_is_an_access_error<P: Provider>(
    harness: &mut Harness<'_, P>,
) {
    let options = PairOptions {
        access: Access {
            local_write: true,
            remote_read: true,
            ..Access::default()
        },
        ..PairOptions::default()
    };
    let mut pair = harness.pair_with(options).0;
    pair.server.memory.fill(0, 64, 9);
    let read = SendOperation::Read(pair.server.memory.remote(0));
    pair.client.post(1, read, (128, 64));
    harness.expect_success(&mut pair.client, 1);
    assert_eq!(pair.client.memory.bytes(128, 64), pattern(64, 9));
    let write = SendOperation::Write(pair.server.memory.remote(0));
    assert_refused(harness, pair, write);

    let options = PairOptions {
        access: Access::LOCAL,
        ..PairOptions::default()
    };
    let pair = harness.pair_with(options).0;
    let read = SendOperation::Read(pair.server.memory.remote(0));
    assert_refused(harness, pair, read);
}

pub(super) fn a_registration_that_ended_is_an_access_error<P: Provider>(
    harness: &mut Harness<'_, P>,
) {
    let mut pair = harness.pair();
    let other = memory::<P>(&pair.server.domain, 4096, Access::REMOTE);
    let remote = other.remote(0);
    pair.client.memory.fill(0, 64, 2);
    pair.client.post(7, SendOperation::Write(remote), (0, 64));
    harness.expect_success(&mut pair.client, 7);
    assert_eq!(other.bytes(0, 64), pattern(64, 2));
    drop(other);
    assert_refused(harness, pair, SendOperation::Write(remote));
}

pub(super) fn a_wrong_local_key_is_a_protection_error<P: Provider>(harness: &mut Harness<'_, P>) {
    let Pair {
        mut server,
        mut client,
        listener: _listener,
    } = harness.pair();
    server.receive(1, 0, 4096);
    let piece = client.memory.piece(0, 64);
    let piece = piece.with_lkey(piece.lkey() ^ 0x00ff_ff00);
    let send = SendRequest::new(
        2,
        SendOperation::Send,
        Payload::Memory(slice::from_ref(&piece)),
    );
    client.queue_pair.queue_send(&send).expect("queued");
    let refused_at_once = client.queue_pair.flush();
    match refused_at_once {
        Ok(()) => {
            let failed = harness.completion("the failure", &mut client.completions);
            // Soft RoCE does not report the reason, and flushes the request itself.
            let possible = [
                CompletionStatus::LOCAL_PROTECTION_ERROR,
                CompletionStatus::FLUSHED,
            ];
            assert_eq!(failed.wr_id, 2);
            assert!(possible.contains(&failed.status), "{failed:?}");
            let state = client.queue_pair.state().expect("a state");
            assert_eq!(state, QueuePairState::Error);
        }
        // A software device may check the key when the request is posted.
        Err(error) => assert_eq!((error.first_wr_id, error.refused), (2, 1)),
    }
}

pub(super) fn a_message_longer_than_its_receive_fails_on_both_sides<P: Provider>(
    harness: &mut Harness<'_, P>,
) {
    let mut pair = harness.pair();
    let Pair { server, client, .. } = &mut pair;
    server.receive(1, 0, 64);
    server.memory.fill(64, 64, 8);
    client.post(2, SendOperation::Send, (0, 65));
    let sent = harness.completion("the message", &mut client.completions);
    // With InfiniBand the peer responds with an invalid request error; soft RoCE responds with an
    // operation error.
    let possible = [
        CompletionStatus::REMOTE_INVALID_REQUEST,
        CompletionStatus::REMOTE_OPERATION_ERROR,
    ];
    assert_eq!(sent.wr_id, 2);
    assert!(possible.contains(&sent.status), "{sent:?}");
    let received = harness.completion("the receive", &mut server.completions);
    assert_eq!(received.wr_id, 1);
    assert!(!received.is_success(), "{received:?}");
    let beyond = server.memory.bytes(64, 64);
    assert_eq!(beyond, pattern(64, 8), "nothing behind the receive");
}

pub(super) fn without_a_receive_a_message_waits<P: Provider>(harness: &mut Harness<'_, P>) {
    let mut pair = harness.pair();
    let Pair { server, client, .. } = &mut pair;
    client.memory.fill(0, 64, 4);
    client.post(1, SendOperation::Send, (0, 64));
    harness.expect_nothing(client);
    server.receive(2, 128, 64);
    harness.expect_success(server, 2);
    harness.expect_success(client, 1);
    assert_eq!(server.memory.bytes(128, 64), pattern(64, 4));
}

pub(super) fn without_a_receive_retries_end<P: Provider>(harness: &mut Harness<'_, P>) {
    let options = PairOptions {
        rnr_retries: 1,
        ..PairOptions::default()
    };
    let mut pair = harness.pair_with(options).0;
    pair.client.queue(1, SendOperation::Send, (0, 64), false);
    pair.client.queue(2, SendOperation::Send, (0, 64), false);
    pair.client.queue_pair.flush().expect("posted");
    let status = CompletionStatus::RNR_RETRIES_EXCEEDED;
    harness.expect(&mut pair.client, 1, status);
    harness.expect(&mut pair.client, 2, CompletionStatus::FLUSHED);
}

pub(super) fn work_behind_an_error_is_flushed_in_order<P: Provider>(harness: &mut Harness<'_, P>) {
    let mut pair = harness.pair();
    let Pair { server, client, .. } = &mut pair;
    for wr_id in 100..110 {
        client.receive(wr_id, 0, 64);
    }
    let good = server.memory.remote(0);
    let bad = RemoteAddress {
        rkey: good.rkey ^ 0x00ff_ff00,
        ..good
    };
    client.memory.fill(0, 64, 6);
    client.queue(1, SendOperation::Write(good), (0, 64), true);
    client.queue(2, SendOperation::Write(good), (0, 64), false);
    client.queue(3, SendOperation::Write(bad), (0, 64), false);
    client.queue(4, SendOperation::Write(good), (0, 64), false);
    client.queue(5, SendOperation::Send, (0, 64), true);
    client.queue_pair.flush().expect("posted");
    harness.expect_success(client, 1);
    harness.expect(client, 3, CompletionStatus::REMOTE_ACCESS_ERROR);
    // Sends and receives are each flushed in order; their relative order is unspecified.
    let mut sends = vec![];
    let mut receives = vec![];
    for _ in 0..12 {
        let flushed = harness.completion("flushed work", &mut client.completions);
        assert_eq!(flushed.status, CompletionStatus::FLUSHED, "{flushed:?}");
        assert_eq!(flushed.qp_number, client.queue_pair.number());
        match flushed.wr_id {
            wr_id @ ..100 => sends.push(wr_id),
            wr_id => receives.push(wr_id),
        }
    }
    assert_eq!(sends, [4, 5]);
    assert_eq!(receives, (100..110).collect::<Vec<u64>>());
    assert_eq!(server.memory.bytes(0, 64), pattern(64, 6));
    harness.expect_nothing(client);
}

pub(super) fn an_error_state_flushes_what_is_posted_later<P: Provider>(
    harness: &mut Harness<'_, P>,
) {
    let mut pair = harness.pair();
    let Pair { client, .. } = &mut pair;
    client.receive(1, 0, 64);
    client.queue_pair.set_error().expect("an order");
    harness.expect(client, 1, CompletionStatus::FLUSHED);
    let state = client.queue_pair.state().expect("a state");
    assert_eq!(state, QueuePairState::Error);
    client.receive(2, 0, 64);
    harness.expect(client, 2, CompletionStatus::FLUSHED);
    client.post(3, SendOperation::Send, (0, 64));
    harness.expect(client, 3, CompletionStatus::FLUSHED);
}

pub(super) fn a_destroyed_queue_pair_takes_nothing_more<P: Provider>(harness: &mut Harness<'_, P>) {
    let mut pair = harness.pair();
    let client = &mut pair.client;
    client.receive(1, 0, 64);
    client.queue_pair.destroy().expect("destroyed");
    client.queue_pair.destroy().expect("it says the same again");
    client.queue_pair.state().expect_err("it is gone");
    client.queue(2, SendOperation::Send, (0, 64), true);
    let _ = client.queue_pair.flush();
    harness.expect_nothing(client);
}

pub(super) fn limits_are_refused_by_name<P: Provider>(harness: &mut Harness<'_, P>) {
    let mut pair = harness.pair();
    let client = &mut pair.client;
    let limits = *client.domain.device().limits();
    let is_limit = |error: &Error| matches!(error, Error::Limit { .. });
    if let Some(entries) = limits.completion_queue_entries.checked_add(1) {
        let refused = client.domain.create_completion_queue(entries, Token(1));
        let error = refused.expect_err("more than there are");
        assert!(is_limit(&error), "{error:?}");
    }
    if let Some(requests) = limits.shared_receive_requests.checked_add(1) {
        let queue = client
            .domain
            .create_shared_receive_queue(requests, 1, Token(1));
        let error = queue.expect_err("more than there are");
        assert!(is_limit(&error), "{error:?}");
    }
    let capacity = client.queue_pair.capacity();
    let long = vec![0; capacity.inline_bytes as usize + 1];
    let send = SendRequest::new(1, SendOperation::Send, Payload::Inline(&long));
    let refused = client.queue_pair.queue_send(&send);
    assert_eq!(refused, Err(PostError::InlineTooLong));
    let read = SendOperation::Read(client.memory.remote(0));
    let read = SendRequest::new(1, read, Payload::Inline(&[0; 1]));
    let refused = client.queue_pair.queue_send(&read);
    assert_eq!(refused, Err(PostError::InlineTooLong));
    let mut many = SgeList::EMPTY;
    while many.as_slice().len() <= capacity.receive_sges as usize {
        if many.push(client.memory.piece(0, 64)).is_err() {
            break;
        }
    }
    if many.as_slice().len() > capacity.receive_sges as usize {
        let receive = ReceiveRequest {
            wr_id: 1,
            memory: many,
        };
        let refused = client.queue_pair.queue_receive(&receive);
        assert_eq!(refused, Err(PostError::TooManyPieces));
    }
    // The rejected requests are not posted.
    client.queue_pair.flush().expect("nothing to post");
    harness.expect_nothing(client);
    let arena = arena();
    let registered = client.domain.register(
        MemoryRange::of_region(arena.region(), 0..4096),
        Access {
            remote_write: true,
            ..Access::default()
        },
    );
    registered.expect_err("remote writing needs local writing");
    assert!(capacity.send_requests >= REQUESTS);
}
