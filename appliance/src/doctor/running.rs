//! Checks the running appliance, if one answers at the configured socket: how long requests wait,
//! which devices are damaged, and which ANA groups hosts cannot access. Without an appliance, the
//! states in the configuration are checked.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use appliance_config::{Config, ControlSocket};

use super::{Finding, volumes};
use crate::client::{Client, SocketArguments};
use crate::observe::model::{
    AnaStatus, AnaWord, BUFFER_WAIT_MAX_NS, DeviceStatus, DriveMemoryStatus, MemoryStatus, Status,
};
use crate::observe::status;
use crate::operator_states::OperatorStates;
use crate::quantity;

/// Longest wait for the appliance's response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(3);

/// The findings about the running appliance. If none runs or this user may not connect, which
/// `doctor` does not check, only those about ANA states in the configuration.
pub(super) fn check(config: &Config) -> Vec<Finding> {
    let Some(status) = ask(config) else {
        let states = OperatorStates::default();
        return inaccessible_groups(&status::ana(config, &states));
    };
    let mut findings = vec![of(&status.memory)];
    findings.extend(status.devices.iter().filter_map(damage_of));
    findings.extend(status.devices.iter().filter_map(damaged_reservations_of));
    findings.extend(status.devices.iter().filter_map(data_path_of));
    findings.extend(status.files.iter().flat_map(volumes::of));
    findings.extend(inaccessible_groups(&status.ana));
    findings.extend(status.lost_rdma().map(rdma_finding));
    findings
}

/// Whether an RDMA device is lost, or a listener has none. Both are used again when they return.
fn rdma_finding(text: String) -> Finding {
    let fix = "restore the device or the address, as `rdma link show` lists them: the appliance \
               looks for them every 5 s; the log names them";
    Finding::broken("running", text, fix)
}

fn ask(config: &Config) -> Option<Status> {
    let socket = match &config.control.socket {
        ControlSocket::At(path) => Some(path.clone()),
        ControlSocket::Auto => None,
        ControlSocket::Off => return None,
    };
    let arguments = SocketArguments { socket };
    let client = Client::find(&arguments).ok()?;
    let client = client.with_response_timeout(RESPONSE_TIMEOUT);
    client.get("/api/v1/status").ok()
}

/// The cause of a device's damage, if it is damaged.
fn damage_of(device: &DeviceStatus) -> Option<Finding> {
    let damage = device.damage.as_ref()?;
    let name = &device.name;
    let text = format!(
        "device {name} is damaged, writes and flushes fail: {}",
        damage.text
    );
    let fix = format!(
        "repair what the device lies on, then `windlass device reopen {name}`; writes that were \
         answered before and not flushed may be lost"
    );
    Some(Finding::broken("running", text, fix))
}

/// Whether the device's hosts are refused because its reservations are unknown.
fn damaged_reservations_of(device: &DeviceStatus) -> Option<Finding> {
    let name = &device.name;
    device.reservations_damaged.then(|| {
        let text = format!(
            "device {name}: its stored reservations cannot be restored, and its hosts are refused"
        );
        let fix = format!(
            "restore the file that the log names and restart, or `windlass reservations {name} \
             --clear`; after a clearing no host is fenced"
        );
        Finding::broken("running", text, fix)
    })
}

