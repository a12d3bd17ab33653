//! Handshakes between both sides, with peers that violate the protocol, and with OpenSSL.

mod openssl;
mod pairs;
mod rig;
mod strangers;
