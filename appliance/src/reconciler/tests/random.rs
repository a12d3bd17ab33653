//! The difference of two random configurations, applied to a running appliance, gives the same
//! result as a start with the second one.

use std::fmt::Write as _;
use std::path::Path;

use reactors::sim::Seeded;
use tempfile::TempDir;

use super::lab::{Busy, HOST, apply, base, nqn, seen, started, steps_to};

const OTHER: &str = "nqn.2026-11.org.example:other";
/// Number of configurations that one appliance runs through.
const CONFIGURATIONS: u64 = 8;

/// A random configuration around the base, with files in `directory`.
fn any(random: &mut Seeded, number: u64, directory: &Path) -> String {
    let mut text = base("10s");
    let mut listeners = vec!["steady"];
    for name in ["la", "lb"] {
        if random.below(3) == 0 {
            continue;
        }
        listeners.push(name);
        let one =
            |random: &mut Seeded, of: &[&'static str]| of[random.below(of.len() as u64) as usize];
        let _ = write!(
            text,
            "[[listener]]\nname = \"{name}\"\ntransport = \"tcp\"\naddress = \"{}:0\"\n\
             queue_depth = {}\nin_capsule_data = \"{}\"\ndata_digest = \"{}\"\n",
            one(random, &["127.0.0.1", "127.0.0.2"]),
            one(random, &["16", "64", "128"]),
            one(random, &["0B", "4KiB", "16KiB"]),
            one(random, &["off", "allowed"]),
        );
    }
    let mut devices = Vec::new();
    for name in ["da", "db", "dc", "dd", "de"] {
        if random.below(4) > 0 {
            devices.push(name);
            let _ = write!(
                text,
                "[[device]]\nname = \"{name}\"\n{}",
                device(random, number, name, directory)
            );
        }
    }
    for name in ["ea", "eb", "ec"] {
        if devices.is_empty() || random.below(4) == 0 {
            continue;
        }
        let count = 1 + random.below(devices.len().min(3) as u64) as usize;
        let mut nsid = 0;
        let of_export = devices.split_off(devices.len() - count);
        let taken = of_export.iter().map(|device| {
            nsid += 1 + random.below(3);
            format!("{{ nsid = {nsid}, device = \"{device}\" }}")
        });
        let taken: Vec<String> = taken.collect();
        let mut at: Vec<String> = listeners.iter().map(|it| format!("\"{it}\"")).collect();
        at.retain(|_| random.below(3) > 0);
        if at.is_empty() {
            at.push("\"steady\"".to_owned());
        }
        let hosts = match random.below(3) {
            0 => "allow_any_host = true".to_owned(),
            1 => format!(
                "hosts = [\"{HOST}\"]\n{}",
                masks(random, &[HOST], &of_export)
            ),
            _ => {
                let masks = masks(random, &[HOST, OTHER], &of_export);
                format!("hosts = [\"{HOST}\", \"{OTHER}\"]\n{masks}")
            }
        };
        let _ = write!(
            text,
            "[[export]]\nnqn = \"{}\"\ndevices = [{}]\nlisteners = [{}]\n{hosts}\n\
             max_io_queues = {}\n{}",
            nqn(name),
            taken.join(", "),
            at.join(", "),
            1 + random.below(3),
            if random.below(2) == 0 {
                "serial = \"another\"\n"
            } else {
                ""
            },
        );
    }
    text
}

/// A mask of each host, or none.
fn masks(random: &mut Seeded, hosts: &[&str], devices: &[&str]) -> String {
    let mut masks = Vec::new();
    for host in hosts {
        let mut shown = [Vec::new(), Vec::new()];
        for device in devices {
            if let Some(list) = shown.get_mut(random.below(3) as usize) {
                list.push(format!("\"{device}\""));
            }
        }
        if random.below(3) > 0 {
            let [whole, read_only] = shown.map(|list| list.join(", "));
            masks.push(format!(
                "{{ hosts = [\"{host}\"], devices = [{whole}], read_only = [{read_only}] }}"
            ));
        }
    }
    format!("masks = [{}]", masks.join(", "))
}

fn device(random: &mut Seeded, number: u64, name: &str, directory: &Path) -> String {
    let size = [1, 2, 3][random.below(3) as usize];
    let block = ["512B", "4KiB"][random.below(2) as usize];
    let shape = format!("size = \"{size}MiB\"\nblock_size = \"{block}\"\n");
    let read_only = ["", "read_only = true\n"][usize::from(random.below(4) == 0)];
    match random.below(3) {
        // Memory devices cannot shrink.
        0 => {
            let memory = format!(
                "size = \"{}MiB\"\nblock_size = \"{block}\"\n",
                1 + number / 3
            );
            format!("type = \"memory\"\n{memory}{read_only}")
        }
        1 => format!("type = \"null\"\n{shape}"),
        // An existing file keeps its length, so a smaller device uses another file.
        _ => {
            let path = directory.join(format!("{name}-{size}.img"));
            format!("type = \"file\"\npath = \"{}\"\n{shape}", path.display())
        }
    }
}

#[test]
fn applied_difference_equals_a_fresh_start() {
    let seed = std::env::var("WINDLASS_SEED")
        .ok()
        .and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or(20_261_121);
    println!("WINDLASS_SEED={seed} cargo test -p appliance applied_difference");
    let (here, there) = (
        TempDir::new().expect("one"),
        TempDir::new().expect("another"),
    );
    let mut appliance = started(&base("10s"));
    let busy = Busy::begin(&appliance);
    for number in 0..CONFIGURATIONS {
        let text = any(&mut Seeded::new(seed, number), number, here.path());
        apply(&mut appliance, &text);
        assert_eq!(steps_to(&appliance, &text), []);
        let printed = appliance.config().to_toml();
        let again = appliance_config::Config::parse("printed", &printed);
        assert_eq!(again.as_ref(), Ok(appliance.config()), "{printed}");
        // The files are locked while they are served.
        let elsewhere = any(&mut Seeded::new(seed, number), number, there.path());
        let fresh = started(&elsewhere);
        let hosts = [HOST, OTHER];
        let (live, fresh_seen) = (seen(&appliance, &hosts), seen(&fresh, &hosts));
        assert!(fresh.stop_quietly());
        for (what, expected) in &fresh_seen {
            assert_eq!(
                live.get(what),
                Some(expected),
                "{what}, configuration {number}:\n{text}"
            );
        }
        assert_eq!(
            live.len(),
            fresh_seen.len(),
            "configuration {number}:\n{text}"
        );
        busy.go_on();
    }
    busy.end();
    assert!(appliance.stop_quietly());
}
