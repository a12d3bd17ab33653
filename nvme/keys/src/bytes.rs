//! Bytes that are secret.

use std::fmt;

use subtle::ConstantTimeEq as _;
use zeroize::Zeroizing;

/// Secret bytes of any length. They are zeroized on drop, hidden from `Debug` and compared in
/// constant time; only the length is not secret.
#[derive(Clone)]
pub struct SecretBytes(Zeroizing<Vec<u8>>);

impl SecretBytes {
    /// A copy of `bytes`.
    #[must_use]
    pub fn copy_of(bytes: &[u8]) -> Self {
        Self(Zeroizing::new(bytes.to_vec()))
    }

    /// `len` zeros, to be overwritten. The buffer never grows, which would leave a copy behind.
    pub(crate) fn zeros(len: usize) -> Self {
        Self(Zeroizing::new(vec![0; len]))
    }

    /// The bytes themselves.
    #[must_use]
    pub fn expose(&self) -> &[u8] {
        &self.0
    }

    pub(crate) fn expose_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }

    /// Number of bytes.
    #[must_use]
    #[expect(
        clippy::len_without_is_empty,
        reason = "no secret of this crate is empty"
    )]
    pub fn len(&self) -> usize {
        self.0.len()
    }
}

impl PartialEq for SecretBytes {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for SecretBytes {}

impl fmt::Debug for SecretBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretBytes({} hidden)", self.len())
    }
}
