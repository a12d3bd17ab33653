//! The judge: the name space, the content of every file, opens, and which states are possible while
//! operations are executed or after the server was killed.
//!
//! Operations that change the same name or the links of the same object are not executed at the
//! same time: each has *claims* until it is answered, or, if it never is, until the name space is
//! compared as a whole. Everything else overlaps.

use std::collections::{BTreeMap, BTreeSet};
use std::iter;

use files_spec::types::StateId;
use reactors::Nanos;

use super::action::Action;
use super::client::OperationId;
use super::content::{Content, Effect};
use super::holdings::{Held, Holdings, KnownLocks, Modes, PARTS};
use super::leases::{Dropped, Lease, Reclaiming};
use super::quotas::Used;
use super::sharing::Use;

/// The number of an object.
pub(super) type ObjectId = usize;
/// A name in a directory, or an extended attribute of an object.
pub(super) type NameKey = (ObjectId, String);

/// The root of the share.
pub(super) const ROOT: ObjectId = 0;

/// What an object is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Node {
    /// A directory with its entries.
    Directory(BTreeMap<String, ObjectId>),
    /// A regular file.
    File(Box<FileContent>),
    /// A symbolic link with its target.
    Link(String),
}

/// The content of a file: now, and after a loss of power now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FileContent {
    pub(super) now: Content,
    pub(super) durable: Content,
    /// A change has failed or is unstable, so that what is read now may not be durable.
    pub(super) is_unsettled: bool,
}

/// An object.
#[derive(Clone, Debug)]
pub(super) struct Object {
    pub(super) node: Node,
    pub(super) handle: Vec<u8>,
    pub(super) fileid: u64,
    /// Number of its names; of a directory, 1.
    pub(super) links: u32,
    /// Extended attributes.
    pub(super) xattrs: BTreeMap<String, Vec<u8>>,
    /// Clients that may have it open.
    pub(super) may_be_open: BTreeSet<usize>,
    /// The stamp of the last change of its links.
    pub(super) links_changed: u64,
    /// The change attribute that was last seen, with the stamp.
    pub(super) change_seen: Option<(u64, u64)>,
    /// Begin and end of the last change.
    pub(super) changed: (u64, u64),
}

/// The locks of an owner, as its client knows them.
#[derive(Clone, Debug)]
pub(super) struct LockState {
    /// Its identifier; none before the locks are reclaimed.
    pub(super) stateid: Option<StateId>,
    pub(super) held: KnownLocks,
}

impl Default for LockState {
    fn default() -> Self {
        Self {
            stateid: None,
            held: [Held::Nothing; PARTS],
        }
    }
}

impl LockState {
    /// Whether the owner has a lock.
    #[must_use]
    pub(super) fn has_any(&self) -> bool {
        self.held.iter().any(|it| *it != Held::Nothing)
    }
}

/// An open file of a client.
#[derive(Clone, Debug)]
pub(super) struct Open {
    pub(super) stateid: StateId,
    pub(super) modes: Modes,
    /// What the OPENs asked for whose union it is.
    pub(super) asked: Vec<Modes>,
    /// Its locks, by the number of their owner.
    pub(super) locks: BTreeMap<u8, LockState>,
    /// It was lost with the server and is to be reclaimed.
    pub(super) is_lost: bool,
    pub(super) is_closing: bool,
    /// Its share modes are being changed, and its identifier with them.
    pub(super) is_changing: bool,
    /// The stamp of the latest operation when it excluded more than before.
    pub(super) grown: u64,
}

impl Open {
    /// The identifier of an access to the file: that of the open state, or that of locks.
    #[must_use]
    pub(super) fn state_of_access(&self, object: ObjectId) -> StateId {
        let mut of_locks = self.locks.values().filter_map(|it| it.stateid);
        match of_locks.next() {
            // RFC 8881 §8.2.2: with a number of 0, it is the present one, which a LOCK may change now.
            Some(locks) if object.is_multiple_of(2) => StateId { seqid: 0, ..locks },
            _ => self.stateid,
        }
    }
}

/// What only one operation at a time may change.
#[derive(Clone, Debug, Default)]
pub(super) struct Claims {
    pub(super) names: Vec<NameKey>,
    /// Objects whose links change.
    pub(super) objects: Vec<ObjectId>,
    /// Directories that must not be removed.
    pub(super) directories: Vec<ObjectId>,
    /// Whether directories are moved.
    pub(super) moves_directories: bool,
}

