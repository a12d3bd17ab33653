use std::fs::File;
use std::os::unix::fs::MetadataExt;

use super::*;

const LIMIT: Duration = Duration::from_secs(20);

fn pair() -> (Channel, Channel) {
    let (one, other) = UnixStream::pair().expect("sockets");
    let channel = |socket| Channel::new(socket, LIMIT).expect("options");
    (channel(one), channel(other))
}

/// Sends on a thread of its own, because a socket's buffer is limited.
fn transfer(bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<Message, ChannelError> {
    let (old, new) = pair();
    std::thread::scope(|threads| {
        let sender = threads.spawn(|| old.send_state(bytes, descriptors));
        let received = new.receive();
        drop(new);
        let sent = sender.join().expect("no panic");
        received.inspect(|_| sent.expect("it was received"))
    })
}

#[test]
fn a_state_passes_with_its_descriptors_in_order() {
    let files: Vec<_> = (0..3).map(|_| tempfile()).collect();
    for count in [0, 1, GROUP_MAX - 1, GROUP_MAX, GROUP_MAX + 1, 2 * GROUP_MAX] {
        let sent: Vec<_> = (0..count).map(|it| files[it % 3].as_fd()).collect();
        let body = vec![7; count * 1000];
        let Message::State { bytes, descriptors } = transfer(&body, &sent).expect("passes") else {
            panic!("another message")
        };
        assert_eq!(bytes, body);
        let inode = |file: File| file.metadata().expect("open").ino();
        let found: Vec<_> = descriptors.into_iter().map(|it| inode(it.into())).collect();
        let expected = |it: usize| inode(files[it % 3].try_clone().expect("open"));
        assert_eq!(found, (0..count).map(expected).collect::<Vec<_>>());
    }
}

fn tempfile() -> File {
    let memory = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC);
    memory.expect("memory").into()
}

#[test]
fn answers_pass_in_both_directions() {
    let (old, new) = pair();
    let file = tempfile();
    new.send_started(7, file.as_fd()).expect("open");
    let Ok(Message::Started { pid: 7, process }) = old.receive() else {
        panic!("another message")
    };
    let inode = |file: File| file.metadata().expect("open").ino();
    assert_eq!(inode(process.into()), inode(file));
    // Without its descriptor, and with too much.
    for (bytes, descriptors) in [(4, 0), (3, 1), (5, 1), (4, 2)] {
        let file = tempfile();
        let sent = vec![file.as_fd(); descriptors];
        let (old, new) = pair();
        new.send(STARTED, &vec![0; bytes], &sent).expect("open");
        old.receive().expect_err("not a process");
    }
    new.send_restored().expect("open");
    assert!(matches!(old.receive(), Ok(Message::Restored)));
    old.send_serve().expect("open");
    assert!(matches!(new.receive(), Ok(Message::Serve)));
    let long = "\u{e4}".repeat(REASON_BYTES_MAX);
    new.send_refused(&long).expect("open");
    let Ok(Message::Refused(reason)) = old.receive() else {
        panic!("another message")
    };
    assert_eq!(reason.len(), REASON_BYTES_MAX);
    assert!(long.starts_with(&reason));
}

/// What a process sends that is not this program.
fn answer_to(bytes: &[u8]) -> String {
    let (sender, receiver) = UnixStream::pair().expect("sockets");
    let channel = Channel::new(receiver, LIMIT).expect("options");
    (&sender).write_all(bytes).expect("room");
    drop(sender);
    channel.receive().expect_err("invalid").to_string()
}

fn header(kind: u32, descriptors: u32, bytes: u32) -> Vec<u8> {
    let [kind, descriptors, bytes] = [kind, descriptors, bytes].map(U32::new);
    let header = Header {
        kind,
        descriptors,
        bytes,
    };
    header.as_bytes().to_vec()
}

#[test]
fn invalid_messages_are_refused() {
    assert_eq!(answer_to(&[]), "the other process has ended");
    assert_eq!(answer_to(&[1; 11]), "the other process has ended");
    assert_eq!(
        answer_to(&header(9, 0, 0)),
        "the other process sent an invalid message: an unknown kind"
    );
    assert_eq!(
        answer_to(&header(STATE, 0, 5)),
        "the other process has ended"
    );
    assert_eq!(
        answer_to(&header(STATE, 1, 0)),
        "the other process has ended"
    );
    let without = [header(STATE, 1, 0), vec![GROUP]].concat();
    assert_eq!(
        answer_to(&without),
        "the other process sent an invalid message: a group of descriptors is incomplete"
    );
    assert_eq!(
        answer_to(&header(STATE, u32::MAX, 0)),
        "a message has 4294967295 descriptors, more than 131072"
    );
    assert_eq!(
        answer_to(&header(STATE, 0, u32::MAX)),
        "a message has 4294967295 bytes, more than 268435456"
    );
    for kind in [RESTORED, SERVE] {
        assert_eq!(
            answer_to(&header(kind, 0, 1)),
            "a message has 1 bytes, more than 0"
        );
    }
    assert_eq!(
        answer_to(&header(REFUSED, 1, 0)),
        "a message has 1 descriptors, more than 0"
    );
    assert_eq!(
        answer_to(&header(REFUSED, 0, 4097)),
        "a message has 4097 bytes, more than 4096"
    );
}

#[test]
fn a_process_that_does_nothing_is_not_waited_for() {
    let (_silent, receiver) = UnixStream::pair().expect("sockets");
    let channel = Channel::new(receiver, Duration::from_millis(10)).expect("options");
    let error = channel.receive().expect_err("nothing comes");
    assert!(matches!(error, ChannelError::Socket(_)), "{error}");
}

#[test]
fn sending_to_a_process_that_has_ended_fails() {
    let (old, new) = pair();
    drop(new);
    assert!(old.send_serve().is_err());
}
