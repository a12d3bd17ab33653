//! The commands with which a host uses a key. They contain no key, but the name of its file.

use std::fmt::Write as _;

use crate::terminal::quoted;
use appliance_config::Nqn;
use nvme_keys::AnySecret;

/// Where the commands expect the key on the host.
const HOST_FILE: &str = "/etc/nvme/windlass.key";

/// The commands for a host with nvme-cli. Missing names are shown as placeholders.
pub(super) fn text(secret: &AnySecret, host: Option<&Nqn>, subsystem: Option<&Nqn>) -> String {
    let or = |nqn: Option<&Nqn>, placeholder: &str| {
        nqn.map_or_else(|| placeholder.to_owned(), |nqn| quoted(nqn.as_str()))
    };
    let (host, subsystem) = (or(host, "HOST-NQN"), or(subsystem, "SUBSYSTEM-NQN"));
    let connect = format!("nvme connect -t tcp -a ADDRESS -s 4420 -q {host} -n {subsystem}");
    let key = format!("\"$(cat {HOST_FILE})\"");
    let mut text =
        format!("On the host, put the key into {HOST_FILE} with mode 0600. Then, as root:\n");
    // Writing to a String cannot fail.
    let _ = match secret {
        AnySecret::Tls(_) => write!(
            text,
            "  {connect} --tls --tls-key {key}\n\
             or, with the key in the keyring .nvme until the host restarts:\n  \
             nvme check-tls-key -d {key} -n {host} -c {subsystem} -I 1 -i\n  {connect} --tls\n\
             Both need tlshd, with keyrings=.nvme in /etc/tlshd.conf.\n"
        ),
        AnySecret::Chap(_) => write!(
            text,
            "  {connect} -S {key}\n\
             or, with TLS by a key that the host generates (`concatenation`, Linux 6.15, tlshd):\n  \
             {connect} -S {key} --concat\n"
        ),
    };
    text
}

#[cfg(test)]
mod tests {
    use nvme_keys::{ChapSecret, Hash, TlsKey};

    use super::*;

    #[test]
    fn commands_have_the_names_and_no_key() {
        let tls = TlsKey::new(Hash::Sha256, &[7; 32]).expect("the length fits");
        let tls = AnySecret::Tls(tls);
        let host: Nqn = "nqn.2026-11.org.example:$h".parse().expect("an NQN");
        let subsystem: Nqn = "nqn.2026-11.org.example:s".parse().expect("an NQN");
        let shown = text(&tls, Some(&host), Some(&subsystem));
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(
            lines[1..5],
            [
                "  nvme connect -t tcp -a ADDRESS -s 4420 -q 'nqn.2026-11.org.example:$h' -n \
                 nqn.2026-11.org.example:s --tls --tls-key \"$(cat /etc/nvme/windlass.key)\"",
                "or, with the key in the keyring .nvme until the host restarts:",
                "  nvme check-tls-key -d \"$(cat /etc/nvme/windlass.key)\" -n \
                 'nqn.2026-11.org.example:$h' -c nqn.2026-11.org.example:s -I 1 -i",
                "  nvme connect -t tcp -a ADDRESS -s 4420 -q 'nqn.2026-11.org.example:$h' -n \
                 nqn.2026-11.org.example:s --tls",
            ]
        );
        assert!(!shown.contains(&**tls.expose_interchange()), "{shown}");
        let chap = ChapSecret::new(Hash::None, &[7; 64]).expect("the length fits");
        let shown = text(&AnySecret::Chap(chap), None, None);
        assert_eq!(
            shown.lines().nth(1),
            Some(
                "  nvme connect -t tcp -a ADDRESS -s 4420 -q HOST-NQN -n SUBSYSTEM-NQN -S \"$(cat \
                 /etc/nvme/windlass.key)\""
            )
        );
    }
}
