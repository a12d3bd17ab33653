//! The registers and the effects of accesses to them (Base 2.1 §3.1.4, PCIe 1.1 §3.1).
//!
//! An access that the specification forbids changes nothing and is counted. A correct driver makes
//! none.

use nvme_spec::event::AsyncEvent;
use nvme_spec::registers::{
    Aqa, Arbitration, Cap, Cc, Cmbloc, Cmbmsc, Cmbsts, Cmbsz, CommandSetSelected,
    CommandSetsSupported, Crto, Csts, DOORBELL_BASE_BYTES, IOCQES_NVM, IOSQES_NVM, NSSR_RESET,
    REGISTER_GONE_U32, Register, ShutdownNotification, ShutdownStatus, Version, page_bytes,
};
use reactors::Nanos;

use super::bus::Bus;
use super::fault::{Fault, Site};
use super::options::EmulatedOptions;
use super::queues::{CompletionQueue, SubmissionQueue};
use super::state::{DeferredDoorbell, State};

/// The BAR that contains the controller memory buffer.
pub(super) const CONTROLLER_MEMORY_BAR: u8 = 2;
/// Offset of the buffer in that BAR, in bytes.
pub(super) const CONTROLLER_MEMORY_OFFSET: u64 = 4096;

/// A pending change of CSTS.RDY.
#[derive(Clone, Copy)]
struct Transition {
    at: Nanos,
    ready: bool,
}

pub(super) struct Registers {
    cap: Cap,
    version: Version,
    cc: Cc,
    csts: Csts,
    aqa: Aqa,
    asq: u64,
    acq: u64,
    cmbmsc: Cmbmsc,
    interrupt_mask: u32,
    transition: Option<Transition>,
    shut_down_at: Option<Nanos>,
}

impl Registers {
    pub(super) fn new(options: &EmulatedOptions) -> Self {
        let placed_by_host = options
            .controller_memory
            .is_some_and(|memory| memory.placed_by_host);
        let cap = Cap::new()
            .with_mqes_z((options.queue_entries_max - 1) as u16)
            .with_cqr(true)
            .with_to(options.timeout_units)
            .with_dstrd(options.doorbell_stride)
            .with_nssrs(true)
            .with_css(CommandSetsSupported::new().with_nvm(true))
            .with_mpsmin(options.page_code_min)
            .with_mpsmax(options.page_code_max)
            .with_crwms(options.version >= Version::V2_0)
            .with_cmbs(placed_by_host);
        Self {
            cap,
            version: options.version,
            cc: Cc::new(),
            csts: Csts::new(),
            aqa: Aqa::new(),
            asq: 0,
            acq: 0,
            cmbmsc: Cmbmsc::new(),
            interrupt_mask: 0,
            transition: None,
            shut_down_at: None,
        }
    }

    /// Whether commands execute: ready, no fatal status, not shut down. After CC.EN = 0 they still
    /// do until CSTS.RDY = 0.
    #[inline]
    pub(super) fn is_running(&self) -> bool {
        self.csts.rdy() && !self.csts.cfs() && self.csts.shst() == ShutdownStatus::NORMAL_OPERATION
    }

    /// Whether the controller fetches new commands.
    #[inline]
    pub(super) fn is_enabled(&self) -> bool {
        self.cc.en() && self.is_running()
    }

    pub(super) fn is_shut_down(&self) -> bool {
        self.csts.shst() == ShutdownStatus::COMPLETE
    }

    /// Sets the fatal status, which stops the controller until a reset.
    pub(super) fn fail(&mut self) {
        self.csts.set_cfs(true);
    }

    pub(super) fn cc(&self) -> Cc {
        self.cc
    }

    pub(super) fn cap(&self) -> Cap {
        self.cap
    }
}

/// The half of a 64-bit register that an offset selects.
fn half(value: u64, offset: usize) -> u32 {
    if offset.is_multiple_of(8) {
        value as u32
    } else {
        (value >> 32) as u32
    }
}

fn with_half(value: u64, offset: usize, half: u32) -> u64 {
    if offset.is_multiple_of(8) {
        value & !u64::from(u32::MAX) | u64::from(half)
    } else {
        value & u64::from(u32::MAX) | u64::from(half) << 32
    }
}

