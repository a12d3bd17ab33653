//! `windlass key generate`: draws a key, prints or stores it, and shows how a host uses it.

use std::io;
use std::path::PathBuf;

use appliance_config::Nqn;
use clap::{Args, ValueEnum};
use nvme_keys::{AnySecret, ChapSecret, Hash, TlsKey};
use rustix::rand::{GetRandomFlags, getrandom};
use zeroize::Zeroizing;

use super::host_commands;
use crate::error::Failure;
use crate::key_files;
use crate::terminal;

/// Length of keys without a hash, in bytes.
const LEN_WITHOUT_HASH: usize = 32;
/// Length of the longest key, in bytes.
const LEN_MAX: usize = 64;

/// What `key generate` takes.
#[derive(Args, Debug)]
#[command(after_help = "\
The key is printed to standard output, or written to FILE with --file; the commands for the host are
printed to standard error. With --host and --subsystem, they contain these names. The key does not
depend on them.

Exit status: 0 if the key was printed or written, 1 if not.")]
pub(super) struct GenerateArguments {
    /// What the key is for.
    #[arg(long, value_enum, default_value_t = KindWord::Tls)]
    kind: KindWord,
    /// The hash with which hosts transform the key; it also gives the key's length. With `none`,
    /// the key is used as it is.
    #[arg(long, value_enum, default_value_t = HashWord::Sha256)]
    hash: HashWord,
    /// The host that is to use the key.
    #[arg(long, value_name = "NQN")]
    host: Option<Nqn>,
    /// The export that the host is to attach to with the key.
    #[arg(long, value_name = "NQN")]
    subsystem: Option<Nqn>,
    /// Write the key to FILE, which must not exist, with mode 0600, instead of printing it.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum KindWord {
    /// A pre-shared key for TLS.
    Tls,
    /// A secret for DH-HMAC-CHAP.
    Chap,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum HashWord {
    None,
    Sha256,
    Sha384,
    /// Only with `--kind chap`.
    Sha512,
}

impl HashWord {
    fn hash(self) -> Hash {
        match self {
            Self::None => Hash::None,
            Self::Sha256 => Hash::Sha256,
            Self::Sha384 => Hash::Sha384,
            Self::Sha512 => Hash::Sha512,
        }
    }
}

/// The kind of key has no such hash.
#[derive(Debug, thiserror::Error)]
#[error("TLS has no keys with SHA-512: use --hash sha256, or --kind chap")]
struct NoSuchTlsKey;

/// Draws a key, and prints or stores it.
pub(super) fn generate(arguments: &GenerateArguments) -> Result<(), Failure> {
    let secret = draw(arguments.kind, arguments.hash.hash())?;
    super::warn_if_sha_384(&secret);
    let interchange = secret.expose_interchange();
    if let Some(path) = &arguments.file {
        key_files::create(path, &interchange)?;
        terminal::print_aside(&format!("The key is in {}.\n", path.display()));
    } else {
        let mut line = Zeroizing::new(String::with_capacity(interchange.len() + 1));
        line.push_str(&interchange);
        line.push('\n');
        terminal::write(&line).map_err(|error| format!("standard output: {error}"))?;
    }
    let (host, subsystem) = (arguments.host.as_ref(), arguments.subsystem.as_ref());
    terminal::print_aside(&host_commands::text(&secret, host, subsystem));
    Ok(())
}

fn draw(kind: KindWord, hash: Hash) -> Result<AnySecret, Failure> {
    if kind == KindWord::Tls && hash == Hash::Sha512 {
        return Err(NoSuchTlsKey.into());
    }
    let mut bytes = Zeroizing::new([0; LEN_MAX]);
    let bytes = &mut bytes[..hash.len().unwrap_or(LEN_WITHOUT_HASH)];
    let filled = getrandom(&mut *bytes, GetRandomFlags::empty())?;
    if filled < bytes.len() {
        return Err(io::Error::other("the system has too few random bytes").into());
    }
    Ok(match kind {
        KindWord::Tls => AnySecret::Tls(TlsKey::new(hash, bytes)?),
        KindWord::Chap => AnySecret::Chap(ChapSecret::new(hash, bytes)?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_and_hash_gives_a_new_key() {
        for kind in [KindWord::Tls, KindWord::Chap] {
            for hash in Hash::ALL {
                if kind == KindWord::Tls && hash == Hash::Sha512 {
                    let error = draw(kind, hash).expect_err("no such key");
                    assert!(error.to_string().contains("--hash sha256"), "{error}");
                    continue;
                }
                let [one, other] =
                    [draw(kind, hash), draw(kind, hash)].map(|it| it.expect("drawn"));
                assert_ne!(one, other);
                assert_eq!(AnySecret::parse(&one.expose_interchange()), Ok(one));
            }
        }
    }
}
