//! The documents that comments cite, and the sections of each that are cited.
//!
//! A citation is the name of a document and a section: `TCP 1.1 §3.6.2.8`. `cargo xtask test`
//! compares the citations of the whole repository with this table.

/// A document that comments cite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Document {
    /// Name and revision in citations.
    pub name: &'static str,
    /// Title, with the revision or the date if the name does not contain it.
    pub title: &'static str,
    /// Number and title of each cited section, in the document's order. Empty if the document is
    /// cited as a whole.
    pub sections: &'static [(&'static str, &'static str)],
}

/// Every cited document.
pub const DOCUMENTS: [Document; 31] = [
    BASE, NVM, PCIE, RDMA, TCP, PCI, INFINIBAND, IEEE_802, WEBDRIVER, RFC_1034, RFC_3385, RFC_3720,
    RFC_4506, RFC_5040, RFC_5531, RFC_5662, RFC_5737, RFC_6750, RFC_7862, RFC_7863, RFC_7919,
    RFC_8166, RFC_8267, RFC_8275, RFC_8276, RFC_8446, RFC_8448, RFC_8797, RFC_8881, RFC_9289,
    RFC_9562,
];

const BASE: Document = Document {
    name: "Base 2.1",
    title: "NVM Express Base Specification",
    sections: &[
        ("1.4", "Conventions"),
        ("3.1.2", "Message-Based Controller Architecture (Fabrics)"),
        ("3.1.3.3", "Discovery Controller"),
        ("3.1.3.4", "Command Support Requirements"),
        ("3.1.4", "Controller Properties"),
        ("3.1.4.1", "Offset 0h: CAP – Controller Capabilities"),
        ("3.1.4.2", "Offset 8h: VS – Version"),
        ("3.1.4.5", "Offset 14h: CC – Controller Configuration"),
        ("3.1.4.6", "Offset 1Ch: CSTS – Controller Status"),
        ("3.1.4.7", "Offset 20h: NSSR – NVM Subsystem Reset"),
        ("3.1.4.8", "Offset 24h: AQA – Admin Queue Attributes"),
        (
            "3.1.4.11",
            "Offset 38h: CMBLOC – Controller Memory Buffer Location",
        ),
        (
            "3.1.4.12",
            "Offset 3Ch: CMBSZ – Controller Memory Buffer Size",
        ),
        (
            "3.1.4.16",
            "Offset 50h: CMBMSC – Controller Memory Buffer Memory Space Control",
        ),
        (
            "3.1.4.17",
            "Offset 58h: CMBSTS – Controller Memory Buffer Status",
        ),
        ("3.1.4.20", "Offset 64h: NSSD – NVM Subsystem Shutdown"),
        ("3.1.4.21", "Offset 68h: CRTO – Controller Ready Timeouts"),
        ("3.2.1", "Namespaces"),
        ("3.2.1.2", "Valid and Invalid NSIDs"),
        ("3.2.1.4", "Active and Inactive NSID Types"),
        ("3.2.1.5", "NSID and Namespace Relationships"),
        ("3.3", "NVM Queue Models"),
        ("3.3.1.5", "Full Queue"),
        ("3.3.2.6", "Submission Queue Flow Control"),
        ("3.3.3.1", "Queue Size"),
        ("3.4.2", "Fused Operations"),
        ("3.5", "Controller Initialization"),
        ("3.5.1", "Memory-based Controller Initialization (PCIe)"),
        ("3.5.2", "Message-based Controller Initialization (Fabrics)"),
        ("3.5.3", "Controller Ready Modes During Initialization"),
        ("3.6.1", "Memory-based Controller Shutdown (PCIe)"),
        ("3.6.2", "Message-based Controller Shutdown (Fabrics)"),
        ("3.7", "Resets"),
        ("3.7.2", "Controller Level Reset"),
        ("3.9", "Keep Alive"),
        ("3.9.3", "Command Based Keep Alive"),
        ("3.9.4", "Traffic Based Keep Alive"),
        ("4.1.1", "Admin Command and I/O Command Common SQE"),
        ("4.2.1", "Admin Command and I/O Command Common CQE"),
        ("4.2.3", "Status Field Definition"),
        ("4.2.3.1", "Generic Command Status Definition"),
        ("4.2.3.4", "Path Related Status Definition"),
        ("4.2.4", "Phase Tag"),
        ("4.3", "Data Pointer Layouts (PRPs and SGLs)"),
        ("4.3.1", "Physical Region Page Entry and List"),
        ("4.3.2", "Scatter Gather List (SGL)"),
        ("4.4", "Feature Values"),
        ("4.5", "Identifier Format and Layout (Informative)"),
        ("4.6.1", "Controller List"),
        ("4.6.2", "Namespace List"),
        ("4.7", "NVMe Qualified Names"),
        ("4.7.1", "Unique Identifier"),
        ("5", "Admin Command Set"),
        ("5.1", "Common Admin Commands"),
        ("5.1.1", "Abort command"),
        ("5.1.2", "Asynchronous Event Request command"),
        ("5.1.2.1", "Command Completion"),
        ("5.1.11", "Get Features command"),
        ("5.1.12", "Get Log Page command"),
        ("5.1.12.1", "Common Log Specific Information"),
        (
            "5.1.12.1.1",
            "Supported Log Pages (Log Page Identifier 00h)",
        ),
        ("5.1.12.1.2", "Error Information (Log Page Identifier 01h)"),
        (
            "5.1.12.1.3",
            "SMART / Health Information (Log Page Identifier 02h)",
        ),
        (
            "5.1.12.1.4",
            "Firmware Slot Information (Log Page Identifier 03h)",
        ),
        (
            "5.1.12.1.5",
            "Changed Attached Namespace List (Log Page Identifier 04h)",
        ),
        (
            "5.1.12.1.6",
            "Commands Supported and Effects (Log Page Identifier 05h)",
        ),
        (
            "5.1.12.1.13",
            "Asymmetric Namespace Access (Log Page Identifier 0Ch)",
        ),
        (
            "5.1.12.1.18",
            "Feature Identifiers Supported and Effects (Log Page Identifier 12h)",
        ),
        (
            "5.1.12.1.32",
            "Reservation Notification (Log Page Identifier 80h)",
        ),
        ("5.1.12.3.1", "Discovery (Log Page Identifier 70h)"),
        ("5.1.13", "Identify command"),
        ("5.1.13.1", "Identify command overview"),
        ("5.1.13.2", "Common Identify Data Structures"),
        ("5.1.13.2.1", "Identify Controller Data Structure (CNS 01h)"),
        ("5.1.13.2.2", "Active Namespace ID list (CNS 02h)"),
        (
            "5.1.13.2.3",
            "Namespace Identification Descriptor list (CNS 03h)",
        ),
        (
            "5.1.13.2.8",
            "I/O Command Set Independent Identify Namespace Data Structure (CNS 08h)",
        ),
        ("5.1.14", "Keep Alive command"),
        ("5.1.25", "Set Features command"),
        ("5.1.25.1.1", "Arbitration (Feature Identifier 01h)"),
        ("5.1.25.1.2", "Power Management (Feature Identifier 02h)"),
        (
            "5.1.25.1.3",
            "Temperature Threshold (Feature Identifier 04h)",
        ),
        (
            "5.1.25.1.4",
            "Volatile Write Cache (Feature Identifier 06h)",
        ),
        (
            "5.1.25.1.5",
            "Asynchronous Event Configuration (Feature Identifier 0Bh)",
        ),
        ("5.1.25.1.7", "Timestamp (Feature Identifier 0Eh)"),
        ("5.1.25.1.8", "Keep Alive Timer (Feature Identifier 0Fh)"),
        (
            "5.1.25.1.14",
            "Host Behavior Support (Feature Identifier 16h)",
        ),
        (
            "5.1.25.1.17",
            "I/O Command Set Profile (Feature Identifier 19h)",
        ),
        ("5.1.25.1.28", "Host Identifier (Feature Identifier 81h)"),
        (
            "5.1.25.1.29",
            "Reservation Notification Mask (Feature Identifier 82h)",
        ),
        (
            "5.1.25.1.30",
            "Reservation Persistence (Feature Identifier 83h)",
        ),
        (
            "5.1.25.1.31",
            "Namespace Write Protection Config (Feature Identifier 84h)",
        ),
        ("5.1.25.2.1", "Number of Queues (Feature Identifier 07h)"),
        (
            "5.1.25.2.2",
            "Interrupt Coalescing (Feature Identifier 08h)",
        ),
        (
            "5.1.25.2.3",
            "Interrupt Vector Configuration (Feature Identifier 09h)",
        ),
        ("5.2", "Memory-Based Transport Admin Commands (PCIe)"),
        ("5.2.1", "Create I/O Completion Queue command"),
        ("5.2.2", "Create I/O Submission Queue command"),
        ("5.2.3", "Delete I/O Completion Queue command"),
        ("5.2.4", "Delete I/O Submission Queue command"),
        ("5.2.5", "Doorbell Buffer Config command"),
        ("6", "Fabrics Command Set"),
        ("6.1", "Authentication Receive Command and Response"),
        ("6.2", "Authentication Send Command and Response"),
        ("6.3", "Connect Command and Response"),
        ("6.4", "Disconnect Command and Response"),
        ("6.5", "Property Get Command and Response"),
        ("6.6", "Property Set Command and Response"),
        ("7", "I/O Commands"),
        ("7.2", "Flush command"),
        ("7.5", "Reservation Acquire command"),
        ("7.6", "Reservation Register command"),
        ("7.7", "Reservation Release command"),
        ("7.8", "Reservation Report command"),
        ("8.1.1", "Asymmetric Namespace Access Reporting"),
        ("8.1.8", "Directives"),
        ("8.1.22", "Reservations"),
        ("8.1.22.1", "Reservation Types"),
        ("8.1.22.2", "Reservation Notifications"),
        ("8.1.22.3", "Registering"),
        ("8.1.22.4", "Unregistering"),
        ("8.1.22.5", "Acquiring a Reservation"),
        ("8.1.22.6", "Releasing a Reservation"),
        ("8.1.22.7", "Preempting a Reservation or Registration"),
        ("8.1.22.8", "Clearing a Reservation"),
        (
            "8.1.28",
            "Universally Unique Identifiers (UUIDs) for Vendor Specific Information",
        ),
        ("8.2.1", "Controller Memory Buffer"),
        ("8.3.4.4", "Common Authentication Messages"),
        ("8.3.4.4.1", "AUTH_Negotiate Message"),
        (
            "8.3.4.5.2",
            "DH-HMAC-CHAP Authentication Protocol Descriptor",
        ),
        ("8.3.4.5.3", "DH-HMAC-CHAP_Challenge Message"),
        ("8.3.4.5.4", "DH-HMAC-CHAP_Reply Message"),
        ("8.3.4.5.5", "DH-HMAC-CHAP_Success1 Message"),
        ("8.3.4.5.6", "DH-HMAC-CHAP_Success2 Message"),
        (
            "B.5",
            "Updating Controller Doorbell Properties using a Shadow Doorbell Buffer",
        ),
    ],
};

