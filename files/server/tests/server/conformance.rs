//! Rules of RFC 8881 and RFC 7862 that Linux's client does not rely on, but that others and
//! independent suites check: every case of a rule, for every type of object.

mod attributes;
mod compounds;
mod courtesy;
mod creations;
mod identities;
mod listings;
mod objects;
mod opens;
mod spelling;

use files_spec::operations::Operation;
use files_spec::types::{CreateType, DeviceNumber};
use files_spec::xdr::{Encoder, Opaque, Xdr};

use crate::client::{Answer, Client, World, in_share};
use crate::names::make;
use crate::opens::open_file;

/// Name of a directory.
const DIRECTORY: &str = "directory";
/// Name of a regular file.
const FILE: &str = "file";
/// Name of a symbolic link.
const LINK: &str = "link";
/// Names of objects that are none of these.
const SPECIAL: [&str; 4] = ["block", "character", "socket", "fifo"];
/// Names of one object of each type.
const EVERY_TYPE: [&str; 7] = [
    DIRECTORY, FILE, LINK, SPECIAL[0], SPECIAL[1], SPECIAL[2], SPECIAL[3],
];

/// What creates an object of this name.
fn kind_of(name: &str) -> CreateType<'static> {
    let device = DeviceNumber { major: 1, minor: 2 };
    match name {
        DIRECTORY => CreateType::Directory,
        LINK => CreateType::Link(Opaque(b"/a/b")),
        "block" => CreateType::Block(device),
        "character" => CreateType::Character(device),
        "socket" => CreateType::Socket,
        _ => CreateType::Fifo,
    }
}

/// Creates one object of each type in the directory of the share.
fn make_every_type(world: &mut World, client: &mut Client) {
    for name in EVERY_TYPE {
        match name {
            FILE => {
                open_file(world, client, FILE);
            }
            name => {
                let make = make(kind_of(name), name, 0o755);
                client.ok(world, &in_share(&[make]));
            }
        }
    }
}

/// The bytes of an item.
fn encoded<'a>(item: &impl Xdr<'a>) -> Vec<u8> {
    let mut memory = vec![0; 4096];
    let mut to = Encoder::new(&mut memory);
    item.encode(&mut to).expect("it fits");
    to.written().to_vec()
}

/// The bytes of opaque data that may exceed limits.
fn opaque(bytes: &[u8]) -> Vec<u8> {
    let mut all = (bytes.len() as u32).to_be_bytes().to_vec();
    all.extend_from_slice(bytes);
    all.resize(all.len().next_multiple_of(4), 0);
    all
}

/// The record of operations in their bytes, which may be malformed.
fn record_of(world: &mut World, operations: &[Vec<u8>], minor_version: u32) -> Vec<u8> {
    let mut record = world.record(&[], minor_version);
    let count_at = record.len() - 4;
    record[count_at..].copy_from_slice(&(operations.len() as u32).to_be_bytes());
    record.extend(operations.iter().flatten());
    record
}

/// Sends operations in their bytes without a session.
fn send_bytes(world: &mut World, operations: &[Vec<u8>], minor_version: u32) -> Answer {
    let record = record_of(world, operations, minor_version);
    world.send_record(&record)
}

/// Sends operations, the last one in its bytes, behind SEQUENCE.
fn send_bytes_behind(
    world: &mut World,
    client: &mut Client,
    before: &[Operation<'_>],
    last: Vec<u8>,
) -> Answer {
    client.sequence += 1;
    let mut operations = vec![encoded(&Operation::Sequence(client.sequence_args()))];
    operations.extend(before.iter().map(encoded));
    operations.push(last);
    send_bytes(world, &operations, client.minor_version)
}
