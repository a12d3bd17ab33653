//! Enables direct I/O on a file, if it supports the device's block size.

use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, OFlags, StatxFlags, fcntl_getfl, fcntl_setfl, statx};
use rustix::io::{Errno, pread};

use super::notice::BufferedReason;

/// Alignment of every lease in memory, in bytes.
const LEASE_ALIGN: u32 = hugemem::UNIT_BYTES as u32;

/// Alignment requirements of direct I/O from `statx(2)`, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Alignment {
    memory: u32,
    offset: u32,
}

/// Enables direct I/O, or returns why the file stays buffered.
pub(super) fn make_direct(
    file: &OwnedFd,
    bytes: u64,
    block_size: u32,
) -> Result<(), BufferedReason> {
    check_alignment(alignment(file), block_size)?;
    let flags = fcntl_getfl(file).map_err(BufferedReason::Refused)?;
    fcntl_setfl(file, flags | OFlags::DIRECT).map_err(|errno| match errno {
        Errno::INVAL => BufferedReason::Unsupported,
        _ => BufferedReason::Refused(errno),
    })?;
    if let Err(errno) = try_block(file, bytes - u64::from(block_size), block_size) {
        fcntl_setfl(file, flags).map_err(BufferedReason::Refused)?;
        return Err(BufferedReason::Refused(errno));
    }
    Ok(())
}

/// The alignment that the file system requires, if it reports it (`statx(2)`, `STATX_DIOALIGN`,
/// Linux 6.1).
fn alignment(file: &OwnedFd) -> Option<Alignment> {
    let found = statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok()?;
    let says = found.stx_mask & StatxFlags::DIOALIGN.bits() != 0;
    says.then_some(Alignment {
        memory: found.stx_dio_mem_align,
        offset: found.stx_dio_offset_align,
    })
}

/// Checks the required alignment. If the file system requires larger blocks than the device has,
/// unaligned requests would fail, so the device uses the page cache, which has no alignment
/// requirement.
fn check_alignment(alignment: Option<Alignment>, block_size: u32) -> Result<(), BufferedReason> {
    match alignment {
        Some(Alignment { memory: 0, .. } | Alignment { offset: 0, .. }) => {
            Err(BufferedReason::Unsupported)
        }
        Some(Alignment { offset, .. }) if !block_size.is_multiple_of(offset) => {
            Err(BufferedReason::Alignment {
                unit: offset,
                block_size,
            })
        }
        Some(Alignment { memory, .. }) if !LEASE_ALIGN.is_multiple_of(memory) => {
            Err(BufferedReason::MemoryAlignment { unit: memory })
        }
        // An older kernel reports nothing: the attempt shows whether it works.
        Some(_) | None => Ok(()),
    }
}

/// Reads one block directly: the last one, whose offset has the smallest alignment.
fn try_block(file: &OwnedFd, offset: u64, block_size: u32) -> Result<(), Errno> {
    let mut memory = vec![0_u8; (LEASE_ALIGN + block_size) as usize];
    let skip = memory.as_ptr().align_offset(LEASE_ALIGN as usize);
    let block = &mut memory[skip..skip + block_size as usize];
    pread(file, block, offset).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(memory: u32, offset: u32, block_size: u32) -> Result<(), BufferedReason> {
        check_alignment(Some(Alignment { memory, offset }), block_size)
    }

    #[test]
    fn unsupported_direct_io_alignments() {
        assert_eq!(judged(0, 0, 4096), Err(BufferedReason::Unsupported));
        assert_eq!(judged(4, 0, 4096), Err(BufferedReason::Unsupported));
        let coarse = BufferedReason::Alignment {
            unit: 4096,
            block_size: 512,
        };
        assert_eq!(judged(512, 4096, 512), Err(coarse));
        assert_eq!(
            judged(8192, 512, 512),
            Err(BufferedReason::MemoryAlignment { unit: 8192 })
        );
        assert!(coarse.to_string().contains("4096"));
    }

    #[test]
    fn supported_direct_io_alignments() {
        assert_eq!(judged(4, 512, 512), Ok(()));
        assert_eq!(judged(4096, 4096, 4096), Ok(()));
        assert_eq!(judged(512, 512, 4096), Ok(()));
        assert_eq!(check_alignment(None, 512), Ok(()));
    }

    #[test]
    fn file_without_direct_io_remains_usable() {
        // Files of procfs do not support direct I/O in any kernel.
        let file: OwnedFd = std::fs::File::open("/proc/self/maps").unwrap().into();
        let refused = make_direct(&file, 4096, 4096);
        assert_eq!(refused, Err(BufferedReason::Unsupported));
        assert!(!fcntl_getfl(&file).unwrap().contains(OFlags::DIRECT));
        assert_ne!(rustix::io::read(&file, &mut [0; 16]), Ok(0));
    }
}
