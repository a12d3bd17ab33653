//! GETATTR, VERIFY, NVERIFY and SETATTR for every attribute and every type of object
//! (RFC 8881 §5, §18.7, §18.30, §18.31).

use files_spec::attributes::{Attributes, number};
use files_spec::operations::{
    CreateHow, OpenHow, Operation, OperationNumber, OperationResult, Outcome, SetattrArgs, share,
};
use files_spec::types::{CreateType, ModeMasked, ModeUmask, StateId, Time};
use files_spec::{Bitmap, Status};

use super::{EVERY_TYPE, FILE, encoded, make_every_type, opaque, send_bytes_behind};
use crate::client::{Answer, Client, World, at_share, in_share, name};
use crate::names::make;
use crate::opens::{open, open_file, opened};

/// The attributes that every server has (RFC 8881 §5).
const REQUIRED: Bitmap = Bitmap::of(&[
    number::SUPPORTED_ATTRS,
    number::TYPE,
    number::FH_EXPIRE_TYPE,
    number::CHANGE,
    number::SIZE,
    number::LINK_SUPPORT,
    number::SYMLINK_SUPPORT,
    number::NAMED_ATTR,
    number::FSID,
    number::UNIQUE_HANDLES,
    number::LEASE_TIME,
    number::RDATTR_ERROR,
    number::FILEHANDLE,
    number::SUPPATTR_EXCLCREAT,
]);

fn attributes_of(answer: &Answer) -> Attributes<'_> {
    match answer.last() {
        OperationResult::GetAttr(Outcome::Ok(attributes)) => attributes,
        _ => panic!("{:?}", answer.parts()),
    }
}

fn set(obj_attributes: Attributes<'_>) -> Operation<'_> {
    set_by(StateId::ANONYMOUS, obj_attributes)
}

fn set_by(stateid: StateId, obj_attributes: Attributes<'_>) -> Operation<'_> {
    Operation::SetAttr(SetattrArgs {
        stateid,
        obj_attributes,
    })
}

fn mode(mode: u32) -> Attributes<'static> {
    Attributes {
        mode: Some(mode),
        ..Attributes::default()
    }
}

fn size(size: u64) -> Attributes<'static> {
    Attributes {
        size: Some(size),
        ..Attributes::default()
    }
}

/// The ways to every type of object, and to the root.
fn places() -> Vec<Vec<Operation<'static>>> {
    let mut places = vec![vec![Operation::PutRootFh(())], at_share().to_vec()];
    for it in EVERY_TYPE {
        places.push(in_share(&[Operation::Lookup(name(it))]));
    }
    places
}

fn at<'a>(place: &[Operation<'a>], operation: Operation<'a>) -> Vec<Operation<'a>> {
    [place, &[operation]].concat()
}

#[test]
fn every_object_has_the_required_attributes_and_they_verify() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, b"a");
    make_every_type(&mut world, &mut client);
    for place in places() {
        let answer = client.ok(&mut world, &at(&place, Operation::GetAttr(REQUIRED)));
        let all = attributes_of(&answer);
        assert_eq!(all.numbers(), REQUIRED);
        let supported = all.supported_attrs.expect("it is required");
        assert!(REQUIRED.difference(supported).is_empty());
        let verified = Attributes {
            rdattr_error: None,
            ..all
        };
        client.ok(&mut world, &at(&place, Operation::Verify(verified)));
        let same = at(&place, Operation::NVerify(verified));
        client.fails(&mut world, &same, Status::SAME);
        let other = Attributes {
            size: all.size.map(|it| it + 1),
            ..verified
        };
        let differs = at(&place, Operation::Verify(other));
        client.fails(&mut world, &differs, Status::NOT_SAME);
        client.ok(&mut world, &at(&place, Operation::NVerify(other)));
        for operation in [Operation::Verify, Operation::NVerify] {
            let error = Attributes {
                rdattr_error: Some(Status::OK),
                ..Attributes::default()
            };
            client.fails(&mut world, &at(&place, operation(error)), Status::INVAL);
        }
    }
}

#[test]
fn attributes_of_minor_version_2_exist_there_only() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, b"a");
    let asked = [number::SUPPORTED_ATTRS, number::XATTR_SUPPORT];
    let root = [
        Operation::PutRootFh(()),
        Operation::GetAttr(Bitmap::of(&asked)),
    ];
    for (minor_version, xattr_support) in [(1, None), (2, Some(true))] {
        client.minor_version = minor_version;
        let answer = client.ok(&mut world, &root);
        let found = attributes_of(&answer);
        assert_eq!(found.xattr_support, xattr_support);
        let supported = found.supported_attrs.expect("it is required");
        let is_supported = supported.contains(number::XATTR_SUPPORT);
        assert_eq!(is_supported, xattr_support.is_some());
    }
}

