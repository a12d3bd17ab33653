//! All tables of the configuration file with their keys, for the parser's allow-list, its hints and
//! `REFERENCE.md`. Plain keys are declared in `model.rs`; keys of devices and exports that depend
//! on each other are listed here.

use std::fmt::Write as _;

use crate::files::{FileListener, Share, Volume};
use crate::model::{
    Appliance, Control, Device, DriveNamespace, Export, Limits, Listener, RateLimit,
};
use crate::table::Table as _;

/// One key of a table.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Key {
    /// The key's name.
    pub name: &'static str,
    /// The values that it accepts, with unit and limits.
    pub values: Values,
    /// What applies if the key is absent.
    pub absent: Absent,
    /// An example value, as in a file.
    pub example: &'static str,
    /// What the key does.
    pub meaning: &'static str,
}

/// The values that a key accepts.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Values {
    /// Described in these words.
    Text(&'static str),
    /// Described by the kind of the key.
    Kind(fn() -> String),
}

impl Values {
    fn text(self) -> String {
        match self {
            Values::Text(text) => text.to_owned(),
            Values::Kind(text) => text(),
        }
    }
}

/// What applies if a key is absent.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Absent {
    /// The key is required.
    Required,
    /// This value applies.
    Value(&'static str),
    /// The value that this function returns applies.
    Kind(fn() -> String),
    /// Described in these words.
    Words(&'static str),
}

impl Absent {
    /// The default value, as in a file.
    pub(crate) fn value(self) -> Option<String> {
        match self {
            Absent::Value(value) => Some(value.to_owned()),
            Absent::Kind(value) => Some(value()),
            Absent::Required | Absent::Words(_) => None,
        }
    }
}

/// One table of the file.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Section {
    /// The table's path without indices; empty for the file itself.
    pub path: &'static str,
    /// The table's header in a file.
    pub header: &'static str,
    /// What the table describes.
    pub meaning: &'static str,
    /// Its keys, in groups.
    keys: &'static [&'static [Key]],
}

impl Section {
    /// Its keys, in order.
    pub fn keys(&self) -> impl Iterator<Item = &'static Key> + Clone + use<> {
        self.keys.iter().copied().flatten()
    }

    /// The key named `name`.
    pub fn key(&self, name: &str) -> Option<&'static Key> {
        self.keys().find(|key| key.name == name)
    }
}

/// Every table of the file. The first is the file itself.
pub const SECTIONS: &[Section] = &[
    ROOT,
    APPLIANCE,
    LIMITS,
    CONTROL,
    DEVICE,
    LISTENER,
    KEY,
    EXPORT,
    NAMESPACE,
    HOST,
    ANA,
    MASK,
    RATE_LIMIT,
    VOLUME,
    SHARE,
    FILE_LISTENER,
];

pub(crate) const ROOT: Section = Section {
    path: "",
    header: "the file",
    meaning: "The tables of a file, in any order.",
    keys: &[&[
        Key {
            name: "appliance",
            values: Values::Text("table"),
            absent: Absent::Words("each key's default"),
            example: "[appliance]",
            meaning: "The appliance as a whole.",
        },
        Key {
            name: "limits",
            values: Values::Text("table"),
            absent: Absent::Words("each key's default"),
            example: "[limits]",
            meaning: "Bounds on what all hosts together may take.",
        },
        Key {
            name: "control",
            values: Values::Text("table"),
            absent: Absent::Words("each key's default"),
            example: "[control]",
            meaning: "The control plane: monitoring and administration.",
        },
        Key {
            name: "device",
            values: Values::Text("array of 1 to 128 tables"),
            absent: Absent::Required,
            example: "[[device]]",
            meaning: "The devices that can be exported.",
        },
        Key {
            name: "listener",
            values: Values::Text("array of 1 to 64 tables"),
            absent: Absent::Required,
            example: "[[listener]]",
            meaning: "The addresses at which hosts connect.",
        },
        Key {
            name: "key",
            values: Values::Text("array of at most 4096 tables"),
            absent: Absent::Words("no host authenticates itself"),
            example: "[[key]]",
            meaning: "The secrets of hosts.",
        },
        Key {
            name: "export",
            values: Values::Text("array of 1 to 128 tables"),
            absent: Absent::Required,
            example: "[[export]]",
            meaning: "The NVMe subsystems that hosts see.",
        },
        Key {
            name: "rate_limit",
            values: Values::Text("array of at most 1024 tables"),
            absent: Absent::Words("no command is delayed"),
            example: "[[rate_limit]]",
            meaning: "Limits on commands and data in a second.",
        },
        Key {
            name: "volume",
            values: Values::Text("array of at most 16 tables"),
            absent: Absent::Words("no files are served"),
            example: "[[volume]]",
            meaning: "Files on devices.",
        },
        Key {
            name: "share",
            values: Values::Text("array of at most 64 tables"),
            absent: Absent::Words("no files are served"),
            example: "[[share]]",
            meaning: "The volumes that clients can mount.",
        },
        Key {
            name: "file_listener",
            values: Values::Text("array of at most 8 tables"),
            absent: Absent::Words("no files are served"),
            example: "[[file_listener]]",
            meaning: "Where clients mount shares.",
        },
    ]],
};

