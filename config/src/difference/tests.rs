use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::files::{FileListener, Files, Share, Squash, Volume};
use crate::generate;
use crate::model::{AnaState, Cores, Transport};

fn demo() -> Config {
    Config::default_embedded(Path::new("/tmp/x")).expect("valid")
}

fn lines(from: &Config, to: &Config) -> Vec<String> {
    let steps = from.difference(to);
    let line = |step: &Step| format!("{}: {step}", step.effect().word());
    steps.iter().map(line).collect()
}

/// Checks the invariants between steps: every reference resolves, and nothing occurs twice.
fn check(config: &Config) {
    fn once<T: PartialEq + fmt::Debug>(items: impl Iterator<Item = T>) {
        let mut seen = Vec::new();
        for item in items {
            assert!(!seen.contains(&item), "{item:?} twice");
            seen.push(item);
        }
    }
    once(config.devices.iter().map(|device| &device.name));
    once(config.listeners.iter().map(|listener| &listener.name));
    let addresses = config.listeners.iter().map(|listener| listener.address);
    // The system chooses a different port for each listener with port 0.
    once(addresses.filter(|address| address.socket_addr().port() != 0));
    once(config.exports.iter().map(|export| &export.nqn));
    let namespaces = || config.exports.iter().flat_map(|export| &export.namespaces);
    once(namespaces().map(|namespace| &namespace.device));
    for namespace in namespaces() {
        assert!(config.device(&namespace.device).is_some(), "{namespace:?}");
    }
    once(config.keys.iter().map(|key| &key.name));
    for export in &config.exports {
        for host in &export.authentication {
            for key in host
                .chap
                .iter()
                .chain(&host.chap_controller)
                .chain(&host.tls)
            {
                assert!(config.key(key).is_some(), "{key}");
            }
        }
        once(export.namespaces.iter().map(|namespace| namespace.nsid));
        for listener in &export.listeners {
            assert!(config.listener(listener).is_some(), "{listener}");
        }
    }
}

/// The configuration with sections sorted whose order is irrelevant.
fn ordered(mut config: Config) -> Config {
    config.devices.sort_by_key(|device| device.name.to_string());
    config
        .listeners
        .sort_by_key(|listener| listener.name.to_string());
    config.keys.sort_by_key(|key| key.name.to_string());
    config.exports.sort_by_key(|export| export.nqn.to_string());
    for export in &mut config.exports {
        export.namespaces.sort_by_key(|namespace| namespace.nsid);
        export.listeners.sort_by_key(ToString::to_string);
        export
            .ana
            .sort_by_key(|entry| (entry.listener.to_string(), entry.group));
        if let Access::Hosts(hosts) = &mut export.access {
            hosts.sort_by_key(ToString::to_string);
        }
        let authentication = &mut export.authentication;
        authentication.sort_by_key(|host| host.host.to_string());
        export.masks.sort_by_key(|mask| mask.hosts[0].to_string());
        for mask in &mut export.masks {
            mask.hosts.sort_by_key(ToString::to_string);
            mask.devices.sort_by_key(ToString::to_string);
            mask.read_only.sort_by_key(ToString::to_string);
        }
    }
    config
}

#[test]
fn equal_configurations_have_no_steps() {
    assert_eq!(demo().difference(&demo()), []);
    let mut other = demo();
    other.devices.reverse();
    assert_eq!(demo().difference(&other), []);
}

#[test]
fn changes_that_need_a_restart_are_reported() {
    let mut wanted = demo();
    wanted.appliance.memory = ByteSize::from_mib(512);
    wanted.appliance.cores = Cores::List("2-3".parse().expect("valid"));
    wanted.control.group = Some("none".parse().expect("valid"));
    wanted.control.http = crate::HttpAddress::Off;
    assert_eq!(
        lines(&demo(), &wanted),
        [
            "restart: change appliance.cores from \"auto\" to \"2-3\", which takes a restart",
            "restart: change appliance.memory from \"256MiB\" to \"512MiB\", which takes a restart",
            "restart: change control.group from none to \"none\", which takes a restart",
            "restart: change control.http from \"127.0.0.1:9808\" to \"off\", which takes a \
             restart",
        ]
    );
}

