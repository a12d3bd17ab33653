//! Kills the appliance with SIGKILL at random times while clients change files on a durable volume,
//! and starts it again: what was acknowledged as stable is there, everything else is there or not,
//! request by request (block by block of a write), and the volume is consistent.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::time::Duration;

use files_client_testing::{Connection, Slot, at, data, name};
use files_spec::Status;
use files_spec::attributes::Attributes;
use files_spec::operations::{CommitArgs, CreateArgs, Operation, OperationResult, Outcome};
use files_spec::types::{CreateType, Stable, Verifier};
use reactors::sim::Seeded;
use rustix::process::Signal;
use tempfile::TempDir;

use crate::process::{Windlass, run};

const CLIENTS: u64 = 3;
/// Parts of a client's file, each written as a whole.
const PARTS: usize = 24;
/// Not a multiple of a block, so that parts share blocks.
const PART_BYTES: usize = 3000;
/// What a write changes as a whole, also if the appliance is killed before it has acknowledged it.
const BLOCK_BYTES: usize = 4096;
/// Directories that a client makes and removes.
const NAMES: u64 = 12;
/// Longest lifetime of the appliance under load.
const LIFE_MAX_MS: u64 = 150;

/// What a request may have left behind: the last acknowledged state, and later ones.
#[derive(Clone, Debug)]
struct Possible<T>(Vec<T>);

impl<T: PartialEq + Clone + std::fmt::Debug> Possible<T> {
    /// A change that may be lost.
    fn begin(&mut self, value: T) {
        self.0.push(value);
    }

    /// A change that stays.
    fn set(&mut self, value: T) {
        self.0 = vec![value];
    }

    fn find(&mut self, value: T, what: &str) {
        assert!(
            self.0.contains(&value),
            "{what}: {value:?}, one of {self:?}"
        );
        self.0 = vec![value];
    }
}

/// A client and what it may find.
struct Client {
    number: u64,
    chance: Seeded,
    /// What the pieces of each part may have that are in different blocks.
    parts: Vec<Vec<Possible<u8>>>,
    /// Parts that were acknowledged as unstable since the last COMMIT, with the latest content.
    unstable: BTreeMap<usize, u8>,
    verifier: Option<Verifier>,
    directories: Vec<Possible<bool>>,
    generation: u8,
    acknowledged: u64,
}

/// Where the pieces of a part begin and end in the file.
fn pieces(part: usize) -> Vec<Range<usize>> {
    let (begin, end) = (part * PART_BYTES, (part + 1) * PART_BYTES);
    let edge = begin.next_multiple_of(BLOCK_BYTES).min(end);
    let pieces = [begin..edge, edge..end].into_iter();
    pieces.filter(|it| !it.is_empty()).collect()
}

fn in_share(operation: Operation<'_>) -> [Operation<'_>; 3] {
    [
        Operation::PutRootFh(()),
        Operation::Lookup(name("data")),
        operation,
    ]
}

impl Client {
    fn new(number: u64) -> Self {
        Self {
            number,
            chance: Seeded::new(7, number),
            parts: (0..PARTS)
                .map(|part| vec![Possible(vec![0]); pieces(part).len()])
                .collect(),
            unstable: BTreeMap::new(),
            verifier: None,
            directories: vec![Possible(vec![false]); NAMES as usize],
            generation: 0,
            acknowledged: 0,
        }
    }

