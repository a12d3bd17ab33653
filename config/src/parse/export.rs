//! Reads the table `export`.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;

use toml::de::DeValue;

use super::Located;
use super::hosts::{HostDraft, TlsNeed, hosts as host_drafts};
use super::masks::masks;
use super::reader::{Element, Reader};
use super::setting::Fault;
use crate::keys;
use crate::limits::{
    ANA_ENTRIES_MAX, ANA_GROUPS_MAX, HOSTS_MAX, LISTENERS_MAX, NAMESPACES_MAX, NSID_MAX,
};
use crate::model::{Access, AnaEntry, AnaState, Export, Namespace};
use crate::problem::{Finding, Findings, ProblemKind};
use crate::suggest::{NAMES_LISTED_MAX, excerpt_of, listed, nearest};
use crate::table::Table as _;
use crate::value::{Name, Nqn};

/// An export, as far as it is readable.
#[derive(Debug)]
pub(crate) struct ExportDraft {
    pub(crate) nqn: Option<Located<Nqn>>,
    pub(crate) namespaces: Vec<NamespaceDraft>,
    pub(crate) listeners: Vec<Located<String>>,
    /// The names of keys that its hosts refer to.
    pub(crate) keys: Vec<Located<String>>,
    /// What its hosts need of one of its listeners.
    pub(crate) tls_needs: Vec<TlsNeed>,
    /// The findings if one of its devices is shared.
    pub(crate) missing_if_shared: Vec<Finding>,
    export: Option<Export>,
}

impl ExportDraft {
    pub(super) fn finish(self) -> Option<Export> {
        self.export
    }
}

/// A namespace, as far as it is readable.
#[derive(Debug)]
pub(crate) struct NamespaceDraft {
    /// The device's name as written.
    pub(crate) device: Located<String>,
    nsid: Option<u32>,
    ana_group: Option<u32>,
}

pub(super) fn export(table: &Reader<'_, '_>, findings: &mut Findings) -> ExportDraft {
    let nqn = table
        .required::<Nqn>("nqn", findings)
        .filter(|nqn| is_not_discovery(nqn, "an export", findings));
    let (drafts, namespaces) = namespaces(table, findings);
    let listeners = names(table, "listeners", LISTENERS_MAX, findings);
    let (access, hosts) = access(table, findings);
    let authentication = hosts.iter().map(|host| host.authentication.clone());
    let authentication: Option<Vec<_>> = authentication.collect();
    let tls_needs = hosts.iter().flat_map(|host| host.tls_needs.clone());
    let tls_needs = tls_needs.collect();
    let keys = hosts.into_iter().flat_map(|host| host.keys).collect();
    let groups = namespaces.as_ref();
    let groups: Option<BTreeSet<u32>> =
        groups.map(|all| all.iter().map(|it| it.ana_group).collect());
    let ana = ana(table, &listeners, groups.as_ref(), findings);
    let masks = masks(table, &drafts, access.as_ref(), findings);
    let dependent_fields = || {
        Some((
            nqn.as_ref()?.value.clone(),
            namespaces?,
            all_names(&listeners)?,
            access?,
            ana?,
            masks?,
            authentication?.into_iter().flatten().collect(),
        ))
    };
    let dependent_fields = dependent_fields();
    let export = Export::read(table, findings, dependent_fields);
    ExportDraft {
        nqn,
        namespaces: drafts,
        listeners,
        keys,
        tls_needs,
        missing_if_shared: missing_if_shared(table),
        export,
    }
}

/// The keys that an export of a shared device needs and that this one lacks.
fn missing_if_shared(table: &Reader<'_, '_>) -> Vec<Finding> {
    let keys = [
        (
            "serial",
            "hosts have to see one subsystem at each appliance of a shared device",
            "write the same `serial` at each appliance",
        ),
        (
            "controller_ids",
            "hosts need different controller identifiers at each appliance of a shared device",
            "write ranges that do not overlap, like [1, 32000] here and [32001, 65519] at the \
             other appliance",
        ),
    ];
    let missing = keys.into_iter().filter(|(key, ..)| !table.has(key));
    missing
        .map(|(key, why, hint)| Finding {
            hint: Some(hint.to_owned()),
            ..table.missing(key, format!("`{key}` is missing: {why}"))
        })
        .collect()
}

