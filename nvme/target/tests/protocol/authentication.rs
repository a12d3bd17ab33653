//! Authentication by DH-HMAC-CHAP: who executes commands, what happens to invalid exchanges, and
//! that one host does not delay others.

mod concatenation;

use std::net::IpAddr;
use std::sync::Arc;

use nvme_authentication::{
    Action, Authenticated, Channel, Group, Initiator, Key, MESSAGE_BYTES_MAX, Policy, Queue,
    SystemRandom,
};
use nvme_keys::{ChapSecret, Hash};
use nvme_spec::authentication::{FailureExplanation, MessageId};
use nvme_spec::command::FeatureId;
use nvme_spec::fabrics::{FabricsType, PropertySize};
use nvme_spec::registers::{Cc, Register};
use nvme_spec::sgl::SglDescriptor;
use nvme_spec::{Sqe, Status, U32};
use nvme_target::{
    CloseReason, Concatenation, ConnectOutcome, HostAuthentication, NamedSecret, SubsystemConfig,
    TargetError,
};
use reactors::Nanos;
use zerocopy::IntoBytes;

use crate::harness::{
    ConnectOptions, HOST, LIMITS, Link, RAM, Reply, STRANGER, SUBSYSTEM, World, discovery_call,
};

const TRANSACTION: u16 = 7;
/// Time of a refused message.
const DELAY: Nanos = Nanos::from_millis(100);

fn secret(byte: u8) -> ChapSecret {
    ChapSecret::new(Hash::Sha256, &[byte; 32]).unwrap()
}

fn named(name: &str, byte: u8) -> NamedSecret {
    NamedSecret {
        name: name.to_owned(),
        secret: Arc::new(secret(byte)),
    }
}

fn required() -> HostAuthentication {
    HostAuthentication {
        required: true,
        keys: vec![named("old", 1), named("new", 2)],
        controller_key: Some(named("own", 9)),
        null_group: true,
        concatenation: Concatenation::Off,
    }
}

/// A world in which HOST has these settings.
fn world(settings: HostAuthentication) -> World {
    World::with(2, LIMITS, |config| {
        config.subsystems[0].authentication = [(HOST.to_owned(), Arc::new(settings))].into();
    })
}

fn change(world: &mut World, settings: Option<HostAuthentication>) {
    let all = crate::harness::config(&world.devices());
    let settings = settings.map(|settings| (HOST.to_owned(), Arc::new(settings)));
    let changed = SubsystemConfig {
        authentication: settings.into_iter().collect(),
        ..all.subsystems[0].clone()
    };
    world.target.update_subsystem(changed).unwrap();
    world.settle();
}

/// The host's side with these secrets and groups.
fn host(key: u8, controller: Option<u8>, groups: &[Group]) -> Initiator {
    let transformed = |byte, nqn: &str| Key::new(secret(byte).transformed(nqn).expose()).unwrap();
    let queue = Queue {
        host_nqn: HOST.to_owned(),
        subsystem_nqn: SUBSYSTEM.to_owned(),
        is_admin: true,
        channel: Channel::Plain,
        host_keys: [transformed(key, HOST)].into_iter().collect(),
        controller_key: controller.map(|byte| transformed(byte, SUBSYSTEM)),
    };
    let policy = Policy {
        groups: groups.iter().copied().collect(),
        ..Policy::default()
    };
    Initiator::new(queue, policy)
}

/// Sends a message; `None` if the command is not complete when all exponentiations are.
fn try_send(world: &mut World, link: Link, message: &[u8]) -> Result<Reply, u64> {
    let sqe = Sqe::authentication_send(message.len() as u32);
    let sgl = SglDescriptor::in_capsule(0, message.len() as u32);
    let tag = match world.start(link, sqe.with_cid(world.cid()).with_sgl(sgl), message) {
        Ok(reply) => return Ok(reply),
        Err(tag) => tag,
    };
    while world.target.run_exponentiation() {}
    world.settle();
    world.take_reply(link.node, tag).ok_or(tag)
}

fn send(world: &mut World, link: Link, message: &[u8]) {
    let sent = try_send(world, link, message);
    sent.expect("complete").ok();
}

fn receive(world: &mut World, link: Link) -> Reply {
    world.read(link, Sqe::authentication_receive(4096), 4096)
}

