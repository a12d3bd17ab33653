//! Faults: selected by pattern and seed, and counted.

use std::ops::Range;

use block_testing::When;
use nvme_spec::Status;
use nvme_spec::command::{IoOpcode, Sqe};
use reactors::Nanos;
use reactors::sim::Seeded;

/// Maximum number of rules per controller.
pub const FAULT_RULES_MAX: usize = 64;

/// The queue pairs that a rule matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queues {
    /// All.
    All,
    /// The admin queue pair.
    Admin,
    /// Every I/O queue pair.
    Io,
    /// The queue pair with this identifier.
    One(u16),
}

impl Queues {
    fn contains(self, queue_id: u16) -> bool {
        match self {
            Self::All => true,
            Self::Admin => queue_id == 0,
            Self::Io => queue_id != 0,
            Self::One(one) => queue_id == one,
        }
    }
}

/// The commands, doorbells or steps that a rule matches. A field that is `None` matches everything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultMatch {
    /// Queue pairs.
    pub queues: Queues,
    /// Opcode. Admin and I/O opcodes overlap, so restrict the queues as well.
    pub opcode: Option<u8>,
    /// Namespace.
    pub nsid: Option<u32>,
    /// Read, Write, Compare and Write Zeroes commands that access any of these blocks.
    pub blocks: Option<Range<u64>>,
}

impl FaultMatch {
    /// Matches every command on every I/O queue, or every doorbell of an I/O queue.
    #[must_use]
    pub fn io() -> Self {
        Self::of(Queues::Io)
    }

    /// Matches every admin command, or the doorbells of the admin queue.
    #[must_use]
    pub fn admin() -> Self {
        Self::of(Queues::Admin)
    }

    /// Matches everything on these queues.
    #[must_use]
    pub fn of(queues: Queues) -> Self {
        Self {
            queues,
            opcode: None,
            nsid: None,
            blocks: None,
        }
    }

    /// Restricts the match to one opcode.
    #[must_use]
    pub fn with_opcode(self, opcode: u8) -> Self {
        Self {
            opcode: Some(opcode),
            ..self
        }
    }

    /// Restricts the match to one namespace.
    #[must_use]
    pub fn with_namespace(self, nsid: u32) -> Self {
        Self {
            nsid: Some(nsid),
            ..self
        }
    }

    /// Restricts the match to commands that access any of these blocks.
    #[must_use]
    pub fn with_blocks(self, blocks: Range<u64>) -> Self {
        Self {
            blocks: Some(blocks),
            ..self
        }
    }

    fn matches(&self, queue_id: u16, sqe: Option<&Sqe>) -> bool {
        if !self.queues.contains(queue_id) {
            return false;
        }
        let Some(sqe) = sqe else {
            return true;
        };
        self.opcode.is_none_or(|opcode| opcode == sqe.opcode)
            && self.nsid.is_none_or(|nsid| nsid == sqe.nsid.get())
            && self
                .blocks
                .as_ref()
                .is_none_or(|blocks| queue_id != 0 && touches(sqe, blocks))
    }
}

fn touches(sqe: &Sqe, blocks: &Range<u64>) -> bool {
    let ranged = matches!(
        sqe.io_opcode(),
        IoOpcode::READ | IoOpcode::WRITE | IoOpcode::COMPARE | IoOpcode::WRITE_ZEROES
    );
    let range = sqe.read_write();
    let start = range.slba.get();
    let end = start.saturating_add(u64::from(range.blocks()));
    ranged && start < blocks.end && blocks.start < end
}

/// The kind of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The command executes, but its completion is never posted, and Abort does not find it.
    DropCompletion,
    /// The command neither executes nor completes. Abort ends it if `abortable`; otherwise Abort
    /// reports that it did not. After [`release`](super::EmulatorControl::release) the command
    /// executes.
    Hang {
        /// Whether Abort ends it.
        abortable: bool,
    },
    /// The command never completes, and transfers its data again and again until the controller is
    /// disabled, reset or without power, even after an Abort command that reported success. Reads
    /// write to host memory; writes read it and change no block.
    NeverCompletes,
    /// The completion is posted twice.
    Duplicate,
    /// The completion has a wrong command identifier: these bits are inverted.
    WrongIdentifier(u16),
    /// The completion has the identifier of another pending command of the same submission queue,
    /// or its own if there is none, with these bits inverted.
    OtherIdentifier(u16),
    /// The completion has the identifier of the command that completed before on the same
    /// submission queue, or its own if there was none.
    StaleIdentifier,
    /// The completion has this submission queue identifier.
    WrongQueue(u16),
    /// The completion has this submission queue head.
    WrongHead(u16),
    /// The command does not execute and completes with this status.
    Status(Status),
    /// The Copy fails at this source range, after it has copied the ranges before it. Other commands, and
    /// a Copy without that range, execute.
    CopyFailsAt(u8),
    /// The command executes after this additional delay.
    Delay(Nanos),
    /// The controller stops with a fatal status (CSTS.CFS) instead of executing the command.
    Fatal,
    /// The drive is removed instead of executing the command: registers read as all ones.
    Remove,
    /// A doorbell write is lost. Shadow doorbells are not affected.
    DoorbellLost,
    /// A doorbell write takes effect at the next [`tick`](super::EmulatedController::tick).
    DoorbellDeferred,
    /// A doorbell write arrives with its upper byte set to all ones, so that it names an entry that
    /// does not exist if the queue has at most 65,280 entries.
    DoorbellTorn,
    /// After CC.EN = 1, CSTS.RDY = 1 takes this long; [`Nanos::MAX`] means never.
    Ready(Nanos),
    /// After CC.EN = 0, CSTS.RDY = 0 takes this long; [`Nanos::MAX`] means never.
    Disabled(Nanos),
    /// CC.EN = 1 causes a fatal status.
    EnableFatal,
    /// A function reset fails.
    FunctionReset,
}

