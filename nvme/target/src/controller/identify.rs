//! Identify (Base 2.1 §5.1.13, NVM 1.1 §4.1.5).

use block::{AtomicWrites, Deallocate};
use nvme_spec::ascii::SpacePadded;
use nvme_spec::command::{Cns, CommandSet, Sqe};
use nvme_spec::identify::{
    Anacap, Cdfs, Cmic, CommandSetCombinations, CommandSetVector, ControllerList, ControllerType,
    Ctratt, DeallocatedRead, DiscoveryControllerType, Dlfeat, EntrySizes, FlushBehavior, Frmw,
    Fuses, IDENTIFY_BYTES, IdentifyController, IdentifyNamespace, IndependentIdentifyNamespace,
    IndependentNsfeat, LbaFormat, Lpa, NamespaceId, NamespaceIdWriter, NamespaceList, Nmic, Nsattr,
    Nstat, NvmIdentifyController, NvmIdentifyNamespace, Oaes, Ofcs, Oncs, Rescap, SglSupport, Sgls,
    Vwc,
};
use nvme_spec::nqn::{DISCOVERY_NQN, to_field};
use nvme_spec::registers::{IOCQES_NVM, IOSQES_NVM};
use nvme_spec::sgl::SglDescriptor;
use nvme_spec::{NSID_BROADCAST, Status, U16, U32, U64, U128};
use zerocopy::{FromZeros, IntoBytes};

use super::events::EVENT_REQUESTS_MAX;
use super::property::VERSION;
use super::{AdminContext, Controller, ControllerKind, KEEP_ALIVE_GRANULARITY_100MS};
use crate::admin::{AdminStep, AdminWork, admin_work};
use crate::ana::{self, ANA_GROUPS_MAX};
use crate::config::{ADMIN_QUEUE_DEPTH_MAX, NAMESPACE_ID_MAX, NamespaceConfig, TransportKind};
use crate::error_log::ERROR_LOG_ENTRIES;
use crate::interface::{Direction, KEYED_BLOCKS_MAX};
use crate::io::{
    COMPARE_WRITE_BLOCKS_MAX, COPY_RANGES_MAX, DataContext, WRITE_ZEROES_BYTES_MAX, namespace,
};
use crate::shared::ControllerIdentity;
use crate::status::{Fault, byte};
use crate::target::PAGE_BYTES;
use crate::view::{NamespaceView, QUIESCE_TIME_MAX, SubsystemView, is_valid_nsid};

/// Warning and critical composite temperature in kelvin (Base 2.1 §5.1.13.2.1, WCTEMP: its
/// recommended value, and 10 K more).
pub(crate) const WARNING_TEMPERATURE_KELVIN: u16 = 343;
const CRITICAL_TEMPERATURE_KELVIN: u16 = 353;

/// Abort Command Limit, zero-based.
pub(crate) const ABORT_LIMIT_Z: u8 = 3;

/// Command Quiesce Time in milliseconds (Base 2.1 §5.1.13.2.1, CQT).
const COMMAND_QUIESCE_TIME_MS: u16 = QUIESCE_TIME_MAX.as_millis() as u16;

const _: () = assert!(QUIESCE_TIME_MAX.as_millis() <= u16::MAX as u64);

/// The structure that a valid Identify command selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IdentifyStructure {
    Controller,
    Namespace(u32),
    ActiveNamespaces { after: u32 },
    Descriptors(u32),
    NvmNamespace(u32),
    NvmController,
    OtherController,
    IndependentNamespace(u32),
    Controllers { from: u16, nsid: Option<u32> },
    CommandSets,
}

impl Controller {
    /// Checks Identify and returns the work of moving its data.
    pub(crate) fn identify(
        &self,
        sqe: &Sqe,
        data: DataContext,
        context: &AdminContext<'_>,
    ) -> Result<AdminStep, Fault> {
        self.structure(sqe, context)?;
        // Every structure has 4096 bytes, so the cast is lossless.
        admin_work(sqe, Direction::ToHost, IDENTIFY_BYTES as u32, data).map(AdminStep::Work)
    }

