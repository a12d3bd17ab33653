//! Tracks temporary objects of a command, to remove them if a signal ends the command.
//!
//! It owns no object: the creator removes it, and registers it here until then. Since nothing is
//! dropped when a signal ends the process, [`remove_on_signals`] kills processes and removes
//! directories and control groups.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Base of a shell's exit codes for signals; the signal's number is added.
const EXIT_SIGNALLED: i32 = 128;

/// Maximum number of attempts to remove a directory or a group, and the time between attempts for a
/// group: a killed process may not have ended yet.
const REMOVALS_MAX: usize = 100;
const REMOVAL_INTERVAL: Duration = Duration::from_millis(1);

/// An object that must not outlive the process.
#[derive(Debug)]
enum TemporaryObject {
    Process(Pid),
    Folder(PathBuf),
    Group(PathBuf),
}

/// All registered objects by number.
static LEFTOVERS: Mutex<BTreeMap<u64, TemporaryObject>> = Mutex::new(BTreeMap::new());

/// The map is consistent even after a panic.
fn leftovers() -> MutexGuard<'static, BTreeMap<u64, TemporaryObject>> {
    LEFTOVERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Registers an object until it is dropped: a signal that ends the process removes the object
/// first.
#[derive(Debug)]
#[must_use = "dropped, the object is no longer registered"]
pub struct Registration(u64);

impl Registration {
    /// Registers the child process that `spawn` starts, without a gap for a signal.
    ///
    /// # Errors
    /// Those of `spawn`.
    pub fn child(spawn: impl FnOnce() -> io::Result<Child>) -> io::Result<(Child, Self)> {
        let mut all = leftovers();
        let child = spawn()?;
        let registration = Self::add(&mut all, TemporaryObject::Process(Pid::from_child(&child)));
        Ok((child, registration))
    }

    /// Registers a directory with its content.
    pub fn folder(path: &Path) -> Self {
        Self::add(&mut leftovers(), TemporaryObject::Folder(path.to_owned()))
    }

    /// Registers a control group.
    pub fn group(path: &Path) -> Self {
        Self::add(&mut leftovers(), TemporaryObject::Group(path.to_owned()))
    }

    fn add(all: &mut BTreeMap<u64, TemporaryObject>, leftover: TemporaryObject) -> Self {
        let number = all.last_key_value().map_or(0, |(last, _)| last + 1);
        all.insert(number, leftover);
        Self(number)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        leftovers().remove(&self.0);
    }
}

/// Makes SIGINT and SIGTERM remove all registered objects before they end the process.
///
/// # Errors
/// The system's error if signals or a thread are not available.
pub fn remove_on_signals() -> io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    std::thread::Builder::new().spawn(move || {
        if let Some(signal) = signals.forever().next() {
            // Kept locked: a thread that sees the end of its killed process waits for the lock when
            // it forgets the process, and cannot end this one with another code.
            let all = leftovers();
            remove(all.values());
            eprintln!("bench: interrupted");
            std::process::exit(EXIT_SIGNALLED + signal);
        }
    })?;
    Ok(())
}

/// Removes all objects. Processes are killed first, because they write to directories.
fn remove<'a>(all: impl Iterator<Item = &'a TemporaryObject> + Clone) {
    for leftover in all.clone() {
        if let TemporaryObject::Process(pid) = leftover {
            let _ = kill_process(*pid, Signal::KILL);
        }
    }
    for leftover in all {
        match leftover {
            TemporaryObject::Process(_) => {}
            TemporaryObject::Folder(path) => {
                let mut tries = 0..REMOVALS_MAX;
                while path.exists() && tries.next().is_some() {
                    let _ = std::fs::remove_dir_all(path);
                }
            }
            TemporaryObject::Group(path) => remove_group(path),
        }
    }
}

/// Removes a control group of either version. Threads of this process in it move to the parent
/// group.
pub(crate) fn remove_group(path: &Path) {
    for _ in 0..REMOVALS_MAX {
        for file in ["tasks", "cgroup.threads"] {
            let threads = std::fs::read_to_string(path.join(file)).unwrap_or_default();
            for thread in threads.lines() {
                let _ = std::fs::write(path.with_file_name(file), thread);
            }
        }
        if std::fs::remove_dir(path).is_ok() || !path.exists() {
            return;
        }
        // A killed process remains in it until it has ended.
        std::thread::sleep(REMOVAL_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::Command;

    use super::*;

    #[test]
    fn processes_are_killed_and_folders_removed() {
        let mut child = Command::new("sleep").arg("1000").spawn().expect("a child");
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("log"), "text").expect("written");
        let all = [
            TemporaryObject::Folder(folder.path().to_owned()),
            TemporaryObject::Process(Pid::from_child(&child)),
            TemporaryObject::Folder("/nonexistent/folder".into()),
        ];
        remove(all.iter());
        assert_eq!(child.wait().expect("it ends").signal(), Some(9));
        assert!(!folder.path().exists());
    }

    #[test]
    fn dropped_registrations_are_forgotten() {
        let paths = ["/nonexistent/one", "/nonexistent/other"].map(Path::new);
        let [one, other] = paths.map(Registration::folder);
        let knows = |path: &Path| {
            let all = leftovers();
            let mut all = all.values();
            all.any(|it| matches!(it, TemporaryObject::Folder(known) if known == path))
        };
        assert!(knows(paths[0]) && knows(paths[1]));
        drop(one);
        assert!(!knows(paths[0]) && knows(paths[1]));
        drop(other);
        assert!(!knows(paths[1]));
    }
}
