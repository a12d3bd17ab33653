//! The movement of one READ's or WRITE's data between memory and a device, in pieces of whole
//! blocks.

use block::{DeviceError, DeviceSet, Operation, Request};
use files_server::Resumption;
use files_store::limits::BLOCK_BYTES;
use files_store::{MovePiece, Range};
use hugemem::{Data, Lease, Pool};

use crate::core::DeviceOfVolume;
use crate::limits::{PIECE_BYTES_MAX, REPEATS_MAX};
use crate::payloads::{PayloadPart, Payloads};

/// The bytes of holes in files.
pub(crate) static ZEROES: [u8; PIECE_BYTES_MAX] = [0; PIECE_BYTES_MAX];

/// The device of a volume.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Device {
    /// Its place in the reactor's devices.
    pub(crate) place: usize,
    /// Size of its blocks in bytes as a power of two; divides that of the volume's blocks.
    block_shift: u32,
    /// Limit of a request in bytes, a multiple of the volume's blocks.
    pub(crate) piece_bytes: u64,
    /// Whether the volume is durable, so that it can be opened again when the device was gone.
    may_return: bool,
    /// Whether a flush that a reset has interrupted is repeated.
    pub(crate) keeps_cache: bool,
    /// Whether it can lend its memory.
    pub(crate) lends: bool,
}

impl Device {
    pub(crate) fn new(
        device: &DeviceOfVolume,
        transfer_bytes: usize,
        may_return: bool,
        set: &DeviceSet,
    ) -> Self {
        let piece = transfer_bytes.min(PIECE_BYTES_MAX) as u64;
        Self {
            place: device.place,
            block_shift: device.block_bytes.trailing_zeros(),
            piece_bytes: (piece / BLOCK_BYTES).max(1) * BLOCK_BYTES,
            may_return,
            keeps_cache: device.keeps_cache,
            lends: set.can_borrow_read(device.place, 0, 1),
        }
    }

    /// Size of its blocks in bytes.
    #[inline]
    pub(crate) fn block_bytes(&self) -> u64 {
        1 << self.block_shift
    }

    /// The first block and the number of blocks of `length` bytes from the byte `at` on.
    #[inline]
    pub(crate) fn blocks(&self, at: u64, length: usize) -> (u64, u32) {
        let blocks = length as u64 >> self.block_shift;
        (at >> self.block_shift, blocks as u32)
    }
}

/// Where a piece is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Nothing was submitted.
    Waiting,
    /// The old content of a partly written block is being read.
    ReadingOld,
    /// The old content is in the lease, if it is needed. The client has the data.
    MustFetch,
    /// The data are being read from the memory of the client.
    Fetching,
    /// The old content or the data are in the lease.
    MustWrite,
    /// Its last request is in the device.
    Moving,
    /// A read was interrupted: it must be submitted again.
    MustRead,
    /// It has ended.
    Done,
}

/// Whole blocks of the device, and the part of them that is data of the request.
#[derive(Debug)]
pub(crate) struct Piece {
    /// First byte on the device; `None` for zeroes.
    device: Option<u64>,
    /// Length on the device in bytes.
    length: usize,
    /// Where the data begin within the piece.
    skip: usize,
    /// Length of the data in bytes.
    data_length: usize,
    /// Where the data of a write begin within the payload.
    data_at: usize,
    /// First byte on the device of old content to keep.
    keep: Option<u64>,
    stage: Stage,
    /// How often requests were interrupted.
    repeats: u8,
    lease: Option<Lease>,
}

/// What moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Read,
    Write(Source),
}

/// Where the payload of a write is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// It begins here in the record.
    Record(usize),
    /// In memory of the client.
    Client,
}