#[test]
fn a_larger_device_grows_and_a_smaller_one_is_replaced() {
    let running = demo();
    let name = running.devices[0].name.clone();
    let size = running.devices[0].backing.size().expect("a size");
    let mut wanted = running.clone();
    set_size(
        &mut wanted.devices[0].backing,
        Some(ByteSize::from_mib(2048)),
    );
    assert!(size < ByteSize::from_mib(2048));
    assert_eq!(
        lines(&running, &wanted),
        [format!("live: resize device {name} to 2GiB")]
    );
    let nqn = &running.exports[0].nqn;
    assert_eq!(
        lines(&wanted, &running),
        [
            format!("drain: remove namespace 1 ({name}) from {nqn}"),
            format!(
                "drain: disconnect the hosts of {nqn}: namespace 1 ({name}) is replaced, and its \
                 identifiers change: hosts see a different disk"
            ),
            format!("drain: close device {name}"),
            format!("live: open device {name} (memory)"),
            format!("live: add namespace 1 ({name}) to {nqn}"),
        ]
    );
}

/// Hosts are disconnected between the removal of a namespace and the addition of a different disk
/// with its identifier, but not if the disk stays the same.
#[test]
fn hosts_are_disconnected_if_an_identifier_changes_its_disk() {
    let running = demo();
    let (ram, file) = (0, 1);
    let change = |index: usize, change: &dyn Fn(&mut Device)| {
        let mut wanted = running.clone();
        change(&mut wanted.devices[index]);
        let steps = running.difference(&wanted);
        let at = |step: &Step| matches!(step, Step::DisconnectHosts { .. });
        let found = steps.iter().position(at)?;
        let removed = |step: &Step| matches!(step, Step::RemoveNamespace { .. });
        let added = |step: &Step| matches!(step, Step::AddNamespace { .. });
        assert!(steps[..found].iter().any(removed) && steps[found..].iter().any(added));
        match &steps[found] {
            Step::DisconnectHosts { replaced, .. } if replaced.len() == 1 => {
                assert_eq!(replaced[0].namespace.device, wanted.devices[index].name);
                Some(replaced[0].change)
            }
            other => panic!("{other}"),
        }
    };
    let other_path = |device: &mut Device| {
        let Backing::File { path, .. } = &mut device.backing else {
            panic!("no file");
        };
        *path = "/tmp/other".into();
    };
    assert_eq!(change(file, &other_path), Some(Change::Path));
    let to_null = |device: &mut Device| {
        device.backing = Backing::Null {
            size: device.backing.size().expect("a size"),
            block_size: device.backing.block_size().expect("blocks"),
        };
    };
    for device in [ram, file] {
        assert_eq!(change(device, &to_null), Some(Change::Content));
        let uuid = |device: &mut Device| device.uuid = Some(uuid::Uuid::from_u128(5));
        let expected = [Change::Content, Change::Identifiers][device];
        assert_eq!(change(device, &uuid), Some(expected));
    }
    // Closing a memory device loses its content; a file keeps it.
    let read_only = |device: &mut Device| device.read_only = true;
    assert_eq!(change(ram, &read_only), Some(Change::Content));
    assert_eq!(change(file, &read_only), None);
    let blocks = |device: &mut Device| {
        if let Backing::File { block_size, .. } = &mut device.backing {
            *block_size = crate::BlockSize::B4096;
        }
    };
    assert_eq!(change(file, &blocks), Some(Change::BlockSize));
}

