//! The operations of COMPOUND.

pub(crate) mod data;
mod locks;
mod names;
mod open;
mod setting;
mod version_2;

use files_spec::Status;
use files_spec::operations::{Operation, OperationNumber, OperationResult, Outcome, Security};
use files_spec::rpc::AuthFlavor;
use files_spec::types::{ChangeInfo, StateId};
use files_spec::xdr::{List, Opaque};
use files_store::{Attributes, InodeId, Volume};

use crate::execution::{Execution, Step};
use crate::place::{Place, Share, resolve};
use crate::refusal::Refusal;
use crate::server::{Now, Position, Server};
use crate::states::FileId;
use crate::user::User;

/// How an operation has ended; its result is in the reply unless it is suspended.
#[derive(Debug)]
pub(crate) enum Flow<'r> {
    /// It succeeded.
    Done,
    /// It failed with a result of its own.
    Failed(Status),
    /// The reply is that of an earlier transmission.
    Replayed,
    /// It continues after this step.
    Suspended(Step<'r>),
}

/// An object of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Object {
    /// Index of its share.
    pub(crate) share: usize,
    pub(crate) inode: InodeId,
}

impl Object {
    pub(crate) fn place(self) -> Place {
        Place::Object {
            share: self.share,
            inode: self.inode,
        }
    }
}

/// The change of a directory. The server executes one operation after the other.
fn change_info(before: u64, after: u64) -> ChangeInfo {
    ChangeInfo {
        atomic: true,
        before,
        after,
    }
}

impl Server {
    /// An object of a volume with its attributes.
    ///
    /// # Errors
    /// `NFS4ERR_ROFS` for the root, which only the server changes.
    pub(crate) fn object(&self, place: Place) -> Result<(Object, Attributes), Refusal> {
        let Place::Object { share, inode } = place else {
            return Err(Status::ROFS.into());
        };
        let attributes = self.volumes[self.shares[share].volume.0].attributes(inode)?;
        Ok((Object { share, inode }, attributes))
    }

    pub(crate) fn share(&self, object: Object) -> &Share {
        &self.shares[object.share]
    }

    pub(crate) fn volume(&self, object: Object) -> &Volume {
        &self.volumes[self.shares[object.share].volume.0]
    }

    pub(crate) fn volume_mut(&mut self, object: Object) -> &mut Volume {
        &mut self.volumes[self.shares[object.share].volume.0]
    }

    pub(crate) fn file_id(&self, object: Object) -> FileId {
        (self.shares[object.share].volume, object.inode)
    }

    /// The identity of the sender in a share.
    pub(crate) fn user_in(&self, x: &Execution, object: Object) -> User {
        x.header.user.squashed(self.share(object).squash)
    }

    /// Checks that the sender may do what is `wanted` with an object.
    pub(crate) fn check_access(
        &self,
        x: &Execution,
        object: Object,
        attributes: &Attributes,
        wanted: u32,
    ) -> Result<(), Refusal> {
        match self.user_in(x, object).may(attributes, wanted) {
            true => Ok(()),
            false => Err(Status::ACCESS.into()),
        }
    }

    /// Checks that objects of a share can be changed.
    pub(crate) fn check_writable(&self, object: Object) -> Result<(), Refusal> {
        match self.share(object).is_read_only {
            true => Err(Status::ROFS.into()),
            false => Ok(()),
        }
    }