/// An operation that is not answered.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    pub(super) client: usize,
    pub(super) action: Action,
    pub(super) started: u64,
    pub(super) claims: Claims,
    /// The file that it changes or reads, and its effect.
    pub(super) file: Option<ObjectId>,
    pub(super) effect: Option<Effect>,
    /// Effects of operations that are executed at the same time.
    pub(super) concurrent: Vec<Effect>,
    /// The statuses that it may have.
    pub(super) expected: Vec<files_spec::Status>,
    /// The content of the file when it began.
    pub(super) view: Option<Content>,
    /// When it was sent last.
    pub(super) sent_at: Nanos,
    /// How it accesses data.
    pub(super) uses: Vec<Use>,
    /// What others may have held of its files since it began.
    pub(super) seen: BTreeMap<ObjectId, Holdings>,
    /// Whether it was to be sent again: a part of its data may be where the file has its own.
    pub(super) was_delayed: bool,
    /// Whether the volume was lost since it began: it was executed before or after that, or not at all.
    pub(super) spans_loss: bool,
    /// The accesses to the share that there may have been since it began.
    pub(super) accesses: Accesses,
}

/// What clients may do with the share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Access {
    /// Everything.
    #[default]
    Writing,
    /// Change nothing.
    ReadOnly,
    /// It is being changed from one to the other.
    Changing,
}

impl Access {
    #[must_use]
    pub(super) fn of(is_read_only: bool) -> Self {
        match is_read_only {
            true => Self::ReadOnly,
            false => Self::Writing,
        }
    }
}

/// Some accesses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Accesses {
    pub(super) writing: bool,
    pub(super) read_only: bool,
}

impl Accesses {
    fn of(access: Access) -> Self {
        Self {
            writing: access != Access::ReadOnly,
            read_only: access != Access::Writing,
        }
    }
}

/// The model.
#[derive(Debug, Default)]
pub(super) struct Model {
    pub(super) objects: Vec<Object>,
    pub(super) pending: BTreeMap<OperationId, Pending>,
    /// Operations that are never answered; they were executed or not.
    pub(super) in_doubt: Vec<Pending>,
    pub(super) opens: BTreeMap<(usize, ObjectId), Open>,
    /// What may be held of each file.
    pub(super) holdings: BTreeMap<ObjectId, Holdings>,
    /// The leases of clients, and those that have lost their state.
    pub(super) leases: BTreeMap<usize, Lease>,
    pub(super) dropped: BTreeMap<usize, Dropped>,
    pub(super) reclaiming: Reclaiming,
    /// When each name was last changed.
    pub(super) names_changed: BTreeMap<NameKey, u64>,
    /// Counts everything that is sent or answered.
    pub(super) stamp: u64,
    /// When the operation began that the model follows now; 0 if that is not known.
    pub(super) following: u64,
    next_operation: OperationId,
    next_write: u32,
    /// The verifiers of writes of former starts, and of the present one.
    pub(super) former_verifiers: BTreeSet<[u8; 8]>,
    /// What its share may have of its quotas.
    pub(super) used: Used,
    pub(super) verifier: Option<[u8; 8]>,
    /// Bytes that were compared.
    pub(super) bytes_judged: u64,
    /// Locks that were granted, and opens, locks and accesses that were refused.
    pub(super) locks_granted: u64,
    pub(super) refusals: u64,
    /// Clients that have lost their state, and what was reclaimed or could not be.
    pub(super) drops: u64,
    pub(super) reclaims: u64,
    pub(super) reclaims_refused: u64,
    access: Access,
    /// Requests to the device have failed, or still do.
    pub(super) device_fails: bool,
    /// When the first operation ended because metadata could not be stored. None changes anything
    /// after that, until the server starts again.
    pub(super) metadata_failed: Option<u64>,
}

impl FileContent {
    /// An operation may have changed it, before or after others that were executed at the same time.
    fn may_change(&mut self, effect: &Effect, concurrent: &[Effect]) {
        for effect in iter::once(effect).chain(concurrent) {
            self.now.may_change(effect);
            self.durable.may_change(effect);
        }
    }
}

