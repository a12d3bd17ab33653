//! A second service in addition to NVMe over Fabrics: a protocol that echoes blocks. A client sends
//! a block number, 8 bytes, and gets the block.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use appliance_config::Config;
use block::{ClientId, Completions, DeviceClient, DeviceError, DeviceSet, Operation, Request};
use hugemem::{Arena, Data};
use nvme_host_testing::Names;
use nvme_host_testing::tcp::RawClient;
use nvme_spec::Sqe;
use reactors::{InitError, Nanos, Poller, Progress, ReactorSetup};

use super::{ReactorParts, Service};
use crate::appliance::{Appliance, Environment};
use crate::nvme::tests::cores;
use crate::state_directory::StateDirectory;
use crate::transports::PerReactor;

const BLOCK_BYTES: usize = 512;
/// Generous limit for every wait of a test, for busy machines.
const LIMIT: Duration = Duration::from_secs(60);
/// Most connections of one reactor.
const CONNECTIONS_MAX: usize = 16;

/// The service, with a listener for each reactor.
struct Echo(PerReactor<TcpListener>);

impl Service for Echo {
    fn set_up(&self, parts: &ReactorParts, setup: &mut ReactorSetup<'_>) -> Result<(), InitError> {
        let listener = self.0.take(setup.index()).ok_or("it is set up once")?;
        let devices = Rc::clone(parts.devices.set());
        let reads = Rc::new(RefCell::new(Reads {
            id: devices.register(CONNECTIONS_MAX),
            devices,
            arena: Arc::clone(&parts.arena),
            done: VecDeque::new(),
            outstanding: 0,
        }));
        parts.devices.add(reads.clone());
        setup.register(Box::new(EchoPoller {
            listener,
            connections: Vec::new(),
            reads,
        }))?;
        Ok(())
    }
}

/// One reactor's reads: a client of its devices.
struct Reads {
    id: ClientId,
    devices: Rc<DeviceSet>,
    arena: Arc<Arena>,
    /// Results with their connection.
    done: VecDeque<(usize, Result<Data, DeviceError>)>,
    outstanding: usize,
}

impl Reads {
    fn read(&mut self, connection: usize, lba: u64) {
        let lends = self.devices.can_borrow_read(0, lba, 1);
        let request = Request {
            tag: connection as u64,
            operation: Operation::Read,
            lba,
            blocks: 1,
            data: (!lends)
                .then(|| self.arena.pool(1).take(BLOCK_BYTES))
                .flatten(),
        };
        match self.devices.submit(self.id, 0, request) {
            Ok(_) => self.outstanding += 1,
            Err(error) => self.done.push_back((connection, Err(error))),
        }
    }
}

impl DeviceClient for Reads {
    fn id(&self) -> ClientId {
        self.id
    }

    fn completed(&mut self, completions: Completions<'_>, _now: Nanos) {
        for completion in completions {
            self.outstanding -= 1;
            let data = completion.data.ok_or(DeviceError::Internal);
            let result = completion.result.and(data);
            self.done.push_back((completion.tag as usize, result));
        }
    }

    fn device_removed(&mut self, _place: usize, _now: Nanos) {
        self.outstanding = 0;
    }

    fn stop(&mut self, _now: Nanos) -> bool {
        self.outstanding == 0
    }
}

struct EchoPoller {
    listener: TcpListener,
    connections: Vec<TcpStream>,
    reads: Rc<RefCell<Reads>>,
}

impl Poller for EchoPoller {
    fn name(&self) -> &str {
        "echo"
    }

