//! The source of random bytes, injected so that a simulation is deterministic.

/// The source of random bytes failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the system has no random bytes")]
pub struct RandomUnavailable;

/// A source of random bytes for challenges, sequence numbers and private exponents.
pub trait Random {
    /// Fills `bytes`.
    ///
    /// # Errors
    ///
    /// If the source fails; the transaction then fails.
    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), RandomUnavailable>;
}

/// The cryptographic generator of the process.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemRandom;

impl Random for SystemRandom {
    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), RandomUnavailable> {
        aws_lc_rs::rand::fill(bytes).map_err(|_| RandomUnavailable)
    }
}

/// The sequence numbers of one side: random and not 0 at first, then incremented, and never 0 (Base
/// 2.1 §8.3.4.5.4).
#[derive(Debug, Default)]
pub(crate) struct SequenceNumbers {
    last: u32,
}

impl SequenceNumbers {
    /// The next number.
    pub(crate) fn next(&mut self, random: &mut dyn Random) -> Result<u32, RandomUnavailable> {
        if self.last == 0 {
            let mut bytes = [0; 4];
            random.fill(&mut bytes)?;
            self.last = u32::from_le_bytes(bytes);
        }
        self.last = self.last.checked_add(1).unwrap_or(1);
        Ok(self.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequence_numbers_skip_zero() {
        let mut numbers = SequenceNumbers { last: u32::MAX };
        assert_eq!(numbers.next(&mut SystemRandom), Ok(1));
        assert_eq!(numbers.next(&mut SystemRandom), Ok(2));
    }
}
