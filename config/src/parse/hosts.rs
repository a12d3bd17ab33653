//! Reads the elements of the key `hosts` of the table `export`: names, or tables with the keys of a
//! host.

use toml::de::DeValue;

use super::Located;
use super::export::{all_names, is_not_discovery, report_duplicates};
use super::reader::{Element, Reader};
use super::setting::Fault;
use crate::keys;
use crate::limits::HOST_KEYS_MAX;
use crate::model::{HostAuthentication, Tls};
use crate::problem::{Finding, Findings, ProblemKind};
use crate::value::{Name, Nqn};

/// A host, as far as it is readable.
pub(super) struct HostDraft {
    pub(super) nqn: Located<Nqn>,
    /// The keys that it refers to.
    pub(super) keys: Vec<Located<String>>,
    /// How it authenticates itself; `Some(None)` if it does not.
    pub(super) authentication: Option<Option<HostAuthentication>>,
    /// What it needs of a listener of the export.
    pub(super) tls_needs: Vec<TlsNeed>,
}

/// What a host needs of one of its export's listeners.
#[derive(Clone, Debug)]
pub(crate) struct TlsNeed {
    /// The values of the listener's `tls` with which it can connect.
    pub(crate) values: &'static [Tls],
    /// The finding if no listener has one.
    pub(crate) finding: Finding,
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
        tls_needs: Vec::new(),
    })
}

fn host_table(table: &Reader<'_, '_>, findings: &mut Findings) -> Option<HostDraft> {
    let nqn = table.required::<Nqn>("nqn", findings);
    let chap = names(table, "chap", findings);
    let controller = table.optional::<String>("chap_controller", findings);
    let null_group = table.optional::<bool>("chap_null_group", findings);
    let null_group = table.or_default("chap_null_group", null_group, false);
    let tls = names(table, "tls", findings);
    let concatenation = table.optional::<bool>("concatenation", findings);
    let concatenation = table.or_default("concatenation", concatenation, false);
    let required = required(table, findings);
    report_useless(table, findings);
    report_impossible(table, required, findings);
    report_unasked(table, (concatenation, required), findings);
    let all = chap.iter().flatten().chain(&controller);
    let keys = all.chain(tls.iter().flatten()).cloned().collect();
    let tls_needs = tls_needs(table, concatenation, required);
    let nqn = nqn.filter(|nqn| is_not_discovery(nqn, "a host", findings))?;
    let authentication = authentication(
        table,
        &nqn.value,
        Keys {
            chap,
            controller,
            tls,
        },
        (null_group, concatenation, required),
    );
    Some(HostDraft {
        nqn,
        keys,
        authentication,
        tls_needs,
    })
}

