//! The host against a minimal target over real sockets: the control path, the data path, and an
//! incorrect target.

mod fake;

use std::net::TcpListener;
use std::time::Duration;

use fake::{BLOCK, BLOCKS, FakeTarget, LIMIT, TargetBehavior, arena, taken};
use hugemem::{Lease, Pool};
use nvme_host::{
    ConnectOptions, Controller, HostCompletion, HostCompletions, HostError, IoQueue, ProtocolError,
    Refusal, Transfer, discover,
};
use nvme_spec::command::DatasetRange;
use nvme_spec::event::AsyncEvent;
use nvme_spec::registers::{Csts, Version};
use nvme_spec::tcp::C2hEnd;
use nvme_spec::{Sqe, Status};

fn fill(pool: &Pool, blocks: usize, seed: u8) -> Lease {
    let mut lease = pool.take(blocks * BLOCK).expect("memory");
    for (index, byte) in lease.iter_mut().enumerate() {
        *byte = (index / BLOCK) as u8 ^ (index as u8).wrapping_mul(seed);
    }
    lease
}

fn finish(queue: &mut IoQueue) -> HostCompletion {
    queue
        .wait_completion(LIMIT, "the command")
        .expect("an answer")
}

fn round_trip(queue: &mut IoQueue, pool: &Pool, lba: u64, blocks: usize) {
    let seed = (lba as u8) | 1;
    let data = fill(pool, blocks, seed);
    let expected = data.to_vec();
    queue
        .submit_write(1, (lba, blocks as u32), true, data, 7)
        .expect("room");
    let written = finish(queue);
    assert_eq!((written.token, written.status()), (7, Status::SUCCESS));
    assert_eq!(written.data.as_deref(), Some(&expected[..]));
    drop(written);
    let target = pool.take(blocks * BLOCK).expect("memory");
    queue
        .submit_read(1, lba, blocks as u32, target, 8)
        .expect("room");
    let read = finish(queue);
    assert_eq!((read.token, read.received as usize), (8, blocks * BLOCK));
    assert_eq!(read.data.as_deref(), Some(&expected[..]));
}

#[test]
fn data_round_trips_in_every_transfer_mode() {
    let behaviours = [
        TargetBehavior::default(),
        TargetBehavior {
            success_flag: false,
            c2h_bytes: 1000,
            r2t_bytes: 5000,
            ..TargetBehavior::default()
        },
        TargetBehavior {
            in_capsule_bytes: 0,
            r2t_bytes: 512,
            ..TargetBehavior::default()
        },
        TargetBehavior {
            in_capsule_bytes: 1 << 20,
            c2h_bytes: 4096,
            ..TargetBehavior::default()
        },
    ];
    for (behaviour, digests) in behaviours.iter().flat_map(|behaviour| {
        [(false, false), (true, false), (false, true), (true, true)]
            .map(|digests| (behaviour, digests))
    }) {
        let target = FakeTarget::start(*behaviour);
        let options = ConnectOptions {
            header_digest: digests.0,
            data_digest: digests.1,
            receive_bytes: 8192,
            ..target.options()
        };
        let arena = arena();
        let pool = arena.pool(0);
        let controller = Controller::connect(options).expect("connected");
        let mut queue = controller
            .open_io_queue(1, 16, pool.clone())
            .expect("opened");
        for (lba, blocks) in [(0, 1), (1, 8), (9, 9), (100, 64), (300, 512)] {
            round_trip(&mut queue, &pool, lba, blocks);
        }
        let written = target.memory.lock().expect("not poisoned").clone();
        assert_eq!(written[BLOCK..9 * BLOCK], fill(&pool, 8, 1)[..]);
        assert_eq!(queue.in_flight(), 0);
        drop(queue);
        controller.shut_down().expect("in order");
        assert_eq!(taken(&arena), 0, "every lease is home");
    }
}