    /// The structure that the command selects. An unknown one is Invalid Field (Base 2.1
    /// §5.1.13.1).
    fn structure(&self, sqe: &Sqe, context: &AdminContext<'_>) -> Result<IdentifyStructure, Fault> {
        let command = sqe.identify();
        let nsid = sqe.nsid.get();
        if command.uuid.uuid_index() != 0 {
            return Err(Fault::field(byte::CDW14));
        }
        let cns = command.select.cns();
        if self.kind == ControllerKind::Discovery {
            // Base 2.1 §3.1.3.3: a discovery controller supports only Identify Controller.
            return match cns {
                Cns::CONTROLLER => Ok(IdentifyStructure::Controller),
                _ => Err(Fault::field(byte::CDW10)),
            };
        }
        let no_namespace = Fault::new(Status::INVALID_NAMESPACE_OR_FORMAT).at(byte::NSID);
        let subsystem = self.subsystem(context.view).ok_or(no_namespace)?;
        let csi = command.qualifier.csi();
        match cns {
            Cns::CONTROLLER => Ok(IdentifyStructure::Controller),
            // Base 2.1 §5.1.13, CNS 00h: the structure of an inactive namespace is zero.
            Cns::NAMESPACE if is_valid_nsid(nsid) => Ok(IdentifyStructure::Namespace(nsid)),
            Cns::NAMESPACE => Err(no_namespace),
            Cns::ACTIVE_NAMESPACE_LIST => active_list(nsid),
            Cns::NAMESPACE_DESCRIPTORS => {
                namespace(subsystem, nsid).map(|_| IdentifyStructure::Descriptors(nsid))
            }
            Cns::IO_NAMESPACE => {
                check_set(csi)?;
                if is_valid_nsid(nsid) {
                    Ok(IdentifyStructure::NvmNamespace(nsid))
                } else {
                    Err(no_namespace)
                }
            }
            // NVM 1.1 §4.1.5.4. The structure of an unsupported command set is zero (Base 2.1
            // §5.1.13, CNS 06h).
            Cns::IO_CONTROLLER if csi == CommandSet::NVM => Ok(IdentifyStructure::NvmController),
            Cns::IO_CONTROLLER => Ok(IdentifyStructure::OtherController),
            Cns::IO_ACTIVE_NAMESPACE_LIST => {
                check_set(csi)?;
                active_list(nsid)
            }
            Cns::INDEPENDENT_NAMESPACE if is_valid_nsid(nsid) => {
                Ok(IdentifyStructure::IndependentNamespace(nsid))
            }
            Cns::INDEPENDENT_NAMESPACE => Err(no_namespace),
            // Base 2.1 §5.1.13, CNS 12h: a namespace is attached to the controllers whose hosts see
            // it.
            Cns::NAMESPACE_CONTROLLER_LIST => {
                let from = command.select.cntid();
                namespace(subsystem, nsid).map(|_| IdentifyStructure::Controllers {
                    from,
                    nsid: Some(nsid),
                })
            }
            Cns::CONTROLLER_LIST => Ok(IdentifyStructure::Controllers {
                from: command.select.cntid(),
                nsid: None,
            }),
            Cns::IO_COMMAND_SETS => Ok(IdentifyStructure::CommandSets),
            _ => Err(Fault::field(byte::CDW10)),
        }
    }

