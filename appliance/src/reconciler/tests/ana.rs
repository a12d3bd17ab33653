//! ANA states of the configuration, and those that operators have set, while the configuration
//! changes.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use appliance_config::AnaState;
use nvme_spec::Status;
use nvme_spec::command::reservation::{RegisterControl, RegisterData, ReservationRegister};
use nvme_spec::command::{Cns, IoOpcode};
use nvme_spec::{Sqe, U64};
use tempfile::TempDir;
use zerocopy::{FromZeros as _, IntoBytes as _};

use super::lab::{Host, address, apply, base, nqn, parsed, started, try_apply, with_export};
use crate::appliance::Appliance;
use crate::event_loop::RealTime;
use crate::reconciler::ApplyOptions;

const LISTENER: &str =
    "[[listener]]\nname = \"second\"\ntransport = \"tcp\"\naddress = \"127.0.0.1:0\"\n";

/// Two devices in two groups, at two listeners.
fn two_groups(ana: &str) -> String {
    let memory = "type = \"memory\"\nsize = \"1MiB\"";
    let export = with_export("one", memory)
        .replace("[\"steady\"]", "[\"steady\", \"second\"]")
        .replace(
            "devices = [\"one\"]",
            "devices = [\"one\", { device = \"two\", nsid = 2, ana_group = 2 }]",
        );
    format!("[[device]]\nname = \"two\"\n{memory}\n{LISTENER}{export}ana = [{ana}]\n")
}

/// As `windlass ana set` does.
fn set(appliance: &mut Appliance, listener: &str, group: u32, state: AnaState) {
    let running = appliance.reconciler().running();
    let config = running.config.load();
    let nqn = nqn("one").parse().expect("valid");
    let export = config.export(&nqn).expect("it is there");
    let listener = listener.parse().expect("valid");
    let mut states = running.operator_states.lock();
    states.set(export, &listener, group, state);
    drop(states);
    appliance.reconciler().poll();
}

/// The statuses of writes to both namespaces at a listener.
fn writes(appliance: &Appliance, listener: &str) -> [Status; 2] {
    let mut host = Host::attach(address(appliance, listener), &nqn("one"));
    [host.write(1, 0, 1), host.write(2, 0, 1)]
}

#[test]
fn configured_states_apply_to_groups_at_listeners() {
    let ana = "{ listener = \"second\", state = \"inaccessible\" }, \
               { listener = \"second\", group = 2, state = \"non-optimized\" }, \
               { listener = \"steady\", group = 2, state = \"persistent-loss\" }";
    let mut appliance = started(&(base("10s") + &two_groups(ana)));
    let ok = Status::SUCCESS;
    assert_eq!(
        writes(&appliance, "steady"),
        [ok, Status::ANA_PERSISTENT_LOSS]
    );
    assert_eq!(writes(&appliance, "second"), [Status::ANA_INACCESSIBLE, ok]);
    // A host keeps its connection while states and groups change.
    let mut host = Host::attach(address(&appliance, "second"), &nqn("one"));
    let text = base("10s") + &two_groups("");
    apply(&mut appliance, &text);
    assert_eq!([host.write(1, 0, 1), host.write(2, 0, 1)], [ok; 2]);
    let regrouped = two_groups("{ listener = \"second\", group = 3, state = \"change\" }")
        .replace("ana_group = 2", "ana_group = 3");
    apply(&mut appliance, &(base("10s") + &regrouped));
    assert_eq!(
        [host.write(1, 0, 1), host.write(2, 0, 1)],
        [ok, Status::ANA_TRANSITION]
    );
    drop(host);
    assert!(appliance.stop_quietly());
}

#[test]
fn operator_states_outlast_changes_that_do_not_change_them() {
    let mut appliance = started(&(base("10s") + &two_groups("")));
    let ok = Status::SUCCESS;
    let lost = Status::ANA_INACCESSIBLE;
    set(&mut appliance, "second", 1, AnaState::Inaccessible);
    set(&mut appliance, "steady", 2, AnaState::Inaccessible);
    let expect = |appliance: &Appliance, steady, second| {
        assert_eq!(writes(appliance, "steady"), steady);
        assert_eq!(writes(appliance, "second"), second);
    };
    expect(&appliance, [ok, lost], [lost, ok]);
    // Other settings, a state of another path, a listener that is bound again, a device that is
    // opened again.
    let other = base("11s")
        + &two_groups("{ listener = \"second\", group = 2, state = \"non-optimized\" }");
    apply(&mut appliance, &other);
    expect(&appliance, [ok, lost], [lost, ok]);
    let rebound = other.replace(
        "name = \"second\"\ntransport = \"tcp\"\naddress = \"127.0.0.1:0\"",
        "name = \"second\"\ntransport = \"tcp\"\naddress = \"[::1]:0\"",
    );
    assert_ne!(rebound, other);
    apply(&mut appliance, &rebound);
    expect(&appliance, [ok, lost], [lost, ok]);
    let reopened = rebound.replace("\"two\"\ntype = \"memory\"", "\"two\"\ntype = \"null\"");
    assert_ne!(reopened, rebound);
    apply(&mut appliance, &reopened);
    expect(&appliance, [ok, lost], [lost, ok]);
    // A refused change changes nothing.
    let refused = reopened.replace(
        "ana = [",
        "ana = [{ listener = \"second\", group = 1, state = \"optimized\" }, ",
    ) + &with_export("drive", "type = \"nvme\"\npci = \"0000:01:00.0\"");
    assert!(!try_apply(&mut appliance, &refused, ApplyOptions::default()).applied);
    assert_eq!(writes(&appliance, "second")[0], lost);
    // The configured state of the first path changes, and changes back.
    let changed = reopened.replace(
        "ana = [",
        "ana = [{ listener = \"second\", group = 1, state = \"non-optimized\" }, ",
    );
    for text in [&changed, &reopened] {
        apply(&mut appliance, text);
        expect(&appliance, [ok, lost], [ok, ok]);
    }
    assert!(appliance.stop_quietly());
}