/// Reads the states of ANA groups. `groups` has those of the namespaces, if all are valid.
fn ana(
    table: &Reader<'_, '_>,
    listeners: &[Located<String>],
    groups: Option<&BTreeSet<u32>>,
    findings: &mut Findings,
) -> Option<Vec<AnaEntry>> {
    if !table.has("ana") {
        return Some(Vec::new());
    }
    let elements = table.elements("ana", ANA_ENTRIES_MAX, findings)?;
    let mut entries = Vec::new();
    let mut places: HashMap<(String, Option<u32>), usize> = HashMap::new();
    let mut all = true;
    for (index, element) in elements.iter().enumerate() {
        let Some(draft) = ana_entry(element, groups, findings) else {
            all = false;
            continue;
        };
        let AnaDraft {
            listener,
            group,
            state,
        } = draft;
        // Without listeners there is a finding already.
        let is_known = listeners.iter().any(|it| it.value == listener.value);
        if !is_known && !listeners.is_empty() {
            let names = listeners.iter().map(|it| it.value.as_str());
            findings.add(|| none_of_export(&listener, "listeners", names));
        }
        match listener.value.parse() {
            Ok(listener) => entries.push(AnaEntry {
                listener,
                group,
                state,
            }),
            Err(_) => all = false,
        }
        let place = (listener.value, group);
        if let Some(first) = places.get(&place) {
            findings.add(|| taken_path(element, &place, *first));
        } else {
            places.insert(place, index);
        }
    }
    all.then_some(entries)
}

/// An entry of `ana` as written.
struct AnaDraft {
    listener: Located<String>,
    group: Option<u32>,
    state: AnaState,
}

fn ana_entry(
    element: &Element<'_, '_>,
    groups: Option<&BTreeSet<u32>>,
    findings: &mut Findings,
) -> Option<AnaDraft> {
    let table = element.table(&keys::ANA, findings)?;
    let listener = table.required::<String>("listener", findings);
    let state = table.required::<AnaState>("state", findings);
    let group = table.count("group", 1..=ANA_GROUPS_MAX, findings);
    if let (Some(group), Some(groups)) = (&group, groups)
        && !groups.contains(&group.value)
    {
        let all: Vec<String> = groups.iter().map(u32::to_string).collect();
        findings.add(|| Finding {
            hint: Some(format!(
                "the ANA groups of its namespaces: {}",
                all.join(", ")
            )),
            ..group.finding(
                ProblemKind::UnknownName,
                format!("no namespace of this export is in group {}", group.value),
            )
        });
    }
    if table.has("group") && group.is_none() {
        return None;
    }
    Some(AnaDraft {
        listener: listener?,
        group: group.map(|group| group.value),
        state: state?.value,
    })
}

/// The finding for a name that refers to none of the export's `what`, which have these names.
pub(super) fn none_of_export<'n>(
    name: &Located<String>,
    what: &str,
    names: impl Iterator<Item = &'n str> + Clone,
) -> Finding {
    let all = format!("its {what}: {}", listed(names.clone(), NAMES_LISTED_MAX));
    Finding {
        hint: Some(match nearest(&name.value, names) {
            Some(near) => format!("did you mean `{near}`? {all}"),
            None => all,
        }),
        ..name.finding(
            ProblemKind::UnknownName,
            format!(
                "`{}` is none of this export's {what}",
                excerpt_of(&name.value)
            ),
        )
    }
}

fn taken_path(
    element: &Element<'_, '_>,
    (listener, group): &(String, Option<u32>),
    first: usize,
) -> Finding {
    let listener = excerpt_of(listener);
    let what = match group {
        Some(group) => format!("group {group} at listener `{listener}`"),
        None => format!("listener `{listener}` without a group"),
    };
    element.finding(Fault::with_hint(
        ProblemKind::Duplicate,
        format!("{what} has a state in entry {first} of this list"),
        "remove one".to_owned(),
    ))
}

