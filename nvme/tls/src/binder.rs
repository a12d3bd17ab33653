//! Which of the candidate keys a host has: the check of its binder (RFC 8446 §4.2.11.2).
//!
//! Several candidates can have the same identity: of version 0, an identity is that of all keys of a
//! host, and hosts derive keys in different ways. Then the binder tells them apart.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use aws_lc_rs::{digest, hmac};
use nvme_keys::{Candidate, PskHash};

use crate::client_hello::{Hello, OfferedKey};
use crate::key_schedule::{binder_key, transcript};
use crate::{Alert, Suite};

/// The message type that replaces a ClientHello in transcripts (RFC 8446 §4.4.1).
const MESSAGE_HASH: u8 = 254;

/// Keys that change while handshakes look them up.
pub trait ChangingKeys<K>: fmt::Debug + Send + Sync {
    /// The candidates with an identity.
    fn candidates(&self, identity: &[u8]) -> Vec<(K, Candidate)>;
}

/// The keys that hosts may use, by identity. `K` is what its owner knows of a key.
#[derive(Debug)]
pub struct KeyTable<K> {
    by_identity: HashMap<Box<[u8]>, Vec<Arc<Entry<K>>>>,
    changing: Option<Arc<dyn ChangingKeys<K>>>,
}

#[derive(Debug)]
struct Entry<K> {
    key: K,
    candidate: Candidate,
    binder_key: hmac::Key,
}

impl<K> Entry<K> {
    fn new(key: K, candidate: Candidate) -> Arc<Self> {
        let binder_key = binder_key(candidate.hash, &candidate.psk);
        Arc::new(Self {
            key,
            candidate,
            binder_key,
        })
    }
}

/// The candidate whose binder is right.
#[derive(Debug)]
pub struct Found<K>(Arc<Entry<K>>);

impl<K> Clone for Found<K> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

/// Why a host is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No identity is known.
    #[error(
        "no key is known for the identity {identity:?}: give the host one of its keys, or add the \
         key to the configuration"
    )]
    UnknownIdentity {
        /// The first one that the host has offered.
        identity: String,
    },
    /// The binder of a known identity does not match.
    #[error(
        "the host has another key for the identity {identity:?}: compare the keys of both sides. If \
         they are equal, the host derives a key of 48 bytes with SHA-256 (GnuTLS before 3.8.11): \
         use a key of 32 bytes"
    )]
    WrongKey {
        /// The identity.
        identity: String,
    },
    /// The host does not offer the suite of its key.
    #[error("the host has a key for {suite}, but does not offer that suite", suite = .0.name())]
    SuiteNotOffered(Suite),
}

impl Refusal {
    /// The alert for the host.
    #[must_use]
    pub const fn alert(&self) -> Alert {
        match self {
            Self::UnknownIdentity { .. } => Alert::UNKNOWN_PSK_IDENTITY,
            Self::WrongKey { .. } => Alert::DECRYPT_ERROR,
            Self::SuiteNotOffered(_) => Alert::HANDSHAKE_FAILURE,
        }
    }
}

/// What precedes the second ClientHello in its transcript.
#[derive(Clone, Debug)]
pub struct RetryTranscript {
    first: Vec<u8>,
    retry: Vec<u8>,
}

impl RetryTranscript {
    /// The first ClientHello and the HelloRetryRequest, as handshake messages.
    #[must_use]
    pub fn new(first: &[u8], retry: &[u8]) -> Self {
        Self {
            first: first.to_vec(),
            retry: retry.to_vec(),
        }
    }

    fn begin(&self, hash: PskHash) -> digest::Context {
        let mut first = transcript(hash);
        first.update(&self.first);
        let mut context = transcript(hash);
        context.update(&[MESSAGE_HASH, 0, 0, hash.len() as u8]);
        context.update(first.finish().as_ref());
        context.update(&self.retry);
        context
    }
}

impl<K> Default for KeyTable<K> {
    fn default() -> Self {
        Self {
            by_identity: HashMap::new(),
            changing: None,
        }
    }
}

impl<K: Clone> KeyTable<K> {
    /// Adds the candidates of a key.
    pub fn add(&mut self, key: &K, candidates: impl IntoIterator<Item = Candidate>) {
        for candidate in candidates {
            let identity = candidate.identity.as_bytes().into();
            let entry = Entry::new(key.clone(), candidate);
            self.by_identity.entry(identity).or_default().push(entry);
        }
    }
}