/// The way of the data of copies to a device that may use memory of drives, and why it does not.
fn data_path_of(device: &DeviceStatus) -> Option<Finding> {
    let path = device.data_path.as_deref().filter(|path| *path != "host")?;
    let name = &device.name;
    let Some(memory) = &device.drive_memory else {
        let text = format!(
            "device {name} has data_path = \"{path}\", but its drive has no controller memory buffer \
             that holds data of reads and writes (CMBSZ.RDS and WDS), or is not ready: copies use that \
             of the other drive, or `memory`"
        );
        let fix = "nvme show-regs -H shows CMBSZ while the kernel has the drive; none if another drive \
                   has such a buffer, else data_path = \"host\"";
        return Some(Finding::slow("running", text, fix));
    };
    if let Some(why) = &memory.not_shared {
        let text = format!(
            "device {name} has data_path = \"{path}\", but other drives cannot use the memory of its \
             drive, because {why}: copies to and from them use theirs, or `memory`"
        );
        let fix = "one IOMMU container for all drives: VFIO type 1 (`vfio_iommu_type1`), not iommufd, \
                   and no ACS redirection between the drives that the platform forbids";
        return Some(Finding::slow("running", text, fix));
    }
    let text = ways_of_data(device, memory);
    if memory.cards > 0 || memory.not_registered.is_empty() {
        return Some(Finding::fine("running", text));
    }
    let why = memory.not_registered.join("; ");
    let text = format!("{text}. No network card has registered that memory ({why})");
    let fix = "for NVMe/RDMA: Linux 6.19 or later with VFIO, which exports the memory as a dma-buf, and a \
               network card whose driver registers dma-bufs (not soft RoCE), without ACS redirection \
               between it and the drive; else none is needed";
    Some(Finding::slow("running", text, fix))
}

/// What went through the memory of a device's drive, and what did not.
fn ways_of_data(device: &DeviceStatus, memory: &DriveMemoryStatus) -> String {
    let name = &device.name;
    let count = |path: &str| device.copies.get(path).copied().unwrap_or(0);
    let transfers = |what: &str| device.transfers.get(what).copied().unwrap_or(0);
    let reasons = |all: &BTreeMap<String, u64>| {
        let counted = all.iter().filter(|(_, count)| **count > 0);
        let counted = counted.map(|(word, count)| format!("{word} {count}"));
        let counted: Vec<String> = counted.collect();
        match counted.is_empty() {
            true => String::new(),
            false => format!(" ({})", counted.join(", ")),
        }
    };
    format!(
        "device {name}: {} slices of {} in the memory of its drive, {} lost; {} copies went through \
         memory of drives, {} were the drive's own, {} went through `memory`{}; {} reads and {} writes of NVMe/RDMA went through it, \
         of which {} failed, and others through `memory`{}",
        memory.slices,
        quantity::bytes(memory.slice_bytes),
        memory.lost,
        count("drive_memory"),
        count("drive"),
        count("host"),
        reasons(&device.copies_on_host_path),
        transfers("reads"),
        transfers("writes"),
        transfers("failed"),
        reasons(&device.transfers_on_host_path),
    )
}

/// A finding for each ANA group that hosts can access at no listener of its export. That is normal
/// where another appliance serves it.
fn inaccessible_groups(paths: &[AnaStatus]) -> Vec<Finding> {
    let of_group = |path: &AnaStatus| (path.export.clone(), path.group);
    let groups: BTreeSet<(String, u32)> = paths.iter().map(of_group).collect();
    let is_accessible = |group: &(String, u32)| {
        let mut paths = paths.iter().filter(|path| of_group(path) == *group);
        paths.any(|path| path.state.is_accessible())
    };
    let groups = groups.iter().filter(|group| !is_accessible(group));
    groups
        .map(|(export, group)| {
            let text = format!(
                "export {export}: hosts can access ANA group {group} at no listener of this \
                 appliance"
            );
            let optimized = AnaWord::Optimized.word();
            let fix = format!(
                "none if another appliance serves it; else change `ana` of the export, or \
                 `windlass ana set {optimized} --export {export} --group {group}`"
            );
            Finding::slow("running", text, fix)
        })
        .collect()
}

