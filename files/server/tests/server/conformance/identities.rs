//! EXCHANGE_ID (RFC 8881 §18.35): all combinations of what is known of an owner and what is asked.

use files_server::limits::LEASE_MS;
use files_spec::Bitmap;
use files_spec::Status;
use files_spec::operations::{
    ExchangeIdArgs, Implementation, Operation, OperationResult, Outcome, ProtectionArgs,
    ProtectionOperations, SsvArgs, exchange_flags,
};
use files_spec::types::Time;
use files_spec::xdr::{List, Opaque, Text};

use super::{encoded, send_bytes};
use crate::client::{CHANNEL, Client, World, create_session, exchange};
use crate::opens::open_file;
use crate::sessions::exchanged;

const UPDATE: u32 = exchange_flags::UPDATE_CONFIRMED_REC_A;

/// What a second EXCHANGE_ID of an owner does.
#[derive(Debug, PartialEq, Eq)]
enum Ending {
    SameClient,
    NewClient,
    Refused(Status),
}

/// The case of RFC 8881 §18.35 that applies.
fn expected(is_confirmed: bool, has_verifier: bool, has_principal: bool, updates: bool) -> Ending {
    match (updates, is_confirmed, has_verifier, has_principal) {
        (true, false, ..) => Ending::Refused(Status::NOENT),
        (true, true, false, _) => Ending::Refused(Status::NOT_SAME),
        (true, true, true, false) => Ending::Refused(Status::PERM),
        (_, true, true, true) => Ending::SameClient,
        (false, ..) => Ending::NewClient,
    }
}

#[test]
fn every_combination_of_record_verifier_principal_and_update_has_its_ending() {
    for bits in 0..16 {
        let has = |bit: u32| bits & 1 << bit != 0;
        let (is_confirmed, has_verifier, has_principal, updates) = (has(0), has(1), has(2), has(3));
        let mut world = World::new();
        let (first, sequence, _) = exchanged(&world.send(&[exchange(b"a", 1, 0)]));
        if is_confirmed {
            let confirm = create_session(first, sequence, CHANNEL);
            assert_eq!(world.send(&[confirm]).status(), Status::OK);
        }
        world.uid = if has_principal { 0 } else { 9 };
        let verifier = if has_verifier { 1 } else { 2 };
        let flags = if updates { UPDATE } else { 0 };
        let answer = world.send(&[exchange(b"a", verifier, flags)]);
        let ending = match answer.last() {
            OperationResult::ExchangeId(Outcome::Ok(ok)) if ok.clientid == first => {
                assert_ne!(ok.flags & exchange_flags::CONFIRMED_R, 0);
                Ending::SameClient
            }
            OperationResult::ExchangeId(Outcome::Ok(ok)) => {
                assert_eq!(ok.flags & exchange_flags::CONFIRMED_R, 0);
                Ending::NewClient
            }
            result => Ending::Refused(result.status()),
        };
        let expected = expected(is_confirmed, has_verifier, has_principal, updates);
        assert_eq!(ending, expected, "{bits:04b}");
        // Only the record of a client that has restarted is kept beside the new one.
        let has_restarted = is_confirmed && has_principal;
        let known = if ending == Ending::NewClient && has_restarted {
            2
        } else {
            1
        };
        assert_eq!(world.server.counts().0, known, "{bits:04b}");
    }
}

#[test]
fn a_restarted_client_keeps_its_session_until_its_new_instance_is_confirmed() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, b"a");
    let (restarted, sequence, _) = exchanged(&world.send(&[exchange(b"a", 2, 0)]));
    client.ok(&mut world, &[]);
    let confirm = create_session(restarted, sequence, CHANNEL);
    assert_eq!(world.send(&[confirm]).status(), Status::OK);
    assert_eq!(client.send(&mut world, &[]).status(), Status::BADSESSION);
}

#[test]
fn the_owner_of_leased_state_is_in_use_for_other_principals() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, b"a");
    open_file(&mut world, &mut client, "f");
    world.uid = 9;
    let other = [exchange(b"a", 1, 0)];
    assert_eq!(world.send(&other).status(), Status::CLID_INUSE);
    world.advance(LEASE_MS + 1);
    assert_eq!(world.send(&other).status(), Status::OK);
    assert_eq!(client.send(&mut world, &[]).status(), Status::BADSESSION);
}

