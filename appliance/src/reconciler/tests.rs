//! Changes a running appliance while a host uses its unchanged parts.

mod ana;
mod chap;
#[cfg(feature = "verbs")]
mod file_rdma;
mod files;
mod identity;
mod lab;
mod masks;
mod paths;
mod random;
#[cfg(feature = "verbs")]
mod rdma;
mod reservations;
mod tls;

use std::time::Instant;

use nvme_spec::event::AsyncEvent;
use nvme_spec::features::AsyncEventConfiguration;
use nvme_spec::sgl::SglDescriptor;
use nvme_spec::tcp::PduType;
use nvme_spec::{Sqe, Status};
use tempfile::TempDir;

use super::ApplyOptions;
use crate::observe::model::StepState;
use lab::{
    Busy, Host, LIMIT, STEADY, address, apply, base, discovery, file, nqn, started, steps_to,
    try_apply, with_export,
};

const MEMORY: &str = "type = \"memory\"\nsize = \"1MiB\"";
/// The status of commands to an inactive namespace (Base 2.1 §3.2.1.5).
const INACTIVE: Status = Status::INVALID_FIELD.with_dnr();

/// After a refused change nothing of it remains, and everything is as before.
#[test]
fn unavailable_resource_leaves_the_configuration_unchanged() {
    let directory = TempDir::new().expect("a directory");
    let path = directory.path().join("missing").join("volume.img");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = taken.local_addr().expect("bound");
    let ram = with_export("ram", MEMORY);
    let now = base("10s") + &ram;
    let mut appliance = started(&now);
    let busy = Busy::begin(&appliance);
    let listener =
        format!("[[listener]]\nname = \"more\"\ntransport = \"tcp\"\naddress = \"{taken}\"\n");
    let drive = "type = \"nvme\"\npci = \"ffff:7f:1f.7\"";
    let rdma = "[[listener]]\nname = \"more\"\ntransport = \"rdma\"\naddress = \"127.0.0.1:0\"\n";
    let wanted = [
        // Each removes an object that must stay, and adds one that is not available.
        (with_export("file", &file(&path, "1MiB")), "volume.img"),
        (with_export("new", MEMORY) + &listener, "cannot listen on"),
        (
            with_export("huge", "type = \"memory\"\nsize = \"15TiB\""),
            "no memory",
        ),
        (
            with_export("drive", drive),
            "no PCI function has this address",
        ),
        (rdma.to_owned(), "RDMA"),
        (String::new(), "restart"),
    ];
    for (more, why) in wanted {
        let mut text = base("10s") + &more;
        if more.is_empty() {
            text = text.replace("16MiB", "32MiB");
        }
        let response = try_apply(&mut appliance, &text, ApplyOptions::default());
        assert!(!response.applied, "{response:#?}");
        let refused = response.failure_reason().expect("a reason");
        assert!(
            refused.contains("nothing was changed") && refused.contains(why),
            "{refused}"
        );
        assert!(response.steps.iter().all(|it| it.state != StepState::Done));
        assert_eq!(steps_to(&appliance, &now), []);
        assert_eq!(
            Host::attach(address(&appliance, "steady"), &nqn("ram")).write(1, 0, 1),
            Status::SUCCESS
        );
    }
    let dry_run = ApplyOptions {
        dry_run: true,
        ..ApplyOptions::default()
    };
    let response = try_apply(&mut appliance, &base("10s"), dry_run);
    let states: Vec<_> = response.steps.iter().map(|it| it.state).collect();
    assert_eq!(states, [StepState::Planned; 2]);
    assert_eq!(steps_to(&appliance, &now), []);
    // Applies the possible steps of a configuration in which others take a restart.
    let text = base("11s").replace("16MiB", "32MiB");
    let partial = ApplyOptions {
        partial: true,
        ..ApplyOptions::default()
    };
    let response = try_apply(&mut appliance, &text, partial);
    let step_states: Vec<_> = response
        .steps
        .iter()
        .map(|it| (&it.effect[..], it.state))
        .collect();
    assert_eq!(step_states[0], ("restart", StepState::Skipped));
    assert!(
        step_states[1..]
            .iter()
            .all(|(_, state)| *state == StepState::Done),
        "{response:#?}"
    );
    assert!(!response.applied && steps_to(&appliance, &text).len() == 1);
    busy.go_on();
    busy.end();
    assert!(appliance.stop_quietly());
}

