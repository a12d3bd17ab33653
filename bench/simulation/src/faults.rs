//! The faults of a run, and the sets of them that a seed draws.

use std::fmt;
use std::str::FromStr;

use crate::random::Random;

/// Declares the faults with their names.
macro_rules! faults {
    ($($(#[$doc:meta])* $fault:ident = $name:literal;)*) => {
        /// A fault, or a condition that makes other faults more difficult to handle.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Fault {
            $($(#[$doc])* $fault,)*
        }

        impl Fault {
            /// All faults.
            pub const ALL: &[Fault] = &[$(Fault::$fault,)*];

            /// Its name on the command line.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Fault::$fault => $name,)*
                }
            }
        }
    };
}

faults! {
    /// Connections break.
    Cut = "cut";
    /// Connections deliver nothing for seconds.
    Stall = "stall";
    /// Streams arrive in small pieces, down to one byte.
    Grain = "grain";
    /// Hosts read slowly: the connection buffers little data.
    Window = "window";
    /// Hosts vanish without closing their connections.
    Vanish = "vanish";
    /// Hosts stop sending Keep Alive.
    Silence = "silence";
    /// Hosts are slow to send requested data.
    SlowWriter = "slow-writer";
    /// Data or headers are damaged on the wire.
    Damage = "damage";
    /// Hosts send malformed PDUs.
    Malformed = "malformed";
    /// Hosts send invalid commands.
    Invalid = "invalid";
    /// Hosts abort commands.
    Abort = "abort";
    /// Hosts reset their controllers.
    Reset = "reset";
    /// Hosts disconnect queues with Disconnect commands.
    Disconnect = "disconnect";
    /// Disks are slow at times.
    Slow = "slow";
    /// Disks fail requests.
    Error = "error";
    /// Disks defer requests.
    Later = "later";
    /// Disks complete nothing for a while.
    Hold = "hold";
    /// Disks are pulled out, and are back after the next start of the appliance.
    Removal = "removal";
    /// The appliance is killed.
    Crash = "crash";
    /// The power fails.
    Power = "power";
    /// The appliance is stopped and started again.
    Restart = "restart";
    /// The arena holds the data of only a few requests.
    Arena = "arena";
    /// Namespaces are added and removed.
    Namespaces = "namespaces";
    /// Hosts lose their permission and get it back.
    Revoke = "revoke";
    /// Disks are NVMe drives behind our own driver.
    Drive = "drive";
    /// Drives do not complete commands.
    Hang = "hang";
    /// Drives post completions for unknown commands, and miss doorbells.
    Confusion = "confusion";
    /// Drives stop with a fatal status.
    Failure = "failure";
    /// Some hosts use RDMA.
    Rdma = "rdma";
    /// RDMA requests begin or complete late.
    Late = "late";
    /// RDMA requests fail.
    WorkErrors = "work-errors";
    /// RDMA connections fail or are established late.
    Unreachable = "unreachable";
    /// Devices are removed from the configuration and added again, with their namespaces.
    Devices = "devices";
    /// The RDMA device is pulled out, and is back after the next start of the appliance.
    Unplug = "unplug";
    /// Subsystems are added and removed.
    Subsystems = "subsystems";
    /// Listeners are added and removed.
    Listeners = "listeners";
    /// Disks grow.
    Growth = "growth";
    /// Configuration changes are requested that must fail.
    Refused = "refused";
    /// Disks delay single requests for seconds, and hosts send lost writes again with other data.
    Linger = "linger";
    /// A host has two controllers on separate connections.
    Paths = "paths";
    /// Disks are files behind our own file device.
    File = "file";
    /// Files lose written data, become shorter, and run out of space.
    FileErrors = "file-errors";
    /// Some disks are the production RAM device, which supports zero-copy reads.
    Ram = "ram";
    /// Flushes and durable writes fail, followed by a power failure.
    FlushErrors = "flush-errors";
    /// Keys of the configuration change.
    Keys = "keys";
    /// Several parts of the configuration change together.
    Compound = "compound";
    /// Hosts send invalid Connect commands.
    WrongConnect = "wrong-connect";
    /// Hosts respond to R2Ts with data that violates the rules.
    WrongData = "wrong-data";
    /// A disk is read-only.
    ReadOnly = "read-only";
    /// Hosts set and get features, disable the write cache, and read the error log.
    Administer = "administer";
    /// Hosts abort all of their commands.
    AbortFlood = "abort-flood";
    /// Hosts shut their controllers down.
    Shutdown = "shutdown";
    /// Unknown hosts connect, and read the discovery log or send nothing useful.
    Crowd = "crowd";
    /// Hosts acquire memory and do not use it.
    Greedy = "greedy";
    /// Limits on controllers, connections and commands match what the hosts need.
    Tight = "tight";
    /// Hosts are slow to send event requests and to read log pages.
    Deaf = "deaf";
    /// Devices move to other files, and hosts check the identifiers of their disks.
    Exchange = "exchange";
    /// Hosts send commands with identifiers that are in use.
    Twins = "twins";
    /// Hosts send event requests beyond the limit, and abort them.
    EventFlood = "event-flood";
    /// Hosts that are not configured acquire as many resources as they can.
    Anonymous = "anonymous";
    /// The kernel holds back a write to a file for minutes, and the host resets its controller.
    Stuck = "stuck";
    /// Disks swap their namespace identifiers.
    Swap = "swap";
    /// Hosts need memory of one size at the same time.
    Contend = "contend";
    /// Many hosts of one address, or many controllers of one host, take all that they may.
    OneAddress = "one-address";
    /// Hosts register, acquire, preempt and release reservations.
    Reserve = "reserve";
    /// An operator changes the ANA states of namespaces at listeners.
    Ana = "ana";
    /// Hosts replace blocks by Compare and Write, several at once.
    Fuse = "fuse";
    /// Hosts copy blocks, several at once.
    Copy = "copy";
    /// An operator copies disks to others while hosts use them.
    DeviceCopy = "device-copy";
    /// Hosts see only some disks of their subsystem, or only read some.
    Mask = "mask";
    /// Hosts authenticate themselves, again and again, with keys that an administrator exchanges.
    Chap = "chap";
    /// Hosts use wrong keys, and send commands before they are authenticated.
    ChapMisuse = "chap-misuse";
    /// The appliance hands over to a new process.
    Handover = "handover";
    /// Rate limits delay commands, and an administrator changes them.
    Limit = "limit";
    /// Latency targets slow exports down, and an administrator changes them.
    Pace = "pace";
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Fault::ALL.iter().find(|fault| fault.name() == name);
        found.copied().ok_or_else(|| format!("no fault {name:?}"))
    }
}

