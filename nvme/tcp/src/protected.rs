//! A byte stream whose bytes are protected by TLS 1.3 records.
//!
//! A connection uses it like any other stream. What it sends is sealed from the memory of its PDUs
//! into the channel's buffer, as many PDUs into a record as are queued, and sent from there. What the
//! stream underneath does not accept at once stays in that buffer, so a connection is *not* done
//! with sending when all PDUs were accepted ([`ByteStream::send_kept`]). Received records can hold
//! more than the connection takes, which no readiness event announces
//! ([`ByteStream::has_received`]).

use std::io::{IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use nvme_target::SecureChannel;
use nvme_tls::{Channel, Taken, Unsealed};
use rustix::io::Errno;

use crate::stream::{ByteStream, Transferred};

/// Receives of the stream underneath in one receive. A peer whose records have no data does not
/// occupy the reactor.
const RECEIVES_MAX: usize = 4;

/// A stream over `S`, protected by a channel.
#[derive(Debug)]
pub struct Protected<S> {
    stream: S,
    channel: Box<Channel>,
    /// What the target knows of it.
    description: Option<Arc<SecureChannel>>,
}

impl<S: ByteStream> Protected<S> {
    /// Protects `stream`, on which a handshake was completed, and nothing was received behind it.
    #[must_use]
    pub fn new(stream: S, channel: Channel) -> Self {
        let channel = Box::new(channel);
        Self {
            stream,
            channel,
            description: None,
        }
    }

    /// The same stream, which tells the target whose channel it is.
    #[must_use]
    pub fn described(self, description: SecureChannel) -> Self {
        Self {
            description: Some(Arc::new(description)),
            ..self
        }
    }

    /// The stream underneath.
    #[must_use]
    pub const fn stream(&self) -> &S {
        &self.stream
    }

    /// Sends sealed bytes. Returns whether none is left.
    fn send_sealed(&mut self) -> Result<bool, Errno> {
        while !self.channel.unsent().is_empty() {
            match self.stream.send(&[IoSlice::new(self.channel.unsent())]) {
                Transferred::Bytes(bytes) => self.channel.sent(bytes),
                Transferred::WouldBlock => return Ok(false),
                Transferred::Closed => return Err(Errno::PIPE),
                Transferred::Failed(errno) => return Err(errno),
            }
        }
        Ok(true)
    }

    /// Sends the response to a peer that has asked for a new key, if nothing else is to be sent.
    #[cold]
    fn send_update(&mut self) {
        // If it is not sent now, it precedes the next data. A broken stream is reported then.
        self.channel.seal(&mut Unsealed::new(&[]));
        let _ = self.send_sealed();
    }

    /// Receives until `take` takes something from the channel.
    fn receive_by(
        &mut self,
        buffers: &mut [IoSliceMut<'_>],
        take: impl Fn(&mut Channel, &mut [IoSliceMut<'_>]) -> Taken,
    ) -> Transferred {
        for _ in 0..RECEIVES_MAX {
            let taken = take(&mut self.channel, buffers);
            if self.channel.owes_update() {
                self.send_update();
            }
            match taken {
                Taken::Bytes(bytes) => return Transferred::Bytes(bytes),
                Taken::Closed => return Transferred::Closed,
                Taken::Failed(_) => {
                    // The alert, for which there is one attempt.
                    let _ = self.send_sealed();
                    return Transferred::Failed(Errno::PROTO);
                }
                Taken::Nothing => {}
            }
            let room = IoSliceMut::new(self.channel.room());
            match self.stream.receive(&mut [room]) {
                Transferred::Bytes(bytes) => self.channel.filled(bytes),
                other => return other,
            }
        }
        match take(&mut self.channel, buffers) {
            Taken::Bytes(bytes) => Transferred::Bytes(bytes),
            // What else there is, the next receive returns.
            Taken::Nothing | Taken::Closed | Taken::Failed(_) => Transferred::WouldBlock,
        }
    }
}

impl<S: ByteStream> ByteStream for Protected<S> {
    fn receive(&mut self, buffers: &mut [IoSliceMut<'_>]) -> Transferred {
        self.receive_by(buffers, Channel::take)
    }

    fn receive_into_private(&mut self, buffers: &mut [IoSliceMut<'_>]) -> Transferred {
        self.receive_by(buffers, Channel::take_into_private)
    }

    fn available(&mut self) -> usize {
        let opened = self.channel.open_ahead();
        let room = self.channel.room();
        if room.is_empty() {
            return opened;
        }
        // The end of the stream, or an error, is reported again by the next receive.
        match self.stream.receive(&mut [IoSliceMut::new(room)]) {
            Transferred::Bytes(bytes) => self.channel.filled(bytes),
            Transferred::WouldBlock | Transferred::Closed | Transferred::Failed(_) => {
                return opened;
            }
        }
        self.channel.open_ahead()
    }

    fn has_received(&self) -> bool {
        self.channel.has_more()
    }

    fn send(&mut self, buffers: &[IoSlice<'_>]) -> Transferred {
        let mut data = Unsealed::new(buffers);
        loop {
            match self.send_sealed() {
                Ok(true) => {}
                Ok(false) => break,
                Err(errno) => return Transferred::Failed(errno),
            }
            if data.is_empty() {
                break;
            }
            let before = data.sealed_bytes();
            self.channel.seal(&mut data);
            if data.sealed_bytes() == before {
                // An alert was sent, so nothing may follow.
                return Transferred::Failed(Errno::PIPE);
            }
        }
        match data.sealed_bytes() {
            0 => Transferred::WouldBlock,
            bytes => Transferred::Bytes(bytes),
        }
    }

    fn keeps_unsent(&self) -> bool {
        !self.channel.unsent().is_empty()
    }

    fn send_kept(&mut self) -> Result<bool, Errno> {
        self.send_sealed()
    }

    fn finish_sending(&mut self) {
        self.channel.close();
        // All data was sent before, so there is room for the alert, unless the peer has gone.
        let _ = self.send_sealed();
        self.stream.finish_sending();
    }

    fn belongs_to_process(&self) -> bool {
        true
    }

    fn local_address(&self) -> Option<IpAddr> {
        self.stream.local_address()
    }

    fn host_address(&self) -> Option<SocketAddr> {
        self.stream.host_address()
    }

    fn channel(&self) -> Option<&Arc<SecureChannel>> {
        self.description.as_ref()
    }
}
