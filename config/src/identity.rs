//! Identities derived from names and content, by which hosts recognize their disks.
//!
//! They are UUIDs of version 5 (RFC 9562 §5.5) over the names of appliance, export and
//! device. The first content that is served under these names has exactly that identity. Any other
//! content (another file, another drive, memory after a restart) has an identity derived from that
//! UUID and a text that describes the content, so that hosts see a different disk. The appliance
//! records which content was the first; this module only derives. **The derivation must never
//! change.**

use uuid::Uuid;

use crate::model::{Config, Device, Export, Namespace};
use crate::value::SerialNumber;

/// The UUID namespace of all derived identities; random, generated once.
const WINDLASS: Uuid = Uuid::from_u128(0x5d3e_8f4a_91c7_4b0e_a6d2_3c7f_10b8_e945);

/// The identifiers of a namespace (Base 2.1 §4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamespaceIdentity {
    /// The namespace UUID.
    pub uuid: Uuid,
    /// The NGUID, most significant byte first. Its OUI is marked as locally administered, because
    /// the project has no OUI of its own.
    pub nguid: [u8; 16],
    /// The EUI-64, most significant byte first; marked as locally administered too.
    pub eui64: [u8; 8],
}

impl NamespaceIdentity {
    /// The identity derived from a UUID.
    pub fn from_uuid(uuid: Uuid) -> NamespaceIdentity {
        let mut nguid = Uuid::new_v5(&uuid, b"nguid").into_bytes();
        // An NGUID is eight vendor-specific bytes followed by an EUI-64.
        nguid[8] = locally_administered(nguid[8]);
        let [first, rest @ ..] = Uuid::new_v5(&uuid, b"eui64").into_bytes();
        let mut eui64 = [locally_administered(first); 8];
        for (to, from) in eui64.iter_mut().skip(1).zip(rest) {
            *to = from;
        }
        NamespaceIdentity { uuid, nguid, eui64 }
    }
}

/// The first byte of an EUI-64 with the bit for local administration set and that for groups clear
/// (IEEE 802-2014 §8.2).
fn locally_administered(byte: u8) -> u8 {
    (byte | 0b10) & !0b01
}

/// The UUID derived from a list of names. Names cannot contain NUL, so different lists give
/// different texts.
fn derived(names: &[&str]) -> Uuid {
    Uuid::new_v5(&WINDLASS, names.join("\0").as_bytes())
}

/// The name of the stored reservations of a content. It does not depend on the names of appliance,
/// export and device, so that reservations follow a renamed device.
pub fn reservations_uuid(content: &str) -> Uuid {
    derived(&["reservations", content])
}

impl Config {
    /// The UUID derived only from the names of appliance, export and device.
    pub fn named_uuid(&self, export: &Export, namespace: &Namespace) -> Uuid {
        let appliance = self.appliance.name.as_str();
        derived(&[
            "namespace",
            appliance,
            export.nqn.as_str(),
            namespace.device.as_str(),
        ])
    }

    /// The identity of a namespace: derived from its device's `uuid`, or else from the names of
    /// appliance, export and device, and from `content` if it is not the first content that was
    /// served under these names.
    pub fn namespace_identity(
        &self,
        export: &Export,
        namespace: &Namespace,
        content: Option<&str>,
    ) -> NamespaceIdentity {
        let explicit = self
            .device(&namespace.device)
            .and_then(|device: &Device| device.uuid);
        NamespaceIdentity::from_uuid(explicit.unwrap_or_else(|| {
            let named = self.named_uuid(export, namespace);
            match content {
                None => named,
                Some(content) => Uuid::new_v5(&named, content.as_bytes()),
            }
        }))
    }

