//! Exchanges that succeed or fail for a reason that is not in a message.

use nvme_authentication::{
    Action, Channel, Failure, Group, Hash, Key, Policy, ProposedNullGroup, Queue,
    SecureChannelPolicy, Violation,
};
use nvme_spec::authentication::{FailureExplanation, FailureReason, SecureChannel};

use crate::rig::{Outcome, Rig, Side, exponentiation, policy, queue, sent};

const NEVER: SecureChannelPolicy = SecureChannelPolicy::Never;
const REQUIRED: SecureChannelPolicy = SecureChannelPolicy::Required;

fn assert_success(outcome: &Outcome, hash: Hash, group: Group, bidirectional: bool) {
    for side in [&outcome.host, &outcome.controller] {
        let side = side.as_ref().unwrap().as_ref().unwrap();
        assert_eq!(
            (side.hash, side.group, side.bidirectional),
            (hash, group, bidirectional)
        );
    }
}

#[test]
fn every_hash_group_and_direction_authenticates() {
    for group in Group::ALL {
        for hash in Hash::ALL {
            let is_large = matches!(group, Group::Ffdhe6144 | Group::Ffdhe8192);
            if is_large && hash != Hash::Sha384 {
                continue;
            }
            for bidirectional in [false, true] {
                let mut rig = Rig::same(&queue(bidirectional), &policy(hash, group, NEVER));
                let outcome = rig.run(|_, _| ());
                assert_success(&outcome, hash, group, bidirectional);
                assert_eq!(rig.controller.deadline_ms(), None);
                // Again on the same queue.
                rig.transaction += 1;
                assert_success(&rig.run(|_, _| ()), hash, group, bidirectional);
            }
        }
    }
}

#[test]
fn a_secure_channel_gives_both_sides_the_same_key() {
    for (channel, requested) in [
        (Channel::Plain, SecureChannel::NEW_TLS_PSK),
        (Channel::Tls, SecureChannel::REPLACE_TLS_PSK),
    ] {
        for bidirectional in [false, true] {
            let mut queue = queue(bidirectional);
            queue.channel = channel;
            let policy = policy(Hash::Sha256, Group::Ffdhe2048, REQUIRED);
            let outcome = Rig::same(&queue, &policy).run(|_, _| ());
            assert_success(&outcome, Hash::Sha256, Group::Ffdhe2048, bidirectional);
            let psk = |side: Option<Result<_, _>>| {
                let side: nvme_authentication::Authenticated = side.unwrap().unwrap();
                side.psk.unwrap()
            };
            let (host, controller) = (psk(outcome.host), psk(outcome.controller));
            assert!(host == controller);
            assert_eq!(host.secure_channel, requested);
            assert_eq!(host.bytes().len(), 32);
        }
    }
}

fn refused_with(outcome: &Outcome, violation: Violation) {
    let failure = outcome.controller.as_ref().unwrap().as_ref().unwrap_err();
    assert_eq!(*failure, Failure::Refused(violation));
    let by_peer = Failure::RefusedByPeer {
        reason: FailureReason::AUTHENTICATION_FAILURE,
        explanation: violation.explanation(),
    };
    assert_eq!(
        outcome.host.as_ref().unwrap().as_ref().unwrap_err(),
        &by_peer
    );
}

#[test]
fn wrong_keys_fail() {
    let policy = policy(Hash::Sha256, Group::Null, NEVER);
    let mut other = queue(false);
    other.host_keys = [Key::new(&[3; 32]).unwrap()].into_iter().collect();
    let mut rig = Rig::new((other, policy.clone()), (queue(false), policy.clone()));
    refused_with(&rig.run(|_, _| ()), Violation::WrongResponse);

    let mut rig = Rig::new(
        (queue(true), policy.clone()),
        (queue(false), policy.clone()),
    );
    refused_with(&rig.run(|_, _| ()), Violation::NoControllerKey);

    let mut other = queue(true);
    other.controller_key = Some(Key::new(&[3; 32]).unwrap());
    let outcome = Rig::new((other, policy.clone()), (queue(true), policy)).run(|_, _| ());
    let failure = outcome.host.unwrap().unwrap_err();
    assert_eq!(failure, Failure::Refused(Violation::WrongResponse));
    let failure = outcome.controller.unwrap().unwrap_err();
    let explanation = FailureExplanation::AUTHENTICATION_FAILED;
    assert!(matches!(failure, Failure::RefusedByPeer { explanation: it, .. } if it == explanation));
}

#[test]
fn any_key_of_a_host_authenticates_it() {
    let policy = policy(Hash::Sha256, Group::Null, NEVER);
    let mut both = queue(false);
    both.host_keys = [[3; 32], [1; 32]]
        .iter()
        .map(|bytes| Key::new(bytes).unwrap())
        .collect();
    let run = |controller: &_, host| {
        Rig::new(
            (host, policy.clone()),
            (Queue::clone(controller), policy.clone()),
        )
        .run(|_, _| ())
    };
    let outcome = run(&both, queue(false));
    assert_eq!(outcome.controller.unwrap().unwrap().host_key, 1);
    let mut first = queue(false);
    first.host_keys = [Key::new(&[3; 32]).unwrap()].into_iter().collect();
    let outcome = run(&both, first);
    assert_eq!(outcome.controller.unwrap().unwrap().host_key, 0);

    let mut none = queue(false);
    none.host_keys.clear();
    refused_with(&run(&none, queue(false)), Violation::NoHostKey);
}

