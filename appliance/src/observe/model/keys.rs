//! The JSON of keys and of the authentication of hosts (Base 2.1 §8.3.4.5.2). It has no secret.

use appliance_config::{Key, KeySource};
use serde::{Deserialize, Serialize};

use crate::observe::measured::measured;

/// The input of the status of a key.
pub(crate) struct KeyInput<'o> {
    pub(crate) key: &'o Key,
    pub(crate) is_revoked: bool,
    pub(crate) uses: u64,
    pub(crate) last_used_unix_ms: Option<u64>,
}

measured! {
    /// A key of the configuration.
    struct KeyStatus from input: KeyInput<'_> {
        /// Its name.
        name: String = input.key.name.to_string();
        /// Where its secret is.
        #[words("file", "credential")]
        source: String = match input.key.source {
            KeySource::File(_) => "file",
            KeySource::Credential(_) => "credential",
        }.to_owned();
        /// Whether its secret is revoked: no host can use it.
        revoked: bool = input.is_revoked;
        /// Queues that were authenticated or protected with it since the start.
        uses: u64 = input.uses, Counter "key_authentications";
        /// When the last one was, milliseconds since 1970; none since the start.
        last_used_unix_ms: Option<u64> = input.last_used_unix_ms,
            GaugeSeconds "key_last_used_timestamp":
                |it| Some(it.last_used_unix_ms?.saturating_mul(1_000_000))
            => "When a queue was authenticated or protected with it the last time, since 1970.";
    }
}

/// What `POST /api/v1/keys/revoke` takes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct RevokeRequest {
    /// The name of a key of the configuration.
    pub(crate) key: String,
    /// Whether the associations that use it end.
    #[serde(default)]
    pub(crate) disconnect: bool,
}

/// What `POST /api/v1/keys/revoke` answers: the secret is not accepted any more. If associations end,
/// the commands that their hosts had sent have ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct RevokeAnswer {
    pub(crate) key: String,
    /// Associations that were ended.
    pub(crate) associations: usize,
    /// What was done, for people.
    pub(crate) text: String,
}

/// How a host authenticated itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct AuthenticationStatus {
    /// The name of the host's key; over HTTP without a token, a pseudonym.
    pub(crate) key: String,
    /// The name of the controller's key, if the controller authenticated itself too; none over HTTP
    /// without a token.
    pub(crate) controller_key: Option<String>,
    /// Whether the controller authenticated itself too.
    pub(crate) bidirectional: bool,
    /// `sha256`, `sha384` or `sha512`.
    pub(crate) hash: String,
    /// `null`, or `ffdhe2048` to `ffdhe8192`.
    pub(crate) group: String,
    /// When, milliseconds since 1970.
    pub(crate) since_unix_ms: u64,
}

/// How TLS protects a host's connections.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct ChannelStatus {
    /// The name of the host's key; over HTTP without a token, a pseudonym.
    pub(crate) key: String,
    /// The cipher suite, such as `TLS_AES_128_GCM_SHA256`.
    pub(crate) cipher: String,
    /// The group of the key exchange: `X25519`, `P-256` or `P-384`.
    pub(crate) group: String,
    /// How the host has derived its key: `standard`, or `old-libnvme` for nvme-cli before 2.16.
    pub(crate) derivation: String,
    /// When, milliseconds since 1970.
    pub(crate) since_unix_ms: u64,
}
