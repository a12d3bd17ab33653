//! The new process, as the old one sees it: its start, the channel to it, and its end if it does not
//! serve.
//!
//! It is not a child of the old process: a launcher starts it and ends, so that the service manager
//! becomes its parent. systemd does not wait for the end of a main process that has another one.

use std::io::ErrorKind;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nvme_handover_channel::{Channel, ChannelError, Message};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::process::{Signal, geteuid, pidfd_send_signal};

/// Time in which the new process has to build its appliance: it maps all memory of RAM devices.
const PREPARE_TIME_MAX: Duration = Duration::from_secs(60);
/// Time in which it has to restore the state. Hosts wait meanwhile.
pub(crate) const RESTORE_TIME_MAX: Duration = Duration::from_secs(5);
/// The same if it has to build its appliance before, because drives are opened by one process only.
/// Hosts wait for 30 s by default.
pub(crate) const BUILD_TIME_MAX: Duration = Duration::from_secs(15);
/// Time to wait for the exit status of a process that has closed the channel: it is ending, but the
/// kernel may be writing its core dump. Hosts may wait meanwhile.
const EXIT_TIME_MAX: Duration = Duration::from_secs(5);
const EXIT_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The suffix that Linux adds to the path of a program whose file was replaced (proc(5)).
const DELETED: &str = " (deleted)";

/// Why the new process does not continue. The old one serves on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SuccessorError {
    #[error("{program} cannot be used: {problem}")]
    Program {
        program: PathBuf,
        problem: &'static str,
    },
    #[error("{program} cannot be examined")]
    Unreadable {
        program: PathBuf,
        #[source]
        cause: std::io::Error,
    },
    #[error("{program} cannot be started")]
    Start {
        program: PathBuf,
        #[source]
        cause: std::io::Error,
    },
    #[error("the new process refuses: {0}")]
    Refused(String),
    #[error("the new process has ended ({0}) before it served: its log has the reason")]
    Ended(ExitStatus),
    #[error("the new process has ended before it served: its log has the reason")]
    EndedUnseen,
    #[error("the new process does not answer")]
    Channel(#[from] ChannelError),
    #[error("the new process answers something else than expected")]
    Unexpected,
}

/// The file of this program, which an upgrade may have replaced.
///
/// # Errors
/// The system's.
pub(crate) fn own_program() -> std::io::Result<PathBuf> {
    let path = std::env::current_exe()?;
    let text = path.to_str().and_then(|text| text.strip_suffix(DELETED));
    Ok(text.map_or_else(|| path.clone(), PathBuf::from))
}

/// Checks that a program may run as this user: clients of the control socket may be members of a
/// group that has fewer rights.
///
/// # Errors
/// It is not an executable file of root or of this user, or anybody may change it.
pub(crate) fn check_program(program: &Path) -> Result<(), SuccessorError> {
    let wrong = |problem| SuccessorError::Program {
        program: program.to_owned(),
        problem,
    };
    if !program.is_absolute() {
        return Err(wrong("give an absolute path"));
    }
    let found = std::fs::metadata(program).map_err(|cause| SuccessorError::Unreadable {
        program: program.to_owned(),
        cause,
    })?;
    if !found.is_file() {
        return Err(wrong("it is not a file"));
    }
    if found.permissions().mode() & 0o111 == 0 {
        return Err(wrong("it is not executable"));
    }
    if found.permissions().mode() & 0o002 != 0 {
        return Err(wrong("any user can change it: remove this permission"));
    }
    if found.uid() != 0 && found.uid() != geteuid().as_raw() {
        return Err(wrong(
            "it belongs neither to root nor to the user of the service",
        ));
    }
    Ok(())
}

/// The new process. It is ended when this is dropped before it [serves](Self::serve).
pub(crate) struct Successor {
    /// The program that starts the process; scripts that name a program may be the process itself.
    launcher: Child,
    /// Known when it has started.
    process: Option<Process>,
    channel: Channel,
    serves: bool,
}

/// A running process.
struct Process {
    pid: u32,
    descriptor: OwnedFd,
}

impl Process {
    /// Waits until it has ended, for at most `limit`. Returns whether it has.
    fn wait(&self, limit: Option<&Timespec>) -> bool {
        let mut watched = [PollFd::new(&self.descriptor, PollFlags::IN)];
        retry_on_intr(|| poll(&mut watched, limit)).is_ok_and(|ready| ready > 0)
    }
}

/// Starts this program again as the process that continues, with the channel of the old process as
/// its standard input. Called in the launcher, which then ends.
///
/// # Errors
/// The system's.
pub(crate) fn launch() -> std::io::Result<()> {
    Command::new(std::env::current_exe()?)
        .args(["run", "--continue"])
        .spawn()
        .map(drop)
}

impl Successor {
    /// Starts `program` with the channel as its standard input.
    ///
    /// # Errors
    /// It cannot be started.
    pub(crate) fn start(program: &Path) -> Result<Self, SuccessorError> {
        let failed = |cause| SuccessorError::Start {
            program: program.to_owned(),
            cause,
        };
        let (own, other) = UnixStream::pair().map_err(failed)?;
        let launcher = Command::new(program)
            .arg("launch-successor")
            // It names this process (sd_watchdog_enabled(3)).
            .env_remove("WATCHDOG_PID")
            .stdin(Stdio::from(OwnedFd::from(other)))
            .spawn()
            .map_err(failed)?;
        let channel = Channel::new(own, PREPARE_TIME_MAX).map_err(failed)?;
        Ok(Self {
            launcher,
            process: None,
            channel,
            serves: false,
        })
    }

