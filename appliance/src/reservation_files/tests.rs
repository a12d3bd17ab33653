//! Replacement, damage of every kind, directories that cannot be written, and the target's part.

use std::fs;
use std::ops::Range;
use std::time::Instant;

use nvme_reservations::{HostIdentifier, encode};
use nvme_spec::U64;
use nvme_spec::command::reservation::{
    AcquireControl, AcquireData, PersistChange, RegisterControl, RegisterData, ReservationType,
};
use nvme_target::{DeviceIndex, ReservationError, TargetConfig, TargetLimits};
use tempfile::TempDir;

use super::directory::{path_of, replace};
use super::*;

const HOST: HostIdentifier = HostIdentifier([7; 16]);
const KEY: u64 = 0x1234;
const CONTENT: &str = "file 12 1.5";
const DEVICE: DeviceIndex = DeviceIndex(0);
/// Longest wait for the thread.
const LIMIT: Duration = Duration::from_secs(30);

fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

fn identity() -> NamespaceIdentity {
    NamespaceIdentity(*reservations_uuid(CONTENT).as_bytes())
}

/// A state with one registrant, which holds a reservation.
fn held(cptpl: PersistChange) -> Reservations {
    let mut state = Reservations::new(PersistenceSupport::Supported);
    let control = RegisterControl::new().with_cptpl(cptpl);
    let (crkey, nrkey) = (U64::new(0), U64::new(KEY));
    let registered = state.register(HOST, control, &RegisterData { crkey, nrkey });
    let _ = registered.expect("it is the first");
    let control = AcquireControl::new().with_rtype(ReservationType::WRITE_EXCLUSIVE);
    let (crkey, prkey) = (U64::new(KEY), U64::new(0));
    let acquired = state.acquire(HOST, control, &AcquireData { crkey, prkey });
    let _ = acquired.expect("it is registered");
    state
}

fn encoded(state: &Reservations) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(state, identity(), &mut bytes);
    bytes
}

/// A target without exports.
fn target() -> Arc<Target> {
    let config = TargetConfig {
        subsystems: Vec::new(),
        ports: Vec::new(),
        limits: TargetLimits::default(),
    };
    Target::new(config, 1, Vec::new()).expect("a right configuration")
}

fn open(directory: &Path) -> (ReservationFiles, Arc<Target>) {
    let target = target();
    let files = ReservationFiles::open(Some(directory.to_owned()), &target, &[]);
    (files, target)
}

fn restored(directory: &Path) -> InitialReservations {
    open(directory).0.initial(&name("vol0"), Some(CONTENT))
}

#[track_caller]
fn expect_state(initial: &InitialReservations, expected: &Reservations) {
    match initial {
        InitialReservations::Persistent { state, .. } => assert_eq!(state, expected),
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn expect_unknown(initial: &InitialReservations) {
    let is_unknown = matches!(initial, InitialReservations::Unknown { .. });
    assert!(is_unknown, "{initial:?}");
}

#[track_caller]
fn expect_volatile(initial: &InitialReservations) {
    let is_volatile = matches!(initial, InitialReservations::Volatile);
    assert!(is_volatile, "{initial:?}");
}

/// The names of the files in a directory.
fn files_in(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).expect("a directory");
    let names = entries.map(|entry| entry.expect("readable").file_name());
    names
        .map(|name| name.into_string().expect("UTF-8"))
        .collect()
}

/// Base 2.1 §8.1.22.1: a state that does not persist is lost with the power.
#[test]
fn states_are_replaced_and_restored() {
    let directory = TempDir::new().expect("a directory");
    let path = directory.path().join("state/reservations");
    let empty = Reservations::new(PersistenceSupport::Supported);
    expect_state(&restored(&path), &empty);
    assert!(files_in(&path).is_empty(), "nothing was stored");
    let persistent = held(PersistChange::SET);
    replace(&path, identity(), &encoded(&persistent)).expect("writable");
    expect_state(&restored(&path), &persistent);
    let volatile = held(PersistChange::NO_CHANGE);
    replace(&path, identity(), &encoded(&volatile)).expect("writable");
    expect_state(&restored(&path), &empty);
    assert_eq!(files_in(&path).len(), 1);
    // An appliance was killed while it wrote.
    let temporary = path_of(&path, identity()).with_extension("tmp");
    fs::write(&temporary, "half of a state").expect("writable");
    expect_state(&restored(&path), &empty);
    assert_eq!(files_in(&path).len(), 1);
}

#[test]
fn failed_replacement_keeps_the_previous_state() {
    let directory = TempDir::new().expect("a directory");
    let path = directory.path();
    let before = held(PersistChange::SET);
    replace(path, identity(), &encoded(&before)).expect("writable");
    let temporary = path_of(path, identity()).with_extension("tmp");
    fs::create_dir(&temporary).expect("writable");
    let empty = Reservations::new(PersistenceSupport::Supported);
    assert!(replace(path, identity(), &encoded(&empty)).is_err());
    fs::remove_dir(&temporary).expect("it is empty");
    expect_state(&restored(path), &before);
    // The rename fails.
    let other = NamespaceIdentity([1; 16]);
    fs::create_dir(path_of(path, other)).expect("writable");
    assert!(replace(path, other, &encoded(&empty)).is_err());
    assert_eq!(files_in(path).len(), 2, "no temporary file is left");
}

/// CRC32C (RFC 3720 appendix B.4).
fn crc32c(bytes: &[u8]) -> u32 {
    let fold = |mut crc: u32, byte: &u8| {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            let mask = 0u32.wrapping_sub(crc & 1);
            crc = (crc >> 1) ^ (0x82f6_3b78 & mask);
        }
        crc
    };
    !bytes.iter().fold(!0, fold)
}

