//! Opens the configuration's devices as block devices.

mod passed;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use appliance_config::identity::NamespaceIdentity;
use appliance_config::{Backing, BlockSize, ByteSize, Config, Export, Name, Namespace, Pages};
use block::{
    Device, DirectIo, FileDevice, FileOptions, MemoryDevice, MemoryOptions, NullDevice, NullOptions,
};
use hugemem::{Arena, PagePolicy, Region, Store};
use nvme_target::{DeviceIndex, Target};

use crate::error::Failure;
use crate::identities::{Content, FileIdentity, Identities};
use crate::reservation_files::ReservationFiles;
pub(crate) use passed::{PassedDevice, PassedDevices};

/// The open devices, each with its index in the target.
#[derive(Default)]
pub(crate) struct Devices {
    all: BTreeMap<Name, (DeviceIndex, Opened)>,
    identities: Identities,
}

/// A namespace of an acquired drive.
pub(crate) struct DriveNamespace {
    /// The index of its device in the configuration at start.
    pub(crate) place: usize,
    pub(crate) device: Arc<dyn Device>,
    pub(crate) content: Content,
}

/// Opens the devices of a configuration.
pub trait Opener: Send + Sync {
    /// Opens the device that `device` describes. Returns `None` for a drive's namespace if it opens
    /// no drives.
    ///
    /// # Errors
    /// The device cannot be opened.
    fn open(&self, device: &appliance_config::Device) -> Result<Option<Opened>, Failure>;

    /// Like [`open`](Self::open), but a file must lie below `directory` after symbolic links are
    /// resolved.
    ///
    /// # Errors
    /// The device cannot be opened, or lies elsewhere.
    fn open_below(
        &self,
        device: &appliance_config::Device,
        directory: &Path,
    ) -> Result<Option<Opened>, Failure> {
        let _ = (device, directory);
        Err("files cannot be confined to a directory here".into())
    }

    /// Whether open devices prevent that `device` is opened: it is opened after they are closed.
    fn is_held(&self, device: &appliance_config::Device) -> bool {
        let _ = device;
        false
    }

    /// Closes what devices shared and none uses any more, as far as possible without waiting.
    /// Returns the name of something that is still being closed; call it again then.
    fn close_unused(&self) -> Option<String> {
        None
    }
}

/// Opens devices in the machine's memory and files.
pub(crate) struct SystemDevices {
    pages: Pages,
    /// Files transfer data through its leases.
    arena: Arc<Arena>,
}

/// Operations of a device that is neither memory nor a file.
pub trait DeviceOperations: Send + Sync {
    /// Grows the device to `size`, or to the size of its storage. The caller notifies the queues.
    ///
    /// # Errors
    /// The size is unchanged.
    fn grow(&self, size: Option<ByteSize>) -> Result<(), Failure>;

    /// Makes acknowledged data durable.
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
    /// Device number and inode of a file.
    file_id: Option<(u64, u64)>,
    /// The memory of a RAM device, from which data is sent.
    stores: Vec<Arc<Store>>,
}

/// The type of the device, for operations that only some types support.
enum Kind {
    Memory(Arc<MemoryDevice>),
    File(Arc<FileDevice>),
    Null(Arc<NullDevice>),
    Drive,
    Other(Box<dyn DeviceOperations>),
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
    /// Opens the devices of `config` with `opener`. `drives` has the namespaces of drives; those of
    /// drives that are not available are omitted. `identities` has the previously served contents.
    ///
    /// # Errors
    /// The first other device that cannot be opened, by name.
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

    /// Adds a device that has an index in the target.
    pub(crate) fn insert(&mut self, name: Name, place: DeviceIndex, opened: Opened) {
        self.all.insert(name, (place, opened));
    }

    /// The identity of a namespace for hosts. `None`: its device is not open.
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

    /// Whether the open device of that name uses the file that is now at `path`.
    pub(crate) fn is_in_file(&self, name: &Name, path: &Path) -> bool {
        let opened = self.all.get(name).map(|(_, opened)| opened);
        let place = opened.and_then(|opened| opened.file_id);
        place.is_some() && FileIdentity::at(path).ok().map(|found| found.file_id) == place
    }

    /// Sets the reservations with which each device begins, before hosts can connect.
    pub(crate) fn restore_reservations(&self, files: &ReservationFiles, target: &Target) {
        for (name, (place, opened)) in &self.all {
            let initial = files.initial(name, opened.reserved_content());
            target.set_reservations(*place, initial);
        }
    }

    /// Removes a device.
    pub(crate) fn remove(&mut self, name: &Name) -> Option<Opened> {
        self.all.remove(name).map(|(_, opened)| opened)
    }

    /// The devices in the order of their indexes at start.
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

    /// The device of that name, if it is open.
    pub(crate) fn get(&self, name: &Name) -> Option<(DeviceIndex, &Arc<dyn Device>)> {
        let (place, opened) = self.all.get(name)?;
        Some((*place, &opened.device))
    }

