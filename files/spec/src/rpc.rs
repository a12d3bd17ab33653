//! ONC RPC version 2 (RFC 5531): calls, replies, credentials and record marking.

mod record;
#[cfg(test)]
mod tests;

pub use record::{Fragment, MARK_BYTES, Record, RecordError};

use crate::limits::{AUTH_BYTES_MAX, GROUPS_MAX, MACHINE_NAME_BYTES_MAX};
use crate::xdr::{DecodeError, Decoder, EncodeError, Encoder, List, Opaque, Xdr};

/// The version of RPC.
pub const RPC_VERSION: u32 = 2;
/// The program number of NFS.
pub const NFS_PROGRAM: u32 = 100_003;
/// The version of the program.
pub const NFS_VERSION: u32 = 4;
/// The version of the callback program, whose number the client chooses. The text says 4 (RFC 8881
/// §18.36.3), but the XDR description says 1 (RFC 5662), which clients serve.
pub const CALLBACK_VERSION: u32 = 1;

const CALL: u32 = 0;
const REPLY: u32 = 1;

open_enum! {
    /// The procedures of both programs.
    pub struct Procedure {
        NULL = 0, "NULL";
        COMPOUND = 1, "COMPOUND";
    }
}

open_enum! {
    /// The kind of a credential or verifier (RFC 5531 §8.2).
    pub struct AuthFlavor {
        NONE = 0, "AUTH_NONE";
        SYS = 1, "AUTH_SYS";
        SHORT = 2, "AUTH_SHORT";
        RPCSEC_GSS = 6, "RPCSEC_GSS";
        TLS = 7, "AUTH_TLS";
    }
}

open_enum! {
    /// Why a credential is refused (RFC 5531 §9, `auth_stat`).
    pub struct AuthStatus {
        OK = 0, "AUTH_OK";
        BADCRED = 1, "AUTH_BADCRED";
        REJECTEDCRED = 2, "AUTH_REJECTEDCRED";
        BADVERF = 3, "AUTH_BADVERF";
        REJECTEDVERF = 4, "AUTH_REJECTEDVERF";
        TOOWEAK = 5, "AUTH_TOOWEAK";
        INVALIDRESP = 6, "AUTH_INVALIDRESP";
        FAILED = 7, "AUTH_FAILED";
    }
}

xdr_struct! {
    /// A credential or verifier, `opaque_auth`.
    pub struct Auth<'a> {
        flavor: AuthFlavor,
        body: Opaque<'a, AUTH_BYTES_MAX>,
    }
}

impl Auth<'_> {
    /// No authentication.
    pub const NONE: Self = Self {
        flavor: AuthFlavor::NONE,
        body: Opaque(&[]),
    };
}

xdr_struct! {
    /// The body of an AUTH_SYS credential, `authsys_parms` (RFC 5531 Appendix A).
    pub struct AuthSys<'a> {
        stamp: u32,
        machinename: Opaque<'a, MACHINE_NAME_BYTES_MAX>,
        uid: u32,
        gid: u32,
        gids: List<'a, u32, GROUPS_MAX>,
    }
}

/// Who sends a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Credential<'a> {
    /// An anonymous sender.
    None,
    /// A user and groups that the sender states.
    Sys(AuthSys<'a>),
}

impl<'a> Credential<'a> {
    fn of(auth: Auth<'a>) -> Result<Self, AuthStatus> {
        match auth.flavor {
            AuthFlavor::NONE => Ok(Self::None),
            AuthFlavor::SYS => {
                let mut from = Decoder::new(auth.body.0);
                let decoded = AuthSys::decode(&mut from);
                let complete = decoded.and_then(|sys| from.finish().map(|()| sys));
                complete.map(Self::Sys).map_err(|_| AuthStatus::BADCRED)
            }
            // RFC 9289: a server without TLS refuses AUTH_TLS in this way.
            _ => Err(AuthStatus::BADCRED),
        }
    }
}

/// A call. Its arguments follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call<'a> {
    /// The identifier that the reply repeats.
    pub xid: u32,
    /// The program.
    pub program: u32,
    /// Its version.
    pub version: u32,
    /// Its procedure.
    pub procedure: Procedure,
    /// The sender.
    pub credential: Credential<'a>,
}

/// A record that is not a valid call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallError {
    /// The record has no identifier to reply to, or is a reply.
    NotACall,
    /// The call is answered with this reply.
    Refused(Reply<'static>),
}

