//! Messages of in-band authentication against the published layouts (Base 2.1 §8.3.4.4 and
//! §8.3.4.5.2 to §8.3.4.5.6).

use core::mem::offset_of;

use nvme_spec::Sqe;
use nvme_spec::authentication::*;
use zerocopy::{FromBytes, IntoBytes};

#[test]
fn negotiate_has_the_published_bytes() {
    let message = Negotiate::new(0x1234, SecureChannel::NEW_TLS_PSK, 1);
    assert_eq!(message.as_bytes(), [0, 0, 0, 0, 0x34, 0x12, 2, 1]);
    assert_eq!(offset_of!(ProtocolDescriptor, hashes_len), 2);
    assert_eq!(offset_of!(ProtocolDescriptor, groups_len), 3);
    assert_eq!(offset_of!(ProtocolDescriptor, hash_list), 4);
    assert_eq!(offset_of!(ProtocolDescriptor, group_list), 34);
    let hashes = [HashId::SHA_384, HashId::SHA_256];
    let descriptor = ProtocolDescriptor::new(&hashes, &[GroupId::FFDHE3072]).unwrap();
    assert_eq!(descriptor.as_bytes()[..7], [1, 0, 2, 1, 2, 1, 0]);
    assert_eq!(descriptor.as_bytes()[33..36], [0, 2, 0]);
    assert_eq!(descriptor.hashes(), Some(&hashes[..]));
    assert_eq!(descriptor.groups(), Some(&[GroupId::FFDHE3072][..]));
}

#[test]
fn a_descriptor_with_too_many_identifiers_has_no_lists() {
    assert!(ProtocolDescriptor::new(&[HashId::SHA_256; 31], &[]).is_none());
    assert!(ProtocolDescriptor::new(&[], &[GroupId::NULL; 31]).is_none());
    let mut bytes = [0_u8; 64];
    bytes[2] = 31;
    bytes[3] = 255;
    let descriptor = ProtocolDescriptor::read_from_bytes(&bytes).unwrap();
    assert_eq!(descriptor.hashes(), None);
    assert_eq!(descriptor.groups(), None);
}

#[test]
fn messages_of_dh_hmac_chap_have_the_published_bytes() {
    let hash = (HashId::SHA_512, 64);
    let challenge = Challenge::new(0x1234, hash, (GroupId::FFDHE2048, 256), 0x0102_0304);
    let expected = [1, 1, 0, 0, 0x34, 0x12, 64, 0, 3, 1, 0, 1, 4, 3, 2, 1];
    assert_eq!(challenge.as_bytes(), expected);
    let reply = Reply::new(0x1234, 48, true, 0x0180, 0x0102_0304);
    let expected = [1, 2, 0, 0, 0x34, 0x12, 48, 0, 1, 0, 0x80, 1, 4, 3, 2, 1];
    assert_eq!(reply.as_bytes(), expected);
    let success = Success1::new(0x1234, 32, true);
    let expected = [1, 3, 0, 0, 0x34, 0x12, 32, 0, 1, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(success.as_bytes(), expected);
    let success = Success2::new(0x1234);
    let expected = [1, 4, 0, 0, 0x34, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(success.as_bytes(), expected);
}

#[test]
fn failures_have_the_published_bytes() {
    let explanation = FailureExplanation::GROUP_NOT_USABLE;
    let failure = Failure::new(MessageId::FAILURE1, 0x1234, explanation);
    assert_eq!(failure.as_bytes(), [0, 0xf1, 0, 0, 0x34, 0x12, 1, 5]);
    let failure = Failure::new(MessageId::FAILURE2, 0x1234, explanation);
    assert_eq!(failure.as_bytes(), [0, 0xf0, 0, 0, 0x34, 0x12, 1, 5]);
}

/// Base 2.1 §6.1 and §6.2.
#[test]
fn commands_carry_the_security_protocol_and_the_length() {
    let send = Sqe::authentication_send(0x0102);
    assert_eq!(send.as_bytes()[..5], [0x7f, 0, 0, 0, 5]);
    assert_eq!(send.as_bytes()[40..48], [0, 1, 1, 0xe9, 2, 1, 0, 0]);
    let receive = Sqe::authentication_receive(4096);
    assert_eq!(receive.as_bytes()[4], 6);
    assert_eq!(receive.authentication().length.get(), 4096);
    assert!(receive.authentication().is_in_band());
    let mut other = receive.authentication();
    other.secp = 0;
    assert!(!other.is_in_band());
}
