//! Connections that end at every moment leave no descriptor open and no place taken. The only test
//! of its process, because it counts the process's descriptors.

#[expect(dead_code, reason = "the tests of the transport use all of it")]
#[path = "tcp_transport/harness/mod.rs"]
mod harness;

use std::io::Read as _;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use harness::{LIMIT, Server, Setup, names};
use nvme_host_testing::tcp::RawClient;
use rustix::net::sockopt::set_socket_linger;

/// Connections that the target serves at most.
const CONNECTIONS_MAX: usize = 4;
/// Connections that end early.
const CONNECTS: usize = 4000;

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("/proc").count()
}

/// Connects, and ends the connection in a way that depends on `number`. A refused or reset one is
/// as good as any.
fn connect_and_leave(address: SocketAddr, number: usize) {
    let Ok(stream) = TcpStream::connect(address) else {
        return;
    };
    match number % 4 {
        0 => {}
        1 => set_socket_linger(&stream, Some(Duration::ZERO)).expect("an option"),
        2 => drop(stream.shutdown(std::net::Shutdown::Write)),
        _ => {
            if let Ok(mut client) = RawClient::connect(address, LIMIT) {
                let _ = client.send(&[0; 100]);
            }
        }
    }
}

#[test]
fn connections_that_end_early_leave_nothing() {
    let before = descriptors();
    let server = Server::start(Setup {
        reactors: 2,
        connections_max: Some(CONNECTIONS_MAX),
        ..Setup::default()
    });
    let address = server.address;
    std::thread::scope(|scope| {
        for part in 0..4 {
            scope.spawn(move || {
                (0..CONNECTS / 4).for_each(|number| connect_and_leave(address, number + part));
            });
        }
    });
    // The limit is exact: all places become free again, and there is not one more.
    let began = Instant::now();
    let mut attached = Vec::new();
    while attached.len() < CONNECTIONS_MAX {
        assert!(began.elapsed() < LIMIT, "{} places", attached.len());
        let mut admin = server.client();
        // Connections that ended early may still wait to be accepted.
        if admin.open_admin(&names()).is_ok() {
            attached.push(admin);
        }
    }
    let mut refused = TcpStream::connect(server.address).expect("listening");
    refused.set_read_timeout(Some(LIMIT)).expect("a socket");
    assert_eq!(refused.read(&mut [0]).expect("closed"), 0);
    drop((attached, refused));

    // The target stops while hosts connect.
    let stopped = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stopped.load(Ordering::Relaxed) {
                    drop(TcpStream::connect(address));
                }
            });
        }
        server.stop();
        stopped.store(true, Ordering::Relaxed);
    });
    assert_eq!(descriptors(), before);
    assert!(TcpStream::connect(address).is_err());
}
