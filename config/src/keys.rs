//! Every key of the configuration file: the one table behind the parser's allow-list, its hints and
//! `REFERENCE.md`.

use std::fmt::Write as _;

/// One key of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Key {
    /// The key as written.
    pub name: &'static str,
    /// Which values it takes, with their unit and limits.
    pub value: &'static str,
    /// What holds where it is absent.
    pub absent: Absent,
    /// A value, as it would stand in a file.
    pub example: &'static str,
    /// What it does.
    pub meaning: &'static str,
}

/// What holds where a key is absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Absent {
    /// The key has to be there.
    Required,
    /// The key is the same as if it were there with this value.
    Value(&'static str),
    /// What holds then is said in these words.
    Words(&'static str),
}

/// One table of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Section {
    /// The table's path without indices; empty for the file itself.
    pub path: &'static str,
    /// How it is written in a file.
    pub header: &'static str,
    /// What it stands for.
    pub meaning: &'static str,
    /// Its keys.
    pub keys: &'static [Key],
}

impl Section {
    /// The key of that name.
    pub fn key(&self, name: &str) -> Option<&'static Key> {
        self.keys.iter().find(|key| key.name == name)
    }
}

/// Every table of the file. The first is the file itself.
pub const SECTIONS: &[Section] = &[
    ROOT, APPLIANCE, LIMITS, CONTROL, DEVICE, LISTENER, EXPORT, NAMESPACE,
];

pub(crate) const ROOT: Section = Section {
    path: "",
    header: "the file",
    meaning: "The tables of a file, in any order.",
    keys: &[
        Key {
            name: "appliance",
            value: "table",
            absent: Absent::Words("each key's default"),
            example: "[appliance]",
            meaning: "The appliance as a whole.",
        },
        Key {
            name: "limits",
            value: "table",
            absent: Absent::Words("each key's default"),
            example: "[limits]",
            meaning: "Bounds on what all hosts together may take.",
        },
        Key {
            name: "control",
            value: "table",
            absent: Absent::Words("each key's default"),
            example: "[control]",
            meaning: "How people and programs look after the appliance.",
        },
        Key {
            name: "device",
            value: "array of 1 to 128 tables",
            absent: Absent::Required,
            example: "[[device]]",
            meaning: "The devices that can be exported.",
        },
        Key {
            name: "listener",
            value: "array of 1 to 64 tables",
            absent: Absent::Required,
            example: "[[listener]]",
            meaning: "The addresses at which hosts connect.",
        },
        Key {
            name: "export",
            value: "array of 1 to 128 tables",
            absent: Absent::Required,
            example: "[[export]]",
            meaning: "The NVMe subsystems that hosts see.",
        },
    ],
};

pub(crate) const APPLIANCE: Section = Section {
    path: "appliance",
    header: "[appliance]",
    meaning: "The appliance as a whole.",
    keys: &[
        Key {
            name: "name",
            value: "name",
            absent: Absent::Value("\"windlass\""),
            example: "\"rack7-a\"",
            meaning: "Its name, in logs and metrics. The identities of namespaces are derived from \
                      it: after a change of name hosts see other disks, unless each device has a \
                      `uuid`.",
        },
        Key {
            name: "cores",
            value: "core list, or `\"auto\"`",
            absent: Absent::Value("\"auto\""),
            example: "\"2-5\"",
            meaning: "The cores that it runs on, one reactor each. `\"auto\"` takes one core: the \
                      last of those that the process may use.",
        },
        Key {
            name: "memory",
            value: "size, 16MiB to 16TiB",
            absent: Absent::Value("\"256MiB\""),
            example: "\"4GiB\"",
            meaning: "The arena: every buffer for data in flight, taken at start, rounded up to \
                      whole pages. Devices of type `memory` come on top.",
        },
        Key {
            name: "pages",
            value: "`\"auto\"`, `\"huge\"` or `\"ordinary\"`",
            absent: Absent::Value("\"auto\""),
            example: "\"auto\"",
            meaning: "Which pages the arena and devices of type `memory` take: the largest there \
                      are, and a notice where they are ordinary; huge pages or no start; ordinary \
                      ones.",
        },
        Key {
            name: "idle",
            value: "`\"adaptive\"`, `\"poll\"` or `\"sleep\"`",
            absent: Absent::Value("\"adaptive\""),
            example: "\"adaptive\"",
            meaning: "What a reactor without work does: polls on for a while and then sleeps; \
                      polls for ever, which burns its core; sleeps at once.",
        },
        Key {
            name: "shutdown_deadline",
            value: "time, 100ms to 10min",
            absent: Absent::Value("\"10s\""),
            example: "\"10s\"",
            meaning: "How long an orderly stop may take before what is outstanding is named and \
                      abandoned.",
        },
    ],
};

