//! Whether a copy may begin: what it would read and overwrite.

use appliance_config::{Backing, Config, DataPath, Name, Nqn};
use block::{CopyPlan, Device, Health, HealthState};
use hugemem::Sharing;

use super::{Copies, CopyRunning};
use crate::devices::Devices;
use crate::quantity;

/// The copy that an operator wants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CopyWanted {
    /// The name of the device that is read.
    pub source: String,
    /// The name of the device that is written.
    pub destination: String,
    /// The beginning of the range in bytes, on both devices.
    pub offset: u64,
    /// The length of the range in bytes; `None`: to the end of the source.
    pub length: Option<u64>,
    /// Hosts may write to the source meanwhile.
    pub live: bool,
    /// Hosts may use the destination.
    pub overwrite_exported: bool,
    /// Data is moved through the memory of one of their drives.
    pub drive_memory: bool,
    /// Their drive copies by itself what it can.
    pub by_drive: bool,
}

/// A copy that may begin.
#[derive(Debug)]
pub(crate) struct Checked {
    pub(crate) source: Name,
    pub(crate) destination: Name,
    pub(crate) plan: CopyPlan,
    /// The counters of the source.
    pub(crate) source_health: Health,
}

/// Why a copy does not begin. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CopyRefusal {
    #[error("device {0} is not open: `windlass status` lists the devices")]
    Unknown(String),
    #[error("device {0} is the source and the destination: name two devices")]
    Same(Name),
    #[error(
        "devices {source_device} and {destination} have blocks of {from} and {to} bytes: copy to a \
         device with the same block size"
    )]
    BlockSize {
        source_device: Name,
        destination: Name,
        from: u32,
        to: u32,
    },
    #[error(
        "device {device} has {} ({bytes} bytes), and the range ends at {end}: give --length and \
         --offset in bytes, or a larger device", quantity::bytes(*bytes)
    )]
    OutOfRange { device: Name, bytes: u64, end: u64 },
    #[error("offset and length are multiples of {0}, the block size, and the length is not 0")]
    Unaligned(u32),
    #[error("device {0} is read-only: remove `read_only`, or copy to another device")]
    ReadOnly(Name),
    #[error("device {device} is {state}: see `windlass status`")]
    NotReady { device: Name, state: &'static str },
    #[error(
        "device {0} belongs to a volume, whose files a copy would destroy: copy to another device"
    )]
    Volume(Name),
    #[error(
        "export {export} has device {device}, so hosts may use what would be overwritten: remove it \
         from the export first, or accept that with --overwrite-exported"
    )]
    Exported { device: Name, export: Nqn },
    #[error(
        "device {0} is `shared`, so hosts of another appliance may use what would be overwritten: \
         accept that with --overwrite-exported"
    )]
    Shared(Name),
    #[error(
        "hosts may write to device {device} ({user}) while it is copied, and a copy is no snapshot: \
         remove it from there first, or accept blocks of different moments with --live"
    )]
    Live { device: Name, user: String },
    #[error(transparent)]
    Busy(#[from] CopyRunning),
    #[error("{} copies are running: wait for the end of one", block::COPIES_MAX)]
    TooMany,
    #[error(
        "neither device {0} nor {1} is on a drive with a controller memory buffer that can hold data of \
         reads and writes: copy without --drive-memory"
    )]
    NoDriveMemory(Name, Name),
    #[error(
        "device {other} cannot use the controller memory buffer of the drive of device {owner}: {why}: \
         copy without --drive-memory"
    )]
    Unreachable {
        owner: Name,
        other: Name,
        why: String,
    },
    #[error(
        "devices {0} and {1} are not namespaces of one drive, which could copy by itself: copy without \
         --by-drive"
    )]
    NotOneDrive(Name, Name),
    #[error(
        "the drive of devices {0} and {1} cannot copy from one to the other by itself: it does not report \
         Copy with descriptor format 2h (ONCS, CDFS), or refuses to enable it, or a limit of a namespace \
         (MSSRL, MCL) is 0, or one of them is not ready: copy without --by-drive"
    )]
    NoOwnCopy(Name, Name),
    #[error("the reactor accepts no more messages: it has ended or is stuck")]
    NoReactor,
}

