//! Verbs made safe: RDMA devices, memory, queues and connections behind one trait.
