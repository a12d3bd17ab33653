//! Identify (Base 2.1 §5.1.13, NVM 1.1 §4.1.5).

use nvme_spec::ascii::SpacePadded;
use nvme_spec::command::{Cns, CommandSet, Sqe};
use nvme_spec::identify::{
    Cdfs, CommandSetCombinations, CommandSetVector, ControllerType, EntrySizes, Flbas,
    FlushBehavior, Frmw, IDENTIFY_BYTES, IdentifyController, IdentifyNamespace,
    IndependentIdentifyNamespace, LbaFormat, Lpa, NamespaceId, NamespaceIdWriter, NamespaceList,
    NvmIdentifyController, NvmIdentifyNamespace, Oacs, Oaes, Oncs, SglSupport, Sgls, Vwc,
};
use nvme_spec::registers::{IOCQES_NVM, IOSQES_NVM, Version};
use nvme_spec::{NSID_BROADCAST, Status, U16, U32, U64, U128};
use zerocopy::IntoBytes;

use super::bus::Bus;
use super::logs::ERROR_ENTRIES;
use super::namespaces::Namespace;
use super::options::{CopyAcross, SglRules, ShadowDoorbells};
use super::state::{Outcome, State};

/// Maximum number of Abort commands in flight, zero-based.
const ABORT_LIMIT_Z: u8 = 3;

impl State {
    pub(super) fn identify(&mut self, bus: &Bus, sqe: &Sqe) -> Outcome {
        let mut page = [0; IDENTIFY_BYTES];
        match self.identify_page(sqe, &mut page) {
            Ok(()) => self.send_admin(bus, sqe, &page, IDENTIFY_BYTES).into(),
            Err(status) => status.into(),
        }
    }

    fn identify_page(&self, sqe: &Sqe, page: &mut [u8; IDENTIFY_BYTES]) -> Result<(), Status> {
        const NAMESPACE: Status = Status::INVALID_NAMESPACE_OR_FORMAT.with_dnr();
        const FIELD: Status = Status::INVALID_FIELD.with_dnr();
        let command = sqe.identify();
        let nsid = sqe.nsid.get();
        let is_nvm = command.qualifier.csi() == CommandSet::NVM;
        // The structures of I/O command sets exist since NVM Express 2.0.
        let has_sets = self.options.version >= Version::V2_0;
        match command.select.cns() {
            Cns::CONTROLLER => page.copy_from_slice(self.controller().as_bytes()),
            Cns::NAMESPACE => {
                if nsid == 0 || nsid > self.nsid_max() {
                    return Err(NAMESPACE);
                }
                if let Some(namespace) = self.active(nsid) {
                    page.copy_from_slice(self.namespace(namespace).as_bytes());
                }
            }
            Cns::ACTIVE_NAMESPACE_LIST => self.list(nsid, page)?,
            Cns::IO_ACTIVE_NAMESPACE_LIST if has_sets && is_nvm => self.list(nsid, page)?,
            Cns::NAMESPACE_DESCRIPTORS => {
                let namespace = self.active(nsid).ok_or(NAMESPACE)?;
                descriptors(namespace, has_sets, page);
            }
            Cns::IO_NAMESPACE if has_sets && is_nvm => {
                self.active(nsid).ok_or(NAMESPACE)?;
                page.copy_from_slice(NvmIdentifyNamespace::default().as_bytes());
            }
            Cns::IO_CONTROLLER if has_sets && is_nvm => {
                let mut nvm = NvmIdentifyController::default();
                nvm.wzsl = self.options.write_zeroes_code;
                page.copy_from_slice(nvm.as_bytes());
            }
            Cns::INDEPENDENT_NAMESPACE if has_sets => {
                let namespace = self.active(nsid).ok_or(NAMESPACE)?;
                let mut found = IndependentIdentifyNamespace::default();
                found.nstat.set_nrdy(true);
                found.nsattr.set_write_protected(namespace.write_protected);
                page.copy_from_slice(found.as_bytes());
            }
            Cns::IO_COMMAND_SETS if has_sets => {
                let mut sets = CommandSetCombinations::default();
                sets.vectors[0] = CommandSetVector::default().with(CommandSet::NVM);
                page.copy_from_slice(sets.as_bytes());
            }
            _ => return Err(FIELD),
        }
        Ok(())
    }

    /// Lists active identifiers above `nsid` (Base 2.1 §5.1.13.2.2).
    fn list(&self, nsid: u32, page: &mut [u8; IDENTIFY_BYTES]) -> Result<(), Status> {
        if nsid >= NSID_BROADCAST - 1 {
            return Err(Status::INVALID_NAMESPACE_OR_FORMAT.with_dnr());
        }
        let active = self.namespaces.iter().filter(|found| found.attached);
        let mut list = NamespaceList::default();
        list.fill(active.map(Namespace::nsid).filter(|found| *found > nsid));
        page.copy_from_slice(list.as_bytes());
        Ok(())
    }

