//! Operations that every client sends, with the arguments that this one has.

use files_spec::Name;
use files_spec::attributes::Attributes;
use files_spec::operations::{
    ChannelAttributes, Claim, ClientOwner, CreateHow, CreateSessionArgs, ExchangeIdArgs, OpenArgs,
    OpenHow, Operation, ProtectionArgs,
};
use files_spec::types::{Owner, Verifier};
use files_spec::xdr::{List, Opaque};

/// Access of OPEN to read and write.
const ACCESS_BOTH: u32 = 3;

/// EXCHANGE_ID without flags and protection.
#[must_use]
pub fn exchange_id(ownerid: &[u8], verifier: Verifier) -> Operation<'_> {
    Operation::ExchangeId(ExchangeIdArgs {
        clientowner: ClientOwner {
            verifier,
            ownerid: Opaque(ownerid),
        },
        flags: 0,
        state_protect: ProtectionArgs::None,
        client_impl_id: List::new(&[]),
    })
}

/// CREATE_SESSION without a backchannel.
#[must_use]
pub fn create_session(
    clientid: u64,
    sequence: u32,
    channel: ChannelAttributes,
) -> Operation<'static> {
    Operation::CreateSession(CreateSessionArgs {
        clientid,
        sequence,
        flags: 0,
        fore_chan_attrs: channel,
        back_chan_attrs: channel,
        cb_program: 0,
        sec_parms: List::new(&[]),
    })
}

/// OPEN to read and write, which denies others nothing.
#[must_use]
pub fn open<'o>(openhow: OpenHow<'o>, claim: Claim<'o>) -> Operation<'o> {
    Operation::Open(OpenArgs {
        seqid: 0,
        share_access: ACCESS_BOTH,
        share_deny: 0,
        // The session tells the client.
        owner: Owner {
            clientid: 0,
            owner: Opaque(b"owner"),
        },
        openhow,
        claim,
    })
}

/// OPEN of a name to read and write, which creates the file if it is missing.
#[must_use]
pub fn open_or_create(name: Name<'_>) -> Operation<'_> {
    let openhow = OpenHow::Create(CreateHow::Unchecked(Attributes::default()));
    open(openhow, Claim::Null(name))
}