/// Clients of later minor versions ask for attributes with any number, and get those that exist.
#[test]
fn attributes_with_unknown_numbers_are_ignored_where_they_are_read() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, b"a");
    make_every_type(&mut world, &mut client);
    let units = |count: u32, first: u32, last: u32| {
        let mut bitmap = count.to_be_bytes().to_vec();
        bitmap.extend(first.to_be_bytes());
        bitmap.resize(4 * count as usize, 0);
        bitmap.extend(last.to_be_bytes());
        bitmap
    };
    let file = in_share(&[Operation::Lookup(name(FILE))]);
    let getattr = OperationNumber::GETATTR.0.to_be_bytes();
    // Number 1000 alone, and beside the type.
    for (first, expected) in [(0, Bitmap::EMPTY), (2, Bitmap::of(&[number::TYPE]))] {
        let operation = [&getattr[..], &units(32, first, 1 << 8)].concat();
        let answer = send_bytes_behind(&mut world, &mut client, &file, operation);
        assert_eq!(answer.status(), Status::OK);
        assert_eq!(attributes_of(&answer).numbers(), expected);
    }
    let endless = [&getattr[..], &u32::MAX.to_be_bytes()].concat();
    let answer = send_bytes_behind(&mut world, &mut client, &file, endless);
    assert_eq!(answer.status(), Status::BADXDR);
    // Where they are set or compared, they are not supported.
    let unknown = [units(32, 0, 1 << 8), opaque(&[0; 4])].concat();
    let acl_number: [u8; 8] = [0, 0, 0, 1, 0, 0, 0x10, 0];
    let acl = [acl_number.to_vec(), opaque(&[0; 4])].concat();
    for attributes in [unknown, acl] {
        let mut setattr = encoded(&set(Attributes::default()));
        // Bitmap and values are empty.
        setattr.truncate(setattr.len() - 8);
        setattr.extend(&attributes);
        let compared = [OperationNumber::VERIFY, OperationNumber::NVERIFY];
        let compared = compared.map(|it| [&it.0.to_be_bytes()[..], &attributes].concat());
        for operation in compared.into_iter().chain([setattr]) {
            let answer = send_bytes_behind(&mut world, &mut client, &file, operation);
            assert_eq!(answer.status(), Status::ATTRNOTSUPP);
        }
    }
}

/// What SETATTR does with the value that GETATTR returns, by attribute.
#[test]
fn attributes_are_set_or_refused_as_a_whole() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, b"a");
    client.minor_version = 2;
    make_every_type(&mut world, &mut client);
    let settable = Bitmap::of(&[
        number::SIZE,
        number::MODE,
        number::OWNER,
        number::OWNER_GROUP,
    ]);
    let file = in_share(&[Operation::Lookup(name(FILE))]);
    let mut read = 0;
    for number in files_spec::attributes::ALL.iter() {
        let get = Operation::GetAttr(Bitmap::of(&[number]));
        let answer = client.send(&mut world, &at(&file, get));
        if answer.status() == Status::INVAL {
            // It is only set.
            continue;
        }
        let value = attributes_of(&answer);
        if value.numbers().is_empty() {
            continue;
        }
        read += 1;
        let status = match settable.contains(number) {
            true => Status::OK,
            false => Status::INVAL,
        };
        client.fails(&mut world, &at(&file, set(value)), status);
    }
    assert!(read > 40);
    let backup = Attributes {
        time_backup: Some(Time {
            seconds: 0,
            nseconds: 0,
        }),
        ..Attributes::default()
    };
    let hidden = Attributes {
        hidden: Some(true),
        ..mode(0o600)
    };
    for unsupported in [backup, hidden] {
        let request = at(&file, set(unsupported));
        client.fails(&mut world, &request, Status::ATTRNOTSUPP);
    }
    let unchanged = Operation::Verify(mode(0o644));
    client.ok(&mut world, &at(&file, unchanged));
}

/// Clients choose by `suppattr_exclcreat` what they set with an exclusive creation.
#[test]
fn an_exclusive_creation_sets_what_the_server_tells() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, b"a");
    let chosen = Operation::GetAttr(Bitmap::of(&[number::SUPPATTR_EXCLCREAT]));
    let answer = client.ok(&mut world, &in_share(&[chosen]));
    let settable = attributes_of(&answer).suppattr_exclcreat;
    let expected = Bitmap::of(&[
        number::SIZE,
        number::MODE,
        number::OWNER,
        number::OWNER_GROUP,
        number::MODE_SET_MASKED,
    ]);
    assert_eq!(settable, Some(expected));
}