/// Two devices that swap their namespace identifiers are two different disks to hosts.
#[test]
fn hosts_are_disconnected_if_identifiers_are_swapped() {
    let running = demo();
    let mut wanted = running.clone();
    let namespaces = &mut wanted.exports[0].namespaces;
    let first = namespaces[0].device.clone();
    namespaces[0].device = namespaces[1].device.clone();
    namespaces[1].device = first;
    let steps = running.difference(&wanted);
    let replaced = steps.iter().find_map(|step| match step {
        Step::DisconnectHosts { replaced, .. } => Some(replaced),
        _ => None,
    });
    let replaced = replaced.expect("hosts are disconnected");
    assert_eq!(replaced.len(), 2);
    assert!(replaced.iter().all(|it| it.change == Change::Content));
}

#[test]
fn revoked_access_drains_and_granted_access_is_live() {
    let mut few = demo();
    let host: Nqn = "nqn.2026-11.org.example:host".parse().expect("valid");
    few.exports[0].access = Access::Hosts(vec![host]);
    let nqn = &few.exports[0].nqn;
    assert_eq!(
        lines(&demo(), &few),
        [format!("drain: allow 1 host(s) to attach {nqn}")]
    );
    assert_eq!(
        lines(&few, &demo()),
        [format!("live: allow every host to attach {nqn}")]
    );
}

/// Access and masks change at once: a host that gets access never sees what it must not.
#[test]
fn masks_change_with_the_access_and_before_namespaces_are_added() {
    let nqn = &demo().exports[0].nqn;
    let hosts: Vec<Nqn> = ["a", "b"]
        .map(|it| {
            format!("nqn.2026-11.org.example:{it}")
                .parse()
                .expect("valid")
        })
        .to_vec();
    let masked = |read_only: bool| {
        let mut config = demo();
        let export = &mut config.exports[0];
        export.access = Access::Hosts(hosts.clone());
        let (seen, only_read) = (&export.namespaces[0].device, &export.namespaces[1].device);
        let both = || vec![seen.clone(), only_read.clone()];
        let (devices, read_only) = match read_only {
            true => (vec![seen.clone()], vec![only_read.clone()]),
            false => (both(), Vec::new()),
        };
        export.masks = vec![Mask {
            hosts: hosts[..1].to_vec(),
            devices,
            read_only,
        }];
        config
    };
    let line = format!("allow 2 host(s) to attach {nqn}, 1 of them only a part of it");
    let drain = [format!("drain: {line}")];
    assert_eq!(lines(&demo(), &masked(false)), drain);
    assert_eq!(lines(&masked(false), &masked(true)), drain);
    assert_eq!(
        lines(&masked(true), &masked(false)),
        [format!("live: {line}")]
    );
    let mut reordered = masked(false);
    reordered.exports[0].masks[0].devices.reverse();
    assert_eq!(masked(false).difference(&reordered), []);
    let mut few = demo();
    few.exports[0].namespaces.truncate(1);
    let steps = few.difference(&masked(true));
    let [
        ..,
        Step::ChangeAccess { masks, .. },
        Step::AddNamespace { .. },
    ] = &steps[..]
    else {
        panic!("{steps:?}");
    };
    assert_eq!(*masks, masked(true).exports[0].masks);
}