impl<K> KeyTable<K> {
    /// The same table, in which identities without a key are looked up in `changing`.
    #[must_use]
    pub fn with_changing(self, changing: Arc<dyn ChangingKeys<K>>) -> Self {
        Self {
            changing: Some(changing),
            ..self
        }
    }

    /// The entries of an identity.
    fn entries(&self, identity: &[u8]) -> Vec<Arc<Entry<K>>> {
        if let Some(entries) = self.by_identity.get(identity) {
            return entries.clone();
        }
        let changing = self.changing.iter();
        let candidates = changing.flat_map(|it| it.candidates(identity));
        candidates
            .map(|(key, candidate)| Entry::new(key, candidate))
            .collect()
    }

    /// The candidate that the host has: of the first identity with a candidate whose binder matches.
    ///
    /// # Errors
    ///
    /// The host has none.
    pub fn find(&self, hello: &Hello<'_>) -> Result<Found<K>, Refusal> {
        let mut transcripts = Transcripts::new(hello, None);
        let mut refusal = None;
        for offered in hello.keys() {
            for entry in self.entries(offered.identity) {
                let suite = Suite::of_hash(entry.candidate.hash);
                if !hello.offers(suite) {
                    refusal.get_or_insert(Refusal::SuiteNotOffered(suite));
                } else if transcripts.matches(&entry, offered) {
                    return Ok(Found(entry));
                } else {
                    refusal = Some(Refusal::WrongKey {
                        identity: printable(offered.identity),
                    });
                }
            }
        }
        Err(refusal.unwrap_or_else(|| Refusal::UnknownIdentity {
            identity: hello
                .keys()
                .first()
                .map_or_else(String::new, |it| printable(it.identity)),
        }))
    }
}

impl<K> Found<K> {
    /// The key.
    #[must_use]
    pub fn key(&self) -> &K {
        &self.0.key
    }

    /// The candidate that the host has derived from it.
    #[must_use]
    pub fn candidate(&self) -> &Candidate {
        &self.0.candidate
    }

    /// The suite.
    #[must_use]
    pub fn suite(&self) -> Suite {
        Suite::of_hash(self.candidate().hash)
    }

    /// Checks that a ClientHello after a HelloRetryRequest proves the same key.
    ///
    /// # Errors
    ///
    /// It does not.
    pub fn verify_again(&self, hello: &Hello<'_>, retry: &RetryTranscript) -> Result<(), Refusal> {
        let identity = self.candidate().identity.as_bytes();
        let offered = hello.keys().iter().find(|it| it.identity == identity);
        let wrong = || Refusal::WrongKey {
            identity: printable(identity),
        };
        let offered = offered.ok_or_else(wrong)?;
        if !hello.offers(self.suite()) {
            return Err(Refusal::SuiteNotOffered(self.suite()));
        }
        if Transcripts::new(hello, Some(retry)).matches(&self.0, offered) {
            Ok(())
        } else {
            Err(wrong())
        }
    }
}

/// The hashes of what binders cover, each computed once.
struct Transcripts<'a> {
    hello: &'a Hello<'a>,
    retry: Option<&'a RetryTranscript>,
    hashes: [Option<digest::Digest>; 2],
}

impl<'a> Transcripts<'a> {
    fn new(hello: &'a Hello<'a>, retry: Option<&'a RetryTranscript>) -> Self {
        Self {
            hello,
            retry,
            hashes: [None; 2],
        }
    }

    fn matches<K>(&mut self, entry: &Entry<K>, offered: &OfferedKey<'_>) -> bool {
        let hash = entry.candidate.hash;
        let place = match hash {
            PskHash::Sha256 => 0,
            PskHash::Sha384 => 1,
        };
        let digest = self.hashes[place].get_or_insert_with(|| {
            let mut context = match self.retry {
                Some(retry) => retry.begin(hash),
                None => transcript(hash),
            };
            context.update(self.hello.covered_by_binders());
            context.finish()
        });
        hmac::verify(&entry.binder_key, digest.as_ref(), offered.binder).is_ok()
    }
}

/// An identity for the log.
fn printable(identity: &[u8]) -> String {
    const PRINTED_BYTES_MAX: usize = 600;
    let shown = &identity[..identity.len().min(PRINTED_BYTES_MAX)];
    String::from_utf8_lossy(shown).into_owned()
}

#[cfg(test)]
mod tests;
