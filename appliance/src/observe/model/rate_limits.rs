//! The JSON of rate limits, and of what they delay.

use nvme_target::RateLimitSnapshot;

use crate::observe::measured::measured;

/// The input of the status of a rate limit.
pub(crate) struct RateLimitInput<'o> {
    pub(crate) limit: &'o appliance_config::RateLimit,
    /// None while its device is not open.
    pub(crate) seen: Option<&'o RateLimitSnapshot>,
}

impl RateLimitInput<'_> {
    fn device(&self) -> Option<String> {
        match &self.limit.scope {
            appliance_config::RateScope::Device(device) => Some(device.to_string()),
            appliance_config::RateScope::Host(_) | appliance_config::RateScope::HostAt { .. } => {
                None
            }
        }
    }

    fn host(&self) -> Option<String> {
        match &self.limit.scope {
            appliance_config::RateScope::Device(_) => None,
            appliance_config::RateScope::Host(host)
            | appliance_config::RateScope::HostAt { host, .. } => Some(host.to_string()),
        }
    }

    fn export(&self) -> Option<String> {
        match &self.limit.scope {
            appliance_config::RateScope::Device(_) | appliance_config::RateScope::Host(_) => None,
            appliance_config::RateScope::HostAt { export, .. } => Some(export.to_string()),
        }
    }
}

measured! {
    /// A rate limit of the configuration.
    struct RateLimitStatus from input: RateLimitInput<'_> {
        /// The device whose commands it counts; none for a host.
        device: Option<String> = input.device();
        /// The host whose commands it counts; over HTTP without a token, a pseudonym. None for a
        /// device.
        host: Option<String> = input.host();
        /// The export at which the host's commands count; none for all exports.
        export: Option<String> = input.export();
        /// Which commands it counts.
        #[words("reads", "writes", "both")]
        operations: String = input.limit.operations.word().to_owned();
        /// Most commands in a second; none without a limit of commands.
        iops: Option<u64> = input.limit.iops;
        /// Most bytes in a second; none without a limit of bytes.
        bandwidth: Option<u64> = input.limit.bandwidth.map(appliance_config::ByteSize::bytes);
        /// Commands that its limit of commands delayed, since the limit began.
        throttled_by_iops: u64 = input.seen.map_or(0, |seen| seen.by_iops.commands),
            Counter "rate_limit_iops_throttled";
        /// Commands that its limit of bytes delayed, since the limit began.
        throttled_by_bandwidth: u64 = input.seen.map_or(0, |seen| seen.by_bandwidth.commands),
            Counter "rate_limit_bandwidth_throttled";
        /// The sum of these delays.
        waited_ns: u64 = input.seen.map_or(0, |seen| {
            seen.by_iops.waited.0.saturating_add(seen.by_bandwidth.waited.0)
        }), CounterSeconds "rate_limit_waited";
    }
}