    /// Its process identifier; `None` before it has started.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(|process| process.pid)
    }

    /// Waits for the start, sends the offer, and waits until the new process has built its appliance.
    ///
    /// # Errors
    /// The reason for which the new process does not continue.
    pub(crate) fn prepare(
        &mut self,
        offer: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), SuccessorError> {
        self.process = match self.channel.receive() {
            Ok(Message::Started { pid, process }) => Some(Process {
                pid,
                descriptor: process,
            }),
            Ok(Message::Refused(reason)) => return Err(SuccessorError::Refused(reason)),
            Ok(_) => return Err(SuccessorError::Unexpected),
            Err(error) => return Err(self.ended(error)),
        };
        self.pass(offer, descriptors)
    }

    /// Sends the state, and waits for at most `time_max` until the new process has restored it.
    ///
    /// # Errors
    /// The reason for which the new process does not continue.
    pub(crate) fn restore(
        &mut self,
        state: &[u8],
        descriptors: &[BorrowedFd<'_>],
        time_max: Duration,
    ) -> Result<(), SuccessorError> {
        let limited = self.channel.set_limit(time_max);
        limited.map_err(ChannelError::Socket)?;
        self.pass(state, descriptors)
    }

    fn pass(&mut self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<(), SuccessorError> {
        let sent = self.channel.send_state(bytes, descriptors);
        // A process that refuses the state may not have read all of it.
        let answer = self.channel.receive();
        match (sent, answer) {
            (_, Ok(Message::Refused(reason))) => Err(SuccessorError::Refused(reason)),
            (Ok(()), Ok(Message::Restored)) => Ok(()),
            (Ok(()), Ok(_)) => Err(SuccessorError::Unexpected),
            (Err(error), _) | (_, Err(error)) => Err(self.ended(error)),
        }
    }

    /// The error of a channel; the exit status, if the process has ended.
    fn ended(&mut self, error: ChannelError) -> SuccessorError {
        if !is_closed(&error) {
            return error.into();
        }
        let deadline = Instant::now() + EXIT_TIME_MAX;
        while Instant::now() < deadline {
            // Asked first, because the process may be the launcher, whose status is known.
            let process = self.process.as_ref();
            let has_ended = process.is_some_and(|process| process.wait(Some(&Timespec::default())));
            let is_launched = process.is_some();
            match self.launcher.try_wait() {
                Ok(Some(status)) if !(is_launched && status.success()) => {
                    return SuccessorError::Ended(status);
                }
                Ok(_) if has_ended => return SuccessorError::EndedUnseen,
                Ok(_) => {}
                Err(_) => break,
            }
            std::thread::sleep(EXIT_POLL_INTERVAL);
        }
        error.into()
    }

    /// Lets the new process serve. This one uses nothing that it passed from then on. The channel
    /// stays open until this process has ended, for which the new one waits.
    ///
    /// # Errors
    /// The new process has ended.
    pub(crate) fn serve(&mut self) -> Result<(), SuccessorError> {
        let sent = self.channel.send_serve();
        sent.map_err(|error| self.ended(error))?;
        self.serves = true;
        Ok(())
    }
}

/// Whether the other end of the channel is closed.
fn is_closed(error: &ChannelError) -> bool {
    match error {
        ChannelError::Closed => true,
        ChannelError::Socket(error) => matches!(
            error.kind(),
            ErrorKind::BrokenPipe | ErrorKind::ConnectionReset
        ),
        ChannelError::TooLong { .. } | ChannelError::Invalid(_) => false,
    }
}

impl Drop for Successor {
    fn drop(&mut self) {
        if self.serves {
            return;
        }
        // They may have ended already.
        let _ = self.launcher.kill();
        let _ = self.launcher.wait();
        if let Some(process) = &self.process {
            let _ = pidfd_send_signal(&process.descriptor, Signal::KILL);
            // It must not use what it has got any more.
            process.wait(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};

    use super::*;

    #[test]
    fn only_executable_files_of_trusted_users_are_started() {
        let folder = tempfile::tempdir().expect("a directory");
        let program = folder.path().join("windlass");
        let problem = |path: &Path| check_program(path).expect_err("refused").to_string();
        assert!(problem(&program).contains("cannot be examined"));
        fs::write(&program, "#!/bin/sh\n").expect("writable");
        for (mode, expected) in [
            (0o644, "it is not executable"),
            (0o757, "any user can change it"),
        ] {
            fs::set_permissions(&program, Permissions::from_mode(mode)).expect("own file");
            let text = problem(&program);
            assert!(text.contains(expected), "{text}");
        }
        fs::set_permissions(&program, Permissions::from_mode(0o755)).expect("own file");
        check_program(&program).expect("usable");
        let text = problem(Path::new("windlass"));
        assert!(text.contains("give an absolute path"), "{text}");
        assert!(problem(folder.path()).contains("it is not a file"));
    }

    #[test]
    fn process_that_ends_or_does_not_start_is_reported() {
        let mut successor = Successor::start(Path::new("/bin/false")).expect("it starts");
        let error = successor.prepare(b"{}", &[]).expect_err("it ends");
        assert!(matches!(error, SuccessorError::Ended(_)), "{error}");
        let folder = tempfile::tempdir().expect("a directory");
        let closing = folder.path().join("closing");
        // A slow machine: it ends long after it has closed the channel.
        fs::write(&closing, "#!/bin/sh\nexec </dev/null; sleep 2; exit 7\n").expect("writable");
        fs::set_permissions(&closing, Permissions::from_mode(0o755)).expect("own file");
        let mut successor = Successor::start(&closing).expect("it starts");
        let error = successor.prepare(b"{}", &[]).expect_err("it ends");
        assert!(error.to_string().contains("exit status: 7"), "{error}");
        let missing = Successor::start(Path::new("/bin/nothing-here"));
        let error = missing.err().expect("missing");
        assert!(error.to_string().contains("cannot be started"), "{error}");
    }
}
