//! Connect and Disconnect (Base 2.1 §6.3, §6.4).

use nvme_spec::command::{Cns, FeatureId, FeatureSelect};
use nvme_spec::fabrics::{ConnectData, ConnectField};
use nvme_spec::features::NumberOfQueues;
use nvme_spec::nqn::DISCOVERY_NQN;
use nvme_spec::registers::Cc;
use nvme_spec::sgl::SglDescriptor;
use nvme_spec::{Cqe, Sqe, Status, U16};
use nvme_target::{
    ADMIN_QUEUE_DEPTH_MAX, Admission, CloseReason, ConnectOutcome, CoreLimits, PortId,
};
use zerocopy::IntoBytes;

use crate::harness::{
    CACHED, CLOSED_SUBSYSTEM, ConnectOptions, HOLD, HOST, IN_CAPSULE, IO_QUEUES, QUEUE_DEPTH_MAX,
    RAM, STRANGER, World, discovery_call,
};

fn raw(world: &mut World, sqe: &Sqe, data: &[u8]) -> Cqe {
    let arrival = world.arrival(0, &ConnectOptions::default());
    let now = world.now;
    match world.nodes[0].core.connect(&arrival, sqe, data, now) {
        ConnectOutcome::Accepted { .. } => panic!("accepted"),
        ConnectOutcome::Rejected(cqe) => {
            assert_eq!(cqe.cid.get(), sqe.cid.get());
            cqe
        }
    }
}

#[track_caller]
fn assert_field(cqe: &Cqe, field: ConnectField) {
    assert_eq!(cqe.status(), Status::CONNECT_INVALID_PARAMETERS.with_dnr());
    assert_eq!(
        cqe.connect_invalid_parameters(),
        field.invalid(),
        "{field:?}"
    );
}

#[track_caller]
fn refused(world: &mut World, node: usize, call: &ConnectOptions<'_>) -> Cqe {
    world.try_connect(node, call).expect_err("refused")
}

/// Base 2.1 §6.3: the first command of a queue has to be Connect.
#[test]
fn first_command_other_than_connect_is_a_sequence_error() {
    let mut world = World::new();
    let call = ConnectOptions::default();
    let first = [
        Sqe::identify_structure(Cns::CONTROLLER, 0),
        Sqe::read(1, 0, 0),
        Sqe::disconnect_queue(),
        Sqe::keep_alive(),
        Sqe::new(0xff, 0),
    ];
    for sqe in first {
        let cqe = raw(&mut world, &sqe.with_cid(5), call.data().as_bytes());
        assert_eq!(cqe.status(), Status::COMMAND_SEQUENCE_ERROR.with_dnr());
    }
    assert_eq!(world.nodes[0].core.queues(), 0);
}

/// Base 2.1 §6.3, RECFMT: only format 0 is supported.
#[test]
fn an_unknown_record_format_is_refused() {
    let mut world = World::new();
    let call = ConnectOptions::default();
    let mut connect = call.sqe().connect();
    connect.recfmt = U16::new(1);
    let cqe = raw(
        &mut world,
        &call.sqe().with_connect(connect),
        call.data().as_bytes(),
    );
    assert_eq!(cqe.status(), Status::CONNECT_INCOMPATIBLE_FORMAT.with_dnr());
}

/// Base 2.1 §6.3: Connect data has 1024 bytes.
#[test]
fn connect_data_of_wrong_length_is_refused() {
    let mut world = World::new();
    let call = ConnectOptions::default();
    let data = [call.data().as_bytes(), &[0]].concat();
    for length in [0, 1, 1023, 1025] {
        let cqe = raw(&mut world, &call.sqe(), &data[..length]);
        assert_eq!(
            cqe.status(),
            Status::DATA_SGL_LENGTH_INVALID.with_dnr(),
            "{length}"
        );
    }
}

/// Base 2.1 §6.3: an unknown subsystem is an invalid SUBNQN.
#[test]
fn an_unknown_subsystem_is_refused() {
    let mut world = World::new();
    let call = ConnectOptions {
        subsystem: "nqn.2026-11.org.windlass:nowhere",
        ..ConnectOptions::default()
    };
    assert_field(&refused(&mut world, 0, &call), ConnectField::SubsystemNqn);
}

