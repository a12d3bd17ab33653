//! Computes the sizes of queues within the limits of a device.

use nvme_target::KEYED_BLOCKS_MAX;
use rdma::{DeviceLimits, QueuePairCapacity};

/// Bytes of a response capsule.
pub(crate) const RESPONSE_BYTES: usize = 16;
/// Work requests of one response at most: the blocks of its data, and the response capsule.
pub(crate) const RESPONSE_REQUESTS_MAX: u32 = KEYED_BLOCKS_MAX as u32 + 1;
/// Outstanding RDMA reads of one queue pair at most. A round trip cannot use more.
const READS_MAX: u8 = 16;
/// Entries of one completion queue at most. Another queue is created before queue pairs could
/// overflow it.
const COMPLETION_ENTRIES_MAX: u32 = 16_384;
/// Memory pieces of one receive: the command, and the in-capsule data.
const RECEIVE_SGES: u32 = 2;
/// Entries of an I/O queue that every device must support.
const QUEUE_DEPTH_LEAST: u32 = 2;

/// Entries of an I/O queue that a device supports at most: one receive and one send request each.
///
/// A listener that offers more would refuse hosts that use the offer, so the configuration lowers
/// the listener's queue depth to this and logs it.
#[must_use]
pub fn queue_depth_max(limits: &DeviceLimits) -> u16 {
    let requests = limits
        .queue_pair_requests
        .saturating_sub(RESPONSE_REQUESTS_MAX);
    let most = requests.min(limits.shared_receive_requests);
    u16::try_from(most).unwrap_or(u16::MAX)
}

/// Why a device cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// It does not support shared receive queues.
    #[error("it has no shared receive queues of two pieces of memory")]
    NoSharedReceives,
    /// Its queues are too small for a single command.
    #[error("its queues are too short")]
    ShortQueues,
    /// It does not support RDMA reads.
    #[error("it does no RDMA reads")]
    NoReads,
}

/// Checks whether a device can serve hosts.
///
/// # Errors
/// [`Unfit`].
pub fn check_fitness(limits: &DeviceLimits) -> Result<(), rdma::Unfit> {
    SharedQueues::new(1, limits)?;
    Ok(())
}

/// The queues that the connections of one reactor share on one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SharedQueues {
    /// Receives of the shared receive queue.
    pub(crate) receives: u32,
    /// Entries of each completion queue.
    pub(crate) completions: u32,
}

impl SharedQueues {
    /// The queues for connections that use `receives` receives.
    pub(crate) fn new(receives: u32, limits: &DeviceLimits) -> Result<Self, Unfit> {
        if limits.shared_receive_queues == 0 || limits.shared_receive_sges < RECEIVE_SGES {
            return Err(Unfit::NoSharedReceives);
        }
        if u32::from(queue_depth_max(limits)) < QUEUE_DEPTH_LEAST {
            return Err(Unfit::ShortQueues);
        }
        if limits.reads_outgoing == 0 {
            return Err(Unfit::NoReads);
        }
        let completions = limits.completion_queue_entries.min(COMPLETION_ENTRIES_MAX);
        // At most half of a completion queue is for receives, so that queue pairs have room.
        let receives = receives
            .min(limits.shared_receive_requests)
            .min(completions / 2)
            .max(1);
        let shared = Self {
            receives,
            completions,
        };
        if shared.sends_max() < RESPONSE_REQUESTS_MAX {
            return Err(Unfit::ShortQueues);
        }
        Ok(shared)
    }

    /// Send requests of all queue pairs of one completion queue at most. The queue never overflows:
    /// all receives and send requests may complete before the next poll.
    pub(crate) fn sends_max(&self) -> u32 {
        self.completions - self.receives
    }

    pub(crate) const RECEIVE_SGES: u32 = RECEIVE_SGES;
}

/// The sizes of one connection's queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueuePairPlan {
    pub(crate) capacity: QueuePairCapacity,
    /// Outstanding RDMA reads at most.
    pub(crate) reads: u8,
}

