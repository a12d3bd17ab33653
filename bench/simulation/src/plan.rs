//! The configuration of the simulated appliance, and its text for the production parser.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};

use appliance_config::{Config, MaskedAccess};
use block::DataPath;

use crate::authentication::key_name;
use crate::fabric::TARGET_ADDRESS;
use crate::faults::Fault;
use crate::limits::{self, Limit};
use crate::swarm::Swarm;

/// Names of the subsystems that can be exported.
pub const SUBSYSTEMS: [&str; 2] = [
    "nqn.2026-11.org.windlass:simulated",
    "nqn.2026-11.org.windlass:another",
];
/// The listeners' names, by number.
pub const LISTENERS: [&str; 3] = ["tcp0", "tcp1", "rdma0"];
/// The number of the listener over RDMA.
pub const RDMA_LISTENER: usize = 2;
/// Maximum number of entries of an I/O queue.
pub const QUEUE_DEPTH_MAX: u16 = 64;
/// Maximum number of I/O queues of a controller.
pub const IO_QUEUES_MAX: u16 = 4;
/// Namespace identifier of an export without disks.
pub const SPARE_NSID: u32 = 9;
/// ANA group of this namespace: the default.
pub const SPARE_GROUP: u32 = 1;
/// In-capsule data that a listener may allow beyond what hosts use, in bytes.
pub const IN_CAPSULE_MORE_BYTES: u32 = 4096;

/// The name of host `number`.
#[must_use]
pub fn host_name(number: usize) -> String {
    format!("nqn.2026-11.org.windlass:host{number}")
}

/// The name of a disk's device.
#[must_use]
pub fn device_name(disk: usize) -> String {
    format!("disk{disk}")
}

/// The path of a disk's first file.
#[must_use]
pub fn disk_path(disk: usize) -> String {
    format!("/simulated/disk{disk}")
}

/// The path of a disk's file by number. File 0 is the disk's first one; the others replace it.
#[must_use]
pub fn file_path(disk: usize, file: u32) -> String {
    match file {
        0 => disk_path(disk),
        _ => format!("{}.{file}", disk_path(disk)),
    }
}

/// The address of a TCP listener.
#[must_use]
pub fn tcp_address(listener: usize) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, 4420 + listener as u16))
}

/// The parts of the configuration that change during a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedConfig {
    /// By disk: whether its namespace exists.
    pub namespaces: Vec<bool>,
    /// By disk: whether its device exists. A device with a namespace always exists.
    pub devices: Vec<bool>,
    /// By disk: the number of the file behind its device.
    pub files: Vec<u32>,
    /// By disk: its namespace identifier (NSID).
    pub nsids: Vec<u32>,
    /// By disk: the ANA group of its namespace.
    pub ana_groups: Vec<u32>,
    /// By disk: its size in blocks.
    pub sizes: Vec<u64>,
    /// By disk: whether it is read-only.
    pub read_only: Vec<bool>,
    /// By host: whether it may connect.
    pub hosts: Vec<bool>,
    /// By host name and disk: what an export that lists its hosts shows.
    pub masks: Vec<Vec<MaskedAccess>>,
    /// By host name: the numbers of the secrets of which its hosts have one; none if they do not
    /// authenticate themselves.
    pub secrets: Vec<Vec<u32>>,
    /// By subsystem: whether it is exported.
    pub subsystems: Vec<bool>,
    /// By listener: whether it exists.
    pub listeners: Vec<bool>,
    /// Rate limits, with different scopes.
    pub limits: Vec<Limit>,
    /// By subsystem: its latency target in microseconds.
    pub latency_targets: Vec<Option<u64>>,
    /// The other keys.
    pub keys: Keys,
}