const NVM: Document = Document {
    name: "NVM 1.1",
    title: "NVM Express NVM Command Set Specification",
    sections: &[
        ("2.1.3", "Fused Operation"),
        ("2.1.4", "Atomic Operation"),
        ("2.1.4.3", "AWUPF/NAWUPF"),
        ("3", "I/O Commands for the NVM Command Set"),
        ("3.2.1", "Status codes of the NVM command set"),
        ("3.3", "NVM Command Set Commands"),
        ("3.3.1", "Compare command"),
        ("3.3.2", "Copy command"),
        ("3.3.2.1", "Fast copy operations"),
        ("3.3.2.2", "Copy atomicity"),
        ("3.3.2.3", "Copy within a Single Namespace"),
        ("3.3.2.4", "Copy across Multiple Namespaces"),
        ("3.3.2.4.1", "Matching and Corresponding Formats"),
        ("3.3.2.5", "Command Completion"),
        ("3.3.3", "Dataset Management command"),
        ("3.3.3.2.1", "Deallocated or Unwritten Logical Blocks"),
        ("3.3.4", "Read command"),
        ("3.3.5", "Verify command"),
        ("3.3.6", "Write command"),
        ("3.3.8", "Write Zeroes command"),
        ("4.1.3", "Get Features & Set Features commands"),
        ("4.1.3.2", "Error Recovery (Feature Identifier 05h)"),
        ("4.1.3.3", "Write Atomicity Normal (Feature Identifier 0Ah)"),
        ("4.1.4", "Get Log Page command"),
        ("4.1.5", "Identify command"),
        (
            "4.1.5.1",
            "NVM Command Set Identify Namespace Data Structure (CNS 00h)",
        ),
        (
            "4.1.5.3",
            "I/O Command Set Specific Identify Namespace Data Structure (CNS 05h, CSI 00h)",
        ),
        (
            "4.1.5.4",
            "I/O Command Set Specific Identify Controller Data Structure (CNS 06h, CSI 00h)",
        ),
        (
            "5.2.2",
            "Improving Performance through I/O Size and Alignment Adherence",
        ),
    ],
};

