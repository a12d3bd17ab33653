//! CRC32C digests of PDU headers and data, by the processor's own instructions where it has them
//! (TCP 1.1 §3.3.1.1).

use crc_fast::{CrcAlgorithm, checksum};

/// The digest of `bytes` as it lies on the wire.
pub(crate) fn digest(bytes: &[u8]) -> [u8; 4] {
    (checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::digest;

    /// RFC 3720, appendix B.4.
    #[test]
    fn the_published_examples_come_out() {
        let ascending: Vec<u8> = (0..32).collect();
        assert_eq!(digest(&[0; 32]), [0xaa, 0x36, 0x91, 0x8a]);
        assert_eq!(digest(&[0xff; 32]), [0x43, 0xab, 0xa8, 0x62]);
        assert_eq!(digest(&ascending), [0x4e, 0x79, 0xdd, 0x46]);
    }
}
