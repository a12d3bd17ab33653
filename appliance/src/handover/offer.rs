//! What the old process tells the new one while it still serves: the running configuration, the
//! descriptors, and what hosts know of the target. The new process builds everything from it.
//!
//! The descriptors are, in this order: the arena, those of each device, and one of each listener that
//! has a socket.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use appliance_config::{Backing, Config, Name, Nqn, Uuid};
use block::FileCapabilities;
use nvme_handover::Bytes;
use nvme_target::PortId;
use serde::{Deserialize, Serialize};

use crate::devices::PassedDevice;
use crate::identities::Content;
use crate::observe::model::AnaWord;
use crate::operator_states::OperatorStates;
use crate::transports::{PassedListener, PassedPlace};

/// Version of an offer's fields. A later version is refused, an earlier one is converted.
/// Version 1 has no drives and no listeners without a socket.
const VERSION: u32 = 2;

/// An offer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Offer {
    version: u32,
    /// The configuration's file, which a reload reads.
    pub(crate) file: Option<PathBuf>,
    /// The running configuration.
    pub(crate) config: String,
    pub(crate) devices: Vec<DeviceOffer>,
    pub(crate) listeners: Vec<ListenerOffer>,
    /// ANA states that operators have set.
    pub(crate) operator_states: Vec<StateOffer>,
    /// What hosts know of the target, in the form of `nvme_handover_format`, without controllers.
    pub(crate) target: Bytes,
}

/// A device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DeviceOffer {
    pub(crate) name: String,
    pub(crate) content: ContentOffer,
    /// Number of its descriptors.
    pub(crate) descriptors: usize,
    /// Bytes of each part of the memory of a RAM device.
    pub(crate) extents: Vec<u64>,
    /// Of a file.
    pub(crate) file: Option<FileOffer>,
}

/// What the old process knows of a file, which the new one may not try out meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FileOffer {
    pub(crate) direct: bool,
    pub(crate) deallocates: bool,
}

/// The content of a device, from which its identifiers are derived.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ContentOffer {
    Lasting(String),
    Volatile([u8; 16]),
}

/// A listener.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListenerOffer {
    pub(crate) name: String,
    /// The number by which hosts' controllers know it.
    pub(crate) port: u16,
    /// Where it listens, if its socket is not passed.
    #[serde(default)]
    pub(crate) address: Option<SocketAddr>,
}

/// An ANA state that an operator has set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StateOffer {
    pub(crate) export: String,
    pub(crate) listener: String,
    pub(crate) group: u32,
    pub(crate) state: AnaWord,
}

/// What the new process builds an appliance from, beside the configuration.
pub(crate) struct Passed {
    pub(crate) arena: OwnedFd,
    pub(crate) devices: BTreeMap<Name, PassedDevice>,
    pub(crate) listeners: BTreeMap<Name, PassedListener>,
    pub(crate) operator_states: OperatorStates,
}

/// Why an offer cannot be accepted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OfferError {
    #[error(
        "the offer of the old process has version {0}, but this version of Windlass reads at most \
         {VERSION}: start a later version"
    )]
    LaterVersion(u32),
    #[error("the offer of the old process is malformed: {0}")]
    Malformed(#[from] serde_json::Error),
    #[error("the offer of the old process has {found} descriptors instead of {wanted}")]
    Descriptors { found: usize, wanted: usize },
    #[error("the offer of the old process names {0:?}, which is not a valid name")]
    Name(String),
    #[error("the running configuration is not valid in this version of Windlass: {0}")]
    Config(String),
}

#[derive(Deserialize)]
struct Version {
    version: u32,
}

impl From<&Content> for ContentOffer {
    fn from(content: &Content) -> Self {
        match content {
            Content::Lasting(text) => Self::Lasting(text.clone()),
            Content::Volatile(number) => Self::Volatile(*number.as_bytes()),
        }
    }
}

impl From<ContentOffer> for Content {
    fn from(content: ContentOffer) -> Self {
        match content {
            ContentOffer::Lasting(text) => Self::Lasting(text),
            ContentOffer::Volatile(number) => Self::Volatile(Uuid::from_bytes(number)),
        }
    }
}

impl StateOffer {
    /// The states that operators have set for the exports of `config`. States of others, which a
    /// change removed that could not be undone, end with the process.
    pub(crate) fn all(config: &Config, states: &OperatorStates) -> Vec<Self> {
        let known = |export: &Nqn| config.export(export).is_some();
        let states = states.all().filter(|(export, ..)| known(export));
        let offer = |(export, listener, group, state): (&Nqn, &Name, u32, _)| Self {
            export: export.to_string(),
            listener: listener.to_string(),
            group,
            state: AnaWord::from(state),
        };
        states.map(offer).collect()
    }
}

