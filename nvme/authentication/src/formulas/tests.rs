//! Responses against values of an independent computation.
//!
//! They come from Python's `hashlib` and `hmac`, with `H` = `hmac.new(key, b"".join(parts),
//! h).digest()`:
//!
//! - `n = hashlib.new(h).digest_size`, `K = bytes(range(1, 33))`, `Kc = bytes(range(101, 133))`,
//!   `C = b"\xc1" * n`, `KS = hashlib.new(h, b"\xab" * 256).digest()`;
//! - `S = 0x01020304` and `T = 0x1234`, little-endian, in 4 and 2 bytes;
//! - `hn = b"nqn.2014-08.org.example:host"`, `sn = b"nqn.2014-08.org.example:subsystem"`;
//! - R1, null group: `H(K, C, S, T, b"\0", b"HostHost", hn, b"\0", sn)`;
//! - R1, NEWTLSPSK: `H(K, H(KS, C), S, T, b"\2", b"HostHost", hn, b"\0", sn)`;
//! - R2: `H(Kc, H(KS, C), S, T, b"\0", b"Controller", sn, b"\0", hn)`.

use super::*;
use crate::Channel;

const VECTORS: [(Hash, &str, &str, &str); 3] = [
    (
        Hash::Sha256,
        "48baa99de69cd77cc77e3c69b64ff24280baae61a98d90d4a6a30c46e6781732",
        "a68780078980ba4c9d6d12120f33b18a0efa158999a0751f0f86e8d68e2b9398",
        "bb516f092aaf174d89ec34fd4976d13358a5ff228b98886237703b3de9d15700",
    ),
    (
        Hash::Sha384,
        concat!(
            "4dd80b630a89525dc53af65a44544492df256b58cff2cbc74b7e34fd26bf06e4",
            "fcbe46c87c914ebb3f78f67a2d25a1fb",
        ),
        concat!(
            "9b431f6163585dc7a653fbd1860129764c257345e17df0f4735a7d7e6ccee077",
            "491ee1e0ae553787d8dc08c8aa5161f3",
        ),
        concat!(
            "84338b3e96fa91e96175294b2c16158bd5e6db5d84468c7cfd7fc45ad8742302",
            "3004e1c75502988fe98afd2eee1cc732",
        ),
    ),
    (
        Hash::Sha512,
        concat!(
            "14182b3e61ddf04ba6d1bc2c1787b17615a4a9788f6a34d05f5a715163ba1461",
            "45afa072d6e549f6df3592144c9bd7796623c8d898a9acaada8dbd18cb43d9b9",
        ),
        concat!(
            "c61fbcc2ca0572e858e6a05d1cae2f21143b015e6f48e60f4d05acdda5f65f39",
            "3e3a14630d9d7604b9b3d628da20f06a21a8e6580f8b3a52c7e756b4d6dcc4d2",
        ),
        concat!(
            "8f5ccf53d0315779a831f912c1b88feef64948b37319882ed7d5e88fc131d6fb",
            "ad9d4ce8d7a8dcb8189aa7b2b004dccda34b6f751e924248fb1b4ded966f90a3",
        ),
    ),
];

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn responses_equal_independent_values() {
    let keys: Vec<Key> = [1..33, 101..133]
        .map(|range| Key::new(&range.collect::<Vec<u8>>()).unwrap())
        .into();
    let queue = Queue {
        host_nqn: "nqn.2014-08.org.example:host".into(),
        subsystem_nqn: "nqn.2014-08.org.example:subsystem".into(),
        is_admin: true,
        channel: Channel::Plain,
        host_keys: [keys[0].clone()].into_iter().collect(),
        controller_key: None,
    };
    for (hash, null_r1, r1, r2) in VECTORS {
        let challenge = vec![0xc1; usize::from(hash.bytes())];
        let session_key = session_key(hash, &[0xab; 256]);
        let respond = |side, key, session_key, secure_channel| {
            let of = Challenged {
                hash,
                session_key,
                challenge: &challenge,
                sequence: 0x0102_0304,
                transaction: 0x1234,
                secure_channel,
            };
            hexadecimal(&response(side, key, &queue, &of))
        };
        let none = SecureChannel::NONE;
        assert_eq!(respond(Side::Host, &keys[0], &[], none), null_r1);
        let new_psk = SecureChannel::NEW_TLS_PSK;
        assert_eq!(respond(Side::Host, &keys[0], &session_key, new_psk), r1);
        assert_eq!(respond(Side::Controller, &keys[1], &session_key, none), r2);
    }
}
