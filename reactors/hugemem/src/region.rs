//! A mapping of a memory file: allocated completely at start, pinned, and never grown, shrunk or
//! punched. The next process may continue with it.
//!
//! Owns: the memory file, its mapping, and the notices of unavailable features. Allocation never
//! succeeds partially. Pages are touched before `map` returns or, for an arena that is populated in
//! steps, before their slices exist, so a shortage is an error and never a SIGBUS on the I/O path.

mod file;
mod mapping;
mod memory;
mod notice;

use std::iter;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::slice;
use std::sync::{Arc, OnceLock};

use rustix::fs::MemfdFlags;
use rustix::io::Errno;

use crate::dma_check::DmaCheck;
use file::{Failure, MemoryFile};
pub(crate) use mapping::Mapping;
use memory::Transparent;
pub use notice::Notice;

/// Page sizes that a [`Region`] may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PagePolicy {
    /// 1 GiB pages, otherwise 2 MiB, otherwise ordinary ones (transparent hugepages advised). Each
    /// size that was not available adds a [`Notice`].
    #[default]
    Auto,
    /// 1 GiB pages, otherwise 2 MiB, otherwise an error.
    HugeOnly,
    /// Ordinary pages, transparent hugepages advised.
    Ordinary,
}

/// The page size of a [`Region`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageSize {
    /// 1 GiB hugepages.
    Huge1GiB,
    /// 2 MiB hugepages.
    Huge2MiB,
    /// The machine's ordinary pages, transparent hugepages advised.
    Ordinary,
}

impl PageSize {
    /// Bytes in one page.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            PageSize::Huge1GiB => 1 << 30,
            PageSize::Huge2MiB => 1 << 21,
            PageSize::Ordinary => rustix::param::page_size(),
        }
    }

    /// Alignment of populated ranges: a page, or a transparent hugepage for ordinary memory.
    fn populate_step(self) -> usize {
        self.bytes().max(PageSize::Huge2MiB.bytes())
    }
}

/// Why a region could not be created.
#[derive(Debug, thiserror::Error)]
pub enum RegionError {
    /// The requested size is 0.
    #[error("memory region of 0 bytes requested")]
    Empty,
    /// The machine or this process's control group has too little memory left.
    #[error("{wanted} bytes of memory requested, {available} bytes available")]
    Shortage {
        /// Bytes requested.
        wanted: usize,
        /// Bytes available without running the machine out of memory.
        available: usize,
    },
    /// Hugepages are required, and too few are available.
    #[error("no hugepages for {wanted} bytes{}", notice::join_notices(.missing))]
    NoHugePages {
        /// Bytes requested.
        wanted: usize,
        /// For each hugepage size, what is missing.
        missing: Vec<Notice>,
    },
    /// A descriptor that was passed is not that of the memory.
    #[error("the file that was passed for {wanted} bytes of memory has {found} bytes")]
    OtherFile {
        /// Bytes expected, before they are rounded up to the page size.
        wanted: usize,
        /// Bytes of the file.
        found: u64,
    },
    /// A system call failed.
    #[error("{step} failed for {wanted} bytes of memory")]
    System {
        /// The system call or advice that failed.
        step: &'static str,
        /// Bytes requested.
        wanted: usize,
        /// The kernel's error.
        source: std::io::Error,
    },
}

/// Memory that is mapped, populated and (if the limits allow it) locked. Shared between threads. It
/// gives no access to the bytes; [`crate::Arena`] and [`crate::Store`] do.
#[derive(Debug)]
pub struct Region {
    mapping: Arc<Mapping>,
    descriptor: OwnedFd,
    page_size: PageSize,
    notices: Vec<Notice>,
    /// The check of device accesses, if this is the region of an arena.
    dma_check: OnceLock<Arc<DmaCheck>>,
}

/// Maximum length: more than any machine can map, and small enough that rounding up cannot overflow
/// `usize`.
const LEN_MAX: usize = 1 << 46;

