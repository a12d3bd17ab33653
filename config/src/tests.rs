//! Properties of the whole parser: arbitrary and mutated files, round trips, and every listed key.

use std::fs;
use std::path::Path;

use proptest::prelude::*;
use proptest::sample::{Index, select};

use crate::keys::{self, Absent, Section};
use crate::{Config, Problem, ProblemKind, Problems, generate};

const MINIMAL: &str = r#"
[appliance]
[limits]
[control]
[[device]]
name = "a"
type = "file"
path = "/srv/a"
[[listener]]
name = "l"
transport = "tcp"
address = "192.0.2.1"
[[export]]
nqn = "nqn.2026-11.org.example:a"
devices = [{ device = "a", nsid = 1 }]
listeners = ["l"]
hosts = ["nqn.2026-11.org.example:h"]
"#;

fn minimal() -> Config {
    Config::parse("minimal.toml", MINIMAL).unwrap()
}

const UUID: &str = "uuid = \"9f0c2b6e-54a1-4b53-9d0e-0d5a8a1c7f11\"";
const FOR_SHARED_DEVICES: &str = "serial = \"x\"\ncontroller_ids = [1, 9]\n";
const DRIVE_TYPE: &str = "\"nvme\"";
const DRIVE_ADDRESS: &str = "pci = \"0000:01:00.0\"\n";

/// The file with its device on a drive.
fn with_drive(text: &str) -> String {
    let text = text.replace("path = \"/srv/a\"\n", DRIVE_ADDRESS);
    text.replace("type = \"file\"", &format!("type = {DRIVE_TYPE}"))
}

/// Files on a device, behind the minimal file.
const FILES: &str = r#"
[[device]]
name = "ram0"
type = "memory"
size = 8192
[[volume]]
name = "scratch"
device = "ram0"
[[share]]
name = "scratch"
volume = "scratch"
allow_any_client = true
[[file_listener]]
name = "nfs"
address = "192.0.2.1:2049"
"#;