/// Base 2.1 §4.7: a name ends in a NUL, has 1 to 223 bytes, and no control characters.
#[test]
fn malformed_names_are_refused() {
    let mut world = World::new();
    let call = ConnectOptions::default();
    let mut data = call.data();
    data.subnqn.0 = [0; 256];
    let cqe = raw(&mut world, &call.sqe(), data.as_bytes());
    assert_field(&cqe, ConnectField::SubsystemNqn);
    let bad: [Vec<u8>; 4] = [
        vec![b'n'; 256],
        vec![b'n'; 224],
        vec![0xff; 100],
        b"nqn.\x07".to_vec(),
    ];
    for name in bad {
        let mut data = call.data();
        data.subnqn.0 = [0; 256];
        data.subnqn.0[..name.len()].copy_from_slice(&name);
        let cqe = raw(&mut world, &call.sqe(), data.as_bytes());
        assert_field(&cqe, ConnectField::SubsystemNqn);
        let mut data = call.data();
        data.hostnqn.0 = [0; 256];
        data.hostnqn.0[..name.len()].copy_from_slice(&name);
        let cqe = raw(&mut world, &call.sqe(), data.as_bytes());
        assert_field(&cqe, ConnectField::HostNqn);
    }
}

/// Base 2.1 §6.3, HOSTNQN: SPDK's perf sends none. Such a host is admitted where any host may
/// connect, and matches no list.
#[test]
fn host_without_nqn_is_admitted_if_any_host_may_connect() {
    let mut world = World::new();
    let call = ConnectOptions {
        host: "",
        peer_address: Some([192, 0, 2, 99].into()),
        ..ConnectOptions::default()
    };
    let discovery = ConnectOptions {
        subsystem: DISCOVERY_NQN,
        ..call
    };
    world.enabled_by(0, &discovery);
    let closed = ConnectOptions {
        subsystem: CLOSED_SUBSYSTEM,
        ..call
    };
    let cqe = refused(&mut world, 0, &closed);
    assert_eq!(cqe.status(), Status::CONNECT_INVALID_HOST.with_dnr());
    let admin = world.enabled_by(0, &call);
    let cntlid = admin.info.controller_id;
    let io = ConnectOptions {
        cntlid,
        qid: 1,
        ..call
    };
    let io = world.connect(1, &io);
    world.read_blocks(io, RAM, 0, 1);
    let named = ConnectOptions {
        cntlid,
        qid: 2,
        ..ConnectOptions::default()
    };
    assert_field(&refused(&mut world, 1, &named), ConnectField::HostNqn);
}

/// Base 2.1 §3.9 and §4.2.3.1, Keep Alive Timeout Invalid: a timeout above the supported maximum.
/// 0, no timer, is accepted.
#[test]
fn keep_alive_timeout_is_limited() {
    let mut world = World::new();
    for (call, longest_ms) in [
        (ConnectOptions::default(), 300_000),
        (discovery_call(), 120_000),
    ] {
        for kato_ms in [0, 1, longest_ms] {
            let link = world.connect(0, &ConnectOptions { kato_ms, ..call });
            world.close(link);
        }
        for kato_ms in [longest_ms + 1, u32::MAX] {
            let cqe = refused(&mut world, 0, &ConnectOptions { kato_ms, ..call });
            assert_eq!(cqe.status(), Status::KEEP_ALIVE_TIMEOUT_INVALID.with_dnr());
        }
        let admin = world.enabled_by(0, &call);
        let fid = FeatureId::KEEP_ALIVE_TIMER;
        world.set_feature(admin, fid, longest_ms).ok();
        let reply = world.set_feature(admin, fid, longest_ms + 1);
        reply.is(Status::KEEP_ALIVE_TIMEOUT_INVALID.with_dnr());
        let get = Sqe::get_feature(fid, FeatureSelect::CURRENT, 0, 0);
        assert_eq!(world.command(admin, get).dw0(), longest_ms);
    }
}

/// Base 2.1 §6.3, Connect Invalid Host.
#[test]
fn unlisted_host_is_refused() {
    let mut world = World::new();
    let call = ConnectOptions {
        subsystem: CLOSED_SUBSYSTEM,
        host: STRANGER,
        ..ConnectOptions::default()
    };
    let cqe = refused(&mut world, 0, &call);
    assert_eq!(cqe.status(), Status::CONNECT_INVALID_HOST.with_dnr());
    world.connect(0, &ConnectOptions { host: HOST, ..call });
}

