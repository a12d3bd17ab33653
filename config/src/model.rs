//! The typed model of a configuration, and the declarations of its plain keys. The only keys
//! declared elsewhere are those of devices and exports that depend on each other.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;

use uuid::Uuid;

use crate::files::Files;
use crate::kind::{
    Boolean, ControllerRange, Count, Directories, FilePath, Maybe, Size, Text, Time, Unit, Word,
    Words,
};
use crate::limits::{
    COMMAND_DEADLINE_MAX, COMMAND_DEADLINE_MIN, CONNECTIONS_MAX, CONTROLLERS_MAX,
    DRIVE_NAMESPACE_MAX, DRIVE_QUEUE_DEPTH_MAX, IN_CAPSULE_DATA_MAX, IN_CAPSULE_DATA_UNIT_BYTES,
    IO_QUEUES_MAX, LATENCY_TARGET_MAX, LATENCY_TARGET_MIN, MEMORY_MAX, MEMORY_MIN, QUEUE_DEPTH_MAX,
    QUEUE_DEPTH_MIN, RATE_BANDWIDTH_MAX, RATE_BANDWIDTH_MIN, RATE_BURST_MAX, RATE_BURST_MIN,
    RATE_IOPS_MAX, SHUTDOWN_DEADLINE_MAX, SHUTDOWN_DEADLINE_MIN, STALL_THRESHOLD_MAX,
    STALL_THRESHOLD_MIN, TRANSFER_MAX, TRANSFER_MIN, WEIGHT_MAX,
};
use crate::table::{Table as _, Unless, table};
use crate::value::{
    BlockSize, ByteSize, CongestionControl, ControlSocket, ControllerIds, CoreList, CoreListError,
    GroupName, HttpAddress, ListenAddress, ModelNumber, Name, Nqn, PciAddress, Period,
    SerialNumber,
};

pub(crate) const NAME: Text<Name> = Text::of("name", "[a-zA-Z0-9][a-zA-Z0-9._-]{0,12}");
const CORES: Text<Cores> = Text::of(
    "core list, or `\"auto\"`",
    "auto|[0-4](,[5-9])?(,1[0-9]-2[0-9])?(,8191)?",
);
const SOCKET: Text<ControlSocket> = Text::of(
    "absolute path of at most 107 bytes, `\"auto\"` or `\"off\"`",
    "auto|off|/[a-zA-Z0-9 \"'\\\\äλ語=#._-]{1,20}x",
);
const GROUP: Text<GroupName> =
    Text::of("name or number of a group", "[a-z0-9_][a-zA-Z0-9_.-]{0,8}");
const HTTP: Text<HttpAddress> = Text::of(
    "`IPv4:port`, `[IPv6]:port` or `\"off\"`",
    r"off|127\.0\.0\.1:9808|\[::1\]:0|192\.0\.2\.7:0|\[::\]:0",
);
pub(crate) const ADDRESS: Text<ListenAddress> = Text::of(
    "`IPv4:port` or `[IPv6]:port`",
    r"192\.0\.2\.[1-9]:[1-9]{4}|\[2001:db8::[1-9a-f]{4}\]:[1-9]{4}|0\.0\.0\.0:0",
);
const CONGESTION_CONTROL: Text<CongestionControl> = Text::of(
    "1 to 15 characters of `a`-`z`, `0`-`9`, `_` and `-`",
    "[a-z0-9_-]{1,15}",
);
pub(crate) const UUID: Text<Uuid> = Text::of(
    "UUID, 8-4-4-4-12 hexadecimal digits",
    "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-e]{12}",
);
const SERIAL: Text<SerialNumber> = Text::of(
    "1 to 20 printable ASCII characters",
    "[!-~]([ -~]{0,18}[!-~])?",
);
const MODEL: Text<ModelNumber> = Text::of(
    "1 to 40 printable ASCII characters",
    "Windlass|[!-~]([ -~]{0,38}[!-~])?",
);
const CAPSULE_SIZE: Size = Size(
    ByteSize::from_bytes(0)..=IN_CAPSULE_DATA_MAX,
    Unit::Multiple(IN_CAPSULE_DATA_UNIT_BYTES),
);

/// A key that does not apply to NVMe/RDMA.
const fn rdma(hint: &'static str) -> Unless {
    Unless {
        key: "transport",
        word: "rdma",
        what: "a listener of transport \"rdma\"",
        hint,
    }
}

