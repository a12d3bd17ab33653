//! The clients and the device of the tests of the server for files.

#[path = "../../../files/server/tests/server/client.rs"]
pub(crate) mod client;
#[path = "../../../files/server/tests/server/device.rs"]
pub(crate) mod device;
#[path = "../../../files/server/tests/server/overlap.rs"]
pub(crate) mod overlap;
