//! Tests real verbs while devices, ports and peers change: for the lab, on soft RoCE. Needs root,
//! and removes and restores devices of the machine.
//!
//!     verbs_lab ADDRESS INTERFACE DEVICE [CASE…]
//!
//! ADDRESS is that of INTERFACE, which has the soft RoCE device DEVICE; the machine has another
//! device too. Prints a line for every case and exits with 1 if one failed.

mod ends;

use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, SocketAddr};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, ExitCode, Stdio};
use std::slice;
use std::time::{Duration, Instant};

use ends::{BYTES, End, Ends, REQUESTS, next, next_connection_event, wait};
use hugemem::allocation_counter::{CountingAllocator, allocations_on_this_thread};
use hugemem::{PagePolicy, PageSize};
use rdma::{
    Access, CompletionQueue, CompletionStatus, Connection, ConnectionEvent, Device, DeviceEvent,
    Domain, Event, EventChannel, Listener, MemoryRange, MemoryWindow, Payload, Provider, QueuePair,
    QueuePairState, ReceiveRequest, Registration, RemoteAddress, SendOperation, SendRequest, Sge,
    Token, Verbs, WindowBinding, WorkCompletion,
};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

struct LabEnvironment {
    verbs: Verbs,
    address: SocketAddr,
    interface: String,
    device: String,
}

