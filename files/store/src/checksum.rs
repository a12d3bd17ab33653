//! Checksums of metadata on the device.

use crc_fast::{CrcAlgorithm, Digest};

/// The checksum of parts in order. The salt is a secret of the volume, so that content that a client
/// chose is never taken for metadata.
pub(crate) fn checksum(salt: u64, parts: &[&[u8]]) -> u64 {
    let mut digest = Digest::new(CrcAlgorithm::Crc64Nvme);
    digest.update(&salt.to_le_bytes());
    for part in parts {
        digest.update(part);
    }
    digest.finalize()
}