#[test]
fn flags_that_clients_do_not_have_are_refused() {
    let known = exchange_flags::REQUEST_MASK & !UPDATE;
    for minor_version in [1, 2] {
        for bit in (0..32).map(|it| 1_u32 << it).filter(|it| *it != UPDATE) {
            let mut world = World::new();
            let record = world.record(&[exchange(b"a", 1, bit)], minor_version);
            let is_fencing = minor_version == 2 && bit == exchange_flags::SUPP_FENCE_OPS;
            let expected = match known & bit != 0 || is_fencing {
                true => Status::OK,
                false => Status::INVAL,
            };
            let status = world.send_record(&record).status();
            assert_eq!(
                status, expected,
                "{bit:#x} in minor version {minor_version}"
            );
        }
    }
}

#[test]
fn a_client_may_exchange_another_identity_in_its_session() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, b"a");
    let data_server = exchange(b"b", 1, exchange_flags::USE_PNFS_DS);
    let (_, _, flags) = exchanged(&client.ok(&mut world, &[data_server]));
    assert_eq!(flags, exchange_flags::USE_NON_PNFS);
}

#[test]
fn an_implementation_is_named_at_most_once() {
    let mut world = World::new();
    let implementation = Implementation {
        domain: Text("example.org"),
        name: Text("suite"),
        date: Time {
            seconds: 1,
            nseconds: 2,
        },
    };
    for (count, status) in [(0, Status::OK), (1, Status::OK), (2, Status::BADXDR)] {
        let mut operation = encoded(&exchange(b"a", 1, 0));
        let count_at = operation.len() - 4;
        operation[count_at..].copy_from_slice(&u32::to_be_bytes(count));
        for _ in 0..count {
            operation.extend(encoded(&implementation));
        }
        assert_eq!(send_bytes(&mut world, &[operation], 1).status(), status);
    }
}

#[test]
fn protection_by_secret_values_is_not_supported() {
    let mut world = World::new();
    let Operation::ExchangeId(args) = exchange(b"a", 1, 0) else {
        panic!("an EXCHANGE_ID");
    };
    let algorithms = [
        Opaque(&b"\x06\x05\x2b\x0e\x03\x02\x1a"[..]),
        Opaque(b"unknown"),
    ];
    let secret_values = SsvArgs {
        ops: ProtectionOperations {
            must_enforce: Bitmap::of(&[43, 44]),
            must_allow: Bitmap::of(&[4]),
        },
        hash_algs: List::new(&algorithms),
        encr_algs: List::new(&algorithms),
        window: 4,
        num_gss_handles: 2,
    };
    let protected = Operation::ExchangeId(ExchangeIdArgs {
        state_protect: ProtectionArgs::Ssv(secret_values),
        ..args
    });
    let status = world.send(&[protected]).status();
    assert_eq!(status, Status::ENCR_ALG_UNSUPP);
}

/// A record that is not confirmed is forgotten after a lease, whenever the server looks.
#[test]
fn an_identity_is_confirmed_within_a_lease() {
    let mut world = World::new();
    let (late, sequence, _) = exchanged(&world.send(&[exchange(b"late", 1, 0)]));
    world.advance(LEASE_MS);
    let (early, _, _) = exchanged(&world.send(&[exchange(b"early", 1, 0)]));
    world.advance(1);
    let mut confirmed = |id| {
        world
            .send(&[create_session(id, sequence, CHANNEL)])
            .status()
    };
    assert_eq!(confirmed(late), Status::STALE_CLIENTID);
    assert_eq!(confirmed(early), Status::OK);
    assert_eq!(world.server.counts().0, 1);
}

#[test]
fn many_silent_clients_are_forgotten_at_once() {
    let mut world = World::new();
    for number in 0..100_u32 {
        let owner = number.to_be_bytes();
        match number % 2 {
            0 => assert_eq!(world.send(&[exchange(&owner, 1, 0)]).status(), Status::OK),
            _ => drop(Client::new(&mut world, &owner)),
        }
    }
    world.advance(LEASE_MS + 1);
    world.server.tick(&world.now);
    assert_eq!(world.server.counts(), (0, 0, 0));
}