/// The explanation of AUTH_Failure1, which a refused message has after the delay; the connection
/// then ends.
#[track_caller]
fn refusal(world: &mut World, link: Link, sent: Result<Reply, u64>) -> FailureExplanation {
    let tag = sent.expect_err("a refused message waits");
    world.advance(Nanos(DELAY.0 - 1));
    assert!(world.take_reply(link.node, tag).is_none(), "a delay");
    world.advance(Nanos(1));
    world.take_reply(link.node, tag).expect("complete").ok();
    assert_eq!(world.closes(link.node), [], "the host takes the message");
    let message = receive(world, link).ok();
    assert_eq!(message[1], MessageId::FAILURE1.0);
    world.settle();
    let reasons = world.close_reasons(link.node);
    assert_eq!(reasons, [CloseReason::AuthenticationFailed]);
    FailureExplanation(message[7])
}

/// Runs a whole transaction. `Err`: why the controller refused.
#[track_caller]
fn authenticate(
    world: &mut World,
    link: Link,
    host: &mut Initiator,
) -> Result<Authenticated, FailureExplanation> {
    let action = host.start(TRANSACTION, 0);
    go_on(world, link, host, action)
}

/// Runs the rest of a transaction.
#[track_caller]
fn go_on(
    world: &mut World,
    link: Link,
    host: &mut Initiator,
    mut action: Action,
) -> Result<Authenticated, FailureExplanation> {
    loop {
        let message = match action {
            Action::Compute(exponentiation) => {
                action = host.computed(&exponentiation.run(), &mut SystemRandom, 0);
                continue;
            }
            Action::Send(message) => message,
            Action::SendAndFinish(message, authenticated) => {
                send(world, link, &message);
                return Ok(authenticated);
            }
            Action::Finish(authenticated) => return Ok(authenticated),
            other => panic!("the host stops: {other:?}"),
        };
        match try_send(world, link, &message) {
            Ok(reply) => reply.ok(),
            sent => return Err(refusal(world, link, sent)),
        };
        let answer = receive(world, link).ok();
        action = host.receive(&answer, &mut SystemRandom, 0);
    }
}

fn admin(world: &mut World) -> Link {
    world.connect(0, &ConnectOptions::default())
}

/// An enabled controller and its I/O queue, both authenticated.
fn authenticated(world: &mut World) -> (Link, Link) {
    let admin = admin(world);
    authenticate(world, admin, &mut host(1, None, &[Group::Null])).unwrap();
    world.set_cc(admin, Cc::enabled_nvm());
    let io = world.io_queue(1, admin, 1);
    authenticate(world, io, &mut host(1, None, &[Group::Null])).unwrap();
    (admin, io)
}

/// Whether the response to a Connect requires authentication.
fn requires(world: &mut World, node: usize, call: &ConnectOptions<'_>) -> bool {
    let (arrival, now) = (world.arrival(node, call), world.now);
    let core = &mut world.nodes[node].core;
    match core.connect(&arrival, &call.sqe(), call.data().as_bytes(), now) {
        ConnectOutcome::Accepted { response, .. } => {
            assert!(!response.connect_success().authreq().secure_channel());
            response.connect_success().authreq().authentication()
        }
        ConnectOutcome::Rejected(response) => panic!("{}", response.status()),
    }
}

#[test]
fn a_host_executes_commands_after_its_authentication() {
    for (controller, groups) in [
        (None, &[Group::Null][..]),
        (Some(9), &[Group::Null]),
        (None, &[Group::Null, Group::Ffdhe2048]),
        (Some(9), &[Group::Ffdhe3072]),
    ] {
        let mut world = world(required());
        let link = admin(&mut world);
        let result = authenticate(&mut world, link, &mut host(2, controller, groups)).unwrap();
        assert_eq!(result.bidirectional, controller.is_some());
        // The null group is used only if there is no other.
        assert_eq!(result.group, *groups.last().unwrap());
        world.set_cc(link, Cc::enabled_nvm());
        let io = world.io_queue(1, link, 1);
        world
            .read(io, Sqe::read(RAM, 0, 0), 512)
            .is(AUTHENTICATION_REQUIRED);
        authenticate(&mut world, io, &mut host(1, controller, groups)).unwrap();
        world.read_blocks(io, RAM, 0, 1);
        let controllers = world.target.snapshot().controllers;
        let of_admin = controllers[0].authentication.as_ref().unwrap();
        assert_eq!(of_admin.key, "new");
        assert_eq!(of_admin.controller_key.is_some(), controller.is_some());
        let of_io = controllers[0].io_queues[0].authentication.as_ref().unwrap();
        assert_eq!((of_io.key.as_str(), of_io.group), ("old", result.group));
        let uses = world.target.key_uses();
        assert_eq!((uses["new"].count, uses["old"].count), (1, 1));
        world.close(io);
        let controllers = world.target.snapshot().controllers;
        assert!(controllers[0].io_queues.is_empty());
    }
}