/// Keys that change without adding or removing an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    /// By subsystem: `max_io_queues`.
    pub io_queues: Vec<u16>,
    /// By subsystem: the number of its serial and model number; 0 means that none is configured.
    pub identities: Vec<u64>,
    /// By subsystem: `allow_any_host`.
    pub any_host: Vec<bool>,
    /// By listener: `in_capsule_data` beyond what hosts use, in bytes.
    pub in_capsule: Vec<u32>,
    /// By listener: `queue_depth`.
    pub queue_depths: Vec<u16>,
    /// `limits.max_controllers`.
    pub controllers: u16,
}

impl Keys {
    fn new(swarm: &Swarm) -> Self {
        Self {
            io_queues: vec![IO_QUEUES_MAX; swarm.subsystems],
            identities: vec![0; swarm.subsystems],
            any_host: (0..swarm.subsystems).map(|it| is_open(swarm, it)).collect(),
            in_capsule: vec![0; LISTENERS.len()],
            queue_depths: vec![QUEUE_DEPTH_MAX; LISTENERS.len()],
            controllers: swarm.limits.controllers,
        }
    }
}

/// The secrets of each host name at the start.
fn first_secrets(swarm: &Swarm) -> Vec<u32> {
    match swarm.faults.has(Fault::Chap) {
        true => vec![0],
        false => Vec::new(),
    }
}

/// Whether every host may attach to a subsystem at the start: the last of two subsystems if
/// anonymous hosts are simulated, and all of them if many hosts share an address, whose limit
/// applies before that of all unlisted hosts only where no host is listed.
fn is_open(swarm: &Swarm, subsystem: usize) -> bool {
    let is_last = subsystem > 0 && subsystem + 1 == swarm.subsystems;
    let faults = swarm.faults;
    faults.has(Fault::OneAddress) || (is_last && faults.has(Fault::Anonymous))
}

impl ServedConfig {
    /// The full configuration of a swarm.
    #[must_use]
    pub fn all(swarm: &Swarm) -> Self {
        let disks = swarm.disks.len();
        let read_only = swarm.disks.iter().zip(&swarm.read_only);
        let read_only = read_only.map(|(disk, configured)| disk.read_only || *configured);
        let mut listeners = vec![false; LISTENERS.len()];
        listeners[..swarm.tcp_listeners].fill(true);
        listeners[RDMA_LISTENER] = swarm.faults.has(Fault::Rdma);
        Self {
            namespaces: vec![true; disks],
            devices: vec![true; disks],
            files: vec![0; disks],
            nsids: (1..=disks as u32).collect(),
            ana_groups: swarm.ana_groups.clone(),
            sizes: swarm.disks.iter().map(|disk| disk.block_count).collect(),
            read_only: read_only.collect(),
            hosts: vec![true; swarm.hosts.len()],
            masks: vec![vec![MaskedAccess::Unrestricted; disks]; swarm.hosts.len()],
            secrets: vec![first_secrets(swarm); swarm.hosts.len()],
            subsystems: vec![true; swarm.subsystems],
            listeners,
            limits: Vec::new(),
            latency_targets: vec![None; swarm.subsystems],
            keys: Keys::new(swarm),
        }
    }

    /// Whether a host can reach its subsystem.
    #[must_use]
    pub fn reaches(&self, swarm: &Swarm, host: usize) -> bool {
        let subsystem = swarm.hosts[host].subsystem;
        let is_allowed = self.hosts[host] || self.keys.any_host[subsystem];
        is_allowed && self.subsystems[subsystem] && self.has_listener(swarm, host)
    }

    /// Whether an export restricts access to a list of hosts.
    #[must_use]
    pub fn names_hosts(&self) -> bool {
        let mut exports = self.subsystems.iter().zip(&self.keys.any_host);
        exports.any(|(is_there, is_open)| *is_there && !is_open)
    }

    /// Whether the listener that a host uses exists.
    #[must_use]
    pub fn has_listener(&self, swarm: &Swarm, host: usize) -> bool {
        self.listeners[swarm.hosts[host].listener()]
    }

