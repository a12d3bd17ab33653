//! Copies of devices, as the control thread and the control plane of the appliance handle them.

use std::sync::Arc;

use appliance::headless::CopyWanted;
use block::CopyProgress;

use super::Appliance;

/// A copy that has begun: its number and its progress.
pub(super) type Begun = (u32, Arc<CopyProgress>);

impl Appliance {
    /// Begins a copy of a device to another. `None` while the configuration changes: the control
    /// thread begins no copy then.
    ///
    /// # Errors
    /// Why it does not begin.
    pub fn copy_device(&mut self, wanted: &CopyWanted) -> Option<Result<Begun, String>> {
        let control = self.control.as_mut()?;
        let begun = control.copy(wanted).and_then(|number| {
            let progress = self.copies.progress(number);
            let progress = progress.ok_or("the copy that has begun is not known")?;
            Ok((number, progress))
        });
        Some(begun)
    }

    /// Aborts a copy.
    ///
    /// # Errors
    /// There is no such copy, or it has ended.
    pub fn abort_copy(&self, number: u32) -> Result<(), String> {
        self.copies.abort(number)
    }
}
