//! Volumes without space: nothing is applied partially, and removal is always possible.

use files_store::{
    Error, NewNode, NewObject, SetAttributes, ShareId, VolatileOptions, Volume, XattrMode, limits,
};

use crate::disk::options;
use crate::names::{NOW, file, object, volume};

const BLOCK: u64 = limits::BLOCK_BYTES;

#[test]
fn a_full_device_refuses_writes_as_a_whole_and_has_room_after_a_removal() {
    let mut volume = volume(16 * BLOCK);
    let root = volume.root();
    let (a, b) = (file(&mut volume, b"a"), file(&mut volume, b"b"));
    let plan = volume.write(a, 0, 12 * BLOCK).expect("room");
    volume.write_done(plan.id, NOW).expect("no log");
    let before = volume.usage();
    assert_eq!(
        volume.write(b, 100, 4 * BLOCK),
        Err(Error::NoSpace),
        "five blocks"
    );
    assert_eq!(volume.allocate(b, 0, 5 * BLOCK, NOW), Err(Error::NoSpace));
    assert_eq!(volume.usage(), before);
    assert_eq!(volume.attributes(b).expect("exists").size, 0);
    // A write that failed returns its blocks.
    let plan = volume.write(b, 0, 4 * BLOCK).expect("room");
    assert_eq!(volume.write(b, 4 * BLOCK, 1), Err(Error::NoSpace));
    volume.write_failed(plan.id);
    assert_eq!(volume.usage(), before);
    // Existing blocks can be written, and the file can be removed.
    let plan = volume.write(a, 5, 3 * BLOCK).expect("its own blocks");
    volume.write_done(plan.id, NOW).expect("no log");
    volume.remove(root, b"a", NOW).expect("exists");
    let plan = volume.write(b, 0, 16 * BLOCK).expect("room");
    volume.write_done(plan.id, NOW).expect("no log");
    assert_eq!(volume.problems(), [""; 0]);
}

