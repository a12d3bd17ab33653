//! The faults of a run, in an order that the seed determines.

use files_spec::Status;
use files_spec::operations::Operation;
use files_spec::xdr::Opaque;
use reactors::Nanos;

use super::model::{Access, ROOT};
use super::server::Disappearance;
use super::world::FileWorld;

/// Longest time that a stream or the device stands still.
const STANDSTILL_MAX: Nanos = Nanos::from_secs(1);
/// Longest time that a work request is late.
const DISTURBANCE_MAX: Nanos = Nanos::from_millis(20);
/// Longest time that a client is away.
const ABSENCE_MAX: Nanos = Nanos::from_secs(3);
/// Longest time that requests to the device fail.
const FAILURE_MAX: Nanos = Nanos::from_millis(20);
/// Longest time until a failure of the volume is shown.
const LEVELS_AFTER: Nanos = Nanos::from_millis(1100);
/// Longest time of a change of volumes and shares. The device may stand still meanwhile.
const CONTROL_MAX: Nanos = Nanos::from_secs(5);
/// How often the volume is removed and added again, per thousand events, if the share changes at all.
const MOVE_PERMILLE: u32 = 5;
/// How often others wait for a silent client to return, per thousand events.
const RETURN_PERMILLE: u32 = 20;

impl FileWorld {
    /// Draws the faults of an event.
    pub(super) fn faults(&mut self) -> Result<(), String> {
        let faults = self.swarm.faults;
        let client = self.random.below(self.clients.len() as u64) as usize;
        if self.random.permille(faults.cut) {
            self.note(format_args!("a connection of client {client} breaks"));
            self.clients[client].session.cut();
        }
        if self.random.permille(faults.stall) {
            let until = self.now() + Nanos(self.random.below(STANDSTILL_MAX.as_nanos()));
            let to_server = self.random.coin();
            self.clients[client].session.stall(to_server, until);
            self.note(format_args!("a connection of client {client} stands still"));
        }
        if self.random.permille(faults.hold) {
            let until = self.now() + Nanos(self.random.below(STANDSTILL_MAX.as_nanos()));
            self.server.hold_device(until);
            self.note(format_args!("the device stands still until {until}"));
        }
        if self.random.permille(faults.leave) && !self.clients[client].session.is_absent(self.now())
        {
            let until = self.now() + Nanos(self.random.below(ABSENCE_MAX.as_nanos()));
            let silently = self.random.coin();
            self.note(format_args!("client {client} is away until {until}"));
            let now = self.now();
            self.clients[client].session.leave(until, silently, now);
        }
        self.disturb_rdma();
        if self.random.permille(faults.restart) {
            self.restart_client(client);
        }
        let is_present = self.server.is_running() && !self.server.is_changing();
        if faults.failure > 0 && self.random.permille(faults.failure) && is_present {
            self.begin_failure();
        }
        // A volume that has failed is shared as before.
        let may_change = is_present && !self.model.device_fails;
        if faults.share > 0 && self.random.permille(faults.share) && may_change {
            self.change_share(!self.server.is_read_only())?;
        }
        if faults.share > 0 && self.random.permille(MOVE_PERMILLE) && is_present {
            self.replace_volume()?;
        }
        let is_present = self.server.is_running() && !self.server.is_changing();
        if faults.absence > 0 && self.random.permille(faults.absence) && is_present {
            self.lose_device();
        }
        if self.random.permille(faults.kill) && self.server.is_running() {
            let power_fails = self.random.permille(faults.power);
            self.kill(power_fails);
        }
        if faults.silence == 0 {
            return Ok(());
        }
        if self.has_silent_client() {
            if self.random.permille(RETURN_PERMILLE) {
                self.await_return()?;
            }
        } else if self.random.permille(faults.silence) {
            self.silence(client)?;
        }
        Ok(())
    }