    fn file(&self) -> &'static str {
        ["a", "b", "c"][self.number as usize]
    }

    fn directory(&self, index: u64) -> String {
        format!("d{}-{index}", self.number)
    }

    fn attach(&self, address: SocketAddr) -> (Connection, Slot) {
        let mut connection = Connection::new(address);
        let owner = format!("client {}", self.number);
        let slot = Slot::with_file(&mut connection, owner.as_bytes(), self.file());
        (connection, slot)
    }

    /// Finds out what is there.
    fn verify(&mut self, connection: &mut Connection, slot: &mut Slot) {
        self.unstable.clear();
        self.verifier = None;
        for part in 0..PARTS {
            let read = slot.read((part * PART_BYTES) as u64, PART_BYTES as u32);
            let answer = slot.call(connection, &read);
            let found = data(&answer);
            for (piece, possible) in pieces(part).into_iter().zip(&mut self.parts[part]) {
                let begin = piece.start - part * PART_BYTES;
                let found = found.get(begin..).unwrap_or_default();
                let found = &found[..found.len().min(piece.len())];
                let first = found.first().copied().unwrap_or(0);
                let is_whole = found.iter().all(|it| *it == first);
                let is_long = first == 0 || found.len() == piece.len();
                assert!(is_whole && is_long, "{piece:?} of part {part} is torn");
                possible.find(first, &format!("{piece:?} of part {part}"));
            }
        }
        for index in 0..NAMES {
            let text = self.directory(index);
            let answer = slot.call(connection, &in_share(Operation::Lookup(name(&text))));
            let exists = match answer.parts().0 {
                Status::OK => true,
                Status::NOENT => false,
                status => panic!("{text}: {status:?}"),
            };
            self.directories[index as usize].find(exists, &text);
        }
    }

    /// A part stays as it was written.
    fn set(&mut self, part: usize, content: u8) {
        for possible in &mut self.parts[part] {
            possible.set(content);
        }
    }

    /// Changes files until the connection ends.
    fn work(&mut self, connection: &mut Connection, slot: &mut Slot) {
        loop {
            let is_alive = match self.chance.below(4) {
                0 => self.change_directory(connection, slot),
                1 => self.commit(connection, slot),
                _ => self.write(connection, slot),
            };
            if is_alive.is_none() {
                return;
            }
            self.acknowledged += 1;
        }
    }

    fn change_directory(&mut self, connection: &mut Connection, slot: &mut Slot) -> Option<()> {
        let index = self.chance.below(NAMES);
        let text = self.directory(index);
        let state = &mut self.directories[index as usize];
        let exists = state.0 == [true];
        state.begin(!exists);
        let operation = match exists {
            true => Operation::Remove(name(&text)),
            false => Operation::Create(CreateArgs {
                objtype: CreateType::Directory,
                objname: name(&text),
                createattrs: Attributes::default(),
            }),
        };
        slot.try_call(connection, &in_share(operation))
            .ok()?
            .assert_ok();
        state.set(!exists);
        Some(())
    }

    fn write(&mut self, connection: &mut Connection, slot: &mut Slot) -> Option<()> {
        let part = self.chance.below(PARTS as u64) as usize;
        self.generation = self.generation % 250 + 1;
        let content = self.generation;
        let bytes = [content; PART_BYTES];
        let stable = [Stable::UNSTABLE, Stable::DATA_SYNC, Stable::FILE_SYNC];
        let stable = stable[self.chance.below(3) as usize];
        for possible in &mut self.parts[part] {
            possible.begin(content);
        }
        let operations = slot.write_as(stable, (part * PART_BYTES) as u64, &bytes);
        let answer = slot.try_call(connection, &operations).ok()?;
        let OperationResult::Write(Outcome::Ok(ok)) = answer.last() else {
            panic!("{:?}", answer.parts());
        };
        assert_eq!(ok.count as usize, PART_BYTES);
        assert!(ok.committed >= stable);
        let verifier = *self.verifier.get_or_insert(ok.writeverf);
        assert_eq!(verifier, ok.writeverf, "it stays the same until a restart");
        if ok.committed == Stable::UNSTABLE {
            self.unstable.insert(part, content);
        } else {
            self.unstable.remove(&part);
            self.set(part, content);
        }
        Some(())
    }

    fn commit(&mut self, connection: &mut Connection, slot: &mut Slot) -> Option<()> {
        let operation = Operation::Commit(CommitArgs {
            offset: 0,
            count: 0,
        });
        let operations = at(self.file(), operation);
        let answer = slot.try_call(connection, &operations).ok()?;
        let OperationResult::Commit(Outcome::Ok(verifier)) = answer.last() else {
            panic!("{:?}", answer.parts());
        };
        assert_eq!(*self.verifier.get_or_insert(verifier), verifier);
        for (part, content) in std::mem::take(&mut self.unstable) {
            self.set(part, content);
        }
        Some(())
    }
}