/// Checks a copy against the running configuration.
///
/// # Errors
/// The first reason why it must not begin.
pub(crate) fn check(
    wanted: &CopyWanted,
    config: &Config,
    devices: &Devices,
    copies: &Copies,
) -> Result<Checked, CopyRefusal> {
    let unknown = |name: &str| CopyRefusal::Unknown(name.to_owned());
    let found = |name: &str| {
        let mut all = config.devices.iter();
        let configured = all.find(|device| device.name.as_str() == name);
        let (place, device) = devices.get(&configured?.name)?;
        Some((configured?, place, device))
    };
    let (source, from_place, from) =
        found(&wanted.source).ok_or_else(|| unknown(&wanted.source))?;
    let (destination, to_place, to) =
        found(&wanted.destination).ok_or_else(|| unknown(&wanted.destination))?;
    if source.name == destination.name {
        return Err(CopyRefusal::Same(source.name.clone()));
    }
    let (read, written) = (from.geometry(), to.geometry());
    if read.block_size != written.block_size {
        return Err(CopyRefusal::BlockSize {
            source_device: source.name.clone(),
            destination: destination.name.clone(),
            from: read.block_size,
            to: written.block_size,
        });
    }
    if written.read_only || destination.read_only {
        return Err(CopyRefusal::ReadOnly(destination.name.clone()));
    }
    let bytes = [
        (&source.name, read.bytes()),
        (&destination.name, written.bytes()),
    ];
    let length = check_range(wanted, read.block_size, bytes)?;
    for device in [&source.name, &destination.name] {
        // What a copy writes is not read by another one, and what it reads is not overwritten.
        let busy = match *device == destination.name {
            true => copies.using(device),
            false => copies.writing(device),
        };
        if let Some(running) = busy {
            return Err(running.into());
        }
    }
    let source_health = from.health();
    for (device, health) in [(source, source_health), (destination, to.health())] {
        let state = match health.state {
            HealthState::Removed => "gone",
            HealthState::Damaged if device.name == destination.name => "damaged",
            _ => continue,
        };
        let device = device.name.clone();
        return Err(CopyRefusal::NotReady { device, state });
    }
    check_uses(wanted, config, source, destination)?;
    if wanted.drive_memory {
        check_drive_memory([(source, &**from), (destination, &**to)])?;
    }
    if wanted.by_drive {
        check_by_drive([(source, &**from), (destination, &**to)])?;
    }
    // As for Copy of hosts: without an option, the data paths of both devices say which ways are taken
    // before that through the arena.
    let paths = [source, destination].map(|device| match &device.backing {
        Backing::Nvme(namespace) => namespace.data_path,
        Backing::Memory { .. } | Backing::File { .. } | Backing::Null { .. } => DataPath::Host,
    });
    let max_transfer_blocks = read.max_transfer_blocks.min(written.max_transfer_blocks);
    Ok(Checked {
        source: source.name.clone(),
        destination: destination.name.clone(),
        plan: CopyPlan {
            source: usize::from(from_place.0),
            destination: usize::from(to_place.0),
            first_block: wanted.offset / u64::from(read.block_size),
            blocks: length / u64::from(read.block_size),
            block_bytes: read.block_size,
            max_transfer_blocks,
            in_device: wanted.drive_memory || !paths.contains(&DataPath::Host),
            by_device: wanted.by_drive || paths == [DataPath::Auto; 2],
        },
        source_health,
    })
}

/// Checks that one of the devices has memory that the other one can use, too.
fn check_drive_memory(
    both: [(&appliance_config::Device, &dyn Device); 2],
) -> Result<(), CopyRefusal> {
    let [source, destination] = both;
    let mut refusal = None;
    for ((owner, device), (other, neighbour)) in [(source, destination), (destination, source)] {
        let Some(memory) = device.device_memory() else {
            continue;
        };
        if neighbour.reaches(&memory) {
            return Ok(());
        }
        let why = match memory.sharing() {
            _ if !matches!(other.backing, Backing::Nvme(_)) => "it is not on a drive".to_owned(),
            Sharing::Own(why) => format!("only that drive can, because {why}"),
            Sharing::Neighbours(_) => {
                "its drive is in another IOMMU container, or is not ready".to_owned()
            }
        };
        refusal.get_or_insert_with(|| CopyRefusal::Unreachable {
            owner: owner.name.clone(),
            other: other.name.clone(),
            why,
        });
    }
    let none = || CopyRefusal::NoDriveMemory(source.0.name.clone(), destination.0.name.clone());
    Err(refusal.unwrap_or_else(none))
}