impl State {
    pub(super) fn read_register(&mut self, bus: &Bus, offset: usize) -> u32 {
        self.counters.register_reads += 1;
        if !self.present {
            return REGISTER_GONE_U32;
        }
        self.advance_registers(bus);
        let registers = &self.registers;
        let low = Register((offset & !7) as u32);
        match low {
            Register::CAP => return half(registers.cap.into_bits(), offset),
            Register::ASQ => return half(registers.asq, offset),
            Register::ACQ => return half(registers.acq, offset),
            Register::CMBMSC if registers.cap.cmbs() => {
                return half(registers.cmbmsc.into_bits(), offset);
            }
            _ => {}
        }
        match Register(offset as u32) {
            Register::VS => registers.version.into_bits(),
            Register::INTMS | Register::INTMC => registers.interrupt_mask,
            Register::CC => registers.cc.into_bits(),
            Register::CSTS => registers.csts.into_bits(),
            Register::AQA => registers.aqa.into_bits(),
            Register::CMBLOC => self.memory_location(),
            Register::CMBSZ => self.memory_size(),
            Register::CMBSTS => Cmbsts::new().into_bits(),
            Register::CRTO if registers.cap.crwms() => Crto::new()
                .with_crwmt(u16::from(self.options.timeout_units))
                .into_bits(),
            _ => {
                // Doorbells must not be read (PCIe 1.1 §3.1.2); reserved properties read as 0.
                self.counters.illegal_accesses += u64::from(offset as u64 >= DOORBELL_BASE_BYTES);
                0
            }
        }
    }

    fn is_cmb_visible(&self) -> bool {
        self.options
            .controller_memory
            .is_some_and(|memory| !memory.placed_by_host || self.registers.cmbmsc.cre())
    }

    fn memory_location(&self) -> u32 {
        if !self.is_cmb_visible() {
            return 0;
        }
        Cmbloc::new()
            .with_bir(CONTROLLER_MEMORY_BAR)
            .with_ofst((CONTROLLER_MEMORY_OFFSET / 4096) as u32)
            .into_bits()
    }

    fn memory_size(&self) -> u32 {
        let Some(memory) = self
            .options
            .controller_memory
            .filter(|_| self.is_cmb_visible())
        else {
            return 0;
        };
        Cmbsz::new()
            .with_sqs(true)
            .with_rds(memory.holds_data)
            .with_wds(memory.holds_data)
            .with_sz((memory.bytes / 4096) as u32)
            .into_bits()
    }

    /// A controller memory buffer without CMBMSC is accessible from power on.
    pub(super) fn place_memory_at_power_on(&mut self, bus: &Bus) {
        match self.options.controller_memory {
            Some(memory) if !memory.placed_by_host => bus.place_memory_by_bar(),
            _ => bus.place_memory(None),
        }
    }

    pub(super) fn write_register(&mut self, bus: &Bus, offset: usize, value: u32) {
        self.counters.register_writes += 1;
        if !self.present {
            return;
        }
        self.advance_registers(bus);
        if offset as u64 >= DOORBELL_BASE_BYTES {
            return self.write_doorbell(bus, offset, value);
        }
        let enabled = self.registers.cc.en();
        let registers = &mut self.registers;
        match Register((offset & !7) as u32) {
            Register::ASQ if !enabled => {
                registers.asq = with_half(registers.asq, offset, value);
                return;
            }
            Register::ACQ if !enabled => {
                registers.acq = with_half(registers.acq, offset, value);
                return;
            }
            Register::CMBMSC if registers.cap.cmbs() => {
                let bits = with_half(registers.cmbmsc.into_bits(), offset, value);
                return self.place_memory(bus, Cmbmsc::from_bits(bits));
            }
            _ => {}
        }
        match Register(offset as u32) {
            Register::INTMS => registers.interrupt_mask |= value,
            Register::INTMC => registers.interrupt_mask &= !value,
            Register::CC => self.configure(bus, Cc::from_bits(value)),
            Register::CSTS if Csts::from_bits(value).nssro() => registers.csts.set_nssro(false),
            Register::NSSR if value == NSSR_RESET => self.reset_subsystem(bus),
            Register::AQA if !enabled => registers.aqa = Aqa::from_bits(value),
            _ => self.counters.illegal_accesses += 1,
        }
    }

    fn place_memory(&mut self, bus: &Bus, control: Cmbmsc) {
        self.registers.cmbmsc = control;
        let placed = control.cre() && control.cmse();
        bus.place_memory(placed.then_some(control.cba() << 12));
    }

