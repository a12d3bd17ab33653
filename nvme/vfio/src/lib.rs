//! PCI functions taken from the kernel: VFIO containers, groups, registers, memory and interrupts.
//!
//! Owns: the [`Container`] that every drive is opened in and that the arena is mapped into, once; a
//! [`Device`] for each open function, with its [`Bar`]s, configuration space, interrupts and reset;
//! the list of NVMe functions with all that uses them ([`Function`], [`Use`]); the way of a drive
//! from the kernel's driver to `vfio-pci` and back ([`plan_bind`], [`plan_unbind`]); and one line
//! with a remedy for whatever stands in that way ([`diagnose`], [`Problem`]).
//!
//! Refuses: to touch a drive in use; to remember anything that udev or systemd should; to know NVMe
//! beyond its PCI class. Root is needed for bind and unbind alone: opening a drive needs the
//! permission for its group's node and a limit on locked memory that the arena fits in.
//!
//! Source: Linux `include/uapi/linux/vfio.h` and `Documentation/driver-api/vfio.rst` (6.12), type 1
//! version 2. Kernels with iommufd alone are served by the same types, but that part has not been
//! run: see `container`.
//!
//! # Why a device harms no memory
//!
//! A function reaches memory only through the IOMMU, and the IOMMU knows only what was mapped into
//! the container: the arena's region, nothing else. So a drive that has gone mad, or a driver that
//! gives it a wrong address, can change bytes of the arena and none besides: no code, no stack, no
//! heap. [`Container`] has no function to map anything but an arena.
//!
//! The kernel pins the pages of a mapping: they belong to no one else for as long as the container
//! lives, even if the arena is dropped first, which cannot happen, since the container keeps it.
//!
//! Within the arena, bytes are Rust values only while a lease holds them, and the driver hands a
//! lease's address to a drive only together with the lease: it comes back when the drive has said
//! that it is done, or when the drive has been stopped for certain ([`Device::set_bus_master`],
//! [`Device::reset`], or dropping the device). What both sides use at the same time is a
//! `hugemem::DmaBuffer`, all of whose accesses are atomic. A drive that writes where it was not
//! told to, within the arena, breaks data; this the IOMMU cannot prevent, as for every driver.
//!
//! A drive's interrupts reach only its own vectors where the IOMMU remaps interrupts; the kernel
//! refuses the others unless the operator insists ([`Problem::UnsafeInterrupts`]).

mod address;
mod bar;
mod capabilities;
mod container;
mod device;
mod diagnosis;
mod error;
mod function;
mod ioctl;
#[cfg(test)]
mod machine;
mod mapping;
mod placement;
mod problem;
mod system;
mod takeover;
mod usage;

pub use address::{AddressError, PciAddress};
pub use bar::Bar;
pub use container::Container;
pub use device::Device;
pub use diagnosis::{LockLimit, diagnose, lock_limit};
pub use error::Error;
pub use function::{Disk, Function, GroupMember, IommuGroup, nvme_functions};
pub use problem::Problem;
pub use system::System;
pub use takeover::{Step, Takeover, plan_bind, plan_unbind};
pub use usage::Use;
