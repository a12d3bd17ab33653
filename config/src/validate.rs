//! The rules between tables: names are unique, references resolve, and resources that must not be
//! shared are not.

mod files;

use std::collections::{HashMap, HashSet};
use std::hash::Hash;

use crate::model::{Operations, RateScope, Transport};
use crate::parse::{Draft, DriveDraft, Located, NameDraft};
use crate::problem::{Finding, Findings, Lines, ProblemKind};
use crate::suggest::{NAMES_LISTED_MAX, excerpt_of, listed, nearest};
use crate::table::{Line, Table as _};
use crate::value::HttpAddress;

/// Reports every broken rule. Unreadable parts of the draft are skipped; they have been reported.
pub(crate) fn validate(draft: &Draft, text: &str, findings: &mut Findings) {
    let lines = Lines::new(text);
    let names: Vec<_> = draft.devices.iter().map(|device| &device.name).collect();
    let device_names = Names::collect(&names, "device", &lines, findings);
    let names: Vec<_> = draft
        .listeners
        .iter()
        .map(|listener| &listener.name)
        .collect();
    let listener_names = Names::collect(&names, "listener", &lines, findings);

    let names: Vec<_> = draft.keys.iter().map(|key| &key.name).collect();
    let key_names = Names::collect(&names, "key", &lines, findings);

    let nqns = draft
        .exports
        .iter()
        .filter_map(|export| export.nqn.as_ref());
    report_duplicate_values(
        nqns,
        "the NQN",
        "each export is a subsystem of its own",
        &lines,
        findings,
    );
    let uuids = draft
        .devices
        .iter()
        .filter_map(|device| device.uuid.as_ref());
    report_duplicate_values(
        uuids,
        "the UUID",
        "hosts treat equal UUIDs as one disk",
        &lines,
        findings,
    );
    let paths = draft
        .devices
        .iter()
        .filter_map(|device| device.path.as_ref());
    let paths: Vec<Located<String>> = paths
        .map(|path| Located {
            value: path
                .value
                .components()
                .collect::<std::path::PathBuf>()
                .display()
                .to_string(),
            span: path.span.clone(),
            path: path.path.clone(),
        })
        .collect();
    report_duplicate_values(
        paths.iter(),
        "the file",
        "two devices would overwrite each other",
        &lines,
        findings,
    );
    drives(draft, &lines, findings);
    addresses(draft, &lines, findings);
    control_address(draft, findings);
    shared_devices(draft, findings);
    secure_hosts(draft, findings);

    for export in &draft.exports {
        for namespace in &export.namespaces {
            device_names.check(&namespace.device, findings);
        }
        for listener in &export.listeners {
            listener_names.check(listener, findings);
        }
        for key in &export.keys {
            key_names.check(key, findings);
        }
    }
    rate_limits(draft, &device_names, &lines, findings);
    files::validate(draft, &device_names, &lines, findings);
    let devices = draft.exports.iter().flat_map(|export| &export.namespaces);
    report_duplicate_values(
        devices.map(|namespace| &namespace.device),
        "the device",
        "a device belongs to one export; otherwise hosts would see one disk as two",
        &lines,
        findings,
    );
}

/// Rate limits name existing devices and exports, and no commands are counted twice for the same.
fn rate_limits(
    draft: &Draft,
    device_names: &Names<'_>,
    lines: &Lines<'_>,
    findings: &mut Findings,
) {
    let nqns = draft.exports.iter().filter_map(|it| it.nqn.as_ref());
    let exports: HashSet<_> = nqns.map(|nqn| &nqn.value).collect();
    let are_readable = draft.exports.iter().all(|it| it.nqn.is_some()) && !exports.is_empty();
    let mut limits: HashMap<&RateScope, Vec<(&Located<RateScope>, Operations)>> = HashMap::new();
    for limit in &draft.rate_limits {
        if let Some(device) = &limit.device {
            device_names.check(device, findings);
        }
        if let Some(export) = &limit.export
            && are_readable
            && !exports.contains(&export.value)
        {
            findings.add(|| Finding {
                hint: Some("write the NQN of an [[export]] of this file".to_owned()),
                ..export.finding(
                    ProblemKind::UnknownName,
                    format!("there is no export {}", excerpt_of(export.value.as_str())),
                )
            });
        }
        let (Some(scope), Some(operations)) = (&limit.scope, limit.operations) else {
            continue;
        };
        let same = limits.entry(&scope.value).or_default();
        if let Some((first, _)) = same.iter().find(|(_, other)| operations.overlap(*other)) {
            let line = lines.line(first.span.start);
            findings.add(|| Finding {
                hint: Some("remove one, or limit reads and writes with one each".to_owned()),
                ..scope.finding(
                    ProblemKind::Duplicate,
                    format!("the limit at line {line} counts the same commands"),
                )
            });
        }
        same.push((scope, operations));
    }
}