    /// Writes the selected structure. Checks the command again, because the configuration may have
    /// changed since its admission.
    pub(crate) fn write_identify(
        &self,
        work: &AdminWork,
        data: &mut [u8],
        context: &AdminContext<'_>,
    ) -> Result<(), Fault> {
        let structure = self.structure(&work.sqe(), context)?;
        let data = data
            .first_chunk_mut::<IDENTIFY_BYTES>()
            .ok_or(Fault::field(byte::SGL))?;
        data.fill(0);
        let subsystem = self.subsystem(context.view);
        match structure {
            IdentifyStructure::Controller => {
                data.copy_from_slice(self.controller_page(context).as_bytes());
            }
            IdentifyStructure::Namespace(nsid) => {
                with_namespace(subsystem, nsid, |config, view| {
                    let mut page =
                        namespace_page(config, view, reservation_capabilities(view, context));
                    let state = subsystem.map(|it| it.ana_state(self.port, config.ana_group));
                    if state.is_some_and(|it| !it.is_accessible()) {
                        // Not NSZE and NCAP, by which hosts recognize namespaces that do not exist.
                        page.nuse = U64::ZERO;
                    }
                    data.copy_from_slice(page.as_bytes());
                });
            }
            IdentifyStructure::NvmNamespace(nsid) => with_namespace(subsystem, nsid, |_, _| {
                data.copy_from_slice(NvmIdentifyNamespace::new_zeroed().as_bytes());
            }),
            IdentifyStructure::IndependentNamespace(nsid) => {
                with_namespace(subsystem, nsid, |config, view| {
                    let page =
                        independent_page(config, view, reservation_capabilities(view, context));
                    data.copy_from_slice(page.as_bytes());
                });
            }
            IdentifyStructure::ActiveNamespaces { after } => {
                let mut list = NamespaceList::new_zeroed();
                list.fill(
                    subsystem
                        .into_iter()
                        .flat_map(|view| view.active_after(after)),
                );
                data.copy_from_slice(list.as_bytes());
            }
            IdentifyStructure::Descriptors(nsid) => with_namespace(subsystem, nsid, |config, _| {
                write_descriptors(config, data);
            }),
            IdentifyStructure::NvmController => {
                data.copy_from_slice(nvm_controller_page(context).as_bytes());
            }
            IdentifyStructure::OtherController => {}
            IdentifyStructure::Controllers { from, nsid } => {
                data.copy_from_slice(self.controller_list(from, nsid, context).as_bytes());
            }
            IdentifyStructure::CommandSets => {
                let mut sets = CommandSetCombinations::new_zeroed();
                sets.vectors[0] = CommandSetVector::default().with(CommandSet::NVM);
                data.copy_from_slice(sets.as_bytes());
            }
        }
        Ok(())
    }

    /// Controllers of the subsystem from an identifier on, of a namespace only those to which it is
    /// attached (Base 2.1 §5.1.13, CNS 12h and 13h).
    fn controller_list(
        &self,
        from: u16,
        nsid: Option<u32>,
        context: &AdminContext<'_>,
    ) -> ControllerList {
        let view = context.view.subsystem(self.shared.identity.subsystem);
        let is_attached = |identity: &&ControllerIdentity| {
            nsid.is_none_or(|nsid| {
                let seen = view.map(|it| it.seen_by_host(&identity.host_nqn));
                seen.is_some_and(|it| it.namespace(nsid).is_some())
            })
        };
        let registry = context.target.registry();
        let subsystem = self.shared.identity.subsystem;
        let of_subsystem = registry.entries().map(|entry| &entry.shared.identity);
        let of_subsystem = of_subsystem
            .filter(|identity| identity.subsystem == subsystem)
            .filter(is_attached);
        let mut list = ControllerList::new_zeroed();
        list.fill(
            of_subsystem
                .map(|identity| identity.cntlid)
                .filter(|cntlid| *cntlid >= from),
        );
        list
    }

    /// Identify Controller (Base 2.1 §5.1.13.2.1).
    fn controller_page(&self, context: &AdminContext<'_>) -> IdentifyController {
        let mut page = IdentifyController::new_zeroed();
        page.cntlid = U16::new(self.shared.identity.cntlid);
        page.ver = U32::new(VERSION.into_bits());
        page.aerl_z = (EVENT_REQUESTS_MAX - 1) as u8;
        page.acl_z = ABORT_LIMIT_Z;
        page.elpe_z = (ERROR_LOG_ENTRIES - 1) as u8;
        page.mdts = transfer_max_pages(context).ilog2() as u8;
        page.kas = U16::new(KEEP_ALIVE_GRANULARITY_100MS);
        page.ctratt = Ctratt::new().with_hids(true).with_tbkas(true);
        page.lpa = Lpa::new()
            .with_extended_data(true)
            .with_supported_logs(true);
        page.sgls = self.sgl_support();
        page.msdbd = self.sgl_descriptors_max();
        page.set_in_capsule_data_bytes(self.in_capsule_max);
        page.iorcsz = U32::new(1);
        page.ofcs = Ofcs::new().with_disconnect(true);
        match self.kind {
            ControllerKind::Discovery => fill_discovery(&mut page),
            ControllerKind::Io => {
                if let Some(subsystem) = self.subsystem(context.view) {
                    fill_io(&mut page, subsystem);
                    page.cqt = U16::new(COMMAND_QUIESCE_TIME_MS);
                    page.maxcmd = U16::new(self.shared.identity.queue_depth_max);
                }
            }
        }
        page
    }