/// A durable volume beside an export, on ports that the system chooses.
fn configuration(directory: &TempDir) -> PathBuf {
    let image = directory.path().join("files.img");
    let text = format!(
        r#"
[appliance]
name = "crash"
memory = "16MiB"
pages = "ordinary"
[control]
socket = "off"
http = "off"
[[device]]
name = "ram"
type = "memory"
size = "1MiB"
[[device]]
name = "disk"
type = "file"
path = "{}"
size = "24MiB"
[[listener]]
name = "loopback"
transport = "tcp"
address = "127.0.0.1:0"
[[export]]
nqn = "nqn.2026-11.org.windlass:crash"
devices = ["ram"]
listeners = ["loopback"]
allow_any_host = true
[[volume]]
name = "files"
device = "disk"
metadata_memory = "1MiB"
[[share]]
name = "data"
volume = "files"
allow_any_client = true
squash = "none"
[[share]]
name = "others"
volume = "files"
clients = ["192.0.2.0/24"]
[[file_listener]]
name = "nfs"
address = "127.0.0.1:0"
"#,
        image.display()
    );
    let path = directory.path().join("windlass.toml");
    fs::write(&path, text).expect("writable");
    path
}

/// Runs `windlass volume` on the configuration.
fn volume(file: &Path, arguments: &[&str]) -> crate::process::Finished {
    let file = file.to_str().expect("UTF-8");
    run(&[&["volume"], arguments, &["--config", file]].concat())
}

#[test]
fn killed_appliance_keeps_files_that_were_acknowledged_as_stable() {
    let rounds = crate::rounds() / 2;
    let directory = TempDir::new().expect("a directory");
    let file = configuration(&directory);
    let formatted = volume(&file, &["format", "files"]);
    assert!(formatted.status.success(), "{formatted:?}");
    let mut clients: Vec<_> = (0..CLIENTS).map(Client::new).collect();
    let mut chance = Seeded::new(9, 9);
    for round in 0..=rounds {
        let windlass = Windlass::start(&file);
        let address = windlass.files_address();
        let life = Duration::from_millis(chance.below(LIFE_MAX_MS));
        std::thread::scope(|scope| {
            let (sender, receiver) = channel();
            for client in &mut clients {
                let sender = sender.clone();
                scope.spawn(move || {
                    let (mut connection, mut slot) = client.attach(address);
                    client.verify(&mut connection, &mut slot);
                    if round < rounds {
                        sender.send(()).expect("the appliance waits for its death");
                        drop(sender);
                        client.work(&mut connection, &mut slot);
                    }
                });
            }
            drop(sender);
            if round < rounds {
                // All clients have verified, or one has failed.
                if receiver.iter().take(clients_count()).count() == clients_count() {
                    std::thread::sleep(life);
                }
                windlass.signal(Signal::KILL);
            }
        });
        if round < rounds {
            assert!(!windlass.wait().0.success());
            let checked = volume(&file, &["check", "files"]);
            assert!(checked.status.success(), "{checked:?}");
        }
    }
    let acknowledged: u64 = clients.iter().map(|client| client.acknowledged).sum();
    println!("{rounds} deaths: {acknowledged} requests acknowledged");
    assert!(acknowledged > 0, "nothing was under way");
}

const fn clients_count() -> usize {
    CLIENTS as usize
}

