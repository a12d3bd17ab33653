//! The counters of one reactor's NVMe/RDMA connections.

nvme_fabrics::transport_counters! {
    /// Counts of one reactor's NVMe/RDMA connections since the start, in bytes where the name says
    /// so.
    pub struct RdmaCounters {
        /// Connections now open (a level).
        connections,
        /// Connections accepted.
        connections_opened,
        /// Connection requests rejected for what their private data say.
        requests_invalid,
        /// Connection requests rejected because there was no room.
        connections_refused,
        /// Connections closed after a protocol violation by the host.
        violations,
        /// Connections closed because the host did not finish its set-up in time.
        setup_timeouts,
        /// Connections that broke: a work request failed, or the device.
        connections_broken,
        /// Connections closed because the host did not take what was posted for it: nothing
        /// completed for too long, or a write waited for blocks that a posted read borrows.
        progress_timeouts,
        /// Queue pairs that a device did not destroy: they and the memory of what was posted to
        /// them are never used again.
        queue_pairs_leaked,
        /// Probes sent on quiet connections.
        probes,
        /// Command capsules taken in.
        commands,
        /// Completions polled, of all kinds.
        completions,
        /// Work requests posted that read host memory.
        reads,
        /// Work requests posted that write host memory.
        writes,
        /// Response capsules posted.
        sends,
        /// Response capsules that invalidate a key of the host.
        invalidations,
        /// Flushes of a send queue: doorbells.
        doorbells,
        /// Bytes read from host memory into leases.
        bytes_read,
        /// Bytes written to host memory, from where they lay.
        bytes_written,
        /// Bytes read from host memory into memory of drives.
        bytes_into_devices,
        /// Bytes written to host memory from memory of drives.
        bytes_from_devices,
        /// Requests that failed because a drive was reset before its memory was accessed.
        device_memory_lost,
        /// Bytes that came in capsules, straight into leases.
        bytes_in_capsule,
        /// Bytes of data that were copied: of capsules whose data does not begin at offset 0.
        bytes_copied,
        /// Requests that waited for a buffer.
        buffer_waits,
        /// Receives that waited for a buffer.
        receive_waits,
        /// Requests that waited because as many reads were outstanding as the host answers.
        read_waits,
        /// Answers that waited for room in the send queue.
        send_waits,
        /// Work requests that failed, flushed ones not counted.
        work_failures,
        /// Work requests that failed for a key, range or right of the host's memory.
        remote_access_errors,
        /// Completions that belong to no connection any more.
        stale_completions,
        /// Events that devices reported.
        device_events,
        /// Devices that failed or were removed, with every connection on them.
        devices_lost,
        /// Listeners whose device or address is gone, which are tried again (a level).
        listeners_down,
    }
}
