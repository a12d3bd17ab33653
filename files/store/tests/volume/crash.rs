//! Power cuts at every moment of random workloads: what was durable is there, and each change is
//! there as a whole or not at all.

use files_store::{
    Handle, InodeId, Operation, Progress, SetAttributes, Ticket, VolatileOptions, Volume,
};
use proptest::prelude::*;

use crate::disk::{Disk, MEMORY_BYTES, formatted, open, options, settle};
use crate::model::{Model, Node};
use crate::names::{NOW, file};
use crate::random::Random;
use crate::workload::{Issued, Pair};

fn volatile() -> Pair {
    let volume = Volume::volatile(&VolatileOptions {
        uuid: options().uuid,
        device_bytes: 1 << 20,
        memory_bytes: MEMORY_BYTES,
    });
    Pair::new(volume, Disk::new(vec![0x5a; 1 << 20]), Model::new())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_volatile_volume_behaves_as_the_model(seed in any::<u64>(), count in 1_usize..300) {
        let mut random = Random::new(seed);
        let mut pair = volatile();
        for _ in 0..count {
            pair.operate(&mut random);
            pair.check();
        }
    }
}

#[test]
fn the_workload_has_successes_of_every_operation() {
    let mut random = Random::new(3);
    let mut pair = volatile();
    for _ in 0..6000 {
        pair.operate(&mut random);
    }
    pair.check();
    assert!(pair.counts.len() >= 13, "{:?}", pair.counts);
    assert!(
        pair.counts.values().all(|&count| count >= 3),
        "{:?}",
        pair.counts
    );
}

/// The model after an operation, and the ticket of the changes so far.
struct Moment {
    operation: usize,
    ticket: Ticket,
    model: Model,
}

/// A volume that loses power.
struct Life {
    pair: Pair,
    moments: Vec<Moment>,
    random: Random,
    /// Headers of checkpoints that were written.
    checkpoints: usize,
}

impl Life {
    /// Opens what the device has.
    fn begin(content: Vec<u8>, model: Model, random: Random) -> Self {
        let opening = open(&content).expect("the volume opens");
        let volume = opening.start();
        let ticket = volume.commit();
        let mut life = Self {
            pair: Pair::new(volume, Disk::new(content), model.clone()),
            moments: Vec::new(),
            random,
            checkpoints: 0,
        };
        // Clients are served when the first ticket is durable.
        settle(&mut life.pair.volume, &mut life.pair.disk);
        assert_eq!(life.pair.volume.progress(ticket), Progress::Durable);
        life.moments.push(Moment {
            operation: 0,
            ticket,
            model,
        });
        life
    }

    /// One event: an operation, a request, or the end of one.
    fn step(&mut self) {
        match self.random.below(3) {
            0 => {
                self.pair.operate(&mut self.random);
                self.moments.push(Moment {
                    operation: self.pair.operations,
                    ticket: self.pair.volume.commit(),
                    model: self.pair.model.clone(),
                });
            }
            1 => {
                if let Some(request) = self.pair.volume.poll() {
                    if let Operation::Write { data, .. } = &request.operation {
                        self.checkpoints += usize::from(data.starts_with(b"WNDLCKPT"));
                    }
                    self.pair.disk.submit(request);
                }
            }
            _ if self.pair.disk.has_work() => {
                let completion = self.pair.disk.complete(&mut self.random);
                self.pair.volume.complete(completion);
            }
            _ => {}
        }
    }

