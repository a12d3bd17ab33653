use nvme_handover::*;
use proptest::prelude::*;
use serde::Deserialize;

use super::*;

/// A stored state of version 1 of every record, with an entry in every list. Later versions have to
/// read it, so it never changes.
const VERSION_1: &[u8] = include_bytes!("version_1.state");

/// A stored state of the latest version of every record, which authenticated queues have changed.
const LATEST: &[u8] = include_bytes!("version_2.state");

/// A state with a value in every field.
fn sample(seed: u64) -> State {
    let mut values = Values(seed);
    let v = &mut values;
    State {
        target: TargetRecord {
            reactors: v.number() as u32,
            exported_at_ns: v.number(),
            transfer_max_bytes: v.number() as u32,
            discovery_generation: v.number(),
            next_controller_ids: [(1, v.number() as u16), (2, v.number() as u16)].into(),
            subsystems: v.list(|v| SubsystemRecord {
                nqn: v.text(),
                serial: v.text(),
                model: v.text(),
                namespaces: v.list(|v| NamespaceRecord {
                    nsid: v.number() as u32,
                    device: v.text(),
                    block_bytes: v.number() as u32,
                    block_count: v.number(),
                    uuid: v.array(),
                    nguid: v.array(),
                    eui64: v.array(),
                    read_only: v.flag(),
                    ana_group: v.number() as u32,
                    reservations: v.flag(),
                }),
                ports: v.list(|v| v.number() as u16),
                ana_states: v.list(|v| AnaRecord {
                    port: v.number() as u16,
                    group: v.number() as u32,
                    state: v.text(),
                }),
                masks: [(
                    v.text(),
                    v.list(|v| MaskedRecord {
                        nsid: v.number() as u32,
                        read_only: v.flag(),
                    }),
                )]
                .into(),
            }),
            ports: v.list(|v| PortRecord {
                id: v.number() as u16,
                transport: v.transport(),
                address: v.text(),
                service: v.text(),
                ipv6: v.flag(),
                secure: v.flag(),
            }),
            reservations: v.list(|v| ReservationRecord {
                device: v.text(),
                identity: v.array(),
                state: v.bytes(),
            }),
        },
        cores: v.list(|v| CoreRecord {
            reactor: v.number() as u32,
            counters: [(v.text(), v.number())].into(),
            devices: v.list(|v| DeviceTotals {
                device: v.text(),
                totals: v.totals(),
            }),
        }),
        controllers: v.list(controller),
        queues: v.list(|v| QueueRecord {
            controller_id: v.number() as u16,
            qid: v.number() as u16,
            reactor: v.number() as u32,
            transport: v.transport(),
            depth: v.number() as u16,
            sq_head: v.number() as u16,
            flow_control: v.flag(),
            in_capsule_max_bytes: v.number() as u32,
            log_allowance: v.number() as u8,
            share: v.share(),
            totals: v.totals(),
            authentication: v.maybe(|v| AuthenticationRecord {
                hash: v.number() as u8,
                group: v.number() as u8,
                key: v.text(),
                controller_key: v.maybe(Values::text),
                age_ns: v.number(),
            }),
        }),
        tcp_connections: v.list(|v| TcpConnectionRecord {
            reactor: v.number() as u32,
            port: v.number() as u16,
            phase: match v.number() % 3 {
                0 => TcpPhase::Initialising,
                1 => TcpPhase::Connecting,
                _ => TcpPhase::Serving {
                    controller_id: v.number() as u16,
                    qid: v.number() as u16,
                },
            },
            header_digest: v.flag(),
            data_digest: v.flag(),
            host_alignment_z: v.number() as u8,
            host_data_max_bytes: v.number() as u32,
            in_capsule_max_bytes: v.number() as u32,
            success_flag: v.flag(),
            skipped: v.maybe(|v| SkippedData {
                remaining: v.number() as u32,
                digest: v.flag(),
            }),
            received: v.bytes(),
            unsent: v.bytes(),
        }),
    }
}

