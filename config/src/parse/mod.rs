//! Parses a configuration: bytes, TOML, tables, values. Each step reports every problem that it
//! finds.

mod control;
mod device;
mod export;
mod files;
mod hosts;
mod key;
mod masks;
mod rate_limit;
mod reader;
mod sections;
mod setting;
mod syntax;

use std::ops::Range;

use toml::de::DeTable;

use crate::keys;
use crate::limits::{
    DEVICES_MAX, EXPORTS_MAX, FILE_BYTES_MAX, KEYS_MAX, LISTENERS_MAX, RATE_LIMITS_MAX,
};
use crate::model::{Appliance, Config, Limits};
use crate::problem::{Finding, Findings, Path, ProblemKind, Problems};
use crate::table::Table as _;
use crate::validate;

pub(crate) use control::ControlDraft;
pub(crate) use device::{DeviceDraft, DeviceType, DriveDraft, file_path};
pub(crate) use export::ExportDraft;
pub(crate) use files::FilesDraft;
pub(crate) use key::KeyDraft;
pub(crate) use rate_limit::RateLimitDraft;
pub(crate) use reader::{Element, Found, Reader};
pub(crate) use sections::{ListenerDraft, NameDraft};
pub(crate) use setting::{Fault, Setting};

/// A value and its location.
#[derive(Clone, Debug)]
pub(crate) struct Located<T> {
    pub(crate) value: T,
    pub(crate) span: Range<usize>,
    pub(crate) path: Path,
}

impl<T> Located<T> {
    pub(crate) fn finding(&self, kind: ProblemKind, message: String) -> Finding {
        Finding {
            kind,
            span: Some(self.span.clone()),
            path: self.path.as_str().to_owned(),
            message,
            hint: None,
        }
    }
}

/// The tables of a file, each as far as it is readable.
#[derive(Debug, Default)]
pub(crate) struct Draft {
    pub(crate) appliance: Option<Appliance>,
    pub(crate) limits: Option<Limits>,
    pub(crate) control: ControlDraft,
    pub(crate) devices: Vec<DeviceDraft>,
    pub(crate) listeners: Vec<ListenerDraft>,
    pub(crate) keys: Vec<KeyDraft>,
    pub(crate) exports: Vec<ExportDraft>,
    pub(crate) rate_limits: Vec<RateLimitDraft>,
    pub(crate) files: FilesDraft,
}

impl Config {
    /// Reads a configuration from a file's text. `source_name` appears in the problems.
    ///
    /// # Errors
    /// If the text is not TOML, its syntax errors; otherwise the problems of all keys and between
    /// keys.
    pub fn parse(source_name: &str, text: &str) -> Result<Config, Problems> {
        let mut findings = Findings::default();
        // An editor's byte order mark is not part of the first line.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        match parse_text(text, &mut findings) {
            Some(config) if findings.is_empty() => Ok(config),
            _ => Err(findings.into_problems(source_name, text)),
        }
    }

    /// Reads a configuration from a file's bytes. `source_name` appears in the problems.
    ///
    /// # Errors
    /// As [`Config::parse`], and if the bytes are not UTF-8 or too many.
    pub fn parse_bytes(source_name: &str, bytes: &[u8]) -> Result<Config, Problems> {
        // The size is checked first, because an encoding problem copies the text of the file.
        if bytes.len() > FILE_BYTES_MAX {
            let mut findings = Findings::default();
            findings.add(|| syntax::too_large(bytes.len()));
            return Err(findings.into_problems(source_name, ""));
        }
        match std::str::from_utf8(bytes) {
            Ok(text) => Config::parse(source_name, text),
            Err(error) => Err(syntax::not_utf8(source_name, bytes, error.valid_up_to())),
        }
    }
}

fn parse_text(text: &str, findings: &mut Findings) -> Option<Config> {
    let root = syntax::parse(text, findings)?;
    let draft = read_root(&root, findings);
    validate::validate(&draft, text, findings);
    finish(draft)
}

fn read_root(root: &DeTable<'_>, findings: &mut Findings) -> Draft {
    let reader = Reader::open(root, None, Path::default(), &keys::ROOT, findings);
    let appliance = match reader.table("appliance", &keys::APPLIANCE, findings) {
        Some(table) => Appliance::read(&table, findings, Some(())),
        None => Some(Appliance::default()),
    };
    let limits = match reader.table("limits", &keys::LIMITS, findings) {
        Some(table) => Limits::read(&table, findings, Some(())),
        None => Some(Limits::default()),
    };
    let control = match reader.table("control", &keys::CONTROL, findings) {
        Some(table) => control::control(&table, findings),
        None => ControlDraft::default(),
    };
    for (name, what) in [
        (
            "device",
            "[[device]] with a name, a type, and a size, path or pci",
        ),
        (
            "listener",
            "[[listener]] with a name, transport and address",
        ),
        (
            "export",
            "[[export]] with an nqn, devices, listeners, and hosts or allow_any_host",
        ),
    ] {
        let tables = reader.tables_count(name);
        if tables == Some(0) {
            findings.add(|| Finding {
                kind: ProblemKind::Missing,
                span: reader.value_span(name),
                path: name.to_owned(),
                message: format!("the file has no {name}"),
                hint: Some(format!("add {what}")),
            });
        }
    }
    Draft {
        appliance,
        limits,
        control,
        devices: reader
            .tables("device", DEVICES_MAX, &keys::DEVICE, findings)
            .iter()
            .map(|table| device::device(table, findings))
            .collect(),
        listeners: reader
            .tables("listener", LISTENERS_MAX, &keys::LISTENER, findings)
            .iter()
            .map(|table| ListenerDraft::read(table, findings))
            .collect(),
        keys: reader
            .tables("key", KEYS_MAX, &keys::KEY, findings)
            .iter()
            .map(|table| key::key(table, findings))
            .collect(),
        exports: reader
            .tables("export", EXPORTS_MAX, &keys::EXPORT, findings)
            .iter()
            .map(|table| export::export(table, findings))
            .collect(),
        rate_limits: reader
            .tables("rate_limit", RATE_LIMITS_MAX, &keys::RATE_LIMIT, findings)
            .iter()
            .map(|table| RateLimitDraft::read(table, findings))
            .collect(),
        files: FilesDraft::read(&reader, findings),
    }
}

/// The whole configuration; `None` if a part is missing, which has a finding.
fn finish(draft: Draft) -> Option<Config> {
    Some(Config {
        appliance: draft.appliance?,
        limits: draft.limits?,
        control: draft.control.finish()?,
        devices: draft
            .devices
            .into_iter()
            .map(DeviceDraft::finish)
            .collect::<Option<_>>()?,
        listeners: draft
            .listeners
            .into_iter()
            .map(ListenerDraft::finish)
            .collect::<Option<_>>()?,
        keys: draft
            .keys
            .into_iter()
            .map(KeyDraft::finish)
            .collect::<Option<_>>()?,
        exports: draft
            .exports
            .into_iter()
            .map(ExportDraft::finish)
            .collect::<Option<_>>()?,
        rate_limits: draft
            .rate_limits
            .into_iter()
            .map(RateLimitDraft::finish)
            .collect::<Option<_>>()?,
        files: draft.files.finish()?,
    })
}
