//! Reads the table `control`.

use super::reader::Reader;
use crate::model::Control;
use crate::problem::{Finding, Findings, ProblemKind};
use crate::table::Table as _;
use crate::value::{ControlSocket, HttpAddress};

/// The keys that name files with tokens.
const TOKENS: [&str; 2] = ["token_file", "read_token_file"];

/// The control plane, as far as it is readable.
#[derive(Debug)]
pub(crate) struct ControlDraft {
    /// Its HTTP address, unless the value in the file is invalid.
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
    let control = Control::read(table, findings, Some(()));
    // The faults of these keys are already reported.
    let found = &mut Findings::default();
    let socket = table.optional::<ControlSocket>("socket", found);
    if table.has("group") && socket.is_some_and(|socket| socket.value == ControlSocket::Off) {
        let why = "`group` has no effect with socket = \"off\"";
        report_unusable(table, "group", why, findings);
    }
    let http = table.optional("http", found);
    let http = table.or_default("http", http, HttpAddress::default());
    access_rules(table, http, findings);
    ControlDraft { http, control }
}

/// The rules for the keys that say who may use HTTP, and how.
fn access_rules(table: &Reader<'_, '_>, http: Option<HttpAddress>, findings: &mut Findings) {
    let pair = ["certificate_file", "certificate_key_file"];
    for (key, other) in [(pair[0], pair[1]), (pair[1], pair[0])] {
        if table.has(key) && !table.has(other) {
            let why = format!("HTTPS needs `{key}` and `{other}`, and `{other}` is missing");
            findings.add(|| Finding {
                hint: Some(format!("name both files, or remove `{key}`")),
                ..table.missing(other, why)
            });
        }
    }
    let Some(http) = http else {
        return;
    };
    if http == HttpAddress::Off {
        for key in TOKENS.into_iter().chain(pair).filter(|key| table.has(key)) {
            let why = format!("`{key}` has no effect with http = \"off\"");
            report_unusable(table, key, &why, findings);
        }
    }
    if http.is_beyond_this_machine() && !TOKENS.into_iter().any(|key| table.has(key)) {
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

fn report_unusable(table: &Reader<'_, '_>, key: &'static str, why: &str, findings: &mut Findings) {
    findings.add(|| Finding {
        hint: Some("remove it".to_owned()),
        ..table.at_key(key, ProblemKind::Conflict, why.to_owned())
    });
}
