//! Reads the elements of the key `hosts` of the table `export`: names, or tables with the keys of a
//! host.

use toml::de::DeValue;

use super::Located;
use super::export::{all_names, is_not_discovery, report_duplicates};
use super::reader::{Element, Reader};
use super::setting::Fault;
use crate::keys;
use crate::limits::HOST_KEYS_MAX;
use crate::model::HostAuthentication;
use crate::problem::{Finding, Findings, ProblemKind};
use crate::value::{Name, Nqn};

/// A host, as far as it is readable.
pub(super) struct HostDraft {
    pub(super) nqn: Located<Nqn>,
    /// The keys that it refers to.
    pub(super) keys: Vec<Located<String>>,
    /// How it authenticates itself; `Some(None)` if it does not.
    pub(super) authentication: Option<Option<HostAuthentication>>,
}

/// The readable hosts of a list.
pub(super) fn hosts(elements: &[Element<'_, '_>], findings: &mut Findings) -> Vec<HostDraft> {
    let hosts = elements
        .iter()
        .filter_map(|element| host(element, findings));
    let hosts: Vec<HostDraft> = hosts.collect();
    let names: Vec<Located<Nqn>> = hosts.iter().map(|host| host.nqn.clone()).collect();
    report_duplicates(&names, findings);
    hosts
}

fn host(element: &Element<'_, '_>, findings: &mut Findings) -> Option<HostDraft> {
    if let DeValue::Table(_) = element.value {
        let table = element.table(&keys::HOST, findings)?;
        return host_table(&table, findings);
    }
    if element.value.as_str().is_none() {
        let fault = || Fault::wrong_type("a host's NQN or a table", element.value);
        findings.add(|| element.finding(fault()));
        return None;
    }
    let nqn = element.read::<Nqn>(findings)?;
    is_not_discovery(&nqn, "a host", findings).then_some(HostDraft {
        nqn,
        keys: Vec::new(),
        authentication: Some(None),
    })
}

fn host_table(table: &Reader<'_, '_>, findings: &mut Findings) -> Option<HostDraft> {
    let nqn = table.required::<Nqn>("nqn", findings);
    let chap = names(table, "chap", findings);
    let controller = table.optional::<String>("chap_controller", findings);
    let null_group = table.optional::<bool>("chap_null_group", findings);
    let null_group = table.or_default("chap_null_group", null_group, false);
    let is_required = requires_chap(table, findings);
    if !table.has("chap") {
        for key in ["chap_controller", "chap_null_group"] {
            if table.has(key) {
                findings.add(|| Finding {
                    hint: Some("add `chap`, or remove it".to_owned()),
                    ..table.at_key(
                        key,
                        ProblemKind::Conflict,
                        format!("`{key}` has no effect without `chap`"),
                    )
                });
            }
        }
        if is_required == Some(true) {
            findings.add(|| Finding {
                hint: Some("name the host's key in `chap`".to_owned()),
                ..table.missing(
                    "chap",
                    "the host has to authenticate itself, and `chap` is missing".to_owned(),
                )
            });
        }
    }
    let keys = chap.iter().flatten().chain(&controller).cloned().collect();
    let nqn = nqn.filter(|nqn| is_not_discovery(nqn, "a host", findings))?;
    let authentication = authentication(
        table,
        &nqn.value,
        (chap, controller),
        (null_group, is_required),
    );
    Some(HostDraft {
        nqn,
        keys,
        authentication,
    })
}

fn authentication(
    table: &Reader<'_, '_>,
    host: &Nqn,
    (chap, controller): (Option<Vec<Located<String>>>, Option<Located<String>>),
    (null_group, is_required): (Option<bool>, Option<bool>),
) -> Option<Option<HostAuthentication>> {
    if !table.has("chap") {
        return Some(None);
    }
    let chap_controller: Option<Name> = match controller {
        Some(name) => Some(name.value.parse().ok()?),
        None if table.has("chap_controller") => return None,
        None => None,
    };
    Some(Some(HostAuthentication {
        host: host.clone(),
        chap: all_names(&chap?)?,
        chap_controller,
        chap_null_group: null_group?,
        is_required: is_required?,
    }))
}

/// One key name, or several.
fn names(
    table: &Reader<'_, '_>,
    key: &'static str,
    findings: &mut Findings,
) -> Option<Vec<Located<String>>> {
    if table.is_text(key) {
        let name = table.optional::<String>(key, findings)?;
        return Some(vec![name]);
    }
    if !table.has(key) {
        return None;
    }
    let elements = table.elements(key, HOST_KEYS_MAX, findings)?;
    if elements.is_empty() {
        findings.add(|| Finding {
            hint: Some("name a key, or remove `chap`".to_owned()),
            ..table.at_key(key, ProblemKind::Missing, format!("`{key}` is empty"))
        });
        return None;
    }
    let read = elements.iter().filter_map(|element| element.read(findings));
    let names: Vec<Located<String>> = read.collect();
    report_duplicates(&names, findings);
    (names.len() == elements.len()).then_some(names)
}

/// Whether the host has to authenticate itself; `None` if that is not readable.
fn requires_chap(table: &Reader<'_, '_>, findings: &mut Findings) -> Option<bool> {
    if !table.has("require") {
        return Some(false);
    }
    let elements = table.elements("require", 1, findings)?;
    let mut requires = Some(false);
    for element in &elements {
        let word = element.read::<String>(findings)?;
        if word.value == "chap" {
            requires = Some(true);
            continue;
        }
        requires = None;
        findings.add(|| Finding {
            hint: Some("write require = [\"chap\"]".to_owned()),
            ..word.finding(
                ProblemKind::UnknownName,
                match word.value.as_str() {
                    "tls" => "TLS is not available in this version".to_owned(),
                    _ => "`require` takes \"chap\"".to_owned(),
                },
            )
        });
    }
    requires
}
