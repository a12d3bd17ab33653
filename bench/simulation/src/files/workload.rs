//! Which action a client takes next.

use files_spec::operations::share;
use files_spec::types::Stable;

use super::action::Action;
use super::holdings::{Modes, PARTS, Parts};
use super::leases::Lease;
use super::model::{LockState, Model, Object, ObjectId, ROOT};
use super::sharing::Wanted;
use super::swarm::FileSwarm;
use crate::random::Random;

/// Objects with names that a run has at most.
const OBJECTS_MAX: usize = 24;
/// Directories that a run has at most.
const DIRECTORIES_MAX: usize = 6;
/// Names that entries have, apart from a long one.
const NAMES: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];
/// Offset of writes that make a sparse file in bytes.
const FAR: u64 = 1 << 40;
const BLOCK: u64 = 4096;
/// Owners of locks that a client has for each file.
const LOCK_OWNERS: u64 = 2;

fn name(random: &mut Random) -> String {
    match random.permille(60) {
        true => "n".repeat(255),
        false => random.pick(&NAMES).to_owned(),
    }
}

/// One of the objects that `chosen` selects.
fn any(model: &Model, random: &mut Random, chosen: impl Fn(&Object) -> bool) -> Option<ObjectId> {
    let objects = model.alive(chosen);
    match objects.is_empty() {
        true => None,
        false => Some(random.pick(&objects)),
    }
}

fn directory(model: &Model, random: &mut Random) -> ObjectId {
    let named = |it: &Object| it.is_directory() && it.links > 0;
    any(model, random, named).unwrap_or(ROOT)
}

/// A name of a directory, which exists more often than not.
fn place(model: &Model, random: &mut Random) -> (ObjectId, String) {
    let directory = directory(model, random);
    let names: Vec<&String> = model.objects[directory].entries().map(|it| it.0).collect();
    match !names.is_empty() && random.permille(850) {
        true => (directory, random.pick(&names).clone()),
        false => (directory, name(random)),
    }
}

/// An offset and a length, which end at or near a block as often as not.
fn range(random: &mut Random, swarm: &FileSwarm) -> (u64, u64) {
    let mut offset = random.below(swarm.file_bytes_max);
    let mut length = random.between(1, swarm.write_bytes_max);
    if random.coin() {
        offset -= offset % BLOCK;
    }
    if random.coin() && length > BLOCK {
        length -= length % BLOCK;
    }
    if random.permille(15) {
        offset += FAR;
    }
    (offset, length)
}

/// An action of a client; `None` if the drawn one is not possible now.
#[must_use]
pub(super) fn draw(
    model: &mut Model,
    client: usize,
    swarm: &FileSwarm,
    random: &mut Random,
) -> Option<Action> {
    let silent = silent_file(model, client, random);
    let action = match random.below(100) {
        drawn if drawn < 30 && silent.is_some() => against_silent(model, client, silent?, random)?,
        0..=35 => data(model, swarm, random)?,
        36..=69 => names(model, random)?,
        70..=76 => attributes(model, random)?,
        77..=88 => opens(model, client, swarm, random)?,
        89..=97 => locks(model, client, random)?,
        _ => Action::Renew,
    };
    let claims = action.claims(model);
    // The directories must exist until the operation has ended.
    let exist = |it: &ObjectId| model.objects[*it].links > 0;
    let is_possible = claims.directories.iter().all(exist) && model.may_claim(&claims);
    is_possible.then_some(action)
}

/// An action that changes only what a client has open or locked.
#[must_use]
pub(super) fn states(
    model: &Model,
    client: usize,
    swarm: &FileSwarm,
    random: &mut Random,
) -> Option<Action> {
    match random.coin() {
        true => opens(model, client, swarm, random),
        false => locks(model, client, random),
    }
}

