//! Reading the discovery log of a discovery controller (Base 2.1 §3.1.3.3, §5.1.12.3.1).

use nvme_spec::command::LogPageId;
use nvme_spec::log::{DiscoveryEntry, DiscoveryHeader};
use nvme_spec::nqn::DISCOVERY_NQN;
use zerocopy::FromBytes;

use crate::controller::Controller;
use crate::error::HostError;
use crate::options::ConnectOptions;

/// Maximum number of entries read. A log that reports more is malformed.
const ENTRIES_MAX: u64 = 4096;

/// Maximum number of attempts to read a log that changes while it is read.
const ATTEMPTS_MAX: usize = 5;

/// Entries read by one command: 16 KiB.
const ENTRIES_PER_READ: u64 = 16;

const WHAT: &str = "discovery log";

/// Reads the discovery log at the address in the options; their subsystem is replaced by the
/// discovery subsystem.
///
/// # Errors
/// [`HostError`]; [`HostError::Malformed`] for a log that is too long or changes during every
/// attempt.
pub fn discover(options: ConnectOptions) -> Result<Vec<DiscoveryEntry>, HostError> {
    let options = ConnectOptions {
        subsystem_nqn: DISCOVERY_NQN.to_owned(),
        ..options
    };
    let mut controller = Controller::connect(options)?;
    let entries = read_log(&mut controller)?;
    controller.shut_down()?;
    Ok(entries)
}

/// Reads the discovery log of a connected discovery controller.
///
/// # Errors
/// As [`discover`].
pub fn read_log(controller: &mut Controller) -> Result<Vec<DiscoveryEntry>, HostError> {
    for _ in 0..ATTEMPTS_MAX {
        let before = read_header(controller)?;
        let count = before.numrec.get();
        if count > ENTRIES_MAX || before.recfmt.get() != 0 {
            return Err(HostError::Malformed { what: WHAT });
        }
        let mut entries = Vec::with_capacity(count as usize);
        while (entries.len() as u64) < count {
            let done = entries.len() as u64;
            read_entries(
                controller,
                done,
                (count - done).min(ENTRIES_PER_READ),
                &mut entries,
            )?;
        }
        // Entries of different generations must not be combined.
        if read_header(controller)?.genctr == before.genctr {
            return Ok(entries);
        }
    }
    Err(HostError::Malformed { what: WHAT })
}

fn read_header(controller: &mut Controller) -> Result<DiscoveryHeader, HostError> {
    let bytes = size_of::<DiscoveryHeader>() as u32;
    let page = controller.log_page(0, LogPageId::DISCOVERY, 0, bytes)?;
    DiscoveryHeader::read_from_bytes(&page).map_err(|_| HostError::Malformed { what: WHAT })
}

fn read_entries(
    controller: &mut Controller,
    first: u64,
    count: u64,
    entries: &mut Vec<DiscoveryEntry>,
) -> Result<(), HostError> {
    let entry_bytes = size_of::<DiscoveryEntry>() as u64;
    let offset = size_of::<DiscoveryHeader>() as u64 + first * entry_bytes;
    let bytes = (count * entry_bytes) as u32;
    let page = controller.log_page(0, LogPageId::DISCOVERY, offset, bytes)?;
    for chunk in page.chunks_exact(entry_bytes as usize) {
        let entry = DiscoveryEntry::read_from_bytes(chunk);
        entries.push(entry.map_err(|_| HostError::Malformed { what: WHAT })?);
    }
    Ok(())
}
