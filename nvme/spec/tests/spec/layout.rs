//! Checks the position of each field against the byte offsets that the specifications publish.

use core::mem::offset_of;

use nvme_spec::command::reservation::{
    RegisteredController, RegisteredControllerExtended, ReservationStatusExtendedHeader,
    ReservationStatusHeader,
};
use nvme_spec::command::*;
use nvme_spec::fabrics::*;
use nvme_spec::features::{HostBehavior, Timestamp};
use nvme_spec::identify::*;
use nvme_spec::log::*;
use nvme_spec::rdma::{ConnectAccept, ConnectReject, ConnectRequest};
use nvme_spec::tcp::*;
use nvme_spec::{Cqe, Sqe};

macro_rules! offsets {
    ($($test:ident: $type:ty { $($field:ident $offset:literal,)* })*) => {$(
        #[test]
        fn $test() {
            $(assert_eq!(offset_of!($type, $field), $offset, stringify!($field));)*
        }
    )*};
}

/// Byte 0 of a view is byte 40 of the command; views cover bytes 40 to 63.
const SPECIFIC: usize = offset_of!(Sqe, specific);

macro_rules! view_offsets {
    ($($test:ident: $type:ty { $($field:ident $offset:literal,)* })*) => {$(
        #[test]
        fn $test() {
            $(assert_eq!(SPECIFIC + offset_of!($type, $field), $offset, stringify!($field));)*
        }
    )*};
}

// Base 2.1 §4.1.1 and §4.2.1.
offsets! {
    sqe: Sqe {
        opcode 0, flags 1, cid 2, nsid 4, cdw2 8, cdw3 12, mptr 16, dptr 24, specific 40,
    }
    command_dwords: CommandDwords {
        cdw10 0, cdw11 4, cdw12 8, cdw13 12, cdw14 16, cdw15 20,
    }
    cqe: Cqe { dw0 0, dw1 4, sqhd 8, sqid 10, cid 12, status 14, }
    dataset_range: DatasetRange { context 0, length 4, slba 8, }
    copy_range: CopyRange {
        snsid 0, slba 8, parameters 16, cev 20, options 22, reference_tag 24, application_tag 28,
        application_tag_mask 30,
    }
}

// Base 2.1 §5 and §6, NVM 1.1 §3.3: positions in the 64-byte command.
view_offsets! {
    read_write: ReadWrite {
        slba 40, control 48, dsm 52, reference_tag 56, application_tag 60, application_tag_mask 62,
    }
    write_zeroes: WriteZeroes {
        slba 40, control 48, reference_tag 56, application_tag 60, application_tag_mask 62,
    }
    dataset_management: DatasetManagement { count 40, attributes 44, }
    copy: CopyCommand {
        sdlba 40, control 48, extension 52, reference_tag 56, application_tag 60,
        application_tag_mask 62,
    }
    identify: Identify { select 40, qualifier 44, uuid 56, }
    get_features: GetFeatures { select 40, cdw11 44, uuid 56, }
    set_features: SetFeatures { select 40, cdw11 44, cdw12 48, cdw13 52, uuid 56, cdw15 60, }
    get_log_page: GetLogPage { select 40, lpo 48, qualifier 56, }
    abort: Abort { sqid 40, cid 42, }
    create_io_cq: CreateIoCq { qid 40, qsize_z 42, control 44, }
    create_io_sq: CreateIoSq { qid 40, qsize_z 42, control 44, nvmsetid 48, }
    connect: Connect { recfmt 40, qid 42, sqsize_z 44, cattr 46, kato 48, }
    property: Property { attrib 40, offset 44, value 48, }
    disconnect: Disconnect { recfmt 40, }
    authentication: Authentication { spsp0 41, spsp1 42, secp 43, length 44, }
}

offsets! {
    connect_data: ConnectData { hostid 0, cntlid 16, subnqn 256, hostnqn 512, }
}

