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
    fn receive(&mut self, buffers: &mut [IoSliceMut<'_>]) -> StreamResult {
        match self.incoming.get(self.given) {
            Some(&byte) => {
                buffers[0][0] = byte;
                self.given += 1;
                StreamResult::Bytes(1)
            }
            None => StreamResult::Ended,
        }
    }

    fn send(&mut self, buffers: &[IoSlice<'_>]) -> StreamResult {
        let before = self.sent.len();
        for buffer in buffers {
            self.sent.extend_from_slice(buffer);
        }
        StreamResult::Bytes(self.sent.len() - before)
    }

    fn wait(&self, _: bool, _: Duration) {}
}

const LIMIT: Duration = Duration::from_secs(30);

fn initialize_with(
    requested: DigestFlags,
    bytes: &[u8],
) -> (Result<TcpParameters, HostError>, Trickle) {
    let stream = Trickle {
        incoming: bytes.to_vec(),
        ..Trickle::default()
    };
    let mut connection: Connection<_, Vec<u8>> = Connection::new(stream, requested, 1, 0);
    let result = connection.initialize(LIMIT);
    (result.map(|()| connection.parameters), connection.stream)
}

fn both() -> DigestFlags {
    DigestFlags::new().with_header(true).with_data(true)
}

#[test]
fn both_sides_negotiate_the_requested_parameters() {
    let (result, stream) = initialize_with(both(), IcResp::new(3, both(), 131_072).as_bytes());
    let framing = Framing {
        header_digest: true,
        data_digest: true,
        alignment_z: 3,
    };
    let parameters = result.expect("agreed");
    let found = (parameters.framing, parameters.h2c_data_max_bytes);
    assert_eq!(found, (framing, 131_072));
    assert_eq!(stream.sent, IcReq::new(0, both(), 0).as_bytes());
}

#[test]
fn requested_digests_are_required() {
    let response = IcResp::new(0, DigestFlags::new().with_header(true), 131_072);
    let (result, _) = initialize_with(both(), response.as_bytes());
    assert!(
        matches!(result, Err(HostError::DigestUnsupported("data"))),
        "{result:?}"
    );
}

#[test]
fn responses_out_of_range_are_refused_with_the_field() {
    let none = DigestFlags::new();
    let mut version = IcResp::new(0, none, 8192);
    version.pfv = U16::new(1);
    for (response, field) in [
        (version, offset::PFV),
        (IcResp::new(32, none, 8192), offset::PDA),
        (IcResp::new(0, both(), 8192), offset::DGST),
        (IcResp::new(0, none, 4095), offset::LIMIT),
    ] {
        let (result, stream) = initialize_with(none, response.as_bytes());
        let Err(HostError::Protocol(fault)) = result else {
            panic!("{result:?}")
        };
        assert_eq!(fault, ProtocolError::Initialization { offset: field });
        let request = TermReq::read_from_prefix(&stream.sent[128..])
            .expect("a request")
            .0;
        assert_eq!(request.fatal_error(), FatalError::UNSUPPORTED_PARAMETER);
        assert_eq!(request.fei.get(), field);
        assert_eq!(&stream.sent[128 + 24..], response.as_bytes());
    }
}

#[test]
fn unexpected_pdus_and_closes_are_distinguished() {
    let none = DigestFlags::new();
    let right = IcResp::new(0, none, 8192);
    let (result, _) = initialize_with(none, &[]);
    assert!(matches!(result, Err(HostError::Closed)));
    let (result, _) = initialize_with(none, &right.as_bytes()[..100]);
    assert!(matches!(result, Err(HostError::ClosedWithinPdu)));
    let termination = TermReq::from_controller(FatalError::UNSUPPORTED_PARAMETER, 10, 0);
    let (result, _) = initialize_with(none, termination.as_bytes());
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
    let (result, _) = initialize_with(none, b"HTTP/1.1 400 Bad Request\r\n");
    let Err(HostError::Protocol(ProtocolError::UnexpectedPdu(kind))) = result else {
        panic!("{result:?}");
    };
    assert_eq!(kind, PduType(b'H'));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn arbitrary_icresp_bytes_do_not_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
        correct_bytes in 0..128_usize,
    ) {
        let mut response = IcResp::new(0, both(), 8192).as_bytes().to_vec();
        response.truncate(correct_bytes);
        response.extend(bytes);
        let _ = initialize_with(both(), &response);
    }
}
