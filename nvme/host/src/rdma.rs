//! NVMe/RDMA over any provider: capsules are messages, and the target transfers data (RDMA 1.1).
//!
//! Data is in leases of arenas that were registered by [`Transport::attach`](crate::Transport),
//! once for each device. A command refers to it by keyed descriptors; short writes are in-capsule
//! data if the target supports it. The target transfers all other data by RDMA READ and WRITE,
//! without a copy by this program.

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

use crate::rdma::admin::StagedConnection;
use crate::rdma::connection::RdmaConnection;
use crate::rdma::memory::HostMemory;
use crate::transport::{AdminLink, Fabric, IoLink, QueueParameters, Transport};

/// The remote keys by which the target accesses the host's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KeyMode {
    /// The remote key of the whole arena: no work per request, but a target could access all of the
    /// arena.
    #[default]
    Arena,
    /// A memory window per command, which the target is requested to invalidate with its response:
    /// one more work request per command, and no access beyond the command. Needs a device with
    /// windows of type 2.
    Windows,
}

/// Options of connections over RDMA.
#[derive(Debug, Clone, Copy)]
pub struct RdmaOptions {
    /// The remote keys by which the target accesses the host's memory.
    pub keys: KeyMode,
    /// Number of descriptors into which data is divided, limited by the target; default 1. More are
    /// for tests of a target: scattered memory would look the same.
    pub descriptors: u8,
    /// Whether to send short writes as in-capsule data, within the target's limit.
    pub in_capsule: bool,
    /// Memory for capsules, responses and admin data of all connections, in bytes.
    pub staging_bytes: usize,
}

impl Default for RdmaOptions {
    fn default() -> Self {
        Self {
            keys: KeyMode::Arena,
            descriptors: 1,
            in_capsule: true,
            staging_bytes: 16 << 20,
        }
    }
}

/// The transport: a provider, and the memory that is registered with its devices.
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
        Ok(Box::new(StagedConnection::new(
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
