//! Pages of a peer: Identify data, log pages, lists and descriptors. Reading any content ends and
//! stays within the page.

use std::fmt::Debug;

use nvme_spec::event::AsyncEvent;
use nvme_spec::fabrics::ConnectData;
use nvme_spec::identify::{
    IDENTIFY_BYTES, IdentifyController, IdentifyNamespace, NamespaceIds, NamespaceList,
};
use nvme_spec::log::{
    AnaGroups, ChangedNamespaces, DiscoveryEntry, DiscoveryHeader, ErrorEntry, SmartHealth,
};
use nvme_spec::nqn;
use nvme_spec::registers::Cap;
use nvme_spec::sgl::SglDescriptor;
use nvme_spec::{Cqe, Sqe};
use zerocopy::FromBytes;

use crate::input::Input;

/// Runs one input: the first byte selects the kind of page, the rest is its content.
pub(crate) fn run(input: &[u8]) {
    let mut input = Input::new(input);
    let kind = input.u8();
    let page = page(&mut input);
    match kind % 14 {
        0 => {
            let identity: IdentifyController = read(&page);
            let _ = identity.transfer_bytes_max(4096 << (kind >> 4));
            let bytes = identity.in_capsule_data_bytes();
            assert!(bytes <= u64::from(u32::MAX) * 16);
            show(&(identity.version(), identity));
        }
        1 => {
            let namespace: IdentifyNamespace = read(&page);
            assert!((1..=64).contains(&namespace.formats().len()));
            assert!(namespace.block_bytes().is_none_or(u32::is_power_of_two));
            show(&namespace);
        }
        2 => {
            let ids: Vec<_> = NamespaceIds::new(&page).collect();
            // A descriptor has a header of four bytes and an identifier of at least one.
            assert!(ids.len() <= page.len() / 5);
            show(&ids);
        }
        3 => assert!(read::<NamespaceList>(&page).iter().count() <= 1024),
        4 => {
            let groups = AnaGroups::new(&page).into_iter().flatten();
            let listed: usize = groups.map(|(_, nsids)| nsids.len()).sum();
            assert!(listed <= page.len() / 4);
        }
        5 => show(&(
            read::<DiscoveryHeader>(&page),
            read::<DiscoveryEntry>(&page),
        )),
        6 => show(&read::<SmartHealth>(&page)),
        7 => show(&read::<ErrorEntry>(&page)),
        8 => {
            let changed: ChangedNamespaces = read(&page);
            assert!(changed.is_overflow() || changed.0.iter().count() <= 1024);
        }
        9 => connect_data(&read(&page)),
        10 => show(&read::<SglDescriptor>(&page).decode()),
        11 => commands(&read(&page)),
        12 => {
            let cqe: Cqe = read(&page);
            show(&(
                cqe.status(),
                cqe.status().to_string(),
                cqe.connect_success(),
            ));
            show(&AsyncEvent::from_bits(cqe.dw0.get()));
        }
        _ => {
            let cap = Cap::from_bits(u64::from_le_bytes(read(&page)));
            show(&(cap, cap.timeout_ms(), cap.page_bytes_min()));
        }
    }
}

/// A page of zeroes with parts of the input at offsets from the input.
fn page(input: &mut Input<'_>) -> [u8; IDENTIFY_BYTES] {
    let mut page = [0; IDENTIFY_BYTES];
    while !input.is_empty() {
        let at = usize::from(input.u16()) % page.len();
        let piece = input.bytes();
        let room = page.len() - at;
        let piece = &piece[..piece.len().min(room)];
        page[at..at + piece.len()].copy_from_slice(piece);
    }
    page
}

fn read<T: FromBytes>(page: &[u8]) -> T {
    match T::read_from_prefix(page) {
        Ok((value, _)) => value,
        Err(_) => panic!("a page has room for it"),
    }
}

/// Checks that the debug output is bounded.
fn show(shown: &impl Debug) {
    assert!(format!("{shown:?}").len() < 1 << 20);
}

fn connect_data(data: &ConnectData) {
    for field in [&data.subnqn, &data.hostnqn] {
        if let Ok(name) = nqn::from_field(field) {
            let again = nqn::to_field(name).expect("a name that was in a field fits one");
            assert_eq!(nqn::from_field(&again), Ok(name));
        }
    }
}

/// Reads every view of a command.
fn commands(sqe: &Sqe) {
    show(&(
        sqe.read_write(),
        sqe.dataset_management(),
        sqe.get_log_page(),
    ));
    show(&(sqe.identify(), sqe.set_features(), sqe.property()));
    show(&(sqe.connect(), sqe.dptr, sqe.is_fabrics()));
    let _ = sqe.get_log_page().length_bytes();
    let _ = sqe.dataset_management().data_length_bytes();
    let _ = sqe.property().sized_value();
}
