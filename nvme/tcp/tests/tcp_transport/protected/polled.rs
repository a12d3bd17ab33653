//! The transport's poller over a protected stream: readiness events do not announce what the stream
//! itself holds.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};

use super::{ProtectedStage, attach_admin, secret, stage};
use crate::harness::{HOST, names_of};
use nvme_spec::Sqe;
use nvme_spec::fabrics::ConnectAttributes;
use nvme_spec::sgl::SglDescriptor;
use nvme_spec::tcp::{CapsuleCmd, DigestFlags, Framing, H2cData, IcReq, R2t};
use nvme_target::PortId;
use nvme_tcp::{
    Accepted, ByteStream, ConnectionSet, Interest, Network, Protected, Ready, TcpConfig,
    TcpTransport, Transferred,
};
use nvme_tls::{Channel, Role, Taken, Unsealed};
use reactors::{Placement, Poller};
use zerocopy::{FromBytes, IntoBytes};

/// Both directions of a stream: to the target, and from it.
#[derive(Clone, Default)]
struct Pipe(Arc<Mutex<[VecDeque<u8>; 2]>>);

impl Pipe {
    fn with<T>(&self, action: impl FnOnce(&mut [VecDeque<u8>; 2]) -> T) -> T {
        action(&mut self.0.lock().expect("no panic"))
    }
}

