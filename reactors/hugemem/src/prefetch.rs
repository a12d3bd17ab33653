//! Asking the core to fetch memory before it is used.
#![expect(
    unsafe_code,
    reason = "the instruction takes an address, of whatever kind"
)]

/// What [`prefetch`] fetches at most, bytes: behind that the core goes ahead by itself.
const PREFETCH_MAX_BYTES: usize = 4096;

/// What is asked for by one block of instructions: eight cache lines.
#[cfg(target_arch = "x86_64")]
const STEP_BYTES: usize = 512;

/// Begins to fetch the first 4 KiB of `bytes` into the second-level cache and waits for nothing. It
/// changes speed alone, and nothing at all on processors other than x86-64.
///
/// The second level has room for more lines on their way than the first: of 4 KiB that are in no
/// cache, it halves what reading them takes, where a prefetch into the first level gains nothing
/// (Zen 4). The lines are asked for at the pace at which they can be had, one in three cycles, by a
/// multiplication between one and the next; asked for at once, they gain half as much.
#[inline(never)]
pub fn prefetch(bytes: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    let mut line = bytes.as_ptr().addr();
    // Counted in steps, whole or not: where the slice ends matters to no hint, and cutting it up
    // would cost more than asking for a few lines behind its end.
    #[cfg(target_arch = "x86_64")]
    for _ in 0..bytes.len().min(PREFETCH_MAX_BYTES).div_ceil(STEP_BYTES) {
        // SAFETY: a hint cannot fault, whatever the address. No memory is read or written, and the
        // register, which keeps its value, is the block's own.
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
