//! The volumes of the configuration on their devices: opens them at start, and formats and checks
//! them for an operator.

use appliance_config::{Config, Uuid, Volume};
use files_store::limits::{LOG_BYTES_MAX, LOG_BYTES_MIN};
use files_store::{FormatOptions, OpenError, Opening, VolumeIdentity};
use files_tcp::stored::{self, Disk, StoredError};

use crate::error::Failure;

/// Each of the two areas of the log has this part of the device, within its limits.
const LOG_PART: u64 = 64;

/// Why a volume cannot be served, formatted or checked.
#[derive(Debug, thiserror::Error)]
#[error("volume {volume} on device {device}")]
pub(crate) struct VolumeError {
    volume: String,
    device: String,
    #[source]
    cause: Obstacle,
}

impl VolumeError {
    pub(crate) fn new(volume: &Volume, cause: impl Into<Obstacle>) -> Self {
        Self {
            volume: volume.name.to_string(),
            device: volume.device.to_string(),
            cause: cause.into(),
        }
    }

    /// What is in the way.
    pub(crate) fn cause(&self) -> &Obstacle {
        &self.cause
    }
}

/// What is in the way.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Obstacle {
    #[error("the device is not available")]
    NoDevice,
    #[error("the device cannot be opened")]
    Device(#[source] Failure),
    #[error("files in memory have no format: the volume is empty at each start")]
    Volatile,
    #[error("the device has no volume: make one with `windlass volume format {0}`")]
    NotFormatted(String),
    #[error(
        "the device has the volume {found}, and `uuid` names {wanted}: correct `device` or `uuid`"
    )]
    OtherVolume { found: Uuid, wanted: Uuid },
    #[error(
        "the device has {0}, which a format overwrites: write `--overwrite` if it is not needed any \
         more"
    )]
    NotBlank(&'static str),
    #[error(transparent)]
    Stored(#[from] StoredError),
    #[error("it has {0} problem(s): restore it from a backup")]
    Inconsistent(usize),
}

/// The identifier in the form of the configuration.
pub(crate) fn uuid_of(uuid: files_store::Uuid) -> Uuid {
    Uuid::from_bytes(uuid.0)
}

/// Opens a volume for use.
///
/// # Errors
/// The device has no volume, another one or a damaged one, or it fails.
pub(crate) fn open(
    volume: &Volume,
    disk: &mut dyn Disk,
) -> Result<files_store::Volume, VolumeError> {
    let identity = identify(volume, disk)?;
    if identity.memory_bytes != volume.metadata_memory.bytes() {
        tracing::warn!(
            "volume {}: it was formatted with metadata_memory = {} bytes, which counts until it is \
             formatted again",
            volume.name,
            identity.memory_bytes
        );
    }
    let opened = stored::open(disk);
    opened.map_err(|cause| VolumeError::new(volume, cause))
}

/// Reads the identity of a volume.
///
/// # Errors
/// The device has no volume that can be opened, or another one than the configuration names.
pub(crate) fn identify(
    volume: &Volume,
    disk: &mut dyn Disk,
) -> Result<VolumeIdentity, VolumeError> {
    let identity = match stored::identify(disk) {
        Ok(identity) => identity,
        Err(StoredError::Volume(OpenError::NoVolume)) => {
            let cause = Obstacle::NotFormatted(volume.name.to_string());
            return Err(VolumeError::new(volume, cause));
        }
        Err(cause) => return Err(VolumeError::new(volume, cause)),
    };
    let found = uuid_of(identity.uuid);
    match volume.uuid {
        Some(wanted) if wanted != found => {
            let cause = Obstacle::OtherVolume { found, wanted };
            Err(VolumeError::new(volume, cause))
        }
        _ => Ok(identity),
    }
}

/// Makes an empty volume. Returns its identifier.
///
/// # Errors
/// The device has something and `overwrites` is false, it is too small, or it fails.
pub(crate) fn format(
    volume: &Volume,
    disk: &mut dyn Disk,
    overwrites: bool,
) -> Result<Uuid, VolumeError> {
    let failed = |cause: StoredError| VolumeError::new(volume, cause);
    if !overwrites {
        let found = match stored::identify(disk) {
            Err(StoredError::Volume(OpenError::NoVolume)) => "data of another kind",
            Err(error @ StoredError::Volume(OpenError::Io { .. })) => return Err(failed(error)),
            _ => "a volume",
        };
        if !stored::is_blank(disk).map_err(failed)? {
            return Err(VolumeError::new(volume, Obstacle::NotBlank(found)));
        }
    }
    let device_bytes = disk.bytes();
    let uuid = volume.uuid.unwrap_or_else(Uuid::new_v4);
    let options = FormatOptions {
        uuid: files_store::Uuid(*uuid.as_bytes()),
        salt: Uuid::new_v4().as_u64_pair().1 ^ Uuid::new_v4().as_u64_pair().0,
        device_bytes,
        memory_bytes: volume.metadata_memory.bytes(),
        log_bytes: (device_bytes / LOG_PART).clamp(LOG_BYTES_MIN, LOG_BYTES_MAX),
    };
    stored::format(disk, &options).map_err(failed)?;
    Ok(uuid)
}

/// Reads a volume as a start does, and checks its metadata. Writes nothing.
///
/// # Errors
/// It cannot be opened.
pub(crate) fn check(volume: &Volume, disk: &mut dyn Disk) -> Result<Opening, VolumeError> {
    identify(volume, disk)?;
    stored::read(disk).map_err(|cause| VolumeError::new(volume, cause))
}

/// The volume of that name.
///
/// # Errors
/// The configuration has none.
pub(crate) fn find<'c>(config: &'c Config, name: &str) -> Result<&'c Volume, UnknownVolume> {
    let mut volumes = config.files.volumes.iter();
    let found = volumes.find(|volume| volume.name.as_str() == name);
    found.ok_or_else(|| UnknownVolume(name.to_owned()))
}

#[derive(Debug, thiserror::Error)]
#[error("volume {0}: the configuration has none of this name: `windlass volume list` lists them")]
pub(crate) struct UnknownVolume(String);