/// A whole configuration.
///
/// One that [`Config::parse`] returned satisfies every rule: names are unique and every reference
/// resolves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The appliance as a whole.
    pub appliance: Appliance,
    /// Limits on resources that all hosts share.
    pub limits: Limits,
    /// The control plane.
    pub control: Control,
    /// The devices, in the order of the file.
    pub devices: Vec<Device>,
    /// The listeners, in the order of the file.
    pub listeners: Vec<Listener>,
    /// The keys, in the order of the file.
    pub keys: Vec<Key>,
    /// The exports, in the order of the file.
    pub exports: Vec<Export>,
    /// The rate limits, in the order of the file.
    pub rate_limits: Vec<RateLimit>,
    /// What is served by NFS.
    pub files: Files,
}

impl Config {
    /// The device named `name`.
    pub fn device(&self, name: &Name) -> Option<&Device> {
        self.devices.iter().find(|device| device.name == *name)
    }

    /// The listener named `name`.
    pub fn listener(&self, name: &Name) -> Option<&Listener> {
        self.listeners
            .iter()
            .find(|listener| listener.name == *name)
    }

    /// The key named `name`.
    pub fn key(&self, name: &Name) -> Option<&Key> {
        self.keys.iter().find(|key| key.name == *name)
    }

    /// The export with that NQN.
    pub fn export(&self, nqn: &Nqn) -> Option<&Export> {
        self.exports.iter().find(|export| export.nqn == *nqn)
    }
}

table! {
    /// The appliance as a whole.
    pub struct Appliance {
        /// Its name, in logs and metrics. The identities of namespaces are derived from it: after a
        /// change of name hosts see other disks, unless each device has a `uuid`.
        name: Name = NAME,
            absent Name::default(),
            like "\"rack7-a\"";
        /// The cores that it runs on, one reactor each. `"auto"` takes one core: the last of those
        /// that the process may use.
        cores: Cores = CORES,
            absent Cores::Auto,
            like "\"2-5\"";
        /// The arena: every buffer for data in flight, taken at start, rounded up to whole pages.
        /// Devices of type `memory` come on top.
        memory: ByteSize = Size(MEMORY_MIN..=MEMORY_MAX, Unit::Byte),
            absent ByteSize::from_mib(256),
            like "\"4GiB\"";
        /// The pages of the arena and of devices of type `memory`: the largest available, with a
        /// notice if they are ordinary; only huge pages, otherwise the start fails; ordinary pages.
        pages: Pages = Word::<Pages>::new(),
            absent Pages::Auto,
            like "\"auto\"";
        /// The behavior of a reactor without work: polls for a while and then sleeps; polls
        /// forever, which keeps its core busy; sleeps immediately.
        idle: Idle = Word::<Idle>::new(),
            absent Idle::Adaptive,
            like "\"adaptive\"";
        /// How long an orderly stop may take before outstanding commands are listed and aborted.
        shutdown_deadline: Period = Time(SHUTDOWN_DEADLINE_MIN..=SHUTDOWN_DEADLINE_MAX),
            absent Period::from_millis(10_000),
            like "\"10s\"", effect Live;
        /// A single poll of a reactor that takes longer is counted as a stall and warned of. On a
        /// core that other programs use too, or in a virtual machine, the scheduler alone takes a
        /// thread away for over ten milliseconds.
        stall_threshold: Period = Time(STALL_THRESHOLD_MIN..=STALL_THRESHOLD_MAX),
            absent Period::from_millis(50),
            like "\"50ms\"";
    }
}