fn of(memory: &MemoryStatus) -> Finding {
    let longest = quantity::latency(memory.longest_wait_ns);
    if memory.oldest_wait_ns > BUFFER_WAIT_MAX_NS {
        let oldest = quantity::latency(memory.oldest_wait_ns);
        let text = format!("a request has waited {oldest} for a buffer");
        let fix = "windlass status: the log names hosts that take or send no data";
        Finding::broken("running", text, fix)
    } else if memory.longest_wait_ns > BUFFER_WAIT_MAX_NS {
        let text = format!("since the start a request has waited {longest} for a buffer");
        let fix = "raise `memory` in [appliance]";
        Finding::slow("running", text, fix)
    } else {
        let text = format!("no request has waited longer than {longest} for a buffer");
        Finding::fine("running", text)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::doctor::Verdict;
    use crate::observe::model::{self, Totals, TransportTotals};

    #[test]
    fn damaged_device_verdict_is_broken() {
        let device = |damage: &str| {
            let text = format!(
                r#"{{"name": "vol", "type": "file", "state": "damaged", "damage": {damage},
                "reservations_damaged": true,
                "block_size": 512, "block_count": 8, "media_errors": 0, "flushes": 0, "waits": 0,
                "temperature_celsius": null, "available_spare_percent": null,
                "used_percent": null, "warnings": [], "totals": {}, "latency": null,
                "drive": null, "data_path": null, "drive_memory": null, "copies": {{}},
                "copies_on_host_path": {{}}, "transfers": {{}}, "transfers_on_host_path": {{}}}}"#,
                serde_json::to_string(&Totals::default()).expect("numbers"),
            );
            serde_json::from_str::<DeviceStatus>(&text).expect("a device")
        };
        assert!(damage_of(&device("null")).is_none());
        let damaged = device(r#"{"cause": "sync_failed", "text": "a sync failed", "unix_ms": 1}"#);
        let finding = damage_of(&damaged).expect("it is damaged");
        assert_eq!(finding.verdict, Verdict::Broken);
        for part in ["device vol is damaged", "a sync failed"] {
            assert!(finding.text.contains(part), "{}", finding.text);
        }
        let mut device = damaged;
        let finding = damaged_reservations_of(&device).expect("they are damaged");
        assert_eq!(finding.verdict, Verdict::Broken);
        device.reservations_damaged = false;
        assert!(damaged_reservations_of(&device).is_none());
    }

    #[test]
    fn data_path_is_explained() {
        let finding = |path: &str, memory: &str| {
            let text = format!(
                r#"{{"name": "a1", "type": "nvme", "state": "ready", "damage": null,
                "reservations_damaged": false, "block_size": 512, "block_count": 8,
                "media_errors": 0, "flushes": 0, "waits": 0, "temperature_celsius": null,
                "available_spare_percent": null, "used_percent": null, "warnings": [],
                "totals": {}, "latency": null, "drive": null, "data_path": {path},
                "drive_memory": {memory}, "copies": {{"host": 2, "drive_memory": 5}},
                "copies_on_host_path": {{"exhausted": 2, "busy": 0}},
                "transfers": {{"reads": 11, "writes": 4, "bytes": 9, "failed": 1}},
                "transfers_on_host_path": {{"small": 3, "suspended": 0}}}}"#,
                serde_json::to_string(&Totals::default()).expect("numbers"),
            );
            let device = serde_json::from_str::<DeviceStatus>(&text).expect("a device");
            data_path_of(&device)
        };
        let memory = |not_shared: &str| {
            format!(
                r#"{{"slice_bytes": 262144, "slices": 60, "taken": 0, "leases": 7, "exhausted": 2,
                "lost": 1, "not_shared": {not_shared}, "cards": 1, "not_registered": []}}"#
            )
        };
        let unregistered = memory("null").replace(
            r#""cards": 1, "not_registered": []"#,
            r#""cards": 0, "not_registered": ["rxe0: it registers no dma-buf"]"#,
        );
        assert!(finding("null", "null").is_none());
        assert!(finding(r#""host""#, &memory("null")).is_none());
        for (memory, verdict, parts) in [
            ("null".to_owned(), Verdict::Slow, vec!["CMBSZ.RDS and WDS"]),
            (
                memory(r#""the kernel does not map it""#),
                Verdict::Slow,
                vec!["because the kernel does not map it"],
            ),
            (
                unregistered,
                Verdict::Slow,
                vec![
                    "No network card",
                    "rxe0: it registers no dma-buf",
                    "5 copies",
                ],
            ),
            (
                memory("null"),
                Verdict::Fine,
                vec![
                    "60 slices",
                    "1 lost",
                    "5 copies",
                    "0 were the drive's own",
                    "2 went through `memory` (exhausted 2)",
                    "11 reads and 4 writes",
                    "of which 1 failed",
                    "(small 3)",
                ],
            ),
        ] {
            let finding = finding(r#""auto""#, &memory).expect("it is explained");
            assert_eq!(finding.verdict, verdict);
            for part in parts {
                assert!(finding.text.contains(part), "{}", finding.text);
            }
            assert_eq!(finding.fix.is_some(), verdict == Verdict::Slow);
        }
    }

    #[test]
    fn lost_rdma_device_and_listener_are_reported() {
        let lost_rdma = |transports: &TransportTotals, of_files| {
            model::lost_rdma(transports, of_files).map(rdma_finding)
        };
        let with = |values: &[(&str, u64)]| {
            let values = values
                .iter()
                .map(|(name, value)| ((*name).to_owned(), *value));
            let totals = BTreeMap::from([("rdma".to_owned(), values.collect())]);
            lost_rdma(&totals, Some((0, 0)))
        };
        assert_eq!(lost_rdma(&BTreeMap::new(), None), None);
        let of_files = lost_rdma(&BTreeMap::new(), Some((1, 2))).expect("they are missing");
        let parts = ["1 RDMA device(s)", "2 listener(s)"];
        assert!(parts.iter().all(|it| of_files.text.contains(it)));
        assert_eq!(with(&[("devices_missing", 0), ("listeners_down", 0)]), None);
        let finding = with(&[("devices_missing", 1)]).expect("one is missing");
        assert_eq!(finding.verdict, Verdict::Broken);
        assert!(finding.text.contains("1 RDMA device(s) are missing"));
        assert!(with(&[("listeners_down", 2)]).is_some());
    }

    #[test]
    fn group_without_an_accessible_listener_is_reported() {
        let path = |group, listener: &str, state| AnaStatus {
            export: "nqn.x".to_owned(),
            group,
            listener: listener.to_owned(),
            state,
            configured: AnaWord::Optimized,
            namespaces: vec![1],
        };
        let findings = inaccessible_groups(&[
            path(1, "a", AnaWord::Inaccessible),
            path(1, "b", AnaWord::NonOptimized),
            path(2, "a", AnaWord::Change),
            path(2, "b", AnaWord::PersistentLoss),
        ]);
        let [finding] = &findings[..] else {
            panic!("{findings:?}");
        };
        assert_eq!(finding.verdict, Verdict::Slow);
        assert!(finding.text.contains("ANA group 2"), "{}", finding.text);
        let fix = finding.fix.as_deref().expect("a fix");
        assert!(fix.contains("--export nqn.x --group 2"), "{fix}");
    }

    #[test]
    fn memory_wait_above_one_second_is_reported() {
        let of = |oldest_wait_ns, longest_wait_ns| {
            of(&MemoryStatus {
                bytes: 1 << 28,
                page_bytes: 4096,
                notices: Vec::new(),
                oldest_wait_ns,
                longest_wait_ns,
                classes: Vec::new(),
            })
        };
        let second = 1_000_000_000;
        assert_eq!(of(0, second).verdict, Verdict::Fine);
        assert_eq!(of(0, 2 * second).verdict, Verdict::Slow);
        let waits = of(12 * second, 12 * second);
        assert_eq!(waits.verdict, Verdict::Broken);
        assert!(waits.text.contains("12"), "{}", waits.text);
    }
}