const PCIE: Document = Document {
    name: "PCIe 1.1",
    title: "NVM Express NVMe over PCIe Transport Specification",
    sections: &[
        ("3.1", "Setup & Initialization"),
        ("3.1.2", "Transport Specific Controller Properties"),
        ("3.1.2.1", "SQyTDBL – Submission Queue y Tail Doorbell"),
        ("3.1.2.2", "CQyHDBL – Completion Queue y Head Doorbell"),
        ("3.2", "Queue Model Instantiation"),
        ("3.8.1.5", "Offset 09h: CC – Class Code"),
    ],
};

const RDMA: Document = Document {
    name: "RDMA 1.1",
    title: "NVM Express RDMA Transport Specification",
    sections: &[
        ("3", "Transport Binding"),
        ("3.1", "Setup & Initialization"),
        ("3.3", "Data Transfer Model"),
        ("3.5", "Error Handling Model"),
    ],
};

const TCP: Document = Document {
    name: "TCP 1.1",
    title: "NVM Express TCP Transport Specification",
    sections: &[
        ("3.1", "Setup & Initialization"),
        ("3.3", "Data Transfer Model"),
        ("3.3.1", "Capsules"),
        ("3.3.1.1", "PDU Header and Data Digests"),
        ("3.3.2", "Command Data Buffers and SGLs"),
        (
            "3.3.2.1",
            "Controller to Host Command Data Buffer Transfers",
        ),
        (
            "3.3.2.2",
            "Host to Controller Command Data Buffer Transfers",
        ),
        ("3.5", "Error Handling Model"),
        ("3.6", "Transport Specific Content"),
        ("3.6.1.1", "Transport Specific Address Subtype: TLS"),
        ("3.6.1.3", "TLS PSK and PSK Identity Derivation"),
        ("3.6.2", "NVMe/TCP PDUs"),
        ("3.6.2.1", "PDU Common Header (CH)"),
        ("3.6.2.2", "Initialize Connection Request PDU (ICReq)"),
        ("3.6.2.3", "Initialize Connection Response PDU (ICResp)"),
        (
            "3.6.2.4",
            "Host to Controller Terminate Connection Request PDU (H2CTermReq)",
        ),
        (
            "3.6.2.5",
            "Controller to Host Terminate Connection Request PDU (C2HTermReq)",
        ),
        ("3.6.2.6", "Command Capsule PDU (CapsuleCmd)"),
        ("3.6.2.7", "Response Capsule PDU (CapsuleResp)"),
        ("3.6.2.8", "Host To Controller Data Transfer PDU (H2CData)"),
        ("3.6.2.9", "Controller To Host Data Transfer PDU (C2HData)"),
        ("3.6.2.10", "Ready to Transfer PDU (R2T)"),
    ],
};

