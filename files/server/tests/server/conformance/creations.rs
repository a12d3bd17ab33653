//! CREATE_SESSION, DESTROY_SESSION, DESTROY_CLIENTID and BACKCHANNEL_CTL (RFC 8881 §18.33, §18.36,
//! §18.37, §18.50).

use files_server::limits::SESSIONS_PER_CLIENT_MAX;
use files_spec::operations::{
    BackchannelArgs, CallbackGss, CallbackSecurity, ChannelAttributes, CreateSessionArgs,
    CreateSessionOk, Operation, OperationResult, Outcome, SequenceArgs,
};
use files_spec::rpc::AuthSys;
use files_spec::xdr::{List, Opaque};
use files_spec::{Bitmap, Status};

use super::{encoded, send_bytes};
use crate::client::{Answer, CHANNEL, Client, World, create_session, exchange, in_share};
use crate::opens::open_file;
use crate::sessions::exchanged;

/// A client that is not confirmed: its number, and the next sequence number.
fn unconfirmed(world: &mut World, owner: &[u8]) -> (u64, u32) {
    let (id, sequence, _) = exchanged(&world.send(&[exchange(owner, 1, 0)]));
    (id, sequence)
}

fn created(answer: &Answer) -> CreateSessionOk {
    match answer.last() {
        OperationResult::CreateSession(Outcome::Ok(ok)) => ok,
        _ => panic!("{:?}", answer.parts()),
    }
}

/// CREATE_SESSION with other arguments.
fn changed(
    (id, sequence): (u64, u32),
    change: impl FnOnce(&mut CreateSessionArgs<'_>),
) -> Operation<'static> {
    let Operation::CreateSession(mut args) = create_session(id, sequence, CHANNEL) else {
        panic!("a CREATE_SESSION");
    };
    change(&mut args);
    Operation::CreateSession(CreateSessionArgs {
        sec_parms: List::new(&[]),
        ..args
    })
}

#[test]
fn a_session_is_created_in_another_one_and_repeated_outside() {
    let mut world = World::new();
    let mut first = Client::new(&mut world, b"a");
    let (id, sequence) = unconfirmed(&mut world, b"b");
    for (id, sequence) in [(id, sequence), (id, sequence + 1), (first.id, 2)] {
        let create = create_session(id, sequence, CHANNEL);
        let inside = created(&first.ok(&mut world, &[create]));
        let outside = created(&world.send(&[create]));
        assert_eq!(inside, outside);
        assert_eq!(inside.sequence, sequence);
        let again = created(&first.ok(&mut world, &[create]));
        assert_eq!(inside, again);
    }
    assert_eq!(world.server.counts().1, 4);
}

/// A second session shares nothing with the first one but the client.
#[test]
fn a_client_continues_with_its_second_session() {
    let mut world = World::new();
    let mut first = Client::new(&mut world, b"a");
    open_file(&mut world, &mut first, "f");
    let create = create_session(first.id, 2, CHANNEL);
    let mut second = Client {
        session: created(&world.send(&[create])).sessionid,
        sequence: 0,
        ..first
    };
    second.ok(&mut world, &[Operation::PutRootFh(())]);
    let destroy = Operation::DestroySession(first.session);
    assert_eq!(world.send(&[destroy]).status(), Status::OK);
    second.ok(&mut world, &[Operation::PutRootFh(())]);
    assert_eq!(first.send(&mut world, &[]).status(), Status::BADSESSION);
    assert_eq!(world.server.counts().2, 1);
}

/// Arguments that can never succeed have no effect, so that they may be corrected under the same
/// sequence number as under the next one.
#[test]
fn refused_arguments_may_be_corrected() {
    let small = ChannelAttributes {
        maxrequestsize: 20,
        ..CHANNEL
    };
    for next in [0, 1] {
        let mut world = World::new();
        let (id, sequence) = unconfirmed(&mut world, b"a");
        let invalid = [
            changed((id, sequence), |it| it.flags = 8),
            changed((id, sequence), |it| it.fore_chan_attrs = small),
            changed((id, sequence), |it| it.back_chan_attrs = small),
            changed((id, sequence), |it| it.back_chan_attrs.maxoperations = 1),
        ];
        let expected = [
            Status::INVAL,
            Status::TOOSMALL,
            Status::TOOSMALL,
            Status::TOOSMALL,
        ];
        for (operation, status) in invalid.into_iter().zip(expected) {
            assert_eq!(world.send(&[operation]).status(), status);
            assert_eq!(world.send(&[operation]).status(), status);
        }
        let valid = [create_session(id, sequence + next, CHANNEL)];
        let first = created(&world.send(&valid));
        assert_eq!(created(&world.send(&valid)), first);
        // It is executed now, whatever its arguments are.
        let repeated = changed((id, sequence + next), |it| it.flags = 8);
        assert_eq!(created(&world.send(&[repeated])), first);
        assert_eq!(world.server.counts().1, 1);
    }
}

