//! NVMe over RDMA: listeners, connections and data movement for the target core.
#![forbid(unsafe_code)]
