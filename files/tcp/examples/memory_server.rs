//! Serves one RAM volume of 64 MiB by NFSv4.1 without the rest of the appliance, for a kernel's
//! client: `memory_server 127.0.0.1:2049`, then `mount -t nfs -o vers=4.1 HOST:/data /mnt`.

#![forbid(unsafe_code)]

#[path = "../tests/file_service/reactor.rs"]
#[expect(dead_code, reason = "the tests use all of it")]
mod reactor;

use reactor::{LOOPBACK, Reactor};

fn main() {
    let address = std::env::args().nth(1);
    let reactor = Reactor::start(address.as_deref().unwrap_or(LOOPBACK));
    println!("serving /data at {}", reactor.address);
    loop {
        std::thread::park();
    }
}