/// Bytes with a part replaced, and the checksum of the result.
fn patched(bytes: &[u8], place: Range<usize>, part: &[u8]) -> Vec<u8> {
    let mut patched = bytes.to_vec();
    patched.splice(place, part.iter().copied());
    let end = patched.len() - 4;
    let checksum = crc32c(&patched[..end]).to_le_bytes();
    patched[end..].copy_from_slice(&checksum);
    patched
}

/// Damaged files: a part of each error's text, and the bytes. The form is in
/// `nvme_reservations::persistence`: a header of 64 bytes, 24 bytes for each registrant, a checksum.
fn damaged() -> Vec<(&'static str, Vec<u8>)> {
    let good = encoded(&held(PersistChange::SET));
    assert_eq!(patched(&good, 0..0, &[]), good, "the checksum is right");
    let mut flipped = good.clone();
    flipped[70] ^= 1;
    let mut twice = good.clone();
    twice.splice(64..64, good[64..88].to_vec());
    let without_registrants = patched(&good, 64..88, &[]);
    let without_registrants = patched(&without_registrants, 12..16, &[0; 4]);
    let no_holder = patched(&without_registrants, 32..48, &[0; 16]);
    vec![
        ("truncated", good[..good.len() - 1].to_vec()),
        ("truncated", Vec::new()),
        ("instead of", [&good[..], &[0]].concat()),
        ("instead of", [&good[..], &vec![0; 1 << 20]].concat()),
        ("do not begin with", patched(&good, 0..8, b"SomeFile")),
        ("do not begin with", vec![0; 1 << 20]),
        ("version 2", patched(&good, 8..12, &[2, 0, 0, 0])),
        ("257 registrants", patched(&good, 12..16, &[1, 1, 0, 0])),
        ("checksum", flipped),
        ("another namespace", patched(&good, 16..32, &[9; 16])),
        ("reserved", patched(&good, 60..61, &[1])),
        ("identifier zero", patched(&good, 64..80, &[0; 16])),
        ("registered twice", patched(&twice, 12..16, &[2, 0, 0, 0])),
        ("unknown type", patched(&good, 52..53, &[9])),
        ("no single holder", patched(&good, 52..53, &[5])),
        ("is not registered", patched(&good, 32..48, &[8; 16])),
        ("no host is registered", patched(&no_holder, 52..53, &[5])),
    ]
}

/// Each kind of damage refuses hosts, is explained, and leaves the file as it is.
#[test]
fn damaged_files_are_kept_and_refuse_hosts() {
    let directory = TempDir::new().expect("a directory");
    let path = path_of(directory.path(), identity());
    for (text, bytes) in damaged() {
        fs::write(&path, &bytes).expect("writable");
        let error = load(directory.path(), identity()).expect_err(text);
        let error = error.to_string();
        assert!(error.contains(text), "{text}: {error}");
        assert!(error.contains(&path.display().to_string()), "{error}");
        expect_unknown(&restored(directory.path()));
        assert!(fs::read(&path).expect("it is there") == bytes, "{text}");
    }
}

#[test]
fn files_that_cannot_be_read_refuse_hosts() {
    let directory = TempDir::new().expect("a directory");
    let path = path_of(directory.path(), identity());
    fs::create_dir(&path).expect("writable");
    expect_unknown(&restored(directory.path()));
    fs::remove_dir(&path).expect("it is empty");
    let fifo = rustix::fs::mknodat(
        rustix::fs::CWD,
        &path,
        rustix::fs::FileType::Fifo,
        0o600.into(),
        0,
    );
    fifo.expect("writable");
    expect_unknown(&restored(directory.path()));
}

