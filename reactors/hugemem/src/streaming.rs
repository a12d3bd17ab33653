//! Copying into memory that is in no cache, and need not come into one.
#![expect(
    unsafe_code,
    reason = "stores past the caches take aligned addresses, and a fence before others look"
)]

/// Bytes of a cache line: what is stored in one go, so that the memory is not read first.
const LINE_BYTES: usize = 64;

/// Copies `from` over `to`, both of one length, past the caches where whole lines allow. An ordinary
/// store to memory that is in no cache waits for its line to be read; here it is overwritten unread.
///
/// # Safety
/// This thread calls [`fence`] before anybody looks at `to` again, itself included.
///
/// # Panics
/// When the lengths differ.
#[inline]
pub(crate) unsafe fn copy(to: &mut [u8], from: &[u8]) {
    assert_eq!(to.len(), from.len(), "a copy is as long as what is copied");
    // Lines that are aligned can be stored past the caches; there are few others.
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

/// Bytes that one instruction stores.
#[cfg(target_arch = "x86_64")]
const STORE_BYTES: usize = 16;

/// Stores `from` over `to`, which is a quarter of a line that is aligned.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn stream(to: &mut [u8; STORE_BYTES], from: &[u8; STORE_BYTES]) {
    use std::arch::x86_64::{_mm_loadu_si128, _mm_stream_si128};

    debug_assert!(to.as_ptr().addr().is_multiple_of(STORE_BYTES));
    // SAFETY: `from` is live and 16 bytes long, wherever it begins.
    let quarter = unsafe { _mm_loadu_si128(from.as_ptr().cast()) };
    // SAFETY: `to` is live, 16 bytes long, and begins at a multiple of 16, as its line at one of
    // 64. Who called `copy` has promised the fence.
    unsafe { _mm_stream_si128(to.as_mut_ptr().cast(), quarter) };
}

#[cfg(not(target_arch = "x86_64"))]
fn copy_lines(to: &mut [[u8; LINE_BYTES]], from: &[[u8; LINE_BYTES]]) {
    to.copy_from_slice(from);
}

/// Makes what this thread copied visible before anything that it stores from now on. It waits for
/// copies that are still on their way, so it is best called when there was something else to do.
#[inline]
pub(crate) fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: it touches no memory of its own, and every x86-64 has it.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

#[cfg(test)]
mod tests {
    use super::{copy, fence};

    #[test]
    fn every_alignment_and_length_is_copied_exactly() {
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
    #[should_panic(expected = "as long as")]
    fn lengths_that_differ_are_a_bug() {
        // SAFETY: nothing is copied.
        unsafe { copy(&mut [0; 64], &[0; 65]) };
    }
}
