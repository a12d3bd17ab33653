//! A well-behaved host beside hosts that begin 1,000 TLS handshakes at the same time, and end none.
//!
//! Each sends the complete first message of a host with the right key, so that the target performs
//! the key exchange. They come from several addresses, because a target bounds the handshakes of each.
//! Their thread has the lowest priority, since such hosts do not share a core with the other one.

use std::io::{self, Write as _};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use nvme_host_testing::Names;
use nvme_host_testing::tcp::RawError;
use nvme_tls_handshake::ClientHandshake;
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};

use super::StormError;
use super::beside::{BesideRow, Host, Latencies, Promise, REQUESTS, read_null, row};
use crate::compare::target::{HOST_NQN, NQN, Target, host_key};

/// Handshakes that are begun at the same time.
const HANDSHAKES: usize = 1000;
/// Addresses that they come from: 127.0.1.1 and following.
const ADDRESSES: usize = 20;
/// How often that is repeated.
const ROUNDS: usize = 5;
/// The lowest priority of a thread.
const NICENESS_MAX: i32 = 19;

/// The first message of the host that has the key.
fn hello() -> Vec<u8> {
    let names = nvme_keys::Names::new(HOST_NQN, NQN).expect("valid names");
    let candidates = host_key().candidates(names);
    let mut handshake = ClientHandshake::new(&candidates[0]).expect("a handshake begins");
    handshake.take_output()
}

fn connect_from(number: usize, target: SocketAddr) -> io::Result<TcpStream> {
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;
    let source = Ipv4Addr::new(127, 0, 1, 1 + (number % ADDRESSES) as u8);
    bind(&socket, &SocketAddrV4::new(source, 0))?;
    connect(&socket, &target)?;
    Ok(TcpStream::from(socket))
}

/// Begins handshakes, and ends all connections afterwards. Returns how many were begun.
fn begin_many(target: SocketAddr, hello: &[u8]) -> io::Result<u64> {
    let mut begun = 0;
    let mut open = Vec::with_capacity(HANDSHAKES);
    for number in 0..HANDSHAKES {
        let mut stream = connect_from(number, target)?;
        // The target may have refused it, because too many are in progress.
        begun += u64::from(stream.write_all(hello).is_ok());
        open.push(stream);
    }
    Ok(begun)
}

/// Measures the row.
pub(super) fn measure(target: &Target) -> Result<BesideRow, StormError> {
    let address = target.address;
    let names = Names {
        host: HOST_NQN.to_owned(),
        host_id: [7; 16],
        subsystem: NQN.to_owned(),
    };
    let mut modest = Host::attach(address, &names, 1)?;
    let queue = &mut modest.queues[0];
    let mut read = || read_null(queue);
    let (hello, over, begun) = (hello(), AtomicBool::new(false), AtomicU64::new(0));
    let (beside, flood) = std::thread::scope(|scope| {
        let flood = scope.spawn(|| {
            // On Linux this affects only the calling thread (setpriority(2)).
            let _ = rustix::process::setpriority_process(None, NICENESS_MAX);
            let rounds = (0..ROUNDS).try_for_each(|_| -> io::Result<()> {
                begun.fetch_add(begin_many(address, &hello)?, Ordering::Relaxed);
                Ok(())
            });
            over.store(true, Ordering::Release);
            rounds
        });
        let mut found = Vec::new();
        let measured = loop {
            let began = Instant::now();
            if let Err(error) = read() {
                break Err(error);
            }
            found.push(began.elapsed().as_secs_f64() * 1e3);
            if over.load(Ordering::Acquire) && found.len() >= REQUESTS {
                break Ok(found);
            }
        };
        (measured, flood.join())
    });
    if let Ok(result) = flood {
        result.map_err(RawError::from)?;
    }
    let (begun, beside) = (begun.into_inner(), beside?);
    // As many, because the p99 of a few requests says nothing of what is rare.
    let alone = (beside.iter())
        .map(|_| {
            let began = Instant::now();
            read().map(|()| began.elapsed().as_secs_f64() * 1e3)
        })
        .collect::<Result<Vec<f64>, RawError>>()?;
    let (alone, beside) = (Latencies::sorted(alone), Latencies::sorted(beside));
    let others = format!("{begun} TLS handshakes in {ROUNDS} rounds of {HANDSHAKES}, none ended");
    let names = (others.as_str(), "read of 4 KiB without TLS");
    Ok(row(names, &alone, &beside, Promise::P99(2.0)))
}