/// Base 2.1 §6.3, CNTLID: in the dynamic controller model only FFFFh is valid.
#[test]
fn connect_with_static_controller_id_is_refused() {
    let mut world = World::new();
    for subsystem in [crate::harness::SUBSYSTEM, DISCOVERY_NQN] {
        for cntlid in [0, 1, 0xffef, 0xfffe] {
            let call = ConnectOptions {
                cntlid,
                subsystem,
                ..ConnectOptions::default()
            };
            assert_field(&refused(&mut world, 0, &call), ConnectField::ControllerId);
        }
    }
}

/// Base 2.1 §6.3, SQSIZE: at least two entries, at most CAP.MQES.
#[test]
fn connect_queue_size_is_limited() {
    let mut world = World::new();
    for sqsize_z in [0, ADMIN_QUEUE_DEPTH_MAX, 0xffff] {
        let call = ConnectOptions {
            sqsize_z,
            ..ConnectOptions::default()
        };
        assert_field(&refused(&mut world, 0, &call), ConnectField::SqSize);
    }
    // SPDK's `abort -q 128` requests 137 entries.
    for sqsize_z in [1, 136, ADMIN_QUEUE_DEPTH_MAX - 1] {
        for call in [ConnectOptions::default(), discovery_call()] {
            let link = world.connect(0, &ConnectOptions { sqsize_z, ..call });
            assert_eq!(link.info.depth, sqsize_z + 1);
            world.close(link);
        }
    }
    let admin = world.enabled(0);
    let call = ConnectOptions {
        cntlid: admin.info.controller_id,
        qid: 1,
        ..ConnectOptions::default()
    };
    for sqsize_z in [0, QUEUE_DEPTH_MAX, 0xffff] {
        let call = ConnectOptions { sqsize_z, ..call };
        assert_field(&refused(&mut world, 0, &call), ConnectField::SqSize);
    }
    for (qid, sqsize_z) in [(1, 1), (2, QUEUE_DEPTH_MAX - 1)] {
        let link = world.connect(
            0,
            &ConnectOptions {
                qid,
                sqsize_z,
                ..call
            },
        );
        assert_eq!(link.info.depth, sqsize_z + 1);
    }
}

/// Base 2.1 §6.3: an I/O queue belongs to the association identified by its controller, subsystem,
/// host NQN and host identifier.
#[test]
fn io_connect_must_match_its_association() {
    let mut world = World::new();
    let admin = world.enabled(0);
    let cntlid = admin.info.controller_id;
    let call = ConnectOptions {
        cntlid,
        qid: 1,
        ..ConnectOptions::default()
    };
    let unknown = ConnectOptions {
        cntlid: cntlid + 1,
        ..call
    };
    assert_field(
        &refused(&mut world, 1, &unknown),
        ConnectField::ControllerId,
    );
    let dynamic = ConnectOptions {
        cntlid: 0xffff,
        ..call
    };
    assert_field(
        &refused(&mut world, 1, &dynamic),
        ConnectField::ControllerId,
    );
    let elsewhere = ConnectOptions {
        subsystem: CLOSED_SUBSYSTEM,
        ..call
    };
    assert_field(
        &refused(&mut world, 1, &elsewhere),
        ConnectField::ControllerId,
    );
    let other_host = ConnectOptions {
        host: STRANGER,
        ..call
    };
    assert_field(&refused(&mut world, 1, &other_host), ConnectField::HostNqn);
    let other_id = ConnectOptions {
        host_id: [9; 16],
        ..call
    };
    assert_field(&refused(&mut world, 1, &other_id), ConnectField::HostId);
    world.connect(1, &call);
}