/// The minimal file with that key in that section, in place of its previous value.
fn with_key(section: &Section, key: &str, value: &str) -> String {
    if section.path == "export.devices" {
        let (old, before) = match key {
            "nsid" => ("nsid = 1", ""),
            "ana_group" => ("nsid = 1", "nsid = 1, "),
            _ => ("device = \"a\"", ""),
        };
        return MINIMAL.replace(old, &format!("{before}{key} = {value}"));
    }
    if section.path == "export.ana" {
        let entry = "{ listener = \"l\", group = 1, state = \"change\" }";
        let old = match key {
            "listener" => "listener = \"l\"",
            "group" => "group = 1",
            _ => "state = \"change\"",
        };
        let entry = entry.replace(old, &format!("{key} = {value}"));
        return format!("{MINIMAL}ana = [{entry}]\n");
    }
    if section.path == "export.masks" {
        let mask = "{ hosts = [\"nqn.2026-11.org.example:h\"], devices = [\"a\"] }";
        let old = match key {
            "hosts" => "hosts = [\"nqn.2026-11.org.example:h\"]",
            _ => "devices = [\"a\"]",
        };
        let mask = mask.replace(old, &format!("{key} = {value}"));
        return format!("{MINIMAL}masks = [{mask}]\n");
    }
    if section.path == "export.hosts" {
        let host = "{ nqn = \"nqn.2026-11.org.example:h\", chap = \"k\", chap_controller = \"k\" }";
        let old = match key {
            "nqn" => "nqn = \"nqn.2026-11.org.example:h\"",
            "chap" => "chap = \"k\"",
            _ => "chap_controller = \"k\"",
        };
        let host = host.replace(old, &format!("{key} = {value}"));
        let start = MINIMAL.find("hosts = [").unwrap();
        let end = start + MINIMAL[start..].find('\n').unwrap();
        let (before, after) = (&MINIMAL[..start], &MINIMAL[end..]);
        let keys: String = ["k", "db1-2026", "rack7-a", "db1-tls-2026"]
            .map(|name| format!("[[key]]\nname = \"{name}\"\nfile = \"/k\"\n"))
            .concat();
        return format!("{before}hosts = [{host}]{after}\n{keys}");
    }
    if FILES.contains(&format!("[[{}]]", section.path)) && section.path != "device" {
        let (before, rest) = FILES
            .split_once(&format!("[[{}]]\n", section.path))
            .unwrap();
        let end = rest.find("[[").unwrap_or(rest.len());
        let is_other = |line: &&str| !line.starts_with(&format!("{key} = "));
        let others: Vec<_> = rest[..end].lines().filter(is_other).collect();
        let (others, after) = (others.join("\n"), &rest[end..]);
        let header = section.header;
        return format!("{MINIMAL}{before}{header}\n{key} = {value}\n{others}\n{after}");
    }
    if section.path == "key" {
        let key = match key {
            "name" => format!("name = {value}\nfile = \"/k\""),
            _ => format!("name = \"k\"\n{key} = {value}"),
        };
        return format!("{MINIMAL}\n[[key]]\n{key}\n");
    }
    if section.path == "rate_limit" {
        let before = match key {
            "device" | "host" => "iops = 1\n",
            "export" => "host = \"nqn.2026-11.org.example:h\"\niops = 1\n",
            "iops" | "bandwidth" => "host = \"nqn.2026-11.org.example:h\"\n",
            _ => "device = \"a\"\niops = 1\n",
        };
        return format!("{MINIMAL}[[rate_limit]]\n{before}{key} = {value}\n");
    }
    let mut here = false;
    let mut text = String::new();
    for line in MINIMAL.lines() {
        if line.starts_with('[') {
            here = line == section.header;
        }
        if !(here && line.starts_with(&format!("{key} ="))) {
            text.push_str(line);
            text.push('\n');
        }
        if line == section.header {
            text.push_str(&format!("{key} = {value}\n"));
        }
    }
    text
}

fn tables() -> impl Iterator<Item = &'static Section> {
    keys::SECTIONS
        .iter()
        .filter(|section| !section.path.is_empty())
}

/// Checks the invariants of every list of problems.
fn check(problems: &Problems, text: &str) -> Result<(), TestCaseError> {
    prop_assert!(problems.count() >= problems.iter().len());
    prop_assert!(problems.iter().len() > 0);
    let line_count = text.split('\n').count();
    let mut line_before = 0;
    for problem in problems {
        prop_assert!(!problem.message().is_empty() && !problem.message().contains('\n'));
        prop_assert!(!problem.hint().is_some_and(|hint| hint.contains('\n')));
        // Problems without a place come last.
        let line = problem.place().map_or(usize::MAX, crate::Place::line);
        prop_assert!(line >= line_before);
        line_before = line;
        if let Some(place) = problem.place() {
            prop_assert!((1..=line_count).contains(&place.line()));
            let content = text.split('\n').nth(place.line() - 1).unwrap_or("");
            prop_assert!((1..=content.chars().count() + 1).contains(&place.column()));
        }
    }
    let shown = problems.to_string();
    prop_assert!(
        !shown.contains(|c: char| c.is_control() && c != '\n'),
        "{shown:?}"
    );
    let carets = shown.lines().filter(|line| line.contains("^")).count();
    let placed = problems
        .iter()
        .filter(|problem| problem.place().is_some())
        .count();
    prop_assert!(carets >= placed);
    Ok(())
}

/// Parses any text: the problems satisfy the invariants, or the configuration round-trips.
fn parse_anything(text: &str) -> Result<(), TestCaseError> {
    match Config::parse("any.toml", text) {
        Err(problems) => check(&problems, text),
        Ok(config) => {
            let printed = config.to_toml();
            prop_assert_eq!(Config::parse("printed.toml", &printed), Ok(config));
            Ok(())
        }
    }
}

