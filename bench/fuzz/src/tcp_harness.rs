//! The production NVMe/TCP target over streams in memory, on one thread and in virtual time.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{IoSlice, IoSliceMut};
use std::rc::Rc;
use std::sync::Arc;

use block::{Device, DeviceSet, QueueOptions, ReactorDevices};
use nvme_handover::State;
use nvme_host_testing::Names;
use nvme_target::{
    CONTROLLER_IDS, CoreLimits, DeviceIndex, NamespaceConfig, PortConfig, PortId, PortSecurity,
    SubsystemConfig, Target, TargetConfig, TargetCore, TargetLimits, TransportKind,
};
use nvme_tcp::{ByteStream, ConnectionSet, PortSettings, TcpConfig, TcpCounters, Transferred};
use reactors::Nanos;

use crate::memory::{DeviceFaults, Memory, TRANSFER_MAX_BYTES};

pub(crate) const NQN: &str = "nqn.2026-11.org.windlass:fuzz";
pub(crate) const HOST: &str = "nqn.2026-11.org.windlass:host";
/// The largest number of connections.
const CONNECTIONS_MAX: usize = 8;
/// The largest number of bytes that wait for a host; beyond it the host is a slow reader, and the
/// target has to wait.
const TO_HOST_MAX: usize = 512 << 10;
/// Turns after which the target is idle without further input.
const TURNS_MAX: usize = 1_000_000;

/// Both directions of one connection, and their state.
#[derive(Debug)]
pub(crate) struct ByteChannel {
    to_target: VecDeque<u8>,
    pub(crate) to_host: VecDeque<u8>,
    /// The largest number of bytes of one receive or send of the target.
    pub(crate) chunk_bytes: usize,
    /// The host has closed its end.
    pub(crate) closed: bool,
    /// The target sends nothing more.
    finished: bool,
    /// The target has dropped the connection.
    dropped: bool,
    /// Total bytes sent to the host.
    pub(crate) sent: u64,
}

/// The target's end of a connection.
pub(crate) struct End(Rc<RefCell<ByteChannel>>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.borrow_mut().dropped = true;
    }
}

impl ByteStream for End {
    fn receive(&mut self, buffers: &mut [IoSliceMut<'_>]) -> Transferred {
        let mut channel = self.0.borrow_mut();
        let (mut room, mut moved) = (channel.chunk_bytes, 0);
        for buffer in buffers {
            let bytes = room.min(buffer.len()).min(channel.to_target.len());
            for (to, from) in buffer.iter_mut().zip(channel.to_target.drain(..bytes)) {
                *to = from;
            }
            (room, moved) = (room - bytes, moved + bytes);
        }
        match moved {
            0 if channel.closed => Transferred::Closed,
            0 => Transferred::WouldBlock,
            bytes => Transferred::Bytes(bytes),
        }
    }

    fn available(&mut self) -> usize {
        let channel = self.0.borrow();
        channel.to_target.len().min(channel.chunk_bytes)
    }

    fn send(&mut self, buffers: &[IoSlice<'_>]) -> Transferred {
        let mut channel = self.0.borrow_mut();
        let room = TO_HOST_MAX.saturating_sub(channel.to_host.len());
        let (mut room, mut moved) = (channel.chunk_bytes.min(room), 0);
        for buffer in buffers {
            let bytes = room.min(buffer.len());
            channel.to_host.extend(&buffer[..bytes]);
            (room, moved) = (room - bytes, moved + bytes);
        }
        channel.sent += moved as u64;
        match moved {
            0 => Transferred::WouldBlock,
            bytes => Transferred::Bytes(bytes),
        }
    }

    fn finish_sending(&mut self) {
        self.0.borrow_mut().finished = true;
    }
}

/// A connection whose target has not accepted it yet.
fn channel(chunk_bytes: usize) -> (Rc<RefCell<ByteChannel>>, End) {
    let channel = Rc::new(RefCell::new(ByteChannel {
        to_target: VecDeque::new(),
        to_host: VecDeque::new(),
        chunk_bytes,
        closed: false,
        finished: false,
        dropped: false,
        sent: 0,
    }));
    let end = End(Rc::clone(&channel));
    (channel, end)
}

/// The host's end of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Wire {
    pub(crate) channel: Rc<RefCell<ByteChannel>>,
    index: u16,
}

impl Wire {
    pub(crate) fn send(&self, bytes: &[u8]) {
        self.channel.borrow_mut().to_target.extend(bytes);
    }

