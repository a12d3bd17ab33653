use std::net::TcpListener;

use super::*;

fn memory() -> File {
    let memory = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING);
    File::from(memory.expect("memory"))
}

fn socket() -> OwnedFd {
    TcpListener::bind("127.0.0.1:0").expect("a port").into()
}

fn left<'d>(offered: &'d [OwnedFd], passed: &'d [OwnedFd]) -> Left<BorrowedFd<'d>> {
    Left {
        offer: b"offer".to_vec(),
        offered: offered.iter().map(|it| it.as_fd()).collect(),
        state: b"a state".to_vec(),
        passed: passed.iter().map(|it| it.as_fd()).collect(),
    }
}

fn sockets(count: usize) -> Vec<OwnedFd> {
    (0..count).map(|_| socket()).collect()
}

#[test]
fn foreign_descriptors_are_not_taken() {
    let (_idle, silent) = UnixStream::pair().expect("sockets");
    let error = take(silent).expect_err("nothing is in it");
    assert!(matches!(error, TakeError::Channel(_)), "{error}");
    let text = |descriptors: &[BorrowedFd<'_>], bytes: &[u8]| {
        let (own, stored) = UnixStream::pair().expect("sockets");
        let channel = Channel::new(own, QUEUE_TIME_MAX).expect("options");
        channel.send_state(bytes, descriptors).expect("room");
        take(stored).expect_err("refused").to_string()
    };
    let not_stored = "it does not begin with a memory file that has the stored form";
    assert_eq!(text(&[], b""), not_stored);
    assert_eq!(text(&[socket().as_fd()], b""), not_stored);
    let open = memory();
    assert_eq!(text(&[open.as_fd()], b""), "its memory file is not sealed");
    fcntl_add_seals(&open, SEALS).expect("sealable");
    assert_eq!(text(&[open.as_fd()], b""), not_stored);
    let file = written(&left(&[], &[])).expect("memory");
    assert_eq!(text(&[file.as_fd()], b"more"), not_stored);
    let (own, stored) = UnixStream::pair().expect("sockets");
    let channel = Channel::new(own, QUEUE_TIME_MAX).expect("options");
    channel.send_serve().expect("room");
    assert_eq!(take(stored).expect_err("refused").to_string(), not_stored);
}

/// The error for a memory file with these bytes and descriptors.
fn refusal(bytes: &[u8], descriptors: &[OwnedFd]) -> TakeError {
    let mut file = memory();
    file.write_all(bytes).expect("room");
    fcntl_add_seals(&file, SEALS).expect("sealable");
    let (own, stored) = UnixStream::pair().expect("sockets");
    let channel = Channel::new(own, QUEUE_TIME_MAX).expect("options");
    let mut all = vec![file.as_fd()];
    all.extend(descriptors.iter().map(|it| it.as_fd()));
    channel.send_state(&[], &all).expect("room");
    take(stored).expect_err("refused")
}

fn bytes_of(left: &Left<BorrowedFd<'_>>) -> Vec<u8> {
    let file = written(left).expect("memory");
    read(&file).expect("sealed")
}

fn with_checksum(mut bytes: Vec<u8>) -> Vec<u8> {
    let end = bytes.len() - size_of::<Checksum>();
    let checksum = Checksum::new(crc_fast::crc32_iscsi(&bytes[..end]));
    bytes[end..].copy_from_slice(checksum.as_bytes());
    bytes
}

