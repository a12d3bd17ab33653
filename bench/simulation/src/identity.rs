//! Checks namespace identifiers against the content of disks: the same content keeps its
//! identifiers, and other content has other identifiers (Base 2.1 §4.7.1: an identifier is not used
//! again for another namespace).
//!
//! Only the simulation knows which content a disk has.

use std::collections::BTreeMap;

use nvme_spec::identify::{NamespaceId, NamespaceIds};

/// A content: its disk, and the number of contents that the disk had before.
pub type ContentId = (usize, u64);

/// The identifiers of each content, as reported to hosts.
#[derive(Default)]
pub struct IdentityJudge {
    known: BTreeMap<ContentId, Vec<(&'static str, Vec<u8>)>>,
    owners: BTreeMap<(&'static str, Vec<u8>), ContentId>,
}

impl IdentityJudge {
    /// Records the identifiers that `page` (Identify, CNS 03h) reports for a disk with that
    /// content.
    ///
    /// # Errors
    /// They belong to another content, or differ from those reported before; as text.
    pub fn record_reported(&mut self, content: ContentId, page: &[u8]) -> Result<(), String> {
        let ids: Vec<(&'static str, Vec<u8>)> = NamespaceIds::new(page)
            .filter_map(|id| match id {
                NamespaceId::Eui64(id) => Some(("EUI-64", id.to_vec())),
                NamespaceId::Nguid(id) => Some(("NGUID", id.to_vec())),
                NamespaceId::Uuid(id) => Some(("UUID", id.to_vec())),
                NamespaceId::CommandSet(_) => None,
            })
            .collect();
        for id in &ids {
            let owner = self.owners.entry(id.clone()).or_insert(content);
            if *owner != content {
                let ((kind, bytes), owner) = (id, *owner);
                return Err(format!(
                    "content {content:?} has {kind} {bytes:02x?} of content {owner:?}"
                ));
            }
        }
        let known = self.known.entry(content).or_insert_with(|| ids.clone());
        if *known != ids {
            return Err(format!(
                "content {content:?} was known by {known:02x?}, and now by {ids:02x?}"
            ));
        }
        let kinds = ["NGUID", "UUID"];
        let missing = kinds
            .iter()
            .find(|kind| !ids.iter().any(|it| it.0 == **kind));
        match missing {
            Some(kind) => Err(format!("content {content:?} has no {kind}")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(uuid: u8) -> Vec<u8> {
        let mut page = vec![2, 16, 0, 0];
        page.extend([uuid ^ 0xFF; 16]);
        page.extend([3, 16, 0, 0]);
        page.extend([uuid; 16]);
        page.extend([0; 4]);
        page
    }

    #[test]
    fn identifiers_belong_to_exactly_one_content() {
        let mut judge = IdentityJudge::default();
        assert_eq!(judge.record_reported((0, 0), &page(1)), Ok(()));
        assert_eq!(judge.record_reported((0, 0), &page(1)), Ok(()));
        assert!(judge.record_reported((0, 1), &page(1)).is_err());
        assert!(judge.record_reported((1, 0), &page(1)).is_err());
        assert!(judge.record_reported((0, 0), &page(2)).is_err());
        assert_eq!(judge.record_reported((1, 0), &page(3)), Ok(()));
        assert!(judge.record_reported((2, 0), &[]).is_err());
    }
}
