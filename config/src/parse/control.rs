//! Reads the table `control`.

use super::reader::Reader;
use crate::model::Control;
use crate::problem::{Finding, Findings, ProblemKind};
use crate::table::Table as _;
use crate::value::{ControlSocket, HttpAddress};

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
    token_rules(table, http, findings);
    ControlDraft { http, control }
}

fn token_rules(table: &Reader<'_, '_>, http: Option<HttpAddress>, findings: &mut Findings) {
    let Some(http) = http else {
        return;
    };
    let has_token = table.has("token_file");
    if http == HttpAddress::Off && has_token {
        report_unusable(
            table,
            "token_file",
            "`token_file` has no effect with http = \"off\"",
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

fn report_unusable(table: &Reader<'_, '_>, key: &'static str, why: &str, findings: &mut Findings) {
    findings.add(|| Finding {
        hint: Some("remove it".to_owned()),
        ..table.at_key(key, ProblemKind::Conflict, why.to_owned())
    });
}
