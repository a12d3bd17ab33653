//! Brings a controller from any state to one that executes I/O commands, as a polled state machine
//! (Base 2.1 §3.5.1). Used at the first start, after a reset and when a drive is reattached.

mod commands;
mod controller_memory;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use hugemem::DeviceMemory;
use nvme_spec::identify::{IdentifyController, IdentifyNamespace, NvmIdentifyController};
use nvme_spec::registers::{Aqa, Cap, Cc, CommandSetSelected, Csts, Register, sq_tail_doorbell};
use reactors::Nanos;
use zerocopy::transmute;

use crate::admin::{AdminEvent, AdminQueue};
use crate::backing::DeviceBacking;
use crate::data_pages::DataPages;
use crate::drive_access::{CmbQueues, DriveAccess};
use crate::error::{DriveError, Unusable};
use crate::identity::{ControllerInfo, Identity, Limits, Namespace};
use crate::memory::{ADMIN_ENTRIES, AdminPage, DriveMemory};
use crate::registers::Registers;
use crate::shared::Shared;
use controller_memory::Buffer;

/// Maximum number of namespaces of a drive that are identified; further ones are ignored.
pub(crate) const NAMESPACES_MAX: usize = 128;

/// A command of the start sequence. Each is sent after the previous one completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Command {
    Controller,
    NvmLimits,
    Queues,
    HostBehavior,
    WriteCache,
    List,
    Namespace(usize),
    Descriptors(usize),
    Events,
    Shadow,
    CreateCq(usize),
    CreateSq(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Reads the registers and disables the controller.
    Begin,
    /// Waits for CSTS.RDY = 0.
    WaitDisabled,
    /// Waits for CSTS.RDY = 1.
    WaitReady,
    /// Sends a command.
    Send(Command),
    /// Waits for the command's completion.
    Await(Command),
    /// The result was returned.
    Over,
}

/// The state of a start.
pub(crate) enum StartupState {
    Pending,
    Ready(Box<Started>),
    Failed(DriveError),
}

/// A controller that is ready for I/O.
pub(crate) struct Started {
    pub(crate) admin: AdminQueue,
    pub(crate) identity: Identity,
    pub(crate) drive_access: DriveAccess,
}

/// Results of the commands so far.
#[derive(Default)]
struct StartResults {
    controller: Option<Box<IdentifyController>>,
    nvm: Option<Box<NvmIdentifyController>>,
    write_cache: bool,
    nsids: Vec<u32>,
    namespaces: Vec<Namespace>,
    limits: Option<Limits>,
    shadow: bool,
}

/// A start in progress.
pub(crate) struct Startup {
    shared: Arc<Shared>,
    backing: Arc<dyn DeviceBacking>,
    step: Step,
    cap: Cap,
    deadline: Nanos,
    entered: Nanos,
    admin: Option<AdminQueue>,
    buffer: Option<Buffer>,
    found: StartResults,
}

impl Startup {
    pub(crate) fn new(shared: Arc<Shared>, backing: Arc<dyn DeviceBacking>) -> Self {
        Self {
            shared,
            backing,
            step: Step::Begin,
            cap: Cap::new(),
            deadline: Nanos::ZERO,
            entered: Nanos::ZERO,
            admin: None,
            buffer: None,
            found: StartResults::default(),
        }
    }

    pub(crate) fn backing(&self) -> &Arc<dyn DeviceBacking> {
        &self.backing
    }

    /// The latest time at which `poll` must be called again.
    pub(crate) fn deadline(&self) -> Nanos {
        self.deadline
    }

    /// Continues as far as possible without waiting.
    pub(crate) fn poll(&mut self, now: Nanos) -> StartupState {
        loop {
            match self.advance(now) {
                Ok(true) if self.step == Step::Over => return self.result(),
                Ok(true) => {}
                Ok(false) => return StartupState::Pending,
                Err(error) => {
                    self.step = Step::Over;
                    return StartupState::Failed(error);
                }
            }
        }
    }