    /// Receives and submits.
    fn poll(&mut self, _now: Nanos) -> Progress {
        if let Ok((stream, _)) = self.listener.accept() {
            assert!(self.connections.len() < CONNECTIONS_MAX);
            stream.set_nonblocking(true).expect("a socket");
            self.connections.push(stream);
        }
        let mut received = 0;
        for (index, stream) in self.connections.iter_mut().enumerate() {
            let mut lba = [0; 8];
            match stream.read(&mut lba) {
                Ok(8) => {
                    self.reads.borrow_mut().read(index, u64::from_le_bytes(lba));
                    received += 1;
                }
                Ok(_) => {}
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
        }
        Progress::from_count(received)
    }

    /// Takes completed reads, and sends their data.
    fn flush(&mut self, _now: Nanos) {
        while let Some((index, result)) = self.reads.borrow_mut().done.pop_front() {
            let stream = &mut self.connections[index];
            match result {
                Ok(data) => stream.write_all(&data).expect("room in the socket"),
                Err(error) => {
                    let text = format!("{:<BLOCK_BYTES$}", error.to_string());
                    stream
                        .write_all(text.as_bytes())
                        .expect("room in the socket");
                }
            }
        }
    }

    /// The poller polls its sockets in every turn, so it never sleeps.
    fn prepare_sleep(&mut self) -> bool {
        false
    }
}

fn config(cores: &str) -> Config {
    let text = format!(
        r#"
[appliance]
cores = "{cores}"
memory = "16MiB"
pages = "ordinary"
[control]
http = "off"
[[device]]
name = "disk"
type = "memory"
size = "1MiB"
[[listener]]
name = "lan"
transport = "tcp"
address = "127.0.0.1:0"
[[export]]
nqn = "nqn.2026-11.org.windlass:disk"
devices = ["disk"]
listeners = ["lan"]
allow_any_host = true
"#
    );
    Config::parse("test", &text).expect("a valid configuration")
}

/// Data that a host writes over NVMe/TCP can be read over the other protocol, on every reactor,
/// from the same devices; and both services drain.
#[test]
fn second_service_shares_the_reactors_and_devices() {
    let config = config(&cores(2));
    let listener = |_| TcpListener::bind("127.0.0.1:0").expect("a port");
    let listeners: Vec<_> = (0..2).map(listener).collect();
    let addresses: Vec<_> = listeners
        .iter()
        .map(|it| it.local_addr().expect("bound"))
        .collect();
    for listener in &listeners {
        listener.set_nonblocking(true).expect("a socket");
    }
    let echo: Arc<dyn Service> = Arc::new(Echo(PerReactor::new(listeners)));
    let environment = Environment {
        extra_services: vec![echo],
        ..Environment::default()
    };
    let appliance = Appliance::start_with(config, &StateDirectory::default(), environment);
    let appliance = appliance.expect("it starts");
    let reactors = appliance.cores().len();

    let connect = || RawClient::connect(appliance.addresses()[0], LIMIT).expect("it listens");
    let (mut admin, mut io) = (connect(), connect());
    let names = Names {
        host: "nqn.2026-11.org.example:host".to_owned(),
        host_id: [9; 16],
        subsystem: "nqn.2026-11.org.windlass:disk".to_owned(),
    };
    let cntlid = admin.open_admin(&names).expect("it may attach");
    io.open_io(&names, cntlid, 1).expect("queue 1 is free");
    for lba in 0..8u8 {
        let sqe = Sqe::write(1, u64::from(lba), 0, false);
        let (cqe, _) = io
            .command(sqe, &[lba + 1; BLOCK_BYTES], 0)
            .expect("a response");
        assert!(cqe.status().is_success());
    }
    for address in &addresses[..reactors] {
        let mut client = TcpStream::connect(address).expect("it listens");
        client.set_read_timeout(Some(LIMIT)).expect("a socket");
        let mut read = |lba: u64| {
            let mut block = [0; BLOCK_BYTES];
            client.write_all(&lba.to_le_bytes()).expect("it is there");
            client.read_exact(&mut block).expect("a response");
            block
        };
        for lba in 0..8u8 {
            assert_eq!(read(u64::from(lba)), [lba + 1; BLOCK_BYTES]);
        }
        // A read beyond the device fails, and the next read works.
        let beyond = read(1 << 40);
        assert!(beyond.starts_with(DeviceError::OutOfRange.to_string().as_bytes()));
        assert_eq!(read(3), [4; BLOCK_BYTES]);
    }
    drop((admin, io));
    assert!(appliance.stop_quietly(), "everything came to rest");
}
