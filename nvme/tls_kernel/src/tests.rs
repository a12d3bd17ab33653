use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd as _;

use super::*;

fn secret(suite: Suite) -> TrafficSecret {
    let bytes: Vec<u8> = (1..=suite.hash().len() as u8).collect();
    TrafficSecret::new(suite, &bytes).expect("a secret of its length")
}

fn connected() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let client = TcpStream::connect(listener.local_addr().expect("bound")).expect("listening");
    let (server, _) = listener.accept().expect("connected");
    (server, client)
}

/// The sizes are those of the kernel's structures, which it compares with the cipher's.
#[test]
fn keys_have_the_layout_of_the_kernel() {
    for (suite, code, key_bytes) in [
        (Suite::Aes128GcmSha256, AES_GCM_128, 16),
        (Suite::Aes256GcmSha384, AES_GCM_256, 32),
    ] {
        let secret = secret(suite);
        let info = crypto_info(&secret);
        let keys = secret.record_key();
        assert_eq!(info.len(), 4 + 8 + key_bytes + 4 + 8);
        assert_eq!(info[..2], VERSION.to_ne_bytes());
        assert_eq!(info[2..4], code.to_ne_bytes());
        assert_eq!(info[4..12], keys.iv[4..]);
        assert_eq!(&info[12..12 + key_bytes], keys.key.expose());
        assert_eq!(info[12 + key_bytes..16 + key_bytes], keys.iv[..4]);
        assert_eq!(info[16 + key_bytes..], [0; 8]);
    }
}

/// Of a socket without TLS, all is data, in any number of buffers.
#[test]
fn plain_data_is_received_into_its_buffers() {
    let (server, mut client) = connected();
    let mut head = [0; 3];
    let mut tail = [0; 16];
    let mut buffers = [IoSliceMut::new(&mut head), IoSliceMut::new(&mut tail)];
    assert_eq!(receive(server.as_fd(), &mut buffers), Err(Errno::AGAIN));
    client.write_all(b"windlass").expect("connected");
    let received = loop {
        match receive(server.as_fd(), &mut buffers) {
            Err(Errno::AGAIN) => std::thread::yield_now(),
            received => break received.expect("data"),
        }
    };
    assert_eq!(received, Received::Record(ContentType::ApplicationData, 8));
    assert_eq!((&head, &tail[..5]), (b"win", &b"dlass"[..]));
    drop(client);
    let mut byte = [0];
    let closed = loop {
        match receive(server.as_fd(), &mut [IoSliceMut::new(&mut byte)]) {
            Err(Errno::AGAIN) => std::thread::yield_now(),
            received => break received.expect("the end"),
        }
    };
    assert_eq!(closed, Received::End);
}

/// A kernel without TLS, as one without its module is, leaves the socket as it is.
#[test]
fn socket_is_unchanged_where_the_kernel_has_no_tls() {
    if is_available() {
        return;
    }
    let (mut server, client) = connected();
    let secret = secret(Suite::Aes128GcmSha256);
    assert_eq!(protect(server.as_fd(), &secret, &secret), Err(Errno::NOENT));
    server.write_all(b"plain").expect("connected");
    let mut buffer = [0; 8];
    let received = loop {
        match receive(client.as_fd(), &mut [IoSliceMut::new(&mut buffer)]) {
            Err(Errno::AGAIN) => std::thread::yield_now(),
            received => break received.expect("data"),
        }
    };
    assert_eq!(received, Received::Record(ContentType::ApplicationData, 5));
    assert_eq!(&buffer[..5], b"plain");
}

/// A key cannot be set, and no record be sent, before TLS is above the socket.
#[test]
fn keys_need_tls() {
    let (server, _client) = connected();
    let secret = secret(Suite::Aes256GcmSha384);
    assert!(set_send_key(server.as_fd(), &secret).is_err());
    assert!(set_receive_key(server.as_fd(), &secret).is_err());
}
