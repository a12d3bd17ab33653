//! Hand-over to a new process (`ARCHITECTURE.md` §9.1): what the old process offers, and the new
//! process as the old one sees it. `appliance` has the steps of both.

mod offer;
mod successor;

pub(crate) use offer::{DeviceOffer, FileOffer, ListenerOffer, Offer, Passed};
pub(crate) use successor::{
    BUILD_TIME_MAX, RESTORE_TIME_MAX, Successor, SuccessorError, check_program, launch, own_program,
};
