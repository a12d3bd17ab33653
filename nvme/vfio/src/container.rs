//! One address space for all drives, into which the arena is mapped once.
//!
//! There are two kinds, depending on the kernel. With type 1 (the usual one) a container contains
//! IOMMU groups; with iommufd (kernels built without groups) devices are opened individually and
//! attached to an address space. **The second kind is untested**: no available kernel has it
//! without the first.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hugemem::{AddressSpace, Arena, DmaMap, DmaMapError, Region};
use vfio_bindings::bindings::vfio as abi;

use crate::bar::Bar;
use crate::capabilities::IommuInfo;
use crate::device::{Device, Handle};
use crate::diagnosis::{Nodes, check_lock_limit, diagnose, node_problem};
use crate::function::group_number;
use crate::placement::{PlacementError, PlacementRequest, choose_address, choose_device_address};
use crate::system::System;
use crate::{Error, PciAddress, Problem, ioctl};

/// The devices opened by this program, and the arena that all of them access.
///
/// It is kept as long as a drive may be opened or reopened: a drive that is opened later joins, and
/// has the arena mapped at the same address. Opening and closing may block: only for the control
/// thread.
#[derive(Debug)]
pub struct Container {
    system: System,
    kind: Kind,
    state: Mutex<State>,
    space: AddressSpace,
    /// Another lock than that of `state`, which is kept while the arena is mapped: a reactor may
    /// start a drive meanwhile.
    addresses: Mutex<Addresses>,
}

/// The addresses that devices use: ranges with their first and last one.
#[derive(Debug, Default)]
struct Addresses {
    /// Those that the IOMMU can translate.
    usable: Vec<(u64, u64)>,
    arena: Option<(u64, u64)>,
    /// Memory of devices.
    reserved: Vec<(u64, u64)>,
}

/// Memory of a device that is mapped for every device of the container. Dropping it without
/// [`unmap`](Self::unmap) leaves it mapped.
#[derive(Debug)]
pub(crate) struct BarMapping {
    container: Arc<Container>,
    /// Keeps the device open.
    bar: Arc<Bar>,
    address: u64,
    len: u64,
}

impl BarMapping {
    /// Ends the mapping: no device of the container accesses the memory any more. Returns whether
    /// the kernel did it. If not, the device stays open, because devices may still access its
    /// memory.
    pub(crate) fn unmap(self) -> bool {
        let Kind::Type1 { file } = &self.container.kind else {
            return false;
        };
        let unmapped = ioctl::unmap(file.as_fd(), self.address, self.len).is_ok();
        if !unmapped {
            std::mem::forget(self.bar);
        }
        unmapped
    }
}

#[derive(Debug)]
enum Kind {
    /// `/dev/vfio/vfio`.
    Type1 { file: OwnedFd },
    /// `/dev/iommu` and the identifier of an address space in it.
    Iommufd { file: OwnedFd, space: u32 },
}

#[derive(Debug, Default)]
struct State {
    /// Groups in the container. Each is kept while one of its devices is open.
    groups: Vec<Group>,
    /// Open devices. The kernel would open a device twice, and the two users would conflict.
    open: Vec<PciAddress>,
    arena: Option<Arc<Arena>>,
    /// The current or last address of the arena.
    address: Option<u64>,
    /// Whether the arena is mapped now: a container without groups loses its mappings.
    is_mapped: bool,
}

#[derive(Debug)]
struct Group {
    number: u32,
    file: OwnedFd,
    /// Number of its devices that are open.
    devices: usize,
}

/// A device's membership in its group. The group leaves the container with its last device.
#[derive(Debug)]
pub(crate) struct Membership {
    container: Arc<Container>,
    address: PciAddress,
    group: Option<u32>,
}

impl Membership {
    pub(crate) fn container(&self) -> &Arc<Container> {
        &self.container
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        let mut state = self.container.lock();
        state.open.retain(|open| *open != self.address);
        let mut groups = state.groups.iter_mut();
        if let Some(group) = groups.find(|group| Some(group.number) == self.group) {
            group.devices -= 1;
        }
        if self.group.is_some() {
            state.remove_empty_groups();
        }
    }
}

impl State {
    fn remove_empty_groups(&mut self) {
        self.groups.retain(|group| group.devices > 0);
        if self.groups.is_empty() {
            self.is_mapped = false;
        }
    }
}

fn open_node(node: &Path) -> io::Result<OwnedFd> {
    let file: File = OpenOptions::new().read(true).write(true).open(node)?;
    Ok(file.into())
}