/// A failure for lack of room is kept like a success.
#[test]
fn a_lack_of_room_is_repeated_too() {
    let mut world = World::new();
    let (id, mut sequence) = unconfirmed(&mut world, b"a");
    let mut last = None;
    for _ in 0..SESSIONS_PER_CLIENT_MAX {
        last = Some(created(
            &world.send(&[create_session(id, sequence, CHANNEL)]),
        ));
        sequence += 1;
    }
    let refused = [create_session(id, sequence, CHANNEL)];
    assert_eq!(world.send(&refused).status(), Status::NOSPC);
    let destroy = Operation::DestroySession(last.expect("a session").sessionid);
    assert_eq!(world.send(&[destroy]).status(), Status::OK);
    assert_eq!(world.send(&refused).status(), Status::NOSPC);
    let next = [create_session(id, sequence + 1, CHANNEL)];
    assert_eq!(world.send(&next).status(), Status::OK);
}

#[test]
fn a_session_without_slots_for_callbacks_has_no_least_sizes_for_them() {
    let mut world = World::new();
    let client = unconfirmed(&mut world, b"a");
    let none = ChannelAttributes {
        headerpadsize: 0,
        maxrequestsize: 0,
        maxresponsesize: 0,
        maxresponsesize_cached: 0,
        maxoperations: 0,
        maxrequests: 0,
        rdma_ird: None,
    };
    let create = changed(client, |it| it.back_chan_attrs = none);
    assert_eq!(world.send(&[create]).status(), Status::OK);
}

#[test]
fn callbacks_have_any_security() {
    let mut world = World::new();
    let sys = |gids| {
        CallbackSecurity::Sys(AuthSys {
            stamp: 5,
            machinename: Opaque(b"a machine"),
            uid: 7,
            gid: 11,
            gids: List::new(gids),
        })
    };
    let gss = CallbackSecurity::Gss(CallbackGss {
        service: 3,
        handle_from_server: Opaque(b"of the server"),
        handle_from_client: Opaque(b"of the client"),
    });
    let (with, without) = (sys(&[13, 17, 19]), sys(&[]));
    let lists = [
        [CallbackSecurity::None, with, gss],
        [CallbackSecurity::None, gss, without],
    ];
    let mut client = Client::new(&mut world, b"a");
    for (sequence, list) in (2..).zip(&lists) {
        let Operation::CreateSession(args) = create_session(client.id, sequence, CHANNEL) else {
            panic!("a CREATE_SESSION");
        };
        let create = Operation::CreateSession(CreateSessionArgs {
            sec_parms: List::new(list),
            ..args
        });
        assert_eq!(world.send(&[create]).status(), Status::OK);
        // There are no contexts of RPCSEC_GSS that a client could name later.
        let control = |list| {
            Operation::BackchannelCtl(BackchannelArgs {
                cb_program: 0x4000_0001,
                sec_parms: List::new(list),
            })
        };
        client.fails(&mut world, &[control(list)], Status::NOENT);
        client.ok(&mut world, &[control(&list[..1])]);
        let outside = world.send(&[control(&list[..1])]);
        assert_eq!(outside.status(), Status::OP_NOT_IN_SESSION);
    }
}

/// The limit of RDMA reads is optional, the flavor of callbacks one of three.
#[test]
fn malformed_arguments_are_refused_as_such() {
    let mut world = World::new();
    let (id, sequence) = unconfirmed(&mut world, b"a");
    let valid = encoded(&create_session(id, sequence, CHANNEL));
    // Number, client, sequence number, flags and six limits come before the optional one.
    let ird_at = 4 + 8 + 4 + 4 + 6 * 4;
    for (ird, status) in [(vec![2, 13, 57], Status::BADXDR), (vec![1, 57], Status::OK)] {
        let mut operation = valid[..ird_at].to_vec();
        operation.extend(ird.iter().flat_map(|it: &u32| it.to_be_bytes()));
        operation.extend_from_slice(&valid[ird_at + 4..]);
        assert_eq!(send_bytes(&mut world, &[operation], 1).status(), status);
    }
    let mut flavor = encoded(&create_session(id, sequence + 1, CHANNEL));
    let count_at = flavor.len() - 4;
    flavor[count_at..].copy_from_slice(&1_u32.to_be_bytes());
    flavor.extend(2_u32.to_be_bytes());
    let status = send_bytes(&mut world, &[flavor], 1).status();
    assert_eq!(status, Status::BADXDR);
}