/// After `kill -9`, only clients that had the file open reclaim it, and until they have, nothing new is
/// opened (RFC 8881 §8.4.2).
#[test]
fn clients_reclaim_after_the_appliance_was_killed() {
    let directory = TempDir::new().expect("a directory");
    let file = configuration(&directory);
    assert!(volume(&file, &["format", "files"]).status.success());
    let windlass = Windlass::start(&file);
    let mut connection = Connection::new(windlass.files_address());
    let mut known = Slot::with_file(&mut connection, b"known", "a");
    let text = known.write_as(Stable::FILE_SYNC, 0, b"text");
    known.call(&mut connection, &text).assert_ok();
    // A client without open files is not waited for.
    let mut idle = Slot::session(&mut connection, b"idle", "b");
    idle.complete_reclaim(&mut connection);
    windlass.signal(Signal::KILL);
    windlass.wait();

    let windlass = Windlass::start(&file);
    let mut connection = Connection::new(windlass.files_address());
    let mut other = Slot::session(&mut connection, b"other", "a");
    assert_eq!(other.reclaim(&mut connection), Err(Status::NO_GRACE));
    other.complete_reclaim(&mut connection);
    assert_eq!(other.open(&mut connection), Err(Status::GRACE));
    let mut known = Slot::session(&mut connection, b"known", "a");
    assert_eq!(known.open(&mut connection), Err(Status::GRACE));
    assert_eq!(known.reclaim(&mut connection), Ok(()));
    assert_eq!(other.open(&mut connection), Err(Status::GRACE));
    known.complete_reclaim(&mut connection);
    assert_eq!(other.open(&mut connection), Ok(()));
    let read = known.read(0, 100);
    let answer = known.call(&mut connection, &read);
    assert_eq!(data(&answer), b"text");
    // A share of other clients.
    let lookup = [Operation::PutRootFh(()), Operation::Lookup(name("others"))];
    let answer = known.call(&mut connection, &lookup);
    assert_eq!(answer.parts().0, Status::NOENT);
}

/// A volume that does not survive a restart.
const SCRATCH: &str = r#"
[[device]]
name = "scratch"
type = "memory"
size = "4MiB"
[[volume]]
name = "scratch"
device = "scratch"
metadata_memory = "1MiB"
[[share]]
name = "scratch"
volume = "scratch"
allow_any_client = true
squash = "none"
"#;

/// The first durable volume is added while files are served, which an appliance without one does not
/// record: a client that opens a file there reclaims it like one of a volume that was there from the start.
#[test]
fn clients_of_a_volume_that_was_added_live_reclaim_after_a_kill() {
    let directory = TempDir::new().expect("a directory");
    let file = configuration(&directory);
    let socket = directory.path().join("control.sock");
    let socket = socket.to_str().expect("UTF-8");
    assert!(volume(&file, &["format", "files"]).status.success());
    let all = fs::read_to_string(&file).expect("readable");
    let all = all.replace("socket = \"off\"", &format!("socket = \"{socket}\""));
    let all = all + SCRATCH;
    let (before, rest) = all.split_once("[[volume]]").expect("a volume");
    let listener = &rest[rest.find("[[file_listener]]").expect("a listener")..];
    fs::write(&file, format!("{before}{listener}")).expect("writable");
    let windlass = Windlass::start(&file);
    // A client that is there before.
    let mut connection = Connection::new(windlass.files_address());
    let mut known = Slot::session(&mut connection, b"known", "a");
    known.complete_reclaim(&mut connection);
    fs::write(&file, &all).expect("writable");
    let applied = run(&["apply", "--socket", socket]);
    assert!(applied.status.success(), "{applied:?}");
    assert_eq!(known.open(&mut connection), Ok(()));
    windlass.signal(Signal::KILL);
    windlass.wait();

    let windlass = Windlass::start(&file);
    let mut connection = Connection::new(windlass.files_address());
    let mut other = Slot::session(&mut connection, b"other", "a");
    other.complete_reclaim(&mut connection);
    assert_eq!(other.open(&mut connection), Err(Status::GRACE));
    let mut known = Slot::session(&mut connection, b"known", "a");
    assert_eq!(known.reclaim(&mut connection), Ok(()));
    known.complete_reclaim(&mut connection);
    assert_eq!(other.open(&mut connection), Ok(()));
}

