//! Shares, the root that contains them, and the file handles of their objects.
//!
//! The root is a read-only directory with one entry for each share. It exists only in the server
//! and is a file system of its own (RFC 8881 §7.3).

use std::net::IpAddr;
use std::sync::Arc;

use files_spec::Status;
use files_store::limits::BLOCK_BYTES;
use files_store::{Error, Handle, InodeId, ShareId, Time, Volume};

use crate::counters::ShareCounters;
use crate::user::Squash;

/// The number of a share in the configuration, which file handles contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShareNumber(pub u32);

/// The index of a volume of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VolumeIndex(pub usize);

/// Addresses of clients: those whose first bits are these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    /// Its first address.
    pub address: IpAddr,
    /// Number of bits that its addresses have in common.
    pub prefix_bits: u8,
}

impl Network {
    fn contains(&self, client: IpAddr) -> bool {
        let differing = match (self.address, client) {
            (IpAddr::V4(own), IpAddr::V4(client)) => {
                (own.to_bits() ^ client.to_bits()).leading_zeros()
            }
            (IpAddr::V6(own), IpAddr::V6(client)) => {
                (own.to_bits() ^ client.to_bits()).leading_zeros()
            }
            _ => return false,
        };
        differing >= u32::from(self.prefix_bits)
    }
}

/// Which clients may use a share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Clients {
    /// All.
    Any,
    /// Those with an address in one of these networks.
    In(Vec<Network>),
}

/// A directory of a volume that clients can mount.
#[derive(Clone, Debug)]
pub struct Share {
    /// Its number, which stays the same across restarts.
    pub number: ShareNumber,
    /// Its name in the root.
    pub name: String,
    /// Its volume.
    pub volume: VolumeIndex,
    /// Its directory.
    pub directory: InodeId,
    /// The part of the volume that its objects belong to. Handles of others are refused.
    pub part: ShareId,
    /// Whether clients cannot change anything.
    pub is_read_only: bool,
    /// Which users lose their identity.
    pub squash: Squash,
    /// Which clients may use it. For others it does not exist.
    pub clients: Clients,
    /// What is counted of it.
    pub counters: Arc<ShareCounters>,
}

/// A part of a volume to share: the volume's own directory, or one within it, with its quotas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartOptions {
    /// The volume.
    pub volume: VolumeIndex,
    /// The name of a directory of the volume's root, which is made if it does not exist.
    pub directory: Option<String>,
    /// Most files and other objects in the directory.
    pub files_max: Option<u64>,
    /// Most bytes of their data, of which whole blocks of 4 KiB count.
    pub bytes_max: Option<u64>,
}

/// A part of a volume that can be shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Its directory.
    pub directory: InodeId,
    /// Its number.
    pub part: ShareId,
}

impl PartOptions {
    /// Makes directories for shares, and sets their quotas, which apply at once.
    ///
    /// # Errors
    /// The index of the first one that cannot be made, and why: [`Error::Exists`] if something else
    /// has the name. Those before it are made.
    pub fn prepare_all(
        all: &[Self],
        volumes: &mut [Volume],
        now: Time,
    ) -> Result<Vec<Part>, (usize, Error)> {
        let prepared = all.iter().enumerate().map(|(index, options)| {
            let prepared = options.prepare(&mut volumes[options.volume.0], now);
            prepared.map_err(|error| (index, error))
        });
        prepared.collect()
    }

    fn prepare(&self, volume: &mut Volume, now: Time) -> Result<Part, Error> {
        let (directory, part) = match &self.directory {
            Some(name) => volume.part(name.as_bytes(), now)?,
            None => (volume.root(), ShareId::default()),
        };
        // The directory itself is an object, too.
        let inodes_max = self.files_max.map_or(u64::MAX, |it| it.saturating_add(1));
        let blocks_max = self.bytes_max.map_or(u64::MAX, |it| it / BLOCK_BYTES);
        volume.set_quota(part, inodes_max, blocks_max)?;
        Ok(Part { directory, part })
    }
}