fn controller(v: &mut Values) -> ControllerRecord {
    ControllerRecord {
        controller_id: v.number() as u16,
        subsystem_nqn: v.text(),
        host_nqn: v.text(),
        host_id: v.array(),
        port: v.number() as u16,
        transport: v.transport(),
        target_address: v.maybe(Values::address),
        host_address: v.maybe(Values::address),
        share: v.share(),
        in_capsule_max_bytes: v.number() as u32,
        queue_depth_max: v.number() as u16,
        io_queues_granted: v.number() as u16,
        state: match v.number() % 6 {
            0 => ControllerStateRecord::Disabled,
            1 => ControllerStateRecord::Ready,
            2 => ControllerStateRecord::ShutDown,
            3 => ControllerStateRecord::ShutDownDisabled,
            4 => ControllerStateRecord::ShutDownUnflushed,
            _ => ControllerStateRecord::Failed,
        },
        cc: v.number() as u32,
        features: FeaturesRecord {
            arbitration: v.number() as u32,
            power: v.number() as u32,
            over_temperature_kelvin: v.number() as u16,
            under_temperature_kelvin: v.number() as u16,
            error_recovery: v.list(|v| v.number() as u32),
            reservation_masks: v.list(|v| v.number() as u32),
            write_cache: v.flag(),
            write_atomicity: v.number() as u32,
            async_events: v.number() as u32,
            keep_alive_ms: v.number() as u32,
            host_behavior: v.bytes(),
            timestamp_ms: v.number(),
            timestamp_origin: v.number() as u8,
            timestamp_age_ns: v.number(),
        },
        events: v.list(|v| EventRecord {
            event: v.number() as u32,
            state: match v.flag() {
                true => EventStateRecord::Pending,
                false => EventStateRecord::Reported,
            },
        }),
        event_requests: v.list(|v| v.number() as u16),
        reservation_log: ReservationLogRecord {
            count: v.number(),
            waiting: v.list(|v| NoticeRecord {
                number: v.number(),
                nsid: v.number() as u32,
                kind: v.number() as u8,
            }),
        },
        changed_namespaces: v.list(|v| v.number() as u32),
        ana_changes: v.number(),
        warnings: v.number() as u8,
        keep_alive_remaining_ns: v.maybe(Values::number),
        was_prolonged: v.flag(),
        health_remaining_ns: v.maybe(Values::number),
        has_traffic: v.flag(),
        host_shutdown: v.flag(),
        idle_ns: v.number(),
        errors: ErrorLogRecord {
            count: v.number(),
            entries: v.list(Values::bytes),
            imported: v.list(|v| ImportedErrors {
                device: v.text(),
                newest: v.number(),
            }),
        },
        closed_queues: v.totals(),
    }
}

/// Values that a seed determines (xorshift64*).
struct Values(u64);

impl Values {
    fn number(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn flag(&mut self) -> bool {
        self.number() % 2 == 1
    }

    fn text(&mut self) -> String {
        let alphabet: Vec<char> = "nqn.:\"\\ä\u{1f600}\n0".chars().collect();
        let letters = self.number() % 8;
        (0..letters)
            .map(|_| alphabet[self.number() as usize % alphabet.len()])
            .collect()
    }

    fn bytes(&mut self) -> Bytes {
        let length = self.number() % 70;
        Bytes((0..length).map(|_| self.number() as u8).collect())
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| self.number() as u8)
    }

    fn maybe<T>(&mut self, value: impl FnOnce(&mut Self) -> T) -> Option<T> {
        self.flag().then(|| value(self))
    }

    fn list<T>(&mut self, mut value: impl FnMut(&mut Self) -> T) -> Vec<T> {
        let length = self.number() % 3;
        (0..length).map(|_| value(self)).collect()
    }

    fn address(&mut self) -> std::net::IpAddr {
        match self.flag() {
            true => self.array::<4>().into(),
            false => self.array::<16>().into(),
        }
    }

    fn transport(&mut self) -> TransportRecord {
        match self.flag() {
            true => TransportRecord::Tcp,
            false => TransportRecord::Rdma,
        }
    }

    fn share(&mut self) -> ShareRecord {
        ShareRecord {
            listed: self.flag(),
            address: self.maybe(Values::address),
        }
    }

    fn totals(&mut self) -> TotalsRecord {
        TotalsRecord {
            reads: self.number(),
            bytes_read: self.number(),
            writes: self.number(),
            bytes_written: self.number(),
            others: self.number(),
            errors: self.number(),
        }
    }
}

fn encoded(state: &State) -> Vec<u8> {
    encode(state).expect("a small state")
}

/// Replaces the checksum of a modified state.
fn seal(bytes: &mut [u8]) {
    let end = bytes.len() - size_of::<Checksum>();
    let checksum = Checksum::new(crc_fast::crc32_iscsi(&bytes[..end]));
    bytes[end..].copy_from_slice(checksum.as_bytes());
}

/// Offset of the first record's header.
const FIRST: usize = size_of::<Header>();

