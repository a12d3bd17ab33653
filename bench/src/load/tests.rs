//! Lanes with a faulty disk in memory: the errors that a verified workload must detect.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use hugemem::{Arena, ArenaConfig, Lease, PagePolicy, Pool};
use nvme_host::{HostCompletion, HostCompletions, HostError, NamespaceInfo, Refusal, Refused};
use nvme_spec::{Cqe, Status};

use super::initiator::Initiator;
use super::lane::Lane;
use super::phase::{PhaseKind, PhaseStats, RunError, RunState, Until, run_phase};
use super::{Limit, OptionsError, Pattern, Workload};
use crate::random::Random;
use crate::verify::Wrong;

const BLOCK: usize = 512;

/// The fault of the disk, which occurs once, at its `at`th read or write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// A read returns data with one flipped bit.
    FlipBit,
    /// A write is acknowledged but not stored.
    ForgetWrite,
    /// The second half of a write is not stored.
    TearWrite,
    /// A write is stored one block further.
    ShiftWrite,
    /// A read returns the blocks after the requested ones.
    ShiftRead,
    /// A read returns zeroes.
    ReadZeroes,
    /// A command fails.
    Fail,
    /// A command is completed twice.
    Twice,
    /// The connection fails.
    Disconnect,
    /// No further command completes.
    Hang,
    /// No command completes for 20 ms.
    Pause,
}

/// A disk that completes out of order.
struct Disk {
    bytes: Vec<u8>,
    done: VecDeque<HostCompletion>,
    random: Random,
    depth: usize,
    fault: Fault,
    reads: u32,
    writes: u32,
    at: u32,
    hung: bool,
    failed: bool,
}

impl Disk {
    fn new(blocks: usize, fault: Fault, at: u32) -> Self {
        Self {
            bytes: vec![0; blocks * BLOCK],
            done: VecDeque::new(),
            random: Random::new(11),
            depth: usize::MAX,
            fault,
            reads: 0,
            writes: 0,
            at,
            hung: false,
            failed: false,
        }
    }

    fn finish(&mut self, token: u64, status: Status, data: Lease) {
        let cqe = Cqe::new(0, status);
        let received = data.len() as u32;
        self.done.push_back(HostCompletion {
            token,
            cqe,
            received,
            data: Some(data),
        });
    }

    /// Whether the fault is due at this read (`true`) or write.
    fn is_due(&self, read: bool) -> bool {
        let on_read = matches!(
            self.fault,
            Fault::FlipBit | Fault::ShiftRead | Fault::ReadZeroes
        );
        let on_write = matches!(
            self.fault,
            Fault::ForgetWrite | Fault::TearWrite | Fault::ShiftWrite
        );
        match self.fault {
            Fault::None => false,
            _ if on_read => read && self.reads == self.at,
            _ if on_write => !read && self.writes == self.at,
            _ => self.reads + self.writes == self.at,
        }
    }

    /// Applies faults that affect reads and writes. Returns true if the command was handled.
    fn common_fault(&mut self, token: u64, data: &mut Option<Lease>) -> bool {
        match self.fault {
            Fault::Fail => {
                if let Some(data) = data.take() {
                    self.finish(token, Status::INTERNAL_ERROR, data);
                }
                true
            }
            Fault::Twice => {
                let cqe = Cqe::new(0, Status::INTERNAL_ERROR);
                self.done.push_back(HostCompletion {
                    token,
                    cqe,
                    received: 0,
                    data: None,
                });
                false
            }
            Fault::Disconnect => {
                self.failed = true;
                false
            }
            Fault::Hang => {
                self.hung = true;
                false
            }
            _ => false,
        }
    }
}

impl Initiator for Disk {
    fn submit_read(
        &mut self,
        _: u32,
        lba: u64,
        _: u32,
        mut data: Lease,
        token: u64,
    ) -> Result<(), Refused<Lease>> {
        if self.done.len() >= self.depth {
            return Err(Refused {
                refusal: Refusal::Full,
                data: Some(data),
            });
        }
        self.reads += 1;
        let due = self.is_due(true);
        let mut lease = None;
        let mut start = lba as usize * BLOCK;
        if due && self.fault == Fault::ShiftRead {
            start = (start + BLOCK).min(self.bytes.len() - data.len());
        }
        let end = start + data.len();
        data.copy_from_slice(&self.bytes[start..end]);
        if due {
            match self.fault {
                Fault::FlipBit => {
                    let place = data.len() / 2;
                    data[place] ^= 0x04;
                }
                Fault::ReadZeroes => data.fill(0),
                _ => {}
            }
            lease = Some(data);
            if self.common_fault(token, &mut lease) {
                return Ok(());
            }
            data = lease.take().expect("kept unless dealt with");
        }
        drop(lease);
        self.finish(token, Status::SUCCESS, data);
        Ok(())
    }

