//! Leases and borrows while a device may access them.
//!
//! A driver turns a [`Lease`] into a [`DmaLease`] when it posts a request that uses it, and back
//! when the device is done with it. In between no code reads or writes the bytes: the type gives
//! only their address. The conversion back requires a proof ([`DmaDriver::Done`]) that only the
//! driver can create. The memory of one dropped without a proof is never reused, because the device
//! may still access it; [`leaked_dma`] counts these.
#![expect(
    unsafe_code,
    reason = "takes what is wrapped out of a type that leaks it when dropped"
)]

use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::{Borrow, Data, Lease};

/// Number of leases and borrows dropped while a device might still access them.
static LEAKED: AtomicU64 = AtomicU64::new(0);

/// Number of leases and borrows dropped while a device might still access them, since start. Their
/// memory is never reused.
#[must_use]
pub fn leaked_dma() -> u64 {
    LEAKED.load(Ordering::Relaxed)
}

/// A driver that lets a device access leases: a type defined by the driver, without values.
///
/// The driver stores each [`DmaLease`] that a posted request uses, and returns the lease with a
/// [`Done`](Self::Done). If the constructor of that type is private to the driver, no other code
/// can take memory back from its device.
pub trait DmaDriver {
    /// Proof that the device no longer accesses a request's memory: the driver received its
    /// completion, or the queue or the controller of the request has stopped.
    type Done;
}

/// A lease that a device may access. Has no access to the bytes.
///
/// ```
/// # use hugemem::{Arena, ArenaConfig, DmaDriver, DmaLease, PagePolicy};
/// # let config = ArenaConfig { bytes: 1 << 20, pages: PagePolicy::Auto, max_transfer: 4096 };
/// # let pool = Arena::new(config)?.pool(0);
/// struct Nic;
/// struct Completed(());
/// impl DmaDriver for Nic {
///     type Done = Completed;
/// }
/// let lease = pool.take(512).expect("the first lease");
/// let posted: DmaLease<Nic> = lease.into_dma();
/// let (address, len) = (posted.address(), posted.len());
/// // ... the device reads or writes there, and says that it is done ...
/// let lease = posted.returned(&Completed(()));
/// assert_eq!((lease.as_ptr().addr(), lease.len()), (address, len));
/// # Ok::<(), hugemem::ArenaError>(())
/// ```
///
/// A posted lease cannot be read:
///
/// ```compile_fail,E0614
/// # use hugemem::{DmaDriver, Lease};
/// fn read_while_posted<D: DmaDriver>(lease: Lease) -> u8 {
///     let posted = lease.into_dma::<D>();
///     (*posted)[0]
/// }
/// ```
///
/// ```compile_fail,E0382
/// # use hugemem::{DmaDriver, DmaLease, Lease};
/// fn read_after_posting<D: DmaDriver>(lease: Lease, post: impl Fn(DmaLease<D>)) -> u8 {
///     post(lease.into_dma());
///     lease[0]
/// }
/// ```
///
/// It can be posted only once:
///
/// ```compile_fail,E0382
/// # use hugemem::{DmaDriver, DmaLease};
/// fn post_twice<D: DmaDriver>(posted: DmaLease<D>, post: impl Fn(DmaLease<D>)) {
///     post(posted);
///     post(posted);
/// }
/// ```
///
/// It cannot be returned without the driver's proof:
///
/// ```compile_fail,E0061
/// # use hugemem::{DmaDriver, DmaLease, Lease};
/// fn take_back<D: DmaDriver>(posted: DmaLease<D>) -> Lease {
///     posted.returned()
/// }
/// ```
///
/// The proof of another driver is rejected:
///
/// ```compile_fail,E0308
/// # use hugemem::{DmaDriver, DmaLease, Lease};
/// struct Mine;
/// struct Forged;
/// impl DmaDriver for Mine {
///     type Done = Forged;
/// }
/// fn take_back<D: DmaDriver>(posted: DmaLease<D>) -> Lease {
///     posted.returned(&Forged)
/// }
/// ```
///
/// A dropped lease cannot be posted:
///
/// ```compile_fail,E0382
/// # use hugemem::{DmaDriver, DmaLease, Lease};
/// fn post_dropped<D: DmaDriver>(lease: Lease, post: impl Fn(DmaLease<D>)) {
///     drop(lease);
///     post(lease.into_dma());
/// }
/// ```
///
/// ```compile_fail,E0277
/// # use hugemem::{DmaDriver, DmaLease};
/// fn crosses_threads<T: Send>() {}
/// fn check<D: DmaDriver>() {
///     crosses_threads::<DmaLease<D>>();
/// }
/// ```
#[must_use = "memory that is dropped while a device may access it is never given out again"]
pub struct DmaLease<D> {
    lease: ManuallyDrop<Lease>,
    driver: PhantomData<fn() -> D>,
}

