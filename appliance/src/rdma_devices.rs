//! RDMA devices of a service: they are found, its memory is registered with them, and those that were
//! lost are used again when they return. For NVMe/RDMA and for files over RDMA.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use hugemem::Region;
use rdma::{Device as _, Domains, Provider, Unavailable};

use crate::error::with_causes;
use crate::event_loop::{EventLoop, aside};

/// Time between two searches for devices that were lost.
const SEARCH_INTERVAL: Duration = Duration::from_secs(5);

/// Why a listener over RDMA cannot serve.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ListenError {
    #[error("{listener}: {cause}: {}", .cause.remedy())]
    NoRdma {
        listener: String,
        cause: Unavailable,
    },
    #[error("{listener} cannot listen on {address}")]
    Bind {
        listener: String,
        address: SocketAddr,
        #[source]
        cause: rdma::Error,
    },
    #[error("no RDMA device can be used: {reasons}")]
    NoFitDevice { reasons: String },
}

impl ListenError {
    /// The error of a listener, which `listener` names with its kind.
    pub(crate) fn new(listener: String, address: SocketAddr, cause: rdma::Error) -> Self {
        match cause {
            rdma::Error::Unavailable(cause) => Self::NoRdma { listener, cause },
            cause => Self::Bind {
                listener,
                address,
                cause,
            },
        }
    }
}

/// Registers all memory with every usable device; logs the others.
///
/// # Errors
/// [`ListenError::NoFitDevice`].
pub(crate) fn register<P: Provider>(
    provider: &P,
    domains: &Domains<P>,
    regions: &[&Region],
) -> Result<(), ListenError> {
    let mut reasons = BTreeSet::new();
    let devices = provider.devices().unwrap_or_default();
    for device in &devices {
        let name = device.name();
        match domains.add(device, regions) {
            Ok(()) => tracing::info!("RDMA device {name}: memory registered"),
            Err(error) => {
                let reason = with_causes(&error);
                tracing::warn!("RDMA device {name} is not used: {reason}");
                reasons.insert(format!("{name}: {reason}"));
            }
        }
    }
    if domains.devices().is_empty() {
        let mut reasons: Vec<String> = reasons.into_iter().collect();
        if reasons.is_empty() {
            reasons.push("this machine has none".to_owned());
        }
        let reasons = reasons.join("; ");
        return Err(ListenError::NoFitDevice { reasons });
    }
    Ok(())
}

/// The search for lost devices.
#[derive(Default)]
pub(crate) struct Search {
    next_at: Option<Instant>,
    /// Why a device cannot be used, as last logged.
    reasons: BTreeMap<String, String>,
}

impl Search {
    /// Searches for lost devices if it is time, and registers `memory` with those that have returned.
    /// Returns whether there are any. `has_listeners`: without one nothing reports the removal of a
    /// device that the library has open, and the removal waits until it is closed. The search closes
    /// it.
    pub(crate) fn look<P: Provider>(
        &mut self,
        (provider, domains): (&P, &Domains<P>),
        has_listeners: bool,
        memory: &[&Region],
        event_loop: &mut dyn EventLoop,
    ) -> bool {
        let is_needed = !has_listeners || !domains.lost().is_empty();
        let now = event_loop.now();
        if !is_needed || self.next_at.is_some_and(|at| now < at) {
            return false;
        }
        let found = aside(event_loop, || Ok(self.find_lost(provider, domains, memory)));
        self.next_at = Some(event_loop.now() + SEARCH_INTERVAL);
        found == Ok(true)
    }

    fn find_lost<P: Provider>(
        &mut self,
        provider: &P,
        domains: &Domains<P>,
        memory: &[&Region],
    ) -> bool {
        // Without any device this is an error.
        let devices = provider.devices().unwrap_or_default();
        let lost = domains.lost();
        let mut any = false;
        for device in devices {
            let is_served = domains.memory(device.index()).is_some();
            let name = device.name();
            if is_served || !lost.iter().any(|it| it == name) {
                continue;
            }
            match domains.add(&device, memory) {
                Ok(()) => {
                    tracing::info!("RDMA device {name} is back: memory registered");
                    self.reasons.remove(name);
                    any = true;
                }
                Err(error) => {
                    let reason = with_causes(&error);
                    if self.reasons.get(name) != Some(&reason) {
                        tracing::warn!("RDMA device {name} is back and not used: {reason}");
                        self.reasons.insert(name.to_owned(), reason);
                    }
                }
            }
        }
        any
    }
}
