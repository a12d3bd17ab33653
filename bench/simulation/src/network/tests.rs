use super::*;

const TEMPER: NetworkBehaviour = NetworkBehaviour {
    latency_min: Nanos(1000),
    latency_max: Nanos(2000),
    grain: usize::MAX,
    window: 100,
};

const HOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

struct Pair {
    time: SharedTime,
    network: SimNetwork,
    wire: Wire,
    stream: TargetStream,
}

fn pair(behaviour: NetworkBehaviour) -> Pair {
    let time = SharedTime::default();
    let listener = Listener::new(time.clone());
    let mut network = SimNetwork::new();
    let socket = listener.bind().expect("nobody listens");
    network.add_listener(0, socket).expect("it never fails");
    assert!(!network.has_accepted() && network.accept().is_none());
    let wire = listener.connect(HOST, behaviour, Random::new(1, 1));
    assert!(network.has_accepted());
    let Some(Accepted::Stream {
        listener: 0,
        stream,
        ..
    }) = network.accept()
    else {
        panic!("a connection waits");
    };
    network.add_stream(3, &stream).expect("it never fails");
    assert_eq!(network.poll_events(), 0);
    assert!(listener.bind().is_err());
    // A closed listener is removed, and connections are refused.
    let waiting = listener.connect(HOST, behaviour, Random::new(1, 2));
    network.close_listener(0);
    assert!(network.has_accepted());
    let closed = network.accept();
    assert!(matches!(closed, Some(Accepted::ListenerClosed(0))));
    assert_eq!((network.poll_events(), network.has_accepted()), (0, false));
    let refused = listener.connect(HOST, behaviour, Random::new(1, 3));
    for wire in [waiting, refused] {
        assert_eq!(wire.receive(&mut Vec::new()), HostEnd::Reset);
    }
    Pair {
        time,
        network,
        wire,
        stream,
    }
}

impl Pair {
    fn later(&self) {
        self.time.set(self.time.now() + Nanos(2000));
    }

    fn receive(&mut self, bytes: usize) -> (Transferred, Vec<u8>) {
        let mut buffer = vec![0; bytes];
        let outcome = self.stream.receive(&mut [IoSliceMut::new(&mut buffer)]);
        (outcome, buffer)
    }

    fn send(&mut self, bytes: usize) -> Transferred {
        self.stream.send(&[IoSlice::new(&vec![5; bytes])])
    }
}

#[test]
fn bytes_arrive_in_order_after_the_latency() {
    let mut pair = pair(TEMPER);
    pair.wire.send(&[1, 2, 3]);
    assert_eq!(pair.receive(10).0, Transferred::WouldBlock);
    pair.later();
    assert_eq!(pair.network.poll_events(), 1);
    assert_eq!(pair.network.ready(0).index, 3);
    let (outcome, bytes) = pair.receive(2);
    assert_eq!((outcome, bytes), (Transferred::Bytes(2), vec![1, 2]));
    assert_eq!(pair.receive(2).0, Transferred::Bytes(1));
    pair.wire.finish();
    assert_eq!(pair.receive(2).0, Transferred::Closed);
}

#[test]
fn grain_of_one_delivers_single_bytes() {
    let mut pair = pair(NetworkBehaviour { grain: 1, ..TEMPER });
    pair.wire.send(&[1, 2]);
    pair.later();
    assert_eq!(pair.receive(9).0, Transferred::Bytes(1));
    assert_eq!(pair.receive(9).0, Transferred::Bytes(1));
}

#[test]
fn slow_reader_blocks_the_sender_until_writable_event() {
    let mut pair = pair(TEMPER);
    assert_eq!(pair.send(60), Transferred::Bytes(60));
    assert_eq!(pair.send(60), Transferred::Bytes(40));
    assert_eq!(pair.send(60), Transferred::WouldBlock);
    let both = Interest::ReadableOrWritable;
    pair.network
        .watch_stream(3, &pair.stream, both)
        .expect("it never fails");
    assert_eq!(pair.network.poll_events(), 0);
    pair.later();
    let mut taken = Vec::new();
    assert_eq!(pair.wire.receive(&mut taken), HostEnd::Open);
    assert_eq!(taken.len(), 100);
    assert!(pair.wire.waits_for_target());
    assert_eq!(pair.network.poll_events(), 1);
    assert!(pair.network.ready(0).writable);
}

#[test]
fn stall_delays_data_and_vanished_host_is_silent() {
    let mut pair = pair(TEMPER);
    pair.wire.stall(true, Nanos::from_secs(1));
    pair.wire.send(&[1]);
    pair.later();
    assert_eq!(pair.receive(1).0, Transferred::WouldBlock);
    assert_eq!(pair.wire.next_due(), Some(Nanos::from_secs(1)));
    pair.time.set(Nanos::from_secs(1));
    assert_eq!(pair.receive(1).0, Transferred::Bytes(1));
    pair.wire.send(&[2]);
    pair.wire.vanish();
    pair.later();
    assert_eq!(pair.receive(1).0, Transferred::WouldBlock);
    assert_eq!(pair.wire.next_due(), None);
}

#[test]
fn both_ends_observe_a_close() {
    let mut cut = pair(TEMPER);
    cut.wire.cut();
    assert!(matches!(cut.receive(1).0, Transferred::Failed(_)));
    assert_eq!(cut.wire.receive(&mut Vec::new()), HostEnd::Cut);

    let mut closed = pair(TEMPER);
    assert_eq!(closed.send(10), Transferred::Bytes(10));
    drop(closed.stream);
    assert!(closed.wire.is_closed_by_target());
    let mut taken = Vec::new();
    assert_eq!(closed.wire.receive(&mut taken), HostEnd::Open);
    closed.time.set(Nanos(2000));
    assert_eq!(closed.wire.receive(&mut taken), HostEnd::Finished);
    assert_eq!(taken.len(), 10);

    let reset = pair(TEMPER);
    reset.wire.send(&[1]);
    drop(reset.stream);
    assert_eq!(reset.wire.receive(&mut Vec::new()), HostEnd::Reset);
}
