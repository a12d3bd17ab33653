//! The protected byte stream of a connection: sealing, opening and key updates, with the buffers of
//! both directions.
//!
//! Data to send is sealed into the send buffer when that is empty, as many records as it holds.
//! Received records are opened in place in the receive buffer, and their content is copied to its
//! destination after its tag was verified, if the destination is a device. Into a buffer that nobody
//! else reads, a record is opened directly.

use std::fmt;
use std::io::IoSliceMut;
use std::ops::Range;

use arrayvec::ArrayVec;

use crate::post_handshake::{Control, ControlRecords, key_update};
use crate::record::{HEADER_BYTES, RECORD_BYTES_MAX, SEALED_OVERHEAD_BYTES};
use crate::{
    Alert, ContentType, Opener, PLAINTEXT_BYTES_MAX, RECORDS_PER_KEY_MAX, Sealer, TrafficSecret,
    Unsealed, record_body_bytes,
};

/// Records of full size that the send buffer holds.
const SEND_RECORDS: usize = 4;
/// Room in the send buffer for a KeyUpdate before the data, and an alert behind it.
const CONTROL_BYTES: usize = 2 * (SEALED_OVERHEAD_BYTES + 5);
/// The part of the send buffer for data, in bytes.
const SEND_DATA_BYTES: usize = SEND_RECORDS * (PLAINTEXT_BYTES_MAX + SEALED_OVERHEAD_BYTES);
/// Bytes of the send buffer.
const SEND_BUFFER_BYTES: usize = SEND_DATA_BYTES + CONTROL_BYTES;
/// Bytes of the receive buffer: at least one record.
const RECEIVE_BUFFER_BYTES: usize = 4 * RECORD_BYTES_MAX;
/// Records that one key seals before this side updates it. Below the limit, so that a KeyUpdate
/// and an alert can always be sealed.
const RECORDS_BEFORE_UPDATE: u64 = 1 << 24;

/// Records that are opened before their data is taken.
const OPENED_MAX: usize = 32;

/// Memory of a channel's buffers, in bytes.
pub const CHANNEL_BYTES: usize = SEND_BUFFER_BYTES + RECEIVE_BUFFER_BYTES;

const _: () = assert!(RECORDS_BEFORE_UPDATE + SEND_RECORDS as u64 + 2 < RECORDS_PER_KEY_MAX);

/// The side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The target.
    Server,
    /// The host.
    Client,
}

/// Why a channel has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The peer has sent something invalid. The alert is queued.
    #[error("the peer violates TLS: {0}")]
    Violation(Alert),
    /// The peer has ended the connection with an alert.
    #[error("the peer has ended the connection: {0}")]
    Reported(Alert),
}

/// The result of taking received data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// Number of bytes, at least one.
    Bytes(usize),
    /// More has to be received first.
    Nothing,
    /// The peer has closed its sending side.
    Closed,
    /// The connection has ended.
    Failed(Failure),
}

/// Whether more can be received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Receiving {
    Open,
    Closed,
    Failed(Failure),
}

/// Whether more can be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sending {
    Open,
    /// An alert was sealed, and nothing may follow it.
    Closed,
}

/// One side of a protected connection.
pub struct Channel {
    sealer: Sealer,
    opener: Opener,
    controls: ControlRecords,
    receiving: Receiving,
    sending: Sending,
    /// The peer has asked for a KeyUpdate that is not sealed yet.
    owes_update: bool,
    received: Box<[u8]>,
    /// Received bytes that were not opened.
    unopened: Range<usize>,
    /// Opened data that was not taken, of each record, in front of them.
    opened: ArrayVec<Range<usize>, OPENED_MAX>,
    to_send: Box<[u8]>,
    unsent: Range<usize>,
    updates: Updates,
}

/// Without the data in its buffers.
impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel")
            .field("receiving", &self.receiving)
            .field("sending", &self.sending)
            .field("updates", &self.updates)
            .finish_non_exhaustive()
    }
}

/// Key updates of a channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Updates {
    pub(crate) sent: u64,
    pub(crate) received: u64,
}

impl Channel {
    /// A channel directly after the handshake. Allocates its buffers.
    #[must_use]
    pub fn new(role: Role, send: TrafficSecret, receive: TrafficSecret) -> Self {
        Self {
            sealer: Sealer::new(send),
            opener: Opener::new(receive),
            controls: ControlRecords::new(role),
            receiving: Receiving::Open,
            sending: Sending::Open,
            owes_update: false,
            received: vec![0; RECEIVE_BUFFER_BYTES].into(),
            unopened: 0..0,
            opened: ArrayVec::new(),
            to_send: vec![0; SEND_BUFFER_BYTES].into(),
            unsent: 0..0,
            updates: Updates::default(),
        }
    }

