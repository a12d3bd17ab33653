//! `windlass volume`: formats, checks and lists the volumes of a configuration whose appliance does
//! not run.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use appliance_config::{Backing, Config, Volume};
use clap::{Args, Subcommand};
use files_service::stored::OwnQueue;
use hugemem::{Arena, ArenaConfig, PagePolicy, Pool};
use serde::Serialize;

use crate::devices::{Opener as _, SystemDevices};
use crate::error::{Failure, with_causes};
use crate::files::own_queue;
use crate::nvme::{Bus, LoneDrive, system_bus};
use crate::service::load_configuration;
use crate::table::{Cell, Table, name};
use crate::terminal::print;
use crate::volumes::{self, Obstacle, VolumeError};

/// The configuration of the service.
const SERVICE_FILE: &str = "/etc/windlass/windlass.toml";
/// Memory for requests to the device, in bytes: they follow one another.
const ARENA_BYTES: usize = 8 << 20;
/// Limit of one request to the device in bytes.
const TRANSFER_BYTES_MAX: usize = 128 << 10;

/// What `volume` takes.
#[derive(Args, Debug)]
pub(crate) struct VolumeArguments {
    #[command(subcommand)]
    command: VolumeCommand,
}

#[derive(Subcommand, Debug)]
enum VolumeCommand {
    /// Make an empty volume on its device. The appliance must not run.
    ///
    /// The metadata need twice `metadata_memory` of the device, and the log up to 128MiB.
    Format(FormatArguments),
    /// Check a volume as a start reads it, and its metadata. Changes nothing. The appliance must not
    /// run.
    Check(CheckArguments),
    /// List the volumes of the configuration.
    List(ListArguments),
}

/// Where the configuration is.
#[derive(Args, Debug)]
struct ConfigurationArguments {
    /// The configuration, a TOML file; by default that of the service.
    #[arg(long, value_name = "FILE", default_value = SERVICE_FILE)]
    config: PathBuf,
}

#[derive(Args, Debug)]
struct FormatArguments {
    /// The volume's name in the configuration.
    name: String,
    /// Format also a device that has a volume or other data, which are lost.
    #[arg(long)]
    overwrite: bool,
    #[command(flatten)]
    configuration: ConfigurationArguments,
}

#[derive(Args, Debug)]
struct CheckArguments {
    /// The volume's name in the configuration.
    name: String,
    #[command(flatten)]
    configuration: ConfigurationArguments,
}

#[derive(Args, Debug)]
struct ListArguments {
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    configuration: ConfigurationArguments,
}

/// A volume in the list.
#[derive(Serialize)]
struct Listed {
    name: String,
    device: String,
    /// `volatile`, `formatted`, or why it cannot be served.
    state: String,
    uuid: Option<String>,
}

/// Formats, checks or lists.
pub(crate) fn volume(arguments: &VolumeArguments) -> Result<ExitCode, Failure> {
    match &arguments.command {
        VolumeCommand::Format(arguments) => format(arguments),
        VolumeCommand::Check(arguments) => check(arguments),
        VolumeCommand::List(arguments) => list(arguments),
    }
}

fn format(arguments: &FormatArguments) -> Result<ExitCode, Failure> {
    let config = load_configuration(&arguments.configuration.config)?;
    let volume = volumes::find(&config, &arguments.name)?;
    let stand = Stand::new(&config)?;
    let mut disk = stand.open(volume, Access::Write)?;
    let uuid = volumes::format(volume, &mut disk.queue, arguments.overwrite)?;
    print(&format!("volume {}: formatted, uuid {uuid}\n", volume.name));
    Ok(ExitCode::SUCCESS)
}

fn check(arguments: &CheckArguments) -> Result<ExitCode, Failure> {
    let config = load_configuration(&arguments.configuration.config)?;
    let volume = volumes::find(&config, &arguments.name)?;
    let stand = Stand::new(&config)?;
    let mut disk = stand.open(volume, Access::Read)?;
    let opening = volumes::check(volume, &mut disk.queue)?;
    let usage = opening.usage();
    print(&format!(
        "volume {}: uuid {}, {} object(s), {} of {} bytes used, metadata {} of {} bytes\n",
        volume.name,
        volumes::uuid_of(opening.uuid()),
        usage.inodes,
        usage.data_bytes - usage.free_bytes - usage.retired_bytes,
        usage.data_bytes,
        usage.memory_bytes,
        usage.memory_bytes_max,
    ));
    let problems = opening.problems();
    for problem in &problems {
        print(&format!("problem: {problem}\n"));
    }
    match problems.len() {
        0 => Ok(ExitCode::SUCCESS),
        count => Err(VolumeError::new(volume, Obstacle::Inconsistent(count)).into()),
    }
}