/// Lets the device lend the data of these ranges, and appends them to the payloads. Returns the
/// length of what is lent in bytes, or `None` if the device does not lend all of it.
#[inline]
pub(crate) fn lend(
    device: &Device,
    ranges: &[Range],
    set: &DeviceSet,
    payloads: &mut Payloads,
) -> Option<usize> {
    let mut bytes = 0;
    for range in ranges {
        let mut done = 0;
        while done < range.length {
            let span = Span::of_range(device, range, done);
            done += span.data_length as u64;
            bytes += span.length;
            let data = match span.device {
                Some(begin) => {
                    let (lba, blocks) = device.blocks(begin, span.length);
                    Some(Data::Borrow(set.borrow_read(device.place, lba, blocks)?))
                }
                None => None,
            };
            payloads.push(PayloadPart {
                data,
                skip: span.skip,
                length: span.data_length,
            });
        }
    }
    Some(bytes)
}

/// Whole blocks of the device, and the part of them that is data of a read.
#[derive(Clone, Copy)]
struct Span {
    /// First byte on the device; `None` for zeroes.
    device: Option<u64>,
    /// Length on the device in bytes.
    length: usize,
    /// Where the data begin.
    skip: usize,
    /// Length of the data in bytes.
    data_length: usize,
}

impl Span {
    /// What one request can read behind the first `done` bytes of a range.
    #[inline]
    fn of_range(device: &Device, range: &Range, done: u64) -> Self {
        let rest = range.length - done;
        let Some(begin) = range.device else {
            return Self {
                device: None,
                length: 0,
                skip: 0,
                data_length: rest.min(PIECE_BYTES_MAX as u64) as usize,
            };
        };
        let begin = begin + done;
        let block_mask = device.block_bytes() - 1;
        let skip = begin & block_mask;
        let data = rest.min(device.piece_bytes - skip);
        Self {
            device: Some(begin - skip),
            length: ((skip + data + block_mask) & !block_mask) as usize,
            skip: skip as usize,
            data_length: data as usize,
        }
    }
}

/// A movement of data.
#[derive(Debug)]
pub(crate) struct Transfer {
    pub(crate) device: Device,
    direction: Direction,
    pieces: Vec<Piece>,
    next: usize,
    outstanding: usize,
    has_failed: bool,
    /// Whether the device is gone.
    is_gone: bool,
    /// Whether the data could not be read from the memory of the client.
    has_lost_data: bool,
    /// Whether a read may borrow the device's memory, or a device may take the data of a write from
    /// where they are.
    pub(crate) may_borrow: bool,
    /// Bytes that were copied from the device's own memory, or into memory for it.
    copied_bytes: u64,
}

/// The next thing to do.
#[derive(Debug)]
pub(crate) enum Next {
    /// Submit a request for the piece with this index.
    Submit(usize, Request),
    /// Read data from the memory of the client for the piece with this index.
    Fetch(usize, Fetching),
    /// Memory is needed.
    AwaitMemory,
    /// Requests must end first.
    AwaitDevice,
    /// Everything has ended.
    Ended(Resumption),
}

/// Data that are to be read from the memory of the client.
#[derive(Debug)]
pub(crate) struct Fetching {
    pub(crate) lease: Lease,
    /// Where in the lease the data belong.
    pub(crate) skip: usize,
    /// Where in the payload they begin.
    pub(crate) data_at: usize,
    pub(crate) length: usize,
}

impl Transfer {
    /// A read of these ranges, in unused memory.
    #[inline]
    pub(crate) fn read(
        device: Device,
        ranges: &[Range],
        may_borrow: bool,
        mut pieces: Vec<Piece>,
    ) -> Self {
        for range in ranges {
            let mut done = 0;
            while done < range.length {
                let piece = Piece::of_span(Span::of_range(&device, range, done));
                done += piece.data_length as u64;
                pieces.push(piece);
            }
        }
        Self {
            may_borrow,
            ..Self::new(device, Direction::Read, pieces)
        }
    }