pub(crate) const LIMITS: Section = Section {
    path: "limits",
    header: "[limits]",
    meaning: "Bounds on what all hosts together may take.",
    keys: &[
        Key {
            name: "max_connections",
            value: "integer, 1 to 65535",
            absent: Absent::Value("1024"),
            example: "1024",
            meaning: "Most connections at once, over all cores and transports. Each queue of a \
                      controller is a connection, so a host with 16 cores takes 17 for each \
                      export. Where all are taken, a new TCP connection ends one that belongs to \
                      no export and was silent for half a second. All queues on one core hold at \
                      most 65536 commands, such as 512 queues of 128 entries: a host beyond that \
                      is told that the controller is busy. Of connections, controllers and \
                      commands, where there are 128 or more, one host leaves an eighth to hosts \
                      that hold little, and hosts that no export names in `hosts` leave a quarter \
                      to those that one does name.",
        },
        Key {
            name: "max_controllers",
            value: "integer, 1 to 4096",
            absent: Absent::Value("256"),
            example: "32",
            meaning: "Most controllers at once, of all exports. A host has one on each path to an \
                      export. There may be 64 discovery controllers beside them; the one that was \
                      idle longest makes room for the next.",
        },
        Key {
            name: "max_transfer",
            value: "size, a power of two, 4KiB to 1MiB",
            absent: Absent::Value("\"1MiB\""),
            example: "\"256KiB\"",
            meaning: "Most data of one command. Hosts learn it (MDTS) and split what is larger.",
        },
        Key {
            name: "bind_queues",
            value: "boolean",
            absent: Absent::Value("true"),
            example: "false",
            meaning: "Whether a controller's I/O queues over TCP are accepted only from the IP \
                      address of its admin queue. Hosts connect them all from one address; \
                      `false` is for hosts whose routes or address translation do not.",
        },
    ],
};

pub(crate) const CONTROL: Section = Section {
    path: "control",
    header: "[control]",
    meaning: "The control plane: a Unix socket for `windlass status` and its like, and HTTP for the \
              dashboard, `/metrics` and `/api/v1`. What cannot be had of it is a line in the log, \
              and the exports are served all the same. Only a restart changes these keys.",
    keys: &[
        Key {
            name: "socket",
            value: "absolute path of at most 107 bytes, `\"auto\"` or `\"off\"`",
            absent: Absent::Value("\"auto\""),
            example: "\"/run/windlass/control.sock\"",
            meaning: "The Unix socket, which root and the user that the appliance runs as may use. \
                      `\"auto\"` is `control.sock` in systemd's runtime directory of the service, \
                      else, for root, in `/run/windlass`, else in `$XDG_RUNTIME_DIR/windlass`.",
        },
        Key {
            name: "group",
            value: "name or number of a group",
            absent: Absent::Words("nobody else may use the socket"),
            example: "\"windlass\"",
            meaning: "A group whose members may use the socket too, and so operate the appliance: \
                      read everything, apply a configuration with any export, host and file that \
                      the appliance's user may open, and reopen devices. `apply` and \
                      `allowed_paths` restrict that. The kernel admits them by the socket's owner \
                      and mode, so the appliance's user has to be able to give the socket to the \
                      group: it is a member, or root. Under the packaged unit, only the service's \
                      own group can be given (`windlass`).",
        },
        Key {
            name: "http",
            value: "`IPv4:port`, `[IPv6]:port` or `\"off\"`",
            absent: Absent::Value("\"127.0.0.1:9808\""),
            example: "\"127.0.0.1:9808\"",
            meaning: "Where HTTP is answered; port 0 takes any free one, which the log then names. \
                      An address that other machines reach takes a `token_file`.",
        },
        Key {
            name: "token_file",
            value: "absolute path",
            absent: Absent::Words(
                "whoever reaches `http` may read, and nobody may change anything \
                                   there",
            ),
            example: "\"/etc/windlass/token\"",
            meaning: "A file with a token of 16 to 1024 printable characters. HTTP requests, those \
                      for `/healthz` and the dashboard's page itself excepted, must bring it \
                      (`Authorization: Bearer …`), and whoever brings it may operate the appliance \
                      as members of `group` may. Without a token, HTTP only reads, and tells \
                      nothing that identifies a host: not its NQN, Host ID, controller or address. \
                      Without HTTPS it can be read on its way: beyond this machine, put a proxy in \
                      front.",
        },
        Key {
            name: "apply",
            value: "boolean",
            absent: Absent::Value("true"),
            example: "false",
            meaning: "Whether a request may bring a configuration (`windlass apply FILE`). Without \
                      it, only the file that the appliance was started with can be applied \
                      (`windlass apply`, `systemctl reload windlass`); any file can still be \
                      compared (`--dry-run`).",
        },
        Key {
            name: "allowed_paths",
            value: "array of up to 64 absolute paths of directories",
            absent: Absent::Words("files anywhere"),
            example: "[\"/srv/windlass\"]",
            meaning: "Where the files must lie of devices that a configuration in a request adds \
                      or changes: below one of these directories, also after symbolic links were \
                      followed, and the last part of the path is no symbolic link. An empty list \
                      allows no file. The file that the appliance was started with, which its \
                      owner wrote, may name files anywhere.",
        },
    ],
};

