//! TLS 1.3 (RFC 8446) for NVMe/TCP: the inspection of a ClientHello before the handshake, and the
//! records after it.
//!
//! - [`KeyTable`] and [`Hello`]: a host proves by a *binder* which of the candidate keys it has
//!   ([`nvme_keys::Candidate`]). Hosts without a key are refused after a few HMACs.
//! - [`Channel`]: the protected byte stream of one connection. It seals data directly from borrowed
//!   memory into its send buffer, opens records in place, and updates its keys.
//!
//! The handshake itself is not here. Performs no I/O, and draws no random bytes.

#![forbid(unsafe_code)]

mod alert;
mod binder;
mod channel;
mod client_hello;
mod first_flight;
mod key_schedule;
mod opener;
mod post_handshake;
mod reader;
mod record;
mod sealer;
mod suite;

pub use alert::Alert;
pub use binder::{ChangingKeys, Found, KeyTable, Refusal, RetryTranscript};
pub use channel::{CHANNEL_BYTES, Channel, Failure, Role, Taken};
pub use client_hello::{Hello, IDENTITIES_MAX, OfferedKey};
pub use first_flight::{CLIENT_HELLO_BYTES_MAX, FirstFlight, handshake_body_bytes};
pub use key_schedule::{RecordKey, TrafficSecret, WrongSecretLength};
pub use opener::Opener;
pub use post_handshake::{Control, ControlRecords, key_update};
pub use record::{
    CIPHERTEXT_BYTES_MAX, ContentType, HEADER_BYTES, PLAINTEXT_BYTES_MAX, RECORD_BYTES_MAX,
    SEALED_OVERHEAD_BYTES, record_body_bytes,
};
pub use sealer::{RECORDS_PER_KEY_MAX, Sealer, Unsealed};
pub use suite::Suite;
