//! Comparisons of the whole volume with the model, while no client does anything: which operations in
//! doubt were executed, then every name and attribute, and sometimes every byte.

use std::collections::BTreeMap;

use files_spec::attributes::{Attributes, number};
use files_spec::operations::{Operation, OperationResult, Outcome, ReadArgs};
use files_spec::readdir::ReaddirArgs;
use files_spec::types::{FileType, StateId};
use files_spec::xdr::{Opaque, Payload};
use files_spec::{Bitmap, Name, Status};
use reactors::Nanos;

use super::action::{Action, Place, created};
use super::model::{Model, ObjectId, Pending, ROOT};
use super::server::SHARE;
use super::world::FileWorld;

/// Bytes of one READ.
const READ_BYTES: u32 = 256 << 10;
/// Longest time until the volume shows what is free.
const LEVELS_AFTER: Nanos = Nanos::from_secs(4);
/// Longest time until the server notices that a client is gone.
const NOTICED_AFTER: Nanos = Nanos::from_secs(370);

/// An entry of a directory, as the server shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    fileid: u64,
    file_type: FileType,
    size: u64,
    links: u32,
    handle: Vec<u8>,
}

impl Seen {
    fn of(attributes: &Attributes<'_>) -> Option<Self> {
        Some(Self {
            fileid: attributes.fileid?,
            file_type: attributes.file_type?,
            size: attributes.size?,
            links: attributes.numlinks?,
            handle: attributes.filehandle?.0.to_vec(),
        })
    }
}

/// The name space, by the number of each directory.
type Tree = BTreeMap<u64, BTreeMap<String, Seen>>;

fn shown() -> Bitmap {
    Bitmap::of(&[
        number::TYPE,
        number::SIZE,
        number::FILEHANDLE,
        number::FILEID,
        number::NUMLINKS,
    ])
}

impl FileWorld {
    /// Handle and number of the root of the share.
    pub(super) fn root(&mut self) -> Result<(Vec<u8>, u64), String> {
        let share = Name::new(SHARE.as_bytes()).map_err(|it| format!("{it:?}"))?;
        let operations = [
            Operation::PutRootFh(()),
            Operation::Lookup(share),
            Operation::GetAttr(shown()),
        ];
        let answer = self.ask(&operations)?;
        match answer.results()?.1.last() {
            Some(OperationResult::GetAttr(Outcome::Ok(attributes))) => {
                let seen = Seen::of(attributes).ok_or("the root lacks attributes")?;
                Ok((seen.handle, seen.fileid))
            }
            result => Err(format!("the share is not found: {result:?}")),
        }
    }

    /// Compares the name space with the model, and with `everything` the content of all files.
    pub(super) fn audit(&mut self, everything: bool) -> Result<(), String> {
        self.must_audit = true;
        self.end_failure()?;
        self.quiesce_renewed()?;
        if self.model.objects.is_empty() {
            self.begin_model()?;
        }
        self.model.apply_doubted_contents();
        let tree = self.walk()?;
        let in_doubt = std::mem::take(&mut self.model.in_doubt);
        for pending in &in_doubt {
            resolve(&mut self.model, &tree, pending)?;
        }
        for pending in &in_doubt {
            self.resolve_xattr(pending)?;
        }
        compare(&mut self.model, &tree)?;
        self.check_quotas()?;
        self.note(format_args!(
            "{} directories are as expected, {} operations were in doubt",
            tree.len(),
            in_doubt.len()
        ));
        if everything {
            self.compare_contents()?;
            self.use_other_share()?;
        }
        self.must_audit = false;
        Ok(())
    }

    /// Reads all directories.
    fn walk(&mut self) -> Result<Tree, String> {
        let mut tree = Tree::new();
        let root = &self.model.objects[ROOT];
        let mut left = vec![(root.fileid, root.handle.clone())];
        while let Some((fileid, handle)) = left.pop() {
            let entries = self.list(&handle)?;
            for seen in entries.values() {
                if seen.file_type == FileType::DIRECTORY {
                    left.push((seen.fileid, seen.handle.clone()));
                }
            }
            tree.insert(fileid, entries);
        }
        Ok(tree)
    }

    fn list(&mut self, directory: &[u8]) -> Result<BTreeMap<String, Seen>, String> {
        let mut entries = BTreeMap::new();
        let mut cookie = 0;
        loop {
            let args = ReaddirArgs {
                cookie,
                cookieverf: [0; 8],
                dircount: 4096,
                maxcount: 4096,
                attr_request: shown(),
            };
            let operations = [
                Operation::PutFh(Opaque(directory)),
                Operation::ReadDir(args),
            ];
            let answer = self.ask(&operations)?;
            let results = answer.results()?.1;
            let Some(OperationResult::ReadDir(Outcome::Ok(ok))) = results.last() else {
                return Err(format!("a directory cannot be read: {results:?}"));
            };
            for entry in ok.entries.iter() {
                cookie = entry.cookie;
                let name = entry.name.as_str().to_owned();
                let seen = Seen::of(&entry.attrs);
                let seen = seen.ok_or_else(|| format!("{name} lacks attributes"))?;
                if entries.insert(name.clone(), seen).is_some() {
                    return Err(format!("{name} is listed twice"));
                }
            }
            if ok.eof {
                return Ok(entries);
            }
        }
    }