impl Fault {
    /// Faults with which requests for data do not tell when the target had memory for it: they delay
    /// messages beyond their latency, refuse commands that wait, or use an identifier for two
    /// commands.
    pub(crate) const HIDES_MEMORY_WAITS: &[Fault] = &[
        Fault::Grain,
        Fault::Window,
        Fault::Late,
        Fault::WorkErrors,
        Fault::Unreachable,
        Fault::Unplug,
        Fault::Twins,
        Fault::Reserve,
        Fault::Ana,
        Fault::Fuse,
        Fault::Copy,
        Fault::Chap,
        Fault::ChapMisuse,
    ];

    /// Faults whose hosts expect every disk of their subsystem.
    pub(crate) const NEEDS_ALL_DISKS: &[Fault] = &[
        Fault::Contend,
        Fault::Reserve,
        Fault::Ana,
        Fault::Fuse,
        Fault::Copy,
    ];

    /// Faults of what is not handed over to another process.
    pub(crate) const NOT_HANDED_OVER: &[Fault] = &[
        Fault::Rdma,
        Fault::Drive,
        Fault::FileErrors,
        Fault::FlushErrors,
    ];

    /// The condition that the fault needs, if not every seed fulfils it.
    pub(crate) fn need(self) -> Option<Need> {
        match self {
            Fault::Drive | Fault::Hang | Fault::Confusion | Fault::Failure => Some(Need::Drives),
            Fault::Rdma | Fault::Late | Fault::WorkErrors | Fault::Unreachable => Some(Need::Rdma),
            Fault::Devices => Some(Need::Nothing),
            Fault::Linger | Fault::Paths => Some(Need::Orphans),
            Fault::File | Fault::FileErrors => Some(Need::Files),
            Fault::Unplug => Some(Need::RdmaAndMore),
            Fault::Ram => Some(Need::Memory),
            Fault::FlushErrors => Some(Need::Flushes),
            Fault::Keys | Fault::Compound => Some(Need::MoreChanges),
            Fault::Subsystems | Fault::Listeners | Fault::Growth | Fault::Refused => {
                Some(Need::Changes)
            }
            Fault::WrongConnect
            | Fault::WrongData
            | Fault::ReadOnly
            | Fault::Administer
            | Fault::AbortFlood
            | Fault::Shutdown
            | Fault::Tight
            | Fault::Crowd
            | Fault::Greedy
            | Fault::Deaf => Some(Need::HostBehaviour),
            Fault::Swap => Some(Need::Swaps),
            Fault::Twins | Fault::EventFlood | Fault::Anonymous => Some(Need::Misuse),
            Fault::Exchange | Fault::Stuck => Some(Need::Separate),
            Fault::OneAddress => Some(Need::Addresses),
            Fault::Contend => Some(Need::Contention),
            Fault::Reserve => Some(Need::Reservations),
            Fault::Ana => Some(Need::Operator),
            Fault::Fuse => Some(Need::Competitors),
            Fault::Copy => Some(Need::Copies),
            Fault::DeviceCopy => Some(Need::DeviceCopies),
            Fault::Mask => Some(Need::Masks),
            Fault::Chap | Fault::ChapMisuse => Some(Need::Keys),
            Fault::Handover => Some(Need::NewProcess),
            Fault::Limit => Some(Need::Rates),
            Fault::Pace => Some(Need::Paces),
            _ => None,
        }
    }