/// The names of one kind of object.
struct Names<'d> {
    what: &'static str,
    /// Each name once, in the order of the file.
    in_order: Vec<&'d str>,
    all: HashSet<&'d str>,
    /// Whether there is at least one name and all are readable. Otherwise an unknown name may be a
    /// consequence of a reported problem.
    complete: bool,
}

impl<'d> Names<'d> {
    fn collect(
        names: &[&'d NameDraft],
        what: &'static str,
        lines: &Lines<'_>,
        findings: &mut Findings,
    ) -> Names<'d> {
        let known = || names.iter().filter_map(|name| name.text.as_ref());
        report_duplicate_values(
            known(),
            "the name",
            "exports refer to it by its name",
            lines,
            findings,
        );
        let mut all = HashSet::new();
        let texts = known().map(|name| name.value.as_str());
        Names {
            what,
            in_order: texts.filter(|name| all.insert(*name)).collect(),
            all,
            // A file without devices or listeners has a finding already; one without keys has none.
            complete: (!names.is_empty() || what == "key")
                && names.iter().all(|name| name.text.is_some()),
        }
    }

    fn check(&self, name: &Located<String>, findings: &mut Findings) {
        if !self.complete || self.all.contains(name.value.as_str()) {
            return;
        }
        let what = self.what;
        findings.add(|| {
            let all = listed(self.in_order.iter().copied(), NAMES_LISTED_MAX);
            let all = match self.in_order.is_empty() {
                true => format!("add a [[{what}]] with this name"),
                false => format!("the {what}s of this file: {all}"),
            };
            Finding {
                hint: Some(match nearest(&name.value, self.in_order.iter().copied()) {
                    Some(near) => format!("did you mean `{near}`? {all}"),
                    None => all,
                }),
                ..name.finding(
                    ProblemKind::UnknownName,
                    format!("{what} `{}` does not exist", excerpt_of(&name.value)),
                )
            }
        });
    }
}

/// Reports every value that occurs earlier.
fn report_duplicate_values<'d, T: Eq + Hash + ToString + 'd>(
    values: impl Iterator<Item = &'d Located<T>>,
    what: &str,
    why: &str,
    lines: &Lines<'_>,
    findings: &mut Findings,
) {
    let mut places: HashMap<&T, &Located<T>> = HashMap::new();
    for item in values {
        let Some(first) = places.get(&item.value) else {
            places.insert(&item.value, item);
            continue;
        };
        let value = excerpt_of(&item.value.to_string());
        let line = lines.line(first.span.start);
        findings.add(|| Finding {
            hint: Some(why.to_owned()),
            ..item.finding(
                ProblemKind::Duplicate,
                format!(
                    "{what} `{value}` is taken by {} at line {line}",
                    first.path.as_str()
                ),
            )
        });
    }
}

/// Reports listeners that cannot be bound together.
fn addresses(draft: &Draft, lines: &Lines<'_>, findings: &mut Findings) {
    let known: Vec<_> = draft
        .listeners
        .iter()
        .filter_map(|listener| Some((listener.transport, listener.address.as_ref()?)))
        .collect();
    for (index, (transport, address)) in known.iter().enumerate() {
        // TCP and RDMA have separate port spaces.
        let before = known.iter().take(index);
        let mut alike = before.filter(|(other, _)| other == transport);
        let Some((_, first)) = alike.find(|(_, other)| other.value.overlaps(address.value)) else {
            continue;
        };
        let line = lines.line(first.span.start);
        findings.add(|| Finding {
            hint: Some("use another port, or one listener for both".to_owned()),
            ..address.finding(
                ProblemKind::Duplicate,
                format!(
                    "{} overlaps {} of {} at line {line}",
                    address.value,
                    first.value,
                    first.path.as_str(),
                ),
            )
        });
    }
}