/// Fragments that occur in configurations and in mistakes.
fn piece() -> impl Strategy<Value = String> {
    let words = [
        "[appliance]",
        "[limits]",
        "[[device]]",
        "[[listener]]",
        "[[export]]",
        "[device]",
        "[[",
        "]]",
        "name",
        "type",
        "size",
        "path",
        "nqn",
        "devices",
        "hosts",
        "allow_any_host",
        "uuid",
        "cores",
        " = ",
        "=",
        "\"",
        "'",
        "\"\"\"",
        "\n",
        "\r\n",
        "\t",
        "#",
        ",",
        ".",
        "{",
        "}",
        "[",
        "]",
        "\\",
        "\"a\"",
        "\"tcp\"",
        "\"file\"",
        "\"memory\"",
        "true",
        "false",
        "0",
        "1",
        "-1",
        "4096",
        "1e9",
        "0x10",
        "nan",
        "1979-05-27",
        "\"4GiB\"",
        "\"2-5\"",
        "\u{0}",
        "\u{1b}",
        "é",
        "語",
        "\u{feff}",
    ];
    prop_oneof![select(words.to_vec()).prop_map(str::to_owned), "\\PC{0,6}"]
}

/// A mutation of a text at two of its characters.
#[derive(Clone, Debug)]
enum Mutation {
    Remove,
    Insert(String),
    Replace(String),
    Repeat,
    Truncate,
    SwapLines,
    RemoveLine,
    RepeatLine,
}

fn mutation() -> impl Strategy<Value = (Index, Index, Mutation)> {
    let mutation = prop_oneof![
        Just(Mutation::Remove),
        piece().prop_map(Mutation::Insert),
        piece().prop_map(Mutation::Replace),
        Just(Mutation::Repeat),
        Just(Mutation::Truncate),
        Just(Mutation::SwapLines),
        Just(Mutation::RemoveLine),
        Just(Mutation::RepeatLine),
    ];
    (any::<Index>(), any::<Index>(), mutation)
}

