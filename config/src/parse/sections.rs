//! The tables `appliance`, `limits` and `listener`.

use toml::de::DeValue;

use super::Located;
use super::reader::Reader;
use super::setting::{Fault, Setting};
use crate::limits::{
    CONNECTIONS_MAX, CONTROLLERS_MAX, IN_CAPSULE_DATA_MAX, IN_CAPSULE_DATA_UNIT_BYTES, MEMORY_MAX,
    MEMORY_MIN, QUEUE_DEPTH_MAX, QUEUE_DEPTH_MIN, SHUTDOWN_DEADLINE_MAX, SHUTDOWN_DEADLINE_MIN,
    TRANSFER_MAX, TRANSFER_MIN,
};
use crate::model::{Appliance, Cores, Limits, Listener, Transport};
use crate::problem::{Finding, Findings, ProblemKind};
use crate::value::{ByteSize, CongestionControl, CoreList, ListenAddress, Name};

/// A name as far as it is known: references to a badly written one still find it.
#[derive(Clone, Debug, Default)]
pub(crate) struct NameDraft {
    /// The text, where the key is there and a string.
    pub(crate) text: Option<Located<String>>,
}

impl NameDraft {
    pub(super) fn read(
        table: &Reader<'_, '_>,
        findings: &mut Findings,
    ) -> (NameDraft, Option<Name>) {
        let name = table.required::<Name>("name", findings);
        // What is wrong with it has been found just now.
        let text = table.optional::<String>("name", &mut Findings::default());
        (NameDraft { text }, name.map(|name| name.value))
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

pub(super) fn appliance(table: &Reader<'_, '_>, findings: &mut Findings) -> Option<Appliance> {
    let absent = Appliance::default();
    let name = table.optional("name", findings);
    let cores = table.optional("cores", findings);
    let memory = table.ranged("memory", MEMORY_MIN..=MEMORY_MAX, findings);
    let pages = table.optional("pages", findings);
    let idle = table.optional("idle", findings);
    let deadlines = SHUTDOWN_DEADLINE_MIN..=SHUTDOWN_DEADLINE_MAX;
    let shutdown_deadline = table.ranged("shutdown_deadline", deadlines, findings);
    Some(Appliance {
        name: table.or_default("name", name, absent.name)?,
        cores: table.or_default("cores", cores, absent.cores)?,
        memory: table.or_default("memory", memory, absent.memory)?,
        pages: table.or_default("pages", pages, absent.pages)?,
        idle: table.or_default("idle", idle, absent.idle)?,
        shutdown_deadline: table.or_default(
            "shutdown_deadline",
            shutdown_deadline,
            absent.shutdown_deadline,
        )?,
    })
}

pub(super) fn limits(table: &Reader<'_, '_>, findings: &mut Findings) -> Option<Limits> {
    let absent = Limits::default();
    let max_connections = table.count("max_connections", 1..=CONNECTIONS_MAX, findings);
    let max_controllers = table.count("max_controllers", 1..=CONTROLLERS_MAX, findings);
    let max_transfer = table
        .ranged("max_transfer", TRANSFER_MIN..=TRANSFER_MAX, findings)
        .filter(|transfer| is_power_of_two(transfer, findings));
    let bind_queues = table.optional("bind_queues", findings);
    Some(Limits {
        max_connections: table.or_default(
            "max_connections",
            max_connections,
            absent.max_connections,
        )?,
        max_controllers: table.or_default(
            "max_controllers",
            max_controllers,
            absent.max_controllers,
        )?,
        max_transfer: table.or_default("max_transfer", max_transfer, absent.max_transfer)?,
        bind_queues: table.or_default("bind_queues", bind_queues, absent.bind_queues)?,
    })
}

fn is_power_of_two(size: &Located<ByteSize>, findings: &mut Findings) -> bool {
    let bytes = size.value.bytes();
    if bytes.is_power_of_two() {
        return true;
    }
    let below = ByteSize::from_bytes(bytes.next_power_of_two() / 2);
    let above = ByteSize::from_bytes(bytes.next_power_of_two());
    findings.add(|| Finding {
        hint: Some(format!("write \"{below}\" or \"{above}\"")),
        ..size.finding(
            ProblemKind::BadValue,
            format!(
                "{} is no power of two, and hosts are told an exponent",
                size.value
            ),
        )
    });
    false
}

/// A listener as far as it could be read.
#[derive(Debug)]
pub(crate) struct ListenerDraft {
    pub(crate) name: NameDraft,
    pub(crate) transport: Option<Transport>,
    pub(crate) address: Option<Located<ListenAddress>>,
    listener: Option<Listener>,
}

impl ListenerDraft {
    pub(super) fn finish(self) -> Option<Listener> {
        self.listener
    }
}

/// Reports keys that NVMe/RDMA has no use for, and why.
fn keys_of_tcp(table: &Reader<'_, '_>, findings: &mut Findings) {
    let checksums = "remove it: RDMA networks check what they carry";
    for (name, hint) in [
        ("header_digest", checksums),
        ("data_digest", checksums),
        (
            "congestion_control",
            "remove it: RDMA networks have their own",
        ),
    ] {
        if table.has(name) {
            findings.add(|| Finding {
                hint: Some(hint.to_owned()),
                ..table.at_key(
                    name,
                    ProblemKind::Conflict,
                    format!("a listener of transport \"rdma\" has no `{name}`"),
                )
            });
        }
    }
}

pub(super) fn listener(table: &Reader<'_, '_>, findings: &mut Findings) -> ListenerDraft {
    let (name_draft, name) = NameDraft::read(table, findings);
    let transport = table.required::<Transport>("transport", findings);
    let transport = transport.map(|transport| transport.value);
    if transport == Some(Transport::Rdma) {
        keys_of_tcp(table, findings);
    }
    let address = table.required::<ListenAddress>("address", findings);
    let header_digest = table.optional("header_digest", findings);
    let data_digest = table.optional("data_digest", findings);
    let capsules = ByteSize::from_bytes(0)..=IN_CAPSULE_DATA_MAX;
    let in_capsule_data = table
        .ranged("in_capsule_data", capsules, findings)
        .filter(|size| is_capsule_size(size, findings));
    let depths = QUEUE_DEPTH_MIN..=QUEUE_DEPTH_MAX;
    let queue_depth = table.count("queue_depth", depths, findings);
    let congestion_control = table.optional::<CongestionControl>("congestion_control", findings);
    let finish = || {
        Some(Listener {
            name: name?,
            transport: transport?,
            address: address.as_ref()?.value,
            header_digest: table.or_default(
                "header_digest",
                header_digest,
                Listener::DIGEST_DEFAULT,
            )?,
            data_digest: table.or_default("data_digest", data_digest, Listener::DIGEST_DEFAULT)?,
            in_capsule_data: table.or_default(
                "in_capsule_data",
                in_capsule_data,
                Listener::in_capsule_data_default(transport?),
            )?,
            queue_depth: table.or_default(
                "queue_depth",
                queue_depth,
                Listener::QUEUE_DEPTH_DEFAULT,
            )?,
            congestion_control: congestion_control.map(|name| name.value),
        })
    };
    let listener = finish();
    ListenerDraft {
        name: name_draft,
        transport,
        address,
        listener,
    }
}

fn is_capsule_size(size: &Located<ByteSize>, findings: &mut Findings) -> bool {
    let bytes = size.value.bytes();
    if bytes.is_multiple_of(IN_CAPSULE_DATA_UNIT_BYTES) {
        return true;
    }
    findings.add(|| Finding {
        hint: Some(format!(
            "write \"{}\", or another multiple of {IN_CAPSULE_DATA_UNIT_BYTES} bytes",
            ByteSize::from_bytes(bytes - bytes % IN_CAPSULE_DATA_UNIT_BYTES)
        )),
        ..size.finding(
            ProblemKind::BadValue,
            format!(
                "{} is no multiple of {IN_CAPSULE_DATA_UNIT_BYTES} bytes",
                size.value
            ),
        )
    });
    false
}