table! {
    /// The control plane: how people and programs look after the appliance.
    pub struct Control {
        /// The Unix socket, which root and the user that the appliance runs as may use. `"auto"` is
        /// `control.sock` in systemd's runtime directory of the service, else, for root, in
        /// `/run/windlass`, else in `$XDG_RUNTIME_DIR/windlass`.
        socket: ControlSocket = SOCKET,
            absent ControlSocket::default(),
            like "\"/run/windlass/control.sock\"";
        /// A group whose members may use the socket too, and so operate the appliance: read
        /// everything, apply a configuration with any export, host, file and drive that the
        /// appliance's user may open, and reopen devices. `apply` and `allowed_paths` restrict that. The kernel
        /// admits them by the socket's owner and mode, so the appliance's user has to be able to
        /// give the socket to the group: it is a member, or root. Under the packaged unit, only the
        /// service's own group can be given (`windlass`).
        group: Option<GroupName> = Maybe(GROUP),
            absent None => "no other user may use the socket",
            like "\"windlass\"";
        /// Where HTTP is answered; port 0 takes any free one, which the log then names. An address
        /// that other machines reach takes a `token_file` or a `read_token_file`.
        http: HttpAddress = HTTP,
            absent HttpAddress::default(),
            like "\"127.0.0.1:9808\"";
        /// A file with the certificate for HTTPS, and those of its issuers in order, as PEM. With it,
        /// `http` answers HTTPS only (TLS 1.3). A replaced file takes effect within 10 s.
        certificate_file: Option<PathBuf> = Maybe(FilePath),
            absent None => "HTTP without encryption",
            like "\"/etc/windlass/certificate.pem\"";
        /// A file with the private key of the certificate, as PEM, that other users may not read.
        certificate_key_file: Option<PathBuf> = Maybe(FilePath),
            absent None => "HTTP without encryption",
            like "\"/etc/windlass/certificate-key.pem\"";
        /// A file with a token of 16 to 1024 printable characters. HTTP requests, those for
        /// `/healthz` and the dashboard's page itself excepted, must contain it (`Authorization:
        /// Bearer …`), which gives the same rights as membership of `group`.
        /// Without a token, HTTP is read-only, and responses do not identify hosts: no NQN, Host
        /// ID, controller or address. Without `certificate_file` it can be read on its way. A
        /// replaced file takes effect within 10 s.
        token_file: Option<PathBuf> = Maybe(FilePath),
            absent None
            => "changes are not possible over HTTP, and without `read_token_file` anyone who can connect to `http` may read",
            like "\"/etc/windlass/token\"";
        /// A file with another such token, which only reads: everything except
        /// reservation keys and the host identifiers of registrants.
        read_token_file: Option<PathBuf> = Maybe(FilePath),
            absent None => "the token of `token_file` is needed to read, if there is one",
            like "\"/etc/windlass/read-token\"";
        /// Whether a request may bring a configuration (`windlass apply FILE`). Without it, only
        /// the file that the appliance was started with can be applied (`windlass apply`,
        /// `systemctl reload windlass`); any file can still be compared (`--dry-run`).
        apply: bool = Boolean,
            absent true,
            like "false";
        /// Where the files must lie of devices that a configuration in a request adds or changes:
        /// below one of these directories, also after symbolic links were followed, and the last
        /// part of the path is no symbolic link. An empty list allows no file. Such a configuration
        /// adds no drives. The file that the appliance was started with, which its owner wrote, may
        /// name files anywhere, and drives.
        allowed_paths: Option<Vec<PathBuf>> = Maybe(Directories),
            absent None => "files anywhere",
            like "[\"/srv/windlass\"]";
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

impl fmt::Display for Cores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cores::Auto => f.write_str("auto"),
            Cores::List(list) => list.fmt(f),
        }
    }
}

impl std::str::FromStr for Cores {
    type Err = CoreListError;

    fn from_str(text: &str) -> Result<Cores, CoreListError> {
        match text {
            "auto" => Ok(Cores::Auto),
            _ => text.parse().map(Cores::List),
        }
    }
}

/// Why the reactors' cores cannot be determined.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CoresNotAllowed {
    /// This core of the list does not exist or is not allowed.
    #[error("core {0} does not exist or is not allowed for this process")]
    Core(usize),
    /// No core is allowed.
    #[error("no core is allowed for this process")]
    None,
}

impl Cores {
    /// The core of each reactor. `allowed` lists the cores that the process may use, in any order.
    ///
    /// # Errors
    /// If a listed core is not in `allowed`, or `allowed` is empty.
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

        impl Words for $name {
            const ALL: &'static [$name] = $name::ALL;

            fn word(self) -> &'static str {
                self.word()
            }
        }
    };
}
pub(crate) use words;

words! {
    /// The page size of the arena.
    Pages {
        /// The largest pages available; a notice if they are ordinary pages.
        Auto = "auto",
        /// Huge pages; the appliance does not start without them.
        Huge = "huge",
        /// Ordinary pages.
        Ordinary = "ordinary",
    }
}

words! {
    /// The behavior of a reactor without work.
    Idle {
        /// Polls for a while, then sleeps.
        Adaptive = "adaptive",
        /// Polls forever.
        Poll = "poll",
        /// Sleeps immediately.
        Sleep = "sleep",
    }
}

words! {
    /// Whether a digest protects the PDUs of a connection.
    Digest {
        /// Never; a host that requests it is not granted it.
        Off = "off",
        /// If the host requests it.
        Allowed = "allowed",
        /// Always; hosts that do not request it are rejected.
        Required = "required",
    }
}

words! {
    /// How the data of copies that hosts request takes its way.
    DataPath {
        /// Through the arena.
        Host = "host",
        /// Through the controller memory buffer of a drive that all drives of the copy reach, while
        /// there is room; else through the arena.
        DriveMemory = "drive-memory",
        /// The best one of those that are there: a copy within a drive by the drive's own Copy, then the
        /// same as `drive-memory`.
        Auto = "auto",
    }
}

