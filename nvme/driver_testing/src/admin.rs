//! Admin commands (Base 2.1 §5, PCIe 1.1 §3.2).

use nvme_spec::Status;
use nvme_spec::command::{AdminOpcode, DataDirection, Fuse, Psdt, Sqe};
use nvme_spec::prp::PageSize;
use nvme_spec::registers::{DOORBELL_BASE_BYTES, sq_tail_doorbell};

use super::bus::{Bus, Location};
use super::options::{SglRules, ShadowDoorbells};
use super::queues::{COMPLETION_BYTES, CompletionQueue, SUBMISSION_BYTES, Shadow, SubmissionQueue};
use super::state::{Outcome, State};
use super::transfer::PointerRules;

const FIELD: Status = Status::INVALID_FIELD.with_dnr();
const QUEUE_ID: Status = Status::INVALID_QUEUE_IDENTIFIER.with_dnr();

/// Dword 0 of Abort's completion: the command was not aborted.
const NOT_ABORTED: u64 = 1;

impl State {
    pub(super) fn execute_admin(&mut self, bus: &Bus, sqe: &Sqe) -> Outcome {
        // Admin commands over PCIe use PRPs (Base 2.1 §4.1.1, PSDT).
        if sqe.flags.fuse() != Fuse::NORMAL || sqe.flags.psdt() != Psdt::PRP {
            return FIELD.into();
        }
        match sqe.admin_opcode() {
            AdminOpcode::CREATE_IO_CQ => self.create_completion_queue(bus, sqe).into(),
            AdminOpcode::CREATE_IO_SQ => self.create_submission_queue(bus, sqe).into(),
            AdminOpcode::DELETE_IO_SQ => self.delete_submission_queue(sqe).into(),
            AdminOpcode::DELETE_IO_CQ => self.delete_completion_queue(sqe).into(),
            AdminOpcode::IDENTIFY => self.identify(bus, sqe),
            AdminOpcode::GET_LOG_PAGE => self.get_log_page(bus, sqe),
            AdminOpcode::GET_FEATURES => self.get_features(bus, sqe),
            AdminOpcode::SET_FEATURES => self.set_features(bus, sqe),
            AdminOpcode::ABORT => self.abort_command(bus, sqe),
            AdminOpcode::ASYNC_EVENT_REQUEST => self.request_event(bus, sqe),
            AdminOpcode::DOORBELL_BUFFER_CONFIG
                if self.options.shadow_doorbells != ShadowDoorbells::Unsupported =>
            {
                self.configure_shadow_doorbells(bus, sqe).into()
            }
            _ => Status::INVALID_OPCODE.with_dnr().into(),
        }
    }

    pub(super) fn page(&self) -> PageSize {
        PageSize::from_mps(self.registers.cc().mps())
    }

    /// Transfers the data of an admin command to the host, at most `asked` bytes.
    pub(super) fn send_admin(
        &mut self,
        bus: &Bus,
        sqe: &Sqe,
        data: &[u8],
        asked: usize,
    ) -> Result<(), Status> {
        debug_assert_ne!(sqe.direction(), DataDirection::None);
        let rules = PointerRules {
            page: self.page(),
            sgl: SglRules::Unsupported,
        };
        self.transfer.gather(bus, sqe, asked, rules)?;
        self.transfer.send(bus, &data[..data.len().min(asked)])
    }

    fn has_pair(&self, queue_id: u16) -> bool {
        (1..=self.options.io_queues_max).contains(&queue_id)
    }

    fn check_size(&self, entries: u32) -> Result<(), Status> {
        if entries < 2 || entries > self.registers.cap().mqes() || !self.has_entry_sizes() {
            return Err(Status::INVALID_QUEUE_SIZE.with_dnr());
        }
        Ok(())
    }

    /// Checks the base address of a new queue: page-aligned and contiguous (CAP.CQR).
    fn check_base(&self, base: u64, contiguous: bool) -> Result<(), Status> {
        if !contiguous {
            return Err(FIELD);
        }
        if self.page().offset(base) != 0 {
            return Err(Status::PRP_OFFSET_INVALID.with_dnr());
        }
        Ok(())
    }

    /// Base 2.1 §5.2.1, PCIe 1.1 §3.2.
    fn create_completion_queue(&mut self, bus: &Bus, sqe: &Sqe) -> Result<(), Status> {
        let command = sqe.create_io_cq();
        let (queue_id, control) = (command.qid.get(), command.control);
        if !self.has_pair(queue_id) || self.completion[usize::from(queue_id)].live {
            return Err(QUEUE_ID);
        }
        let entries = u32::from(command.qsize_z.get()) + 1;
        self.check_size(entries)?;
        if control.ien() && control.iv() >= self.options.interrupt_vectors {
            return Err(Status::INVALID_INTERRUPT_VECTOR.with_dnr());
        }
        let base = sqe.dptr.prp().prp1.get();
        self.check_base(base, control.pc())?;
        let bytes = u64::from(entries) * COMPLETION_BYTES;
        if let Some(Location::Controller(_)) = bus.place(base, bytes as usize) {
            return Err(Status::INVALID_USE_OF_CMB.with_dnr());
        }
        let vector = control.ien().then_some(control.iv());
        let mut queue = CompletionQueue::new(base, entries, vector);
        queue.shadow = self.shadow_of(queue_id, true);
        self.completion[usize::from(queue_id)] = queue;
        Ok(())
    }