fn list(arguments: &ListArguments) -> Result<ExitCode, Failure> {
    let config = load_configuration(&arguments.configuration.config)?;
    let stand = Stand::new(&config)?;
    let listed: Vec<Listed> = config
        .files
        .volumes
        .iter()
        .map(|volume| stand.listed(volume))
        .collect();
    if arguments.json {
        print(&format!("{:#}\n", serde_json::to_value(&listed)?));
        return Ok(ExitCode::SUCCESS);
    }
    let columns = [name("VOLUME"), name("DEVICE"), name("UUID"), name("STATE")];
    let mut table = Table::new(&columns);
    for it in listed {
        let uuid = it.uuid.unwrap_or_else(|| "-".to_owned());
        table.push([it.name, it.device, uuid, it.state].map(Cell::text).into());
    }
    for line in table.lines() {
        print(&format!("{line}\n"));
    }
    Ok(ExitCode::SUCCESS)
}

/// How a device is opened. Neither is possible while an appliance serves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    Read,
    Write,
}

/// What opens devices without an appliance.
struct Stand<'c> {
    config: &'c Config,
    system: SystemDevices,
    bus: Box<dyn Bus>,
    arena: Arc<Arena>,
    pool: Pool,
}

/// A device that is open.
struct OpenDisk {
    queue: OwnQueue,
    /// The drive of the device, which is shut down after the queue.
    _drive: Option<LoneDrive>,
}

impl<'c> Stand<'c> {
    fn new(config: &'c Config) -> Result<Self, Failure> {
        let arena = Arena::new(ArenaConfig {
            bytes: ARENA_BYTES,
            pages: PagePolicy::Ordinary,
            max_transfer: TRANSFER_BYTES_MAX,
        })?;
        Ok(Self {
            config,
            system: SystemDevices::new(config, &arena),
            bus: system_bus(&arena, 1),
            pool: arena.pool(1),
            arena,
        })
    }

    /// Opens the device of a volume.
    fn open(&self, volume: &Volume, access: Access) -> Result<OpenDisk, VolumeError> {
        let failed = |cause: Obstacle| VolumeError::new(volume, cause);
        let device = self.config.device(&volume.device);
        let device = device.ok_or_else(|| failed(Obstacle::NoDevice))?;
        match device.backing {
            Backing::Memory { .. } => return Err(failed(Obstacle::Volatile)),
            Backing::Nvme(settings) => {
                let opened = LoneDrive::open(&*self.bus, &self.arena, device, settings);
                let (drive, device) = opened.map_err(|cause| failed(Obstacle::Device(cause)))?;
                return Ok(OpenDisk {
                    queue: own_queue(volume, &*device, &self.pool)?,
                    _drive: Some(drive),
                });
            }
            Backing::File { .. } | Backing::Null { .. } => {}
        }
        let device = appliance_config::Device {
            read_only: access == Access::Read,
            ..device.clone()
        };
        let opened = self.system.open(&device);
        let opened = opened.map_err(|cause| failed(Obstacle::Device(cause)))?;
        let opened = opened.ok_or_else(|| failed(Obstacle::NoDevice))?;
        Ok(OpenDisk {
            queue: own_queue(volume, &*opened.device, &self.pool)?,
            _drive: None,
        })
    }

    fn listed(&self, volume: &Volume) -> Listed {
        let opened = self.open(volume, Access::Read);
        let found = opened.and_then(|mut it| volumes::identify(volume, &mut it.queue));
        let (state, uuid) = match found {
            Ok(identity) => {
                let uuid = volumes::uuid_of(identity.uuid).to_string();
                ("formatted".to_owned(), Some(uuid))
            }
            Err(error) => match error.cause() {
                Obstacle::Volatile => ("volatile".to_owned(), None),
                cause => (with_causes(cause), None),
            },
        };
        Listed {
            name: volume.name.to_string(),
            device: volume.device.to_string(),
            state,
            uuid,
        }
    }
}