#[test]
fn modes_have_no_other_bits() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, b"a");
    client.minor_version = 2;
    make_every_type(&mut world, &mut client);
    let masked = |value_to_set, mask_bits| Attributes {
        mode_set_masked: Some(ModeMasked {
            value_to_set,
            mask_bits,
        }),
        ..Attributes::default()
    };
    let with_umask = |mode, umask| Attributes {
        mode_umask: Some(ModeUmask { mode, umask }),
        ..Attributes::default()
    };
    // The type of a regular file, and a bit that nothing has.
    for other in [0o100_000, 0x8000_0000] {
        let invalid = other | 0o644;
        let create = |attributes| OpenHow::Create(CreateHow::Guarded(attributes));
        let file = Operation::Lookup(name(FILE));
        for request in [
            in_share(&[file, set(mode(invalid))]),
            in_share(&[file, set(masked(invalid, 0o777))]),
            in_share(&[file, set(masked(0o644, invalid))]),
            in_share(&[file, set(with_umask(invalid, 0o22))]),
            in_share(&[file, Operation::Verify(mode(invalid))]),
            in_share(&[file, Operation::NVerify(mode(invalid))]),
            in_share(&[make(CreateType::Directory, "x", invalid)]),
            in_share(&[open("x", b"o", (3, 0), create(mode(invalid)))]),
            in_share(&[open("x", b"o", (3, 0), create(with_umask(invalid, 0)))]),
        ] {
            client.fails(&mut world, &request, Status::INVAL);
        }
    }
    let missing = in_share(&[Operation::Lookup(name("x"))]);
    client.fails(&mut world, &missing, Status::NOENT);
}

#[test]
fn values_have_exactly_the_length_of_their_attributes() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, b"a");
    make_every_type(&mut world, &mut client);
    let file = in_share(&[Operation::Lookup(name(FILE))]);
    let valid = encoded(&set(mode(0o600)));
    let without_values = &valid[..valid.len() - 8];
    for values in [&[][..], &[0, 0], &[0, 0, 1, 0x80, 0, 0, 0, 0]] {
        let operation = [without_values, &opaque(values)].concat();
        let answer = send_bytes_behind(&mut world, &mut client, &file, operation);
        assert_eq!(answer.status(), Status::BADXDR);
    }
    client.ok(&mut world, &at(&file, set(mode(0o600))));
}

#[test]
fn every_change_of_a_mode_changes_the_change_attribute() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, b"a");
    make_every_type(&mut world, &mut client);
    let change = Operation::GetAttr(Bitmap::of(&[number::CHANGE]));
    for it in EVERY_TYPE {
        let mut request = in_share(&[Operation::Lookup(name(it)), change]);
        for step in 0..4 {
            request.extend([set(mode(0o740 + step)), change]);
        }
        let answer = client.ok(&mut world, &request);
        let (_, results) = answer.parts();
        let changes = results.iter().filter_map(|it| match it {
            OperationResult::GetAttr(Outcome::Ok(attributes)) => attributes.change,
            _ => None,
        });
        let changes: Vec<u64> = changes.collect();
        assert_eq!(changes.len(), 5);
        assert!(changes.windows(2).all(|it| it[0] < it[1]), "{changes:?}");
        let verify = in_share(&[Operation::Lookup(name(it)), Operation::Verify(mode(0o743))]);
        client.ok(&mut world, &verify);
    }
}

/// The state identifier matters for a size only (RFC 8881 §18.30).
#[test]
fn a_size_is_set_with_the_right_of_a_writer() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, b"a");
    let own = open_file(&mut world, &mut client, "f");
    let foreign = open_file(&mut world, &mut client, "g");
    let read_only = open("f", b"reader", (share::ACCESS_READ, 0), OpenHow::NoCreate);
    let read_only = opened(&client.ok(&mut world, &in_share(&[read_only]))).stateid;
    let (special, bypass) = (StateId::ANONYMOUS, StateId::BYPASS);
    let cases = [
        (own, Status::OK),
        (special, Status::OK),
        (bypass, Status::OK),
        (foreign, Status::BAD_STATEID),
        (read_only, Status::OPENMODE),
        (StateId::CURRENT, Status::BAD_STATEID),
    ];
    for (stateid, status) in cases {
        let file = in_share(&[Operation::Lookup(name("f"))]);
        let grow = set_by(stateid, size(10));
        client.fails(&mut world, &at(&file, grow), status);
        client.ok(&mut world, &at(&file, set_by(stateid, mode(0o644))));
    }
    let deny = open(
        "g",
        b"owner",
        (share::ACCESS_READ, share::DENY_WRITE),
        OpenHow::NoCreate,
    );
    client.fails(&mut world, &in_share(&[deny]), Status::SHARE_DENIED);
    let deny = open(
        "h",
        b"owner",
        (share::ACCESS_READ, share::DENY_WRITE),
        crate::opens::unchecked(),
    );
    client.ok(&mut world, &in_share(&[deny]));
    let file = in_share(&[Operation::Lookup(name("h"))]);
    client.fails(&mut world, &at(&file, set(size(1))), Status::LOCKED);
}
