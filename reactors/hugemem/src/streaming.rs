//! Copies with non-temporal stores, for memory that is in no cache and should not be loaded into
//! one.
#![expect(
    unsafe_code,
    reason = "stores past the caches take aligned addresses, and a fence before others look"
)]

/// Bytes of a cache line. Whole lines are stored at a time, so that the memory is not read first.
const LINE_BYTES: usize = 64;

/// Copies `from` over `to`, both of the same length, with non-temporal stores for all whole lines.
/// An ordinary store to uncached memory waits until its line is read; a non-temporal store
/// overwrites it unread.
///
/// # Safety
/// This thread must call [`fence`] before any code accesses `to` again, including itself.
///
/// # Panics
/// If the lengths differ.
#[inline]
pub(crate) unsafe fn copy(to: &mut [u8], from: &[u8]) {
    assert_eq!(
        to.len(),
        from.len(),
        "source and destination must have the same length"
    );
    // Aligned lines are stored with non-temporal stores; few bytes lie outside of them.
    let head = to.as_ptr().align_offset(LINE_BYTES).min(to.len());
    let (to_head, to) = to.split_at_mut(head);
    let (from_head, from) = from.split_at(head);
    to_head.copy_from_slice(from_head);
    let (to_lines, to_tail) = to.as_chunks_mut::<LINE_BYTES>();
    let (from_lines, from_tail) = from.as_chunks::<LINE_BYTES>();
    to_tail.copy_from_slice(from_tail);
    copy_lines(to_lines, from_lines);
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn copy_lines(to: &mut [[u8; LINE_BYTES]], from: &[[u8; LINE_BYTES]]) {
    for (to, from) in to.iter_mut().zip(from) {
        let (to, _) = to.as_chunks_mut();
        let (from, _) = from.as_chunks();
        for (to, from) in to.iter_mut().zip(from) {
            stream(to, from);
        }
    }
}

/// Bytes stored by one instruction.
#[cfg(target_arch = "x86_64")]
const STORE_BYTES: usize = 16;

/// Stores `from` over `to`, a quarter of an aligned line.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn stream(to: &mut [u8; STORE_BYTES], from: &[u8; STORE_BYTES]) {
    use std::arch::x86_64::{_mm_loadu_si128, _mm_stream_si128};

    debug_assert!(to.as_ptr().addr().is_multiple_of(STORE_BYTES));
    // SAFETY: `from` is live and 16 bytes long; the load needs no alignment.
    let quarter = unsafe { _mm_loadu_si128(from.as_ptr().cast()) };
    // SAFETY: `to` is live, 16 bytes long, and aligned to 16, because its line is aligned to 64.
    // The caller of `copy` has promised the fence.
    unsafe { _mm_stream_si128(to.as_mut_ptr().cast(), quarter) };
}

#[cfg(not(target_arch = "x86_64"))]
fn copy_lines(to: &mut [[u8; LINE_BYTES]], from: &[[u8; LINE_BYTES]]) {
    to.copy_from_slice(from);
}

/// Makes this thread's copies visible before all of its later stores. It waits for copies in
/// progress, so callers do other work between the copy and the fence.
#[inline]
pub(crate) fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the instruction accesses no memory and exists on every x86-64 processor.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

#[cfg(test)]
mod tests {
    use super::{copy, fence};

    #[test]
    fn streaming_copy_is_exact_for_any_alignment_and_length() {
        let from: Vec<u8> = (0..400).map(|it| it as u8).collect();
        for to_offset in [0, 1, 15, 16, 63, 64] {
            for from_offset in [0, 1, 33] {
                for len in (0..70).chain([127, 128, 129, 300]) {
                    let mut to = vec![0xEE; 500];
                    let source = &from[from_offset..from_offset + len];
                    // SAFETY: the fence follows.
                    unsafe { copy(&mut to[to_offset..to_offset + len], source) };
                    fence();
                    assert_eq!(to[to_offset..to_offset + len], *source);
                    let around = to[..to_offset].iter().chain(&to[to_offset + len..]);
                    assert!(around.copied().all(|it| it == 0xEE), "nothing else changed");
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "the same length")]
    fn streaming_copy_panics_on_different_lengths() {
        // SAFETY: nothing is copied.
        unsafe { copy(&mut [0; 64], &[0; 65]) };
    }
}
