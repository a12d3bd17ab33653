//! A restart of the service under a service manager that stores descriptors, in place of systemd:
//! hosts see a pause. A stored state that is not complete, or not of this configuration, is not
//! continued.

use std::fs::{self, File};
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use nvme_handover_channel::{Left, store, take};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::process::{LIMIT, Windlass, run};
use crate::{attach, configure, with_hosts};

/// The descriptor's name in the store.
const NAME: &str = "windlass-state";

/// A service manager with one service.
struct Manager {
    socket: UnixDatagram,
    directory: TempDir,
    file: PathBuf,
    /// Names and descriptors.
    store: Vec<(String, OwnedFd)>,
}

impl Manager {
    fn new() -> Self {
        let (directory, file) = configure("");
        let socket = UnixDatagram::bind(directory.path().join("notify")).expect("a socket");
        socket.set_read_timeout(Some(LIMIT)).expect("settable");
        Self {
            socket,
            directory,
            file,
            store: Vec::new(),
        }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).expect("readable")
    }

    /// Starts the service with the stored descriptors, as systemd after a stop.
    fn start(&mut self) -> Windlass {
        let program = env!("CARGO_BIN_EXE_windlass");
        let mut command = Command::new("/bin/sh");
        let count = self.store.len();
        let redirections = match count {
            0 => "</dev/null",
            1 => "3<&0 </dev/null",
            _ => "3<&0 4<&0 </dev/null",
        };
        let script = format!("LISTEN_PID=$$ exec \"$0\" --log info run \"$1\" {redirections}");
        command.args(["-c", &script, program]).arg(&self.file);
        command.env("NOTIFY_SOCKET", self.directory.path().join("notify"));
        command.env("FDSTORE", "1");
        let names: Vec<_> = self.store.iter().map(|(name, _)| name.clone()).collect();
        if count > 0 {
            command.env("LISTEN_FDS", count.to_string());
            command.env("LISTEN_FDNAMES", names.join(":"));
        }
        let first = self.store.first();
        command.stdin(first.map_or_else(Stdio::null, |(_, descriptor)| {
            descriptor.try_clone().expect("open").into()
        }));
        let log = File::create(self.directory.path().join("log")).expect("writable");
        let windlass = Windlass::start_command(command, &self.file, log.into());
        self.hear_until("READY=1");
        windlass
    }

    /// Reads messages and follows them until one has a line with this beginning.
    fn hear_until(&mut self, beginning: &str) {
        let began = Instant::now();
        loop {
            let (text, descriptor) = self.hear();
            let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key));
            let name = value("FDNAME=").unwrap_or_default();
            if value("FDSTOREREMOVE=").is_some() {
                self.store.retain(|(stored, _)| stored != name);
            }
            if value("FDSTORE=").is_some() {
                assert_eq!(value("FDPOLL="), Some("0"), "{text}");
                let descriptor = descriptor.expect("a descriptor");
                self.store.push((name.to_owned(), descriptor));
            }
            if value(beginning).is_some() {
                return;
            }
            assert!(began.elapsed() < LIMIT, "{beginning} did not come");
        }
    }

    fn hear(&self) -> (String, Option<OwnedFd>) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut bytes = [0; 4096];
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let received = recvmsg(&self.socket, &mut parts, &mut control, flags);
        let length = received.expect("a message in time").bytes;
        let mut descriptor = None;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(mut rights) = message {
                descriptor = rights.next();
            }
        }
        let text = String::from_utf8(bytes[..length].to_vec()).expect("UTF-8");
        (text, descriptor)
    }

    /// Stops the service, which stores its state.
    fn stop(&mut self, windlass: Windlass) {
        windlass.signal(Signal::TERM);
        self.hear_until("BARRIER=1");
        assert_eq!(windlass.wait().0.code(), Some(0), "{}", self.log());
        let names: Vec<_> = self.store.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, [NAME]);
    }

    /// The identifier of the RAM device, which is another one if its content is.
    fn ram(&self) -> String {
        let socket = self.directory.path().join("control.sock");
        let socket = socket.to_str().expect("UTF-8");
        let shown = run(&["status", "--json", "--socket", socket]);
        let status: serde_json::Value = serde_json::from_str(&shown.stdout).expect("JSON");
        let ram = &status["exports"][0]["namespaces"][0];
        assert_eq!(ram["device"], "ram", "{status}");
        ram["uuid"].as_str().expect("a UUID").to_owned()
    }

    /// What is stored, which is changed and stored again.
    fn change(&mut self, change: impl FnOnce(&mut Left<OwnedFd>)) {
        let (_, stored) = self.store.pop().expect("it stores");
        let mut left = take(UnixStream::from(stored)).expect("complete");
        change(&mut left);
        let stored = store(&left).expect("room");
        self.store.push((NAME.to_owned(), stored));
    }
}

