//! Logical block sizes.

use std::fmt;

/// The logical block size of a namespace.
///
/// The default is 512: every host supports it (ESXi and most boot firmware support nothing else
/// over fabrics), drives are shipped with it, and the image of a disk that was partitioned with 512
/// stays valid. If only Linux hosts attach and the backing file system works in 4 KiB, 4096 avoids
/// read-modify-write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BlockSize {
    /// 512 bytes.
    #[default]
    B512,
    /// 4096 bytes.
    B4096,
}

impl BlockSize {
    /// The size in bytes.
    pub const fn bytes(self) -> u32 {
        match self {
            BlockSize::B512 => 512,
            BlockSize::B4096 => 4096,
        }
    }

    /// The block size of that number of bytes, if there is one.
    pub const fn from_bytes(bytes: u64) -> Option<BlockSize> {
        match bytes {
            512 => Some(BlockSize::B512),
            4096 => Some(BlockSize::B4096),
            _ => None,
        }
    }
}

impl fmt::Display for BlockSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.bytes())
    }
}
