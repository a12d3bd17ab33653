//! CRC32C digests of PDU headers and data (TCP 1.1 §3.3.1.1, with the algorithm of RFC 3385).

use crc_fast::crc32_iscsi;

/// Bytes of a header or data digest on the wire.
pub(crate) const DIGEST_BYTES: usize = 4;

/// The digest of `bytes` in wire format.
pub(crate) fn digest(bytes: &[u8]) -> [u8; DIGEST_BYTES] {
    crc32_iscsi(bytes).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 3720 §B.4: 32 bytes of zeroes, ones, ascending and descending.
    #[test]
    fn published_vectors_agree() {
        let ascending: Vec<u8> = (0..32).collect();
        let descending: Vec<u8> = (0..32).rev().collect();
        assert_eq!(digest(&[0; 32]), [0xaa, 0x36, 0x91, 0x8a]);
        assert_eq!(digest(&[0xff; 32]), [0x43, 0xab, 0xa8, 0x62]);
        assert_eq!(digest(&ascending), [0x4e, 0x79, 0xdd, 0x46]);
        assert_eq!(digest(&descending), [0x5c, 0xdb, 0x3f, 0x11]);
    }
}