impl QueuePairPlan {
    /// The sizes for a queue of `depth` entries whose host serves `reads` concurrent reads.
    ///
    /// The send queue has room for a write and a response of every command, for the reads, and for
    /// one response with the maximum number of blocks. Responses wait if it is full.
    pub(crate) fn new(depth: u16, reads: u8, shared: SharedQueues, limits: &DeviceLimits) -> Self {
        let reads = reads.min(limits.reads_outgoing).min(READS_MAX);
        let wanted = 2 * u32::from(depth) + u32::from(reads) + RESPONSE_REQUESTS_MAX;
        Self {
            capacity: QueuePairCapacity {
                send_requests: wanted.min(shared.sends_max()),
                receive_requests: 0,
                send_sges: 2,
                receive_sges: 0,
                inline_bytes: RESPONSE_BYTES as u32,
            }
            .clamped(limits),
            reads,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rdma::Transport;

    use super::*;

    fn limits() -> DeviceLimits {
        DeviceLimits {
            transport: Transport::Roce,
            ports: 1,
            queue_pairs: 1000,
            queue_pair_requests: 4096,
            sges: 4,
            read_sges: 4,
            completion_queues: 1000,
            completion_queue_entries: 32_767,
            shared_receive_queues: 10,
            shared_receive_requests: 4096,
            shared_receive_sges: 4,
            reads_incoming: 128,
            reads_outgoing: 128,
            registrations: 1000,
            registration_bytes: u64::MAX,
            windows: 0,
        }
    }

    #[test]
    fn a_device_without_required_capabilities_is_unfit() {
        let unfit = |limits: DeviceLimits| SharedQueues::new(1024, &limits).expect_err("unfit");
        let without = DeviceLimits {
            shared_receive_queues: 0,
            ..limits()
        };
        assert_eq!(unfit(without), Unfit::NoSharedReceives);
        let narrow = DeviceLimits {
            shared_receive_sges: 1,
            ..limits()
        };
        assert_eq!(unfit(narrow), Unfit::NoSharedReceives);
        let short = DeviceLimits {
            queue_pair_requests: 8,
            ..limits()
        };
        assert_eq!(unfit(short), Unfit::ShortQueues);
        let deaf = DeviceLimits {
            reads_outgoing: 0,
            ..limits()
        };
        assert_eq!(unfit(deaf), Unfit::NoReads);
    }

    #[test]
    fn outstanding_reads_respect_both_limits() {
        let shared = SharedQueues::new(1024, &limits()).expect("fit");
        let reads =
            |host, limits: DeviceLimits| QueuePairPlan::new(128, host, shared, &limits).reads;
        assert_eq!(reads(1, limits()), 1);
        assert_eq!(reads(200, limits()), READS_MAX);
        let few = DeviceLimits {
            reads_outgoing: 4,
            ..limits()
        };
        assert_eq!(reads(200, few), 4);
    }

    proptest! {
        #[test]
        fn plans_keep_to_the_limits(
            receives in 1u32..10_000,
            depth in 2u16..4096,
            queue_pair_requests in 1u32..20_000,
            completion_queue_entries in 1u32..70_000,
            shared_receive_requests in 1u32..40_000,
        ) {
            let limits = DeviceLimits {
                queue_pair_requests,
                completion_queue_entries,
                shared_receive_requests,
                ..limits()
            };
            if let Ok(shared) = SharedQueues::new(receives, &limits) {
                prop_assert!(shared.completions <= completion_queue_entries);
                prop_assert!(shared.receives <= shared_receive_requests.min(receives));
                let plan = QueuePairPlan::new(depth, 16, shared, &limits);
                let sends = plan.capacity.send_requests;
                prop_assert!(sends <= queue_pair_requests);
                prop_assert!(sends >= RESPONSE_REQUESTS_MAX);
                prop_assert!(sends + shared.receives <= shared.completions);
            }
        }
    }
}