/// Others can know the identifiers in an I/O Connect (Base 2.1 §6.3), so over TCP it also has to
/// come from the address of the admin queue, unless the configuration permits others.
#[test]
fn io_connect_must_use_the_admin_queues_peer_address() {
    let at = |address: &str| Some(address.parse().expect("an address"));
    for (binds, rdma) in [(true, false), (false, false), (true, true)] {
        let limits = CoreLimits {
            queues_max: 16,
            executions_max: 1024,
        };
        let mut world = World::with(1, limits, |config| config.limits.bind_queues = binds);
        let call = ConnectOptions {
            peer_address: at("192.0.2.7"),
            rdma,
            ..ConnectOptions::default()
        };
        let admin = world.enabled_by(0, &call);
        let io = ConnectOptions {
            cntlid: admin.info.controller_id,
            qid: 1,
            ..call
        };
        let elsewhere = ConnectOptions {
            qid: 2,
            peer_address: at("192.0.2.8"),
            ..io
        };
        if binds && !rdma {
            let cqe = refused(&mut world, 0, &elsewhere);
            assert_eq!(cqe.status(), Status::CONNECT_INVALID_HOST.with_dnr());
        } else {
            world.connect(0, &elsewhere);
        }
        // An IPv4 host of a socket for both address families.
        let peer_address = at("::ffff:192.0.2.7");
        world.connect(0, &ConnectOptions { peer_address, ..io });
    }
}

/// Base 2.1 §6.3 and §5.1.25.2.1: identifiers range from 1 to the number of granted queues.
#[test]
fn queue_identifiers_are_limited_to_granted_queues() {
    let mut world = World::new();
    let admin = world.enabled(0);
    let cntlid = admin.info.controller_id;
    let call = ConnectOptions {
        cntlid,
        ..ConnectOptions::default()
    };
    let beyond = ConnectOptions {
        qid: IO_QUEUES + 1,
        ..call
    };
    assert_field(&refused(&mut world, 0, &beyond), ConnectField::QueueId);
    let wanted = NumberOfQueues::new().with_nsq_z(1).with_ncq_z(1);
    world
        .set_feature(admin, FeatureId::NUMBER_OF_QUEUES, wanted.into_bits())
        .ok();
    let beyond = ConnectOptions { qid: 3, ..call };
    assert_field(&refused(&mut world, 0, &beyond), ConnectField::QueueId);
    world.connect(0, &ConnectOptions { qid: 2, ..call });
}

/// Base 2.1 §6.3: a connected queue cannot be connected again, on its own or another connection.
#[test]
fn connected_queue_cannot_be_connected_again() {
    let mut world = World::new();
    let (admin, io) = world.ready();
    let cntlid = admin.info.controller_id;
    let call = ConnectOptions {
        cntlid,
        qid: 1,
        ..ConnectOptions::default()
    };
    let cqe = refused(&mut world, 1, &call);
    assert_eq!(cqe.status(), Status::COMMAND_SEQUENCE_ERROR.with_dnr());
    for link in [admin, io] {
        let reply = world.write(link, call.sqe(), call.data().as_bytes());
        reply.is(Status::COMMAND_SEQUENCE_ERROR.with_dnr());
    }
    world.read_blocks(io, RAM, 0, 1);
}

/// Base 2.1 §3.5.2: I/O queues require CSTS.RDY.
#[test]
fn io_connect_requires_an_enabled_controller() {
    let mut world = World::new();
    let admin = world.connect(0, &ConnectOptions::default());
    let call = ConnectOptions {
        cntlid: admin.info.controller_id,
        qid: 1,
        ..ConnectOptions::default()
    };
    let cqe = refused(&mut world, 0, &call);
    assert_eq!(cqe.status(), Status::COMMAND_SEQUENCE_ERROR.with_dnr());
    world.set_cc(admin, Cc::enabled_nvm());
    world.connect(0, &call);
}

/// Base 2.1 §3.1.3.3: a discovery controller has no I/O queues.
#[test]
fn a_discovery_controller_has_no_io_queues() {
    let mut world = World::new();
    let admin = world.enabled_by(0, &discovery_call());
    let cntlid = admin.info.controller_id;
    let call = ConnectOptions {
        cntlid,
        qid: 1,
        ..discovery_call()
    };
    assert_field(&refused(&mut world, 0, &call), ConnectField::QueueId);
}