/// What an operator sees of a device without a volume, with another one, with a damaged one, and of
/// one that an appliance serves.
#[test]
fn volumes_that_cannot_be_served_are_named_with_the_remedy() {
    let directory = TempDir::new().expect("a directory");
    let file = configuration(&directory);
    let path = file.to_str().expect("UTF-8");
    let image = directory.path().join("files.img");
    let fails = |finished: crate::process::Finished, parts: &[&str]| {
        assert!(!finished.status.success(), "{finished:?}");
        for part in parts {
            assert!(finished.stderr.contains(part), "{part}: {finished:?}");
        }
    };
    fails(
        volume(&file, &["check", "x"]),
        &["volume x", "none of this name"],
    );
    fails(
        volume(&file, &["check", "files"]),
        &["the file does not exist"],
    );
    let not_formatted = [
        "volume files",
        "device disk",
        "windlass volume format files",
    ];
    fails(run(&["run", path]), &not_formatted);
    fails(volume(&file, &["check", "files"]), &not_formatted);
    // Something else.
    let mut content = fs::read(&image).expect("the start has created it");
    content[70_000] = 1;
    fs::write(&image, &content).expect("writable");
    fails(
        volume(&file, &["format", "files"]),
        &["data of another kind", "--overwrite"],
    );
    let formatted = volume(&file, &["format", "files", "--overwrite"]);
    assert!(formatted.status.success(), "{formatted:?}");
    fails(
        volume(&file, &["format", "files"]),
        &["has a volume", "--overwrite"],
    );
    let listed = volume(&file, &["list"]);
    assert!(listed.stdout.contains("formatted"), "{listed:?}");
    let (_, uuid) = formatted
        .stdout
        .trim()
        .split_once("uuid ")
        .expect("it is printed");
    assert!(listed.stdout.contains(uuid), "{listed:?}");
    // In use.
    let windlass = Windlass::start(&file);
    for arguments in [["check", "files"], ["format", "files"]] {
        fails(volume(&file, &arguments), &["in use by another process"]);
    }
    windlass.signal(Signal::TERM);
    assert!(windlass.wait().0.success());
    // Another volume.
    let text = fs::read_to_string(&file).expect("readable");
    let key = "device = \"disk\"\n";
    let named = |uuid: &str| text.replace(key, &format!("{key}uuid = \"{uuid}\"\n"));
    fs::write(&file, named(uuid)).expect("writable");
    assert!(volume(&file, &["check", "files"]).status.success());
    fs::write(&file, named("9f0c2b6e-54a1-4b53-9d0e-0d5a8a1c7f11")).expect("writable");
    let other = ["9f0c2b6e-54a1-4b53-9d0e-0d5a8a1c7f11", uuid, "`uuid`"];
    fails(volume(&file, &["check", "files"]), &other);
    fails(run(&["run", path]), &other);
    fs::write(&file, &text).expect("writable");
    // Damage, another version, a part of the device.
    let intact = fs::read(&image).expect("readable");
    // The first one of the format, and one of the start.
    let checkpoints: Vec<usize> = (0..intact.len())
        .step_by(4096)
        .filter(|at| intact[*at..].starts_with(b"WNDLCKPT"))
        .collect();
    assert_eq!(checkpoints.len(), 2);
    for (damaged, parts) in [
        (vec![40], "wrong checksum"),
        (vec![8], "format version"),
        (checkpoints, "no checkpoint"),
    ] {
        let mut content = intact.clone();
        for at in damaged {
            content[at] ^= 2;
        }
        fs::write(&image, &content).expect("writable");
        fails(volume(&file, &["check", "files"]), &["volume files", parts]);
        fails(run(&["run", path]), &["volume files", parts]);
        fails(volume(&file, &["format", "files"]), &["--overwrite"]);
    }
    fs::write(&image, &intact[..intact.len() / 2]).expect("writable");
    fs::write(&file, text.replace("size = \"24MiB\"\n", "")).expect("writable");
    fails(
        volume(&file, &["check", "files"]),
        &["a part of it is missing"],
    );
    fs::write(&file, text.replace("24MiB", "2MiB")).expect("writable");
    fs::remove_file(&image).expect("there");
    fails(
        volume(&file, &["format", "files"]),
        &["needs", "bytes, and the device has"],
    );
}