/// A namespace stays while its ANA group changes, and states precede what is added.
#[test]
fn keys_precede_their_users_and_requirements_disconnect() {
    let [host, name]: [&str; 2] = ["nqn.2026-11.org.example:h", "k"];
    let host: Nqn = host.parse().expect("valid");
    let name: Name = name.parse().expect("valid");
    let key = |place: &str| Key {
        name: name.clone(),
        source: crate::KeySource::File(place.into()),
    };
    let mut listed = demo();
    listed.exports[0].access = Access::Hosts(vec![host.clone()]);
    let mut allowed = listed.clone();
    allowed.keys.push(key("/k"));
    allowed.exports[0].authentication.push(HostAuthentication {
        host,
        chap: vec![name.clone()],
        chap_controller: None,
        chap_null_group: false,
        concatenation: false,
        requires_chap: false,
        tls: Vec::new(),
        requires_tls: false,
    });
    let nqn = &listed.exports[0].nqn;
    let access = format!("allow 1 host(s) to attach {nqn}");
    assert_eq!(
        lines(&listed, &allowed),
        ["live: read key k".to_owned(), format!("live: {access}")]
    );
    let mut required = allowed.clone();
    required.exports[0].authentication[0].requires_chap = true;
    required.keys[0] = key("/other");
    assert_eq!(
        lines(&allowed, &required),
        [
            "live: read key k from another place".to_owned(),
            format!("drain: {access}, 1 of them after authentication")
        ]
    );
    let mut secure = required.clone();
    let of_host = &mut secure.exports[0].authentication[0];
    (of_host.tls, of_host.requires_tls) = (vec![name.clone()], true);
    let both = format!("{access}, 1 of them after authentication, 1 of them over TLS");
    assert_eq!(lines(&required, &secure), [format!("drain: {both}")]);
    let back = format!("live: {access}, 1 of them after authentication");
    assert_eq!(lines(&secure, &required), [back]);
    assert_eq!(
        lines(&required, &listed),
        [format!("live: {access}"), "live: forget key k".to_owned()]
    );
    let mut now = required.clone();
    assert!(now.apply_step(&Step::ReloadKey(name)));
    assert_eq!(now, required, "only its secret has changed");
}

#[test]
fn ana_groups_and_states_change_live_in_one_step() {
    let running = demo();
    let mut wanted = running.clone();
    let export = &mut wanted.exports[0];
    export.namespaces[1].ana_group = 2;
    export.ana = vec![AnaEntry {
        listener: export.listeners[0].clone(),
        group: Some(2),
        state: AnaState::Inaccessible,
    }];
    export.controller_ids = ControllerIds::new(7, 9);
    let nqn = &running.exports[0].nqn;
    assert_eq!(
        lines(&running, &wanted),
        [
            format!("live: change ANA groups or states of {nqn}"),
            format!("live: give new controllers of {nqn} the identifiers 7 to 9"),
        ]
    );
    assert_eq!(
        lines(&wanted, &running),
        [
            format!("live: change ANA groups or states of {nqn}"),
            format!("live: give new controllers of {nqn} any identifiers"),
        ]
    );
    let added = wanted.exports[0].namespaces.remove(0);
    let mut more = wanted.clone();
    more.exports[0].namespaces.push(added);
    more.exports[0].ana.clear();
    let steps = wanted.difference(&more);
    let [Step::ChangeAna { regrouped, .. }, Step::AddNamespace { .. }] = &steps[..] else {
        panic!("{steps:?}");
    };
    assert_eq!(*regrouped, []);
}

#[test]
fn the_entry_of_a_group_precedes_that_of_its_listener() {
    let mut export = demo().exports.remove(0);
    let listener = export.listeners[0].clone();
    let entry = |group, state| AnaEntry {
        listener: listener.clone(),
        group,
        state,
    };
    export.ana = vec![
        entry(None, AnaState::Inaccessible),
        entry(Some(3), AnaState::NonOptimized),
    ];
    assert_eq!(export.ana_state(&listener, 2), AnaState::Inaccessible);
    assert_eq!(export.ana_state(&listener, 3), AnaState::NonOptimized);
    let other = "other".parse().expect("valid");
    assert_eq!(export.ana_state(&other, 3), AnaState::Optimized);
}

#[test]
fn step_for_unknown_objects_has_no_effect() {
    let nqn: Nqn = "nqn.2026-11.org.example:none".parse().expect("valid");
    let name: Name = "none".parse().expect("valid");
    let steps = [
        Step::RemoveExport(nqn.clone()),
        Step::RemoveListener(name.clone()),
        Step::RemoveDevice(name.clone()),
        Step::ChangeQueues {
            export: nqn,
            max_io_queues: 1,
        },
        Step::GrowDevice {
            device: name,
            size: None,
        },
        Step::Restart {
            key: "appliance.memory".to_owned(),
            from: String::new(),
            to: String::new(),
        },
    ];
    let mut config = demo();
    for step in steps {
        assert!(!config.apply_step(&step), "{step}");
        assert_eq!(config, demo());
    }
}