pub(crate) const DEVICE: Section = Section {
    path: "device",
    header: "[[device]]",
    meaning: "A store of blocks. It becomes a namespace where an export names it.",
    keys: &[
        Key {
            name: "name",
            value: "name",
            absent: Absent::Required,
            example: "\"vol0\"",
            meaning: "Its name, by which exports refer to it. The identity of its namespace is \
                      derived from it.",
        },
        Key {
            name: "type",
            value: "`\"nvme\"`, `\"file\"`, `\"memory\"` or `\"null\"`",
            absent: Absent::Required,
            example: "\"file\"",
            meaning: "Where the blocks are: on an NVMe drive that is bound to `vfio-pci` and so \
                      belongs to the appliance (`windlass bind`); in a file; in memory until the \
                      appliance stops; nowhere (reads give zeroes, writes are dropped: for \
                      measurements).",
        },
        Key {
            name: "size",
            value: "size, a multiple of the block size, to 1024TiB (`memory`: 16TiB)",
            absent: Absent::Words(
                "required for `memory` and `null`; for `file` the file's size; not allowed for \
                 `nvme`",
            ),
            example: "\"8GiB\"",
            meaning: "Its size. A file that is missing is created sparse with this size.",
        },
        Key {
            name: "path",
            value: "absolute path",
            absent: Absent::Words("required for `file`, not allowed otherwise"),
            example: "\"/srv/vol0.img\"",
            meaning: "The file, or a partition or logical volume that is not mounted. Without `size` \
                      it has to exist. After a sync of it failed, writes and flushes fail until \
                      `windlass device reopen NAME` or a restart.",
        },
        Key {
            name: "block_size",
            value: "512 or 4096 (bytes)",
            absent: Absent::Value("512"),
            example: "4096",
            meaning: "The unit in which hosts address it. 512 is what every host attaches; 4096 is \
                      better where the file system below works in 4 KiB and no ESXi or boot \
                      firmware attaches. A change makes what hosts stored unreadable to them. Not \
                      allowed for `nvme`: the drive's format decides.",
        },
        Key {
            name: "read_only",
            value: "boolean",
            absent: Absent::Value("false"),
            example: "true",
            meaning: "Whether hosts are kept from writing.",
        },
        Key {
            name: "uuid",
            value: "UUID, 8-4-4-4-12 hexadecimal digits",
            absent: Absent::Words(
                "derived from the names of appliance, export and device, and from the content",
            ),
            example: "\"9f0c2b6e-54a1-4b53-9d0e-0d5a8a1c7f11\"",
            meaning: "The UUID of its namespace. NGUID and EUI-64 are derived from it. Without it \
                      the identifiers follow the content: another file (its inode and time of \
                      creation tell, so a file that was renamed is the same, and a copy or a file \
                      restored from a backup is another), another drive or namespace of a drive \
                      (serial number, NGUID and EUI-64 tell) and another `type` are another disk \
                      to hosts, and `memory` is a new disk at each start. A file that is \
                      overwritten in place is not noticed. What was served is recorded in \
                      `$STATE_DIRECTORY/identities`, else, for root, in \
                      `/var/lib/windlass/identities`, else in \
                      `$XDG_DATA_HOME/windlass/identities`. With a `uuid` the identifiers never \
                      change, whatever the content: use it where a file is moved to another file \
                      system, or where two machines serve the same file in turn.",
        },
        Key {
            name: "pci",
            value: "PCI address, `domain:bus:device.function`",
            absent: Absent::Words("required for `nvme`, not allowed otherwise"),
            example: "\"0000:3b:00.0\"",
            meaning: "The drive, as `windlass devices` lists it. The domain may be left out \
                      (0000).",
        },
        Key {
            name: "namespace",
            value: "integer, 1 to 4294967294",
            absent: Absent::Words("for `nvme` 1, not allowed otherwise"),
            example: "2",
            meaning: "Which of the drive's namespaces. A drive with several takes several devices, \
                      which agree in the other keys of the drive.",
        },
        Key {
            name: "queue_depth",
            value: "integer, 2 to 1024",
            absent: Absent::Words("for `nvme` 256, not allowed otherwise"),
            example: "256",
            meaning: "Most requests that one reactor has at the drive at once; fewer where the \
                      drive takes fewer.",
        },
        Key {
            name: "command_deadline",
            value: "time, 100ms to 10min",
            absent: Absent::Words("for `nvme` `10s`, not allowed otherwise"),
            example: "\"5s\"",
            meaning: "How long the drive may take for a command before the command is aborted; a \
                      drive that does not abort it either is reset, and one that cannot be reset \
                      is given up. Linux hosts give up after 30s themselves.",
        },
    ],
};