words! {
    /// Whether TLS 1.3 protects the connections of a listener.
    Tls {
        /// Never.
        Off = "off",
        /// If the host uses it: the first byte of a connection tells.
        Allowed = "allowed",
        /// Always; hosts without it are rejected.
        Required = "required",
    }
}

words! {
    /// What seals and opens the records of TLS.
    TlsRecords {
        /// This process.
        Own = "own",
        /// The kernel, if it has TLS.
        Kernel = "kernel",
    }
}

words! {
    /// The state of an ANA group at a listener (Base 2.1 §8.1.1).
    AnaState {
        /// Hosts prefer the path.
        Optimized = "optimized",
        /// Hosts use the path if there is no optimized one.
        NonOptimized = "non-optimized",
        /// Commands fail; the state may change later.
        Inaccessible = "inaccessible",
        /// Commands fail; the state does not change while the namespace is attached.
        PersistentLoss = "persistent-loss",
        /// Commands fail, and hosts wait at most ten seconds for another state.
        Change = "change",
    }
}

words! {
    /// The commands that a rate limit counts.
    Operations {
        /// Those that only read.
        Reads = "reads",
        /// Those that change data.
        Writes = "writes",
        /// Both together.
        Both = "both",
    }
}

words! {
    /// The transport of a listener.
    Transport {
        /// TCP.
        Tcp = "tcp",
        /// RDMA.
        Rdma = "rdma",
    }
}

table! {
    /// Bounds on what all hosts together may take.
    pub struct Limits {
        /// Most connections at once, over all cores and transports. Each queue of a controller is a
        /// connection, so a host with 16 cores takes 17 for each export. Where all are taken, a new
        /// TCP connection ends one that belongs to no export and was silent for half a second. All
        /// queues on one core hold at most 65536 commands, such as 512 queues of 128 entries: a
        /// Connect beyond that fails with Controller Busy. Of connections, controllers and
        /// commands, where there are 128 or more, one host leaves an eighth to hosts that hold
        /// little, and hosts that no export names in `hosts` leave a quarter to those that one does
        /// name.
        max_connections: u32 = Count(1..=CONNECTIONS_MAX),
            absent 1024,
            like "1024";
        /// Most controllers at once, of all exports. A host has one on each path to an export.
        /// There may be 64 discovery controllers beside them; the one that was idle longest makes
        /// room for the next.
        max_controllers: u16 = Count(1..=CONTROLLERS_MAX),
            absent 256,
            like "32", effect Live;
        /// Most data of one command. Hosts learn it (MDTS) and split what is larger.
        max_transfer: ByteSize = Size(TRANSFER_MIN..=TRANSFER_MAX, Unit::PowerOfTwo),
            absent ByteSize::from_mib(1),
            like "\"256KiB\"";
        /// Whether a controller's I/O queues over TCP are accepted only from the IP address of its
        /// admin queue. Hosts connect them all from one address; `false` is for hosts whose routes
        /// or address translation do not.
        bind_queues: bool = Boolean,
            absent true,
            like "false";
    }
}

table! {
    /// A store of blocks.
    pub struct Device by hand {
        /// Its name.
        name: Name,
        /// Where the blocks are.
        backing: Backing,
    } {
        /// Whether hosts are kept from writing.
        read_only: bool = Boolean,
            absent false,
            like "true";
        /// The UUID of its namespace. NGUID and EUI-64 are derived from it. Without it the
        /// identifiers follow the content: another file (its inode and time of creation tell, so a
        /// file that was renamed is the same, and a copy or a file restored from a backup is
        /// another), another drive or namespace of a drive (serial number, NGUID and EUI-64 tell)
        /// and another `type` are another disk to hosts, and `memory` is a new disk at each start.
        /// A file that is overwritten in place is not noticed. What was served is recorded in
        /// `$STATE_DIRECTORY/identities`, else, for root, in `/var/lib/windlass/identities`, else
        /// in `$XDG_DATA_HOME/windlass/identities`. With a `uuid` the identifiers never change,
        /// whatever the content: use it where a file is moved to another file system, or where two
        /// machines serve the same file, in turn or at once (`shared`).
        uuid: Option<Uuid> = Maybe(UUID),
            absent None
            => "derived from the names of appliance, export and device, and from the content",
            like "\"9f0c2b6e-54a1-4b53-9d0e-0d5a8a1c7f11\"";
    }
}

