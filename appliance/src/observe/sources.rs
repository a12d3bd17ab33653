//! The sources of observations: shared handles of all counters.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use hugemem::Arena;
use nvme_driver::{Drive, DriveCounters};
use nvme_rdma::RdmaCounters;
use nvme_target::Target;
use nvme_tcp::{TcpCounters, TlsCounters};
use rdma::{Domains, Provider};
use reactors::{ReactorHandle, TscClock};

use crate::copies::Copies;
use crate::files::Files;
use crate::running::Running;

/// The counters of one reactor's part of a transport.
pub(crate) trait Counts: Send + Sync {
    /// Names and values, including the level `connections`.
    fn values(&self) -> Vec<(&'static str, u64)>;
}

impl Counts for TcpCounters {
    fn values(&self) -> Vec<(&'static str, u64)> {
        self.each().collect()
    }
}

impl Counts for RdmaCounters {
    fn values(&self) -> Vec<(&'static str, u64)> {
        self.each().collect()
    }
}

/// The memory registered with the network cards.
impl<P: Provider> Counts for Domains<P> {
    fn values(&self) -> Vec<(&'static str, u64)> {
        let registered = self.registered();
        vec![
            ("devices_missing", self.lost().len() as u64),
            ("memory_registrations", registered.count),
            ("memory_registered_bytes", registered.bytes),
        ]
    }
}

/// The counters of one transport, one set for each reactor.
#[derive(Clone)]
pub(crate) struct TransportCounters {
    /// `tcp` or `rdma`.
    pub(crate) name: &'static str,
    pub(crate) reactors: Vec<Arc<dyn Counts>>,
    /// The values of the transport as a whole.
    pub(crate) whole: Option<Arc<dyn Counts>>,
    /// The counters of the handshakes of TLS, of all its listeners.
    pub(crate) tls: Option<Arc<TlsCounters>>,
    /// Whether the transport has ever had a listener; otherwise it is not reported.
    is_used: Arc<AtomicBool>,
}

impl TransportCounters {
    pub(crate) fn new<C: Counts + 'static>(name: &'static str, reactors: &[Arc<C>]) -> Self {
        let shared = |counters: &Arc<C>| Arc::clone(counters) as Arc<dyn Counts>;
        Self {
            name,
            reactors: reactors.iter().map(shared).collect(),
            whole: None,
            tls: None,
            is_used: Arc::new(AtomicBool::new(true)),
        }
    }

    /// A transport that is never reported.
    #[cfg(not(feature = "verbs"))]
    pub(crate) fn unused(name: &'static str) -> Self {
        Self {
            name,
            reactors: Vec::new(),
            whole: None,
            tls: None,
            is_used: Arc::default(),
        }
    }

    /// Adds the counters of handshakes.
    pub(crate) fn with_tls(self, tls: Arc<TlsCounters>) -> Self {
        Self {
            tls: Some(tls),
            ..self
        }
    }

    /// Whether the transport has ever had a listener.
    pub(crate) fn is_used(&self) -> bool {
        self.is_used.load(Ordering::Acquire)
    }

    /// Reports the transport only once `is_used` is set.
    #[cfg(feature = "verbs")]
    pub(crate) fn once_used(self, is_used: &Arc<AtomicBool>) -> Self {
        Self {
            is_used: Arc::clone(is_used),
            ..self
        }
    }

    /// Adds values of the transport as a whole.
    #[cfg(feature = "verbs")]
    pub(crate) fn with_whole(self, whole: Arc<dyn Counts>) -> Self {
        Self {
            whole: Some(whole),
            ..self
        }
    }
}

/// A drive, and the names of the devices on it.
pub(crate) struct DriveSource {
    pub(crate) names: String,
    pub(crate) drive: Arc<Drive>,
}

impl DriveSource {
    /// Whether the device of that name is on the drive.
    pub(crate) fn has(&self, device: &str) -> bool {
        self.names.split(", ").any(|name| name == device)
    }

    /// Every counter of the driver, by name.
    pub(crate) fn counters(&self) -> Vec<(&'static str, u64)> {
        let DriveCounters {
            commands,
            doorbells,
            timeouts,
            aborts,
            resets,
            recoveries,
            unknown_identifiers,
            stale_identifiers,
            bad_heads,
            events,
            reattachments,
        } = self.drive.counters();
        vec![
            ("commands", commands),
            ("doorbells", doorbells),
            ("timeouts", timeouts),
            ("aborts", aborts),
            ("resets", resets),
            ("recoveries", recoveries),
            ("unknown_identifiers", unknown_identifiers),
            ("stale_identifiers", stale_identifiers),
            ("bad_heads", bad_heads),
            ("events", events),
            ("reattachments", reattachments),
        ]
    }
}

/// Shared handles of a running appliance.
pub(crate) struct Sources {
    /// The running configuration, with the bound addresses of its listeners.
    pub(crate) running: Running,
    pub(crate) config_path: Option<PathBuf>,
    /// The core of each reactor.
    pub(crate) cores: Vec<usize>,
    pub(crate) target: Arc<Target>,
    pub(crate) arena: Arc<Arena>,
    pub(crate) reactors: Vec<ReactorHandle>,
    /// The clock of the reactors.
    pub(crate) clock: TscClock,
    pub(crate) transports: Vec<TransportCounters>,
    /// The file service.
    pub(crate) files: Arc<Files>,
    /// The copies of devices.
    pub(crate) copies: Arc<Copies>,
    /// The open drives.
    pub(crate) drives: Arc<ArcSwap<Vec<DriveSource>>>,
    pub(crate) started: Instant,
    pub(crate) start_took: Duration,
}
