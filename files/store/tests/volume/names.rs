//! Names, links and handles in cases that the model does not have.

use files_store::{
    Error, InodeId, NewNode, NewObject, Progress, Time, VolatileOptions, Volume, limits,
};

use crate::disk::{MEMORY_BYTES, options};

pub(crate) const NOW: Time = Time {
    seconds: 5,
    nanoseconds: 0,
};

pub(crate) fn object(node: NewNode<'_>) -> NewObject<'_> {
    NewObject {
        node,
        mode: 0o644,
        uid: 0,
        gid: 0,
        share: None,
    }
}

pub(crate) fn volume(device_bytes: u64) -> Volume {
    Volume::volatile(&VolatileOptions {
        uuid: options().uuid,
        device_bytes,
        memory_bytes: MEMORY_BYTES,
    })
}

pub(crate) fn file(volume: &mut Volume, name: &[u8]) -> InodeId {
    let root = volume.root();
    volume
        .create(root, name, &object(NewNode::File), NOW)
        .expect("room")
        .inode
}

#[test]
fn names_are_checked() {
    let mut volume = volume(1 << 20);
    let root = volume.root();
    let long = vec![b'x'; limits::NAME_BYTES_MAX + 1];
    let cases: [(&[u8], Error); 6] = [
        (b"", Error::Invalid),
        (b".", Error::Invalid),
        (b"..", Error::Invalid),
        (b"a/b", Error::Invalid),
        (b"a\0", Error::Invalid),
        (&long, Error::NameTooLong),
    ];
    for (name, error) in cases {
        let created = volume.create(root, name, &object(NewNode::File), NOW);
        assert_eq!(created, Err(error), "{name:?}");
        assert_eq!(volume.lookup(root, name), Err(error));
    }
    file(&mut volume, &long[1..]);
    let wrong = Time {
        seconds: 0,
        nanoseconds: 1_000_000_000,
    };
    let created = volume.create(root, b"late", &object(NewNode::File), wrong);
    assert_eq!(created, Err(Error::Invalid));
    let target = vec![b'x'; limits::LINK_TARGET_BYTES_MAX + 1];
    let created = volume.create(root, b"link", &object(NewNode::Link(&target)), NOW);
    assert_eq!(created, Err(Error::NameTooLong));
}

#[test]
fn cookies_stay_valid_while_entries_are_removed() {
    let mut volume = volume(1 << 20);
    let root = volume.root();
    for index in 0..200 {
        file(&mut volume, format!("{index}").as_bytes());
    }
    let mut seen = Vec::new();
    let mut cookie = 0;
    loop {
        let part: Vec<_> = volume
            .entries(root, cookie)
            .expect("a directory")
            .take(7)
            .collect();
        let Some(last) = part.last() else {
            break;
        };
        cookie = last.cookie;
        let names: Vec<Vec<u8>> = part.iter().map(|entry| entry.name.to_vec()).collect();
        for name in names {
            volume.remove(root, &name, NOW).expect("exists");
            seen.push(name);
        }
    }
    assert_eq!(seen.len(), 200);
    assert_eq!(volume.entries(root, 0).expect("a directory").count(), 0);
}

#[test]
fn a_handle_is_stale_when_its_object_is_gone() {
    let mut volume = volume(1 << 20);
    let root = volume.root();
    let inode = file(&mut volume, b"a");
    let handle = volume.attributes(inode).expect("exists").handle;
    volume.open(inode).expect("exists");
    volume.remove(root, b"a", NOW).expect("exists");
    assert_eq!(volume.resolve(&handle), Ok(inode), "it is open");
    assert_eq!(volume.attributes(inode).expect("open").links, 0);
    volume.close(inode).expect("open");
    assert_eq!(volume.resolve(&handle), Err(Error::Stale));
    assert_eq!(volume.close(inode), Err(Error::Invalid));
    let mut other = volume.attributes(root).expect("exists").handle;
    assert_eq!(volume.resolve(&other), Ok(root));
    other.generation += 1;
    assert_eq!(volume.resolve(&other), Err(Error::Stale));
    other.generation -= 1;
    other.volume.0[0] ^= 1;
    assert_eq!(volume.resolve(&other), Err(Error::Stale));
}

#[test]
fn every_change_moves_the_change_attribute_and_is_durable_at_once_without_a_log() {
    let mut volume = volume(1 << 20);
    let root = volume.root();
    let mut last = volume.attributes(root).expect("exists").change;
    for name in [b"a", b"b"] {
        file(&mut volume, name);
        let change = volume.attributes(root).expect("exists").change;
        assert!(change > last);
        last = change;
    }
    let ticket = volume
        .rename((root, b"a"), (root, b"b"), NOW)
        .expect("exists");
    assert!(volume.attributes(root).expect("exists").change > last);
    assert_eq!(volume.progress(ticket), Progress::Durable);
    assert_eq!(volume.poll(), None);
    assert!(volume.is_idle());
}