    pub(crate) fn close(&self) {
        self.channel.borrow_mut().closed = true;
    }

    /// Whether the target sends nothing more.
    pub(crate) fn ended(&self) -> bool {
        let channel = self.channel.borrow();
        channel.finished || channel.dropped
    }

    /// A value that changes with every transferred byte.
    fn progress(&self) -> u64 {
        let channel = self.channel.borrow();
        channel.sent + u64::from(channel.finished) + (1 << 32) - channel.to_target.len() as u64
    }
}

/// A target core with its connections.
pub(crate) struct TcpHarness {
    set: ConnectionSet<End>,
    core: Rc<RefCell<TargetCore>>,
    devices: ReactorDevices,
    memory: Memory,
    pub(crate) device_faults: DeviceFaults,
    pub(crate) now: Nanos,
    wires: Vec<Wire>,
}

impl TcpHarness {
    pub(crate) fn new() -> Self {
        let memory = Memory::of_thread();
        assert_eq!(memory.taken(), 0, "the run before left leases");
        let (device, device_faults) = memory.faulty_device();
        let target = target(&device, TransportKind::Tcp);
        let pool = memory.arena.pool(64);
        let options = QueueOptions::new(0, 64, pool.clone());
        let set = Rc::new(DeviceSet::new());
        set.attach(0, &*device, options).expect("a queue");
        let limits = CoreLimits {
            queues_max: 2 * CONNECTIONS_MAX,
            executions_max: 1024,
        };
        let core = TargetCore::new(target, 0, Rc::clone(&set), limits);
        let settings = PortSettings {
            in_capsule_bytes: 4096,
            ..PortSettings::default()
        };
        let config = TcpConfig {
            ports: vec![(PortId(0), settings)],
            host_data_bytes_max: 16 << 10,
            connections_max: CONNECTIONS_MAX,
            ..TcpConfig::default()
        };
        let core = Rc::new(RefCell::new(core));
        let devices = ReactorDevices::new(set);
        devices.add(core.clone());
        let counters = Arc::new(TcpCounters::default());
        Self {
            set: ConnectionSet::new(Rc::clone(&core), pool, config, counters),
            core,
            devices,
            memory,
            device_faults,
            now: Nanos::from_secs(1),
            wires: Vec::new(),
        }
    }

    /// Opens a connection; `None` if there are too many.
    pub(crate) fn connect(&mut self, chunk_bytes: usize) -> Option<Wire> {
        let (channel, end) = channel(chunk_bytes);
        let index = self.set.insert(end, PortId(0), self.now).ok()?;
        let wire = Wire { channel, index };
        self.wires.push(wire.clone());
        Some(wire)
    }

    /// Holds the connections, which have nothing in flight, and exports the state.
    pub(crate) fn export(&mut self) -> State {
        self.set.hold(self.now);
        let target = Arc::clone(self.core.borrow().target());
        let mut state = State {
            target: target.export(self.now).expect("quiet"),
            ..State::default()
        };
        let exported = self.set.export(self.now, &mut state);
        exported.expect("nothing is in flight");
        let core = self.core.borrow();
        core.export(self.now, &mut state).expect("quiet");
        drop(core);
        self.set.resume(self.now);
        state
    }

    /// Restores what a new target accepts of a state: nothing, or some of its connections.
    pub(crate) fn restore(&mut self, state: &State) {
        let target = Arc::clone(self.core.borrow().target());
        if target.restore(state).is_err() {
            assert!(target.snapshot().controllers.is_empty());
            return;
        }
        for record in &state.cores {
            self.core.borrow_mut().restore_counters(record);
        }
        for record in &state.tcp_connections {
            let (channel, end) = channel(usize::MAX);
            if let Ok(index) = self.set.restore(end, state, record, self.now) {
                self.wires.push(Wire { channel, index });
            }
        }
        let queues = self.core.borrow().queues();
        assert!(queues <= self.wires.len(), "a queue without a connection");
        self.set.resume(self.now);
    }

    /// Sends the same bytes on every connection.
    pub(crate) fn send_to_all(&self, bytes: &[u8]) {
        self.wires.iter().for_each(|wire| wire.send(bytes));
    }

