//! Messages of NVMe in-band authentication: the common messages and those of DH-HMAC-CHAP (Base 2.1
//! §8.3.4.4, §8.3.4.5.2).
//!
//! A message whose length varies is a structure of fixed length, followed by values whose lengths
//! are in the structure.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::command::Sqe;
use crate::fabrics::{Authentication, FabricsType};
use crate::{U16, U32};

/// Security Protocol of NVMe in-band authentication in the SECP field (Base 2.1 §6.1, §6.2).
pub const SECURITY_PROTOCOL: u8 = 0xe9;

/// SPSP0 and SPSP1 of NVMe in-band authentication (Base 2.1 §6.1, §6.2).
pub const SECURITY_PROTOCOL_SPECIFIC: u8 = 1;

/// Identifiers in each list of a protocol descriptor (Base 2.1 §8.3.4.5.2).
pub const IDENTIFIERS_MAX: usize = 30;

open_enum! {
    /// Authentication Type, byte 0 of a message (Base 2.1 §8.3.4.4).
    pub struct MessageType(u8) {
        COMMON = 0x00, "common messages";
        DH_HMAC_CHAP = 0x01, "DH-HMAC-CHAP";
    }
}

open_enum! {
    /// Authentication Identifier, byte 1 of a message; the meaning depends on the type.
    pub struct MessageId(u8) {
        NEGOTIATE = 0x00, "AUTH_Negotiate";
        CHALLENGE = 0x01, "DH-HMAC-CHAP_Challenge";
        REPLY = 0x02, "DH-HMAC-CHAP_Reply";
        SUCCESS1 = 0x03, "DH-HMAC-CHAP_Success1";
        SUCCESS2 = 0x04, "DH-HMAC-CHAP_Success2";
        FAILURE2 = 0xf0, "AUTH_Failure2";
        FAILURE1 = 0xf1, "AUTH_Failure1";
    }
}

open_enum! {
    /// Secure Channel Concatenation, SC_C (Base 2.1 §8.3.4.4.1).
    pub struct SecureChannel(u8) {
        NONE = 0x00, "no secure channel";
        NEW_TLS_PSK = 0x02, "NEWTLSPSK";
        REPLACE_TLS_PSK = 0x03, "REPLACETLSPSK";
    }
}

open_enum! {
    /// Authentication Protocol Identifier of a protocol descriptor (Base 2.1 §8.3.4.4.1).
    pub struct ProtocolId(u8) {
        DH_HMAC_CHAP = 0x01, "DH-HMAC-CHAP";
    }
}

open_enum! {
    /// Hash function (Base 2.1 §8.3.4.5.2).
    pub struct HashId(u8) {
        SHA_256 = 0x01, "SHA-256";
        SHA_384 = 0x02, "SHA-384";
        SHA_512 = 0x03, "SHA-512";
    }
}

open_enum! {
    /// Diffie-Hellman group (Base 2.1 §8.3.4.5.2).
    pub struct GroupId(u8) {
        NULL = 0x00, "null";
        FFDHE2048 = 0x01, "ffdhe2048";
        FFDHE3072 = 0x02, "ffdhe3072";
        FFDHE4096 = 0x03, "ffdhe4096";
        FFDHE6144 = 0x04, "ffdhe6144";
        FFDHE8192 = 0x05, "ffdhe8192";
    }
}

open_enum! {
    /// Reason Code of a failure message (Base 2.1 §8.3.4.4).
    pub struct FailureReason(u8) {
        AUTHENTICATION_FAILURE = 0x01, "authentication failure";
    }
}

open_enum! {
    /// Reason Code Explanation of a failure message (Base 2.1 §8.3.4.4).
    pub struct FailureExplanation(u8) {
        AUTHENTICATION_FAILED = 0x01, "authentication failed";
        PROTOCOL_NOT_USABLE = 0x02, "authentication protocol not usable";
        SECURE_CHANNEL_MISMATCH = 0x03, "secure channel concatenation mismatch";
        HASH_NOT_USABLE = 0x04, "hash function not usable";
        GROUP_NOT_USABLE = 0x05, "DH group not usable";
        INCORRECT_PAYLOAD = 0x06, "incorrect payload";
        INCORRECT_MESSAGE = 0x07, "incorrect protocol message";
    }
}

/// Derives what every structure of this module has.
macro_rules! message {
    ($(#[$meta:meta])* pub struct $name:ident($bytes:literal) { $($body:tt)* }) => {
        $(#[$meta])*
        #[derive(
            Clone,
            Copy,
            Debug,
            PartialEq,
            Eq,
            FromBytes,
            IntoBytes,
            Immutable,
            KnownLayout,
            Unaligned,
        )]
        #[repr(C)]
        pub struct $name { $($body)* }
        const _: () = assert!(size_of::<$name>() == $bytes);
    };
}