impl Share {
    /// Whether a client with this address may use it. IPv4 in IPv6 is IPv4.
    pub(crate) fn admits(&self, client: IpAddr) -> bool {
        match &self.clients {
            Clients::Any => true,
            Clients::In(networks) => {
                let client = client.to_canonical();
                networks.iter().any(|it| it.contains(client))
            }
        }
    }
}

/// An object that a file handle names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    /// The directory of the shares.
    Root,
    /// An object of a volume, in a share with this index.
    Object {
        /// Index of the share.
        share: usize,
        /// The object.
        inode: InodeId,
    },
}

/// Length of a file handle: kind, number of the share, and the volume's handle.
pub(crate) const HANDLE_BYTES: usize = 8 + Handle::BYTES;

/// The first bytes of a handle: form 1, and its kind.
const ROOT: [u8; 4] = [1, 0, 0, 0];
const OBJECT: [u8; 4] = [1, 1, 0, 0];

/// A file handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HandleBytes {
    bytes: [u8; HANDLE_BYTES],
    length: usize,
}

impl HandleBytes {
    pub(crate) const ROOT: Self = {
        let mut bytes = [0; HANDLE_BYTES];
        bytes[0] = ROOT[0];
        Self {
            bytes,
            length: ROOT.len(),
        }
    };

    pub(crate) fn object(share: ShareNumber, handle: &Handle) -> Self {
        let mut bytes = [0; HANDLE_BYTES];
        bytes[..4].copy_from_slice(&OBJECT);
        bytes[4..8].copy_from_slice(&share.0.to_be_bytes());
        bytes[8..].copy_from_slice(&handle.to_bytes());
        Self {
            bytes,
            length: HANDLE_BYTES,
        }
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// The object of a file handle of a client.
///
/// # Errors
/// `NFS4ERR_BADHANDLE` for bytes that are no handle of this server (RFC 8881 §15.1.2.1),
/// `NFS4ERR_STALE` for an object or share that does not exist any more (RFC 8881 §15.1.2.7), also for
/// the share of other clients, and `NFS4ERR_DELAY` while the device of its volume is gone.
pub(crate) fn resolve(
    handle: &[u8],
    shares: &[Share],
    volumes: &[Volume],
    client: IpAddr,
) -> Result<Place, Status> {
    if handle == ROOT {
        return Ok(Place::Root);
    }
    let bytes: &[u8; HANDLE_BYTES] = handle.try_into().map_err(|_| Status::BADHANDLE)?;
    let (share, handle) = in_share(bytes, shares, client)?;
    let volume = &volumes[shares[share].volume.0];
    let missing = |error| match error {
        Error::Lost => Status::DELAY,
        _ => Status::STALE,
    };
    let inode = volume.resolve(&handle).map_err(missing)?;
    let part = volume.share(inode).map_err(missing)?;
    match part == shares[share].part {
        true => Ok(Place::Object { share, inode }),
        false => Err(Status::STALE),
    }
}

/// The index of the share of an object's handle, and the volume's handle of the object.
#[inline]
pub(crate) fn in_share(
    bytes: &[u8; HANDLE_BYTES],
    shares: &[Share],
    client: IpAddr,
) -> Result<(usize, Handle), Status> {
    let (kind, rest) = bytes.split_first_chunk::<4>().ok_or(Status::BADHANDLE)?;
    if *kind != OBJECT {
        return Err(Status::BADHANDLE);
    }
    let (number, rest) = rest.split_first_chunk::<4>().ok_or(Status::BADHANDLE)?;
    let number = ShareNumber(u32::from_be_bytes(*number));
    let rest = rest.try_into().map_err(|_| Status::BADHANDLE)?;
    let mut admitting = shares.iter();
    let share = admitting.position(|share| share.number == number && share.admits(client));
    Ok((share.ok_or(Status::STALE)?, Handle::from_bytes(rest)))
}