/// Base 2.1 §6.3: the response contains the controller identifier, and SQHD reports whether flow
/// control is disabled.
#[test]
fn connect_response_fields() {
    let mut world = World::new();
    let call = ConnectOptions::default();
    let connect = |world: &mut World, call: &ConnectOptions<'_>| {
        let arrival = world.arrival(0, call);
        let now = world.now;
        let data = call.data();
        match world.nodes[0]
            .core
            .connect(&arrival, &call.sqe(), data.as_bytes(), now)
        {
            ConnectOutcome::Accepted {
                queue,
                response,
                info,
            } => (queue, response, info),
            ConnectOutcome::Rejected(cqe) => panic!("{}", cqe.status()),
        }
    };
    let (_, response, info) = connect(&mut world, &call);
    assert_eq!(response.sqhd.get(), 1);
    assert_eq!(response.connect_success().authreq().into_bits(), 0);
    assert!(info.admin && info.flow_control);
    assert_eq!((info.qid, info.depth, info.in_capsule_max), (0, 32, 8192));
    let call = ConnectOptions {
        no_flow_control: true,
        ..call
    };
    let (queue, response, info) = connect(&mut world, &call);
    assert_eq!(response.sqhd.get(), 0xffff);
    assert!(!info.flow_control);
    let link = crate::harness::Link {
        node: 0,
        queue,
        info,
    };
    world.set_cc(link, Cc::enabled_nvm());
    assert_eq!(world.command(link, Sqe::keep_alive()).cqe.sqhd.get(), 0);
    let io = world.io_queue(1, link, 2);
    assert_eq!((io.info.qid, io.info.admin), (2, false));
    assert_eq!(io.info.in_capsule_max, IN_CAPSULE);
    assert_eq!(io.info.controller_id, info.controller_id);
}

/// Base 2.1 §6.3, Controller Busy: resources may become free later, so Do Not Retry is clear.
#[test]
fn controllers_are_limited() {
    let limits = CoreLimits {
        queues_max: 16,
        executions_max: 1024,
    };
    let mut world = World::with(1, limits, |config| config.limits.controllers_max = 2);
    let first = world.connect(0, &ConnectOptions::default());
    world.connect(0, &ConnectOptions::default());
    // Discovery controllers are counted separately.
    world.connect(0, &discovery_call());
    let cqe = refused(&mut world, 0, &ConnectOptions::default());
    assert_eq!(cqe.status(), Status::CONNECT_CONTROLLER_BUSY);
    world.close(first);
    let again = world.connect(0, &ConnectOptions::default());
    assert_ne!(again.info.controller_id, first.info.controller_id);
}

/// Makes the transport of a core close the connections that the core requests to close.
fn end_closed(world: &mut World, node: usize) {
    let now = world.now;
    for close in world.closes(node) {
        world.nodes[node].core.close_queue(close.queue, now);
    }
}

/// Hosts that connect to the discovery subsystem under invented names and then stay silent do not
/// lock out other hosts, neither of an export nor of the discovery subsystem.
#[test]
fn silent_discovery_controllers_are_evicted_for_new_hosts() {
    let limits = CoreLimits {
        queues_max: 512,
        executions_max: 1024,
    };
    let mut world = World::with(2, limits, |_| {});
    let names: Vec<String> = (0..300)
        .map(|number| format!("nqn.2026-11.org.example:made-up-{number}"))
        .collect();
    for (number, host) in names.iter().enumerate() {
        let call = ConnectOptions {
            host,
            host_id: [number as u8; 16],
            sqsize_z: ADMIN_QUEUE_DEPTH_MAX - 1,
            ..discovery_call()
        };
        world.enabled_by(number % 2, &call);
        world.settle();
        for node in 0..2 {
            end_closed(&mut world, node);
        }
        let queues: usize = world.nodes.iter().map(|node| node.core.queues()).sum();
        assert!(queues <= nvme_target::DISCOVERY_CONTROLLERS_MAX);
        world.now += reactors::Nanos::from_millis(1);
    }
    let call = ConnectOptions {
        subsystem: CLOSED_SUBSYSTEM,
        ..ConnectOptions::default()
    };
    for node in 0..2 {
        let admin = world.enabled_by(node, &call);
        let io = ConnectOptions {
            cntlid: admin.info.controller_id,
            qid: 1,
            ..call
        };
        world.connect(node, &io);
        world.enabled_by(node, &discovery_call());
    }
}

