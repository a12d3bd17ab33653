//! Secure channel concatenation: a host generates a key by DH-HMAC-CHAP, and connects anew over a
//! channel with this key.

use nvme_authentication::SecureChannelPolicy;
use nvme_keys::{GeneratedKey, Names, PskHash};
use nvme_target::{Concatenation, KeyOwner, PortSecurity, SecureChannel};

use super::*;

/// HOST has to use a secure channel, and may generate the key for it.
fn concatenating() -> HostAuthentication {
    HostAuthentication {
        required: false,
        concatenation: Concatenation::Required,
        ..required()
    }
}

fn world_with(settings: &HostAuthentication, security: PortSecurity) -> World {
    World::with(2, LIMITS, |config| {
        for port in &mut config.ports {
            port.security = security;
        }
        config.subsystems[0] = subsystem(settings.clone(), config.subsystems[0].clone());
    })
}

/// The subsystem with these settings of HOST.
fn subsystem(settings: HostAuthentication, all: SubsystemConfig) -> SubsystemConfig {
    let is_required = settings.concatenation == Concatenation::Required;
    let secure = is_required.then(|| HOST.to_owned());
    SubsystemConfig {
        authentication: [(HOST.to_owned(), Arc::new(settings))].into(),
        secure_hosts: secure.into_iter().collect(),
        ..all
    }
}

fn reconfigure(world: &mut World, settings: HostAuthentication) {
    let all = crate::harness::config(&world.devices());
    let changed = subsystem(settings, all.subsystems[0].clone());
    world.target.update_subsystem(changed).unwrap();
    world.settle();
}

/// The host's side on a queue.
fn peer(key: u8, channel: Channel, is_admin: bool, wish: SecureChannelPolicy) -> Initiator {
    let transformed = Key::new(secret(key).transformed(HOST).expose()).unwrap();
    let queue = Queue {
        host_nqn: HOST.to_owned(),
        subsystem_nqn: SUBSYSTEM.to_owned(),
        is_admin,
        channel,
        host_keys: [transformed].into_iter().collect(),
        controller_key: None,
    };
    let policy = Policy {
        groups: [Group::Null, Group::Ffdhe2048].into_iter().collect(),
        secure_channel: wish,
        ..Policy::default()
    };
    Initiator::new(queue, policy)
}

fn concatenator() -> Initiator {
    peer(1, Channel::Plain, true, SecureChannelPolicy::Required)
}

/// The channel that a host has with the key of a transaction; `None` if the target has no such key.
fn channel(world: &World, authenticated: &Authenticated) -> Option<Arc<SecureChannel>> {
    let psk = authenticated.psk.as_ref().expect("a key was generated");
    let hash = PskHash::of_len(psk.bytes().len()).unwrap();
    let key = GeneratedKey::new(hash, psk.bytes()).unwrap();
    let own = key.candidates(Names::new(HOST, SUBSYSTEM).unwrap());
    let known = world.target.generated_keys();
    let known = known.candidates(own[0].identity.as_bytes());
    let (owner, found) = known.first()?.clone();
    assert_eq!(found, own[0], "both have the same key");
    assert_eq!(known.len(), own.len(), "for every derivation");
    Some(over(owner))
}

fn over(owner: Arc<KeyOwner>) -> Arc<SecureChannel> {
    let any = crate::harness::channel_of((HOST, SUBSYSTEM));
    Arc::new(SecureChannel { owner, ..any })
}

/// Connects over a channel. Returns the queue, and whether it has to authenticate itself.
fn connect_over(
    world: &mut World,
    channel: &Arc<SecureChannel>,
    call: &ConnectOptions<'_>,
) -> Result<(Link, bool), Status> {
    let mut arrival = world.arrival(0, call);
    arrival.channel = Some(Arc::clone(channel));
    let now = world.now;
    let core = &mut world.nodes[0].core;
    match core.connect(&arrival, &call.sqe(), call.data().as_bytes(), now) {
        ConnectOutcome::Accepted {
            queue,
            response,
            info,
        } => {
            let required = response.connect_success().authreq();
            assert!(!required.secure_channel());
            let link = Link {
                node: 0,
                queue,
                info,
            };
            Ok((link, required.authentication()))
        }
        ConnectOutcome::Rejected(response) => Err(response.status()),
    }
}

fn io_of(admin: Link) -> ConnectOptions<'static> {
    ConnectOptions {
        cntlid: admin.info.controller_id,
        qid: 1,
        ..ConnectOptions::default()
    }
}

/// A change of what permits a key.
type Change<'a> = &'a dyn Fn(&mut World);

const REFUSED: Status = Status::CONNECT_INVALID_HOST.with_dnr();