    /// A work request of a connection over RDMA is late, fails or is stuck.
    fn disturb_rdma(&mut self) {
        let disturbed = self.swarm.rdma.map_or(0, |it| it.disturbed);
        if self.fabric.is_none() || !self.of_fabric.permille(disturbed) {
            return;
        }
        let client = self.of_fabric.below(self.clients.len() as u64) as usize;
        let session = &mut self.clients[client].session;
        if session
            .disturb(&mut self.of_fabric, DISTURBANCE_MAX)
            .is_some()
        {
            self.note(format_args!(
                "a work request of a connection of client {client} is disturbed"
            ));
        }
    }

    /// The share of the clients becomes read-only, or can be changed again.
    pub(super) fn change_share(&mut self, is_read_only: bool) -> Result<(), String> {
        self.note(format_args!("the share becomes read-only: {is_read_only}"));
        self.model.set_access(Access::Changing);
        self.share_changes += 1;
        self.server.change_share(is_read_only)
    }

    /// The volume is not shared and not served for a moment, without a loss of anything that was written:
    /// only what clients have open ends.
    fn replace_volume(&mut self) -> Result<(), String> {
        self.end_failure()?;
        self.quiesce()?;
        self.note(format_args!("the volume is removed and added again"));
        self.moves += 1;
        let root = self.model.objects[ROOT].handle.clone();
        // At once, while what was written and not synced may still be on its way to the device.
        self.server.unshare()?;
        self.await_control()?;
        self.server.remove_volume()?;
        self.await_control()?;
        for client in 0..self.clients.len() {
            self.model.drop_opens(client);
        }
        let used = [Operation::PutFh(Opaque(&root)), Operation::GetFh(())];
        let status = self.ask(&used)?.results()?.0;
        if status != Status::STALE {
            return Err(format!("what is not shared any more: {status:?}"));
        }
        let power_fails = self.random.coin();
        self.server.add_volume(power_fails)?;
        self.await_control()?;
        self.server.share()?;
        self.quiesce()?;
        self.model.volume_kept();
        self.audit(true)
    }

    /// Lets time pass until the control path has nothing to do.
    fn await_control(&mut self) -> Result<(), String> {
        let latest = self.now() + CONTROL_MAX;
        while self.server.is_changing() {
            if self.now() >= latest {
                return Err(format!("a change takes longer than {CONTROL_MAX}"));
            }
            self.step(latest)?;
        }
        Ok(())
    }

    /// The device disappears, and comes back.
    fn lose_device(&mut self) {
        // What fails because of the one and what because of the other is not told apart.
        if self.model.device_fails {
            return;
        }
        let how = match self.random.below(3) {
            0 => Disappearance::CutOff,
            _ => Disappearance::Removed {
                loses_cache: self.random.permille(700),
            },
        };
        self.note(format_args!("the device disappears: {how:?}"));
        self.server.lose_device(how);
        self.absences += 1;
    }

    /// Requests to the device fail for a while, and then succeed again.
    fn begin_failure(&mut self) {
        let (errors, flush_errors) = match self.random.below(3) {
            0 => (0, 1000),
            1 => (self.random.between(1, 300) as u32, 0),
            _ => (20, 300),
        };
        let until = self.now() + Nanos(self.random.below(FAILURE_MAX.as_nanos()));
        self.note(format_args!(
            "the device fails until {until}: {errors} and {flush_errors} per thousand"
        ));
        self.server.begin_failure(errors, flush_errors);
        self.fails_until = Some(until);
        self.model.device_fails = true;
        self.failures += 1;
    }

    /// The operator has found out what fails: the device works, and a read-only volume is opened again
    /// by another start.
    pub(super) fn end_failure(&mut self) -> Result<(), String> {
        if !self.model.device_fails {
            return Ok(());
        }
        self.server.end_failure();
        self.fails_until = None;
        self.quiesce()?;
        self.run_for(LEVELS_AFTER)?;
        let has_failed = self.server.has_failed();
        self.note(format_args!("the volume is read-only: {has_failed}"));
        if self.model.metadata_failed.is_some() && !has_failed {
            return Err("a change has failed, and the volume is not read-only".to_owned());
        }
        if has_failed {
            self.read_only += 1;
            let power_fails = self.random.coin();
            self.kill(power_fails);
        }
        self.model.device_fails = false;
        Ok(())
    }
}
