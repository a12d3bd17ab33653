//! Tests the verifier with planted corruption: each kind is detected and identified.

use proptest::prelude::*;

use super::*;

const SEED: u64 = 0x5eed;

fn stamped(lba: u64, generation: u32) -> Vec<u8> {
    let mut block = vec![0_u8; 4096];
    stamp(&mut block, SEED, lba, generation);
    block
}

#[test]
fn stamped_block_passes_the_check() {
    for bytes in [HEADER_BYTES, 512, 4096] {
        let mut block = vec![0xff; bytes];
        stamp(&mut block, SEED, 77, 3);
        assert_eq!(check(&block, SEED, 77, 3), Ok(()));
    }
}

#[test]
fn flipped_bit_is_detected_at_any_offset() {
    let whole = stamped(9, 2);
    for offset in 0..whole.len() {
        let mut block = whole.clone();
        block[offset] ^= 1 << (offset % 8);
        let expected = Wrong::Corrupt {
            offset,
            found: block[offset],
            expected: whole[offset],
        };
        assert_eq!(check(&block, SEED, 9, 2), Err(expected), "byte {offset}");
    }
}

#[test]
fn stale_misplaced_lost_and_foreign_blocks_are_distinguished() {
    assert_eq!(
        check(&stamped(9, 1), SEED, 9, 2),
        Err(Wrong::Stale {
            found: 1,
            expected: 2
        })
    );
    assert_eq!(
        check(&stamped(8, 2), SEED, 9, 2),
        Err(Wrong::Misplaced { found: 8 })
    );
    assert_eq!(check(&[0; 4096], SEED, 9, 2), Err(Wrong::Zeroes));
    let mut foreign = vec![0; 4096];
    stamp(&mut foreign, SEED + 1, 9, 2);
    assert_eq!(
        check(&foreign, SEED, 9, 2),
        Err(Wrong::OtherRun {
            found_seed: SEED + 1
        })
    );
}

#[test]
fn torn_block_is_corrupt_from_the_tear_on() {
    let mut torn = stamped(9, 2);
    torn[2048..].copy_from_slice(&stamped(9, 1)[2048..]);
    let Err(Wrong::Corrupt { offset, .. }) = check(&torn, SEED, 9, 2) else {
        panic!("a torn block passed");
    };
    assert!((2048..2056).contains(&offset), "{offset}");
}

fn written(model: &mut Model, lba: u64, blocks: u32) -> Vec<u8> {
    let mut data = vec![0; blocks as usize * 512];
    assert!(model.begin_write(lba, &mut data));
    model.finish_write(lba, blocks, true);
    data
}

#[test]
fn model_tracks_the_last_acknowledged_write() {
    let mut model = Model::new(SEED, 100, 16, 512);
    let first = written(&mut model, 100, 8);
    let second = written(&mut model, 104, 8);
    let mut whole = first.clone();
    whole.truncate(4 * 512);
    whole.extend_from_slice(&second);
    assert!(model.begin_read(100, 12));
    assert_eq!(
        model.finish_read(100, 12, Some(&whole)),
        Ok(Checked {
            right: 12,
            unknown: 0
        })
    );
    // The overlapping blocks have the content from before the second write.
    assert!(model.begin_read(100, 8));
    let stale = model.finish_read(100, 8, Some(&first)).expect_err("stale");
    assert_eq!(
        stale,
        Mismatch {
            lba: 104,
            wrong: Wrong::Stale {
                found: 1,
                expected: 2
            }
        }
    );
    assert_eq!(
        stale.to_string(),
        "block 104: it holds generation 1, not 2 (stale)"
    );
}