fn names(model: &mut Model, random: &mut Random) -> Option<Action> {
    let named = |it: &Object| it.links > 0;
    let has_room = model.alive(named).len() < OBJECTS_MAX;
    let directories = model.alive(|it| named(it) && it.is_directory()).len();
    let new = (directory(model, random), name(random));
    Some(match random.below(40) {
        0..=8 if has_room => Action::CreateFile {
            at: new,
            is_exclusive: random.permille(300),
        },
        9..=11 if directories < DIRECTORIES_MAX => Action::MakeDirectory { at: new },
        12..=13 if has_room => Action::MakeLink {
            at: new,
            target: name(random).repeat(random.between(1, 3) as usize),
        },
        14..=19 => Action::Remove {
            at: place(model, random),
        },
        20..=26 => {
            let (from, mut to) = (place(model, random), place(model, random));
            if random.coin() {
                to.1 = name(random);
            }
            Action::Rename { from, to }
        }
        27..=29 => Action::Link {
            object: any(model, random, named)?,
            at: new,
        },
        30..=34 => Action::Lookup {
            at: place(model, random),
        },
        35..=38 => Action::List {
            directory: directory(model, random),
            page_bytes: random.pick(&[600, 1000, 8000]),
            cookie: 0,
            found: Vec::new(),
        },
        _ => Action::ReadLink {
            object: any(model, random, |it| {
                !it.is_directory() && it.file().is_none()
            })?,
        },
    })
}

fn data(model: &mut Model, swarm: &FileSwarm, random: &mut Random) -> Option<Action> {
    let object = any(model, random, |it| it.file().is_some())?;
    let (offset, length) = range(random, swarm);
    let is_fixed = model.is_being_cloned(object);
    let drawn = random.below(40);
    // What is copied must not change.
    if is_fixed && !(0..15).contains(&drawn) {
        return None;
    }
    Some(match drawn {
        0..=13 => Action::Read {
            object,
            offset,
            count: (length * random.between(1, 4)) as u32,
        },
        14 => Action::Seek {
            object,
            offset: random.below(swarm.file_bytes_max),
            is_data: random.coin(),
        },
        15..=27 => Action::Write {
            object,
            offset,
            length,
            write: model.next_write(),
            stable: random.pick(&[
                Stable::UNSTABLE,
                Stable::UNSTABLE,
                Stable::DATA_SYNC,
                Stable::FILE_SYNC,
            ]),
        },
        28..=30 => Action::Commit { object },
        31..=33 => Action::Truncate {
            object,
            size: random.pick(&[0, offset, offset - offset % BLOCK]),
        },
        34 => Action::Allocate {
            object,
            offset,
            length,
        },
        35..=36 => Action::Deallocate {
            object,
            offset,
            length,
        },
        _ => clone(model, object, random)?,
    })
}

/// A clone of whole blocks of a file that nothing changes.
fn clone(model: &Model, object: ObjectId, random: &mut Random) -> Option<Action> {
    let from = any(model, random, |it| it.file().is_some())?;
    let size = model.objects[from].file()?.now.size()?;
    let blocks = size.min(64 * BLOCK) / BLOCK;
    if from == object || model.is_changing(from) || blocks == 0 {
        return None;
    }
    let begin = random.below(blocks);
    let length = random.between(1, blocks - begin);
    Some(Action::Clone {
        from,
        begin: begin * BLOCK,
        object,
        offset: random.below(8) * BLOCK,
        length: length * BLOCK,
        is_copy: random.coin(),
    })
}

fn attributes(model: &Model, random: &mut Random) -> Option<Action> {
    let object = any(model, random, |_| true)?;
    let name = random.pick(&["user one", "two"]).to_owned();
    Some(match random.below(10) {
        0..=4 => Action::GetAttributes { object },
        5..=6 => Action::SetXattr {
            object,
            name,
            value: (0..random.below(3000)).map(|it| it as u8).collect(),
        },
        7..=8 => Action::GetXattr { object, name },
        _ => Action::RemoveXattr { object, name },
    })
}

/// A file that is open more often than not, so that share modes and locks meet.
fn shared_file(model: &Model, random: &mut Random) -> Option<ObjectId> {
    let open: Vec<ObjectId> = model.opens.keys().map(|it| it.1).collect();
    match !open.is_empty() && random.permille(600) {
        true => Some(random.pick(&open)),
        false => any(model, random, |it| it.file().is_some()),
    }
}

/// A file that a silent client has open.
fn silent_file(model: &Model, client: usize, random: &mut Random) -> Option<ObjectId> {
    let is_silent = |it: &usize| {
        let lease = model.leases.get(it).copied().unwrap_or_default();
        *it != client && lease != Lease::Valid
    };
    let files = model.opens.keys().filter(|it| is_silent(&it.0));
    let files: Vec<ObjectId> = files.map(|it| it.1).collect();
    match files.is_empty() {
        true => None,
        false => Some(random.pick(&files)),
    }
}

