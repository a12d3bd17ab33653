//! Names that are none, in every operation with a name (RFC 8881 §14.5, §15.1.7).

use files_spec::Status;
use files_spec::operations::{OpenHow, Operation, OperationResult, RenameArgs};
use files_spec::types::CreateType;

use super::{FILE, encoded, opaque, send_bytes_behind};
use crate::client::{Client, World, at_share, name};
use crate::names::make;
use crate::opens::{open, open_file, unchecked};

/// Bytes that are not UTF-8: parts of sequences, sequences that are longer than necessary, halves
/// of pairs, and bytes that never occur.
pub(super) const NOT_UTF8: [&[u8]; 18] = [
    b"\xc0\xc1",
    b"\xe0\x8a",
    b"\xc0\xaf",
    b"\xc0\x90",
    b"\xfc\x80\x80\x80\x80\xaf",
    b"\xed\xa0\x80",
    b"\xed\xbf\xbf",
    b"\xe3\xc0\xc0",
    b"\x80",
    b"\xbf",
    b"\xfe",
    b"\xff",
    b"\xc0 ",
    b"\xdf ",
    b"\xe0 ",
    b"\xf0 ",
    b"\xf7 ",
    b"\xfd ",
];

/// Takes the place of a name that has no valid form.
const PLACEHOLDER: &str = "NAME";

/// The operations with a name, after others that make a current and a saved object.
fn operations() -> Vec<(Vec<Operation<'static>>, Operation<'static>)> {
    let it = PLACEHOLDER;
    let directory = at_share().to_vec();
    let mut of_two = directory.clone();
    of_two.push(Operation::SaveFh(()));
    let mut of_file = directory.clone();
    of_file.extend([Operation::Lookup(name(FILE)), Operation::SaveFh(())]);
    of_file.extend(at_share());
    let rename = |oldname, newname| {
        Operation::Rename(RenameArgs {
            oldname: name(oldname),
            newname: name(newname),
        })
    };
    vec![
        (directory.clone(), Operation::Lookup(name(it))),
        (directory.clone(), make(CreateType::Directory, it, 0o755)),
        (directory.clone(), open(it, b"o", (3, 0), unchecked())),
        (directory.clone(), open(it, b"o", (1, 0), OpenHow::NoCreate)),
        (directory.clone(), Operation::Remove(name(it))),
        (directory, Operation::SecInfo(name(it))),
        (of_file, Operation::Link(name(it))),
        (of_two.clone(), rename(it, "other")),
        (of_two, rename(FILE, it)),
    ]
}

/// An operation with other bytes in place of its name.
fn spelled(operation: &Operation<'_>, bytes: &[u8]) -> Vec<u8> {
    let whole = encoded(operation);
    let placeholder = opaque(PLACEHOLDER.as_bytes());
    let at = whole.windows(placeholder.len());
    let at = at.into_iter().position(|it| it == placeholder);
    let at = at.expect("it has the name");
    let (begin, end) = (&whole[..at], &whole[at + placeholder.len()..]);
    [begin, &opaque(bytes), end].concat()
}

#[test]
fn names_that_are_none_are_refused_by_every_operation() {
    let long = [b'a'; 256];
    let longer = [b'b'; 3000];
    let mut cases: Vec<(&[u8], Status)> = vec![
        (b"", Status::INVAL),
        (b".", Status::BADNAME),
        (b"..", Status::BADNAME),
        (b"a/b", Status::BADCHAR),
        (b"/", Status::BADCHAR),
        (b"a\0", Status::BADCHAR),
        (&long, Status::NAMETOOLONG),
        (&longer, Status::NAMETOOLONG),
    ];
    cases.extend(NOT_UTF8.map(|it| (it, Status::INVAL)));
    let mut world = World::new();
    let mut client = Client::new(&mut world, b"a");
    open_file(&mut world, &mut client, FILE);
    for (before, operation) in operations() {
        for (bytes, status) in &cases {
            let operation = spelled(&operation, bytes);
            let answer = send_bytes_behind(&mut world, &mut client, &before, operation);
            let number = answer.last().number();
            assert_eq!(answer.status(), *status, "{number:?} of {bytes:?}");
        }
    }
    assert_eq!(world.server.counts().2, 1);
}

#[test]
fn long_and_strange_names_are_names() {
    let long = [b'a'; 255];
    let names: [&[u8]; 6] = [
        &long,
        b"C:",
        b"aa\x01bb",
        b"...",
        " a b ".as_bytes(),
        "\u{fffe}\u{1f4be}".as_bytes(),
    ];
    for bytes in names {
        let mut world = World::new();
        let mut client = Client::new(&mut world, b"a");
        open_file(&mut world, &mut client, FILE);
        for (before, operation) in operations() {
            let operation = spelled(&operation, bytes);
            let answer = send_bytes_behind(&mut world, &mut client, &before, operation);
            // Nothing has the name before it is created.
            let missing = matches!(answer.last(), OperationResult::Lookup(_));
            let expected = match answer.last() {
                _ if missing => Status::NOENT,
                // The directory that CREATE has made.
                OperationResult::Open(_) => Status::ISDIR,
                // REMOVE has removed it.
                OperationResult::SecInfo(_) => Status::NOENT,
                _ => Status::OK,
            };
            assert_eq!(answer.status(), expected, "{bytes:?}: {:?}", answer.last());
        }
    }
}