/// The storage of a device's blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backing {
    /// In memory, until the appliance stops.
    Memory {
        /// The device's size: whole blocks, not zero.
        size: ByteSize,
        /// The logical block size.
        block_size: BlockSize,
    },
    /// In a file.
    File {
        /// The file's absolute path.
        path: PathBuf,
        /// The device's size: whole blocks, not zero. Without it, the file must exist.
        size: Option<ByteSize>,
        /// The logical block size.
        block_size: BlockSize,
        /// Whether another appliance serves the file too. The device then has a `uuid`, and its
        /// export has `serial` and `controller_ids`.
        shared: bool,
    },
    /// No storage: reads return zeroes, writes are discarded.
    Null {
        /// The device's size: whole blocks, not zero.
        size: ByteSize,
        /// The logical block size.
        block_size: BlockSize,
    },
    /// In a namespace of an NVMe drive, which determines size and block size.
    Nvme(DriveNamespace),
}

table! {
    /// A namespace of an NVMe drive, and the settings of the drive. Devices on one drive have
    /// different namespaces and agree in all other settings but the data path.
    #[derive(Copy)]
    pub struct DriveNamespace by hand {
        /// The drive's PCI function.
        pci: PciAddress,
    } {
        /// Which of the drive's namespaces. A drive with several takes several devices, which agree
        /// in the other keys of the drive.
        namespace: u32 = Count(1..=DRIVE_NAMESPACE_MAX),
            absent DriveNamespace::NAMESPACE_DEFAULT
            => "for `nvme` 1, not allowed otherwise",
            like "2";
        /// Most requests that one reactor has at the drive at once; fewer where the drive takes
        /// fewer.
        queue_depth: u16 = Count(QUEUE_DEPTH_MIN..=DRIVE_QUEUE_DEPTH_MAX),
            absent DriveNamespace::QUEUE_DEPTH_DEFAULT
            => "for `nvme` 256, not allowed otherwise",
            like "256";
        /// How long the drive may take for a command before the command is aborted; a drive that
        /// does not abort it either is reset, and one that cannot be reset is given up. Linux hosts
        /// give up after 30s themselves.
        command_deadline: Period = Time(COMMAND_DEADLINE_MIN..=COMMAND_DEADLINE_MAX),
            absent DriveNamespace::COMMAND_DEADLINE_DEFAULT
            => "for `nvme` `10s`, not allowed otherwise",
            like "\"5s\"";
        /// How the data of copies (NVMe Copy) to and from the device, and of reads and writes of at
        /// least 128 KiB over NVMe/RDMA, takes its way: `host` is through `memory`; `drive-memory` and
        /// `auto` are through the controller memory buffer of its drive, or of one that all drives of
        /// a copy reach, and through `memory` where there is none or the network card cannot access
        /// it. With `auto`, a drive that reports the Copy command executes copies within the device,
        /// and between two such devices of its own, by itself, as far as its limits allow. `windlass
        /// copy` between two such devices takes the same ways. So far, only QEMU's drives have proven
        /// copies, and no hardware reads and writes.
        /// Devices on one drive may differ.
        data_path: DataPath = Word::<DataPath>::new(),
            absent DriveNamespace::DATA_PATH_DEFAULT
            => "for `nvme` `host`, not allowed otherwise",
            like "\"auto\"";
    }
}

impl DriveNamespace {
    /// The default namespace identifier.
    pub const NAMESPACE_DEFAULT: u32 = 1;
    /// The default queue depth.
    pub const QUEUE_DEPTH_DEFAULT: u16 = 256;
    /// The default command deadline.
    pub const COMMAND_DEADLINE_DEFAULT: Period = Period::from_millis(10_000);
    /// The default data path.
    pub const DATA_PATH_DEFAULT: DataPath = DataPath::Host;
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

    /// The size, if the configuration gives it.
    pub const fn size(&self) -> Option<ByteSize> {
        match self {
            Backing::Memory { size, .. } | Backing::Null { size, .. } => Some(*size),
            Backing::File { size, .. } => *size,
            Backing::Nvme(_) => None,
        }
    }

    /// The logical block size, if the configuration gives it.
    pub const fn block_size(&self) -> Option<BlockSize> {
        match self {
            Backing::Memory { block_size, .. }
            | Backing::Null { block_size, .. }
            | Backing::File { block_size, .. } => Some(*block_size),
            Backing::Nvme(_) => None,
        }
    }
}