#[test]
fn a_host_connects_with_the_key_that_it_has_generated() {
    let mut world = world_with(&concatenating(), PortSecurity::Allowed);
    let call = ConnectOptions::default();
    let (arrival, now) = (world.arrival(0, &call), world.now);
    let core = &mut world.nodes[0].core;
    let outcome = core.connect(&arrival, &call.sqe(), call.data().as_bytes(), now);
    let ConnectOutcome::Accepted {
        queue,
        response,
        info,
    } = outcome
    else {
        panic!("{outcome:?}");
    };
    let required = response.connect_success().authreq();
    assert!(required.secure_channel() && !required.authentication());
    let plain = Link {
        node: 0,
        queue,
        info,
    };
    world
        .command(plain, Sqe::keep_alive())
        .is(AUTHENTICATION_REQUIRED);
    let generated = authenticate(&mut world, plain, &mut concatenator()).unwrap();
    // Linux enables the controller before it connects anew.
    world.set_cc(plain, Cc::enabled_nvm());
    let refused = world.try_connect(0, &io_of(plain)).unwrap_err();
    assert_eq!(refused.status(), REFUSED, "I/O needs the channel");
    // A change of another host does not end the connection.
    reconfigure(&mut world, concatenating());
    assert_eq!(world.closes(0), []);
    world.close(plain);

    let channel = channel(&world, &generated).expect("known");
    let (admin, is_required) = connect_over(&mut world, &channel, &call).unwrap();
    assert!(!is_required, "the channel has proved the host");
    world.set_cc(admin, Cc::enabled_nvm());
    let (io, is_required) = connect_over(&mut world, &channel, &io_of(admin)).unwrap();
    assert!(!is_required);
    world.read_blocks(io, RAM, 0, 1);
    let of_admin = world.target.snapshot().controllers[0].channel.clone();
    let owner = &of_admin.unwrap().channel.owner;
    assert_eq!(owner.key, "old", "the secret that the host has proved");
    assert!(owner.generation.is_some());
}

#[test]
fn a_replaced_key_ends_and_its_connections_do_not() {
    let mut world = world_with(&concatenating(), PortSecurity::Allowed);
    let plain = admin(&mut world);
    let first = authenticate(&mut world, plain, &mut concatenator()).unwrap();
    let of_first = channel(&world, &first).unwrap();
    let call = ConnectOptions::default();
    let (admin, _) = connect_over(&mut world, &of_first, &call).unwrap();
    world.set_cc(admin, Cc::enabled_nvm());
    let mut again = peer(2, Channel::Tls, true, SecureChannelPolicy::Permitted);
    let second = authenticate(&mut world, admin, &mut again).unwrap();
    assert!(channel(&world, &first).is_none(), "it was replaced");
    let of_second = channel(&world, &second).unwrap();
    assert_eq!(of_second.owner.key, "new");
    let (io, _) = connect_over(&mut world, &of_second, &io_of(admin)).unwrap();
    world.read_blocks(io, RAM, 0, 1);
    world.command(admin, Sqe::keep_alive()).ok();
}

#[test]
fn a_channel_is_generated_only_where_it_is_permitted() {
    use SecureChannelPolicy::{Never, Permitted, Required};

    let mismatch = FailureExplanation::SECURE_CHANNEL_MISMATCH;
    let allowed = HostAuthentication {
        concatenation: Concatenation::Allowed,
        ..required()
    };
    let plain = |wish| peer(1, Channel::Plain, true, wish);
    let cases = [
        // The host may not, and it has to.
        (required(), PortSecurity::Allowed, plain(Required), mismatch),
        (
            concatenating(),
            PortSecurity::Allowed,
            plain(Never),
            mismatch,
        ),
        // The listener has no TLS.
        (
            allowed.clone(),
            PortSecurity::None,
            plain(Permitted),
            mismatch,
        ),
        // A replacement without a channel.
        (
            allowed.clone(),
            PortSecurity::Allowed,
            peer(1, Channel::Tls, true, Permitted),
            mismatch,
        ),
    ];
    for (settings, security, mut peer, explanation) in cases {
        let mut world = world_with(&settings, security);
        let link = admin(&mut world);
        let refused = authenticate(&mut world, link, &mut peer).unwrap_err();
        assert_eq!(refused, explanation);
        assert!(world.target.generated_keys().is_empty());
    }
    let mut world = world_with(&allowed, PortSecurity::Allowed);
    // A host that may and does not is authenticated, and I/O queues generate no key.
    let link = admin(&mut world);
    let result = authenticate(&mut world, link, &mut plain(Never)).unwrap();
    assert!(result.psk.is_none());
    world.set_cc(link, Cc::enabled_nvm());
    let io = world.io_queue(1, link, 1);
    let mut on_io = peer(1, Channel::Plain, true, Required);
    let refused = authenticate(&mut world, io, &mut on_io).unwrap_err();
    assert_eq!(refused, mismatch);
    // A new key over a channel, which replaces one.
    let call = ConnectOptions {
        channel: Some((HOST, SUBSYSTEM)),
        ..ConnectOptions::default()
    };
    let secured = world.connect(0, &call);
    let refused = authenticate(&mut world, secured, &mut plain(Required)).unwrap_err();
    assert_eq!(refused, mismatch);
    assert!(world.target.generated_keys().is_empty());
}