impl Offer {
    /// An offer of this version.
    pub(crate) fn new(
        file: Option<PathBuf>,
        config: &Config,
        states: &OperatorStates,
        target: Vec<u8>,
    ) -> Self {
        Self {
            version: VERSION,
            file,
            config: config.to_toml(),
            devices: Vec::new(),
            listeners: Vec::new(),
            operator_states: StateOffer::all(config, states),
            target: Bytes(target),
        }
    }

    /// The stored form.
    ///
    /// # Errors
    /// The path of the configuration's file is not UTF-8.
    pub(crate) fn encode(&self) -> Result<Vec<u8>, serde_json::Error> {
        serde_json::to_vec(self)
    }

    /// Reads the stored form.
    ///
    /// # Errors
    /// A later version wrote it, or it is malformed.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, OfferError> {
        let Version { version } = serde_json::from_slice(bytes)?;
        if version > VERSION {
            return Err(OfferError::LaterVersion(version));
        }
        Ok(serde_json::from_slice(bytes)?)
    }

    /// Whether a device of `config` is on a drive that the old process has.
    pub(crate) fn has_drives(&self, config: &Config) -> bool {
        let mut devices = config.devices.iter();
        devices.any(|device| {
            let is_offered = |it: &DeviceOffer| it.name == device.name.as_str();
            matches!(device.backing, Backing::Nvme(_)) && self.devices.iter().any(is_offered)
        })
    }

    /// The configuration, and what was passed with the offer.
    ///
    /// # Errors
    /// The configuration is not valid here, or a descriptor is missing.
    pub(crate) fn accept(&self, descriptors: Vec<OwnedFd>) -> Result<(Config, Passed), OfferError> {
        let config = Config::parse("the running configuration", &self.config)
            .map_err(|problems| OfferError::Config(problems.to_string()))?;
        let of_devices: usize = self.devices.iter().map(|it| it.descriptors).sum();
        let without_socket = |it: &&ListenerOffer| it.address.is_some();
        let sockets = self.listeners.len() - self.listeners.iter().filter(without_socket).count();
        let wanted = of_devices.saturating_add(sockets).saturating_add(1);
        let found = descriptors.len();
        let mut descriptors = descriptors.into_iter();
        let arena = descriptors.next().filter(|_| found == wanted);
        let arena = arena.ok_or(OfferError::Descriptors { found, wanted })?;
        let mut devices = BTreeMap::new();
        for device in &self.devices {
            let passed = PassedDevice {
                content: device.content.clone().into(),
                descriptors: descriptors.by_ref().take(device.descriptors).collect(),
                extents: device.extents.clone(),
                capabilities: device.file.map(|it| FileCapabilities {
                    direct: it.direct,
                    deallocates: it.deallocates,
                }),
            };
            devices.insert(name(&device.name)?, passed);
        }
        let mut listeners = BTreeMap::new();
        for listener in &self.listeners {
            let place = match listener.address {
                Some(address) => Some(PassedPlace::Address(address)),
                None => descriptors
                    .next()
                    .map(|socket| PassedPlace::Socket(TcpListener::from(socket))),
            };
            let passed = PassedListener {
                port: PortId(listener.port),
                place: place.ok_or(OfferError::Descriptors { found, wanted })?,
            };
            listeners.insert(name(&listener.name)?, passed);
        }
        let operator_states = self.operator_states(&config)?;
        let passed = Passed {
            arena,
            devices,
            listeners,
            operator_states,
        };
        Ok((config, passed))
    }

    fn operator_states(&self, config: &Config) -> Result<OperatorStates, OfferError> {
        let mut states = OperatorStates::default();
        for set in &self.operator_states {
            let mut exports = config.exports.iter();
            let export = exports.find(|it| it.nqn.as_str() == set.export);
            let export = export.ok_or_else(|| OfferError::Name(set.export.clone()))?;
            states.set(export, &name(&set.listener)?, set.group, set.state.into());
        }
        Ok(states)
    }
}