table! {
    /// An address at which hosts connect.
    pub struct Listener {
        /// Its name, by which exports refer to it.
        name: Name = NAME,
            like "\"san\"";
        /// The transport: NVMe/TCP, or NVMe/RDMA over a network card that has it. Both may have one
        /// address and port.
        transport: Transport = Word::<Transport>::new(),
            like "\"tcp\"";
        /// The address and port; the port may be left out (4420), and port 0 takes any free one,
        /// which the log then names. `0.0.0.0` and `[::]` stand for all addresses of their family.
        address: ListenAddress = ADDRESS,
            like "\"192.0.2.10:4420\"";
        /// The CRC32C over PDU headers: never, if the host requests it, or required of every host.
        /// Not with RDMA.
        header_digest: Digest = Word::<Digest>::new(),
            absent Digest::Allowed,
            unless rdma("remove it: RDMA networks check what they carry"),
            like "\"allowed\"";
        /// The CRC32C over PDU data, likewise. Not with RDMA.
        data_digest: Digest = Word::<Digest>::new(),
            absent Digest::Allowed,
            unless rdma("remove it: RDMA networks check what they carry"),
            like "\"allowed\"";
        /// Most data that a write may carry inside its command, saving a round trip. Admin queues
        /// always take 8KiB with TCP. With RDMA each of the receives that wait for commands, 1024
        /// per reactor and device or fewer where `memory` is small, holds so much memory, that of
        /// the listener with the most.
        in_capsule_data: ByteSize = CAPSULE_SIZE,
            absent Listener::in_capsule_data_default(transport?)
            => "`\"16KiB\"` with TCP, `\"4KiB\"` with RDMA",
            like "\"8KiB\"";
        /// Most entries of an I/O queue. Hosts learn it (MQES) and clamp what they ask for. With
        /// RDMA it is lowered to what the network card allows, which the log says.
        queue_depth: u16 = Count(QUEUE_DEPTH_MIN..=QUEUE_DEPTH_MAX),
            absent Listener::QUEUE_DEPTH_DEFAULT,
            like "256";
        /// The TCP congestion control of what is sent to hosts, one of those in
        /// `/proc/sys/net/ipv4/tcp_available_congestion_control`. One that paces its sending, as
        /// `bbr` does, costs throughput where the network is the machine's own or loses nothing.
        /// Not with RDMA.
        congestion_control: Option<CongestionControl> = Maybe(CONGESTION_CONTROL),
            absent None => "the system's, `net.ipv4.tcp_congestion_control`",
            unless rdma("remove it: RDMA networks have their own"),
            like "\"reno\"";
        /// TLS 1.3 with the keys of `tls` in `hosts` of the exports: never, if the host uses it, or
        /// required of every host. With TLS, digests protect nothing more: turn them off. Discovery
        /// over TLS takes a key too (`nvme discover --tls`); where TLS is required, hosts without
        /// one cannot discover. A change applies to hosts that connect from then on. Not with RDMA.
        tls: Tls = Word::<Tls>::new(),
            absent Tls::Off,
            unless rdma("remove it: it protects only TCP"),
            like "\"required\"";
        /// What seals and opens the records of TLS: Windlass, or the kernel (kTLS, after `modprobe
        /// tls`), which leaves it to network cards that can. Without TLS in the kernel Windlass does
        /// it. Linux before 6.14 cannot replace keys: a connection ends then after 16 million
        /// records, and its host connects again. A change applies to hosts that connect from then on.
        tls_records: TlsRecords = Word::<TlsRecords>::new(),
            absent TlsRecords::Own,
            unless rdma("remove it: it is for TLS, which protects only TCP"),
            like "\"kernel\"";
    }
}

table! {
    /// An NVMe subsystem.
    pub struct Export by hand {
        /// Its NVMe Qualified Name.
        nqn: Nqn,
        /// Its namespaces, in the order of the file: at least one, each identifier and device once.
        namespaces: Vec<Namespace>,
        /// The names of the listeners at which it can be reached: at least one, each once.
        listeners: Vec<Name>,
        /// Who may attach it.
        access: Access,
        /// The states of its ANA groups at its listeners; optimized without an entry. No listener
        /// and group occurs twice.
        ana: Vec<AnaEntry>,
        /// What some of its hosts see of it; the others see every namespace. No host occurs twice.
        masks: Vec<Mask>,
        /// How some of its hosts authenticate themselves; the others do not. No host occurs twice.
        authentication: Vec<HostAuthentication>,
    } {
        /// The serial number that hosts see.
        serial: Option<SerialNumber> = Maybe(SERIAL),
            absent None
            => "derived from the names of appliance and export",
            like "\"WL-0001\"";
        /// The model number that hosts see.
        model: ModelNumber = MODEL,
            absent ModelNumber::default(),
            like "\"Windlass\"";
        /// Most I/O queues of one controller. A host usually creates one for each of its cores, or
        /// fewer if configured.
        max_io_queues: u16 = Count(1..=IO_QUEUES_MAX),
            absent Export::MAX_IO_QUEUES_DEFAULT,
            like "16";
        /// The latency that 99 % of its reads and writes should not exceed, from the receipt of a
        /// command to its response. While they do, exports without `p99` are slowed down, to 1 MiB
        /// in a second each at worst. What its own rate limits delay counts too.
        p99: Option<Period> = Maybe(Time(LATENCY_TARGET_MIN..=LATENCY_TARGET_MAX)),
            absent None => "no target",
            like "\"500us\"";
        /// Its part of a disk that is the bottleneck (64 commands are in it on average), in
        /// proportion to the weights of the other exports on the disk: a drive, or a file system.
        /// What it does not use is left to the others. Where none of them has a weight, nothing is
        /// shared.
        weight: Option<u32> = Maybe(Count(1..=WEIGHT_MAX)),
            absent None => "100",
            like "300";
        /// The first and the last identifier that its controllers get. Two appliances that serve
        /// one export need ranges that do not overlap: hosts require different identifiers. A
        /// change applies to new controllers.
        controller_ids: Option<ControllerIds> = Maybe(ControllerRange),
            absent None => "`[1, 65519]`",
            like "[1, 32000]";
    }
}