/// A file is never made shorter, and a failure after a device was closed leaves everything as
/// before.
#[test]
fn a_failed_step_is_rolled_back() {
    let directory = TempDir::new().expect("a directory");
    let (even, odd) = (directory.path().join("even"), directory.path().join("odd"));
    let length = (1 << 20) + 512;
    let created = std::fs::File::create(&odd).and_then(|file| file.set_len(length));
    created.expect("a file");
    let blocks = format!(
        "type = \"file\"\npath = \"{}\"\nblock_size = \"512B\"",
        odd.display()
    );
    let now = base("10s")
        + &with_export("odd", &blocks)
        + &with_export("even", &file(&even, "2MiB"))
        + &with_export("ram", &MEMORY.replace("1MiB", "2MiB"));
    let mut appliance = started(&now);
    let busy = Busy::begin(&appliance);
    let at = address(&appliance, "steady");
    let mut host = Host::attach(at, &nqn("even"));
    assert_eq!(host.write(1, 0, 4), Status::SUCCESS);
    for export in ["odd", "ram"] {
        assert_eq!(
            Host::attach(at, &nqn(export)).write(1, 0, 5),
            Status::SUCCESS
        );
    }
    let shorter = now.replace("even\"\nsize = \"2MiB\"", "even\"\nsize = \"1MiB\"");
    assert_ne!(shorter, now);
    let response = try_apply(&mut appliance, &shorter, ApplyOptions::default());
    let refused = response.failure_reason().expect("a reason");
    assert!(
        refused.contains("nothing was changed") && refused.contains("never made shorter"),
        "{refused}"
    );
    assert!(response.steps.iter().all(|it| it.state != StepState::Done));
    assert_eq!(steps_to(&appliance, &now), []);
    assert_eq!(host.read(1, 0), Ok(vec![4; 512]));
    // The file does not end at a block boundary, which is detected only when it is opened again;
    // memory contents must not be lost before that.
    let halves = now.replace("512B", "4KiB");
    let halves = halves.replace(
        &with_export("ram", &MEMORY.replace("1MiB", "2MiB")),
        &with_export("ram", "type = \"null\"\nsize = \"1MiB\""),
    );
    let response = try_apply(&mut appliance, &halves, ApplyOptions::default());
    let refused = response.failure_reason().expect("a reason");
    assert!(refused.contains("were undone"), "{refused}");
    let undone = response.steps.iter();
    assert!(undone.clone().any(|it| it.state == StepState::Undone));
    assert!(undone.clone().all(|it| it.state != StepState::Done));
    assert_eq!(steps_to(&appliance, &now), []);
    for export in ["odd", "ram"] {
        let mut host = Host::attach(at, &nqn(export));
        assert_eq!(host.read(1, 0), Ok(vec![5; 512]), "{export}");
    }
    assert_eq!(host.read(1, 0), Ok(vec![4; 512]));
    busy.go_on();
    busy.end();
    drop(host);
    assert!(appliance.stop_quietly());
}

