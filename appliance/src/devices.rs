//! From the configuration's devices to block devices that can be opened.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use appliance_config::identity::NamespaceIdentity;
use appliance_config::{Backing, ByteSize, Config, Export, Name, Namespace, Pages};
use block::{
    Device, DirectIo, FileDevice, FileOptions, MemoryDevice, MemoryOptions, NullDevice, NullOptions,
};
use hugemem::{Arena, PagePolicy, Region, Store};
use nvme_target::DeviceIndex;

use crate::error::Failure;
use crate::identities::{Content, FoundFile, Identities};

/// The devices that could be had, each with its place in the target.
#[derive(Default)]
pub(crate) struct Devices {
    all: BTreeMap<Name, (DeviceIndex, Opened)>,
    identities: Identities,
}

/// A namespace of a drive that was taken.
pub(crate) struct DriveNamespace {
    /// The place of its device in the configuration.
    pub(crate) place: usize,
    pub(crate) device: Arc<dyn Device>,
    pub(crate) content: Content,
}

/// Opens devices of a configuration.
pub trait Opener: Send + Sync {
    /// Opens what `device` says; `None` for the namespace of a drive, which comes with its drive.
    ///
    /// # Errors
    /// It cannot be had.
    fn open(&self, device: &appliance_config::Device) -> Result<Option<Opened>, Failure>;

    /// The same where a file has to lie below `directory`, whatever symbolic links there are.
    ///
    /// # Errors
    /// It cannot be had, or lies elsewhere.
    fn open_below(
        &self,
        device: &appliance_config::Device,
        directory: &Path,
    ) -> Result<Option<Opened>, Failure> {
        let _ = (device, directory);
        Err("files cannot be confined to a directory here".into())
    }
}

/// The machine's memory and files.
pub(crate) struct SystemDevices {
    pages: Pages,
    /// Files move data through its leases.
    arena: Arc<Arena>,
}

/// What can grow of a device that is neither memory nor a file.
pub trait Growing: Send + Sync {
    /// Makes the device as large as `size` says, or as large as what it lies on; queues have yet to
    /// be told.
    ///
    /// # Errors
    /// It stays as it is.
    fn grow(&self, size: Option<ByteSize>) -> Result<(), Failure>;

    /// Makes durable what it has acknowledged.
    ///
    /// # Errors
    /// Some of it may be lost.
    fn sync(&self) -> Result<(), Failure> {
        Ok(())
    }
}

/// An open device.
pub struct Opened {
    pub(crate) device: Arc<dyn Device>,
    kind: Kind,
    content: Content,
    /// Device and inode of a file.
    file_place: Option<(u64, u64)>,
    /// The memory of a RAM device, which data is sent from.
    stores: Vec<Arc<Store>>,
}

/// What the device is, for what only some can do.
enum Kind {
    Memory(Arc<MemoryDevice>),
    File(Arc<FileDevice>),
    Null(Arc<NullDevice>),
    Drive,
    Other(Box<dyn Growing>),
}

#[derive(Debug, thiserror::Error)]
#[error("device {name}")]
pub(crate) struct DeviceError {
    name: String,
    #[source]
    cause: Failure,
}

impl DeviceError {
    pub(crate) fn new(device: &appliance_config::Device, cause: Failure) -> Self {
        Self {
            name: device.name.as_str().to_owned(),
            cause,
        }
    }
}

impl Devices {
    /// Opens the devices that `config` names, by `opener`. The namespaces of drives are `drives`;
    /// those that could not be had are left out. `identities` knows what was served before.
    ///
    /// # Errors
    /// The first other device that cannot be had, by name.
    pub(crate) fn open(
        config: &Config,
        opener: &dyn Opener,
        drives: Vec<DriveNamespace>,
        identities: Identities,
    ) -> Result<Self, Failure> {
        let drives = drives.into_iter().map(|it| (it.place, it));
        let mut drives: BTreeMap<usize, DriveNamespace> = drives.collect();
        let mut devices = Self {
            identities,
            ..Self::default()
        };
        let mut places = (0..).map(DeviceIndex);
        for (index, device) in config.devices.iter().enumerate() {
            let opened = match drives.remove(&index) {
                Some(drive) => Some(Opened::drive(drive)),
                None => {
                    let opened = opener.open(device);
                    opened.map_err(|cause| DeviceError::new(device, cause))?
                }
            };
            if let Some(opened) = opened
                && let Some(place) = places.next()
            {
                devices.insert(device.name.clone(), place, opened);
            }
        }
        Ok(devices)
    }

    /// Takes in a device that has a place in the target.
    pub(crate) fn insert(&mut self, name: Name, place: DeviceIndex, opened: Opened) {
        self.all.insert(name, (place, opened));
    }

    /// The identity that hosts know a namespace by. `None`: its device could not be had.
    pub(crate) fn identity(
        &self,
        config: &Config,
        export: &Export,
        namespace: &Namespace,
    ) -> Option<NamespaceIdentity> {
        let (_, opened) = self.all.get(&namespace.device)?;
        let content = &opened.content;
        Some(self.identities.serve(config, export, namespace, content))
    }