    /// Sealed bytes to be sent.
    #[must_use]
    pub fn unsent(&self) -> &[u8] {
        &self.to_send[self.unsent.clone()]
    }

    /// The first `bytes` of [`unsent`](Self::unsent) were sent.
    pub fn sent(&mut self, bytes: usize) {
        self.unsent.start += bytes;
        debug_assert!(self.unsent.start <= self.unsent.end);
    }

    /// Whether [`seal`](Self::seal) would seal something without data.
    #[must_use]
    pub const fn owes_update(&self) -> bool {
        self.owes_update
    }

    /// Seals the next bytes of `data` if the send buffer is empty, as many as it holds, and a
    /// KeyUpdate before them if one is due. Seals nothing after an alert.
    pub fn seal(&mut self, data: &mut Unsealed<'_>) {
        if !self.unsent.is_empty() || self.sending == Sending::Closed {
            return;
        }
        self.unsent = 0..0;
        if self.owes_update || self.sealer.sequence() >= RECORDS_BEFORE_UPDATE {
            self.owes_update = false;
            self.push(ContentType::Handshake, &key_update(false));
            self.sealer.update();
            self.updates.sent += 1;
        }
        let limit = self.unsent.end + SEND_DATA_BYTES;
        while let Some(bytes) = self
            .sealer
            .seal_data(data, &mut self.to_send[self.unsent.end..limit])
        {
            self.unsent.end += bytes;
        }
    }

    /// Seals the last record of this side: that it sends no more data.
    pub fn close(&mut self) {
        self.send_alert(Alert::CLOSE_NOTIFY);
    }

    fn send_alert(&mut self, alert: Alert) {
        if self.sending == Sending::Open {
            self.sending = Sending::Closed;
            self.push(ContentType::Alert, &alert.message());
        }
    }

    fn push(&mut self, kind: ContentType, content: &[u8]) {
        let room = &mut self.to_send[self.unsent.end..];
        let sealed = self.sealer.seal(kind, content, room);
        debug_assert!(sealed.is_some(), "there is room for control records");
        self.unsent.end += sealed.unwrap_or(0);
    }

    /// Space for received bytes. It is empty only if opened data has to be taken first.
    pub fn room(&mut self) -> &mut [u8] {
        let unopened = &mut self.unopened;
        let used_from = self.opened.first().map_or(unopened.start, |it| it.start);
        if used_from == unopened.end {
            *unopened = 0..0;
        } else if used_from > 0 && self.received.len() - unopened.end < RECORD_BYTES_MAX {
            self.received.copy_within(used_from..unopened.end, 0);
            for range in self.opened.iter_mut().chain([unopened]) {
                *range = range.start - used_from..range.end - used_from;
            }
        }
        &mut self.received[self.unopened.end..]
    }

    /// Records that `bytes` were received into the room.
    pub fn filled(&mut self, bytes: usize) {
        self.unopened.end += bytes;
        debug_assert!(self.unopened.end <= self.received.len());
    }

    /// Whether [`take`](Self::take) returns something else than [`Taken::Nothing`] without more
    /// received bytes.
    #[must_use]
    pub fn has_more(&self) -> bool {
        !self.opened.is_empty()
            || self.receiving != Receiving::Open
            || !matches!(self.next_record(), Ok(None))
    }

    /// The end of the next record; `None` until it is complete.
    fn next_record(&self) -> Result<Option<usize>, Alert> {
        let unopened = &self.received[self.unopened.clone()];
        let Some(header) = unopened.first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        let bytes = HEADER_BYTES + record_body_bytes(*header)?;
        Ok((unopened.len() >= bytes).then_some(self.unopened.start + bytes))
    }

