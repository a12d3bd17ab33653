//! Arbitrary and changed messages.

use nvme_authentication::{Action, Group, Hash, SecureChannelPolicy};
use proptest::prelude::*;

use crate::rig::{Rig, Side, policy, queue};

const NEVER: SecureChannelPolicy = SecureChannelPolicy::Never;

/// Bytes that no side evaluates.
fn is_reserved(index: usize, at: usize) -> bool {
    let is_of_message = match index {
        1 => at == 7,
        2 => at == 7 || at == 9,
        3 => at == 7 || (9..16).contains(&at),
        4 => at >= 6,
        _ => false,
    };
    is_of_message || matches!(at, 2 | 3)
}

/// The proposed algorithms, which no response covers: a changed proposal selects another permitted
/// algorithm, so the policies of both sides are what prevents a downgrade.
fn is_proposal(index: usize, at: usize) -> bool {
    index == 0 && at >= 9
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic_and_never_authenticate(
        valid in 0_usize..3,
        header in prop::sample::select(vec![[0_u8, 0], [1, 1], [1, 2], [1, 3], [1, 4], [0, 0xf0]]),
        mut bytes in prop::collection::vec(any::<u8>(), 0..1400),
        is_shaped in any::<bool>(),
    ) {
        if is_shaped && bytes.len() > 6 {
            bytes[..2].copy_from_slice(&header);
            bytes[4..6].copy_from_slice(&crate::rig::TRANSACTION.to_le_bytes());
        }
        let policy = policy(Hash::Sha256, Group::Null, NEVER);
        let mut rig = Rig::same(&queue(true), &policy);
        let outcome = rig.run(|index, message| {
            if index >= valid {
                message.clone_from(&bytes);
            }
        });
        prop_assert!(!matches!(outcome.controller, Some(Ok(_))));
        prop_assert!(!matches!(outcome.host, Some(Ok(_))));
        prop_assert!(!matches!(rig.controller.take(&bytes), Action::Finish(_)));
    }

    #[test]
    fn a_changed_message_never_authenticates_both(
        index in 0_usize..5,
        at in any::<prop::sample::Index>(),
        bit in 0_u8..8,
    ) {
        let policy = policy(Hash::Sha256, Group::Null, NEVER);
        let (mut reserved, mut proposal) = (false, false);
        let outcome = Rig::same(&queue(true), &policy).run(|current, message| {
            if current == index {
                let at = at.index(message.len());
                message[at] ^= 1 << bit;
                reserved = is_reserved(index, at);
                proposal = is_proposal(index, at);
            }
        });
        let both = matches!((&outcome.host, &outcome.controller), (Some(Ok(_)), Some(Ok(_))));
        prop_assert!(proposal || both == reserved, "{:?}", outcome);
    }
}
