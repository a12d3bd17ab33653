//! The replacement of files over RDMA in builds without it: its listeners are refused.

use std::net::SocketAddr;
use std::sync::Arc;

use appliance_config::{Config, FileListener, Transport};
use files_rdma::RdmaCounters;
use hugemem::Region;
use reactors::{InitError, Nanos, Poller, Progress, ReactorHandle};

use super::rdma_listeners::{FileContext, RdmaListeners};
use crate::error::Failure;
use crate::event_loop::EventLoop;

/// RDMA is not in this build.
#[derive(Debug, thiserror::Error)]
#[error(
    "file_listener {name}: RDMA is unavailable: this program was built without it: build it with \
     the feature verbs, or use the packaged one"
)]
struct BuiltWithout {
    name: String,
}

impl BuiltWithout {
    fn new(listener: &FileListener) -> Self {
        let name = listener.name.to_string();
        Self { name }
    }
}

/// Refuses every listener.
#[derive(Default)]
struct Refusal {
    counters: RdmaCounters,
}

/// Refuses every listener.
pub(crate) fn system(_: Arc<rdma::DeviceEvents>) -> Arc<dyn RdmaListeners> {
    Arc::new(Refusal::default())
}

/// The poller of a service without listeners.
struct Nothing;

impl Poller for Nothing {
    fn name(&self) -> &str {
        "files-rdma"
    }

    fn poll(&mut self, _: Nanos) -> Progress {
        Progress::Idle
    }
}

impl RdmaListeners for Refusal {
    fn bind(&self, _: u32, listener: &FileListener, _: &[&Region]) -> Result<SocketAddr, Failure> {
        Err(BuiltWithout::new(listener).into())
    }

    fn poller(&self, context: FileContext) -> Result<Box<dyn Poller>, InitError> {
        drop((context.core, context.arena));
        Ok(Box::new(Nothing))
    }

    fn set_wakers(&self, _: &[ReactorHandle]) {}

    fn listen(
        &self,
        _: u32,
        listener: &FileListener,
        _: &[&Region],
        _: &mut dyn EventLoop,
    ) -> Result<SocketAddr, Failure> {
        Err(BuiltWithout::new(listener).into())
    }

    fn open(&self, _: u32, _: &mut dyn EventLoop) -> Result<(), Failure> {
        Ok(())
    }

    fn close(&self, _: u32, _: &mut dyn EventLoop) -> Result<(), Failure> {
        Ok(())
    }

    fn release(&self, _: &mut dyn EventLoop) {}

    fn restore(&self, _: bool, _: &[&Region], _: &mut dyn EventLoop) {}

    fn attach_memory(&self, _: &Region) -> Result<(), Failure> {
        Ok(())
    }

    fn detach_memory(&self, _: &Region) {}

    fn missing(&self) -> usize {
        0
    }

    fn counters(&self) -> &RdmaCounters {
        &self.counters
    }
}

/// Why the RDMA listeners of `config` cannot work.
pub(super) fn problem(config: &Config) -> Option<String> {
    let listener = config.files.listeners_of(Transport::Rdma).next()?;
    Some(BuiltWithout::new(listener).to_string())
}
