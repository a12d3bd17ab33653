//! A service manager with one service, in place of systemd: it has the state of the service between
//! two processes (FDSTORE and BARRIER of sd_notify(3), sd_listen_fds(3)).

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

/// Longest wait for a message of the service.
const MESSAGE_TIME_MAX: Duration = Duration::from_secs(20);
/// Size of the longest message, in bytes.
const MESSAGE_BYTES: usize = 4096;
/// Starts the program with the stored descriptor, which is its standard input here.
const CONTINUE: &str = r#"LISTEN_PID=$$ exec "$0" "$@" 3<&0 </dev/null"#;

/// The manager.
#[derive(Debug)]
pub(super) struct Manager {
    socket: UnixDatagram,
    path: PathBuf,
    stored: Option<OwnedFd>,
}

impl Manager {
    /// A manager whose socket is in `directory`.
    pub(super) fn new(directory: &Path) -> io::Result<Self> {
        let path = directory.join("notify");
        let socket = UnixDatagram::bind(&path)?;
        socket.set_read_timeout(Some(MESSAGE_TIME_MAX))?;
        Ok(Self {
            socket,
            path,
            stored: None,
        })
    }

    /// Whether it has a state.
    pub(super) fn has_state(&self) -> bool {
        self.stored.is_some()
    }

    /// The command that starts `program` as its service, with the state, if there is one. The caller
    /// adds the arguments.
    pub(super) fn command(&mut self, program: &Path) -> Command {
        let mut command = match self.stored.take() {
            None => {
                let mut command = Command::new(program);
                command.stdin(Stdio::null());
                command
            }
            Some(stored) => {
                let mut command = Command::new("/bin/sh");
                command.args(["-c", CONTINUE]).arg(program).stdin(stored);
                command.env("LISTEN_FDS", "1");
                command.env("LISTEN_FDNAMES", "windlass-state");
                command
            }
        };
        command.env("NOTIFY_SOCKET", &self.path).env("FDSTORE", "1");
        command
    }

    /// Follows the messages of the service until one has a line with this beginning.
    pub(super) fn wait_for(&mut self, beginning: &str) -> io::Result<()> {
        loop {
            let (text, descriptor) = self.receive()?;
            let has = |key: &str| text.lines().any(|line| line.starts_with(key));
            if has("FDSTORE=1") {
                self.stored = descriptor;
            }
            if has(beginning) {
                return Ok(());
            }
        }
    }

    fn receive(&self) -> io::Result<(String, Option<OwnedFd>)> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut bytes = [0; MESSAGE_BYTES];
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let length = recvmsg(&self.socket, &mut parts, &mut control, flags)?.bytes;
        let descriptors = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut rights) => rights.next(),
            _ => None,
        });
        let descriptor = descriptors.last();
        let text = String::from_utf8_lossy(&bytes[..length]).into_owned();
        Ok((text, descriptor))
    }
}