/// An action that a silent client may exclude.
fn against_silent(
    model: &Model,
    client: usize,
    object: ObjectId,
    random: &mut Random,
) -> Option<Action> {
    if model.is_used_by(client, object) {
        return None;
    }
    let wanted = Wanted {
        object,
        owner: 0,
        parts: Parts::ALL,
        is_exclusive: true,
    };
    Some(match (model.usable_open(client, object), random.below(3)) {
        (_, 0) => Action::TestLock { wanted },
        (Some(open), 1) if open.modes.access & share::ACCESS_WRITE != 0 => Action::Lock {
            wanted,
            tries: 0,
            is_reclaim: false,
        },
        _ => Action::Open {
            object,
            modes: Modes {
                access: Modes::BOTH.access,
                deny: share::DENY_NONE,
            },
        },
    })
}

fn modes(swarm: &FileSwarm, random: &mut Random) -> Modes {
    let deny = match random.permille(swarm.denial_permille) {
        true => random.pick(&[share::DENY_READ, share::DENY_WRITE, share::DENY_BOTH]),
        false => share::DENY_NONE,
    };
    Modes {
        access: random.pick(&[Modes::BOTH.access, share::ACCESS_READ, share::ACCESS_WRITE]),
        deny,
    }
}

fn opens(model: &Model, client: usize, swarm: &FileSwarm, random: &mut Random) -> Option<Action> {
    let object = shared_file(model, random)?;
    if model.is_used_by(client, object) {
        return None;
    }
    let modes = modes(swarm, random);
    let Some(open) = model.opens.get(&(client, object)) else {
        return Some(match random.permille(50) {
            true => Action::FalseReclaim { object },
            false => Action::Open { object, modes },
        });
    };
    if open.is_closing {
        return None;
    }
    let has_locks = open.locks.values().any(LockState::has_any);
    Some(match random.below(9) {
        0..=2 => Action::Open { object, modes },
        // Clients release locks before they give up the access that these need.
        3..=5 if !has_locks => Action::Downgrade {
            object,
            modes: match random.permille(800) {
                true => random.pick(&open.asked),
                false => modes,
            },
        },
        _ => Action::Close { object },
    })
}

fn locks(model: &Model, client: usize, random: &mut Random) -> Option<Action> {
    let open = model.opens.keys().filter(|it| it.0 == client);
    let open: Vec<ObjectId> = open.map(|it| it.1).collect();
    let wanted = Wanted {
        object: match open.is_empty() {
            true => shared_file(model, random)?,
            false => random.pick(&open),
        },
        owner: random.below(LOCK_OWNERS) as u8,
        parts: match random.permille(150) {
            true => Parts::ALL,
            false => {
                let part = |random: &mut Random| random.below(PARTS as u64) as usize;
                Parts::between(part(random), part(random))
            }
        },
        is_exclusive: random.coin(),
    };
    let drawn = random.below(10);
    if drawn >= 8 {
        return Some(Action::TestLock { wanted });
    }
    // An owner has one request at a time, as its state identifier changes.
    let (object, owner) = (wanted.object, wanted.owner);
    let is_waiting = model.pending.values().any(|it| {
        let waiting = match it.action {
            Action::Lock { wanted, .. } => Some((wanted.object, wanted.owner)),
            Action::Unlock { object, owner, .. } => Some((object, owner)),
            _ => None,
        };
        it.client == client && waiting == Some((object, owner))
    });
    let open = model.usable_open(client, object)?;
    if is_waiting {
        return None;
    }
    let has_state = open
        .locks
        .get(&owner)
        .is_some_and(|it| it.stateid.is_some());
    Some(match drawn {
        0..=1 if has_state => Action::Unlock {
            object,
            owner,
            parts: wanted.parts,
        },
        2 if has_state => Action::Unlock {
            object,
            owner,
            parts: Parts::ALL,
        },
        _ => Action::Lock {
            wanted,
            tries: random.pick(&[0, 0, 3]),
            is_reclaim: false,
        },
    })
}
