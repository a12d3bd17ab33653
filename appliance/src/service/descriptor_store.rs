//! The descriptor store of the service manager: one descriptor that outlives a restart of the service.
//!
//! Implements FDSTORE, FDSTOREREMOVE, FDNAME, FDPOLL and BARRIER of sd_notify(3), and
//! sd_listen_fds(3). The manager keeps the store during a restart, and closes it after a stop
//! (`FileDescriptorStorePreserve=` of systemd.service(5), whose default is `restart`).

use std::env;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::time::Duration;

use listenfd::ListenFd;
use nvme_handover_channel::take;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketType, sendmsg,
};
use rustix::pipe::{PipeFlags, pipe_with};
use sd_notify::NotifyState;

use super::tell;

/// The name of the descriptor in the store.
const NAME: &str = "windlass-state";
/// Longest wait until the manager has the descriptor.
const STORE_TIME_MAX: Duration = Duration::from_secs(5);

/// The manager does not confirm that it has the descriptor.
#[derive(Debug, thiserror::Error)]
#[error("the service manager does not confirm within {STORE_TIME_MAX:?} that it has the state")]
struct NotConfirmed;

/// Whether the manager stores descriptors of this service. systemd reports it from version 254 on,
/// and the unit for earlier ones.
pub(crate) fn stores_descriptors() -> bool {
    let room = env::var("FDSTORE").ok();
    let room = room.and_then(|text| text.parse().ok()).unwrap_or(0_u32);
    env::var_os("NOTIFY_SOCKET").is_some() && room > 0
}

/// Gives a descriptor to the store, from which the next process of the service receives it.
///
/// # Errors
/// The manager may have the descriptor or not.
pub(crate) fn store_descriptor(descriptor: BorrowedFd<'_>) -> io::Result<()> {
    remove_stored(NAME);
    // Without FDPOLL=0, the manager would close a socket whose other end is closed.
    send(&format!("FDSTORE=1\nFDNAME={NAME}\nFDPOLL=0\n"), descriptor)?;
    let (manager_has_read, barrier) = pipe_with(PipeFlags::CLOEXEC)?;
    send("BARRIER=1\n", barrier.as_fd())?;
    drop(barrier);
    let limit = Timespec {
        tv_sec: STORE_TIME_MAX.as_secs() as i64,
        tv_nsec: 0,
    };
    let mut watched = [PollFd::new(&manager_has_read, PollFlags::empty())];
    match retry_on_intr(|| poll(&mut watched, Some(&limit)))? {
        0 => Err(io::Error::other(NotConfirmed)),
        _ => Ok(()),
    }
}

/// The descriptor that the process before this one has stored. It is removed from the store. Called
/// once, before there are other threads.
pub(crate) fn stored_descriptor() -> Option<UnixStream> {
    env::var_os("LISTEN_PID")?;
    let names = env::var("LISTEN_FDNAMES").unwrap_or_default();
    let mut passed = ListenFd::from_env();
    if passed.len() == 0 {
        return None;
    }
    remove_stored(NAME);
    let (family, kind) = (AddressFamily::UNIX.as_raw(), SocketType::STREAM.as_raw());
    let mut names = names.split(':');
    let mut stored = Vec::new();
    for number in 0..passed.len() {
        let name = names.next().unwrap_or_default();
        match passed.take_custom(number, family.into(), kind as i32, "stored state") {
            Ok(Some(socket)) if name == NAME => stored.push(socket),
            Ok(_) => {
                tracing::warn!("the service manager passes {name:?}, which is not used");
                remove_stored(name);
            }
            // It stays open.
            Err(error) => tracing::warn!("the service manager passes {name:?}: {error}"),
        }
    }
    if stored.len() > 1 {
        let count = stored.len();
        tracing::warn!("the service manager passes {count} stored states: none is continued");
        // Releases the locks and addresses that they have, also those in the store.
        stored.into_iter().for_each(|it| drop(take(it)));
        return None;
    }
    stored.pop()
}

fn remove_stored(name: &str) {
    tell(&[
        NotifyState::Custom("FDSTOREREMOVE=1"),
        NotifyState::Custom(&format!("FDNAME={name}")),
    ]);
}

/// Sends a message with a descriptor.
fn send(text: &str, descriptor: BorrowedFd<'_>) -> io::Result<()> {
    let manager = env::var_os("NOTIFY_SOCKET").ok_or(io::ErrorKind::NotFound)?;
    let socket = UnixDatagram::unbound()?;
    socket.connect(manager)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor];
    let has_room = control.push(SendAncillaryMessage::ScmRights(&descriptors));
    assert!(has_room, "there is space for one descriptor");
    let parts = [IoSlice::new(text.as_bytes())];
    retry_on_intr(|| sendmsg(&socket, &parts, &mut control, SendFlags::NOSIGNAL))?;
    Ok(())
}
