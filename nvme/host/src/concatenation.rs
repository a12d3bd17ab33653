//! Secure channel concatenation (SC_C of Base 2.1 §8.3.4.4.1): the host generates a key for TLS while it
//! authenticates itself, and connects anew with this key.

use nvme_authentication::SecureChannelPolicy;
use nvme_keys::{GeneratedKey, PskHash};

use crate::admin::AdminQueue;
use crate::error::HostError;
use crate::options::ConnectOptions;
use crate::tcp::protected::TlsOptions;
use crate::transport::Transport;

impl ConnectOptions {
    /// Generates a key on an admin queue without TLS, which ends. Returns the options to connect with
    /// this key; the channel then proves the host, which does not authenticate itself again.
    ///
    /// # Errors
    /// [`HostError::AuthenticationRequired`] without secrets, [`HostError::Authentication`] if one
    /// side refuses the other, and those of the connection.
    pub fn concatenated(&self) -> Result<Self, HostError> {
        let mut plain = self.clone();
        let chap = plain.chap.as_mut();
        let chap = chap.ok_or(HostError::AuthenticationRequired)?;
        chap.policy.secure_channel = SecureChannelPolicy::Required;
        let (_admin, _, authenticated) = AdminQueue::connect(&plain)?;
        let none = || HostError::Malformed {
            what: "generated key",
        };
        let psk = authenticated.and_then(|it| it.psk).ok_or_else(none)?;
        let hash = PskHash::of_len(psk.bytes().len()).ok_or_else(none)?;
        let key = GeneratedKey::new(hash, psk.bytes()).map_err(|_| none())?;
        Ok(Self {
            transport: Transport::tls(TlsOptions::generated(key)),
            chap: None,
            ..self.clone()
        })
    }
}
