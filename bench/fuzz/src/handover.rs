//! Hand-over: stored states, of which any bytes are either refused or read exactly, and the state of
//! a real target with changed values, which a new target refuses or continues.

use std::cell::OnceCell;

use crc_fast::crc32_iscsi;
use nvme_handover::State;
use nvme_handover_format::{decode, encode};
use nvme_spec::tcp::DigestFlags;

use crate::input::Input;
use crate::tcp_harness::TcpHarness;
use crate::tcp_target::Association;

/// Bytes of the header of a stored state, and of each record (`nvme_handover_format`).
const HEADER_BYTES: usize = 16;
const RECORD_HEADER_BYTES: usize = 8;
/// Limit of the changes of one input.
const CHANGES_MAX: usize = 16;
/// Values at the limits of fields.
const LIMITS: [u64; 12] = [
    0,
    1,
    2,
    3,
    31,
    255,
    4096,
    65_519,
    65_535,
    1 << 20,
    u32::MAX as u64,
    u64::MAX,
];

/// One record: kind, version, body.
type Record = (u16, u16, Vec<u8>);

/// Reads the input as a stored state, as records, or as changes of a real state.
pub(crate) fn run(input: &[u8]) {
    let mut input = Input::new(input);
    match input.below(4) {
        0 => {
            let _ = check(input.take(usize::MAX));
        }
        1 => {
            let mut records = Vec::new();
            while !input.is_empty() && records.len() < CHANGES_MAX {
                let (kind, version) = (u16::from(input.u8()), u16::from(input.u8()));
                records.push((kind, version, input.bytes().to_vec()));
            }
            let _ = check(&stored(&records));
        }
        _ => change(input),
    }
}

/// A state that is accepted is stored again as the same state.
fn check(bytes: &[u8]) -> Option<State> {
    let state = decode(bytes).ok()?;
    let again = encode(&state).expect("not larger than before");
    assert_eq!(decode(&again).ok().as_ref(), Some(&state));
    Some(state)
}

/// The stored form of records, with the right checksum.
fn stored(records: &[Record]) -> Vec<u8> {
    let mut bytes = b"NVMeHand".to_vec();
    bytes.extend_from_slice(&1_u32.to_le_bytes());
    bytes.extend_from_slice(&(records.len() as u32).to_le_bytes());
    assert_eq!(bytes.len(), HEADER_BYTES);
    for (kind, version, body) in records {
        bytes.extend_from_slice(&kind.to_le_bytes());
        bytes.extend_from_slice(&version.to_le_bytes());
        bytes.extend_from_slice(&(body.len() as u32).to_le_bytes());
        bytes.extend_from_slice(body);
    }
    let checksum = crc32_iscsi(&bytes);
    bytes.extend_from_slice(&checksum.to_le_bytes());
    bytes
}

/// The records of a valid stored state.
fn records_of(stored: &[u8]) -> Vec<Record> {
    let mut records = Vec::new();
    let mut rest = &stored[HEADER_BYTES..stored.len() - 4];
    while let Some((header, behind)) = rest.split_at_checked(RECORD_HEADER_BYTES) {
        let number = |place: usize| u16::from_le_bytes([header[place], header[place + 1]]);
        let bytes = [header[4], header[5], header[6], header[7]];
        let (body, behind) = behind.split_at(u32::from_le_bytes(bytes) as usize);
        records.push((number(0), number(2), body.to_vec()));
        rest = behind;
    }
    records
}

/// The records of a target with an admin queue and an I/O queue.
fn real_records() -> Vec<Record> {
    thread_local! {
        static REAL: OnceCell<Vec<Record>> = const { OnceCell::new() };
    }
    let export = || {
        let mut harness = TcpHarness::new();
        let _host = Association::open(&mut harness, DigestFlags::new(), usize::MAX);
        let state = harness.export();
        harness.finish();
        assert_eq!(state.tcp_connections.len(), 2);
        records_of(&encode(&state).expect("small"))
    };
    REAL.with(|real| real.get_or_init(export).clone())
}

/// A new target gets a real state with some changes, and serves what it accepts.
fn change(mut input: Input<'_>) {
    let mut records = real_records();
    for _ in 0..CHANGES_MAX {
        if input.is_empty() || records.is_empty() {
            break;
        }
        let place = input.below(records.len().min(256));
        match input.below(8) {
            0 => {
                records.remove(place);
            }
            1 => records.push(records[place].clone()),
            2 => {
                let body = &mut records[place].2;
                let at = usize::from(input.u16()) % body.len().max(1);
                if let Some(byte) = body.get_mut(at) {
                    *byte = input.u8();
                }
            }
            _ => change_number(&mut records[place].2, &mut input),
        }
    }
    let bytes_behind = input.take(usize::MAX);
    let Some(state) = check(&stored(&records)) else {
        return;
    };
    let mut harness = TcpHarness::new();
    harness.restore(&state);
    harness.send_to_all(bytes_behind);
    harness.settle(|| {});
    harness.finish();
}

/// Replaces one number of a JSON text.
fn change_number(body: &mut Vec<u8>, input: &mut Input<'_>) {
    let is_start = |place: &usize| {
        body[*place].is_ascii_digit() && (*place == 0 || !body[*place - 1].is_ascii_digit())
    };
    let starts: Vec<_> = (0..body.len()).filter(is_start).collect();
    if starts.is_empty() {
        return;
    }
    let start = starts[usize::from(input.u16()) % starts.len()];
    let digits = body[start..].iter().take_while(|it| it.is_ascii_digit());
    let end = start + digits.count();
    let value = match input.below(LIMITS.len() + 1) {
        at if at < LIMITS.len() => LIMITS[at],
        _ => input.u64(),
    };
    body.splice(start..end, value.to_string().into_bytes());
}
