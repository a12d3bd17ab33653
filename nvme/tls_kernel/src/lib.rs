//! TLS 1.3 records in the kernel (kTLS): a socket whose handshake is complete encrypts what is sent
//! and decrypts what is received.
//!
//! A user passes the traffic secrets of both directions once ([`protect`]), and then sends data as
//! before. It receives by [`receive`], which tells records with data from others, and sends others
//! by [`send_control`]. For a KeyUpdate it replaces the key of a direction ([`set_send_key`],
//! [`set_receive_key`]), which Linux permits since 6.14.
//!
//! Unsafe code is in the module `socket` only, which passes structures to the kernel that no library
//! here has.

use std::fs;
use std::io::IoSliceMut;
use std::os::fd::BorrowedFd;

use nvme_tls::{ContentType, Suite, TrafficSecret};
use rustix::io::Errno;
use zeroize::Zeroize as _;

mod socket;

/// The protocols above TCP that the kernel has now. Others may be in modules that are not loaded.
const PROTOCOLS: &str = "/proc/sys/net/ipv4/tcp_available_ulp";

/// Whether the kernel has loaded TLS.
#[must_use]
pub fn is_available() -> bool {
    let protocols = fs::read_to_string(PROTOCOLS);
    protocols.is_ok_and(|it| it.split_whitespace().any(|name| name == "tls"))
}

/// What was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// This number of bytes, the content of a record or a part of it. It is zero for an empty record.
    Record(ContentType, usize),
    /// The end of the stream.
    End,
}

/// Protects a connected socket, on which nothing was received behind the handshake.
///
/// # Errors
/// [`Errno::NOENT`] if the kernel has no TLS; the socket is as before then. After any other error it can
/// only be closed.
pub fn protect(
    socket: BorrowedFd<'_>,
    send: &TrafficSecret,
    receive: &TrafficSecret,
) -> Result<(), Errno> {
    socket::enable(socket)?;
    set_send_key(socket, send)?;
    set_receive_key(socket, receive)
}

/// Encrypts what is sent from now on with the key of `secret`.
///
/// # Errors
/// The kernel's: [`Errno::BUSY`] if there was a key before, and the kernel cannot replace it.
pub fn set_send_key(socket: BorrowedFd<'_>, secret: &TrafficSecret) -> Result<(), Errno> {
    set_key(socket, socket::Direction::Send, secret)
}

/// Decrypts the records behind those that were received with the key of `secret`.
///
/// # Errors
/// As of [`set_send_key`].
pub fn set_receive_key(socket: BorrowedFd<'_>, secret: &TrafficSecret) -> Result<(), Errno> {
    set_key(socket, socket::Direction::Receive, secret)
}

fn set_key(
    socket: BorrowedFd<'_>,
    direction: socket::Direction,
    secret: &TrafficSecret,
) -> Result<(), Errno> {
    let mut text = crypto_info(secret);
    let set = socket::set_crypto_info(socket, direction, &text);
    text.zeroize();
    set
}

/// Receives without waiting: data of as many records as fit, or one record of another type, or as
/// much of it as fits.
///
/// # Errors
/// The kernel's: [`Errno::BADMSG`] for a record that cannot be decrypted.
pub fn receive(socket: BorrowedFd<'_>, buffers: &mut [IoSliceMut<'_>]) -> Result<Received, Errno> {
    Ok(match socket::receive(socket, buffers)? {
        (0, None) => Received::End,
        // Without TLS there are no types.
        (bytes, None) => Received::Record(ContentType::ApplicationData, bytes),
        (bytes, Some(code)) => {
            let content = ContentType::from_code(code).ok_or(Errno::PROTO)?;
            Received::Record(content, bytes)
        }
    })
}

/// Sends a record that has no data, without waiting.
///
/// # Errors
/// The kernel's.
pub fn send_control(
    socket: BorrowedFd<'_>,
    content: ContentType,
    bytes: &[u8],
) -> Result<(), Errno> {
    match socket::send_record(socket, content.code(), bytes)? {
        sent if sent == bytes.len() => Ok(()),
        // A record is sent as a whole.
        _ => Err(Errno::IO),
    }
}

/// `TLS_1_3_VERSION` of linux/tls.h.
const VERSION: u16 = 0x0304;
/// `TLS_CIPHER_AES_GCM_128` and `TLS_CIPHER_AES_GCM_256`.
const AES_GCM_128: u16 = 51;
const AES_GCM_256: u16 = 52;
/// The parts of a nonce: the salt, and what the kernel calls the IV.
const SALT_BYTES: usize = 4;

/// The `tls12_crypto_info_aes_gcm_128` or `_256` of linux/tls.h for the records from number 0:
/// version, cipher, IV, key, salt, number of the record.
fn crypto_info(secret: &TrafficSecret) -> Vec<u8> {
    let cipher = match secret.suite() {
        Suite::Aes128GcmSha256 => AES_GCM_128,
        Suite::Aes256GcmSha384 => AES_GCM_256,
    };
    let keys = secret.record_key();
    let (salt, iv) = keys.iv.split_at(SALT_BYTES);
    let mut info = Vec::with_capacity(64);
    info.extend(VERSION.to_ne_bytes());
    info.extend(cipher.to_ne_bytes());
    info.extend(iv);
    info.extend(keys.key.expose());
    info.extend(salt);
    info.extend(0_u64.to_be_bytes());
    info
}

#[cfg(test)]
mod tests;
