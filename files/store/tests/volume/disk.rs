//! A device that keeps only flushed writes through a power cut: of the others, any sectors, in any
//! order.

use files_store::{
    DiskCompletion, DiskRequest, FormatOptions, Formatter, OpenError, Opener, Opening, Operation,
    RequestId, Uuid, Volume,
};

use crate::random::Random;

pub(crate) const DEVICE_BYTES: u64 = 6 << 20;
pub(crate) const MEMORY_BYTES: u64 = 256 << 10;
const SECTOR: usize = 512;

struct Write {
    offset: usize,
    data: Vec<u8>,
    is_done: bool,
}

struct InFlight {
    id: RequestId,
    operation: Operation,
    /// The write, or the number of writes before a flush that had ended when it began.
    write: usize,
    covers: Vec<usize>,
}

/// The device.
pub(crate) struct Disk {
    durable: Vec<u8>,
    /// What a read returns.
    current: Vec<u8>,
    writes: Vec<Option<Write>>,
    in_flight: Vec<InFlight>,
}

impl Disk {
    pub(crate) fn new(content: Vec<u8>) -> Self {
        Self {
            current: content.clone(),
            durable: content,
            writes: Vec::new(),
            in_flight: Vec::new(),
        }
    }

    pub(crate) fn read(&self, offset: u64, length: u64) -> &[u8] {
        &self.current[offset as usize..][..length as usize]
    }

    /// A write of file data, which ends at once and is not flushed.
    pub(crate) fn write_data(&mut self, offset: u64, data: &[u8]) {
        let write = self.begin(offset as usize, data.to_vec());
        self.end(write);
    }

    fn begin(&mut self, offset: usize, data: Vec<u8>) -> usize {
        let is_done = false;
        self.writes.push(Some(Write {
            offset,
            data,
            is_done,
        }));
        self.writes.len() - 1
    }

    fn end(&mut self, write: usize) {
        let write = self.writes[write]
            .as_mut()
            .expect("not flushed before it ended");
        write.is_done = true;
        self.current[write.offset..][..write.data.len()].copy_from_slice(&write.data);
    }

    pub(crate) fn submit(&mut self, request: DiskRequest) {
        let write = match &request.operation {
            Operation::Write { offset, data } => self.begin(*offset as usize, data.clone()),
            _ => 0,
        };
        let done = |it: &Option<Write>| it.as_ref().is_some_and(|write| write.is_done);
        let covers = (0..self.writes.len())
            .filter(|&it| done(&self.writes[it]))
            .collect();
        self.in_flight.push(InFlight {
            id: request.id,
            operation: request.operation,
            write,
            covers,
        });
    }

    pub(crate) fn has_work(&self) -> bool {
        !self.in_flight.is_empty()
    }

    /// Ends any request in flight.
    pub(crate) fn complete(&mut self, random: &mut Random) -> DiskCompletion {
        let index = random.below(self.in_flight.len() as u64) as usize;
        let request = self.in_flight.swap_remove(index);
        let data = match request.operation {
            Operation::Read { offset, length } => self.read(offset, length as u64).to_vec(),
            Operation::Write { data, .. } => {
                self.end(request.write);
                data
            }
            Operation::Flush => {
                for write in request.covers {
                    if let Some(write) = self.writes[write].take() {
                        self.durable[write.offset..][..write.data.len()]
                            .copy_from_slice(&write.data);
                    }
                }
                Vec::new()
            }
        };
        let id = request.id;
        DiskCompletion {
            id,
            is_ok: true,
            data,
        }
    }

    /// What a power cut now leaves: of each write that was not flushed, any sectors, in any order.
    pub(crate) fn power_cut(&self, random: &mut Random) -> Vec<u8> {
        let mut content = self.durable.clone();
        let mut lost: Vec<&Write> = self.writes.iter().flatten().collect();
        for index in (1..lost.len()).rev() {
            // Writes to the same place keep their order as often as not.
            if random.one_in(2) {
                lost.swap(index, random.below(index as u64 + 1) as usize);
            }
        }
        let kept_in_8 = random.below(9);
        for write in lost {
            for (index, sector) in write.data.chunks(SECTOR).enumerate() {
                if random.below(8) < kept_in_8 {
                    let at = write.offset + index * SECTOR;
                    content[at..at + sector.len()].copy_from_slice(sector);
                }
            }
        }
        content
    }

    /// What the device has when everything is flushed.
    pub(crate) fn content(&self) -> &[u8] {
        &self.current
    }
}

pub(crate) fn options() -> FormatOptions {
    FormatOptions {
        uuid: Uuid(*b"0123456789abcdef"),
        salt: 0x5a17,
        device_bytes: DEVICE_BYTES,
        memory_bytes: MEMORY_BYTES,
        log_bytes: 0,
    }
}

/// A device with an empty volume.
pub(crate) fn formatted() -> Vec<u8> {
    let mut disk = Disk::new(vec![0xa5; DEVICE_BYTES as usize]);
    let mut formatter = Formatter::new(&options()).expect("the device is large enough");
    let mut random = Random::new(1);
    let mut is_done = false;
    while let Some(request) = formatter.poll() {
        disk.submit(request);
        let completion = disk.complete(&mut random);
        is_done = formatter.complete(&completion).expect("the device works");
    }
    assert!(is_done);
    disk.durable
}

/// Reads the volume of a device.
pub(crate) fn open(content: &[u8]) -> Result<Opening, OpenError> {
    let mut opener = Opener::new(content.len() as u64);
    loop {
        let request = opener.poll().expect("a request until the end");
        let Operation::Read { offset, length } = request.operation else {
            panic!("opening writes: {:?}", request.operation);
        };
        let data = content[offset as usize..][..length].to_vec();
        let id = request.id;
        let completion = DiskCompletion {
            id,
            is_ok: true,
            data,
        };
        if let Some(opening) = opener.complete(&completion)? {
            return Ok(opening);
        }
    }
}

/// Carries out requests until none is left.
pub(crate) fn settle(volume: &mut Volume, disk: &mut Disk) {
    let mut random = Random::new(7);
    loop {
        while let Some(request) = volume.poll() {
            disk.submit(request);
        }
        if !disk.has_work() {
            assert!(volume.is_idle());
            return;
        }
        volume.complete(disk.complete(&mut random));
    }
}
