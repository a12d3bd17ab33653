//! Powers against values of an independent computation, and the length of exponents.

use super::*;
use crate::SystemRandom;

/// SHA-256 of `243^x mod p` as long as the prime, from Python's `pow` and `hashlib`. `x` is
/// `int.from_bytes(bytes(range(200, 256)), "big")` modulo `2**bits`, with the bits of the group's
/// exponents. The primes come from the formula of RFC 7919, `2**b - 2**(b - 64) +
/// (floor(2**(b - 130) * e) + X) * 2**64 - 1`, with X = 560316, 2625351, 5736041, 15705020, 10965728.
const POWERS: [(Group, &str); 5] = [
    (
        Group::Ffdhe2048,
        "8406a7cec0f8c1917317d645fbdf14fcc20e6b740f8fbfc72aa33958161f87a6",
    ),
    (
        Group::Ffdhe3072,
        "9337a86a31276234ea6a622fa099d7e2ae9cfc0fbdf47d0daf642a50dfec0184",
    ),
    (
        Group::Ffdhe4096,
        "15a2d3b90f6834b1319393fb3c717d2e8fb439371481267ca095e85c534346d4",
    ),
    (
        Group::Ffdhe6144,
        "87551cfcd6d70f44f568b9cb28f62e5aca1aa7b0e09df7a306ebae7445fa48ff",
    ),
    (
        Group::Ffdhe8192,
        "979555da68b90dd6d961662e19123f0727cc661cff68806ccc0a379e6bc96112",
    ),
];

#[test]
fn powers_equal_independent_values() {
    for (group, expected) in POWERS {
        let mut exponent = no_exponent();
        for (byte, value) in exponent.iter_mut().zip(200..=255) {
            *byte = value;
        }
        let digest = formulas::session_key(Hash::Sha256, &power(group, &[243], &exponent));
        let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(digest, expected, "{group:?}");
    }
}

#[test]
fn exponents_have_exactly_their_length() {
    for group in Group::ALL {
        let exponent = random_exponent(group, &mut SystemRandom).unwrap();
        let zeros = exponent.iter().take_while(|byte| **byte == 0).count();
        let first = exponent.get(zeros).map_or(8, |byte| byte.leading_zeros());
        let bits = (8 * (EXPONENT_BYTES - zeros) as u32).saturating_sub(first);
        assert_eq!(bits, exponent_bits(group), "{group:?}");
    }
}