    /// Cuts the power and compares what is left with the moments that are permitted. Returns the
    /// content of the device and the model with its bytes.
    fn cut(&mut self) -> (Vec<u8>, Model) {
        let content = self.pair.disk.power_cut(&mut self.random);
        let opening = open(&content).expect("the volume opens after a power cut");
        assert_eq!(opening.problems(), [""; 0]);
        let volume = opening.start();
        let durable = |it: &Moment| self.pair.volume.progress(it.ticket) == Progress::Durable;
        let first = self
            .moments
            .iter()
            .rposition(durable)
            .expect("the beginning is durable");
        let mut reasons = Vec::new();
        for moment in self.moments[first..].iter().rev() {
            if let Some(difference) = moment.model.difference(&volume) {
                reasons.push(difference);
                continue;
            }
            // Writes after the moment may have replaced bytes of blocks that a file had before.
            let allowed = |id, at, found| {
                let later = |it: &&Issued| it.recorded.is_none_or(|it| it > moment.operation);
                let mut writes = self.pair.issued.iter().filter(later);
                writes.any(|it| {
                    let index = (at as u64).checked_sub(it.offset).map(|it| it as usize);
                    it.inode == id && index.and_then(|index| it.data.get(index)) == Some(&found)
                })
            };
            match Pair::check_bytes(&volume, &content, &moment.model, allowed) {
                Ok(()) => {
                    let model = survivors(&moment.model, &volume, &content);
                    return (content, model);
                }
                Err(reason) => reasons.push(reason),
            }
        }
        panic!("no permitted moment is there: {reasons:?}");
    }
}

/// The model of a volume after a power cut: with the bytes that are there, and nothing open.
fn survivors(model: &Model, volume: &Volume, content: &[u8]) -> Model {
    let mut model = model.clone();
    model.opens.clear();
    for (&id, object) in &mut model.objects {
        let Node::File(bytes) = &mut object.node else {
            continue;
        };
        let bytes = std::rc::Rc::make_mut(bytes);
        let mut at = 0;
        for range in volume
            .read(InodeId(id), 0, bytes.len() as u64)
            .expect("a file")
        {
            let length = range.length as usize;
            if let Some(device) = range.device {
                let found = &content[device as usize..][..length];
                for (byte, &found) in bytes[at..at + length].iter_mut().zip(found) {
                    *byte = byte.map(|_| found);
                }
            }
            at += length;
        }
    }
    model
}

/// Cuts the power after each event, and goes on after some of the cuts.
fn survive(seed: u64, lives: usize, events: usize) -> usize {
    let mut random = Random::new(seed);
    let (mut content, mut model) = (formatted(), Model::new());
    let mut busy = 0;
    for _ in 0..lives {
        let mut life = Life::begin(content, model, Random::new(random.next()));
        for _ in 0..events {
            life.step();
            life.cut();
        }
        (content, model) = life.cut();
        busy += life.pair.busy;
        // Objects that were open without links are freed when nothing can reclaim them.
        let mut volume = open(&content).expect("opens").start();
        let mut disk = Disk::new(content);
        settle(&mut volume, &mut disk);
        while volume.reap_orphans(2) > 0 {}
        settle(&mut volume, &mut disk);
        content = disk.content().to_vec();
        model.objects.retain(|_, object| object.links > 0);
        assert_eq!(model.difference(&volume), None);
    }
    busy
}

#[test]
fn nothing_durable_is_lost_and_nothing_half_done_is_seen() {
    for seed in 0..3 {
        println!("seed {seed}");
        survive(seed, 2, 120);
    }
}

/// Many events with few checks, but one after each event around the header of a checkpoint, so that
/// areas of checkpoints and of the log are used again.
#[test]
fn checkpoints_replace_the_log_in_any_order_of_events() {
    for seed in 100..103 {
        println!("seed {seed}");
        let mut random = Random::new(seed);
        let mut life = Life::begin(formatted(), Model::new(), Random::new(random.next()));
        let (mut checkpoints, mut cuts) = (0, 0);
        for event in 0..2600 {
            life.step();
            if life.checkpoints > checkpoints {
                (checkpoints, cuts) = (life.checkpoints, 10);
            }
            if event % 60 == 0 || cuts > 0 {
                cuts = cuts.max(1) - 1;
                life.cut();
                let durable = life.pair.volume.commit();
                if life.pair.volume.progress(durable) == Progress::Durable {
                    life.moments.drain(..life.moments.len() - 1);
                }
            }
        }
        life.cut();
        assert!(life.checkpoints >= 2, "{} checkpoints", life.checkpoints);
    }
}

