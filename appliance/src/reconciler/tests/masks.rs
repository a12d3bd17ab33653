//! Masks of the configuration, while the configuration changes.

use appliance_config::{Effect, Step};
use nvme_spec::Status;
use nvme_spec::features::AsyncEventConfiguration;

use super::lab::{HOST, Host, STEADY, address, apply, base, nqn, started, steps_to, with_export};

const HIDDEN: Status = Status::INVALID_FIELD;

/// Two devices for one host, with these masks.
fn two_devices(masks: &str) -> String {
    let memory = "type = \"memory\"\nsize = \"1MiB\"";
    let export = with_export("one", memory)
        .replace("[\"one\"]", "[\"one\", \"two\"]")
        .replace("allow_any_host = true", &format!("hosts = [\"{HOST}\"]"));
    let text = base("10s");
    format!("{text}[[device]]\nname = \"two\"\n{memory}\n{export}masks = [{masks}]\n")
}

fn mask(devices: &str) -> String {
    format!("{{ hosts = [\"{HOST}\"], {devices} }}")
}

/// Writes to both devices, and checks the statuses.
#[track_caller]
fn expect_writes(host: &mut Host, expected: [Status; 2]) {
    for (nsid, expected) in (1..).zip(expected) {
        let status = host.write(nsid, 0, 1);
        assert!(status.is(expected), "namespace {nsid}: {status}");
    }
}

/// A host keeps its connection while it is shown more or less, and learns of it.
#[test]
fn masks_apply_to_attached_hosts() {
    let ok = Status::SUCCESS;
    let protected = Status::NAMESPACE_WRITE_PROTECTED;
    let mut appliance = started(&two_devices(&mask("devices = [\"two\"]")));
    let at = address(&appliance, "steady");
    let mut host = Host::attach(at, &nqn("one"));
    expect_writes(&mut host, [HIDDEN, ok]);
    let events = AsyncEventConfiguration::new().with_namespace_attribute(true);
    Host::want_events(&mut host.admin, events);
    host.ask_for_event();
    apply(
        &mut appliance,
        &two_devices(&mask("devices = [\"two\"], read_only = [\"one\"]")),
    );
    host.event();
    expect_writes(&mut host, [protected, ok]);
    assert!(host.read(1, 0).is_ok());
    apply(&mut appliance, &two_devices(""));
    expect_writes(&mut host, [ok; 2]);
    let only_read = two_devices(&mask("read_only = [\"one\"]"));
    let effects: Vec<Effect> = steps_to(&appliance, &only_read)
        .iter()
        .map(Step::effect)
        .collect();
    assert_eq!(effects, [Effect::Drain]);
    apply(&mut appliance, &only_read);
    expect_writes(&mut host, [protected, HIDDEN]);
    // What a mask does not name stays hidden when it is added.
    let added = only_read.replace(
        &format!("[[export]]\nnqn = \"{}\"\ndevices = [", nqn("one")),
        &format!(
            "[[device]]\nname = \"three\"\ntype = \"memory\"\nsize = \"1MiB\"\n\
             [[export]]\nnqn = \"{}\"\ndevices = [\"three\", ",
            nqn("one")
        ),
    );
    assert_ne!(added, only_read);
    apply(&mut appliance, &added);
    let mut again = Host::attach(address(&appliance, "steady"), &nqn("one"));
    expect_writes(&mut again, [HIDDEN, protected]);
    // Another export is not affected.
    let mut steady = Host::attach(address(&appliance, "steady"), STEADY);
    assert_eq!(steady.write(1, 0, 1), ok);
    drop((host, again, steady));
    assert!(appliance.stop_quietly());
}
