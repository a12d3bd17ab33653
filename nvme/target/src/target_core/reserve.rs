//! Reservation commands of this core's queues, and the end of commands of preempted hosts.
//!
//! The registry's table applies changes (`nvme/target/src/reservations.rs`). Meanwhile the command is
//! an execution without a device request. Results and hosts whose commands have to end arrive as
//! messages.

use std::collections::BTreeMap;

use hugemem::Lease;
use nvme_reservations::{HostIdentifier, HostIdentifierFormat};
use nvme_spec::command::reservation::ReportControl;
use nvme_spec::command::{AdminOpcode, IoOpcode};
use nvme_spec::{NSID_BROADCAST, Sqe, Status};
use reactors::Nanos;

use super::executions::{Command, DeviceTag, Execution, Owner};
use super::gate::GateDecision;
use super::{FailedCommand, TargetCore};
use crate::interface::{Admission, Completed};
use crate::io::{IoOperation, IoWork};
use crate::reservations::work::ReservationWork;
use crate::reservations::{
    Ending, PersistenceChange, Requester, ReservationCommand, ReservationRequest,
};
use crate::status::Fault;

impl TargetCore {
    /// Executes a reservation command. Its result arrives as a message, except for a report.
    #[inline(never)]
    pub(super) fn execute_reservation(
        &mut self,
        command: Command,
        work: ReservationWork,
        data: Lease,
        received_at: Nanos,
        now: Nanos,
    ) -> Option<Completed> {
        let io = work.io();
        let started = match self.pass_admitted(command.queue, &io) {
            GateDecision::Refused(fault) => Err(fault),
            // The fence holds back only commands that change data.
            GateDecision::Open | GateDecision::Held => {
                work.change(&data).map(|change| (change, data))
            }
        };
        let result = match started {
            Ok((Some(change), _)) => {
                let execution = Execution::new(Owner::Command(command), io, received_at, now);
                self.submit_change(command, execution, 1 << io.device, change)
            }
            Ok((None, data)) => match self.report_reservations(command, &work, data) {
                Ok(completed) => return Some(completed),
                Err(fault) => Err(fault),
            },
            Err(fault) => Err(fault),
        };
        let fault = result.err()?;
        let failed = FailedCommand::of_work(&io, command.id);
        Some(self.fail_command(command, &failed, fault))
    }

    /// Passes a change of the reservations of these devices to the table.
    fn submit_change(
        &mut self,
        command: Command,
        execution: Execution,
        devices: u128,
        change: ReservationCommand,
    ) -> Result<(), Fault> {
        let tag = self.executions.insert(execution);
        let tag = tag.ok_or(Fault::retry(Status::COMMAND_INTERRUPTED))?;
        let Some(queue) = self.queues.at_mut(command.queue) else {
            return Ok(());
        };
        queue.executing += 1;
        let host = HostIdentifier(queue.shared.identity.host_id);
        self.executions.extra(tag.slot).devices = devices;
        let reactor = self.reactor;
        self.target.change_reservations(|table, controllers, view| {
            for device in (0..128).filter(|device| devices & (1 << device) != 0) {
                let request = ReservationRequest {
                    requester: Requester::Core {
                        reactor,
                        tag: tag.into_bits(),
                    },
                    host,
                    command: change,
                };
                table.submit(device, request, controllers, view);
            }
        });
        Ok(())
    }

    /// Reservation Report (Base 2.1 §7.8).
    fn report_reservations(
        &mut self,
        command: Command,
        work: &ReservationWork,
        mut data: Lease,
    ) -> Result<Completed, Fault> {
        let closed = Fault::retry(Status::ABORTED_SQ_DELETION);
        let queue = self.queues.at(command.queue).ok_or(closed)?;
        let identity = &queue.shared.identity;
        data.fill(0);
        self.target.change_reservations(|table, controllers, _| {
            let not_ready = Fault::new(Status::NAMESPACE_NOT_READY);
            let state = table.known(work.device).ok_or(not_ready)?;
            let of_subsystem = controllers
                .values()
                .map(|entry| &entry.shared.identity)
                .filter(|it| it.subsystem == identity.subsystem);
            let cntlids: BTreeMap<[u8; 16], u16> = match state.registrants().is_empty() {
                true => BTreeMap::new(),
                false => of_subsystem.map(|it| (it.host_id, it.cntlid)).collect(),
            };
            // Over fabrics every host identifier has 128 bits (Base 2.1 §5.1.25.1.28).
            state
                .report(
                    HostIdentifier(identity.host_id),
                    HostIdentifierFormat::Extended,
                    ReportControl::from_bits(work.control),
                    |host| cntlids.get(&host.0).copied(),
                    &mut data,
                )
                .map_err(Fault::new)
        })?;
        let queue = self.queues.at_mut(command.queue).ok_or(closed)?;
        let response = queue.respond(command.id, Status::SUCCESS);
        self.command_completed(command.queue);
        Ok(Completed::with_lease(command.tag, response, data))
    }