/// Checks that both devices are of one drive that copies by itself between them.
fn check_by_drive(both: [(&appliance_config::Device, &dyn Device); 2]) -> Result<(), CopyRefusal> {
    let [(source, from), (destination, to)] = both;
    let names = || (source.name.clone(), destination.name.clone());
    let is_one_drive = matches!(
        (&source.backing, &destination.backing),
        (Backing::Nvme(source), Backing::Nvme(destination)) if source.pci == destination.pci
    );
    if !is_one_drive {
        let (source, destination) = names();
        return Err(CopyRefusal::NotOneDrive(source, destination));
    }
    let limits = (from.copy_origin().zip(to.copy_origin()))
        .and_then(|(source, destination)| source.limits_to(&destination));
    match limits {
        Some(_) => Ok(()),
        None => {
            let (source, destination) = names();
            Err(CopyRefusal::NoOwnCopy(source, destination))
        }
    }
}

/// Checks the range against the sizes of the source and the destination. Returns its length in bytes.
fn check_range(
    wanted: &CopyWanted,
    block_bytes: u32,
    devices: [(&Name, u64); 2],
) -> Result<u64, CopyRefusal> {
    let [(_, source_bytes), _] = devices;
    let rest = source_bytes.saturating_sub(wanted.offset);
    let length = wanted.length.unwrap_or(rest);
    let end = wanted.offset.saturating_add(length);
    for (device, bytes) in devices {
        if end > bytes || wanted.offset >= bytes {
            let device = device.clone();
            return Err(CopyRefusal::OutOfRange { device, bytes, end });
        }
    }
    let is_aligned = |bytes: u64| bytes.is_multiple_of(u64::from(block_bytes));
    if length == 0 || !is_aligned(length) || !is_aligned(wanted.offset) {
        return Err(CopyRefusal::Unaligned(block_bytes));
    }
    Ok(length)
}