    /// Whether the open device of that name is in the file that is at `path` now.
    pub(crate) fn is_in_file(&self, name: &Name, path: &Path) -> bool {
        let opened = self.all.get(name).map(|(_, opened)| opened);
        let place = opened.and_then(|opened| opened.file_place);
        place.is_some() && FoundFile::at(path).ok().map(|found| found.place) == place
    }

    /// Forgets a device.
    pub(crate) fn remove(&mut self, name: &Name) -> Option<Opened> {
        self.all.remove(name).map(|(_, opened)| opened)
    }

    /// The devices, in the order of their places at start.
    pub(crate) fn in_order(&self) -> Vec<Arc<dyn Device>> {
        let mut all: Vec<_> = self.all.values().collect();
        all.sort_by_key(|(place, _)| *place);
        let devices = all.iter().map(|(_, opened)| &opened.device);
        devices.cloned().collect()
    }

    /// All devices with their names.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&Name, &Arc<dyn Device>)> {
        let all = self.all.iter();
        all.map(|(name, (_, opened))| (name, &opened.device))
    }

    /// The device of that name, unless it could not be had.
    pub(crate) fn get(&self, name: &Name) -> Option<(DeviceIndex, &Arc<dyn Device>)> {
        let (place, opened) = self.all.get(name)?;
        Some((*place, &opened.device))
    }

    /// The same to be changed.
    pub(crate) fn opened_mut(&mut self, name: &Name) -> Option<(DeviceIndex, &mut Opened)> {
        let (place, opened) = self.all.get_mut(name)?;
        Some((*place, opened))
    }

    /// All memory that data moves through: the arena's and that of RAM devices.
    pub(crate) fn regions<'a>(&'a self, arena: &'a Arena) -> Vec<&'a Region> {
        let all = self.all.values();
        let stores = all.flat_map(|(_, opened)| opened.regions());
        std::iter::once(arena.region()).chain(stores).collect()
    }

    /// Writes what is cached of files; says in the log which could not be.
    pub(crate) fn flush_files(&self) -> bool {
        let mut flushed = true;
        for (_, opened) in self.all.values() {
            flushed &= opened.flush();
        }
        flushed
    }
}

impl Opened {
    /// The namespace of a drive.
    fn drive(drive: DriveNamespace) -> Self {
        Self {
            device: drive.device,
            kind: Kind::Drive,
            content: drive.content,
            file_place: None,
            stores: Vec::new(),
        }
    }

    /// A device that is neither memory nor a file, and its content. Nobody else holds `device`
    /// itself.
    #[must_use]
    pub fn other(device: Arc<dyn Device>, growing: Box<dyn Growing>, content: Content) -> Self {
        Self {
            device,
            kind: Kind::Other(growing),
            content,
            file_place: None,
            stores: Vec::new(),
        }
    }

    /// A RAM device that is used through `device`, which alone holds `memory` and is held by nobody
    /// else.
    #[must_use]
    pub fn memory(memory: Arc<MemoryDevice>, device: Arc<dyn Device>, content: Content) -> Self {
        Self {
            content,
            file_place: None,
            stores: vec![Arc::clone(memory.store())],
            device,
            kind: Kind::Memory(memory),
        }
    }

    /// Takes the memory or opens the file that `device` says, `below` a directory if given.
    fn new(
        pages: Pages,
        arena: &Arc<Arena>,
        device: &appliance_config::Device,
        below: Option<&Path>,
    ) -> Result<Option<Self>, Failure> {
        let name = device.name.as_str().to_owned();
        let uuid = device.uuid.map_or([0; 16], |uuid| *uuid.as_bytes());
        Ok(Some(match &device.backing {
            Backing::Memory { size, block_size } => {
                let memory = Arc::new(MemoryDevice::new(MemoryOptions {
                    name: name.clone(),
                    uuid,
                    size_bytes: size.bytes(),
                    block_size: block_size.bytes(),
                    pages: page_policy(pages),
                    read_only: device.read_only,
                })?);
                for notice in memory.store().region().notices() {
                    tracing::warn!("device {name}: {notice}");
                }
                Self {
                    stores: vec![Arc::clone(memory.store())],
                    device: memory.clone(),
                    kind: Kind::Memory(memory),
                    content: Content::of_new_memory()?,
                    file_place: None,
                }
            }
            Backing::Null { size, block_size } => {
                let null = Arc::new(NullDevice::new(NullOptions {
                    name,
                    uuid,
                    size_bytes: size.bytes(),
                    block_size: block_size.bytes(),
                })?);
                Self {
                    device: null.clone(),
                    kind: Kind::Null(null),
                    content: Content::Lasting("null".to_owned()),
                    file_place: None,
                    stores: Vec::new(),
                }
            }
            Backing::File {
                path,
                size,
                block_size,
            } => {
                let file = Arc::new(FileDevice::open(FileOptions {
                    name: name.clone(),
                    uuid,
                    path: path.clone(),
                    size_bytes: size.map(ByteSize::bytes),
                    block_size: block_size.bytes(),
                    read_only: device.read_only,
                    direct: DirectIo::Auto,
                    arena: Some(Arc::clone(arena)),
                    below: below.map(Path::to_owned),
                })?);
                for notice in file.notices() {
                    tracing::warn!("device {name}: {notice}");
                }
                let found = FoundFile::at(path)?;
                Self {
                    content: found.content,
                    file_place: Some(found.place),
                    device: file.clone(),
                    kind: Kind::File(file),
                    stores: Vec::new(),
                }
            }
            Backing::Nvme(_) => return Ok(None),
        }))
    }

