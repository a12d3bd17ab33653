//! Finite-field Diffie-Hellman as a value that another thread computes (Base 2.1 §8.3.4.5.3,
//! §8.3.4.5.4).
//!
//! The exponentiation takes constant time for an exponent of the group's length.

use core::fmt;

use crypto_bigint::modular::{FixedMontyForm, FixedMontyParams};
use crypto_bigint::{Odd, U448, U2048, U3072, U4096, U6144, U8192, Uint};
use zeroize::{Zeroize, Zeroizing};

use crate::{Group, Hash, Random, RandomUnavailable, formulas, primes};

const GENERATOR: u8 = 2;
const EXPONENT_BYTES: usize = 56;
const EXPONENT_LIMBS: usize = U448::LIMBS;

/// A private exponent, big-endian.
pub(crate) type Exponent = Zeroizing<[u8; EXPONENT_BYTES]>;

/// The place of an exponent that is not known or no longer needed.
pub(crate) fn no_exponent() -> Exponent {
    Zeroizing::new([0; EXPONENT_BYTES])
}

/// The length of private exponents, bits: the lengths of RFC 7919, which match the strengths of the
/// groups, but at least 256 (Base 2.1 §8.3.4.5.3 and §8.3.4.5.4).
const fn exponent_bits(group: Group) -> u32 {
    match group {
        Group::Null => 0,
        Group::Ffdhe2048 => 256,
        Group::Ffdhe3072 => 275,
        Group::Ffdhe4096 => 325,
        Group::Ffdhe6144 => 375,
        Group::Ffdhe8192 => 400,
    }
}
const _: () = assert!(exponent_bits(Group::Ffdhe8192) as usize <= 8 * EXPONENT_BYTES);

/// A private exponent of exactly [`exponent_bits`] bits, big-endian.
pub(crate) fn random_exponent(
    group: Group,
    random: &mut dyn Random,
) -> Result<Exponent, RandomUnavailable> {
    let mut exponent = Zeroizing::new([0; EXPONENT_BYTES]);
    random.fill(&mut exponent[..])?;
    let bits = exponent_bits(group) as usize;
    for (index, byte) in exponent.iter_mut().rev().enumerate() {
        let bits_of_byte = bits.saturating_sub(8 * index).min(8);
        *byte &= ((1_u16 << bits_of_byte) - 1) as u8;
        if bits_of_byte > 0 && 8 * index + bits_of_byte == bits {
            *byte |= 1 << (bits_of_byte - 1);
        }
    }
    Ok(exponent)
}

/// Whether a public value has the group's length and is not 0, 1, p - 1 or larger.
pub(crate) fn is_valid_public_value(group: Group, value: &[u8]) -> bool {
    fn check<const LIMBS: usize>(prime: &str, value: &[u8]) -> bool {
        let prime = Uint::<LIMBS>::from_be_hex(prime);
        let value = Uint::<LIMBS>::from_be_slice(value);
        value > Uint::ONE && value < prime.wrapping_sub(&Uint::ONE)
    }
    if value.len() != usize::from(group.public_value_len()) {
        return false;
    }
    match group {
        Group::Null => true,
        Group::Ffdhe2048 => check::<{ U2048::LIMBS }>(primes::FFDHE2048, value),
        Group::Ffdhe3072 => check::<{ U3072::LIMBS }>(primes::FFDHE3072, value),
        Group::Ffdhe4096 => check::<{ U4096::LIMBS }>(primes::FFDHE4096, value),
        Group::Ffdhe6144 => check::<{ U6144::LIMBS }>(primes::FFDHE6144, value),
        Group::Ffdhe8192 => check::<{ U8192::LIMBS }>(primes::FFDHE8192, value),
    }
}

/// `base^exponent mod p`, as long as the prime.
fn power(group: Group, base: &[u8], exponent: &Exponent) -> Zeroizing<Vec<u8>> {
    fn compute<const LIMBS: usize>(
        prime: &str,
        base: &[u8],
        exponent: &Exponent,
        bits: u32,
    ) -> Zeroizing<Vec<u8>> {
        let prime = Odd::new(Uint::<LIMBS>::from_be_hex(prime)).expect("the primes are odd");
        let parameters = FixedMontyParams::new_vartime(prime);
        let mut exponent = Uint::<EXPONENT_LIMBS>::from_be_slice(&exponent[..]);
        let mut padded = Zeroizing::new(vec![0; Uint::<LIMBS>::BYTES]);
        let padding = padded.len() - base.len();
        padded[padding..].copy_from_slice(base);
        let base = FixedMontyForm::new(&Uint::from_be_slice(&padded), &parameters);
        let mut form = base.pow_bounded_exp(&exponent, bits);
        let mut result = form.retrieve();
        padded.copy_from_slice(result.to_be_bytes().as_ref());
        exponent.zeroize();
        form.as_montgomery_mut().zeroize();
        result.zeroize();
        padded
    }
    let bits = exponent_bits(group);
    match group {
        Group::Null => Zeroizing::new(Vec::new()),
        Group::Ffdhe2048 => compute::<{ U2048::LIMBS }>(primes::FFDHE2048, base, exponent, bits),
        Group::Ffdhe3072 => compute::<{ U3072::LIMBS }>(primes::FFDHE3072, base, exponent, bits),
        Group::Ffdhe4096 => compute::<{ U4096::LIMBS }>(primes::FFDHE4096, base, exponent, bits),
        Group::Ffdhe6144 => compute::<{ U6144::LIMBS }>(primes::FFDHE6144, base, exponent, bits),
        Group::Ffdhe8192 => compute::<{ U8192::LIMBS }>(primes::FFDHE8192, base, exponent, bits),
    }
}

/// Which values a transaction needs.
pub(crate) enum Wanted {
    /// The controller's public value.
    PublicValue,
    /// The session key, from the host's public value.
    SessionKey(Hash, Vec<u8>),
    /// The host's public value, and the session key from the controller's public value.
    Both(Hash, Vec<u8>),
}

/// An expensive computation; [`Self::run`] takes up to 60 ms.
pub struct Exponentiation {
    pub(crate) generation: u64,
    pub(crate) group: Group,
    pub(crate) exponent: Exponent,
    pub(crate) wanted: Wanted,
}

impl Exponentiation {
    /// Computes the values. Do not call it on a reactor.
    pub fn run(self) -> Computed {
        let (group, exponent) = (self.group, self.exponent);
        let own = || power(group, &[GENERATOR], &exponent).to_vec();
        let session = |hash, peer: &[u8]| {
            let shared = power(group, peer, &exponent);
            formulas::session_key(hash, &shared)
        };
        let (public_value, session_key) = match self.wanted {
            Wanted::PublicValue => (own(), Zeroizing::default()),
            Wanted::SessionKey(hash, peer) => (Vec::new(), session(hash, &peer)),
            Wanted::Both(hash, peer) => (own(), session(hash, &peer)),
        };
        Computed {
            generation: self.generation,
            exponent,
            public_value,
            session_key,
        }
    }
}

impl fmt::Debug for Exponentiation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exponentiation")
            .field("generation", &self.generation)
            .field("group", &self.group)
            .finish_non_exhaustive()
    }
}

/// The result of an [`Exponentiation`].
pub struct Computed {
    pub(crate) generation: u64,
    pub(crate) exponent: Exponent,
    pub(crate) public_value: Vec<u8>,
    pub(crate) session_key: Zeroizing<Vec<u8>>,
}

impl fmt::Debug for Computed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Computed")
            .field("generation", &self.generation)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