const PCI: Document = Document {
    name: "PCI 3.0",
    title: "PCI Local Bus Specification",
    sections: &[
        (
            "3.2.2.3.2",
            "Software Generation of Configuration Transactions",
        ),
        ("6.2.2", "Device Control"),
        ("6.2.5.1", "Address Maps"),
    ],
};

const INFINIBAND: Document = Document {
    name: "IBA 1.3",
    title: "InfiniBand Architecture Specification, volume 1",
    sections: &[("12.6.5", "REQ - Request for Communication")],
};

const IEEE_802: Document = Document {
    name: "IEEE 802-2014",
    title: "IEEE Standard for Local and Metropolitan Area Networks: Overview and Architecture",
    sections: &[("8.2", "MAC addresses")],
};

const WEBDRIVER: Document = Document {
    name: "WebDriver 1",
    title: "W3C Recommendation WebDriver, 5 June 2018",
    sections: &[("6", "Protocol"), ("17.4.2", "Keyboard Actions")],
};

const RFC_1034: Document = Document {
    name: "RFC 1034",
    title: "Domain Names - Concepts and Facilities",
    sections: &[("3.1", "Name space specifications and terminology")],
};

const RFC_3385: Document = Document {
    name: "RFC 3385",
    title: "iSCSI Cyclic Redundancy Check (CRC)/Checksum Considerations",
    sections: &[],
};

