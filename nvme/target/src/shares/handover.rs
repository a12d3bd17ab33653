//! Hand-over of the accounts of hosts. The hash of a name belongs to one build, so the name is
//! stored instead.

use nvme_handover::ShareRecord;

use super::{ShareHolder, Shares};

impl ShareHolder {
    /// The record of this account, without the host's name.
    pub(crate) fn export(&self) -> ShareRecord {
        ShareRecord {
            listed: self.listed,
            address: self.address,
        }
    }

    /// The account of a record, for the host with this name.
    pub(crate) fn restored(host_nqn: &str, record: ShareRecord) -> Self {
        Self::new(host_nqn, record.listed, record.address)
    }
}

impl Shares {
    /// Whether the resource has this amount left, whoever uses it. What a host had before a
    /// hand-over is not refused because of the shares of others.
    pub(crate) fn has_left(&self, amount: usize) -> bool {
        self.used + amount <= self.capacity
    }
}
