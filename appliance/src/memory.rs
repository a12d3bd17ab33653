//! Allocates the arena at start. If no device maps it, most of it is populated after hosts may
//! connect.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;

use appliance_config::{Backing, Config, Transport};
use hugemem::{Arena, ArenaConfig, ArenaError, ArenaPopulation};

use crate::affinity::avoid_reactor_cores;
use crate::devices::page_policy;

/// Bytes of the arena that are populated before hosts may connect: this takes a few milliseconds,
/// and is enough for the first connections.
const POPULATED_AT_START_BYTES: usize = 64 << 20;

#[derive(Debug, thiserror::Error)]
#[error("appliance.memory = {memory}")]
pub(crate) struct NoMemory {
    memory: String,
    #[source]
    cause: ArenaError,
}

/// Allocates the arena. Also returns the part of it that is populated after hosts may connect.
///
/// # Errors
/// The machine does not have that much memory.
pub(crate) fn take(config: &Config) -> Result<(Arc<Arena>, ArenaPopulation), NoMemory> {
    let populated_bytes = if is_mapped_for_devices(config) {
        usize::MAX
    } else {
        POPULATED_AT_START_BYTES
    };
    begin(config, |arena| Arena::begin(arena, populated_bytes))
}

/// Continues with the memory of an earlier process's arena.
///
/// # Errors
/// The descriptor is not that of such an arena.
pub(crate) fn adopt(
    config: &Config,
    memory: OwnedFd,
) -> Result<(Arc<Arena>, ArenaPopulation), NoMemory> {
    begin(config, |arena| Arena::adopt(memory, arena))
}

fn begin(
    config: &Config,
    begin: impl FnOnce(ArenaConfig) -> Result<(Arc<Arena>, ArenaPopulation), ArenaError>,
) -> Result<(Arc<Arena>, ArenaPopulation), NoMemory> {
    let memory = config.appliance.memory;
    let arena = ArenaConfig {
        bytes: memory.bytes() as usize,
        pages: page_policy(config.appliance.pages),
        max_transfer: config.limits.max_transfer.bytes() as usize,
    };
    let (arena, rest) = begin(arena).map_err(|cause| NoMemory {
        memory: memory.to_string(),
        cause,
    })?;
    for notice in arena.region().notices() {
        tracing::warn!("memory: {notice}");
    }
    Ok((arena, rest))
}

/// Whether a drive, a NIC or an io_uring for files maps the arena at start. That populates all of
/// it, one page after another and more slowly than [`populate_in_background`].
fn is_mapped_for_devices(config: &Config) -> bool {
    let devices = config.devices.iter();
    let mapped = |backing: &Backing| matches!(backing, Backing::Nvme(_) | Backing::File { .. });
    devices.map(|device| &device.backing).any(mapped)
        || config
            .listeners
            .iter()
            .any(|listener| listener.transport == Transport::Rdma)
}

/// Populates the rest of the arena on a thread that then ends, beside the reactors' cores, if there
/// are others: hosts are served meanwhile.
pub(crate) fn populate_in_background(mut rest: ArenaPopulation, cores: &[usize]) {
    if rest.bytes() == 0 {
        return;
    }
    let cores = cores.to_vec();
    let populate = move || {
        avoid_reactor_cores(&cores);
        if let Err(error) = rest.populate() {
            let missing = rest.bytes();
            tracing::error!(
                error = &error as &dyn std::error::Error,
                missing,
                "the machine has less memory than `memory` requires: continuing with the \
                 available memory"
            );
        }
    };
    let spawned = thread::Builder::new()
        .name("memory".to_owned())
        .spawn(populate);
    if let Err(error) = spawned {
        tracing::error!(%error, "the arena is only partly populated: cannot create a thread");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(device: &str, transport: &str) -> Config {
        let text = format!(
            "[[device]]\nname = \"one\"\n{device}\n\
             [[listener]]\nname = \"at\"\ntransport = \"{transport}\"\n\
             address = \"127.0.0.1:4420\"\n\
             [[export]]\nnqn = \"nqn.2026-11.org.windlass:one\"\ndevices = [\"one\"]\n\
             listeners = [\"at\"]\nallow_any_host = true\n"
        );
        Config::parse("test", &text).expect("a valid configuration")
    }

    #[test]
    fn memory_is_mapped_early_only_for_files_and_rdma() {
        let memory = "type = \"memory\"\nsize = \"1MiB\"";
        let file = "type = \"file\"\npath = \"/dev/null\"\nsize = \"1MiB\"";
        assert!(!is_mapped_for_devices(&config(memory, "tcp")));
        assert!(is_mapped_for_devices(&config(file, "tcp")));
        assert!(is_mapped_for_devices(&config(memory, "rdma")));
    }
}