    /// The serial number of an export: its `serial`, or 16 hexadecimal digits derived from the
    /// names of appliance and export.
    pub fn serial_number(&self, export: &Export) -> SerialNumber {
        match &export.serial {
            Some(serial) => serial.clone(),
            None => {
                let names = ["serial", self.appliance.name.as_str(), export.nqn.as_str()];
                SerialNumber::from_digits(derived(&names).as_u64_pair().0)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn demo() -> Config {
        Config::default_embedded(Path::new("/tmp/x")).unwrap()
    }

    fn identities(config: &Config) -> Vec<NamespaceIdentity> {
        let export = &config.exports[0];
        let identity = |namespace| config.namespace_identity(export, namespace, None);
        export.namespaces.iter().map(identity).collect()
    }

    /// The values come from another implementation of RFC 9562 (Python's `hashlib`).
    #[test]
    fn identity_derivation_is_stable() {
        let config = demo();
        let first = identities(&config)[0];
        assert_eq!(
            first.uuid.to_string(),
            "2cb526ef-ca9c-561a-b58f-dbb4f18340a3"
        );
        assert_eq!(
            Uuid::from_bytes(first.nguid).simple().to_string(),
            "24302518b13a56ed8ab92ff1a1a8d311"
        );
        assert_eq!(
            format!("{:016x}", u64::from_be_bytes(first.eui64)),
            "6e862ef995755e25"
        );
        assert_eq!(
            config.serial_number(&config.exports[0]).as_str(),
            "793AA968764355C4"
        );
    }

    /// The value comes from another implementation of RFC 9562 (Python's `uuid.uuid5`).
    #[test]
    fn names_of_reservations_are_stable() {
        let name = reservations_uuid("file 12 1.5");
        assert_eq!(name.to_string(), "c86b509c-aae5-5ba8-bfea-6ce6fd35c5aa");
        assert_ne!(name, reservations_uuid("file 13 1.5"));
    }

    #[test]
    fn identities_differ_between_devices_exports_and_appliances() {
        let mut config = demo();
        let before = identities(&config);
        assert_ne!(before[0], before[1]);
        config.appliance.name = "other".parse().unwrap();
        let renamed = identities(&config);
        config.exports[0].nqn = "nqn.2026-11.org.windlass:other".parse().unwrap();
        let moved = identities(&config);
        let mut all: Vec<Uuid> = [before, renamed, moved]
            .concat()
            .iter()
            .map(|i| i.uuid)
            .collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 6);
    }

    /// The value comes from another implementation of RFC 9562 (Python's `uuid.uuid5`).
    #[test]
    fn identity_depends_on_content_unless_the_uuid_is_configured() {
        let mut config = demo();
        let identity = |config: &Config, content| {
            let export = &config.exports[0];
            config.namespace_identity(export, &export.namespaces[0], content)
        };
        let first = identity(&config, None);
        let other = identity(&config, Some("file 12 1.5"));
        assert_eq!(
            other.uuid.to_string(),
            "983462c6-d84e-5ff7-ac56-d3959a87c364"
        );
        assert_ne!((first.nguid, first.eui64), (other.nguid, other.eui64));
        assert_ne!(other, identity(&config, Some("file 13 1.5")));
        config.devices[0].uuid = Some(first.uuid);
        assert_eq!(identity(&config, Some("file 12 1.5")), first);
    }

    #[test]
    fn configured_uuid_is_independent_of_names() {
        let mut config = demo();
        let uuid = "9f0c2b6e-54a1-4b53-9d0e-0d5a8a1c7f11".parse().unwrap();
        config.devices[0].uuid = Some(uuid);
        let before = identities(&config)[0];
        assert_eq!(before.uuid, uuid);
        config.appliance.name = "other".parse().unwrap();
        config.exports[0].nqn = "nqn.2026-11.org.windlass:other".parse().unwrap();
        assert_eq!(identities(&config)[0], before);
    }

    #[test]
    fn identifiers_are_marked_locally_administered() {
        for number in 0..1000 {
            let identity = NamespaceIdentity::from_uuid(Uuid::from_u128(number));
            assert_eq!(identity.eui64[0] & 0b11, 0b10);
            assert_eq!(identity.nguid[8] & 0b11, 0b10);
        }
    }
}
