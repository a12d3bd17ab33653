//! What clients do: each action's COMPOUND, its claims, its effect on a file and the statuses that it
//! may have.

use files_spec::attributes::{Attributes, number};
use files_spec::name::XattrName;
use files_spec::operations::{
    Claim, CloneArgs, CloseArgs, CommitArgs, CopyArgs, CreateArgs, CreateHow, DowngradeArgs,
    ExclusiveCreate, OpenArgs, OpenHow, Operation, RangeArgs, ReadArgs, RenameArgs, SeekArgs,
    SetXattrArgs, SetXattrOption, SetattrArgs, WriteArgs, seek_what, share,
};
use files_spec::readdir::ReaddirArgs;
use files_spec::types::{CreateType, Owner, Stable, StateId};
use files_spec::xdr::{List, Opaque, Payload};
use files_spec::{Bitmap, Name, Status};

use super::content::{Effect, pattern};
use super::holdings::{Modes, Parts};
use super::model::{Claims, Model, Node, ObjectId};
use super::sharing::{self, Wanted};

/// A name in a directory.
pub(super) type Place = (ObjectId, String);

/// An action.
#[derive(Clone, Debug)]
pub(super) enum Action {
    CreateFile {
        at: Place,
        is_exclusive: bool,
    },
    MakeDirectory {
        at: Place,
    },
    MakeLink {
        at: Place,
        target: String,
    },
    Remove {
        at: Place,
    },
    Rename {
        from: Place,
        to: Place,
    },
    Link {
        object: ObjectId,
        at: Place,
    },
    Lookup {
        at: Place,
    },
    List {
        directory: ObjectId,
        page_bytes: u32,
        cookie: u64,
        found: Vec<(String, u64)>,
    },
    ReadLink {
        object: ObjectId,
    },
    GetAttributes {
        object: ObjectId,
    },
    Read {
        object: ObjectId,
        offset: u64,
        count: u32,
    },
    Write {
        object: ObjectId,
        offset: u64,
        length: u64,
        write: u32,
        stable: Stable,
    },
    Commit {
        object: ObjectId,
    },
    Truncate {
        object: ObjectId,
        size: u64,
    },
    Allocate {
        object: ObjectId,
        offset: u64,
        length: u64,
    },
    Deallocate {
        object: ObjectId,
        offset: u64,
        length: u64,
    },
    Seek {
        object: ObjectId,
        offset: u64,
        is_data: bool,
    },
    Clone {
        from: ObjectId,
        begin: u64,
        object: ObjectId,
        offset: u64,
        length: u64,
        /// COPY in place of CLONE.
        is_copy: bool,
    },
    SetXattr {
        object: ObjectId,
        name: String,
        value: Vec<u8>,
    },
    GetXattr {
        object: ObjectId,
        name: String,
    },
    RemoveXattr {
        object: ObjectId,
        name: String,
    },
    Open {
        object: ObjectId,
        modes: Modes,
    },
    Downgrade {
        object: ObjectId,
        modes: Modes,
    },
    Lock {
        wanted: Wanted,
        /// How often it is tried again when it is denied.
        tries: u32,
        is_reclaim: bool,
    },
    TestLock {
        wanted: Wanted,
    },
    Unlock {
        object: ObjectId,
        owner: u8,
        parts: Parts,
    },
    Close {
        object: ObjectId,
    },
    Reclaim {
        object: ObjectId,
    },
    /// OPEN with CLAIM_PREVIOUS of a client that has reclaimed everything.
    FalseReclaim {
        object: ObjectId,
    },
    ReclaimComplete,
    /// SEQUENCE alone, which renews the lease.
    Renew,
}

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).expect("names of the workload are valid")
}

fn xattr_name(text: &str) -> XattrName<'_> {
    XattrName::new(text.as_bytes()).expect("names of the workload are valid")
}

/// The attributes that are compared.
#[must_use]
pub(super) fn compared() -> Bitmap {
    Bitmap::of(&[
        number::TYPE,
        number::CHANGE,
        number::SIZE,
        number::FILEID,
        number::NUMLINKS,
    ])
}

/// What the name of an extended attribute is as a claim: no entry has it.
#[must_use]
pub(super) fn xattr_key(name: &str) -> String {
    format!("/{name}")
}