pub(crate) const APPLIANCE: Section = Section {
    path: "appliance",
    header: "[appliance]",
    meaning: "The appliance as a whole.",
    keys: &[Appliance::KEYS],
};

pub(crate) const LIMITS: Section = Section {
    path: "limits",
    header: "[limits]",
    meaning: "Bounds on what all hosts together may take.",
    keys: &[Limits::KEYS],
};

pub(crate) const CONTROL: Section = Section {
    path: "control",
    header: "[control]",
    meaning: "The control plane: a Unix socket for `windlass status` and its like, and HTTP for the \
              dashboard, `/metrics` and `/api/v1`. A part that is not available is only logged; \
              the exports are served nevertheless. Only a restart changes these keys.",
    keys: &[Control::KEYS],
};

pub(crate) const DEVICE: Section = Section {
    path: "device",
    header: "[[device]]",
    meaning: "A store of blocks. It becomes a namespace where an export names it.",
    keys: &[
        &[
            Key {
                name: "name",
                values: Values::Text("name"),
                absent: Absent::Required,
                example: "\"vol0\"",
                meaning: "Its name, by which exports refer to it. The identity of its namespace is \
                      derived from it.",
            },
            Key {
                name: "type",
                values: Values::Text("`\"nvme\"`, `\"file\"`, `\"memory\"` or `\"null\"`"),
                absent: Absent::Required,
                example: "\"file\"",
                meaning: "Where the blocks are: on an NVMe drive that is bound to `vfio-pci` and so \
                      belongs to the appliance (`windlass bind`); in a file; in memory until the \
                      appliance stops; nowhere (reads give zeroes, writes are dropped: for \
                      measurements).",
            },
            Key {
                name: "size",
                values: Values::Text(
                    "size, a multiple of the block size, to 1024TiB (`memory`: 16TiB)",
                ),
                absent: Absent::Words(
                    "required for `memory` and `null`; for `file` the file's size; not allowed for \
                 `nvme`",
                ),
                example: "\"8GiB\"",
                meaning: "Its size. A file that is missing is created sparse with this size.",
            },
            Key {
                name: "path",
                values: Values::Text("absolute path"),
                absent: Absent::Words("required for `file`, not allowed otherwise"),
                example: "\"/srv/vol0.img\"",
                meaning: "The file, or a partition or logical volume that is not mounted. Without `size` \
                      it has to exist. After a sync of it failed, writes and flushes fail until \
                      `windlass device reopen NAME` or a restart.",
            },
            Key {
                name: "block_size",
                values: Values::Text("512 or 4096 (bytes)"),
                absent: Absent::Value("512"),
                example: "4096",
                meaning: "The unit in which hosts address it. 512 is what every host attaches; 4096 is \
                      better where the file system below works in 4 KiB and no ESXi or boot \
                      firmware attaches. A change makes what hosts stored unreadable to them. Not \
                      allowed for `nvme`: the drive's format decides.",
            },
            Key {
                name: "shared",
                values: Values::Text("boolean"),
                absent: Absent::Words("`false`; not allowed except for `file`"),
                example: "true",
                meaning: "Whether another appliance serves the same file at the same time. Every \
                      appliance of the file says so: it refuses a file that another one serves \
                      without `shared`. The file has to exist with its size, because the \
                      appliance neither creates nor resizes it. The device needs a `uuid`, and \
                      its export `serial` and `controller_ids`: `uuid` and `serial` are the same \
                      everywhere, `controller_ids` differ. Hosts cannot reserve it, because \
                      appliances do not know each other's reservations. Direct I/O is needed \
                      where appliances run on different machines.",
            },
        ],
        Device::KEYS,
        &[Key {
            name: "pci",
            values: Values::Text("PCI address, `domain:bus:device.function`"),
            absent: Absent::Words("required for `nvme`, not allowed otherwise"),
            example: "\"0000:3b:00.0\"",
            meaning: "The drive, as `windlass devices` lists it. The domain may be left out \
                      (0000).",
        }],
        DriveNamespace::KEYS,
    ],
};