    /// A write of a payload, in unused memory.
    pub(crate) fn write(
        device: Device,
        plan: &[MovePiece],
        source: Source,
        mut pieces: Vec<Piece>,
    ) -> Self {
        let mut data_at = 0;
        for whole in plan {
            let mut done = 0;
            while done < whole.length {
                let length = (whole.length - done).min(device.piece_bytes);
                // A piece of several blocks has data in all of them.
                let is_one = length == whole.length;
                let data_length = if is_one { whole.data_length } else { length } as usize;
                pieces.push(Piece {
                    device: Some(whole.device + done),
                    length: length as usize,
                    skip: if is_one { whole.data_at as usize } else { 0 },
                    data_length,
                    data_at,
                    keep: whole.keep,
                    stage: Stage::Waiting,
                    repeats: 0,
                    lease: None,
                });
                data_at += data_length;
                done += length;
            }
        }
        Self {
            may_borrow: true,
            ..Self::new(device, Direction::Write(source), pieces)
        }
    }

    fn new(device: Device, direction: Direction, pieces: Vec<Piece>) -> Self {
        Self {
            device,
            direction,
            pieces,
            next: 0,
            outstanding: 0,
            has_failed: false,
            is_gone: false,
            has_lost_data: false,
            may_borrow: false,
            copied_bytes: 0,
        }
    }

    /// Frees its data. Returns its memory.
    pub(crate) fn into_unused(self) -> Vec<Piece> {
        let mut pieces = self.pieces;
        pieces.clear();
        pieces
    }

    pub(crate) fn is_read(&self) -> bool {
        self.direction == Direction::Read
    }

    /// Bytes of the device that a read keeps in memory until it is sent.
    pub(crate) fn read_bytes(&self) -> usize {
        let pieces = self.pieces.iter().filter(|it| it.device.is_some());
        pieces.map(|it| it.length).sum()
    }

    /// Lets the device take whole pieces of a write from the record, until it refuses one. Returns the
    /// number of bytes.
    pub(crate) fn write_inline(&mut self, set: &DeviceSet, record: &[u8]) -> u64 {
        let Direction::Write(Source::Record(payload_at)) = self.direction else {
            return 0;
        };
        let device = self.device;
        let mut written = 0;
        while let Some(piece) = self.pieces.get_mut(self.next) {
            let is_whole = piece.keep.is_none() && piece.data_length == piece.length;
            if piece.stage != Stage::Waiting || !is_whole {
                break;
            }
            let data = &record[payload_at + piece.data_at..][..piece.length];
            let (lba, _) = device.blocks(piece.device.unwrap_or_default(), piece.length);
            if !set.write_inline(device.place, lba, data) {
                break;
            }
            piece.stage = Stage::Done;
            written += piece.length as u64;
            self.next += 1;
        }
        written
    }

    /// Bytes that were copied from the device's own memory, or into memory for it.
    pub(crate) fn copied_bytes(&self) -> u64 {
        self.copied_bytes
    }

    /// Takes the memory of all pieces of a read, or nothing: a read that waited for memory while it
    /// holds some could wait for another one that does the same.
    pub(crate) fn reserve(&mut self, pool: &Pool) -> bool {
        let needs_memory = |it: &&mut Piece| it.device.is_some() && it.lease.is_none();
        for piece in self.pieces.iter_mut().filter(needs_memory) {
            piece.lease = pool.take(piece.length);
            if piece.lease.is_none() {
                for piece in &mut self.pieces {
                    piece.lease = None;
                }
                return false;
            }
        }
        true
    }

