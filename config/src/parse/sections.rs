//! Names and listeners, as far as they are readable in invalid tables.

use toml::de::DeValue;

use super::Located;
use super::reader::Reader;
use super::setting::{Fault, Setting};
use crate::model::{Cores, Listener, Tls, Transport};
use crate::problem::Findings;
use crate::table::Table as _;
use crate::value::{CoreList, ListenAddress, Name};

/// A name as written. References to an invalid name still resolve to it.
#[derive(Clone, Debug, Default)]
pub(crate) struct NameDraft {
    /// The text, if the key is present and a string.
    pub(crate) text: Option<Located<String>>,
}

impl NameDraft {
    /// Reports nothing: the reader of the table reports the faults.
    pub(super) fn of(table: &Reader<'_, '_>) -> NameDraft {
        let text = table.optional("name", &mut Findings::default());
        NameDraft { text }
    }

    pub(super) fn read(
        table: &Reader<'_, '_>,
        findings: &mut Findings,
    ) -> (NameDraft, Option<Name>) {
        let name = table.required::<Name>("name", findings);
        (NameDraft::of(table), name.map(|name| name.value))
    }
}

impl Setting for String {
    fn read(value: &DeValue<'_>) -> Result<String, Fault> {
        value
            .as_str()
            .map(str::to_owned)
            .ok_or_else(|| Fault::wrong_type("a string", value))
    }
}

impl Setting for Cores {
    fn read(value: &DeValue<'_>) -> Result<Cores, Fault> {
        match value.as_str() {
            Some("auto") => Ok(Cores::Auto),
            _ => CoreList::read(value).map(Cores::List),
        }
    }
}

/// A listener, as far as it is readable.
#[derive(Debug)]
pub(crate) struct ListenerDraft {
    pub(crate) name: NameDraft,
    pub(crate) transport: Option<Transport>,
    pub(crate) address: Option<Located<ListenAddress>>,
    /// Whether its connections are protected by TLS; `None` if that is not readable.
    pub(crate) tls: Option<Tls>,
    listener: Option<Listener>,
}

impl ListenerDraft {
    pub(super) fn read(table: &Reader<'_, '_>, findings: &mut Findings) -> ListenerDraft {
        let listener = Listener::read(table, findings, Some(()));
        // The faults of these keys are already reported.
        let found = &mut Findings::default();
        let transport = table.optional::<Transport>("transport", found);
        ListenerDraft {
            name: NameDraft::of(table),
            transport: transport.map(|transport| transport.value),
            address: table.optional("address", found),
            tls: match table.optional::<Tls>("tls", found) {
                Some(tls) => Some(tls.value),
                None => (!table.has("tls")).then_some(Tls::Off),
            },
            listener,
        }
    }

    pub(super) fn finish(self) -> Option<Listener> {
        self.listener
    }
}
