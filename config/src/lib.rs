//! The configuration of an appliance: one TOML file, its model, and the checks of it.
//!
//! This crate owns the text of the file, the typed [`Config`] that the text describes, the rules
//! within a configuration, and the identities that are derived from names. It does not look at the
//! machine: the appliance checks at start whether a core, a file or an address exists.
//!
//! [`Config::parse`] returns a whole `Config` or [`Problems`]: *all* of them, each with its place,
//! its path in the file and a hint. [`Config::to_toml`] prints a configuration that parses to
//! itself. `REFERENCE.md` lists every key; it is generated from [`keys::SECTIONS`], the same tables
//! that the parser reads. A plain key is declared once, in `model.rs` (`table.rs` says how).
//!
//! ```
//! use appliance_config::Config;
//!
//! let problems = Config::parse("rack7.toml", "[aplliance]\nname = 7\n").unwrap_err();
//! let first = problems.iter().next().unwrap();
//! assert_eq!(first.message(), "unknown key `aplliance`");
//! assert!(first.hint().unwrap().starts_with("did you mean `appliance`?"));
//! assert_eq!(first.place().map(|place| (place.line(), place.column())), Some((1, 2)));
//! ```
#![forbid(unsafe_code)]

mod difference;
mod embedded;
mod files;
#[cfg(any(test, feature = "generators"))]
pub mod generate;
pub mod identity;
pub mod keys;
mod kind;
pub mod limits;
mod load;
mod model;
mod notice;
mod parse;
mod print;
mod problem;
mod suggest;
mod table;
mod validate;
mod value;

pub use difference::{Change, Effect, Replaced, Step};
pub use files::{FileListener, Files, Share, Squash, Volume};
pub use load::LoadError;
pub use model::{
    Access, AnaEntry, AnaState, Appliance, Backing, Config, Control, Cores, CoresNotAllowed,
    DataPath, Device, Digest, DriveNamespace, Export, HostAuthentication, Idle, Key, KeySource,
    Limits, Listener, Mask, MaskedAccess, Namespace, Operations, Pages, RateLimit, RateScope, Tls,
    TlsRecords, Transport,
};
pub use notice::Notice;
pub use problem::{Colour, Place, Problem, ProblemKind, Problems};
pub use uuid::Uuid;
pub use value::{
    AddressError, BlockSize, ByteSize, ByteSizeError, CongestionControl, CongestionControlError,
    ControlSocket, ControlSocketError, ControllerIds, CoreList, CoreListError, GroupName,
    GroupNameError, HttpAddress, HttpAddressError, ListenAddress, ModelNumber, Name, NameError,
    Network, NetworkError, Nqn, NqnError, PciAddress, PciAddressError, Period, PeriodError,
    SerialNumber, TextFieldError,
};

#[cfg(test)]
mod tests;
