//! Data pointers: decodes PRPs and SGLs into pieces of memory, and checks every rule before any
//! data is transferred.

use nvme_spec::Status;
use nvme_spec::command::{PrpPair, Psdt, Sqe};
use nvme_spec::prp::PageSize;
use nvme_spec::sgl::{Sgl, SglDescriptor};
use zerocopy::{FromZeros, IntoBytes};

use super::bus::{Bus, Location};
use super::options::SglRules;

/// Largest transfer of a command in bytes if MDTS sets no limit.
pub(super) const TRANSFER_BYTES_MAX: usize = 16 << 20;

/// Maximum number of pieces of one transfer: one per page, and the two ends.
const PIECES_MAX: usize = TRANSFER_BYTES_MAX / 4096 + 2;

/// Maximum number of descriptors of one SGL, so that a circular list ends.
const DESCRIPTORS_MAX: usize = 4 * PIECES_MAX;

const DESCRIPTOR_BYTES: u32 = size_of::<SglDescriptor>() as u32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    address: u64,
    bytes: usize,
}

/// Rules for decoding a data pointer.
#[derive(Clone, Copy)]
pub(super) struct PointerRules {
    pub(super) page: PageSize,
    pub(super) sgl: SglRules,
}

/// The pieces of memory of one command, in the order of its data.
pub(super) struct Transfer {
    pieces: Vec<Piece>,
}

impl Transfer {
    /// Allocates room for the pieces of any command; nothing is allocated later.
    pub(super) fn new() -> Self {
        Self {
            pieces: Vec::with_capacity(PIECES_MAX),
        }
    }

    /// Decodes the data pointer of a command that transfers `bytes` bytes.
    ///
    /// # Errors
    /// The status of the command's completion.
    pub(super) fn gather(
        &mut self,
        bus: &Bus,
        sqe: &Sqe,
        bytes: usize,
        rules: PointerRules,
    ) -> Result<(), Status> {
        self.pieces.clear();
        match sqe.flags.psdt() {
            Psdt::PRP => self.gather_prp(bus, sqe.dptr.prp(), bytes, rules.page),
            Psdt::SGL if rules.sgl != SglRules::Unsupported => {
                self.gather_sgl(bus, sqe.dptr.sgl(), bytes, rules.sgl)
            }
            _ => Err(Status::INVALID_FIELD.with_dnr()),
        }
    }

    fn push(&mut self, bus: &Bus, address: u64, bytes: usize) -> Result<(), Status> {
        match bus.place(address, bytes) {
            Some(Location::Arena(_) | Location::Neighbour) => {}
            Some(Location::Controller(_)) if bus.holds_data => {}
            Some(Location::Controller(_)) => return Err(Status::INVALID_USE_OF_CMB.with_dnr()),
            None => return Err(Status::DATA_TRANSFER_ERROR),
        }
        if let Some(last) = self.pieces.last_mut()
            && last.address + last.bytes as u64 == address
            && bus.place(last.address, last.bytes + bytes).is_some()
        {
            last.bytes += bytes;
            return Ok(());
        }
        if self.pieces.len() == PIECES_MAX {
            return Err(Status::INVALID_NUMBER_OF_SGL_DESCRIPTORS.with_dnr());
        }
        self.pieces.push(Piece { address, bytes });
        Ok(())
    }