const AUTHENTICATION_REQUIRED: Status = Status::AUTHENTICATION_REQUIRED.with_dnr();

/// Base 2.1 §6.3, AUTHREQ: every queue of a host that has to authenticate itself.
#[test]
fn connect_says_who_has_to_authenticate() {
    let call = ConnectOptions::default();
    let stranger = ConnectOptions {
        host: STRANGER,
        ..call
    };
    let mut world = world(required());
    assert!(requires(&mut world, 0, &call));
    assert!(!requires(&mut world, 0, &stranger));
    assert!(!requires(&mut world, 0, &discovery_call()));
    let (admin, _) = authenticated(&mut world);
    let second = ConnectOptions {
        cntlid: admin.info.controller_id,
        qid: 2,
        ..call
    };
    assert!(requires(&mut world, 1, &second));
    let allowed = HostAuthentication {
        required: false,
        ..required()
    };
    change(&mut world, Some(allowed));
    assert!(!requires(&mut world, 0, &call));
}

#[test]
fn nothing_but_authentication_passes_an_unauthenticated_queue() {
    let mut world = world(required());
    let link = admin(&mut world);
    let refused = [
        Sqe::get_property(Register::CAP.0, PropertySize::BYTES_8),
        Sqe::set_property(Register::CC.0, PropertySize::BYTES_4, 1),
        Sqe::keep_alive(),
        Sqe::async_event_request(),
        Sqe::get_feature(
            FeatureId::ARBITRATION,
            nvme_spec::command::FeatureSelect::CURRENT,
            0,
            0,
        ),
        Sqe::disconnect_queue(),
        Sqe::new(0xff, 0),
    ];
    for sqe in refused {
        world.command(link, sqe).is(AUTHENTICATION_REQUIRED);
    }
    authenticate(&mut world, link, &mut host(1, None, &[Group::Null])).unwrap();
    world.set_cc(link, Cc::enabled_nvm());
    let io = world.io_queue(0, link, 1);
    let refused = [
        Sqe::read(RAM, 0, 0).with_sgl(SglDescriptor::transport(512)),
        Sqe::write(RAM, 0, 0, false).with_sgl(SglDescriptor::transport(512)),
        Sqe::read(99, 0, 0).with_sgl(SglDescriptor::transport(512)),
        Sqe::flush(RAM),
        Sqe::disconnect_queue(),
        Sqe::new(0xff, 0),
    ];
    for sqe in refused {
        world.command(io, sqe).is(AUTHENTICATION_REQUIRED);
    }
    // Neither inline: it is not even looked at.
    let read = Sqe::read(RAM, 0, 0).with_sgl(SglDescriptor::transport(512));
    let now = world.now;
    let inline = world.nodes[0]
        .core
        .complete_inline(io.queue, &read, None, now);
    assert!(inline.is_none());
}

#[test]
fn a_wrong_key_ends_the_connection_after_a_delay() {
    let mut world = world(required());
    let link = admin(&mut world);
    for groups in [&[Group::Null][..], &[Group::Ffdhe2048]] {
        let link = if groups[0] == Group::Null {
            link
        } else {
            admin(&mut world)
        };
        let refused = authenticate(&mut world, link, &mut host(3, None, groups));
        assert_eq!(
            refused.unwrap_err(),
            FailureExplanation::AUTHENTICATION_FAILED
        );
        world
            .command(link, Sqe::keep_alive())
            .is(AUTHENTICATION_REQUIRED_OR_ENDED);
        world.close(link);
    }
    let failed = world.nodes[0].core.counters().authentications_failed.get();
    assert_eq!(failed, 2);
    assert!(world.target.key_uses().is_empty());
}

/// Sends the first message of a host without a Diffie-Hellman group. Returns it, and the host's
/// reply to the challenge, which is not sent.
fn reply_to_challenge(world: &mut World, link: Link, peer: &mut Initiator) -> [Vec<u8>; 2] {
    let Action::Send(negotiate) = peer.start(TRANSACTION, 0) else {
        panic!()
    };
    send(world, link, &negotiate);
    let challenge = receive(world, link).ok();
    let Action::Send(reply) = peer.receive(&challenge, &mut SystemRandom, 0) else {
        panic!()
    };
    [negotiate, reply]
}

