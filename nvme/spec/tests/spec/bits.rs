//! Checks the position of each bit field against the published positions.
//!
//! Copying a field from one value into another must change exactly the published bits; a
//! getter or setter with a wrong position or width changes others. Lines are getter, setter, first
//! bit, width.

use nvme_spec::command::reservation::*;
use nvme_spec::command::*;
use nvme_spec::completion::StatusField;
use nvme_spec::event::AsyncEvent;
use nvme_spec::fabrics::*;
use nvme_spec::features::*;
use nvme_spec::identify::*;
use nvme_spec::log::*;
use nvme_spec::registers::*;
use nvme_spec::sgl::SglIdentifier;
use nvme_spec::tcp::{DigestFlags, PduFlags};

/// A representation of bit fields, convertible from and to the integer of its width.
trait Representation<Integer> {
    fn of(integer: Integer) -> Self;
    fn integer(self) -> Integer;
}

macro_rules! plain {
    ($($int:ident)*) => {$(
        impl Representation<$int> for $int {
            fn of(integer: $int) -> Self {
                integer
            }
            fn integer(self) -> $int {
                self
            }
        }
    )*};
}
plain!(u8 u16 u32 u64);

macro_rules! wire {
    ($($wire:ident $int:ident,)*) => {$(
        impl Representation<$int> for nvme_spec::$wire {
            fn of(integer: $int) -> Self {
                Self::new(integer)
            }
            fn integer(self) -> $int {
                self.get()
            }
        }
    )*};
}
wire!(U16 u16, U32 u32, U64 u64,);

