//! Reads the tables of file exports: `volume`, `share` and `file_listener`.

use uuid::Uuid;

use super::reader::Reader;
use super::sections::NameDraft;
use super::{Located, keys};
use crate::files::{FileListener, Files, Share, Volume};
use crate::limits::{FILE_LISTENERS_MAX, SHARES_MAX, VOLUMES_MAX};
use crate::model::Transport;
use crate::problem::{Finding, Findings, ProblemKind};
use crate::table::Table as _;
use crate::value::ListenAddress;

/// A volume, as far as it is readable.
#[derive(Debug)]
pub(crate) struct VolumeDraft {
    pub(crate) name: NameDraft,
    pub(crate) device: Option<Located<String>>,
    pub(crate) uuid: Option<Located<Uuid>>,
    volume: Option<Volume>,
}

/// A share, as far as it is readable.
#[derive(Debug)]
pub(crate) struct ShareDraft {
    pub(crate) name: NameDraft,
    pub(crate) volume: Option<Located<String>>,
    pub(crate) share: Option<Share>,
}

/// A file listener, as far as it is readable.
#[derive(Debug)]
pub(crate) struct FileListenerDraft {
    pub(crate) name: NameDraft,
    pub(crate) address: Option<Located<ListenAddress>>,
    pub(crate) transport: Transport,
    listener: Option<FileListener>,
}

/// The tables of file exports, as far as they are readable.
#[derive(Debug, Default)]
pub(crate) struct FilesDraft {
    pub(crate) volumes: Vec<VolumeDraft>,
    pub(crate) shares: Vec<ShareDraft>,
    pub(crate) listeners: Vec<FileListenerDraft>,
}

/// Reports a share that no client may use, and one with two answers to who may.
fn check_clients(table: &Reader<'_, '_>, findings: &mut Findings) {
    let any = table.optional::<bool>("allow_any_client", &mut Findings::default());
    let is_unknown = any.is_none() && table.has("allow_any_client");
    let is_any = any.is_some_and(|any| any.value);
    if table.has("clients") && is_any {
        findings.add(|| Finding {
            hint: Some("remove one of the two".to_owned()),
            ..table.at_key(
                "clients",
                ProblemKind::Conflict,
                "`clients` and `allow_any_client = true` exclude each other".to_owned(),
            )
        });
    }
    if !table.has("clients") && !is_any && !is_unknown {
        let message = "`clients` is missing: no client may use this share".to_owned();
        findings.add(|| Finding {
            hint: Some(
                "list the addresses of its clients, like [\"192.0.2.0/24\"], or write \
                 `allow_any_client = true`"
                    .to_owned(),
            ),
            ..table.missing("clients", message)
        });
    }
}

impl FilesDraft {
    pub(super) fn read(root: &Reader<'_, '_>, findings: &mut Findings) -> Self {
        let volumes = root.tables("volume", VOLUMES_MAX, &keys::VOLUME, findings);
        let shares = root.tables("share", SHARES_MAX, &keys::SHARE, findings);
        let section = &keys::FILE_LISTENER;
        let listeners = root.tables("file_listener", FILE_LISTENERS_MAX, section, findings);
        for table in &shares {
            check_clients(table, findings);
        }
        // The faults of the keys that are read again are already reported.
        let found = &mut Findings::default();
        Self {
            volumes: volumes
                .iter()
                .map(|table| VolumeDraft {
                    volume: Volume::read(table, findings, Some(())),
                    name: NameDraft::of(table),
                    device: table.optional("device", found),
                    uuid: table.optional("uuid", found),
                })
                .collect(),
            shares: shares
                .iter()
                .map(|table| ShareDraft {
                    share: Share::read(table, findings, Some(())),
                    name: NameDraft::of(table),
                    volume: table.optional("volume", found),
                })
                .collect(),
            listeners: listeners
                .iter()
                .map(|table| FileListenerDraft {
                    listener: FileListener::read(table, findings, Some(())),
                    name: NameDraft::of(table),
                    address: table.optional("address", found),
                    transport: table
                        .optional::<Transport>("transport", found)
                        .map_or(Transport::Tcp, |transport| transport.value),
                })
                .collect(),
        }
    }

    pub(super) fn finish(self) -> Option<Files> {
        let volumes = self.volumes.into_iter().map(|draft| draft.volume);
        let shares = self.shares.into_iter().map(|draft| draft.share);
        let listeners = self.listeners.into_iter().map(|draft| draft.listener);
        Some(Files {
            volumes: volumes.collect::<Option<_>>()?,
            shares: shares.collect::<Option<_>>()?,
            listeners: listeners.collect::<Option<_>>()?,
        })
    }
}