fn mutate(text: &str, (at, other, mutation): &(Index, Index, Mutation)) -> String {
    let chars: Vec<char> = text.chars().collect();
    let lines: Vec<&str> = text.split('\n').collect();
    let start = at.index(chars.len() + 1);
    let end = (start + other.index(12)).min(chars.len());
    let (line, other_line) = (at.index(lines.len()), other.index(lines.len()));
    let part = |chars: &[char]| chars.iter().collect::<String>();
    let (before, cut, after) = (&chars[..start], &chars[start..end], &chars[end..]);
    match mutation {
        Mutation::Remove => part(&[before, after].concat()),
        Mutation::Insert(piece) => part(before) + piece + &part(&chars[start..]),
        Mutation::Replace(piece) => part(before) + piece + &part(after),
        Mutation::Repeat => part(&[before, cut, cut, after].concat()),
        Mutation::Truncate => part(before),
        Mutation::SwapLines => {
            let mut lines = lines;
            lines.swap(line, other_line);
            lines.join("\n")
        }
        Mutation::RemoveLine => {
            let mut lines = lines;
            lines.remove(line);
            lines.join("\n")
        }
        Mutation::RepeatLine => {
            let mut lines = lines;
            lines.insert(line, lines[other_line]);
            lines.join("\n")
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn arbitrary_text_does_not_panic(text in "\\PC{0,200}") {
        parse_anything(&text)?;
    }

    #[test]
    fn arbitrary_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let text = String::from_utf8_lossy(&bytes);
        if let Err(problems) = Config::parse_bytes("any.toml", &bytes) {
            check(&problems, &text)?;
        }
    }

    #[test]
    fn arbitrary_toml_pieces_do_not_panic(pieces in prop::collection::vec(piece(), 0..60)) {
        parse_anything(&pieces.concat())?;
    }

    #[test]
    fn mutated_files_do_not_panic(
        config in generate::config(),
        mutations in prop::collection::vec(mutation(), 1..6),
    ) {
        let text = mutations.iter().fold(config.to_toml(), |text, change| mutate(&text, change));
        parse_anything(&text)?;
    }

    #[test]
    fn configuration_round_trips(config in generate::config()) {
        let text = config.to_toml();
        prop_assert_eq!(Config::parse("printed.toml", &text), Ok(config), "{}", text);
    }

    #[test]
    fn identities_never_collide(config in generate::config()) {
        let mut seen = std::collections::HashSet::new();
        for export in &config.exports {
            for namespace in &export.namespaces {
                let identity = config.namespace_identity(export, namespace, None);
                prop_assert!(seen.insert(identity.uuid.into_bytes()));
                prop_assert!(seen.insert(identity.nguid));
                prop_assert!(identity.eui64 != [0; 8] && !identity.uuid.is_nil());
            }
            prop_assert!(config.serial_number(export).as_str().len() <= 20);
        }
    }

    #[test]
    fn every_problem_is_reported_at_once(config in generate::config()) {
        // One unknown key at the head of each table, and one wrong value at the end of the file.
        let mut tables = 0;
        let mut text = String::new();
        for line in config.to_toml().lines() {
            text.push_str(line);
            text.push('\n');
            if line.starts_with('[') && !line.starts_with("[appliance]") {
                text.push_str("zzz = 0\n");
                tables += 1;
            }
        }
        let text = text.replace("[appliance]\n", "[appliance]\nshutdown_dead = 1\n");
        let problems = Config::parse("wrong.toml", &text).unwrap_err();
        prop_assert_eq!(problems.count(), tables + 1, "{}", problems);
        let unknown = |problem: &Problem| problem.kind() == ProblemKind::UnknownKey;
        prop_assert!(problems.iter().all(unknown));
    }
}

#[test]
fn every_documented_key_is_accepted() {
    for section in tables() {
        for key in section.keys() {
            let text = with_key(section, key.name, "1979-05-27");
            let problems = Config::parse("wrong.toml", &text).unwrap_err();
            let last = format!(".{}", key.name);
            let wrong = |problem: &Problem| {
                problem.kind() == ProblemKind::WrongType && problem.path().ends_with(&last)
            };
            assert!(
                problems.iter().any(wrong),
                "{} {}: {problems}",
                section.header,
                key.name
            );
        }
    }
}

#[test]
fn documented_defaults_are_the_defaults() {
    for section in tables() {
        for key in section.keys() {
            let Some(value) = key.absent.value() else {
                continue;
            };
            let text = with_key(section, key.name, &value);
            let line = format!("{} = {value}", key.name);
            // Other sections may have the same line.
            let header = format!("{}\n", section.header);
            let without = match text.contains(&format!("{header}{line}\n")) {
                true => text.replace(&format!("{header}{line}\n"), &header),
                false => text.replace(&format!("\n{line}\n"), "\n"),
            };
            let without = without.replace(&format!(", {line} }}"), " }");
            assert_ne!(without, text);
            let config = Config::parse("default.toml", &text);
            assert!(config.is_ok());
            let absent = Config::parse("absent.toml", &without);
            assert_eq!(config, absent, "{} {}", section.header, key.name);
        }
    }
}

#[test]
fn a_missing_required_key_is_reported() {
    for section in tables() {
        for key in section
            .keys()
            .filter(|key| matches!(key.absent, Absent::Required))
        {
            let text = with_key(section, key.name, "0").replace(&format!("{} = 0", key.name), "");
            let problems = Config::parse("wrong.toml", &text.replace("{ ,", "{")).unwrap_err();
            let last = format!(".{}", key.name);
            let missing = |problem: &Problem| {
                problem.kind() == ProblemKind::Missing && problem.path().ends_with(&last)
            };
            assert!(
                problems.iter().any(missing),
                "{} {}: {problems}",
                section.header,
                key.name
            );
        }
    }
}

#[test]
fn documented_examples_are_accepted() {
    for section in tables() {
        for key in section.keys() {
            let text = with_key(section, key.name, key.example);
            // Some keys require a device of another type than the minimal file's.
            let of_drive = [
                "pci",
                "namespace",
                "queue_depth",
                "command_deadline",
                "data_path",
            ];
            let text = match (section.path, key.name) {
                ("device", "type") if key.example == DRIVE_TYPE => with_drive(&text),
                ("device", "pci") => with_drive(&text).replace(DRIVE_ADDRESS, ""),
                ("device", name) if of_drive.contains(&name) => with_drive(&text),
                _ => text,
            };
            // References in examples get the names that they refer to; `allow_any_host` excludes
            // `hosts`.
            let text = match (section.path, key.name) {
                ("volume", "uuid") => {
                    text.replace("\"memory\"\nsize", "\"file\"\npath = \"/srv/f\"\nsize")
                }
                ("share", "clients") => text.replace("allow_any_client = true\n", ""),
                ("volume" | "share" | "file_listener", _) => text,
                ("rate_limit", "device") => {
                    let text = text.replace("name = \"a\"", "name = \"vol0\"");
                    text.replace("device = \"a\"", "device = \"vol0\"")
                }
                ("device", "name" | "type") => text.replace("device = \"a\"", "device = \"vol0\""),
                (_, "device") => text.replace("name = \"a\"", "name = \"vol0\""),
                ("device", "shared") => {
                    let keys = "hosts = [";
                    let text = text.replace("shared = true", &format!("shared = true\n{UUID}"));
                    text.replace(keys, &format!("{FOR_SHARED_DEVICES}{keys}"))
                }
                ("control", "certificate_file") => {
                    text.replace("[control]", "[control]\ncertificate_key_file = \"/k\"")
                }
                ("control", "certificate_key_file") => {
                    text.replace("[control]", "[control]\ncertificate_file = \"/c\"")
                }
                ("export" | "export.ana", "ana" | "listener") => {
                    let text = text.replace("[\"l\"]", "[\"san\"]");
                    text.replace("name = \"l\"", "name = \"san\"")
                }
                ("export", "masks") | ("export.masks", "devices" | "read_only") => {
                    let text = text.replace("device = \"a\"", "device = \"vol0\"");
                    text.replace("name = \"a\"", "name = \"vol0\"")
                }
                ("export.hosts", "concatenation") => {
                    let text = text.replace("concatenation", "require = [\"chap\"], concatenation");
                    text.replace(
                        "transport = \"tcp\"",
                        "transport = \"tcp\"\ntls = \"allowed\"",
                    )
                }
                (_, "devices") => text.replace("name = \"a\"", "name = \"vol0\""),
                (_, "listeners") => text.replace("name = \"l\"", "name = \"san\""),
                ("listener", "name") => text.replace("[\"l\"]", "[\"san\"]"),
                (_, "allow_any_host") => text.replace("hosts = [\"nqn", "serial = \"x\" #"),
                _ => text,
            };
            let text = match (section.path, key.name) {
                ("device", "type") => text.replace("name = \"a\"", "name = \"vol0\""),
                _ => text,
            };
            if let Err(problems) = Config::parse("example.toml", &text) {
                panic!("{} {}: {problems}", section.header, key.name);
            }
        }
    }
}

#[test]
fn the_reference_lists_every_key() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("REFERENCE.md");
    let text = keys::reference();
    if std::env::var_os("UPDATE_EXPECTED").is_some() {
        fs::write(&path, &text).unwrap();
    }
    let file = fs::read_to_string(&path).unwrap_or_default();
    // Compares the lists of keys first, so that a difference names its key.
    let mut section = "";
    let mut listed = Vec::new();
    for line in file.lines() {
        if let Some(header) = line.strip_prefix("## ") {
            section = header;
        } else if let Some((key, _)) = line.strip_prefix("| `").and_then(|row| row.split_once('`'))
        {
            listed.push(format!("{section} {key}"));
        }
    }
    let known: Vec<String> = keys::SECTIONS
        .iter()
        .flat_map(|section| section.keys().map(move |key| (section, key)))
        .map(|(section, key)| match section.path {
            "" => format!("The file {}", key.name),
            _ => format!("`{}` {}", section.header, key.name),
        })
        .collect();
    assert_eq!(listed, known);
    assert!(
        file == text,
        "REFERENCE.md differs: UPDATE_EXPECTED=1 cargo test -p appliance_config"
    );
}

