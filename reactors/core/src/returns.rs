//! Restores return prediction after a system call.
//!
//! If Linux protects its returns against speculative return stack overflow ("Safe RET", on AMD Zen
//! 3 and 4), every return in the kernel leaves the address of a trap on the processor's return
//! stack buffer. A function that returns after a system call is then predicted to return there,
//! which costs half as much as a receive that finds no data (`bench/EXPERIMENTS.md`). Harmless
//! entries on top of those turn this into an ordinary misprediction.
#![expect(
    unsafe_code,
    reason = "calls that do not return are no business of the compiler's"
)]

use std::fs;
use std::sync::atomic::{AtomicU8, Ordering};

/// The kernel's report of its mitigation.
const MITIGATION: &str = "/sys/devices/system/cpu/vulnerabilities/spec_rstack_overflow";

const UNKNOWN: u8 = 0;
const LEFT_ALONE: u8 = 1;
const GUARDED: u8 = 2;

/// Whether the kernel protects its returns.
static RETURNS: AtomicU8 = AtomicU8::new(UNKNOWN);

/// Called directly after a frequent system call, in the function that makes it. If the kernel
/// protects its returns, the next sixteen returns do not use the entries that it left.
#[inline(always)]
pub fn spare_returns() {
    match RETURNS.load(Ordering::Relaxed) {
        GUARDED => leave_harmless_entries(),
        LEFT_ALONE => {}
        _ => look(),
    }
}

/// Reads the kernel's report, once.
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

/// Sixteen calls that never return; each leaves the address after it on the return stack buffer.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn leave_harmless_entries() {
    // SAFETY: each call jumps to the instruction after it. The 128 bytes that they push are removed
    // again, and the compiler keeps nothing below the stack pointer, because `nostack` is not
    // specified. No register changes except the stack pointer, which is restored, and no flags
    // change. Programs with a shadow stack, on which the addresses would remain, are not produced
    // by the Rust compiler.
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

    /// Recurses to `depth`, with data on the stack of each call.
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