impl Container {
    /// Opens the kernel's VFIO for the drive at `address` and all later ones.
    ///
    /// # Errors
    /// [`Problem::NoModule`] if the kernel has no VFIO, [`Problem::NoPermission`], or another error
    /// of the system; they name the drive.
    pub fn open(system: &System, address: PciAddress) -> Result<Arc<Container>, Error> {
        let node = system.dev("vfio/vfio");
        let kind = match open_node(&node) {
            Ok(file) => type1(file, address)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => iommufd(system, address)?,
            Err(error) => return Err(node_problem(system, address, node, error).into()),
        };
        Ok(Arc::new(Container {
            system: system.clone(),
            kind,
            state: Mutex::default(),
            space: AddressSpace::unique(),
            addresses: Mutex::default(),
        }))
    }

    fn addresses(&self) -> MutexGuard<'_, Addresses> {
        self.addresses
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The address space of its devices.
    pub(crate) fn space(&self) -> AddressSpace {
        self.space
    }

    /// Reserves addresses for `len` bytes of a device's memory, from `at` on if given. `None` if
    /// something else has them, or if there are none.
    pub(crate) fn reserve(&self, len: u64, at: Option<u64>) -> Option<u64> {
        let mut addresses = self.addresses();
        let taken = addresses.reserved.iter().copied();
        let taken: Vec<_> = taken.chain(addresses.arena).collect();
        let first = choose_device_address(len, at, &addresses.usable, &taken)?;
        addresses.reserved.push((first, first + (len - 1)));
        Some(first)
    }

    /// Ends the reservation of the addresses from `first` on, which no device uses any more.
    pub(crate) fn unreserve(&self, first: u64) {
        let mut addresses = self.addresses();
        addresses.reserved.retain(|range| range.0 != first);
    }