    /// Mutable access to the device of that name.
    pub(crate) fn opened_mut(&mut self, name: &Name) -> Option<(DeviceIndex, &mut Opened)> {
        let (place, opened) = self.all.get_mut(name)?;
        Some((*place, opened))
    }

    /// All memory that holds data: the arena's and that of RAM devices.
    pub(crate) fn regions<'a>(&'a self, arena: &'a Arena) -> Vec<&'a Region> {
        let all = self.all.values();
        let stores = all.flat_map(|(_, opened)| opened.regions());
        std::iter::once(arena.region()).chain(stores).collect()
    }

    /// The arena's memory and that of these RAM devices.
    pub(crate) fn regions_of<'a>(
        &'a self,
        arena: &'a Arena,
        names: impl Iterator<Item = &'a Name>,
    ) -> Vec<&'a Region> {
        let found = names.filter_map(|name| self.all.get(name));
        let stores = found.flat_map(|(_, opened)| opened.regions());
        std::iter::once(arena.region()).chain(stores).collect()
    }

    /// The memory of a RAM device.
    pub(crate) fn regions_of_device(&self, name: &Name) -> impl Iterator<Item = &Region> {
        let found = self.all.get(name).into_iter();
        found.flat_map(|(_, opened)| opened.regions())
    }

    /// Flushes cached data of files; logs the failures.
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
    pub(crate) fn drive(drive: DriveNamespace) -> Self {
        Self {
            device: drive.device,
            kind: Kind::Drive,
            content: drive.content,
            file_id: None,
            stores: Vec::new(),
        }
    }

    /// A device that is neither memory nor a file, and its content. The caller keeps no reference
    /// to `device`.
    #[must_use]
    pub fn other(
        device: Arc<dyn Device>,
        growing: Box<dyn DeviceOperations>,
        content: Content,
    ) -> Self {
        Self {
            device,
            kind: Kind::Other(growing),
            content,
            file_id: None,
            stores: Vec::new(),
        }
    }

    /// A RAM device that is used through `device`. Only `device` references `memory`, and the
    /// caller keeps no reference to `device`.
    #[must_use]
    pub fn memory(memory: Arc<MemoryDevice>, device: Arc<dyn Device>, content: Content) -> Self {
        Self {
            content,
            file_id: None,
            stores: vec![Arc::clone(memory.store())],
            device,
            kind: Kind::Memory(memory),
        }
    }

    /// Allocates the memory or opens the file of `device`; the file must lie below `below`, if
    /// given.
    fn new(
        pages: Pages,
        arena: &Arc<Arena>,
        device: &appliance_config::Device,
        below: Option<&Path>,
    ) -> Result<Option<Self>, Failure> {
        let name = device.name.as_str().to_owned();
        Ok(Some(match &device.backing {
            Backing::Memory { size, block_size } => {
                let options = memory_options(pages, device, *size, *block_size);
                let memory = Arc::new(MemoryDevice::new(options)?);
                for notice in memory.store().region().notices() {
                    tracing::warn!("device {name}: {notice}");
                }
                Self {
                    stores: vec![Arc::clone(memory.store())],
                    device: memory.clone(),
                    kind: Kind::Memory(memory),
                    content: Content::of_new_memory()?,
                    file_id: None,
                }
            }
            Backing::Null { size, block_size } => {
                let null = Arc::new(NullDevice::new(NullOptions {
                    name,
                    uuid: uuid_bytes(device),
                    size_bytes: size.bytes(),
                    block_size: block_size.bytes(),
                })?);
                Self {
                    device: null.clone(),
                    kind: Kind::Null(null),
                    content: Content::Lasting("null".to_owned()),
                    file_id: None,
                    stores: Vec::new(),
                }
            }
            Backing::File { path, shared, .. } => {
                let file = Arc::new(FileDevice::open(file_options(arena, device, below)?)?);
                for notice in file.notices() {
                    tracing::warn!("device {name}: {notice}");
                }
                if *shared && !file.is_direct() {
                    tracing::warn!(
                        "device {name}: it is shared, but without direct I/O an appliance on \
                         another machine may read old data: place the file on a file system with \
                         direct I/O"
                    );
                }
                let found = FileIdentity::at(path)?;
                Self {
                    content: found.content,
                    file_id: Some(found.file_id),
                    device: file.clone(),
                    kind: Kind::File(file),
                    stores: Vec::new(),
                }
            }
            Backing::Nvme(_) => return Ok(None),
        }))
    }

    /// Grows the device to `size`, or a file's device to the size of the file. The caller notifies
    /// the queues. Memory for a RAM device is only allocated: see [`grow_by`](Self::grow_by).
    ///
    /// # Errors
    /// The size is unchanged.
    pub(crate) fn grow(&self, size: Option<ByteSize>) -> Result<Option<Arc<Store>>, Failure> {
        match (&self.kind, size) {
            (Kind::Memory(memory), Some(size)) => return Ok(memory.allocate_growth(size.bytes())?),
            (Kind::Null(null), Some(size)) => null.grow(size.bytes())?,
            (Kind::File(file), size) => file.grow(size.map(ByteSize::bytes))?,
            (Kind::Other(growing), size) => growing.grow(size)?,
            (Kind::Memory(_) | Kind::Null(_), None) | (Kind::Drive, _) => {}
        }
        Ok(None)
    }

    /// Adds allocated memory to a RAM device. Network cards already have it registered.
    pub(crate) fn grow_by(&mut self, store: Arc<Store>) {
        if let Kind::Memory(memory) = &self.kind {
            memory.grow(Arc::clone(&store));
            self.stores.push(store);
        }
    }

    /// Whether it is a file.
    pub(crate) fn is_file(&self) -> bool {
        matches!(self.kind, Kind::File(_))
    }

    /// The memory that network cards access.
    pub(crate) fn regions(&self) -> impl Iterator<Item = &Region> {
        self.stores.iter().map(|store| store.region())
    }

    /// The content by which stored reservations are found; `None` for a device without a content
    /// that survives a loss of power, and for one that hosts cannot reserve because it is shared.
    pub(crate) fn reserved_content(&self) -> Option<&str> {
        match (&self.kind, &self.content) {
            (Kind::File(file), _) if file.is_shared() => None,
            (Kind::Memory(_) | Kind::Null(_), _) | (_, Content::Volatile(_)) => None,
            (Kind::File(_) | Kind::Drive | Kind::Other(_), Content::Lasting(text)) => Some(text),
        }
    }

    /// Whether there are no other references to the device and no borrows of its memory.
    pub(crate) fn is_unreferenced(&self) -> bool {
        let (own, references) = match &self.kind {
            // `self` has two references to the memory device. Each store, the first included, has
            // one reference in `self` and one in the device.
            Kind::Memory(memory) => {
                // `device` may be a wrapper that references the memory device.
                let itself = std::ptr::addr_eq(Arc::as_ptr(memory), Arc::as_ptr(&self.device));
                let unused = itself || Arc::strong_count(&self.device) == 1;
                (Arc::strong_count(memory) == 2 && unused, 2)
            }
            Kind::File(file) => (Arc::strong_count(file) == 2, 0),
            Kind::Null(null) => (Arc::strong_count(null) == 2, 0),
            Kind::Drive | Kind::Other(_) => (Arc::strong_count(&self.device) == 1, 0),
        };
        own && self
            .stores
            .iter()
            .all(|it| Arc::strong_count(it) <= references)
    }

    /// Whether it can be reopened unchanged: closing a memory device loses its content.
    pub(crate) fn can_be_reopened(&self) -> bool {
        !matches!(self.kind, Kind::Memory(_))
    }

    /// Flushes cached data of a file; logs a failure.
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
    /// The opener for `config`.
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

