//! I/O commands: status codes and effects (NVM 1.1 §3.3).

use hugemem::allocation_counter::allocations_on_this_thread;
use nvme_driver_testing::{EmulatedNamespace, EmulatedOptions};
use nvme_spec::command::{DatasetRange, Fuse, IoOpcode, Sqe, WriteZeroesControl};
use nvme_spec::identify::DeallocatedRead;
use nvme_spec::{NSID_BROADCAST, Status};
use zerocopy::IntoBytes;

use crate::harness::{Host, PAGE, Pair};

fn two_namespaces() -> EmulatedOptions {
    let mut protected = EmulatedNamespace::new(4, 512, 64);
    protected.write_protected = true;
    let mut metadata = EmulatedNamespace::new(5, 512, 64);
    metadata.metadata_bytes = 8;
    let mut detached = EmulatedNamespace::new(6, 512, 64);
    detached.attached = false;
    let mut unspecified = EmulatedNamespace::new(7, 4096, 64);
    unspecified.deallocated = DeallocatedRead::NOT_REPORTED;
    EmulatedOptions {
        namespaces: vec![
            EmulatedNamespace::new(1, 4096, 100),
            protected,
            metadata,
            detached,
            unspecified,
        ],
        ..EmulatedOptions::default()
    }
}

fn host(options: EmulatedOptions) -> (Host, Pair) {
    let mut host = Host::new(options);
    let pair = host.pair(1, 16, 16);
    (host, pair)
}

fn zeroes(nsid: u32, lba: u64, blocks: u32) -> Sqe {
    let control = WriteZeroesControl::new().with_nlb_z((blocks - 1) as u16);
    Sqe::write_zeroes_range(nsid, lba, control)
}

#[test]
fn invalid_io_commands_are_refused() {
    const NAMESPACE: Status = Status::INVALID_NAMESPACE_OR_FORMAT;
    const RANGE: Status = Status::LBA_OUT_OF_RANGE;
    let (mut host, mut pair) = host(two_namespaces());
    let data = host.buffer(2 * PAGE);
    let protected = Status::NAMESPACE_WRITE_PROTECTED;
    let cases = [
        (Sqe::read(0, 0, 0), NAMESPACE),
        (Sqe::read(2, 0, 0), NAMESPACE),
        (Sqe::read(5, 0, 0), NAMESPACE),
        (Sqe::read(6, 0, 0), NAMESPACE),
        (Sqe::read(NSID_BROADCAST, 0, 0), NAMESPACE),
        (Sqe::flush(2), NAMESPACE),
        (Sqe::read(1, 100, 0), RANGE),
        (Sqe::read(1, 99, 1), RANGE),
        (Sqe::read(1, u64::MAX, 0), RANGE),
        (Sqe::write(1, 99, 1, false), RANGE),
        (Sqe::compare(1, 99, 1), RANGE),
        (zeroes(1, 99, 2), RANGE),
        (zeroes(1, 0, 65536), RANGE),
        (Sqe::write(4, 0, 0, false), protected),
        (zeroes(4, 0, 1), protected),
        (
            Sqe::read(1, 0, 0).with_fuse(Fuse::FIRST),
            Status::INVALID_FIELD,
        ),
        (
            Sqe::new(IoOpcode::WRITE_UNCORRECTABLE.0, 1),
            Status::INVALID_OPCODE,
        ),
        (Sqe::new(IoOpcode::VERIFY.0, 1), Status::INVALID_OPCODE),
        (Sqe::new(0xff, 1), Status::INVALID_OPCODE),
    ];
    for (number, (sqe, expected)) in cases.into_iter().enumerate() {
        assert_eq!(
            host.run_io(&mut pair, sqe, &data),
            expected,
            "case {number}"
        );
    }
    let without = EmulatedOptions {
        optional_commands: false,
        ..two_namespaces()
    };
    let (mut host, mut pair) = self::host(without);
    let data = host.buffer(PAGE);
    for sqe in [
        Sqe::compare(1, 0, 0),
        zeroes(1, 0, 1),
        Sqe::deallocate(1, 0),
    ] {
        assert_eq!(host.run_io(&mut pair, sqe, &data), Status::INVALID_OPCODE);
    }
}

#[test]
fn write_zeroes_obeys_wzsl() {
    let (mut host, mut pair) = host(EmulatedOptions {
        write_zeroes_code: 2,
        ..EmulatedOptions::default()
    });
    let data = host.buffer(PAGE);
    host.write(&mut pair, 3, 9, false);
    host.write(&mut pair, 4, 8, false);
    assert_eq!(
        host.run_io(&mut pair, zeroes(1, 0, 5), &data),
        Status::INVALID_FIELD
    );
    assert_eq!(
        host.run_io(&mut pair, zeroes(1, 0, 4), &data),
        Status::SUCCESS
    );
    assert_eq!((host.read(&mut pair, 3), host.read(&mut pair, 4)), (0, 8));
}

#[test]
fn deallocated_blocks_read_as_reported() {
    let (mut host, mut pair) = host(two_namespaces());
    let ranges = host.buffer(PAGE);
    let put = |range: &[DatasetRange]| ranges.write(0, range.as_bytes());
    for lba in 0..4 {
        host.write(&mut pair, lba, 5, false);
    }
    put(&[
        DatasetRange::new(0, 1),
        DatasetRange::new(50, 0),
        DatasetRange::new(2, 1),
    ]);
    assert_eq!(
        host.run_io(&mut pair, Sqe::deallocate(1, 2), &ranges),
        Status::SUCCESS
    );
    let found = [0, 1, 2, 3].map(|lba| host.read(&mut pair, lba));
    assert_eq!(found, [0, 5, 0, 5]);
    put(&[DatasetRange::new(1, 1), DatasetRange::new(99, 2)]);
    let status = host.run_io(&mut pair, Sqe::deallocate(1, 1), &ranges);
    assert_eq!(status, Status::LBA_OUT_OF_RANGE);
    assert_eq!(
        host.read(&mut pair, 1),
        5,
        "a bad range spares the good ones"
    );
    put(&[DatasetRange::new(0, 1)]);
    let status = host.run_io(&mut pair, Sqe::deallocate(4, 0), &ranges);
    assert_eq!(status, Status::NAMESPACE_WRITE_PROTECTED);
    assert_eq!(
        host.run_io(&mut pair, Sqe::deallocate(7, 0), &ranges),
        Status::SUCCESS
    );
    let mut block = [0; PAGE];
    assert!(host.control.read_medium(7, 0, &mut block));
    assert_eq!(block, [0xde; PAGE], "nothing was promised");
}

#[test]
fn steady_state_does_not_allocate() {
    let (mut host, mut pair) = host(EmulatedOptions::default());
    let data = host.buffer(8 * PAGE);
    let (at, next) = (host.address(&data), host.address(&data) + PAGE as u64);
    let zeroed = [
        Sqe::read(1, 0, 1),
        Sqe::write(1, 4, 1, true),
        Sqe::compare(1, 4, 1),
    ];
    let before = allocations_on_this_thread();
    for number in 0..3000_u64 {
        let sqe = match number % 5 {
            3 => zeroes(1, number % 90, 3),
            4 => Sqe::flush(1),
            index => zeroed[index as usize],
        };
        let status = host.run(&mut pair, sqe.with_prp(at, next)).status();
        assert!(status.is_success() || status.is(Status::COMPARE_FAILURE));
        host.drive.tick(reactors::Nanos(number));
    }
    assert_eq!(allocations_on_this_thread() - before, 0);
}
