//! NVMe/RDMA over any provider: capsules as messages, data moved by the target (RDMA 1.1).
//!
//! Data lies in leases of arenas that were made known by [`Transport::attach`](crate::Transport),
//! and is registered once for each device. A command names it by keyed descriptors; short writes
//! travel behind the command where the target takes them. The target moves everything else by RDMA
//! READ and WRITE: no byte of it passes through this program.

mod admin;
mod connection;
mod establish;
mod keys;
mod memory;
mod work;

use std::sync::Arc;

use hugemem::{Arena, Lease};
use nvme_spec::log::TransportType;
use rdma::Provider;

use crate::error::HostError;
use crate::options::ConnectOptions;
pub use crate::rdma::establish::{Accepted, Manager};

use crate::rdma::admin::Bounced;
use crate::rdma::connection::RdmaConnection;
use crate::rdma::memory::HostMemory;
use crate::transport::{AdminLink, Fabric, IoLink, QueueParameters, Transport};

/// How the target gets to the host's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KeyUse {
    /// By the remote key of the whole arena: nothing to do for a request, and a target could touch
    /// all of the arena.
    #[default]
    Arena,
    /// By a memory window for each command, which the target is asked to invalidate with its
    /// response: one more work request for each command, and nothing open beyond it. Needs a
    /// device with windows of type 2.
    Windows,
}

/// How connections over RDMA are made.
#[derive(Debug, Clone, Copy)]
pub struct RdmaOptions {
    /// How the target gets to the host's memory.
    pub keys: KeyUse,
    /// Descriptors that data is divided into where the target takes so many; 1 by default. More are
    /// for tests of a target: memory that was not in one piece would look the same.
    pub descriptors: u8,
    /// Send short writes behind their command, as far as the target takes them.
    pub in_capsule: bool,
    /// Memory for capsules, responses and admin data, shared by all connections, bytes.
    pub staging_bytes: usize,
}

impl Default for RdmaOptions {
    fn default() -> Self {
        Self {
            keys: KeyUse::Arena,
            descriptors: 1,
            in_capsule: true,
            staging_bytes: 16 << 20,
        }
    }
}

/// The transport: a provider, and memory that is registered with its devices.
#[derive(Debug)]
struct Rdma<P: Provider> {
    provider: P,
    options: RdmaOptions,
    memory: HostMemory<P>,
}

impl Transport {
    /// NVMe/RDMA over a provider.
    ///
    /// # Errors
    /// [`HostError::StagingMemory`].
    pub fn rdma<P: Provider>(provider: P, options: RdmaOptions) -> Result<Self, HostError> {
        let memory = HostMemory::new(&options)?;
        Ok(Self(Arc::new(Rdma {
            provider,
            options,
            memory,
        })))
    }
}

impl<P: Provider> Rdma<P> {
    fn check(options: &ConnectOptions) -> Result<(), HostError> {
        match (options.header_digest, options.data_digest) {
            (true, _) => Err(HostError::Unsupported("header digests over RDMA")),
            (_, true) => Err(HostError::Unsupported("data digests over RDMA")),
            (false, false) => Ok(()),
        }
    }
}

impl<P: Provider> Fabric for Rdma<P> {
    fn kind(&self) -> TransportType {
        TransportType::RDMA
    }

    fn attach(&self, arena: &Arc<Arena>) -> Result<(), HostError> {
        self.memory.attach(arena)
    }

    fn connect_admin(
        &self,
        options: &ConnectOptions,
        parameters: &QueueParameters,
    ) -> Result<AdminLink, HostError> {
        Self::check(options)?;
        let connection = establish::open(
            &self.provider,
            &self.options,
            &self.memory,
            options,
            parameters,
        )?;
        Ok(Box::new(Bounced::new(
            connection,
            Arc::clone(self.memory.staging()),
        )))
    }

    fn connect_io(
        &self,
        options: &ConnectOptions,
        parameters: &QueueParameters,
    ) -> Result<IoLink, HostError> {
        Self::check(options)?;
        let connection: RdmaConnection<P, Lease> = establish::open(
            &self.provider,
            &self.options,
            &self.memory,
            options,
            parameters,
        )?;
        Ok(Box::new(connection))
    }
}