    /// What hosts with a name may do with a disk of their subsystem.
    #[must_use]
    pub fn access(&self, swarm: &Swarm, identity: usize, disk: usize) -> MaskedAccess {
        match self.keys.any_host[swarm.subsystem_of_disk(disk)] {
            true => MaskedAccess::Unrestricted,
            false => self.masks[identity][disk],
        }
    }

    /// Whether a disk's namespace exists for hosts with a name, who can reach its subsystem.
    #[must_use]
    pub fn shows(&self, swarm: &Swarm, identity: usize, disk: usize) -> bool {
        let access = self.access(swarm, identity, disk);
        self.namespaces[disk] && access != MaskedAccess::Hidden
    }

    /// Whether hosts with a name cannot write to a disk.
    #[must_use]
    pub fn protects(&self, swarm: &Swarm, identity: usize, disk: usize) -> bool {
        let access = self.access(swarm, identity, disk);
        self.read_only[disk] || access == MaskedAccess::ReadOnly
    }

    /// Whether a disk's namespace is exported.
    #[must_use]
    pub fn has_namespace(&self, swarm: &Swarm, disk: usize) -> bool {
        self.namespaces[disk] && self.subsystems[swarm.subsystem_of_disk(disk)]
    }

    /// The ANA groups of a subsystem that have namespaces.
    #[must_use]
    pub fn groups_of(&self, swarm: &Swarm, subsystem: usize) -> BTreeSet<u32> {
        let disks = swarm.disks_of(subsystem).filter(|it| self.namespaces[*it]);
        let mut groups: BTreeSet<u32> = disks.map(|disk| self.ana_groups[disk]).collect();
        if groups.is_empty() {
            groups.insert(SPARE_GROUP);
        }
        groups
    }

    /// The configuration as TOML text.
    #[must_use]
    pub fn text(&self, swarm: &Swarm) -> String {
        let mut text = format!(
            "[appliance]\nname = \"simulated\"\nmemory = \"{}B\"\nshutdown_deadline = \"{}ms\"\n\
             [control]\nhttp = \"off\"\n[limits]\nmax_controllers = {}\n",
            // The swarm chooses the real size, which is often smaller than the configurable
            // minimum.
            64 << 20,
            swarm.patience.as_millis(),
            self.keys.controllers,
        );
        // Writing to a String cannot fail.
        for disk in (0..self.devices.len()).filter(|disk| self.has_device(*disk)) {
            let _ = write!(text, "[[device]]\nname = \"{}\"\n", device_name(disk));
            let shape = &swarm.disks[disk];
            let bytes = self.sizes[disk] * u64::from(shape.block_size);
            let _ = if swarm.ram[disk] {
                writeln!(
                    text,
                    "type = \"memory\"\nsize = \"{bytes}B\"\nblock_size = \"{}B\"",
                    shape.block_size
                )
            } else if swarm.faults.has(Fault::Drive) {
                let owner = swarm.neighbours[disk];
                writeln!(
                    text,
                    "type = \"nvme\"\npci = \"0000:{:02x}:00.0\"\nnamespace = {}\ndata_path = \"{}\"",
                    owner.unwrap_or(disk) + 1,
                    1 + usize::from(owner.is_some()),
                    match swarm.data_paths[disk] {
                        DataPath::Host => "host",
                        DataPath::DeviceMemory => "drive-memory",
                        DataPath::Best => "auto",
                    }
                )
            } else {
                writeln!(
                    text,
                    "type = \"file\"\npath = \"{}\"\nsize = \"{bytes}B\"\nblock_size = \"{}B\"",
                    file_path(disk, self.files[disk]),
                    shape.block_size
                )
            };
            if self.read_only[disk] && !shape.read_only {
                let _ = writeln!(text, "read_only = true");
            }
        }
        for (number, name) in LISTENERS
            .iter()
            .enumerate()
            .filter(|it| self.listeners[it.0])
        {
            let (transport, address) = match number {
                RDMA_LISTENER => ("rdma", TARGET_ADDRESS),
                _ => ("tcp", tcp_address(number)),
            };
            let _ = writeln!(
                text,
                "[[listener]]\nname = \"{name}\"\ntransport = \"{transport}\"\n\
                 address = \"{address}\"\nqueue_depth = {}\n\
                 in_capsule_data = \"{}B\"",
                self.keys.queue_depths[number],
                swarm.in_capsule_bytes + self.keys.in_capsule[number]
            );
        }
        for subsystem in (0..self.subsystems.len()).filter(|it| self.subsystems[*it]) {
            self.write_export(swarm, subsystem, &mut text);
        }
        self.write_keys(swarm, &mut text);
        limits::write(self, &mut text);
        if !self.subsystems.contains(&true) {
            // At least one export is required.
            let _ = write!(
                text,
                "[[device]]\nname = \"rest\"\ntype = \"null\"\nsize = \"1MiB\"\n\
                 [[export]]\nnqn = \"nqn.2026-11.org.windlass:rest\"\ndevices = [\"rest\"]\n\
                 listeners = [{}]\nallow_any_host = true\n",
                self.listener_names()
            );
        }
        text
    }