impl Object {
    fn new(node: Node, handle: Vec<u8>, fileid: u64, stamp: u64) -> Self {
        Self {
            node,
            handle,
            fileid,
            links: 1,
            xattrs: BTreeMap::new(),
            may_be_open: BTreeSet::new(),
            links_changed: stamp,
            change_seen: None,
            changed: (stamp, stamp),
        }
    }

    /// Its entries; none if it is no directory.
    pub(super) fn entries(&self) -> impl Iterator<Item = (&String, ObjectId)> {
        let entries = match &self.node {
            Node::Directory(entries) => Some(entries),
            Node::File(_) | Node::Link(_) => None,
        };
        entries
            .into_iter()
            .flatten()
            .map(|(name, object)| (name, *object))
    }

    /// Whether it is a directory.
    #[must_use]
    pub(super) fn is_directory(&self) -> bool {
        matches!(self.node, Node::Directory(_))
    }

    /// Its content, if it is a file.
    #[must_use]
    pub(super) fn file(&self) -> Option<&FileContent> {
        match &self.node {
            Node::File(content) => Some(content),
            Node::Directory(_) | Node::Link(_) => None,
        }
    }

    fn file_mut(&mut self) -> Option<&mut FileContent> {
        match &mut self.node {
            Node::File(content) => Some(content),
            Node::Directory(_) | Node::Link(_) => None,
        }
    }
}

impl Model {
    /// A model of an empty share.
    #[must_use]
    pub(super) fn new(root_handle: Vec<u8>, root_fileid: u64) -> Self {
        let root = Object::new(
            Node::Directory(BTreeMap::new()),
            root_handle,
            root_fileid,
            0,
        );
        Self {
            objects: vec![root],
            ..Self::default()
        }
    }

    /// The model of an empty share after a restart that nothing has survived.
    #[must_use]
    pub(super) fn restarted(self, root_handle: Vec<u8>, root_fileid: u64) -> Self {
        Self {
            objects: Self::new(root_handle, root_fileid).objects,
            ..self
        }
    }

    /// The server was killed, and nothing of its volume remains.
    pub(super) fn everything_lost(&mut self) {
        self.former_verifiers.extend(self.verifier.take());
        (self.device_fails, self.metadata_failed) = (false, None);
        self.objects.clear();
        self.pending.clear();
        self.in_doubt.clear();
        self.opens.clear();
        self.holdings.clear();
        self.dropped.clear();
        self.names_changed.clear();
    }

    /// What clients may do with the share from now on.
    pub(super) fn set_access(&mut self, access: Access) {
        if self.access == access {
            return;
        }
        self.access = access;
        let new = Accesses::of(access);
        for it in self.pending.values_mut() {
            it.accesses.writing |= new.writing;
            it.accesses.read_only |= new.read_only;
        }
    }

    /// The number of the next operation.
    pub(super) fn next_operation(&mut self) -> OperationId {
        self.next_operation += 1;
        self.next_operation
    }

    /// The number of the next write.
    pub(super) fn next_write(&mut self) -> u32 {
        self.next_write += 1;
        self.next_write
    }

    /// The object of a name.
    #[must_use]
    pub(super) fn lookup(&self, directory: ObjectId, name: &str) -> Option<ObjectId> {
        match &self.objects[directory].node {
            Node::Directory(entries) => entries.get(name).copied(),
            Node::File(_) | Node::Link(_) => None,
        }
    }

    /// Whether `object` is `ancestor` or below it.
    #[must_use]
    pub(super) fn is_below(&self, mut object: ObjectId, ancestor: ObjectId) -> bool {
        while object != ancestor {
            let parent = self
                .objects
                .iter()
                .position(|it| it.links > 0 && it.entries().any(|(_, child)| child == object));
            match parent {
                Some(parent) => object = parent,
                None => return false,
            }
        }
        true
    }

    /// Whether an object has names or may be open.
    #[must_use]
    pub(super) fn is_alive(&self, object: ObjectId) -> bool {
        let it = &self.objects[object];
        it.links > 0 || !it.may_be_open.is_empty()
    }

    /// Whether an object has names, or is open by a client that has not lost its state.
    #[must_use]
    fn is_alive_surely(&self, object: ObjectId) -> bool {
        let it = &self.objects[object];
        let mut clients = it.may_be_open.iter();
        it.links > 0 || clients.any(|it| !self.dropped.contains_key(it))
    }