table! {
    /// A limit on the commands of a device, of a host, or of a host at an export. Commands above it
    /// wait before they take memory, and hosts see higher latencies. Each command counts towards
    /// every limit that applies to it.
    pub struct RateLimit by hand {
        /// The commands that are counted together.
        scope: RateScope,
    } {
        /// Which commands are counted. Flushes and reservations never are.
        operations: Operations = Word::<Operations>::new(),
            absent Operations::Both,
            like "\"writes\"";
        /// Most commands in a second. A command that both compares and writes is two.
        iops: Option<u64> = Maybe(Count(1..=RATE_IOPS_MAX)),
            absent None => "no limit; then `bandwidth` is required",
            like "20000";
        /// Most data in a second.
        bandwidth: Option<ByteSize> = Maybe(Size(RATE_BANDWIDTH_MIN..=RATE_BANDWIDTH_MAX, Unit::Byte)),
            absent None => "no limit; then `iops` is required",
            like "\"200MiB\"";
        /// The unused time that is caught up at once: after a pause of this time or longer, so much
        /// of a rate is available immediately.
        burst: Period = Time(RATE_BURST_MIN..=RATE_BURST_MAX),
            absent RateLimit::BURST_DEFAULT,
            like "\"100ms\"";
    }
}

/// The commands that a rate limit counts together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RateScope {
    /// Those of all hosts for the device with this name.
    Device(Name),
    /// Those of a host for all exports.
    Host(Nqn),
    /// Those of a host for one export.
    HostAt {
        /// The host.
        host: Nqn,
        /// The export.
        export: Nqn,
    },
}

impl fmt::Display for RateScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RateScope::Device(device) => write!(f, "device {device}"),
            RateScope::Host(host) => write!(f, "host {host}"),
            RateScope::HostAt { host, export } => write!(f, "host {host} at {export}"),
        }
    }
}

impl RateLimit {
    /// The default burst.
    pub const BURST_DEFAULT: Period = Period::from_millis(10);

    /// The limit in a few words: `host nqn…: 20000 writes/s`.
    pub fn in_words(&self) -> String {
        let operations = match self.operations {
            Operations::Reads => "reads",
            Operations::Writes => "writes",
            Operations::Both => "commands",
        };
        let iops = self.iops.map(|iops| format!("{iops} {operations}/s"));
        let bandwidth = self.bandwidth.map(|it| match self.operations {
            Operations::Both => format!("{it}/s"),
            Operations::Reads | Operations::Writes => format!("{it}/s of {operations}"),
        });
        let rates: Vec<_> = iops.into_iter().chain(bandwidth).collect();
        format!("{}: {}", self.scope, rates.join(", "))
    }
}

impl Operations {
    /// Whether some commands are counted by both.
    pub fn overlap(self, other: Operations) -> bool {
        self == other || self == Operations::Both || other == Operations::Both
    }
}

/// A namespace of an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// The namespace identifier, from 1.
    pub nsid: u32,
    /// The name of its device.
    pub device: Name,
    /// Its ANA group, from 1.
    pub ana_group: u32,
}

impl Namespace {
    /// The default ANA group.
    pub const ANA_GROUP_DEFAULT: u32 = 1;

    /// Whether it is the same device with the same identifier, in any ANA group.
    pub fn is_same_disk(&self, other: &Namespace) -> bool {
        (self.nsid, &self.device) == (other.nsid, &other.device)
    }
}

/// The state of ANA groups at a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnaEntry {
    /// The listener's name.
    pub listener: Name,
    /// The group; `None`: every group that has no entry of its own.
    pub group: Option<u32>,
    /// The state.
    pub state: AnaState,
}

