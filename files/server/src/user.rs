//! Who sends a request, and what the mode of an object permits.

use files_spec::limits::GROUPS_MAX;
use files_spec::rpc::Credential;
use files_store::Attributes;

/// The user and group of a sender without rights of its own.
pub const NOBODY: u32 = 65_534;

/// Which users of a client lose their identity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Squash {
    /// None.
    None,
    /// User 0 and group 0.
    #[default]
    Root,
    /// Every user.
    All,
}

/// Read permission in three bits of a mode.
pub(crate) const READ: u32 = 4;
/// Write permission in three bits of a mode.
pub(crate) const WRITE: u32 = 2;
/// Permission to execute a file or to look up names in a directory.
pub(crate) const EXECUTE: u32 = 1;

/// The identity that a request states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    groups: [u32; GROUPS_MAX],
    group_count: usize,
}

impl User {
    pub(crate) const NOBODY: Self = Self {
        uid: NOBODY,
        gid: NOBODY,
        groups: [0; GROUPS_MAX],
        group_count: 0,
    };

    pub(crate) fn of(credential: &Credential<'_>) -> Self {
        let Credential::Sys(sys) = credential else {
            return Self::NOBODY;
        };
        let mut user = Self {
            uid: sys.uid,
            gid: sys.gid,
            ..Self::NOBODY
        };
        // The decoder bounds the groups.
        for group in sys.gids.iter().take(GROUPS_MAX) {
            user.groups[user.group_count] = group;
            user.group_count += 1;
        }
        user
    }

    /// The identity that the user has in a share.
    pub(crate) fn squashed(mut self, squash: Squash) -> Self {
        match squash {
            Squash::None => return self,
            Squash::All => return Self::NOBODY,
            Squash::Root => {}
        }
        let group = |it: u32| if it == 0 { NOBODY } else { it };
        if self.uid == 0 {
            return Self::NOBODY;
        }
        self.gid = group(self.gid);
        self.groups = self.groups.map(group);
        self
    }

    pub(crate) fn is_root(&self) -> bool {
        self.uid == 0
    }

    pub(crate) fn is_member(&self, gid: u32) -> bool {
        self.gid == gid || self.groups[..self.group_count].contains(&gid)
    }

    /// Whether the mode of an object permits all of `wanted`. User 0 may do everything, except to
    /// execute a file that nobody may execute.
    pub(crate) fn may(&self, object: &Attributes, wanted: u32) -> bool {
        let mode = object.mode;
        if self.is_root() {
            let is_directory = matches!(object.kind, files_store::Kind::Directory);
            return wanted & EXECUTE == 0 || is_directory || mode & 0o111 != 0;
        }
        let granted = if self.uid == object.uid {
            mode >> 6
        } else if self.is_member(object.gid) {
            mode >> 3
        } else {
            mode
        };
        granted & wanted == wanted
    }
}

#[cfg(test)]
mod tests {
    use files_spec::rpc::AuthSys;
    use files_spec::xdr::{List, Opaque};

    use super::*;

    #[test]
    fn root_is_squashed_with_its_groups() {
        let user = |uid, gids: &[u32]| {
            User::of(&Credential::Sys(AuthSys {
                stamp: 0,
                machinename: Opaque(b""),
                uid,
                gid: 0,
                gids: List::new(gids),
            }))
        };
        assert_eq!(user(0, &[0, 5]).squashed(Squash::Root), User::NOBODY);
        let other = user(7, &[0, 5]).squashed(Squash::Root);
        assert_eq!((other.uid, other.gid), (7, NOBODY));
        assert!(other.is_member(5) && !other.is_member(0));
        assert_eq!(user(7, &[5]).squashed(Squash::All), User::NOBODY);
        assert!(user(0, &[]).squashed(Squash::None).is_root());
        assert_eq!(User::of(&Credential::None), User::NOBODY);
    }
}
