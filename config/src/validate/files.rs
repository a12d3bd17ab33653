//! The rules of volumes, shares and file listeners.

use super::{Draft, Lines, Names, report_duplicate_values};
use crate::model::Transport;
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
    for allowed in files
        .shares
        .iter()
        .filter_map(|it| it.allows_any_client.as_ref())
    {
        if !allowed.value {
            findings.add(|| Finding {
                hint: Some(
                    "write `true`, and let only trusted machines reach the listener".to_owned(),
                ),
                ..allowed.finding(
                    ProblemKind::Conflict,
                    "lists of clients are not implemented, so every client may use a share"
                        .to_owned(),
                )
            });
        }
    }
    addresses(draft, findings);
}

/// A volume has a device of type `memory` for itself.
fn devices(draft: &Draft, lines: &Lines<'_>, findings: &mut Findings) {
    let exported = draft.exports.iter().flat_map(|export| &export.namespaces);
    let exported: Vec<_> = exported.map(|namespace| &namespace.device).collect();
    let of_volumes = draft
        .files
        .volumes
        .iter()
        .filter_map(|it| it.device.as_ref());
    report_duplicate_values(
        of_volumes.clone(),
        "the device",
        "two volumes would overwrite each other",
        lines,
        findings,
    );
    for device in of_volumes {
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
        if found.is_some_and(|it| it.is_memory == Some(false)) {
            findings.add(|| Finding {
                hint: Some("use a device of type \"memory\"".to_owned()),
                ..device.finding(
                    ProblemKind::Conflict,
                    "volumes on devices of other types are not implemented".to_owned(),
                )
            });
        }
    }
}

/// The file listener shares its address with no other listener.
fn addresses(draft: &Draft, findings: &mut Findings) {
    let others = draft.listeners.iter();
    let others = others.filter(|it| it.transport == Some(Transport::Tcp));
    let others = others.filter_map(|it| it.address.as_ref().map(|it| it.value));
    let http = draft.control.http.and_then(HttpAddress::address);
    let others: Vec<_> = others.chain(http).collect();
    for address in draft
        .files
        .listeners
        .iter()
        .filter_map(|it| it.address.as_ref())
    {
        if let Some(other) = others.iter().find(|it| it.overlaps(address.value)) {
            findings.add(|| Finding {
                hint: Some("use another port, usually 2049".to_owned()),
                ..address.finding(
                    ProblemKind::Duplicate,
                    format!("{} overlaps {other} of another listener", address.value),
                )
            });
        }
    }
}