    /// Whether a disk's device exists.
    #[must_use]
    pub fn has_device(&self, disk: usize) -> bool {
        self.devices[disk] || self.namespaces[disk]
    }

    fn listener_names(&self) -> String {
        let listeners = LISTENERS
            .iter()
            .enumerate()
            .filter(|it| self.listeners[it.0]);
        let names: Vec<String> = listeners.map(|(_, name)| format!("\"{name}\"")).collect();
        names.join(", ")
    }

    /// The entry of hosts with a name in the list of an export.
    fn host_entry(&self, swarm: &Swarm, identity: usize) -> String {
        let name = host_name(identity);
        let keys = self.secrets[identity].iter();
        let keys: Vec<String> = keys
            .map(|version| format!("\"{}\"", key_name(identity, *version)))
            .collect();
        if keys.is_empty() {
            return format!("\"{name}\"");
        }
        let keys = keys.join(", ");
        format!(
            "{{ nqn = \"{name}\", chap = [{keys}], chap_controller = \"{}\", \
             chap_null_group = true, require = [\"chap\"] }}",
            key_name(swarm.controller_identity(), 0)
        )
    }

    /// The keys that entries of hosts name.
    fn write_keys(&self, swarm: &Swarm, text: &mut String) {
        let Some(files) = &swarm.key_files else {
            return;
        };
        let of_hosts = self.secrets.iter().enumerate();
        let of_hosts = of_hosts.flat_map(|(identity, versions)| {
            let versions = versions.iter();
            versions.map(move |version| (identity, *version))
        });
        let of_controllers = [(swarm.controller_identity(), 0)];
        for (identity, version) in of_controllers.into_iter().chain(of_hosts) {
            // Writing to a String cannot fail.
            let _ = write!(
                text,
                "[[key]]\nname = \"{}\"\nfile = \"{}\"\n",
                key_name(identity, version),
                files.path(identity, version).display()
            );
        }
    }

    /// The numbers of the secrets of a host, if it has to authenticate itself.
    #[must_use]
    pub fn demanded_secrets(&self, swarm: &Swarm, host: usize) -> &[u32] {
        let shape = &swarm.hosts[host];
        match self.keys.any_host[shape.subsystem] {
            true => &[],
            false => &self.secrets[shape.identity],
        }
    }