/// Values whose bits are mixed well: a Weyl sequence, scrambled.
fn mixed(index: u64) -> u64 {
    let scrambled = index.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let scrambled = (scrambled ^ (scrambled >> 31)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    scrambled ^ (scrambled >> 29)
}

/// Pairs of values to copy a field between: each single bit into zeroes, the absence of each into
/// ones, and mixed values into each other.
fn pairs() -> impl Iterator<Item = (u64, u64)> {
    let bits = (0..u64::BITS).map(|bit| 1 << bit);
    let single = bits.flat_map(|bit: u64| [(0, bit), (u64::MAX, !bit)]);
    let values = (0..MIXED).map(|index| (mixed(2 * index + 1), mixed(2 * index + 2)));
    single.chain(values)
}

/// Pairs of mixed values for each type.
const MIXED: u64 = 64;

/// Checks one field: `moved` is `to` with the field of `from`. Returns the field's bits.
fn check(field: &str, seen: u64, mask: u64, (to, from): (u64, u64), moved: u64) -> u64 {
    assert_eq!(seen & mask, 0, "{field} overlaps");
    let expected = (to & !mask) | (from & mask);
    assert_eq!(moved, expected, "{field} misplaced");
    mask
}

macro_rules! positions {
    ($($test:ident: $type:ident($int:ident) {
        $($field:ident $with:ident $first:literal $width:literal,)*
    })*) => {$(
        #[test]
        fn $test() {
            for (to, from) in pairs() {
                let (to, from) = (to as $int, from as $int);
                let pair = (u64::from(to), u64::from(from));
                let source = $type::from_bits(Representation::<$int>::of(from));
                let mut seen = 0;
                $(
                    let mask: $int = ($int::MAX >> ($int::BITS - $width)) << $first;
                    let target = $type::from_bits(Representation::<$int>::of(to));
                    let moved: $int = target.$with(source.$field()).into_bits().integer();
                    let name = stringify!($field);
                    seen |= check(name, seen, mask.into(), pair, moved.into());
                )*
                assert_ne!(seen, 0);
            }
        }
    )*};
}

positions! {
    cap: Cap(u64) {
        mqes_z with_mqes_z 0 16,
        cqr with_cqr 16 1,
        ams_weighted with_ams_weighted 17 1,
        ams_vendor with_ams_vendor 18 1,
        to with_to 24 8,
        dstrd with_dstrd 32 4,
        nssrs with_nssrs 36 1,
        css with_css 37 8,
        bps with_bps 45 1,
        cps with_cps 46 2,
        mpsmin with_mpsmin 48 4,
        mpsmax with_mpsmax 52 4,
        pmrs with_pmrs 56 1,
        cmbs with_cmbs 57 1,
        nsss with_nsss 58 1,
        crwms with_crwms 59 1,
        crims with_crims 60 1,
        nsses with_nsses 61 1,
    }
    command_sets_supported: CommandSetsSupported(u8) {
        nvm with_nvm 0 1,
        profiles with_profiles 6 1,
        admin_only with_admin_only 7 1,
    }
    version: Version(u32) {
        ter with_ter 0 8,
        mnr with_mnr 8 8,
        mjr with_mjr 16 16,
    }
    cc: Cc(u32) {
        en with_en 0 1,
        css with_css 4 3,
        mps with_mps 7 4,
        ams with_ams 11 3,
        shn with_shn 14 2,
        iosqes with_iosqes 16 4,
        iocqes with_iocqes 20 4,
        crime with_crime 24 1,
    }
    csts: Csts(u32) {
        rdy with_rdy 0 1,
        cfs with_cfs 1 1,
        shst with_shst 2 2,
        nssro with_nssro 4 1,
        pp with_pp 5 1,
        st with_st 6 1,
    }
    aqa: Aqa(u32) {
        asqs_z with_asqs_z 0 12,
        acqs_z with_acqs_z 16 12,
    }
    cmbloc: Cmbloc(u32) {
        bir with_bir 0 3,
        cqmms with_cqmms 3 1,
        cqpds with_cqpds 4 1,
        cdpmls with_cdpmls 5 1,
        cdpcils with_cdpcils 6 1,
        cdmmms with_cdmmms 7 1,
        cqda with_cqda 8 1,
        ofst with_ofst 12 20,
    }
    cmbsz: Cmbsz(u32) {
        sqs with_sqs 0 1,
        cqs with_cqs 1 1,
        lists with_lists 2 1,
        rds with_rds 3 1,
        wds with_wds 4 1,
        szu with_szu 8 4,
        sz with_sz 12 20,
    }
    cmbmsc: Cmbmsc(u64) {
        cre with_cre 0 1,
        cmse with_cmse 1 1,
        cba with_cba 12 52,
    }
    cmbsts: Cmbsts(u32) {
        cbai with_cbai 0 1,
    }
    crto: Crto(u32) {
        crwmt with_crwmt 0 16,
        crimt with_crimt 16 16,
    }
    command_flags: CommandFlags(u8) {
        fuse with_fuse 0 2,
        psdt with_psdt 6 2,
    }
    protection_info: ProtectionInfo(u8) {
        check_reference_tag with_check_reference_tag 0 1,
        check_application_tag with_check_application_tag 1 1,
        check_guard with_check_guard 2 1,
        action with_action 3 1,
    }
    read_write: ReadWriteControl(u32) {
        nlb_z with_nlb_z 0 16,
        cetype with_cetype 16 4,
        dtype with_dtype 20 4,
        stc with_stc 24 1,
        prinfo with_prinfo 26 4,
        fua with_fua 30 1,
        lr with_lr 31 1,
    }
    dataset_hints: DatasetHints(u32) {
        access_frequency with_access_frequency 0 4,
        access_latency with_access_latency 4 2,
        sequential with_sequential 6 1,
        incompressible with_incompressible 7 1,
        dspec with_dspec 16 16,
    }
    write_zeroes: WriteZeroesControl(u32) {
        nlb_z with_nlb_z 0 16,
        cetype with_cetype 16 4,
        nsz with_nsz 23 1,
        stc with_stc 24 1,
        deac with_deac 25 1,
        prinfo with_prinfo 26 4,
        fua with_fua 30 1,
        lr with_lr 31 1,
    }
    copy_control: CopyControl(u32) {
        nr_z with_nr_z 0 8,
        format with_format 8 4,
        prinfor with_prinfor 12 4,
        cetype with_cetype 16 4,
        dtype with_dtype 20 4,
        stcw with_stcw 24 1,
        stcr with_stcr 25 1,
        prinfow with_prinfow 26 4,
        fua with_fua 30 1,
        lr with_lr 31 1,
    }
    copy_extension: CopyExtension(u32) {
        cev with_cev 0 16,
        dspec with_dspec 16 16,
    }
    copy_source_options: CopySourceOptions(u16) {
        fast_only with_fast_only 15 1,
    }
    copy_formats_enabled: CopyFormatsEnabled(u16) {
        format_2 with_format_2 2 1,
        format_3 with_format_3 3 1,
        format_4 with_format_4 4 1,
    }
    copy_read_parameters: CopyReadParameters(u32) {
        nlb_z with_nlb_z 0 16,
        cetype with_cetype 16 4,
    }
    dataset_range_count: DatasetRangeCount(u32) {
        nr_z with_nr_z 0 8,
    }
    dataset_attributes: DatasetAttributes(u32) {
        idr with_idr 0 1,
        idw with_idw 1 1,
        ad with_ad 2 1,
    }
    context_attributes: ContextAttributes(u32) {
        access_frequency with_access_frequency 0 4,
        access_latency with_access_latency 4 2,
        sequential_read with_sequential_read 8 1,
        sequential_write with_sequential_write 9 1,
        write_prepare with_write_prepare 10 1,
        command_access_size with_command_access_size 24 8,
    }
    identify_select: IdentifySelect(u32) {
        cns with_cns 0 8,
        cntid with_cntid 16 16,
    }
    identify_qualifier: IdentifyQualifier(u32) {
        cnssid with_cnssid 0 16,
        csi with_csi 24 8,
    }
    uuid_select: UuidSelect(u32) {
        uuid_index with_uuid_index 0 7,
    }
    get_features: GetFeaturesSelect(u32) {
        fid with_fid 0 8,
        sel with_sel 8 3,
    }
    set_features: SetFeaturesSelect(u32) {
        fid with_fid 0 8,
        sv with_sv 31 1,
    }
    log_page_select: LogPageSelect(u64) {
        lid with_lid 0 8,
        lsp with_lsp 8 7,
        rae with_rae 15 1,
        numd_z with_numd_z 16 32,
        lsi with_lsi 48 16,
    }
    log_page_qualifier: LogPageQualifier(u32) {
        uuid_index with_uuid_index 0 7,
        ot with_ot 23 1,
        csi with_csi 24 8,
    }
    abort_result: AbortResult(u32) {
        not_aborted with_not_aborted 0 1,
    }
    create_cq: CreateCqControl(u32) {
        pc with_pc 0 1,
        ien with_ien 1 1,
        iv with_iv 16 16,
    }
    create_sq: CreateSqControl(u32) {
        pc with_pc 0 1,
        qprio with_qprio 1 2,
        cqid with_cqid 16 16,
    }
    reservation_register: RegisterControl(u32) {
        action with_action 0 3,
        ignore_existing_key with_ignore_existing_key 3 1,
        cptpl with_cptpl 30 2,
    }
    reservation_acquire: AcquireControl(u32) {
        action with_action 0 3,
        ignore_existing_key with_ignore_existing_key 3 1,
        rtype with_rtype 8 8,
    }
    reservation_release: ReleaseControl(u32) {
        action with_action 0 3,
        ignore_existing_key with_ignore_existing_key 3 1,
        rtype with_rtype 8 8,
    }
    reservation_report: ReportControl(u32) {
        eds with_eds 0 1,
    }
    registrant_status: RegistrantStatus(u8) {
        holder with_holder 0 1,
    }
    status_field: StatusField(u16) {
        phase with_phase 0 1,
        sc with_sc 1 8,
        sct with_sct 9 3,
        crd with_crd 12 2,
        more with_more 14 1,
        dnr with_dnr 15 1,
    }
    async_event: AsyncEvent(u32) {
        event_type with_event_type 0 3,
        information with_information 8 8,
        log_page with_log_page 16 8,
    }
    connect_attributes: ConnectAttributes(u8) {
        priority with_priority 0 2,
        disable_sq_flow_control with_disable_sq_flow_control 2 1,
        individual_queue_deletion with_individual_queue_deletion 3 1,
    }
    authentication_requirements: AuthenticationRequirements(u16) {
        authentication with_authentication 1 1,
        secure_channel with_secure_channel 2 1,
    }
    connect_success: ConnectSuccess(u32) {
        cntlid with_cntlid 0 16,
        authreq with_authreq 16 16,
    }
    connect_invalid: ConnectInvalid(u32) {
        ipo with_ipo 0 16,
        in_data with_in_data 16 1,
    }
    property_attributes: PropertyAttributes(u8) {
        size with_size 0 3,
    }
    sgl_identifier: SglIdentifier(u8) {
        subtype with_subtype 0 4,
        kind with_kind 4 4,
    }
    pdu_flags: PduFlags(u8) {
        hdgstf with_hdgstf 0 1,
        ddgstf with_ddgstf 1 1,
        last_pdu with_last_pdu 2 1,
        success with_success 3 1,
    }
    digest_flags: DigestFlags(u8) {
        header with_header 0 1,
        data with_data 1 1,
        reserved with_reserved 2 6,
    }
    feature_capabilities: FeatureCapabilities(u32) {
        saveable with_saveable 0 1,
        namespace_specific with_namespace_specific 1 1,
        changeable with_changeable 2 1,
    }
    arbitration: ArbitrationFeature(u32) {
        ab with_ab 0 3,
        lpw_z with_lpw_z 8 8,
        mpw_z with_mpw_z 16 8,
        hpw_z with_hpw_z 24 8,
    }
    power_management: PowerManagement(u32) {
        ps with_ps 0 5,
        wh with_wh 5 3,
    }
    temperature_threshold: TemperatureThreshold(u32) {
        tmpth with_tmpth 0 16,
        tmpsel with_tmpsel 16 4,
        thsel with_thsel 20 2,
        tmpthh with_tmpthh 22 3,
    }
    error_recovery: ErrorRecovery(u32) {
        tler with_tler 0 16,
        dulbe with_dulbe 16 1,
    }
    volatile_write_cache: VolatileWriteCache(u32) {
        wce with_wce 0 1,
    }
    number_of_queues: NumberOfQueues(u32) {
        nsq_z with_nsq_z 0 16,
        ncq_z with_ncq_z 16 16,
    }
    interrupt_coalescing: InterruptCoalescing(u32) {
        thr_z with_thr_z 0 8,
        time with_time 8 8,
    }
    interrupt_vector: InterruptVector(u32) {
        iv with_iv 0 16,
        cd with_cd 16 1,
    }
    write_atomicity: WriteAtomicity(u32) {
        dn with_dn 0 1,
    }
    async_event_configuration: AsyncEventConfiguration(u32) {
        spare with_spare 0 1,
        temperature with_temperature 1 1,
        reliability with_reliability 2 1,
        read_only with_read_only 3 1,
        backup_failed with_backup_failed 4 1,
        pmr_unreliable with_pmr_unreliable 5 1,
        namespace_attribute with_namespace_attribute 8 1,
        firmware_activation with_firmware_activation 9 1,
        telemetry_log with_telemetry_log 10 1,
        ana_change with_ana_change 11 1,
        predictable_latency with_predictable_latency 12 1,
        lba_status with_lba_status 13 1,
        endurance_group with_endurance_group 14 1,
        subsystem_shutdown with_subsystem_shutdown 15 1,
        temperature_recovery with_temperature_recovery 16 1,
        allocated_namespace_attribute with_allocated_namespace_attribute 19 1,
        zone_descriptor with_zone_descriptor 27 1,
        discovery_log with_discovery_log 31 1,
    }
    timestamp_attributes: TimestampAttributes(u8) {
        synch with_synch 0 1,
        origin with_origin 1 3,
    }
    host_identifier_size: HostIdentifierSize(u32) {
        exhid with_exhid 0 1,
    }
    reservation_notification_mask: ReservationNotificationMask(u32) {
        regpre with_regpre 1 1,
        resrel with_resrel 2 1,
        respre with_respre 3 1,
    }
    reservation_persistence: ReservationPersistence(u32) {
        ptpl with_ptpl 0 1,
    }
    namespace_write_protection: NamespaceWriteProtection(u32) {
        wps with_wps 0 3,
    }
    cmic: Cmic(u8) {
        multiple_ports with_multiple_ports 0 1,
        multiple_controllers with_multiple_controllers 1 1,
        virtual_function with_virtual_function 2 1,
        ana_reporting with_ana_reporting 3 1,
    }
    oaes: Oaes(u32) {
        namespace_attribute with_namespace_attribute 8 1,
        firmware_activation with_firmware_activation 9 1,
        ana_change with_ana_change 11 1,
        predictable_latency with_predictable_latency 12 1,
        lba_status with_lba_status 13 1,
        endurance_group with_endurance_group 14 1,
        subsystem_shutdown with_subsystem_shutdown 15 1,
        temperature_recovery with_temperature_recovery 16 1,
        allocated_namespace_attribute with_allocated_namespace_attribute 19 1,
        zone_descriptor with_zone_descriptor 27 1,
        discovery_log with_discovery_log 31 1,
    }
    ctratt: Ctratt(u32) {
        hids with_hids 0 1,
        nopspm with_nopspm 1 1,
        nsets with_nsets 2 1,
        rrlvls with_rrlvls 3 1,
        egs with_egs 4 1,
        plm with_plm 5 1,
        tbkas with_tbkas 6 1,
        ng with_ng 7 1,
        sqa with_sqa 8 1,
        ulist with_ulist 9 1,
        mds with_mds 10 1,
        fcm with_fcm 11 1,
        vcm with_vcm 12 1,
        deg with_deg 13 1,
        dnvms with_dnvms 14 1,
        elbas with_elbas 15 1,
        mem with_mem 16 1,
        hmbr with_hmbr 17 1,
        rhii with_rhii 18 1,
        fdps with_fdps 19 1,
    }
    oacs: Oacs(u16) {
        security with_security 0 1,
        format with_format 1 1,
        firmware with_firmware 2 1,
        namespace_management with_namespace_management 3 1,
        self_test with_self_test 4 1,
        directives with_directives 5 1,
        management_interface with_management_interface 6 1,
        virtualization with_virtualization 7 1,
        doorbell_buffer with_doorbell_buffer 8 1,
        lba_status with_lba_status 9 1,
        lockdown with_lockdown 10 1,
        live_migration with_live_migration 11 1,
    }
    frmw: Frmw(u8) {
        first_slot_read_only with_first_slot_read_only 0 1,
        slots with_slots 1 3,
        activation_without_reset with_activation_without_reset 4 1,
        mupd with_mupd 5 1,
    }
    lpa: Lpa(u8) {
        smart_per_namespace with_smart_per_namespace 0 1,
        commands_effects with_commands_effects 1 1,
        extended_data with_extended_data 2 1,
        telemetry with_telemetry 3 1,
        persistent_event with_persistent_event 4 1,
        supported_logs with_supported_logs 5 1,
        telemetry_area_4 with_telemetry_area_4 6 1,
    }
    anacap: Anacap(u8) {
        optimized with_optimized 0 1,
        non_optimized with_non_optimized 1 1,
        inaccessible with_inaccessible 2 1,
        persistent_loss with_persistent_loss 3 1,
        change with_change 4 1,
        group_fixed with_group_fixed 6 1,
        group_settable with_group_settable 7 1,
    }
    entry_sizes: EntrySizes(u8) {
        min with_min 0 4,
        max with_max 4 4,
    }
    oncs: Oncs(u16) {
        compare with_compare 0 1,
        write_uncorrectable with_write_uncorrectable 1 1,
        dataset_management with_dataset_management 2 1,
        write_zeroes with_write_zeroes 3 1,
        save_select with_save_select 4 1,
        reservations with_reservations 5 1,
        timestamp with_timestamp 6 1,
        verify with_verify 7 1,
        copy with_copy 8 1,
        copy_single_atomicity with_copy_single_atomicity 9 1,
        all_fast_copy with_all_fast_copy 10 1,
        maxwzd with_maxwzd 11 1,
        nszs with_nszs 12 1,
    }
    cdfs: Cdfs(u16) {
        format_0 with_format_0 0 1,
        format_1 with_format_1 1 1,
        format_2 with_format_2 2 1,
        format_3 with_format_3 3 1,
        format_4 with_format_4 4 1,
    }
    fuses: Fuses(u16) {
        compare_and_write with_compare_and_write 0 1,
    }
    fna: Fna(u8) {
        format_all with_format_all 0 1,
        erase_all with_erase_all 1 1,
        crypto_erase with_crypto_erase 2 1,
        no_broadcast with_no_broadcast 3 1,
    }
    vwc: Vwc(u8) {
        present with_present 0 1,
        flush with_flush 1 2,
    }
    nwpc: Nwpc(u8) {
        write_protect with_write_protect 0 1,
        until_power_cycle with_until_power_cycle 1 1,
        permanent with_permanent 2 1,
    }
    sgls: Sgls(u32) {
        support with_support 0 2,
        keyed with_keyed 2 1,
        descriptor_threshold with_descriptor_threshold 8 8,
        bit_bucket with_bit_bucket 16 1,
        byte_aligned_metadata with_byte_aligned_metadata 17 1,
        longer_than_data with_longer_than_data 18 1,
        metadata_sgl with_metadata_sgl 19 1,
        offset with_offset 20 1,
        transport with_transport 21 1,
    }
    fcatt: Fcatt(u8) {
        static_model with_static_model 0 1,
    }
    ofcs: Ofcs(u16) {
        disconnect with_disconnect 0 1,
    }
    power_state_flags: PowerStateFlags(u8) {
        max_power_scale with_max_power_scale 0 1,
        non_operational with_non_operational 1 1,
    }
    nsfeat: Nsfeat(u8) {
        thinp with_thinp 0 1,
        nsabp with_nsabp 1 1,
        dae with_dae 2 1,
        uidreuse with_uidreuse 3 1,
        optperf with_optperf 4 2,
        mam with_mam 6 1,
        optrperf with_optrperf 7 1,
    }
    flbas: Flbas(u8) {
        index_low with_index_low 0 4,
        metadata_extended with_metadata_extended 4 1,
        index_high with_index_high 5 2,
    }
    mc: Mc(u8) {
        extended with_extended 0 1,
        separate with_separate 1 1,
    }
    dpc: Dpc(u8) {
        type1 with_type1 0 1,
        type2 with_type2 1 1,
        type3 with_type3 2 1,
        first with_first 3 1,
        last with_last 4 1,
    }
    dps: Dps(u8) {
        protection_type with_protection_type 0 3,
        first with_first 3 1,
    }
    nmic: Nmic(u8) {
        shared with_shared 0 1,
        dispersed with_dispersed 1 1,
    }
    rescap: Rescap(u8) {
        ptpl with_ptpl 0 1,
        write_exclusive with_write_exclusive 1 1,
        exclusive_access with_exclusive_access 2 1,
        write_exclusive_registrants with_write_exclusive_registrants 3 1,
        exclusive_access_registrants with_exclusive_access_registrants 4 1,
        write_exclusive_all with_write_exclusive_all 5 1,
        exclusive_access_all with_exclusive_access_all 6 1,
        iekey with_iekey 7 1,
    }
    fpi: Fpi(u8) {
        remaining_percent with_remaining_percent 0 7,
        supported with_supported 7 1,
    }
    dlfeat: Dlfeat(u8) {
        read with_read 0 3,
        write_zeroes_deallocate with_write_zeroes_deallocate 3 1,
        guard_crc with_guard_crc 4 1,
    }
    nsattr: Nsattr(u8) {
        write_protected with_write_protected 0 1,
    }
    relative_performance: RelativePerformance(u8) {
        rp with_rp 0 2,
    }
    extended_lba_format: ExtendedLbaFormat(u32) {
        sts with_sts 0 7,
        pif with_pif 7 2,
        qpif with_qpif 9 4,
    }
    independent_nsfeat: IndependentNsfeat(u8) {
        uidreuse with_uidreuse 3 1,
        rmedia with_rmedia 4 1,
        vwcnp with_vwcnp 5 1,
    }
    nstat: Nstat(u8) {
        nrdy with_nrdy 0 1,
    }
    log_page_support: LogPageSupport(u32) {
        lsupp with_lsupp 0 1,
        ios with_ios 1 1,
        lidsp with_lidsp 16 16,
    }
    parameter_error_location: ParameterErrorLocation(u16) {
        byte with_byte 0 8,
        bit with_bit 8 3,
    }
    critical_warning: CriticalWarning(u8) {
        spare with_spare 0 1,
        temperature with_temperature 1 1,
        reliability with_reliability 2 1,
        read_only with_read_only 3 1,
        backup_failed with_backup_failed 4 1,
        pmr_unreliable with_pmr_unreliable 5 1,
    }
    active_firmware: ActiveFirmware(u8) {
        active_slot with_active_slot 0 3,
        next_slot with_next_slot 4 3,
    }
    command_effects: CommandEffects(u32) {
        csupp with_csupp 0 1,
        lbcc with_lbcc 1 1,
        ncc with_ncc 2 1,
        nic with_nic 3 1,
        ccc with_ccc 4 1,
        cser with_cser 14 2,
        cse with_cse 16 3,
        uss with_uss 19 1,
        scope_namespace with_scope_namespace 20 1,
        scope_controller with_scope_controller 21 1,
        scope_nvm_set with_scope_nvm_set 22 1,
        scope_endurance_group with_scope_endurance_group 23 1,
        scope_domain with_scope_domain 24 1,
        scope_subsystem with_scope_subsystem 25 1,
        scope_data_queue with_scope_data_queue 26 1,
    }
    ana_log_parameter: AnaLogParameter(u8) {
        rgo with_rgo 0 1,
    }
    ana_state_field: AnaStateField(u8) {
        state with_state 0 4,
    }
    transport_requirements: TransportRequirements(u8) {
        secure_channel with_secure_channel 0 2,
        disable_sq_flow_control with_disable_sq_flow_control 2 1,
    }
    entry_flags: EntryFlags(u16) {
        dupretinfo with_dupretinfo 0 1,
        epcsd with_epcsd 1 1,
        ncc with_ncc 2 1,
    }
    discovery_log_parameter: DiscoveryLogParameter(u8) {
        extdlpe with_extdlpe 0 1,
        pleo with_pleo 1 1,
        allsube with_allsube 2 1,
    }
}
