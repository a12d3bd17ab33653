//! Descriptors and memory windows that give the target access to a command's memory.

use std::sync::Arc;

use arrayvec::ArrayVec;
use nvme_spec::sgl::SglDescriptor;
use rdma::{DeviceMemory, MemoryMap, MemoryWindow, Provider, RemoteAddress};

use crate::rdma::memory::registration_of;

/// Maximum number of descriptors of one command.
pub(crate) const DESCRIPTORS_MAX: usize = 16;

/// The descriptors of one command.
pub(crate) type Descriptors = ArrayVec<SglDescriptor, DESCRIPTORS_MAX>;

/// Memory windows, one per slot.
#[derive(Debug)]
pub(crate) struct Windows<P: Provider> {
    pub(crate) windows: Box<[P::Window]>,
    pub(crate) registrations: Vec<Arc<P::Registration>>,
}

impl<P: Provider> Windows<P> {
    /// The remote key of a slot's window.
    pub(crate) fn key(&self, index: u16) -> Option<u32> {
        self.windows.get(usize::from(index)).map(MemoryWindow::rkey)
    }

    /// The slot's window and the registration to bind it to.
    pub(crate) fn binding(
        &mut self,
        index: u16,
        data: &impl DeviceMemory,
    ) -> Option<(&mut P::Window, &P::Registration)> {
        let window = self.windows.get_mut(usize::from(index))?;
        let whole = registration_of(&self.registrations, data.address(), data.bytes())?;
        Some((window, whole))
    }
}

/// The descriptor of a command without data: a keyed descriptor of length 0, which targets expect.
pub(crate) fn no_data() -> SglDescriptor {
    SglDescriptor::keyed(0, 0, 0, false).unwrap_or_default()
}

/// Describes `len` bytes of `data` by `count` descriptors. With a window, the first requests its
/// invalidation. Returns `None` if the memory is not registered, or a piece is too long.
pub(crate) fn describe<P: Provider>(
    map: &MemoryMap<P>,
    window_key: Option<u32>,
    data: &impl DeviceMemory,
    (len, count): (usize, usize),
) -> Option<Descriptors> {
    let start = data.address();
    let step = len.div_ceil(count.clamp(1, DESCRIPTORS_MAX)).max(1);
    let mut list = Descriptors::new();
    for offset in (0..len).step_by(step) {
        let here = step.min(len - offset);
        let remote = match window_key {
            Some(rkey) => RemoteAddress {
                address: (start + offset) as u64,
                rkey,
            },
            None => map.remote(start + offset, here)?,
        };
        let invalidate = window_key.is_some() && offset == 0;
        let length = u32::try_from(here).ok()?;
        let one = SglDescriptor::keyed(remote.address, length, remote.rkey, invalidate)?;
        list.try_push(one).ok()?;
    }
    Some(list)
}