#[test]
fn namespace_changes_raise_events_for_hosts() {
    let directory = TempDir::new().expect("a directory");
    let path = directory.path().join("volume.img");
    let mut appliance = started(&base("10s"));
    let busy = Busy::begin(&appliance);
    let at = address(&appliance, "steady");
    let mut host = Host::attach(at, STEADY);
    let wanted = AsyncEventConfiguration::new().with_namespace_attribute(true);
    Host::want_events(&mut host.admin, wanted);
    assert_eq!(host.read(2, 0), Err(Status::INVALID_FIELD.with_dnr()));
    for device in [file(&path, "1MiB"), MEMORY.to_owned()] {
        let with = |device: &str| {
            let more = format!("\n[[device]]\nname = \"more\"\n{device}\n");
            base("10s").replace(
                "[\"steady\"]\nlisteners",
                "[\"steady\", \"more\"]\nlisteners",
            ) + &more
        };
        let block = 512;
        let blocks = (1 << 20) / block;
        host.ask_for_event();
        apply(&mut appliance, &with(&device));
        assert_eq!(
            AsyncEvent::from_bits(host.event()),
            AsyncEvent::NAMESPACE_ATTRIBUTE_CHANGED
        );
        read_changed_list(&mut host);
        let mut write = |lba: u64| {
            let data = vec![7; block];
            let sqe = Sqe::write(2, lba, 0, false);
            host.io
                .command(sqe, &data, 0)
                .expect("a response")
                .0
                .status()
                .with_more(false)
        };
        assert_eq!(write(blocks as u64 - 1), Status::SUCCESS);
        assert_eq!(write(blocks as u64), Status::LBA_OUT_OF_RANGE.with_dnr());
        apply(&mut appliance, &with(&device.replace("1MiB", "3MiB")));
        // Every reactor serves the new size when the response arrives.
        assert_eq!(write(3 * blocks as u64 - 1), Status::SUCCESS);
        assert_eq!(
            write(3 * blocks as u64),
            Status::LBA_OUT_OF_RANGE.with_dnr()
        );
        let read = Sqe::read(2, blocks as u64 - 1, 1);
        let (cqe, data) = host
            .io
            .command(read, &[], 2 * block as u32)
            .expect("a response");
        assert!(
            cqe.status().is_success(),
            "over the old end: {}",
            cqe.status()
        );
        assert!(data[..block].iter().all(|it| *it == 7) && data[block..].iter().all(|it| *it == 0));
        apply(&mut appliance, &base("10s"));
        assert_eq!(host.read(2, 0), Err(INACTIVE));
        busy.go_on();
    }
    // The file is closed, so its lock is free.
    let file = std::fs::File::open(&path).expect("it is there");
    file.try_lock().expect("nobody has it");
    busy.end();
    drop(host);
    assert!(appliance.stop_quietly());
}