/// Without a directory that can be written, states that are there are restored, and others cannot
/// persist.
#[test]
fn unwritable_directory_still_restores_states() {
    let directory = TempDir::new().expect("a directory");
    let file = directory.path().join("file");
    fs::write(&file, "").expect("writable");
    expect_volatile(&restored(&file.join("reservations")));
    let none = ReservationFiles::open(None, &target(), &[]);
    expect_volatile(&none.initial(&name("vol0"), Some(CONTENT)));
    let path = directory.path().join("reservations");
    fs::create_dir(&path).expect("writable");
    // No file can be created under the name of the probe.
    let probe = path.join(format!("probe.{}", std::process::id()));
    fs::create_dir(probe).expect("writable");
    expect_volatile(&restored(&path));
    let state = held(PersistChange::SET);
    replace(&path, identity(), &encoded(&state)).expect("writable");
    expect_state(&restored(&path), &state);
    fs::write(path_of(&path, identity()), "foreign").expect("writable");
    expect_unknown(&restored(&path));
    let (files, target) = open(&path);
    target.set_reservations(DEVICE, files.initial(&name("vol0"), Some(CONTENT)));
    let cleared = target.clear_reservations(DEVICE).recv_timeout(LIMIT);
    assert_eq!(cleared, Ok(Err(ReservationError::NotStored)));
}

#[test]
fn devices_without_lasting_content_are_volatile() {
    let directory = TempDir::new().expect("a directory");
    let (files, _target) = open(directory.path());
    expect_volatile(&files.initial(&name("ram"), None));
    assert!(files_in(directory.path()).is_empty());
}

/// Files on two file systems may have the same description; they must not share a state.
#[test]
fn two_devices_do_not_share_a_state() {
    let directory = TempDir::new().expect("a directory");
    let (files, _target) = open(directory.path());
    let empty = Reservations::new(PersistenceSupport::Supported);
    expect_state(&files.initial(&name("one"), Some(CONTENT)), &empty);
    expect_volatile(&files.initial(&name("other"), Some(CONTENT)));
    expect_state(&files.initial(&name("one"), Some(CONTENT)), &empty);
    files.forget(&name("one"));
    expect_state(&files.initial(&name("renamed"), Some(CONTENT)), &empty);
}

/// The target's change completes when the state is durable, and fails if it cannot be stored.
#[test]
fn target_stores_states_through_the_thread() {
    let directory = TempDir::new().expect("a directory");
    let path = path_of(directory.path(), identity());
    fs::write(&path, "damaged").expect("writable");
    let (files, target) = open(directory.path());
    target.set_reservations(DEVICE, files.initial(&name("vol0"), Some(CONTENT)));
    assert!(target.reservations()[0].is_unknown);
    let temporary = path.with_extension("tmp");
    fs::create_dir(&temporary).expect("writable");
    for _ in 0..2 {
        let cleared = target.clear_reservations(DEVICE).recv_timeout(LIMIT);
        assert_eq!(cleared, Ok(Err(ReservationError::NotStored)));
        assert!(target.reservations()[0].is_unknown);
        assert_eq!(fs::read(&path).expect("it is there"), b"damaged");
    }
    fs::remove_dir(&temporary).expect("it is empty");
    let cleared = target.clear_reservations(DEVICE).recv_timeout(LIMIT);
    assert_eq!(cleared, Ok(Ok(())));
    assert!(target.reservations().is_empty());
    let empty = Reservations::new(PersistenceSupport::Supported);
    expect_state(&restored(directory.path()), &empty);
    // The thread ends with the target and the files.
    let weak = Arc::downgrade(&target);
    drop((files, target));
    let began = Instant::now();
    while weak.strong_count() > 0 {
        assert!(began.elapsed() < LIMIT, "the target is still referenced");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The lines that were logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("no panic holds it").write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Hosts can repeat a command that fails, so the error is logged once, until a state is stored.
#[test]
fn write_errors_are_logged_once() {
    let directory = TempDir::new().expect("a directory");
    let path = path_of(directory.path(), identity());
    let names: Names = Arc::default();
    let known = [(name("vol0"), identity())];
    names.lock().expect("no panic holds it").extend(known);
    let target = target();
    let mut writer = Writer::new(
        directory.path().to_owned(),
        Arc::downgrade(&target),
        Arc::clone(&names),
    );
    let log = Log::default();
    let lines = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_writer(move || lines.clone())
        .finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let mut store = || {
        let request = nvme_target::StoreRequest {
            device: DEVICE,
            number: 1,
            identity: identity(),
            bytes: encoded(&held(PersistChange::SET)),
        };
        writer.store(&request);
    };
    let counts = || {
        let bytes = log.0.lock().expect("no panic holds it").clone();
        let text = String::from_utf8(bytes).expect("UTF-8");
        let count = |part: &str| text.lines().filter(|line| line.contains(part)).count();
        (count("cannot be stored in"), count("stored again"), text)
    };
    for round in 1..=2 {
        fs::create_dir(&path).expect("writable");
        for _ in 0..3 {
            store();
            let (failed, stored, text) = counts();
            assert_eq!((failed, stored), (round, round - 1), "{text}");
            for part in ["device vol0", &path.display().to_string()] {
                assert!(text.contains(part), "{text}");
            }
        }
        fs::remove_dir(&path).expect("it is empty");
        for _ in 0..2 {
            store();
            let (failed, stored, text) = counts();
            assert_eq!((failed, stored), (round, round), "{text}");
        }
        fs::remove_file(&path).expect("it is there");
    }
}