#[test]
fn unwritten_and_failed_blocks_are_not_judged() {
    let mut model = Model::new(SEED, 0, 8, 512);
    let data = written(&mut model, 0, 2);
    assert!(model.begin_write(2, &mut vec![0; 2 * 512]));
    model.finish_write(2, 2, false);
    let mut read = data;
    read.extend_from_slice(&[0x33; 4 * 512]);
    assert!(model.begin_read(0, 6));
    assert_eq!(
        model.finish_read(0, 6, Some(&read)),
        Ok(Checked {
            right: 2,
            unknown: 4
        })
    );
    // A later successful write makes them known again, one generation further.
    let again = written(&mut model, 2, 2);
    assert_eq!(check(&again[..512], SEED, 2, 2), Ok(()));
}

#[test]
fn overlapping_requests_with_a_write_wait() {
    let mut model = Model::new(SEED, 0, 16, 512);
    let mut data = vec![0; 4 * 512];
    assert!(model.begin_write(4, &mut data));
    assert!(!model.begin_read(7, 1), "read over a write");
    assert!(
        !model.begin_write(0, &mut vec![0; 5 * 512]),
        "write over a write"
    );
    assert!(model.begin_read(8, 2));
    assert!(model.begin_read(9, 2), "reads may overlap");
    assert!(!model.begin_write(10, &mut data), "write over a read");
    model.finish_write(4, 4, true);
    assert_eq!(model.finish_read(8, 2, None), Ok(Checked::default()));
    assert!(model.begin_read(7, 1));
    assert!(
        !model.begin_write(9, &mut data),
        "one of two readers is still there"
    );
    assert_eq!(model.finish_read(9, 2, None), Ok(Checked::default()));
    assert!(model.begin_write(9, &mut data));
}

#[test]
fn cancelled_write_does_not_change_the_model() {
    let mut model = Model::new(SEED, 0, 8, 512);
    let data = written(&mut model, 0, 4);
    assert!(model.is_free(false, 0, 8) && !model.is_free(false, 0, 9));
    assert!(model.begin_write(0, &mut vec![0; 4 * 512]));
    assert!(!model.is_free(true, 3, 1));
    model.cancel_write(0, 4);
    assert!(model.begin_read(0, 4));
    assert!(model.is_free(true, 0, 4) && !model.is_free(false, 3, 2));
    assert_eq!(
        model.finish_read(0, 4, Some(&data)),
        Ok(Checked {
            right: 4,
            unknown: 0
        })
    );
}

#[test]
fn ranges_outside_the_model_are_refused() {
    let mut model = Model::new(SEED, 10, 4, 512);
    assert!(!model.begin_read(9, 1));
    assert!(!model.begin_read(13, 2));
    assert!(!model.begin_read(u64::MAX, u32::MAX));
    assert!(!model.begin_write(14, &mut [0; 512]));
    assert!(model.begin_read(13, 1));
    assert_eq!(
        (model.first_lba(), model.len(), model.is_empty()),
        (10, 4, false)
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Checking never panics, and only the stamped block is correct.
    #[test]
    fn arbitrary_bytes_fail_the_check(bytes in proptest::collection::vec(any::<u8>(), 512..=512)) {
        prop_assert!(check(&bytes, SEED, 1, 1).is_err());
    }

    /// Drives a model at random against a plain array of blocks: correct data is never reported as
    /// wrong.
    #[test]
    fn correct_data_is_never_reported_as_wrong(
        steps in proptest::collection::vec((0..20_u64, 1..5_u32, any::<bool>()), 1..200),
    ) {
        let mut model = Model::new(SEED, 0, 24, 512);
        let mut disk = vec![0_u8; 24 * 512];
        for (lba, blocks, write) in steps {
            let bytes = lba as usize * 512..(lba as usize + blocks as usize) * 512;
            if write {
                prop_assert!(model.begin_write(lba, &mut disk[bytes]));
                model.finish_write(lba, blocks, true);
            } else {
                prop_assert!(model.begin_read(lba, blocks));
                let checked = model.finish_read(lba, blocks, Some(&disk[bytes]));
                prop_assert_eq!(checked.map(|c| c.right + c.unknown), Ok(u64::from(blocks)));
            }
        }
    }
}
