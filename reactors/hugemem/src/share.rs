//! The share of a class of slices that one host may use: pure arithmetic.
//!
//! Shares are dynamic thresholds: a host may take a slice while it has fewer than [`SHARE_FACTOR`]
//! slices for each free one. A single host can use three quarters of a class. If `n` hosts take all
//! they can, each gets `3 / (3n + 1)`, and `1 / (3n + 1)` stays free for the next host. The last free
//! slice of a class is for a host that has none, however small the class is. A part of each large
//! class is reserved for admin commands. A host that has no slice of a class and waits for one gets
//! the first free slice; if several wait, the one that has waited longest.

/// Slices that a host may have for each free one.
const SHARE_FACTOR: u32 = 3;
/// The reserve of a class is 1/n of its slices.
const RESERVE_PART: u32 = 32;
/// Maximum number of slices in a reserve.
const RESERVE_SLICES_MAX: u32 = 64;
/// While more than 1/n of a class is free, no share can be exceeded.
const SURPLUS_PART: u32 = 2;

/// The distribution of the slices of one class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClassUsage {
    /// Slices available to all hosts together.
    pub(crate) total: u32,
    /// Those of them that are free.
    pub(crate) free: u32,
}

impl ClassUsage {
    /// Of `total` slices of a class, `taken` are leased: `of_system` to the appliance and
    /// `under_promises` under promises of `promised` slices.
    pub(crate) fn new(
        total: u32,
        taken: u32,
        of_system: u32,
        promised: u32,
        under_promises: u32,
    ) -> ClassUsage {
        let reserved_elsewhere = of_system.saturating_add(promised.max(under_promises));
        let of_hosts = taken.saturating_sub(of_system.saturating_add(under_promises));
        let total = total.saturating_sub(reserved_elsewhere);
        ClassUsage {
            total,
            free: total.saturating_sub(of_hosts),
        }
    }

    /// Slices that hosts together can take before a share can be exceeded.
    pub(crate) fn surplus(self) -> u32 {
        self.free.saturating_sub(self.total.div_ceil(SURPLUS_PART))
    }

    /// Whether an account with `held` slices may take one more, if `for_others` free slices are for
    /// accounts that have none and wait.
    pub(crate) fn admits(self, held: u32, uses_reserve: bool, for_others: u32) -> bool {
        let reserve = (self.total / RESERVE_PART).min(RESERVE_SLICES_MAX);
        let reserved = if uses_reserve { 0 } else { reserve };
        let spare = self
            .free
            .saturating_sub(reserved)
            .saturating_sub(for_others);
        let is_last = spare == 1;
        held < spare.saturating_mul(SHARE_FACTOR) && (held == 0 || !is_last)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Number of slices of a class for each of `hosts` greedy hosts in turns, and the number left
    /// free.
    fn spread_of(total: u32, hosts: usize) -> (Vec<u32>, u32) {
        let (mut held, mut free) = (vec![0; hosts], total);
        loop {
            let before = free;
            for held in &mut held {
                if (ClassUsage { total, free }).admits(*held, false, 0) {
                    *held += 1;
                    free -= 1;
                }
            }
            if before == free {
                return (held, free);
            }
        }
    }

    #[test]
    fn greedy_host_leaves_a_quarter_of_a_class() {
        let (held, free) = spread_of(48, 1);
        assert_eq!((held[0], free), (36, 12));
        let (held, free) = spread_of(1024, 1);
        assert!((740..=768).contains(&held[0]) && free >= 256, "{held:?}");
    }

    #[test]
    fn greedy_hosts_get_equal_shares_and_leave_a_reserve() {
        for hosts in 1..=8 {
            let (held, free) = spread_of(384, hosts);
            let most = held.iter().max().expect("some");
            let least = held.iter().min().expect("some");
            assert!(most - least <= 1 && *least > 0, "{held:?}");
            assert!(free >= 384 / (3 * hosts as u32 + 2), "{free}");
        }
    }

    #[test]
    fn host_without_slices_may_take_the_last_unreserved_one() {
        for total in 1..=64 {
            let reserve = total / RESERVE_PART;
            let last = ClassUsage {
                total,
                free: reserve + 1,
            };
            assert!(last.admits(0, false, 0), "{total}");
            let none = ClassUsage {
                total,
                free: reserve,
            };
            assert!(!none.admits(0, false, 0), "{total}");
            assert_eq!(none.admits(0, true, 0), reserve > 0, "{total}");
        }
    }

    #[test]
    fn slice_awaited_by_a_starving_host_is_not_given_to_others() {
        let class_usage = ClassUsage { total: 4, free: 2 };
        assert!(class_usage.admits(2, false, 0));
        assert!(!class_usage.admits(2, false, 1));
        assert!(class_usage.admits(0, false, 0));
    }

    #[test]
    fn last_slice_of_a_small_class_is_for_a_host_that_has_none() {
        for total in 2..=8 {
            let (held, free) = spread_of(total, 1);
            assert!(held[0] > 0 && free >= 1, "{total}: {held:?}");
        }
        let only = ClassUsage { total: 1, free: 1 };
        assert!(only.admits(0, false, 0));
    }

    #[test]
    fn surplus_never_exceeds_a_share() {
        for total in 0..200 {
            for free in 0..=total {
                let class_usage = ClassUsage { total, free };
                let surplus = class_usage.surplus();
                if surplus == 0 {
                    continue;
                }
                // One account has all taken slices, and takes all plentiful ones.
                for more in 0..surplus {
                    let now = ClassUsage {
                        total,
                        free: free - more,
                    };
                    assert!(
                        now.admits(total - now.free, false, 0),
                        "{class_usage:?} {more}"
                    );
                }
            }
        }
    }

    #[test]
    fn shares_exclude_the_appliances_and_promised_slices() {
        let class_usage = ClassUsage::new(100, 50, 10, 40, 30);
        assert_eq!(
            class_usage,
            ClassUsage {
                total: 50,
                free: 40
            }
        );
        // Briefly, more slices may be leased under promises, on their way to their hosts.
        let class_usage = ClassUsage::new(100, 60, 10, 40, 50);
        assert_eq!(
            class_usage,
            ClassUsage {
                total: 40,
                free: 40
            }
        );
    }
}