    /// Whether an object cannot be removed now: it has names that nothing changes, or is open.
    #[must_use]
    pub(super) fn is_certain(&self, object: ObjectId) -> bool {
        let is_open = self.opens.iter().any(|((client, it), open)| {
            let is_kept = !open.is_closing && !open.is_lost && !self.dropped.contains_key(client);
            *it == object && is_kept
        });
        let is_named = self.objects[object].links > 0 && !self.has_claim(object);
        is_open || is_named
    }

    fn claims(&self) -> impl Iterator<Item = &Claims> {
        let pending = self.pending.values().chain(&self.in_doubt);
        pending.map(|it| &it.claims)
    }

    /// Whether the links of an object are being changed.
    #[must_use]
    pub(super) fn has_claim(&self, object: ObjectId) -> bool {
        self.claims().any(|it| it.objects.contains(&object))
    }

    /// Whether a name is being changed.
    #[must_use]
    pub(super) fn is_name_claimed(&self, key: &NameKey) -> bool {
        self.claims().any(|it| it.names.contains(key))
    }

    /// Whether nothing else has these claims.
    #[must_use]
    pub(super) fn may_claim(&self, wanted: &Claims) -> bool {
        self.claims().all(|held| {
            let names = held.names.iter().any(|it| wanted.names.contains(it));
            let objects = held
                .objects
                .iter()
                .any(|it| wanted.objects.contains(it) || wanted.directories.contains(it));
            let directories = held
                .directories
                .iter()
                .any(|it| wanted.objects.contains(it));
            let moves = held.moves_directories && wanted.moves_directories;
            !(names || objects || directories || moves)
        })
    }

    /// Whether something changes the content of a file now.
    #[must_use]
    pub(super) fn is_changing(&self, file: ObjectId) -> bool {
        let mut pending = self.pending.values();
        pending.any(|it| it.file == Some(file) && it.effect.is_some())
    }

    /// Whether a clone of the file is being made, so that nothing may change it.
    #[must_use]
    pub(super) fn is_being_cloned(&self, file: ObjectId) -> bool {
        let mut pending = self.pending.values();
        pending.any(|it| matches!(it.action, Action::Clone { from, .. } if from == file))
    }

    /// Whether an unanswered operation of a client names the file, and so maybe its present state
    /// identifier: an OPEN or a CLOSE must not end that.
    #[must_use]
    pub(super) fn is_used_by(&self, client: usize, file: ObjectId) -> bool {
        let mut pending = self.pending.values().filter(|it| it.client == client);
        pending.any(|it| match it.action {
            Action::Clone { from, object, .. } => from == file || object == file,
            _ => it.action.object() == Some(file),
        })
    }

    /// An operation begins.
    pub(super) fn begin(&mut self, id: OperationId, client: usize, action: Action, claims: Claims) {
        self.stamp += 1;
        self.used.begin(&action);
        let (file, effect) = action.effect(self);
        let mut concurrent = Vec::new();
        if let Some(file) = file {
            for other in self.pending.values_mut().filter(|it| it.file == Some(file)) {
                concurrent.extend(other.effect.clone());
                other.concurrent.extend(effect.clone());
            }
        }
        let content = file.and_then(|it| self.objects[it].file());
        let view = content.map(|it| it.now.clone());
        let expected = action.expected(self);
        let pending = Pending {
            client,
            action,
            started: self.stamp,
            claims,
            file,
            effect,
            concurrent,
            expected,
            view,
            sent_at: Nanos::ZERO,
            uses: Vec::new(),
            seen: BTreeMap::new(),
            was_delayed: false,
            spans_loss: false,
            accesses: Accesses::of(self.access),
        };
        self.pending.insert(id, pending);
    }

    /// An operation has changed its file. `is_durable`: the change survives a loss of power.
    pub(super) fn content_changed(&mut self, pending: &Pending, is_durable: bool) {
        if pending.spans_loss {
            self.content_may_have_changed(pending);
            return;
        }
        let (Some(file), Some(effect)) = (pending.file, &pending.effect) else {
            return;
        };
        self.stamp += 1;
        self.objects[file].changed = (pending.started, self.stamp);
        let commits = self
            .pending
            .values_mut()
            .filter(|it| it.file == Some(file) && matches!(it.action, Action::Commit { .. }));
        for commit in commits.filter(|_| is_durable) {
            if let Some(view) = &mut commit.view {
                view.change(effect, &pending.concurrent);
            }
        }
        if let Some(content) = self.objects[file].file_mut() {
            content.now.change(effect, &pending.concurrent);
            match is_durable {
                true => content.durable.change(effect, &pending.concurrent),
                false => {
                    content.durable.may_change(effect);
                    content.is_unsettled = true;
                }
            }
        }
    }