#[test]
fn restart_keys_keep_their_running_values() {
    let mut wanted = demo();
    wanted.appliance.memory = ByteSize::from_mib(512);
    wanted.limits.max_controllers += 1;
    wanted.exports.pop();
    let now = wanted.without_restarts(&demo());
    assert_eq!(now.appliance.memory, demo().appliance.memory);
    assert_eq!(now.limits.max_controllers, wanted.limits.max_controllers);
    let steps = demo().difference(&now);
    assert!(steps.iter().all(|step| step.effect() != Effect::Restart));
    assert_eq!(steps.len(), wanted.difference(&demo()).len() - 1);
}

/// Without a listener, too.
#[test]
fn volumes_come_and_go_with_their_devices() {
    let mut running = demo();
    let device = Device {
        name: "ram".parse().unwrap(),
        ..running.devices[0].clone()
    };
    running.devices.push(device);
    running.files.volumes.push(Volume {
        name: "files".parse().unwrap(),
        device: "ram".parse().unwrap(),
        uuid: None,
        metadata_memory: ByteSize::from_mib(1),
    });
    let steps = running.difference(&demo());
    let is_removal = matches!(&steps[..], [Step::RemoveVolume(_), Step::RemoveDevice(_)]);
    assert!(is_removal, "{steps:?}");
    assert_eq!(demo().without_restarts(&running).files, Files::default());
    let steps = demo().difference(&running);
    let is_addition = matches!(&steps[..], [Step::AddDevice(_), Step::AddVolume(_)]);
    assert!(is_addition, "{steps:?}");
}

/// A configuration that serves files by one share.
fn with_files() -> Config {
    let mut config = demo();
    let device = Device {
        name: "ram".parse().unwrap(),
        ..config.devices[0].clone()
    };
    config.devices.push(device);
    config.files = generated_files();
    config
}

fn generated_files() -> Files {
    let share = |name: &str| Share {
        name: name.parse().unwrap(),
        volume: "files".parse().unwrap(),
        directory: None,
        max_size: None,
        max_files: None,
        clients: Vec::new(),
        allow_any_client: true,
        read_only: false,
        squash: Squash::Root,
    };
    Files {
        volumes: vec![Volume {
            name: "files".parse().unwrap(),
            device: "ram".parse().unwrap(),
            uuid: None,
            metadata_memory: ByteSize::from_mib(1),
        }],
        shares: vec![share("a"), share("b")],
        listeners: vec![FileListener {
            name: "nfs".parse().unwrap(),
            transport: Transport::Tcp,
            address: "127.0.0.1:2049".parse().unwrap(),
        }],
    }
}

#[test]
fn shares_change_without_a_restart() {
    let running = with_files();
    let mut wanted = running.clone();
    wanted.files.shares.reverse();
    assert_eq!(running.difference(&wanted), []);
    wanted.files.shares[0].read_only = true;
    let share = Share {
        name: "c".parse().unwrap(),
        ..running.files.shares[0].clone()
    };
    wanted.files.shares.push(share);
    let effects = |running: &Config, wanted: &Config| {
        let steps = running.difference(wanted);
        let described = |step: &Step| (step.effect(), step.to_string());
        steps.iter().map(described).collect::<Vec<_>>()
    };
    let text = "change what is shared: add c; change b".to_owned();
    assert_eq!(effects(&running, &wanted), [(Effect::Live, text)]);
    let text = "change what is shared: change b; end c".to_owned();
    assert_eq!(effects(&wanted, &running), [(Effect::Drain, text)]);
    let mut now = running.clone();
    for step in running.difference(&wanted) {
        assert!(now.apply_step(&step), "{step}");
    }
    assert_eq!(now, wanted);
    assert_eq!(wanted.without_restarts(&running).files, wanted.files);
    // Quotas cut nothing off.
    let mut limited = running.clone();
    for share in &mut limited.files.shares {
        share.max_files = Some(5);
    }
    let steps = effects(&running, &limited);
    assert!(matches!(&steps[..], [(Effect::Live, _)]), "{steps:?}");
    let mut elsewhere = running.clone();
    elsewhere.files.shares[0].directory = Some("team".parse().unwrap());
    let steps = effects(&running, &elsewhere);
    assert!(matches!(&steps[..], [(Effect::Drain, _)]), "{steps:?}");
    // Clients that may not use a share any more lose what they have of it.
    let mut restricted = running.clone();
    restricted.files.shares[0].allow_any_client = false;
    restricted.files.shares[0].clients = vec!["192.0.2.0/24".parse().unwrap()];
    let steps = effects(&running, &restricted);
    assert!(matches!(&steps[..], [(Effect::Drain, _)]), "{steps:?}");
}