    /// The next thing to do, while fewer than `outstanding_max` requests are in the device.
    pub(crate) fn next(
        &mut self,
        record: &[u8],
        pool: &Pool,
        outstanding_max: usize,
        can_borrow: impl Fn(u64, u32) -> bool,
    ) -> Next {
        if self.has_failed {
            return match self.outstanding {
                0 if self.has_lost_data => Next::Ended(Resumption::DataLost),
                0 if self.is_gone => Next::Ended(Resumption::DeviceGone),
                0 => Next::Ended(Resumption::DeviceFailed),
                _ => Next::AwaitDevice,
            };
        }
        if self.outstanding >= outstanding_max {
            return Next::AwaitDevice;
        }
        let begun = |it: &Piece| {
            matches!(
                it.stage,
                Stage::MustFetch | Stage::MustWrite | Stage::MustRead
            )
        };
        let merged = self.pieces.iter().position(begun);
        while merged.is_none() && self.next < self.pieces.len() {
            if self.pieces[self.next].stage == Stage::Waiting {
                break;
            }
            self.next += 1;
        }
        let index = merged.unwrap_or(self.next);
        if index == self.pieces.len() {
            return match self.outstanding {
                0 => Next::Ended(Resumption::Done),
                _ => Next::AwaitDevice,
            };
        }
        let device = self.device;
        let piece = &mut self.pieces[index];
        let request = match self.direction {
            Direction::Read => piece.read_request(&device, can_borrow),
            Direction::Write(source) => {
                if piece.lease.is_none() {
                    piece.lease = pool.take(piece.length);
                }
                if piece.lease.is_none() {
                    return match self.outstanding {
                        0 => Next::AwaitMemory,
                        _ => Next::AwaitDevice,
                    };
                }
                match (source, piece.stage, piece.keep) {
                    (_, Stage::Waiting | Stage::MustRead, Some(keep)) => {
                        piece.old_request(&device, keep, can_borrow)
                    }
                    (Source::Client, Stage::Waiting | Stage::MustFetch, _) => {
                        let Some(fetching) = piece.fetch() else {
                            return Next::AwaitMemory;
                        };
                        self.outstanding += 1;
                        return Next::Fetch(index, fetching);
                    }
                    (Source::Client, ..) => piece.write_request(&device, can_borrow),
                    (Source::Record(payload_at), ..) => {
                        self.copied_bytes += piece.data_length as u64;
                        piece.merge(&record[payload_at..]);
                        piece.write_request(&device, can_borrow)
                    }
                }
            }
        };
        self.outstanding += 1;
        Next::Submit(index, request)
    }

    /// The device refused a request.
    pub(crate) fn refused(&mut self, error: DeviceError) {
        self.outstanding -= 1;
        self.fail(error);
    }

    /// The device was removed: its requests do not complete.
    pub(crate) fn abandon(&mut self) {
        self.outstanding = 0;
        self.lose();
    }

    /// The device is gone: nothing more is submitted.
    pub(crate) fn lose(&mut self) {
        self.has_failed = true;
        self.is_gone = self.device.may_return;
    }

    fn fail(&mut self, error: DeviceError) {
        self.has_failed = true;
        let is_gone = error == DeviceError::Removed || is_interruption(error);
        self.is_gone |= is_gone && self.device.may_return;
    }

    /// A request of a piece has completed.
    pub(crate) fn completed(
        &mut self,
        index: usize,
        result: Result<(), DeviceError>,
        data: Option<Data>,
    ) {
        let Some(piece) = self.pieces.get_mut(index) else {
            return;
        };
        self.outstanding = self.outstanding.saturating_sub(1);
        let is_kept = self.direction == Direction::Read || piece.stage == Stage::ReadingOld;
        if result.is_err_and(is_interruption)
            && piece.repeats < REPEATS_MAX
            && let Some(Data::Lease(lease)) = data
        {
            piece.repeats += 1;
            piece.lease = Some(lease);
            piece.stage = if is_kept {
                Stage::MustRead
            } else {
                Stage::MustWrite
            };
            return;
        }
        match data {
            // The RAM device must not wait for a client that does not read its reply.
            Some(Data::Borrow(borrow)) => match &mut piece.lease {
                Some(lease) => {
                    lease.copy_from_slice(&borrow);
                    self.copied_bytes += lease.len() as u64;
                }
                None => self.has_failed = true,
            },
            Some(Data::Lease(lease)) if is_kept => piece.lease = Some(lease),
            _ => {}
        }
        piece.stage = match (piece.stage, self.direction) {
            (Stage::ReadingOld, Direction::Write(Source::Client)) => Stage::MustFetch,
            (Stage::ReadingOld, _) => Stage::MustWrite,
            _ => Stage::Done,
        };
        let lacks_data = is_kept && piece.lease.is_none();
        match result {
            Ok(()) => self.has_failed |= lacks_data,
            Err(error) => self.fail(error),
        }
    }

