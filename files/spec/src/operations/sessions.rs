//! Clients, sessions and security (RFC 8881 §18.33 to §18.51).

use crate::bitmap::Bitmap;
use crate::limits::SHORT_LIST_MAX;
use crate::rpc::AuthSys;
use crate::types::{Identifier, Principal, SessionId, Time, Verifier};
use crate::xdr::{List, Opaque};

/// Flags of EXCHANGE_ID (RFC 8881 §18.35).
pub mod exchange_flags {
    /// The client supports referrals.
    pub const SUPP_MOVED_REFER: u32 = 0x1;
    /// The server is not a pNFS server.
    pub const USE_NON_PNFS: u32 = 0x1_0000;
    /// The server is a pNFS metadata server.
    pub const USE_PNFS_MDS: u32 = 0x2_0000;
    /// The server is a pNFS data server.
    pub const USE_PNFS_DS: u32 = 0x4_0000;
    /// The request updates a confirmed record.
    pub const UPDATE_CONFIRMED_REC_A: u32 = 0x4000_0000;
    /// The record is confirmed.
    pub const CONFIRMED_R: u32 = 0x8000_0000;
    /// The flags that a request may have (RFC 8881 §18.35).
    pub const REQUEST_MASK: u32 = 0x4007_0103;
    /// The client supports fencing of servers that copy for it. Since minor version 2
    /// (RFC 7862).
    pub const SUPP_FENCE_OPS: u32 = 0x4;
}

/// Flags of CREATE_SESSION (RFC 8881 §18.36).
pub mod session_flags {
    /// The replay cache persists.
    pub const PERSIST: u32 = 1;
    /// The connection is also the backchannel.
    pub const CONN_BACK_CHAN: u32 = 2;
    /// The connection changes to RDMA mode.
    pub const CONN_RDMA: u32 = 4;
}

/// Status flags of SEQUENCE (RFC 8881 §18.46).
pub mod status_flags {
    /// No connection of the session is a backchannel.
    pub const CB_PATH_DOWN: u32 = 0x1;
    /// All state of the client expired and was revoked.
    pub const EXPIRED_ALL_STATE_REVOKED: u32 = 0x8;
    /// Some state of the client expired and was revoked.
    pub const EXPIRED_SOME_STATE_REVOKED: u32 = 0x10;
    /// An administrator revoked state.
    pub const ADMIN_STATE_REVOKED: u32 = 0x20;
    /// The server restarted and the client has state to reclaim.
    pub const RESTART_RECLAIM_NEEDED: u32 = 0x100;
    /// No backchannel of this session.
    pub const CB_PATH_DOWN_SESSION: u32 = 0x200;
    /// The backchannel has a fault.
    pub const BACKCHANNEL_FAULT: u32 = 0x400;
}

xdr_union! {
    /// Security of callbacks, `callback_sec_parms4`.
    pub enum CallbackSecurity<'a> {
        0 => None,
        1 => Sys(AuthSys<'a>),
        6 => Gss(CallbackGss<'a>),
    }
}

xdr_struct! {
    /// GSS handles of callbacks, `gss_cb_handles4`.
    pub struct CallbackGss<'a> {
        service: u32,
        handle_from_server: Identifier<'a>,
        handle_from_client: Identifier<'a>,
    }
}

xdr_struct! {
    /// Arguments of BACKCHANNEL_CTL.
    pub struct BackchannelArgs<'a> {
        cb_program: u32,
        sec_parms: List<'a, CallbackSecurity<'a>, SHORT_LIST_MAX>,
    }
}

xdr_struct! {
    /// Arguments and result of BIND_CONN_TO_SESSION.
    pub struct BindArgs {
        sessid: SessionId,
        dir: u32,
        use_conn_in_rdma_mode: bool,
    }
}

xdr_struct! {
    /// A client instance and its owner, `client_owner4`.
    pub struct ClientOwner<'a> {
        verifier: Verifier,
        ownerid: Identifier<'a>,
    }
}

xdr_struct! {
    /// The name of an implementation, `nfs_impl_id4`.
    pub struct Implementation<'a> {
        domain: Principal<'a>,
        name: Principal<'a>,
        date: Time,
    }
}

xdr_struct! {
    /// Operations of state protection, `state_protect_ops4`.
    pub struct ProtectionOperations {
        must_enforce: Bitmap,
        must_allow: Bitmap,
    }
}