    /// Handles a write of CC (Base 2.1 §3.1.4.5).
    fn configure(&mut self, bus: &Bus, new: Cc) {
        let old = std::mem::replace(&mut self.registers.cc, new);
        match (old.en(), new.en()) {
            (false, true) => self.enable(bus, new),
            (true, false) => {
                self.lose_memory(bus);
                self.disable(bus);
            }
            (true, true) => {
                let fixed = |cc: Cc| (cc.css(), cc.mps(), cc.ams());
                if fixed(old) != fixed(new) {
                    self.counters.illegal_accesses += 1;
                    self.registers.cc = old.with_shn(new.shn());
                }
            }
            (false, false) => {}
        }
        if old.shn() == ShutdownNotification::NONE && new.shn() != ShutdownNotification::NONE {
            self.registers.csts.set_shst(ShutdownStatus::OCCURRING);
            self.registers.shut_down_at = Some(self.now + self.options.shutdown_after);
            self.advance_registers(bus);
        }
    }

    fn enable(&mut self, bus: &Bus, cc: Cc) {
        self.counters.enables += 1;
        let fault = self.faults.matching_fault(Site::Enable, 0, None);
        let still_ready = self.registers.csts.rdy();
        self.counters.illegal_accesses += u64::from(still_ready);
        if still_ready || !self.can_enable(cc) || fault == Some(Fault::EnableFatal) {
            return self.registers.fail();
        }
        let wait = match fault {
            Some(Fault::Ready(span)) => span,
            _ => self.options.ready_after,
        };
        self.registers
            .csts
            .set_shst(ShutdownStatus::NORMAL_OPERATION);
        self.registers.shut_down_at = None;
        self.registers.transition = Some(Transition {
            at: self.now + wait,
            ready: true,
        });
        self.advance_registers(bus);
    }

    /// Whether the controller supports the configuration of the admin queue and of CC.
    fn can_enable(&self, cc: Cc) -> bool {
        let registers = &self.registers;
        let (cap, aqa) = (registers.cap, registers.aqa);
        let page = u64::from(page_bytes(cc.mps()));
        (cap.mpsmin()..=cap.mpsmax()).contains(&cc.mps())
            && cc.css() == CommandSetSelected::NVM
            && cc.ams() == Arbitration::ROUND_ROBIN
            && aqa.asqs_z() >= 1
            && aqa.acqs_z() >= 1
            && registers.asq.is_multiple_of(page)
            && registers.acq.is_multiple_of(page)
    }

    /// The controller is about to stop, and its memory loses the content. A host has ended the access
    /// of other drives before.
    fn lose_memory(&mut self, bus: &Bus) {
        self.counters.illegal_accesses += u64::from(bus.is_shared());
        if let Some(memory) = bus.memory() {
            memory.lose_when_stopped();
        }
    }

    fn disable(&mut self, bus: &Bus) {
        self.counters.disables += 1;
        let wait = match self.faults.matching_fault(Site::Disable, 0, None) {
            Some(Fault::Disabled(span)) => span,
            _ => self.options.disabled_after,
        };
        self.registers.transition = Some(Transition {
            at: self.now + wait,
            ready: false,
        });
        if wait == Nanos::ZERO {
            self.become_disabled(bus);
        }
    }

    fn become_disabled(&mut self, bus: &Bus) {
        self.registers.transition = None;
        self.registers.csts = Csts::new().with_nssro(self.registers.csts.nssro());
        self.registers.shut_down_at = None;
        self.forget_all();
        if let Some(memory) = bus.memory() {
            memory.stop();
        }
    }

    /// Performs the changes of CSTS that are due.
    pub(super) fn advance_registers(&mut self, bus: &Bus) {
        if let Some(transition) = self.registers.transition
            && transition.at <= self.now
            && transition.at != Nanos::MAX
        {
            if transition.ready {
                self.registers.transition = None;
                self.become_ready();
            } else {
                self.execute_until_disabled(bus);
                self.become_disabled(bus);
            }
        }
        if self.registers.shut_down_at.is_some_and(|at| at <= self.now) {
            self.registers.shut_down_at = None;
            self.flush_all();
            self.registers.csts.set_shst(ShutdownStatus::COMPLETE);
        }
    }

    /// Executes commands that are due before CSTS.RDY = 0; they still access host memory.
    fn execute_until_disabled(&mut self, bus: &Bus) {
        if self.runs(bus) {
            self.progress(bus);
        }
    }