    /// The reading of data from the memory of the client has ended. Without its lease it has failed.
    /// Returns the number of bytes.
    pub(crate) fn fetched(&mut self, index: usize, lease: Option<Lease>) -> usize {
        let piece = self.pieces.get_mut(index);
        let Some(piece) = piece.filter(|it| it.stage == Stage::Fetching) else {
            return 0;
        };
        self.outstanding = self.outstanding.saturating_sub(1);
        let is_lost = lease.is_none();
        (piece.lease, piece.stage) = (lease, Stage::MustWrite);
        self.has_lost_data |= is_lost;
        self.has_failed |= is_lost;
        if is_lost { 0 } else { piece.data_length }
    }

    /// Takes the data of a read, piece by piece.
    pub(crate) fn take_parts(&mut self) -> impl Iterator<Item = PayloadPart> {
        self.pieces.iter_mut().map(|piece| PayloadPart {
            data: piece.lease.take().map(Data::Lease),
            skip: piece.skip,
            length: piece.data_length,
        })
    }
}

/// Whether the device may execute the request when it gets it again: it was reset, or the request
/// took too long. No earlier one is executed any more.
pub(crate) fn is_interruption(error: DeviceError) -> bool {
    matches!(error, DeviceError::Interrupted | DeviceError::Aborted)
}

impl Piece {
    /// A piece of a read.
    fn of_span(span: Span) -> Self {
        Self {
            device: span.device,
            length: span.length,
            skip: span.skip,
            data_length: span.data_length,
            data_at: 0,
            keep: None,
            stage: match span.device {
                Some(_) => Stage::Waiting,
                None => Stage::Done,
            },
            repeats: 0,
            lease: None,
        }
    }

    /// A request for the blocks from a byte of the device on. A read that the device lends needs no
    /// lease.
    fn request(
        &mut self,
        device: &Device,
        operation: Operation,
        at: u64,
        can_borrow: impl Fn(u64, u32) -> bool,
    ) -> Request {
        let (lba, blocks) = device.blocks(at, self.length);
        let lends = operation == Operation::Read && can_borrow(lba, blocks);
        Request {
            tag: 0,
            operation,
            lba,
            blocks,
            data: if lends { None } else { self.lease.take() },
        }
    }

    fn read_request(&mut self, device: &Device, can_borrow: impl Fn(u64, u32) -> bool) -> Request {
        self.stage = Stage::Moving;
        let at = self.device.unwrap_or_default();
        self.request(device, Operation::Read, at, can_borrow)
    }

    /// Reads old content, of which a part is kept.
    fn old_request(
        &mut self,
        device: &Device,
        keep: u64,
        can_borrow: impl Fn(u64, u32) -> bool,
    ) -> Request {
        self.stage = Stage::ReadingOld;
        self.request(device, Operation::Read, keep, can_borrow)
    }

    /// Clears what other requests had in memory that the data do not fill.
    fn clear(&mut self) {
        if let Some(lease) = &mut self.lease
            && self.keep.is_none()
            && self.data_length < self.length
        {
            lease.fill(0);
        }
    }

    /// Copies the data into the lease.
    fn merge(&mut self, payload: &[u8]) {
        self.clear();
        if let Some(lease) = &mut self.lease {
            let data = &payload[self.data_at..][..self.data_length];
            lease[self.skip..][..self.data_length].copy_from_slice(data);
        }
    }

    /// Gives the lease away for the data.
    fn fetch(&mut self) -> Option<Fetching> {
        self.clear();
        let lease = self.lease.take()?;
        self.stage = Stage::Fetching;
        Some(Fetching {
            lease,
            skip: self.skip,
            data_at: self.data_at,
            length: self.data_length,
        })
    }

    fn write_request(&mut self, device: &Device, can_borrow: impl Fn(u64, u32) -> bool) -> Request {
        self.stage = Stage::Moving;
        let at = self.device.unwrap_or_default();
        self.request(device, Operation::Write { fua: false }, at, can_borrow)
    }
}
