//! A device in memory with a durable volume.

use files_server::Squash;
use files_store::{
    DiskCompletion, DiskRequest, FormatOptions, Formatter, Opener, Operation, Uuid, Volume,
};

use super::client::{DEVICE_BYTES, World, share};

fn perform(device: &mut [u8], request: DiskRequest) -> DiskCompletion {
    let data = match request.operation {
        Operation::Read { offset, length } => device[offset as usize..][..length].to_vec(),
        Operation::Write { offset, data } => {
            device[offset as usize..][..data.len()].copy_from_slice(&data);
            data
        }
        Operation::Flush => Vec::new(),
    };
    DiskCompletion {
        id: request.id,
        is_ok: true,
        data,
    }
}

/// Opens the volume of a device.
pub(crate) fn opened(device: &mut [u8]) -> Volume {
    let mut opener = Opener::new(device.len() as u64);
    loop {
        let request = opener.poll().expect("a request");
        let completion = perform(device, request);
        if let Some(opening) = opener.complete(&completion).expect("a volume") {
            return opening.start();
        }
    }
}

/// A server on a new durable volume.
pub(crate) fn durable_world() -> World {
    let mut device = vec![0; DEVICE_BYTES];
    let options = FormatOptions {
        uuid: Uuid([5; 16]),
        salt: 99,
        device_bytes: DEVICE_BYTES as u64,
        memory_bytes: 256 << 10,
        log_bytes: 512 << 10,
    };
    let mut formatter = Formatter::new(&options).expect("room");
    while let Some(request) = formatter.poll() {
        let completion = perform(&mut device, request);
        formatter.complete(&completion).expect("formatted");
    }
    let volume = opened(&mut device);
    let mut world = World::with(volume, share(false, Squash::None), Vec::new());
    world.device = device;
    world
}