pub(super) fn is_not_discovery(nqn: &Located<Nqn>, whose: &str, findings: &mut Findings) -> bool {
    if nqn.value.is_discovery() {
        findings.add(|| Finding {
            hint: Some("the discovery subsystem is always there and is not configured".to_owned()),
            ..nqn.finding(
                ProblemKind::Conflict,
                format!("the discovery subsystem's NQN cannot be that of {whose}"),
            )
        });
    }
    !nqn.value.is_discovery()
}

/// Reads the namespaces as written and, if all are valid, as the model has them.
fn namespaces(
    table: &Reader<'_, '_>,
    findings: &mut Findings,
) -> (Vec<NamespaceDraft>, Option<Vec<Namespace>>) {
    let elements = not_empty(table, "devices", NAMESPACES_MAX, findings);
    let mut drafts = Vec::new();
    let mut namespaces = Vec::new();
    let mut places: HashMap<u32, usize> = HashMap::new();
    let mut all = !elements.is_empty();
    let mut nsid_next = 1;
    for (index, element) in elements.iter().enumerate() {
        let Some(draft) = namespace(element, nsid_next, findings) else {
            all = false;
            continue;
        };
        match (draft.nsid, draft.ana_group, draft.device.value.parse()) {
            (Some(nsid), Some(ana_group), Ok(device)) => {
                nsid_next = nsid.saturating_add(1);
                namespaces.push(Namespace {
                    nsid,
                    device,
                    ana_group,
                });
                if let Some(first) = places.insert(nsid, index) {
                    findings.add(|| taken_nsid(element, nsid, first));
                }
            }
            _ => all = false,
        }
        drafts.push(draft);
    }
    (drafts, all.then_some(namespaces))
}

fn taken_nsid(element: &Element<'_, '_>, nsid: u32, first: usize) -> Finding {
    element.finding(Fault {
        kind: ProblemKind::Duplicate,
        message: format!("namespace identifier {nsid} is taken by entry {first} of this list"),
        hint: Some("a name takes the identifier after the one before it".to_owned()),
    })
}

fn namespace(
    element: &Element<'_, '_>,
    nsid_next: u32,
    findings: &mut Findings,
) -> Option<NamespaceDraft> {
    if let DeValue::Table(_) = element.value {
        let table = element.table(&keys::NAMESPACE, findings)?;
        let device = table.required::<String>("device", findings);
        if !table.has("nsid") {
            findings.add(|| table.missing("nsid", "`nsid` is missing".to_owned()));
        }
        let nsid = table
            .count("nsid", 1..=NSID_MAX, findings)
            .map(|nsid| nsid.value);
        let ana_group = table.count("ana_group", 1..=ANA_GROUPS_MAX, findings);
        let ana_group = table.or_default("ana_group", ana_group, Namespace::ANA_GROUP_DEFAULT);
        return Some(NamespaceDraft {
            device: device?,
            nsid,
            ana_group,
        });
    }
    if element.value.as_str().is_none() {
        findings.add(|| {
            element.finding(Fault::wrong_type(
                "a device's name or a table",
                element.value,
            ))
        });
        return None;
    }
    let device = element.read::<String>(findings)?;
    if nsid_next > NSID_MAX {
        findings.add(|| {
            element.finding(Fault {
                kind: ProblemKind::OutOfRange,
                message: format!(
                    "its namespace identifier would be {nsid_next}, the maximum is {NSID_MAX}"
                ),
                hint: Some(
                    "give identifiers in tables: { device = \"vol0\", nsid = 7 }".to_owned(),
                ),
            })
        });
        return None;
    }
    Some(NamespaceDraft {
        device,
        nsid: Some(nsid_next),
        ana_group: Some(Namespace::ANA_GROUP_DEFAULT),
    })
}