message! {
    /// The first bytes of every message.
    pub struct MessageHeader(6) {
        /// Authentication Type (AUTH_TYPE).
        pub message_type: MessageType,
        /// Authentication Identifier (AUTH_ID).
        pub id: MessageId,
        reserved2: U16,
        /// Transaction Identifier (T_ID).
        pub transaction: U16,
    }
}

impl MessageHeader {
    /// The header of a message.
    pub const fn new(message_type: MessageType, id: MessageId, transaction: u16) -> Self {
        Self {
            message_type,
            id,
            reserved2: U16::ZERO,
            transaction: U16::new(transaction),
        }
    }
}

message! {
    /// AUTH_Negotiate (Base 2.1 §8.3.4.4.1); [`Negotiate::descriptors`] descriptors follow.
    pub struct Negotiate(8) {
        /// Type, identifier and transaction.
        pub header: MessageHeader,
        /// Secure Channel Concatenation (SC_C).
        pub secure_channel: SecureChannel,
        /// Number of Authentication Protocol Descriptors (NAPD).
        pub descriptors: u8,
    }
}

impl Negotiate {
    /// The message of a transaction with a number of descriptors.
    pub const fn new(transaction: u16, secure_channel: SecureChannel, descriptors: u8) -> Self {
        Self {
            header: MessageHeader::new(MessageType::COMMON, MessageId::NEGOTIATE, transaction),
            secure_channel,
            descriptors,
        }
    }
}

message! {
    /// Authentication protocol descriptor of DH-HMAC-CHAP (Base 2.1 §8.3.4.5.2).
    pub struct ProtocolDescriptor(64) {
        /// Authentication Protocol Identifier (AuthID).
        pub protocol: ProtocolId,
        reserved1: u8,
        /// Number of hash function identifiers (HALEN).
        pub hashes_len: u8,
        /// Number of group identifiers (DHLEN).
        pub groups_len: u8,
        /// Hash function identifiers; only the first [`Self::hashes_len`] are valid.
        pub hash_list: [HashId; IDENTIFIERS_MAX],
        /// Group identifiers; only the first [`Self::groups_len`] are valid.
        pub group_list: [GroupId; IDENTIFIERS_MAX],
    }
}

impl ProtocolDescriptor {
    /// A descriptor; `None` if a list has more than [`IDENTIFIERS_MAX`] identifiers.
    pub fn new(hashes: &[HashId], groups: &[GroupId]) -> Option<Self> {
        let mut hash_list = [HashId(0); IDENTIFIERS_MAX];
        let mut group_list = [GroupId(0); IDENTIFIERS_MAX];
        hash_list.get_mut(..hashes.len())?.copy_from_slice(hashes);
        group_list.get_mut(..groups.len())?.copy_from_slice(groups);
        Some(Self {
            protocol: ProtocolId::DH_HMAC_CHAP,
            reserved1: 0,
            hashes_len: hashes.len() as u8,
            groups_len: groups.len() as u8,
            hash_list,
            group_list,
        })
    }

    /// The hash functions; `None` if the descriptor states more than it has room for.
    pub fn hashes(&self) -> Option<&[HashId]> {
        self.hash_list.get(..usize::from(self.hashes_len))
    }

    /// The groups; `None` if the descriptor states more than it has room for.
    pub fn groups(&self) -> Option<&[GroupId]> {
        self.group_list.get(..usize::from(self.groups_len))
    }
}

message! {
    /// DH-HMAC-CHAP_Challenge (Base 2.1 §8.3.4.5.3); the challenge C1 and the DH value follow.
    pub struct Challenge(16) {
        /// Type, identifier and transaction.
        pub header: MessageHeader,
        /// Hash Length (HL), bytes.
        pub hash_len: u8,
        reserved7: u8,
        /// The selected hash function (HashID).
        pub hash: HashId,
        /// The selected group (DHgID).
        pub group: GroupId,
        /// DH Value Length (DHVLEN), bytes; 0 with the null group.
        pub public_value_len: U16,
        /// Sequence Number S1.
        pub sequence: U32,
    }
}

impl Challenge {
    /// The fixed part of the message.
    pub const fn new(
        transaction: u16,
        (hash, hash_len): (HashId, u8),
        (group, public_value_len): (GroupId, u16),
        sequence: u32,
    ) -> Self {
        Self {
            header: MessageHeader::new(
                MessageType::DH_HMAC_CHAP,
                MessageId::CHALLENGE,
                transaction,
            ),
            hash_len,
            reserved7: 0,
            hash,
            group,
            public_value_len: U16::new(public_value_len),
            sequence: U32::new(sequence),
        }
    }
}

