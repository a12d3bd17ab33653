//! Tests of the initialisation with all possible responses of a target.

use std::io::{IoSlice, IoSliceMut};

use nvme_spec::U16;
use nvme_spec::tcp::{FatalError, IcResp, PduType, offset};
use proptest::prelude::*;
use zerocopy::FromBytes;

use super::*;

/// A stream that returns one byte at a time, so that every boundary is tested.
#[derive(Debug, Default)]
struct Trickle {
    incoming: Vec<u8>,
    given: usize,
    sent: Vec<u8>,
}

impl ByteStream for Trickle {
    fn receive(&mut self, buffers: &mut [IoSliceMut<'_>]) -> Moved {
        match self.incoming.get(self.given) {
            Some(&byte) => {
                buffers[0][0] = byte;
                self.given += 1;
                Moved::Bytes(1)
            }
            None => Moved::Ended,
        }
    }

    fn send(&mut self, buffers: &[IoSlice<'_>]) -> Moved {
        let before = self.sent.len();
        for buffer in buffers {
            self.sent.extend_from_slice(buffer);
        }
        Moved::Bytes(self.sent.len() - before)
    }

    fn wait(&self, _: bool, _: Duration) {}
}

const LIMIT: Duration = Duration::from_secs(30);

fn answered(asked: DigestFlags, bytes: &[u8]) -> (Result<Settled, HostError>, Trickle) {
    let stream = Trickle {
        incoming: bytes.to_vec(),
        ..Trickle::default()
    };
    let mut connection: Connection<_, Vec<u8>> = Connection::new(stream, asked, 1, 0);
    let result = connection.initialize(LIMIT);
    (result.map(|()| connection.settled), connection.stream)
}

fn both() -> DigestFlags {
    DigestFlags::new().with_header(true).with_data(true)
}

#[test]
fn what_was_agreed_is_what_both_want() {
    let (result, stream) = answered(both(), IcResp::new(3, both(), 131_072).as_bytes());
    let framing = Framing {
        header_digest: true,
        data_digest: true,
        alignment_z: 3,
    };
    let settled = result.expect("agreed");
    let found = (settled.framing, settled.h2c_data_max_bytes);
    assert_eq!(found, (framing, 131_072));
    assert_eq!(stream.sent, IcReq::new(0, both(), 0).as_bytes());
}

#[test]
fn digests_that_were_asked_for_are_not_silently_off() {
    let answer = IcResp::new(0, DigestFlags::new().with_header(true), 131_072);
    let (result, _) = answered(both(), answer.as_bytes());
    assert!(
        matches!(result, Err(HostError::DigestRefused("data"))),
        "{result:?}"
    );
}

#[test]
fn answers_out_of_range_are_refused_with_the_field() {
    let none = DigestFlags::new();
    let mut version = IcResp::new(0, none, 8192);
    version.pfv = U16::new(1);
    for (answer, field) in [
        (version, offset::PFV),
        (IcResp::new(32, none, 8192), offset::PDA),
        (IcResp::new(0, both(), 8192), offset::DGST),
        (IcResp::new(0, none, 4095), offset::LIMIT),
    ] {
        let (result, stream) = answered(none, answer.as_bytes());
        let Err(HostError::Protocol(fault)) = result else {
            panic!("{result:?}")
        };
        assert_eq!(fault, ProtocolError::Initialization { offset: field });
        let request = TermReq::read_from_prefix(&stream.sent[128..])
            .expect("a request")
            .0;
        assert_eq!(request.fatal_error(), FatalError::UNSUPPORTED_PARAMETER);
        assert_eq!(request.fei.get(), field);
        assert_eq!(&stream.sent[128 + 24..], answer.as_bytes());
    }
}

#[test]
fn other_pdus_and_ends_are_told_apart() {
    let none = DigestFlags::new();
    let right = IcResp::new(0, none, 8192);
    let (result, _) = answered(none, &[]);
    assert!(matches!(result, Err(HostError::Closed)));
    let (result, _) = answered(none, &right.as_bytes()[..100]);
    assert!(matches!(result, Err(HostError::ClosedWithinPdu)));
    let termination = TermReq::from_controller(FatalError::UNSUPPORTED_PARAMETER, 10, 0);
    let (result, _) = answered(none, termination.as_bytes());
    assert!(
        matches!(
            result,
            Err(HostError::Terminated {
                information: 10,
                ..
            })
        ),
        "{result:?}"
    );
    let (result, _) = answered(none, b"HTTP/1.1 400 Bad Request\r\n");
    let Err(HostError::Protocol(ProtocolError::UnexpectedPdu(kind))) = result else {
        panic!("{result:?}");
    };
    assert_eq!(kind, PduType(b'H'));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn any_answer_is_survived(
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
        right_until in 0..128_usize,
    ) {
        let mut answer = IcResp::new(0, both(), 8192).as_bytes().to_vec();
        answer.truncate(right_until);
        answer.extend(bytes);
        let _ = answered(both(), &answer);
    }
}