/// The step that populates pages.
const POPULATE: &str = "madvise(MADV_POPULATE_WRITE)";

/// Why a page size was not available and the next one is tried.
enum Unavailable {
    NotApplicable,
    Noticed(Notice),
}

impl Region {
    /// Maps and populates at least `len` bytes, rounded up to the page size that is used.
    ///
    /// 1 GiB pages are tried only for a multiple of 1 GiB: rounding up could waste nearly 1 GiB.
    ///
    /// # Errors
    /// [`RegionError`]: nothing remains mapped.
    pub fn map(len: usize, policy: PagePolicy) -> Result<Region, RegionError> {
        Self::map_and_populate(len, policy, |len| iter::once(0..len).collect())
    }

    /// Like [`Region::map`], but populates only the ranges that `parts` returns for the mapped
    /// length. The others are populated by [`Region::populate`].
    pub(crate) fn map_and_populate(
        len: usize,
        policy: PagePolicy,
        parts: impl Fn(usize) -> Vec<Range<usize>>,
    ) -> Result<Region, RegionError> {
        if len == 0 {
            return Err(RegionError::Empty);
        }
        if len > LEN_MAX {
            return Err(RegionError::Shortage {
                wanted: len,
                available: memory::available(),
            });
        }
        let mut notices = Vec::new();
        if policy != PagePolicy::Ordinary {
            for page_size in [PageSize::Huge1GiB, PageSize::Huge2MiB] {
                match map_huge(len, page_size, policy, &parts) {
                    Ok((mapping, descriptor)) => {
                        return Ok(Region {
                            mapping: Arc::new(mapping),
                            descriptor,
                            page_size,
                            notices,
                            dma_check: OnceLock::new(),
                        });
                    }
                    Err(Unavailable::NotApplicable) => {}
                    Err(Unavailable::Noticed(notice)) => notices.push(notice),
                }
            }
            if policy == PagePolicy::HugeOnly {
                return Err(RegionError::NoHugePages {
                    wanted: len,
                    missing: notices,
                });
            }
        }
        let (mapping, descriptor) = map_ordinary(len, &mut notices, &parts)?;
        Ok(Region {
            mapping: Arc::new(mapping),
            descriptor,
            page_size: PageSize::Ordinary,
            notices,
            dma_check: OnceLock::new(),
        })
    }

    /// Maps all memory of a region of an earlier process, whose descriptor it has passed. The bytes
    /// are as that process left them. It must not access them when this one does.
    ///
    /// # Errors
    /// [`RegionError::OtherFile`] if the file is not that of a region of `len` bytes.
    pub fn adopt(descriptor: OwnedFd, len: usize) -> Result<Region, RegionError> {
        let failed = |(step, errno): Failure| RegionError::System {
            step,
            wanted: len,
            source: errno.into(),
        };
        let at = |step| move |errno| failed((step, errno));
        let (found, huge) = file::examine(descriptor.as_fd()).map_err(failed)?;
        let other = RegionError::OtherFile { wanted: len, found };
        let page_size = match huge {
            None => PageSize::Ordinary,
            Some(page) if page == PageSize::Huge1GiB.bytes() as u64 => PageSize::Huge1GiB,
            Some(page) if page == PageSize::Huge2MiB.bytes() as u64 => PageSize::Huge2MiB,
            Some(_) => return Err(other),
        };
        if len == 0 || len > LEN_MAX || len.next_multiple_of(page_size.bytes()) as u64 != found {
            return Err(other);
        }
        let rounded = len.next_multiple_of(page_size.bytes());
        let step = page_size.populate_step();
        let mapping = Mapping::new(descriptor.as_fd(), rounded, step).map_err(at("mmap"))?;
        mapping
            .exclude_from_fork()
            .map_err(at("madvise(MADV_DONTFORK)"))?;
        let mut notices = Vec::new();
        if page_size == PageSize::Ordinary {
            if rounded >= step {
                // As in `map_ordinary`.
                let _ = mapping.prefer_huge();
            }
            if let Err(errno) = mapping.lock_on_fault() {
                notices.push(Notice::NotLocked {
                    len: rounded,
                    errno,
                });
            }
        }
        let all = 0..rounded;
        mapping
            .populate(slice::from_ref(&all), step)
            .map_err(at(POPULATE))?;
        Ok(Region {
            mapping: Arc::new(mapping),
            descriptor,
            page_size,
            notices,
            dma_check: OnceLock::new(),
        })
    }

