//! Arbitrary commands in arbitrary order: each gets one response, nothing panics, nothing is
//! leaked.

use std::collections::BTreeMap;

use nvme_spec::Sqe;
use nvme_spec::command::{AdminOpcode, DatasetRange, IoOpcode};
use nvme_spec::fabrics::{FabricsType, PropertySize};
use nvme_spec::registers::{Cc, Register};
use nvme_spec::sgl::SglDescriptor;
use nvme_target::{Admission, Work};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use zerocopy::{FromBytes, IntoBytes};

use crate::harness::{FAIL_INTERNAL, FAIL_MEDIA, HOLD, LATER, Link, World};

/// One step of a test.
#[derive(Clone, Debug)]
enum Step {
    /// Sends a command on a queue; its work is executed now or later.
    Command { queue: usize, sqe: Sqe, later: bool },
    /// Executes or rejects the oldest postponed work.
    Execute { give_up: bool },
    /// Arms or disarms a rule of a device's fault plan.
    Arm { cached: bool, rule: usize, on: bool },
    /// Releases held completions.
    Release,
    /// Advances the time and polls the cores.
    Poll { milliseconds: u64 },
    /// Breaks a connection.
    Break { queue: usize },
}

fn arbitrary_sqe() -> impl Strategy<Value = Sqe> {
    prop::array::uniform32(any::<u16>()).prop_map(|words| {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        Sqe::read_from_bytes(&bytes).expect("64 bytes")
    })
}

/// Arbitrary fields with a supported opcode, and mostly a valid data length.
fn likely_sqe() -> impl Strategy<Value = Sqe> {
    let opcodes = prop::sample::select(vec![
        IoOpcode::FLUSH.0,
        IoOpcode::WRITE.0,
        IoOpcode::READ.0,
        IoOpcode::COMPARE.0,
        IoOpcode::WRITE_ZEROES.0,
        IoOpcode::DATASET_MANAGEMENT.0,
        AdminOpcode::GET_LOG_PAGE.0,
        AdminOpcode::IDENTIFY.0,
        AdminOpcode::ABORT.0,
        AdminOpcode::GET_FEATURES.0,
        AdminOpcode::SET_FEATURES.0,
        AdminOpcode::ASYNC_EVENT_REQUEST.0,
        AdminOpcode::KEEP_ALIVE.0,
    ]);
    let lengths = prop::sample::select(vec![0_u32, 16, 512, 4096, 4096, 8192]);
    (
        opcodes,
        0..7_u32,
        0..40_u64,
        0..9_u16,
        any::<u32>(),
        lengths,
    )
        .prop_map(|(opcode, nsid, lba, nlb_z, cdw13, length)| {
            let mut sqe = Sqe::read(nsid, lba, nlb_z);
            sqe.opcode = opcode;
            if opcode == IoOpcode::DATASET_MANAGEMENT.0 {
                let command = Sqe::deallocate(nsid, (lba % 4) as u8);
                sqe = sqe.with_dataset_management(command.dataset_management());
            }
            sqe.specific.cdw13 = cdw13.into();
            sqe.with_sgl(SglDescriptor::transport(length))
        })
}

fn fabrics_sqe() -> impl Strategy<Value = Sqe> {
    let cc = prop::sample::select(vec![
        0,
        Cc::enabled_nvm().into_bits(),
        Cc::enabled_nvm().into_bits() | 1 << 14,
        Cc::enabled_nvm().into_bits() | 2 << 14,
        u32::MAX,
    ]);
    prop_oneof![
        cc.prop_map(|cc| {
            Sqe::set_property(Register::CC.0, PropertySize::BYTES_4, u64::from(cc))
        }),
        Just(Sqe::get_property(Register::CSTS.0, PropertySize::BYTES_4)),
        Just(Sqe::disconnect_queue()),
        any::<u8>().prop_map(|fctype| Sqe::fabrics(FabricsType(fctype))),
    ]
}