#[test]
fn keys_change_between_transactions_only() {
    let policy = policy(Hash::Sha256, Group::Null, NEVER);
    let mut rig = Rig::same(&queue(false), &policy);
    let new =
        || -> arrayvec::ArrayVec<Key, 4> { [Key::new(&[3; 32]).unwrap()].into_iter().collect() };
    let message = rig.negotiate();
    let _ = sent(rig.controller.take(&message));
    assert!(!rig.controller.configure(new(), None, policy.clone()));
    let mut rig = Rig::same(&queue(false), &policy);
    assert!(rig.controller.configure(new(), None, policy.clone()));
    refused_with(&rig.run(|_, _| ()), Violation::WrongResponse);
}

#[test]
fn a_new_policy_is_that_of_the_next_transaction() {
    let weak = policy(Hash::Sha256, Group::Null, NEVER);
    let mut rig = Rig::same(&queue(false), &weak);
    let strong = policy(Hash::Sha256, Group::Ffdhe2048, NEVER);
    let keys = queue(false).host_keys;
    assert!(rig.controller.configure(keys, None, strong));
    refused_with(&rig.run(|_, _| ()), Violation::Group);
}

#[test]
fn the_policy_decides_hash_group_and_channel() {
    let weak = policy(Hash::Sha256, Group::Null, NEVER);
    let run = |host: &Policy, controller: &Policy, is_admin| {
        let mut queue = queue(false);
        queue.is_admin = is_admin;
        Rig::new((queue.clone(), host.clone()), (queue, controller.clone())).run(|_, _| ())
    };
    let strong_hash = policy(Hash::Sha384, Group::Null, NEVER);
    refused_with(&run(&weak, &strong_hash, true), Violation::Hash);
    let strong_group = policy(Hash::Sha256, Group::Ffdhe3072, NEVER);
    refused_with(&run(&weak, &strong_group, true), Violation::Group);
    let channel = policy(Hash::Sha256, Group::Ffdhe2048, REQUIRED);
    let no_channel = policy(Hash::Sha256, Group::Ffdhe2048, NEVER);
    refused_with(&run(&no_channel, &channel, true), Violation::SecureChannel);
    refused_with(&run(&channel, &no_channel, true), Violation::SecureChannel);
    // I/O queues have no secure channel concatenation.
    assert_success(
        &run(&channel, &channel, false),
        Hash::Sha256,
        Group::Ffdhe2048,
        false,
    );
}

/// Base 2.1 §8.3.4.5.2: the null group must not be proposed with a secure channel.
#[test]
fn a_proposed_null_group_with_a_secure_channel_is_refused_or_ignored() {
    let propose_null = |index, message: &mut Vec<u8>| {
        if index == 0 {
            let groups = usize::from(message[11]);
            message[42 + groups] = 0;
            message[11] += 1;
        }
    };
    let mut policy = policy(Hash::Sha256, Group::Ffdhe2048, REQUIRED);
    policy.groups.push(Group::Null);
    let outcome = Rig::same(&queue(false), &policy).run(propose_null);
    refused_with(&outcome, Violation::Group);
    policy.proposed_null_group = ProposedNullGroup::Ignore;
    let outcome = Rig::same(&queue(false), &policy).run(propose_null);
    assert_success(&outcome, Hash::Sha256, Group::Ffdhe2048, false);
}

#[test]
fn a_late_transaction_fails() {
    let policy = policy(Hash::Sha256, Group::Ffdhe2048, NEVER);
    let mut rig = Rig::same(&queue(false), &policy);
    assert_eq!(rig.controller.deadline_ms(), Some(1000));
    assert!(rig.controller.expire(999).is_none());
    let negotiate = rig.negotiate();
    assert_eq!(rig.host.deadline_ms(), Some(1001));
    let late = exponentiation(rig.controller.take(&negotiate)).run();
    let random = &mut nvme_authentication::SystemRandom;
    let timed_out = Failure::Refused(Violation::TimedOut);
    let action = rig.controller.computed(&late, random, 1000);
    assert!(matches!(action, Action::SendAndFail(_, failure) if failure == timed_out));
    assert!(rig.controller.expire(5000).is_none());
    let action = rig.host.receive(&[], random, 1001);
    assert!(matches!(action, Action::SendAndFail(_, failure) if failure == timed_out));
}

#[test]
fn a_result_that_is_not_expected_changes_nothing() {
    let policy = policy(Hash::Sha256, Group::Ffdhe2048, NEVER);
    let mut rig = Rig::same(&queue(false), &policy);
    let negotiate = rig.negotiate();
    let result = exponentiation(rig.controller.take(&negotiate)).run();
    let challenge = sent(rig.controller.give(&result));
    assert!(matches!(rig.controller.give(&result), Action::Stale));
    let reply = sent(rig.host.take_and_compute(&challenge));
    let action = rig.controller.take_and_compute(&reply);
    assert!(matches!(action, Action::SendAndFinish(..)));
}