/// The next event is sent only after the list was read (Base 2.1 §5.1.2).
fn read_changed_list(host: &mut Host) {
    let select = nvme_spec::command::LogPageSelect::new()
        .with_lid(nvme_spec::command::LogPageId::CHANGED_ATTACHED_NAMESPACES)
        .with_numd_z(1023);
    let sqe = Sqe::log_page(nvme_spec::NSID_BROADCAST, select, 0);
    let (cqe, page) = host.admin.command(sqe, &[], 4096).expect("a response");
    assert!(cqe.status().is_success());
    assert_eq!(page[..8], [2, 0, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn exports_listeners_and_hosts_are_added_and_removed() {
    let mut appliance = started(&base("10s"));
    let busy = Busy::begin(&appliance);
    let at = address(&appliance, "steady");
    let mut log = discovery(at);
    let wanted = AsyncEventConfiguration::new().with_discovery_log(true);
    Host::want_events(&mut log, wanted);
    let ask = Sqe::async_event_request().with_cid(0x7000);
    log.send_capsule(ask, &[]).expect("connected");
    let more = with_export("more", MEMORY)
        .replace("[\"steady\"]\nallow", "[\"steady\", \"second\"]\nallow");
    let listener =
        "[[listener]]\nname = \"second\"\ntransport = \"tcp\"\naddress = \"127.0.0.1:0\"\n";
    let with_all = base("10s") + listener + &more;
    apply(&mut appliance, &with_all);
    let pdu = log.expect(PduType::CAPSULE_RESP).expect("an event");
    let event = pdu.completion().expect("a response").dw0.get();
    assert_eq!(
        AsyncEvent::from_bits(event),
        AsyncEvent::DISCOVERY_LOG_CHANGED
    );
    let second = address(&appliance, "second");
    let (mut by_first, mut by_second) = (
        Host::attach(at, &nqn("more")),
        Host::attach(second, &nqn("more")),
    );
    assert_eq!(by_first.write(1, 0, 3), Status::SUCCESS);
    assert_eq!(by_second.read(1, 0), Ok(vec![3; 512]));
    // Changed settings apply only to hosts that connect later.
    let settings = with_all.replace(
        "name = \"second\"\n",
        "name = \"second\"\ndata_digest = \"required\"\n",
    );
    apply(&mut appliance, &settings);
    assert_eq!(by_second.read(1, 0), Ok(vec![3; 512]));
    let mut new = nvme_host_testing::tcp::RawClient::connect(second, LIMIT).expect("it listens");
    assert!(
        new.initialize(false, false).is_err(),
        "a digest is required by now"
    );
    // Removing the listener disconnects its hosts.
    let one = base("10s") + &with_export("more", MEMORY);
    apply(&mut appliance, &one);
    assert!(by_second.io.expect_close().is_ok() && by_second.admin.expect_close().is_ok());
    assert!(nvme_host_testing::tcp::RawClient::connect(second, LIMIT).is_err());
    assert_eq!(by_first.read(1, 0), Ok(vec![3; 512]));
    // Only another host may attach.
    let strangers = one.replacen(
        &format!("{}\"\ndevices = [\"more\"]\nlisteners = [\"steady\"]\nallow_any_host = true", nqn("more")),
        &format!("{}\"\ndevices = [\"more\"]\nlisteners = [\"steady\"]\nhosts = [\"nqn.2026-11.org.example:other\"]", nqn("more")),
        1,
    );
    assert_ne!(strangers, one);
    apply(&mut appliance, &strangers);
    assert!(by_first.io.expect_close().is_ok() && by_first.admin.expect_close().is_ok());
    apply(&mut appliance, &one);
    let mut again = Host::attach(at, &nqn("more"));
    assert_eq!(again.read(1, 0), Ok(vec![3; 512]));
    apply(&mut appliance, &base("10s"));
    assert!(again.io.expect_close().is_ok() && again.admin.expect_close().is_ok());
    assert_eq!(steps_to(&appliance, &base("10s")), []);
    busy.go_on();
    busy.end();
    drop((log, new));
    assert!(appliance.stop_quietly());
}

/// A write whose data the host never sends delays the removal of an export until the deadline.
#[test]
fn commands_outstanding_at_the_deadline_are_aborted_and_reported() {
    let mut appliance = started(&(base("300ms") + &with_export("more", MEMORY)));
    let busy = Busy::begin(&appliance);
    let mut host = Host::attach(address(&appliance, "steady"), &nqn("more"));
    let write = Sqe::write(1, 0, 0, false).with_cid(9);
    let write = write.with_sgl(SglDescriptor::transport(512));
    host.io.send_capsule(write, &[]).expect("connected");
    host.io.expect(PduType::R2T).expect("it asks for the data");
    let began = Instant::now();
    let response = apply(&mut appliance, &base("300ms"));
    assert!(began.elapsed().as_millis() >= 300);
    let cut: Vec<String> = response
        .steps
        .iter()
        .flat_map(|it| &it.cut_off)
        .map(ToString::to_string)
        .collect();
    let named = format!("{}, host {}, queue 1: 1 command(s)", nqn("more"), lab::HOST);
    assert_eq!(cut, [named]);
    assert!(host.io.expect_close().is_ok() && host.admin.expect_close().is_ok());
    busy.go_on();
    busy.end();
    drop(host);
    appliance.set_shutdown_deadline("20s");
    assert!(appliance.stop_quietly());
}
