//! A running appliance that is changed, its hosts, and their view of it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use appliance_config::{Config, Step};
use hugemem::{Arena, ArenaConfig, PagePolicy, Pool};
use nvme_host::{Controller, IoQueue};
use nvme_host_testing::Names;
use nvme_host_testing::tcp::RawClient;
use nvme_spec::command::{Cns, FeatureId, LogPageId, LogPageSelect};
use nvme_spec::features::AsyncEventConfiguration;
use nvme_spec::log::{DiscoveryEntry, DiscoveryHeader};
use nvme_spec::nqn::DISCOVERY_NQN;
use nvme_spec::{Sqe, Status};
use zerocopy::FromBytes as _;

use crate::appliance::Appliance;
use crate::event_loop::RealTime;
use crate::observe::model::ApplyAnswer;
use crate::reconciler::ApplyOptions;
use crate::state_directory::StateDirectory;

/// Generous limit for every wait of a test, for busy machines.
pub(super) const LIMIT: Duration = Duration::from_secs(60);
pub(super) const HOST: &str = "nqn.2026-11.org.example:host";
pub(super) const STEADY: &str = "nqn.2026-11.org.windlass:steady";

pub(super) fn parsed(text: &str) -> Config {
    match Config::parse("test", text) {
        Ok(config) => config,
        Err(problems) => panic!(
            "{}\n{text}",
            problems.display(appliance_config::Colour::Never)
        ),
    }
}

/// An I/O queue of our host's controller, and memory for its data.
pub(super) fn io_queue(controller: &mut Controller) -> (Pool, IoQueue) {
    let arena = Arena::new(ArenaConfig {
        bytes: 4 << 20,
        pages: PagePolicy::Ordinary,
        max_transfer: 1 << 16,
    });
    let pool = arena.expect("memory").pool(16);
    assert_eq!(controller.request_io_queues(1).expect("granted"), 1);
    let queue = controller.open_io_queue(1, 8, pool.clone());
    (pool, queue.expect("a queue"))
}

/// Whether the controller still executes commands.
pub(super) fn is_alive(controller: &mut Controller) -> bool {
    controller.namespaces().is_ok()
}

/// The part that no test changes: an export with its own device on its own listener.
pub(super) fn base(deadline: &str) -> String {
    format!(
        r#"
[appliance]
memory = "16MiB"
pages = "ordinary"
shutdown_deadline = "{deadline}"
[control]
http = "off"
[[device]]
name = "steady"
type = "memory"
size = "1MiB"
[[listener]]
name = "steady"
transport = "tcp"
address = "127.0.0.1:0"
[[export]]
nqn = "{STEADY}"
devices = ["steady"]
listeners = ["steady"]
allow_any_host = true
"#
    )
}

/// The base with one more device in an export of its own.
pub(super) fn with_export(name: &str, device: &str) -> String {
    format!(
        r#"
[[device]]
name = "{name}"
{device}
[[export]]
nqn = "nqn.2026-11.org.windlass:{name}"
devices = ["{name}"]
listeners = ["steady"]
allow_any_host = true
"#
    )
}

pub(super) fn nqn(name: &str) -> String {
    format!("nqn.2026-11.org.windlass:{name}")
}

pub(super) fn started(text: &str) -> Appliance {
    Appliance::start(parsed(text), &StateDirectory::default()).expect("it starts")
}

/// Applies a configuration completely.
#[track_caller]
pub(super) fn apply(appliance: &mut Appliance, text: &str) -> ApplyAnswer {
    let response = try_apply(appliance, text, ApplyOptions::default());
    assert!(response.applied, "{response:#?}");
    response
}

pub(super) fn try_apply(
    appliance: &mut Appliance,
    text: &str,
    options: ApplyOptions,
) -> ApplyAnswer {
    appliance
        .reconciler()
        .apply(&parsed(text), options, &mut RealTime(|_| {}))
}

