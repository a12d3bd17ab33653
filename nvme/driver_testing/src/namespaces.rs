//! The namespaces, and their changes while a host uses them.

use nvme_spec::event::AsyncEvent;

use super::bus::Bus;
use super::medium::Medium;
use super::options::{EmulatedNamespace, EmulatedOptions};
use super::state::State;

pub(super) struct Namespace {
    pub(super) config: EmulatedNamespace,
    pub(super) block_count: u64,
    pub(super) attached: bool,
    pub(super) write_protected: bool,
    /// Whether the Changed Attached Namespace List contains it.
    pub(super) changed: bool,
    pub(super) medium: Medium,
}

impl Namespace {
    pub(super) fn new(config: &EmulatedNamespace, options: &EmulatedOptions, seed: u64) -> Self {
        Self {
            block_count: config.block_count,
            attached: config.attached,
            write_protected: config.write_protected,
            changed: false,
            medium: Medium::new(
                config.block_size as usize,
                config.block_count_max,
                options.write_cache,
                options.atomic_blocks,
                seed,
            ),
            config: config.clone(),
        }
    }

    pub(super) fn nsid(&self) -> u32 {
        self.config.nsid
    }

    /// Forgets the changes reported before power was lost.
    pub(super) fn power_on(&mut self) {
        self.changed = false;
    }
}

impl State {
    /// The attached namespace with this identifier.
    pub(super) fn active(&self, nsid: u32) -> Option<&Namespace> {
        let mut active = self.namespaces.iter().filter(|found| found.attached);
        active.find(|found| found.nsid() == nsid)
    }

    pub(super) fn index_of_active(&self, nsid: u32) -> Option<usize> {
        let found = |namespace: &Namespace| namespace.attached && namespace.nsid() == nsid;
        self.namespaces.iter().position(found)
    }

    /// Largest valid identifier (NN).
    pub(super) fn nsid_max(&self) -> u32 {
        self.namespaces
            .iter()
            .map(Namespace::nsid)
            .max()
            .unwrap_or(1)
    }

    /// Changes a namespace and notifies the host if it enabled the event. Returns whether the
    /// namespace exists.
    pub(super) fn change(
        &mut self,
        bus: &Bus,
        nsid: u32,
        change: impl FnOnce(&mut Namespace),
    ) -> bool {
        let found = self.namespaces.iter_mut();
        let Some(namespace) = found.into_iter().find(|found| found.nsid() == nsid) else {
            return false;
        };
        change(namespace);
        namespace.changed = true;
        if self.features.events.namespace_attribute() {
            self.raise(bus, AsyncEvent::NAMESPACE_ATTRIBUTE_CHANGED);
        }
        true
    }

    pub(super) fn flush_all(&mut self) {
        for namespace in &mut self.namespaces {
            namespace.medium.flush();
        }
    }
}