    /// Finds out whether a change of an extended attribute was executed.
    fn resolve_xattr(&mut self, pending: &Pending) -> Result<(), String> {
        let (object, name, value) = match &pending.action {
            Action::SetXattr {
                object,
                name,
                value,
            } => (*object, name, Some(value)),
            Action::RemoveXattr { object, name } => (*object, name, None),
            _ => return Ok(()),
        };
        let get = Action::GetXattr {
            object,
            name: name.clone(),
        };
        let operations_of = |model: &Model| model.objects[object].handle.clone();
        let handle = operations_of(&self.model);
        let answer = {
            let key = files_spec::name::XattrName::new(name.as_bytes());
            let key = key.map_err(|it| format!("{it:?}"))?;
            self.ask(&[Operation::PutFh(Opaque(&handle)), Operation::GetXattr(key)])?
        };
        let (status, results) = answer.results()?;
        let found = match results.last() {
            Some(OperationResult::GetXattr(Outcome::Ok(ok))) => Some(ok.value.0.to_vec()),
            _ if status == Status::NOXATTR => None,
            _ if !self.model.is_certain(object) => return Ok(()),
            result => return Err(format!("{get:?}: {result:?}")),
        };
        let before = self.model.objects[object].xattrs.get(name);
        if found.as_ref() != before && found.as_ref() != value {
            return Err(format!(
                "{get:?}: {found:?}, was {before:?}, became {value:?}"
            ));
        }
        let xattrs = &mut self.model.objects[object].xattrs;
        match found {
            Some(value) => xattrs.insert(name.clone(), value),
            None => xattrs.remove(name),
        };
        Ok(())
    }

    /// Reads every file that exists.
    fn compare_contents(&mut self) -> Result<(), String> {
        for object in self.model.alive(|it| it.file().is_some()) {
            if self.model.is_certain(object) {
                self.compare_content(object)?;
            }
        }
        Ok(())
    }

    fn compare_content(&mut self, object: ObjectId) -> Result<(), String> {
        let told = |error: String| format!("object {object}: {error}");
        let handle = self.model.objects[object].handle.clone();
        let put = Operation::PutFh(Opaque(&handle));
        let answer = self.ask(&[put, Operation::GetAttr(shown())])?;
        let results = answer.results()?.1;
        let Some(OperationResult::GetAttr(Outcome::Ok(attributes))) = results.last() else {
            return Err(told(format!("no attributes: {results:?}")));
        };
        let size = attributes.size.unwrap_or_default();
        self.model.narrow_size(object, size).map_err(told)?;
        // Of a sparse file, only the ends.
        let mut offset = 0;
        while offset < size {
            let args = ReadArgs {
                stateid: StateId::ANONYMOUS,
                offset,
                count: READ_BYTES,
            };
            let answer = self.ask(&[put, Operation::Read(args)])?;
            let (status, results) = answer.results()?;
            if status == Status::LOCKED && self.model.denies_read(object) {
                return Ok(());
            }
            let Some(OperationResult::Read(Outcome::Ok(ok))) = results.last() else {
                return Err(told(format!("it cannot be read at {offset}: {results:?}")));
            };
            let Payload::Inline(data) = ok.data else {
                return Err(told("no data".to_owned()));
            };
            let Some(content) = self.model.objects[object].file() else {
                return Ok(());
            };
            let range = (offset, u64::from(READ_BYTES));
            let checked = content.now.check_read(range, data, ok.eof);
            checked.map_err(|error| told(error.to_string()))?;
            self.model.bytes_judged += data.len() as u64;
            self.model.narrow(object, offset, data);
            offset += data.len() as u64;
            let far = size.saturating_sub(u64::from(READ_BYTES));
            if far > offset + (4 << 20) {
                offset = far;
            }
        }
        Ok(())
    }

    /// Compares everything, also after a restart, then removes everything and looks for what is left.
    pub(super) fn finish(&mut self) -> Result<(), String> {
        self.note(format_args!("the end"));
        self.audit(true)?;
        self.check_connections()?;
        let power_fails = self.random.coin();
        self.kill(power_fails);
        self.audit(true)?;
        if self.server.is_read_only() {
            self.change_share(false)?;
            self.quiesce()?;
        }
        self.close_all()?;
        self.remove_all()?;
        self.run_for(LEVELS_AFTER)?;
        let (all, free) = self.server.usage();
        if all != free {
            return Err(format!("{} bytes of an empty volume are used", all - free));
        }
        self.kill(true);
        self.server.check_volume()?;
        match self.server.leases() {
            0 => Ok(()),
            count => Err(format!(
                "{count} slices of memory are in use without a server"
            )),
        }
    }

