//! Every kind of invalid message, and the explanation of the failure message that answers it (Base
//! 2.1 §8.3.4.5.2 to §8.3.4.5.6).

use nvme_authentication::{
    Action, Failure, Group, Hash, MESSAGE_BYTES_MAX, SecureChannelPolicy, Violation,
};
use nvme_spec::authentication::FailureExplanation;

use crate::rig::{Rig, Side, exponentiation, policy, queue, sent};

const NEVER: SecureChannelPolicy = SecureChannelPolicy::Never;
const REQUIRED: SecureChannelPolicy = SecureChannelPolicy::Required;

/// Bytes of a message before its values; also the position of the first value.
const FIXED: usize = 16;
/// Where a public value begins in a challenge and in a reply with SHA-256.
const CHALLENGE_VALUE: usize = FIXED + 32;
const REPLY_VALUE: usize = FIXED + 2 * 32;

fn assert_refused(action: &Action, id: u8, violation: Violation, explanation: u8) {
    let Action::SendAndFail(message, failure) = action else {
        panic!("expected {violation:?}: {action:?}");
    };
    assert_eq!(*failure, Failure::Refused(violation));
    assert_eq!(message[..2], [0, id]);
    assert_eq!(message[6..], [1, explanation], "{violation:?}");
    assert_eq!(violation.explanation(), FailureExplanation(explanation));
}

fn rig(secure_channel: SecureChannelPolicy) -> Rig {
    let policy = policy(Hash::Sha256, Group::Ffdhe2048, secure_channel);
    Rig::same(&queue(true), &policy)
}

fn negotiate_refused(change: impl Fn(&mut Vec<u8>), violation: Violation, explanation: u8) {
    let mut rig = rig(NEVER);
    let valid = rig.negotiate();
    let mut message = valid.clone();
    change(&mut message);
    let action = rig.controller.take(&message);
    assert_refused(&action, 0xf1, violation, explanation);
    // The transaction has ended: nothing is accepted any more.
    let action = rig.controller.take(&valid);
    assert_refused(&action, 0xf1, Violation::UnexpectedMessage, 7);
}

#[test]
fn negotiate() {
    negotiate_refused(Vec::clear, Violation::Length, 6);
    negotiate_refused(|it| it.truncate(7), Violation::Length, 6);
    negotiate_refused(|it| it.truncate(71), Violation::Length, 6);
    negotiate_refused(|it| it.push(0), Violation::Length, 6);
    let oversized = |it: &mut Vec<u8>| it.resize(MESSAGE_BYTES_MAX + 1, 0);
    negotiate_refused(oversized, Violation::Length, 6);
    negotiate_refused(|it| it[0] = 1, Violation::UnexpectedMessage, 7);
    negotiate_refused(|it| it[1] = 1, Violation::UnexpectedMessage, 7);
    negotiate_refused(|it| it[1] = 0xf0, Violation::UnexpectedMessage, 7);
    negotiate_refused(|it| it[6] = 1, Violation::SecureChannel, 3);
    negotiate_refused(|it| it[6] = 2, Violation::SecureChannel, 3);
    negotiate_refused(|it| it[6] = 3, Violation::SecureChannel, 3);
    negotiate_refused(|it| it[7] = 0, Violation::Lists, 6);
    negotiate_refused(|it| it[7] = 9, Violation::Lists, 6);
    negotiate_refused(|it| it[7] = 2, Violation::Length, 6);
    negotiate_refused(|it| it[8] = 2, Violation::Protocol, 2);
    negotiate_refused(|it| it[10] = 31, Violation::Lists, 6);
    negotiate_refused(|it| it[11] = 31, Violation::Lists, 6);
    negotiate_refused(|it| it[10] = 0, Violation::Hash, 4);
    negotiate_refused(|it| it[12] = 4, Violation::Hash, 4);
    negotiate_refused(|it| it[11] = 0, Violation::Group, 5);
    negotiate_refused(|it| it[42] = 6, Violation::Group, 5);
    negotiate_refused(|it| it[42] = 0, Violation::Group, 5);
}

fn challenge_refused(change: impl Fn(&mut Vec<u8>), violation: Violation, explanation: u8) {
    let mut rig = rig(NEVER);
    let negotiate = rig.negotiate();
    let mut message = sent(rig.controller.take_and_compute(&negotiate));
    change(&mut message);
    let action = rig.host.take(&message);
    assert_refused(&action, 0xf0, violation, explanation);
}