    /// Maps `len` bytes at `offset` of a BAR for all devices of the container, at `address`.
    ///
    /// # Errors
    /// The kernel's, and `Unsupported` with iommufd, which maps no BAR by its address in a program.
    pub(crate) fn map_bar(
        self: &Arc<Self>,
        bar: &Arc<Bar>,
        (offset, len): (u64, u64),
        address: u64,
    ) -> io::Result<BarMapping> {
        let Kind::Type1 { file } = &self.kind else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        let mapped = bar.mapped(offset, len);
        let (memory, within) = mapped.ok_or(io::ErrorKind::InvalidInput)?;
        ioctl::map_device_memory(file.as_fd(), memory, (within, len as usize), address)?;
        Ok(BarMapping {
            container: Arc::clone(self),
            bar: Arc::clone(bar),
            address,
            len,
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Every critical section leaves a consistent state, so a poisoned lock can be used.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes `arena` the memory that drives access. It is mapped when the first drive is opened, or
    /// now if one is open. A container has only one arena; calling this again with the same arena
    /// has no effect.
    ///
    /// # Errors
    /// [`Error::OtherArena`]; if a drive is open, [`Error::PageSize`], [`Error::Room`] and
    /// [`Problem::LockLimitTooSmall`]. Nothing remains mapped.
    pub fn map_arena(&self, arena: &Arc<Arena>, address: PciAddress) -> Result<(), Error> {
        let mut state = self.lock();
        match &state.arena {
            Some(other) if !Arc::ptr_eq(other, arena) => return Err(Error::OtherArena),
            Some(_) => {}
            None => state.arena = Some(Arc::clone(arena)),
        }
        let has_iommu = match &self.kind {
            Kind::Type1 { .. } => !state.groups.is_empty(),
            Kind::Iommufd { .. } => true,
        };
        if !has_iommu {
            return Ok(());
        }
        let result = self.map(&mut state, address);
        if result.is_err() {
            state.arena = None;
        }
        result
    }

    /// The address at which drives access the first byte of the arena's region; the rest follows
    /// without gaps. `None` unless the arena is mapped for an open drive.
    #[must_use]
    pub fn arena_address(&self) -> Option<u64> {
        let state = self.lock();
        state.address.filter(|_| state.is_mapped)
    }

    /// Opens the drive at `address` with bus mastering off, so that it cannot access memory yet.
    ///
    /// At most `vectors_max` interrupt vectors are prepared, all disconnected.
    ///
    /// # Errors
    /// [`Error::Problem`] if an administrator can fix it, [`Error::AlreadyOpen`]; nothing remains
    /// open.
    pub fn open_device(
        self: &Arc<Self>,
        address: PciAddress,
        vectors_max: u16,
    ) -> Result<Device, Error> {
        // Keep the lock until the end, so that only one call at a time is in progress.
        let mut state = self.lock();
        if state.open.contains(&address) {
            return Err(Error::AlreadyOpen { address });
        }
        let (file, group) = match &self.kind {
            Kind::Type1 { file } => {
                let (file, group) = self.open_by_group(&mut state, file, address)?;
                (file, Some(group))
            }
            Kind::Iommufd { file, space } => {
                (self.open_by_node(&mut state, file, *space, address)?, None)
            }
        };
        state.open.push(address);
        drop(state);
        let membership = Membership {
            container: Arc::clone(self),
            address,
            group,
        };
        Device::new(Handle::new(file, Some(membership)), address, vectors_max)
    }

    /// The error for a failed open: the cause that a diagnosis finds, otherwise `error`.
    fn diagnosed(&self, address: PciAddress, error: Problem) -> Error {
        diagnose(&self.system, address, 0)
            .err()
            .unwrap_or(error)
            .into()
    }

    fn open_by_group(
        &self,
        state: &mut State,
        container: &OwnedFd,
        address: PciAddress,
    ) -> Result<(OwnedFd, u32), Error> {
        let number = group_number(&self.system, address);
        let number = number.ok_or_else(|| self.diagnosed(address, Problem::NoIommu { address }))?;
        let result = self.join_group(state, container, number, address);
        let result = result.and_then(|()| {
            if state.arena.is_some() {
                self.map(state, address)?;
            }
            let group = state.groups.iter_mut().find(|group| group.number == number);
            let group = group.expect("the group was just joined");
            let device = ioctl::device_of_group(group.file.as_fd(), address)
                .map_err(system_error(address, "VFIO_GROUP_GET_DEVICE_FD"))?;
            group.devices += 1;
            Ok((device, number))
        });
        state.remove_empty_groups();
        result
    }

    fn join_group(
        &self,
        state: &mut State,
        container: &OwnedFd,
        number: u32,
        address: PciAddress,
    ) -> Result<(), Error> {
        if state.groups.iter().any(|group| group.number == number) {
            return Ok(());
        }
        let node = self.system.dev(format!("vfio/{number}"));
        let file = open_node(&node).map_err(|error| {
            let problem = node_problem(&self.system, address, node, error);
            self.diagnosed(address, problem)
        })?;
        let is_viable = ioctl::group_is_viable(file.as_fd());
        if !is_viable.map_err(system_error(address, "VFIO_GROUP_GET_STATUS"))? {
            let others = Vec::new();
            let group = number;
            return Err(self.diagnosed(
                address,
                Problem::GroupShared {
                    address,
                    group,
                    others,
                },
            ));
        }
        let is_first = state.groups.is_empty();
        ioctl::set_container(file.as_fd(), container.as_fd())
            .and_then(|()| {
                if is_first {
                    ioctl::set_iommu(container.as_fd(), abi::VFIO_TYPE1v2_IOMMU)?;
                }
                Ok(())
            })
            .map_err(|error| attach_error(address, error, is_first))?;
        state.groups.push(Group {
            number,
            file,
            devices: 0,
        });
        Ok(())
    }

    fn open_by_node(
        &self,
        state: &mut State,
        iommufd: &OwnedFd,
        space: u32,
        address: PciAddress,
    ) -> Result<OwnedFd, Error> {
        let nodes = Nodes::of(&self.system, address);
        let node = nodes.device.ok_or_else(|| {
            let cause = io::Error::from(io::ErrorKind::NotFound);
            let step = "open its VFIO device node".to_owned();
            let problem = Problem::Refused {
                address,
                step,
                cause,
            };
            self.diagnosed(address, problem)
        })?;
        let node = self.system.dev(node);
        let file = open_node(&node).map_err(|error| {
            let problem = node_problem(&self.system, address, node, error);
            self.diagnosed(address, problem)
        })?;
        let is_first = state.open.is_empty();
        ioctl::attach_to_address_space(file.as_fd(), iommufd.as_fd(), space)
            .map_err(|error| attach_error(address, error, is_first))?;
        if state.arena.is_some() {
            self.map(state, address)?;
        }
        Ok(file)
    }

    /// Maps the arena, unless it is mapped.
    fn map(&self, state: &mut State, address: PciAddress) -> Result<(), Error> {
        let (Some(arena), false) = (&state.arena, state.is_mapped) else {
            return Ok(());
        };
        let region = arena.region();
        let info = self.iommu(address)?;
        let wanted = PlacementRequest {
            base: region.base_address() as u64,
            len: region.len() as u64,
            page: region.page_size().bytes() as u64,
            previous: state.address,
        };
        if info.mappings_left == Some(0) {
            let error = io::Error::other("the container has no mapping left");
            return Err(system_error(address, "VFIO_IOMMU_MAP_DMA")(error));
        }
        let at = choose_address(wanted, info.page_sizes, &info.ranges).map_err(|no| match no {
            PlacementError::PageSize { smallest } => Error::PageSize {
                address,
                smallest,
                page: wanted.page,
            },
            PlacementError::Room { largest } => Error::Room {
                address,
                wanted: wanted.len,
                largest,
            },
        })?;
        let mapper = Mapper {
            kind: &self.kind,
            at,
        };
        arena.attach(&mapper).map_err(|error| {
            let DmaMapError::Refused(error) = error else {
                return system_error(address, "VFIO_IOMMU_MAP_DMA")(io::Error::other(error));
            };
            // The kernel returns "no memory" if the limit is exceeded.
            if error.raw_os_error() == Some(libc::ENOMEM)
                && let Err(problem) = check_lock_limit(&self.system, address, wanted.len)
            {
                return problem.into();
            }
            system_error(address, "VFIO_IOMMU_MAP_DMA")(error)
        })?;
        state.address = Some(at);
        state.is_mapped = true;
        let mut addresses = self.addresses();
        addresses.arena = Some((at, at + (wanted.len - 1)));
        addresses.usable = info.ranges;
        Ok(())
    }

    fn iommu(&self, address: PciAddress) -> Result<IommuInfo, Error> {
        match &self.kind {
            Kind::Type1 { file } => ioctl::iommu_info(file.as_fd())
                .map(|info| IommuInfo::of(&info))
                .map_err(system_error(address, "VFIO_IOMMU_GET_INFO")),
            Kind::Iommufd { file, space } => ioctl::space_ranges(file.as_fd(), *space)
                .map(|(ranges, alignment)| IommuInfo {
                    page_sizes: alignment,
                    ranges,
                    mappings_left: None,
                })
                .map_err(system_error(address, "IOMMU_IOAS_IOVA_RANGES")),
        }
    }
}

fn system_error(address: PciAddress, step: &'static str) -> impl Fn(io::Error) -> Error {
    move |source| Error::System {
        address,
        step,
        source,
    }
}

/// The error for a group or device that could not join the address space.
fn attach_error(address: PciAddress, error: io::Error, is_first: bool) -> Error {
    if error.kind() == io::ErrorKind::PermissionDenied {
        return Problem::UnsafeInterrupts { address }.into();
    }
    let step = if is_first {
        "its IOMMU cannot be used"
    } else {
        "its IOMMU cannot share an address space with the drives that are open"
    };
    system_error(address, step)(error)
}

fn type1(file: OwnedFd, address: PciAddress) -> Result<Kind, Error> {
    let version = ioctl::api_version(file.as_fd());
    let version = version.map_err(system_error(address, "VFIO_GET_API_VERSION"))?;
    let has_type1 = ioctl::has_extension(file.as_fd(), abi::VFIO_TYPE1v2_IOMMU);
    let has_type1 = has_type1.map_err(system_error(address, "VFIO_CHECK_EXTENSION"))?;
    if version.cast_unsigned() != abi::VFIO_API_VERSION || !has_type1 {
        let problem = Problem::NoModule {
            address,
            driver: "vfio_iommu_type1",
            module: "vfio_iommu_type1",
        };
        return Err(problem.into());
    }
    Ok(Kind::Type1 { file })
}

fn iommufd(system: &System, address: PciAddress) -> Result<Kind, Error> {
    let node = system.dev("iommu");
    let file = match open_node(&node) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let problem = Problem::NoModule {
                address,
                driver: "vfio-pci",
                module: "vfio-pci",
            };
            return Err(diagnose(system, address, 0).err().unwrap_or(problem).into());
        }
        Err(error) => return Err(node_problem(system, address, node, error).into()),
    };
    let space = ioctl::allocate_space(file.as_fd());
    let space = space.map_err(system_error(address, "IOMMU_IOAS_ALLOC"))?;
    Ok(Kind::Iommufd { file, space })
}

/// Maps a region at a given address.
struct Mapper<'a> {
    kind: &'a Kind,
    at: u64,
}

