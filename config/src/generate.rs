//! Generators of valid configurations for property tests (feature `generators`).

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;

use proptest::collection::{btree_set, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use uuid::Uuid;

use crate::files::{FileListener, Files, Share, Volume};
use crate::kind::{FilePath, Kind as _};
use crate::limits::{ANA_GROUPS_MAX, CORE_NUMBER_MAX, DRIVE_NAMESPACE_MAX, MEMORY_MAX, NSID_MAX};
use crate::model::Transport;
use crate::model::{
    Access, AnaEntry, AnaState, Appliance, Backing, Config, Control, Device, DriveNamespace,
    Export, HostAuthentication, Key, KeySource, Limits, Listener, Mask, Namespace, RateLimit,
    RateScope, Tls,
};
use crate::table::Table as _;
use crate::value::{
    BlockSize, ByteSize, ControlSocket, ControllerIds, CoreList, HttpAddress, ListenAddress, Name,
    Nqn, PciAddress,
};

/// Parses a generated text, which must be valid.
pub(crate) fn valid<T: std::str::FromStr>(text: &str) -> T {
    match text.parse() {
        Ok(value) => value,
        Err(_) => unreachable!("the generator made the invalid text {text:?}"),
    }
}

/// Any valid configuration: up to six devices, three listeners and four exports.
pub fn config() -> impl Strategy<Value = Config> {
    let devices = distinct_names(1..=6).prop_flat_map(|names| {
        names
            .into_iter()
            .enumerate()
            .map(|(n, name)| device(n, name))
            .collect::<Vec<_>>()
    });
    let listeners = distinct_names(1..=3).prop_flat_map(|names| {
        names
            .into_iter()
            .enumerate()
            .map(|(n, name)| listener(n, name))
            .collect::<Vec<_>>()
    });
    let seeds = vec(any::<ExportSeed>(), 1..=4);
    (
        Appliance::any(()),
        Limits::any(()),
        control(),
        devices,
        listeners,
        seeds,
        vec(export_rest(), 4),
        keys(),
        (
            vec(RateLimit::any((RateScope::Host(host_nqn()),)), 0..=3),
            (Volume::any(()), Share::any(())),
        ),
    )
        .prop_map(
            |(
                appliance,
                limits,
                control,
                devices,
                listeners,
                seeds,
                rests,
                keys,
                (mut rate_limits, files_seed),
            )| {
                let mut exports = exports(&devices, &listeners, &seeds, rests);
                for (export, seed) in exports.iter_mut().zip(&seeds) {
                    export.authentication = authentication(&seed.masks, export, &listeners, &keys);
                }
                scope_rate_limits(&mut rate_limits, &devices, &exports);
                let files = files(files_seed, &devices, &exports);
                Config {
                    appliance,
                    limits,
                    control,
                    devices,
                    listeners,
                    keys,
                    exports,
                    rate_limits,
                    files,
                }
            },
        )
}

/// Any name.
pub fn name() -> impl Strategy<Value = Name> {
    "[a-zA-Z0-9][a-zA-Z0-9._-]{0,12}".prop_map(|text| valid(&text))
}

/// Any qualified name of a host or an export.
pub fn nqn() -> impl Strategy<Value = Nqn> {
    let own = "nqn\\.(19|20)[0-9]{2}-(0[1-9]|1[0-2])\\.[a-z]{2,3}(\\.[a-z0-9]{1,9}){1,3}\
               (:[a-zA-Z0-9\"\\\\äλ語_.:-]{1,20})?";
    let uuid = any::<u128>().prop_map(|bits| {
        format!(
            "nqn.2014-08.org.nvmexpress:uuid:{}",
            Uuid::from_u128(bits).hyphenated()
        )
    });
    prop_oneof![3 => own.prop_map(String::from), 1 => uuid].prop_map(|text| valid(&text))
}

/// Any core list of up to twelve cores.
pub fn core_list() -> impl Strategy<Value = CoreList> {
    let near = btree_set(0..24_u16, 1..=12);
    let far = btree_set(0..=CORE_NUMBER_MAX, 1..=12);
    prop_oneof![near, far].prop_map(|cores| {
        let numbers: Vec<String> = cores.iter().map(ToString::to_string).collect();
        valid(&numbers.join(","))
    })
}

fn distinct_names(count: std::ops::RangeInclusive<usize>) -> impl Strategy<Value = Vec<Name>> {
    btree_set(name(), count)
        .prop_map(|names| names.into_iter().collect::<Vec<_>>())
        .prop_shuffle()
}

pub(crate) fn size(
    least: ByteSize,
    most: ByteSize,
    unit_bytes: u64,
) -> impl Strategy<Value = ByteSize> {
    let units = least.bytes().div_ceil(unit_bytes)..=most.bytes() / unit_bytes;
    // Small and round sizes are as likely as arbitrary ones.
    let small = units.clone().prop_map(move |n| n % 4096 + 1);
    let round = (0..40_u32, units.clone()).prop_map(|(shift, n)| (n >> shift << shift).max(1));
    let (low, high) = (*units.start(), *units.end());
    prop_oneof![units, small, round]
        .prop_map(move |n| ByteSize::from_bytes(n.clamp(low, high) * unit_bytes))
}

/// Any valid `[control]` table; its keys depend on each other.
fn control() -> impl Strategy<Value = Control> {
    Control::any(()).prop_map(|control| {
        let Control {
            socket,
            group,
            http,
            token_file,
            read_token_file,
            certificate_file,
            certificate_key_file,
            ..
        } = control.clone();
        let is_on = http != HttpAddress::Off;
        let needs_token = http.is_beyond_this_machine() && read_token_file.is_none();
        let certificate = certificate_file.zip(certificate_key_file);
        let (certificate_file, certificate_key_file) = certificate.filter(|_| is_on).unzip();
        let default_token = needs_token.then(|| PathBuf::from("/etc/token"));
        Control {
            group: group.filter(|_| socket != ControlSocket::Off),
            token_file: token_file.or(default_token).filter(|_| is_on),
            read_token_file: read_token_file.filter(|_| is_on),
            certificate_file,
            certificate_key_file,
            ..control
        }
    })
}

/// Any PCI address.
pub fn pci_address() -> impl Strategy<Value = PciAddress> {
    let domain = prop_oneof![Just(0), 0..=0xffff_u32, any::<u32>()];
    (domain, any::<u8>(), 0..=0x1f_u8, 0..=7_u8).prop_map(|(domain, bus, device, function)| {
        match PciAddress::new(domain, bus, device, function) {
            Some(address) => address,
            None => unreachable!("device and function are in range"),
        }
    })
}

/// Any drive namespace. The device's number keeps it distinct from other namespaces of the two
/// shared drives.
fn drive_namespace(number: usize) -> impl Strategy<Value = DriveNamespace> {
    let place = (prop_oneof![Just(0), any::<u32>()], 0..=0x1f_u8, 0..=7_u8);
    let alone = place.prop_flat_map(move |(domain, device, function)| {
        // Each device has its own bus, which no shared drive has.
        let text = format!("{domain:04x}:{:02x}:{device:02x}.{function}", number + 1);
        DriveNamespace::any((valid(&text),))
    });
    let shared = select(vec!["0000:00:01.0", "ffffffff:00:1f.7"])
        .prop_filter_map("none is required", |pci| {
            DriveNamespace::absent((valid(pci),))
        });
    let namespace = prop_oneof![Just(1), 1..=8_u32, 1..=DRIVE_NAMESPACE_MAX / 8];
    (prop_oneof![alone, shared], namespace).prop_map(move |(drive, namespace)| DriveNamespace {
        // The remainder modulo 8 differs for each device.
        namespace: namespace.saturating_sub(1) * 8 + number as u32 + 1,
        ..drive
    })
}

/// A volume on the first device that no export has and that keeps files, with its share and a
/// listener.
fn files((volume, share): (Volume, Share), devices: &[Device], exports: &[Export]) -> Files {
    let is_free = |device: &&Device| {
        let mut namespaces = exports.iter().flat_map(|export| &export.namespaces);
        let keeps_files = match device.backing {
            Backing::Memory { .. } => true,
            Backing::File { shared, .. } => !shared,
            Backing::Null { .. } | Backing::Nvme(_) => false,
        };
        keeps_files
            && !device.read_only
            && namespaces.all(|namespace| namespace.device != device.name)
    };
    let Some(device) = devices.iter().find(is_free) else {
        return Files::default();
    };
    Files {
        listeners: vec![FileListener {
            name: volume.name.clone(),
            transport: match share.read_only {
                true => Transport::Rdma,
                false => Transport::Tcp,
            },
            address: valid("127.0.0.1:0"),
        }],
        shares: vec![Share {
            volume: volume.name.clone(),
            allow_any_client: share.clients.is_empty(),
            ..share
        }],
        volumes: vec![Volume {
            device: device.name.clone(),
            uuid: match device.backing {
                Backing::Memory { .. } => None,
                _ => volume.uuid,
            },
            ..volume
        }],
    }
}

/// Gives each limit another scope, and at least one rate.
fn scope_rate_limits(limits: &mut [RateLimit], devices: &[Device], exports: &[Export]) {
    for (n, limit) in limits.iter_mut().enumerate() {
        limit.scope = match (n, devices.first(), exports.first()) {
            (0, Some(device), _) => RateScope::Device(device.name.clone()),
            (1, _, Some(export)) => RateScope::HostAt {
                host: host_nqn(),
                export: export.nqn.clone(),
            },
            _ => RateScope::Host(host_nqn()),
        };
        if limit.bandwidth.is_none() {
            limit.iops.get_or_insert(1000);
        }
    }
}

fn host_nqn() -> Nqn {
    let nqn = "nqn.2026-11.org.example:limited".parse();
    nqn.unwrap_or_else(|_| unreachable!("a valid name"))
}

/// Any keys.
fn keys() -> impl Strategy<Value = Vec<Key>> {
    let place = prop_oneof![
        FilePath.any().prop_map(KeySource::File),
        name().prop_map(KeySource::Credential),
    ];
    let named = distinct_names(0..=3);
    (named, vec(place, 3)).prop_map(|(names, places)| {
        let keys = names.into_iter().zip(places);
        keys.map(|(name, source)| Key { name, source }).collect()
    })
}

/// The authentication of single hosts.
fn authentication(
    seeds: &[Option<(u8, u8)>],
    export: &Export,
    listeners: &[Listener],
    keys: &[Key],
) -> Vec<HostAuthentication> {
    let (Access::Hosts(hosts), Some(first)) = (&export.access, keys.first()) else {
        return Vec::new();
    };
    let is_secure = |it: &Listener| export.listeners.contains(&it.name) && it.tls != Tls::Off;
    let has_tls = listeners.iter().any(is_secure);
    let is_mixed = listeners
        .iter()
        .any(|it| is_secure(it) && it.tls == Tls::Allowed);
    let hosts = hosts.iter().zip(seeds);
    let hosts = hosts.filter_map(|(host, seed)| {
        let (bits, _) = (*seed)?;
        let has = |bit: u8| bits & bit != 0;
        Some(HostAuthentication {
            host: host.clone(),
            chap: match (has(1), has(64)) {
                (true, _) => keys.iter().map(|key| key.name.clone()).collect(),
                (false, true) if has_tls => Vec::new(),
                (false, _) => vec![first.name.clone()],
            },
            chap_controller: (has(2) && has(1)).then(|| first.name.clone()),
            chap_null_group: has(4) && has(1),
            concatenation: has(128) && has(8) && has(1) && is_mixed,
            requires_chap: has(8) && has(1),
            tls: match has_tls && (has(16) || has(64)) {
                true => vec![first.name.clone()],
                false => Vec::new(),
            },
            requires_tls: has_tls && (has(16) || has(64)) && has(32),
        })
    });
    hosts.collect()
}

/// Any device. Its number keeps path, drive namespace and UUID distinct from those of other
/// devices.
fn device(number: usize, name: Name) -> impl Strategy<Value = Device> {
    let sizes = || size(ByteSize::from_bytes(1), MEMORY_MAX, 4096);
    let path = "/[a-zA-Z0-9 \"'\\\\äλ語=#._-]{1,20}"
        .prop_map(move |text| PathBuf::from(format!("{}{number}", text.replace("/..", "/x"))));
    let blocks = || select(vec![BlockSize::B512, BlockSize::B4096]);
    let backing = prop_oneof![
        (sizes(), blocks()).prop_map(|(size, block_size)| Backing::Memory { size, block_size }),
        (sizes(), blocks()).prop_map(|(size, block_size)| Backing::Null { size, block_size }),
        (path, option::of(sizes()), blocks(), any::<bool>()).prop_map(
            |(path, size, block_size, shared)| {
                Backing::File {
                    path,
                    size,
                    block_size,
                    shared,
                }
            }
        ),
        drive_namespace(number).prop_map(Backing::Nvme),
    ];
    let uuid = option::of(
        (1..u128::MAX / 16)
            .prop_map(move |bits| Uuid::from_u128((bits & !0xff) | (number as u128 + 1))),
    );
    let device = backing.prop_flat_map(move |backing| Device::any((name.clone(), backing)));
    (device, uuid).prop_map(|(mut device, uuid)| {
        device.uuid = uuid;
        if let Backing::File { shared, .. } = &mut device.backing {
            *shared &= uuid.is_some();
        }
        device
    })
}

/// Any listener. Its number keeps the port distinct from those of other listeners.
fn listener(number: usize, name: Name) -> impl Strategy<Value = Listener> {
    let unicast = (1..=223_u8, any::<[u8; 3]>());
    let v4 = unicast.prop_map(|(a, [b, c, d])| Ipv4Addr::new(a, b, c, d).to_string());
    let v6 = any::<u64>().prop_map(|low| {
        format!(
            "[{}]",
            Ipv6Addr::from((0x2001_0db8_u128 << 96) | u128::from(low))
        )
    });
    let wildcard = select(vec![
        "0.0.0.0".to_owned(),
        "[::]".to_owned(),
        "[fe80::1%2]".to_owned(),
    ]);
    let port = prop_oneof![Just(0), 1..60_000_u16 / 8];
    let address = (prop_oneof![v4, v6, wildcard], port).prop_map(move |(ip, port)| {
        // The remainder modulo 8 differs for each listener.
        let port = if port == 0 {
            0
        } else {
            port * 8 + number as u16
        };
        valid::<ListenAddress>(&format!("{ip}:{port}"))
    });
    (Listener::any(()), address).prop_map(move |(listener, address)| Listener {
        name: name.clone(),
        address,
        ..listener
    })
}

/// The devices and listeners of an export, chosen from those available.
#[derive(Clone, Debug)]
struct ExportSeed {
    device: Index,
    listener: Index,
    devices_more: usize,
    listeners_more: usize,
    nsids: Option<BTreeSet<u32>>,
    /// Of each namespace.
    ana_groups: Vec<u32>,
    /// The place of the listener; the place of the group's namespace, if there is one; the state.
    ana: Vec<(Index, Option<Index>, AnaState)>,
    /// Of each host: whether it has a mask, and the bits of the namespaces that it sees and of those
    /// that it only reads.
    masks: Vec<Option<(u8, u8)>>,
}

impl Arbitrary for ExportSeed {
    type Parameters = ();
    type Strategy = BoxedStrategy<ExportSeed>;

    fn arbitrary_with((): ()) -> Self::Strategy {
        let nsids = option::of(btree_set(1..=NSID_MAX, 6));
        let ana_group = prop_oneof![Just(1), 1..=3_u32, 1..=ANA_GROUPS_MAX];
        let entry = (
            any::<Index>(),
            option::of(any::<Index>()),
            select(AnaState::ALL),
        );
        (
            any::<Index>(),
            any::<Index>(),
            0..4_usize,
            0..3_usize,
            nsids,
            vec(ana_group, 6),
            vec(entry, 0..4),
            vec(any::<Option<(u8, u8)>>(), 3),
        )
            .prop_map(
                |(
                    device,
                    listener,
                    devices_more,
                    listeners_more,
                    nsids,
                    ana_groups,
                    ana,
                    masks,
                )| {
                    ExportSeed {
                        device,
                        listener,
                        devices_more,
                        listeners_more,
                        nsids,
                        ana_groups,
                        ana,
                        masks,
                    }
                },
            )
            .boxed()
    }
}

/// Any export without namespaces and listeners.
fn export_rest() -> impl Strategy<Value = Export> {
    let hosts =
        btree_set(nqn(), 1..=3).prop_map(|hosts| Access::Hosts(hosts.into_iter().collect()));
    let access = prop_oneof![Just(Access::AnyHost), hosts];
    (nqn(), access).prop_flat_map(|(nqn, access)| {
        Export::any((nqn, vec![], vec![], access, vec![], vec![], vec![]))
    })
}

fn exports(
    devices: &[Device],
    listeners: &[Listener],
    seeds: &[ExportSeed],
    rests: Vec<Export>,
) -> Vec<Export> {
    let mut free: Vec<&Device> = devices.iter().collect();
    let mut nqns = BTreeSet::new();
    let mut exports = Vec::new();
    for (seed, rest) in seeds.iter().zip(rests) {
        if free.is_empty() || !nqns.insert(rest.nqn.clone()) {
            continue;
        }
        let first = seed.device.index(free.len());
        let taken = first..(first + 1 + seed.devices_more).min(free.len());
        let count = taken.len();
        let nsids: Vec<u32> = match &seed.nsids {
            Some(nsids) => nsids.iter().rev().copied().take(count).collect(),
            None => (1..).take(count).collect(),
        };
        let devices: Vec<&Device> = free.drain(taken).collect();
        let is_shared = |it: &&Device| matches!(it.backing, Backing::File { shared: true, .. });
        let rest = match devices.iter().any(is_shared) {
            true => for_shared_device(rest),
            false => rest,
        };
        let namespaces: Vec<Namespace> = devices
            .iter()
            .zip(nsids)
            .zip(&seed.ana_groups)
            .map(|((device, nsid), ana_group)| Namespace {
                nsid,
                device: device.name.clone(),
                ana_group: *ana_group,
            })
            .collect();
        let first = seed.listener.index(listeners.len());
        let some = listeners.iter().skip(first).take(1 + seed.listeners_more);
        let listeners: Vec<Name> = some.map(|listener| listener.name.clone()).collect();
        exports.push(Export {
            ana: ana(&seed.ana, &listeners, &namespaces),
            masks: masks(&seed.masks, &rest.access, &namespaces),
            namespaces,
            listeners,
            ..rest
        });
    }
    exports
}

/// The export with the keys that a shared device needs.
fn for_shared_device(export: Export) -> Export {
    Export {
        serial: export.serial.or_else(|| Some(valid("SHARED"))),
        controller_ids: export.controller_ids.or_else(|| ControllerIds::new(1, 9)),
        ..export
    }
}

/// Masks of single hosts.
fn masks(seeds: &[Option<(u8, u8)>], access: &Access, namespaces: &[Namespace]) -> Vec<Mask> {
    let Access::Hosts(hosts) = access else {
        return Vec::new();
    };
    let chosen = |bits: u8| {
        let namespaces = namespaces.iter().enumerate();
        let chosen = namespaces.filter(move |(place, _)| bits >> place & 1 == 1);
        chosen
            .map(|(_, namespace)| namespace.device.clone())
            .collect()
    };
    let hosts = hosts.iter().zip(seeds);
    let masks = hosts.filter_map(|(host, seed)| {
        let (devices, read_only) = (*seed)?;
        Some(Mask {
            hosts: vec![host.clone()],
            devices: chosen(devices),
            read_only: chosen(read_only & !devices),
        })
    });
    masks.collect()
}

/// The states of groups, one for each listener and group.
fn ana(
    seeds: &[(Index, Option<Index>, AnaState)],
    listeners: &[Name],
    namespaces: &[Namespace],
) -> Vec<AnaEntry> {
    let mut entries: Vec<AnaEntry> = Vec::new();
    for (listener, namespace, state) in seeds {
        let entry = AnaEntry {
            listener: listener.get(listeners).clone(),
            group: namespace.map(|it| it.get(namespaces).ana_group),
            state: *state,
        };
        let is_same = |it: &AnaEntry| (&it.listener, it.group) == (&entry.listener, entry.group);
        if !entries.iter().any(is_same) {
            entries.push(entry);
        }
    }
    entries
}