proptest! {
    /// Any bytes are decoded or refused, never a panic: as they are, and as the body of each kind of
    /// record.
    #[test]
    fn arbitrary_bytes_do_not_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..300),
        kind in 0..7_u16,
    ) {
        prop_assert!(decode(&bytes).is_err());
        let _ = decode(&assembled(&[(kind, 1, &bytes)]));
    }

    #[test]
    fn a_state_survives_its_stored_form(seed in 1..u64::MAX) {
        let state = sample(seed);
        prop_assert_eq!(decode(&encoded(&state)).expect("just stored"), state);
    }

    /// With the right checksum, damage is either an error or another state, never a panic.
    #[test]
    fn damage_with_a_right_checksum_does_not_panic(
        seed in 1..u64::MAX,
        place in any::<prop::sample::Index>(),
        value in any::<u8>(),
    ) {
        let mut bytes = encoded(&sample(seed));
        let place = place.index(bytes.len());
        bytes[place] = value;
        seal(&mut bytes);
        if let Ok(state) = decode(&bytes) {
            prop_assert_eq!(decode(&encoded(&state)).expect("just stored"), state);
        }
    }
}

#[test]
fn every_damaged_byte_is_detected() {
    let bytes = encoded(&sample(7));
    for place in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[place] ^= 0x10;
        assert!(decode(&damaged).is_err(), "byte {place}");
    }
}

#[test]
fn every_truncation_is_detected() {
    let bytes = encoded(&sample(7));
    for length in 0..bytes.len() {
        assert!(decode(&bytes[..length]).is_err(), "{length} bytes");
        let mut sealed = bytes[..length].to_vec();
        if length >= FIRST + size_of::<Checksum>() {
            seal(&mut sealed);
            assert!(decode(&sealed).is_err(), "{length} sealed bytes");
        }
    }
}

#[test]
fn what_a_later_version_wrote_is_refused_by_name() {
    let good = encoded(&sample(7));
    let refusal = |offset: usize, value: u16| {
        let mut bytes = good.clone();
        bytes[offset..offset + 2].copy_from_slice(&value.to_le_bytes());
        seal(&mut bytes);
        decode(&bytes).expect_err("too new").to_string()
    };
    assert_eq!(
        refusal(8, 9),
        "the state has layout version 9, but this version of Windlass reads only 1: start a later \
         version"
    );
    assert_eq!(
        refusal(FIRST, 99),
        "the state has records of the unknown kind 99: start a later version"
    );
    assert_eq!(
        refusal(FIRST + 2, 2),
        "the state has a target record of version 2, but this version of Windlass reads at most 1: \
         start a later version"
    );
}

#[test]
fn a_state_has_exactly_one_target_record() {
    let empty = Writer::default().finish().expect("small");
    assert!(matches!(decode(&empty), Err(FormatError::TargetRecords(0))));
    let mut writer = Writer::default();
    for _ in 0..2 {
        writer.put(&TargetRecord::default()).expect("small");
    }
    assert!(matches!(
        decode(&writer.finish().expect("small")),
        Err(FormatError::TargetRecords(2))
    ));
}

/// The state of the records, each a kind, a version and a body.
fn assembled(records: &[(u16, u16, &[u8])]) -> Vec<u8> {
    let header = Header {
        magic: MAGIC,
        version: U32::new(VERSION),
        records: U32::new(records.len() as u32),
    };
    let mut bytes = header.as_bytes().to_vec();
    for (kind, version, body) in records {
        let header = RecordHeader {
            kind: U16::new(*kind),
            version: U16::new(*version),
            bytes: U32::new(body.len() as u32),
        };
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend_from_slice(body);
    }
    bytes.extend_from_slice(&[0; size_of::<Checksum>()]);
    seal(&mut bytes);
    bytes
}

fn refusal(bytes: &[u8]) -> String {
    decode(bytes).expect_err("invalid").to_string()
}

#[test]
fn invalid_bytes_are_refused_with_their_problem() {
    assert_eq!(refusal(&[]), "the state is truncated: it has 0 bytes");
    let good = encoded(&sample(7));
    let mut other = good.clone();
    other[0] = b'n';
    assert_eq!(
        refusal(&other),
        "the bytes are not a state: they do not begin with \"NVMeHand\""
    );
    let mut damaged = good.clone();
    *damaged.last_mut().expect("a checksum") ^= 1;
    assert!(refusal(&damaged).starts_with("the state is damaged: the checksum is 0x"));
    let mut trailing = good.clone();
    trailing.extend_from_slice(&[0; 3]);
    seal(&mut trailing);
    assert_eq!(
        refusal(&trailing),
        "the state has 3 bytes behind its last record"
    );
    let truncated = format!("the state is truncated: it has {} bytes", good.len());
    let mut more = good;
    more[12] += 1;
    seal(&mut more);
    assert_eq!(refusal(&more), truncated);
    assert_eq!(
        refusal(&vec![0; STATE_BYTES_MAX + 1]),
        "the state has 268435457 bytes, more than 268435456: disconnect some hosts"
    );
}

