//! Settings that are allowed but probably not intended.

use std::fmt;

use crate::model::{Access, Backing, Config, Cores, Idle};
use crate::value::{HttpAddress, ListenAddress, Name, Nqn};

/// A setting that does not prevent the start but that an administrator should know of. Its
/// `Display` is one line.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notice {
    /// No export names the device.
    DeviceUnused(Name),
    /// No export names the listener: it serves only discovery.
    ListenerUnused(Name),
    /// Any machine that reaches the address can read and write the export.
    OpenToTheNetwork {
        /// The export.
        export: Nqn,
        /// One of its addresses that other machines can reach.
        address: ListenAddress,
    },
    /// Any machine that reaches the address can mount the share.
    ShareOpenToTheNetwork {
        /// The share.
        share: Name,
        /// An address that other machines can reach.
        address: ListenAddress,
    },
    /// Hosts take a memory device for the same disk after a restart, although its content is lost.
    UuidOnMemory(Name),
    /// The control plane's token crosses the network unencrypted.
    UnencryptedToken(HttpAddress),
    /// This number of cores polls without pause.
    BusyPolling(usize),
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Notice::DeviceUnused(name) => write!(f, "device {name} is in no export"),
            Notice::ListenerUnused(name) => {
                write!(
                    f,
                    "listener {name} is in no export: it serves only discovery"
                )
            }
            Notice::OpenToTheNetwork { export, address } => write!(
                f,
                "any host that reaches {address} may read and write {export}: list its `hosts`"
            ),
            Notice::ShareOpenToTheNetwork { share, address } => write!(
                f,
                "any machine that reaches {address} may mount share {share} as any user: list its \
                 `clients`"
            ),
            Notice::UuidOnMemory(name) => write!(
                f,
                "device {name}: its content does not survive a restart, but `uuid` makes hosts \
                 treat it as the same disk: remove `uuid`, or rewrite its content from the hosts"
            ),
            Notice::UnencryptedToken(address) => write!(
                f,
                "the control plane's token is sent to {address} unencrypted: set `certificate_file` \
                 and `certificate_key_file` in [control], or put an HTTPS proxy in front"
            ),
            Notice::BusyPolling(cores) => write!(
                f,
                "idle = \"poll\" keeps {cores} core(s) at 100 % even without load: use \"adaptive\""
            ),
        }
    }
}

impl Config {
    /// The notices about this configuration.
    pub fn notices(&self) -> Vec<Notice> {
        let mut notices = Vec::new();
        let devices = || self.exports.iter().flat_map(|export| &export.namespaces);
        for device in &self.devices {
            let is_exported = devices().any(|namespace| namespace.device == device.name);
            if !is_exported && !self.files.uses(&device.name) {
                notices.push(Notice::DeviceUnused(device.name.clone()));
            }
            if matches!(device.backing, Backing::Memory { .. }) && device.uuid.is_some() {
                notices.push(Notice::UuidOnMemory(device.name.clone()));
            }
        }
        for listener in &self.listeners {
            if !self
                .exports
                .iter()
                .any(|export| export.listeners.contains(&listener.name))
            {
                notices.push(Notice::ListenerUnused(listener.name.clone()));
            }
        }
        for export in self
            .exports
            .iter()
            .filter(|export| export.access == Access::AnyHost)
        {
            let listeners = export
                .listeners
                .iter()
                .filter_map(|name| self.listener(name));
            let open = listeners
                .map(|listener| listener.address)
                .find(|address| !address.socket_addr().ip().is_loopback());
            if let Some(address) = open {
                notices.push(Notice::OpenToTheNetwork {
                    export: export.nqn.clone(),
                    address,
                });
            }
        }
        let mut addresses = self.files.listeners.iter().map(|it| it.address);
        let open = addresses.find(|address| !address.socket_addr().ip().is_loopback());
        if let Some(address) = open {
            let shares = self.files.shares.iter().filter(|it| it.allow_any_client);
            notices.extend(shares.map(|share| Notice::ShareOpenToTheNetwork {
                share: share.name.clone(),
                address,
            }));
        }
        let control = &self.control;
        if control.http.is_beyond_this_machine() && control.certificate_file.is_none() {
            notices.push(Notice::UnencryptedToken(control.http));
        }
        if self.appliance.idle == Idle::Poll {
            notices.push(Notice::BusyPolling(match &self.appliance.cores {
                Cores::Auto => 1,
                Cores::List(list) => list.len(),
            }));
        }
        notices
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn notices_report_unused_open_and_busy_polling() {
        let mut config = Config::default_embedded(Path::new("/tmp/x")).unwrap();
        assert_eq!(config.notices(), []);
        config.exports[0].namespaces.pop();
        config.devices[0].uuid = Some(uuid::Uuid::from_u128(7));
        config.appliance.idle = Idle::Poll;
        config.appliance.cores = Cores::List("2-4".parse().unwrap());
        config.listeners[0].address = "192.0.2.1:4420".parse().unwrap();
        config.control.http = "192.0.2.1:9808".parse().unwrap();
        let mut unused = config.listeners[0].clone();
        unused.name = "spare".parse().unwrap();
        config.listeners.push(unused);
        let lines: Vec<String> = config.notices().iter().map(ToString::to_string).collect();
        assert_eq!(
            lines,
            [
                "device ram0: its content does not survive a restart, but `uuid` makes hosts \
                 treat it as the same disk: remove `uuid`, or rewrite its content from the hosts",
                "device file0 is in no export",
                "listener spare is in no export: it serves only discovery",
                "any host that reaches 192.0.2.1:4420 may read and write \
                 nqn.2026-11.org.windlass:demo: list its `hosts`",
                "the control plane's token is sent to 192.0.2.1:9808 unencrypted: set \
                 `certificate_file` and `certificate_key_file` in [control], or put an HTTPS proxy \
                 in front",
                "idle = \"poll\" keeps 3 core(s) at 100 % even without load: use \"adaptive\"",
            ]
        );
        config.control.certificate_file = Some("/etc/certificate.pem".into());
        let is_about_token = |notice: &Notice| matches!(notice, Notice::UnencryptedToken(_));
        assert!(!config.notices().iter().any(is_about_token));
    }
}
