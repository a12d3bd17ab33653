//! Reservation Report (Base 2.1 §7.8): the Reservation Status data structure and its extended form.

use nvme_spec::Status;
use nvme_spec::command::reservation::{
    RegisteredController, RegisteredControllerExtended, RegistrantStatus, ReportControl,
    ReservationStatusExtendedHeader, ReservationStatusHeader, ReservationType,
};
use zerocopy::{Immutable, IntoBytes};

use crate::host::HostIdentifier;
use crate::kind::ReservationKind;
use crate::state::{REGISTRANTS_MAX, Reservations};

/// Size of the longest report, in bytes.
pub const REPORT_BYTES_MAX: usize = size_of::<ReservationStatusExtendedHeader>()
    + REGISTRANTS_MAX * size_of::<RegisteredControllerExtended>();

/// The size of the host identifier that a host has specified (Base 2.1 §5.1.25.1.28).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostIdentifierFormat {
    /// 64 bits; not possible with a message-based transport.
    Short,
    /// 128 bits.
    Extended,
}

/// Lengths of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReportLength {
    /// Bytes of the whole data structure.
    pub total_bytes: usize,
    /// Bytes that were written to the buffer, which may end inside a field.
    pub written_bytes: usize,
}

/// A buffer that receives as much of a data structure as it has room for.
struct Truncating<'a> {
    rest: &'a mut [u8],
    length: ReportLength,
}

impl Truncating<'_> {
    fn push(&mut self, part: &(impl IntoBytes + Immutable)) {
        let bytes = part.as_bytes();
        let fits = bytes.len().min(self.rest.len());
        let (filled, rest) = std::mem::take(&mut self.rest).split_at_mut(fits);
        filled.copy_from_slice(&bytes[..fits]);
        self.rest = rest;
        self.length.total_bytes += bytes.len();
        self.length.written_bytes += fits;
    }
}

impl Reservations {
    /// Writes the Reservation Status data structure to `buffer`.
    ///
    /// The length of `buffer` is the smaller one of NUMD in bytes and [`REPORT_BYTES_MAX`]. A
    /// longer structure is cut off at the end of the buffer, and a longer buffer keeps its other
    /// bytes (Base 2.1 §7.8, NUMD). Every registrant has one entry. `controller` returns the
    /// identifier of a controller of a host, if the host has one.
    ///
    /// # Errors
    ///
    /// - Host Identifier Not Initialized: `host`, which sent the command, has no identifier.
    /// - Host Identifier Inconsistent Format: EDS does not match `format`, the size of the host's
    ///   identifier.
    pub fn report(
        &self,
        host: HostIdentifier,
        format: HostIdentifierFormat,
        control: ReportControl,
        controller: impl Fn(HostIdentifier) -> Option<u16>,
        buffer: &mut [u8],
    ) -> Result<ReportLength, Status> {
        host.check()?;
        if control.eds() != (format == HostIdentifierFormat::Extended) {
            return Err(Status::HOST_IDENTIFIER_INCONSISTENT_FORMAT);
        }
        let mut report = Truncating {
            rest: buffer,
            length: ReportLength {
                total_bytes: 0,
                written_bytes: 0,
            },
        };
        let kind = self.reservation().map(ReservationKind::wire);
        let header = ReservationStatusHeader::new(
            self.generation(),
            kind.unwrap_or(ReservationType::NONE),
            self.registrants().len() as u16,
            self.persists(),
        );
        match format {
            HostIdentifierFormat::Short => report.push(&header),
            HostIdentifierFormat::Extended => {
                report.push(&ReservationStatusExtendedHeader::new(header));
            }
        }
        for registrant in self.registrants() {
            let (host, key) = (registrant.host, registrant.key);
            let cntlid = controller(host).unwrap_or(RegisteredController::CNTLID_NONE);
            let is_holder = self.held().is_some_and(|held| held.is_held_by(host));
            let status = RegistrantStatus::new().with_holder(is_holder);
            match format {
                HostIdentifierFormat::Short => {
                    let short = RegisteredController::new(cntlid, status, key, host.short());
                    report.push(&short);
                }
                HostIdentifierFormat::Extended => {
                    let extended = RegisteredControllerExtended::new(cntlid, status, key, host.0);
                    report.push(&extended);
                }
            }
        }
        Ok(report.length)
    }
}

#[cfg(test)]
mod tests;
