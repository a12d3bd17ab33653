//! `windlass key revoke`: the running appliance no longer accepts the secret of a key.

use std::time::Duration;

use clap::Args;

use crate::client::{Client, REVOKE_PATH, SocketArguments};
use crate::error::Failure;
use crate::observe::model::{RevokeAnswer, RevokeRequest};
use crate::terminal::print;

/// With `--disconnect`, the response waits until the hosts' commands have ended; slightly longer
/// than the appliance's own bound.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(100);

/// What `key revoke` takes.
#[derive(Args, Debug)]
#[command(after_help = "\
No host authenticates itself with the secret from now on, and none begins a connection that it
protects, also after a restart. A host with other keys may use these. Connections go on until their
hosts authenticate themselves again; with --disconnect, the associations that were authenticated or
are protected with the key end, and the command returns when the commands that their hosts had sent
have ended.

The revocation concerns the secret, not the name: to use the key again, place another secret in its
file or credential, and run `windlass apply`. To change keys without an interruption, add the new key
beside the old one instead, and remove the old one when its last use is long ago.

Exit status: 0 if the secret is revoked, 1 if not.")]
pub(super) struct RevokeArguments {
    /// The name of the key in the configuration.
    name: String,
    /// End the associations that use the key.
    #[arg(long)]
    disconnect: bool,
    /// Print the answer as JSON, as POST /api/v1/keys/revoke gives it.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    socket: SocketArguments,
}

/// Sends the request, and prints the result.
pub(super) fn revoke(arguments: &RevokeArguments) -> Result<(), Failure> {
    let client = Client::find(&arguments.socket)?.with_response_timeout(RESPONSE_TIMEOUT);
    let request = RevokeRequest {
        key: arguments.name.clone(),
        disconnect: arguments.disconnect,
    };
    let answer: RevokeAnswer = client.post(REVOKE_PATH, &request)?;
    if arguments.json {
        print(&format!("{:#}\n", serde_json::to_value(&answer)?));
    } else {
        print(&format!("key {}: {}\n", answer.key, answer.text));
    }
    Ok(())
}
