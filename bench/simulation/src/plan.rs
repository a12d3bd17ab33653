//! What is configured, and the text that says so: it goes through the production parser, as a file
//! does.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};

use appliance_config::Config;

use crate::fabric::TARGET_ADDRESS;
use crate::swarm::{Fault, Swarm};

/// The subsystems that can be exported.
pub const SUBSYSTEMS: [&str; 2] = [
    "nqn.2026-11.org.windlass:simulated",
    "nqn.2026-11.org.windlass:another",
];
/// The listeners' names, by number.
pub const LISTENERS: [&str; 3] = ["tcp0", "tcp1", "rdma0"];
/// The number of the listener over RDMA.
pub const RDMA_LISTENER: usize = 2;
/// Entries of an I/O queue at most.
pub const QUEUE_DEPTH_MAX: u16 = 64;
/// I/O queues of a controller at most.
pub const IO_QUEUES_MAX: u16 = 4;
/// Bytes that a listener may take in capsules beyond what hosts use.
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

/// The file that a disk is known by.
#[must_use]
pub fn disk_path(disk: usize) -> String {
    format!("/simulated/disk{disk}")
}

/// The files that take its place, by number; the first one is the disk's own.
#[must_use]
pub fn file_path(disk: usize, file: u32) -> String {
    match file {
        0 => disk_path(disk),
        _ => format!("{}.{file}", disk_path(disk)),
    }
}

/// Where a listener over TCP listens.
#[must_use]
pub fn tcp_address(listener: usize) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, 4420 + listener as u16))
}

/// What of the configuration changes during a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Serving {
    /// By disk: whether its namespace is there.
    pub namespaces: Vec<bool>,
    /// By disk: whether its device is there; one with a namespace always is.
    pub devices: Vec<bool>,
    /// By disk: the number of the file that its device is in.
    pub files: Vec<u32>,
    /// By disk: the identifier of its namespace.
    pub nsids: Vec<u32>,
    /// By disk: its blocks.
    pub sizes: Vec<u64>,
    /// By disk: whether it takes no writes.
    pub read_only: Vec<bool>,
    /// By host: whether it may connect.
    pub hosts: Vec<bool>,
    /// By subsystem: whether it is exported.
    pub subsystems: Vec<bool>,
    /// By listener: whether it is there.
    pub listeners: Vec<bool>,
    /// The other keys.
    pub keys: Keys,
}

/// Keys that change without anything coming or going.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    /// By subsystem: `max_io_queues`.
    pub io_queues: Vec<u16>,
    /// By subsystem: which serial and model number it has; those of 0 are not configured.
    pub identities: Vec<u64>,
    /// By subsystem: `allow_any_host`.
    pub any_host: Vec<bool>,
    /// By listener: `in_capsule_data` beyond what hosts use, bytes.
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

/// Whether every host may attach a subsystem at first: where hosts come that nobody configured, one
/// of two.
fn is_open(swarm: &Swarm, subsystem: usize) -> bool {
    let is_last = subsystem > 0 && subsystem + 1 == swarm.subsystems;
    is_last && swarm.faults.has(Fault::Anonymous)
}

impl Serving {
    /// Everything that a swarm has.
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
            sizes: swarm.disks.iter().map(|disk| disk.block_count).collect(),
            read_only: read_only.collect(),
            hosts: vec![true; swarm.hosts.len()],
            subsystems: vec![true; swarm.subsystems],
            listeners,
            keys: Keys::new(swarm),
        }
    }

    /// Whether a host can be in service.
    #[must_use]
    pub fn reaches(&self, swarm: &Swarm, host: usize) -> bool {
        let subsystem = swarm.hosts[host].subsystem;
        let is_allowed = self.hosts[host] || self.keys.any_host[subsystem];
        is_allowed && self.subsystems[subsystem] && self.has_listener(swarm, host)
    }

    /// Whether some export has a list of the hosts that may attach it.
    #[must_use]
    pub fn names_hosts(&self) -> bool {
        let mut exports = self.subsystems.iter().zip(&self.keys.any_host);
        exports.any(|(is_there, is_open)| *is_there && !is_open)
    }

    /// Whether there is the listener that a host comes by.
    #[must_use]
    pub fn has_listener(&self, swarm: &Swarm, host: usize) -> bool {
        self.listeners[swarm.hosts[host].listener()]
    }

    /// Whether a disk's namespace can be reached by somebody.
    #[must_use]
    pub fn has_namespace(&self, swarm: &Swarm, disk: usize) -> bool {
        self.namespaces[disk] && self.subsystems[swarm.subsystem_of_disk(disk)]
    }

    /// The text that says so.
    #[must_use]
    pub fn text(&self, swarm: &Swarm) -> String {
        let mut text = format!(
            "[appliance]\nname = \"simulated\"\nmemory = \"{}B\"\nshutdown_deadline = \"{}ms\"\n\
             [control]\nhttp = \"off\"\n[limits]\nmax_controllers = {}\n",
            // What is really taken is the swarm's choice, and often less than can be configured.
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
                writeln!(
                    text,
                    "type = \"nvme\"\npci = \"0000:{:02x}:00.0\"",
                    disk + 1
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
            self.tell_export(swarm, subsystem, &mut text);
        }
        if !self.subsystems.contains(&true) {
            // There is one export at least.
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

    /// Whether a disk's device is there.
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

    fn tell_export(&self, swarm: &Swarm, subsystem: usize, text: &mut String) {
        let disks = 0..self.namespaces.len();
        let disks = disks.filter(|disk| swarm.subsystem_of_disk(*disk) == subsystem);
        let mut namespaces: Vec<String> = disks
            .filter(|disk| self.namespaces[*disk])
            .map(|disk| {
                let name = device_name(disk);
                format!("{{ nsid = {}, device = \"{name}\" }}", self.nsids[disk])
            })
            .collect();
        if namespaces.is_empty() {
            // An export has one at least.
            let spare = format!("spare{subsystem}");
            let _ = write!(
                text,
                "[[device]]\nname = \"{spare}\"\ntype = \"null\"\nsize = \"1MiB\"\n"
            );
            namespaces.push(format!("{{ nsid = 9, device = \"{spare}\" }}"));
        }
        let hosts = (0..self.hosts.len()).filter(|host| self.hosts[*host]);
        // Several paths of one host have one name.
        let names: BTreeSet<usize> = hosts.map(|host| swarm.hosts[host].identity).collect();
        let names = names.into_iter().map(host_name);
        let mut hosts: Vec<String> = names.map(|name| format!("\"{name}\"")).collect();
        if hosts.is_empty() {
            hosts.push("\"nqn.2026-11.org.windlass:nobody\"".to_owned());
        }
        let hosts = match self.keys.any_host[subsystem] {
            true => "allow_any_host = true".to_owned(),
            false => format!("hosts = [{}]", hosts.join(", ")),
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
        let identity = self.keys.identities[subsystem];
        if identity > 0 {
            let _ = write!(
                text,
                "serial = \"SIMULATED{identity}\"\nmodel = \"Simulated {identity}\"\n"
            );
        }
    }

    /// The same as the production parser reads it.
    ///
    /// # Errors
    /// Its problems, in words.
    pub fn config(&self, swarm: &Swarm) -> Result<Config, String> {
        read(&self.text(swarm))
    }
}

/// A configuration as the production parser reads it.
///
/// # Errors
/// Its problems, in words.
pub fn read(text: &str) -> Result<Config, String> {
    Config::parse("simulated", text).map_err(|problems| {
        problems
            .display(appliance_config::Colour::Never)
            .to_string()
    })
}