    /// One turn of the reactor.
    pub(crate) fn turn(&mut self) {
        self.set.begin_turn(self.now);
        for wire in &self.wires {
            self.set.receive(wire.index, self.now);
        }
        self.set.dispatch(self.now);
        self.set.expire(self.now);
        self.devices.poll(self.now);
        self.set.take_responses(self.now);
        self.set.flush(self.now, |_, _| {});
        self.devices.flush();
        for wire in &self.wires {
            self.set.writable(wire.index);
        }
        while self.set.take_ended().is_some() {}
        // Before their indices are reused.
        self.wires.retain(|wire| !wire.channel.borrow().dropped);
        self.now = self.now.saturating_add(Nanos::from_micros(10));
    }

    /// Runs turns until nothing changes any more. Calls `take` after each turn to take the received
    /// data.
    pub(crate) fn settle(&mut self, mut take: impl FnMut()) {
        let mut quiet = 0;
        let mut seen = 0;
        for _ in 0..TURNS_MAX {
            self.turn();
            take();
            let moved: u64 = self.wires.iter().map(Wire::progress).sum();
            quiet = if moved == seen { quiet + 1 } else { 0 };
            seen = moved;
            if quiet == 8 {
                return;
            }
        }
        panic!("the target is never done");
    }

    pub(crate) fn advance_time(&mut self, time: Nanos) {
        self.now = self.now.saturating_add(time);
    }

    /// Closes everything, and checks that nothing is left.
    pub(crate) fn finish(mut self) {
        self.device_faults.end();
        for wire in &self.wires {
            wire.close();
            // A host that has closed its end receives nothing more, and does not delay the target
            // either.
            wire.channel.borrow_mut().chunk_bytes = usize::MAX;
        }
        let wires = self.wires.clone();
        for _ in 0..200 {
            self.turn();
            for wire in &wires {
                wire.channel.borrow_mut().to_host.clear();
            }
            if self.set.is_empty() {
                break;
            }
            self.advance_time(Nanos::from_millis(50));
        }
        assert!(self.set.is_empty(), "a connection stays open: {wires:?}");
        // Requests that a device still holds are returned when it ends.
        for _ in 0..8 {
            self.turn();
        }
        assert_eq!(self.memory.taken(), 0, "leases are still in use");
        assert_eq!(self.core.borrow().queues(), 0, "a queue is left");
    }
}

pub(crate) fn names() -> Names {
    Names {
        host: HOST.to_owned(),
        host_id: [7; 16],
        subsystem: NQN.to_owned(),
    }
}

/// One subsystem with one namespace on `device`.
fn target(device: &Arc<dyn Device>, transport: TransportKind) -> Arc<Target> {
    let namespace = NamespaceConfig {
        nsid: 1,
        device: DeviceIndex(0),
        geometry: device.geometry(),
        uuid: [2; 16],
        nguid: [3; 16],
        eui64: [4; 8],
        read_only: false,
        ana_group: 1,
        reservations: true,
    };
    let subsystem = SubsystemConfig {
        nqn: NQN.to_owned(),
        serial: "FUZZ".to_owned(),
        model: "Windlass".to_owned(),
        firmware: "0".to_owned(),
        allow_any_host: false,
        hosts: vec![HOST.to_owned()],
        namespaces: vec![namespace],
        io_queues_max: 4,
        queue_depth_max: 32,
        ports: vec![PortId(0)],
        masks: Vec::new(),
        authentication: BTreeMap::new(),
        secure_hosts: BTreeSet::new(),
        ana_states: BTreeMap::new(),
        controller_ids: CONTROLLER_IDS,
    };
    let port = PortConfig {
        id: PortId(0),
        transport,
        address: "192.0.2.1".to_owned(),
        service: "4420".to_owned(),
        ipv6: false,
        security: PortSecurity::None,
    };
    let limits = TargetLimits {
        transfer_max: TRANSFER_MAX_BYTES,
        controllers_max: 16,
        queues_max: 64,
        bind_queues: true,
    };
    let config = TargetConfig {
        subsystems: vec![subsystem],
        ports: vec![port],
        limits,
    };
    Target::new(config, 1, vec![Arc::clone(device)]).expect("a right configuration")
}