/// A discovery controller that waits for an event is not evicted while another does not wait (Base
/// 2.1 §5.1.2). The host of an evicted controller learns of it by the close of its connection.
#[test]
fn discovery_controller_with_event_request_is_not_evicted() {
    let limits = CoreLimits {
        queues_max: 512,
        executions_max: 1024,
    };
    let mut world = World::with(1, limits, |_| {});
    let stranger = ConnectOptions {
        host: STRANGER,
        ..discovery_call()
    };
    let waits = world.enabled_by(0, &stranger);
    let sqe = Sqe::async_event_request().with_cid(7);
    world.start(waits, sqe, &[]).expect_err("held");
    for _ in 1..nvme_target::DISCOVERY_CONTROLLERS_MAX {
        world.now += reactors::Nanos::from_millis(1);
        world.enabled_by(0, &stranger);
    }
    assert_eq!(world.close_reasons(0), []);
    world.enabled_by(0, &stranger);
    world.settle();
    let closes = world.closes(0);
    let reasons: Vec<_> = closes.iter().map(|close| close.reason).collect();
    assert_eq!(reasons, [CloseReason::Evicted]);
    assert_ne!(closes[0].queue, waits.queue);
}

/// A discovery controller whose event request was aborted no longer counts as waiting.
#[test]
fn discovery_controller_is_evictable_after_event_abort() {
    let limits = CoreLimits {
        queues_max: 512,
        executions_max: 1024,
    };
    let mut world = World::with(1, limits, |_| {});
    let stranger = ConnectOptions {
        host: STRANGER,
        ..discovery_call()
    };
    let idle = world.enabled_by(0, &stranger);
    let sqe = Sqe::async_event_request().with_cid(7);
    world.start(idle, sqe, &[]).expect_err("held");
    world.command(idle, Sqe::abort_command(0, 7)).ok();
    for _ in 0..nvme_target::DISCOVERY_CONTROLLERS_MAX {
        world.now += reactors::Nanos::from_millis(1);
        world.enabled_by(0, &stranger);
    }
    world.settle();
    let closed: Vec<_> = world.closes(0).iter().map(|close| close.queue).collect();
    assert_eq!(closed, [idle.queue]);
}

/// Hosts that no export lists leave a part of a core's executions to a listed host.
#[test]
fn unlisted_hosts_leave_executions_to_listed_hosts() {
    let limits = CoreLimits {
        queues_max: 512,
        executions_max: 1024,
    };
    let mut world = World::with(1, limits, |_| {});
    let stranger = ConnectOptions {
        host: STRANGER,
        ..ConnectOptions::default()
    };
    let mut promised = 0;
    'greedy: while let Ok(admin) = world.try_connect(0, &stranger) {
        promised += 33;
        world.set_cc(admin, Cc::enabled_nvm());
        for qid in 1..=IO_QUEUES {
            let call = ConnectOptions {
                cntlid: admin.info.controller_id,
                qid,
                sqsize_z: QUEUE_DEPTH_MAX - 1,
                ..stranger
            };
            match world.try_connect(0, &call) {
                Ok(_) => promised += usize::from(QUEUE_DEPTH_MAX),
                Err(cqe) => {
                    assert_eq!(cqe.status(), Status::CONNECT_CONTROLLER_BUSY);
                    break 'greedy;
                }
            }
        }
    }
    assert!((600..=768).contains(&promised), "{promised}");
    let admin = world.enabled(0);
    world.io_queue(0, admin, 1);
    world.io_queue(0, admin, 2);
}

/// Base 2.1 §6.3, Controller Busy: the queues and the executions of one core are limited.
#[test]
fn queues_and_executions_per_core_are_limited() {
    let limits = CoreLimits {
        queues_max: 2,
        executions_max: 1024,
    };
    let mut world = World::with(1, limits, |_| {});
    world.connect(0, &ConnectOptions::default());
    let second = world.connect(0, &ConnectOptions::default());
    let cqe = refused(&mut world, 0, &ConnectOptions::default());
    assert_eq!(cqe.status(), Status::CONNECT_CONTROLLER_BUSY);
    world.close(second);
    world.connect(0, &ConnectOptions::default());

    let limits = CoreLimits {
        queues_max: 8,
        executions_max: 33 + 64,
    };
    let mut world = World::with(1, limits, |_| {});
    let admin = world.enabled(0);
    let cntlid = admin.info.controller_id;
    let call = ConnectOptions {
        cntlid,
        qid: 1,
        sqsize_z: 63,
        ..ConnectOptions::default()
    };
    let io = world.connect(0, &call);
    let call = ConnectOptions {
        qid: 2,
        sqsize_z: 1,
        ..call
    };
    assert_eq!(
        refused(&mut world, 0, &call).status(),
        Status::CONNECT_CONTROLLER_BUSY
    );
    world.close(io);
    world.connect(0, &call);
}