#[test]
fn invalid_records_are_refused_with_their_problem() {
    let kind = TargetRecord::KIND;
    assert_eq!(
        refusal(&assembled(&[(kind, 0, b"{}")])),
        "the state has a target record of version 0: it is damaged"
    );
    assert_eq!(
        refusal(&assembled(&[(kind, 1, b"{}")])),
        "target record 0 of the state is malformed: missing field `reactors` at line 1 column 2"
    );
    let deep = vec![b'['; 1 << 20];
    assert!(refusal(&assembled(&[(kind, 1, &deep)])).contains("malformed"));
    assert!(refusal(&assembled(&[(kind, 1, b"\xff\xfe")])).contains("malformed"));
    let long = vec![b' '; RECORD_BYTES_MAX + 1];
    assert_eq!(
        refusal(&assembled(&[(QueueRecord::KIND, 1, &long)])),
        "a queue record has 16777217 bytes, more than 16777216"
    );
}

#[test]
fn an_unknown_field_is_refused() {
    let body = br#"{"remaining":1,"digest":true,"added":1}"#;
    assert!(serde_json::from_slice::<SkippedData>(body).is_err());
}

#[test]
fn records_above_the_limit_are_refused() {
    let record = TcpConnectionRecord {
        unsent: Bytes(vec![0; RECORD_BYTES_MAX]),
        ..TcpConnectionRecord::default()
    };
    let state = State {
        tcp_connections: vec![record],
        ..State::default()
    };
    assert!(matches!(
        encode(&state),
        Err(FormatError::RecordTooLong {
            name: "TCP connection",
            ..
        })
    ));
}

/// A record that changes gets a new version. If this test fails, one changed without it, or an old
/// version is no longer read. The expected text may gain fields with their defaults, and nothing
/// else.
#[test]
fn the_stored_form_of_the_first_version_is_read() {
    let found = format!("{:#?}\n", decode(VERSION_1).expect("readable"));
    if std::env::var_os("UPDATE_EXPECTED").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/version_1.txt");
        std::fs::write(path, found).expect("writable");
        return;
    }
    assert_eq!(found, include_str!("version_1.txt"));
}

/// What is written is exactly what the latest versions wrote.
#[test]
fn the_latest_stored_form_is_reproduced() {
    let versions = [
        TargetRecord::VERSION,
        CoreRecord::VERSION,
        ControllerRecord::VERSION,
        QueueRecord::VERSION,
        TcpConnectionRecord::VERSION,
    ];
    assert_eq!(versions, [1, 1, 1, 2, 1]);
    if std::env::var_os("UPDATE_EXPECTED").is_some() {
        let mut state = decode(VERSION_1).expect("readable");
        for queue in &mut state.queues {
            queue.authentication = Some(AuthenticationRecord {
                hash: 1,
                group: 2,
                key: "db1-2026".to_owned(),
                controller_key: Some("own".to_owned()),
                age_ns: 1 << 40,
            });
        }
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/version_2.state");
        std::fs::write(path, encoded(&state)).expect("writable");
        return;
    }
    let state = decode(LATEST).expect("readable");
    assert!(state.queues.iter().any(|it| it.authentication.is_some()));
    assert_eq!(encoded(&state), LATEST);
}

/// A record of which version 1 had a field in other units and lacked another one.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Evolved {
    timeout_ns: u64,
    #[serde(default)]
    label: String,
}

#[derive(Serialize, Deserialize)]
struct EvolvedV1 {
    timeout_ms: u64,
}

impl Record for Evolved {
    const KIND: u16 = 1000;
    const NAME: &'static str = "evolved";
    const VERSION: u16 = 2;

    fn read(version: u16, body: &[u8]) -> serde_json::Result<Self> {
        match version {
            0 | 1 => {
                let earlier: EvolvedV1 = serde_json::from_slice(body)?;
                Ok(Self {
                    timeout_ns: earlier.timeout_ms * 1_000_000,
                    label: String::new(),
                })
            }
            _ => serde_json::from_slice(body),
        }
    }
}

#[test]
fn an_earlier_version_of_a_record_is_converted() {
    let record = StoredRecord {
        kind: Evolved::KIND,
        version: 1,
        position: 0,
        body: br#"{"timeout_ms":5}"#,
    };
    let read: Evolved = record.read().expect("an earlier version");
    let expected = Evolved {
        timeout_ns: 5_000_000,
        label: String::new(),
    };
    assert_eq!(read, expected);
    let later = StoredRecord {
        version: 3,
        ..record
    };
    assert!(matches!(
        later.read::<Evolved>(),
        Err(FormatError::LaterRecord {
            name: "evolved",
            found: 3,
            known: 2
        })
    ));
}