pub(crate) const LISTENER: Section = Section {
    path: "listener",
    header: "[[listener]]",
    meaning: "An address at which hosts connect.",
    keys: &[Listener::KEYS],
};

pub(crate) const EXPORT: Section = Section {
    path: "export",
    header: "[[export]]",
    meaning: "An NVMe subsystem: the namespaces that a host attaches together.",
    keys: &[
        &[
            Key {
                name: "nqn",
                values: Values::Text("NQN, to 223 bytes"),
                absent: Absent::Required,
                example: "\"nqn.2026-11.org.example:rack7-a.fast\"",
                meaning: "Its NVMe Qualified Name: `nqn.`, year and month, a reversed domain, a colon, \
                      any text; or `nqn.2014-08.org.nvmexpress:uuid:` and a UUID.",
            },
            Key {
                name: "devices",
                values: Values::Text("array of 1 to 128 device names or tables"),
                absent: Absent::Required,
                example: "[\"vol0\"]",
                meaning: "Its namespaces. A name takes the namespace identifier after the one before \
                      it, the first 1; a table gives it. A device belongs to one export at most.",
            },
            Key {
                name: "listeners",
                values: Values::Text("array of 1 to 64 listener names"),
                absent: Absent::Required,
                example: "[\"san\"]",
                meaning: "Where it can be reached.",
            },
            Key {
                name: "hosts",
                values: Values::Text("array of 1 to 1024 host NQNs or tables"),
                absent: Absent::Words("required unless `allow_any_host = true`"),
                example: "[\"nqn.2014-08.org.nvmexpress:uuid:9f0c2b6e-54a1-4b53-9d0e-0d5a8a1c7f11\"]",
                meaning: "The hosts that may attach it. A Linux host's is in `/etc/nvme/hostnqn`. \
                      A name alone is a claim; a table gives the keys that prove it.",
            },
            Key {
                name: "allow_any_host",
                values: Values::Text("boolean"),
                absent: Absent::Value("false"),
                example: "true",
                meaning: "Whether every host may attach it. Then `hosts` is not allowed.",
            },
            Key {
                name: "ana",
                values: Values::Text("array of tables"),
                absent: Absent::Words("every group is optimized at every listener"),
                example: "[{ listener = \"san\", state = \"non-optimized\" }]",
                meaning: "How well hosts reach its namespaces at each listener (Asymmetric \
                      Namespace Access). `windlass ana set` changes a state until the appliance \
                      restarts or until this key changes the state of the same listener and \
                      group.",
            },
            Key {
                name: "masks",
                values: Values::Text("array of at most 64 tables"),
                absent: Absent::Words("every host sees all of its namespaces"),
                example: "[{ hosts = [\"nqn.2026-11.org.example:h\"], devices = [\"vol0\"] }]",
                meaning: "What some of its `hosts` see: only the named devices. To them the other \
                      namespaces do not exist. A host without a mask sees every namespace. Not \
                      with `allow_any_host`. A change applies to attached hosts at once; \
                      commands that a device has already begun complete.",
            },
        ],
        Export::KEYS,
    ],
};

pub(crate) const NAMESPACE: Section = Section {
    path: "export.devices",
    header: "devices = [{ … }]",
    meaning: "A namespace whose identifier is given.",
    keys: &[&[
        Key {
            name: "device",
            values: Values::Text("device name"),
            absent: Absent::Required,
            example: "\"vol0\"",
            meaning: "The device.",
        },
        Key {
            name: "nsid",
            values: Values::Text("integer, 1 to 1024"),
            absent: Absent::Required,
            example: "7",
            meaning: "The namespace identifier.",
        },
        Key {
            name: "ana_group",
            values: Values::Text("integer, 1 to 128"),
            absent: Absent::Value("1"),
            example: "2",
            meaning: "Its ANA group. Namespaces of one group have the same state at each listener.",
        },
    ]],
};