    fn controller(&self) -> IdentifyController {
        let options = &self.options;
        let mut page = IdentifyController::default();
        page.vid = U16::new(0x1d0f);
        page.ssvid = U16::new(0x1d0f);
        page.sn = SpacePadded::new(&options.serial);
        page.mn = SpacePadded::new(&options.model);
        page.fr = SpacePadded::new(&options.firmware);
        page.mdts = options.transfer_code;
        page.cntlid = U16::new(1);
        page.ver = U32::new(options.version.into_bits());
        page.cntrltype = ControllerType::IO;
        page.acl_z = ABORT_LIMIT_Z;
        page.aerl_z = (options.event_requests_max - 1) as u8;
        page.elpe_z = (ERROR_ENTRIES - 1) as u8;
        page.wctemp = U16::new(343);
        page.cctemp = U16::new(353);
        page.nn = U32::new(self.nsid_max());
        page.awun_z = U16::new(options.atomic_blocks - 1);
        page.awupf_z = U16::new(options.atomic_blocks - 1);
        page.oaes = Oaes::new().with_namespace_attribute(true);
        page.oacs = Oacs::new()
            .with_doorbell_buffer(options.shadow_doorbells != ShadowDoorbells::Unsupported);
        page.frmw = Frmw::new().with_slots(1);
        page.lpa = Lpa::new().with_extended_data(true);
        page.sqes = EntrySizes::new().with_min(IOSQES_NVM).with_max(IOSQES_NVM);
        page.cqes = EntrySizes::new().with_min(IOCQES_NVM).with_max(IOCQES_NVM);
        page.oncs = Oncs::new()
            .with_compare(options.optional_commands)
            .with_dataset_management(options.optional_commands)
            .with_write_zeroes(options.optional_commands)
            .with_copy(options.copy.is_some())
            .with_copy_single_atomicity(options.copy.is_some_and(|it| it.single_atomicity));
        let across = options.copy.map(|it| it.across).unwrap_or_default();
        page.cdfs = Cdfs::new()
            .with_format_0(options.copy.is_some())
            .with_format_2(across != CopyAcross::Unsupported);
        page.vwc = Vwc::new()
            .with_present(options.write_cache)
            .with_flush(FlushBehavior::BROADCAST_SUPPORTED);
        page.sgls = Sgls::new().with_support(match options.sgl {
            SglRules::Unsupported => SglSupport::NONE,
            SglRules::Any => SglSupport::ANY_ALIGNMENT,
            SglRules::Dword => SglSupport::DWORD,
        });
        page
    }

    fn namespace(&self, namespace: &Namespace) -> IdentifyNamespace {
        let config = &namespace.config;
        let blocks = U64::new(namespace.block_count);
        let mut page = IdentifyNamespace::default();
        page.nsze = blocks;
        page.ncap = blocks;
        page.nuse = blocks;
        page.nguid = config.nguid;
        page.eui64 = config.eui64;
        page.nvmcap = U128::new(u128::from(namespace.block_count) * u128::from(config.block_size));
        // Two formats, of which the second is in use, to detect a driver that takes the first.
        page.nlbaf_z = 1;
        page.lbaf[0] = LbaFormat::with_block_bytes(16384).unwrap_or_default();
        page.lbaf[1] = LbaFormat {
            ms: U16::new(config.metadata_bytes),
            lbads: config.block_size.trailing_zeros() as u8,
            ..LbaFormat::default()
        };
        page.flbas = Flbas::new()
            .with_index_low(1)
            .with_metadata_extended(config.metadata_bytes > 0);
        if let Some(copy) = self.options.copy {
            page.mssrl = U16::new(copy.range_blocks_max);
            page.mcl = U32::new(copy.blocks_max);
            page.msrc_z = copy.ranges_max_z;
        }
        page.nsattr.set_write_protected(namespace.write_protected);
        page.dlfeat.set_read(config.deallocated);
        page.dlfeat
            .set_write_zeroes_deallocate(self.options.optional_commands);
        page
    }
}

fn descriptors(namespace: &Namespace, has_sets: bool, page: &mut [u8; IDENTIFY_BYTES]) {
    let config = &namespace.config;
    let mut writer = NamespaceIdWriter::new(page);
    let ids = [
        (config.eui64 != [0; 8]).then_some(NamespaceId::Eui64(config.eui64)),
        (config.nguid != [0; 16]).then_some(NamespaceId::Nguid(config.nguid)),
        (config.uuid != [0; 16]).then_some(NamespaceId::Uuid(config.uuid)),
        has_sets.then_some(NamespaceId::CommandSet(CommandSet::NVM)),
    ];
    for id in ids.into_iter().flatten() {
        // A page has room for far more than four descriptors.
        let _ = writer.push(&id);
    }
}