/// A queue that ends executes nothing.
const AUTHENTICATION_REQUIRED_OR_ENDED: Status = Status::ABORTED_SQ_DELETION;

#[test]
fn a_host_with_another_controller_key_ends_the_exchange() {
    let mut world = world(required());
    let link = admin(&mut world);
    let mut peer = host(1, Some(8), &[Group::Null]);
    let [_, reply] = reply_to_challenge(&mut world, link, &mut peer);
    send(&mut world, link, &reply);
    let success1 = receive(&mut world, link).ok();
    let refusal = peer.receive(&success1, &mut SystemRandom, 0);
    let Action::SendAndFail(failure2, _) = refusal else {
        panic!("{refusal:?}")
    };
    world
        .command(link, Sqe::keep_alive())
        .is(AUTHENTICATION_REQUIRED);
    send(&mut world, link, &failure2);
    world.settle();
    assert_eq!(world.close_reasons(0), [CloseReason::AuthenticationFailed]);

    let link = admin(&mut world);
    let without = HostAuthentication {
        controller_key: None,
        ..required()
    };
    change(&mut world, Some(without));
    let refused = authenticate(&mut world, link, &mut host(1, Some(9), &[Group::Null]));
    assert_eq!(
        refused.unwrap_err(),
        FailureExplanation::AUTHENTICATION_FAILED
    );
}

#[test]
fn the_null_group_is_refused_where_a_group_is_required() {
    let mut world = world(HostAuthentication {
        null_group: false,
        ..required()
    });
    let link = admin(&mut world);
    let refused = authenticate(&mut world, link, &mut host(1, None, &[Group::Null]));
    assert_eq!(refused.unwrap_err(), FailureExplanation::GROUP_NOT_USABLE);
    // A host that offers both, as Linux does, uses the other one.
    let link = admin(&mut world);
    let both = &[Group::Null, Group::Ffdhe2048];
    let result = authenticate(&mut world, link, &mut host(1, None, both)).unwrap();
    assert_eq!(result.group, Group::Ffdhe2048);
}

#[test]
fn replayed_reordered_and_malformed_messages_are_refused() {
    let recorded = {
        let mut world = world(required());
        let link = admin(&mut world);
        let mut peer = host(1, None, &[Group::Null]);
        reply_to_challenge(&mut world, link, &mut peer)
    };
    let [negotiate, reply] = recorded;
    let mut world = world(required());
    let mut refused = |messages: &[&[u8]], takes: bool| {
        let link = admin(&mut world);
        let (last, first) = messages.split_last().unwrap();
        for message in first {
            send(&mut world, link, message);
            if takes {
                receive(&mut world, link).ok();
            }
        }
        let sent = try_send(&mut world, link, last);
        let explanation = refusal(&mut world, link, sent);
        world.close(link);
        explanation
    };
    let failed = FailureExplanation::AUTHENTICATION_FAILED;
    let payload = FailureExplanation::INCORRECT_PAYLOAD;
    let message = FailureExplanation::INCORRECT_MESSAGE;
    // A recorded answer does not fit the new challenge.
    assert_eq!(refused(&[&negotiate, &reply], true), failed);
    // Without the challenge, twice, and in another order.
    assert_eq!(refused(&[&negotiate, &reply], false), message);
    assert_eq!(refused(&[&negotiate, &negotiate], true), message);
    assert_eq!(refused(&[&reply], true), message);
    // Lengths.
    assert_eq!(refused(&[&[0]], true), payload);
    assert_eq!(refused(&[&negotiate[..negotiate.len() - 1]], true), payload);
    assert_eq!(
        refused(&[&negotiate, &reply[..reply.len() - 1]], true),
        payload
    );
    assert_eq!(
        refused(&[&negotiate, &[&reply[..], &[0]].concat()], true),
        payload
    );
}