    /// Makes the device as large as `size` says, or a file's device as large as the file; queues
    /// have yet to be told. Memory that comes to a RAM device is only taken: see
    /// [`grow_by`](Self::grow_by).
    ///
    /// # Errors
    /// It stays as it is.
    pub(crate) fn grow(&self, size: Option<ByteSize>) -> Result<Option<Arc<Store>>, Failure> {
        match (&self.kind, size) {
            (Kind::Memory(memory), Some(size)) => return Ok(memory.take_missing(size.bytes())?),
            (Kind::Null(null), Some(size)) => null.grow(size.bytes())?,
            (Kind::File(file), size) => file.grow(size.map(ByteSize::bytes))?,
            (Kind::Other(growing), size) => growing.grow(size)?,
            (Kind::Memory(_) | Kind::Null(_), None) | (Kind::Drive, _) => {}
        }
        Ok(None)
    }

    /// Gives a RAM device the memory that was taken for it, which network cards reach by now.
    pub(crate) fn grow_by(&mut self, store: Arc<Store>) {
        if let Kind::Memory(memory) = &self.kind {
            memory.grow(Arc::clone(&store));
            self.stores.push(store);
        }
    }

    /// The memory that network cards reach.
    pub(crate) fn regions(&self) -> impl Iterator<Item = &Region> {
        self.stores.iter().map(|store| store.region())
    }

    /// Whether nobody else has the device or holds a loan of its memory.
    pub(crate) fn is_alone(&self) -> bool {
        let (own, kept) = match &self.kind {
            // Here twice; each store here, with its device, and, the first, in neither twice.
            Kind::Memory(memory) => {
                // The device may be another that holds the memory in turn.
                let itself = std::ptr::addr_eq(Arc::as_ptr(memory), Arc::as_ptr(&self.device));
                let unused = itself || Arc::strong_count(&self.device) == 1;
                (Arc::strong_count(memory) == 2 && unused, 2)
            }
            Kind::File(file) => (Arc::strong_count(file) == 2, 0),
            Kind::Null(null) => (Arc::strong_count(null) == 2, 0),
            Kind::Drive | Kind::Other(_) => (Arc::strong_count(&self.device) == 1, 0),
        };
        own && self.stores.iter().all(|it| Arc::strong_count(it) <= kept)
    }

    /// Whether it can be opened again as it is: memory is gone once it is let go, and drives are
    /// taken at start.
    pub(crate) fn can_be_reopened(&self) -> bool {
        matches!(self.kind, Kind::File(_) | Kind::Null(_) | Kind::Other(_))
    }

    /// Writes what is cached of a file; says in the log when it could not be.
    pub(crate) fn flush(&self) -> bool {
        let flushed = match &self.kind {
            Kind::File(file) => file.sync().map_err(Failure::from),
            Kind::Other(other) => other.sync(),
            Kind::Memory(_) | Kind::Null(_) | Kind::Drive => Ok(()),
        };
        if let Err(error) = &flushed {
            tracing::error!(%error, "a file could not be flushed");
        }
        flushed.is_ok()
    }
}

impl SystemDevices {
    /// Those that `config` is to have.
    pub(crate) fn new(config: &Config, arena: &Arc<Arena>) -> Self {
        Self {
            pages: config.appliance.pages,
            arena: Arc::clone(arena),
        }
    }
}

impl Opener for SystemDevices {
    fn open(&self, device: &appliance_config::Device) -> Result<Option<Opened>, Failure> {
        Opened::new(self.pages, &self.arena, device, None)
    }

    fn open_below(
        &self,
        device: &appliance_config::Device,
        directory: &Path,
    ) -> Result<Option<Opened>, Failure> {
        Opened::new(self.pages, &self.arena, device, Some(directory))
    }
}

/// The arena's words for the configuration's.
pub(crate) fn page_policy(pages: Pages) -> PagePolicy {
    match pages {
        Pages::Auto => PagePolicy::Auto,
        Pages::Huge => PagePolicy::HugeOnly,
        Pages::Ordinary => PagePolicy::Ordinary,
    }
}
