//! Volumes that come and go while the server runs: one whose device was gone is lost, and replaced
//! after it was opened again; others are added, and removed without shares.

use files_store::{NumberMap, VolatileOptions, Volume};

use crate::execution::{Current, Execution, Waiting};
use crate::place::{Place, VolumeIndex};
use crate::server::Server;
use crate::states::{FileId, StateKind};
use crate::table::Key;

impl Server {
    /// The device of a volume was gone. Until [`Self::replace_volume`], requests for it get
    /// `NFS4ERR_DELAY`. Clients keep what they have open and locked. The verifier of writes changes, so
    /// that they repeat those that were not durable.
    pub fn lose_volume(&mut self, index: VolumeIndex) {
        let volume = &mut self.volumes[index.0];
        if volume.is_lost() {
            return;
        }
        let mut open = NumberMap::default();
        for (_, state) in self.states.table.iter() {
            if state.file.0 == index
                && let Ok(attributes) = volume.attributes(state.file.1)
            {
                open.insert(state.file, attributes.handle.generation);
            }
        }
        self.open_on_lost.extend(open);
        self.unclosed.retain(|(volume, _)| *volume != index);
        volume.lose();
        self.losses += 1;
    }

    /// Whether an execution that waits would go on with an object or a request of this volume.
    #[must_use]
    pub fn is_used_by(&self, x: &Execution, index: VolumeIndex) -> bool {
        let is_at = |current: &Current| match current.place {
            Some(Place::Object { share, .. }) => self.shares[share].volume == index,
            Some(Place::Root) | None => false,
        };
        let moves = match &x.waiting {
            Waiting::No => return false,
            Waiting::Read(read) => read.volume == index,
            Waiting::Write(write) | Waiting::Record(write) => write.volume == index,
            Waiting::Volume | Waiting::Durable(_) => false,
        };
        moves || is_at(&x.current) || is_at(&x.saved) || x.awaited.iter().any(|it| it.0 == index)
    }

    /// Continues with a lost volume as it was opened again. What clients have open stays so; objects
    /// that the device has lost are closed, and their handles are stale.
    ///
    /// The caller has ended every execution that [uses](Self::is_used_by) the volume.
    pub fn replace_volume(&mut self, index: VolumeIndex, mut volume: Volume) {
        let states = self.states.table.iter();
        let of_volume = states.filter(|(_, state)| state.file.0 == index);
        let opens = of_volume.filter(|(_, state)| matches!(state.kind, StateKind::Open(_)));
        let opens: Vec<(Key, FileId)> = opens.map(|(key, state)| (key, state.file)).collect();
        let mut ended = Vec::new();
        for (key, file) in opens {
            let generation = self.open_on_lost.get(&file).copied();
            let found = volume.attributes(file.1).map(|it| it.handle.generation);
            let is_same = generation.is_some_and(|it| found == Ok(it));
            if !is_same || volume.open(file.1).is_err() {
                ended.push(key);
            }
        }
        for key in ended {
            self.forget_state(key);
        }
        self.open_on_lost.retain(|(it, _), _| *it != index);
        self.volumes[index.0] = volume;
    }

    /// Adds a volume without shares, at the place of one that was taken or at the next new one.
    ///
    /// # Panics
    /// Panics if the place has a volume, or is none of these.
    pub fn add_volume(&mut self, index: VolumeIndex, volume: Volume) {
        match self.volumes.get_mut(index.0) {
            Some(place) => {
                assert!(place.is_lost(), "the place has a volume");
                *place = volume;
            }
            None => {
                assert_eq!(index.0, self.volumes.len(), "the next place");
                self.volumes.push(volume);
            }
        }
    }

    /// Takes a volume that has no share any more. Its place is lost until [`Self::add_volume`].
    ///
    /// The caller has ended every execution that [uses](Self::is_used_by) the volume.
    pub fn take_volume(&mut self, index: VolumeIndex) -> Volume {
        let place = &mut self.volumes[index.0];
        let mut lost = Volume::volatile(&VolatileOptions {
            uuid: place.uuid(),
            device_bytes: 0,
            memory_bytes: 0,
        });
        lost.lose();
        self.unclosed.retain(|(volume, _)| *volume != index);
        std::mem::replace(place, lost)
    }

    /// Whether a share has the volume.
    #[must_use]
    pub fn is_shared(&self, index: VolumeIndex) -> bool {
        let mut shares = self.shares.iter();
        shares.any(|it| it.volume == index && !it.name.is_empty())
    }
}