#[test]
fn design_example_is_accepted() {
    let text = r#"
[appliance]
name = "rack7-a"
cores = "2-5"                 # one reactor each
memory = "4GiB"               # the arena
idle = "adaptive"

[[device]]
name = "fast0"
type = "nvme"                 # polled user-space driver
pci = "0000:3b:00.0"

[[device]]
name = "scratch"
type = "memory"
size = "8GiB"

[[device]]
name = "vol0"
type = "file"
path = "/srv/vol0.img"

[[listener]]
name = "san"
transport = "rdma"            # or "tcp"
address = "192.0.2.10:4420"

[[export]]                    # an NVMe subsystem
nqn = "nqn.2026-11.org.windlass:rack7-a.fast"
devices = ["fast0"]           # namespaces 1, 2, ...
listeners = ["san"]
allow_any_host = true
"#;
    let config = Config::parse("design.toml", text).unwrap();
    let listener = &config.listeners[0];
    assert_eq!(listener.transport, crate::Transport::Rdma);
    assert_eq!(listener.in_capsule_data, crate::ByteSize::from_kib(4));
}

#[test]
fn tcp_and_rdma_listeners_may_share_an_address() {
    let both = MINIMAL.replace(
        "[[export]]",
        "[[listener]]\nname = \"fabric\"\ntransport = \"rdma\"\naddress = \"192.0.2.1\"\n\n\
         [[export]]",
    );
    let config = Config::parse("both.toml", &both).unwrap();
    assert_eq!(config.listeners.len(), 2);
}