/// Revokes the secret of a key. Returns the number of associations that end, or why nothing was
/// revoked.
pub(super) fn revoke(
    appliance: &mut Appliance,
    key: &str,
    disconnect: bool,
) -> Result<usize, String> {
    let key = key.parse().expect("a name");
    let revoked = appliance
        .reconciler()
        .revoke_key(&key, disconnect, &mut RealTime(|_| {}));
    revoked.map(|ended| ended.count())
}

/// The names of the keys whose secrets are revoked.
pub(super) fn revoked_keys(appliance: &Appliance) -> Vec<String> {
    let keys = appliance.status().keys.into_iter();
    keys.filter(|it| it.revoked).map(|it| it.name).collect()
}

/// The steps that remain to be done.
pub(super) fn steps_to(appliance: &Appliance, text: &str) -> Vec<Step> {
    appliance.config().difference(&parsed(text))
}

pub(super) fn address(appliance: &Appliance, listener: &str) -> SocketAddr {
    let mut listeners = appliance.config().listeners.iter();
    let place = listeners.position(|it| it.name.as_str() == listener);
    appliance.addresses()[place.expect("it is there")]
}

fn names(subsystem: &str, host: &str) -> Names {
    Names {
        host: host.to_owned(),
        host_id: [9; 16],
        subsystem: subsystem.to_owned(),
    }
}

/// A host's admin queue and I/O queue.
pub(super) struct Host {
    pub(super) admin: RawClient,
    pub(super) io: RawClient,
}

impl Host {
    pub(super) fn attach(address: SocketAddr, subsystem: &str) -> Self {
        let connect = || RawClient::connect(address, LIMIT).expect("it listens");
        let (mut admin, mut io) = (connect(), connect());
        let names = names(subsystem, HOST);
        let cntlid = admin.open_admin(&names).expect("it may attach");
        io.open_io(&names, cntlid, 1).expect("queue 1 is free");
        Self { admin, io }
    }

    pub(super) fn write(&mut self, nsid: u32, lba: u64, fill: u8) -> Status {
        let sqe = Sqe::write(nsid, lba, 0, false);
        let (cqe, _) = self.io.command(sqe, &[fill; 512], 0).expect("a response");
        cqe.status().with_more(false)
    }

    pub(super) fn read(&mut self, nsid: u32, lba: u64) -> Result<Vec<u8>, Status> {
        let response = self.io.command(Sqe::read(nsid, lba, 0), &[], 512);
        let (cqe, data) = response.expect("a response");
        if cqe.status().is_success() {
            Ok(data)
        } else {
            Err(cqe.status().with_more(false))
        }
    }

    /// Enables these events.
    pub(super) fn want_events(admin: &mut RawClient, wanted: AsyncEventConfiguration) {
        let feature = FeatureId::ASYNC_EVENT_CONFIGURATION;
        let set = Sqe::set_feature(feature, 0, wanted.into_bits());
        let (cqe, _) = admin.command(set, &[], 0).expect("a response");
        assert!(cqe.status().is_success(), "{}", cqe.status());
    }

    /// Sends an Asynchronous Event Request, which completes when there is an event.
    pub(super) fn ask_for_event(&mut self) {
        let sqe = Sqe::async_event_request().with_cid(0x7000);
        self.admin.send_capsule(sqe, &[]).expect("connected");
    }

    /// The event that completed the request.
    pub(super) fn event(&mut self) -> u32 {
        let pdu = self.admin.expect(nvme_spec::tcp::PduType::CAPSULE_RESP);
        let cqe = pdu.expect("a response").completion().expect("a response");
        assert_eq!(cqe.cid.get(), 0x7000);
        cqe.dw0.get()
    }
}

/// A discovery controller's admin queue.
pub(super) fn discovery(address: SocketAddr) -> RawClient {
    let mut admin = RawClient::connect(address, LIMIT).expect("it listens");
    admin
        .open_admin(&names(DISCOVERY_NQN, HOST))
        .expect("everybody may");
    admin
}