    fn submit_write(
        &mut self,
        _: u32,
        lba: u64,
        _: u32,
        data: Lease,
        token: u64,
    ) -> Result<(), Refused<Lease>> {
        if self.done.len() >= self.depth {
            return Err(Refused {
                refusal: Refusal::Full,
                data: Some(data),
            });
        }
        self.writes += 1;
        let due = self.is_due(false);
        let mut len = data.len();
        let mut start = lba as usize * BLOCK;
        let mut data = Some(data);
        if due {
            match self.fault {
                Fault::ForgetWrite => len = 0,
                Fault::TearWrite => len /= 2,
                Fault::ShiftWrite => start = (start + BLOCK).min(self.bytes.len() - len),
                _ => {
                    if self.common_fault(token, &mut data) {
                        return Ok(());
                    }
                }
            }
        }
        let data = data.expect("kept unless dealt with");
        self.bytes[start..start + len].copy_from_slice(&data[..len]);
        self.finish(token, Status::SUCCESS, data);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), RunError> {
        Ok(())
    }

    fn poll(&mut self, completions: &mut HostCompletions) -> Result<usize, RunError> {
        if self.failed {
            return Err(HostError::Closed.into());
        }
        if self.fault == Fault::Pause && self.reads + self.writes >= self.at {
            self.fault = Fault::None;
            std::thread::sleep(Duration::from_millis(20));
        }
        let mut added = 0;
        while !self.hung && !self.done.is_empty() && !completions.is_full() {
            // Only a random part each time: requests overlap and complete out of order.
            if self.random.below(3) == 0 && added > 0 {
                break;
            }
            let pick = self.random.below(self.done.len() as u64) as usize;
            completions.extend(self.done.remove(pick));
            added += 1;
        }
        Ok(added)
    }

    fn wait(&mut self, _: Duration) {}
}

fn namespace(blocks: u64) -> NamespaceInfo {
    NamespaceInfo {
        nsid: 1,
        block_bytes: BLOCK as u32,
        blocks,
        write_protected: false,
        nguid: [0; 16],
        eui64: [0; 8],
        uuid: None,
    }
}

fn workload() -> Workload {
    Workload {
        sizes_bytes: vec![512, 4096, 16 * 1024],
        depth: 16,
        queues: 1,
        threads: 1,
        read_percent: 60,
        pattern: Pattern::Random,
        rate: None,
        limit: Limit::Operations(3000),
        warm_up: Duration::ZERO,
        verify: true,
        region_bytes: None,
        seed: 77,
    }
}

fn pool() -> Pool {
    let config = ArenaConfig {
        bytes: 4 << 20,
        pages: PagePolicy::Ordinary,
        max_transfer: 16 << 10,
    };
    let arena: Arc<Arena> = Arena::new(config).expect("4 MiB of memory");
    arena.pool(0)
}

fn lane(disk: Disk, workload: &Workload) -> Lane<Disk> {
    let blocks = (disk.bytes.len() / BLOCK) as u64;
    let suited = workload
        .check_against(&namespace(blocks), None)
        .expect("suits");
    let pool = pool();
    let buffers = (0..workload.depth)
        .map(|_| pool.take(16 << 10).expect("memory"))
        .collect();
    Lane::new(disk, &suited, 0, buffers)
}

/// Runs all phases of a verified workload. Returns the statistics of each, up to an error.
fn drive(disk: Disk, workload: &Workload) -> Vec<PhaseStats> {
    let mut lanes = [lane(disk, workload)];
    let shared = RunState::new(Duration::from_millis(30));
    let mut done = Vec::new();
    for (kind, until) in [
        (PhaseKind::Fill, Until::End),
        (PhaseKind::Main, Until::Operations(3000)),
        (PhaseKind::ReadBack, Until::End),
    ] {
        let stats = run_phase(&mut lanes, kind, until, &shared);
        let troubled = stats.trouble.is_some();
        done.push(stats);
        if troubled {
            break;
        }
    }
    done
}

/// At 2,000 requests per second, 30 are due in the first 15 ms of a pause of 20 ms, and none of
/// them can complete before another 5 ms. A host that waits for the target before it sends the next
/// request would see the pause only in the 16 requests in flight.
#[test]
fn latency_includes_the_delay_of_due_requests_in_a_pause() {
    let workload = Workload {
        rate: Some(2000.0),
        verify: false,
        ..workload()
    };
    let mut lanes = [lane(Disk::new(300, Fault::Pause, 50), &workload)];
    let shared = RunState::new(Duration::from_secs(10));
    let until = Until::Operations(200);
    let stats = run_phase(&mut lanes, PhaseKind::Main, until, &shared);
    assert!(stats.trouble.is_none(), "{:?}", stats.trouble);
    let mut latencies = stats.reads.latencies;
    latencies.add(&stats.writes.latencies).expect("same bounds");
    let late = latencies.count_between(5_000_000, u64::MAX);
    assert_eq!(latencies.len(), 200);
    assert!(late >= 30, "{late} requests were late by 5 ms");
    assert!(
        stats.elapsed >= Duration::from_micros(99_500),
        "{:?}",
        stats.elapsed
    );
}