    /// Base 2.1 §5.1.13.2.1, MSDBD: data block descriptors of one command. Several of them have to
    /// be in a segment in the capsule, and only keyed ones are supported.
    fn sgl_descriptors_max(&self) -> u8 {
        let segment = KEYED_BLOCKS_MAX * size_of::<SglDescriptor>();
        match self.transport {
            TransportKind::Rdma if self.in_capsule_max as usize >= segment => {
                KEYED_BLOCKS_MAX as u8
            }
            TransportKind::Rdma | TransportKind::Tcp => 1,
        }
    }

    /// Base 2.1 §5.1.13.2.1, SGLS: the SGLs that the transport supports.
    fn sgl_support(&self) -> Sgls {
        let sgls = Sgls::new()
            .with_support(SglSupport::ANY_ALIGNMENT)
            .with_offset(true);
        match self.transport {
            TransportKind::Tcp => sgls.with_transport(true),
            TransportKind::Rdma => sgls.with_keyed(true),
        }
    }
}

/// Base 2.1 §5.1.13, CNS 02h: lists identifiers above the given one. The two highest values are
/// invalid.
fn active_list(nsid: u32) -> Result<IdentifyStructure, Fault> {
    if nsid >= NSID_BROADCAST - 1 {
        return Err(Fault::new(Status::INVALID_NAMESPACE_OR_FORMAT).at(byte::NSID));
    }
    Ok(IdentifyStructure::ActiveNamespaces { after: nsid })
}

/// Base 2.1 §5.1.13, CNS 05h: an unsupported command set is Invalid Field.
fn check_set(csi: CommandSet) -> Result<(), Fault> {
    if csi == CommandSet::NVM {
        Ok(())
    } else {
        Err(Fault::field(byte::CDW11))
    }
}

/// Runs `write` for an active namespace.
fn with_namespace(
    subsystem: Option<&SubsystemView>,
    nsid: u32,
    write: impl FnOnce(&NamespaceConfig, &NamespaceView),
) {
    let Some(subsystem) = subsystem else { return };
    if let (Some(config), Some(view)) =
        (subsystem.namespace_config(nsid), subsystem.namespace(nsid))
    {
        write(config, view);
    }
}

/// Fills the fields specific to a discovery controller.
fn fill_discovery(page: &mut IdentifyController) {
    page.sn = SpacePadded::new("discovery");
    page.mn = SpacePadded::new("Windlass discovery");
    page.fr = SpacePadded::new(env!("CARGO_PKG_VERSION"));
    page.cntrltype = ControllerType::DISCOVERY;
    page.dctype = DiscoveryControllerType::DIRECT;
    page.oaes = Oaes::new().with_discovery_log(true);
    page.maxcmd = U16::new(ADMIN_QUEUE_DEPTH_MAX);
    page.subnqn = to_field(DISCOVERY_NQN).unwrap_or_default();
}