/// A host that continuously writes and reads back, and must never see an error or have to
/// reconnect.
pub(super) struct Busy {
    stop: Arc<AtomicBool>,
    rounds: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Busy {
    pub(super) fn begin(appliance: &Appliance) -> Self {
        let mut host = Host::attach(address(appliance, "steady"), STEADY);
        let (stop, rounds) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&rounds));
        let thread = std::thread::spawn(move || {
            let mut round = 0_u64;
            while !stopped.load(Ordering::Relaxed) {
                let (lba, fill) = (round % 512, (round / 512 + round) as u8);
                assert_eq!(host.write(1, lba, fill), Status::SUCCESS);
                assert_eq!(host.read(1, lba), Ok(vec![fill; 512]));
                round += 1;
                AtomicU64::store(&counted, round, Ordering::Relaxed);
            }
        });
        Self {
            stop,
            rounds,
            thread: Some(thread),
        }
    }

    /// Waits for several iterations, so that the effect of an earlier change is visible.
    pub(super) fn go_on(&self) {
        let now = self.rounds.load(Ordering::Relaxed);
        let began = std::time::Instant::now();
        while self.rounds.load(Ordering::Relaxed) < now + 3 {
            assert!(began.elapsed() < LIMIT, "the busy host is held up");
            let is_over = self.thread.as_ref().is_none_or(JoinHandle::is_finished);
            assert!(!is_over, "the busy host saw something");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub(super) fn end(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take().expect("it ends once");
        thread.join().expect("it saw nothing");
    }
}

/// The view of hosts and the status, without parts that differ between starts: ports that the
/// system chose, numbers of controllers and ports.
pub(super) fn seen(appliance: &Appliance, hosts: &[&str]) -> BTreeMap<String, String> {
    let mut seen = BTreeMap::new();
    let listeners: Vec<(String, SocketAddr)> = appliance
        .config()
        .listeners
        .iter()
        .map(|it| (it.name.to_string(), address(appliance, it.name.as_str())))
        .collect();
    for host in hosts {
        for (listener, at) in &listeners {
            let log = discovery_log(*at, host);
            for (name, other) in &listeners {
                let shown = log.iter().filter(|entry| {
                    let service = entry.trsvcid.as_str().map(str::trim_end);
                    let address = entry.traddr.as_str().map(str::trim_end);
                    // Listeners on different addresses may have the same port.
                    service == Some(other.port().to_string().as_str())
                        && address == Some(other.ip().to_string().as_str())
                });
                let mut shown: Vec<String> = shown
                    .map(|entry| format!("{:?} {:?}", entry.subnqn.as_str(), entry.trtype))
                    .collect();
                shown.sort();
                seen.insert(
                    format!("log of {host} by {listener}: {name}"),
                    format!("{shown:?}"),
                );
            }
            for export in &appliance.config().exports {
                let what = format!("{} of {host} by {listener}", export.nqn);
                seen.insert(what, controller(*at, export.nqn.as_str(), host));
            }
        }
    }
    for (what, reported) in status(appliance) {
        seen.insert(what, reported);
    }
    seen
}

fn discovery_log(at: SocketAddr, host: &str) -> Vec<DiscoveryEntry> {
    let mut admin = RawClient::connect(at, LIMIT).expect("it listens");
    admin
        .open_admin(&names(DISCOVERY_NQN, host))
        .expect("everybody may");
    let select = LogPageSelect::new()
        .with_lid(LogPageId::DISCOVERY)
        .with_numd_z(32 * 256 - 1);
    let sqe = Sqe::log_page(nvme_spec::NSID_BROADCAST, select, 0);
    let (cqe, page) = admin.command(sqe, &[], 32 * 1024).expect("a response");
    assert!(cqe.status().is_success(), "{}", cqe.status());
    let (header, rest) = DiscoveryHeader::read_from_prefix(&page).expect("a header");
    let count = header.numrec.get() as usize;
    let (entries, _) = <[DiscoveryEntry]>::ref_from_prefix_with_elems(rest, count).expect("a log");
    entries.to_vec()
}

/// The data that a host gets from a subsystem when it attaches.
fn controller(at: SocketAddr, subsystem: &str, host: &str) -> String {
    let mut admin = RawClient::connect(at, LIMIT).expect("it listens");
    if let Err(error) = admin.open_admin(&names(subsystem, host)) {
        return error.to_string();
    }
    let mut identify = |cns: Cns, nsid: u32| {
        let sqe = Sqe::identify_structure(cns, nsid);
        let (cqe, page) = admin.command(sqe, &[], 4096).expect("a response");
        assert!(
            cqe.status().is_success(),
            "{cns:?} {nsid}: {}",
            cqe.status()
        );
        page
    };
    let mut page = identify(Cns::CONTROLLER, 0);
    // CNTLID; NN and with it MNAN, which never shrink during the lifetime of the target (Base 2.1
    // §5.1.13.2.1).
    page[78..80].fill(0);
    page[516..520].fill(0);
    page[540..544].fill(0);
    let mut reported = page;
    let list = identify(Cns::ACTIVE_NAMESPACE_LIST, 0);
    let numbers = list.as_chunks().0.iter().map(|it| u32::from_le_bytes(*it));
    for nsid in numbers.take_while(|nsid| *nsid != 0) {
        reported.extend(nsid.to_le_bytes());
        let mut namespace = identify(Cns::NAMESPACE, nsid);
        // NGUID and EUI-64 (NVM 1.1 §4.1.5.1), like the descriptors, follow the content, which
        // differs in another directory.
        namespace[104..128].fill(0);
        reported.extend(namespace);
    }
    let used = reported.iter().enumerate().filter(|(_, byte)| **byte != 0);
    used.map(|(at, byte)| format!("{at}:{byte:02x} ")).collect()
}

/// The parts of the status that depend on the configuration, as JSON.
fn status(appliance: &Appliance) -> BTreeMap<String, String> {
    let status = appliance.status();
    let mut reported = BTreeMap::new();
    for device in status.devices {
        let what = (
            device.device_type,
            device.state,
            device.block_size,
            device.block_count,
        );
        reported.insert(format!("device {}", device.name), format!("{what:?}"));
    }
    for mut export in status.exports {
        export.namespaces.sort_by_key(|namespace| namespace.nsid);
        for namespace in &mut export.namespaces {
            namespace.uuid.clear();
        }
        export.listeners.sort();
        let what = (export.namespaces, export.listeners);
        reported.insert(format!("export {}", export.nqn), format!("{what:?}"));
    }
    for listener in status.listeners {
        reported.insert(format!("listener {}", listener.name), listener.transport);
    }
    reported
}

/// NGUID, EUI-64 and the descriptors of a namespace (NVM 1.1 §4.1.5.1, Base 2.1 §5.1.13.2.3).
pub(super) fn identifiers(admin: &mut RawClient, nsid: u32) -> (Vec<u8>, Vec<u8>) {
    let mut identify = |cns: Cns| {
        let sqe = Sqe::identify_structure(cns, nsid);
        let (cqe, page) = admin.command(sqe, &[], 4096).expect("a response");
        assert!(cqe.status().is_success(), "{}", cqe.status());
        page
    };
    let namespace = identify(Cns::NAMESPACE);
    (
        namespace[104..128].to_vec(),
        identify(Cns::NAMESPACE_DESCRIPTORS),
    )
}

/// The configuration of a file device of `size`.
pub(super) fn file(path: &Path, size: &str) -> String {
    let path = path.display();
    format!("type = \"file\"\npath = \"{path}\"\nsize = \"{size}\"")
}
