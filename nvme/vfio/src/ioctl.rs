//! The system calls of VFIO and iommufd as safe functions.
//!
//! Numbers and structures: Linux `include/uapi/linux/vfio.h` and `include/uapi/linux/iommufd.h`
//! (6.12); the structures of the first come from vfio-bindings.
#![expect(unsafe_code, reason = "VFIO is spoken by ioctl")]

use std::ffi::{CString, c_int, c_ulong};
use std::io;
use std::mem::offset_of;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use hugemem::Region;
use vfio_bindings::bindings::vfio::{self as abi, vfio_device_info, vfio_iommu_type1_dma_map};

use crate::PciAddress;
use crate::capabilities::Info;
use crate::mapping::Mapping;

/// `_IO(';', 100 + number)`: VFIO's request numbers contain no size; the structures do.
const fn vfio_request(number: u32) -> libc::Ioctl {
    ((abi::VFIO_TYPE as libc::Ioctl) << 8) | (abi::VFIO_BASE + number) as libc::Ioctl
}

const GET_API_VERSION: libc::Ioctl = vfio_request(0);
const CHECK_EXTENSION: libc::Ioctl = vfio_request(1);
const SET_IOMMU: libc::Ioctl = vfio_request(2);
const GROUP_GET_STATUS: libc::Ioctl = vfio_request(3);
const GROUP_SET_CONTAINER: libc::Ioctl = vfio_request(4);
const GROUP_GET_DEVICE_FD: libc::Ioctl = vfio_request(6);
const DEVICE_GET_INFO: libc::Ioctl = vfio_request(7);
const DEVICE_GET_REGION_INFO: libc::Ioctl = vfio_request(8);
const DEVICE_GET_IRQ_INFO: libc::Ioctl = vfio_request(9);
const DEVICE_SET_IRQS: libc::Ioctl = vfio_request(10);
const DEVICE_RESET: libc::Ioctl = vfio_request(11);
const IOMMU_GET_INFO: libc::Ioctl = vfio_request(12);
const IOMMU_MAP_DMA: libc::Ioctl = vfio_request(13);
const IOMMU_UNMAP_DMA: libc::Ioctl = vfio_request(14);
const DEVICE_FEATURE: libc::Ioctl = vfio_request(17);
const DEVICE_BIND_IOMMUFD: libc::Ioctl = vfio_request(18);
const DEVICE_ATTACH_IOMMUFD_PT: libc::Ioctl = vfio_request(19);

/// `_IO(';', 0x80 + number)`.
const fn iommufd_request(number: u32) -> libc::Ioctl {
    ((abi::VFIO_TYPE as libc::Ioctl) << 8) | (0x80 + number) as libc::Ioctl
}

const IOAS_ALLOC: libc::Ioctl = iommufd_request(1);
const IOAS_IOVA_RANGES: libc::Ioctl = iommufd_request(4);
const IOAS_MAP: libc::Ioctl = iommufd_request(5);

/// More bytes than any description of a device or an IOMMU has.
const INFO_BYTES_MAX: usize = 1 << 20;

fn check_result(result: c_int) -> io::Result<c_int> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(result)
}

/// # Safety
/// `request` takes a number as its argument, or no argument.
unsafe fn with_number(
    fd: BorrowedFd<'_>,
    request: libc::Ioctl,
    value: c_ulong,
) -> io::Result<c_int> {
    // SAFETY: the caller guarantees that the kernel does not use the argument as an address.
    check_result(unsafe { libc::ioctl(fd.as_raw_fd(), request, value) })
}

/// # Safety
/// The kernel reads and writes at most `size_of::<T>()` bytes at the argument of `request`, and
/// every byte of `T` may have any value.
unsafe fn with_structure<T>(
    fd: BorrowedFd<'_>,
    request: libc::Ioctl,
    structure: &mut T,
) -> io::Result<c_int> {
    // SAFETY: the reference is to as many bytes as the caller guarantees that the kernel uses.
    check_result(unsafe { libc::ioctl(fd.as_raw_fd(), request, std::ptr::from_mut(structure)) })
}

/// The version of the kernel's VFIO interface.
pub(crate) fn api_version(container: BorrowedFd<'_>) -> io::Result<c_int> {
    // SAFETY: VFIO_GET_API_VERSION has no argument.
    unsafe { with_number(container, GET_API_VERSION, 0) }
}

