//! The time-stamp counter: whether it is reliable, its rate, and reading it.
#![expect(
    unsafe_code,
    reason = "the counter is read with a processor instruction"
)]

use rustix::time::ClockId;

use super::nanos;
use crate::time::Nanos;

/// Measurement time of the counter's rate: long compared with the error of about 30 ns of one
/// comparison with the kernel's clock, short compared with the start of the process.
const MEASURE: Nanos = Nanos::from_millis(2);
/// Comparisons per sample; the shortest counts, so that interrupts do not distort the sample.
const ATTEMPTS: u32 = 8;

/// Converts counter ticks to nanoseconds: `origin + (ticks - base) * rate / 2^32`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    base: u64,
    origin: u64,
    rate: u64,
}

impl Scale {
    /// Measures the counter's rate; `None` if the counter must not be used.
    pub(super) fn measure() -> Option<Scale> {
        if !(is_invariant() && kernel_uses_tsc()) {
            return None;
        }
        let (begin_ticks, begin) = sample(ClockId::MonotonicRaw);
        while nanos(ClockId::MonotonicRaw) - begin < MEASURE {
            std::hint::spin_loop();
        }
        let (end_ticks, end) = sample(ClockId::MonotonicRaw);
        let ticks = end_ticks
            .checked_sub(begin_ticks)
            .filter(|&ticks| ticks > 0)?;
        let rate = (u128::from((end - begin).0) << 32) / u128::from(ticks);
        let rate = u64::try_from(rate).ok().filter(|&rate| rate > 0)?;
        let (base, origin) = sample(ClockId::Monotonic);
        Some(Scale {
            base,
            origin: origin.0,
            rate,
        })
    }

    #[inline]
    pub(super) fn now(&self) -> Nanos {
        self.at(read())
    }

    #[inline]
    fn at(&self, ticks: u64) -> Nanos {
        // Another core's counter may be a few ticks behind that of the measuring core.
        let ticks = ticks.saturating_sub(self.base);
        let span = (u128::from(ticks) * u128::from(self.rate)) >> 32;
        Nanos(
            self.origin
                .saturating_add(u64::try_from(span).unwrap_or(u64::MAX)),
        )
    }
}

/// A counter reading and the kernel's time of the same moment.
fn sample(clock: ClockId) -> (u64, Nanos) {
    let mut best = (u64::MAX, 0, Nanos::ZERO);
    for _ in 0..ATTEMPTS {
        let before = read();
        let time = nanos(clock);
        let width = read().saturating_sub(before);
        if width < best.0 {
            best = (width, before + width / 2, time);
        }
    }
    (best.1, best.2)
}

/// Whether the kernel uses the counter as its clock source. The kernel compares it with other
/// clocks and drops it if cores disagree or it stops in deep sleep.
fn kernel_uses_tsc() -> bool {
    std::fs::read("/sys/devices/system/clocksource/clocksource0/current_clocksource")
        .is_ok_and(|name| name.trim_ascii() == b"tsc")
}

/// CPUID leaf 8000_0007h, EDX bit 8: "TscInvariant" in AMD's Architecture Programmer's Manual
/// volume 3 (publication 24594), appendix E; section "Invariant TSC" of Intel's Software
/// Developer's Manual volume 3B (order number 253669).
#[cfg(target_arch = "x86_64")]
fn is_invariant() -> bool {
    use core::arch::x86_64::__cpuid;
    const POWER_LEAF: u32 = 0x8000_0007;
    const INVARIANT: u32 = 1 << 8;
    __cpuid(0x8000_0000).eax >= POWER_LEAF && __cpuid(POWER_LEAF).edx & INVARIANT != 0
}

#[cfg(not(target_arch = "x86_64"))]
fn is_invariant() -> bool {
    false
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn read() -> u64 {
    // SAFETY: RDTSC exists on every x86_64 processor and has no effect on memory. The kernel lets
    // user space execute it unless a process disables it with PR_SET_TSC, which this process does
    // not.
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
fn read() -> u64 {
    unreachable!("the counter is used on x86_64 only")
}