fn name(text: &str) -> Result<Name, OfferError> {
    text.parse().map_err(|_| OfferError::Name(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};
    use std::os::unix::net::UnixStream;
    use std::path::Path;

    use super::*;

    /// Where a listener without a socket listens.
    const RDMA: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 4420);

    fn offer() -> Offer {
        let config = Config::default_embedded(Path::new("/demo.img")).expect("valid");
        let mut states = OperatorStates::default();
        let export = &config.exports[0];
        let state = appliance_config::AnaState::Inaccessible;
        states.set(export, &export.listeners[0], 1, state);
        let mut offer = Offer::new(None, &config, &states, vec![1, 2]);
        offer.devices = vec![DeviceOffer {
            name: "ram".to_owned(),
            content: ContentOffer::Volatile([7; 16]),
            descriptors: 2,
            extents: vec![4096, 8192],
            file: None,
        }];
        offer.listeners = vec![
            ListenerOffer {
                name: "san".to_owned(),
                port: 1,
                address: Some(RDMA),
            },
            ListenerOffer {
                name: "loopback".to_owned(),
                port: 3,
                address: None,
            },
        ];
        offer
    }

    fn descriptors(count: usize) -> Vec<OwnedFd> {
        let one = |_| UnixStream::pair().expect("sockets").0.into();
        (0..count).map(one).collect()
    }

    #[test]
    fn offer_is_the_same_in_the_next_process() {
        let offer = offer();
        let bytes = offer.encode().expect("UTF-8");
        let received = Offer::decode(&bytes).expect("this version");
        assert_eq!(received, offer);
        let (config, passed) = received.accept(descriptors(4)).expect("complete");
        assert_eq!(config.to_toml(), offer.config);
        let ram = &passed.devices[&"ram".parse::<Name>().expect("a name")];
        assert_eq!(ram.content, Content::Volatile(Uuid::from_bytes([7; 16])));
        assert_eq!(
            (ram.descriptors.len(), &ram.extents),
            (2, &vec![4096, 8192])
        );
        let listener = |name: &str| &passed.listeners[&name.parse::<Name>().expect("a name")];
        let loopback = listener("loopback");
        assert_eq!(loopback.port, PortId(3));
        assert!(matches!(loopback.place, PassedPlace::Socket(_)));
        let san = listener("san");
        assert_eq!(san.port, PortId(1));
        assert!(matches!(san.place, PassedPlace::Address(RDMA)));
        assert_eq!(
            StateOffer::all(&config, &passed.operator_states),
            offer.operator_states
        );
    }

    #[test]
    fn later_and_malformed_offers_are_refused() {
        let mut later = serde_json::to_value(offer()).expect("JSON");
        later["version"] = 3.into();
        later["feature"] = "unknown".into();
        let error = Offer::decode(later.to_string().as_bytes()).expect_err("later");
        assert_eq!(
            error.to_string(),
            "the offer of the old process has version 3, but this version of Windlass reads at \
             most 2: start a later version"
        );
        later["version"] = 2.into();
        for text in [
            later.to_string().as_str(),
            "",
            "{}",
            "{\"version\": 1}",
            "x",
        ] {
            let refused = Offer::decode(text.as_bytes());
            assert!(matches!(refused, Err(OfferError::Malformed(_))), "{text}");
        }
    }

    #[test]
    fn offer_of_version_1_is_read() {
        let mut earlier = serde_json::to_value(offer()).expect("JSON");
        earlier["version"] = 1.into();
        let listeners = earlier["listeners"].as_array_mut().expect("a list");
        listeners.remove(0);
        let loopback = listeners[0].as_object_mut().expect("an object");
        loopback.remove("address").expect("a later field");
        let earlier = Offer::decode(earlier.to_string().as_bytes()).expect("an earlier version");
        let (_, passed) = earlier.accept(descriptors(4)).expect("complete");
        assert_eq!(passed.listeners.len(), 1);
    }

    #[test]
    fn incomplete_and_invalid_offers_are_refused() {
        for count in [0, 1, 3, 5] {
            let error = offer()
                .accept(descriptors(count))
                .err()
                .expect("incomplete");
            let expected =
                format!("the offer of the old process has {count} descriptors instead of 4");
            assert_eq!(error.to_string(), expected);
        }
        let refused = |change: fn(&mut Offer)| {
            let mut offer = offer();
            change(&mut offer);
            offer.accept(descriptors(4)).err().expect("refused")
        };
        let error = refused(|it| it.devices[0].descriptors = usize::MAX);
        assert!(matches!(error, OfferError::Descriptors { .. }), "{error}");
        let error = refused(|it| it.listeners[0].name = "no name".to_owned());
        assert!(matches!(error, OfferError::Name(_)), "{error}");
        let error = refused(|it| it.operator_states[0].export = "nqn.x".to_owned());
        assert!(matches!(error, OfferError::Name(_)), "{error}");
        let error = refused(|it| it.config.push_str("\n[later]\n"));
        assert!(error.to_string().contains("later"), "{error}");
    }
}
