//! The states of a controller and all transitions between them.
//!
//! Base 2.1 §3.1.4.5 and §3.1.4.6 (CC, CSTS), §3.5 (initialisation), §3.6.2 (shutdown over
//! fabrics), §3.7.2 (controller level reset).

use nvme_spec::registers::{Csts, ShutdownStatus};

/// The state of a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ControllerState {
    /// CC.EN is 0. Ends with the host's Property Set.
    Disabled,
    /// CC.EN is 1. Ends with the last request of an earlier association of the same host. CSTS.RDY
    /// stays 0 until then, so that no earlier write takes effect after a later one.
    Enabling,
    /// Processes commands.
    Ready,
    /// CC.EN was set to 0. Ends with the last I/O queue. CSTS.RDY stays 1 until then, so that no
    /// earlier write takes effect after the reset (Base 2.1 §3.7.2).
    Resetting,
    /// CC.SHN was set. Ends when the caches are flushed.
    ShuttingDown,
    /// Shutdown is complete. Ends with a reset.
    ShutDown {
        /// Whether it was enabled before, which CSTS.RDY still reports.
        ready: bool,
    },
    /// Shutdown is complete, but a volatile cache could not be flushed, which CSTS.CFS reports.
    /// Ends with a reset.
    ShutDownUnflushed,
    /// Fatal: CC was invalid when the controller was enabled. Ends with a reset.
    Failed,
    /// The association has ended. The final state.
    Ended,
}

/// An event that changes the state of a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ControllerEvent {
    /// CC.EN was set to 1, and CC is valid.
    Enable,
    /// CC.EN was set to 1, but CC requests what CAP does not offer.
    EnableInvalid,
    /// CC.EN was set to 0.
    Disable,
    /// No device has a request of an earlier association of the host.
    OrphansDone,
    /// The last I/O queue from before a reset has ended.
    IoQueuesEnded,
    /// CC.SHN requests a normal shutdown.
    ShutdownNormal,
    /// CC.SHN requests an abrupt shutdown, which flushes nothing.
    ShutdownAbrupt,
    /// The caches are flushed.
    Flushed,
    /// A cache could not be flushed.
    FlushFailed,
    /// The association ends.
    End,
}

/// The next state, or `None` if the event changes nothing.
pub(crate) const fn transition(
    state: ControllerState,
    event: ControllerEvent,
) -> Option<ControllerState> {
    use ControllerEvent::{
        Disable, Enable, EnableInvalid, End, FlushFailed, Flushed, IoQueuesEnded, OrphansDone,
        ShutdownAbrupt, ShutdownNormal,
    };
    use ControllerState::{
        Disabled, Enabling, Ended, Failed, Ready, Resetting, ShutDown, ShutDownUnflushed,
        ShuttingDown,
    };
    match (state, event) {
        (
            Disabled
            | Enabling
            | Ready
            | Resetting
            | ShuttingDown
            | ShutDown { .. }
            | ShutDownUnflushed
            | Failed,
            End,
        ) => Some(Ended),
        (Disabled, Enable) => Some(Enabling),
        (Enabling, OrphansDone) => Some(Ready),
        (Disabled, EnableInvalid) => Some(Failed),
        (Disabled | Enabling, ShutdownNormal | ShutdownAbrupt) => Some(ShutDown { ready: false }),
        // No I/O queue has existed yet, so there is nothing to wait for.
        (Enabling, Disable) => Some(Disabled),
        (Ready | ShuttingDown | ShutDown { .. } | ShutDownUnflushed | Failed, Disable) => {
            Some(Resetting)
        }
        (Ready, ShutdownNormal) => Some(ShuttingDown),
        (Ready | ShuttingDown, ShutdownAbrupt) | (ShuttingDown, Flushed) => {
            Some(ShutDown { ready: true })
        }
        (ShuttingDown, FlushFailed) => Some(ShutDownUnflushed),
        (Resetting, IoQueuesEnded) => Some(Disabled),
        (Disabled, Disable | OrphansDone | IoQueuesEnded | Flushed | FlushFailed)
        | (Enabling, Enable | EnableInvalid | IoQueuesEnded | Flushed | FlushFailed)
        | (Ready, Enable | EnableInvalid | OrphansDone | IoQueuesEnded | Flushed | FlushFailed)
        | (
            Resetting,
            Enable | EnableInvalid | Disable | OrphansDone | ShutdownNormal | ShutdownAbrupt
            | Flushed | FlushFailed,
        )
        | (ShuttingDown, Enable | EnableInvalid | OrphansDone | IoQueuesEnded | ShutdownNormal)
        | (
            ShutDown { .. } | ShutDownUnflushed | Failed,
            Enable | EnableInvalid | OrphansDone | IoQueuesEnded | ShutdownNormal | ShutdownAbrupt
            | Flushed | FlushFailed,
        )
        | (
            Ended,
            Enable | EnableInvalid | Disable | OrphansDone | IoQueuesEnded | ShutdownNormal
            | ShutdownAbrupt | Flushed | FlushFailed | End,
        ) => None,
    }
}

impl ControllerState {
    /// Controller Status as the host reads it (Base 2.1 §3.1.4.6).
    pub(crate) fn csts(self) -> Csts {
        let (ready, fatal, shutdown) = match self {
            Self::Disabled | Self::Enabling => (false, false, ShutdownStatus::NORMAL_OPERATION),
            Self::Ready | Self::Resetting => (true, false, ShutdownStatus::NORMAL_OPERATION),
            Self::ShuttingDown => (true, false, ShutdownStatus::OCCURRING),
            Self::ShutDown { ready } => (ready, false, ShutdownStatus::COMPLETE),
            Self::ShutDownUnflushed => (true, true, ShutdownStatus::COMPLETE),
            Self::Failed | Self::Ended => (false, true, ShutdownStatus::NORMAL_OPERATION),
        };
        Csts::new()
            .with_rdy(ready)
            .with_cfs(fatal)
            .with_shst(shutdown)
    }