#[test]
fn hosts_continue_while_the_service_is_restarted() {
    let mut manager = Manager::new();
    let mut windlass = Some(manager.start());
    let address = windlass.as_ref().expect("started").address();
    let before = manager.ram();
    with_hosts(address, |progress| {
        for _ in 0..3 {
            manager.stop(windlass.take().expect("started"));
            let again = manager.start();
            assert!(manager.store.is_empty(), "the state is used once");
            assert_eq!(again.address(), address);
            windlass = Some(again);
            progress.wait();
        }
    });
    assert_eq!(manager.ram(), before);
    // After a stop that is not followed by a start, the manager closes what it has stored.
    let (mut controller, _) = attach(address, 0);
    manager.stop(windlass.take().expect("started"));
    manager.store.clear();
    controller.wait_end(LIMIT).expect("it ends");
}

/// A change of the offer, which is JSON.
fn with_offer(left: &mut Left<OwnedFd>, change: impl FnOnce(&mut serde_json::Value)) {
    let mut offer = serde_json::from_slice(&left.offer).expect("JSON");
    change(&mut offer);
    left.offer = offer.to_string().into_bytes();
}

/// A memory file as that of a RAM device, of another size.
fn memory(bytes: u64) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memory = memfd_create("test", flags).expect("memory");
    ftruncate(&memory, bytes).expect("empty");
    fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW).expect("sealable");
    memory
}

/// What happens to the store between two processes, and the reason that the second one states.
type Damage = (fn(&mut Manager), &'static str);

const DAMAGES: [Damage; 11] = [
    (
        |manager| {
            let (_, stored) = &manager.store[0];
            let stored = stored.try_clone().expect("open");
            take(UnixStream::from(stored)).expect("complete");
        },
        "the other process has ended",
    ),
    (
        |manager| {
            let (_, stored) = &manager.store[0];
            let again = (NAME.to_owned(), stored.try_clone().expect("open"));
            manager.store.push(again);
        },
        "the service manager passes 2 stored states: none is continued",
    ),
    (
        |manager| {
            let (foreign, _) = UnixStream::pair().expect("sockets");
            manager.store[0] = ("other".to_owned(), foreign.into());
        },
        "the service manager passes \"other\", which is not used",
    ),
    (
        |manager| manager.store[0].1 = memory(4096),
        "is not a socket",
    ),
    (
        |manager| manager.change(|left| drop(left.offered.pop())),
        "the offer of the old process has 3 descriptors instead of 4",
    ),
    (
        |manager| {
            manager.change(|left| with_offer(left, |offer| offer["version"] = 1000.into()));
        },
        "the offer of the old process has version 1000",
    ),
    (
        |manager| manager.change(|left| left.state.truncate(100)),
        "the state is damaged",
    ),
    (
        |manager| {
            let text = fs::read_to_string(&manager.file).expect("readable");
            let text = text.replace("name = \"upgraded\"", "name = \"renamed\"");
            fs::write(&manager.file, text).expect("writable");
        },
        "the configuration has changed since it was running",
    ),
    // Only the appliance that is built from the state can find the following ones.
    (
        |manager| manager.change(|left| left.offered[1] = memory(8 << 19)),
        "the file that was passed for 8388608 bytes of memory has 4194304 bytes",
    ),
    (
        |manager| {
            manager.change(|left| {
                with_offer(left, |offer| offer["devices"][0]["name"] = "other".into());
            });
        },
        "the old process has not passed it",
    ),
    (
        |manager| manager.change(|left| drop(left.passed.pop())),
        "sockets were passed for",
    ),
];

#[test]
fn a_damaged_or_foreign_state_is_not_continued() {
    let mut manager = Manager::new();
    let mut windlass = manager.start();
    for (number, (damage, reason)) in DAMAGES.into_iter().enumerate() {
        let before = manager.ram();
        let (controller, plans) = attach(windlass.address(), 0);
        manager.stop(windlass);
        damage(&mut manager);
        windlass = manager.start();
        let log = manager.log();
        assert!(log.contains(reason), "{number}: {reason}: {log}");
        assert!(manager.store.iter().all(|(name, _)| name != NAME));
        manager.store.clear();
        // The content is lost, so it is another disk.
        assert_ne!(manager.ram(), before, "{number}");
        drop((controller, plans));
        attach(windlass.address(), 0);
    }
    manager.stop(windlass);
}
