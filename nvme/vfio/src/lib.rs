//! PCI functions for use by a program: VFIO containers, groups, registers, memory and interrupts.
//!
//! It contains the [`Container`] in which every drive is opened and into which the arena is mapped
//! once; a [`Device`] for each open function, with its [`Bar`]s, configuration space, interrupts
//! and reset; the list of NVMe functions with everything that uses them ([`Function`], [`Use`]);
//! the move of a drive from the kernel's driver to `vfio-pci` and back ([`plan_bind`],
//! [`plan_unbind`]); and problems in one line with their remedy ([`diagnose`], [`Problem`]).
//!
//! It never touches a drive in use, stores nothing permanently (that is for udev or systemd), and
//! knows of NVMe only the PCI class. Only bind and unbind need root: opening a drive needs
//! permission for its group's node and a limit on locked memory that is large enough for the arena.
//!
//! Source: Linux `include/uapi/linux/vfio.h` and `Documentation/driver-api/vfio.rst` (6.12), type 1
//! version 2. Kernels with only iommufd use the same types, but that part is untested: see
//! `container`.
//!
//! # Why a device cannot corrupt memory
//!
//! A function accesses memory only through the IOMMU, and only the arena's region and memory of other
//! functions ([`Device::map_for_neighbours`]) are mapped in the container. So a faulty drive, or a
//! driver that passes a wrong address to it, can change bytes of the arena and no others: no code, no
//! stack, no heap. [`Container`] has no function to map any other memory of the machine.
//!
//! Memory of a function is mapped until its reset and until it is closed, both of which end the mapping
//! first: later something else may have its place on the bus.
//!
//! The kernel pins the pages of a mapping: they are not reused while the container exists, even if
//! the arena is dropped first, which cannot happen, since the container keeps it.
//!
//! Within the arena, bytes are Rust values only while a lease owns them, and the driver passes a
//! lease's address to a drive only together with the lease: it is returned when the drive has
//! reported completion, or when the drive has been stopped for certain ([`Device::set_bus_master`],
//! [`Device::reset`], or dropping the device). Memory that both sides use at the same time is a
//! `hugemem::DmaBuffer`, all of whose accesses are atomic. A drive that writes to a wrong address
//! within the arena corrupts data; the IOMMU cannot prevent this, as for every driver.
//!
//! A drive's interrupts reach only its own vectors if the IOMMU remaps interrupts; otherwise the
//! kernel refuses the drive unless the operator permits it ([`Problem::UnsafeInterrupts`]).

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
