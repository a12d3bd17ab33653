//! Keys, and handshakes in memory.

use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

use nvme_keys::{Candidate, Hash, Names, TlsKey};
use nvme_tls::{Channel, KeyTable, Role, Taken, Unsealed};
use nvme_tls_handshake::{
    ClientHandshake, Established, HandshakeError, Progress, Secrets, ServerHandshake,
};

pub(crate) fn key(hash: Hash, first: u8) -> TlsKey {
    let bytes: Vec<u8> = (first..).take(hash.len().unwrap_or(32)).collect();
    TlsKey::new(hash, &bytes).expect("the length fits")
}

pub(crate) fn candidates(key: &TlsKey) -> Vec<Candidate> {
    key.candidates(Names::new("nqn.host", "nqn.subsystem").expect("valid"))
}

/// A table with the keys of one host, named by their position.
pub(crate) fn table(keys: &[TlsKey]) -> Arc<KeyTable<usize>> {
    let mut table = KeyTable::default();
    for (number, key) in keys.iter().enumerate() {
        table.add(&number, candidates(key));
    }
    Arc::new(table)
}

/// The results of both sides of a handshake.
pub(crate) struct Outcome {
    pub(crate) server: Result<Established<usize>, HandshakeError>,
    pub(crate) client: Result<Secrets, HandshakeError>,
    /// What the target has sent.
    pub(crate) server_sent: Vec<u8>,
}

/// Passes bytes between both sides, in pieces of `piece` bytes, until neither continues.
pub(crate) fn shake(
    mut server: ServerHandshake<usize>,
    mut client: ClientHandshake,
    piece: usize,
) -> Outcome {
    let (mut to_server, mut to_client) = (client.take_output(), Vec::new());
    let mut sent = Vec::new();
    let (mut server_result, mut client_result) = (None, None);
    loop {
        let mut moved = false;
        while server.wanted() > 0 && !to_server.is_empty() {
            moved = true;
            let bytes = server.wanted().min(piece).min(to_server.len());
            let now: Vec<u8> = to_server.drain(..bytes).collect();
            match server.receive(&now) {
                Ok(Progress::Continue) => {}
                Ok(Progress::Complete(established)) => server_result = Some(Ok(established)),
                Err(error) => server_result = Some(Err(error)),
            }
            let output = server.take_output();
            to_client.extend_from_slice(&output);
            sent.extend_from_slice(&output);
            if server_result.is_some() {
                break;
            }
        }
        while client_result.is_none() && client.wanted() > 0 && !to_client.is_empty() {
            moved = true;
            let bytes = client.wanted().min(piece).min(to_client.len());
            let now: Vec<u8> = to_client.drain(..bytes).collect();
            match client.receive(&now) {
                Ok(Progress::Continue) => {}
                Ok(Progress::Complete(secrets)) => client_result = Some(Ok(secrets)),
                Err(error) => client_result = Some(Err(error)),
            }
            to_server.extend_from_slice(&client.take_output());
        }
        if !moved {
            break;
        }
    }
    let unfinished = || Err(HandshakeError::Library("not finished".to_owned()));
    Outcome {
        server: server_result.unwrap_or_else(unfinished_of),
        client: client_result.unwrap_or_else(unfinished),
        server_sent: sent,
    }
}

fn unfinished_of() -> Result<Established<usize>, HandshakeError> {
    Err(HandshakeError::Library("not finished".to_owned()))
}

/// The channel of one side.
pub(crate) fn channel(role: Role, secrets: Secrets) -> Channel {
    Channel::new(role, secrets.send, secrets.receive)
}

/// Sends `data` from one channel to the other.
pub(crate) fn pass(from: &mut Channel, to: &mut Channel, data: &[u8]) -> Vec<u8> {
    from.seal(&mut Unsealed::new(&[IoSlice::new(data)]));
    let sealed = from.unsent().to_vec();
    from.sent(sealed.len());
    to.room()[..sealed.len()].copy_from_slice(&sealed);
    to.filled(sealed.len());
    let mut buffer = vec![0; data.len() + 1];
    match to.take(&mut [IoSliceMut::new(&mut buffer)]) {
        Taken::Bytes(bytes) => buffer.truncate(bytes),
        other => panic!("{other:?}"),
    }
    buffer
}
