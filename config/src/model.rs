//! What a configuration says, in types. Every field is one key of the file; `keys.rs` says more.

use std::path::PathBuf;

use uuid::Uuid;

use crate::value::{
    BlockSize, ByteSize, CongestionControl, ControlSocket, CoreList, GroupName, HttpAddress,
    ListenAddress, ModelNumber, Name, Nqn, PciAddress, Period, SerialNumber,
};

/// A whole configuration.
///
/// One that [`Config::parse`] returned keeps every rule: names are unique and every reference leads
/// to something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The appliance as a whole.
    pub appliance: Appliance,
    /// Bounds on what all hosts together may take.
    pub limits: Limits,
    /// How it is looked after.
    pub control: Control,
    /// The devices, in the order of the file.
    pub devices: Vec<Device>,
    /// The listeners, in the order of the file.
    pub listeners: Vec<Listener>,
    /// The exports, in the order of the file.
    pub exports: Vec<Export>,
}

impl Config {
    /// The device of that name.
    pub fn device(&self, name: &Name) -> Option<&Device> {
        self.devices.iter().find(|device| device.name == *name)
    }

    /// The listener of that name.
    pub fn listener(&self, name: &Name) -> Option<&Listener> {
        self.listeners
            .iter()
            .find(|listener| listener.name == *name)
    }

    /// The export of that name.
    pub fn export(&self, nqn: &Nqn) -> Option<&Export> {
        self.exports.iter().find(|export| export.nqn == *nqn)
    }
}

/// The appliance as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Appliance {
    /// Its name.
    pub name: Name,
    /// The cores that it runs on.
    pub cores: Cores,
    /// The size of the arena.
    pub memory: ByteSize,
    /// Which pages the arena takes.
    pub pages: Pages,
    /// What a reactor without work does.
    pub idle: Idle,
    /// How long an orderly stop may take.
    pub shutdown_deadline: Period,
}

/// The control plane: how people and programs look after the appliance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Control {
    /// Where its Unix socket is.
    pub socket: ControlSocket,
    /// Whose members may use the socket, beside root and the user that the appliance runs as.
    pub group: Option<GroupName>,
    /// Where it answers HTTP.
    pub http: HttpAddress,
    /// The file with the token that HTTP requests must bring.
    pub token_file: Option<PathBuf>,
    /// Whether a request may bring a configuration to apply.
    pub apply: bool,
    /// Directories that the files must lie below which a configuration in a request adds or
    /// changes; `None`: anywhere.
    pub allowed_paths: Option<Vec<PathBuf>>,
}

impl Default for Control {
    fn default() -> Control {
        Control {
            socket: ControlSocket::default(),
            group: None,
            http: HttpAddress::default(),
            token_file: None,
            apply: true,
            allowed_paths: None,
        }
    }
}

/// The cores that the appliance runs on, one reactor each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cores {
    /// One reactor, on the last core that the process may use.
    Auto,
    /// One reactor on each of these.
    List(CoreList),
}

/// A core list names a core that the process may not use, or there is none at all.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CoresNotAllowed {
    /// This core of the list is not among the allowed ones.
    #[error("core {0} is not there or not allowed to this process")]
    Core(usize),
    /// No core is allowed.
    #[error("no core is allowed to this process")]
    None,
}

impl Cores {
    /// The core of each reactor, given the cores that the process may use, in any order.
    ///
    /// # Errors
    /// Where a listed core is not among `allowed`, or `allowed` is empty.
    pub fn resolve(&self, allowed: &[usize]) -> Result<Vec<usize>, CoresNotAllowed> {
        match self {
            Cores::Auto => {
                let last = allowed.iter().max().ok_or(CoresNotAllowed::None)?;
                Ok(vec![*last])
            }
            Cores::List(list) => match list.iter().find(|core| !allowed.contains(core)) {
                Some(core) => Err(CoresNotAllowed::Core(core)),
                None => Ok(list.iter().collect()),
            },
        }
    }
}

