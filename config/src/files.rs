//! The tables of file exports: volumes on devices, shares of volumes, and where NFS is served.

use uuid::Uuid;

use crate::kind::{Boolean, Count, Maybe, Networks, Size, Unit, Word, Words};
use crate::limits::{MEMORY_MAX, QUOTA_FILES_MAX, QUOTA_SIZE_MIN, VOLUME_MEMORY_MIN};
use crate::model::{ADDRESS, NAME, Transport, UUID, words};
use crate::table::table;
use crate::value::{ByteSize, ListenAddress, Name, Network};

table! {
    /// Files on a device.
    pub struct Volume {
        /// Its name, by which shares refer to it.
        name: Name = NAME,
            like "\"scratch\"";
        /// Its device, which no export and no other volume has. On type `memory` the files are lost
        /// when the appliance stops. On types `file` and `nvme` they stay: `windlass volume format NAME`
        /// makes the volume first.
        device: Name = NAME,
            like "\"ram0\"";
        /// The identifier that `windlass volume format` gives it or prints. A device with another
        /// volume is not served then. Only for volumes on types `file` and `nvme`.
        uuid: Option<Uuid> = Maybe(UUID),
            absent None
            => "any volume that the device has",
            like "\"9f0c2b6e-54a1-4b53-9d0e-0d5a8a1c7f11\"";
        /// Most memory for names, attributes and positions of files; about 1KiB for a small file.
        /// Where it is used up, nothing can be created. It comes on top of the device. On types `file`
        /// and `nvme` that of the format counts, and the device has twice as much beside the files.
        metadata_memory: ByteSize = Size(VOLUME_MEMORY_MIN..=MEMORY_MAX, Unit::Byte),
            absent ByteSize::from_mib(64),
            like "\"1GiB\"";
    }
}

words! {
    /// Which users of clients lose their identity.
    Squash {
        /// User 0 and group 0.
        Root = "root",
        /// None.
        None = "none",
        /// All.
        All = "all",
    }
}

table! {
    /// A volume or a directory of it as clients see it: the directory `/NAME` of the server.
    pub struct Share {
        /// Its name.
        name: Name = NAME,
            like "\"scratch\"";
        /// Its volume.
        volume: Name = NAME,
            like "\"scratch\"";
        /// The directory at the top of the volume that it is. It is made if it does not exist, and stays
        /// when the share ends. Without this key, the share is the whole volume but for such directories.
        directory: Option<Name> = Maybe(NAME),
            absent None
            => "the whole volume",
            like "\"team-a\"";
        /// Most data of its files, in whole blocks of 4KiB. Writes that need more fail (`EDQUOT`), and
        /// `df` shows this size. Lower than what is there, it keeps that.
        max_size: Option<ByteSize> = Maybe(Size(QUOTA_SIZE_MIN..=MEMORY_MAX, Unit::Byte)),
            absent None
            => "the size of the volume",
            like "\"200GiB\"";
        /// Most files, directories and other objects in it.
        max_files: Option<u64> = Maybe(Count(1..=QUOTA_FILES_MAX)),
            absent None
            => "what the volume has memory for",
            like "1000000";
        /// The addresses of the clients that may use it. For others it does not exist. A client
        /// states its users itself, so that its address alone protects the files.
        clients: Vec<Network> = Networks,
            absent Vec::new()
            => "required unless `allow_any_client = true`",
            like "[\"192.0.2.0/24\", \"2001:db8::7\"]";
        /// Whether every client that reaches a file listener may use it, as any user except those
        /// that `squash` names.
        allow_any_client: bool = Boolean,
            absent false
            => "required unless there are `clients`",
            like "true";
        /// Whether clients are kept from changing anything.
        read_only: bool = Boolean,
            absent false,
            like "true";
        /// Which users of clients become user and group 65534: user 0, none, or all.
        squash: Squash = Word::<Squash>::new(),
            absent Squash::Root,
            like "\"none\"";
    }
}

table! {
    /// An address at which clients mount all shares by NFSv4.1 or 4.2.
    pub struct FileListener {
        /// Its name.
        name: Name = NAME,
            like "\"nfs\"";
        /// The transport: TCP, or RDMA over a network card that has it (`mount -o proto=rdma`). Both
        /// may have one address and port.
        transport: Transport = Word::<Transport>::new(),
            absent Transport::Tcp,
            like "\"rdma\"";
        /// The address with the port, usually 2049, and 20049 for RDMA; port 0 takes any free one, which the log then
        /// names.
        address: ListenAddress = ADDRESS,
            like "\"192.0.2.10:2049\"";
    }
}

/// What is served by NFS; nothing by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Files {
    /// The volumes, in the order of the file.
    pub volumes: Vec<Volume>,
    /// The shares, in the order of the file.
    pub shares: Vec<Share>,
    /// Where they are served, in the order of the file.
    pub listeners: Vec<FileListener>,
}

impl Files {
    /// The listeners over a transport.
    pub fn listeners_of(&self, transport: Transport) -> impl Iterator<Item = &FileListener> {
        let listeners = self.listeners.iter();
        listeners.filter(move |it| it.transport == transport)
    }

    /// The volume of that name.
    pub fn volume(&self, name: &Name) -> Option<&Volume> {
        self.volumes.iter().find(|it| it.name == *name)
    }

    /// The listener of that name.
    pub fn listener(&self, name: &Name) -> Option<&FileListener> {
        self.listeners.iter().find(|it| it.name == *name)
    }

    /// Whether two shares have the same files.
    pub(crate) fn have_same_files(one: &Share, other: &Share) -> bool {
        (&one.volume, &one.directory) == (&other.volume, &other.directory)
    }

    /// Whether a device belongs to a volume.
    pub fn uses(&self, device: &Name) -> bool {
        self.volumes.iter().any(|volume| volume.device == *device)
    }
}