    /// The state as a number, for the atomic that snapshots read.
    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::Disabled => 0,
            Self::Ready => 1,
            Self::Resetting => 2,
            Self::ShuttingDown => 3,
            Self::ShutDown { ready: true } => 4,
            Self::ShutDown { ready: false } => 5,
            Self::Failed => 6,
            Self::Ended => 7,
            Self::Enabling => 8,
            Self::ShutDownUnflushed => 9,
        }
    }

    /// The state from its number.
    pub(crate) const fn from_code(code: u8) -> Self {
        match code {
            0 => Self::Disabled,
            1 => Self::Ready,
            2 => Self::Resetting,
            3 => Self::ShuttingDown,
            4 => Self::ShutDown { ready: true },
            5 => Self::ShutDown { ready: false },
            6 => Self::Failed,
            8 => Self::Enabling,
            9 => Self::ShutDownUnflushed,
            _ => Self::Ended,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::ControllerEvent::{
        Disable, Enable, EnableInvalid, End, FlushFailed, Flushed, IoQueuesEnded, OrphansDone,
        ShutdownAbrupt, ShutdownNormal,
    };
    use super::ControllerState::{
        Disabled, Enabling, Ended, Failed, Ready, Resetting, ShutDown, ShutDownUnflushed,
        ShuttingDown,
    };
    use super::*;

    const STATES: [ControllerState; 10] = [
        Disabled,
        Enabling,
        Ready,
        Resetting,
        ShuttingDown,
        ShutDown { ready: true },
        ShutDown { ready: false },
        ShutDownUnflushed,
        Failed,
        Ended,
    ];
    const EVENTS: [ControllerEvent; 10] = [
        Enable,
        EnableInvalid,
        Disable,
        OrphansDone,
        IoQueuesEnded,
        ShutdownNormal,
        ShutdownAbrupt,
        Flushed,
        FlushFailed,
        End,
    ];

    /// The complete table: all other combinations change nothing.
    #[test]
    fn all_state_transitions() {
        let moves = [
            (Disabled, Enable, Enabling),
            (Enabling, OrphansDone, Ready),
            (Enabling, Disable, Disabled),
            (Enabling, ShutdownNormal, ShutDown { ready: false }),
            (Enabling, ShutdownAbrupt, ShutDown { ready: false }),
            (Disabled, EnableInvalid, Failed),
            (Disabled, ShutdownNormal, ShutDown { ready: false }),
            (Disabled, ShutdownAbrupt, ShutDown { ready: false }),
            (Ready, Disable, Resetting),
            (Ready, ShutdownNormal, ShuttingDown),
            (Ready, ShutdownAbrupt, ShutDown { ready: true }),
            (Resetting, IoQueuesEnded, Disabled),
            (ShuttingDown, Disable, Resetting),
            (ShuttingDown, ShutdownAbrupt, ShutDown { ready: true }),
            (ShuttingDown, Flushed, ShutDown { ready: true }),
            (ShuttingDown, FlushFailed, ShutDownUnflushed),
            (ShutDownUnflushed, Disable, Resetting),
            (ShutDown { ready: true }, Disable, Resetting),
            (ShutDown { ready: false }, Disable, Resetting),
            (Failed, Disable, Resetting),
        ];
        for state in STATES {
            for event in EVENTS {
                let named = moves
                    .iter()
                    .find(|(from, by, _)| *from == state && *by == event);
                let expected = match (named, event, state) {
                    (Some((_, _, to)), _, _) => Some(*to),
                    (None, End, Ended) => None,
                    (None, End, _) => Some(Ended),
                    (None, _, _) => None,
                };
                assert_eq!(transition(state, event), expected, "{state:?} {event:?}");
            }
        }
    }

    /// Base 2.1 §3.1.4.6: CSTS in each state.
    #[test]
    fn status_of_every_state() {
        let status = |state: ControllerState| {
            let csts = state.csts();
            (csts.rdy(), csts.cfs(), csts.shst())
        };
        assert_eq!(
            status(Disabled),
            (false, false, ShutdownStatus::NORMAL_OPERATION)
        );
        assert_eq!(
            status(Enabling),
            (false, false, ShutdownStatus::NORMAL_OPERATION)
        );
        assert_eq!(
            status(Ready),
            (true, false, ShutdownStatus::NORMAL_OPERATION)
        );
        assert_eq!(
            status(Resetting),
            (true, false, ShutdownStatus::NORMAL_OPERATION)
        );
        assert_eq!(
            status(ShuttingDown),
            (true, false, ShutdownStatus::OCCURRING)
        );
        assert_eq!(
            status(ShutDown { ready: true }),
            (true, false, ShutdownStatus::COMPLETE)
        );
        assert_eq!(
            status(ShutDown { ready: false }),
            (false, false, ShutdownStatus::COMPLETE)
        );
        assert_eq!(
            status(ShutDownUnflushed),
            (true, true, ShutdownStatus::COMPLETE)
        );
        assert_eq!(
            status(Failed),
            (false, true, ShutdownStatus::NORMAL_OPERATION)
        );
        assert_eq!(
            status(Ended),
            (false, true, ShutdownStatus::NORMAL_OPERATION)
        );
    }

    #[test]
    fn state_codes_round_trip() {
        for state in STATES {
            assert_eq!(ControllerState::from_code(state.code()), state);
        }
    }
}