impl DmaMap for Mapper<'_> {
    fn attach(&self, region: &Region) -> Result<(), DmaMapError> {
        match self.kind {
            Kind::Type1 { file } => ioctl::map_region(file.as_fd(), region, self.at),
            Kind::Iommufd { file, space } => {
                ioctl::map_region_in_space(file.as_fd(), *space, region, self.at)
            }
        }
        .map_err(DmaMapError::Refused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{FakeMachine, address, line};

    const A: &str = "0000:01:00.0";

    fn opened(machine: &FakeMachine) -> Result<(), Error> {
        let container = Container::open(&machine.system(), address(A))?;
        container.open_device(address(A), 1).map(drop)
    }

    #[test]
    fn missing_vfio_error_names_the_module() {
        let machine = FakeMachine::with_taken_drive();
        std::fs::remove_dir_all(machine.path("dev/vfio")).unwrap();
        let Err(Error::Problem(problem)) = opened(&machine) else {
            panic!("opened what is not there");
        };
        assert!(line(&problem).ends_with("modprobe vfio-pci"));
        // The problem to fix first is reported first.
        machine.give(A, Some("nvme"));
        let Err(Error::Problem(problem)) = opened(&machine) else {
            panic!("opened what is not there");
        };
        assert!(line(&problem).contains("windlass bind"));
    }

    /// A container that no kernel knows, with usable addresses, and a BAR.
    fn container() -> (Arc<Container>, Arc<Bar>) {
        let container = Container {
            system: System::default(),
            kind: Kind::Type1 {
                file: tempfile::tempfile().unwrap().into(),
            },
            state: Mutex::default(),
            space: AddressSpace::unique(),
            addresses: Mutex::new(Addresses {
                usable: vec![(0, (1 << 39) - 1)],
                arena: Some((1 << 32, (1 << 32) + (64 << 20) - 1)),
                reserved: Vec::new(),
            }),
        };
        let file = tempfile::tempfile().unwrap();
        file.set_len(8192).unwrap();
        let region = crate::capabilities::RegionInfo {
            size: 8192,
            offset: 0,
            mappable: vec![(0, 8192)],
        };
        let bar = Bar::map(&Handle::new(file.into(), None), &region).unwrap();
        (Arc::new(container), Arc::new(bar))
    }

    #[test]
    fn addresses_of_devices_are_reserved_once() {
        let (container, _) = container();
        let one = container.reserve(1 << 20, None).expect("room");
        assert!(one > (1 << 32) + (64 << 20), "behind the arena");
        let other = container.reserve(1 << 20, None).expect("room");
        assert_ne!(one, other);
        assert_eq!(container.reserve(4096, Some(other)), None);
        assert_eq!(container.reserve(4096, Some(1 << 32)), None, "the arena");
        container.unreserve(other);
        assert_eq!(container.reserve(4096, Some(other)), Some(other));
        assert_eq!(container.reserve(u64::MAX, None), None);
        assert_eq!(container.reserve(0, None), None);
    }

    #[test]
    fn what_the_kernel_does_not_map_is_an_error_and_keeps_no_device_open() {
        let (container, bar) = container();
        for part in [(0, 8193), (4096, 8192), (8192, 1), (u64::MAX, 4096)] {
            let error = container.map_bar(&bar, part, 1 << 33).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{part:?}");
        }
        let error = container.map_bar(&bar, (0, 8192), 1 << 33).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOTTY), "{error}");
        assert_eq!(Arc::strong_count(&bar), 1);
        // A mapping that the kernel does not end keeps its device open.
        let mapping = BarMapping {
            container: Arc::clone(&container),
            bar: Arc::clone(&bar),
            address: 1 << 33,
            len: 8192,
        };
        assert!(!mapping.unmap());
        assert_eq!(Arc::strong_count(&bar), 2);
    }

    #[test]
    fn regular_files_as_vfio_nodes_are_errors() {
        let machine = FakeMachine::with_taken_drive();
        let error = opened(&machine).unwrap_err().to_string();
        assert!(error.contains("VFIO_GET_API_VERSION"), "{error}");
        std::fs::remove_file(machine.path("dev/vfio/vfio")).unwrap();
        machine.file("dev/iommu", "");
        let error = opened(&machine).unwrap_err().to_string();
        assert!(error.contains("IOMMU_IOAS_ALLOC"), "{error}");
    }

    #[test]
    fn iommu_errors_name_their_cause() {
        let error = || io::Error::from_raw_os_error(libc::EPERM);
        let text = attach_error(address(A), error(), true).to_string();
        assert!(text.contains("does not remap interrupts"), "{text}");
        let error = || io::Error::from_raw_os_error(libc::EINVAL);
        let text = attach_error(address(A), error(), false).to_string();
        assert!(text.contains("with the drives that are open"), "{text}");
        let text = attach_error(address(A), error(), true).to_string();
        assert!(text.contains("cannot be used"), "{text}");
    }
}