/// Whether the kernel supports a kind of IOMMU.
pub(crate) fn has_extension(container: BorrowedFd<'_>, extension: u32) -> io::Result<bool> {
    // SAFETY: VFIO_CHECK_EXTENSION takes a number.
    let answer = unsafe { with_number(container, CHECK_EXTENSION, c_ulong::from(extension)) };
    Ok(answer? > 0)
}

/// Sets the container's kind of IOMMU, after its first group was added.
pub(crate) fn set_iommu(container: BorrowedFd<'_>, kind: u32) -> io::Result<()> {
    // SAFETY: VFIO_SET_IOMMU takes a number.
    unsafe { with_number(container, SET_IOMMU, c_ulong::from(kind)) }.map(drop)
}

/// Whether every device of a group belongs to VFIO or to no driver.
pub(crate) fn group_is_viable(group: BorrowedFd<'_>) -> io::Result<bool> {
    let mut status = abi::vfio_group_status {
        argsz: size_of::<abi::vfio_group_status>() as u32,
        flags: 0,
    };
    // SAFETY: VFIO_GROUP_GET_STATUS uses `argsz` bytes, those of the structure.
    unsafe { with_structure(group, GROUP_GET_STATUS, &mut status) }?;
    Ok(status.flags & abi::VFIO_GROUP_FLAGS_VIABLE != 0)
}

/// Adds a group to a container.
pub(crate) fn set_container(group: BorrowedFd<'_>, container: BorrowedFd<'_>) -> io::Result<()> {
    let mut descriptor = container.as_raw_fd();
    // SAFETY: VFIO_GROUP_SET_CONTAINER reads one descriptor.
    unsafe { with_structure(group, GROUP_SET_CONTAINER, &mut descriptor) }.map(drop)
}