#[test]
fn drive_defaults_and_short_pci_address() {
    use crate::{Backing, DriveNamespace};
    let text = with_drive(MINIMAL).replace("0000:01:00.0", "01:00.0");
    let config = Config::parse("drive.toml", &text).unwrap();
    let drive = DriveNamespace {
        pci: "0000:01:00.0".parse().unwrap(),
        namespace: 1,
        queue_depth: DriveNamespace::QUEUE_DEPTH_DEFAULT,
        command_deadline: DriveNamespace::COMMAND_DEADLINE_DEFAULT,
        data_path: DriveNamespace::DATA_PATH_DEFAULT,
    };
    assert_eq!(config.devices[0].backing, Backing::Nvme(drive));
    assert_eq!(config.devices[0].backing.block_size(), None);
    let printed = config.to_toml();
    assert!(
        !printed.contains("block_size") && !printed.contains("\nsize"),
        "{printed}"
    );
    assert!(printed.contains("command_deadline = \"10s\""), "{printed}");
    assert!(printed.contains("data_path = \"host\""), "{printed}");
}

/// The data path is that of a device, not of its drive, and a change opens the device again.
#[test]
fn devices_of_a_drive_have_data_paths_of_their_own() {
    let second = |path: &str| {
        let table = "[[device]]\nname = \"second\"\ntype = \"nvme\"\npci = \"0000:01:00.0\"\n";
        let text = format!(
            "{}\n{table}namespace = 2\ndata_path = \"{path}\"\n",
            with_drive(MINIMAL)
        );
        Config::parse("drive.toml", &text).unwrap()
    };
    let (host, auto) = (second("host"), second("auto"));
    let steps = host.difference(&auto);
    let steps: Vec<String> = steps.iter().map(ToString::to_string).collect();
    assert_eq!(steps, ["close device second", "open device second (nvme)"]);
}