    /// Whether it is a host behaviour, drawn from a separate random stream.
    #[must_use]
    pub fn is_host_behaviour(self) -> bool {
        self.need() == Some(Need::HostBehaviour)
    }

    /// Whether it is drawn from a separate random stream, so that it does not change the rest of
    /// the run.
    #[must_use]
    pub fn is_drawn_separately(self) -> bool {
        matches!(self.need(), Some(Need::Separate | Need::Swaps))
    }

    /// Whether it is a misuse of queues, drawn from a separate random stream.
    #[must_use]
    pub fn is_misuse(self) -> bool {
        matches!(self.need(), Some(Need::Misuse | Need::Addresses))
    }
}

/// The condition that a fault needs, if not every seed fulfils it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    Drives,
    Rdma,
    /// RDMA, and a separate random stream.
    RdmaAndMore,
    Files,
    /// No condition, but a separate random stream, so that older seeds stay unchanged.
    Nothing,
    /// Configuration changes; a separate random stream.
    Changes,
    /// Orphaned commands; a separate random stream.
    Orphans,
    /// Host behaviour; a separate random stream.
    HostBehaviour,
    /// Memory; a separate random stream.
    Memory,
    /// Flushes; a separate random stream.
    Flushes,
    /// More configuration changes; a separate random stream.
    MoreChanges,
    /// A separate random stream for both the selection and the occurrence.
    Separate,
    /// Misuse of queues; separate random streams for the selection and the occurrence.
    Misuse,
    /// Identifier swaps; a separate random stream for the selection.
    Swaps,
    /// Hosts that share an address; a separate random stream for the selection.
    Addresses,
    /// Scarce memory; separate random streams for the selection and the occurrence.
    Contention,
    /// Reservations; separate random streams for the selection and the occurrence.
    Reservations,
    /// An operator; separate random streams for the selection and the occurrence.
    Operator,
    /// Compare and Write; separate random streams for the selection and the occurrence.
    Competitors,
    /// Copies; separate random streams for the selection and the occurrence.
    Copies,
    /// Copies of disks; separate random streams for the selection and the occurrence.
    DeviceCopies,
    /// Masks; separate random streams for the selection and the occurrence.
    Masks,
    /// Keys of hosts; separate random streams for the selection and the occurrence.
    Keys,
    /// A process that can be replaced; separate random streams for the selection and the
    /// occurrence.
    NewProcess,
    /// Rate limits; separate random streams for the selection and the occurrence.
    Rates,
    /// Latency targets; separate random streams for the selection and the occurrence.
    Paces,
}