/// A listener is closed for a change that fails, and cannot be opened again, because another process
/// has taken its address meanwhile.
#[test]
fn operator_states_outlast_a_change_that_cannot_be_undone() {
    let bind = || TcpListener::bind("127.0.0.1:0").expect("a port");
    let free = bind().local_addr().expect("bound");
    let text = base("10s") + &two_groups("");
    let at = |address: SocketAddr| {
        let second = "name = \"second\"\ntransport = \"tcp\"\naddress = ";
        let (old, new) = (
            format!("{second}\"127.0.0.1:0\""),
            format!("{second}\"{address}\""),
        );
        text.replace(&old, &new)
    };
    let mut appliance = started(&at(free));
    set(&mut appliance, "second", 1, AnaState::Inaccessible);
    let everywhere = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), free.port());
    let mut thief = None;
    let mut steal = RealTime(|_| {
        thief = thief.take().or_else(|| TcpListener::bind(free).ok());
    });
    let wanted = parsed(&at(everywhere));
    let reconciler = appliance.reconciler();
    let answer = reconciler.apply(&wanted, ApplyOptions::default(), &mut steal);
    let reason = answer.failure_reason().expect("it failed");
    assert!(reason.contains("could not be undone"), "{reason}");
    assert!(thief.take().is_some());
    apply(&mut appliance, &at(free));
    let (ok, lost) = (Status::SUCCESS, Status::ANA_INACCESSIBLE);
    assert_eq!(writes(&appliance, "second"), [lost, ok]);
    assert!(appliance.stop_quietly());
}

/// Identify Controller and a registration: what two appliances of one file show to hosts.
#[test]
fn shared_file_has_no_reservations_and_controllers_get_configured_identifiers() {
    let directory = TempDir::new().expect("a directory");
    let path = directory.path().join("volume.img");
    fs::write(&path, vec![0; 1 << 20]).expect("writable");
    let volume = |ids: &str| {
        let device = format!(
            "type = \"file\"\npath = \"{}\"\nshared = true\n\
             uuid = \"9f0c2b6e-54a1-4b53-9d0e-0d5a8a1c7f11\"",
            path.display()
        );
        base("10s")
            + &with_export("volume", &device)
            + &format!("serial = \"WL-0001\"\ncontroller_ids = {ids}\n")
    };
    let appliances = ["[7, 9]", "[1000, 1001]"].map(|ids| started(&volume(ids)));
    let mut seen = appliances
        .iter()
        .zip([7..=9, 1000..=1001])
        .map(|(it, ids)| {
            let mut host = Host::attach(address(it, "steady"), &nqn("volume"));
            let sqe = Sqe::identify_structure(Cns::CONTROLLER, 0);
            let (_, page) = host.admin.command(sqe, &[], 4096).expect("a response");
            let cntlid = u16::from_le_bytes([page[78], page[79]]);
            assert!(ids.contains(&cntlid), "{cntlid}");
            assert!(!register(&mut host).is_success());
            let serial = page[4..24].to_vec();
            (host, serial, super::lab::identifiers)
        });
    let (mut one, mut other) = (seen.next().expect("one"), seen.next().expect("two"));
    assert_eq!(one.1, other.1);
    assert_eq!(
        (one.2)(&mut one.0.admin, 1),
        (other.2)(&mut other.0.admin, 1)
    );
    assert_eq!(one.0.write(1, 0, 5), Status::SUCCESS);
    assert_eq!(other.0.read(1, 0), Ok(vec![5; 512]));
    drop((seen, one, other));
    for appliance in appliances {
        assert!(appliance.stop_quietly());
    }
}

fn register(host: &mut Host) -> Status {
    let mut command = ReservationRegister::new_zeroed();
    command.control = RegisterControl::new();
    let data = RegisterData {
        crkey: U64::new(0),
        nrkey: U64::new(1),
    };
    let sqe = Sqe::new(IoOpcode::RESERVATION_REGISTER.0, 1).with_reservation_register(command);
    let response = host.io.command(sqe, data.as_bytes(), 0);
    response.expect("a response").0.status()
}