pub(crate) const LISTENER: Section = Section {
    path: "listener",
    header: "[[listener]]",
    meaning: "An address at which hosts connect.",
    keys: &[
        Key {
            name: "name",
            value: "name",
            absent: Absent::Required,
            example: "\"san\"",
            meaning: "Its name, by which exports refer to it.",
        },
        Key {
            name: "transport",
            value: "`\"tcp\"` or `\"rdma\"`",
            absent: Absent::Required,
            example: "\"tcp\"",
            meaning: "The transport: NVMe/TCP, or NVMe/RDMA over a network card that has it. Both may \
                      have one address and port.",
        },
        Key {
            name: "address",
            value: "`IPv4:port` or `[IPv6]:port`",
            absent: Absent::Required,
            example: "\"192.0.2.10:4420\"",
            meaning: "The address and port; the port may be left out (4420), and port 0 takes any \
                      free one, which the log then names. `0.0.0.0` and `[::]` stand for all \
                      addresses of their family.",
        },
        Key {
            name: "header_digest",
            value: "`\"off\"`, `\"allowed\"` or `\"required\"`",
            absent: Absent::Value("\"allowed\""),
            example: "\"allowed\"",
            meaning: "The CRC32C over PDU headers: never, where the host asks for it, or hosts \
                      without it are turned away. Not with RDMA.",
        },
        Key {
            name: "data_digest",
            value: "`\"off\"`, `\"allowed\"` or `\"required\"`",
            absent: Absent::Value("\"allowed\""),
            example: "\"allowed\"",
            meaning: "The CRC32C over PDU data, likewise. Not with RDMA.",
        },
        Key {
            name: "in_capsule_data",
            value: "size, a multiple of 16 bytes, 0B to 64KiB",
            absent: Absent::Words("`\"16KiB\"` with TCP, `\"4KiB\"` with RDMA"),
            example: "\"8KiB\"",
            meaning: "Most data that a write may carry inside its command, saving a round trip. \
                      Admin queues always take 8KiB with TCP. With RDMA each of the receives that \
                      wait for commands, 1024 per reactor and device or fewer where `memory` is \
                      small, holds so much memory, that of the listener with the most.",
        },
        Key {
            name: "queue_depth",
            value: "integer, 2 to 1024",
            absent: Absent::Value("128"),
            example: "256",
            meaning: "Most entries of an I/O queue. Hosts learn it (MQES) and clamp what they ask \
                      for. With RDMA it is lowered to what the network card allows, which the log \
                      says.",
        },
        Key {
            name: "congestion_control",
            value: "1 to 15 characters of `a`-`z`, `0`-`9`, `_` and `-`",
            absent: Absent::Words("the system's, `net.ipv4.tcp_congestion_control`"),
            example: "\"reno\"",
            meaning: "The TCP congestion control of what is sent to hosts, one of those in \
                      `/proc/sys/net/ipv4/tcp_available_congestion_control`. One that paces its \
                      sending, as `bbr` does, costs throughput where the network is the machine's \
                      own or loses nothing. Not with RDMA.",
        },
    ],
};