#[test]
fn challenge() {
    challenge_refused(|it| it.truncate(5), Violation::Length, 6);
    challenge_refused(|it| it.truncate(15), Violation::Length, 6);
    challenge_refused(|it| it.truncate(it.len() - 1), Violation::Length, 6);
    challenge_refused(|it| it[1] = 3, Violation::UnexpectedMessage, 7);
    challenge_refused(|it| it[0] = 0, Violation::UnexpectedMessage, 7);
    challenge_refused(|it| it[4] ^= 1, Violation::Transaction, 6);
    challenge_refused(|it| it[6] = 48, Violation::HashLength, 6);
    challenge_refused(|it| it[8] = 2, Violation::Hash, 4);
    challenge_refused(|it| it[9] = 0, Violation::Group, 5);
    challenge_refused(|it| it[10] ^= 4, Violation::PublicValue, 6);
    challenge_refused(|it| it[12..16].fill(0), Violation::SequenceNumber, 6);
    for value in invalid_public_values() {
        let change = |it: &mut Vec<u8>| it[CHALLENGE_VALUE..].copy_from_slice(&value);
        challenge_refused(change, Violation::PublicValue, 6);
    }
}

/// 0, 1, p - 1, p, and the largest value.
fn invalid_public_values() -> [Vec<u8>; 5] {
    let prime: Vec<u8> = (0..256)
        .map(|at| u8::from_str_radix(&FFDHE2048[2 * at..2 * at + 2], 16).unwrap())
        .collect();
    let mut one = vec![0; 256];
    one[255] = 1;
    let mut before = prime.clone();
    before[255] -= 1;
    [vec![0; 256], one, before, prime, vec![0xff; 256]]
}

const FFDHE2048: &str = concat!(
    "FFFFFFFFFFFFFFFFADF85458A2BB4A9AAFDC5620273D3CF1D8B9C583CE2D3695",
    "A9E13641146433FBCC939DCE249B3EF97D2FE363630C75D8F681B202AEC4617A",
    "D3DF1ED5D5FD65612433F51F5F066ED0856365553DED1AF3B557135E7F57C935",
    "984F0C70E0E68B77E2A689DAF3EFE8721DF158A136ADE73530ACCA4F483A797A",
    "BC0AB182B324FB61D108A94BB2C8E3FBB96ADAB760D7F4681D4F42A3DE394DF4",
    "AE56EDE76372BB190B07A7C8EE0A6D709E02FCE1CDF7E2ECC03404CD28342F61",
    "9172FE9CE98583FF8E4F1232EEF28183C3FE3B1B4C6FAD733BB5FCBC2EC22005",
    "C58EF1837D1683B2C6F34A26C1B2EFFA886B423861285C97FFFFFFFFFFFFFFFF",
);

fn reply_refused(
    secure_channel: SecureChannelPolicy,
    change: impl Fn(&mut Vec<u8>, &[u8]),
    violation: Violation,
    explanation: u8,
) {
    let mut rig = rig(secure_channel);
    let negotiate = rig.negotiate();
    let challenge = sent(rig.controller.take_and_compute(&negotiate));
    let mut reply = sent(rig.host.take_and_compute(&challenge));
    change(&mut reply, &challenge);
    let action = rig.controller.take_and_compute(&reply);
    assert_refused(&action, 0xf1, violation, explanation);
}

#[test]
fn reply() {
    let refused = |change: &dyn Fn(&mut Vec<u8>), violation, explanation| {
        reply_refused(NEVER, |it, _| change(it), violation, explanation);
    };
    refused(&|it| it.truncate(15), Violation::Length, 6);
    refused(&|it| it.truncate(it.len() - 1), Violation::Length, 6);
    refused(&|it| it.push(0), Violation::Length, 6);
    refused(&|it| it[1] = 4, Violation::UnexpectedMessage, 7);
    refused(&|it| it[4] ^= 1, Violation::Transaction, 6);
    refused(&|it| it[6] = 64, Violation::HashLength, 6);
    refused(&|it| it[8] = 2, Violation::ReservedValue, 6);
    refused(&|it| it[10..12].fill(0), Violation::PublicValue, 6);
    refused(&|it| it[12..16].fill(0), Violation::SequenceNumber, 6);
    refused(&|it| it[FIXED] ^= 1, Violation::WrongResponse, 1);
    refused(&|it| it[REPLY_VALUE] ^= 1, Violation::WrongResponse, 1);
    for value in invalid_public_values() {
        let change = |it: &mut Vec<u8>| it[REPLY_VALUE..].copy_from_slice(&value);
        refused(&change, Violation::PublicValue, 6);
    }
    let copy = |it: &mut Vec<u8>, challenge: &[u8]| {
        it[FIXED + 32..REPLY_VALUE].copy_from_slice(&challenge[FIXED..FIXED + 32]);
    };
    reply_refused(NEVER, copy, Violation::CopiedChallenge, 1);
    let no_challenge = |it: &mut Vec<u8>, _: &[u8]| it[8] = 0;
    reply_refused(REQUIRED, no_challenge, Violation::NoChallenge, 6);
}

