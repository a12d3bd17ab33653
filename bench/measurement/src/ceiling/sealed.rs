//! Both ends of a pair that transfers the same bytes in TLS records. They seal and open the records
//! with the same library as target and host, and do nothing else with them: what is received is
//! opened in place, and stays there.

use std::io::{self, IoSlice};
use std::net::TcpStream;
use std::ops::Range;

use nvme_tls::{
    HEADER_BYTES as RECORD_HEADER_BYTES, Opener, PLAINTEXT_BYTES_MAX, RECORD_BYTES_MAX,
    SEALED_OVERHEAD_BYTES, Sealer, Suite, TrafficSecret, Unsealed, record_body_bytes,
};

use super::ends::{Counting, Cycle, Progress, drop_sent, receive, send};
use super::passes::Passes;
use super::{
    CeilingError, CeilingMeasurement, CeilingOptions, DataLocation, HEADER_BYTES, REQUEST_BYTES,
    WINDOW_MAX,
};
use crate::ceiling::busy_time::BusyTime;
use bench::random::Random;

/// Records of full size that are sealed before they are sent: the ciphertext stays in the cache.
const SEND_RECORDS: usize = 4;
/// Bytes of both buffers of a connection.
const SEALED_BYTES: usize = SEND_RECORDS * (PLAINTEXT_BYTES_MAX + SEALED_OVERHEAD_BYTES);
const RECEIVED_BYTES: usize = 4 * RECORD_BYTES_MAX;

/// A record that cannot be opened, which a pair does not send.
const NOT_OPENED: &str = "a record of the pair cannot be opened";

/// The secrets of the two directions. They protect nothing but measurements.
fn secrets() -> [TrafficSecret; 2] {
    [1, 2].map(|byte| {
        let suite = Suite::Aes128GcmSha256;
        TrafficSecret::new(suite, &[byte; 32]).expect("the length fits")
    })
}

/// One end of a connection.
struct SealedEnd<'a> {
    socket: &'a TcpStream,
    sealer: Sealer,
    opener: Opener,
    received: Box<[u8]>,
    /// Received bytes of records that are not complete.
    unopened: Range<usize>,
    sealed: Box<[u8]>,
    unsent: Range<usize>,
    /// What is to be sealed.
    queue: Vec<IoSlice<'a>>,
}

impl<'a> SealedEnd<'a> {
    fn new(socket: &'a TcpStream, [send, receive]: [TrafficSecret; 2]) -> Self {
        Self {
            socket,
            sealer: Sealer::new(send),
            opener: Opener::new(receive),
            received: vec![0; RECEIVED_BYTES].into(),
            unopened: 0..0,
            sealed: vec![0; SEALED_BYTES].into(),
            unsent: 0..0,
            queue: Vec::with_capacity(2 * WINDOW_MAX),
        }
    }

    /// Receives once, and opens all complete records. Returns whether something was received, and the
    /// opened bytes.
    fn receive(&mut self) -> io::Result<(bool, usize)> {
        if self.unopened.is_empty() {
            self.unopened = 0..0;
        } else if self.received.len() - self.unopened.end < RECORD_BYTES_MAX {
            self.received.copy_within(self.unopened.clone(), 0);
            self.unopened = 0..self.unopened.len();
        }
        let bytes = receive(self.socket, &mut self.received[self.unopened.end..])?;
        self.unopened.end += bytes;
        let mut opened = 0;
        let failed = |_| io::Error::other(NOT_OPENED);
        loop {
            let unopened = &mut self.received[self.unopened.clone()];
            let Some(header) = unopened.first_chunk::<RECORD_HEADER_BYTES>() else {
                break;
            };
            let record = RECORD_HEADER_BYTES + record_body_bytes(*header).map_err(failed)?;
            let Some(record) = unopened.get_mut(..record) else {
                break;
            };
            let (_, content) = self.opener.open(record).map_err(failed)?;
            self.unopened.start += record.len();
            opened += content.len();
        }
        Ok((bytes > 0, opened))
    }