impl Action {
    /// The object whose handle it uses, other than a directory that has a claim.
    #[must_use]
    pub(super) fn object(&self) -> Option<ObjectId> {
        match self {
            Self::ReadLink { object }
            | Self::GetAttributes { object }
            | Self::Read { object, .. }
            | Self::Write { object, .. }
            | Self::Commit { object }
            | Self::Truncate { object, .. }
            | Self::Allocate { object, .. }
            | Self::Deallocate { object, .. }
            | Self::Seek { object, .. }
            | Self::Clone { object, .. }
            | Self::SetXattr { object, .. }
            | Self::GetXattr { object, .. }
            | Self::RemoveXattr { object, .. }
            | Self::Open { object, .. }
            | Self::Downgrade { object, .. }
            | Self::Unlock { object, .. }
            | Self::Close { object }
            | Self::Reclaim { object }
            | Self::FalseReclaim { object }
            | Self::Link { object, .. }
            | Self::List {
                directory: object, ..
            } => Some(*object),
            Self::Lock { wanted, .. } | Self::TestLock { wanted } => Some(wanted.object),
            Self::Lookup { at } => Some(at.0),
            Self::CreateFile { .. }
            | Self::MakeDirectory { .. }
            | Self::MakeLink { .. }
            | Self::Remove { .. }
            | Self::Rename { .. }
            | Self::ReclaimComplete
            | Self::Renew => None,
        }
    }

    /// Whether it changes the volume.
    #[must_use]
    pub(super) fn changes_volume(&self) -> bool {
        matches!(
            self,
            Self::CreateFile { .. }
                | Self::MakeDirectory { .. }
                | Self::MakeLink { .. }
                | Self::Remove { .. }
                | Self::Rename { .. }
                | Self::Link { .. }
                | Self::Write { .. }
                | Self::Truncate { .. }
                | Self::Allocate { .. }
                | Self::Deallocate { .. }
                | Self::Clone { .. }
                | Self::SetXattr { .. }
                | Self::RemoveXattr { .. }
        )
    }

    /// Whether it changes the share or is refused, if the client has these share modes of a file that it
    /// reclaims.
    #[must_use]
    pub(super) fn needs_writing(&self, reclaimed: Modes) -> bool {
        match self {
            Self::Open { modes, .. } => modes.access & share::ACCESS_WRITE != 0,
            Self::Reclaim { .. } => reclaimed.access & share::ACCESS_WRITE != 0,
            _ => self.changes_volume(),
        }
    }

    /// Whether a client reclaims what it had before the server was killed.
    #[must_use]
    pub(super) fn is_reclaim(&self) -> bool {
        match self {
            Self::Lock { is_reclaim, .. } => *is_reclaim,
            _ => matches!(self, Self::Reclaim { .. }),
        }
    }

    /// The files whose data it accesses, in the order of the accesses.
    #[must_use]
    pub(super) fn uses(&self) -> Vec<(ObjectId, u32)> {
        match self {
            Self::Read { object, .. } | Self::Seek { object, .. } => {
                vec![(*object, share::ACCESS_READ)]
            }
            Self::Write { object, .. }
            | Self::Truncate { object, .. }
            | Self::Allocate { object, .. }
            | Self::Deallocate { object, .. } => vec![(*object, share::ACCESS_WRITE)],
            Self::Clone { from, object, .. } => {
                vec![(*from, share::ACCESS_READ), (*object, share::ACCESS_WRITE)]
            }
            _ => vec![],
        }
    }

    /// The file that it reads or changes, and how.
    #[must_use]
    pub(super) fn effect(&self, model: &Model) -> (Option<ObjectId>, Option<Effect>) {
        let (object, effect) = match self {
            Self::Write {
                object,
                offset,
                length,
                write,
                ..
            } => (object, Effect::write(*write, *offset, *length)),
            Self::Truncate { object, size } => (object, Effect::truncate(*size)),
            Self::Allocate {
                object,
                offset,
                length,
            } => (object, Effect::allocate(offset + length)),
            Self::Deallocate {
                object,
                offset,
                length,
            } => (object, Effect::deallocate(*offset, *length)),
            Self::Clone {
                from,
                begin,
                object,
                offset,
                length,
                ..
            } => {
                let Some(content) = model.objects[*from].file() else {
                    return (None, None);
                };
                let range = (*begin, *length);
                (object, Effect::clone_of(&content.now, range, *offset))
            }
            Self::Read { object, .. }
            | Self::Commit { object }
            | Self::Seek { object, .. }
            | Self::GetAttributes { object } => {
                let is_file = model.objects[*object].file().is_some();
                return (is_file.then_some(*object), None);
            }
            _ => return (None, None),
        };
        (Some(*object), Some(effect))
    }