fn trouble(fault: Fault, at: u32) -> RunError {
    let mut phases = drive(Disk::new(300, fault, at), &workload());
    let last = phases.pop().expect("at least one phase");
    last.trouble
        .unwrap_or_else(|| panic!("{fault:?} was not noticed"))
}

#[test]
fn correct_disk_passes_verification_with_all_counts() {
    for (pattern, depth) in [
        (Pattern::Random, usize::MAX),
        (Pattern::Sequential, usize::MAX),
        (Pattern::Random, 3),
    ] {
        let mut disk = Disk::new(301, Fault::None, 0);
        disk.depth = depth;
        let workload = Workload {
            pattern,
            ..workload()
        };
        let phases = drive(disk, &workload);
        let [fill, main, read_back] = &phases[..] else {
            panic!("three phases")
        };
        assert!(phases.iter().all(|phase| phase.trouble.is_none()));
        let region = 301 * BLOCK as u64;
        assert_eq!((fill.writes.bytes, fill.reads.operations), (region, 0));
        assert_eq!(fill.writes.operations, 10, "301 blocks in pieces of 32");
        assert_eq!(main.reads.operations + main.writes.operations, 3000);
        let share = main.reads.operations * 100 / 3000;
        assert!((50..70).contains(&share), "{share} % reads");
        assert_eq!(main.reads.latencies.len(), main.reads.operations);
        assert_eq!(main.checked.right * BLOCK as u64, main.reads.bytes);
        assert_eq!(read_back.reads.bytes, region);
        assert_eq!(
            (read_back.checked.right, read_back.checked.unknown),
            (301, 0)
        );
    }
}

#[test]
fn every_kind_of_wrong_data_is_detected_and_named() {
    for at in [1, 7, 60] {
        let found = trouble(Fault::FlipBit, at);
        assert!(
            matches!(found, RunError::Mismatch(m) if matches!(m.wrong, Wrong::Corrupt { .. })),
            "{found}"
        );
        let found = trouble(Fault::ReadZeroes, at);
        assert!(
            matches!(found, RunError::Mismatch(m) if m.wrong == Wrong::Zeroes),
            "{found}"
        );
        let found = trouble(Fault::ShiftRead, at);
        assert!(
            matches!(found, RunError::Mismatch(m) if matches!(m.wrong, Wrong::Misplaced { .. })),
            "{found}"
        );
        assert!(
            found.to_string().starts_with("WRONG DATA: block "),
            "{found}"
        );
    }
    // Writes 1 to 10 fill an empty disk: lost ones leave zeroes.
    for fault in [Fault::ForgetWrite, Fault::TearWrite] {
        let found = trouble(fault, 3);
        assert!(
            matches!(found, RunError::Mismatch(m) if m.wrong == Wrong::Zeroes),
            "{found}"
        );
    }
    for at in [11, 40, 90] {
        let found = trouble(Fault::ForgetWrite, at);
        assert!(
            matches!(found, RunError::Mismatch(m) if matches!(m.wrong, Wrong::Stale { .. })),
            "{found}"
        );
        let found = trouble(Fault::ShiftWrite, at);
        assert!(
            matches!(found, RunError::Mismatch(m)
                if matches!(m.wrong, Wrong::Stale { .. } | Wrong::Misplaced { .. })),
            "{found}"
        );
    }
}

#[test]
fn failures_of_the_queue_end_the_run_with_their_reason() {
    let failed = trouble(Fault::Fail, 50);
    assert!(matches!(failed, RunError::Command { .. }), "{failed}");
    assert!(failed.to_string().contains("internal error"), "{failed}");
    let twice = trouble(Fault::Twice, 50);
    assert!(
        matches!(twice, RunError::Command { .. } | RunError::UnknownToken(_)),
        "{twice}"
    );
    let gone = trouble(Fault::Disconnect, 50);
    assert!(matches!(gone, RunError::Host(HostError::Closed)), "{gone}");
    let hung = trouble(Fault::Hang, 50);
    assert!(
        matches!(
            hung,
            RunError::Stalled {
                outstanding: 1..,
                ..
            }
        ),
        "{hung}"
    );
}