xdr_union! {
    /// The state protection that a client requests, `state_protect4_a`.
    pub enum ProtectionArgs<'a> {
        0 => None,
        1 => MachineCredential(ProtectionOperations),
        2 => Ssv(SsvArgs<'a>),
    }
}

xdr_struct! {
    /// Parameters of SSV protection, `ssv_sp_parms4`.
    pub struct SsvArgs<'a> {
        ops: ProtectionOperations,
        hash_algs: List<'a, Identifier<'a>, SHORT_LIST_MAX>,
        encr_algs: List<'a, Identifier<'a>, SHORT_LIST_MAX>,
        window: u32,
        num_gss_handles: u32,
    }
}

xdr_union! {
    /// The state protection of a client, `state_protect4_r`.
    pub enum ProtectionOk<'a> {
        0 => None,
        1 => MachineCredential(ProtectionOperations),
        2 => Ssv(SsvOk<'a>),
    }
}

xdr_struct! {
    /// SSV protection, `ssv_prot_info4`.
    pub struct SsvOk<'a> {
        ops: ProtectionOperations,
        hash_alg: u32,
        encr_alg: u32,
        ssv_len: u32,
        window: u32,
        handles: List<'a, Identifier<'a>, SHORT_LIST_MAX>,
    }
}

xdr_struct! {
    /// Arguments of EXCHANGE_ID.
    pub struct ExchangeIdArgs<'a> {
        clientowner: ClientOwner<'a>,
        flags: u32,
        state_protect: ProtectionArgs<'a>,
        client_impl_id: List<'a, Implementation<'a>, 1>,
    }
}

xdr_struct! {
    /// The identity of a server, `server_owner4`.
    pub struct ServerOwner<'a> {
        minor_id: u64,
        major_id: Identifier<'a>,
    }
}

xdr_struct! {
    /// Result of EXCHANGE_ID.
    pub struct ExchangeIdOk<'a> {
        clientid: u64,
        sequenceid: u32,
        flags: u32,
        state_protect: ProtectionOk<'a>,
        server_owner: ServerOwner<'a>,
        server_scope: Identifier<'a>,
        server_impl_id: List<'a, Implementation<'a>, 1>,
    }
}

xdr_struct! {
    /// Limits of a channel, `channel_attrs4`. An array of at most one item has the form of optional
    /// data.
    pub struct ChannelAttributes {
        headerpadsize: u32,
        maxrequestsize: u32,
        maxresponsesize: u32,
        maxresponsesize_cached: u32,
        maxoperations: u32,
        maxrequests: u32,
        rdma_ird: Option<u32>,
    }
}

xdr_struct! {
    /// Arguments of CREATE_SESSION.
    pub struct CreateSessionArgs<'a> {
        clientid: u64,
        sequence: u32,
        flags: u32,
        fore_chan_attrs: ChannelAttributes,
        back_chan_attrs: ChannelAttributes,
        cb_program: u32,
        sec_parms: List<'a, CallbackSecurity<'a>, SHORT_LIST_MAX>,
    }
}

xdr_struct! {
    /// Result of CREATE_SESSION.
    pub struct CreateSessionOk {
        sessionid: SessionId,
        sequence: u32,
        flags: u32,
        fore_chan_attrs: ChannelAttributes,
        back_chan_attrs: ChannelAttributes,
    }
}

xdr_struct! {
    /// Arguments of SEQUENCE.
    pub struct SequenceArgs {
        sessionid: SessionId,
        sequenceid: u32,
        slotid: u32,
        highest_slotid: u32,
        cachethis: bool,
    }
}

xdr_struct! {
    /// Result of SEQUENCE.
    pub struct SequenceOk {
        sessionid: SessionId,
        sequenceid: u32,
        slotid: u32,
        highest_slotid: u32,
        target_highest_slotid: u32,
        status_flags: u32,
    }
}

xdr_union! {
    /// A security flavor, `secinfo4`.
    pub enum Security<'a> {
        6 => Gss(GssInfo<'a>),
        _ => Flavor,
    }
}

xdr_struct! {
    /// Parameters of RPCSEC_GSS, `rpcsec_gss_info`.
    pub struct GssInfo<'a> {
        oid: Opaque<'a, 64>,
        qop: u32,
        service: u32,
    }
}