impl ByteStream for Pipe {
    fn receive(&mut self, buffers: &mut [IoSliceMut<'_>]) -> Transferred {
        let mut moved = 0;
        self.with(|[to_target, _]| {
            for buffer in buffers {
                let bytes = buffer.len().min(to_target.len());
                for (to, from) in buffer.iter_mut().zip(to_target.drain(..bytes)) {
                    *to = from;
                }
                moved += bytes;
            }
        });
        match moved {
            0 => Transferred::WouldBlock,
            bytes => Transferred::Bytes(bytes),
        }
    }

    fn send(&mut self, buffers: &[IoSlice<'_>]) -> Transferred {
        self.with(|[_, to_host]| buffers.iter().for_each(|it| to_host.extend(&**it)));
        Transferred::Bytes(buffers.iter().map(|it| it.len()).sum())
    }

    fn finish_sending(&mut self) {}
}

/// A network with one connection, which reports an event while its pipe has bytes.
struct OneConnection {
    pipe: Pipe,
    accepted: Option<Protected<Pipe>>,
}

impl Network for OneConnection {
    type Listener = ();
    type Stream = Protected<Pipe>;

    fn add_listener(&mut self, _: u16, (): ()) -> io::Result<()> {
        Ok(())
    }

    fn close_listener(&mut self, _: u16) {}

    fn accept(&mut self) -> Option<Accepted<Protected<Pipe>>> {
        let stream = self.accepted.take()?;
        Some(Accepted::Stream {
            listener: 0,
            stream,
            framing: None,
        })
    }

    fn has_accepted(&self) -> bool {
        self.accepted.is_some()
    }

    fn add_stream(&self, _: u16, _: &Protected<Pipe>) -> io::Result<()> {
        Ok(())
    }

    fn watch_stream(&self, _: u16, _: &Protected<Pipe>, _: Interest) -> io::Result<()> {
        Ok(())
    }

    fn close_stream(&mut self, _: Protected<Pipe>) {}

    fn poll_events(&mut self) -> usize {
        usize::from(self.pipe.with(|[to_target, _]| !to_target.is_empty()))
    }

    fn ready(&self, _: usize) -> Ready {
        Ready {
            index: 0,
            writable: false,
        }
    }

    fn wake_source(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// A receive takes little while requests wait for their data, so a record can hold more than the
/// receives of one poll take. All of it is taken, although no event reports it.
#[test]
fn what_a_stream_holds_is_received_without_an_event() {
    const WRITES: u16 = 20;
    let mut stage = stage();
    let (_admin, cntlid) = attach_admin(&mut stage, usize::MAX);
    let pipe = Pipe::default();
    let mut transport = transport_over(&stage, &pipe);
    let mut host = Channel::new(Role::Client, secret(2), secret(1));

    let request = IcReq::new(0, DigestFlags::new(), 0);
    let connect = Sqe::connect_queue(1, 31, ConnectAttributes::new(), 0).with_cid(0);
    let data = names_of(HOST).connect_data(cntlid);
    let data = data.as_bytes();
    let sgl = SglDescriptor::in_capsule(0, data.len() as u32);
    let capsule = CapsuleCmd::new(connect.with_sgl(sgl), data.len() as u32, Framing::default());
    say(
        &pipe,
        &mut host,
        &[request.as_bytes(), capsule.as_bytes(), data].concat(),
    );
    let responses = run(&mut stage, &mut transport, &pipe, &mut host);
    assert_eq!(responses.len(), 128 + 24);

    for cid in 1..=WRITES {
        let write = Sqe::write(1, u64::from(cid), 0, false).with_cid(cid);
        let write = write.with_sgl(SglDescriptor::transport(512));
        let capsule = CapsuleCmd::new(write, 0, Framing::default());
        say(&pipe, &mut host, capsule.as_bytes());
    }
    let requests = run(&mut stage, &mut transport, &pipe, &mut host);
    let mut solicited = Vec::new();
    for request in requests.chunks(24) {
        let request = R2t::read_from_bytes(request).expect("an R2T of 24 bytes");
        let (cid, tag) = (request.cccid.get(), request.ttag.get());
        let header = H2cData::new(cid, tag, 0, 512, true, Framing::default());
        solicited.extend_from_slice(header.as_bytes());
        solicited.extend_from_slice(&[cid as u8; 512]);
    }
    assert_eq!(solicited.len(), usize::from(WRITES) * (24 + 512));
    // All in one record.
    say(&pipe, &mut host, &solicited);
    transport.poll(stage.now);
    assert!(pipe.with(|[to_target, _]| to_target.is_empty()));
    assert!(!transport.prepare_sleep(), "the stream holds more");
    let responses = run(&mut stage, &mut transport, &pipe, &mut host);
    assert_eq!(responses.len(), 24 * usize::from(WRITES));
    assert!(transport.prepare_sleep(), "nothing is left");
}

/// A transport with one connection over `pipe`, for the target of `stage`.
fn transport_over(stage: &ProtectedStage, pipe: &Pipe) -> TcpTransport<OneConnection> {
    let channel = Channel::new(Role::Server, secret(1), secret(2));
    let network = OneConnection {
        pipe: pipe.clone(),
        accepted: Some(Protected::new(pipe.clone(), channel)),
    };
    let (core, pool) = (stage.core.clone(), stage.arena.pool(4096));
    let counters = Arc::clone(&stage.counters);
    let set = ConnectionSet::new(core, pool, TcpConfig::default(), counters);
    let handoffs = reactors::mesh::mesh(1, 4).pop().expect("one");
    let placement = Placement::new(1);
    let mut transport = TcpTransport::with_network(network, set, handoffs, placement, Vec::new());
    transport.listen((), PortId(0)).expect("it listens");
    transport
}

fn say(pipe: &Pipe, host: &mut Channel, bytes: &[u8]) {
    let pieces = [IoSlice::new(bytes)];
    host.seal(&mut Unsealed::new(&pieces));
    pipe.with(|[to_target, _]| to_target.extend(host.unsent()));
    host.sent(host.unsent().len());
}

/// Runs turns; returns what the target has sent inside of records.
fn run(
    stage: &mut ProtectedStage,
    transport: &mut TcpTransport<OneConnection>,
    pipe: &Pipe,
    host: &mut Channel,
) -> Vec<u8> {
    let mut received = Vec::new();
    for _ in 0..200 {
        transport.poll(stage.now);
        // Polls the devices.
        stage.turn_of(std::iter::empty());
        transport.flush(stage.now);
        let sent: Vec<u8> = pipe.with(|[_, to_host]| to_host.drain(..).collect());
        host.room()[..sent.len()].copy_from_slice(&sent);
        host.filled(sent.len());
        let mut buffer = vec![0; 1 << 16];
        if let Taken::Bytes(bytes) = host.take(&mut [IoSliceMut::new(&mut buffer)]) {
            received.extend_from_slice(&buffer[..bytes]);
        }
    }
    received
}