    /// Seals and sends until the socket takes no more. Returns whether there was something to send.
    fn send(&mut self) -> io::Result<bool> {
        let had_some = !self.queue.is_empty() || !self.unsent.is_empty();
        loop {
            let unsent = &self.sealed[self.unsent.clone()];
            self.unsent.start += send(self.socket, unsent, unsent.len())?;
            if !self.unsent.is_empty() || self.queue.is_empty() {
                return Ok(had_some);
            }
            self.unsent = 0..0;
            let mut data = Unsealed::new(&self.queue);
            while let Some(bytes) = self
                .sealer
                .seal_data(&mut data, &mut self.sealed[self.unsent.end..])
            {
                self.unsent.end += bytes;
            }
            let bytes = data.sealed_bytes();
            if bytes == 0 {
                return Err(io::Error::other("the key of the pair is used up"));
            }
            drop_sent(&mut self.queue, bytes);
        }
    }
}

/// Responds to each request with a header and a random block, sealed.
pub(super) fn respond(
    sockets: &[TcpStream],
    cycle: &Cycle,
    answers: &DataLocation,
    mut passes: Passes<'_>,
) -> Result<f64, CeilingError> {
    let header = [0x5a_u8; HEADER_BYTES];
    let block_bytes = cycle.target_messages[0].data;
    let hot_block;
    let borrow;
    let bytes: &[u8] = match answers {
        DataLocation::Memory(memory) => {
            borrow = memory.borrow_all();
            &borrow
        }
        DataLocation::HotBuffer => {
            hot_block = vec![0x5a_u8; block_bytes];
            &hot_block
        }
    };
    let blocks: Vec<&[u8]> = bytes.chunks_exact(block_bytes).collect();
    if blocks.is_empty() {
        return Err(CeilingError::too_small(bytes.len() as u64, block_bytes));
    }
    let mut random = Random::new(1);
    let [to_target, to_host] = secrets();
    let end = |socket| {
        let end = SealedEnd::new(socket, [to_host.clone(), to_target.clone()]);
        (end, Progress::default())
    };
    let mut ends: Vec<_> = sockets.iter().map(end).collect();
    while passes.continues() {
        let mut moved = false;
        for (end, progress) in &mut ends {
            let (received, opened) = end.receive()?;
            progress.advance(&cycle.host_messages, opened, |_| {
                let block = blocks[random.below(blocks.len() as u64) as usize];
                end.queue
                    .extend([IoSlice::new(&header), IoSlice::new(block)]);
            });
            moved |= received | end.send()?;
        }
        passes.ended(moved)?;
    }
    Ok(passes.busy_share())
}

/// Keeps the window full on every connection and counts responses.
pub(super) fn request(
    sockets: &[TcpStream],
    options: &CeilingOptions,
) -> Result<CeilingMeasurement, CeilingError> {
    let cycle = Cycle::of(options.exchange, options.window);
    let request = [0xa5_u8; REQUEST_BYTES];
    let [to_target, to_host] = secrets();
    let end = |socket| {
        let mut end = SealedEnd::new(socket, [to_target.clone(), to_host.clone()]);
        end.queue.resize(options.window, IoSlice::new(&request));
        (end, Progress::default())
    };
    let mut ends: Vec<_> = sockets.iter().map(end).collect();
    let mut clock = Counting::new(options, options.window * sockets.len() == 1);
    let mut busy_time = BusyTime::begin();
    loop {
        let mut moved = false;
        for (end, progress) in &mut ends {
            if !end.queue.is_empty() {
                clock.sent();
            }
            moved |= end.send()?;
            let (received, opened) = end.receive()?;
            moved |= received;
            progress.advance(&cycle.target_messages, opened, |_| {
                end.queue.push(IoSlice::new(&request));
                clock.completed();
            });
        }
        busy_time.end_pass(moved);
        if let Some(measured) = clock.tick() {
            return Ok(CeilingMeasurement {
                requester_busy_share: busy_time.busy_share(),
                ..measured
            });
        }
    }
}