/// The part of an export that some of its hosts see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mask {
    /// The hosts: at least one.
    pub hosts: Vec<Nqn>,
    /// The names of the devices that they see, each once in both lists. They write to these as
    /// hosts without a mask.
    pub devices: Vec<Name>,
    /// The names of the devices that they see and only read.
    pub read_only: Vec<Name>,
}

/// A secret of hosts. The file names the place of the secret, never the secret itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    /// Its name.
    pub name: Name,
    /// The place of the secret.
    pub source: KeySource,
}

/// The place of a secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySource {
    /// A file, by its absolute path.
    File(PathBuf),
    /// A credential that systemd passes to the service, by its name.
    Credential(Name),
}

/// How a host of an export authenticates itself: by DH-HMAC-CHAP, TLS or both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostAuthentication {
    /// The host.
    pub host: Nqn,
    /// The names of the keys of which it has one for DH-HMAC-CHAP: 0 to 4, each once.
    pub chap: Vec<Name>,
    /// The name of the key with which the appliance authenticates itself.
    pub chap_controller: Option<Name>,
    /// Whether an exchange without a Diffie-Hellman group is accepted.
    pub chap_null_group: bool,
    /// Whether it may generate a key for TLS by DH-HMAC-CHAP.
    pub concatenation: bool,
    /// Whether it has to authenticate itself by DH-HMAC-CHAP.
    pub requires_chap: bool,
    /// The names of the keys of which it has one for TLS: 0 to 4, each once.
    pub tls: Vec<Name>,
    /// Whether it has to use TLS.
    pub requires_tls: bool,
}

/// What a host may do with a namespace of an export that it may attach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MaskedAccess {
    /// It does not see the namespace.
    Hidden,
    /// It reads.
    ReadOnly,
    /// It does what the device permits.
    Unrestricted,
}

impl Mask {
    /// What its hosts may do with the namespace of a device.
    pub fn shows(&self, device: &Name) -> MaskedAccess {
        if self.devices.contains(device) {
            MaskedAccess::Unrestricted
        } else if self.read_only.contains(device) {
            MaskedAccess::ReadOnly
        } else {
            MaskedAccess::Hidden
        }
    }
}

/// The hosts that may attach an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// Every host.
    AnyHost,
    /// These hosts: at least one, each once.
    Hosts(Vec<Nqn>),
}

impl Access {
    /// Whether a host with that NQN may attach.
    pub fn permits(&self, host: &str) -> bool {
        match self {
            Access::AnyHost => true,
            Access::Hosts(hosts) => hosts.iter().any(|allowed| allowed.as_str() == host),
        }
    }
}

macro_rules! defaults {
    ($($table:ident),+) => {
        $(impl Default for $table {
            fn default() -> $table {
                match $table::absent(()) {
                    Some(table) => table,
                    None => unreachable!("none of its keys is required"),
                }
            }
        })+
    };
}

defaults!(Appliance, Limits, Control);

impl Listener {
    /// The default size of in-capsule data.
    pub const fn in_capsule_data_default(transport: Transport) -> ByteSize {
        match transport {
            Transport::Tcp => ByteSize::from_kib(16),
            // Each receive posted for a command occupies this much memory.
            Transport::Rdma => ByteSize::from_kib(4),
        }
    }

    /// The default queue depth.
    pub const QUEUE_DEPTH_DEFAULT: u16 = 128;
}

impl Export {
    /// The default number of I/O queues per controller.
    pub const MAX_IO_QUEUES_DEFAULT: u16 = 64;

    /// The configured state of an ANA group at a listener.
    pub fn ana_state(&self, listener: &Name, group: u32) -> AnaState {
        let entries = || self.ana.iter().filter(|it| it.listener == *listener);
        let own = entries().find(|it| it.group == Some(group));
        let entry = own.or_else(|| entries().find(|it| it.group.is_none()));
        entry.map_or(AnaState::Optimized, |it| it.state)
    }

    /// The mask of a host; without one it sees every namespace.
    pub fn mask(&self, host: &Nqn) -> Option<&Mask> {
        let mut masks = self.masks.iter();
        masks.find(|mask| mask.hosts.contains(host))
    }

    /// How a host authenticates itself; `None` if it does not.
    pub fn authentication_of(&self, host: &Nqn) -> Option<&HostAuthentication> {
        self.authentication.iter().find(|it| it.host == *host)
    }

    /// The ANA groups of its namespaces, ascending.
    pub fn ana_groups(&self) -> BTreeSet<u32> {
        self.namespaces.iter().map(|it| it.ana_group).collect()
    }
}