fn uuid_bytes(device: &appliance_config::Device) -> [u8; 16] {
    device.uuid.map_or([0; 16], |uuid| *uuid.as_bytes())
}

/// The options of a RAM device.
fn memory_options(
    pages: Pages,
    device: &appliance_config::Device,
    size: ByteSize,
    block_size: BlockSize,
) -> MemoryOptions {
    MemoryOptions {
        name: device.name.as_str().to_owned(),
        uuid: uuid_bytes(device),
        size_bytes: size.bytes(),
        block_size: block_size.bytes(),
        pages: page_policy(pages),
        read_only: device.read_only,
    }
}

#[derive(Debug, thiserror::Error)]
#[error("it is not a file")]
struct NotAFile;

/// The options of a file's device, which must lie below `below`, if given.
fn file_options(
    arena: &Arc<Arena>,
    device: &appliance_config::Device,
    below: Option<&Path>,
) -> Result<FileOptions, NotAFile> {
    let Backing::File {
        path,
        size,
        block_size,
        shared,
    } = &device.backing
    else {
        return Err(NotAFile);
    };
    Ok(FileOptions {
        name: device.name.as_str().to_owned(),
        uuid: uuid_bytes(device),
        path: path.clone(),
        size_bytes: size.map(ByteSize::bytes),
        block_size: block_size.bytes(),
        read_only: device.read_only,
        shared: *shared,
        direct: DirectIo::Auto,
        arena: Some(Arc::clone(arena)),
        below: below.map(Path::to_owned),
    })
}

/// The arena's page policy for the configured pages.
pub(crate) fn page_policy(pages: Pages) -> PagePolicy {
    match pages {
        Pages::Auto => PagePolicy::Auto,
        Pages::Huge => PagePolicy::HugeOnly,
        Pages::Ordinary => PagePolicy::Ordinary,
    }
}
