//! The network of simulated streams, as the file service uses it.

use std::collections::BTreeMap;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::IpAddr;
use std::os::fd::BorrowedFd;

use files_tcp::{Interest, Network, Ready};
use nvme_tcp::{Accepted, ByteStream, Network as _, Transferred};

use crate::network::{SimNetwork, Socket, TargetStream, WireId};

/// The server's end of a connection.
pub(super) struct FileStream(TargetStream);

fn moved(transferred: Transferred) -> io::Result<usize> {
    match transferred {
        Transferred::Bytes(bytes) => Ok(bytes),
        Transferred::Closed => Ok(0),
        Transferred::WouldBlock => Err(io::ErrorKind::WouldBlock.into()),
        Transferred::Failed(error) => Err(error.into()),
    }
}

impl Read for FileStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        moved(self.0.receive(&mut [IoSliceMut::new(buffer)]))
    }
}

impl Write for FileStream {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        moved(self.0.send(&[IoSlice::new(buffer)]))
    }

    fn write_vectored(&mut self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        moved(self.0.send(buffers))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A connection that is watched.
struct Watched {
    number: u64,
    interest: Interest,
}

/// A network with one listener.
pub(super) struct FileNetwork {
    streams: SimNetwork,
    watched: BTreeMap<u16, Watched>,
    indices: BTreeMap<WireId, u16>,
    next_index: u16,
    accepts: bool,
}

impl FileNetwork {
    /// A network that accepts the connections of a socket.
    ///
    /// # Errors
    /// The socket cannot be used.
    pub(super) fn new(socket: Socket) -> io::Result<Self> {
        let mut streams = SimNetwork::new();
        streams.add_listener(0, socket)?;
        Ok(Self {
            streams,
            watched: BTreeMap::new(),
            indices: BTreeMap::new(),
            next_index: 0,
            accepts: true,
        })
    }
}

impl Network for FileNetwork {
    type Stream = FileStream;

    fn listeners(&self) -> usize {
        1
    }

    fn accept(&mut self, _: usize) -> Option<(FileStream, IpAddr)> {
        match self.streams.accept()? {
            Accepted::Stream { stream, .. } => {
                let client = stream.host_address()?.ip();
                Some((FileStream(stream), client))
            }
            Accepted::ListenerClosed(_) => None,
        }
    }

    fn watch_listeners(&mut self, is_watched: bool) {
        self.accepts = is_watched;
    }

    fn close_listeners(&mut self) {
        self.streams.close_listener(0);
    }

    fn add_signal(&mut self, _: BorrowedFd<'_>) -> io::Result<()> {
        Ok(())
    }

    fn add(&mut self, stream: &FileStream, number: u64) -> io::Result<()> {
        let index = self.next_index;
        self.next_index = index.wrapping_add(1);
        let interest = Interest::READABLE;
        self.watched.insert(index, Watched { number, interest });
        self.indices.insert(stream.0.id(), index);
        self.streams.add_stream(index, &stream.0)
    }

    fn watch(&mut self, stream: &FileStream, _: u64, interest: Interest) -> io::Result<()> {
        let index = self.indices.get(&stream.0.id()).copied();
        let index = index.ok_or(io::ErrorKind::NotFound)?;
        if let Some(watched) = self.watched.get_mut(&index) {
            watched.interest = interest;
        }
        let events = match interest.writable {
            true => nvme_tcp::Interest::ReadableOrWritable,
            false => nvme_tcp::Interest::Readable,
        };
        self.streams.watch_stream(index, &stream.0, events)
    }

    fn poll(&mut self, ready: &mut Vec<Ready>) {
        ready.clear();
        if self.accepts && self.streams.has_accepted() {
            ready.push(Ready::Listeners);
        }
        for position in 0..self.streams.poll_events() {
            let nvme_tcp::Ready { index, writable } = self.streams.ready(position);
            if let Some(watched) = self.watched.get(&index)
                && (watched.interest.readable || writable)
            {
                ready.push(Ready::Connection {
                    number: watched.number,
                    writable,
                });
            }
        }
    }

    fn wake_source(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
