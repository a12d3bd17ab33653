//! Reads the key `masks` of the table `export`.

use std::collections::{HashMap, HashSet};

use super::Located;
use super::export::{NamespaceDraft, all_names, hosts, none_of_export, report_duplicates};
use super::reader::{Element, Reader};
use crate::keys;
use crate::limits::{HOSTS_MAX, MASKS_MAX, NAMESPACES_MAX};
use crate::model::{Access, Mask};
use crate::problem::{Finding, Findings, ProblemKind};
use crate::suggest::{excerpt_of, nearest};
use crate::value::Nqn;

/// A mask, as far as it is readable.
struct MaskDraft {
    hosts: Vec<Located<Nqn>>,
    devices: Vec<Located<String>>,
    read_only: Vec<Located<String>>,
    is_whole: bool,
}

/// Reads the masks. `access` has the export's hosts, if they are valid.
pub(super) fn masks(
    table: &Reader<'_, '_>,
    namespaces: &[NamespaceDraft],
    access: Option<&Access>,
    findings: &mut Findings,
) -> Option<Vec<Mask>> {
    if !table.has("masks") {
        return Some(Vec::new());
    }
    let elements = table.elements("masks", MASKS_MAX, findings)?;
    if let Some(Access::AnyHost) = access {
        findings.add(|| Finding {
            hint: Some("list the export's hosts in `hosts`".to_owned()),
            ..table.at_key(
                "masks",
                ProblemKind::Conflict,
                "`masks` and `allow_any_host = true` exclude each other: a host would evade its \
                 mask under another name"
                    .to_owned(),
            )
        });
    }
    let mut masks = Vec::new();
    let mut all = true;
    let mut masked: HashMap<Nqn, String> = HashMap::new();
    for element in &elements {
        let Some(draft) = mask(element, findings) else {
            all = false;
            continue;
        };
        if let Some(Access::Hosts(hosts)) = access {
            draft.check_hosts(hosts, findings);
        }
        draft.check_devices(namespaces, findings);
        for host in &draft.hosts {
            if let Some(first) = masked.get(&host.value) {
                findings.add(|| has_mask(host, first));
            }
        }
        for host in &draft.hosts {
            let path = host.path.as_str().to_owned();
            masked.entry(host.value.clone()).or_insert(path);
        }
        match draft.finish() {
            Some(mask) => masks.push(mask),
            None => all = false,
        }
    }
    all.then_some(masks)
}

fn mask(element: &Element<'_, '_>, findings: &mut Findings) -> Option<MaskDraft> {
    let table = element.table(&keys::MASK, findings)?;
    if !table.has("hosts") {
        table.report_missing("hosts", findings);
    }
    let listed = table.elements("hosts", HOSTS_MAX, findings);
    if listed.as_ref().is_some_and(Vec::is_empty) {
        findings.add(|| Finding {
            hint: Some("name hosts, or remove the mask".to_owned()),
            ..table.at_key("hosts", ProblemKind::Missing, "`hosts` is empty".to_owned())
        });
    }
    let listed = listed.unwrap_or_default();
    let hosts = hosts(&listed, findings);
    let mut is_whole = !hosts.is_empty() && hosts.len() == listed.len();
    let [devices, read_only] = ["devices", "read_only"].map(|key| {
        let elements = match table.has(key) {
            true => table.elements(key, NAMESPACES_MAX, findings),
            false => Some(Vec::new()),
        };
        is_whole &= elements.is_some();
        let elements = elements.unwrap_or_default();
        let names = elements.iter().filter_map(|it| it.read(findings));
        let names: Vec<Located<String>> = names.collect();
        is_whole &= names.len() == elements.len();
        names
    });
    let both = [devices.as_slice(), &read_only].concat();
    report_duplicates(&both, findings);
    if !table.has("devices") && !table.has("read_only") {
        is_whole = false;
        findings.add(|| Finding {
            hint: Some(
                "name what its hosts see in `devices` or `read_only`; `devices = []` shows nothing"
                    .to_owned(),
            ),
            ..table.missing("devices", "the mask names no device".to_owned())
        });
    }
    Some(MaskDraft {
        hosts,
        devices,
        read_only,
        is_whole,
    })
}

impl MaskDraft {
    /// Reports hosts that may not attach the export.
    fn check_hosts(&self, hosts: &[Nqn], findings: &mut Findings) {
        let allowed: HashSet<&str> = hosts.iter().map(Nqn::as_str).collect();
        for host in &self.hosts {
            if !allowed.contains(host.value.as_str()) {
                findings.add(|| Finding {
                    hint: Some(
                        match nearest(host.value.as_str(), hosts.iter().map(Nqn::as_str)) {
                            Some(near) => format!("did you mean `{near}`?"),
                            None => "add it to `hosts`, or remove it here".to_owned(),
                        },
                    ),
                    ..host.finding(
                        ProblemKind::UnknownName,
                        format!(
                            "`{}` is none of this export's hosts",
                            excerpt_of(host.value.as_str())
                        ),
                    )
                });
            }
        }
    }

    /// Reports devices that the export does not have.
    fn check_devices(&self, namespaces: &[NamespaceDraft], findings: &mut Findings) {
        let names = || namespaces.iter().map(|it| it.device.value.as_str());
        for device in self.devices.iter().chain(&self.read_only) {
            // Without devices there is a finding already.
            if namespaces.is_empty() || names().any(|name| name == device.value) {
                continue;
            }
            findings.add(|| none_of_export(device, "devices", names()));
        }
    }

    fn finish(self) -> Option<Mask> {
        let (devices, read_only) = (all_names(&self.devices)?, all_names(&self.read_only)?);
        self.is_whole.then(|| Mask {
            hosts: self.hosts.into_iter().map(|host| host.value).collect(),
            devices,
            read_only,
        })
    }
}

fn has_mask(host: &Located<Nqn>, first: &str) -> Finding {
    Finding {
        hint: Some("a host has one mask in an export: write all of its devices there".to_owned()),
        ..host.finding(
            ProblemKind::Duplicate,
            format!(
                "`{}` has a mask already, as {first}",
                excerpt_of(host.value.as_str())
            ),
        )
    }
}
