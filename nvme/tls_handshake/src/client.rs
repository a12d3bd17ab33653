//! The host's side of a handshake.

use nvme_keys::Candidate;
use nvme_tls::{Alert, ContentType, HEADER_BYTES, Role};

use crate::engine::{Engine, Secrets, Status};
use crate::error::HandshakeError;
use crate::record_reader::RecordReader;
use crate::server::Progress;

/// A handshake with a target.
#[derive(Debug)]
pub struct ClientHandshake {
    reader: RecordReader,
    /// `None` when it is complete or has failed.
    engine: Option<Engine>,
    output: Vec<u8>,
}

impl ClientHandshake {
    /// Begins a handshake that proves `candidate`; the output has the ClientHello.
    ///
    /// # Errors
    ///
    /// s2n-tls cannot be used.
    pub fn new(candidate: &Candidate) -> Result<Self, HandshakeError> {
        let mut engine = Engine::new(Role::Client, candidate)?;
        engine.advance(&[])?;
        Ok(Self {
            reader: RecordReader::default(),
            output: engine.take_output(),
            engine: Some(engine),
        })
    }

    /// How many bytes to receive next: at least one until it has ended, and none of the next record.
    #[must_use]
    pub fn wanted(&self) -> usize {
        match self.engine {
            Some(_) => self.reader.wanted(),
            None => 0,
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
    /// The handshake has failed.
    ///
    /// # Panics
    ///
    /// With more bytes than wanted.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<Progress<Secrets>, HandshakeError> {
        let taken = self.reader.take(bytes);
        let Some(mut engine) = self.engine.take() else {
            return Err(HandshakeError::Library("it has ended".to_owned()));
        };
        let Some(record) = taken? else {
            self.engine = Some(engine);
            return Ok(Progress::Continue);
        };
        // With keys, alerts are protected, and s2n-tls reads them.
        if let Some(alert) = plaintext_alert(&record) {
            return Err(HandshakeError::Reported(alert));
        }
        let status = engine.advance(&record);
        self.output.append(&mut engine.take_output());
        if status? == Status::Complete {
            return engine.into_secrets().map(Progress::Complete);
        }
        self.engine = Some(engine);
        Ok(Progress::Continue)
    }
}

/// The alert in a record without protection.
fn plaintext_alert(record: &[u8]) -> Option<Alert> {
    let (header, body) = record.split_first_chunk::<HEADER_BYTES>()?;
    match *body {
        [_, description] if header[0] == ContentType::Alert.code() => Some(Alert(description)),
        _ => None,
    }
}
