//! The counters of one reactor's NVMe/TCP connections.

nvme_fabrics::transport_counters! {
    /// Counts of one reactor's NVMe/TCP connections since the start, in bytes where the name says
    /// so.
    pub struct TcpCounters {
        /// Connections now open (a level).
        connections,
        /// Connections accepted.
        connections_opened,
        /// Connections turned away because the table was full.
        connections_refused,
        /// Connections closed after a protocol violation by the host.
        violations,
        /// Connections closed because the host did not finish its set-up in time.
        setup_timeouts,
        /// Connections closed because the host sent nothing of the data that it was asked for.
        data_timeouts,
        /// Connections closed because the host took nothing of the data that it had asked for.
        send_timeouts,
        /// Connections closed because the rest of a PDU could not be copied out of a device.
        copy_failures,
        /// Command capsules taken in.
        commands,
        /// Vectored receives.
        receives,
        /// Vectored sends.
        sends,
        /// Bytes received.
        bytes_received,
        /// Payload bytes received straight into a request's lease.
        bytes_placed,
        /// Payload bytes received straight into the memory of the device that they are written to.
        bytes_filled,
        /// Payload bytes that arrived with headers and were copied into a request's lease.
        bytes_copied,
        /// Payload bytes sent to hosts, from where they lay.
        bytes_sent,
        /// Requests that waited for a buffer.
        buffer_waits,
        /// Reads whose data a device took back because the host had not taken it, to be read again.
        loans_suspended,
        /// Header digests that did not match.
        header_digest_errors,
        /// Data digests that did not match.
        data_digest_errors,
    }
}
