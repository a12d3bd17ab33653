//! Connection requests of peers.

use std::net::SocketAddr;
use std::sync::Arc;

use super::Verbs;
use super::channel::VerbsEventChannel;
use super::connection::VerbsConnection;
use super::device::VerbsDevice;
use super::identifier::{Identifier, IdentifierContext};
use super::table::DeviceTable;
use crate::connection::{PrivateData, REJECT_PRIVATE_DATA_MAX, Token};
use crate::error::Error;
use crate::provider::ConnectRequest;

/// A connection request of librdmacm.
#[derive(Debug)]
pub struct VerbsConnectRequest {
    /// Taken by accepting or rejecting the request.
    identifier: Option<Identifier>,
    details: Details,
}

/// Properties of a request.
#[derive(Clone, Debug)]
pub(super) struct Details {
    pub(super) devices: Arc<DeviceTable>,
    pub(super) device: VerbsDevice,
    pub(super) private_data: PrivateData,
    pub(super) initiator_depth: u8,
    pub(super) responder_resources: u8,
    pub(super) local_address: SocketAddr,
    pub(super) peer_address: SocketAddr,
}

impl VerbsConnectRequest {
    pub(super) fn new(identifier: Identifier, details: Details) -> Self {
        Self {
            identifier: Some(identifier),
            details,
        }
    }
}

impl Drop for VerbsConnectRequest {
    fn drop(&mut self) {
        if let Some(identifier) = &self.identifier {
            // Fails only if the peer is gone already.
            let _ = identifier.reject(&[]);
        }
    }
}

impl ConnectRequest for VerbsConnectRequest {
    type Provider = Verbs;

    fn device(&self) -> &VerbsDevice {
        &self.details.device
    }

    fn private_data(&self) -> &PrivateData {
        &self.details.private_data
    }

    fn initiator_depth(&self) -> u8 {
        self.details.initiator_depth
    }

    fn responder_resources(&self) -> u8 {
        self.details.responder_resources
    }

    fn local_address(&self) -> SocketAddr {
        self.details.local_address
    }

    fn peer_address(&self) -> SocketAddr {
        self.details.peer_address
    }

    fn into_connection(
        mut self,
        channel: &mut VerbsEventChannel,
        token: Token,
    ) -> Result<VerbsConnection, Error> {
        let label = IdentifierContext::of_connection(token, true);
        let Some(identifier) = &mut self.identifier else {
            return Err(Error::Misuse("the request was answered"));
        };
        identifier.move_to(channel.shared(), &label)?;
        let Some(identifier) = self.identifier.take() else {
            return Err(Error::Misuse("the request was answered"));
        };
        let devices = Arc::clone(&self.details.devices);
        Ok(VerbsConnection::passive(identifier, label, devices))
    }

    fn reject(mut self, private_data: &[u8]) -> Result<(), Error> {
        check_length(private_data, REJECT_PRIVATE_DATA_MAX)?;
        self.identifier
            .take()
            .map_or(Ok(()), |identifier| identifier.reject(private_data))
    }
}

/// Checks that private data fits into its message.
pub(super) fn check_length(private_data: &[u8], limit: usize) -> Result<(), Error> {
    let len = private_data.len();
    if len > limit {
        return Err(Error::PrivateDataTooLong { len, limit });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_data_limit_depends_on_the_message() {
        let bytes = [0; REJECT_PRIVATE_DATA_MAX + 1];
        assert!(check_length(&bytes[1..], REJECT_PRIVATE_DATA_MAX).is_ok());
        assert!(matches!(
            check_length(&bytes, REJECT_PRIVATE_DATA_MAX),
            Err(Error::PrivateDataTooLong {
                len: 149,
                limit: 148
            })
        ));
    }
}
