//! Checks that listeners answer: connects to each, and waits for the response of a reactor.

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use appliance_config::{Config, Tls, Transport};
use nvme_spec::tcp::{DigestFlags, IcReq, IcResp, PduType};
use zerocopy::{FromBytes as _, IntoBytes as _};

const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// A listener that does not answer.
#[derive(Debug, thiserror::Error)]
#[error("listener {name} at {address} does not answer within {within:?}")]
pub(crate) struct NoAnswer {
    name: String,
    address: SocketAddr,
    within: Duration,
    #[source]
    cause: io::Error,
}

/// Returns when each listener of `config`, bound to the address at the same index in `addresses`,
/// has answered. A TCP listener must respond to an ICReq. One that requires TLS must close a
/// connection whose host has nothing to send: this needs no key and appears in no log. An RDMA
/// listener listens as soon as it is bound, and is not tested by a connection.
///
/// # Errors
/// The first listener that has not answered `within` that time.
pub(crate) fn wait_until_ready(
    config: &Config,
    addresses: &[SocketAddr],
    within: Duration,
) -> Result<(), NoAnswer> {
    let deadline = Instant::now() + within;
    for (listener, address) in config.listeners.iter().zip(addresses) {
        if listener.transport != Transport::Tcp {
            continue;
        }
        let address = reachable(*address);
        let ask = match listener.tls {
            Tls::Off | Tls::Allowed => ask_for_initialisation,
            Tls::Required => ask_for_end,
        };
        while let Err(cause) = ask(address, deadline) {
            if Instant::now() + RETRY_INTERVAL >= deadline {
                return Err(NoAnswer {
                    name: listener.name.to_string(),
                    address,
                    within,
                    cause,
                });
            }
            std::thread::sleep(RETRY_INTERVAL);
        }
    }
    Ok(())
}

/// An address of this machine at which a listener bound to `address` accepts connections.
fn reachable(mut address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        IpAddr::V4(_) | IpAddr::V6(_) => {}
    }
    address
}

/// Connects and initializes the connection (TCP 1.1 §3.1). The request has both digests, which a
/// listener may require and no listener refuses.
fn ask_for_initialisation(address: SocketAddr, deadline: Instant) -> io::Result<()> {
    let mut stream = connect(address, deadline)?;
    let digests = DigestFlags::new().with_header(true).with_data(true);
    stream.write_all(IcReq::new(0, digests, 0).as_bytes())?;
    let mut bytes = [0; size_of::<IcResp>()];
    stream.read_exact(&mut bytes)?;
    match IcResp::read_from_bytes(&bytes) {
        Ok(response) if response.ch.pdu_type == PduType::IC_RESP => Ok(()),
        _ => Err(foreign_process()),
    }
}

/// Connects, sends nothing, and waits until the listener closes the connection.
fn ask_for_end(address: SocketAddr, deadline: Instant) -> io::Result<()> {
    let mut stream = connect(address, deadline)?;
    stream.shutdown(Shutdown::Write)?;
    match stream.read(&mut [0])? {
        0 => Ok(()),
        _ => Err(foreign_process()),
    }
}

/// A connection whose operations end at the deadline.
fn connect(address: SocketAddr, deadline: Instant) -> io::Result<TcpStream> {
    let left = |deadline: Instant| {
        let left = deadline.saturating_duration_since(Instant::now());
        left.max(Duration::from_millis(1))
    };
    let stream = TcpStream::connect_timeout(&address, left(deadline))?;
    stream.set_read_timeout(Some(left(deadline)))?;
    stream.set_write_timeout(Some(left(deadline)))?;
    Ok(stream)
}

fn foreign_process() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "the process there does not implement NVMe/TCP",
    )
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    const SOON: Duration = Duration::from_millis(200);
    const LONG: Duration = Duration::from_secs(30);

    fn config(transport: &str) -> Config {
        config_with(transport, "")
    }

    /// A configuration whose listener has these further settings.
    fn config_with(transport: &str, settings: &str) -> Config {
        let text = format!(
            "[[device]]\nname = \"a\"\ntype = \"memory\"\nsize = \"1MiB\"\n\
             [[listener]]\nname = \"san\"\ntransport = \"{transport}\"\naddress = \"127.0.0.1:4420\"\n\
             {settings}\
             [[export]]\nnqn = \"nqn.2026-11.org.windlass:x\"\ndevices = [\"a\"]\n\
             listeners = [\"san\"]\nallow_any_host = true\n"
        );
        Config::parse("test.toml", &text).expect("valid")
    }

    /// A server that reads an ICReq from each connection and sends `response`.
    fn server(response: Vec<u8>) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound");
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.expect("a connection");
                let mut request = [0; size_of::<IcReq>()];
                if stream.read_exact(&mut request).is_ok() {
                    let _ = stream.write_all(&response);
                }
            }
        });
        address
    }

    #[test]
    fn icresp_makes_a_listener_ready() {
        let address = server(IcResp::new(0, DigestFlags::new(), 4096).as_bytes().to_vec());
        wait_until_ready(&config("tcp"), &[address], LONG).expect("answers");
    }

    #[test]
    fn silence_refusal_and_foreign_servers_are_not_ready() {
        let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
        let silent_address = silent.local_addr().expect("bound");
        let refused = TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr());
        let other = server(vec![b'x'; size_of::<IcResp>()]);
        for address in [silent_address, refused.expect("bound"), other] {
            let error = wait_until_ready(&config("tcp"), &[address], SOON).unwrap_err();
            let text = error.to_string();
            assert!(text.starts_with("listener san at 127.0.0.1:"), "{text}");
        }
    }

    #[test]
    fn listeners_that_require_tls_are_ready_when_they_close_a_connection() {
        let config = config_with("tcp", "tls = \"required\"\n");
        let closing = server(Vec::new());
        wait_until_ready(&config, &[closing], LONG).expect("answers");
        let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
        let silent = silent.local_addr().expect("bound");
        wait_until_ready(&config, &[silent], SOON).expect_err("only the kernel answers");
    }

    #[test]
    fn rdma_listeners_are_not_probed_over_tcp() {
        let nobody = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        wait_until_ready(&config("rdma"), &[nobody], SOON).expect("not asked");
    }

    #[test]
    fn wildcard_addresses_are_probed_on_loopback() {
        for (bound, asked) in [
            ("0.0.0.0:4420", "127.0.0.1:4420"),
            ("[::]:4420", "[::1]:4420"),
            ("192.0.2.10:8009", "192.0.2.10:8009"),
        ] {
            let bound: SocketAddr = bound.parse().expect("an address");
            assert_eq!(reachable(bound).to_string(), asked);
        }
    }
}