/// Declares an enum whose values are words in the file.
macro_rules! words {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$doc])* $variant,)+
        }

        impl $name {
            /// Every value.
            pub const ALL: &[$name] = &[$($name::$variant),+];

            /// The word in the file.
            pub const fn word(self) -> &'static str {
                match self {
                    $($name::$variant => $word,)+
                }
            }
        }
    };
}

words! {
    /// Which pages the arena takes.
    Pages {
        /// The largest there are; a notice where they are ordinary.
        Auto = "auto",
        /// Huge pages, or no start.
        Huge = "huge",
        /// Ordinary pages.
        Ordinary = "ordinary",
    }
}

words! {
    /// What a reactor without work does.
    Idle {
        /// Polls on for a while, then sleeps.
        Adaptive = "adaptive",
        /// Polls for ever.
        Poll = "poll",
        /// Sleeps at once.
        Sleep = "sleep",
    }
}

words! {
    /// Whether a digest protects the PDUs of a connection.
    Digest {
        /// Never: a host that asks for it is told that there is none.
        Off = "off",
        /// Where the host asks for it.
        Allowed = "allowed",
        /// Hosts that do not ask for it are turned away.
        Required = "required",
    }
}

words! {
    /// How a listener talks to hosts.
    Transport {
        /// NVMe/TCP.
        Tcp = "tcp",
        /// NVMe/RDMA.
        Rdma = "rdma",
    }
}

/// Bounds on what all hosts together may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most connections at once, of all transports.
    pub max_connections: u32,
    /// Most controllers of exports at once.
    pub max_controllers: u16,
    /// Most data of one command: a power of two of bytes.
    pub max_transfer: ByteSize,
    /// Whether a controller's I/O queues over TCP have to come from the address of its admin queue.
    pub bind_queues: bool,
}

/// A store of blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its name.
    pub name: Name,
    /// Where the blocks are.
    pub backing: Backing,
    /// Whether hosts are kept from writing.
    pub read_only: bool,
    /// The UUID of its namespace, where it is given.
    pub uuid: Option<Uuid>,
}

/// Where the blocks of a device are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backing {
    /// In memory, until the appliance stops.
    Memory {
        /// The device's size: whole blocks, not zero.
        size: ByteSize,
        /// The unit in which hosts address it.
        block_size: BlockSize,
    },
    /// In a file.
    File {
        /// The file's absolute path.
        path: PathBuf,
        /// The device's size: whole blocks, not zero. Without it the file has to exist.
        size: Option<ByteSize>,
        /// The unit in which hosts address it.
        block_size: BlockSize,
    },
    /// Nowhere.
    Null {
        /// The device's size: whole blocks, not zero.
        size: ByteSize,
        /// The unit in which hosts address it.
        block_size: BlockSize,
    },
    /// In a namespace of an NVMe drive, which says how large it and its blocks are.
    Nvme(DriveNamespace),
}

/// A namespace of an NVMe drive, and how the drive is used. Devices on one drive are of different
/// namespaces and agree in everything else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriveNamespace {
    /// The drive's PCI function.
    pub pci: PciAddress,
    /// The namespace identifier that the drive has for it, from 1.
    pub namespace: u32,
    /// Most requests that one reactor has at the drive at once, as far as the drive takes them.
    pub queue_depth: u16,
    /// How long the drive may take for a command before the command is aborted.
    pub command_deadline: Period,
}

impl DriveNamespace {
    /// The namespace where the file says nothing.
    pub const NAMESPACE_DEFAULT: u32 = 1;
    /// The queue depth where the file says nothing.
    pub const QUEUE_DEPTH_DEFAULT: u16 = 256;
    /// The command deadline where the file says nothing.
    pub const COMMAND_DEADLINE_DEFAULT: Period = Period::from_millis(10_000);
}