#[test]
fn connects_are_refused_during_shutdown() {
    let mut world = World::new();
    world.target.shut_down();
    let cqe = refused(&mut world, 0, &ConnectOptions::default());
    assert_eq!(cqe.status(), Status::CONNECT_RESTART_DISCOVERY);
    assert_eq!(world.nodes[0].core.counters().connects_refused.get(), 1);
}

/// Base 2.1 §6.3: a subsystem is available at the ports that the discovery log reports.
#[test]
fn connect_through_a_port_without_the_subsystem_is_refused() {
    let mut world = World::new();
    let elsewhere = ConnectOptions {
        port: PortId(99),
        ..ConnectOptions::default()
    };
    let cqe = refused(&mut world, 0, &elsewhere);
    assert_field(&cqe, ConnectField::SubsystemNqn);
}

/// Base 2.1 §6.4: RECFMT of Disconnect, and its queue type.
#[test]
fn invalid_disconnect_is_refused() {
    let mut world = World::new();
    let (admin, io) = world.ready();
    let mut disconnect = Sqe::disconnect_queue().disconnect();
    disconnect.recfmt = U16::new(1);
    let sqe = Sqe::disconnect_queue().with_disconnect(disconnect);
    world
        .command(io, sqe)
        .is(Status::CONNECT_INCOMPATIBLE_FORMAT.with_dnr());
    let reply = world.command(admin, Sqe::disconnect_queue());
    reply.is(Status::DISCONNECT_INVALID_QUEUE_TYPE.with_dnr());
    assert!(world.closes(0).is_empty());
    world.read_blocks(io, RAM, 0, 1);
}

/// Base 2.1 §6.4: an idle I/O queue is disconnected immediately, and can be connected again.
#[test]
fn idle_queue_is_disconnected_immediately() {
    let mut world = World::new();
    let (admin, io) = world.ready();
    world.command(io, Sqe::disconnect_queue()).ok();
    let reply = world.command(io, Sqe::read(RAM, 0, 0));
    reply.is(Status::ABORTED_SQ_DELETION);
    let closes = world.closes(0);
    assert_eq!(closes.len(), 1);
    assert_eq!(closes[0].reason, CloseReason::Disconnected);
    assert_eq!((closes[0].queue, closes[0].connection), (io.queue, 1001));
    world.close(io);
    world.io_queue(1, admin, 1);
    world.command(admin, Sqe::keep_alive()).ok();
}

/// Base 2.1 §6.4: outstanding commands complete before the Disconnect; later ones are aborted.
#[test]
fn disconnect_waits_for_outstanding_commands() {
    let mut world = World::new();
    let (_, io) = world.ready();
    world.fault.arm(HOLD, true);
    let read = Sqe::read(RAM, 0, 0).with_sgl(SglDescriptor::transport(512));
    let in_device = world
        .start(io, read.with_cid(1), &[])
        .expect_err("in the device");
    let write = Sqe::write(RAM, 0, 0, false).with_sgl(SglDescriptor::transport(512));
    let now = world.now;
    let admission = world.nodes[0]
        .core
        .admit(io.queue, 77, &write.with_cid(2), now);
    let Admission::Work(work) = admission else {
        panic!("{admission:?}")
    };
    let disconnect = world
        .start(io, Sqe::disconnect_queue().with_cid(3), &[])
        .expect_err("held");
    let late = world.start(io, read.with_cid(4), &[]).expect("answered");
    late.is(Status::ABORTED_SQ_DELETION);
    world.settle();
    assert!(world.take_reply(0, disconnect).is_none());
    world.fault.release();
    assert_eq!(world.wait(io, in_device).ok().len(), 512);
    assert!(
        world.take_reply(0, disconnect).is_none(),
        "a write is still being fetched"
    );
    assert!(world.closes(0).is_empty());
    assert!(world.execute(io, 77, work, &[1; 512]).is_none());
    world.settle();
    world.fault.release();
    world.settle();
    world.wait(io, 77).ok();
    world.wait(io, disconnect).ok();
    assert_eq!(world.close_reasons(0), [CloseReason::Disconnected]);
    world.close(io);
    assert_eq!(world.leases(), 0);
}