fn success1_refused(change: impl Fn(&mut Vec<u8>), violation: Violation, explanation: u8) {
    let mut rig = rig(NEVER);
    let negotiate = rig.negotiate();
    let challenge = sent(rig.controller.take_and_compute(&negotiate));
    let reply = sent(rig.host.take_and_compute(&challenge));
    let mut success = sent(rig.controller.take_and_compute(&reply));
    change(&mut success);
    let action = rig.host.take(&success);
    assert_refused(&action, 0xf0, violation, explanation);
    // The controller ends too.
    let Action::SendAndFail(message, _) = action else {
        unreachable!()
    };
    assert!(matches!(rig.controller.take(&message), Action::Fail(_)));
}

#[test]
fn success1() {
    success1_refused(|it| it.truncate(15), Violation::Length, 6);
    success1_refused(|it| it.truncate(it.len() - 1), Violation::Length, 6);
    success1_refused(|it| it[1] = 1, Violation::UnexpectedMessage, 7);
    success1_refused(|it| it[4] ^= 1, Violation::Transaction, 6);
    success1_refused(|it| it[6] = 64, Violation::HashLength, 6);
    success1_refused(|it| it[8] = 0, Violation::NoResponse, 1);
    success1_refused(|it| it[8] = 2, Violation::ReservedValue, 6);
    success1_refused(|it| it[FIXED] ^= 1, Violation::WrongResponse, 1);
}

#[test]
fn success2() {
    for (at, value, violation, explanation) in [
        (0, 0, Violation::UnexpectedMessage, 7),
        (1, 2, Violation::UnexpectedMessage, 7),
        (4, 0, Violation::Transaction, 6),
    ] {
        let outcome = rig(NEVER).run(|index, message| {
            if index == 4 {
                message[at] = value;
            }
        });
        let failure = outcome.controller.unwrap().unwrap_err();
        assert_eq!(failure, Failure::Refused(violation));
        assert_eq!(violation.explanation().0, explanation);
    }
}

#[test]
fn a_success_without_the_requested_challenge_is_no_success() {
    let policy = policy(Hash::Sha256, Group::Null, NEVER);
    let outcome = Rig::same(&queue(false), &policy).run(|index, message| {
        if index == 3 {
            message[8] = 1;
        }
    });
    let failure = outcome.host.unwrap().unwrap_err();
    assert_eq!(failure, Failure::Refused(Violation::ReservedValue));
}

#[test]
fn repeated_and_reordered_messages() {
    // A second AUTH_Negotiate while the exponentiation runs, or instead of a reply.
    for is_computed in [false, true] {
        let mut rig = rig(NEVER);
        let negotiate = rig.negotiate();
        let work = exponentiation(rig.controller.take(&negotiate));
        if is_computed {
            sent(rig.controller.give(&work.run()));
        }
        let action = rig.controller.take(&negotiate);
        assert_refused(&action, 0xf1, Violation::UnexpectedMessage, 7);
    }
    // A reply that is sent twice, and one of the transaction before.
    let mut rig = rig(NEVER);
    let mut replies = Vec::new();
    let outcome = rig.run(|index, message| {
        if index == 2 {
            replies.push(message.clone());
        }
    });
    assert!(outcome.controller.unwrap().is_ok());
    let negotiate = rig.negotiate();
    sent(rig.controller.take_and_compute(&negotiate));
    // Even under the same transaction identifier: the challenge differs.
    let action = rig.controller.take_and_compute(&replies[0]);
    assert_refused(&action, 0xf1, Violation::WrongResponse, 1);
    let action = rig.controller.take_and_compute(&replies[0]);
    assert_refused(&action, 0xf1, Violation::UnexpectedMessage, 7);
}