#[test]
fn invalid_fields_of_the_commands_are_refused() {
    let mut world = world(required());
    let link = admin(&mut world);
    let field = Status::INVALID_FIELD.with_dnr();
    let mut is_refused = |sqe: Sqe, status: Status| world.command(link, sqe).is(status);
    let too_long = MESSAGE_BYTES_MAX as u32 + 1;
    for bytes in [0, too_long, u32::MAX] {
        let sgl = SglDescriptor::in_capsule(0, bytes);
        is_refused(Sqe::authentication_send(bytes).with_sgl(sgl), field);
    }
    for bytes in [0, 8193, u32::MAX] {
        let sgl = SglDescriptor::transport(bytes);
        is_refused(Sqe::authentication_receive(bytes).with_sgl(sgl), field);
    }
    let length = Status::DATA_SGL_LENGTH_INVALID.with_dnr();
    let sgl = SglDescriptor::in_capsule(0, 71);
    is_refused(Sqe::authentication_send(72).with_sgl(sgl), length);
    let sgl = SglDescriptor::transport(4095);
    is_refused(Sqe::authentication_receive(4096).with_sgl(sgl), length);
    for change in [
        |fields: &mut nvme_spec::fabrics::Authentication| fields.secp = 0,
        |fields: &mut nvme_spec::fabrics::Authentication| fields.spsp0 = 2,
        |fields: &mut nvme_spec::fabrics::Authentication| fields.spsp1 = 0,
        |fields: &mut nvme_spec::fabrics::Authentication| {
            fields.secp = 0xff;
            fields.length = U32::new(0);
        },
    ] {
        let sqe = Sqe::authentication_send(72);
        let mut fields = sqe.authentication();
        change(&mut fields);
        is_refused(sqe.with_authentication(fields), field);
    }
    // No message is ready.
    let early = world.read(link, Sqe::authentication_receive(4096), 4096);
    early.is(Status::COMMAND_SEQUENCE_ERROR);
    // A buffer that is too short does not consume the message.
    let mut peer = host(1, None, &[Group::Null]);
    let Action::Send(negotiate) = peer.start(TRANSACTION, 0) else {
        panic!()
    };
    send(&mut world, link, &negotiate);
    world
        .read(link, Sqe::authentication_receive(8), 8)
        .is(field);
    let challenge = receive(&mut world, link).ok();
    assert_eq!(challenge.len(), 4096);
    assert!(challenge[48..].iter().all(|byte| *byte == 0));
}

/// Hosts without a key find a controller without these commands.
#[test]
fn hosts_without_keys_cannot_authenticate() {
    let mut world = World::new();
    let link = world.enabled(0);
    for fctype in [
        FabricsType::AUTHENTICATION_SEND,
        FabricsType::AUTHENTICATION_RECEIVE,
    ] {
        let refused = world.command(link, Sqe::fabrics(fctype));
        refused.is(Status::INVALID_OPCODE.with_dnr());
    }
    assert!(!requires(&mut world, 0, &ConnectOptions::default()));
}

#[test]
fn a_host_that_does_not_authenticate_loses_its_connection() {
    for (kato_ms, limit_ms) in [(0, 120_000), (5000, 5000), (300_000, 120_000)] {
        let mut world = world(required());
        let call = ConnectOptions {
            kato_ms,
            ..ConnectOptions::default()
        };
        let link = world.connect(0, &call);
        world.advance(Nanos::from_millis(limit_ms - 1));
        assert_eq!(world.closes(0), []);
        // Other commands do not help.
        world
            .command(link, Sqe::keep_alive())
            .is(AUTHENTICATION_REQUIRED);
        world.advance(Nanos::from_millis(1));
        let reasons = world.close_reasons(0);
        assert!(
            reasons.contains(&CloseReason::AuthenticationFailed),
            "{reasons:?}"
        );
    }
}

/// A transaction that stops, at each of its steps.
#[test]
fn a_transaction_that_stops_ends_the_connection() {
    for steps in 1..4 {
        let mut world = world(required());
        let call = ConnectOptions {
            kato_ms: 5000,
            ..ConnectOptions::default()
        };
        let link = world.connect(0, &call);
        let mut peer = host(1, Some(9), &[Group::Null]);
        let Action::Send(negotiate) = peer.start(TRANSACTION, 0) else {
            panic!()
        };
        send(&mut world, link, &negotiate);
        if steps > 1 {
            let challenge = receive(&mut world, link).ok();
            let Action::Send(reply) = peer.receive(&challenge, &mut SystemRandom, 0) else {
                panic!()
            };
            send(&mut world, link, &reply);
        }
        if steps > 2 {
            receive(&mut world, link).ok();
        }
        world.advance(Nanos::from_millis(5000));
        assert_eq!(world.close_reasons(0), [CloseReason::AuthenticationFailed]);
        world.close(link);
        assert_eq!(world.nodes[0].core.queues(), 0);
    }
}

