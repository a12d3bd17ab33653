//! The table `control`.

use std::path::{Component, PathBuf};

use super::Located;
use super::device::file_path;
use super::reader::Reader;
use crate::limits::{ALLOWED_PATHS_MAX, PATH_BYTES_MAX};
use crate::model::Control;
use crate::problem::{Finding, Findings, ProblemKind};
use crate::suggest::shown;
use crate::value::{ControlSocket, HttpAddress};

/// The control plane as far as it could be read.
#[derive(Debug)]
pub(crate) struct ControlDraft {
    /// Where it answers HTTP, unless what the file says could not be read.
    pub(crate) http: Option<HttpAddress>,
    control: Option<Control>,
}

impl Default for ControlDraft {
    fn default() -> ControlDraft {
        let control = Control::default();
        ControlDraft {
            http: Some(control.http),
            control: Some(control),
        }
    }
}

impl ControlDraft {
    pub(super) fn finish(self) -> Option<Control> {
        self.control
    }
}

pub(super) fn control(table: &Reader<'_, '_>, findings: &mut Findings) -> ControlDraft {
    let absent = Control::default();
    let socket = table.optional("socket", findings);
    let group = table.optional("group", findings);
    let http = table.optional("http", findings);
    let token_file = table
        .optional::<String>("token_file", findings)
        .and_then(|text| file_path(text, findings));
    let socket = table.or_default("socket", socket, absent.socket);
    let http = table.or_default("http", http, absent.http);
    if socket == Some(ControlSocket::Off) && table.has("group") {
        useless(
            table,
            "group",
            "there is no socket that a group could use",
            findings,
        );
    }
    token_rules(table, http, findings);
    let apply = table.optional("apply", findings);
    let apply = table.or_default("apply", apply, absent.apply);
    let allowed_paths = allowed_paths(table, findings);
    let finish = || {
        Some(Control {
            socket: socket?,
            group: group.map(|group| group.value),
            http: http?,
            token_file: token_path(table, token_file)?,
            apply: apply?,
            allowed_paths: allowed_paths?,
        })
    };
    ControlDraft {
        http,
        control: finish(),
    }
}

/// The outer `None`: one of the paths could not be read.
fn allowed_paths(table: &Reader<'_, '_>, findings: &mut Findings) -> Option<Option<Vec<PathBuf>>> {
    if !table.has("allowed_paths") {
        return Some(None);
    }
    let elements = table.elements("allowed_paths", ALLOWED_PATHS_MAX, findings)?;
    let mut paths = Vec::new();
    let mut all = true;
    for element in elements {
        let read = element.read::<String>(findings);
        match read.and_then(|text| directory(&text, findings)) {
            Some(path) => paths.push(path),
            None => all = false,
        }
    }
    all.then_some(Some(paths))
}

/// The path of a directory: absolute, and without `..`, which would make a prefix of it mean
/// something else.
fn directory(text: &Located<String>, findings: &mut Findings) -> Option<PathBuf> {
    let path = PathBuf::from(&text.value);
    let is_up = |part: Component<'_>| part == Component::ParentDir;
    let message = if text.value.chars().any(char::is_control) {
        "the path has a control character in it".to_owned()
    } else if text.value.len() > PATH_BYTES_MAX {
        format!("the path has more than {PATH_BYTES_MAX} bytes")
    } else if !path.is_absolute() {
        format!("`{}` is no absolute path", shown(&text.value))
    } else if path.components().any(is_up) {
        format!("`{}` has `..` in it", shown(&text.value))
    } else {
        return Some(path.components().collect());
    };
    findings.add(|| Finding {
        hint: Some("write the whole path of a directory, like \"/srv/windlass\"".to_owned()),
        ..text.finding(ProblemKind::BadValue, message)
    });
    None
}

/// The outer `None`: the key is there and could not be read.
fn token_path(table: &Reader<'_, '_>, read: Option<Located<PathBuf>>) -> Option<Option<PathBuf>> {
    match read {
        Some(path) => Some(Some(path.value)),
        None if table.has("token_file") => None,
        None => Some(None),
    }
}

fn token_rules(table: &Reader<'_, '_>, http: Option<HttpAddress>, findings: &mut Findings) {
    let Some(http) = http else {
        return;
    };
    let has_token = table.has("token_file");
    if http == HttpAddress::Off && has_token {
        useless(
            table,
            "token_file",
            "there is no HTTP that a token could guard",
            findings,
        );
    }
    if http.is_beyond_this_machine() && !has_token {
        let local = HttpAddress::default();
        findings.add(|| Finding {
            hint: Some(format!(
                "name a file that holds a token, or write http = \"{local}\" for this machine alone"
            )),
            ..table.missing(
                "token_file",
                format!("other machines reach {http}, and `token_file` is missing"),
            )
        });
    }
}

fn useless(table: &Reader<'_, '_>, key: &'static str, why: &str, findings: &mut Findings) {
    findings.add(|| Finding {
        hint: Some("remove it".to_owned()),
        ..table.at_key(key, ProblemKind::Conflict, why.to_owned())
    });
}