    /// Everything that was written to the file before COMMIT began is durable.
    pub(super) fn committed(&mut self, pending: &Pending) {
        let Some(file) = pending.file.filter(|_| !pending.spans_loss) else {
            return;
        };
        let durable = self.possible(pending);
        if let Some(content) = self.objects[file].file_mut() {
            content.durable = durable;
            content.is_unsettled &= !pending.concurrent.is_empty();
        }
    }

    /// An operation on a file has failed, after any part of it.
    pub(super) fn content_may_have_changed(&mut self, pending: &Pending) {
        if let (Some(file), Some(effect)) = (pending.file, &pending.effect)
            && let Some(content) = self.objects[file].file_mut()
        {
            content.is_unsettled = true;
            content.may_change(effect, &pending.concurrent);
        }
    }

    /// What a file may contain for an operation.
    #[must_use]
    pub(super) fn possible(&self, pending: &Pending) -> Content {
        let mut possible = pending.view.clone().unwrap_or_default();
        // Twice, because the order of changes of the size is not known.
        for _ in 0..2 {
            pending
                .concurrent
                .iter()
                .for_each(|it| possible.may_change(it));
        }
        possible
    }

    /// The file has these bytes, which nothing has changed since they were read.
    pub(super) fn narrow(&mut self, file: ObjectId, offset: u64, data: &[u8]) {
        if let Some(content) = self.objects[file].file_mut() {
            if content.now == content.durable && !content.is_unsettled {
                content.durable.narrow(offset, data);
            }
            content.now.narrow(offset, data);
        }
    }

    /// The file has this size, which nothing has changed since it was read.
    ///
    /// # Errors
    /// It cannot have.
    pub(super) fn narrow_size(&mut self, file: ObjectId, size: u64) -> Result<(), String> {
        let Some(content) = self.objects[file].file_mut() else {
            return Ok(());
        };
        if content.now.sizes() == content.durable.sizes() && !content.is_unsettled {
            content
                .durable
                .set_size(size)
                .map_err(|it| it.to_string())?;
        }
        content.now.set_size(size).map_err(|it| it.to_string())
    }

    /// Adds an object with its first name.
    ///
    /// # Errors
    /// Its handle or number is that of another one.
    pub(super) fn add(
        &mut self,
        (directory, name): (ObjectId, &str),
        node: Node,
        handle: Vec<u8>,
        fileid: u64,
    ) -> Result<ObjectId, String> {
        let is_known = |(number, it): (usize, &Object)| {
            it.handle == handle || it.fileid == fileid && self.is_alive_surely(number)
        };
        if let Some(other) = self.objects.iter().enumerate().position(is_known) {
            return Err(format!(
                "{name}: its number or handle is that of object {other}"
            ));
        }
        let object = self.objects.len();
        self.objects
            .push(Object::new(node, handle, fileid, self.stamp));
        self.set_name(directory, name, Some(object));
        Ok(object)
    }

    /// Replaces what a name refers to.
    pub(super) fn set_name(&mut self, directory: ObjectId, name: &str, object: Option<ObjectId>) {
        self.stamp += 1;
        let stamp = self.stamp;
        self.objects[directory].changed = (self.following, stamp);
        self.names_changed
            .insert((directory, name.to_owned()), stamp);
        if let Node::Directory(entries) = &mut self.objects[directory].node {
            match object {
                Some(object) => entries.insert(name.to_owned(), object),
                None => entries.remove(name),
            };
        }
    }

    /// Changes the number of links of an object.
    pub(super) fn add_links(&mut self, object: ObjectId, change: i32) {
        let it = &mut self.objects[object];
        it.links = it.links.saturating_add_signed(change);
        it.links_changed = self.stamp;
    }

    /// The server has told its verifier of writes.
    ///
    /// # Errors
    /// It differs from that of this start, or is that of a former one or from before a loss of the
    /// volume, although the operation began later.
    pub(super) fn check_verifier(
        &mut self,
        verifier: [u8; 8],
        spans_loss: bool,
    ) -> Result<(), String> {
        if spans_loss {
            return Ok(());
        }
        if self.former_verifiers.contains(&verifier) {
            return Err("the write verifier is a former one".to_owned());
        }
        match *self.verifier.get_or_insert(verifier) == verifier {
            true => Ok(()),
            false => Err("the write verifier has changed without a restart".to_owned()),
        }
    }

