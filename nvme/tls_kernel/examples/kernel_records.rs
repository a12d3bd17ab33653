//! Checks the records of this machine's kernel against those of `nvme_tls`: data, alerts, new keys, and
//! damage. Needs TLS in the kernel (`modprobe tls`). Prints what it has checked.

use std::io::{IoSlice, IoSliceMut, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::thread;
use std::time::{Duration, Instant};

use nvme_tls::{
    Alert, ContentType, HEADER_BYTES, Opener, RECORD_BYTES_MAX, Sealer, Suite, TrafficSecret,
    Unsealed, key_update,
};
use nvme_tls_kernel::{Received, protect, receive, send_control, set_receive_key, set_send_key};
use rustix::io::Errno;

/// Time limit of each wait.
const LIMIT: Duration = Duration::from_secs(20);

/// The first Linux that can replace keys.
const REPLACES_SINCE: (u32, u32) = (6, 14);

/// A socket with records of the kernel, and its peer with ours.
struct Pair {
    kernel: TcpStream,
    send: TrafficSecret,
    receive: TrafficSecret,
    peer: TcpStream,
    sealer: Sealer,
    opener: Opener,
}

impl Pair {
    fn new(suite: Suite) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let address = listener.local_addr().expect("bound");
        let peer = TcpStream::connect(address).expect("listening");
        peer.set_read_timeout(Some(LIMIT)).expect("an option");
        let (kernel, _) = listener.accept().expect("connected");
        let secret = |byte| {
            let bytes = vec![byte; suite.hash().len()];
            TrafficSecret::new(suite, &bytes).expect("a secret of its length")
        };
        let (send, receive) = (secret(1), secret(2));
        protect(kernel.as_fd(), &send, &receive).expect("TLS in the kernel: modprobe tls");
        Self {
            kernel,
            sealer: Sealer::new(receive.clone()),
            opener: Opener::new(send.clone()),
            send,
            receive,
            peer,
        }
    }

    /// The next record, or part of one, that the kernel has received.
    fn received(&self, room: &mut [u8]) -> Result<Received, Errno> {
        let began = Instant::now();
        loop {
            match receive(self.kernel.as_fd(), &mut [IoSliceMut::new(room)]) {
                Err(Errno::AGAIN) => {
                    assert!(began.elapsed() < LIMIT, "nothing is received");
                    thread::yield_now();
                }
                received => return received,
            }
        }
    }

    /// Sends data of several records to the kernel, and from it.
    fn exchange(&mut self, bytes: usize) {
        let data: Vec<u8> = (0..bytes).map(|place| (place * 7) as u8).collect();
        let pieces = [IoSlice::new(&data)];
        let mut unsealed = Unsealed::new(&pieces);
        let mut record = vec![0; RECORD_BYTES_MAX];
        let mut found = Vec::new();
        while let Some(sealed) = self.sealer.seal_data(&mut unsealed, &mut record) {
            self.peer.write_all(&record[..sealed]).expect("open");
            // No more than the socket's buffers hold.
            while found.len() < unsealed.sealed_bytes() {
                let mut room = [0; 5000];
                match self.received(&mut room) {
                    Ok(Received::Record(ContentType::ApplicationData, bytes)) => {
                        found.extend_from_slice(&room[..bytes]);
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
        assert!(found == data, "the kernel has opened other data");
        let mut kernel = self.kernel.try_clone().expect("a descriptor");
        let sent = data.clone();
        let sending = thread::spawn(move || kernel.write_all(&sent).expect("open"));
        let mut found = Vec::new();
        while found.len() < data.len() {
            let (kind, content) = self.record();
            assert_eq!(kind, ContentType::ApplicationData);
            found.extend(content);
        }
        sending.join().expect("sent");
        assert!(found == data, "the kernel has sealed other data");
    }

    /// The next record from the kernel.
    fn record(&mut self) -> (ContentType, Vec<u8>) {
        let mut record = vec![0; HEADER_BYTES];
        self.peer.read_exact(&mut record).expect("a record");
        let body = u16::from_be_bytes([record[3], record[4]]);
        record.resize(HEADER_BYTES + usize::from(body), 0);
        self.peer
            .read_exact(&mut record[HEADER_BYTES..])
            .expect("a record");
        let (kind, content) = self.opener.open(&mut record).expect("the kernel's record");
        (kind, record[content].to_vec())
    }

    /// Sends a record without data to the kernel.
    fn control(&mut self, kind: ContentType, content: &[u8]) {
        let mut record = [0; 64];
        let sealed = self.sealer.seal(kind, content, &mut record).expect("room");
        self.peer.write_all(&record[..sealed]).expect("open");
        let mut room = [0; 64];
        let received = self.received(&mut room).expect("a record");
        assert_eq!(received, Received::Record(kind, content.len()));
        assert_eq!(&room[..content.len()], content);
    }

    /// New keys in both directions. Returns whether the kernel has taken them.
    fn replace_keys(&mut self) -> bool {
        self.control(ContentType::Handshake, &key_update(true));
        self.sealer.update();
        self.receive = self.receive.next();
        match set_receive_key(self.kernel.as_fd(), &self.receive) {
            Ok(()) => {}
            Err(Errno::BUSY) => return false,
            Err(errno) => panic!("another error: {errno}"),
        }
        let update = key_update(false);
        send_control(self.kernel.as_fd(), ContentType::Handshake, &update).expect("open");
        self.send = self.send.next();
        set_send_key(self.kernel.as_fd(), &self.send).expect("the kernel replaces keys");
        assert_eq!(self.record(), (ContentType::Handshake, update.to_vec()));
        self.opener.update();
        true
    }
}

/// Whether this kernel can replace keys.
fn replaces_keys() -> bool {
    let release = rustix::system::uname()
        .release()
        .to_string_lossy()
        .into_owned();
    let mut numbers = release.split(['.', '-']).map(str::parse::<u32>);
    let mut next = || numbers.next().and_then(Result::ok).unwrap_or(0);
    (next(), next()) >= REPLACES_SINCE
}

fn main() {
    for suite in [Suite::Aes128GcmSha256, Suite::Aes256GcmSha384] {
        let name = suite.name();
        let mut pair = Pair::new(suite);
        for bytes in [1, 100, 16384, 16385, 300_000] {
            pair.exchange(bytes);
        }
        println!("{name}: data in both directions");
        pair.control(ContentType::Alert, &Alert::USER_CANCELED.message());
        let replaced = pair.replace_keys();
        assert_eq!(replaced, replaces_keys(), "replaced keys");
        println!(
            "{name}: keys {}",
            if replaced {
                "are replaced"
            } else {
                "cannot be replaced"
            }
        );
        if replaced {
            pair.exchange(100_000);
            assert!(pair.replace_keys());
            pair.exchange(100_000);
        }
        let last = Alert::CLOSE_NOTIFY.message();
        send_control(pair.kernel.as_fd(), ContentType::Alert, &last).expect("open");
        assert_eq!(pair.record(), (ContentType::Alert, last.to_vec()));
        println!("{name}: alerts");

        let mut pair = Pair::new(suite);
        pair.exchange(100);
        let mut record = [0; 64];
        let data = ContentType::ApplicationData;
        let sealed = pair
            .sealer
            .seal(data, b"damaged", &mut record)
            .expect("room");
        record[sealed - 1] ^= 1;
        pair.peer.write_all(&record[..sealed]).expect("open");
        assert_eq!(pair.received(&mut [0; 64]), Err(Errno::BADMSG));
        println!("{name}: damage is detected");
    }
}