/// The operation in which a fault occurs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Site {
    Command,
    Doorbell,
    Enable,
    Disable,
    FunctionReset,
}

impl Fault {
    fn site(self) -> Site {
        match self {
            Self::DropCompletion
            | Self::Hang { .. }
            | Self::NeverCompletes
            | Self::Duplicate
            | Self::WrongIdentifier(_)
            | Self::OtherIdentifier(_)
            | Self::StaleIdentifier
            | Self::WrongQueue(_)
            | Self::WrongHead(_)
            | Self::Status(_)
            | Self::CopyFailsAt(_)
            | Self::Delay(_)
            | Self::Fatal
            | Self::Remove => Site::Command,
            Self::DoorbellLost | Self::DoorbellDeferred | Self::DoorbellTorn => Site::Doorbell,
            Self::Ready(_) | Self::EnableFatal => Site::Enable,
            Self::Disabled(_) => Site::Disable,
            Self::FunctionReset => Site::FunctionReset,
        }
    }
}

/// A fault rule. The first rule that matches and fires is applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultRule {
    /// Pattern. Steps of the controller (enable, disable, function reset) match every rule with a
    /// fault for them.
    pub matching: FaultMatch,
    /// The matches on which it fires.
    pub when: When,
    /// The fault.
    pub fault: Fault,
}

impl FaultRule {
    /// Creates a rule.
    #[must_use]
    pub fn new(matching: FaultMatch, when: When, fault: Fault) -> Self {
        Self {
            matching,
            when,
            fault,
        }
    }
}

/// Identifier of a rule in a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FaultId(usize);

struct Running {
    rule: FaultRule,
    armed: bool,
    matched: u64,
    fired: u64,
}

/// The rules of a controller, with their counts.
pub(super) struct Faults {
    rules: Vec<Running>,
    /// Number of armed rules. Usually 0, which costs one comparison.
    armed: usize,
    seeded: Seeded,
}

impl Faults {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            rules: Vec::with_capacity(FAULT_RULES_MAX),
            armed: 0,
            seeded: Seeded::at(seed),
        }
    }

    pub(super) fn add(&mut self, rule: FaultRule) -> FaultId {
        assert!(
            self.rules.len() < FAULT_RULES_MAX,
            "{FAULT_RULES_MAX} rules are as many as a controller takes"
        );
        self.rules.push(Running {
            rule,
            armed: true,
            matched: 0,
            fired: 0,
        });
        self.armed += 1;
        FaultId(self.rules.len() - 1)
    }

    pub(super) fn arm(&mut self, id: FaultId, on: bool) {
        let was = std::mem::replace(&mut self.rules[id.0].armed, on);
        self.armed = self.armed + usize::from(on) - usize::from(was);
    }

    pub(super) fn disarm_all(&mut self) {
        for running in &mut self.rules {
            running.armed = false;
        }
        self.armed = 0;
    }

    pub(super) fn fired(&self, id: FaultId) -> u64 {
        self.rules[id.0].fired
    }

    /// The fault that occurs in this operation, if any.
    #[inline]
    pub(super) fn matching_fault(
        &mut self,
        site: Site,
        queue_id: u16,
        sqe: Option<&Sqe>,
    ) -> Option<Fault> {
        if self.armed == 0 {
            return None;
        }
        self.matching_armed_fault(site, queue_id, sqe)
    }

    fn matching_armed_fault(
        &mut self,
        site: Site,
        queue_id: u16,
        sqe: Option<&Sqe>,
    ) -> Option<Fault> {
        let on_queue = matches!(site, Site::Command | Site::Doorbell);
        for running in &mut self.rules {
            let rule = &running.rule;
            let matches = !on_queue || rule.matching.matches(queue_id, sqe);
            if !running.armed || rule.fault.site() != site || !matches {
                continue;
            }
            running.matched += 1;
            if rule
                .when
                .fires(running.matched, |bound| self.seeded.below(bound))
            {
                running.fired += 1;
                return Some(rule.fault);
            }
        }
        None
    }
}
