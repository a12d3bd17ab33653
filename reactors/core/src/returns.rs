//! Restores return prediction after a system call.
//!
//! If Linux protects its returns against speculative return stack overflow ("Safe RET", on AMD Zen
//! 3 and 4), every return in the kernel leaves the address of a trap on the processor's return
//! stack buffer. A function that returns after a system call is then predicted to return there,
//! which costs half as much as a receive that finds no data (`bench/EXPERIMENTS.md`). Harmless
//! entries on top of those turn this into an ordinary misprediction.
#![expect(
    unsafe_code,
    reason = "calls without a return cannot be expressed in Rust"
)]

use std::fs;
use std::sync::atomic::{AtomicU8, Ordering};

/// The kernel's report of its mitigation.
const MITIGATION: &str = "/sys/devices/system/cpu/vulnerabilities/spec_rstack_overflow";

const UNKNOWN: u8 = 0;
const UNPROTECTED: u8 = 1;
const PROTECTED: u8 = 2;

/// Whether the kernel protects its returns.
static RETURN_PROTECTION: AtomicU8 = AtomicU8::new(UNKNOWN);

/// Called directly after a frequent system call, in the function that makes it. If the kernel
/// protects its returns, the next sixteen returns do not use the entries that it left.
#[inline(always)]
pub fn restore_return_prediction() {
    match RETURN_PROTECTION.load(Ordering::Relaxed) {
        PROTECTED => fill_return_stack(),
        UNPROTECTED => {}
        _ => read_mitigation(),
    }
}

/// Reads the kernel's report, once.
#[cold]
fn read_mitigation() {
    let report = fs::read_to_string(MITIGATION).unwrap_or_default();
    let found = if report.contains("Safe RET") {
        PROTECTED
    } else {
        UNPROTECTED
    };
    RETURN_PROTECTION.store(found, Ordering::Relaxed);
}

/// Sixteen calls that never return; each leaves the address after it on the return stack buffer.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn fill_return_stack() {
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
fn fill_return_stack() {}

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
        fill_return_stack();
        below + kept.iter().sum::<u64>()
    }

    #[test]
    fn nested_calls_return_correctly() {
        for _ in 0..1000 {
            assert_eq!(deep(40), 9 * 40 * 41 / 2);
        }
    }

    #[test]
    fn return_protection_is_queried_once() {
        restore_return_prediction();
        let found = RETURN_PROTECTION.load(Ordering::Relaxed);
        assert_ne!(found, UNKNOWN);
        restore_return_prediction();
        assert_eq!(RETURN_PROTECTION.load(Ordering::Relaxed), found);
    }
}
