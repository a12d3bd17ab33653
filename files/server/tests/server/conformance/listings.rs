//! READDIR (RFC 8881 §18.23): limits, cookies and attributes.

use files_spec::attributes::number;
use files_spec::operations::Operation;
use files_spec::readdir::ReaddirArgs;
use files_spec::{Bitmap, Status};

use super::{DIRECTORY, EVERY_TYPE, make_every_type};
use crate::client::{Client, World, in_share, name};
use crate::names::{entries, list};

#[test]
fn a_listing_needs_room_for_its_first_entry() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, b"a");
    make_every_type(&mut world, &mut client);
    let empty = |operation| in_share(&[Operation::Lookup(name(DIRECTORY)), operation]);
    // The verifier, the end of the list and the end of the directory.
    for (maxcount, status) in [
        (0, Status::TOOSMALL),
        (15, Status::TOOSMALL),
        (16, Status::OK),
    ] {
        client.fails(&mut world, &empty(list(0, maxcount)), status);
    }
    let answer = client.ok(&mut world, &empty(list(0, 16)));
    assert_eq!(entries(&answer), (Vec::new(), true));
    for maxcount in [0, 16, 40] {
        let operations = in_share(&[list(0, maxcount)]);
        client.fails(&mut world, &operations, Status::TOOSMALL);
        // Also if the reply is to be kept.
        let kept = client.next_record(&mut world, &operations, true);
        assert_eq!(world.send_record(&kept).status(), Status::TOOSMALL);
    }
}

/// The limit of the session is not that of the request.
#[test]
fn a_listing_that_exceeds_the_session_is_too_big() {
    let mut world = World::new();
    let small = files_spec::operations::ChannelAttributes {
        maxresponsesize: 384,
        ..crate::client::CHANNEL
    };
    let mut client = Client::new(&mut world, b"a");
    let long = "l".repeat(255);
    let make = crate::names::make(files_spec::types::CreateType::Fifo, &long, 0o644);
    client.ok(&mut world, &in_share(&[make]));
    let mut client = Client::unreclaimed(&mut world, b"b", small);
    let operations = in_share(&[list(0, 4096)]);
    client.fails(&mut world, &operations, Status::REP_TOO_BIG);
}

#[test]
fn listings_of_any_length_have_every_entry_once() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, b"a");
    make_every_type(&mut world, &mut client);
    let mut expected = EVERY_TYPE.map(str::to_owned);
    expected.sort();
    for maxcount in [80, 100, 200, 4096] {
        let (mut cookie, mut found) = (0, Vec::new());
        loop {
            let answer = client.ok(&mut world, &in_share(&[list(cookie, maxcount)]));
            let (part, is_end) = entries(&answer);
            cookie = part.last().map_or(cookie, |it| it.1);
            found.extend(part.into_iter().map(|it| it.0));
            if is_end {
                break;
            }
        }
        found.sort();
        assert_eq!(found, expected, "{maxcount}");
    }
}

#[test]
fn reserved_cookies_other_verifiers_and_set_only_attributes_are_refused() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, b"a");
    make_every_type(&mut world, &mut client);
    let valid = ReaddirArgs {
        cookie: 0,
        cookieverf: [0; 8],
        dircount: 4096,
        maxcount: 4096,
        attr_request: Bitmap::EMPTY,
    };
    let with = |cookie, verifier, attribute: Option<u32>| {
        Operation::ReadDir(ReaddirArgs {
            cookie,
            cookieverf: [verifier; 8],
            attr_request: attribute.map_or(Bitmap::EMPTY, |it| Bitmap::of(&[it])),
            ..valid
        })
    };
    for (operation, status) in [
        (with(1, 0, None), Status::BAD_COOKIE),
        (with(2, 0, None), Status::BAD_COOKIE),
        (with(3, 1, None), Status::NOT_SAME),
        (with(0, 0, Some(number::TIME_ACCESS_SET)), Status::INVAL),
        (with(0, 0, Some(number::TIME_MODIFY_SET)), Status::INVAL),
        // Attributes that nobody knows are left out.
        (with(0, 0, Some(200)), Status::OK),
        (with(0, 0, None), Status::OK),
    ] {
        client.fails(&mut world, &in_share(&[operation]), status);
    }
}