/// A rule of a fault plan, mostly those that hold and defer.
fn rule() -> impl Strategy<Value = usize> {
    prop::sample::select(vec![
        FAIL_INTERNAL,
        FAIL_MEDIA,
        HOLD,
        HOLD,
        HOLD,
        LATER,
        LATER,
        LATER,
    ])
}

fn step() -> impl Strategy<Value = Step> {
    let sqe = prop_oneof![
        4 => likely_sqe(),
        1 => arbitrary_sqe(),
        1 => fabrics_sqe(),
    ];
    prop_oneof![
        20 => (0..4_usize, sqe, any::<bool>())
            .prop_map(|(queue, sqe, later)| Step::Command { queue, sqe, later }),
        4 => any::<bool>().prop_map(|give_up| Step::Execute { give_up }),
        3 => (any::<bool>(), rule(), any::<bool>())
            .prop_map(|(cached, rule, on)| Step::Arm { cached, rule, on }),
        2 => Just(Step::Release),
        4 => (0..200_u64).prop_map(|milliseconds| Step::Poll { milliseconds }),
        1 => (0..4_usize).prop_map(|queue| Step::Break { queue }),
    ]
}

/// A command without a response yet.
struct Waiting {
    link: Link,
    cid: u16,
}

struct Run {
    world: World,
    links: Vec<Link>,
    open: [bool; 4],
    waiting: BTreeMap<u64, Waiting>,
    postponed: Vec<(u64, Link, Work)>,
    /// Commands per queue without a response: hosts do not exceed the depth.
    outstanding: [u32; 4],
    cid: u16,
}

impl Run {
    fn new() -> Self {
        let mut world = World::new();
        let admin = world.enabled(0);
        let near = world.io_queue(0, admin, 1);
        let far = world.io_queue(1, admin, 2);
        let other = world.enabled(1);
        Self {
            world,
            links: vec![admin, near, far, other],
            open: [true; 4],
            waiting: BTreeMap::new(),
            postponed: Vec::new(),
            outstanding: [0; 4],
            cid: 0,
        }
    }

    fn apply(&mut self, step: &Step) {
        match step {
            Step::Command { queue, sqe, later } => self.command(*queue, *sqe, *later),
            Step::Execute { give_up } => {
                if !self.postponed.is_empty() {
                    let (tag, link, work) = self.postponed.remove(0);
                    self.execute(tag, link, work, *give_up);
                }
            }
            Step::Arm { cached, rule, on } => {
                let world = &self.world;
                let control = if *cached {
                    &world.cached_fault
                } else {
                    &world.fault
                };
                control.arm(*rule, *on);
            }
            Step::Release => self.release(),
            Step::Poll { milliseconds } => {
                self.world.now += reactors::Nanos::from_millis(*milliseconds);
                self.world.poll();
            }
            Step::Break { queue } => self.close(*queue),
        }
        self.gather();
    }

    fn release(&self) {
        self.world.fault.release();
        self.world.cached_fault.release();
    }

    fn command(&mut self, queue: usize, sqe: Sqe, later: bool) {
        let link = self.links[queue];
        if !self.open[queue] || self.outstanding[queue] >= u32::from(link.info.depth) - 1 {
            return;
        }
        self.cid = self.cid.wrapping_add(1);
        let (tag, cid) = (self.world.tag(), self.cid);
        let sqe = sqe.with_cid(cid);
        let now = self.world.now;
        let admission = self.world.nodes[link.node]
            .core
            .admit(link.queue, tag, &sqe, now);
        if let Admission::Respond(cqe) = &admission {
            assert_eq!(cqe.cid.get(), cid);
            return;
        }
        self.outstanding[queue] += 1;
        self.waiting.insert(tag, Waiting { link, cid });
        if let Admission::Work(work) = admission {
            assert_eq!(work.command_id(), cid);
            assert!(work.bytes() as usize <= self.world.target.transfer_max());
            if later {
                self.postponed.push((tag, link, work));
            } else {
                self.execute(tag, link, work, false);
            }
        }
    }