#[test]
fn controller_properties_are_reported() {
    let target = FakeTarget::start(TargetBehavior::default());
    let mut controller = Controller::connect(target.options()).expect("connected");
    assert_eq!(controller.cntlid(), 5);
    assert_eq!(controller.version(), Version::V2_1);
    assert_eq!(controller.transfer_bytes_max(), Some(4096 << 6));
    assert_eq!(controller.queue_depth_max(), 127);
    assert_eq!(controller.active_namespaces().expect("listed"), [1]);
    let [namespace] = controller.namespaces().expect("identified")[..] else {
        panic!("one")
    };
    assert_eq!(
        (namespace.nsid, namespace.block_bytes, namespace.blocks),
        (1, 512, BLOCKS)
    );
    assert_eq!(
        (namespace.nguid, namespace.uuid),
        ([0x11; 16], Some([0x22; 16]))
    );
    assert_eq!(namespace.bytes(), BLOCKS * 512);
    assert_eq!(controller.request_io_queues(4).expect("granted"), 3);
    assert!(matches!(
        controller.request_io_queues(0),
        Err(HostError::Option { .. })
    ));
    let refused = controller
        .identify_namespace(2)
        .expect_err("no namespace 2");
    assert_eq!(
        refused.status().map(Status::code),
        Some(Status::INVALID_FIELD)
    );
    let text = refused.to_string();
    assert!(
        text.starts_with("Identify: ") && text.contains("do not retry"),
        "{text}"
    );
    for bytes in [0, 3, 6, 1 << 21] {
        let page = nvme_spec::command::LogPageId::ERROR_INFORMATION;
        let refused = controller.log_page(0, page, 0, bytes);
        assert!(matches!(refused, Err(HostError::Option { .. })), "{bytes}");
    }
    controller.reset().expect("reset");
    let completion = controller
        .admin(Sqe::new(0xc1, 0), Transfer::None)
        .expect("answered");
    assert_eq!(completion.status().code(), Status::INVALID_OPCODE);
}

#[test]
fn keep_alives_and_events_do_not_block() {
    let target = FakeTarget::start(TargetBehavior::default());
    let options = ConnectOptions {
        keep_alive: Duration::from_millis(3),
        ..target.options()
    };
    let mut controller = Controller::connect(options).expect("connected");
    controller.request_event().expect("sent");
    assert_eq!(controller.poll_event().expect("fine"), None);
    // The fake target sends an event after each Keep Alive, which `run_periodic` sends.
    let deadline = std::time::Instant::now() + LIMIT;
    let event = loop {
        controller.run_periodic().expect("fine");
        if let Some(event) = controller.poll_event().expect("fine") {
            break event;
        }
        assert!(std::time::Instant::now() < deadline, "no event");
        std::thread::yield_now();
    };
    assert_eq!(event, AsyncEvent::NAMESPACE_ATTRIBUTE_CHANGED);
    controller.request_event().expect("sent");
    controller.keep_alive().expect("answered");
    let event = controller.wait_event(LIMIT).expect("an event");
    assert_eq!(event, AsyncEvent::NAMESPACE_ATTRIBUTE_CHANGED);
    let cid = controller.request_event().expect("sent");
    assert!(controller.abort(0, cid).expect("answered"), "aborted");
    assert_eq!(
        controller.poll_event().expect("fine"),
        None,
        "an aborted request is no event"
    );
}

#[test]
fn discovery_log_is_read_in_pieces() {
    for entries in [0, 3, 40] {
        let target = FakeTarget::start(TargetBehavior {
            discovery_entries: entries,
            ..TargetBehavior::default()
        });
        let log = discover(target.options()).expect("read");
        let ports: Vec<usize> = log
            .iter()
            .map(|entry| usize::from(entry.portid.get()))
            .collect();
        assert_eq!(ports, (0..entries).collect::<Vec<_>>());
    }
}

#[test]
fn connect_errors_name_the_missing_target_or_subsystem() {
    let nobody = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let address = nobody.local_addr().expect("bound");
    drop(nobody);
    let target = FakeTarget::start(TargetBehavior::default());
    let absent = ConnectOptions {
        address,
        ..target.options()
    };
    let error = Controller::connect(absent).expect_err("nobody listens");
    assert!(
        error
            .to_string()
            .starts_with(&format!("cannot connect to {address}")),
        "{error}"
    );
    let stranger = ConnectOptions {
        subsystem_nqn: "nqn.2026-11.org.windlass:no".into(),
        ..target.options()
    };
    let error = Controller::connect(stranger).expect_err("no such subsystem");
    assert_eq!(
        error.status().map(Status::code),
        Some(Status::CONNECT_INVALID_PARAMETERS)
    );
    assert!(
        error
            .to_string()
            .contains("Connect: connect: invalid parameters"),
        "{error}"
    );
    let nonsense = ConnectOptions {
        subsystem_nqn: "a\nb".into(),
        ..target.options()
    };
    assert!(matches!(
        Controller::connect(nonsense),
        Err(HostError::Nqn { .. })
    ));
}