type Case = (&'static str, fn(&LabEnvironment));

const CASES: [Case; 9] = [
    (
        "hugepages_carry_long_transfers",
        hugepages_carry_long_transfers,
    ),
    (
        "a_killed_peer_is_a_disconnect",
        a_killed_peer_is_a_disconnect,
    ),
    ("requests_take_no_memory", requests_take_no_memory),
    (
        "a_window_outlives_its_registration",
        a_window_outlives_its_registration,
    ),
    (
        "a_window_outlives_its_queue_pair",
        a_window_outlives_its_queue_pair,
    ),
    (
        "one_binding_of_a_window_in_a_batch",
        one_binding_of_a_window_in_a_batch,
    ),
    ("queues_that_overflow_refuse", queues_that_overflow_refuse),
    ("a_port_goes_down_and_up", a_port_goes_down_and_up),
    (
        "a_device_is_removed_and_returns",
        a_device_is_removed_and_returns,
    ),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let address = arguments
        .first()
        .and_then(|text| text.parse::<IpAddr>().ok());
    let (Some(address), [_, interface, device, wanted @ ..]) = (address, &arguments[..]) else {
        eprintln!("usage: verbs_lab ADDRESS INTERFACE DEVICE [CASE…]");
        return ExitCode::from(2);
    };
    let lab = LabEnvironment {
        verbs: match Verbs::open() {
            Ok(verbs) => verbs,
            Err(error) => {
                eprintln!("{error}\n{}", error.remedy());
                return ExitCode::FAILURE;
            }
        },
        address: SocketAddr::new(address, 0),
        interface: interface.clone(),
        device: device.clone(),
    };
    if wanted == ["serve"] {
        serve(&lab);
        return ExitCode::SUCCESS;
    }
    let mut failed = 0;
    for (name, case) in CASES {
        if !wanted.is_empty() && !wanted.iter().any(|one| one == name) {
            continue;
        }
        let began = Instant::now();
        let outcome = catch_unwind(AssertUnwindSafe(|| case(&lab)));
        failed += usize::from(outcome.is_err());
        let word = if outcome.is_ok() { "ok" } else { "FAILED" };
        println!("{name} {word} {:.3} s", began.elapsed().as_secs_f64());
    }
    println!("{failed} failed");
    ExitCode::from(u8::from(failed > 0))
}

fn run(words: &[&str]) {
    let status = Command::new(words[0]).args(&words[1..]).status();
    assert!(
        status.as_ref().is_ok_and(std::process::ExitStatus::success),
        "{words:?}: {status:?}"
    );
}

fn hugepages_carry_long_transfers(lab: &LabEnvironment) {
    let mut ends = Ends::new(
        &lab.verbs,
        lab.address,
        PagePolicy::HugeOnly,
        Access::REMOTE,
    );
    let Ends { client, server, .. } = &mut ends;
    for (round, length) in [4096, 64 << 10, BYTES].into_iter().enumerate() {
        let seed = round as u8;
        client.memory.fill(length, seed);
        let remote = server.memory.remote(0);
        client.post(1, SendOperation::Write(remote), length);
        client.expect(1, CompletionStatus::SUCCESS);
        server.memory.expect_filled(length, seed);
        server.memory.fill(length, seed + 100);
        client.post(2, SendOperation::Read(remote), length);
        let read = client.expect(2, CompletionStatus::SUCCESS);
        assert_eq!(read.byte_len as usize, length);
        client.memory.expect_filled(length, seed + 100);
    }
    assert_ne!(page_size(), Some(PageSize::Ordinary));
}

/// The page size of arenas on this machine that require huge pages.
fn page_size() -> Option<PageSize> {
    let region = hugemem::Region::map(2 << 20, PagePolicy::HugeOnly).ok()?;
    Some(region.page_size())
}

/// The other process of [`a_killed_peer_is_a_disconnect`]: accepts one connection, then does
/// nothing.
fn serve(lab: &LabEnvironment) {
    let mut listening = lab.verbs.event_channel().expect("a channel");
    let listener = listening
        .listen(lab.address, 4, Token(9))
        .expect("listening");
    println!("{}", listener.local_address());
    std::io::stdout().flush().expect("telling the address");
    let mut end = End::accept(
        &lab.verbs,
        &mut listening,
        PagePolicy::Ordinary,
        Access::REMOTE,
    );
    end.expect_established();
    end.post(1, SendOperation::Send, 64);
    end.expect(1, CompletionStatus::SUCCESS);
    std::thread::sleep(Duration::from_secs(60));
}

fn a_killed_peer_is_a_disconnect(lab: &LabEnvironment) {
    let mut peer = Command::new("/proc/self/exe")
        .arg(lab.address.ip().to_string())
        .args([&lab.interface, &lab.device, "serve"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("another process");
    let mut line = String::new();
    let output = peer.stdout.take().expect("its output");
    BufReader::new(output)
        .read_line(&mut line)
        .expect("its address");
    let address = line.trim().parse().expect("its address");
    let mut client = End::connect(&lab.verbs, address, Access::REMOTE);
    for wr_id in 1..=4 {
        client.receive(wr_id);
    }
    client.expect(1, CompletionStatus::SUCCESS);
    peer.kill().expect("killing it");
    peer.wait().expect("its end");
    let event = next_connection_event(&mut client.channel, "the end");
    assert_eq!(event, ConnectionEvent::Disconnected);
    for wr_id in 2..=4 {
        client.expect(wr_id, CompletionStatus::FLUSHED);
    }
    assert_eq!(
        client.queue_pair.state().expect("a state"),
        QueuePairState::Error
    );
}

fn requests_take_no_memory(lab: &LabEnvironment) {
    let mut ends = ordinary_ends(lab);
    let Ends { client, server, .. } = &mut ends;
    let remote = server.memory.remote(0);
    let piece = client.memory.piece(0, 4096);
    let data = Payload::Memory(slice::from_ref(&piece));
    let incoming = ReceiveRequest {
        wr_id: 3,
        memory: server.memory.piece(8192, 64).into(),
    };
    let mut completions = [WorkCompletion::default(); 8];
    let mut round = |wr_id: u64| {
        server.queue_pair.queue_receive(&incoming).expect("queued");
        server.queue_pair.flush().expect("posted");
        let write = SendRequest::new(wr_id, SendOperation::Write(remote), data).signalled(false);
        client.queue_pair.queue_send(&write).expect("queued");
        let response = SendRequest::new(wr_id, SendOperation::Send, Payload::Inline(&[7; 16]));
        client.queue_pair.queue_send(&response).expect("queued");
        client.queue_pair.flush().expect("posted");
        for queue in [&mut client.completions, &mut server.completions] {
            let deadline = Instant::now() + Duration::from_secs(20);
            while queue.poll(&mut completions).expect("polling") == 0 {
                assert!(
                    Instant::now() < deadline,
                    "request {wr_id} did not complete"
                );
            }
            assert!(completions[0].is_success(), "{}", completions[0].status);
        }
    };
    round(0);
    let before = allocations_on_this_thread();
    for wr_id in 1..200 {
        round(wr_id);
    }
    assert_eq!(allocations_on_this_thread(), before);
}

/// A window bound to the first page of a registration of its own, and that registration.
fn bound_window(
    end: &mut End,
) -> (
    <Verbs as Provider>::Window,
    <Verbs as Provider>::Registration,
    RemoteAddress,
) {
    let domain = end.memory.registered.domain().clone();
    let arena = hugemem::Arena::new(hugemem::ArenaConfig {
        bytes: 8 << 20,
        pages: PagePolicy::Ordinary,
        max_transfer: BYTES,
    })
    .expect("an arena");
    let range = MemoryRange::of_region(arena.region(), 0..BYTES);
    let registration = domain
        .register(range, Access::WINDOWS)
        .expect("registering");
    let mut window = domain.create_window().expect("a window");
    let binding = binding_of(&registration, 50);
    end.queue_pair
        .queue_bind(&mut window, &registration, &binding)
        .expect("queued");
    end.queue_pair.flush().expect("posted");
    end.expect(50, CompletionStatus::SUCCESS);
    let remote = RemoteAddress {
        address: registration.address() as u64,
        rkey: window.rkey(),
    };
    (window, registration, remote)
}

fn binding_of(registration: &impl Registration, wr_id: u64) -> WindowBinding {
    WindowBinding {
        wr_id,
        address: registration.address() as u64,
        length: 4096,
        remote_read: true,
        remote_write: true,
        signalled: true,
    }
}

fn a_window_outlives_its_registration(lab: &LabEnvironment) {
    let mut ends = ordinary_ends(lab);
    let (window, registration, remote) = bound_window(&mut ends.server);
    drop(registration);
    let client = &mut ends.client;
    // The device refuses to end a registration that has a bound window, so its memory is unchanged.
    client.post(1, SendOperation::Write(remote), 64);
    client.expect(1, CompletionStatus::SUCCESS);
    drop(window);
    client.post(2, SendOperation::Write(remote), 64);
    client.expect(2, CompletionStatus::REMOTE_ACCESS_ERROR);
}

fn a_window_outlives_its_queue_pair(lab: &LabEnvironment) {
    let began = Instant::now();
    let Ends {
        mut client, server, ..
    } = ordinary_ends(lab);
    let (mut window, registration, remote) = bound_window(&mut client);
    let domain = client.memory.registered.domain().clone();
    drop((client, server));
    // Destroying a queue pair with a bound window would take soft RoCE 50 s.
    assert!(began.elapsed() < Duration::from_secs(20));
    // The window is unbound now, and can be bound on another queue pair of the domain.
    let mut other = Ends::in_domain(
        &lab.verbs,
        lab.address,
        PagePolicy::Ordinary,
        Access::REMOTE,
        Some(domain),
    );
    let binding = binding_of(&registration, 70);
    let queue_pair = &mut other.client.queue_pair;
    queue_pair
        .queue_bind(&mut window, &registration, &binding)
        .expect("queued");
    queue_pair.flush().expect("posted");
    other.client.expect(70, CompletionStatus::SUCCESS);
    let renewed = RemoteAddress {
        rkey: window.rkey(),
        ..remote
    };
    other.server.post(1, SendOperation::Write(renewed), 64);
    other.server.expect(1, CompletionStatus::SUCCESS);
    other.server.post(2, SendOperation::Write(remote), 64);
    other
        .server
        .expect(2, CompletionStatus::REMOTE_ACCESS_ERROR);
}

fn ordinary_ends(lab: &LabEnvironment) -> Ends {
    Ends::new(
        &lab.verbs,
        lab.address,
        PagePolicy::Ordinary,
        Access::REMOTE,
    )
}

fn one_binding_of_a_window_in_a_batch(lab: &LabEnvironment) {
    let mut ends = ordinary_ends(lab);
    let (mut window, registration, remote) = bound_window(&mut ends.server);
    let server = &mut ends.server;
    let queue_pair = &mut server.queue_pair;
    // By the specification, a window of type 2 must be invalidated before it is bound again.
    let invalidate = SendOperation::LocalInvalidate { rkey: remote.rkey };
    let nothing = Payload::Memory(&[]);
    let request = SendRequest::new(60, invalidate, nothing).signalled(false);
    queue_pair.queue_send(&request).expect("queued");
    let binding = binding_of(&registration, 61);
    queue_pair
        .queue_bind(&mut window, &registration, &binding)
        .expect("queued");
    let key = window.rkey();
    assert_ne!(key, remote.rkey);
    let again = queue_pair.queue_bind(&mut window, &registration, &binding);
    assert_eq!(again, Err(rdma::PostError::NotPossible));
    assert_eq!(window.rkey(), key, "as it was");
    queue_pair.flush().expect("posted");
    server.expect(61, CompletionStatus::SUCCESS);
    let client = &mut ends.client;
    let renewed = RemoteAddress {
        rkey: key,
        ..remote
    };
    client.post(1, SendOperation::Write(renewed), 64);
    client.expect(1, CompletionStatus::SUCCESS);
    client.post(2, SendOperation::Write(remote), 64);
    client.expect(2, CompletionStatus::REMOTE_ACCESS_ERROR);
}

fn queues_that_overflow_refuse(lab: &LabEnvironment) {
    let mut ends = ordinary_ends(lab);
    let client = &mut ends.client;
    // The peer has no receive posted, so all of these stay in the queue.
    let mut posted = 0_u64;
    let error = loop {
        let piece: Sge = client.memory.piece(0, 64);
        let request = SendRequest::new(
            posted,
            SendOperation::Send,
            Payload::Memory(slice::from_ref(&piece)),
        );
        client.queue_pair.queue_send(&request).expect("queued");
        if let Err(error) = client.queue_pair.flush() {
            break error;
        }
        posted += 1;
        assert!(posted < 100_000, "no queue is so long");
    };
    assert!(posted >= u64::from(REQUESTS), "{posted}");
    assert_eq!(error.cause, rdma::PostError::QueueFull, "{error}");
    assert_eq!((error.first_wr_id, error.refused), (posted, 1));
    // No posted request is lost.
    for wr_id in 0..posted {
        ends.server.receive(wr_id);
        ends.server.expect(wr_id, CompletionStatus::SUCCESS);
        ends.client.expect(wr_id, CompletionStatus::SUCCESS);
    }
}

fn device_of(lab: &LabEnvironment) -> <Verbs as Provider>::Device {
    let devices = lab.verbs.devices().expect("devices");
    let device = devices.iter().find(|one| one.name() == lab.device);
    device.expect("the device").clone()
}

fn port_event(device: &<Verbs as Provider>::Device, expected: DeviceEvent) {
    wait(&format!("{expected:?}"), || {
        device.next_event().filter(|event| *event == expected)
    });
}

fn a_port_goes_down_and_up(lab: &LabEnvironment) {
    let device = device_of(lab);
    while device.next_event().is_some() {}
    assert!(device.port_is_up(1).expect("a port"));
    run(&["ip", "link", "set", &lab.interface, "down"]);
    port_event(&device, DeviceEvent::PortDown(1));
    assert!(!device.port_is_up(1).expect("a port"));
    run(&["ip", "link", "set", &lab.interface, "up"]);
    port_event(&device, DeviceEvent::PortUp(1));
    assert!(device.port_is_up(1).expect("a port"));
    drop(ordinary_ends(lab));
}

fn a_device_is_removed_and_returns(lab: &LabEnvironment) {
    let device = device_of(lab);
    while device.next_event().is_some() {}
    let mut ends = ordinary_ends(lab);
    ends.client.receive(1);
    let (window, registration, _) = bound_window(&mut ends.server);
    let device_name = lab.device.clone();
    // The kernel waits until every user has released the device, so another thread requests the
    // removal.
    let removal = std::thread::spawn(move || run(&["rdma", "link", "delete", &device_name]));
    for end in [&mut ends.client, &mut ends.server] {
        let mut event = next_connection_event(&mut end.channel, "the removal");
        // The kernel may have finished with the other end first.
        if event == ConnectionEvent::Disconnected {
            event = next_connection_event(&mut end.channel, "the removal");
        }
        assert_eq!(event, ConnectionEvent::DeviceRemoved);
    }
    match next(&mut ends.listening, "the listener's end") {
        Event::ListenerFailed { listener } => assert_eq!(listener, Token(9)),
        other => panic!("{other:?}"),
    }
    wait("the device's end", || {
        device
            .next_event()
            .filter(|event| *event == DeviceEvent::Fatal)
    });
    assert_eq!(device.next_event(), None, "told once");
    ends.client.connection.disconnect().ok();
    drop(registration);
    drop(ends);
    drop(window);
    let index = device.index();
    drop(device);
    // There is another device, so the list is never empty.
    wait("the removal", || {
        let devices = lab.verbs.devices().expect("devices");
        assert!(devices.iter().all(|one| one.index() != index));
        removal.is_finished().then_some(())
    });
    removal.join().expect("the removal");
    run(&[
        "rdma",
        "link",
        "add",
        &lab.device,
        "type",
        "rxe",
        "netdev",
        &lab.interface,
    ]);
    let returned = device_of(lab);
    assert_ne!(returned.index(), index, "another device");
    let mut ends = ordinary_ends(lab);
    let remote = ends.server.memory.remote(0);
    ends.client.post(1, SendOperation::Write(remote), 4096);
    ends.client.expect(1, CompletionStatus::SUCCESS);
}