/// A listener without TLS cannot have the channel, so the host gets no queue there.
#[test]
fn a_host_that_has_to_use_a_channel_needs_a_listener_with_it() {
    let mut world = world_with(&concatenating(), PortSecurity::None);
    let refused = world.try_connect(0, &ConnectOptions::default());
    assert_eq!(refused.unwrap_err().status(), REFUSED);
}

/// The exchange without Diffie-Hellman is not used for a key, although the host proposes it.
#[test]
fn a_key_is_not_generated_with_the_null_group() {
    let mut world = world_with(&concatenating(), PortSecurity::Allowed);
    let link = admin(&mut world);
    let result = authenticate(&mut world, link, &mut concatenator()).unwrap();
    assert_eq!(result.group, Group::Ffdhe2048);
}

#[test]
fn a_generated_key_ends_with_what_permits_it() {
    let rotated = HostAuthentication {
        keys: vec![named("old", 5), named("new", 2)],
        ..concatenating()
    };
    let switched_off = HostAuthentication {
        concatenation: Concatenation::Off,
        ..required()
    };
    // The end of the time ends the connection too, because the host does not enable its controller.
    let changes: [(Change<'_>, bool); 4] = [
        (&|world| reconfigure(world, rotated.clone()), true),
        (&|world| reconfigure(world, switched_off.clone()), true),
        (&|world| change(world, None), true),
        (&|world| world.advance(Nanos::from_secs(3601)), false),
    ];
    let call = ConnectOptions::default();
    for (number, (change, goes_on)) in changes.into_iter().enumerate() {
        let mut world = world_with(&concatenating(), PortSecurity::Allowed);
        let plain = admin(&mut world);
        let generated = authenticate(&mut world, plain, &mut concatenator()).unwrap();
        let channel = channel(&world, &generated).unwrap();
        let stranger = ConnectOptions {
            host: STRANGER,
            ..call
        };
        assert_eq!(
            connect_over(&mut world, &channel, &stranger).unwrap_err(),
            REFUSED
        );
        let (admin, _) = connect_over(&mut world, &channel, &call).unwrap();
        change(&mut world);
        let refused = connect_over(&mut world, &channel, &call);
        assert_eq!(refused.unwrap_err(), REFUSED, "change {number}");
        let is_closed = world.closes(0).iter().any(|it| it.queue == admin.queue);
        assert_eq!(!is_closed, goes_on, "the connection after change {number}");
    }
}

#[test]
fn a_revoked_secret_ends_the_channels_with_its_keys() {
    let mut world = world_with(&concatenating(), PortSecurity::Allowed);
    let plain = admin(&mut world);
    let generated = authenticate(&mut world, plain, &mut concatenator()).unwrap();
    world.close(plain);
    let of_key = channel(&world, &generated).unwrap();
    let call = ConnectOptions::default();
    let (admin, _) = connect_over(&mut world, &of_key, &call).unwrap();
    let mut without = concatenating();
    without.keys.retain(|key| key.name != "old");
    reconfigure(&mut world, without);
    assert_eq!(world.target.revoke_key("old", 1).count(), 1);
    world.settle();
    let closes = world.closes(0);
    assert_eq!(closes.len(), 1);
    assert_eq!(
        (closes[0].queue, closes[0].reason),
        (admin.queue, CloseReason::Revoked)
    );
    assert!(channel(&world, &generated).is_none());
    assert_eq!(
        connect_over(&mut world, &of_key, &call).unwrap_err(),
        REFUSED
    );
}

/// Associations without a channel end when their host has to have one, also authenticated ones.
#[test]
fn a_new_requirement_ends_plain_associations() {
    let mut world = world_with(&required(), PortSecurity::Allowed);
    let (_, io) = authenticated(&mut world);
    reconfigure(&mut world, concatenating());
    let closes = world.closes(1);
    assert!(closes.iter().any(|it| it.queue == io.queue), "{closes:?}");
    assert!(
        closes
            .iter()
            .all(|it| it.reason == CloseReason::Reconfigured)
    );
}