pub(crate) const KEY: Section = Section {
    path: "key",
    header: "[[key]]",
    meaning: "A secret of hosts, for TLS or DH-HMAC-CHAP. `windlass key generate` makes one, \
              and prints the commands for the host. Exactly one of `file` and `credential` is \
              given; a secret is never written in this file. `windlass apply` reads all files \
              again, so a replaced secret applies to the next authentications; connections \
              continue.",
    keys: &[&[
        Key {
            name: "name",
            values: Values::Text("name"),
            absent: Absent::Required,
            example: "\"db1-2026\"",
            meaning: "Its name, by which hosts of exports refer to it; in status, metrics and logs.",
        },
        Key {
            name: "file",
            values: Values::Text("absolute path"),
            absent: Absent::Words("required without `credential`"),
            example: "\"/etc/windlass/keys/db1\"",
            meaning: "A file with only the secret, `DHHC-1:…:`. No one but its owner may have \
                      permissions for it (`chmod 600`).",
        },
        Key {
            name: "credential",
            values: Values::Text("name"),
            absent: Absent::Words("required without `file`"),
            example: "\"db1\"",
            meaning: "A credential of the service (`LoadCredential=`, `LoadCredentialEncrypted=` or \
                      `SetCredentialEncrypted=` of systemd). It may be readable by its group, \
                      because systemd grants the access of the service's user by an access \
                      control list, but not by others. It changes with a restart of the service.",
        },
    ]],
};

pub(crate) const HOST: Section = Section {
    path: "export.hosts",
    header: "hosts = [{ … }]",
    meaning: "A host that authenticates itself to the export by DH-HMAC-CHAP, or uses TLS.",
    keys: &[&[
        Key {
            name: "nqn",
            values: Values::Text("host NQN"),
            absent: Absent::Required,
            example: "\"nqn.2026-11.org.example:h\"",
            meaning: "The host.",
        },
        Key {
            name: "chap",
            values: Values::Text("key name, or array of 1 to 4"),
            absent: Absent::Words("the host cannot authenticate itself by DH-HMAC-CHAP"),
            example: "\"db1-2026\"",
            meaning: "The keys of which the host has one (`nvme connect --dhchap-secret`). Several \
                      are for an exchange: add the new key, change the host, remove the old key; \
                      `windlass status` and the metrics show which one is used.",
        },
        Key {
            name: "chap_controller",
            values: Values::Text("key name"),
            absent: Absent::Words("a host that demands it is refused"),
            example: "\"rack7-a\"",
            meaning: "The key with which the appliance authenticates itself to a host that demands \
                      it (`--dhchap-ctrl-secret`).",
        },
        Key {
            name: "chap_null_group",
            values: Values::Text("boolean"),
            absent: Absent::Words("`false`"),
            example: "true",
            meaning: "Whether a host without Diffie-Hellman groups is accepted. Who records its \
                      exchange can then try secrets offline.",
        },
        Key {
            name: "concatenation",
            values: Values::Text("boolean"),
            absent: Absent::Words("`false`"),
            example: "true",
            meaning: "Whether the host may generate a key for TLS while it authenticates itself \
                      (secure channel concatenation, `nvme connect --concat`, Linux 6.15 and \
                      later), at listeners with `tls = \"allowed\"`. It then connects anew with \
                      this key, and needs no key in `tls`. Only the host is authenticated. With \
                      `require = [\"tls\"]` it has to.",
        },
        Key {
            name: "tls",
            values: Values::Text("key name, or array of 1 to 4"),
            absent: Absent::Words("the host cannot use TLS"),
            example: "\"db1-tls-2026\"",
            meaning: "The keys of which the host has one for TLS, at listeners with `tls` \
                      (`nvme connect --tls`). A key connects only its host to this export. Several \
                      are for an exchange, as in `chap`; connections continue with the key that \
                      they began with.",
        },
        Key {
            name: "require",
            values: Values::Text("array of `\"chap\"` and `\"tls\"`"),
            absent: Absent::Words("the host may connect without authentication and TLS"),
            example: "[\"chap\"]",
            meaning: "What the host has to do. Without it, the keys serve hosts that are about to \
                      be changed, and protect nothing: another host may use this host's name. A \
                      new requirement disconnects hosts that do not fulfil it.",
        },
    ]],
};

