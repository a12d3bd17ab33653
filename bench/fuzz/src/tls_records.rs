//! Records of a peer that has the keys: any content in them, and any bytes between them. The
//! receiver's data is the beginning of what was sent as data, and ends at the first violation.

use std::io::{IoSlice, IoSliceMut};

use nvme_tls::{
    Channel, ContentType, Role, SEALED_OVERHEAD_BYTES, Sealer, Suite, Taken, TrafficSecret,
    Unsealed,
};

use crate::input::Input;

/// Limit of the records of one input.
const RECORDS_MAX: usize = 64;

/// What the peer has sent, and what was received.
struct Peers {
    peer: Sealer,
    channel: Channel,
    sent: Vec<u8>,
    received: Vec<u8>,
    has_ended: bool,
}

/// Carries out the input as actions of the peer.
pub(crate) fn run(input: &[u8]) {
    let mut input = Input::new(input);
    let suite = input.pick(&Suite::ALL);
    let role = input.pick(&[Role::Server, Role::Client]);
    let secret = TrafficSecret::new(suite, &vec![1; suite.hash().len()]).expect("the length fits");
    let mut peers = Peers {
        peer: Sealer::new(secret.clone()),
        channel: Channel::new(role, secret.clone(), secret),
        sent: Vec::new(),
        received: Vec::new(),
        has_ended: false,
    };
    for _ in 0..RECORDS_MAX {
        if input.is_empty() || peers.has_ended {
            break;
        }
        peers.act(&mut input);
    }
}

impl Peers {
    fn act(&mut self, input: &mut Input<'_>) {
        let mut record = vec![0; 512 + SEALED_OVERHEAD_BYTES];
        let kinds = [
            ContentType::ApplicationData,
            ContentType::ApplicationData,
            ContentType::Handshake,
            ContentType::Alert,
            ContentType::ChangeCipherSpec,
        ];
        match input.below(8) {
            0..5 => {
                let kind = input.pick(&kinds);
                let content = input.bytes();
                let bytes = self.peer.seal(kind, content, &mut record);
                record.truncate(bytes.expect("there is room"));
                if kind == ContentType::ApplicationData {
                    self.sent.extend_from_slice(content);
                }
                if input.one_in(8) {
                    let at = usize::from(input.u16()) % record.len();
                    record[at] ^= input.u8();
                }
            }
            5 => {
                let message = [24, 0, 0, 1, input.u8() % 2];
                let bytes = self
                    .peer
                    .seal(ContentType::Handshake, &message, &mut record);
                record.truncate(bytes.expect("there is room"));
                self.peer.update();
            }
            6 => record = input.bytes().to_vec(),
            _ => return self.send(input),
        }
        self.deliver(&record, 1 + input.below(256));
    }

    fn deliver(&mut self, mut bytes: &[u8], buffer_bytes: usize) {
        while !bytes.is_empty() {
            let room = self.channel.room();
            let now = room.len().min(bytes.len());
            assert!(now > 0, "there is room after everything was taken");
            room[..now].copy_from_slice(&bytes[..now]);
            self.channel.filled(now);
            bytes = &bytes[now..];
            self.take(buffer_bytes);
            if self.has_ended {
                return;
            }
        }
    }

    fn take(&mut self, buffer_bytes: usize) {
        let mut buffer = vec![0; buffer_bytes];
        loop {
            let has_more = self.channel.has_more();
            let buffers = &mut [IoSliceMut::new(&mut buffer)];
            let taken = match buffer_bytes % 2 {
                0 => self.channel.take(buffers),
                _ => self.channel.take_into_private(buffers),
            };
            match taken {
                Taken::Bytes(bytes) => {
                    assert!(has_more);
                    self.received.extend_from_slice(&buffer[..bytes]);
                    assert!(self.sent.starts_with(&self.received));
                }
                Taken::Nothing => return,
                Taken::Closed | Taken::Failed(_) => {
                    assert!(has_more);
                    self.has_ended = true;
                    return;
                }
            }
        }
    }

    /// The other direction works until the end.
    fn send(&mut self, input: &mut Input<'_>) {
        let data = input.bytes();
        let pieces = [IoSlice::new(data)];
        let mut unsealed = Unsealed::new(&pieces);
        self.channel.seal(&mut unsealed);
        assert!(unsealed.is_empty() && !self.channel.owes_update());
        let bytes = self.channel.unsent().len();
        assert!(bytes >= data.len());
        self.channel.sent(bytes);
    }
}
