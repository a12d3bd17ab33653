//! Keeps changes by operators and a hand-over to a new process (`ARCHITECTURE.md` §9.1) apart.
//!
//! A hand-over takes the state of the target at one moment. A change after it would be confirmed to
//! the operator, and the new process would not know of it. So a hand-over closes the gate before:
//! changes are refused until it has failed, and for good if it has succeeded. It does not close while
//! a change is in progress. Changes of the configuration need no gate: the control thread executes
//! them, as it does the hand-over.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Who may change the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Operators; the number of changes in progress.
    Open { changes: usize },
    /// A hand-over takes the state.
    Closed,
}

impl Default for State {
    fn default() -> Self {
        Self::Open { changes: 0 }
    }
}

/// The gate. Clones are the same gate.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChangeGate(Arc<Mutex<State>>);

/// A hand-over is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an upgrade is under way, and nothing is changed: repeat the command when it is over")]
pub(crate) struct UpgradeUnderWay;

/// Operators change something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0} change(s) by operators are in progress, such as an eviction: repeat the command when they \
     are complete"
)]
pub(crate) struct ChangesInProgress(usize);

/// The right to change the target. No hand-over takes its state meanwhile.
#[derive(Debug)]
pub(crate) struct ChangePermit(ChangeGate);

/// The gate is closed. It opens when this is dropped.
#[derive(Debug)]
pub(crate) struct ClosedGate(ChangeGate);

impl ChangeGate {
    /// Begins a change.
    ///
    /// # Errors
    /// The gate is closed.
    pub(crate) fn begin_change(&self) -> Result<ChangePermit, UpgradeUnderWay> {
        let mut state = self.state();
        match &mut *state {
            State::Open { changes } => *changes += 1,
            State::Closed => return Err(UpgradeUnderWay),
        }
        Ok(ChangePermit(self.clone()))
    }

    /// Closes the gate.
    ///
    /// # Errors
    /// The number of changes in progress.
    pub(crate) fn close(&self) -> Result<ClosedGate, ChangesInProgress> {
        let mut state = self.state();
        match *state {
            State::Open { changes } if changes > 0 => return Err(ChangesInProgress(changes)),
            // Only the control thread closes it.
            State::Open { .. } | State::Closed => *state = State::Closed,
        }
        Ok(ClosedGate(self.clone()))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClosedGate {
    /// Leaves the gate closed for the rest of the process, because another one serves.
    pub(crate) fn stay_closed(self) {
        std::mem::forget(self);
    }
}

impl Drop for ChangePermit {
    fn drop(&mut self) {
        if let State::Open { changes } = &mut *self.0.state() {
            *changes -= 1;
        }
    }
}

impl Drop for ClosedGate {
    fn drop(&mut self) {
        *self.0.state() = State::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_refused_while_the_gate_is_closed() {
        let gate = ChangeGate::default();
        let closed = gate.close().expect("no change");
        let refused = gate.begin_change().expect_err("closed");
        assert_eq!(
            refused.to_string(),
            "an upgrade is under way, and nothing is changed: repeat the command when it is over"
        );
        drop(closed);
        assert!(gate.begin_change().is_ok(), "the hand-over has failed");
        gate.close().expect("no change").stay_closed();
        assert!(gate.begin_change().is_err(), "another process serves");
    }

    #[test]
    fn gate_does_not_close_while_changes_are_in_progress() {
        let gate = ChangeGate::default();
        let changes = [gate.begin_change(), gate.clone().begin_change()];
        for (change, left) in changes.into_iter().zip([2, 1]) {
            let refused = gate.close().expect_err("changes");
            assert_eq!(refused, ChangesInProgress(left));
            drop(change.expect("open"));
        }
        assert!(gate.close().is_ok());
    }
}