#[test]
fn timed_run_ends() {
    let mut lanes = [lane(Disk::new(300, Fault::None, 0), &workload())];
    let shared = RunState::new(Duration::from_secs(30));
    let limit = Duration::from_millis(20);
    let stats = run_phase(&mut lanes, PhaseKind::Main, Until::Time(limit), &shared);
    assert!(stats.trouble.is_none() && stats.elapsed >= limit);
    let operations = shared.operations.load(std::sync::atomic::Ordering::Relaxed);
    assert_eq!(operations, stats.reads.operations + stats.writes.operations);
    assert!(operations > 0);
}

#[test]
fn seed_determines_the_workload() {
    let counts = |seed| {
        let phases = drive(
            Disk::new(300, Fault::None, 0),
            &Workload { seed, ..workload() },
        );
        (phases[1].reads.bytes, phases[1].writes.bytes)
    };
    assert_ne!(counts(1), counts(2));
}

#[test]
fn unsuitable_workloads_are_refused_in_one_line() {
    let refuse = |workload: Workload, namespace: &NamespaceInfo| {
        workload
            .check_against(namespace, Some(128 * 1024))
            .expect_err("does not suit")
            .to_string()
    };
    let disk = namespace(1000);
    let four = NamespaceInfo {
        block_bytes: 4096,
        ..disk
    };
    let cases = [
        (
            refuse(
                Workload {
                    sizes_bytes: vec![700],
                    ..workload()
                },
                &disk,
            ),
            "whose blocks are 512",
        ),
        (
            refuse(
                Workload {
                    sizes_bytes: vec![512],
                    ..workload()
                },
                &four,
            ),
            "whose blocks are 4096",
        ),
        (
            refuse(
                Workload {
                    sizes_bytes: vec![0],
                    ..workload()
                },
                &disk,
            ),
            "0 B does not suit",
        ),
        (
            refuse(
                Workload {
                    sizes_bytes: vec![256 << 10],
                    ..workload()
                },
                &disk,
            ),
            "(128 KiB)",
        ),
        (
            refuse(
                Workload {
                    queues: 64,
                    threads: 1,
                    ..workload()
                },
                &disk,
            ),
            "has no room for a request of",
        ),
        (
            refuse(
                Workload {
                    region_bytes: Some(1 << 30),
                    ..workload()
                },
                &disk,
            ),
            "more than namespace 1 has (500 KiB)",
        ),
        (
            refuse(
                Workload {
                    depth: 0,
                    ..workload()
                },
                &disk,
            ),
            "depth must be 1 to",
        ),
        (
            refuse(
                Workload {
                    queues: 0,
                    ..workload()
                },
                &disk,
            ),
            "queues must be 1 to",
        ),
        (
            refuse(
                Workload {
                    threads: 2,
                    ..workload()
                },
                &disk,
            ),
            "give at least --queues",
        ),
        (
            refuse(
                Workload {
                    read_percent: 101,
                    ..workload()
                },
                &disk,
            ),
            "must be 0 to 100",
        ),
        (
            refuse(
                workload(),
                &NamespaceInfo {
                    write_protected: true,
                    ..disk
                },
            ),
            "namespace 1 is write protected",
        ),
        (
            refuse(
                Workload {
                    region_bytes: Some(1 << 40),
                    ..workload()
                },
                &NamespaceInfo {
                    blocks: 1 << 40,
                    ..disk
                },
            ),
            "give a smaller --region",
        ),
    ];
    for (text, part) in cases {
        assert!(text.contains(part), "{text} does not say: {part}");
    }
}

#[test]
fn default_sizes_fit_the_namespace() {
    let sizes = |verify, block_bytes| {
        let workload = Workload {
            sizes_bytes: vec![],
            verify,
            ..workload()
        };
        let namespace = NamespaceInfo {
            block_bytes,
            ..namespace(100_000)
        };
        let suited = workload.check_against(&namespace, None).expect("suits");
        suited
            .sizes_blocks
            .iter()
            .map(|blocks| blocks * block_bytes)
            .collect::<Vec<_>>()
    };
    assert_eq!(sizes(false, 512), [4096]);
    assert_eq!(sizes(false, 4096), [4096]);
    assert_eq!(sizes(true, 512), [512, 4096, 16_384, 20_480, 65_536]);
    assert_eq!(sizes(true, 4096), [4096, 16_384, 20_480, 65_536]);
    let error = Workload {
        sizes_bytes: vec![1 << 21],
        ..workload()
    };
    let error = error
        .check_against(&namespace(100_000), None)
        .expect_err("too large");
    assert_eq!(
        error,
        OptionsError::SizeTooLarge {
            size: 1 << 21,
            most: 1 << 20
        }
    );
}
