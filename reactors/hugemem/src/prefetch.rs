//! Prefetches memory into the cache before it is used.
#![expect(
    unsafe_code,
    reason = "the instruction takes an address, of whatever kind"
)]

/// Maximum number of bytes that [`prefetch`] fetches; the hardware prefetcher continues after that.
const PREFETCH_MAX_BYTES: usize = 4096;

/// Bytes requested by one block of instructions: eight cache lines.
#[cfg(target_arch = "x86_64")]
const STEP_BYTES: usize = 512;

/// Starts to fetch the first 4 KiB of `bytes` into the second-level cache without waiting. It
/// affects only speed, and does nothing on processors other than x86-64.
///
/// The second-level cache has room for more pending lines than the first. For 4 KiB of uncached
/// data this halves the read time, while a prefetch into the first level gains nothing (Zen 4). A
/// multiplication between two prefetches limits the rate to one line in three cycles, the rate at
/// which lines arrive; without this pacing the gain is half as large.
#[inline(never)]
pub fn prefetch(bytes: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    let mut line = bytes.as_ptr().addr();
    // Counted in steps, whole or partial: a hint may exceed the slice, and exact handling would
    // cost more than requesting a few lines beyond its end.
    #[cfg(target_arch = "x86_64")]
    for _ in 0..bytes.len().min(PREFETCH_MAX_BYTES).div_ceil(STEP_BYTES) {
        // SAFETY: a hint cannot fault for any address. No memory is read or written, and the
        // register keeps its value and is used only by this block.
        unsafe {
            std::arch::asm!(
                "prefetcht1 [{line}]",
                "imul {line}, {line}, 1",
                "prefetcht1 [{line} + 64]",
                "imul {line}, {line}, 1",
                "prefetcht1 [{line} + 128]",
                "imul {line}, {line}, 1",
                "prefetcht1 [{line} + 192]",
                "imul {line}, {line}, 1",
                "prefetcht1 [{line} + 256]",
                "imul {line}, {line}, 1",
                "prefetcht1 [{line} + 320]",
                "imul {line}, {line}, 1",
                "prefetcht1 [{line} + 384]",
                "imul {line}, {line}, 1",
                "prefetcht1 [{line} + 448]",
                line = inout(reg) line,
                options(nomem, nostack)
            );
        }
        line = line.wrapping_add(STEP_BYTES);
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = bytes;
}
