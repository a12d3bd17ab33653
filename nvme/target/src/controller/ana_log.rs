//! The Asymmetric Namespace Access log (Base 2.1 §5.1.12.1.13).

use nvme_spec::U32;
use nvme_spec::log::{AnaGroupDescriptor, AnaHeader, AnaLogParameter};
use zerocopy::IntoBytes;

use super::{AdminContext, Controller};
use crate::ana::AnaGroup;
use crate::page::Page;

impl Controller {
    /// The groups that have namespaces, as this controller's host sees them.
    fn ana_groups(&self, context: &AdminContext<'_>) -> Vec<AnaGroup> {
        let subsystem = self.subsystem(context.view);
        subsystem.map_or_else(Vec::new, |view| view.ana_groups(self.port))
    }

    /// The size of the log with all namespace identifiers.
    pub(super) fn ana_log_bytes(&self, context: &AdminContext<'_>) -> u64 {
        let groups = self.ana_groups(context);
        let bytes_of = |group: &AnaGroup| {
            size_of::<AnaGroupDescriptor>() + group.nsids.len() * size_of::<U32>()
        };
        let bytes: usize = groups.iter().map(bytes_of).sum();
        (size_of::<AnaHeader>() + bytes) as u64
    }

    /// Writes the requested part of the log.
    pub(super) fn write_ana_log(
        &self,
        page: &mut Page<'_>,
        parameter: AnaLogParameter,
        context: &AdminContext<'_>,
    ) {
        let groups = self.ana_groups(context);
        // At most ANA_GROUPS_MAX groups of at most NAMESPACE_ID_MAX namespaces.
        page.put(AnaHeader::new(self.ana_changes, groups.len() as u16).as_bytes());
        for AnaGroup { id, state, nsids } in &groups {
            let nsids = match parameter.rgo() {
                true => &[][..],
                false => nsids,
            };
            // The change count of a group is optional: 0 is "not reported".
            let descriptor = AnaGroupDescriptor::new(*id, nsids.len() as u32, 0, state.code());
            page.put(descriptor.as_bytes());
            for nsid in nsids {
                page.put(U32::new(*nsid).as_bytes());
            }
        }
    }
}
