//! Reads the table `key`.

use super::reader::{Found, Reader};
use super::sections::NameDraft;
use crate::kind::FilePath;
use crate::model::{Key, KeySource};
use crate::problem::{Finding, Findings, ProblemKind};
use crate::value::Name;

/// A key, as far as it is readable.
#[derive(Debug)]
pub(crate) struct KeyDraft {
    pub(crate) name: NameDraft,
    key: Option<Key>,
}

impl KeyDraft {
    pub(super) fn finish(self) -> Option<Key> {
        self.key
    }
}

pub(super) fn key(table: &Reader<'_, '_>, findings: &mut Findings) -> KeyDraft {
    let (draft, name) = NameDraft::read(table, findings);
    let source = source(table, findings);
    let key = name.zip(source).map(|(name, source)| Key { name, source });
    KeyDraft { name: draft, key }
}

fn source(table: &Reader<'_, '_>, findings: &mut Findings) -> Option<KeySource> {
    let file = table.find("file", &FilePath, None, findings);
    let credential = table.optional::<Name>("credential", findings);
    match (table.has("file"), table.has("credential")) {
        (true, false) => match file {
            Found::Value(path) => Some(KeySource::File(path)),
            Found::Wrong | Found::Absent => None,
        },
        (false, true) => Some(KeySource::Credential(credential?.value)),
        (true, true) => {
            findings.add(|| Finding {
                hint: Some("remove one of the two".to_owned()),
                ..table.at_key(
                    "credential",
                    ProblemKind::Conflict,
                    "`file` and `credential` exclude each other".to_owned(),
                )
            });
            None
        }
        (false, false) => {
            findings.add(|| Finding {
                hint: Some(
                    "name a file with the secret, or a credential of the service".to_owned(),
                ),
                ..table.missing(
                    "file",
                    "the key has neither `file` nor `credential`".to_owned(),
                )
            });
            None
        }
    }
}
