//! The volatile write cache: the data that a power cut may lose, and the data that it must not (NVM
//! 1.1 §2.1.4).

use nvme_driver_testing::{EmulatedNamespace, EmulatedOptions, Fault, FaultMatch, FaultRule, When};
use nvme_spec::Status;
use nvme_spec::command::{FeatureId, Sqe};
use reactors::Nanos;

use crate::harness::{Host, PAGE, Pair};

const BLOCKS: u64 = 24;

fn host(options: EmulatedOptions) -> (Host, Pair) {
    let mut host = Host::new(EmulatedOptions {
        namespaces: vec![EmulatedNamespace::new(1, 4096, BLOCKS)],
        ..options
    });
    let pair = host.pair(1, 8, 8);
    (host, pair)
}

fn restart(host: &mut Host) -> Pair {
    host.control.power_cut();
    host.control.reinsert();
    host.enable();
    host.pair(1, 8, 8)
}

fn flush(host: &mut Host, pair: &mut Pair) {
    assert!(host.run(pair, Sqe::flush(1)).status().is_success());
}

/// Over all seeds, unflushed blocks are sometimes lost and sometimes kept; blocks that were flushed
/// or written with FUA are always kept.
#[test]
fn flushed_and_fua_writes_survive_a_power_cut() {
    let (mut lost, mut persisted) = (0, 0);
    for seed in 0..20 {
        let (mut host, mut pair) = host(EmulatedOptions {
            seed,
            ..EmulatedOptions::default()
        });
        for lba in 0..BLOCKS {
            host.write(&mut pair, lba, 1, false);
        }
        flush(&mut host, &mut pair);
        for lba in 0..BLOCKS {
            host.write(&mut pair, lba, 2, lba % 3 == 0);
        }
        let mut pair = restart(&mut host);
        for lba in 0..BLOCKS {
            let found = host.read(&mut pair, lba);
            if lba % 3 == 0 {
                assert_eq!(found, 2, "seed {seed}, block {lba}");
            } else {
                assert!([1, 2].contains(&found), "seed {seed}, block {lba}: {found}");
                lost += u32::from(found == 1);
                persisted += u32::from(found == 2);
            }
        }
        assert_eq!(host.control.counters().blocks_lost > 0, lost > 0);
    }
    assert!(lost > 50 && persisted > 50, "{lost} lost, {persisted} kept");
}

#[test]
fn no_write_is_lost_without_a_cache() {
    for by_feature in [false, true] {
        let (mut host, mut pair) = host(EmulatedOptions {
            write_cache: by_feature,
            ..EmulatedOptions::default()
        });
        if by_feature {
            host.write(&mut pair, 0, 1, false);
            let off = Sqe::set_feature(FeatureId::VOLATILE_WRITE_CACHE, 0, 0);
            assert_eq!(host.admin_status(off), Status::SUCCESS);
        }
        for lba in by_feature.into()..BLOCKS {
            host.write(&mut pair, lba, 1, false);
        }
        let mut pair = restart(&mut host);
        for lba in 0..BLOCKS {
            assert_eq!(host.read(&mut pair, lba), 1);
        }
        assert_eq!(host.control.counters().blocks_lost, 0);
    }
}

fn write_blocks(host: &mut Host, pair: &mut Pair, lba: u64, blocks: u16, byte: u8) {
    let data = host.buffer(usize::from(blocks) * PAGE);
    data.write(0, &vec![byte; data.len()]);
    let status = host.run_io(pair, Sqe::write(1, lba, blocks - 1, false), &data);
    assert_eq!(status, Status::SUCCESS);
}

/// A write of at most the atomic unit is kept or lost as a whole, even if a later write overwrote a
/// part of it. A longer one tears.
#[test]
fn writes_tear_at_the_atomic_unit() {
    let mut torn = 0;
    for seed in 0..64 {
        let (mut host, mut pair) = host(EmulatedOptions {
            seed,
            atomic_blocks: 4,
            ..EmulatedOptions::default()
        });
        write_blocks(&mut host, &mut pair, 0, 4, 1);
        write_blocks(&mut host, &mut pair, 6, 4, 1);
        write_blocks(&mut host, &mut pair, 8, 1, 2);
        write_blocks(&mut host, &mut pair, 12, 8, 3);
        let mut pair = restart(&mut host);
        let mut found = [0; BLOCKS as usize];
        for (lba, found) in found.iter_mut().enumerate() {
            *found = host.read(&mut pair, lba as u64);
        }
        assert!([[0; 4], [1; 4]].contains(&[found[0], found[1], found[2], found[3]]));
        let second = [found[6], found[7], found[8], found[9]];
        let whole = [[0; 4], [1; 4], [1, 1, 2, 1], [0, 0, 2, 0]];
        assert!(whole.contains(&second), "seed {seed}: {second:?}");
        torn += u32::from(found[12..20].iter().any(|byte| *byte != found[12]));
    }
    assert!(torn > 40, "{torn} of 64 long writes torn");
}

/// A power cut may execute a write in progress in part.
#[test]
fn power_cut_tears_a_write_in_progress() {
    let (mut none, mut some, mut all) = (0, 0, 0);
    for seed in 0..64 {
        let (mut host, mut pair) = host(EmulatedOptions {
            seed,
            ..EmulatedOptions::default()
        });
        let late = Fault::Delay(Nanos::from_millis(1));
        host.control
            .inject(FaultRule::new(FaultMatch::io(), When::First(1), late));
        let data = host.buffer(2 * PAGE);
        data.write(0, &[7; 2 * PAGE]);
        let at = host.address(&data);
        pair.push(&Sqe::write(1, 4, 1, true).with_prp(at, at + PAGE as u64));
        host.ring_tail(&pair);
        let mut pair = restart(&mut host);
        let found = [4, 5].map(|lba| host.read(&mut pair, lba));
        match found {
            [0, 0] => none += 1,
            [7, 7] => all += 1,
            [0, 7] | [7, 0] => some += 1,
            _ => panic!("seed {seed}: {found:?}"),
        }
    }
    assert!(none > 0 && some > 0 && all > 0, "{none}, {some}, {all}");
}