/// A borrow that a device may read. Has no access to the bytes.
///
/// The blocks stay borrowed until it is returned:
///
/// ```compile_fail,E0614
/// # use hugemem::{DmaDriver, Borrow};
/// fn read_while_posted<D: DmaDriver>(borrow: Borrow) -> u8 {
///     let posted = borrow.into_dma::<D>();
///     (*posted)[0]
/// }
/// ```
#[must_use = "blocks that are dropped while a device may read them stay borrowed permanently"]
pub struct DmaBorrow<D> {
    borrow: ManuallyDrop<Borrow>,
    driver: PhantomData<fn() -> D>,
}

/// The data of a completed read that a device may read.
#[derive(Debug)]
#[must_use = "memory that is dropped while a device may access it is never given out again"]
pub enum DmaData<D> {
    /// A slice of the arena.
    Lease(DmaLease<D>),
    /// Borrowed blocks of a RAM device.
    Borrow(DmaBorrow<D>),
}

macro_rules! posted {
    ($owned:ident, $posted:ident, $field:ident, $allow:expr) => {
        impl $owned {
            /// Passes it to a device.
            #[inline(always)]
            pub fn into_dma<D: DmaDriver>(self) -> $posted<D> {
                $allow(&self, true);
                $posted {
                    $field: ManuallyDrop::new(self),
                    driver: PhantomData,
                }
            }
        }

        impl<D> $posted<D> {
            /// Address of the first byte in this process.
            #[inline(always)]
            #[must_use]
            pub fn address(&self) -> usize {
                self.$field.as_ptr().addr()
            }

            /// Length in bytes.
            #[inline(always)]
            #[must_use]
            #[expect(clippy::len_without_is_empty, reason = "it cannot be looked into")]
            pub fn len(&self) -> usize {
                self.$field.len()
            }
        }

        impl<D: DmaDriver> $posted<D> {
            /// Returns the memory after the device's last access.
            #[inline(always)]
            #[must_use]
            pub fn returned(mut self, _done: &D::Done) -> $owned {
                $allow(&self.$field, false);
                // SAFETY: it is taken once, because `self` is forgotten.
                let memory = unsafe { ManuallyDrop::take(&mut self.$field) };
                std::mem::forget(self);
                memory
            }
        }

        impl<D> Drop for $posted<D> {
            #[cold]
            fn drop(&mut self) {
                LEAKED.fetch_add(1, Ordering::Relaxed);
            }
        }

        impl<D> fmt::Debug for $posted<D> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_tuple(stringify!($posted))
                    .field(&self.$field)
                    .finish()
            }
        }
    };
}

posted!(Lease, DmaLease, lease, Lease::set_device_access);
posted!(Borrow, DmaBorrow, borrow, |_: &Borrow, _: bool| ());

impl<D> DmaLease<D> {
    /// Offset of the first byte in the arena's region, in bytes, from which device addresses are
    /// computed.
    #[must_use]
    pub fn region_offset(&self) -> usize {
        self.lease.region_offset()
    }
}

impl<D> DmaBorrow<D> {
    /// Whether a writer waits for a unit of the range; see [`Borrow::is_awaited`].
    #[must_use]
    pub fn is_awaited(&self) -> bool {
        self.borrow.is_awaited()
    }
}

impl Data {
    /// Passes the data to a device.
    #[inline(always)]
    pub fn into_dma<D: DmaDriver>(self) -> DmaData<D> {
        match self {
            Data::Lease(lease) => DmaData::Lease(lease.into_dma()),
            Data::Borrow(borrow) => DmaData::Borrow(borrow.into_dma()),
        }
    }
}

impl<D: DmaDriver> DmaData<D> {
    /// Address of the first byte in this process.
    #[inline(always)]
    #[must_use]
    pub fn address(&self) -> usize {
        match self {
            Self::Lease(lease) => lease.address(),
            Self::Borrow(borrow) => borrow.address(),
        }
    }

    /// Length in bytes.
    #[inline(always)]
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "it cannot be looked into")]
    pub fn len(&self) -> usize {
        match self {
            Self::Lease(lease) => lease.len(),
            Self::Borrow(borrow) => borrow.len(),
        }
    }

    /// Drops the data in `place`, if any, in place, after the device's last access.
    #[inline(always)]
    pub fn drop_after_completion(place: &mut Option<Self>, _done: &D::Done) {
        match place {
            None => return,
            Some(Self::Lease(posted)) => {
                posted.lease.set_device_access(false);
                // SAFETY: it is dropped once, because `place` is emptied below.
                unsafe { ManuallyDrop::drop(&mut posted.lease) };
            }
            // SAFETY: as above.
            Some(Self::Borrow(posted)) => unsafe { ManuallyDrop::drop(&mut posted.borrow) },
        }
        std::mem::forget(place.take());
    }

    /// Returns the data after the device's last access.
    #[inline(always)]
    #[must_use]
    pub fn returned(self, done: &D::Done) -> Data {
        match self {
            Self::Lease(lease) => Data::Lease(lease.returned(done)),
            Self::Borrow(borrow) => Data::Borrow(borrow.returned(done)),
        }
    }
}