impl Backing {
    /// The word for it in the file.
    pub const fn word(&self) -> &'static str {
        match self {
            Backing::Memory { .. } => "memory",
            Backing::File { .. } => "file",
            Backing::Null { .. } => "null",
            Backing::Nvme(_) => "nvme",
        }
    }

    /// The size, where the configuration says it.
    pub const fn size(&self) -> Option<ByteSize> {
        match self {
            Backing::Memory { size, .. } | Backing::Null { size, .. } => Some(*size),
            Backing::File { size, .. } => *size,
            Backing::Nvme(_) => None,
        }
    }

    /// The unit in which hosts address it, where the configuration says it.
    pub const fn block_size(&self) -> Option<BlockSize> {
        match self {
            Backing::Memory { block_size, .. }
            | Backing::Null { block_size, .. }
            | Backing::File { block_size, .. } => Some(*block_size),
            Backing::Nvme(_) => None,
        }
    }
}

/// An address at which hosts connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// Its name.
    pub name: Name,
    /// How it talks to hosts.
    pub transport: Transport,
    /// The address and port that it binds.
    pub address: ListenAddress,
    /// The digest over PDU headers. RDMA has none.
    pub header_digest: Digest,
    /// The digest over PDU data. RDMA has none.
    pub data_digest: Digest,
    /// Most data inside a command of an I/O queue: a multiple of 16 bytes.
    pub in_capsule_data: ByteSize,
    /// Most entries of an I/O queue.
    pub queue_depth: u16,
    /// The TCP congestion control of its connections; `None` for the system's.
    pub congestion_control: Option<CongestionControl>,
}

/// An NVMe subsystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// Its NVMe Qualified Name.
    pub nqn: Nqn,
    /// Its namespaces, in the order of the file: at least one, each identifier and device once.
    pub namespaces: Vec<Namespace>,
    /// The names of the listeners at which it can be reached: at least one, each once.
    pub listeners: Vec<Name>,
    /// Who may attach it.
    pub access: Access,
    /// The serial number, where it is given.
    pub serial: Option<SerialNumber>,
    /// The model number.
    pub model: ModelNumber,
    /// Most I/O queues of one controller.
    pub max_io_queues: u16,
}

/// A namespace of an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// The namespace identifier, from 1.
    pub nsid: u32,
    /// The name of its device.
    pub device: Name,
}

/// Who may attach an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// Every host.
    AnyHost,
    /// These hosts: at least one, each once.
    Hosts(Vec<Nqn>),
}

impl Access {
    /// Whether the host of that name may attach.
    pub fn permits(&self, host: &str) -> bool {
        match self {
            Access::AnyHost => true,
            Access::Hosts(hosts) => hosts.iter().any(|allowed| allowed.as_str() == host),
        }
    }
}

impl Default for Appliance {
    fn default() -> Appliance {
        Appliance {
            name: Name::default(),
            cores: Cores::Auto,
            memory: ByteSize::from_mib(256),
            pages: Pages::Auto,
            idle: Idle::Adaptive,
            shutdown_deadline: Period::from_millis(10_000),
        }
    }
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            max_connections: 1024,
            max_controllers: 256,
            max_transfer: ByteSize::from_mib(1),
            bind_queues: true,
        }
    }
}

impl Listener {
    /// Header and data digest where the file says nothing.
    pub const DIGEST_DEFAULT: Digest = Digest::Allowed;
    /// In-capsule data where the file says nothing.
    pub const fn in_capsule_data_default(transport: Transport) -> ByteSize {
        match transport {
            Transport::Tcp => ByteSize::from_kib(16),
            // Each receive that waits for a command holds so much memory.
            Transport::Rdma => ByteSize::from_kib(4),
        }
    }

    /// Queue depth where the file says nothing.
    pub const QUEUE_DEPTH_DEFAULT: u16 = 128;
}

impl Export {
    /// I/O queues of one controller where the file says nothing.
    pub const MAX_IO_QUEUES_DEFAULT: u16 = 64;
}