#[test]
fn replies_have_the_limits_of_a_small_channel() {
    let mut world = World::new();
    let small = ChannelAttributes {
        maxrequestsize: 400,
        maxresponsesize: 400,
        maxresponsesize_cached: 400,
        ..CHANNEL
    };
    let mut client = Client::unreclaimed(&mut world, b"a", small);
    client.ok(&mut world, &[Operation::ReclaimComplete(false)]);
    let all = Operation::GetAttr(Bitmap::of(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 19]));
    let root = Operation::PutRootFh(());
    client.ok(&mut world, &[root, all]);
    let answer = client.send(&mut world, &[root, all, all, all, all]);
    assert_eq!(answer.status(), Status::REP_TOO_BIG);
    // A change still has room.
    let open = crate::opens::open("f", b"o", (1, 0), crate::opens::unchecked());
    client.ok(&mut world, &in_share(&[open]));
}

#[test]
fn a_reply_that_cannot_be_kept_fails_with_sequence_and_without_effect() {
    let mut world = World::new();
    let small = ChannelAttributes {
        maxresponsesize_cached: 10,
        ..CHANNEL
    };
    let mut client = Client::unreclaimed(&mut world, b"a", small);
    let kept = client.next_record(&mut world, &[], true);
    let answer = world.send_record(&kept);
    assert_eq!(answer.status(), Status::REP_TOO_BIG_TO_CACHE);
    client.sequence -= 1;
    client.ok(&mut world, &[]);
}

#[test]
fn sessions_and_clients_are_made_and_destroyed_alone_without_a_session() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, b"a");
    let (id, sequence) = unconfirmed(&mut world, b"b");
    let root = Operation::PutRootFh(());
    let alone = [
        create_session(id, sequence, CHANNEL),
        Operation::DestroySession(client.session),
        Operation::DestroyClientId(0),
    ];
    for operation in alone {
        let status = world.send(&[operation, root]).status();
        assert_eq!(status, Status::NOT_ONLY_OP);
    }
    let own = Operation::DestroySession(client.session);
    client.fails(&mut world, &[own, root][..1], Status::OK);
    let mut client = Client::new(&mut world, b"c");
    let own = Operation::DestroySession(client.session);
    let answer = client.send(&mut world, &[own, root]);
    assert_eq!(answer.status(), Status::NOT_ONLY_OP);
    client.ok(&mut world, &[]);
}

#[test]
fn clients_are_destroyed_by_their_number_from_anywhere() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, b"a");
    let destroy = Operation::DestroyClientId;
    client.fails(&mut world, &[destroy(client.id)], Status::CLIENTID_BUSY);
    client.fails(&mut world, &[destroy(0)], Status::STALE_CLIENTID);
    assert_eq!(world.send(&[destroy(0)]).status(), Status::STALE_CLIENTID);
    let (outside, _) = unconfirmed(&mut world, b"b");
    assert_eq!(world.send(&[destroy(outside)]).status(), Status::OK);
    let (inside, _) = unconfirmed(&mut world, b"c");
    client.ok(&mut world, &[destroy(inside)]);
    client.fails(&mut world, &[destroy(inside)], Status::STALE_CLIENTID);
    assert_eq!(world.server.counts().0, 1);
}

/// RFC 8881 §18.46: slots are counted for themselves.
#[test]
fn every_slot_has_its_own_sequence() {
    let mut world = World::new();
    let client = Client::new(&mut world, b"a");
    let sequence = |sequenceid, slotid| {
        Operation::Sequence(SequenceArgs {
            sequenceid,
            slotid,
            highest_slotid: 3,
            cachethis: true,
            ..client.sequence_args()
        })
    };
    for (sequenceid, slotid, status) in [
        (1, 2, Status::OK),
        (3, 2, Status::SEQ_MISORDERED),
        (0, 2, Status::SEQ_MISORDERED),
        (2, 2, Status::OK),
        (1, 3, Status::OK),
        (1, 8, Status::BADSLOT),
    ] {
        let answer = world.send(&[sequence(sequenceid, slotid)]);
        assert_eq!(answer.status(), status, "{sequenceid} of slot {slotid}");
        if let OperationResult::Sequence(Outcome::Ok(ok)) = answer.last() {
            assert_eq!((ok.sequenceid, ok.slotid), (sequenceid, slotid));
            assert_eq!(ok.sessionid, client.session);
        }
    }
}