    /// Base 2.1 §5.2.2.
    fn create_submission_queue(&mut self, bus: &Bus, sqe: &Sqe) -> Result<(), Status> {
        let command = sqe.create_io_sq();
        let (queue_id, control) = (command.qid.get(), command.control);
        if !self.has_pair(queue_id)
            || self.submission[usize::from(queue_id)].live
            || !self.has_pair(control.cqid())
        {
            return Err(QUEUE_ID);
        }
        if !self.completion[usize::from(control.cqid())].live {
            return Err(Status::COMPLETION_QUEUE_INVALID.with_dnr());
        }
        let entries = u32::from(command.qsize_z.get()) + 1;
        self.check_size(entries)?;
        let base = sqe.dptr.prp().prp1.get();
        self.check_base(base, control.pc())?;
        // A queue that starts in the controller memory buffer has to end in it.
        let begins_in_memory = matches!(bus.place(base, 1), Some(Location::Controller(_)));
        let bytes = u64::from(entries) * SUBMISSION_BYTES;
        if begins_in_memory && bus.place(base, bytes as usize).is_none() {
            return Err(Status::INVALID_USE_OF_CMB.with_dnr());
        }
        let mut queue = SubmissionQueue::new(base, entries, control.cqid());
        queue.shadow = self.shadow_of(queue_id, false);
        self.submission[usize::from(queue_id)] = queue;
        self.completion[usize::from(control.cqid())].users += 1;
        Ok(())
    }

    /// Fetched commands are aborted without a completion (Base 2.1 §5.2.4 allows it).
    fn delete_submission_queue(&mut self, sqe: &Sqe) -> Result<(), Status> {
        let queue_id = sqe.delete_io_queue().qid.get();
        if !self.has_pair(queue_id) || !self.submission[usize::from(queue_id)].live {
            return Err(QUEUE_ID);
        }
        let queue = std::mem::take(&mut self.submission[usize::from(queue_id)]);
        self.completion[usize::from(queue.completion_queue)].users -= 1;
        self.forget_commands_of(queue_id);
        Ok(())
    }

    fn delete_completion_queue(&mut self, sqe: &Sqe) -> Result<(), Status> {
        let queue_id = sqe.delete_io_queue().qid.get();
        if !self.has_pair(queue_id) || !self.completion[usize::from(queue_id)].live {
            return Err(QUEUE_ID);
        }
        if self.completion[usize::from(queue_id)].users > 0 {
            return Err(Status::INVALID_QUEUE_DELETION.with_dnr());
        }
        self.completion[usize::from(queue_id)] = CompletionQueue::default();
        Ok(())
    }

    fn abort_command(&mut self, bus: &Bus, sqe: &Sqe) -> Outcome {
        let command = sqe.abort();
        let (queue_id, cid) = (command.sqid.get(), command.cid.get());
        let live = self.submission.get(usize::from(queue_id));
        if !live.is_some_and(|queue| queue.live) {
            return FIELD.into();
        }
        let aborted =
            self.abort(bus, queue_id, cid) || queue_id == 0 && self.abort_event_request(bus, cid);
        Outcome::Done(Status::SUCCESS, if aborted { 0 } else { NOT_ABORTED })
    }

    /// Base 2.1 §5.2.5. The admin queue uses its registers only: existing hosts do not update its
    /// shadow doorbells.
    fn configure_shadow_doorbells(&mut self, bus: &Bus, sqe: &Sqe) -> Result<(), Status> {
        let prp = sqe.dptr.prp();
        let shadow = Shadow {
            doorbell: prp.prp1.get(),
            event_index: prp.prp2.get(),
        };
        let page = self.page();
        for address in [shadow.doorbell, shadow.event_index] {
            let whole = bus.place(address, page.bytes() as usize);
            if page.offset(address) != 0 || !matches!(whole, Some(Location::Arena(_))) {
                return Err(FIELD);
            }
        }
        self.shadow = Some(shadow);
        for queue_id in 1..=self.options.io_queues_max {
            let of_pair = [
                self.shadow_of(queue_id, false),
                self.shadow_of(queue_id, true),
            ];
            self.submission[usize::from(queue_id)].shadow = of_pair[0];
            self.completion[usize::from(queue_id)].shadow = of_pair[1];
        }
        Ok(())
    }

    /// Shadow doorbells have the same offsets in their page as doorbells in the registers.
    fn shadow_of(&self, queue_id: u16, completion: bool) -> Option<Shadow> {
        let shadow = self.shadow?;
        let cap = self.registers.cap();
        let tail = sq_tail_doorbell(cap, queue_id) - DOORBELL_BASE_BYTES;
        let offset = tail + u64::from(completion) * u64::from(cap.doorbell_stride_bytes());
        Some(Shadow {
            doorbell: shadow.doorbell + offset,
            event_index: shadow.event_index + offset,
        })
    }
}
