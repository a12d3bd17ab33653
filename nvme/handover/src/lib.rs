//! The state of a target that a new process continues with, as plain data.
//!
//! `nvme_target` and the transports convert their objects to these records and back
//! (`ARCHITECTURE.md` §9.1), and `nvme_handover_format` has their byte form. This crate does not
//! interpret them. Records refer to objects by the names that hosts and configuration use, never by
//! an index or address of a process. Times are relative to the export, except where a field says
//! otherwise.

#![forbid(unsafe_code)]

mod bytes;
mod records;
mod tcp;

pub use bytes::Bytes;
pub use records::{
    AnaRecord, AuthenticationRecord, ControllerRecord, ControllerStateRecord, CoreRecord,
    DeviceTotals, ErrorLogRecord, EventRecord, EventStateRecord, FeaturesRecord, ImportedErrors,
    MaskedRecord, NamespaceRecord, NoticeRecord, PortRecord, QueueRecord, ReservationLogRecord,
    ReservationRecord, ShareRecord, State, SubsystemRecord, TargetRecord, TotalsRecord,
    TransportRecord,
};
pub use tcp::{SkippedData, TcpConnectionRecord, TcpPhase};