#[test]
fn silent_target_times_out() {
    let silent = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let target = FakeTarget::start(TargetBehavior::default());
    let options = ConnectOptions {
        address: silent.local_addr().expect("bound"),
        timeout: Duration::from_millis(200),
        ..target.options()
    };
    let error = Controller::connect(options).expect_err("nothing comes");
    assert!(matches!(error, HostError::TimedOut { .. }), "{error}");
}

#[test]
fn fatal_or_unready_controller_is_refused() {
    let fatal = FakeTarget::start(TargetBehavior {
        csts: Csts::new().with_cfs(true),
        ..TargetBehavior::default()
    });
    let error = Controller::connect(fatal.options()).expect_err("fatal");
    assert!(matches!(error, HostError::ControllerFatal), "{error}");
    let unready = FakeTarget::start(TargetBehavior {
        csts: Csts::new(),
        ..TargetBehavior::default()
    });
    let options = ConnectOptions {
        timeout: Duration::from_secs(2),
        ..unready.options()
    };
    let error = Controller::connect(options).expect_err("never ready");
    assert!(
        matches!(
            error,
            HostError::TimedOut {
                what: "CSTS.RDY to be set",
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn invalid_options_are_refused_locally() {
    let target = FakeTarget::start(TargetBehavior::default());
    let controller = Controller::connect(target.options()).expect("connected");
    let pool = arena().pool(0);
    for depth in [0, 128, u16::MAX] {
        let error = controller
            .open_io_queue(1, depth, pool.clone())
            .expect_err("refused");
        assert!(
            error.to_string().contains("queue depth must be 1 to 127"),
            "{error}"
        );
    }
    let mut queue = controller
        .open_io_queue(1, 1, pool.clone())
        .expect("opened");
    let lease = || pool.take(BLOCK).expect("memory");
    for blocks in [0, 65_537] {
        let refused = queue
            .submit_read(1, 0, blocks, lease(), 0)
            .expect_err("refused");
        assert_eq!(
            (refused.refusal, refused.data.is_some()),
            (Refusal::Length, true)
        );
        assert!(queue.submit_write_zeroes(1, 0, blocks, false, 0).is_err());
    }
    assert!(queue.submit_deallocate(1, &[], 0).is_err());
    assert!(
        queue
            .submit_deallocate(1, &[DatasetRange::default(); 257], 0)
            .is_err()
    );
    queue
        .submit_read(1, 0, 1, lease(), 0)
        .expect("room for one");
    let refused = queue.submit_read(1, 0, 1, lease(), 0).expect_err("full");
    assert_eq!(
        (refused.refusal, refused.data.is_some()),
        (Refusal::Full, true)
    );
}

#[test]
fn commands_without_data_and_failed_commands_complete() {
    let target = FakeTarget::start(TargetBehavior::default());
    let controller = Controller::connect(target.options()).expect("connected");
    let arena = arena();
    let pool = arena.pool(0);
    let mut queue = controller
        .open_io_queue(1, 8, pool.clone())
        .expect("opened");
    queue.submit_flush(1, 1).expect("room");
    queue.submit_write_zeroes(1, 0, 8, true, 2).expect("room");
    queue
        .submit_deallocate(1, &[DatasetRange::new(0, 8), DatasetRange::new(9, 1)], 3)
        .expect("room");
    queue
        .submit_read(1, BLOCKS, 1, pool.take(BLOCK).expect("memory"), 4)
        .expect("room");
    queue
        .submit_compare(1, 0, 1, fill(&pool, 1, 3), 5)
        .expect("room");
    let mut ended: Vec<_> = (0..5)
        .map(|_| finish(&mut queue))
        .map(|done| (done.token, done.status().code()))
        .collect();
    ended.sort_by_key(|&(token, _)| token);
    let ok = Status::SUCCESS;
    let expected = [ok, ok, ok, Status::LBA_OUT_OF_RANGE, Status::INVALID_OPCODE];
    assert_eq!(ended, (1..=5).zip(expected).collect::<Vec<_>>());
    assert_eq!(taken(&arena), 0);
}

/// Runs a queue whose target handles reads in `hook`. Returns the error that must result.
fn fault(hook: impl Fn(&mut fake::Peer, &Sqe) -> bool + Send + Sync + 'static) -> HostError {
    let target = FakeTarget::with_hook(TargetBehavior::default(), hook);
    let controller = Controller::connect(target.options()).expect("connected");
    let arena = arena();
    let pool = arena.pool(0);
    let mut queue = controller
        .open_io_queue(1, 8, pool.clone())
        .expect("opened");
    for token in 0..4 {
        let lease = pool.take(8 * BLOCK).expect("memory");
        queue
            .submit_read(1, token * 8, 8, lease, token)
            .expect("room");
    }
    let mut completions = HostCompletions::new();
    let deadline = std::time::Instant::now() + LIMIT;
    queue.flush().expect("sent");
    let error = loop {
        match queue.poll(&mut completions) {
            Ok(_) => queue.wait(Duration::from_millis(100)),
            Err(error) => break error,
        }
        assert!(std::time::Instant::now() < deadline, "no error");
    };
    let mut home = completions.len();
    while let Some((token, lease)) = queue.take_failed_command() {
        assert!(token < 4 && lease.is_some());
        home += 1;
    }
    assert_eq!(
        (home, queue.in_flight()),
        (4, 0),
        "every command is accounted for"
    );
    completions.clear();
    assert_eq!(taken(&arena), 0, "every lease is home");
    // Another connection to the same target is not affected.
    drop(Controller::connect(target.options()).expect("connected again"));
    error
}

#[test]
fn target_errors_are_distinguished() {
    let garbage = fault(|peer, _| {
        peer.send(&[0xee; 64]);
        true
    });
    assert!(
        matches!(
            garbage,
            HostError::Protocol(ProtocolError::UnexpectedPdu(_))
        ),
        "{garbage}"
    );
    let long = fault(|peer, sqe| {
        peer.send_data(sqe.cid.get(), 0, &[1; 9 * BLOCK], C2hEnd::Success);
        true
    });
    assert!(
        matches!(long, HostError::Protocol(ProtocolError::DataLength { .. })),
        "{long}"
    );
    let unknown = fault(|peer, sqe| {
        peer.respond_status(&sqe.with_cid(sqe.cid.get() ^ 0x2000), Status::SUCCESS);
        true
    });
    assert!(
        matches!(
            unknown,
            HostError::Protocol(ProtocolError::UnknownCommand { .. })
        ),
        "{unknown}"
    );
    let twice = fault(|peer, sqe| {
        peer.respond_status(sqe, Status::INTERNAL_ERROR);
        peer.respond_status(sqe, Status::INTERNAL_ERROR);
        true
    });
    assert!(
        matches!(
            twice,
            HostError::Protocol(ProtocolError::UnknownCommand { .. })
        ),
        "{twice}"
    );
}

#[test]
fn close_between_and_within_pdus_is_distinguished() {
    let between = fault(|peer, _| {
        peer.close();
        true
    });
    assert!(
        matches!(between, HostError::Closed | HostError::Socket(_)),
        "{between}"
    );
    let within = fault(|peer, sqe| {
        let half = nvme_spec::tcp::C2hData::new(sqe.cid.get(), 0, 4096, C2hEnd::Last, peer.framing);
        let bytes =
            nvme_host::pdu::assemble(zerocopy::IntoBytes::as_bytes(&half), half.ch, &[5; 4096]);
        peer.send(&bytes[..1000]);
        peer.close();
        true
    });
    assert!(
        matches!(within, HostError::ClosedWithinPdu | HostError::Socket(_)),
        "{within}"
    );
}