    fn become_ready(&mut self) {
        let registers = &mut self.registers;
        registers.csts.set_rdy(true);
        let sizes = registers.aqa;
        let (submission, completion) = (sizes.asqs_z() + 1, sizes.acqs_z() + 1);
        self.submission[0] = SubmissionQueue::new(registers.asq, u32::from(submission), 0);
        self.completion[0] = CompletionQueue::new(registers.acq, u32::from(completion), Some(0));
        self.completion[0].users = 1;
    }

    /// Performs a function level reset, which also resets all registers and bus mastering.
    ///
    /// Returns whether it succeeded.
    pub(super) fn reset_function(&mut self, bus: &Bus) -> bool {
        let fails = self
            .faults
            .matching_fault(Site::FunctionReset, 0, None)
            .is_some();
        if !self.present || fails {
            return false;
        }
        self.counters.function_resets += 1;
        self.lose_memory(bus);
        self.reset_registers(bus);
        bus.set_master(false);
        true
    }

    fn reset_subsystem(&mut self, bus: &Bus) {
        self.counters.subsystem_resets += 1;
        self.reset_registers(bus);
        self.registers.csts.set_nssro(true);
    }

    fn reset_registers(&mut self, bus: &Bus) {
        self.forget_all();
        self.registers = Registers::new(&self.options);
        self.place_memory_at_power_on(bus);
        if let Some(memory) = bus.memory() {
            memory.stop();
        }
    }

    fn write_doorbell(&mut self, bus: &Bus, offset: usize, value: u32) {
        let stride = u64::from(self.registers.cap.doorbell_stride_bytes());
        let within = offset as u64 - DOORBELL_BASE_BYTES;
        let index = (within / stride) as u32;
        if index.is_multiple_of(2) {
            self.counters.submission_doorbells += 1;
        } else {
            self.counters.completion_doorbells += 1;
        }
        if !self.registers.is_enabled() || !within.is_multiple_of(stride) || value > 0xffff {
            // The effect of a doorbell while the controller is not ready is undefined.
            let stopped = self.registers.csts.cfs() || !bus.is_master();
            self.counters.illegal_accesses += u64::from(!stopped);
            return;
        }
        let queue_id = (index / 2) as u16;
        match self.faults.matching_fault(Site::Doorbell, queue_id, None) {
            Some(Fault::DoorbellLost) => {}
            Some(Fault::DoorbellDeferred) => {
                if self.deferred_doorbells.len() < self.deferred_doorbells.capacity() {
                    self.deferred_doorbells
                        .push(DeferredDoorbell { index, value });
                }
            }
            Some(Fault::DoorbellTorn) => self.ring(bus, index, value | 0xff00),
            _ => self.ring(bus, index, value),
        }
    }

    /// Handles a doorbell value: even indices are tails, odd ones are heads.
    pub(super) fn ring(&mut self, bus: &Bus, index: u32, value: u32) {
        let queue_id = (index / 2) as u16;
        let slot = usize::from(queue_id);
        if index.is_multiple_of(2) {
            let Some(queue) = self.submission.get_mut(slot).filter(|queue| queue.live) else {
                return self.invalid_doorbell(bus, AsyncEvent::INVALID_DOORBELL_REGISTER);
            };
            if queue.shadow.is_none() && queue.set_tail(value).is_err() {
                return self.invalid_doorbell(bus, AsyncEvent::INVALID_DOORBELL_VALUE);
            }
            self.process(bus, queue_id);
            return;
        }
        let Some(queue) = self.completion.get_mut(slot).filter(|queue| queue.live) else {
            return self.invalid_doorbell(bus, AsyncEvent::INVALID_DOORBELL_REGISTER);
        };
        let was_full = queue.is_full();
        let moved = if queue.shadow.is_some() {
            queue.refresh_head(bus)
        } else {
            queue.set_head(value)
        };
        if moved.is_err() {
            return self.invalid_doorbell(bus, AsyncEvent::INVALID_DOORBELL_VALUE);
        }
        if was_full {
            self.progress(bus);
        }
    }

    /// Whether CC has the entry sizes of the NVM command set, which I/O queues need.
    pub(super) fn has_entry_sizes(&self) -> bool {
        let cc = self.registers.cc();
        cc.iosqes() == IOSQES_NVM && cc.iocqes() == IOCQES_NVM
    }
}
