//! DH-HMAC-CHAP of both sides: messages that the input chooses, changes, repeats or omits. Nobody
//! without the key is authenticated, and nobody is authenticated by a changed response.

use nvme_authentication::{
    Action, Channel, Group, Initiator, Key, MESSAGE_BYTES_MAX, Policy, Queue, Random,
    RandomUnavailable, Responder,
};

use crate::input::Input;

/// Most steps of one input.
const STEPS_MAX: usize = 32;

/// Bytes that the input determines (xorshift64*).
struct Seeded(u64);

impl Random for Seeded {
    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), RandomUnavailable> {
        for byte in bytes {
            self.0 ^= self.0 >> 12;
            self.0 ^= self.0 << 25;
            self.0 ^= self.0 >> 27;
            *byte = (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 56) as u8;
        }
        Ok(())
    }
}

fn queue(key: u8, controller_key: Option<u8>) -> Queue {
    let key_of = |byte| Key::new(&[byte; 32]).expect("a length that fits");
    Queue {
        host_nqn: "nqn.2026-11.org.example:host".to_owned(),
        subsystem_nqn: "nqn.2026-11.org.example:subsystem".to_owned(),
        is_admin: true,
        channel: Channel::Plain,
        host_keys: [key_of(key)].into_iter().collect(),
        controller_key: controller_key.map(key_of),
    }
}

/// How one side has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    None,
    Authenticated,
    Failed,
}

/// The message and the end that an action has.
fn outcome(action: Action) -> (Option<Vec<u8>>, End) {
    let (message, end) = match action {
        Action::Send(message) => (Some(message), End::None),
        Action::SendAndFinish(message, _) => (Some(message), End::Authenticated),
        Action::Finish(_) => (None, End::Authenticated),
        Action::SendAndFail(message, _) => (Some(message), End::Failed),
        Action::Fail(_) => (None, End::Failed),
        Action::Stale | Action::Compute(_) => (None, End::None),
    };
    if let Some(message) = &message {
        assert!((8..=MESSAGE_BYTES_MAX).contains(&message.len()));
    }
    (message, end)
}

/// Reads the keys of both sides, and a change for each message.
pub(crate) fn run(input: &[u8]) {
    let mut input = Input::new(input);
    let mut random = Seeded(input.u64() | 1);
    let has_key = input.one_in(2);
    let is_bidirectional = input.one_in(2);
    let group = match input.one_in(8) {
        true => Group::Ffdhe2048,
        false => Group::Null,
    };
    let policy = Policy {
        groups: [group].into_iter().collect(),
        transaction_ms_max: 100,
        ..Policy::default()
    };
    let own = is_bidirectional.then_some(9);
    let key = if has_key { 1 } else { 2 };
    let mut host = Initiator::new(queue(key, own), policy.clone());
    let mut controller = Responder::new(queue(1, Some(9)), policy, 0);
    let mut now_ms = 0;
    let mut is_honest = true;
    let mut is_proven = false;
    let mut message = outcome(host.start(input.u16(), now_ms)).0;
    let mut last = Vec::new();
    let mut is_over = false;
    for step in 0..STEPS_MAX {
        if input.is_empty() && !is_honest {
            break;
        }
        let mut bytes = message.take().unwrap_or_default();
        is_honest &= !change(&mut input, &mut bytes, &mut last, &mut now_ms);
        if step % 2 == 1 {
            let action = match host.receive(&bytes, &mut random, now_ms) {
                Action::Compute(work) => host.computed(&work.run(), &mut random, now_ms),
                action => action,
            };
            message = outcome(action).0;
            continue;
        }
        let action = match controller.receive(&bytes, &mut random, now_ms) {
            Action::Compute(work) => controller.computed(&work.run(), &mut random, now_ms),
            action => action,
        };
        let (answer, end) = outcome(action);
        assert!(
            !is_over || end == End::Failed,
            "a failed side does not continue"
        );
        match end {
            End::None => {}
            End::Failed => is_over = true,
            End::Authenticated => {
                assert!(has_key, "a host without the key is authenticated");
                is_proven = true;
            }
        }
        message = answer;
        if message.is_none() {
            break;
        }
    }
    if is_honest {
        assert_eq!(is_proven, has_key, "an unchanged exchange");
    }
}

/// Changes a message as the input chooses. Returns whether it, or the time, has changed.
fn change(
    input: &mut Input<'_>,
    bytes: &mut Vec<u8>,
    last: &mut Vec<u8>,
    now_ms: &mut u64,
) -> bool {
    let before = bytes.clone();
    match input.below(16) {
        1 => {
            let place = usize::from(input.u16()) % bytes.len().max(1);
            let flips = input.u8();
            if let Some(byte) = bytes.get_mut(place) {
                *byte ^= flips;
            }
        }
        2 => bytes.truncate(usize::from(input.u16()) % (bytes.len() + 1)),
        3 => bytes.extend_from_slice(input.bytes()),
        4 => bytes.clone_from(last),
        5 => {
            *bytes = input.bytes().to_vec();
        }
        6 => {
            // Type and identifier of any message, in front of any bytes.
            let (kind, id) = (input.one_in(2), input.u8());
            *bytes = [&[u8::from(kind), id], input.bytes()].concat();
        }
        7 => {
            *now_ms += u64::from(input.u8());
            last.clone_from(&before);
            return true;
        }
        _ => {}
    }
    last.clone_from(&before);
    *bytes != before
}
