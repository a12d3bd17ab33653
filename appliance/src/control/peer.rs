//! Who is at the other end of the Unix socket.
//!
//! The socket's mode keeps others out already; this looks at the credentials that the kernel noted
//! at connect as well, for the moments before the mode is set.

use tokio::net::unix::UCred;

/// Who may use the socket.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allowed {
    /// The user that the appliance runs as.
    pub(super) own_user: u32,
    /// Members of this group may too.
    pub(super) group: Option<u32>,
}

impl Allowed {
    /// Whether the peer with these credentials may go on.
    pub(super) fn admits(&self, peer: &UCred) -> bool {
        self.admits_user(peer.uid(), peer.gid(), || {
            peer.pid().map_or_else(Vec::new, further_groups)
        })
    }

    /// `further` are the user's groups beside the primary one; looked at only where it matters.
    fn admits_user(&self, user: u32, group: u32, further: impl FnOnce() -> Vec<u32>) -> bool {
        if user == 0 || user == self.own_user {
            return true;
        }
        let is_wanted = |wanted| group == wanted || further().contains(&wanted);
        self.group.is_some_and(is_wanted)
    }
}

/// The supplementary groups of a process, as far as they can be seen: proc(5), `Groups`.
fn further_groups(process: i32) -> Vec<u32> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Groups:"));
    let numbers = line.unwrap_or_default().split_whitespace();
    numbers.filter_map(|number| number.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_root_the_own_user_and_the_group_may() {
        let none = || -> Vec<u32> { panic!("not looked at") };
        let alone = Allowed {
            own_user: 107,
            group: None,
        };
        assert!(!alone.admits_user(1000, 1000, none));
        assert!(!alone.admits_user(1000, 0, none));
        assert!(alone.admits_user(0, 1000, none));
        assert!(alone.admits_user(107, 1000, none));
        let group = Allowed {
            group: Some(50),
            ..alone
        };
        assert!(!group.admits_user(1000, 1000, || vec![51, 5, 500]));
        assert!(group.admits_user(1000, 50, none));
        assert!(group.admits_user(1000, 1000, || vec![4, 50]));
    }

    #[test]
    fn a_process_that_is_gone_has_no_groups() {
        assert_eq!(further_groups(i32::MAX), Vec::<u32>::new());
    }
}
