//! Splits received messages into their values, and joins the values of messages to send.
//!
//! The payload is validated before any computation with it.

use nvme_spec::authentication::{
    Failure as FailureMessage, FailureExplanation, MessageHeader, MessageId, MessageType,
    Negotiate, ProtocolDescriptor, ProtocolId,
};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::{Failure, HASH_BYTES_MAX, PUBLIC_VALUE_BYTES_MAX, Violation};

/// Protocol descriptors in AUTH_Negotiate.
pub const DESCRIPTORS_MAX: usize = 8;

/// The longest message, bytes: DH-HMAC-CHAP_Reply.
pub const MESSAGE_BYTES_MAX: usize = 16 + 2 * HASH_BYTES_MAX + PUBLIC_VALUE_BYTES_MAX;
const _: () = assert!(8 + DESCRIPTORS_MAX * 64 <= MESSAGE_BYTES_MAX);

/// The header of a message.
pub(crate) fn header(message: &[u8]) -> Result<MessageHeader, Violation> {
    fixed(message)
}

/// Whether the header is that of a message.
pub(crate) fn is(header: &MessageHeader, message_type: MessageType, id: MessageId) -> bool {
    header.message_type == message_type && header.id == id
}

/// The fixed part of a message.
pub(crate) fn fixed<T: FromBytes + KnownLayout + Immutable>(
    message: &[u8],
) -> Result<T, Violation> {
    let (value, _) = T::read_from_prefix(message).map_err(|_| Violation::Length)?;
    Ok(value)
}

/// The values behind the fixed part `T`, of the given lengths, and the bytes behind them.
pub(crate) fn values<T, const N: usize>(
    message: &[u8],
    lengths: [usize; N],
) -> Result<([&[u8]; N], &[u8]), Violation> {
    let mut rest = message.get(size_of::<T>()..).ok_or(Violation::Length)?;
    let mut values = [&[][..]; N];
    for (value, length) in values.iter_mut().zip(lengths) {
        (*value, rest) = rest.split_at_checked(length).ok_or(Violation::Length)?;
    }
    Ok((values, rest))
}

/// The descriptor of DH-HMAC-CHAP in an AUTH_Negotiate message.
pub(crate) fn descriptor(
    message: &[u8],
    negotiate: &Negotiate,
) -> Result<ProtocolDescriptor, Violation> {
    let count = usize::from(negotiate.descriptors);
    if count == 0 || count > DESCRIPTORS_MAX {
        return Err(Violation::Lists);
    }
    let lengths = [count * size_of::<ProtocolDescriptor>()];
    let ([descriptors], rest) = values::<Negotiate, 1>(message, lengths)?;
    if !rest.is_empty() {
        return Err(Violation::Length);
    }
    descriptors
        .chunks_exact(size_of::<ProtocolDescriptor>())
        .filter_map(|bytes| ProtocolDescriptor::read_from_bytes(bytes).ok())
        .find(|descriptor| descriptor.protocol == ProtocolId::DH_HMAC_CHAP)
        .ok_or(Violation::Protocol)
}

/// A message of a fixed part and values.
pub(crate) fn join<T: IntoBytes + Immutable>(fixed: &T, values: &[&[u8]]) -> Vec<u8> {
    let mut message = fixed.as_bytes().to_vec();
    for value in values {
        message.extend_from_slice(value);
    }
    debug_assert!(message.len() <= MESSAGE_BYTES_MAX);
    message
}

/// The failure message `id`.
pub(crate) fn failure(id: MessageId, transaction: u16, explanation: FailureExplanation) -> Vec<u8> {
    join(&FailureMessage::new(id, transaction, explanation), &[])
}

/// What the other side's failure message of the transaction says.
pub(crate) fn refusal(message: &[u8], transaction: u16) -> Result<Failure, Violation> {
    let message: FailureMessage = fixed(message)?;
    if message.header.transaction.get() != transaction {
        return Err(Violation::Transaction);
    }
    Ok(Failure::RefusedByPeer {
        reason: message.reason,
        explanation: message.explanation,
    })
}

/// A field that is 0 or 1.
pub(crate) fn flag(value: u8) -> Result<bool, Violation> {
    match value {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Violation::ReservedValue),
    }
}