/// The elements of a required, non-empty array.
fn not_empty<'a, 'i>(
    table: &Reader<'a, 'i>,
    key: &'static str,
    count_max: usize,
    findings: &mut Findings,
) -> Vec<Element<'a, 'i>> {
    if !table.has(key) {
        findings.add(|| table.missing(key, format!("`{key}` is missing")));
    }
    let elements = table.elements(key, count_max, findings);
    if elements.as_ref().is_some_and(Vec::is_empty) {
        findings.add(|| Finding {
            span: table.value_span(key),
            hint: Some(match key {
                "hosts" => "name hosts, or write `allow_any_host = true`".to_owned(),
                _ => "name at least one, or remove the export".to_owned(),
            }),
            ..table.at_key(key, ProblemKind::Missing, format!("`{key}` is empty"))
        });
    }
    elements.unwrap_or_default()
}

/// The strings of a required, non-empty array without duplicates.
fn names(
    table: &Reader<'_, '_>,
    key: &'static str,
    count_max: usize,
    findings: &mut Findings,
) -> Vec<Located<String>> {
    let elements = not_empty(table, key, count_max, findings);
    let names: Vec<Located<String>> = elements
        .iter()
        .filter_map(|element| element.read(findings))
        .collect();
    report_duplicates(&names, findings);
    names
}

/// Reports values that occur earlier in the list.
pub(super) fn report_duplicates<T: Eq + Hash + ToString>(
    list: &[Located<T>],
    findings: &mut Findings,
) {
    let mut seen: HashMap<&T, &Located<T>> = HashMap::new();
    for item in list {
        if let Some(first) = seen.insert(&item.value, item) {
            let value = excerpt_of(&item.value.to_string());
            let first = first.path.as_str();
            findings.add(|| Finding {
                hint: Some("remove one".to_owned()),
                ..item.finding(
                    ProblemKind::Duplicate,
                    format!("`{value}` is in the list twice, first as {first}"),
                )
            });
        }
    }
}

/// The names, if all are valid. An invalid name refers to nothing and is reported as such.
pub(super) fn all_names(texts: &[Located<String>]) -> Option<Vec<Name>> {
    texts.iter().map(|text| text.value.parse().ok()).collect()
}

/// The readable hosts of a list.
pub(super) fn hosts(elements: &[Element<'_, '_>], findings: &mut Findings) -> Vec<Located<Nqn>> {
    let read = |element: &Element<'_, '_>| {
        element
            .read::<Nqn>(findings)
            .filter(|host| is_not_discovery(host, "a host", findings))
    };
    let hosts: Vec<Located<Nqn>> = elements.iter().filter_map(read).collect();
    report_duplicates(&hosts, findings);
    hosts
}

/// Who may attach the export, and the hosts that are listed.
fn access(table: &Reader<'_, '_>, findings: &mut Findings) -> (Option<Access>, Vec<HostDraft>) {
    let any = table.optional::<bool>("allow_any_host", findings);
    let any_unknown = any.is_none() && table.has("allow_any_host");
    let any = any.is_some_and(|any| any.value);
    if !table.has("hosts") {
        if !any && !any_unknown {
            let message = "`hosts` is missing: no host may attach this export".to_owned();
            findings.add(|| Finding {
                hint: Some(
                    "list the NQNs of its hosts (on Linux in /etc/nvme/hostnqn), or write \
                     `allow_any_host = true`"
                        .to_owned(),
                ),
                ..table.missing("hosts", message)
            });
        }
        return (any.then_some(Access::AnyHost), Vec::new());
    }
    if any {
        findings.add(|| Finding {
            hint: Some("remove one of the two".to_owned()),
            ..table.at_key(
                "hosts",
                ProblemKind::Conflict,
                "`hosts` and `allow_any_host = true` exclude each other".to_owned(),
            )
        });
    }
    let elements = not_empty(table, "hosts", HOSTS_MAX, findings);
    let hosts = host_drafts(&elements, findings);
    let whole = !any && !any_unknown && !hosts.is_empty() && hosts.len() == elements.len();
    let names = hosts.iter().map(|host| host.nqn.value.clone());
    (whole.then(|| Access::Hosts(names.collect())), hosts)
}