/// Reports exports of shared devices without the keys by which hosts combine the appliances.
fn shared_devices(draft: &Draft, findings: &mut Findings) {
    let shared = draft.devices.iter().filter(|device| device.is_shared);
    let shared = shared.filter_map(|device| Some(&device.name.text.as_ref()?.value));
    let shared: HashSet<&String> = shared.collect();
    for export in &draft.exports {
        let mut namespaces = export.namespaces.iter();
        if namespaces.any(|namespace| shared.contains(&namespace.device.value)) {
            for missing in &export.missing_if_shared {
                findings.add(|| missing.clone());
            }
        }
    }
}

/// Reports hosts that need TLS where no listener of their export has it in the form that they need.
fn secure_hosts(draft: &Draft, findings: &mut Findings) {
    for export in &draft.exports {
        let is_of_export = |name: &NameDraft| {
            let name = name.text.as_ref().map(|it| &it.value);
            name.is_none_or(|name| export.listeners.iter().any(|it| it.value == *name))
        };
        let listeners = || draft.listeners.iter().filter(|it| is_of_export(&it.name));
        for need in &export.tls_needs {
            if !listeners().any(|it| it.tls.is_none_or(|tls| need.values.contains(&tls))) {
                findings.add(|| need.finding.clone());
            }
        }
    }
}

/// Reports listeners on the port of the control plane's HTTP.
fn control_address(draft: &Draft, findings: &mut Findings) {
    let Some(http) = draft.control.http.and_then(HttpAddress::address) else {
        return;
    };
    for listener in &draft.listeners {
        let Some(address) = &listener.address else {
            continue;
        };
        if listener.transport == Some(Transport::Tcp) && address.value.overlaps(http) {
            findings.add(|| Finding {
                hint: Some("take another port here or as `http` of [control]".to_owned()),
                ..address.finding(
                    ProblemKind::Duplicate,
                    format!(
                        "{} overlaps {http}, the control plane's HTTP",
                        address.value
                    ),
                )
            });
        }
    }
}

/// Reports drive namespaces that occur twice, and devices of one drive with different drive
/// settings.
fn drives(draft: &Draft, lines: &Lines<'_>, findings: &mut Findings) {
    let known: Vec<&DriveDraft> = draft
        .devices
        .iter()
        .filter_map(|device| device.drive.as_ref())
        .collect();
    for (index, drive) in known.iter().enumerate() {
        let before = || {
            let before = known.iter().take(index);
            before.filter(|other| other.pci.value == drive.pci.value)
        };
        let (pci, namespace) = (drive.pci.value, drive.drive.namespace);
        if let Some(first) = before().find(|other| other.drive.namespace == namespace) {
            let line = lines.line(first.pci.span.start);
            findings.add(|| Finding {
                hint: Some("give the second device another `namespace`".to_owned()),
                ..drive.pci.finding(
                    ProblemKind::Duplicate,
                    format!(
                        "namespace {namespace} of the drive {pci} is taken by {} at line {line}",
                        first.pci.path.as_str()
                    ),
                )
            });
            continue;
        }
        let other_use = before().find_map(|first| Some((first, difference(first, drive)?)));
        if let Some((first, key)) = other_use {
            let line = lines.line(first.pci.span.start);
            findings.add(|| Finding {
                hint: Some("write the same for each of the drive's devices".to_owned()),
                ..drive.pci.finding(
                    ProblemKind::Conflict,
                    format!("the drive {pci} has another `{key}` at line {line}"),
                )
            });
        }
    }
}

/// The first drive key in which two devices of a drive differ.
fn difference(one: &DriveDraft, other: &DriveDraft) -> Option<&'static str> {
    let lines = one.drive.lines().into_iter().zip(other.drive.lines());
    let is_of_namespace = |key| ["namespace", "data_path"].contains(&key);
    let differs =
        |(one, other): &(Line, Line)| !is_of_namespace(one.key) && one.value != other.value;
    lines.into_iter().find(differs).map(|(line, _)| line.key)
}