    fn execute(&mut self, tag: u64, link: Link, work: Work, give_up: bool) {
        if give_up {
            let status = nvme_spec::Status::TRANSIENT_TRANSPORT_ERROR;
            let cqe = self.world.nodes[link.node]
                .core
                .reject(link.queue, work, status);
            self.command_completed(tag, cqe.cid.get());
            return;
        }
        // Ranges of one block, for Dataset Management.
        let range = DatasetRange::new(3, 1);
        let data = range
            .as_bytes()
            .iter()
            .copied()
            .cycle()
            .take(work.bytes() as usize);
        let data: Vec<u8> = data.collect();
        if let Some(reply) = self.world.execute(link, tag, work, &data) {
            self.command_completed(tag, reply.cqe.cid.get());
        }
    }

    fn command_completed(&mut self, tag: u64, cid: u16) {
        let waiting = self
            .waiting
            .remove(&tag)
            .expect("an answer nobody waits for");
        assert_eq!(waiting.cid, cid);
        let queue = self
            .links
            .iter()
            .position(|link| link.queue == waiting.link.queue && link.node == waiting.link.node);
        self.outstanding[queue.expect("a known queue")] -= 1;
    }

    fn gather(&mut self) {
        for node in 0..2 {
            loop {
                let node = &mut self.world.nodes[node];
                let Some(done) = node.core.next_completion(node.tcp) else {
                    break;
                };
                let data = done.data.as_ref().map_or(0, |data| data.len());
                assert_eq!(data, done.bytes as usize);
                let success = done.response.status().is_success();
                assert!(success || done.data.is_none());
                self.command_completed(done.tag, done.response.cid.get());
            }
            for close in self.world.closes(node) {
                let found = self
                    .links
                    .iter()
                    .position(|link| link.queue == close.queue && link.node == node);
                self.close(found.expect("a known queue"));
            }
        }
    }

    fn close(&mut self, queue: usize) {
        if !std::mem::replace(&mut self.open[queue], false) {
            return;
        }
        let link = self.links[queue];
        let same = |other: &Link| other.queue == link.queue && other.node == link.node;
        self.postponed.retain(|(_, other, _)| !same(other));
        self.world.close(link);
        self.waiting.retain(|_, waiting| !same(&waiting.link));
        self.outstanding[queue] = 0;
    }

    /// Completes everything and checks for leaks.
    fn finish(mut self) {
        for cached in [false, true] {
            for rule in [FAIL_INTERNAL, FAIL_MEDIA, HOLD, LATER] {
                self.apply(&Step::Arm {
                    cached,
                    rule,
                    on: false,
                });
            }
        }
        while !self.postponed.is_empty() {
            self.apply(&Step::Execute { give_up: false });
        }
        for _ in 0..600 {
            self.release();
            self.world.poll();
            self.gather();
        }
        // Event requests wait for events; all other commands are complete.
        let events: Vec<_> = self
            .waiting
            .values()
            .map(|waiting| waiting.link.info.admin)
            .collect();
        assert!(
            events.iter().all(|admin| *admin),
            "commands without an answer"
        );
        assert!(events.len() <= 8);
        for queue in 0..4 {
            self.close(queue);
        }
        self.world.settle();
        assert_eq!(self.world.leases(), 0, "leases out of the arena");
        assert!(self.world.target.snapshot().controllers.is_empty());
        for node in &self.world.nodes {
            assert_eq!((node.core.queues(), node.core.in_flight()), (0, 0));
            assert_eq!(node.core.counters().stale_completions.get(), 0);
        }
    }
}

/// The same commands on every run; `PROPTEST_RNG_SEED` in the environment selects others.
fn config() -> ProptestConfig {
    let mut config = ProptestConfig {
        cases: 128,
        max_shrink_iters: 4096,
        ..Default::default()
    };
    if config.rng_seed == RngSeed::Random {
        config.rng_seed = RngSeed::Fixed(2021);
    }
    config
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn every_command_completes_exactly_once(steps in prop::collection::vec(step(), 1..200)) {
        let mut run = Run::new();
        for step in &steps {
            run.apply(step);
        }
        run.finish();
    }
}