message! {
    /// DH-HMAC-CHAP_Reply (Base 2.1 §8.3.4.5.4); the response R1, the challenge C2 and the DH value
    /// follow.
    pub struct Reply(16) {
        /// Type, identifier and transaction.
        pub header: MessageHeader,
        /// Hash Length (HL), bytes.
        pub hash_len: u8,
        reserved7: u8,
        /// Challenge Valid (CVALID): 1 if C2 is valid, else 0.
        pub challenge_valid: u8,
        reserved9: u8,
        /// DH Value Length (DHVLEN), bytes; 0 with the null group.
        pub public_value_len: U16,
        /// Sequence Number S2.
        pub sequence: U32,
    }
}

impl Reply {
    /// The fixed part of the message.
    pub const fn new(
        transaction: u16,
        hash_len: u8,
        challenge_valid: bool,
        public_value_len: u16,
        sequence: u32,
    ) -> Self {
        Self {
            header: MessageHeader::new(MessageType::DH_HMAC_CHAP, MessageId::REPLY, transaction),
            hash_len,
            reserved7: 0,
            challenge_valid: challenge_valid as u8,
            reserved9: 0,
            public_value_len: U16::new(public_value_len),
            sequence: U32::new(sequence),
        }
    }
}

message! {
    /// DH-HMAC-CHAP_Success1 (Base 2.1 §8.3.4.5.5); the response R2 follows.
    pub struct Success1(16) {
        /// Type, identifier and transaction.
        pub header: MessageHeader,
        /// Hash Length (HL), bytes.
        pub hash_len: u8,
        reserved7: u8,
        /// Response Valid (RVALID): 1 if R2 is valid, else 0.
        pub response_valid: u8,
        reserved9: [u8; 7],
    }
}

impl Success1 {
    /// The fixed part of the message.
    pub const fn new(transaction: u16, hash_len: u8, response_valid: bool) -> Self {
        Self {
            header: MessageHeader::new(MessageType::DH_HMAC_CHAP, MessageId::SUCCESS1, transaction),
            hash_len,
            reserved7: 0,
            response_valid: response_valid as u8,
            reserved9: [0; 7],
        }
    }
}

message! {
    /// DH-HMAC-CHAP_Success2 (Base 2.1 §8.3.4.5.6).
    pub struct Success2(16) {
        /// Type, identifier and transaction.
        pub header: MessageHeader,
        reserved6: [u8; 10],
    }
}

impl Success2 {
    /// The message of a transaction.
    pub const fn new(transaction: u16) -> Self {
        Self {
            header: MessageHeader::new(MessageType::DH_HMAC_CHAP, MessageId::SUCCESS2, transaction),
            reserved6: [0; 10],
        }
    }
}

message! {
    /// AUTH_Failure1, from the controller, or AUTH_Failure2, from the host (Base 2.1 §8.3.4.4).
    pub struct Failure(8) {
        /// Type, identifier and transaction.
        pub header: MessageHeader,
        /// Reason Code.
        pub reason: FailureReason,
        /// Reason Code Explanation.
        pub explanation: FailureExplanation,
    }
}

impl Failure {
    /// The message `id` of a transaction, [`MessageId::FAILURE1`] or [`MessageId::FAILURE2`].
    pub const fn new(id: MessageId, transaction: u16, explanation: FailureExplanation) -> Self {
        Self {
            header: MessageHeader::new(MessageType::COMMON, id, transaction),
            reason: FailureReason::AUTHENTICATION_FAILURE,
            explanation,
        }
    }
}

impl Authentication {
    /// The fields of NVMe in-band authentication, with a transfer or allocation length in bytes.
    pub fn in_band(length: u32) -> Self {
        let mut fields = Self::default();
        fields.spsp0 = SECURITY_PROTOCOL_SPECIFIC;
        fields.spsp1 = SECURITY_PROTOCOL_SPECIFIC;
        fields.secp = SECURITY_PROTOCOL;
        fields.length = U32::new(length);
        fields
    }

    /// Whether the command is of NVMe in-band authentication.
    pub const fn is_in_band(&self) -> bool {
        self.secp == SECURITY_PROTOCOL
            && self.spsp0 == SECURITY_PROTOCOL_SPECIFIC
            && self.spsp1 == SECURITY_PROTOCOL_SPECIFIC
    }
}

impl Sqe {
    /// Authentication Send of a message of `transfer_len` bytes.
    pub fn authentication_send(transfer_len: u32) -> Self {
        Self::fabrics(FabricsType::AUTHENTICATION_SEND)
            .with_authentication(Authentication::in_band(transfer_len))
    }

    /// Authentication Receive into a buffer of `allocation_len` bytes.
    pub fn authentication_receive(allocation_len: u32) -> Self {
        Self::fabrics(FabricsType::AUTHENTICATION_RECEIVE)
            .with_authentication(Authentication::in_band(allocation_len))
    }
}