#[test]
fn full_memory_refuses_growth_and_permits_removal() {
    let mut volume = volume(1 << 20);
    let root = volume.root();
    let mut count = 0;
    let refused = loop {
        let name = format!("{count}");
        match volume.create(root, name.as_bytes(), &object(NewNode::File), NOW) {
            Ok(_) => count += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(refused, Error::NoSpace);
    assert!(volume.usage().memory_bytes <= volume.usage().memory_bytes_max);
    let inode = volume.lookup(root, b"0").expect("exists");
    let xattr = volume.set_xattr(inode, (b"x", &[0; 4096]), XattrMode::Either, NOW);
    assert_eq!(xattr, Err(Error::NoSpace));
    let set = SetAttributes {
        mode: Some(0),
        ..SetAttributes::default()
    };
    volume
        .set_attributes(inode, &set, NOW)
        .expect("needs no memory");
    for index in 0..count {
        volume
            .remove(root, format!("{index}").as_bytes(), NOW)
            .expect("exists");
    }
    assert_eq!(volume.usage().inodes, 1);
    file(&mut volume, b"again");
    assert_eq!(volume.problems(), [""; 0]);
}

#[test]
fn quotas_of_a_share_limit_objects_and_blocks() {
    let mut volume = volume(1 << 20);
    let root = volume.root();
    let share = ShareId(7);
    let begin = NewObject {
        share: Some(share),
        ..object(NewNode::Directory)
    };
    let directory = volume
        .create(root, b"share", &begin, NOW)
        .expect("room")
        .inode;
    volume.set_quota(share, 3, 4).expect("no log");
    let mut create = |name: &[u8]| volume.create(directory, name, &object(NewNode::File), NOW);
    let a = create(b"a").expect("within the quota").inode;
    create(b"b").expect("within the quota");
    assert_eq!(create(b"c"), Err(Error::Quota));
    let plan = volume.write(a, 0, 3 * BLOCK).expect("within the quota");
    assert_eq!(
        volume.write(a, 3 * BLOCK, 2 * BLOCK),
        Err(Error::Quota),
        "with that in flight"
    );
    volume.write_done(plan.id, NOW).expect("no log");
    assert_eq!(
        volume.allocate(a, 3 * BLOCK, 2 * BLOCK, NOW),
        Err(Error::Quota)
    );
    volume
        .allocate(a, 0, 4 * BLOCK, NOW)
        .expect("one block more");
    let b = volume.lookup(directory, b"b").expect("exists");
    let cloned = volume.clone_range((a, 0), (b, 0), 0, NOW);
    assert_eq!(cloned, Err(Error::Quota));
    let used = volume.share_use(share);
    assert_eq!((used.inodes, used.blocks), (3, 4));
    // Objects of different shares have no common directory.
    let moved = volume.rename((directory, b"a"), (root, b"a"), NOW);
    assert_eq!(moved, Err(Error::CrossShare));
    assert_eq!(volume.link(a, root, b"a", NOW), Err(Error::CrossShare));
    volume.remove(directory, b"a", NOW).expect("exists");
    assert_eq!(volume.share_use(share).blocks, 0);
    assert_eq!(volume.problems(), [""; 0]);
}

#[test]
fn lowered_quotas_leave_what_is_there_and_refuse_more() {
    let mut volume = volume(1 << 20);
    let (directory, part) = volume.part(b"team", NOW).expect("room");
    volume.set_quota(part, 10, 10).expect("no log");
    let create = |volume: &mut Volume, name: &[u8]| {
        volume.create(directory, name, &object(NewNode::File), NOW)
    };
    let a = create(&mut volume, b"a").expect("within the quota").inode;
    create(&mut volume, b"b").expect("within the quota");
    let plan = volume.write(a, 0, 5 * BLOCK).expect("within the quota");
    volume.write_done(plan.id, NOW).expect("no log");
    volume.set_quota(part, 1, 2).expect("no log");
    assert_eq!(create(&mut volume, b"c"), Err(Error::Quota));
    assert_eq!(
        volume.write(a, 5 * BLOCK, 1).expect_err("beyond"),
        Error::Quota
    );
    let plan = volume.write(a, 0, 5 * BLOCK).expect("needs no more blocks");
    volume.write_done(plan.id, NOW).expect("no log");
    let moved = volume.rename((directory, b"a"), (directory, b"z"), NOW);
    moved.expect("needs no further object");
    for name in [b"z", b"b"] {
        volume.remove(directory, name, NOW).expect("exists");
    }
    let used = volume.share_use(part);
    assert_eq!((used.inodes, used.blocks), (1, 0));
    assert_eq!(create(&mut volume, b"c"), Err(Error::Quota));
    volume.set_quota(part, u64::MAX, u64::MAX).expect("no log");
    create(&mut volume, b"c").expect("no quota");
    assert_eq!(volume.problems(), [""; 0]);
}

#[test]
fn parts_are_found_again_and_their_directories_stay() {
    let mut volume = volume(1 << 20);
    let root = volume.root();
    for (name, error) in [
        (&b""[..], Error::Invalid),
        (b"a/b", Error::Invalid),
        (b"..", Error::Invalid),
        (&[b'n'; 256], Error::NameTooLong),
    ] {
        assert_eq!(volume.part(name, NOW), Err(error), "{name:?}");
    }
    file(&mut volume, b"file");
    assert_eq!(volume.part(b"file", NOW), Err(Error::Exists));
    let directory = object(NewNode::Directory);
    volume
        .create(root, b"ordinary", &directory, NOW)
        .expect("room");
    assert_eq!(volume.part(b"ordinary", NOW), Err(Error::Exists));
    let one = volume.part(b"one", NOW).expect("room");
    let two = volume.part(b"two", NOW).expect("room");
    assert_ne!(one.1, two.1);
    assert_eq!(volume.part(b"one", NOW), Ok(one));
    assert_eq!(volume.remove(root, b"one", NOW), Err(Error::CrossShare));
    for (from, to) in [
        (&b"one"[..], &b"other"[..]),
        (b"one", b"two"),
        (b"ordinary", b"two"),
    ] {
        let moved = volume.rename((root, from), (root, to), NOW);
        assert_eq!(moved, Err(Error::CrossShare));
    }
    assert_eq!(volume.part(b"two", NOW), Ok(two));
    assert_eq!(volume.problems(), [""; 0]);
}

#[test]
fn volume_has_a_limit_of_parts() {
    let mut volume = Volume::volatile(&VolatileOptions {
        uuid: options().uuid,
        device_bytes: 1 << 20,
        memory_bytes: 4 << 20,
    });
    let mut names = (0_u32..).map(|number| number.to_string());
    let refused = names.find(|name| volume.part(name.as_bytes(), NOW).is_err());
    let refused = refused.expect("a limit");
    assert_eq!(volume.part(refused.as_bytes(), NOW), Err(Error::NoSpace));
    assert_eq!(refused, "1023", "with the root's own");
    volume.part(b"7", NOW).expect("it exists");
    file(&mut volume, b"file");
    assert_eq!(volume.problems(), [""; 0]);
}

#[test]
fn requests_beyond_limits_are_refused() {
    let mut volume = volume(1 << 20);
    let a = file(&mut volume, b"a");
    let refused = |result: Result<files_store::WritePlan, Error>| result.expect_err("refused");
    assert_eq!(refused(volume.write(a, 0, 0)), Error::Invalid);
    assert_eq!(
        refused(volume.write(a, 0, limits::WRITE_BYTES_MAX + 1)),
        Error::Invalid
    );
    assert_eq!(refused(volume.write(a, u64::MAX, 1)), Error::FileTooBig);
    assert_eq!(
        refused(volume.write(a, limits::FILE_BYTES_MAX, 1)),
        Error::FileTooBig
    );
    let set = SetAttributes {
        size: Some(limits::FILE_BYTES_MAX + 1),
        ..SetAttributes::default()
    };
    assert_eq!(volume.set_attributes(a, &set, NOW), Err(Error::FileTooBig));
    let value = vec![0; limits::XATTR_VALUE_BYTES_MAX + 1];
    let xattr = volume.set_xattr(a, (b"x", &value), XattrMode::Either, NOW);
    assert_eq!(xattr, Err(Error::XattrTooBig));
    // A sparse file of 1 TiB needs one block.
    let plan = volume.write(a, 1 << 40, 1).expect("one block");
    assert_eq!(
        volume.write(a, (1 << 40) + 9, 1),
        Err(Error::Busy),
        "the same block"
    );
    volume.write_done(plan.id, NOW).expect("no log");
    assert_eq!(volume.attributes(a).expect("exists").used, BLOCK);
}