/// Each boot has its own generation, and the numbers of change attributes of its own.
#[test]
fn handles_survive_a_restart_and_those_of_a_later_boot_differ() {
    let content = formatted();
    let mut disk = Disk::new(content.clone());
    let mut handles = Vec::new();
    for name in [b"x", b"y"] {
        let mut volume = open(disk.content()).expect("opens").start();
        settle(&mut volume, &mut disk);
        let inode = file(&mut volume, name);
        let handle = volume.attributes(inode).expect("exists").handle;
        assert_eq!(Handle::from_bytes(&handle.to_bytes()), handle);
        settle(&mut volume, &mut disk);
        let kept = open(disk.content()).expect("opens").start();
        assert_eq!(kept.resolve(&handle), Ok(inode));
        handles.push(handle);
    }
    assert_eq!(handles[0].generation + 1, handles[1].generation);
}

/// Directories and quotas of shares are changed right after a volume is opened, before it has stored
/// anything.
#[test]
fn parts_and_quotas_survive_a_power_cut() {
    let mut volume = open(&formatted()).expect("opens").start();
    let mut disk = Disk::new(formatted());
    let part = volume.part(b"team", NOW).expect("room");
    let quota = volume.set_quota(part.1, 5, 7).expect("room");
    assert_ne!(volume.progress(quota), Progress::Durable);
    settle(&mut volume, &mut disk);
    assert_eq!(volume.progress(quota), Progress::Durable);
    let content = disk.power_cut(&mut Random::new(3));
    let mut volume = open(&content).expect("opens").start();
    let used = |volume: &Volume| {
        let used = volume.share_use(part.1);
        (used.inodes_max, used.blocks_max, used.inodes)
    };
    assert_eq!(used(&volume), (5, 7, 1));
    assert_eq!(volume.part(b"team", NOW), Ok(part));
    // From a checkpoint, too.
    let mut disk = Disk::new(content);
    settle(&mut volume, &mut disk);
    let content = disk.power_cut(&mut Random::new(4));
    let mut volume = open(&content).expect("opens").start();
    assert_eq!(used(&volume), (5, 7, 1));
    let other = volume.part(b"other", NOW).expect("room");
    assert_ne!(other, part);
}

/// Where the first block of a file is on the device.
fn device_of(volume: &Volume, inode: InodeId) -> Option<u64> {
    let mut ranges = volume.read(inode, 0, 4096).expect("a file").into_iter();
    ranges.next()?.device
}

/// Plans a write of the first block of a file, and records it. Returns where its data go.
fn write_first_block(volume: &mut Volume, inode: InodeId) -> u64 {
    let plan = volume.write(inode, 0, 4096).expect("room");
    let at = plan.pieces[0].device;
    volume.write_done(plan.id, NOW).expect("room");
    at
}

/// Two files share a block. What ends that may be lost in a power cut, and then both have the block
/// again: until then, neither writes to it in place.
#[test]
fn a_block_that_was_shared_is_not_overwritten_before_that_is_durable() {
    type End = fn(&mut Volume, InodeId);
    let ends: [(&str, End); 4] = [
        ("overwritten", |volume, a| {
            write_first_block(volume, a);
        }),
        ("removed", |volume, _| {
            volume.remove(volume.root(), b"a", NOW).expect("it exists");
        }),
        ("deallocated", |volume, a| {
            volume.deallocate(a, 0, 4096, NOW).expect("room");
        }),
        ("cut", |volume, a| {
            let set = SetAttributes {
                size: Some(0),
                ..SetAttributes::default()
            };
            volume.set_attributes(a, &set, NOW).expect("room");
        }),
    ];
    for (what, end) in ends {
        let mut disk = Disk::new(formatted());
        let mut volume = open(disk.content()).expect("opens").start();
        let (a, b) = (file(&mut volume, b"a"), file(&mut volume, b"b"));
        let shared = write_first_block(&mut volume, a);
        volume.clone_range((a, 0), (b, 0), 0, NOW).expect("room");
        settle(&mut volume, &mut disk);
        assert_eq!(device_of(&volume, b), Some(shared));
        end(&mut volume, a);
        assert_ne!(write_first_block(&mut volume, b), shared, "{what}");
        settle(&mut volume, &mut disk);
        let own = device_of(&volume, b).expect("written");
        assert_eq!(write_first_block(&mut volume, b), own, "{what}");
        assert_eq!(volume.usage().retired_bytes, 0, "{what}");
        assert_eq!(volume.problems(), [""; 0], "{what}");
    }
}