    /// Set Features of Reservation Persistence for these devices (Base 2.1 §5.1.25.1.30).
    pub(super) fn set_persistence(
        &mut self,
        slot: u32,
        tag: u64,
        sqe: &Sqe,
        change: PersistenceChange,
        now: Nanos,
    ) -> Result<Admission, Fault> {
        self.add_admin_execution(slot)?;
        // The opcode is only for the error log.
        let work = IoWork {
            operation: IoOperation::Reserve(IoOpcode(AdminOpcode::SET_FEATURES.0)),
            device: 0,
            blocks: 0,
            lba: 0,
            bytes: 0,
            nsid: NSID_BROADCAST,
            epoch: self.view.epoch,
        };
        let command = Command {
            queue: slot,
            id: sqe.cid.get(),
            tag,
        };
        let execution = Execution::new(Owner::Command(command), work, now, now);
        let PersistenceChange { devices, persists } = change;
        let change = ReservationCommand::SetPersistence(persists);
        match self.submit_change(command, execution, devices, change) {
            Ok(()) => Ok(Admission::Held),
            Err(fault) => {
                let failed = FailedCommand::of(sqe);
                let completed = self.fail_command(command, &failed, fault);
                Ok(Admission::Respond(completed.response))
            }
        }
    }

    /// Handles messages of the registry's table.
    pub(super) fn handle_reservation_messages(&mut self) {
        let messages = self.target.reservation_messages();
        if messages == self.reservation_messages_seen {
            return;
        }
        self.reservation_messages_seen = messages;
        let reactor = self.reactor;
        let (results, endings) = self.target.change_reservations(|table, _, _| {
            (table.take_results(reactor), table.endings(reactor))
        });
        for result in results {
            let tag = DeviceTag::from_bits(result.tag);
            self.change_done(tag, result.device, result.result);
        }
        self.endings = endings;
        self.give_up_preempted();
        self.end_preempted();
    }

    /// Handles the result of a change for one device.
    fn change_done(&mut self, tag: DeviceTag, device: u8, result: Result<(), Fault>) {
        // The execution is over if its queue has ended.
        if self.executions.get(tag).is_none() {
            return;
        }
        let extra = self.executions.extra(tag.slot);
        extra.devices &= !(1 << device);
        if let Err(fault) = result {
            extra.failed.get_or_insert(fault);
        }
        if extra.devices != 0 {
            return;
        }
        let result = extra.failed.map_or(Ok(()), Err);
        self.finish_later(tag, result, None);
    }

    /// Makes devices cancel the requests of preempted hosts where possible.
    fn give_up_preempted(&self) {
        for ending in &self.endings {
            let commands = self.commands_of(ending);
            let is_preempted = &mut |tag| commands.contains(&DeviceTag::from_bits(tag));
            self.devices
                .give_up(self.client, 1 << ending.device, is_preempted);
        }
    }

    /// The status of a command that its device has cancelled.
    #[cold]
    pub(super) fn cancelled_status(&self, tag: DeviceTag) -> Status {
        let mut endings = self.endings.iter();
        match endings.any(|ending| self.commands_of(ending).contains(&tag)) {
            true => Status::ABORTED_PREEMPT_AND_ABORT,
            false => Status::ABORT_REQUESTED,
        }
    }

    /// Ends the commands of preempted hosts (Base 2.1 §8.1.22.7): aborts those that no device has,
    /// and reports when the others have ended.
    #[cold]
    pub(super) fn end_preempted(&mut self) {
        for ending in std::mem::take(&mut self.endings) {
            let commands = self.commands_of(&ending);
            let mut is_over = true;
            for tag in commands {
                is_over &= self.abort_execution(tag.slot, Status::ABORTED_PREEMPT_AND_ABORT);
            }
            if !is_over {
                self.endings.push(ending);
                continue;
            }
            let reactor = self.reactor;
            self.target.change_reservations(|table, controllers, view| {
                table.ended(ending.device, reactor, controllers, view);
            });
        }
    }

    /// The executions of preempted hosts on their device, orphans included. The flush of an admin
    /// command is no command for a namespace, and changes nothing.
    fn commands_of(&self, ending: &Ending) -> Vec<DeviceTag> {
        let is_preempted = |execution: &Execution| {
            let Owner::Command(command) = execution.owner else {
                return false;
            };
            let queue = self.queues.at(command.queue);
            let io_queue = queue.filter(|queue| queue.controller().is_none());
            let host = io_queue.map(|queue| HostIdentifier(queue.shared.identity.host_id));
            host.is_some_and(|host| ending.hosts.contains(&host))
        };
        let executions = self.executions.of_device(ending.device);
        executions
            .filter(|(_, execution)| is_preempted(execution))
            .map(|(tag, _)| tag)
            .collect()
    }
}