pub(crate) const EXPORT: Section = Section {
    path: "export",
    header: "[[export]]",
    meaning: "An NVMe subsystem: the namespaces that a host attaches together.",
    keys: &[
        Key {
            name: "nqn",
            value: "NQN, to 223 bytes",
            absent: Absent::Required,
            example: "\"nqn.2026-11.org.example:rack7-a.fast\"",
            meaning: "Its NVMe Qualified Name: `nqn.`, year and month, a reversed domain, a colon, \
                      any text; or `nqn.2014-08.org.nvmexpress:uuid:` and a UUID.",
        },
        Key {
            name: "devices",
            value: "array of 1 to 128 device names or tables",
            absent: Absent::Required,
            example: "[\"vol0\"]",
            meaning: "Its namespaces. A name takes the namespace identifier after the one before \
                      it, the first 1; a table gives it. A device belongs to one export at most.",
        },
        Key {
            name: "listeners",
            value: "array of 1 to 64 listener names",
            absent: Absent::Required,
            example: "[\"san\"]",
            meaning: "Where it can be reached.",
        },
        Key {
            name: "hosts",
            value: "array of 1 to 1024 host NQNs",
            absent: Absent::Words("required unless `allow_any_host = true`"),
            example: "[\"nqn.2014-08.org.nvmexpress:uuid:9f0c2b6e-54a1-4b53-9d0e-0d5a8a1c7f11\"]",
            meaning: "The hosts that may attach it. A Linux host's is in `/etc/nvme/hostnqn`.",
        },
        Key {
            name: "allow_any_host",
            value: "boolean",
            absent: Absent::Value("false"),
            example: "true",
            meaning: "Whether every host may attach it. Then `hosts` is not allowed.",
        },
        Key {
            name: "serial",
            value: "1 to 20 printable ASCII characters",
            absent: Absent::Words("derived from the names of appliance and export"),
            example: "\"WL-0001\"",
            meaning: "The serial number that hosts see.",
        },
        Key {
            name: "model",
            value: "1 to 40 printable ASCII characters",
            absent: Absent::Value("\"Windlass\""),
            example: "\"Windlass\"",
            meaning: "The model number that hosts see.",
        },
        Key {
            name: "max_io_queues",
            value: "integer, 1 to 128",
            absent: Absent::Value("64"),
            example: "16",
            meaning: "Most I/O queues of one controller. A host takes one for each of its cores, \
                      or fewer where it is told so.",
        },
    ],
};

pub(crate) const NAMESPACE: Section = Section {
    path: "export.devices",
    header: "devices = [{ … }]",
    meaning: "A namespace whose identifier is given.",
    keys: &[
        Key {
            name: "device",
            value: "device name",
            absent: Absent::Required,
            example: "\"vol0\"",
            meaning: "The device.",
        },
        Key {
            name: "nsid",
            value: "integer, 1 to 1024",
            absent: Absent::Required,
            example: "7",
            meaning: "The namespace identifier.",
        },
    ],
};

const REFERENCE_HEAD: &str = "\
# Every key of the configuration file

The file is TOML. Every key that is not listed here is an error. Generated from
`config/src/keys.rs`; `UPDATE_EXPECTED=1 cargo test -p appliance_config` writes it anew.

Kinds of values:

- **name**: 1 to 64 letters, digits, `.`, `_` and `-`, the first a letter or digit.
- **size**: a string of a whole number and a unit, `\"4GiB\"`. Units are `B`, `KiB`, `MiB`, `GiB`,
  `TiB` (1024) and `kB`, `MB`, `GB`, `TB` (1000). An integer without quotes is bytes.
- **time**: a string of a whole number and one of the units `ms`, `s`, `min`, `h`: `\"10s\"`.
- **core list**: a string of core numbers and ranges between commas: `\"2-5\"`, `\"0,2,4-6\"`.
";

/// The text of `REFERENCE.md`.
pub fn reference() -> String {
    let mut text = String::from(REFERENCE_HEAD);
    for section in SECTIONS {
        let title = match section.path {
            "" => "The file".to_owned(),
            _ => format!("`{}`", section.header),
        };
        // Writing to a String cannot fail.
        let _ = write!(text, "\n## {title}\n\n{}\n\n", section.meaning);
        text.push_str("| key | value | default | meaning | example |\n|---|---|---|---|---|\n");
        for key in section.keys {
            let Key {
                name,
                value,
                example,
                meaning,
                ..
            } = key;
            let default = match key.absent {
                Absent::Required => "required".to_owned(),
                Absent::Value(value) => format!("`{value}`"),
                Absent::Words(words) => words.to_owned(),
            };
            let _ = writeln!(
                text,
                "| `{name}` | {value} | {default} | {meaning} | `{example}` |"
            );
        }
    }
    text
}