    /// Opens received records and moves their data into `buffers`, until these are full or no
    /// complete record is left. The buffers receive verified data only.
    pub fn take(&mut self, buffers: &mut [IoSliceMut<'_>]) -> Taken {
        self.fill(buffers, |_, _| None)
    }

    /// Like [`take`](Self::take), into buffers that nobody else reads: records are opened directly
    /// into them where they have room. Bytes behind the taken ones may be overwritten, also with data
    /// that turned out to be forged.
    pub fn take_into_private(&mut self, buffers: &mut [IoSliceMut<'_>]) -> Taken {
        self.fill(buffers, Self::open_into)
    }

    /// Takes data: that of records which `open_into` opens there, and of others from where they are.
    fn fill(
        &mut self,
        buffers: &mut [IoSliceMut<'_>],
        open_into: impl Fn(&mut Self, &mut [u8]) -> Option<usize>,
    ) -> Taken {
        let mut taken = 0;
        for buffer in buffers {
            let mut filled = 0;
            while filled < buffer.len() {
                if self.opened.is_empty() {
                    if let Some(bytes) = open_into(self, &mut buffer[filled..]) {
                        filled += bytes;
                        continue;
                    }
                    if !self.open_data() {
                        return self.taken(taken + filled);
                    }
                }
                let first = &mut self.opened[0];
                let bytes = first.len().min(buffer.len() - filled);
                let content = &self.received[first.start..first.start + bytes];
                buffer[filled..filled + bytes].copy_from_slice(content);
                first.start += bytes;
                filled += bytes;
                if first.start == first.end {
                    self.opened.remove(0);
                }
            }
            taken += filled;
        }
        self.taken(taken)
    }

    /// Opens received records without taking their data. Returns the bytes that
    /// [`take`](Self::take) will return at least, as far as its buffers hold them.
    pub fn open_ahead(&mut self) -> usize {
        while !self.opened.is_full() && self.open_data() {}
        self.opened.iter().map(Range::len).sum()
    }

    fn taken(&self, bytes: usize) -> Taken {
        match self.receiving {
            _ if bytes > 0 => Taken::Bytes(bytes),
            Receiving::Open => Taken::Nothing,
            Receiving::Closed => Taken::Closed,
            Receiving::Failed(failure) => Taken::Failed(failure),
        }
    }

    /// Opens records until one has data. Returns whether there is such a record.
    fn open_data(&mut self) -> bool {
        let before = self.opened.len();
        while self.receiving == Receiving::Open {
            let opened = match self.next_record() {
                Ok(None) => return false,
                Ok(Some(end)) => self.open_record(end),
                Err(alert) => Err(alert),
            };
            match opened {
                Ok(()) if self.opened.len() == before => {}
                Ok(()) => return true,
                Err(alert) => self.fail(alert),
            }
        }
        false
    }

    /// Opens the next record into `destination`. Returns the bytes of its data; `None` if there is no
    /// complete record, or no room for it.
    fn open_into(&mut self, destination: &mut [u8]) -> Option<usize> {
        if self.receiving != Receiving::Open {
            return None;
        }
        let Ok(Some(end)) = self.next_record() else {
            return None;
        };
        self.open_record_into(end, destination)
            .unwrap_or_else(|alert| {
                self.fail(alert);
                None
            })
    }

    /// Opens the record that ends at `end` into `destination`, and carries out what it says. Returns
    /// the bytes of its data; `None` if there is no room for it.
    fn open_record_into(
        &mut self,
        end: usize,
        destination: &mut [u8],
    ) -> Result<Option<usize>, Alert> {
        let record = &self.received[self.unopened.start..end];
        let Some((kind, bytes)) = self.opener.open_into(record, destination)? else {
            return Ok(None);
        };
        self.unopened.start = end;
        if kind == ContentType::ApplicationData {
            self.check_place_of_data()?;
            return Ok(Some(bytes));
        }
        let control = self.controls.read(kind, &destination[..bytes])?;
        self.carry_out(control);
        Ok(Some(0))
    }

    /// Opens the record that ends at `end`, and carries out what it says.
    fn open_record(&mut self, end: usize) -> Result<(), Alert> {
        let start = self.unopened.start;
        self.unopened.start = end;
        let (kind, content) = self.opener.open(&mut self.received[start..end])?;
        let content = start + content.start..start + content.end;
        if kind == ContentType::ApplicationData {
            self.check_place_of_data()?;
            if !content.is_empty() {
                self.opened.push(content);
            }
            return Ok(());
        }
        let control = self.controls.read(kind, &self.received[content])?;
        self.carry_out(control);
        Ok(())
    }

    /// # Errors
    ///
    /// Data interrupts a message (RFC 8446 §5.1).
    fn check_place_of_data(&self) -> Result<(), Alert> {
        match self.controls.is_within_message() {
            true => Err(Alert::UNEXPECTED_MESSAGE),
            false => Ok(()),
        }
    }

    fn carry_out(&mut self, control: Control) {
        match control {
            Control::Nothing => {}
            Control::KeyUpdate { requested } => {
                self.opener.update();
                self.updates.received += 1;
                self.owes_update |= requested;
            }
            Control::Closed => self.receiving = Receiving::Closed,
            Control::Reported(alert) => {
                self.receiving = Receiving::Failed(Failure::Reported(alert));
            }
        }
    }

    /// The peer has sent something invalid.
    fn fail(&mut self, alert: Alert) {
        self.receiving = Receiving::Failed(Failure::Violation(alert));
        self.send_alert(alert);
    }
}

#[cfg(test)]
mod tests;
