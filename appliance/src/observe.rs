//! What can be seen of a running appliance: read from its counters once per second, kept for an
//! hour, and told in the types of [`model`].

#[expect(
    dead_code,
    reason = "the control plane, its clients and live apply are being built on it"
)]
pub(crate) mod model;