fn texts(running: &Config, wanted: &Config) -> Vec<(Effect, String)> {
    let steps = running.difference(wanted);
    let mut now = running.clone();
    for step in &steps {
        if step.effect() != Effect::Restart {
            assert!(now.apply_step(step), "{step}");
        }
    }
    assert_eq!(now.difference(&wanted.without_restarts(running)), []);
    let described = |step: &Step| (step.effect(), step.to_string());
    steps.iter().map(described).collect()
}

/// Shares end before their volumes, volumes before their devices, and the other way round.
#[test]
fn volumes_and_listeners_change_without_a_restart() {
    let running = with_files();
    let mut wanted = running.clone();
    wanted.devices.push(Device {
        name: "more".parse().unwrap(),
        ..running.devices[0].clone()
    });
    wanted.files.volumes.push(Volume {
        name: "more".parse().unwrap(),
        device: "more".parse().unwrap(),
        ..running.files.volumes[0].clone()
    });
    wanted.files.shares[1].volume = "more".parse().unwrap();
    wanted.files.listeners[0].address = "127.0.0.1:2050".parse().unwrap();
    wanted.files.listeners.push(FileListener {
        name: "other".parse().unwrap(),
        ..running.files.listeners[0].clone()
    });
    let expected = [
        (Effect::Drain, "close file listener nfs"),
        (Effect::Live, "open device more (memory)"),
        (Effect::Live, "open volume more on device more"),
        (Effect::Drain, "change what is shared: change b"),
        (Effect::Live, "serve files at 127.0.0.1:2050 (tcp) as nfs"),
        (Effect::Live, "serve files at 127.0.0.1:2049 (tcp) as other"),
    ];
    let expected = expected.map(|(effect, text)| (effect, text.to_owned()));
    assert_eq!(texts(&running, &wanted), expected);
    let expected = [
        (Effect::Drain, "close file listener nfs"),
        (Effect::Drain, "close file listener other"),
        (Effect::Drain, "change what is shared: end b"),
        (Effect::Drain, "close volume more"),
        (Effect::Drain, "close device more"),
        (Effect::Live, "change what is shared: add b"),
        (Effect::Live, "serve files at 127.0.0.1:2049 (tcp) as nfs"),
    ];
    let expected = expected.map(|(effect, text)| (effect, text.to_owned()));
    assert_eq!(texts(&wanted, &running), expected);
    // A volume of other settings is another one.
    let mut changed = running.clone();
    changed.files.volumes[0].metadata_memory = ByteSize::from_mib(2);
    let expected = [
        (Effect::Drain, "change what is shared: end a, b"),
        (Effect::Drain, "close volume files"),
        (Effect::Live, "open volume files on device ram"),
        (Effect::Live, "change what is shared: add a, b"),
    ];
    let expected = expected.map(|(effect, text)| (effect, text.to_owned()));
    assert_eq!(texts(&running, &changed), expected);
}