/// A failure's message that the host does not take.
#[test]
fn a_refused_host_that_waits_loses_its_connection() {
    let mut world = world(required());
    let link = admin(&mut world);
    let tag = try_send(&mut world, link, &[0; 72]).expect_err("a refused message waits");
    world.advance(DELAY);
    world.take_reply(0, tag).expect("complete").ok();
    // Further messages are not looked at.
    let further = try_send(&mut world, link, &[0; 72]);
    further
        .expect("not delayed")
        .is(Status::COMMAND_SEQUENCE_ERROR);
    world.advance(Nanos::from_secs(2));
    assert_eq!(world.close_reasons(0), [CloseReason::AuthenticationFailed]);
}

/// A second message while the first one's exponentiation is computed.
#[test]
fn messages_that_overtake_are_refused() {
    let mut world = world(required());
    let link = admin(&mut world);
    let mut peer = host(1, None, &[Group::Ffdhe2048]);
    let Action::Send(negotiate) = peer.start(TRANSACTION, 0) else {
        panic!()
    };
    let length = negotiate.len() as u32;
    let sqe = || Sqe::authentication_send(length).with_sgl(SglDescriptor::in_capsule(0, length));
    let first = world
        .start(link, sqe().with_cid(1), &negotiate)
        .expect_err("computed elsewhere");
    let second = world
        .start(link, sqe().with_cid(2), &negotiate)
        .expect_err("refused later");
    while world.target.run_exponentiation() {}
    world.settle();
    let of_first = world.take_reply(0, first).expect("complete");
    of_first.is(Status::COMMAND_SEQUENCE_ERROR);
    let explanation = refusal(&mut world, link, Err(second));
    assert_eq!(explanation, FailureExplanation::INCORRECT_MESSAGE);
}

#[test]
fn a_host_authenticates_again_under_io_and_with_new_keys() {
    let mut world = world(required());
    let (admin, io) = authenticated(&mut world);
    let mut peer = host(1, None, &[Group::Ffdhe2048]);
    let Action::Send(negotiate) = peer.start(TRANSACTION, 0) else {
        panic!()
    };
    send(&mut world, io, &negotiate);
    world.read_blocks(io, RAM, 0, 1);
    let rotated = HostAuthentication {
        keys: vec![named("new", 2), named("newer", 3)],
        ..required()
    };
    change(&mut world, Some(rotated));
    // The transaction began with the old keys.
    let challenge = receive(&mut world, io).ok();
    let action = peer.receive(&challenge, &mut SystemRandom, 0);
    go_on(&mut world, io, &mut peer, action).unwrap();
    world.read_blocks(io, RAM, 0, 1);
    authenticate(&mut world, admin, &mut host(3, None, &[Group::Null])).unwrap();
    let admin_authentication = world.target.snapshot().controllers[0]
        .authentication
        .clone();
    assert_eq!(admin_authentication.unwrap().key, "newer");
    let refused = authenticate(&mut world, admin, &mut host(1, None, &[Group::Null]));
    assert_eq!(
        refused.unwrap_err(),
        FailureExplanation::AUTHENTICATION_FAILED
    );
    assert_eq!(world.closes(1), []);
}

/// The settings without a revoked key.
fn without(name: &str) -> Option<HostAuthentication> {
    let mut settings = required();
    settings.keys.retain(|key| key.name != name);
    settings.controller_key = settings.controller_key.filter(|key| key.name != name);
    Some(settings)
}

#[test]
fn a_revoked_key_ends_associations_and_transactions() {
    for (name, key, controller) in [("old", 1, None), ("own", 2, Some(9))] {
        let mut world = world(required());
        let other = admin(&mut world);
        authenticate(&mut world, other, &mut host(2, None, &[Group::Null])).unwrap();
        world.set_cc(other, Cc::enabled_nvm());
        let idle = admin(&mut world);
        let with_key = || host(key, controller, &[Group::Null]);
        // One association is authenticated, one is being authenticated, and one is authenticated
        // before its core knows of the revocation.
        let link = admin(&mut world);
        authenticate(&mut world, link, &mut with_key()).unwrap();
        let begun = admin(&mut world);
        let mut peer = with_key();
        let Action::Send(negotiate) = peer.start(TRANSACTION, 0) else {
            panic!()
        };
        send(&mut world, begun, &negotiate);
        change(&mut world, without(name));
        assert_eq!(world.closes(0), []);
        let ended = world.target.revoke_key(name, 1);
        assert_eq!(ended.count(), 1);
        world.settle();
        let closes = world.closes(0);
        assert_eq!(closes.len(), 2, "{name}: {closes:?}");
        for ended in [link, begun] {
            assert!(closes.iter().any(|it| it.queue == ended.queue), "{name}");
        }
        assert!(closes.iter().all(|it| it.reason == CloseReason::Revoked));
        world.close(link);
        assert!(world.target.is_evicted(&ended));
        // Others go on, and a queue without a transaction has the remaining keys.
        authenticate(&mut world, other, &mut host(2, None, &[Group::Null])).unwrap();
        authenticate(&mut world, idle, &mut host(2, None, &[Group::Null])).unwrap();
        let again = admin(&mut world);
        authenticate(&mut world, again, &mut with_key()).unwrap_err();
    }
}

