//! What goes wrong, by pattern and by seed, and how often it did.

use std::ops::Range;

use block::When;
use nvme_spec::Status;
use nvme_spec::command::{IoOpcode, Sqe};
use reactors::Nanos;

use super::random::Seeded;

/// Rules that one controller takes at most.
pub const FAULT_RULES_MAX: usize = 64;

/// Which queue pairs a rule looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queues {
    /// All.
    All,
    /// The admin queue pair.
    Admin,
    /// Every I/O queue pair.
    Io,
    /// The one of this identifier.
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

/// Which commands, doorbells or steps a rule matches. Whatever is `None` matches all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultMatch {
    /// Queue pairs.
    pub queues: Queues,
    /// Opcode; admin and I/O opcodes share their numbers, so name the queues too.
    pub opcode: Option<u8>,
    /// Namespace.
    pub nsid: Option<u32>,
    /// Reads, writes, compares and write zeroes that touch any of these blocks.
    pub blocks: Option<Range<u64>>,
}

impl FaultMatch {
    /// Every command of every I/O queue, or every I/O queue's doorbell.
    #[must_use]
    pub fn io() -> Self {
        Self::of(Queues::Io)
    }

    /// Every admin command, or the admin queue's doorbell.
    #[must_use]
    pub fn admin() -> Self {
        Self::of(Queues::Admin)
    }

    /// Everything on these queues.
    #[must_use]
    pub fn of(queues: Queues) -> Self {
        Self {
            queues,
            opcode: None,
            nsid: None,
            blocks: None,
        }
    }

    /// The same for one opcode.
    #[must_use]
    pub fn with_opcode(self, opcode: u8) -> Self {
        Self {
            opcode: Some(opcode),
            ..self
        }
    }

    /// The same for one namespace.
    #[must_use]
    pub fn with_namespace(self, nsid: u32) -> Self {
        Self {
            nsid: Some(nsid),
            ..self
        }
    }

    /// The same for commands that touch any of these blocks.
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

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The command is carried out; its completion never comes, and no Abort finds it.
    DropCompletion,
    /// The command is neither carried out nor completed. Abort ends it where `abortable`; else it
    /// says that it did not. [`release`](super::EmulatorControl::release) lets it go on.
    Hang {
        /// Whether Abort ends it.
        abortable: bool,
    },
    /// The command is never completed, and its data is transferred again and again until the
    /// controller is disabled, reset or without power: also after Abort was answered as if it had
    /// ended the command. Reads write to the host's memory, writes read it and change no block.
    TransfersOn,
    /// The completion comes twice.
    Duplicate,
    /// The completion names another command: its identifier has these bits turned over.
    WrongIdentifier(u16),
    /// The completion names another command that waits on the same submission queue, or itself where
    /// there is none: its identifier has these bits turned over.
    OtherIdentifier(u16),
    /// The completion names the command that completed before on the same submission queue, or
    /// itself where there was none.
    StaleIdentifier,
    /// The completion names this submission queue.
    WrongQueue(u16),
    /// The completion brings this submission queue head.
    WrongHead(u16),
    /// The command is not carried out and ends with this status.
    Status(Status),
    /// The command is carried out so much later.
    Delay(Nanos),
    /// The controller stops with a fatal status (CSTS.CFS) in place of the command.
    Fatal,
    /// The drive is pulled out in place of the command: registers read as all ones.
    Remove,
    /// A doorbell write is lost. Shadow doorbells are not touched.
    DoorbellLost,
    /// A doorbell write arrives with the next [`tick`](super::EmulatedController::tick).
    DoorbellLate,
    /// A doorbell write arrives with its upper byte all ones, so that it names an entry that there
    /// is not, as long as the queue has at most 65,280 entries.
    DoorbellTorn,
    /// CC.EN = 1 leads to CSTS.RDY = 1 only after this; [`Nanos::MAX`] is never.
    Ready(Nanos),
    /// CC.EN = 0 leads to CSTS.RDY = 0 only after this; [`Nanos::MAX`] is never.
    Disabled(Nanos),
    /// CC.EN = 1 leads to a fatal status.
    EnableFatal,
    /// A function reset fails.
    FunctionReset,
}

/// Where a fault strikes.
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
            | Self::TransfersOn
            | Self::Duplicate
            | Self::WrongIdentifier(_)
            | Self::OtherIdentifier(_)
            | Self::StaleIdentifier
            | Self::WrongQueue(_)
            | Self::WrongHead(_)
            | Self::Status(_)
            | Self::Delay(_)
            | Self::Fatal
            | Self::Remove => Site::Command,
            Self::DoorbellLost | Self::DoorbellLate | Self::DoorbellTorn => Site::Doorbell,
            Self::Ready(_) | Self::EnableFatal => Site::Enable,
            Self::Disabled(_) => Site::Disable,
            Self::FunctionReset => Site::FunctionReset,
        }
    }
}

/// One rule. The first rule that matches and fires decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultRule {
    /// What it matches. Steps of the controller (enable, disable, function reset) are matched by
    /// every rule for them.
    pub matching: FaultMatch,
    /// Which of these it fires on.
    pub when: When,
    /// What happens then.
    pub fault: Fault,
}

impl FaultRule {
    /// A rule.
    #[must_use]
    pub fn new(matching: FaultMatch, when: When, fault: Fault) -> Self {
        Self {
            matching,
            when,
            fault,
        }
    }
}

/// A rule that was put into a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FaultId(usize);

struct Running {
    rule: FaultRule,
    armed: bool,
    matched: u64,
    fired: u64,
}

/// The rules as they run.
pub(super) struct Faults {
    rules: Vec<Running>,
    /// Rules that are armed: none of them is the usual case, and costs one comparison.
    armed: usize,
    seeded: Seeded,
}

impl Faults {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            rules: Vec::with_capacity(FAULT_RULES_MAX),
            armed: 0,
            seeded: Seeded::new(seed),
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

    /// The fault that strikes here, if any.
    #[inline]
    pub(super) fn strike(&mut self, site: Site, queue_id: u16, sqe: Option<&Sqe>) -> Option<Fault> {
        if self.armed == 0 {
            return None;
        }
        self.strike_armed(site, queue_id, sqe)
    }

    fn strike_armed(&mut self, site: Site, queue_id: u16, sqe: Option<&Sqe>) -> Option<Fault> {
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