/// Reports keys that have no effect without `chap`.
fn report_useless(table: &Reader<'_, '_>, findings: &mut Findings) {
    if table.has("chap") {
        return;
    }
    for key in ["chap_controller", "chap_null_group", "concatenation"] {
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
}

/// Reports requirements that the host has no keys for.
fn report_impossible(table: &Reader<'_, '_>, required: Option<Required>, findings: &mut Findings) {
    let Some(required) = required else {
        return;
    };
    if required.chap && !table.has("chap") {
        findings.add(|| Finding {
            hint: Some("name the host's key in `chap`".to_owned()),
            ..table.missing(
                "chap",
                "the host has to authenticate itself, and `chap` is missing".to_owned(),
            )
        });
    }
    if required.tls && !table.has("tls") && !table.has("concatenation") {
        findings.add(|| Finding {
            hint: Some("name the host's key in `tls`".to_owned()),
            ..table.missing(
                "tls",
                "the host has to use TLS, and `tls` is missing".to_owned(),
            )
        });
    }
}

/// Reports a host that may generate a key and is never asked to, because nothing is required of it.
fn report_unasked(
    table: &Reader<'_, '_>,
    (concatenation, required): (Option<bool>, Option<Required>),
    findings: &mut Findings,
) {
    let asks = required.is_none_or(|it| it.chap || it.tls);
    if concatenation == Some(true) && !asks {
        findings.add(|| {
            Finding {
            hint: Some("write require = [\"tls\"], or [\"chap\"]".to_owned()),
            ..table.at_key(
                "concatenation",
                ProblemKind::Conflict,
                "`concatenation` has no effect without `require`: hosts authenticate themselves if \
                 they have to"
                    .to_owned(),
            )
        }
        });
    }
}

/// What a host needs of the listeners, as far as that is readable.
fn tls_needs(
    table: &Reader<'_, '_>,
    concatenation: Option<bool>,
    required: Option<Required>,
) -> Vec<TlsNeed> {
    let need = |key, values, message: &str, hint: &str| TlsNeed {
        values,
        finding: Finding {
            hint: Some(hint.to_owned()),
            ..table.at_key(key, ProblemKind::Conflict, message.to_owned())
        },
    };
    let mut needs = Vec::new();
    if concatenation == Some(true) {
        needs.push(need(
            "concatenation",
            &[Tls::Allowed],
            "the host generates a key on a connection without TLS, and uses it with TLS, and no \
             listener of the export has both",
            "write tls = \"allowed\" in [[listener]]",
        ));
    } else if required.is_some_and(|it| it.tls) && table.has("tls") {
        needs.push(need(
            "require",
            &[Tls::Allowed, Tls::Required],
            "the host has to use TLS, and no listener of the export has it",
            "write tls = \"required\" or \"allowed\" in [[listener]]",
        ));
    }
    needs
}

/// The key names of a host, as far as they are readable.
struct Keys {
    chap: Option<Vec<Located<String>>>,
    controller: Option<Located<String>>,
    tls: Option<Vec<Located<String>>>,
}

fn authentication(
    table: &Reader<'_, '_>,
    host: &Nqn,
    keys: Keys,
    (null_group, concatenation, required): (Option<bool>, Option<bool>, Option<Required>),
) -> Option<Option<HostAuthentication>> {
    if !table.has("chap") && !table.has("tls") {
        return Some(None);
    }
    let chap_controller: Option<Name> = match keys.controller {
        Some(name) => Some(name.value.parse().ok()?),
        None if table.has("chap_controller") => return None,
        None => None,
    };
    let named = |key, names: Option<Vec<Located<String>>>| match table.has(key) {
        true => all_names(&names?),
        false => Some(Vec::new()),
    };
    let required = required?;
    Some(Some(HostAuthentication {
        host: host.clone(),
        chap: named("chap", keys.chap)?,
        chap_controller,
        chap_null_group: null_group?,
        concatenation: concatenation?,
        requires_chap: required.chap,
        tls: named("tls", keys.tls)?,
        requires_tls: required.tls,
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
            hint: Some(format!("name a key, or remove `{key}`")),
            ..table.at_key(key, ProblemKind::Missing, format!("`{key}` is empty"))
        });
        return None;
    }
    let read = elements.iter().filter_map(|element| element.read(findings));
    let names: Vec<Located<String>> = read.collect();
    report_duplicates(&names, findings);
    (names.len() == elements.len()).then_some(names)
}

/// What a host has to do.
#[derive(Clone, Copy, Default)]
struct Required {
    chap: bool,
    tls: bool,
}

/// What the host has to do; `None` if that is not readable.
fn required(table: &Reader<'_, '_>, findings: &mut Findings) -> Option<Required> {
    if !table.has("require") {
        return Some(Required::default());
    }
    let elements = table.elements("require", 2, findings)?;
    let mut required = Some(Required::default());
    for element in &elements {
        let word = element.read::<String>(findings)?;
        match word.value.as_str() {
            "chap" => required = required.map(|it| Required { chap: true, ..it }),
            "tls" => required = required.map(|it| Required { tls: true, ..it }),
            _ => {
                required = None;
                findings.add(|| Finding {
                    hint: Some("write require = [\"tls\"] or [\"chap\"]".to_owned()),
                    ..word.finding(
                        ProblemKind::UnknownName,
                        "`require` takes \"chap\" and \"tls\"".to_owned(),
                    )
                });
            }
        }
    }
    required
}