    /// A client has forgotten these operations, which are executed or not.
    pub(super) fn doubt(&mut self, operations: &[OperationId]) {
        for id in operations {
            if let Some(pending) = self.pending.remove(id) {
                self.in_doubt.push(pending);
            }
        }
    }

    /// What operations in doubt have written may be in their files, and what was executed at the
    /// same time may have come after it.
    pub(super) fn apply_doubted_contents(&mut self) {
        // Twice, because the order of changes of the size is not known.
        for pending in self.in_doubt.iter().chain(&self.in_doubt) {
            if let (Some(file), Some(effect)) = (pending.file, &pending.effect)
                && let Some(content) = self.objects[file].file_mut()
            {
                content.may_change(effect, &pending.concurrent);
            }
        }
    }

    /// The server was killed; what is durable of its volume remains.
    pub(super) fn server_killed(&mut self) {
        self.stamp += 1;
        (self.device_fails, self.metadata_failed) = (false, None);
        self.opens.retain(|_, open| !open.is_closing);
        self.holdings_killed();
        let ids: Vec<OperationId> = self.pending.keys().copied().collect();
        self.doubt(&ids);
        self.apply_doubted_contents();
        for object in &mut self.objects {
            if let Some(content) = object.file_mut() {
                content.now = content.durable.clone();
                content.is_unsettled = false;
            }
            object.may_be_open.clear();
            // It goes back if changes were lost; the next one has a number of its own.
            object.change_seen = None;
        }
        for (client, object) in self.opens.keys() {
            self.objects[*object].may_be_open.insert(*client);
        }
        self.former_verifiers.extend(self.verifier.take());
    }

    /// The device of the volume was gone. What is durable of the volume remains, and everything that
    /// clients have open and locked.
    pub(super) fn volume_lost(&mut self) {
        self.stamp += 1;
        let mut pending = std::mem::take(&mut self.pending);
        // Twice, because the order of changes of the size is not known.
        for it in pending.values().chain(pending.values()) {
            self.content_may_have_changed(it);
        }
        for object in &mut self.objects {
            if let Some(content) = object.file_mut() {
                content.now = content.durable.clone();
            }
            // It goes back if changes were lost.
            object.change_seen = None;
        }
        let mut clones = Vec::new();
        for it in pending.values_mut() {
            it.spans_loss = true;
            let content = it.file.and_then(|file| self.objects[file].file());
            if let (Some(view), Some(content)) = (&mut it.view, content) {
                view.may_be(&content.durable);
            }
            // What is cloned may have been lost.
            if matches!(it.action, Action::Clone { .. }) {
                let (file, effect) = it.action.effect(self);
                clones.extend(effect.map(|effect| (file, effect)));
            }
        }
        for (file, effect) in clones {
            let of_file = pending.values_mut().filter(|it| it.file == file);
            of_file.for_each(|it| it.concurrent.push(effect.clone()));
            if let Some(content) = file.and_then(|it| self.objects[it].file_mut()) {
                content.now.may_change(&effect);
                content.durable.may_change(&effect);
            }
        }
        self.pending = pending;
        self.former_verifiers.extend(self.verifier.take());
    }

    /// Everything that was written is durable.
    pub(super) fn volume_kept(&mut self) {
        for object in &mut self.objects {
            if let Some(content) = object.file_mut() {
                content.durable = content.now.clone();
                content.is_unsettled = false;
            }
        }
    }

    /// A client has lost its opens.
    pub(super) fn drop_opens(&mut self, client: usize) {
        self.opens.retain(|(it, _), _| *it != client);
        for object in &mut self.objects {
            object.may_be_open.remove(&client);
        }
        self.change_all_holdings(|it| it.is_lost(client));
        self.dropped.remove(&client);
    }

    /// Objects that are not removed.
    pub(super) fn alive(&self, chosen: impl Fn(&Object) -> bool) -> Vec<ObjectId> {
        let all = 0..self.objects.len();
        all.filter(|it| self.is_alive(*it) && chosen(&self.objects[*it]))
            .collect()
    }
}
