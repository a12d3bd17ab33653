//! The tables `appliance`, `limits`, `device` and `listener`.

use std::path::PathBuf;

use toml::de::DeValue;
use uuid::Uuid;

use super::Located;
use super::reader::Reader;
use super::setting::{Fault, Setting, word};
use crate::limits::{
    CONNECTIONS_MAX, CONTROLLERS_MAX, DEVICE_SIZE_MAX, IN_CAPSULE_DATA_MAX,
    IN_CAPSULE_DATA_UNIT_BYTES, MEMORY_MAX, MEMORY_MIN, PATH_BYTES_MAX, QUEUE_DEPTH_MAX,
    QUEUE_DEPTH_MIN, SHUTDOWN_DEADLINE_MAX, SHUTDOWN_DEADLINE_MIN, TRANSFER_MAX, TRANSFER_MIN,
};
use crate::model::{Appliance, Backing, Cores, Device, Limits, Listener, Transport};
use crate::problem::{Finding, Findings, ProblemKind};
use crate::suggest::shown;
use crate::value::{BlockSize, ByteSize, CongestionControl, CoreList, ListenAddress, Name};

/// A name as far as it is known: references to a badly written one still find it.
#[derive(Clone, Debug, Default)]
pub(crate) struct NameDraft {
    /// The text, where the key is there and a string.
    pub(crate) text: Option<Located<String>>,
}

impl NameDraft {
    fn read(table: &Reader<'_, '_>, findings: &mut Findings) -> (NameDraft, Option<Name>) {
        let name = table.required::<Name>("name", findings);
        // What is wrong with it has been found just now.
        let text = table.optional::<String>("name", &mut Findings::default());
        (NameDraft { text }, name.map(|name| name.value))
    }
}

impl Setting for String {
    fn read(value: &DeValue<'_>) -> Result<String, Fault> {
        value
            .as_str()
            .map(str::to_owned)
            .ok_or_else(|| Fault::wrong_type("a string", value))
    }
}

impl Setting for Cores {
    fn read(value: &DeValue<'_>) -> Result<Cores, Fault> {
        match value.as_str() {
            Some("auto") => Ok(Cores::Auto),
            _ => CoreList::read(value).map(Cores::List),
        }
    }
}

pub(super) fn appliance(table: &Reader<'_, '_>, findings: &mut Findings) -> Option<Appliance> {
    let absent = Appliance::default();
    let name = table.optional("name", findings);
    let cores = table.optional("cores", findings);
    let memory = table.ranged("memory", MEMORY_MIN..=MEMORY_MAX, findings);
    let pages = table.optional("pages", findings);
    let idle = table.optional("idle", findings);
    let deadlines = SHUTDOWN_DEADLINE_MIN..=SHUTDOWN_DEADLINE_MAX;
    let shutdown_deadline = table.ranged("shutdown_deadline", deadlines, findings);
    Some(Appliance {
        name: table.or_default("name", name, absent.name)?,
        cores: table.or_default("cores", cores, absent.cores)?,
        memory: table.or_default("memory", memory, absent.memory)?,
        pages: table.or_default("pages", pages, absent.pages)?,
        idle: table.or_default("idle", idle, absent.idle)?,
        shutdown_deadline: table.or_default(
            "shutdown_deadline",
            shutdown_deadline,
            absent.shutdown_deadline,
        )?,
    })
}

pub(super) fn limits(table: &Reader<'_, '_>, findings: &mut Findings) -> Option<Limits> {
    let absent = Limits::default();
    let max_connections = table.count("max_connections", 1..=CONNECTIONS_MAX, findings);
    let max_controllers = table.count("max_controllers", 1..=CONTROLLERS_MAX, findings);
    let max_transfer = table
        .ranged("max_transfer", TRANSFER_MIN..=TRANSFER_MAX, findings)
        .filter(|transfer| is_power_of_two(transfer, findings));
    Some(Limits {
        max_connections: table.or_default(
            "max_connections",
            max_connections,
            absent.max_connections,
        )?,
        max_controllers: table.or_default(
            "max_controllers",
            max_controllers,
            absent.max_controllers,
        )?,
        max_transfer: table.or_default("max_transfer", max_transfer, absent.max_transfer)?,
    })
}