    fn write_export(&self, swarm: &Swarm, subsystem: usize, text: &mut String) {
        let disks = 0..self.namespaces.len();
        let disks = disks.filter(|disk| swarm.subsystem_of_disk(*disk) == subsystem);
        let mut namespaces: Vec<String> = disks
            .filter(|disk| self.namespaces[*disk])
            .map(|disk| {
                let (nsid, name) = (self.nsids[disk], device_name(disk));
                let group = self.ana_groups[disk];
                format!("{{ nsid = {nsid}, device = \"{name}\", ana_group = {group} }}")
            })
            .collect();
        if namespaces.is_empty() {
            // An export requires at least one namespace.
            let spare = format!("spare{subsystem}");
            let _ = write!(
                text,
                "[[device]]\nname = \"{spare}\"\ntype = \"null\"\nsize = \"1MiB\"\n"
            );
            namespaces.push(format!("{{ nsid = {SPARE_NSID}, device = \"{spare}\" }}"));
        }
        let hosts = (0..self.hosts.len()).filter(|host| self.hosts[*host]);
        // Paths of the same host share its name.
        let names: BTreeSet<usize> = hosts.map(|host| swarm.hosts[host].identity).collect();
        let mut hosts: Vec<String> = names
            .into_iter()
            .map(|it| self.host_entry(swarm, it))
            .collect();
        if hosts.is_empty() {
            hosts.push("\"nqn.2026-11.org.windlass:nobody\"".to_owned());
        }
        let hosts = match self.keys.any_host[subsystem] {
            true => "allow_any_host = true".to_owned(),
            false => {
                let masks = self.masks_of(swarm, subsystem);
                format!(
                    "hosts = [{}]\nmasks = [{}]",
                    hosts.join(", "),
                    masks.join(", ")
                )
            }
        };
        let _ = write!(
            text,
            "[[export]]\nnqn = \"{}\"\ndevices = [{}]\nlisteners = [{}]\n{hosts}\n\
             max_io_queues = {}\n",
            SUBSYSTEMS[subsystem],
            namespaces.join(", "),
            self.listener_names(),
            self.keys.io_queues[subsystem],
        );
        if let Some(micros) = self.latency_targets[subsystem] {
            let _ = writeln!(text, "p99 = \"{micros}us\"");
        }
        let identity = self.keys.identities[subsystem];
        if identity > 0 {
            let _ = write!(
                text,
                "serial = \"SIMULATED{identity}\"\nmodel = \"Simulated {identity}\"\n"
            );
        }
    }

    /// The masks of allowed hosts of a subsystem that are not shown everything.
    fn masks_of(&self, swarm: &Swarm, subsystem: usize) -> Vec<String> {
        let mut masks = Vec::new();
        let mut names = BTreeSet::new();
        for (host, shape) in swarm.hosts.iter().enumerate() {
            let is_its = shape.subsystem == subsystem && self.hosts[host];
            if !is_its || !names.insert(shape.identity) {
                continue;
            }
            let shown = |access: MaskedAccess| {
                let disks = swarm.disks_of(subsystem);
                let disks = disks.filter(|disk| self.namespaces[*disk]);
                let disks = disks.filter(|disk| self.masks[shape.identity][*disk] == access);
                disks
                    .map(|disk| format!("\"{}\"", device_name(disk)))
                    .collect::<Vec<_>>()
            };
            let (whole, read_only) = (
                shown(MaskedAccess::Unrestricted),
                shown(MaskedAccess::ReadOnly),
            );
            if self.masks[shape.identity]
                .iter()
                .all(|it| *it == MaskedAccess::Unrestricted)
            {
                continue;
            }
            masks.push(format!(
                "{{ hosts = [\"{}\"], devices = [{}], read_only = [{}] }}",
                host_name(shape.identity),
                whole.join(", "),
                read_only.join(", ")
            ));
        }
        masks
    }

    /// Parses the configuration with the production parser.
    ///
    /// # Errors
    /// The problems that the parser found, as text.
    pub fn config(&self, swarm: &Swarm) -> Result<Config, String> {
        read(&self.text(swarm))
    }
}

/// Parses a configuration text with the production parser.
///
/// # Errors
/// The problems that the parser found, as text.
pub fn read(text: &str) -> Result<Config, String> {
    Config::parse("simulated", text).map_err(|problems| {
        problems
            .display(appliance_config::Colour::Never)
            .to_string()
    })
}