    /// Base 2.1 §4.3.1.
    fn gather_prp(
        &mut self,
        bus: &Bus,
        prp: PrpPair,
        bytes: usize,
        page: PageSize,
    ) -> Result<(), Status> {
        const OFFSET: Status = Status::PRP_OFFSET_INVALID.with_dnr();
        let (first, second) = (prp.prp1.get(), prp.prp2.get());
        if !page.is_valid_entry(first, true) {
            return Err(OFFSET);
        }
        let page_bytes = page.bytes() as usize;
        let in_first = bytes.min(page.rest(first) as usize);
        self.push(bus, first, in_first)?;
        let mut left = bytes - in_first;
        if left == 0 {
            return Ok(());
        }
        if left <= page_bytes {
            if !page.is_valid_entry(second, false) {
                return Err(OFFSET);
            }
            return self.push(bus, second, left);
        }
        if !second.is_multiple_of(8) {
            return Err(OFFSET);
        }
        let mut pointer = second;
        while left > 0 {
            let entry = read_entry(bus, pointer)?;
            if !page.is_valid_entry(entry, false) {
                return Err(OFFSET);
            }
            if page.list_entries_from(pointer) == 1 && left > page_bytes {
                pointer = entry;
                continue;
            }
            let here = left.min(page_bytes);
            self.push(bus, entry, here)?;
            left -= here;
            pointer += 8;
        }
        Ok(())
    }

    /// Base 2.1 §4.3.2. Checks lengths and then addresses, for the descriptors that are used.
    fn gather_sgl(
        &mut self,
        bus: &Bus,
        descriptor: SglDescriptor,
        bytes: usize,
        rules: SglRules,
    ) -> Result<(), Status> {
        const SEGMENT: Status = Status::INVALID_SGL_SEGMENT_DESCRIPTOR.with_dnr();
        let (address, length, mut is_last) = match descriptor.decode() {
            Sgl::Segment {
                address, length, ..
            } => (address, length, false),
            Sgl::LastSegment {
                address, length, ..
            } => (address, length, true),
            _ => {
                let left = self.gather_block(bus, descriptor, bytes, rules)?;
                return complete(left);
            }
        };
        let (mut address, mut length) = (address, length);
        let (mut left, mut seen) = (bytes, 0);
        loop {
            if length == 0 || !length.is_multiple_of(DESCRIPTOR_BYTES) {
                return Err(SEGMENT);
            }
            let count = length / DESCRIPTOR_BYTES;
            let mut next = None;
            for index in 0..count {
                seen += 1;
                if seen > DESCRIPTORS_MAX {
                    return Err(Status::INVALID_NUMBER_OF_SGL_DESCRIPTORS.with_dnr());
                }
                let at = address + u64::from(index * DESCRIPTOR_BYTES);
                let descriptor = read_descriptor(bus, at)?;
                let (to, bytes, last) = match descriptor.decode() {
                    Sgl::Segment {
                        address, length, ..
                    } => (address, length, false),
                    Sgl::LastSegment {
                        address, length, ..
                    } => (address, length, true),
                    _ => {
                        left = self.gather_block(bus, descriptor, left, rules)?;
                        continue;
                    }
                };
                if is_last {
                    return Err(SEGMENT);
                }
                if index + 1 != count {
                    return Err(Status::INVALID_NUMBER_OF_SGL_DESCRIPTORS.with_dnr());
                }
                next = Some((to, bytes, last));
            }
            match next {
                Some(next) => (address, length, is_last) = next,
                // A segment that is not the last one ends with a pointer to the next.
                None if !is_last => return Err(SEGMENT),
                None => return complete(left),
            }
        }
    }

    /// Adds a data block, the only supported descriptor type. Returns the number of bytes that
    /// remain.
    fn gather_block(
        &mut self,
        bus: &Bus,
        descriptor: SglDescriptor,
        left: usize,
        rules: SglRules,
    ) -> Result<usize, Status> {
        const LENGTH: Status = Status::DATA_SGL_LENGTH_INVALID.with_dnr();
        match descriptor.decode() {
            Sgl::DataBlock { address, length } => {
                let bytes = length as usize;
                if rules == SglRules::Dword
                    && !(address.is_multiple_of(4) && bytes.is_multiple_of(4))
                {
                    return Err(Status::SGL_DATA_BLOCK_GRANULARITY_INVALID.with_dnr());
                }
                if bytes > left {
                    return Err(LENGTH);
                }
                if bytes > 0 {
                    self.push(bus, address, bytes)?;
                }
                Ok(left - bytes)
            }
            _ => Err(Status::SGL_DESCRIPTOR_TYPE_INVALID.with_dnr()),
        }
    }