fn is_power_of_two(size: &Located<ByteSize>, findings: &mut Findings) -> bool {
    let bytes = size.value.bytes();
    if bytes.is_power_of_two() {
        return true;
    }
    let below = ByteSize::from_bytes(bytes.next_power_of_two() / 2);
    let above = ByteSize::from_bytes(bytes.next_power_of_two());
    findings.add(|| Finding {
        hint: Some(format!("write \"{below}\" or \"{above}\"")),
        ..size.finding(
            ProblemKind::BadValue,
            format!(
                "{} is no power of two, and hosts are told an exponent",
                size.value
            ),
        )
    });
    false
}

/// A device as far as it could be read.
#[derive(Debug)]
pub(crate) struct DeviceDraft {
    pub(crate) name: NameDraft,
    pub(crate) path: Option<Located<PathBuf>>,
    pub(crate) uuid: Option<Located<Uuid>>,
    device: Option<Device>,
}

impl DeviceDraft {
    pub(super) fn finish(self) -> Option<Device> {
        self.device
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DeviceType {
    Memory,
    File,
    Null,
    Nvme,
}

const DEVICE_TYPES: [(&str, DeviceType); 3] = [
    ("memory", DeviceType::Memory),
    ("file", DeviceType::File),
    ("null", DeviceType::Null),
];
const DEVICE_TYPES_LATER: [(&str, DeviceType); 1] = [("nvme", DeviceType::Nvme)];

impl Setting for DeviceType {
    fn read(value: &DeValue<'_>) -> Result<DeviceType, Fault> {
        word(value, &DEVICE_TYPES, &DEVICE_TYPES_LATER)
    }
}

/// The keys that only some types of device have, and which types those are.
const KEYS_OF_TYPES: [(&str, &[DeviceType]); 3] = [
    (
        "size",
        &[DeviceType::Memory, DeviceType::File, DeviceType::Null],
    ),
    ("path", &[DeviceType::File]),
    ("pci", &[DeviceType::Nvme]),
];

pub(super) fn device(table: &Reader<'_, '_>, findings: &mut Findings) -> DeviceDraft {
    let (name_draft, name) = NameDraft::read(table, findings);
    let device_type = table
        .required::<DeviceType>("type", findings)
        .map(|read| read.value);
    if let Some(device_type) = device_type {
        keys_of_type(table, device_type, findings);
    }
    let block_size = table.optional::<BlockSize>("block_size", findings);
    let block_size = table.or_default("block_size", block_size, BlockSize::default());
    let size_max = if device_type == Some(DeviceType::Memory) {
        MEMORY_MAX
    } else {
        DEVICE_SIZE_MAX
    };
    let size = table
        .ranged("size", ByteSize::from_bytes(512)..=size_max, findings)
        .filter(|size| is_whole_blocks(size, block_size, findings))
        .map(|size| size.value);
    let path = table
        .optional::<String>("path", findings)
        .and_then(|text| file_path(text, findings));
    table.optional::<PciAddress>("pci", findings);
    let read_only = table.optional("read_only", findings);
    let read_only = table.or_default("read_only", read_only, false);
    let uuid = table.optional::<Uuid>("uuid", findings);

    let backing = match device_type {
        Some(DeviceType::Memory) => size.map(|size| Backing::Memory { size }),
        Some(DeviceType::Null) => size.map(|size| Backing::Null { size }),
        Some(DeviceType::File) if table.has("size") && size.is_none() => None,
        Some(DeviceType::File) => path.as_ref().map(|path| Backing::File {
            path: path.value.clone(),
            size,
        }),
        Some(DeviceType::Nvme) | None => None,
    };
    let device = match (name, backing, block_size, read_only) {
        (Some(name), Some(backing), Some(block_size), Some(read_only)) => {
            let uuid = uuid.as_ref().map(|uuid| uuid.value);
            Some(Device {
                name,
                backing,
                block_size,
                read_only,
                uuid,
            })
        }
        _ => None,
    };
    DeviceDraft {
        name: name_draft,
        path,
        uuid,
        device,
    }
}

/// Reports keys that the type lacks or does not have, and the type that this build does not have.
fn keys_of_type(table: &Reader<'_, '_>, device_type: DeviceType, findings: &mut Findings) {
    let mut words = DEVICE_TYPES.iter().chain(&DEVICE_TYPES_LATER);
    let word = words.find(|(_, other)| *other == device_type);
    let word = word.map_or("", |(word, _)| *word);
    for (key, types) in KEYS_OF_TYPES {
        let taken = types.contains(&device_type);
        let optional = device_type == DeviceType::File && key == "size";
        if table.has(key) && !taken {
            findings.add(|| Finding {
                hint: Some("remove it, or change `type`".to_owned()),
                ..table.at_key(
                    key,
                    ProblemKind::Conflict,
                    format!("a device of type \"{word}\" has no `{key}`"),
                )
            });
        } else if !table.has(key) && taken && !optional {
            let message = format!("`{key}` is missing: a device of type \"{word}\" needs one");
            findings.add(|| table.missing(key, message));
        }
    }
    if device_type == DeviceType::Nvme {
        findings.add(|| Finding {
            hint: Some("this build has the types \"memory\", \"file\" and \"null\"".to_owned()),
            ..table.at_key(
                "type",
                ProblemKind::NotInThisBuild,
                "the type \"nvme\" is not in this build yet".to_owned(),
            )
        });
    }
}

fn is_whole_blocks(
    size: &Located<ByteSize>,
    block_size: Option<BlockSize>,
    findings: &mut Findings,
) -> bool {
    let block_bytes = u64::from(block_size.unwrap_or_default().bytes());
    let bytes = size.value.bytes();
    if bytes.is_multiple_of(block_bytes) {
        return true;
    }
    let below = bytes - bytes % block_bytes;
    findings.add(|| Finding {
        hint: Some(format!(
            "write \"{}\" or \"{}\"",
            ByteSize::from_bytes(below.max(block_bytes)),
            ByteSize::from_bytes(below + block_bytes),
        )),
        ..size.finding(
            ProblemKind::BadValue,
            format!(
                "{} is no multiple of the block size, {block_bytes}",
                size.value
            ),
        )
    });
    false
}

fn file_path(text: Located<String>, findings: &mut Findings) -> Option<Located<PathBuf>> {
    let fault = if text.value.is_empty() {
        Some("the path is empty".to_owned())
    } else if let Some(control) = text.value.chars().find(|c| c.is_control()) {
        Some(format!("the path has {control:?} in it"))
    } else if text.value.len() > PATH_BYTES_MAX {
        Some(format!("the path has more than {PATH_BYTES_MAX} bytes"))
    } else if !text.value.starts_with('/') {
        Some(format!("`{}` is no absolute path", shown(&text.value)))
    } else if text.value.ends_with('/') {
        Some(format!("`{}` is a directory", shown(&text.value)))
    } else {
        None
    };
    if let Some(message) = fault {
        findings.add(|| Finding {
            hint: Some("write the whole path of the file, like \"/srv/vol0.img\"".to_owned()),
            ..text.finding(ProblemKind::BadValue, message)
        });
        return None;
    }
    Some(Located {
        value: PathBuf::from(text.value),
        span: text.span,
        path: text.path,
    })
}

/// Checked only: the drive's driver comes later.
struct PciAddress;

impl Setting for PciAddress {
    fn read(value: &DeValue<'_>) -> Result<PciAddress, Fault> {
        let text = value
            .as_str()
            .ok_or_else(|| Fault::wrong_type("a string", value))?;
        let hex = |part: &str, digits: usize| {
            part.len() == digits && part.bytes().all(|byte| byte.is_ascii_hexdigit())
        };
        let parts: Vec<&str> = text.split([':', '.']).collect();
        let [domain, bus, slot, function] = parts[..] else {
            return Err(PciAddress::fault());
        };
        let separators: String = text.chars().filter(|c| matches!(c, ':' | '.')).collect();
        let shape = hex(domain, 4) && hex(bus, 2) && hex(slot, 2) && hex(function, 1);
        if shape && separators == "::." {
            Ok(PciAddress)
        } else {
            Err(PciAddress::fault())
        }
    }
}

impl PciAddress {
    fn fault() -> Fault {
        Fault {
            kind: ProblemKind::BadValue,
            message: "not a PCI address".to_owned(),
            hint: Some("write it as `lspci -D` does, like \"0000:3b:00.0\"".to_owned()),
        }
    }
}

/// A listener as far as it could be read.
#[derive(Debug)]
pub(crate) struct ListenerDraft {
    pub(crate) name: NameDraft,
    pub(crate) address: Option<Located<ListenAddress>>,
    listener: Option<Listener>,
}

impl ListenerDraft {
    pub(super) fn finish(self) -> Option<Listener> {
        self.listener
    }
}

impl Setting for Transport {
    fn read(value: &DeValue<'_>) -> Result<Transport, Fault> {
        word(value, &[("tcp", Some(Transport::Tcp))], &[("rdma", None)])?.ok_or_else(|| Fault {
            kind: ProblemKind::NotInThisBuild,
            message: "the transport \"rdma\" is not in this build yet".to_owned(),
            hint: Some("this build has the transport \"tcp\"".to_owned()),
        })
    }
}

pub(super) fn listener(table: &Reader<'_, '_>, findings: &mut Findings) -> ListenerDraft {
    let (name_draft, name) = NameDraft::read(table, findings);
    let transport = table.required::<Transport>("transport", findings);
    let address = table.required::<ListenAddress>("address", findings);
    let header_digest = table.optional("header_digest", findings);
    let data_digest = table.optional("data_digest", findings);
    let capsules = ByteSize::from_bytes(0)..=IN_CAPSULE_DATA_MAX;
    let in_capsule_data = table
        .ranged("in_capsule_data", capsules, findings)
        .filter(|size| is_capsule_size(size, findings));
    let depths = QUEUE_DEPTH_MIN..=QUEUE_DEPTH_MAX;
    let queue_depth = table.count("queue_depth", depths, findings);
    let congestion_control = table.optional::<CongestionControl>("congestion_control", findings);
    let finish = || {
        Some(Listener {
            name: name?,
            transport: transport?.value,
            address: address.as_ref()?.value,
            header_digest: table.or_default(
                "header_digest",
                header_digest,
                Listener::DIGEST_DEFAULT,
            )?,
            data_digest: table.or_default("data_digest", data_digest, Listener::DIGEST_DEFAULT)?,
            in_capsule_data: table.or_default(
                "in_capsule_data",
                in_capsule_data,
                Listener::IN_CAPSULE_DATA_DEFAULT,
            )?,
            queue_depth: table.or_default(
                "queue_depth",
                queue_depth,
                Listener::QUEUE_DEPTH_DEFAULT,
            )?,
            congestion_control: congestion_control.map(|name| name.value),
        })
    };
    let listener = finish();
    ListenerDraft {
        name: name_draft,
        address,
        listener,
    }
}

fn is_capsule_size(size: &Located<ByteSize>, findings: &mut Findings) -> bool {
    let bytes = size.value.bytes();
    if bytes.is_multiple_of(IN_CAPSULE_DATA_UNIT_BYTES) {
        return true;
    }
    findings.add(|| Finding {
        hint: Some(format!(
            "write \"{}\", or another multiple of {IN_CAPSULE_DATA_UNIT_BYTES} bytes",
            ByteSize::from_bytes(bytes - bytes % IN_CAPSULE_DATA_UNIT_BYTES)
        )),
        ..size.finding(
            ProblemKind::BadValue,
            format!(
                "{} is no multiple of {IN_CAPSULE_DATA_UNIT_BYTES} bytes",
                size.value
            ),
        )
    });
    false
}