const RFC_3720: Document = Document {
    name: "RFC 3720",
    title: "Internet Small Computer Systems Interface (iSCSI)",
    sections: &[("B.4", "CRC Examples")],
};

const RFC_4506: Document = Document {
    name: "RFC 4506",
    title: "XDR: External Data Representation Standard",
    sections: &[
        ("3", "Basic Block Size"),
        ("4.10", "Variable-Length Opaque Data"),
        ("4.13", "Variable-Length Array"),
        ("4.19", "Optional-Data"),
    ],
};

const RFC_5040: Document = Document {
    name: "RFC 5040",
    title: "A Remote Direct Memory Access Protocol Specification",
    sections: &[("5.2", "RDMA Read Operation")],
};

const RFC_5531: Document = Document {
    name: "RFC 5531",
    title: "RPC: Remote Procedure Call Protocol Specification Version 2",
    sections: &[
        ("8.2", "Authentication, Integrity, and Privacy"),
        ("9", "The RPC Message Protocol"),
        ("11", "Record Marking Standard"),
    ],
};

const RFC_5662: Document = Document {
    name: "RFC 5662",
    title: "Network File System (NFS) Version 4 Minor Version 1 XDR Description",
    sections: &[],
};

const RFC_5737: Document = Document {
    name: "RFC 5737",
    title: "IPv4 Address Blocks Reserved for Documentation",
    sections: &[],
};

const RFC_6750: Document = Document {
    name: "RFC 6750",
    title: "The OAuth 2.0 Authorization Framework: Bearer Token Usage",
    sections: &[("2.1", "Authorization Request Header Field")],
};

const RFC_7862: Document = Document {
    name: "RFC 7862",
    title: "Network File System (NFS) Version 4 Minor Version 2 Protocol",
    sections: &[],
};

const RFC_7863: Document = Document {
    name: "RFC 7863",
    title: "Network File System (NFS) Version 4 Minor Version 2 XDR Description",
    sections: &[],
};

const RFC_7919: Document = Document {
    name: "RFC 7919",
    title: "Negotiated Finite Field Diffie-Hellman Ephemeral Parameters for Transport Layer \
            Security (TLS)",
    sections: &[],
};

const RFC_8166: Document = Document {
    name: "RFC 8166",
    title: "Remote Direct Memory Access Transport for Remote Procedure Call Version 1",
    sections: &[
        ("3.3.2", "Inline Threshold"),
        ("3.4.3", "RDMA Segments"),
        ("3.4.4", "Chunks"),
        ("3.4.6", "Write Chunks"),
        ("3.5.3", "Long Messages"),
        ("4.1", "XDR Protocol Definition"),
        ("4.5.1", "Header Version Mismatch"),
        ("4.5.2", "XDR Errors"),
        ("4.5.3", "Responder RDMA Operational Errors"),
    ],
};

const RFC_8267: Document = Document {
    name: "RFC 8267",
    title: "Network File System (NFS) Upper-Layer Binding to RPC-over-RDMA Version 1",
    sections: &[],
};

const RFC_8275: Document = Document {
    name: "RFC 8275",
    title: "Allowing Inheritable NFSv4 Access Control Entries to Override the Umask",
    sections: &[],
};