/// Fills the fields specific to an I/O controller.
fn fill_io(page: &mut IdentifyController, subsystem: &SubsystemView) {
    let config = &subsystem.config;
    page.sn = SpacePadded::new(&config.serial);
    page.mn = SpacePadded::new(&config.model);
    page.fr = SpacePadded::new(&config.firmware);
    // Recommended Arbitration Burst 2^6: the usual number of commands in a queue.
    page.rab = 6;
    page.cmic = Cmic::new()
        .with_multiple_controllers(true)
        // Listeners may be added later, and hosts read this only when they connect.
        .with_multiple_ports(true)
        // Always, because an operator can change a state at any time, and hosts read this only when
        // they connect.
        .with_ana_reporting(true);
    page.oaes = Oaes::new()
        .with_namespace_attribute(true)
        .with_ana_change(true);
    page.anatt = ana::TRANSITION_SECONDS;
    page.anacap = Anacap::new()
        .with_optimized(true)
        .with_non_optimized(true)
        .with_inaccessible(true)
        .with_persistent_loss(true)
        .with_change(true);
    page.anagrpmax = U32::new(ANA_GROUPS_MAX);
    page.nanagrpid = U32::new(ANA_GROUPS_MAX);
    page.cntrltype = ControllerType::IO;
    page.frmw = Frmw::new().with_first_slot_read_only(true).with_slots(1);
    page.lpa = page.lpa.with_commands_effects(true);
    page.wctemp = U16::new(WARNING_TEMPERATURE_KELVIN);
    page.cctemp = U16::new(CRITICAL_TEMPERATURE_KELVIN);
    page.sqes = EntrySizes::new().with_min(IOSQES_NVM).with_max(IOSQES_NVM);
    page.cqes = EntrySizes::new().with_min(IOCQES_NVM).with_max(IOCQES_NVM);
    // Base 2.1 §5.1.13.2.1, NN and MNAN: the largest identifier that a namespace can ever have.
    // Hosts size tables by NN when they connect, so it does not depend on the current namespaces.
    page.nn = U32::new(NAMESPACE_ID_MAX);
    page.mnan = U32::new(NAMESPACE_ID_MAX);
    page.oncs = Oncs::new()
        .with_compare(true)
        .with_verify(true)
        .with_dataset_management(true)
        .with_write_zeroes(true)
        .with_save_select(true)
        .with_reservations(true)
        .with_timestamp(true)
        // NVM 1.1 §3.3.2.2: the data of all source ranges is written by one device request.
        .with_copy(true)
        .with_copy_single_atomicity(true);
    // The other formats are for namespaces with protection information or without blocks.
    page.cdfs = Cdfs::new().with_format_0(true).with_format_2(true);
    page.fuses = Fuses::new().with_compare_and_write(true);
    page.acwu_z = U16::new((COMPARE_WRITE_BLOCKS_MAX - 1) as u16);
    // Base 2.1 §5.1.13.2.1, VWC: always present. A namespace with a volatile cache may be added
    // later, and hosts read this field only when they connect. Namespaces without one set VWCNP.
    page.vwc = Vwc::new()
        .with_present(true)
        .with_flush(FlushBehavior::BROADCAST_SUPPORTED);
    page.subnqn = to_field(&config.nqn).unwrap_or_default();
}

/// Identify Namespace (NVM 1.1 §4.1.5.1).
fn namespace_page(
    config: &NamespaceConfig,
    view: &NamespaceView,
    rescap: Rescap,
) -> IdentifyNamespace {
    let geometry = &config.geometry;
    let mut page = IdentifyNamespace::new_zeroed();
    let blocks = U64::new(geometry.block_count);
    (page.nsze, page.ncap, page.nuse) = (blocks, blocks, blocks);
    page.nvmcap = U128::new(u128::from(geometry.bytes()));
    page.nmic = Nmic::new().with_shared(true);
    page.rescap = rescap;
    page.nsattr = Nsattr::new().with_write_protected(view.read_only);
    page.dlfeat = Dlfeat::new()
        .with_read(match geometry.deallocate {
            Deallocate::ReadsZero => DeallocatedRead::ZEROES,
            Deallocate::Unsupported | Deallocate::Unspecified => DeallocatedRead::NOT_REPORTED,
        })
        .with_write_zeroes_deallocate(geometry.deallocate != Deallocate::Unsupported);
    // Each fits: at most COPY_BYTES_MAX in blocks of 512 bytes or more.
    page.mssrl = U16::new(view.copy_max_blocks as u16);
    page.mcl = U32::new(view.copy_max_blocks);
    page.msrc_z = (COPY_RANGES_MAX - 1) as u8;
    page.lbaf[0] = LbaFormat::with_block_bytes(geometry.block_size).unwrap_or_default();
    page.anagrpid = U32::new(config.ana_group);
    page.nguid = config.nguid;
    page.eui64 = config.eui64;
    fill_atomic_writes(&mut page, geometry.atomic);
    let optimal = geometry.optimal_io_blocks;
    if let Some(optimal_z) = nvme_spec::zero_based_u16(optimal).filter(|_| optimal > 1) {
        // Bit 0 of OPTPERF: NPWG, NPWA, NPDG, NPDA and NOWS are valid.
        page.nsfeat = page.nsfeat.with_optperf(1);
        let optimal_z = U16::new(optimal_z);
        page.npwg_z = optimal_z;
        page.npwa_z = optimal_z;
        page.npdg_z = optimal_z;
        page.npda_z = optimal_z;
        page.nows_z = optimal_z;
    }
    page
}

