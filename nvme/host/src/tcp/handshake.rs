//! Initialising a connection: ICReq out, ICResp in, and what follows from both (TCP 1.1 §3.3.1,
//! §3.6.2.2).

use std::io::{IoSlice, IoSliceMut};
use std::time::Duration;

use nvme_spec::tcp::{
    CommonHeader, DATA_ALIGNMENT_MAX_Z, DigestFlags, Framing, IcReq, IcResp, MAXH2CDATA_MIN_BYTES,
    PDU_DATA_MAX_BYTES, PFV_1_0, PduType, TermReq, offset,
};
use zerocopy::{FromBytes, IntoBytes};

use crate::deadline::Deadline;
use crate::error::{HostError, ProtocolError};
use crate::tcp::receive::check_common;
use crate::tcp::stream::{ByteStream, Moved};

/// What both sides agreed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Initialized {
    pub(crate) framing: Framing,
    pub(crate) h2c_data_max_bytes: u32,
}

/// Initialises a fresh connection, `limit` at most.
pub(crate) fn initialize(
    stream: &mut impl ByteStream,
    digests: DigestFlags,
    limit: Duration,
) -> Result<Initialized, HostError> {
    let deadline = Deadline::after(limit, "the connection's initialisation");
    // No alignment asked for (HPDA 0) and one R2T at a time (MAXR2T 0's based).
    send_all(stream, IcReq::new(0, digests, 0).as_bytes(), &deadline)?;
    let response = read_response(stream, &deadline)?;
    match agree(&response, digests) {
        Ok(initialized) => Ok(initialized),
        Err(error) => {
            if let HostError::Protocol(fault) = error {
                let (status, information) = fault.termination();
                let header = response.as_bytes();
                let request = TermReq::from_host(status, information, header.len());
                let buffers = [request.as_bytes(), header].map(IoSlice::new);
                // The connection is given up either way.
                let _ = stream.send(&buffers);
            }
            Err(error)
        }
    }
}

fn agree(response: &IcResp, asked: DigestFlags) -> Result<Initialized, HostError> {
    let at = |offset| Err(ProtocolError::Initialization { offset }.into());
    if response.pfv.get() != PFV_1_0 {
        return at(offset::PFV);
    }
    if response.cpda_z > DATA_ALIGNMENT_MAX_Z {
        return at(offset::PDA);
    }
    let got = response.dgst;
    if (got.header() && !asked.header()) || (got.data() && !asked.data()) {
        return at(offset::DGST);
    }
    if asked.header() && !got.header() {
        return Err(HostError::DigestRefused("header"));
    }
    if asked.data() && !got.data() {
        return Err(HostError::DigestRefused("data"));
    }
    let h2c_data_max_bytes = response.maxh2cdata.get().min(PDU_DATA_MAX_BYTES);
    if h2c_data_max_bytes < MAXH2CDATA_MIN_BYTES {
        return at(offset::LIMIT);
    }
    let framing = Framing {
        header_digest: got.header(),
        data_digest: got.data(),
        alignment_z: response.cpda_z,
    };
    Ok(Initialized {
        framing,
        h2c_data_max_bytes,
    })
}

fn send_all(
    stream: &mut impl ByteStream,
    mut bytes: &[u8],
    deadline: &Deadline,
) -> Result<(), HostError> {
    while !bytes.is_empty() {
        match stream.send(&[IoSlice::new(bytes)]) {
            Moved::Bytes(sent) => bytes = &bytes[sent..],
            Moved::Nothing => stream.wait(true, deadline.left()?),
            Moved::Ended => return Err(HostError::Closed),
            Moved::Failed(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// Reads one PDU, which must be ICResp; not a byte beyond it.
fn read_response(stream: &mut impl ByteStream, deadline: &Deadline) -> Result<IcResp, HostError> {
    let mut bytes = [0; size_of::<IcResp>()];
    let (common, rest) = bytes.split_at_mut(size_of::<CommonHeader>());
    fill(stream, common, true, deadline)?;
    let kind = PduType(common[0]);
    let header = CommonHeader::read_from_bytes(common);
    let header = header.map_err(|_| ProtocolError::UnexpectedPdu(kind))?;
    if kind == PduType::C2H_TERM_REQ {
        check_common(&header, Framing::default())?;
        let length = size_of::<TermReq>() - size_of::<CommonHeader>();
        fill(stream, &mut rest[..length], false, deadline)?;
        let (request, _) =
            TermReq::read_from_prefix(&bytes).map_err(|_| ProtocolError::UnexpectedPdu(kind))?;
        return Err(HostError::Terminated {
            status: request.fatal_error(),
            information: request.fei.get(),
        });
    }
    if kind != PduType::IC_RESP {
        return Err(ProtocolError::UnexpectedPdu(kind).into());
    }
    let expected = size_of::<IcResp>() as u8;
    if header.hlen != expected {
        return Err(ProtocolError::HeaderLength {
            kind,
            found: header.hlen,
            expected,
        }
        .into());
    }
    if header.plen.get() != u32::from(expected) {
        return Err(ProtocolError::PduLength {
            kind,
            found: header.plen.get(),
        }
        .into());
    }
    fill(stream, rest, false, deadline)?;
    IcResp::read_from_bytes(&bytes).map_err(|_| ProtocolError::UnexpectedPdu(kind).into())
}

fn fill(
    stream: &mut impl ByteStream,
    mut bytes: &mut [u8],
    between_pdus: bool,
    deadline: &Deadline,
) -> Result<(), HostError> {
    let mut first = between_pdus;
    while !bytes.is_empty() {
        match stream.receive(&mut [IoSliceMut::new(bytes)]) {
            Moved::Bytes(received) => {
                bytes = &mut bytes[received..];
                first = false;
            }
            Moved::Nothing => stream.wait(false, deadline.left()?),
            Moved::Ended if first => return Err(HostError::Closed),
            Moved::Ended => return Err(HostError::ClosedWithinPdu),
            Moved::Failed(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use nvme_spec::U16;
    use nvme_spec::tcp::FatalError;
    use proptest::prelude::*;

    use super::*;

    /// Gives bytes one at a time, so that every boundary is met.
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

    fn answered(asked: DigestFlags, bytes: &[u8]) -> (Result<Initialized, HostError>, Trickle) {
        let mut stream = Trickle {
            incoming: bytes.to_vec(),
            ..Trickle::default()
        };
        (initialize(&mut stream, asked, LIMIT), stream)
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
        let expected = Initialized {
            framing,
            h2c_data_max_bytes: 131_072,
        };
        assert_eq!(result.expect("agreed"), expected);
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
}