const RFC_8276: Document = Document {
    name: "RFC 8276",
    title: "File System Extended Attributes in NFSv4",
    sections: &[],
};

const RFC_8446: Document = Document {
    name: "RFC 8446",
    title: "The Transport Layer Security (TLS) Protocol Version 1.3",
    sections: &[
        ("4.1.2", "Client Hello"),
        ("4.1.3", "Server Hello"),
        ("4.2", "Extensions"),
        ("4.2.7", "Supported Groups"),
        ("4.2.9", "Pre-Shared Key Exchange Modes"),
        ("4.2.11", "Pre-Shared Key Extension"),
        ("4.2.11.2", "PSK Binder"),
        ("4.4.1", "The Transcript Hash"),
        ("4.6", "Post-Handshake Messages"),
        ("4.6.3", "Key and Initialization Vector Update"),
        ("5", "Record Protocol"),
        ("5.1", "Record Layer"),
        ("5.2", "Record Payload Protection"),
        ("5.3", "Per-Record Nonce"),
        ("5.4", "Record Padding"),
        ("5.5", "Limits on Key Usage"),
        ("6", "Alert Protocol"),
        ("7", "Cryptographic Computations"),
        ("7.1", "Key Schedule"),
        ("7.2", "Updating Traffic Secrets"),
        ("7.3", "Traffic Key Calculation"),
    ],
};

const RFC_8448: Document = Document {
    name: "RFC 8448",
    title: "Example Handshake Traces for TLS 1.3",
    sections: &[("3", "Simple 1-RTT Handshake")],
};

const RFC_8797: Document = Document {
    name: "RFC 8797",
    title: "Remote Direct Memory Access - Connection Manager (RDMA-CM) Private Data for \
            RPC-over-RDMA Version 1",
    sections: &[],
};

