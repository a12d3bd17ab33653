//! `windlass key check`: reads a key file, and lists the identities of its key.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use appliance_config::Nqn;
use clap::Args;
use nvme_keys::{AnySecret, Candidate, Derivation, IdentityVersion, Names, TlsKey};

use crate::error::Failure;
use crate::key_files;
use crate::terminal::print;

/// What `key check` takes.
#[derive(Args, Debug)]
#[command(after_help = "\
FILE has one key in its interchange format, and at most one line break after it. Only its owner may
have permissions for it. With --host and --subsystem, the identities of a key for TLS are listed as
`keyctl list %:.nvme` shows them on the host; the key itself is not printed.

Exit status: 0 if the key is valid, 1 if not.")]
pub(super) struct CheckArguments {
    /// A file with a key.
    file: PathBuf,
    /// The host that uses the key.
    #[arg(long, value_name = "NQN", requires = "subsystem")]
    host: Option<Nqn>,
    /// The export that the host attaches to with the key.
    #[arg(long, value_name = "NQN", requires = "host")]
    subsystem: Option<Nqn>,
}

/// Checks the file, and prints what is not secret.
pub(super) fn check(arguments: &CheckArguments) -> Result<(), Failure> {
    let secret = key_files::read(&arguments.file)?;
    let names = match (&arguments.host, &arguments.subsystem) {
        (Some(host), Some(subsystem)) => Some(Names::new(host.as_str(), subsystem.as_str())?),
        _ => None,
    };
    super::warn_if_sha_384(&secret);
    print(&text(&arguments.file, &secret, names));
    Ok(())
}

fn text(file: &Path, secret: &AnySecret, names: Option<Names<'_>>) -> String {
    let (purpose, hash, bytes) = match secret {
        AnySecret::Tls(key) => ("key for TLS", key.hash(), key.expose().len()),
        AnySecret::Chap(key) => ("secret for DH-HMAC-CHAP", key.hash(), key.expose().len()),
    };
    let mut text = format!("{}: {purpose}, {hash}, {bytes} bytes\n", file.display());
    let rest = match (secret, names) {
        (AnySecret::Chap(_), _) => "DH-HMAC-CHAP has no identities of keys.\n".to_owned(),
        (AnySecret::Tls(_), None) => "Its identities depend on the host and the export: \
             --host NQN --subsystem NQN lists them.\n"
            .to_owned(),
        (AnySecret::Tls(key), Some(names)) => identities(key, names),
    };
    text.push_str(&rest);
    text
}

/// The identities as a keyring shows them. Candidates with the same identity are one entry.
fn identities(key: &TlsKey, names: Names<'_>) -> String {
    let mut text = "Identities in the keyring .nvme of the host:\n".to_owned();
    let candidates = key.candidates(names);
    for same in candidates.chunk_by(|one, other| one.identity == other.identity) {
        let identity = &same[0].identity;
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  psk: {identity}\n       {}", made_by(same));
    }
    text
}

/// The hosts that make an identity.
fn made_by(same: &[Candidate]) -> String {
    let version = match same[0].version {
        IdentityVersion::V0 => 0,
        IdentityVersion::V1 => 1,
    };
    let makers: Vec<&str> = same
        .iter()
        .map(|candidate| match candidate.derivation {
            Derivation::Standard => "libnvme 1.16 and later",
            Derivation::OldLibnvme => "libnvme before 1.16, as in Debian 13",
            Derivation::OldLinux => "Linux from 6.15",
        })
        .collect();
    format!("version {version}: {}", makers.join("; "))
}

#[cfg(test)]
mod tests {
    use nvme_keys::{ChapSecret, Hash};

    use super::*;

    const KEY: &str = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";

    fn shown(secret: &AnySecret) -> String {
        let names = Names::new("nqn.psk-test-host", "nqn.psk-test-subsys").expect("valid");
        text(Path::new("/k"), secret, Some(names))
    }

    /// The identities of libnvme's tests.
    #[test]
    fn identities_are_listed_as_a_keyring_shows_them() {
        let secret = AnySecret::parse(KEY).expect("a key");
        let expected = "\
/k: key for TLS, SHA-256, 32 bytes
Identities in the keyring .nvme of the host:
  psk: NVMe1R01 nqn.psk-test-host nqn.psk-test-subsys iSbjiStwJ/1TrTvDlt2fjFmzvsytOJelidNnA+X5lEU=
       version 1: libnvme 1.16 and later
  psk: NVMe1R01 nqn.psk-test-host nqn.psk-test-subsys 66GuqV08TsAGII39teWUfwQwizjv06Jy8jOcX3NAAzM=
       version 1: libnvme before 1.16, as in Debian 13
  psk: NVMe0R01 nqn.psk-test-host nqn.psk-test-subsys
       version 0: libnvme 1.16 and later; libnvme before 1.16, as in Debian 13
";
        assert_eq!(shown(&secret), expected);
    }

    #[test]
    fn configured_keys_have_two_identities() {
        let key = TlsKey::new(Hash::None, &[7; 32]).expect("the length fits");
        let shown = shown(&AnySecret::Tls(key));
        assert!(shown.contains("no hash"), "{shown}");
        assert_eq!(shown.matches("psk: ").count(), 2, "{shown}");
    }

    #[test]
    fn no_text_has_a_key() {
        let secret = AnySecret::parse(KEY).expect("a key");
        let without_names = text(Path::new("/k"), &secret, None);
        assert!(without_names.contains("--host NQN"), "{without_names}");
        let chap = ChapSecret::new(Hash::Sha512, &[0xa5; 64]).expect("the length fits");
        let of_chap = shown(&AnySecret::Chap(chap));
        assert!(of_chap.contains("SHA-512, 64 bytes"), "{of_chap}");
        for text in [shown(&secret), without_names, of_chap] {
            assert!(!text.contains("VRLb") && !text.contains("paWl"), "{text}");
        }
    }
}
