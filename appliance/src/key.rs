//! `windlass key`: makes keys for hosts, checks those in files, and revokes those in use.
//!
//! Only revoking needs a running appliance. A key reaches only standard output or a file of its owner: no log
//! line, error message or printed command contains one.

mod check;
mod generate;
mod host_commands;
mod revoke;

use std::process::ExitCode;

use clap::{Args, Subcommand};
use nvme_keys::{AnySecret, PskHash};

use crate::error::Failure;

/// What `key` takes.
#[derive(Args, Debug)]
pub(crate) struct KeyArguments {
    #[command(subcommand)]
    command: KeyCommand,
}

#[derive(Subcommand, Debug)]
enum KeyCommand {
    /// Make a key for a host and print it, and the commands that use it on the host.
    Generate(generate::GenerateArguments),
    /// Check the key in FILE, and list the identities that a host derives from it.
    Check(check::CheckArguments),
    /// Have the running appliance no longer accept the secret of a key.
    Revoke(revoke::RevokeArguments),
}

/// Makes, checks or revokes a key.
pub(crate) fn key(arguments: &KeyArguments) -> Result<ExitCode, Failure> {
    match &arguments.command {
        KeyCommand::Generate(arguments) => generate::generate(arguments)?,
        KeyCommand::Check(arguments) => check::check(arguments)?,
        KeyCommand::Revoke(arguments) => revoke::revoke(arguments)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Warns of a key that hosts in wide use cannot use.
fn warn_if_sha_384(secret: &AnySecret) {
    if matches!(secret, AnySecret::Tls(key) if key.psk_hash() == PskHash::Sha384) {
        tracing::warn!(
            "hosts whose GnuTLS is older than 3.8.11, as that of Debian 13, cannot use SHA-384 \
             keys: use a SHA-256 key for them"
        );
    }
}