const RFC_8881: Document = Document {
    name: "RFC 8881",
    title: "Network File System (NFS) Version 4 Minor Version 1 Protocol",
    sections: &[
        ("2.10.6", "Exactly Once Semantics"),
        ("2.10.6.1.3", "Optional Reply Caching"),
        ("2.10.6.1.3.1", "False Retry"),
        ("2.10.6.2", "Retry and Replay of Reply"),
        ("3.1", "Basic Constants"),
        ("3.2", "Basic Data Types"),
        ("3.3", "Structured Data Types"),
        ("3.3.1", "nfstime4"),
        ("5", "File Attributes"),
        ("5.5", "Set-Only and Get-Only Attributes"),
        ("5.8.1.14", "Attribute 75: suppattr_exclcreat"),
        ("7.3", "Server Pseudo File System"),
        ("8.2", "Stateid Definition"),
        ("8.2.2", "Stateid Structure"),
        ("8.2.3", "Special Stateids"),
        ("8.2.4", "Stateid Lifetime and Validation"),
        ("8.4.2", "Server Failure and Recovery"),
        ("8.4.3", "Network Partitions and Recovery"),
        ("9.2", "Lock Ranges"),
        ("9.7", "Share Reservations"),
        ("9.9", "Open Upgrade and Downgrade"),
        ("14", "Internationalization"),
        ("14.5", "UTF-8 Related Errors"),
        ("15.1", "Error Definitions"),
        ("15.1.1.1", "NFS4ERR_BADXDR"),
        ("15.1.1.5", "NFS4ERR_NOTSUPP"),
        ("15.1.2", "Filehandle Errors"),
        ("15.1.2.1", "NFS4ERR_BADHANDLE"),
        ("15.1.2.5", "NFS4ERR_NOFILEHANDLE"),
        ("15.1.2.7", "NFS4ERR_STALE"),
        ("15.1.2.9", "NFS4ERR_WRONG_TYPE"),
        ("15.1.3.2", "NFS4ERR_MINOR_VERS_MISMATCH"),
        ("15.1.3.4", "NFS4ERR_OP_ILLEGAL"),
        ("15.1.3.11", "NFS4ERR_TOO_MANY_OPS"),
        ("15.1.7", "Name Errors"),
        ("15.1.15.1", "NFS4ERR_ATTRNOTSUPP"),
        ("16.2", "Procedure 1: COMPOUND - Compound Operations"),
        ("16.2.3.1.2", "Current Stateid"),
        ("18.1", "Operation 3: ACCESS - Check Access Rights"),
        ("18.2", "Operation 4: CLOSE - Close File"),
        ("18.3", "Operation 5: COMMIT - Commit Cached Data"),
        (
            "18.4",
            "Operation 6: CREATE - Create a Non-Regular File Object",
        ),
        ("18.7", "Operation 9: GETATTR - Get Attributes"),
        ("18.9", "Operation 11: LINK - Create Link to a File"),
        ("18.10", "Operation 12: LOCK - Create Lock"),
        ("18.11", "Operation 13: LOCKT - Test for Lock"),
        ("18.12", "Operation 14: LOCKU - Unlock File"),
        ("18.13", "Operation 15: LOOKUP - Lookup Filename"),
        ("18.14", "Operation 16: LOOKUPP - Lookup Parent Directory"),
        ("18.16", "Operation 18: OPEN - Open a Regular File"),
        (
            "18.18",
            "Operation 21: OPEN_DOWNGRADE - Reduce Open File Access",
        ),
        ("18.19", "Operation 22: PUTFH - Set Current Filehandle"),
        ("18.22", "Operation 25: READ - Read from File"),
        ("18.23", "Operation 26: READDIR - Read Directory"),
        ("18.26", "Operation 29: RENAME - Rename Directory Entry"),
        (
            "18.27",
            "Operation 31: RESTOREFH - Restore Saved Filehandle",
        ),
        ("18.30", "Operation 34: SETATTR - Set Attributes"),
        ("18.31", "Operation 37: VERIFY - Verify Same Attributes"),
        ("18.32", "Operation 38: WRITE - Write to File"),
        (
            "18.33",
            "Operation 40: BACKCHANNEL_CTL - Backchannel Control",
        ),
        (
            "18.34",
            "Operation 41: BIND_CONN_TO_SESSION - Associate Connection with Session",
        ),
        ("18.35", "Operation 42: EXCHANGE_ID - Instantiate Client ID"),
        (
            "18.36",
            "Operation 43: CREATE_SESSION - Create New Session and Confirm Client ID",
        ),
        ("18.36.3", "DESCRIPTION of CREATE_SESSION"),
        ("18.37", "Operation 44: DESTROY_SESSION - Destroy a Session"),
        (
            "18.38",
            "Operation 45: FREE_STATEID - Free Stateid with No Locks",
        ),
        (
            "18.45",
            "Operation 52: SECINFO_NO_NAME - Get Security on Unnamed Object",
        ),
        (
            "18.46",
            "Operation 53: SEQUENCE - Supply Per-Procedure Sequencing and Control",
        ),
        (
            "18.48",
            "Operation 55: TEST_STATEID - Test Stateids for Validity",
        ),
        (
            "18.50",
            "Operation 57: DESTROY_CLIENTID - Destroy a Client ID",
        ),
        (
            "18.51",
            "Operation 58: RECLAIM_COMPLETE - Indicates Reclaims Finished",
        ),
        ("20", "NFSv4.1 Callback Operations"),
        ("20.2", "Operation 4: CB_RECALL - Recall a Delegation"),
        (
            "20.6",
            "Operation 8: CB_RECALL_ANY - Keep Any N Recallable Objects",
        ),
        (
            "20.8",
            "Operation 10: CB_RECALL_SLOT - Change Flow Control Limits",
        ),
        (
            "20.9",
            "Operation 11: CB_SEQUENCE - Supply Backchannel Sequencing and Control",
        ),
        (
            "20.11",
            "Operation 13: CB_NOTIFY_LOCK - Notify Client of Possible Lock Availability",
        ),
    ],
};

const RFC_9289: Document = Document {
    name: "RFC 9289",
    title: "Towards Remote Procedure Call Encryption by Default",
    sections: &[],
};

const RFC_9562: Document = Document {
    name: "RFC 9562",
    title: "Universally Unique IDentifiers (UUIDs)",
    sections: &[("5.5", "UUID Version 5")],
};