#[test]
fn a_host_whose_only_key_was_revoked_cannot_connect() {
    let mut world = world(required());
    let link = admin(&mut world);
    change(
        &mut world,
        Some(HostAuthentication {
            keys: Vec::new(),
            ..required()
        }),
    );
    let refused = authenticate(&mut world, link, &mut host(1, None, &[Group::Null]));
    assert_eq!(
        refused.unwrap_err(),
        FailureExplanation::AUTHENTICATION_FAILED
    );
    assert!(requires(&mut world, 0, &ConnectOptions::default()));
}

#[test]
fn a_new_requirement_disconnects_hosts_that_did_not_authenticate() {
    let allowed = HostAuthentication {
        required: false,
        ..required()
    };
    let mut world = world(allowed.clone());
    let (_, io) = world.ready();
    let proven = admin(&mut world);
    authenticate(&mut world, proven, &mut host(1, None, &[Group::Null])).unwrap();
    world.read_blocks(io, RAM, 0, 1);
    change(
        &mut world,
        Some(HostAuthentication {
            keys: vec![named("x", 5)],
            ..allowed
        }),
    );
    assert_eq!(world.closes(0), []);
    change(&mut world, Some(required()));
    let closes = world.closes(0);
    assert!(
        closes
            .iter()
            .all(|it| it.reason == CloseReason::Reconfigured),
        "{closes:?}"
    );
    assert!(closes.iter().any(|close| close.queue == io.queue));
    assert!(
        closes.iter().all(|close| close.queue != proven.queue),
        "it has authenticated itself"
    );
}

/// Unauthenticated queues cannot be joined to the controller of an authenticated host.
#[test]
fn an_io_queue_of_an_authenticated_controller_authenticates_itself() {
    let mut world = world(required());
    let (admin, io) = authenticated(&mut world);
    let second = world.io_queue(0, admin, 2);
    world
        .read(second, Sqe::read(RAM, 0, 0), 512)
        .is(AUTHENTICATION_REQUIRED);
    let refused = authenticate(&mut world, second, &mut host(3, None, &[Group::Null]));
    assert_eq!(
        refused.unwrap_err(),
        FailureExplanation::AUTHENTICATION_FAILED
    );
    world.close(second);
    world.read_blocks(io, RAM, 0, 1);
}

/// Many connections of one address take turns with those of another.
#[test]
fn a_flood_of_exponentiations_does_not_delay_another_address() {
    let mut world = world(required());
    let from = |last: u8| ConnectOptions {
        peer_address: Some(IpAddr::from([192, 0, 2, last])),
        ..ConnectOptions::default()
    };
    let start = |world: &mut World, last: u8| {
        let link = world.connect(0, &from(last));
        let mut peer = host(1, None, &[Group::Ffdhe2048]);
        let Action::Send(negotiate) = peer.start(TRANSACTION, 0) else {
            panic!()
        };
        let length = negotiate.len() as u32;
        let sgl = SglDescriptor::in_capsule(0, length);
        let sqe = Sqe::authentication_send(length).with_sgl(sgl).with_cid(3);
        let tag = world
            .start(link, sqe, &negotiate)
            .expect_err("computed elsewhere");
        (link, tag)
    };
    let flood: Vec<_> = (0..6).map(|_| start(&mut world, 1)).collect();
    let (other, tag) = start(&mut world, 2);
    assert_eq!(world.target.exponentiations().waiting(), 7);
    for _ in 0..2 {
        assert!(world.target.run_exponentiation());
    }
    world.settle();
    world.take_reply(0, tag).expect("the second turn").ok();
    receive(&mut world, other).ok();
    // The end of a connection ends its exponentiation.
    for (link, _) in &flood[1..] {
        world.close(*link);
    }
    assert_eq!(world.target.exponentiations().waiting(), 0);
    // The first one was computed, and its queue exists.
    world.take_reply(0, flood[0].1).expect("computed").ok();
    // A result for a queue that has ended.
    let (link, _) = start(&mut world, 1);
    world.close(link);
    let (link, tag) = start(&mut world, 1);
    while world.target.run_exponentiation() {}
    world.settle();
    world.take_reply(0, tag).expect("its own result").ok();
    receive(&mut world, link).ok();
}

