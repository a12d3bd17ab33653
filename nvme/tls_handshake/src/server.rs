//! The target's side of a handshake.

use std::sync::Arc;

use nvme_tls::{
    Alert, ContentType, Failure, FirstFlight, Found, HEADER_BYTES, Hello, KeyTable,
    RetryTranscript, Role,
};

use crate::engine::{Engine, Secrets, Status};
use crate::error::HandshakeError;
use crate::record_reader::RecordReader;

/// The random bytes of a ServerHello that is a HelloRetryRequest (RFC 8446 §4.1.3).
const RETRY_RANDOM: [u8; 32] = [
    0xcf, 0x21, 0xad, 0x74, 0xe5, 0x9a, 0x61, 0x11, 0xbe, 0x1d, 0x8c, 0x02, 0x1e, 0x65, 0xb8, 0x91,
    0xc2, 0xa2, 0x11, 0x16, 0x7a, 0xbb, 0x8c, 0x5e, 0x07, 0x9e, 0x09, 0xe2, 0xc8, 0xa8, 0x33, 0x9c,
];

/// The result of a handshake.
#[derive(Debug)]
pub struct Established<K> {
    /// The key that the host has proved.
    pub found: Found<K>,
    /// What protects the connection.
    pub secrets: Secrets,
}

/// Whether a handshake continues.
#[derive(Debug)]
pub enum Progress<T> {
    /// More is to be received, after the output was sent.
    Continue,
    /// It is complete, when the output was sent.
    Complete(T),
}

/// A handshake with a host.
#[derive(Debug)]
pub struct ServerHandshake<K> {
    keys: Arc<KeyTable<K>>,
    reader: RecordReader,
    state: State<K>,
    output: Vec<u8>,
}

/// The progress of a handshake. Each state but the last waits for the host's next record.
#[derive(Debug)]
enum State<K> {
    /// Waits for the ClientHello.
    First {
        flight: FirstFlight,
        /// The records with it, for s2n-tls.
        records: Vec<u8>,
    },
    /// A HelloRetryRequest was sent: waits for the second ClientHello.
    Second {
        flight: FirstFlight,
        records: Vec<u8>,
        retry: RetryTranscript,
        found: Found<K>,
        engine: Engine,
    },
    /// The key is proved: waits for Finished.
    Finishing { found: Found<K>, engine: Engine },
    /// It is complete or has failed.
    Ended,
}

impl<K> ServerHandshake<K> {
    /// A handshake with a host that must have one of `keys`.
    #[must_use]
    pub fn new(keys: Arc<KeyTable<K>>) -> Self {
        Self {
            keys,
            reader: RecordReader::default(),
            state: State::First {
                flight: FirstFlight::default(),
                records: Vec::new(),
            },
            output: Vec::new(),
        }
    }

    /// How many bytes to receive next: at least one until it has ended, and none of the next record.
    #[must_use]
    pub fn wanted(&self) -> usize {
        match self.state {
            State::Ended => 0,
            _ => self.reader.wanted(),
        }
    }

