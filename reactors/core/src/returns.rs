//! What a system call leaves to the returns that follow it.
//!
//! Where Linux guards its returns against speculative return stack overflow ("Safe RET", on AMD Zen
//! 3 and 4), every return in the kernel leaves the address of a trap on the processor's stack of
//! predicted returns. A function that makes a system call and returns is then predicted to return
//! there, which costs half as much as a receive that finds nothing (`DESIGN.md` of `nvme_tcp`).
//! Harmless entries on top of those make it an ordinary misprediction.
#![expect(
    unsafe_code,
    reason = "calls that do not return are no business of the compiler's"
)]

use std::fs;
use std::sync::atomic::{AtomicU8, Ordering};

/// What the kernel says about its returns.
const MITIGATION: &str = "/sys/devices/system/cpu/vulnerabilities/spec_rstack_overflow";

const UNKNOWN: u8 = 0;
const LEFT_ALONE: u8 = 1;
const GUARDED: u8 = 2;

/// Whether the kernel's returns are guarded.
static RETURNS: AtomicU8 = AtomicU8::new(UNKNOWN);

/// To be called right behind a system call that is made often, in the function that makes it: where
/// the kernel guards its returns, the sixteen next returns are spared what it left for them.
#[inline(always)]
pub fn spare_returns() {
    match RETURNS.load(Ordering::Relaxed) {
        GUARDED => leave_harmless_entries(),
        LEFT_ALONE => {}
        _ => look(),
    }
}

/// Asks the kernel, once.
#[cold]
fn look() {
    let told = fs::read_to_string(MITIGATION).unwrap_or_default();
    let found = if told.contains("Safe RET") {
        GUARDED
    } else {
        LEFT_ALONE
    };
    RETURNS.store(found, Ordering::Relaxed);
}

/// Sixteen calls whose returns never come; each leaves its own place in this function.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn leave_harmless_entries() {
    // SAFETY: each call goes to the instruction behind it. The 128 bytes that they push are taken
    // off again, and the compiler keeps nothing below the stack pointer, since `nostack` is not
    // said. No registers change but the stack pointer, which is what it was, and no flags. Programs
    // with a shadow stack, on which they would stay, are none that the Rust compiler makes.
    unsafe {
        std::arch::asm!(
            ".rept 16",
            "call 2f",
            "int3",
            "2:",
            ".endr",
            "lea rsp, [rsp + 128]",
            options(nomem, preserves_flags)
        );
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn leave_harmless_entries() {}

#[cfg(test)]
mod tests {
    use super::*;

    /// As deep as `depth`, with something on the stack of each call.
    #[inline(never)]
    fn deep(depth: u64) -> u64 {
        let kept = std::hint::black_box([depth; 9]);
        let below = match depth {
            0 => 0,
            _ => deep(depth - 1),
        };
        leave_harmless_entries();
        below + kept.iter().sum::<u64>()
    }

    #[test]
    fn returns_go_where_they_came_from() {
        for _ in 0..1000 {
            assert_eq!(deep(40), 9 * 40 * 41 / 2);
        }
    }

    #[test]
    fn the_kernel_is_asked_once() {
        spare_returns();
        let found = RETURNS.load(Ordering::Relaxed);
        assert_ne!(found, UNKNOWN);
        spare_returns();
        assert_eq!(RETURNS.load(Ordering::Relaxed), found);
    }
}