/// Opens a device of a group.
pub(crate) fn device_of_group(group: BorrowedFd<'_>, address: PciAddress) -> io::Result<OwnedFd> {
    let name = CString::new(address.to_string()).map_err(io::Error::other)?;
    // SAFETY: VFIO_GROUP_GET_DEVICE_FD reads a string, which is terminated by a zero byte.
    let result = unsafe { libc::ioctl(group.as_raw_fd(), GROUP_GET_DEVICE_FD, name.as_ptr()) };
    let descriptor = check_result(result)?;
    // SAFETY: the kernel just created this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// Reads a description with its capabilities. `head` is its structure, whose first four bytes are
/// the length.
///
/// # Safety
/// `request` is one of those that use at most as many bytes as the first four say.
unsafe fn info(fd: BorrowedFd<'_>, request: libc::Ioctl, head: &[u32]) -> io::Result<Info> {
    let mut bytes = size_of_val(head);
    loop {
        let mut words = head.to_vec();
        words.resize(bytes.div_ceil(4), 0);
        words[0] = bytes as u32;
        // SAFETY: the kernel uses at most `bytes` bytes, as the first four say, and the vector has
        // as many.
        check_result(unsafe { libc::ioctl(fd.as_raw_fd(), request, words.as_mut_ptr()) })?;
        let wanted = words[0] as usize;
        if wanted <= bytes {
            return Ok(Info::new(
                words.iter().flat_map(|word| word.to_ne_bytes()).collect(),
            ));
        }
        if wanted > INFO_BYTES_MAX {
            return Err(io::Error::other("the kernel's description is too long"));
        }
        bytes = wanted;
    }
}

/// A structure of `T`'s size with `index` in the word at `index_offset`, if given.
fn head<T>(index: Option<(usize, u32)>) -> Vec<u32> {
    let mut words = vec![0; size_of::<T>() / 4];
    if let Some((offset, index)) = index {
        words[offset / 4] = index;
    }
    words
}

/// Reads the description of a device: `vfio_device_info`.
pub(crate) fn device_info(device: BorrowedFd<'_>) -> io::Result<Info> {
    // SAFETY: VFIO_DEVICE_GET_INFO uses at most `argsz` bytes.
    unsafe { info(device, DEVICE_GET_INFO, &head::<vfio_device_info>(None)) }
}

/// Reads the description of a region of a device: `vfio_region_info`.
pub(crate) fn region_info(device: BorrowedFd<'_>, index: u32) -> io::Result<Info> {
    let offset = offset_of!(abi::vfio_region_info, index);
    let head = head::<abi::vfio_region_info>(Some((offset, index)));
    // SAFETY: VFIO_DEVICE_GET_REGION_INFO uses at most `argsz` bytes.
    unsafe { info(device, DEVICE_GET_REGION_INFO, &head) }
}

/// Number of a device's interrupts of one kind.
pub(crate) fn interrupt_count(device: BorrowedFd<'_>, index: u32) -> io::Result<u32> {
    let mut structure = abi::vfio_irq_info {
        argsz: size_of::<abi::vfio_irq_info>() as u32,
        index,
        ..Default::default()
    };
    // SAFETY: VFIO_DEVICE_GET_IRQ_INFO uses `argsz` bytes, those of the structure.
    unsafe { with_structure(device, DEVICE_GET_IRQ_INFO, &mut structure) }?;
    Ok(structure.count)
}

/// Connects interrupts of one kind, from `start` on, to eventfds, or disconnects those that are
/// `None`. Returns 0, or the number of interrupts that the machine has if it has fewer; then
/// nothing was changed.
pub(crate) fn set_interrupts(
    device: BorrowedFd<'_>,
    index: u32,
    start: u32,
    targets: &[Option<BorrowedFd<'_>>],
) -> io::Result<u32> {
    let flags = abi::VFIO_IRQ_SET_DATA_EVENTFD | abi::VFIO_IRQ_SET_ACTION_TRIGGER;
    let argsz = size_of::<abi::vfio_irq_set>() + targets.len() * size_of::<c_int>();
    let mut words = vec![argsz as u32, flags, index, start, targets.len() as u32];
    for target in targets {
        words.push(target.map_or(-1, |fd| fd.as_raw_fd()).cast_unsigned());
    }
    // SAFETY: VFIO_DEVICE_SET_IRQS reads the five words of the structure and the `count`
    // descriptors that follow.
    let result = unsafe { libc::ioctl(device.as_raw_fd(), DEVICE_SET_IRQS, words.as_ptr()) };
    check_result(result).map(c_int::cast_unsigned)
}

/// Resets a device's function.
pub(crate) fn reset(device: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: VFIO_DEVICE_RESET has no argument.
    unsafe { with_number(device, DEVICE_RESET, 0) }.map(drop)
}

/// A descriptor of a part of a device's region, for other drivers: a dma-buf. Kernels before Linux 6.19
/// refuse with `ENOTTY`.
pub(crate) fn export_region(
    device: BorrowedFd<'_>,
    index: u32,
    (offset, length): (u64, u64),
) -> io::Result<OwnedFd> {
    let mut structure = DmaBufFeature {
        size: size_of::<DmaBufFeature>() as u32,
        feature: FEATURE_DMA_BUF | FEATURE_GET,
        region: index,
        open_flags: (libc::O_RDWR | libc::O_CLOEXEC).cast_unsigned(),
        flags: 0,
        ranges: 1,
        offset,
        length,
    };
    // SAFETY: VFIO_DEVICE_FEATURE uses `size` bytes, those of the structure.
    let descriptor = unsafe { with_structure(device, DEVICE_FEATURE, &mut structure) }?;
    // SAFETY: the kernel has just opened the descriptor for this call.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// `struct vfio_device_feature` with `struct vfio_device_feature_dma_buf` of one range (Linux 6.19).
#[repr(C)]
struct DmaBufFeature {
    size: u32,
    feature: u32,
    region: u32,
    open_flags: u32,
    flags: u32,
    ranges: u32,
    offset: u64,
    length: u64,
}

const _: () = assert!(size_of::<DmaBufFeature>() == 40);

/// `VFIO_DEVICE_FEATURE_DMA_BUF` and `VFIO_DEVICE_FEATURE_GET`.
const FEATURE_DMA_BUF: u32 = 11;
const FEATURE_GET: u32 = 1 << 16;

/// Reads the description of a container's IOMMU: `vfio_iommu_type1_info`.
pub(crate) fn iommu_info(container: BorrowedFd<'_>) -> io::Result<Info> {
    let head = head::<abi::vfio_iommu_type1_info>(None);
    // SAFETY: VFIO_IOMMU_GET_INFO uses at most `argsz` bytes.
    unsafe { info(container, IOMMU_GET_INFO, &head) }
}

/// Maps a region for every device of a container, from `address` on.
///
/// Memory safety: a region gives access to its bytes only as leases, borrows and shared buffers,
/// which are kept by the code that passed them to the device; and the container keeps the pages
/// pinned, so that they are not reused even if the region is dropped first.
pub(crate) fn map_region(
    container: BorrowedFd<'_>,
    region: &Region,
    address: u64,
) -> io::Result<()> {
    let mut structure = vfio_iommu_type1_dma_map {
        argsz: size_of::<vfio_iommu_type1_dma_map>() as u32,
        flags: abi::VFIO_DMA_MAP_FLAG_READ | abi::VFIO_DMA_MAP_FLAG_WRITE,
        vaddr: region.base_address() as u64,
        iova: address,
        size: region.len() as u64,
    };
    // SAFETY: VFIO_IOMMU_MAP_DMA reads the structure; the accesses that it permits are argued
    // above.
    unsafe { with_structure(container, IOMMU_MAP_DMA, &mut structure) }.map(drop)
}

/// Maps `len` bytes at `offset` of a device's mapped memory for every device of a container, from
/// `address` on, until [`unmap`].
///
/// Memory safety: `memory` consists of registers or memory of a device, in which this program has no
/// Rust values: it only accesses them by single volatile operations. Devices get access to nothing
/// else.
pub(crate) fn map_device_memory(
    container: BorrowedFd<'_>,
    memory: &Mapping,
    (offset, len): (usize, usize),
    address: u64,
) -> io::Result<()> {
    let vaddr = memory.address_of(offset, len);
    let mut structure = vfio_iommu_type1_dma_map {
        argsz: size_of::<vfio_iommu_type1_dma_map>() as u32,
        flags: abi::VFIO_DMA_MAP_FLAG_READ | abi::VFIO_DMA_MAP_FLAG_WRITE,
        vaddr: vaddr.ok_or(io::ErrorKind::InvalidInput)?,
        iova: address,
        size: len as u64,
    };
    // SAFETY: VFIO_IOMMU_MAP_DMA reads the structure; the accesses that it permits are argued
    // above.
    unsafe { with_structure(container, IOMMU_MAP_DMA, &mut structure) }.map(drop)
}

/// `struct vfio_iommu_type1_dma_unmap` without a bitmap of dirty pages.
#[repr(C)]
struct DmaUnmap {
    argsz: u32,
    flags: u32,
    iova: u64,
    size: u64,
}

const _: () = assert!(size_of::<DmaUnmap>() == size_of::<abi::vfio_iommu_type1_dma_unmap>());

/// Ends a mapping of `len` bytes from `address` on: from now on no device accesses them.
pub(crate) fn unmap(container: BorrowedFd<'_>, address: u64, len: u64) -> io::Result<()> {
    let mut structure = DmaUnmap {
        argsz: size_of::<DmaUnmap>() as u32,
        flags: 0,
        iova: address,
        size: len,
    };
    // SAFETY: VFIO_IOMMU_UNMAP_DMA uses `argsz` bytes, those of the structure, and no memory is
    // accessible that was not before.
    unsafe { with_structure(container, IOMMU_UNMAP_DMA, &mut structure) }?;
    // The kernel reports how many bytes it has unmapped.
    match structure.size == len {
        true => Ok(()),
        false => Err(io::Error::other("the kernel did not unmap all of it")),
    }
}

/// `struct iommu_ioas_alloc`.
#[repr(C)]
struct IoasAlloc {
    size: u32,
    flags: u32,
    out_ioas_id: u32,
}

/// `struct iommu_ioas_iova_ranges`.
#[repr(C)]
struct IoasIovaRanges {
    size: u32,
    ioas_id: u32,
    num_iovas: u32,
    reserved: u32,
    allowed_iovas: u64,
    out_iova_alignment: u64,
}

/// `struct iommu_ioas_map`.
#[repr(C)]
struct IoasMap {
    size: u32,
    flags: u32,
    ioas_id: u32,
    reserved: u32,
    user_va: u64,
    length: u64,
    iova: u64,
}

const _: () = assert!(size_of::<IoasAlloc>() == 12);
const _: () = assert!(size_of::<IoasIovaRanges>() == 32);
const _: () = assert!(size_of::<IoasMap>() == 40);

/// `IOMMU_IOAS_MAP_FIXED_IOVA | IOMMU_IOAS_MAP_WRITEABLE | IOMMU_IOAS_MAP_READABLE`.
const IOAS_MAP_FLAGS: u32 = 0b111;

/// Allocates an address space.
pub(crate) fn allocate_space(iommufd: BorrowedFd<'_>) -> io::Result<u32> {
    let mut structure = IoasAlloc {
        size: size_of::<IoasAlloc>() as u32,
        flags: 0,
        out_ioas_id: 0,
    };
    // SAFETY: IOMMU_IOAS_ALLOC uses `size` bytes, those of the structure.
    unsafe { with_structure(iommufd, IOAS_ALLOC, &mut structure) }?;
    Ok(structure.out_ioas_id)
}

/// The usable address ranges of a space (first and last), and the alignment of addresses and
/// lengths.
pub(crate) fn space_ranges(
    iommufd: BorrowedFd<'_>,
    space: u32,
) -> io::Result<(Vec<(u64, u64)>, u64)> {
    const RANGES_MAX: usize = 256;
    let mut ranges = vec![[0_u64; 2]; RANGES_MAX];
    let mut structure = IoasIovaRanges {
        size: size_of::<IoasIovaRanges>() as u32,
        ioas_id: space,
        num_iovas: RANGES_MAX as u32,
        reserved: 0,
        allowed_iovas: ranges.as_mut_ptr() as u64,
        out_iova_alignment: 0,
    };
    // SAFETY: IOMMU_IOAS_IOVA_RANGES uses `size` bytes of the structure and writes at most
    // `num_iovas` pairs, for which the vector has room.
    unsafe { with_structure(iommufd, IOAS_IOVA_RANGES, &mut structure) }?;
    ranges.truncate(structure.num_iovas as usize);
    let ranges = ranges.into_iter().map(|[first, last]| (first, last));
    Ok((ranges.collect(), structure.out_iova_alignment))
}

/// As [`map_region`], with the same memory safety, in an address space of iommufd.
pub(crate) fn map_region_in_space(
    iommufd: BorrowedFd<'_>,
    space: u32,
    region: &Region,
    address: u64,
) -> io::Result<()> {
    let mut structure = IoasMap {
        size: size_of::<IoasMap>() as u32,
        flags: IOAS_MAP_FLAGS,
        ioas_id: space,
        reserved: 0,
        user_va: region.base_address() as u64,
        length: region.len() as u64,
        iova: address,
    };
    // SAFETY: IOMMU_IOAS_MAP uses `size` bytes, those of the structure.
    unsafe { with_structure(iommufd, IOAS_MAP, &mut structure) }.map(drop)
}

/// Binds a device that was opened by its own node to an iommufd, and attaches it to the address
/// space.
pub(crate) fn attach_to_address_space(
    device: BorrowedFd<'_>,
    iommufd: BorrowedFd<'_>,
    space: u32,
) -> io::Result<()> {
    // The first version of the structure; the token that follows in later ones is for virtual
    // functions.
    let mut bind: [u32; 4] = [16, 0, iommufd.as_raw_fd().cast_unsigned(), 0];
    // SAFETY: VFIO_DEVICE_BIND_IOMMUFD uses as many bytes as the first word says, sixteen.
    unsafe { with_structure(device, DEVICE_BIND_IOMMUFD, &mut bind) }?;
    let mut attach: [u32; 3] = [12, 0, space];
    // SAFETY: VFIO_DEVICE_ATTACH_IOMMUFD_PT uses as many bytes as the first word says, twelve.
    unsafe { with_structure(device, DEVICE_ATTACH_IOMMUFD_PT, &mut attach) }.map(drop)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn file_of_no_device_exports_nothing() {
        let file = std::fs::File::open("/dev/null").expect("it exists");
        for part in [(0, 4096), (u64::MAX, u64::MAX)] {
            let refused = export_region(file.as_fd(), 2, part).expect_err("no device");
            assert_eq!(refused.raw_os_error(), Some(libc::ENOTTY));
        }
    }
}
