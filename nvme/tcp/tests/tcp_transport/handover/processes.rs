//! Hand-over from one process to another, with the sockets in SCM_RIGHTS messages. The other process
//! is this program, which runs only the test [`the_other_process`].

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use block::{DirectIo, FileDevice, FileOptions};
use nvme_handover_channel::{Channel, Message};

use super::*;

/// Tells the other process what to do, with the path of the namespace's file.
const SERVE: &str = "WINDLASS_TEST_SERVE";
const REFUSE: &str = "WINDLASS_TEST_REFUSE";
const DIE: &str = "WINDLASS_TEST_DIE";

/// The namespace, which both processes open.
fn file_device(path: &str) -> Arc<dyn Device> {
    let device = FileDevice::open(FileOptions {
        name: "file".to_owned(),
        uuid: [5; 16],
        path: PathBuf::from(path),
        size_bytes: None,
        block_size: BLOCK_BYTES as u32,
        read_only: false,
        shared: true,
        direct: DirectIo::Never,
        arena: None,
        below: None,
    });
    Arc::new(device.expect("a file"))
}

/// The file of a namespace, which is removed at the end.
struct Namespace(String);

impl Namespace {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
        let path = path.to_str().expect("UTF-8").to_owned();
        let file = std::fs::File::create(&path).expect("writable");
        file.set_len(1 << 20).expect("room");
        Self(path)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Starts the other process with a task; returns the channel to it.
fn start(task: &str, namespace: &Namespace) -> (Child, Channel) {
    let (own, other) = UnixStream::pair().expect("sockets");
    let program = std::env::current_exe().expect("this program");
    let child = Command::new(program)
        .args(["--exact", "handover::processes::the_other_process"])
        .env(task, &namespace.0)
        .stdin(Stdio::from(OwnedFd::from(other)))
        .stdout(Stdio::null())
        .spawn();
    let channel = Channel::new(own, LIMIT).expect("options");
    (child.expect("a process"), channel)
}

/// The end of the channel in the other process: its standard input.
fn inherited() -> Channel {
    let input = std::io::stdin().as_fd().try_clone_to_owned();
    let socket = UnixStream::from(input.expect("a descriptor"));
    Channel::new(socket, LIMIT).expect("options")
}

/// Not a test: the process that another test starts.
#[test]
fn the_other_process() {
    if let Ok(path) = std::env::var(SERVE) {
        serve(&path);
    } else if std::env::var(REFUSE).is_ok() {
        let channel = inherited();
        channel.receive().expect("a state");
        channel
            .send_refused("the configuration differs")
            .expect("open");
    } else if std::env::var(DIE).is_ok() {
        inherited().receive().expect("a state");
    }
}

/// Continues what the first process sends, until all hosts have disconnected.
fn serve(path: &str) {
    let device = file_device(path);
    let channel = inherited();
    let Ok(Message::State { bytes, descriptors }) = channel.receive() else {
        panic!("no state")
    };
    let state = nvme_handover_format::decode(&bytes).expect("a state of this version");
    let socket = |it: OwnedFd| TcpSocket::new(TcpStream::from(it)).expect("a connected socket");
    let streams = descriptors.into_iter().map(socket).collect();
    let now = Nanos(state.target.exported_at_ns);
    let (mut stage, places) = restore_held(&device, &state, streams, now);
    channel.send_restored().expect("the first process waits");
    assert!(matches!(channel.receive(), Ok(Message::Serve)));
    stage.set.resume(stage.now);
    let began = Instant::now();
    while !stage.set.is_empty() && began.elapsed() < 3 * LIMIT {
        run(&mut stage, &places, Duration::from_millis(1));
        while stage.set.take_ended().is_some() {}
    }
}

/// Exports a stage and sends its state with the sockets.
fn send_state(stage: &mut Stage<TcpSocket>, places: &[u16], channel: &Channel) {
    let (state, exported) = export_when_quiet(stage, places);
    let bytes = nvme_handover_format::encode(&state).expect("a small state");
    let sockets = exported.iter().filter_map(|place| stage.set.stream(*place));
    let sockets: Vec<_> = sockets.map(AsFd::as_fd).collect();
    channel.send_state(&bytes, &sockets).expect("it receives");
}

/// The host writes and reads without a pause while one process hands it over to another.
#[test]
fn a_host_continues_in_another_process() {
    let namespace = Namespace::new("windlass-handover");
    let device = file_device(&namespace.0);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a loopback port");
    let address = listener.local_addr().expect("bound");
    let progress = Progress::default();
    std::thread::scope(|threads| {
        let host = threads.spawn(|| progress.attach_and_work(address));
        let mut stage = Stage::<TcpSocket>::over(&device, ARENA);
        let places = accept_two(&mut stage, &listener);
        run(&mut stage, &places, Duration::from_millis(20));
        let (mut child, channel) = start(SERVE, &namespace);
        send_state(&mut stage, &places, &channel);
        assert!(matches!(channel.receive(), Ok(Message::Restored)));
        let before = progress.rounds.load(Ordering::Relaxed);
        drop(stage);
        channel.send_serve().expect("it waits");
        let began = Instant::now();
        while progress.rounds.load(Ordering::Relaxed) < before + 20 && began.elapsed() < LIMIT {
            std::thread::sleep(Duration::from_millis(1));
        }
        progress.finished.store(true, Ordering::Relaxed);
        host.join().expect("the host sees no error");
        assert!(progress.rounds.load(Ordering::Relaxed) >= before + 20);
        assert!(child.wait().expect("it ends").success());
    });
}

/// If the new process refuses the state or ends before it serves, the old one continues.
#[test]
fn the_old_process_continues_if_the_new_one_fails() {
    let namespace = Namespace::new("windlass-failed-handover");
    let device = file_device(&namespace.0);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a loopback port");
    let address = listener.local_addr().expect("bound");
    let progress = Progress::default();
    std::thread::scope(|threads| {
        let host = threads.spawn(|| progress.attach_and_work(address));
        let mut stage = Stage::<TcpSocket>::over(&device, ARENA);
        let places = accept_two(&mut stage, &listener);
        for task in [REFUSE, DIE] {
            run(&mut stage, &places, Duration::from_millis(10));
            let (mut child, channel) = start(task, &namespace);
            send_state(&mut stage, &places, &channel);
            match (task, channel.receive()) {
                (REFUSE, Ok(Message::Refused(reason))) => {
                    assert_eq!(reason, "the configuration differs");
                }
                (DIE, Err(error)) => assert_eq!(error.to_string(), "the other process has ended"),
                (_, other) => panic!("{other:?}"),
            }
            assert!(child.wait().expect("it ends").success());
            stage.set.resume(stage.now);
            let before = progress.rounds.load(Ordering::Relaxed);
            let began = Instant::now();
            while progress.rounds.load(Ordering::Relaxed) < before + 5 {
                assert!(began.elapsed() < LIMIT, "the host waits");
                run(&mut stage, &places, Duration::from_millis(1));
            }
        }
        progress.finished.store(true, Ordering::Relaxed);
        let began = Instant::now();
        while !host.is_finished() && began.elapsed() < LIMIT {
            run(&mut stage, &places, Duration::from_millis(1));
        }
        drop(stage);
        host.join().expect("the host sees no error");
    });
}