    /// PUTFH (RFC 8881 §18.19).
    pub(crate) fn put_handle<'r>(
        &mut self,
        x: &mut Execution,
        handle: &[u8],
    ) -> Result<Flow<'r>, Refusal> {
        x.go_to(resolve(handle, &self.shares, &self.volumes, x.address)?);
        x.push_ok(OperationNumber::PUTFH, &())?;
        Ok(Flow::Done)
    }

    /// Executes an operation other than those that [`Server::execute_next`] decodes by themselves.
    pub(crate) fn execute<'r>(
        &mut self,
        x: &mut Execution,
        operation: &Operation<'r>,
        position: Position,
        now: &Now,
    ) -> Result<Flow<'r>, Refusal> {
        match operation {
            Operation::ExchangeId(it) => self.exchange_id(x, it, now),
            Operation::CreateSession(it) => self.create_session(x, it, now),
            Operation::DestroySession(id) => self.destroy_session(x, id, position.is_last),
            Operation::DestroyClientId(number) => self.destroy_client(x, *number),
            Operation::BindConnToSession(args) => self.bind(x, args),
            Operation::BackchannelCtl(args) => self.change_backchannel(x, args),
            Operation::ReclaimComplete(is_one) => self.reclaim_complete(x, *is_one),
            Operation::PutRootFh(()) | Operation::PutPubFh(()) => put_root(x, operation),
            Operation::GetFh(()) => self.get_handle(x),
            Operation::SaveFh(()) => {
                x.place()?;
                x.saved = x.current;
                x.push(&OperationResult::SaveFh(Outcome::Ok(())))
            }
            Operation::RestoreFh(()) => {
                // RFC 8881 §18.27. NFS4ERR_RESTOREFH is obsolete.
                x.saved.place.ok_or(Status::NOFILEHANDLE)?;
                x.current = x.saved;
                x.push(&OperationResult::RestoreFh(Outcome::Ok(())))
            }
            Operation::SecInfo(name) => self.security_of_name(x, *name),
            Operation::SecInfoNoName(style) => self.security_of_current(x, *style),
            Operation::Lookup(name) => self.lookup(x, *name),
            Operation::LookupP(()) => self.look_up_parent(x),
            Operation::Access(args) => self.access(x, *args),
            Operation::ReadLink(()) => self.read_link(x),
            Operation::ReadDir(args) => self.read_directory(x, args),
            Operation::Create(args) => self.create(x, args, now),
            Operation::Remove(name) => self.remove(x, *name, now),
            Operation::Rename(args) => self.rename(x, args, now),
            Operation::Link(name) => self.link(x, *name, now),
            Operation::Verify(args) => self.verify(x, args),
            Operation::NVerify(args) => self.verify_differs(x, args),
            Operation::SetAttr(args) => self.set_attributes(x, args, now),
            Operation::Open(args) => self.open(x, args, now),
            Operation::OpenDowngrade(args) => self.downgrade(x, args),
            Operation::Close(args) => self.close(x, args),
            Operation::TestStateId(ids) => self.test_states(x, ids),
            Operation::FreeStateId(id) => self.free_state(x, id),
            Operation::Lock(args) => return self.lock(x, args, now),
            Operation::LockT(args) => return self.test_lock(x, args, now),
            Operation::LockU(args) => self.unlock(x, args, now),
            Operation::Commit(args) => self.commit(x, args),
            other => {
                if let Some(ended) = self.execute_version_2(x, other, now) {
                    return ended.map(|()| Flow::Done);
                }
                let (number, status) = other.number().unsupported_status(x.minor_version);
                x.push_failure(number, status);
                return Ok(Flow::Failed(status));
            }
        }
        .map(|()| Flow::Done)
    }

    /// RECLAIM_COMPLETE (RFC 8881 §18.51).
    fn reclaim_complete(&mut self, x: &mut Execution, is_one: bool) -> Result<(), Refusal> {
        let key = x.client()?;
        let client = self.clients.get_mut(key).ok_or(Status::SERVERFAULT)?;
        if is_one {
            // Nothing moves between servers, so there is nothing to reclaim of one file system.
            x.place()?;
        } else {
            if client.has_reclaimed {
                return Err(Status::COMPLETE_ALREADY.into());
            }
            client.has_reclaimed = true;
            self.grace.forget(&client.owner);
        }
        x.push(&OperationResult::ReclaimComplete(Outcome::Ok(())))
    }

    fn get_handle(&mut self, x: &mut Execution) -> Result<(), Refusal> {
        let handle = self.handle(x.place()?)?;
        let handle = Opaque(handle.as_bytes());
        x.push(&OperationResult::GetFh(Outcome::Ok(handle)))
    }

    fn security_of_name(
        &mut self,
        x: &mut Execution,
        name: files_spec::Name<'_>,
    ) -> Result<(), Refusal> {
        self.find(x, name)?;
        x.push(&OperationResult::SecInfo(Outcome::Ok(flavors())))?;
        forget_current(x);
        Ok(())
    }

    /// SECINFO_NO_NAME (RFC 8881 §18.45), for the current object or its parent.
    fn security_of_current(&mut self, x: &mut Execution, style: u32) -> Result<(), Refusal> {
        match style {
            0 => {
                x.place()?;
            }
            1 => {
                self.parent(x)?;
            }
            _ => return Err(Status::BADXDR.into()),
        }
        x.push(&OperationResult::SecInfoNoName(Outcome::Ok(flavors())))?;
        forget_current(x);
        Ok(())
    }
}

/// SECINFO and SECINFO_NO_NAME leave no current object (RFC 8881 §18.45).
fn forget_current(x: &mut Execution) {
    x.current = crate::execution::Current::default();
}

fn flavors<'l>() -> List<'l, Security<'l>, { files_spec::limits::SHORT_LIST_MAX }> {
    const FLAVORS: &[Security<'static>] = &[Security::Flavor(AuthFlavor::SYS.0)];
    List::new(FLAVORS)
}

fn put_root(x: &mut Execution, operation: &Operation<'_>) -> Result<(), Refusal> {
    x.go_to(Place::Root);
    x.push(&match operation {
        Operation::PutPubFh(()) => OperationResult::PutPubFh(Outcome::Ok(())),
        _ => OperationResult::PutRootFh(Outcome::Ok(())),
    })
}

/// The identifier of a state that does not exist any more (RFC 8881 §18.2).
const CLOSED: StateId = StateId::INVALID;