/// Base 2.1 §6.4: the response to a Disconnect is the last one of its queue.
#[test]
fn disconnect_response_is_the_last_of_its_queue() {
    let mut world = World::new();
    let (_, io) = world.ready();
    let read = Sqe::read(RAM, 0, 0).with_sgl(SglDescriptor::transport(512));
    let now = world.now;
    for tag in 0..3 {
        let cid = tag as u16;
        world
            .start(io, read.with_cid(cid), &[])
            .expect_err("in the device");
    }
    world
        .start(io, Sqe::disconnect_queue().with_cid(9), &[])
        .expect_err("held");
    let node = &mut world.nodes[0];
    node.poll(now);
    let cids: Vec<_> = std::iter::from_fn(|| node.core.next_completion(node.tcp))
        .map(|done| done.response.cid.get())
        .collect();
    assert_eq!(cids, [0, 1, 2, 9]);
}

/// Base 2.1 §4.2.1, §6.4: a command that arrives before the response to a Disconnect was taken is
/// refused after it, so that SQHD does not go back.
#[test]
fn command_after_disconnect_is_aborted_after_its_response() {
    let mut world = World::new();
    let (_, io) = world.ready();
    let write = Sqe::write(CACHED, 7, 0, false).with_sgl(SglDescriptor::transport(4096));
    let now = world.now;
    let node = &mut world.nodes[0];
    let Admission::Work(work) = node.core.admit(io.queue, 5, &write.with_cid(9), now) else {
        panic!("work")
    };
    let disconnect = Sqe::disconnect_queue().with_cid(10);
    assert!(matches!(
        node.core.admit(io.queue, 6, &disconnect, now),
        Admission::Held
    ));
    let status = Status::TRANSIENT_TRANSPORT_ERROR;
    let first = node.core.reject(io.queue, work, status);
    let late = node.core.admit(io.queue, 7, &write.with_cid(11), now);
    assert!(matches!(late, Admission::Held), "{late:?}");
    let responses = std::iter::from_fn(|| node.core.next_completion(node.tcp));
    let responses: Vec<_> = responses.map(|done| done.response).collect();
    let cids: Vec<u16> = responses.iter().map(|it| it.cid.get()).collect();
    assert_eq!(cids, [10, 11]);
    let heads = responses.iter().map(|it| it.sqhd.get());
    let heads: Vec<u16> = std::iter::once(first.sqhd.get()).chain(heads).collect();
    assert_eq!(heads, [heads[0], heads[0] + 1, heads[0] + 2]);
    assert!(responses[1].status().is(Status::ABORTED_SQ_DELETION));
}

/// A command that the transport rejects is completed and logged, and a Disconnect then continues.
#[test]
fn transport_can_abandon_a_command() {
    let mut world = World::new();
    let (admin, io) = world.ready();
    let write = Sqe::write(CACHED, 7, 0, false).with_sgl(SglDescriptor::transport(4096));
    let now = world.now;
    let admission = world.nodes[0]
        .core
        .admit(io.queue, 5, &write.with_cid(9), now);
    let Admission::Work(work) = admission else {
        panic!("{admission:?}")
    };
    let disconnect = world
        .start(io, Sqe::disconnect_queue().with_cid(10), &[])
        .expect_err("held");
    let status = Status::TRANSIENT_TRANSPORT_ERROR;
    let cqe = world.nodes[0].core.reject(io.queue, work, status);
    assert_eq!((cqe.status(), cqe.cid.get()), (status.with_more(true), 9));
    world.wait(io, disconnect).ok();
    let log = world.log(admin, nvme_spec::command::LogPageId::ERROR_INFORMATION, 64);
    assert_eq!(
        u16::from_le_bytes([log[10], log[11]]),
        9,
        "the command's identifier"
    );
    assert_eq!(log[16], 7, "the first block");
}

/// The data of Connect is not checked beyond its fields.
#[test]
fn reserved_connect_data_is_ignored() {
    let mut world = World::new();
    let call = ConnectOptions::default();
    let mut data = vec![0xff; 1024];
    let clean = call.data();
    let bytes = clean.as_bytes();
    data[..18].copy_from_slice(&bytes[..18]);
    data[256..768].copy_from_slice(&bytes[256..768]);
    assert_eq!(data.len(), size_of::<ConnectData>());
    let arrival = world.arrival(0, &call);
    let now = world.now;
    let outcome = world.nodes[0]
        .core
        .connect(&arrival, &call.sqe(), &data, now);
    assert!(matches!(outcome, ConnectOutcome::Accepted { .. }));
}