#[test]
fn lookups_by_name() {
    let config = minimal();
    let namespace = &config.exports[0].namespaces[0];
    assert_eq!(config.device(&namespace.device), Some(&config.devices[0]));
    assert_eq!(
        config.listener(&config.exports[0].listeners[0]),
        Some(&config.listeners[0])
    );
    assert_eq!(
        config.export(&config.exports[0].nqn),
        Some(&config.exports[0])
    );
    assert_eq!(config.device(&"b".parse().unwrap()), None);
    assert!(
        config.exports[0]
            .access
            .permits("nqn.2026-11.org.example:h")
    );
    // Names are compared byte by byte (Base 2.1 §4.7).
    assert!(
        !config.exports[0]
            .access
            .permits("nqn.2026-11.org.example:H")
    );
    assert!(crate::Access::AnyHost.permits(""));
}

#[test]
fn default_nsid_follows_the_previous_namespace() {
    let device = "[[device]]\nname = \"NAME\"\ntype = \"null\"\nsize = \"1MiB\"\n";
    let more: String = ["b", "c"]
        .iter()
        .map(|name| device.replace("NAME", name))
        .collect();
    let list = "devices = [\"a\", { device = \"b\", nsid = 7 }, \"c\"]";
    let text = MINIMAL.replace("devices = [{ device = \"a\", nsid = 1 }]", list) + &more;
    let config = Config::parse("numbered.toml", &text).unwrap();
    let numbers: Vec<_> = config.exports[0]
        .namespaces
        .iter()
        .map(|n| n.nsid)
        .collect();
    assert_eq!(numbers, [1, 7, 8]);
}

#[test]
fn allow_any_host_false_beside_a_host_list_is_accepted() {
    let config = Config::parse(
        "hosts.toml",
        &(MINIMAL.to_owned() + "allow_any_host = false\n"),
    );
    assert_eq!(config, Ok(minimal()));
}

#[test]
fn cores_are_resolved_from_the_allowed_set() {
    use crate::{Cores, CoresNotAllowed};
    let list = Cores::List("1-2".parse().unwrap());
    assert_eq!(list.resolve(&[3, 2, 1]), Ok(vec![1, 2]));
    assert_eq!(list.resolve(&[0, 1]), Err(CoresNotAllowed::Core(2)));
    assert_eq!(list.resolve(&[]), Err(CoresNotAllowed::Core(1)));
    assert_eq!(Cores::Auto.resolve(&[0, 7, 3]), Ok(vec![7]));
    assert_eq!(Cores::Auto.resolve(&[]), Err(CoresNotAllowed::None));
}