pub(crate) const ANA: Section = Section {
    path: "export.ana",
    header: "ana = [{ … }]",
    meaning: "The state of ANA groups at a listener.",
    keys: &[&[
        Key {
            name: "listener",
            values: Values::Text("listener name"),
            absent: Absent::Required,
            example: "\"san\"",
            meaning: "The listener, one of the export's.",
        },
        Key {
            name: "group",
            values: Values::Text("integer, 1 to 128"),
            absent: Absent::Words("every group without an entry of its own for this listener"),
            example: "1",
            meaning: "The group, one of those of the export's namespaces.",
        },
        Key {
            name: "state",
            values: Values::Text(
                "`\"optimized\"`, `\"non-optimized\"`, `\"inaccessible\"`, `\"persistent-loss\"` \
                 or `\"change\"`",
            ),
            absent: Absent::Required,
            example: "\"non-optimized\"",
            meaning: "Hosts prefer `optimized` paths and use `non-optimized` ones if there are no \
                      others. In the other states commands fail with a path error, and hosts use \
                      another path: `inaccessible` may end, and `persistent-loss` does not while \
                      the namespace is attached. `change` announces another state, which has to \
                      be set within ten seconds: hosts give the path up then.",
        },
    ]],
};

pub(crate) const MASK: Section = Section {
    path: "export.masks",
    header: "masks = [{ … }]",
    meaning: "The devices of an export that some of its hosts see: `devices`, `read_only` or both.",
    keys: &[&[
        Key {
            name: "hosts",
            values: Values::Text("array of 1 to 1024 host NQNs"),
            absent: Absent::Required,
            example: "[\"nqn.2026-11.org.example:h\"]",
            meaning: "The hosts, of those in the export's `hosts`, each in one mask.",
        },
        Key {
            name: "devices",
            values: Values::Text("array of device names"),
            absent: Absent::Words("none"),
            example: "[\"vol0\"]",
            meaning: "The devices that they see and, unless a device is `read_only`, write.",
        },
        Key {
            name: "read_only",
            values: Values::Text("array of device names"),
            absent: Absent::Words("none"),
            example: "[\"vol0\"]",
            meaning: "The devices that they see and only read. Another host may write to them.",
        },
    ]],
};

pub(crate) const RATE_LIMIT: Section = Section {
    path: "rate_limit",
    header: "[[rate_limit]]",
    meaning: "A limit on the commands of a device, of a host, or of a host at an export. Commands \
              above it wait before they take memory, and hosts see higher latencies; none fails. A \
              command counts towards every limit that applies to it. Changes apply at once, to \
              waiting commands too. A host is known by its NQN, which anyone can claim who does \
              not have to authenticate.",
    keys: &[
        &[
            Key {
                name: "device",
                values: Values::Text("device name"),
                absent: Absent::Words("required without `host`"),
                example: "\"vol0\"",
                meaning: "The device whose commands are limited, those of all hosts together. Not \
                          with `host`.",
            },
            Key {
                name: "host",
                values: Values::Text("NQN"),
                absent: Absent::Words("required without `device`"),
                example: "\"nqn.2026-11.org.example:h\"",
                meaning: "The host whose commands are limited.",
            },
            Key {
                name: "export",
                values: Values::Text("NQN"),
                absent: Absent::Words("all exports together"),
                example: "\"nqn.2026-11.org.example:a\"",
                meaning: "The export for which the host's commands are limited. Only with `host`.",
            },
        ],
        RateLimit::KEYS,
    ],
};

pub(crate) const VOLUME: Section = Section {
    path: "volume",
    header: "[[volume]]",
    meaning: "Files on a device, which shares serve.",
    keys: &[Volume::KEYS],
};

pub(crate) const SHARE: Section = Section {
    path: "share",
    header: "[[share]]",
    meaning: "A volume as clients see it: `mount -t nfs -o vers=4.2 ADDRESS:/NAME DIRECTORY`. \
              Clients state their users themselves (AUTH_SYS).",
    keys: &[Share::KEYS],
};

pub(crate) const FILE_LISTENER: Section = Section {
    path: "file_listener",
    header: "[[file_listener]]",
    meaning: "An address at which clients mount all shares by NFSv4.1 or 4.2 over TCP.",
    keys: &[FileListener::KEYS],
};

const REFERENCE_HEAD: &str = "\
# Every key of the configuration file

The file is TOML. Every key that is not listed here is an error. Generated from `config/src/model.rs`
and `keys.rs`; `UPDATE_EXPECTED=1 cargo test -p appliance_config` writes it anew.

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
        for key in section.keys() {
            let Key {
                name,
                values,
                absent,
                example,
                meaning,
            } = key;
            let values = values.text();
            let default = match (absent, absent.value()) {
                (_, Some(value)) => format!("`{value}`"),
                (Absent::Words(words), None) => (*words).to_owned(),
                (_, None) => "required".to_owned(),
            };
            let _ = writeln!(
                text,
                "| `{name}` | {values} | {default} | {meaning} | `{example}` |"
            );
        }
    }
    text
}