    /// What nothing else may change meanwhile.
    #[must_use]
    pub(super) fn claims(&self, model: &Model) -> Claims {
        let mut claims = Claims::default();
        match self {
            Self::CreateFile { at, .. }
            | Self::MakeDirectory { at }
            | Self::MakeLink { at, .. } => {
                claims.names.push(at.clone());
                claims.directories.push(at.0);
            }
            Self::Remove { at } => {
                claims.names.push(at.clone());
                claims.directories.push(at.0);
                claims.objects.extend(model.lookup(at.0, &at.1));
            }
            Self::Rename { from, to } => {
                let source = model.lookup(from.0, &from.1);
                let target = model.lookup(to.0, &to.1);
                claims.names.extend([from.clone(), to.clone()]);
                claims.directories.extend([from.0, to.0]);
                claims.objects.extend(source.into_iter().chain(target));
                let is_directory = |it: ObjectId| model.objects[it].is_directory();
                claims.moves_directories = source.is_some_and(is_directory);
            }
            Self::Link { object, at } => {
                claims.names.push(at.clone());
                claims.directories.push(at.0);
                claims.objects.push(*object);
            }
            Self::SetXattr { object, name, .. } | Self::RemoveXattr { object, name } => {
                claims.names.push((*object, xattr_key(name)));
            }
            _ => {}
        }
        claims
    }

    /// The statuses that it may have.
    #[must_use]
    pub(super) fn expected(&self, model: &Model) -> Vec<Status> {
        let is_directory = |it: ObjectId| model.objects[it].is_directory();
        let failures = match self {
            Self::CreateFile { at, .. } => match model.lookup(at.0, &at.1) {
                Some(_) => vec![Status::EXIST, Status::ISDIR, Status::SYMLINK],
                None => vec![],
            },
            Self::MakeDirectory { at } | Self::MakeLink { at, .. } => {
                match model.lookup(at.0, &at.1) {
                    Some(_) => vec![Status::EXIST],
                    None => vec![],
                }
            }
            Self::Link { object, at } => {
                let mut failures = vec![];
                if model.lookup(at.0, &at.1).is_some() {
                    failures.push(Status::EXIST);
                }
                if is_directory(*object) {
                    failures.push(Status::ISDIR);
                }
                failures
            }
            Self::Remove { at } => match model.lookup(at.0, &at.1) {
                None => vec![Status::NOENT],
                Some(object) if model.objects[object].entries().next().is_some() => {
                    vec![Status::NOTEMPTY]
                }
                Some(_) => vec![],
            },
            Self::Rename { from, to } => {
                let Some(source) = model.lookup(from.0, &from.1) else {
                    return vec![Status::NOENT];
                };
                let target = model.lookup(to.0, &to.1);
                if target == Some(source) {
                    return vec![Status::OK];
                }
                let mut failures = vec![];
                if is_directory(source) && model.is_below(to.0, source) {
                    failures.push(Status::INVAL);
                }
                if let Some(target) = target {
                    let has_entries = model.objects[target].entries().next().is_some();
                    if has_entries || is_directory(source) != is_directory(target) {
                        failures.push(Status::EXIST);
                    }
                }
                failures
            }
            Self::FalseReclaim { .. } => vec![Status::NO_GRACE],
            Self::GetXattr { object, name } | Self::RemoveXattr { object, name } => {
                match model.objects[*object].xattrs.contains_key(name) {
                    true => vec![],
                    false => vec![Status::NOXATTR],
                }
            }
            _ => vec![],
        };
        match failures.is_empty() {
            true => vec![Status::OK],
            false => failures,
        }
    }

    /// Whether it may fail because the device does.
    #[must_use]
    pub(super) fn may_fail(&self) -> bool {
        !matches!(
            self,
            Self::Lookup { .. }
                | Self::List { .. }
                | Self::ReadLink { .. }
                | Self::GetAttributes { .. }
                | Self::GetXattr { .. }
                | Self::Seek { .. }
                | Self::Downgrade { .. }
                | Self::Lock { .. }
                | Self::TestLock { .. }
                | Self::Unlock { .. }
                | Self::FalseReclaim { .. }
                | Self::ReclaimComplete
                | Self::Renew
        )
    }

    /// Whether it succeeds only if metadata are stored, whatever it finds.
    #[must_use]
    pub(super) fn stores_metadata(&self) -> bool {
        matches!(
            self,
            Self::CreateFile { .. }
                | Self::MakeDirectory { .. }
                | Self::MakeLink { .. }
                | Self::Remove { .. }
                | Self::Write { .. }
        )
    }

    /// Whether its reply is to be kept for a repetition.
    #[must_use]
    pub(super) fn is_kept(&self) -> bool {
        !matches!(
            self,
            Self::Read { .. }
                | Self::List { .. }
                | Self::Lookup { .. }
                | Self::GetAttributes { .. }
        )
    }

