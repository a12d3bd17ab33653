//! The replacement of files over RDMA in builds without it: its listeners are refused.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use appliance_config::{Config, FileListener, Transport};
use files_rdma::RdmaCounters;
use files_service::FileCore;
use hugemem::{Arena, Region};
use reactors::Poller;

/// RDMA is not in this build.
#[derive(Debug, thiserror::Error)]
#[error(
    "file_listener {name}: RDMA is unavailable: this program was built without it: build it with \
     the feature verbs, or use the packaged one"
)]
pub(super) struct BuiltWithout {
    name: String,
}

/// It does not exist in this build.
pub(super) enum FileEndpoint {}

impl FileEndpoint {
    pub(super) fn open(listener: &FileListener, _: &[&Region]) -> Result<Self, BuiltWithout> {
        let name = listener.name.to_string();
        Err(BuiltWithout { name })
    }

    pub(super) fn listen(&mut self, _: &FileListener) -> Result<SocketAddr, BuiltWithout> {
        match *self {}
    }

    pub(super) fn memory(&self) -> FileMemory {
        match *self {}
    }

    pub(super) fn into_poller(
        self,
        _: Rc<RefCell<FileCore>>,
        _: Arc<Arena>,
        _: Arc<RdmaCounters>,
    ) -> io::Result<Box<dyn Poller>> {
        match self {}
    }
}

/// It does not exist in this build.
pub(super) enum FileMemory {}

impl FileMemory {
    pub(super) fn attach(&self, _: &Region) -> Result<(), String> {
        match *self {}
    }

    pub(super) fn detach(&self, _: &Region) {
        match *self {}
    }
}

/// Why the RDMA listeners of `config` cannot work.
pub(super) fn problem(config: &Config) -> Option<String> {
    let mut listeners = config.files.listeners.iter();
    let listener = listeners.find(|it| it.transport == Transport::Rdma)?;
    let name = listener.name.to_string();
    Some(BuiltWithout { name }.to_string())
}