    /// Waits until the server must have noticed which clients are gone, and counts connections.
    fn check_connections(&mut self) -> Result<(), String> {
        if self.connections_of_others() == 0 {
            return Ok(());
        }
        self.pass_time(NOTICED_AFTER)?;
        match self.connections_of_others() {
            0 => Ok(()),
            count => Err(format!(
                "the server has {count} connections over RDMA whose clients are gone"
            )),
        }
    }

    /// Connections over RDMA that the server has and no client.
    fn connections_of_others(&mut self) -> usize {
        let sides = self.clients.iter_mut();
        let own: usize = sides.map(|it| it.session.connections_over_rdma()).sum();
        self.server.connections_over_rdma().saturating_sub(own)
    }

    /// Ends all clients, with what they have open.
    fn close_all(&mut self) -> Result<(), String> {
        while let Some((client, object)) = self.model.opens.keys().next().copied() {
            self.close(client, object)?;
        }
        Ok(())
    }

    /// Removes everything from the share.
    fn remove_all(&mut self) -> Result<(), String> {
        while let Some((directory, name)) = last_entry(&self.model) {
            let handle = self.model.objects[directory].handle.clone();
            let operations = [
                Operation::PutFh(Opaque(&handle)),
                Operation::Remove(Name::new(name.as_bytes()).map_err(|it| format!("{it:?}"))?),
            ];
            let answer = self.ask(&operations)?;
            let (status, results) = answer.results()?;
            if status != Status::OK {
                return Err(format!("{name} cannot be removed: {results:?}"));
            }
            self.model.set_name(directory, &name, None);
        }
        Ok(())
    }
}

/// An entry that is no directory with entries.
fn last_entry(model: &Model) -> Option<Place> {
    let mut directory = ROOT;
    loop {
        let mut entries = model.objects[directory].entries();
        let full = entries.find(|(_, it)| model.objects[*it].entries().next().is_some());
        match full {
            Some((_, below)) => directory = below,
            None => {
                let entry = model.objects[directory].entries().next();
                return entry.map(|(name, _)| (directory, name.clone()));
            }
        }
    }
}

/// Decides whether an operation in doubt was executed, by the names that only it could change.
fn resolve(model: &mut Model, tree: &Tree, pending: &Pending) -> Result<(), String> {
    if pending.expected != [Status::OK] {
        return Ok(());
    }
    let seen = |model: &Model, at: &Place| {
        let entries = tree.get(&model.objects[at.0].fileid);
        entries.and_then(|it| it.get(&at.1)).cloned()
    };
    match &pending.action {
        Action::CreateFile { at, .. }
        | Action::MakeDirectory { at }
        | Action::MakeLink { at, .. } => {
            if let Some(seen) = seen(model, at) {
                let node = created(&pending.action);
                model.add((at.0, &at.1), node, seen.handle, seen.fileid)?;
            }
        }
        Action::Remove { at } => {
            if seen(model, at).is_none()
                && let Some(object) = model.lookup(at.0, &at.1)
            {
                model.set_name(at.0, &at.1, None);
                model.add_links(object, -1);
            }
        }
        Action::Rename { from, to } if seen(model, from).is_none() => model.rename(from, to),
        Action::Link { object, at } if seen(model, at).is_some() => {
            model.set_name(at.0, &at.1, Some(*object));
            model.add_links(*object, 1);
        }
        _ => {}
    }
    Ok(())
}

/// Compares all directories with the model.
fn compare(model: &mut Model, tree: &Tree) -> Result<(), String> {
    let mut left = vec![ROOT];
    let mut sizes = Vec::new();
    while let Some(directory) = left.pop() {
        let seen = tree.get(&model.objects[directory].fileid);
        let seen = seen.ok_or_else(|| format!("directory {directory} is not there"))?;
        let expected: BTreeMap<&String, ObjectId> = model.objects[directory].entries().collect();
        let names = || (seen.keys().collect::<Vec<_>>(), &expected);
        if !seen.keys().eq(expected.keys().copied()) {
            return Err(format!(
                "directory {directory}: names and expected ones: {:?}",
                names()
            ));
        }
        for (name, object) in expected {
            let (found, it) = (&seen[name], &model.objects[object]);
            let links = match it.is_directory() {
                true => {
                    left.push(object);
                    let entries = it.entries();
                    let below = entries.filter(|(_, it)| model.objects[*it].is_directory());
                    2 + below.count() as u32
                }
                false => it.links,
            };
            let is_same = found.fileid == it.fileid && found.handle == it.handle;
            if !is_same || found.links != links {
                return Err(format!(
                    "{name} in directory {directory} is {found:?}, not object {object} with \
                     number {} and {links} links",
                    it.fileid
                ));
            }
            if it.file().is_some() {
                sizes.push((object, found.size));
            }
        }
    }
    for (object, size) in sizes {
        let narrowed = model.narrow_size(object, size);
        narrowed.map_err(|error| format!("object {object}: {error}"))?;
    }
    Ok(())
}