    /// Transfers bytes to the host.
    pub(super) fn send(&self, bus: &Bus, from: &[u8]) -> Result<(), Status> {
        let mut rest = from;
        for piece in &self.pieces {
            let (here, behind) = rest.split_at(piece.bytes.min(rest.len()));
            let written = bus.write(piece.address, here);
            written.ok_or(Status::DATA_TRANSFER_ERROR)?;
            rest = behind;
        }
        Ok(())
    }

    /// Transfers bytes from the host.
    pub(super) fn fetch(&self, bus: &Bus, into: &mut [u8]) -> Result<(), Status> {
        let mut rest = into;
        for piece in &self.pieces {
            let (here, behind) = rest.split_at_mut(piece.bytes.min(rest.len()));
            let read = bus.read(piece.address, here);
            read.ok_or(Status::DATA_TRANSFER_ERROR)?;
            rest = behind;
        }
        Ok(())
    }

    /// Transfers the bytes after the first `skip` ones from the host.
    pub(super) fn fetch_part(
        &self,
        bus: &Bus,
        mut skip: usize,
        into: &mut [u8],
    ) -> Result<(), Status> {
        let mut rest = into;
        for piece in &self.pieces {
            let skipped = skip.min(piece.bytes);
            skip -= skipped;
            let (here, behind) = rest.split_at_mut((piece.bytes - skipped).min(rest.len()));
            let read = bus.read(piece.address + skipped as u64, here);
            read.ok_or(Status::DATA_TRANSFER_ERROR)?;
            rest = behind;
        }
        Ok(())
    }

    /// Whether the host's data equals `other`.
    pub(super) fn equals(&self, bus: &Bus, other: &[u8]) -> Result<bool, Status> {
        const SPAN: usize = 512;
        let mut bytes = [0; SPAN];
        let mut rest = other;
        for piece in &self.pieces {
            let (here, behind) = rest.split_at(piece.bytes.min(rest.len()));
            for (index, span) in here.chunks(SPAN).enumerate() {
                let bytes = &mut bytes[..span.len()];
                let read = bus.read(piece.address + (index * SPAN) as u64, bytes);
                read.ok_or(Status::DATA_TRANSFER_ERROR)?;
                if bytes != span {
                    return Ok(false);
                }
            }
            rest = behind;
        }
        Ok(true)
    }
}

/// The descriptors have to cover the data exactly: longer ones are not supported.
fn complete(left: usize) -> Result<(), Status> {
    if left == 0 {
        Ok(())
    } else {
        Err(Status::DATA_SGL_LENGTH_INVALID.with_dnr())
    }
}

/// Lists in the controller memory buffer are not supported (CMBSZ.LISTS).
fn check_list(bus: &Bus, address: u64, bytes: usize) -> Result<(), Status> {
    match bus.place(address, bytes) {
        Some(Location::Arena(_)) => Ok(()),
        Some(Location::Controller(_)) => Err(Status::INVALID_USE_OF_CMB.with_dnr()),
        Some(Location::Neighbour) | None => Err(Status::DATA_TRANSFER_ERROR),
    }
}

fn read_entry(bus: &Bus, address: u64) -> Result<u64, Status> {
    let mut entry = [0; 8];
    check_list(bus, address, entry.len())?;
    let read = bus.read(address, &mut entry);
    read.ok_or(Status::DATA_TRANSFER_ERROR)?;
    Ok(u64::from_le_bytes(entry))
}

fn read_descriptor(bus: &Bus, address: u64) -> Result<SglDescriptor, Status> {
    let mut descriptor = SglDescriptor::new_zeroed();
    check_list(bus, address, size_of::<SglDescriptor>())?;
    let read = bus.read(address, descriptor.as_mut_bytes());
    read.ok_or(Status::DATA_TRANSFER_ERROR)?;
    Ok(descriptor)
}