// TCP 1.1 §3.6.2.
offsets! {
    common_header: CommonHeader { pdu_type 0, flags 1, hlen 2, pdo 3, plen 4, }
    ic_req: IcReq { ch 0, pfv 8, hpda_z 10, dgst 11, maxr2t_z 12, }
    ic_resp: IcResp { ch 0, pfv 8, cpda_z 10, dgst 11, maxh2cdata 12, }
    term_req: TermReq { ch 0, fes 8, fei 10, }
    capsule_cmd: CapsuleCmd { ch 0, sqe 8, }
    capsule_resp: CapsuleResp { ch 0, cqe 8, }
    h2c_data: H2cData { ch 0, cccid 8, ttag 10, datao 12, datal 16, }
    c2h_data: C2hData { ch 0, cccid 8, datao 12, datal 16, }
    r2t: R2t { ch 0, cccid 8, ttag 10, r2to 12, r2tl 16, }
}

#[test]
fn fault_offsets_point_at_the_fields() {
    assert_eq!(
        offset::PDU_TYPE as usize,
        offset_of!(CommonHeader, pdu_type)
    );
    assert_eq!(offset::FLAGS as usize, offset_of!(CommonHeader, flags));
    assert_eq!(offset::HLEN as usize, offset_of!(CommonHeader, hlen));
    assert_eq!(offset::PDO as usize, offset_of!(CommonHeader, pdo));
    assert_eq!(offset::PLEN as usize, offset_of!(CommonHeader, plen));
    assert_eq!(offset::PFV as usize, offset_of!(IcReq, pfv));
    assert_eq!(offset::PDA as usize, offset_of!(IcReq, hpda_z));
    assert_eq!(offset::PDA as usize, offset_of!(IcResp, cpda_z));
    assert_eq!(offset::DGST as usize, offset_of!(IcReq, dgst));
    assert_eq!(offset::LIMIT as usize, offset_of!(IcReq, maxr2t_z));
    assert_eq!(offset::LIMIT as usize, offset_of!(IcResp, maxh2cdata));
    assert_eq!(
        offset::SGL1 as usize,
        offset_of!(CapsuleCmd, sqe) + offset_of!(Sqe, dptr)
    );
    assert_eq!(offset::CCCID as usize, offset_of!(H2cData, cccid));
    assert_eq!(offset::TTAG as usize, offset_of!(H2cData, ttag));
    assert_eq!(offset::DATAO as usize, offset_of!(H2cData, datao));
    assert_eq!(offset::DATAL as usize, offset_of!(H2cData, datal));
    assert_eq!(offset::DATAO as usize, offset_of!(R2t, r2to));
    assert_eq!(offset::DATAL as usize, offset_of!(R2t, r2tl));
}

#[test]
fn connect_faults_point_at_the_fields() {
    let view = |offset| (offset + SPECIFIC, false);
    let table = [
        (
            ConnectField::RecordFormat,
            view(offset_of!(Connect, recfmt)),
        ),
        (ConnectField::QueueId, view(offset_of!(Connect, qid))),
        (ConnectField::SqSize, view(offset_of!(Connect, sqsize_z))),
        (ConnectField::Attributes, view(offset_of!(Connect, cattr))),
        (
            ConnectField::KeepAliveTimeout,
            view(offset_of!(Connect, kato)),
        ),
        (
            ConnectField::HostId,
            (offset_of!(ConnectData, hostid), true),
        ),
        (
            ConnectField::ControllerId,
            (offset_of!(ConnectData, cntlid), true),
        ),
        (
            ConnectField::SubsystemNqn,
            (offset_of!(ConnectData, subnqn), true),
        ),
        (
            ConnectField::HostNqn,
            (offset_of!(ConnectData, hostnqn), true),
        ),
    ];
    for (field, (offset, in_data)) in table {
        let fault = field.invalid();
        assert_eq!(usize::from(fault.ipo()), offset, "{field:?}");
        assert_eq!(fault.in_data(), in_data, "{field:?}");
    }
}