/// Atomic writes of more than a block (NVM 1.1 §4.1.5.1, NSABP). Single blocks are what AWUN and
/// AWUPF of the controller report.
fn fill_atomic_writes(page: &mut IdentifyNamespace, atomic: AtomicWrites) {
    if atomic == AtomicWrites::BLOCK {
        return;
    }
    // The device's values are of 16 bits.
    let zero_based = |blocks: u32| U16::new(blocks.saturating_sub(1) as u16);
    page.nsfeat = page.nsfeat.with_nsabp(true);
    page.nawun_z = zero_based(atomic.normal_blocks);
    page.nawupf_z = zero_based(atomic.power_failure_blocks);
    page.nabsn_z = zero_based(atomic.normal_boundary_blocks);
    page.nabspf_z = zero_based(atomic.power_failure_boundary_blocks);
    page.nabo = U16::new(atomic.boundary_offset_blocks as u16);
}

/// The I/O command set independent part of Identify Namespace (Base 2.1 §5.1.13, CNS 08h).
fn independent_page(
    config: &NamespaceConfig,
    view: &NamespaceView,
    rescap: Rescap,
) -> IndependentIdentifyNamespace {
    let mut page = IndependentIdentifyNamespace::new_zeroed();
    page.nsfeat = IndependentNsfeat::new().with_vwcnp(!view.volatile);
    page.nmic = Nmic::new().with_shared(true);
    page.rescap = rescap;
    page.nsattr = Nsattr::new().with_write_protected(view.read_only);
    page.nstat = Nstat::new().with_nrdy(true);
    page.anagrpid = U32::new(config.ana_group);
    page
}

/// RESCAP of a namespace (NVM 1.1 §4.1.5.1, Base 2.1 §5.1.13.2.8).
fn reservation_capabilities(view: &NamespaceView, context: &AdminContext<'_>) -> Rescap {
    if !view.reservations {
        return Rescap::new();
    }
    let mut registry = context.target.registry();
    let (reservations, _) = registry.reservations();
    Rescap::new()
        .with_ptpl(reservations.can_persist(view.device))
        .with_write_exclusive(true)
        .with_exclusive_access(true)
        .with_write_exclusive_registrants(true)
        .with_exclusive_access_registrants(true)
        .with_write_exclusive_all(true)
        .with_exclusive_access_all(true)
        .with_iekey(true)
}

/// The largest transfer in the unit of MDTS and VSL.
fn transfer_max_pages(context: &AdminContext<'_>) -> u32 {
    context.target.transfer_max_bytes() / PAGE_BYTES
}

/// The NVM command set's part of Identify Controller (NVM 1.1 §4.1.5.4).
fn nvm_controller_page(context: &AdminContext<'_>) -> NvmIdentifyController {
    let mut page = NvmIdentifyController::new_zeroed();
    page.vsl = transfer_max_pages(context).ilog2() as u8;
    page.wzsl = (WRITE_ZEROES_BYTES_MAX / u64::from(PAGE_BYTES)).ilog2() as u8;
    page
}

/// Namespace identification descriptors (Base 2.1 §5.1.13, CNS 03h): every configured identifier,
/// and the command set, because CAP.CSS bit 6 is set.
fn write_descriptors(config: &NamespaceConfig, data: &mut [u8; IDENTIFY_BYTES]) {
    let mut writer = NamespaceIdWriter::new(data);
    let identifiers = [
        (config.uuid != [0; 16]).then_some(NamespaceId::Uuid(config.uuid)),
        (config.nguid != [0; 16]).then_some(NamespaceId::Nguid(config.nguid)),
        (config.eui64 != [0; 8]).then_some(NamespaceId::Eui64(config.eui64)),
        Some(NamespaceId::CommandSet(CommandSet::NVM)),
    ];
    for identifier in identifiers.iter().flatten() {
        // Four descriptors of at most 20 bytes fit into 4096.
        let written = writer.push(identifier);
        debug_assert!(written.is_ok());
    }
}