    /// Calls `send` with its operations, as `client` sends them.
    pub(super) fn with_operations<R>(
        &self,
        model: &Model,
        client: usize,
        send: impl FnOnce(&[Operation<'_>]) -> R,
    ) -> R {
        let put = |object: ObjectId| Operation::PutFh(Opaque(&model.objects[object].handle));
        let attributes = Operation::GetAttr(compared());
        let known = [Operation::GetFh(()), attributes];
        let none = Attributes::default;
        let owner = format!("owner {client}");
        let state = |object: ObjectId| {
            let open = model.usable_open(client, object);
            open.map_or(StateId::ANONYMOUS, |it| it.state_of_access(object))
        };
        let open = |modes: Modes, openhow, claim| {
            Operation::Open(OpenArgs {
                seqid: 0,
                share_access: modes.access,
                share_deny: modes.deny,
                owner: Owner {
                    clientid: 0,
                    owner: Opaque(owner.as_bytes()),
                },
                openhow,
                claim,
            })
        };
        let create = |objtype, directory: ObjectId, objname| {
            let args = CreateArgs {
                objtype,
                objname,
                createattrs: none(),
            };
            send_all(&[put(directory), Operation::Create(args)], &known)
        };
        let range = |object, offset, length| RangeArgs {
            stateid: state(object),
            offset,
            length,
        };
        let data;
        let locker;
        let operations = match self {
            Self::CreateFile { at, is_exclusive } => {
                let how = match is_exclusive {
                    true => CreateHow::Exclusive41(ExclusiveCreate {
                        verf: (model.stamp << 8 | client as u64).to_be_bytes(),
                        attrs: none(),
                    }),
                    false => CreateHow::Guarded(none()),
                };
                let claim = Claim::Null(name(&at.1));
                let open = open(Modes::BOTH, OpenHow::Create(how), claim);
                send_all(&[put(at.0), open], &known)
            }
            Self::MakeDirectory { at } => create(CreateType::Directory, at.0, name(&at.1)),
            Self::MakeLink { at, target } => create(
                CreateType::Link(Opaque(target.as_bytes())),
                at.0,
                name(&at.1),
            ),
            Self::Remove { at } => vec![put(at.0), Operation::Remove(name(&at.1))],
            Self::Rename { from, to } => {
                let args = RenameArgs {
                    oldname: name(&from.1),
                    newname: name(&to.1),
                };
                let begin = [put(from.0), Operation::SaveFh(()), put(to.0)];
                send_all(&begin, &[Operation::Rename(args)])
            }
            Self::Link { object, at } => {
                let begin = [put(*object), Operation::SaveFh(()), put(at.0)];
                send_all(&begin, &[Operation::Link(name(&at.1))])
            }
            Self::Lookup { at } => send_all(&[put(at.0), Operation::Lookup(name(&at.1))], &known),
            Self::List {
                directory,
                page_bytes,
                cookie,
                ..
            } => {
                let args = ReaddirArgs {
                    cookie: *cookie,
                    cookieverf: [0; 8],
                    dircount: *page_bytes,
                    maxcount: *page_bytes,
                    attr_request: Bitmap::of(&[number::FILEID]),
                };
                vec![put(*directory), Operation::ReadDir(args)]
            }
            Self::ReadLink { object } => vec![put(*object), Operation::ReadLink(())],
            Self::GetAttributes { object } => vec![put(*object), attributes],
            Self::Read {
                object,
                offset,
                count,
            } => {
                let args = ReadArgs {
                    stateid: state(*object),
                    offset: *offset,
                    count: *count,
                };
                vec![put(*object), Operation::Read(args)]
            }
            Self::Write {
                object,
                offset,
                length,
                write,
                stable,
            } => {
                data = pattern(*write, *offset, *length as usize);
                let args = WriteArgs {
                    stateid: state(*object),
                    offset: *offset,
                    stable: *stable,
                    data: Payload::Inline(&data),
                };
                vec![put(*object), Operation::Write(args)]
            }
            Self::Commit { object } => {
                let args = CommitArgs {
                    offset: 0,
                    count: 0,
                };
                vec![put(*object), Operation::Commit(args)]
            }
            Self::Truncate { object, size } => {
                let args = SetattrArgs {
                    stateid: state(*object),
                    obj_attributes: Attributes {
                        size: Some(*size),
                        ..none()
                    },
                };
                vec![put(*object), Operation::SetAttr(args)]
            }
            Self::Allocate {
                object,
                offset,
                length,
            } => {
                let args = range(*object, *offset, *length);
                vec![put(*object), Operation::Allocate(args)]
            }
            Self::Deallocate {
                object,
                offset,
                length,
            } => {
                let args = range(*object, *offset, *length);
                vec![put(*object), Operation::Deallocate(args)]
            }
            Self::Seek {
                object,
                offset,
                is_data,
            } => {
                let args = SeekArgs {
                    stateid: state(*object),
                    offset: *offset,
                    what: if *is_data {
                        seek_what::DATA
                    } else {
                        seek_what::HOLE
                    },
                };
                vec![put(*object), Operation::Seek(args)]
            }
            Self::Clone {
                from,
                begin,
                object,
                offset,
                length,
                is_copy,
            } => {
                let args = CloneArgs {
                    src_stateid: state(*from),
                    dst_stateid: state(*object),
                    src_offset: *begin,
                    dst_offset: *offset,
                    count: *length,
                };
                let begin = [put(*from), Operation::SaveFh(()), put(*object)];
                let copy = CopyArgs {
                    src_stateid: args.src_stateid,
                    dst_stateid: args.dst_stateid,
                    src_offset: args.src_offset,
                    dst_offset: args.dst_offset,
                    count: args.count,
                    consecutive: true,
                    synchronous: true,
                    source_server: List::new(&[]),
                };
                match is_copy {
                    true => send_all(&begin, &[Operation::Copy(copy)]),
                    false => send_all(&begin, &[Operation::Clone(args)]),
                }
            }
            Self::SetXattr {
                object,
                name,
                value,
            } => {
                let args = SetXattrArgs {
                    option: SetXattrOption::EITHER,
                    key: xattr_name(name),
                    value: Opaque(value),
                };
                vec![put(*object), Operation::SetXattr(args)]
            }
            Self::GetXattr { object, name } => {
                vec![put(*object), Operation::GetXattr(xattr_name(name))]
            }
            Self::RemoveXattr { object, name } => {
                vec![put(*object), Operation::RemoveXattr(xattr_name(name))]
            }
            Self::Open { object, modes } => {
                let open = open(*modes, OpenHow::NoCreate, Claim::FileHandle);
                vec![put(*object), open]
            }
            Self::Downgrade { object, modes } => {
                let stateid = model.opens.get(&(client, *object)).map(|it| it.stateid);
                let args = DowngradeArgs {
                    open_stateid: stateid.unwrap_or(StateId::ANONYMOUS),
                    seqid: 0,
                    share_access: modes.access,
                    share_deny: modes.deny,
                };
                vec![put(*object), Operation::OpenDowngrade(args)]
            }
            Self::Lock {
                wanted,
                tries,
                is_reclaim,
            } => {
                locker = sharing::name_of((client, wanted.owner));
                let open = model.opens.get(&(client, wanted.object));
                let lock = sharing::lock(open, *wanted, (*tries > 0, *is_reclaim), &locker);
                vec![put(wanted.object), lock]
            }
            Self::TestLock { wanted } => {
                locker = sharing::name_of((client, wanted.owner));
                vec![put(wanted.object), sharing::test(*wanted, &locker)]
            }
            Self::Unlock {
                object,
                owner,
                parts,
            } => {
                let open = model.opens.get(&(client, *object));
                vec![put(*object), sharing::unlock(open, *owner, *parts)]
            }
            Self::Close { object } => {
                let stateid = model.opens.get(&(client, *object)).map(|it| it.stateid);
                let args = CloseArgs {
                    seqid: 0,
                    open_stateid: stateid.unwrap_or(StateId::ANONYMOUS),
                };
                vec![put(*object), Operation::Close(args)]
            }
            Self::Reclaim { object } => {
                let modes = model.modes_of(client, *object);
                let open = open(modes, OpenHow::NoCreate, Claim::Previous(0));
                vec![put(*object), open]
            }
            Self::FalseReclaim { object } => {
                let open = open(Modes::BOTH, OpenHow::NoCreate, Claim::Previous(0));
                vec![put(*object), open]
            }
            Self::ReclaimComplete => vec![Operation::ReclaimComplete(false)],
            Self::Renew => vec![],
        };
        send(&operations)
    }
}

fn send_all<'o>(first: &[Operation<'o>], rest: &[Operation<'o>]) -> Vec<Operation<'o>> {
    first.iter().chain(rest).copied().collect()
}

/// The node that an action creates.
#[must_use]
pub(super) fn created(action: &Action) -> Node {
    match action {
        Action::MakeDirectory { .. } => Node::Directory(std::collections::BTreeMap::new()),
        Action::MakeLink { target, .. } => Node::Link(target.clone()),
        _ => Node::File(Box::default()),
    }
}