    /// Takes what is to be sent, also after an error.
    #[must_use]
    pub fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.output)
    }

    /// Continues with received bytes, at most [`wanted`](Self::wanted) ones.
    ///
    /// # Errors
    ///
    /// The handshake has failed. The output has the alert for the host.
    ///
    /// # Panics
    ///
    /// With more bytes than wanted.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<Progress<Established<K>>, HandshakeError> {
        if matches!(self.state, State::Ended) {
            return Err(HandshakeError::Library("it has ended".to_owned()));
        }
        let is_protected = matches!(self.state, State::Finishing { .. });
        let received = match self.reader.take(bytes) {
            Ok(None) => return Ok(Progress::Continue),
            Ok(Some(record)) => self.advance(&record),
            Err(error) => Err(error),
        };
        received.inspect_err(|error| {
            self.state = State::Ended;
            // With keys, s2n-tls has sent a protected alert.
            if !is_protected {
                self.finish_with_alert(error);
            }
        })
    }

    /// Makes sure that the output ends with an alert for the host, if it is to get one.
    fn finish_with_alert(&mut self, error: &HandshakeError) {
        let alert = match error {
            HandshakeError::Violation(alert) => *alert,
            HandshakeError::Refused(refusal) => refusal.alert(),
            HandshakeError::TooLong => Alert::ILLEGAL_PARAMETER,
            HandshakeError::Reported(_) => return,
            HandshakeError::KeyNotChosen | HandshakeError::Library(_) => {
                // s2n-tls has no alert for many errors, and sends `close_notify` then.
                let closing = Alert::CLOSE_NOTIFY.plaintext_record();
                match self.output.strip_suffix(&closing) {
                    Some(rest) => self.output.truncate(rest.len()),
                    None if self.output.is_empty() => {}
                    None => return,
                }
                Alert::HANDSHAKE_FAILURE
            }
        };
        self.output.extend_from_slice(&alert.plaintext_record());
    }

    /// Performs every transition: takes the state, and sets the next one unless an error ends it.
    fn advance(&mut self, record: &[u8]) -> Result<Progress<Established<K>>, HandshakeError> {
        match std::mem::replace(&mut self.state, State::Ended) {
            State::First {
                mut flight,
                mut records,
            } => {
                records.extend_from_slice(record);
                let Some(message) = flight.take(record)? else {
                    self.state = State::First { flight, records };
                    return Ok(Progress::Continue);
                };
                let hello = Hello::parse(message).map_err(Failure::Violation)?;
                let found = self.keys.find(&hello)?;
                let engine = Engine::new(Role::Server, found.candidate())?;
                self.answer(found, engine, &records, Some(message))
            }
            State::Second {
                mut flight,
                mut records,
                retry,
                found,
                engine,
            } => {
                records.extend_from_slice(record);
                let Some(message) = flight.take(record)? else {
                    self.state = State::Second {
                        flight,
                        records,
                        retry,
                        found,
                        engine,
                    };
                    return Ok(Progress::Continue);
                };
                let hello = Hello::parse(message).map_err(Failure::Violation)?;
                found.verify_again(&hello, &retry)?;
                self.answer(found, engine, &records, None)
            }
            State::Finishing { found, engine } => self.answer(found, engine, record, None),
            State::Ended => Err(HandshakeError::Violation(Alert::UNEXPECTED_MESSAGE)),
        }
    }

    /// Lets s2n-tls answer `records`. It may request a retry of `first`.
    fn answer(
        &mut self,
        found: Found<K>,
        mut engine: Engine,
        records: &[u8],
        first: Option<&[u8]>,
    ) -> Result<Progress<Established<K>>, HandshakeError> {
        let status = engine.advance(records);
        let begin = self.output.len();
        self.output.append(&mut engine.take_output());
        if status? == Status::Complete {
            let secrets = engine.into_secrets()?;
            return Ok(Progress::Complete(Established { found, secrets }));
        }
        let retry = first.zip(retry_request(&self.output[begin..]));
        self.state = match retry {
            Some((first, request)) => State::Second {
                flight: FirstFlight::second(),
                records: Vec::new(),
                retry: RetryTranscript::new(first, request),
                found,
                engine,
            },
            None => State::Finishing { found, engine },
        };
        Ok(Progress::Continue)
    }
}

/// The handshake message, if the first record is a HelloRetryRequest.
fn retry_request(output: &[u8]) -> Option<&[u8]> {
    const MESSAGE_HEADER_BYTES: usize = 4;
    const VERSION_BYTES: usize = 2;
    let (header, rest) = output.split_first_chunk::<HEADER_BYTES>()?;
    let [kind, _, _, high, low] = *header;
    if kind != ContentType::Handshake.code() {
        return None;
    }
    let message = rest.get(..usize::from(u16::from_be_bytes([high, low])))?;
    let random = message.get(MESSAGE_HEADER_BYTES + VERSION_BYTES..)?;
    random.starts_with(&RETRY_RANDOM).then_some(message)
}