/// Who else may use the devices.
fn check_uses(
    wanted: &CopyWanted,
    config: &Config,
    source: &appliance_config::Device,
    destination: &appliance_config::Device,
) -> Result<(), CopyRefusal> {
    let export_of = |name: &Name| {
        let mut exports = config.exports.iter();
        exports.find(|export| export.namespaces.iter().any(|it| it.device == *name))
    };
    let is_shared = |device: &appliance_config::Device| {
        matches!(device.backing, Backing::File { shared: true, .. })
    };
    let name = destination.name.clone();
    if config.files.uses(&name) {
        return Err(CopyRefusal::Volume(name));
    }
    if !wanted.overwrite_exported {
        if let Some(export) = export_of(&name) {
            return Err(CopyRefusal::Exported {
                device: name,
                export: export.nqn.clone(),
            });
        }
        if is_shared(destination) {
            return Err(CopyRefusal::Shared(name));
        }
    }
    let user = match export_of(&source.name) {
        _ if wanted.live => return Ok(()),
        _ if is_shared(source) => "`shared` with another appliance".to_owned(),
        _ if source.read_only => return Ok(()),
        Some(export) => format!("export {}", export.nqn),
        None if config.files.uses(&source.name) => "a volume".to_owned(),
        None => return Ok(()),
    };
    Err(CopyRefusal::Live {
        device: source.name.clone(),
        user,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use block::{
        CopyLimits, CopyOrigin, DeviceIdentity, DeviceQueue, Geometry, OpenError, QueueOptions,
    };
    use hugemem::{AddressSpace, DeviceMemory};

    use super::*;

    /// A device in an address space, and with memory, or without.
    struct Placed {
        space: Option<AddressSpace>,
        memory: Option<Arc<DeviceMemory>>,
        origin: Option<CopyOrigin>,
    }

    impl Device for Placed {
        fn name(&self) -> &str {
            unreachable!("the check uses the configured name")
        }

        fn geometry(&self) -> Geometry {
            unreachable!("the check of memory does not use it")
        }

        fn identity(&self) -> &DeviceIdentity {
            unreachable!("the check does not use it")
        }

        fn health(&self) -> Health {
            Health::default()
        }

        fn device_memory(&self) -> Option<Arc<DeviceMemory>> {
            self.memory.clone()
        }

        fn reaches(&self, memory: &Arc<DeviceMemory>) -> bool {
            let own = self.memory.as_ref();
            own.is_some_and(|it| Arc::ptr_eq(it, memory)) || memory.is_shared_with(self.space)
        }

        fn copy_origin(&self) -> Option<CopyOrigin> {
            self.origin
        }

        fn open_queue(&self, _: QueueOptions) -> Result<Box<dyn DeviceQueue>, OpenError> {
            Err(OpenError::Removed)
        }
    }

    fn drive(space: AddressSpace, sharing: Option<Sharing>) -> Placed {
        let memory = |sharing| DeviceMemory::new(1 << 40, 1 << 20, 4096, sharing);
        Placed {
            space: Some(space),
            memory: sharing.and_then(memory),
            origin: None,
        }
    }

    /// A namespace of a drive that copies by itself, or not.
    fn namespace(namespace: u32, blocks_max: Option<u32>) -> Placed {
        let origin = |blocks_max| CopyOrigin {
            drive: 1,
            namespace,
            block_size: 512,
            block_count: 8,
            limits: CopyLimits {
                sources_max: 1,
                source_blocks_max: 8,
                blocks_max,
            },
        };
        Placed {
            origin: blocks_max.map(origin),
            ..drive(AddressSpace::unique(), None)
        }
    }

    #[test]
    fn copies_that_no_drive_executes_by_itself_are_refused_with_the_reason() {
        let own = "the drive of devices from and to cannot copy from one to the other by itself";
        let none = "devices from and to are not namespaces of one drive";
        for (from, to, is_drive, expected) in [
            (namespace(1, Some(8)), namespace(2, Some(4)), true, None),
            (namespace(1, None), namespace(2, Some(4)), true, Some(own)),
            (namespace(1, Some(8)), namespace(2, None), true, Some(own)),
            (
                namespace(1, Some(8)),
                namespace(1, Some(8)),
                true,
                Some(own),
            ),
            (
                namespace(1, Some(8)),
                namespace(2, Some(8)),
                false,
                Some(none),
            ),
        ] {
            let both = [configured("from", true), configured("to", is_drive)];
            let [source, destination] = &both;
            let result = check_by_drive([(source, &from), (destination, &to)]);
            match (result, expected) {
                (Ok(()), None) => {}
                (Err(refused), Some(text)) => {
                    assert!(refused.to_string().starts_with(text), "{refused}");
                }
                (result, expected) => panic!("{result:?} instead of {expected:?}"),
            }
        }
    }

    fn configured(name: &str, is_drive: bool) -> appliance_config::Device {
        let backing = match is_drive {
            true => "type = \"nvme\"\npci = \"01:00.0\"",
            false => "type = \"memory\"\nsize = \"1MiB\"",
        };
        let text = format!(
            "[[device]]\nname = \"{name}\"\n{backing}\n\
             [[listener]]\nname = \"l\"\ntransport = \"tcp\"\naddress = \"127.0.0.1:4420\"\n\
             [[export]]\nnqn = \"nqn.2026-11.org.windlass:x\"\ndevices = [\"{name}\"]\n\
             listeners = [\"l\"]\nallow_any_host = true\n"
        );
        let config = Config::parse("test", &text).expect("a device");
        config.devices[0].clone()
    }

    #[test]
    fn memory_that_one_device_cannot_use_is_refused_with_the_reason() {
        let space = AddressSpace::unique();
        let shared = || Some(Sharing::Neighbours(space));
        let own = Some(Sharing::Own("the kernel does not map it".to_owned()));
        let without = || drive(space, None);
        let elsewhere = |sharing| drive(AddressSpace::unique(), sharing);
        for (from, to, is_drive, expected) in [
            (
                without(),
                without(),
                true,
                Some("neither device from nor to is on a drive"),
            ),
            (drive(space, shared()), without(), true, None),
            (without(), drive(space, shared()), true, None),
            (
                drive(space, own.clone()),
                drive(space, own),
                true,
                Some(
                    "device to cannot use the controller memory buffer of the drive of device from: only \
                      that drive can, because the kernel does not map it",
                ),
            ),
            (
                drive(space, shared()),
                elsewhere(None),
                true,
                Some("device from: its drive is in another IOMMU container"),
            ),
            (
                elsewhere(None),
                drive(space, shared()),
                true,
                Some(
                    "device from cannot use the controller memory buffer of the drive of device to",
                ),
            ),
            (
                drive(space, shared()),
                elsewhere(None),
                false,
                Some(
                    "device to cannot use the controller memory buffer of the drive of device from: it \
                      is not on a drive",
                ),
            ),
        ] {
            let both = [configured("from", true), configured("to", is_drive)];
            let [source, destination] = &both;
            let result = check_drive_memory([(source, &from), (destination, &to)]);
            match (result, expected) {
                (Ok(()), None) => {}
                (Err(refused), Some(text)) => {
                    assert!(refused.to_string().contains(text), "{refused}");
                }
                (result, expected) => panic!("{result:?} instead of {expected:?}"),
            }
        }
    }
}
