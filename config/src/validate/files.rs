//! The rules of volumes, shares and file listeners.

use super::{Draft, Lines, Names, report_duplicate_values};
use crate::files::{Files, Share};
use crate::model::Transport;
use crate::parse::{DeviceDraft, DeviceType};
use crate::problem::{Finding, Findings, ProblemKind};
use crate::value::HttpAddress;

/// Reports every broken rule.
pub(super) fn validate(
    draft: &Draft,
    device_names: &Names<'_>,
    lines: &Lines<'_>,
    findings: &mut Findings,
) {
    let files = &draft.files;
    let names: Vec<_> = files.volumes.iter().map(|volume| &volume.name).collect();
    let volume_names = Names::collect(&names, "volume", lines, findings);
    let names: Vec<_> = files.shares.iter().map(|share| &share.name).collect();
    Names::collect(&names, "share", lines, findings);
    for device in files.volumes.iter().filter_map(|it| it.device.as_ref()) {
        device_names.check(device, findings);
    }
    for volume in files.shares.iter().filter_map(|it| it.volume.as_ref()) {
        volume_names.check(volume, findings);
    }
    devices(draft, lines, findings);
    quotas(draft, findings);
    let names: Vec<_> = files.listeners.iter().map(|it| &it.name).collect();
    Names::collect(&names, "file_listener", lines, findings);
    addresses(draft, findings);
}

/// Shares with the same files have the same quotas.
fn quotas(draft: &Draft, findings: &mut Findings) {
    let shares = draft.files.shares.iter();
    let shares: Vec<_> = shares
        .filter_map(|it| Some((it.name.text.as_ref()?, it.share.as_ref()?)))
        .collect();
    for (index, (name, share)) in shares.iter().enumerate() {
        let quota = |share: &Share| (share.max_size, share.max_files);
        let mut before = shares[..index].iter();
        let differing = before.find(|(_, other)| {
            Files::have_same_files(share, other) && quota(share) != quota(other)
        });
        if let Some((other, _)) = differing {
            findings.add(|| Finding {
                hint: Some("write the same `max_size` and `max_files` at both".to_owned()),
                ..name.finding(
                    ProblemKind::Conflict,
                    format!(
                        "share `{}` has the same files with other quotas",
                        other.value
                    ),
                )
            });
        }
    }
}

/// A volume has a device of type `memory`, `file` or `nvme` for itself.
fn devices(draft: &Draft, lines: &Lines<'_>, findings: &mut Findings) {
    let exported = draft.exports.iter().flat_map(|export| &export.namespaces);
    let exported: Vec<_> = exported.map(|namespace| &namespace.device).collect();
    let volumes = draft.files.volumes.iter();
    let of_volumes = volumes.filter_map(|it| Some((it.device.as_ref()?, it.uuid.as_ref())));
    report_duplicate_values(
        of_volumes.clone().map(|(device, _)| device),
        "the device",
        "two volumes would overwrite each other",
        lines,
        findings,
    );
    for (device, uuid) in of_volumes {
        if exported.iter().any(|it| it.value == device.value) {
            findings.add(|| Finding {
                hint: Some("give the volume a device of its own".to_owned()),
                ..device.finding(
                    ProblemKind::Duplicate,
                    format!(
                        "an export has the device `{}`: hosts would overwrite files",
                        device.value
                    ),
                )
            });
        }
        let is_named = |name: &crate::parse::NameDraft| {
            name.text
                .as_ref()
                .is_some_and(|it| it.value == device.value)
        };
        let found = draft.devices.iter().find(|it| is_named(&it.name));
        let is_memory = found.is_some_and(|it| it.device_type == Some(DeviceType::Memory));
        if let Some(uuid) = uuid.filter(|_| is_memory) {
            findings.add(|| Finding {
                hint: Some("remove `uuid`".to_owned()),
                ..uuid.finding(
                    ProblemKind::Conflict,
                    "a volume in memory is another one after each start".to_owned(),
                )
            });
        }
        if let Some((obstacle, hint)) = found.and_then(obstacle) {
            findings.add(|| Finding {
                hint: Some(hint.to_owned()),
                ..device.finding(ProblemKind::Conflict, obstacle.to_owned())
            });
        }
    }
}

/// Why a volume cannot be on a device, with a hint.
fn obstacle(device: &DeviceDraft) -> Option<(&'static str, &'static str)> {
    match device.device_type? {
        DeviceType::Null => Some((
            "a device of type \"null\" keeps no files",
            "use a device of type \"memory\", \"file\" or \"nvme\"",
        )),
        DeviceType::Memory | DeviceType::File | DeviceType::Nvme if device.is_read_only => Some((
            "a volume cannot be on a read-only device",
            "remove `read_only` from the device, and write it at the shares",
        )),
        DeviceType::File if device.is_shared => Some((
            "a shared device cannot have a volume: two appliances would overwrite each other",
            "remove `shared` from the device",
        )),
        DeviceType::Memory | DeviceType::File | DeviceType::Nvme => None,
    }
}

/// A file listener shares its address with no other listener of its transport.
fn addresses(draft: &Draft, findings: &mut Findings) {
    for transport in [Transport::Tcp, Transport::Rdma] {
        let others = draft.listeners.iter();
        let others = others.filter(|it| it.transport == Some(transport));
        let others = others.filter_map(|it| it.address.as_ref().map(|it| it.value));
        let http = draft.control.http.and_then(HttpAddress::address);
        let http = http.filter(|_| transport == Transport::Tcp);
        let mut others: Vec<_> = others.chain(http).collect();
        let listeners = draft.files.listeners.iter();
        let listeners = listeners.filter(|it| it.transport == transport);
        for address in listeners.filter_map(|it| it.address.as_ref()) {
            if let Some(other) = others.iter().find(|it| it.overlaps(address.value)) {
                findings.add(|| Finding {
                    hint: Some("use another port, usually 2049".to_owned()),
                    ..address.finding(
                        ProblemKind::Duplicate,
                        format!("{} overlaps {other} of another listener", address.value),
                    )
                });
            }
            others.push(address.value);
        }
    }
}
