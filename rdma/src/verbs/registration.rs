//! Registered memory.
#![expect(unsafe_code, reason = "calls libibverbs")]

use std::ffi::c_int;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use rdma_sys::{ibv_access_flags, ibv_mr};
use rustix::process::{Resource, getrlimit};

use super::domain::VerbsDomain;
use super::handle::Handle;
use super::library::dma_buf_registration;
use super::system::error_of;
use crate::device::Transport;
use crate::error::Error;
use crate::memory::{Access, DeviceRange, MemoryRange};
use crate::provider::{Device, Domain, Registration};

/// A memory region of libibverbs.
#[derive(Debug)]
pub struct VerbsRegistration {
    inner: Arc<Registered>,
}

/// The part that a queued binding of a window keeps alive.
#[derive(Debug)]
pub(super) struct Registered {
    domain: VerbsDomain,
    region: Handle<ibv_mr>,
    address: usize,
    bytes: usize,
    lkey: u32,
    rkey: u32,
}

impl VerbsRegistration {
    pub(super) fn new(
        domain: &VerbsDomain,
        range: MemoryRange<'_>,
        access: Access,
    ) -> Result<Self, Error> {
        let limits = domain.device().limits();
        if access.remote_write && !access.local_write {
            return Err(Error::Misuse(
                "memory that the peer may write must be open to the local device too",
            ));
        }
        if range.len() as u64 > limits.registration_bytes {
            return Err(Error::Limit {
                what: "bytes of one memory registration",
                wanted: range.len() as u64,
                limit: limits.registration_bytes,
            });
        }
        let address = std::ptr::with_exposed_provenance_mut(range.address());
        let flags = flags_of(access, limits.transport);
        let register = domain.device().functions().ibv_reg_mr;
        // SAFETY: the domain is alive; the creator of the range promised that the device may access
        // it: see `MemoryRange`.
        let region = unsafe { register(domain.handle().get(), address, range.len(), flags) };
        let Some(region) = Handle::new(region) else {
            return Err(refusal(range.len()));
        };
        Ok(Self::created(domain, region, range.address(), range.len()))
    }

    /// Registers memory of another device. Its addresses at this one are its bus addresses.
    pub(super) fn of_device(
        domain: &VerbsDomain,
        range: DeviceRange<'_>,
        access: Access,
    ) -> Result<Self, Error> {
        let limits = domain.device().limits();
        // 64-bit systems only.
        let (address, bytes) = (range.address() as usize, range.bytes() as usize);
        let Some(register) = dma_buf_registration() else {
            let why = "libibverbs has no function ibv_reg_dmabuf_mr (rdma-core before 34)";
            return Err(Error::NoDeviceMemory(why));
        };
        let (descriptor, offset) = range.descriptor();
        let flags = flags_of(access, limits.transport);
        // SAFETY: the domain is alive. The device accesses no memory of this program by the
        // registration.
        let region = unsafe {
            register(
                domain.handle().get(),
                offset,
                bytes,
                range.address(),
                descriptor.as_raw_fd(),
                flags,
            )
        };
        let Some(region) = Handle::new(region) else {
            let cause = io::Error::last_os_error();
            return Err(match cause.raw_os_error() {
                Some(libc::EOPNOTSUPP | libc::ENOSYS) => {
                    Error::NoDeviceMemory("the driver of the RDMA device registers no dma-buf")
                }
                _ => error_of("ibv_reg_dmabuf_mr", cause),
            });
        };
        Ok(Self::created(domain, region, address, bytes))
    }

    fn created(domain: &VerbsDomain, region: Handle<ibv_mr>, address: usize, bytes: usize) -> Self {
        // SAFETY: the region was just created, and this field never changes.
        let lkey = unsafe { (*region.get()).lkey };
        // SAFETY: as above.
        let rkey = unsafe { (*region.get()).rkey };
        Self {
            inner: Arc::new(Registered {
                domain: domain.clone(),
                region,
                address,
                bytes,
                lkey,
                rkey,
            }),
        }
    }

    pub(super) fn shared(&self) -> &Arc<Registered> {
        &self.inner
    }
}

impl Registered {
    pub(super) fn handle(&self) -> Handle<ibv_mr> {
        self.region
    }

    pub(super) fn domain(&self) -> &VerbsDomain {
        &self.domain
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.domain.end_registration(self.region);
    }
}

impl Registration for VerbsRegistration {
    fn address(&self) -> usize {
        self.inner.address
    }

    fn bytes(&self) -> usize {
        self.inner.bytes
    }

    fn lkey(&self) -> u32 {
        self.inner.lkey
    }

    fn rkey(&self) -> u32 {
        self.inner.rkey
    }
}

fn flags_of(access: Access, transport: Transport) -> c_int {
    // iWARP writes the data of a read with a remote key of this side (RFC 5040 §5.2).
    let remote_write = access.remote_write || (access.local_write && transport == Transport::Iwarp);
    let flags = [
        (access.local_write, ibv_access_flags::IBV_ACCESS_LOCAL_WRITE),
        (access.remote_read, ibv_access_flags::IBV_ACCESS_REMOTE_READ),
        (remote_write, ibv_access_flags::IBV_ACCESS_REMOTE_WRITE),
        (access.bind_window, ibv_access_flags::IBV_ACCESS_MW_BIND),
    ];
    let flags = flags.iter().filter(|(wanted, _)| *wanted);
    flags.fold(0, |all, (_, flag)| all | flag.0) as c_int
}

/// The error of a failed registration: an out-of-memory error usually means that the process
/// exceeds its limit of pinned memory.
fn refusal(bytes: usize) -> Error {
    let cause = io::Error::last_os_error();
    let may_pin = getrlimit(Resource::Memlock).current;
    match (cause.raw_os_error(), may_pin) {
        (Some(libc::ENOMEM), Some(limit)) => Error::Limit {
            what: "bytes of pinned memory (ulimit -l)",
            wanted: bytes as u64,
            limit,
        },
        _ => error_of("ibv_reg_mr", cause),
    }
}
