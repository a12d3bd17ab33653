//! The formulas of responses and keys (Base 2.1 §8.3.4.5.4 and §8.3.4.5.5).

use aws_lc_rs::{constant_time, digest, hmac};
use nvme_spec::authentication::SecureChannel;
use zeroize::Zeroizing;

use crate::{Hash, Key, Queue};

/// Who answers a challenge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Host,
    Controller,
}

/// What a response covers beside the identities.
pub(crate) struct Challenged<'a> {
    pub(crate) hash: Hash,
    /// Empty with the null group.
    pub(crate) session_key: &'a [u8],
    pub(crate) challenge: &'a [u8],
    pub(crate) sequence: u32,
    pub(crate) transaction: u16,
    pub(crate) secure_channel: SecureChannel,
}

/// `HMAC(key, parts)`.
pub(crate) fn keyed_hash(hash: Hash, key: &[u8], parts: &[&[u8]]) -> Zeroizing<Vec<u8>> {
    let key = hmac::Key::new(hash.hmac(), key);
    let mut context = hmac::Context::with_key(&key);
    for part in parts {
        context.update(part);
    }
    Zeroizing::new(context.sign().as_ref().to_vec())
}

/// `KS = H(g^xy mod p)`, with the shared value as long as the prime.
pub(crate) fn session_key(hash: Hash, shared: &[u8]) -> Zeroizing<Vec<u8>> {
    Zeroizing::new(digest::digest(hash.digest(), shared).as_ref().to_vec())
}

/// The response of a side: R1 of the host, R2 of the controller.
pub(crate) fn response(
    side: Side,
    key: &Key,
    queue: &Queue,
    of: &Challenged<'_>,
) -> Zeroizing<Vec<u8>> {
    let augmented = if of.session_key.is_empty() {
        Zeroizing::new(of.challenge.to_vec())
    } else {
        keyed_hash(of.hash, of.session_key, &[of.challenge])
    };
    let (host, subsystem) = (queue.host_nqn.as_bytes(), queue.subsystem_nqn.as_bytes());
    let (role, own, other): (&[u8], _, _) = match side {
        Side::Host => (b"HostHost", host, subsystem),
        Side::Controller => (b"Controller", subsystem, host),
    };
    let parts: [&[u8]; 8] = [
        &augmented,
        &of.sequence.to_le_bytes(),
        &of.transaction.to_le_bytes(),
        &[of.secure_channel.0],
        role,
        own,
        &[0],
        other,
    ];
    keyed_hash(of.hash, key.bytes(), &parts)
}

/// Compares in constant time.
pub(crate) fn is_equal(left: &[u8], right: &[u8]) -> bool {
    constant_time::verify_slices_are_equal(left, right).is_ok()
}

#[cfg(test)]
mod tests;