/// Volumes have a device for themselves that keeps files, and every name resolves.
#[test]
fn invalid_file_exports_are_reported() {
    let cases = [
        (
            "device = \"ram0\"",
            "device = \"ram1\"",
            "device `ram1` does not exist",
        ),
        (
            "device = \"ram0\"",
            "device = \"a\"",
            "an export has the device `a`",
        ),
        (
            "type = \"memory\"\nsize = 8192\n[[v",
            "type = \"null\"\nsize = 8192\n[[v",
            "keeps no files",
        ),
        (
            "type = \"memory\"\nsize = 8192\n[[v",
            "type = \"nvme\"\npci = \"0000:01:00.0\"\nread_only = true\n[[v",
            "a volume cannot be on a read-only device",
        ),
        (
            "type = \"memory\"\nsize = 8192\n[[v",
            "type = \"file\"\npath = \"/srv/f\"\nread_only = true\n[[v",
            "cannot be on a read-only device",
        ),
        (
            "type = \"memory\"\nsize = 8192\n[[v",
            "type = \"file\"\npath = \"/srv/f\"\nshared = true\nuuid = \"9f0c2b6e-54a1-4b53-9d0e-0d5a8a1c7f11\"\n[[v",
            "two appliances would overwrite each other",
        ),
        (
            "device = \"ram0\"",
            "device = \"ram0\"\nuuid = \"9f0c\"",
            "UUID",
        ),
        (
            "device = \"ram0\"",
            "device = \"ram0\"\nuuid = \"9f0c2b6e-54a1-4b53-9d0e-0d5a8a1c7f11\"",
            "another one after each start",
        ),
        (
            "volume = \"scratch\"",
            "volume = \"x\"",
            "volume `x` does not exist",
        ),
        (
            "volume = \"scratch\"",
            "volume = \"scratch\"\ndirectory = \"..\"",
            "directory",
        ),
        (
            "volume = \"scratch\"",
            "volume = \"scratch\"\ndirectory = \"a/b\"",
            "directory",
        ),
        (
            "volume = \"scratch\"",
            "volume = \"scratch\"\nmax_size = \"4095B\"",
            "less than the minimum, 4KiB",
        ),
        (
            "volume = \"scratch\"",
            "volume = \"scratch\"\nmax_files = 0",
            "takes 1 to",
        ),
        (
            "[[share]]",
            "[[share]]\nname = \"b\"\nvolume = \"scratch\"\nallow_any_client = true\nmax_files = 7\n\
             [[share]]",
            "share `b` has the same files with other quotas",
        ),
        (
            "allow_any_client = true",
            "allow_any_client = false",
            "no client may use this share",
        ),
        (
            "allow_any_client = true",
            "allow_any_client = true\nclients = [\"192.0.2.1\"]",
            "exclude each other",
        ),
        (
            "allow_any_client = true",
            "clients = []",
            "the list is empty",
        ),
        (
            "allow_any_client = true",
            "clients = [\"192.0.2.1/24\"]",
            "write \"192.0.2.0/24\"",
        ),
        (
            "allow_any_client = true",
            "clients = [\"host\"]",
            "neither an IP address nor a network",
        ),
        (
            "allow_any_client = true",
            "clients = [\"10.0.0.0/33\"]",
            "from 0 to 32",
        ),
        (
            ":2049",
            ":4420",
            "overlaps 192.0.2.1:4420 of another listener",
        ),
        (
            "device = \"ram0\"",
            "device = \"ram0\"\nmetadata_memory = \"1kB\"",
            "less than the minimum, 1MiB",
        ),
        (
            "[[share]]",
            "[[volume]]\nname = \"b\"\ndevice = \"ram0\"\n[[share]]",
            "two volumes would overwrite each other",
        ),
        (
            "[[file_listener]]",
            "[[file_listener]]\nname = \"b\"\naddress = \"0.0.0.0:2049\"\n[[file_listener]]",
            "overlaps 0.0.0.0:2049 of another listener",
        ),
        (
            "[[file_listener]]",
            "[[file_listener]]\nname = \"nfs\"\naddress = \"192.0.2.9:2049\"\n[[file_listener]]",
            "nfs",
        ),
        (
            "name = \"nfs\"",
            "name = \"nfs\"\ntransport = \"udp\"",
            "transport",
        ),
        (
            "name = \"nfs\"",
            "name = \"nfs\"\ntransport = \"rdma\"\n\
             address = \"0.0.0.0:2049\"\n[[file_listener]]\nname = \"b\"\ntransport = \"rdma\"",
            "overlaps 0.0.0.0:2049 of another listener",
        ),
    ];
    for (valid, invalid, message) in cases {
        assert!(FILES.contains(valid), "{valid}");
        let text = format!("{MINIMAL}{}", FILES.replace(valid, invalid));
        let problems = Config::parse("wrong.toml", &text).unwrap_err().to_string();
        assert!(problems.contains(message), "{message}: {problems}");
    }
    let valid = format!("{MINIMAL}{FILES}");
    assert_eq!(
        Config::parse("valid.toml", &valid).map(|it| it.files.shares.len()),
        Ok(1)
    );
}