    /// Populates a range that was left out when the region was mapped.
    ///
    /// # Errors
    /// [`RegionError::System`]: the machine or the control group has no more memory.
    pub(crate) fn populate(&self, part: Range<usize>) -> Result<(), RegionError> {
        let step = self.page_size.populate_step();
        let outcome = self.mapping.populate(slice::from_ref(&part), step);
        outcome.map_err(|errno| RegionError::System {
            step: POPULATE,
            wanted: part.len(),
            source: errno.into(),
        })
    }

    /// Mapped bytes: the requested length, rounded up to the page size.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub fn len(&self) -> usize {
        self.mapping.len()
    }

    /// The page size in use.
    #[must_use]
    pub fn page_size(&self) -> PageSize {
        self.page_size
    }

    /// Address of the first byte, aligned to at least 2 MiB.
    #[must_use]
    pub fn base_address(&self) -> usize {
        self.mapping.base().as_ptr().addr()
    }

    /// Unavailable features, their cost, and the command that fixes each.
    #[must_use]
    pub fn notices(&self) -> &[Notice] {
        &self.notices
    }

    /// Maps the region for an IOMMU, a protection domain or another user of its addresses.
    ///
    /// # Errors
    /// The error of `map`.
    pub fn attach(&self, map: &dyn DmaMap) -> Result<(), DmaMapError> {
        map.attach(self)
    }

    /// Enables the check of device accesses, for an arena's region.
    pub(crate) fn check_dma(&self) -> Arc<DmaCheck> {
        let check = || Arc::new(DmaCheck::new(self.len()));
        Arc::clone(self.dma_check.get_or_init(check))
    }

    pub(crate) fn dma_check(&self) -> Option<Arc<DmaCheck>> {
        self.dma_check.get().cloned()
    }

    pub(crate) fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    /// The byte at `offset`. The calling module has to justify each access.
    pub(crate) fn pointer(&self, offset: usize) -> NonNull<u8> {
        self.mapping.pointer(offset)
    }
}

/// Reports a range that exceeds its memory. Out of line, so that a check costs no more than its
/// comparison.
#[cold]
#[inline(never)]
pub(crate) fn panic_out_of_range(offset: usize, bytes: usize, len: usize) -> ! {
    panic!("{bytes} bytes at {offset} of {len}")
}