impl<'a> Call<'a> {
    /// Decodes a call up to its arguments.
    ///
    /// # Errors
    /// Returns the reply to an invalid call, if any (RFC 5531 §9).
    pub fn decode(from: &mut Decoder<'a>) -> Result<Self, CallError> {
        let xid = u32::decode(from).map_err(|_| CallError::NotACall)?;
        if u32::decode(from) != Ok(CALL) {
            return Err(CallError::NotACall);
        }
        let refused = |body| CallError::Refused(Reply { xid, body });
        let garbage = |_| refused(ReplyBody::accepted(AcceptStatus::GarbageArgs));
        let unauthenticated = |status| refused(ReplyBody::Denied(Denied::Auth(status)));
        if u32::decode(from).map_err(garbage)? != RPC_VERSION {
            let versions = Versions {
                low: RPC_VERSION,
                high: RPC_VERSION,
            };
            return Err(refused(ReplyBody::Denied(Denied::RpcMismatch(versions))));
        }
        let program = u32::decode(from).map_err(garbage)?;
        let version = u32::decode(from).map_err(garbage)?;
        let procedure = Procedure::decode(from).map_err(garbage)?;
        let credential = Auth::decode(from).map_err(|_| unauthenticated(AuthStatus::BADCRED))?;
        Auth::decode(from).map_err(|_| unauthenticated(AuthStatus::BADVERF))?;
        Ok(Self {
            xid,
            program,
            version,
            procedure,
            credential: Credential::of(credential).map_err(unauthenticated)?,
        })
    }

    /// Checks that the call is for NULL or COMPOUND of a program.
    ///
    /// # Errors
    /// Returns the reply otherwise (RFC 5531 §9).
    pub fn check(&self, program: u32, version: u32) -> Result<(), Reply<'static>> {
        let status = if self.program != program {
            AcceptStatus::ProgUnavail
        } else if self.version != version {
            AcceptStatus::ProgMismatch(Versions {
                low: version,
                high: version,
            })
        } else if self.procedure.name().is_none() {
            AcceptStatus::ProcUnavail
        } else {
            return Ok(());
        };
        Err(Reply::accepted(self.xid, status))
    }

    /// Appends the call; its arguments follow.
    ///
    /// # Errors
    /// Returns an error if it does not fit.
    pub fn encode(&self, to: &mut Encoder<'_>) -> Result<(), EncodeError> {
        for word in [
            self.xid,
            CALL,
            RPC_VERSION,
            self.program,
            self.version,
            self.procedure.0,
        ] {
            word.encode(to)?;
        }
        match &self.credential {
            Credential::None => Auth::NONE.encode(to)?,
            Credential::Sys(sys) => {
                AuthFlavor::SYS.encode(to)?;
                let length = to.mark();
                0_u32.encode(to)?;
                let begin = to.mark();
                sys.encode(to)?;
                // All items are multiples of the unit, so no padding follows.
                to.patch(length, to.since(begin) as u32);
            }
        }
        Auth::NONE.encode(to)
    }
}

xdr_struct! {
    /// The versions that a server supports.
    pub struct Versions {
        low: u32,
        high: u32,
    }
}

xdr_union! {
    /// Why an accepted call is not executed (`accept_stat`). The results follow `Success`.
    pub enum AcceptStatus {
        0 => Success,
        1 => ProgUnavail,
        2 => ProgMismatch(Versions),
        3 => ProcUnavail,
        4 => GarbageArgs,
        5 => SystemErr,
    }
}

xdr_struct! {
    /// The reply to a call whose sender is accepted, `accepted_reply`.
    pub struct Accepted<'a> {
        verf: Auth<'a>,
        status: AcceptStatus,
    }
}

xdr_union! {
    /// The reply to a call that is denied, `rejected_reply`.
    pub enum Denied {
        0 => RpcMismatch(Versions),
        1 => Auth(AuthStatus),
    }
}

xdr_union! {
    /// The body of a reply.
    pub enum ReplyBody<'a> {
        0 => Accepted(Accepted<'a>),
        1 => Denied(Denied),
    }
}

impl ReplyBody<'_> {
    const fn accepted(status: AcceptStatus) -> Self {
        Self::Accepted(Accepted {
            verf: Auth::NONE,
            status,
        })
    }
}

/// A reply. The results of a successful call follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply<'a> {
    /// The identifier of the call.
    pub xid: u32,
    /// Whether the call was executed.
    pub body: ReplyBody<'a>,
}

impl Reply<'_> {
    /// A reply to a call whose sender is accepted.
    #[must_use]
    pub const fn accepted(xid: u32, status: AcceptStatus) -> Self {
        Self {
            xid,
            body: ReplyBody::accepted(status),
        }
    }
}

impl<'a> Xdr<'a> for Reply<'a> {
    fn decode(from: &mut Decoder<'a>) -> Result<Self, DecodeError> {
        let xid = u32::decode(from)?;
        if u32::decode(from)? != REPLY {
            return Err(DecodeError::Discriminant);
        }
        let body = ReplyBody::decode(from)?;
        Ok(Self { xid, body })
    }

    fn encode(&self, to: &mut Encoder<'_>) -> Result<(), EncodeError> {
        self.xid.encode(to)?;
        REPLY.encode(to)?;
        self.body.encode(to)
    }
}

/// Whether a record is a call or a reply, which share the connection of a backchannel; `None` if it
/// is neither.
#[must_use]
pub fn is_call(record: &[u8]) -> Option<bool> {
    let mut from = Decoder::new(record);
    u32::decode(&mut from).ok()?;
    match u32::decode(&mut from).ok()? {
        CALL => Some(true),
        REPLY => Some(false),
        _ => None,
    }
}