    fn registers(&self) -> Registers<'_> {
        Registers::new(&*self.backing)
    }

    fn wait(&mut self, step: Step, now: Nanos, timeout: Nanos) {
        self.step = step;
        self.entered = now;
        self.deadline = now + timeout;
    }

    /// Performs one step. Returns false if the controller has to act first.
    fn advance(&mut self, now: Nanos) -> Result<bool, DriveError> {
        match self.step {
            Step::Begin => self.begin(now).map(|()| true),
            Step::WaitDisabled => {
                let csts = self.status()?;
                if !csts.rdy() {
                    self.enable(now)?;
                    return Ok(true);
                }
                self.check_timeout("disabled", now)
            }
            Step::WaitReady => {
                let csts = self.status()?;
                if csts.cfs() {
                    return Err(DriveError::Fatal);
                }
                if csts.rdy() {
                    self.step = Step::Send(Command::Controller);
                    return Ok(true);
                }
                self.check_timeout("ready", now)
            }
            Step::Send(command) => self.send(command, now).map(|()| true),
            Step::Await(command) => self.poll_completion(command, now),
            Step::Over => Ok(false),
        }
    }

    fn status(&self) -> Result<Csts, DriveError> {
        self.registers().csts().ok_or(DriveError::Gone)
    }

    /// Returns false while there is time left, and an error afterwards.
    fn check_timeout(&self, wanted: &'static str, now: Nanos) -> Result<bool, DriveError> {
        if now < self.deadline {
            return Ok(false);
        }
        let waited_ms = now.saturating_sub(self.entered).as_millis();
        Err(DriveError::NotReady { wanted, waited_ms })
    }

    /// Checks the controller's capabilities, and disables it.
    fn begin(&mut self, now: Nanos) -> Result<(), DriveError> {
        let cap = self.registers().cap().ok_or(DriveError::Gone)?;
        check(cap, &*self.backing, self.shared.options.reactors)?;
        self.cap = cap;
        let cc = self.registers().cc().ok_or(DriveError::Gone)?;
        if cc.en() {
            self.registers().set_cc(cc.with_en(false));
        }
        let timeout = self.registers().ready_timeout(cap);
        self.wait(Step::WaitDisabled, now, timeout);
        Ok(())
    }

    /// Sets the admin queues of the disabled controller and enables it (Base 2.1 §3.5.1).
    fn enable(&mut self, now: Nanos) -> Result<(), DriveError> {
        if let Some(memory) = self.shared.memory.get() {
            memory.clear();
        }
        self.shared.dma_running.store(true, Ordering::Release);
        self.backing
            .set_bus_master(true)
            .map_err(|source| DriveError::BusMaster { on: true, source })?;
        if self.shared.options.controller_memory {
            self.buffer = Buffer::find(&*self.backing, self.cap, self.shared.arena.region());
        }
        let memory = Arc::clone(&self.shared.admin);
        let admin = AdminQueue::new(memory, Arc::clone(&self.backing), self.cap);
        let (asq, acq) = admin.addresses();
        let aqa = Aqa::new()
            .with_asqs_z(ADMIN_ENTRIES - 1)
            .with_acqs_z(ADMIN_ENTRIES - 1);
        self.backing
            .write_u32(offset(Register::AQA), aqa.into_bits());
        self.backing.write_u64(offset(Register::ASQ), asq);
        self.backing.write_u64(offset(Register::ACQ), acq);
        self.admin = Some(admin);
        let mut cc = Cc::enabled_nvm();
        if !self.cap.css().nvm() {
            cc = cc.with_css(CommandSetSelected::ALL_SUPPORTED);
        }
        self.registers().set_cc(cc);
        let timeout = self.registers().ready_timeout(self.cap);
        self.wait(Step::WaitReady, now, timeout);
        Ok(())
    }

    fn admin(&mut self) -> &mut AdminQueue {
        self.admin
            .as_mut()
            .expect("made before the controller was enabled")
    }

    /// Takes the completion of a command if it has been posted.
    fn poll_completion(&mut self, command: Command, now: Nanos) -> Result<bool, DriveError> {
        match self.admin().poll() {
            Some(AdminEvent::Done(_, opcode, cqe)) => {
                let next = self.completed(command, opcode, &cqe)?;
                self.step = next.map_or(Step::Over, Step::Send);
                Ok(true)
            }
            Some(AdminEvent::Unknown(cid)) => Err(DriveError::UnknownAdminCompletion { cid }),
            None => match self.admin().overdue(now) {
                None => Ok(false),
                Some(_) if self.status()?.cfs() => Err(DriveError::Fatal),
                Some(error) => Err(error),
            },
        }
    }

    /// Derives the limits for the controller, and allocates its memory.
    fn derive_limits(&mut self) -> Result<(), DriveError> {
        let controller = self.found.controller.get_or_insert_default();
        let nvm = self.found.nvm.get_or_insert_default();
        let shared = &self.shared;
        let arena_bytes = shared.arena.max_transfer();
        let found = Limits::new(self.cap, controller, nvm, &shared.options, arena_bytes);
        let limits = match shared.identity.get() {
            Some(before) => {
                let now = ControllerInfo::new(controller);
                if before.controller.serial != now.serial || before.controller.model != now.model {
                    return Err(DriveError::DifferentDrive("the serial or model number"));
                }
                if !before.limits.can_run_on(&found) {
                    return Err(DriveError::DifferentDrive(
                        "the supported commands or limits",
                    ));
                }
                let shadow = before.limits.shadow && found.shadow;
                Limits {
                    shadow,
                    ..before.limits
                }
            }
            None => found,
        };
        if shared.memory.get().is_none() {
            let reactors = shared.options.reactors;
            let has_data_memory = self.buffer.as_ref().is_some_and(Buffer::holds_data);
            let memory = DriveMemory::new(&shared.arena, reactors, &limits, has_data_memory)?;
            // Only one start runs at a time, so nothing else sets it.
            let _ = shared.memory.set(memory);
        }
        self.found.limits = Some(limits);
        Ok(())
    }

    fn limits(&self) -> Limits {
        self.found
            .limits
            .expect("settled after Identify Controller")
    }

    fn memory(&self) -> &DriveMemory {
        self.shared
            .memory
            .get()
            .expect("taken after Identify Controller")
    }

    /// Room for submission queues in the controller memory buffer.
    fn room(&self) -> Option<CmbQueues> {
        let entries = usize::from(self.limits().slots) + 1;
        let reactors = self.shared.options.reactors;
        self.buffer.as_ref()?.room(entries, reactors)
    }

    /// Room for data in the controller memory buffer.
    fn data_memory(&self) -> Option<Arc<DeviceMemory>> {
        let part_bytes = self.limits().part_bytes as usize;
        let room = self.room();
        let buffer = self.buffer.as_ref()?;
        buffer.data(room.as_ref(), part_bytes, &*self.backing)
    }

    fn read_page(&mut self) -> Box<[u8; 4096]> {
        self.admin().memory().read(AdminPage::Step)
    }

    fn store_controller(&mut self) {
        self.found.controller = Some(Box::new(transmute!(*self.read_page())));
    }

    fn store_nvm_limits(&mut self) {
        self.found.nvm = Some(Box::new(transmute!(*self.read_page())));
    }

    fn store_namespace(&mut self, at: usize) {
        let page: Box<IdentifyNamespace> = Box::new(transmute!(*self.read_page()));
        let (limits, write_cache) = (self.limits(), self.found.write_cache);
        let namespace = Namespace::new(self.found.nsids[at], &page, &limits, write_cache);
        self.found.namespaces.push(namespace);
    }

    fn store_unusable(&mut self, at: usize, reason: Unusable) {
        let namespace = Namespace::unusable(self.found.nsids[at], reason);
        self.found.namespaces.push(namespace);
    }

    fn result(&mut self) -> StartupState {
        let admin = self.admin.take().expect("made before it was enabled");
        let controller = self.found.controller.get_or_insert_default();
        let identity = Identity {
            controller: ControllerInfo::new(controller),
            limits: self.limits(),
            namespaces: std::mem::take(&mut self.found.namespaces),
        };
        let data_memory = self.data_memory();
        let data_pages = match (&self.memory().data_pages, &data_memory) {
            (Some(buffer), Some(memory)) => DataPages::write(buffer, admin.dma_base(), memory),
            _ => None,
        };
        let drive_access = DriveAccess {
            backing: Arc::clone(&self.backing),
            cap: self.cap,
            dma_base: admin.dma_base(),
            room: self.room(),
            data_memory,
            data_pages,
            shadow: self.found.shadow,
        };
        StartupState::Ready(Box::new(Started {
            admin,
            identity,
            drive_access,
        }))
    }
}

/// Offset of a register for the backing.
pub(crate) fn offset(register: Register) -> usize {
    register.0 as usize
}

/// Checks that the driver supports the controller.
fn check(cap: Cap, backing: &dyn DeviceBacking, reactors: usize) -> Result<(), DriveError> {
    if !cap.css().nvm() && !cap.css().profiles() {
        return Err(DriveError::NoNvmCommandSet);
    }
    let bytes = cap.page_bytes_min();
    if bytes > 4096 {
        return Err(DriveError::PageSize { bytes });
    }
    if cap.mqes() < 3 {
        let entries = cap.mqes();
        return Err(DriveError::QueuesTooSmall { entries });
    }
    let len = backing.registers_len();
    // End of the doorbells: the offset of the first unused one.
    let needed = sq_tail_doorbell(cap, reactors as u16 + 1) as usize;
    if len < needed {
        return Err(DriveError::RegistersTooShort { len, needed });
    }
    Ok(())
}
