//! Asking the core to fetch memory before it is used.
#![expect(
    unsafe_code,
    reason = "the instruction takes an address, of whatever kind"
)]

/// What [`prefetch`] fetches at most, bytes: more would drive out what is in use.
const PREFETCH_MAX_BYTES: usize = 4096;

/// Bytes of a cache line.
const LINE_BYTES: usize = 64;

/// Begins to fetch the first 4 KiB of `bytes` into the first-level cache and waits for
/// nothing. It changes speed alone, and nothing at all on processors other than x86-64.
#[inline]
pub fn prefetch(bytes: &[u8]) {
    let bytes = &bytes[..bytes.len().min(PREFETCH_MAX_BYTES)];
    for line in bytes.chunks(LINE_BYTES) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a hint cannot fault, whatever the address; this one is even that of a live slice.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast());
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = line;
    }
}