/// A set of faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults(u128);

const _: () = assert!(Fault::ALL.len() <= u128::BITS as usize);

impl Faults {
    /// Whether the fault is in the set.
    #[must_use]
    pub fn has(self, fault: Fault) -> bool {
        self.0 & 1 << fault as u32 != 0
    }

    /// The set with one more.
    #[must_use]
    pub fn with(self, fault: Fault) -> Self {
        Self(self.0 | 1 << fault as u32)
    }

    /// The set without this fault.
    #[must_use]
    pub fn without(self, fault: Fault) -> Self {
        Self(self.0 & !(1 << fault as u32))
    }

    /// The faults in the set.
    pub fn iter(self) -> impl Iterator<Item = Fault> {
        Fault::ALL.iter().copied().filter(move |it| self.has(*it))
    }
}

impl FromIterator<Fault> for Faults {
    fn from_iter<I: IntoIterator<Item = Fault>>(faults: I) -> Self {
        faults.into_iter().fold(Self::default(), Self::with)
    }
}

/// The faults with a need, if it is fulfilled; drawn from a separate stream.
pub(crate) fn faults_of(need: Need, seed: u64) -> Vec<Fault> {
    let (stream, itself, share) = match need {
        Need::Drives => (4, Some(Fault::Drive), 400),
        Need::Rdma => (5, Some(Fault::Rdma), 400),
        Need::Nothing => (8, Some(Fault::Devices), 400),
        Need::RdmaAndMore => (0x10, Some(Fault::Unplug), 400),
        Need::Changes => (9, None, 700),
        Need::Orphans => (0x20, Some(Fault::Linger), 400),
        Need::Files => (0x40, Some(Fault::File), 500),
        Need::HostBehaviour => (0x25, None, 1000),
        Need::Memory => (0x12, Some(Fault::Ram), 500),
        Need::MoreChanges => (0x18, None, 900),
        Need::Flushes => (0x14, Some(Fault::FlushErrors), 300),
        Need::Separate => (0x50, None, 700),
        Need::Misuse => (0x60, None, 800),
        Need::Swaps => (0x70, Some(Fault::Swap), 400),
        Need::Addresses => (0x80, Some(Fault::OneAddress), 200),
        Need::Contention => (0x90, Some(Fault::Contend), 250),
        Need::Reservations => (0xA0, Some(Fault::Reserve), 350),
        Need::Operator => (0xB0, Some(Fault::Ana), 300),
        Need::Competitors => (0xC0, Some(Fault::Fuse), 300),
        Need::Copies => (0xC2, Some(Fault::Copy), 300),
        Need::DeviceCopies => (0xC6, Some(Fault::DeviceCopy), 350),
        Need::Masks => (0xD0, Some(Fault::Mask), 300),
        Need::Keys => (0xE0, Some(Fault::Chap), 200),
        // Most seeds have what is not handed over.
        Need::NewProcess => (0xF0, Some(Fault::Handover), 700),
        Need::Rates => (0xF4, Some(Fault::Limit), 250),
        Need::Paces => (0xF6, Some(Fault::Pace), 200),
    };
    let mut random = Random::new(seed, stream);
    let there = random.permille(share);
    let drawn = Fault::ALL.iter().copied();
    drawn
        .filter(|it| it.need() == Some(need))
        .filter(|fault| {
            let share = match fault {
                Fault::FileErrors => 700,
                Fault::ChapMisuse => 600,
                // Removed from runs with contention.
                Fault::Late | Fault::WorkErrors | Fault::Unreachable => 500,
                _ => 400,
            };
            there && (Some(*fault) == itself || random.permille(share))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_names_round_trip() {
        for fault in Fault::ALL {
            assert_eq!(fault.name().parse(), Ok(*fault));
        }
        assert!("nothing".parse::<Fault>().is_err());
    }
}
