//! Reads the table `device`.

use std::path::PathBuf;

use toml::de::DeValue;
use uuid::Uuid;

use super::Located;
use super::reader::Reader;
use super::sections::NameDraft;
use super::setting::{Fault, Setting, word};
use crate::limits::{DEVICE_SIZE_MAX, MEMORY_MAX, PATH_BYTES_MAX};
use crate::model::{Backing, Device, DriveNamespace};
use crate::problem::{Finding, Findings, ProblemKind};
use crate::suggest::excerpt_of;
use crate::table::Table as _;
use crate::value::{BlockSize, ByteSize, PciAddress};

/// A device, as far as it is readable.
#[derive(Debug)]
pub(crate) struct DeviceDraft {
    pub(crate) name: NameDraft,
    pub(crate) path: Option<Located<PathBuf>>,
    pub(crate) uuid: Option<Located<Uuid>>,
    pub(crate) drive: Option<DriveDraft>,
    /// Whether another appliance serves its file too.
    pub(crate) is_shared: bool,
    /// `None` if it is not readable.
    pub(crate) device_type: Option<DeviceType>,
    pub(crate) is_read_only: bool,
    device: Option<Device>,
}

impl DeviceDraft {
    pub(super) fn finish(self) -> Option<Device> {
        self.device
    }
}

/// A drive's namespace whose keys are all valid.
#[derive(Debug)]
pub(crate) struct DriveDraft {
    pub(crate) pci: Located<PciAddress>,
    pub(crate) drive: DriveNamespace,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeviceType {
    Nvme,
    File,
    Memory,
    Null,
}

const DEVICE_TYPES: [(&str, DeviceType); 4] = [
    ("nvme", DeviceType::Nvme),
    ("file", DeviceType::File),
    ("memory", DeviceType::Memory),
    ("null", DeviceType::Null),
];

impl Setting for DeviceType {
    fn read(value: &DeValue<'_>) -> Result<DeviceType, Fault> {
        word(value, &DEVICE_TYPES)
    }
}

/// A key that applies only to some types of device.
struct TypedKey {
    name: &'static str,
    /// The types that require it.
    required: &'static [DeviceType],
    /// The types that permit it.
    optional: &'static [DeviceType],
}

const TYPED_KEYS: [TypedKey; 5] = [
    TypedKey {
        name: "size",
        required: &[DeviceType::Memory, DeviceType::Null],
        optional: &[DeviceType::File],
    },
    TypedKey {
        name: "path",
        required: &[DeviceType::File],
        optional: &[],
    },
    TypedKey {
        name: "block_size",
        required: &[],
        optional: &[DeviceType::Memory, DeviceType::File, DeviceType::Null],
    },
    TypedKey {
        name: "shared",
        required: &[],
        optional: &[DeviceType::File],
    },
    TypedKey {
        name: "pci",
        required: &[DeviceType::Nvme],
        optional: &[],
    },
];

/// Reports keys that the device type requires but lacks, and keys that do not apply to it.
fn check_keys_of_type(table: &Reader<'_, '_>, device_type: DeviceType, findings: &mut Findings) {
    let word = DEVICE_TYPES
        .iter()
        .find(|(_, other)| *other == device_type)
        .map_or("", |(word, _)| *word);
    let of_drives = DriveNamespace::KEYS.iter().map(|key| TypedKey {
        name: key.name,
        required: &[],
        optional: &[DeviceType::Nvme],
    });
    for key in TYPED_KEYS.into_iter().chain(of_drives) {
        let required = key.required.contains(&device_type);
        let name = key.name;
        if table.has(name) && !required && !key.optional.contains(&device_type) {
            let drive_decides =
                device_type == DeviceType::Nvme && matches!(name, "size" | "block_size");
            let hint = match drive_decides {
                true => "remove it: the drive's namespace says how large it and its blocks are",
                false => "remove it, or change `type`",
            };
            findings.add(|| Finding {
                hint: Some(hint.to_owned()),
                ..table.at_key(
                    name,
                    ProblemKind::Conflict,
                    format!("`{name}` is not valid for a device of type \"{word}\""),
                )
            });
        } else if !table.has(name) && required {
            let message = format!("`{name}` is missing: a device of type \"{word}\" needs one");
            findings.add(|| table.missing(name, message));
        }
    }
}

pub(super) fn device(table: &Reader<'_, '_>, findings: &mut Findings) -> DeviceDraft {
    let (name_draft, name) = NameDraft::read(table, findings);
    let device_type = table
        .required::<DeviceType>("type", findings)
        .map(|read| read.value);
    if let Some(device_type) = device_type {
        check_keys_of_type(table, device_type, findings);
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
    let shared = table.optional::<bool>("shared", findings);
    let shared = table.or_default("shared", shared, false);
    let is_shared = shared == Some(true) && device_type == Some(DeviceType::File);
    if is_shared && !table.has("uuid") {
        findings.add(|| Finding {
            hint: Some(
                "write the same `uuid` at each appliance of the file; `uuidgen` makes one"
                    .to_owned(),
            ),
            ..table.missing(
                "uuid",
                "`uuid` is missing: hosts have to see a shared device as one disk".to_owned(),
            )
        });
    }
    let drive = drive(table, findings);

    let backing = || {
        Some(match device_type? {
            DeviceType::Memory => Backing::Memory {
                size: size?,
                block_size: block_size?,
            },
            DeviceType::Null => Backing::Null {
                size: size?,
                block_size: block_size?,
            },
            DeviceType::File if table.has("size") && size.is_none() => return None,
            DeviceType::File => Backing::File {
                path: path.as_ref()?.value.clone(),
                size,
                block_size: block_size?,
                shared: shared?,
            },
            DeviceType::Nvme => Backing::Nvme(drive.as_ref()?.drive),
        })
    };
    let dependent_fields = name.and_then(|name| Some((name, backing()?)));
    let device = Device::read(table, findings, dependent_fields);
    DeviceDraft {
        name: name_draft,
        path,
        // Its faults are already reported.
        uuid: table.optional("uuid", &mut Findings::default()),
        drive: drive.filter(|_| device_type == Some(DeviceType::Nvme)),
        is_shared,
        device_type,
        is_read_only: device.as_ref().is_some_and(|it| it.read_only),
        device,
    }
}

/// Reads the keys of a drive, independently of the device type; `None` if one is invalid.
fn drive(table: &Reader<'_, '_>, findings: &mut Findings) -> Option<DriveDraft> {
    let pci = table.optional::<PciAddress>("pci", findings);
    let dependent_fields = pci.as_ref().map(|pci| (pci.value,));
    let drive = DriveNamespace::read(table, findings, dependent_fields)?;
    Some(DriveDraft { pci: pci?, drive })
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

/// Checks the path of a file, which need not exist.
pub(crate) fn file_path(
    text: Located<String>,
    findings: &mut Findings,
) -> Option<Located<PathBuf>> {
    let fault = if text.value.is_empty() {
        Some("the path is empty".to_owned())
    } else if let Some(control) = text.value.chars().find(|c| c.is_control()) {
        Some(format!("the path contains {control:?}"))
    } else if text.value.len() > PATH_BYTES_MAX {
        Some(format!("the path has more than {PATH_BYTES_MAX} bytes"))
    } else if !text.value.starts_with('/') {
        Some(format!(
            "`{}` is not an absolute path",
            excerpt_of(&text.value)
        ))
    } else if text.value.ends_with('/') {
        Some(format!("`{}` is a directory", excerpt_of(&text.value)))
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