#[test]
fn file_listeners_over_both_transports_change_without_a_restart() {
    let running = with_files();
    let mut unserved = running.clone();
    unserved.files.listeners.clear();
    let mut shared = unserved.clone();
    shared.files.shares.pop();
    let mut rdma = running.clone();
    rdma.files.listeners.push(FileListener {
        name: "rdma".parse().unwrap(),
        transport: Transport::Rdma,
        address: "127.0.0.1:20049".parse().unwrap(),
    });
    let pairs = [
        (&running, &unserved, "close file listener nfs"),
        (
            &unserved,
            &running,
            "serve files at 127.0.0.1:2049 (tcp) as nfs",
        ),
        (&unserved, &shared, "change what is shared: end b"),
        (
            &running,
            &rdma,
            "serve files at 127.0.0.1:20049 (rdma) as rdma",
        ),
        (&rdma, &running, "close file listener rdma"),
    ];
    for (running, wanted, text) in pairs {
        let steps = texts(running, wanted);
        let texts: Vec<&str> = steps.iter().map(|(_, text)| text.as_str()).collect();
        assert_eq!(texts, [text]);
        assert_ne!(steps[0].0, Effect::Restart);
        assert_eq!(wanted.without_restarts(running).files, wanted.files);
    }
    // The transport of a listener changes as its address does.
    let mut changed = running.clone();
    changed.files.listeners[0].transport = Transport::Rdma;
    let expected = [
        (Effect::Drain, "close file listener nfs"),
        (Effect::Live, "serve files at 127.0.0.1:2049 (rdma) as nfs"),
    ];
    let expected = expected.map(|(effect, text)| (effect, text.to_owned()));
    assert_eq!(texts(&running, &changed), expected);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    #[test]
    fn steps_convert_any_configuration_to_any_other(
        running in generate::config(), wanted in generate::config()
    ) {
        let mut now = running.clone();
        // Keys that take a restart already have their wanted values.
        now.appliance = crate::Appliance {
            shutdown_deadline: running.appliance.shutdown_deadline,
            ..wanted.appliance.clone()
        };
        now.limits = crate::Limits {
            max_controllers: running.limits.max_controllers,
            ..wanted.limits.clone()
        };
        now.control = wanted.control.clone();
        let steps = now.difference(&wanted);
        for step in &steps {
            prop_assert!(now.apply_step(step), "{}", step);
            check(&now);
        }
        prop_assert_eq!(ordered(now.clone()), ordered(wanted.clone()));
        prop_assert_eq!(now.difference(&wanted), vec![]);
    }

    #[test]
    fn small_changes_can_be_applied_and_reverted(
        running in generate::config(), other in generate::config(), part in 0_usize..6
    ) {
        let mut wanted = running.clone();
        match part {
            0 => { wanted.exports.pop(); }
            1 => wanted.appliance.shutdown_deadline = other.appliance.shutdown_deadline,
            2 => wanted.exports[0].access = other.exports[0].access.clone(),
            3 => wanted.exports[0].model = other.exports[0].model.clone(),
            4 => wanted.listeners[0].queue_depth = other.listeners[0].queue_depth,
            _ => wanted.devices[0].read_only = !wanted.devices[0].read_only,
        }
        for (from, to) in [(&running, &wanted), (&wanted, &running)] {
            let mut now = from.clone();
            for step in from.difference(to) {
                prop_assert!(now.apply_step(&step), "{}", step);
                check(&now);
            }
            prop_assert_eq!(ordered(now), ordered(to.clone()));
        }
    }

    #[test]
    fn restart_is_reported_exactly_for_startup_only_keys(
        running in generate::config(), wanted in generate::config()
    ) {
        let restarts = |step: &Step| step.effect() == Effect::Restart;
        let mut same = wanted.clone();
        same.appliance = running.appliance.clone();
        same.limits = running.limits.clone();
        same.control = running.control.clone();
        prop_assert!(!running.difference(&same).iter().any(restarts));
        let mut appliance = wanted.appliance.clone();
        appliance.shutdown_deadline = running.appliance.shutdown_deadline;
        let mut limits = wanted.limits.clone();
        limits.max_controllers = running.limits.max_controllers;
        let differs = appliance != running.appliance || limits != running.limits
            || wanted.control != running.control;
        prop_assert_eq!(running.difference(&wanted).iter().any(restarts), differs);
    }
}