#[test]
fn damaged_states_and_those_of_later_versions_are_refused() {
    let all = sockets(3);
    let bytes = bytes_of(&left(&all[..1], &all[1..]));
    for length in 0..bytes.len() {
        refusal(&bytes[..length], &all);
    }
    for position in 0..bytes.len() {
        let mut bytes = bytes.clone();
        bytes[position] ^= 0x40;
        refusal(&bytes, &all);
    }
    let longer = [bytes.as_slice(), &[0]].concat();
    let error = refusal(&longer, &all);
    assert!(matches!(error, TakeError::Length { .. }), "{error}");
    let mut later = bytes.clone();
    later[8] = 2;
    assert_eq!(
        refusal(&with_checksum(later), &all).to_string(),
        "it has layout version 2, but this version of Windlass reads only 1: start a later version"
    );
    for (at, value) in [(12, 0xFF), (16, 0xFF), (27, 0xFF), (35, 0xFF)] {
        let mut wrong = bytes.clone();
        wrong[at] = value;
        let error = refusal(&with_checksum(wrong), &all);
        assert!(matches!(error, TakeError::Length { .. }), "{at}: {error}");
    }
}

#[test]
fn missing_duplicated_and_exchanged_descriptors_are_refused() {
    let all = sockets(4);
    let bytes = bytes_of(&left(&all[..2], &all[2..]));
    let copy = |number: usize| all[number].try_clone().expect("open");
    let only = |numbers: &[usize]| numbers.iter().map(|it| copy(*it)).collect::<Vec<_>>();
    for (numbers, found) in [(&[0, 1, 2][..], 3), (&[][..], 0), (&[0, 1, 2, 3, 3][..], 5)] {
        assert_eq!(
            refusal(&bytes, &only(numbers)).to_string(),
            format!("it has {found} descriptors instead of 4")
        );
    }
    for (numbers, first) in [
        ([0, 2, 1, 3], 1),
        ([0, 0, 2, 3], 1),
        ([0, 1, 2, 2], 3),
        ([3, 1, 2, 3], 0),
    ] {
        let error = refusal(&bytes, &only(&numbers));
        assert!(
            matches!(error, TakeError::Foreign(it) if it == first),
            "{error}"
        );
    }
    let mut foreign = only(&[0, 1, 2]);
    foreign.push(socket());
    let error = refusal(&bytes, &foreign);
    assert!(matches!(error, TakeError::Foreign(3)), "{error}");
}

#[test]
fn a_stored_state_is_taken_once_and_whole() {
    for (offered, passed) in [(0, 0), (3, 0), (2, 600)] {
        let all = sockets(offered + passed);
        let (offered, passed) = all.split_at(offered);
        let stored = store(&left(offered, passed)).expect("room");
        // As the service manager passes it.
        let copy = UnixStream::from(stored.try_clone().expect("open"));
        let taken = take(stored.into()).expect("complete");
        assert_eq!(
            (&taken.offer[..], &taken.state[..]),
            (&b"offer"[..], &b"a state"[..])
        );
        let identities = |all: Vec<BorrowedFd<'_>>| {
            let one = |it| identity(it).expect("open");
            all.into_iter().map(one).collect::<Vec<_>>()
        };
        let borrowed = |all: &'_ [OwnedFd]| identities(all.iter().map(|it| it.as_fd()).collect());
        assert_eq!(borrowed(&taken.offered), borrowed(offered));
        assert_eq!(borrowed(&taken.passed), borrowed(passed));
        let error = take(copy).expect_err("it was taken");
        assert!(
            matches!(error, TakeError::Channel(ChannelError::Closed)),
            "{error}"
        );
    }
}

#[test]
fn connections_of_a_state_that_is_not_taken_end() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let mut host = std::net::TcpStream::connect(listener.local_addr().expect("bound"));
    let host = host.as_mut().expect("it listens");
    let passed = [OwnedFd::from(listener.accept().expect("a host").0)];
    let stored = store(&left(&[], &passed)).expect("room");
    drop(passed);
    host.set_read_timeout(Some(Duration::from_millis(50)))
        .expect("an option");
    let open = std::io::Read::read(host, &mut [0])
        .expect_err("open")
        .kind();
    assert_eq!(open, io::ErrorKind::WouldBlock);
    drop(stored);
    host.set_read_timeout(Some(Duration::from_secs(20)))
        .expect("an option");
    assert_eq!(std::io::Read::read(host, &mut [0]).expect("it ends"), 0);
}
