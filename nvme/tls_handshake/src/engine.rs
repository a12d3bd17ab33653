//! s2n-tls with one pre-shared key, and the traffic secrets that it has agreed on.

use std::fmt;
use std::sync::OnceLock;
use std::task::{Poll, Waker};

use nvme_keys::{Candidate, PskHash};
use nvme_tls::{Role, Suite, TrafficSecret};
use s2n_tls::config::Config;
use s2n_tls::connection::Connection;
use s2n_tls::enums::{Blinding, Mode, PskHmac, SerializationVersion};
use s2n_tls::psk::Psk;
use s2n_tls::security::Policy;
use zeroize::Zeroizing;

use crate::error::HandshakeError;
use crate::pipe::Piped;

/// A policy of s2n-tls with TLS 1.3 only, the suites of AES-GCM, and the groups X25519, P-256 and
/// P-384. Policies with names of this kind do not change.
const POLICY: &str = "AWS-CRT-SDK-TLSv1.3";

/// The group of the key exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// X25519
    X25519,
    /// NIST P-256
    P256,
    /// NIST P-384
    P384,
}

impl Group {
    fn of_name(name: &str) -> Option<Self> {
        match name {
            "x25519" => Some(Self::X25519),
            "secp256r1" => Some(Self::P256),
            "secp384r1" => Some(Self::P384),
            _ => None,
        }
    }

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::X25519 => "X25519",
            Self::P256 => "P-256",
            Self::P384 => "P-384",
        }
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The result of a handshake: what protects both directions, from record 0 on.
#[derive(Clone, Debug)]
pub struct Secrets {
    /// The suite.
    pub suite: Suite,
    /// The group of the key exchange.
    pub group: Group,
    /// Of the records that this side sends.
    pub send: TrafficSecret,
    /// Of the records that the peer sends.
    pub receive: TrafficSecret,
}

/// The configuration of all connections.
pub(crate) fn configuration() -> Result<Config, HandshakeError> {
    static CONFIGURATION: OnceLock<Config> = OnceLock::new();
    if let Some(found) = CONFIGURATION.get() {
        return Ok(found.clone());
    }
    let mut builder = Config::builder();
    // Certificates are not used: without trusted ones, none is accepted.
    builder.with_system_certs(false)?;
    builder.set_security_policy(&Policy::from_version(POLICY)?)?;
    builder.set_serialization_version(SerializationVersion::V1)?;
    // A pause after an error would occupy the thread. AEADs need none.
    builder.set_max_blinding_delay(0)?;
    let built = builder.build()?;
    Ok(CONFIGURATION.get_or_init(|| built).clone())
}

/// Whether a handshake is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    /// The peer's next record is needed.
    Waiting,
    /// Both Finished messages were exchanged.
    Complete,
}

/// One connection of s2n-tls.
#[derive(Debug)]
pub(crate) struct Engine {
    piped: Piped,
    role: Role,
    identity_len: usize,
}

impl Engine {
    /// A connection that knows no other key than `candidate`.
    pub(crate) fn new(role: Role, candidate: &Candidate) -> Result<Self, HandshakeError> {
        let mut connection = Connection::new(match role {
            Role::Server => Mode::Server,
            Role::Client => Mode::Client,
        });
        connection.set_config(configuration()?)?;
        connection.set_blinding(Blinding::SelfService)?;
        connection.set_waker(Some(Waker::noop()))?;
        let mut psk = Psk::builder()?;
        psk.set_identity(candidate.identity.as_bytes())?;
        psk.set_secret(candidate.psk.expose())?;
        psk.set_hmac(match candidate.hash {
            PskHash::Sha256 => PskHmac::SHA256,
            PskHash::Sha384 => PskHmac::SHA384,
        })?;
        connection.append_psk(&psk.build()?)?;
        Ok(Self {
            piped: Piped::new(connection)?,
            role,
            identity_len: candidate.identity.len(),
        })
    }

    /// Reads records of the peer and continues.
    pub(crate) fn advance(&mut self, records: &[u8]) -> Result<Status, HandshakeError> {
        self.piped.receive(records);
        match self.piped.negotiate() {
            Poll::Pending => Ok(Status::Waiting),
            Poll::Ready(Ok(())) => Ok(Status::Complete),
            Poll::Ready(Err(error)) => {
                self.piped.send_alert();
                Err(error.into())
            }
        }
    }

    /// What is to be sent.
    pub(crate) fn take_output(&mut self) -> Vec<u8> {
        self.piped.take_sent()
    }

    /// The secrets of a complete handshake. The connection of s2n-tls ends by it.
    pub(crate) fn into_secrets(self) -> Result<Secrets, HandshakeError> {
        let unusable = |what: &str| HandshakeError::Library(what.to_owned());
        if !self.piped.has_read_all() {
            return Err(unusable("bytes behind the last message were not read"));
        }
        let connection = self.piped.connection();
        if connection.negotiated_psk_identity_length()? != self.identity_len {
            return Err(HandshakeError::KeyNotChosen);
        }
        let group = connection.selected_key_exchange_group();
        let group = group
            .and_then(Group::of_name)
            .ok_or_else(|| unusable("a group is missing"))?;
        let mut bytes = Zeroizing::new(vec![0; connection.serialization_length()?]);
        connection.serialize(&mut bytes)?;
        let exported =
            Exported::read(&bytes).ok_or_else(|| unusable("unknown connection state"))?;
        let (send, receive) = match self.role {
            Role::Server => (exported.server, exported.client),
            Role::Client => (exported.client, exported.server),
        };
        Ok(Secrets {
            suite: exported.suite,
            group,
            send,
            receive,
        })
    }
}

/// What s2n-tls's serialisation of a connection contains in its version 1.
struct Exported {
    suite: Suite,
    client: TrafficSecret,
    server: TrafficSecret,
}

impl Exported {
    /// `None` for another version, protocol or suite, or if records were sent or received already.
    fn read(bytes: &[u8]) -> Option<Self> {
        const VERSION: [u8; 8] = 1_u64.to_be_bytes();
        const TLS_1_3: [u8; 2] = [3, 4];
        const UNUSED: [u8; 16] = [0; 16];
        let rest = bytes.strip_prefix(&VERSION)?.strip_prefix(&TLS_1_3)?;
        let (code, rest) = rest.split_first_chunk()?;
        let suite = Suite::from_code(u16::from_be_bytes(*code))?;
        // The sequence numbers of both directions, and the length of fragments.
        let (_fragment_len, rest) = rest.strip_prefix(&UNUSED)?.split_first_chunk::<2>()?;
        let len = suite.hash().len();
        let (client, rest) = rest.split_at_checked(len)?;
        let (server, resumption) = rest.split_at_checked(len)?;
        if resumption.len() != len {
            return None;
        }
        Some(Self {
            suite,
            client: TrafficSecret::new(suite, client).ok()?,
            server: TrafficSecret::new(suite, server).ok()?,
        })
    }
}