// Base 2.1 §5.1.13.2.1.
offsets! {
    identify_controller: IdentifyController {
        vid 0, ssvid 2, sn 4, mn 24, fr 64, rab 72, ieee 73, cmic 76, mdts 77, cntlid 78, ver 80,
        rtd3r 84, rtd3e 88, oaes 92, ctratt 96, rrls 100, bpcap 102, nssl 104, plsi 110,
        cntrltype 111, fguid 112, crdt1 128, crdt2 130, crdt3 132, crcap 134, nvmsr 253, vwci 254,
        mec 255, oacs 256, acl_z 258, aerl_z 259, frmw 260, lpa 261, elpe_z 262, npss_z 263,
        avscc 264, apsta 265, wctemp 266, cctemp 268, mtfa 270, hmpre 272, hmmin 276, tnvmcap 280,
        unvmcap 296, rpmbs 312, edstt 316, dsto 318, fwug 319, kas 320, hctma 322, mntmt 324,
        mxtmt 326, sanicap 328, hmminds 332, hmmaxd 336, nsetidmax 338, endgidmax 340, anatt 342,
        anacap 343, anagrpmax 344, nanagrpid 348, pels 352, domainid 356, kpioc 358, mptfawr 360,
        megcap 368, tmpthha 384, cqt 386, sqes 512, cqes 513, maxcmd 514, nn 516, oncs 520,
        fuses 522, fna 524, vwc 525, awun_z 526, awupf_z 528, icsvscc 530, nwpc 531, acwu_z 532,
        cdfs 534, sgls 536, mnan 540, maxdna 544, maxcna 560, oaqd 564, rhiri 568, hirt 569,
        cmmrtd 570, nmmrtd 572, minmrtg 574, maxmrtg 575, trattr 576, mcudmq 578, mnsudmq 580,
        mcmr 582, nmcmr 584, mcdqpc 586, subnqn 768, ioccsz 1792, iorcsz 1796, icdoff 1800,
        fcatt 1802, msdbd 1803, ofcs 1804, dctype 1806, ccrl 1807, psd 2048, vs 3072,
    }
    power_state_descriptor: PowerStateDescriptor {
        mp 0, flags 3, enlat 4, exlat 8, rrt 12, rrl 13, rwt 14, rwl 15, idlp 16, ips 18, actp 20,
        apws 22,
    }
    nvm_identify_controller: NvmIdentifyController {
        vsl 0, wzsl 1, wusl 2, dmrl 3, dmrsl 4, dmsl 8, kpiocap 16, wzdsl 17, aocs 18, ver 20,
        lbamqf 24,
    }
}

// NVM 1.1 §4.1.5, Base 2.1 §5.1.13.2.
offsets! {
    identify_namespace: IdentifyNamespace {
        nsze 0, ncap 8, nuse 16, nsfeat 24, nlbaf_z 25, flbas 26, mc 27, dpc 28, dps 29, nmic 30,
        rescap 31, fpi 32, dlfeat 33, nawun_z 34, nawupf_z 36, nacwu_z 38, nabsn_z 40, nabo 42,
        nabspf_z 44, noiob 46, nvmcap 48, npwg_z 64, npwa_z 66, npdg_z 68, npda_z 70, nows_z 72,
        mssrl 74, mcl 76, msrc_z 80, kpios 81, nulbaf 82, kpiodaag 84, anagrpid 92, nsattr 99,
        nvmsetid 100, endgid 102, nguid 104, eui64 120, lbaf 128, vs 384,
    }
    lba_format: LbaFormat { ms 0, lbads 2, rp 3, }
    nvm_identify_namespace: NvmIdentifyNamespace {
        lbstm 0, pic 8, pifa 9, elbaf 12, npdgl 268, nprg 272, npra 276, nors 280, npdal 284,
        lbapss 288, tlbaag 292,
    }
    independent_identify_namespace: IndependentIdentifyNamespace {
        nsfeat 0, nmic 1, rescap 2, fpi 3, anagrpid 4, nsattr 8, nvmsetid 10, endgid 12, nstat 14,
        kpios 15, maxkt 16, rgrpid 20,
    }
    controller_list: ControllerList { count 0, entries 2, }
}

