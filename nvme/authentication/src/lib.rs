//! DH-HMAC-CHAP, the in-band authentication of hosts and controllers (Base 2.1 §8.3.4.5.2), for
//! both sides of one queue.
//!
//! Performs no I/O and owns no clock: [`Responder`] (the controller) and [`Initiator`] (the host)
//! take messages and the time, and return an [`Action`] that the caller carries out. Randomness
//! comes from a [`Random`].
//!
//! # Expensive steps
//!
//! An exponentiation in a large group takes up to 30 ms, so a reactor must not compute it. An
//! [`Action::Compute`] carries an [`Exponentiation`], which a thread of its own runs; its
//! [`Computed`] is handed back to `computed`. All other steps take a few microseconds.
//!
//! # Keys
//!
//! Keys are the transformed keys K, not the configured secrets. Keys, exponents, session keys and
//! generated PSKs are overwritten when they are dropped.
//!
//! # Limits
//!
//! The state of a queue has a fixed size limit: one transaction, one message of at most
//! [`MESSAGE_BYTES_MAX`]. A transaction ends at [`Responder::deadline_ms`], which the caller
//! checks.

#![forbid(unsafe_code)]

mod action;
mod algorithms;
mod configuration;
mod exponentiation;
mod formulas;
mod initiator;
mod message;
mod primes;
mod random;
mod responder;
mod violation;

pub use action::{Action, Authenticated, Failure, GeneratedPsk};
pub use algorithms::{Group, HASH_BYTES_MAX, Hash, PUBLIC_VALUE_BYTES_MAX};
pub use configuration::{
    Channel, HOST_KEYS_MAX, InvalidKey, KEY_BYTES_MAX, Key, Policy, ProposedNullGroup, Queue,
    SecureChannelPolicy,
};
pub use exponentiation::{Computed, Exponentiation};
pub use initiator::Initiator;
pub use message::{DESCRIPTORS_MAX, MESSAGE_BYTES_MAX};
pub use random::{Random, RandomUnavailable, SystemRandom};
pub use responder::Responder;
pub use violation::Violation;
