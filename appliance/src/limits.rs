//! Compile-time checks that the limits of a configuration agree with those of the crates that it
//! configures. `appliance_config` depends on none of them, so its limits repeat theirs.

use appliance_config::limits;

const _: () = assert!(limits::DEVICES_MAX == nvme_target::DEVICES_MAX);
const _: () = assert!(limits::EXPORTS_MAX <= nvme_target::SUBSYSTEMS_MAX);
const _: () = assert!(limits::NSID_MAX == nvme_target::NAMESPACE_ID_MAX);
const _: () = assert!(limits::IO_QUEUES_MAX == nvme_target::IO_QUEUES_MAX);
const _: () = assert!(limits::CONTROLLERS_MAX == nvme_target::CONTROLLERS_MAX);
const _: () = assert!(limits::QUEUE_DEPTH_MAX <= nvme_target::QUEUE_DEPTH_MAX);

const IN_CAPSULE_DATA_MAX: u64 = limits::IN_CAPSULE_DATA_MAX.bytes();
const _: () = assert!(IN_CAPSULE_DATA_MAX == nvme_tcp::IN_CAPSULE_BYTES_MAX as u64);
const _: () = assert!(IN_CAPSULE_DATA_MAX == nvme_rdma::IN_CAPSULE_BYTES_MAX as u64);

const _: () = assert!(limits::TRANSFER_MAX.bytes() == block::TRANSFER_BYTES_MAX as u64);
const _: () = assert!(limits::DRIVE_QUEUE_DEPTH_MAX <= nvme_driver::QUEUE_DEPTH_MAX);
const _: () = assert!(limits::DRIVE_NAMESPACE_MAX == nvme_spec::NSID_BROADCAST - 1);
