use proptest::prelude::*;

use super::*;

const KIND: TraceRecordKind = TraceRecordKind::FIRST_FREE;

fn note(command: u16) -> TraceRecord {
    TraceRecord::new(KIND, 0, 0, command)
}

#[test]
fn trace_records_are_read_in_order() {
    let recorder = Recorder::new();
    let recording = recorder.recording();
    assert_eq!(recording.read(0), TraceRecords::default());
    for number in 0..5 {
        recorder.record(Nanos(u64::from(number)), note(number));
    }
    let all = recording.read(0);
    assert_eq!((all.before, all.notes.len()), (0, 5));
    assert_eq!(all.notes[4], (Nanos(4), note(4)));
    // A clone writes to the same ring.
    recorder.clone().record(Nanos(9), note(9));
    let later = recording.read(5);
    assert_eq!((later.before, later.notes), (5, vec![(Nanos(9), note(9))]));
    assert_eq!(recording.read(6).notes, []);
    assert_eq!(recording.read(u64::MAX).notes, []);
}

#[test]
fn oldest_trace_records_are_overwritten() {
    let recorder = Recorder::new();
    let many = TRACE_RECORDS_MAX as u64 + 100;
    for number in 0..many {
        recorder.record(Nanos(number), note(number as u16));
    }
    let stored = recorder.recording().read(0);
    // One less than the capacity, because the writer may be overwriting one.
    assert_eq!(
        (stored.before, stored.notes.len()),
        (101, TRACE_RECORDS_MAX - 1)
    );
    assert_eq!(stored.notes[0], (Nanos(101), note(101)));
    assert_eq!(stored.notes.last().expect("many").0, Nanos(many - 1));
}

#[test]
fn concurrent_reader_sees_whole_trace_records_in_order() {
    let recording = Recording::new();
    let reader = recording.clone();
    let writer = std::thread::spawn(move || {
        let recorder = recording.recorder();
        for number in 0..20 * TRACE_RECORDS_MAX as u64 {
            let halves = (number >> 16) as u16;
            let note = TraceRecord::new(KIND, 0, halves, number as u16);
            recorder.record(Nanos(number), note);
        }
    });
    let mut from = 0;
    while from < 20 * TRACE_RECORDS_MAX as u64 {
        let read = reader.read(from);
        assert!(read.before >= from);
        for (number, (time, note)) in (read.before..).zip(&read.notes) {
            assert_eq!(time.0, number);
            let halves = u64::from(note.queue()) << 16 | u64::from(note.command());
            assert_eq!(halves, number);
        }
        from = read.before + read.notes.len() as u64;
    }
    writer.join().expect("no panic");
}

proptest! {
    #[test]
    fn trace_record_round_trips(kind: u8, argument in 0_u32..1 << 24, queue: u16, command: u16) {
        let note = TraceRecord::new(TraceRecordKind(kind), argument, queue, command);
        prop_assert_eq!(note.kind(), TraceRecordKind(kind));
        prop_assert_eq!((note.argument(), note.queue(), note.command()), (argument, queue, command));
        let of_parts = TraceRecord::new(TraceRecordKind(0), argument, queue, 0);
        prop_assert_eq!(of_parts.with_kind(TraceRecordKind(kind)).with_command(command), note);
        prop_assert_eq!(TraceRecord::new(TraceRecordKind(kind), argument | 1 << 24, queue, command), note);
    }

    #[test]
    fn stall_record_round_trips(poller: u16, us in 0..=u64::from(u32::MAX)) {
        let note = TraceRecord::stall(poller, Nanos::from_micros(us));
        prop_assert_eq!((note.kind(), note.argument()), (TraceRecordKind::STALL, u32::from(poller)));
        prop_assert_eq!(note.stalled_for(), Nanos::from_micros(us));
        let endless = TraceRecord::stall(poller, Nanos::MAX);
        prop_assert_eq!(endless.stalled_for(), Nanos::from_micros(u64::from(u32::MAX)));
    }
}