// Base 2.1 §5.1.12.
offsets! {
    error_entry: ErrorEntry {
        error_count 0, sqid 8, cid 10, status 12, location 14, lba 16, nsid 24, vsia 28, trtype 29,
        csi 30, opcode 31, csinfo 32, ttsi 40, lpver 63,
    }
    smart_health: SmartHealth {
        critical_warning 0, temperature 1, available_spare 3, available_spare_threshold 4,
        percentage_used 5, endurance_group_warning 6, data_units_read 32, data_units_written 48,
        host_read_commands 64, host_write_commands 80, controller_busy_time 96, power_cycles 112,
        power_on_hours 128, unsafe_shutdowns 144, media_errors 160, error_log_entries 176,
        warning_temperature_time 192, critical_temperature_time 196, temperature_sensors 200,
        thermal_transitions 216, thermal_times 224,
    }
    firmware_slots: FirmwareSlots { afi 0, frs 8, }
    ana_header: AnaHeader { chgcnt 0, ngrps 8, }
    ana_group: AnaGroupDescriptor { grpid 0, nnsids 4, chgcnt 8, state 16, }
    discovery_header: DiscoveryHeader { genctr 0, numrec 8, recfmt 16, }
    discovery_entry: DiscoveryEntry {
        trtype 0, adrfam 1, subtype 2, treq 3, portid 4, cntlid 6, asqsz 8, eflags 10, trsvcid 32,
        subnqn 256, traddr 512, tsas 768,
    }
    rdma_subtype: RdmaAddressSubtype { qptype 0, prtype 1, cms 2, pkey 8, }
    tcp_subtype: TcpAddressSubtype { sectype 0, }
    reservation_notification: ReservationNotification { lpc 0, kind 8, nalp 9, nsid 12, }
}

// Base 2.1 §5.1.25, §7.8, RDMA 1.1 §3.
offsets! {
    timestamp: Timestamp { attributes 6, }
    host_behavior: HostBehavior { acre 0, etdas 1, lbafee 2, hdisns 3, cdfe 4, }
    reservation_status: ReservationStatusHeader { gen_counter 0, rtype 4, regstrnt 5, ptpls 9, }
    reservation_status_extended: ReservationStatusExtendedHeader { rshdr 0, }
    registered_controller: RegisteredController { cntlid 0, rcsts 2, hostid 8, rkey 16, }
    registered_controller_extended: RegisteredControllerExtended {
        cntlid 0, rcsts 2, rkey 8, hostid 16,
    }
    rdma_request: ConnectRequest { recfmt 0, qid 2, hrqsize 4, hsqsize_z 6, cntlid 8, }
    rdma_accept: ConnectAccept { recfmt 0, crqsize 2, }
    rdma_reject: ConnectReject { recfmt 0, sts 2, }
}

/// Arrays inside a page have no field names for their entries.
#[test]
fn tables_are_indexed_by_code() {
    use zerocopy::IntoBytes;

    let mut effects = CommandsSupported::default();
    effects.set_admin(
        AdminOpcode::KEEP_ALIVE,
        nvme_spec::log::CommandEffects::new().with_csupp(true),
    );
    effects.set_io(
        IoOpcode::WRITE,
        nvme_spec::log::CommandEffects::new().with_lbcc(true),
    );
    assert_eq!(effects.as_bytes()[4 * 0x18], 1);
    assert_eq!(effects.as_bytes()[1024 + 4], 2);
    assert!(effects.admin(AdminOpcode::KEEP_ALIVE).csupp());
    assert!(effects.io(IoOpcode::WRITE).lbcc());

    let mut pages = SupportedLogPages::default();
    pages.set(LogPageId::DISCOVERY, LogPageSupport::new().with_lsupp(true));
    assert_eq!(pages.as_bytes()[4 * 0x70], 1);
    assert!(pages.get(LogPageId::DISCOVERY).lsupp());
    assert!(!pages.get(LogPageId::ANA).lsupp());
}