/// The memory file, for the process that continues with the memory ([`Region::adopt`]).
impl AsFd for Region {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// A facility through which devices access memory: an IOMMU container, an RDMA protection domain,
/// or an io_uring's fixed buffers.
pub trait DmaMap {
    /// Maps the whole region once, until `self` is dropped.
    ///
    /// # Errors
    /// [`DmaMapError`]: nothing of the region remains mapped.
    fn attach(&self, region: &Region) -> Result<(), DmaMapError>;
}

/// Why a region could not be mapped for a device.
#[derive(Debug, thiserror::Error)]
pub enum DmaMapError {
    /// The device or a system limit allows fewer bytes, even in several pieces.
    #[error("cannot map {wanted} bytes for a device: the limit is {limit} bytes")]
    LimitReached {
        /// Bytes of the region.
        wanted: usize,
        /// Maximum number of bytes.
        limit: usize,
    },
    /// The kernel or the device's library returned an error.
    #[error("mapping memory for a device was refused")]
    Refused(#[source] std::io::Error),
}

fn map_huge(
    len: usize,
    size: PageSize,
    policy: PagePolicy,
    parts: impl Fn(usize) -> Vec<Range<usize>>,
) -> Result<(Mapping, OwnedFd), Unavailable> {
    let page = size.bytes();
    let (flag, round_up) = match size {
        PageSize::Huge1GiB => (MemfdFlags::HUGE_1GB, false),
        PageSize::Huge2MiB => (MemfdFlags::HUGE_2MB, true),
        PageSize::Ordinary => unreachable!("ordinary pages have no hugepage pool"),
    };
    let must_have = policy == PagePolicy::HugeOnly && round_up;
    if len < page && !must_have {
        return Err(Unavailable::NotApplicable);
    }
    if !len.is_multiple_of(page) && !round_up {
        return Err(Unavailable::Noticed(Notice::UnevenLength { len, size }));
    }
    let pages = len.div_ceil(page);
    let Some(pool) = memory::huge_pool(size) else {
        return Err(Unavailable::Noticed(Notice::NoSuchPages { size }));
    };
    if pool.available() < pages {
        let notice = Notice::PagesMissing {
            size,
            wanted: pages,
            available: pool.available(),
            reserve: pool.total + (pages - pool.available()),
            default_size: memory::default_huge_page() == Some(page),
        };
        return Err(Unavailable::Noticed(notice));
    }
    let refused = |errno: Errno| Unavailable::Noticed(Notice::PagesRefused { size, errno });
    let failed = |(_, errno): Failure| refused(errno);
    let bytes = pages * page;
    let file = MemoryFile::sealable(bytes, MemfdFlags::HUGETLB | flag).map_err(failed)?;
    let mapping = Mapping::new(file.as_fd(), bytes, page).map_err(refused)?;
    mapping.exclude_from_fork().map_err(refused)?;
    mapping
        .populate(&parts(bytes), size.populate_step())
        .map_err(refused)?;
    Ok((mapping, file.into_sealed().map_err(failed)?))
}

fn map_ordinary(
    len: usize,
    notices: &mut Vec<Notice>,
    parts: impl Fn(usize) -> Vec<Range<usize>>,
) -> Result<(Mapping, OwnedFd), RegionError> {
    let available = memory::available();
    if len > available {
        return Err(RegionError::Shortage {
            wanted: len,
            available,
        });
    }
    let failed = |(step, errno): Failure| RegionError::System {
        step,
        wanted: len,
        source: errno.into(),
    };
    let at = |step| move |errno| failed((step, errno));
    let rounded = len.next_multiple_of(PageSize::Ordinary.bytes());
    // Aligned to a hugepage, so that transparent hugepages fit.
    let align = PageSize::Ordinary.populate_step();
    let file = ordinary_file(rounded, notices).map_err(failed)?;
    let mapping = Mapping::new(file.as_fd(), rounded, align).map_err(at("mmap"))?;
    mapping
        .exclude_from_fork()
        .map_err(at("madvise(MADV_DONTFORK)"))?;
    if rounded >= align {
        // Fails only on a kernel without transparent hugepages, for which a notice exists.
        let _ = mapping.prefer_huge();
    }
    if let Err(errno) = mapping.lock_on_fault() {
        notices.push(Notice::NotLocked {
            len: rounded,
            errno,
        });
    }
    mapping
        .populate(&parts(rounded), align)
        .map_err(at(POPULATE))?;
    Ok((mapping, file.into_sealed().map_err(failed)?))
}

/// A file for ordinary pages, with transparent hugepages if available.
fn ordinary_file(len: usize, notices: &mut Vec<Notice>) -> Result<MemoryFile, Failure> {
    let huge = PageSize::Huge2MiB.bytes();
    if len >= huge {
        match memory::transparent_for_shared() {
            Transparent::ByAdvice => {}
            Transparent::ByMount => match MemoryFile::transparent(len) {
                Ok(file) => return Ok(file),
                Err(_) => notices.push(Notice::NoTransparentPages),
            },
            Transparent::Never => notices.push(Notice::NoTransparentPages),
        }
    }
    MemoryFile::sealable(len, MemfdFlags::empty())
}