#[test]
fn the_number_of_keys_is_checked() {
    let mut world = world(required());
    let all = crate::harness::config(&world.devices());
    let settings = HostAuthentication {
        keys: (0..5).map(|key| named("k", key)).collect(),
        ..required()
    };
    let changed = SubsystemConfig {
        authentication: [(HOST.to_owned(), Arc::new(settings))].into(),
        ..all.subsystems[0].clone()
    };
    let refused = world.target.update_subsystem(changed).unwrap_err();
    assert!(matches!(refused, TargetError::HostKeys { .. }), "{refused}");
    world.settle();
}

#[test]
fn nothing_prints_a_secret() {
    let shown = format!("{:?}", required());
    assert!(shown.contains("old") && !shown.contains("1, 1"), "{shown}");
}

/// Hand-over keeps authenticated hosts.
#[test]
fn a_new_process_continues_authenticated_queues() {
    use crate::handover::hand_over;

    let mut world = world(required());
    let (admin, io) = authenticated(&mut world);
    let before = world.target.snapshot().controllers;
    let mut next = hand_over(world, &[admin, io], Nanos::from_millis(5));
    next.world.read_blocks(next.links[1], RAM, 0, 1);
    let after = next.world.target.snapshot().controllers;
    assert_eq!(before[0].authentication, after[0].authentication);
    assert_eq!(
        before[0].io_queues[0].authentication,
        after[0].io_queues[0].authentication
    );
    let io = next.links[1];
    authenticate(&mut next.world, io, &mut host(2, None, &[Group::Null])).unwrap();
}

/// A host that has not authenticated itself does not prevent a hand-over, and gains nothing by it: a
/// queue that has not begun, one whose transaction has, and one whose host has to since the hand-over.
#[test]
fn hosts_authenticate_themselves_to_a_new_process() {
    use crate::handover::{export, restore_queues, successor};

    for (settings, has_begun) in [
        (Some(required()), false),
        (Some(required()), true),
        (None, false),
    ] {
        let mut world = match &settings {
            Some(required) => self::world(required.clone()),
            None => World::new(),
        };
        let link = self::admin(&mut world);
        if has_begun {
            let begun = host(1, None, &[Group::Null]).start(TRANSACTION, 0);
            let Action::Send(message) = begun else {
                panic!("the host does not begin");
            };
            send(&mut world, link, &message);
        }
        world.settle();
        let state = export(&world);
        let mut next = successor(&world, |config| {
            let required = (HOST.to_owned(), Arc::new(required()));
            config.subsystems[0].authentication = [required].into();
        });
        next.target.restore(&state).unwrap();
        let (links, _) = restore_queues(&mut next, &state).unwrap();
        let link = links[&(link.info.controller_id, 0)];
        next.settle();
        next.command(link, Sqe::keep_alive())
            .is(AUTHENTICATION_REQUIRED);
        authenticate(&mut next, link, &mut host(1, None, &[Group::Null])).unwrap();
        next.set_cc(link, Cc::enabled_nvm());
        next.command(link, Sqe::keep_alive()).ok();
    }
}

/// The time to authenticate begins anew in a new process, and ends.
#[test]
fn a_host_that_does_not_authenticate_loses_its_connection_in_a_new_process() {
    use crate::handover::hand_over;

    let mut world = world(required());
    let call = ConnectOptions {
        kato_ms: 5000,
        ..ConnectOptions::default()
    };
    let link = world.connect(0, &call);
    world.advance(Nanos::from_secs(4));
    let mut next = hand_over(world, &[link], Nanos::from_millis(5)).world;
    next.advance(Nanos::from_millis(4999));
    assert_eq!(next.closes(0), []);
    next.advance(Nanos::from_millis(1));
    let reasons = next.close_reasons(0);
    assert!(
        reasons.contains(&CloseReason::AuthenticationFailed),
        "{reasons:?}"
    );
}
