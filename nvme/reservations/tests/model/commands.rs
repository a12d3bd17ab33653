//! Random commands, and their application to the state and to the model.

use nvme_reservations::{Outcome, Reservations};
use nvme_spec::command::reservation::{
    AcquireAction, AcquireControl, AcquireData, PersistChange, RegisterAction, RegisterControl,
    RegisterData, ReleaseAction, ReleaseControl, ReservationType,
};
use nvme_spec::{Status, U64};
use proptest::prelude::*;
use proptest::sample::select;

use crate::reference::{Effects, Model};
use crate::{HOSTS, identifier};

/// Few keys, so that hosts share them. The last two differ in the upper 32 bits alone.
const KEYS: [u64; 3] = [0, 0x1_0000_0007, 0x2_0000_0007];

/// A key of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    /// The key with which the host is registered, or zero.
    Of(u8),
    Value(u64),
}

impl Key {
    fn resolve(&mut self, model: &Model) {
        if let Self::Of(host) = *self {
            *self = Self::Value(model.keys.get(&host).copied().unwrap_or_default());
        }
    }

    fn value(self) -> u64 {
        match self {
            Self::Value(value) => value,
            Self::Of(_) => panic!("the key is not resolved"),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Register {
        host: u8,
        action: u8,
        iekey: bool,
        cptpl: u8,
        current: Key,
        new: Key,
    },
    Acquire {
        host: u8,
        action: u8,
        iekey: bool,
        code: u8,
        current: Key,
        preempted: Key,
    },
    Release {
        host: u8,
        action: u8,
        iekey: bool,
        code: u8,
        current: Key,
    },
    SetPersistence(bool),
    PowerLoss,
    Evict(u8),
}

fn host() -> impl Strategy<Value = u8> {
    select(&HOSTS)
}

fn key() -> impl Strategy<Value = Key> {
    prop_oneof![select(&KEYS).prop_map(Key::Value), host().prop_map(Key::Of),]
}

/// A host, and a current key that is usually right.
fn host_and_key() -> impl Strategy<Value = (u8, Key)> {
    host().prop_flat_map(|host| {
        let current = prop_oneof![9 => Just(Key::Of(host)), 1 => key()];
        (Just(host), current)
    })
}

fn rarely() -> impl Strategy<Value = bool> {
    prop::bool::weighted(0.05)
}

/// A type, rarely a reserved one.
fn code() -> impl Strategy<Value = u8> {
    prop_oneof![19 => 1..=6u8, 1 => any::<u8>()]
}

/// A command of one of the hosts.
pub(crate) fn command() -> impl Strategy<Value = Command> {
    let register_action = prop_oneof![12 => Just(0u8), 4 => Just(1), 3 => Just(2), 1 => 3..8u8];
    let cptpl = prop_oneof![16 => Just(0u8), 1 => Just(1), 1 => Just(2), 2 => Just(3)];
    let register = (host_and_key(), register_action, any::<bool>(), cptpl, key()).prop_map(
        |((host, current), action, iekey, cptpl, new)| Command::Register {
            host,
            action,
            iekey,
            cptpl,
            current,
            new,
        },
    );
    let acquire_action = prop_oneof![9 => 0..3u8, 1 => 3..8u8];
    let acquire = (host_and_key(), acquire_action, rarely(), code(), key()).prop_map(
        |((host, current), action, iekey, code, preempted)| Command::Acquire {
            host,
            action,
            iekey,
            code,
            current,
            preempted,
        },
    );
    let release_action = prop_oneof![16 => Just(0u8), 2 => Just(1), 1 => 2..8u8];
    let release = (host_and_key(), release_action, rarely(), code()).prop_map(
        |((host, current), action, iekey, code)| Command::Release {
            host,
            action,
            iekey,
            code,
            current,
        },
    );
    prop_oneof![
        16 => register,
        16 => acquire,
        6 => release,
        1 => any::<bool>().prop_map(Command::SetPersistence),
        1 => Just(Command::PowerLoss),
        1 => host().prop_map(Command::Evict),
    ]
}

impl Command {
    /// The command with the values of its keys.
    pub(crate) fn resolve(mut self, model: &Model) -> Self {
        match &mut self {
            Self::Register { current, new, .. } => {
                current.resolve(model);
                new.resolve(model);
            }
            Self::Acquire {
                current, preempted, ..
            } => {
                current.resolve(model);
                preempted.resolve(model);
            }
            Self::Release { current, .. } => current.resolve(model),
            Self::SetPersistence(_) | Self::PowerLoss | Self::Evict(_) => {}
        }
        self
    }

    pub(crate) fn apply(self, state: &mut Reservations) -> Result<Outcome, Status> {
        match self {
            Self::Register {
                host,
                action,
                iekey,
                cptpl,
                current,
                new,
            } => {
                let control = RegisterControl::new()
                    .with_action(RegisterAction(action))
                    .with_ignore_existing_key(iekey)
                    .with_cptpl(PersistChange(cptpl));
                let data = RegisterData {
                    crkey: U64::new(current.value()),
                    nrkey: U64::new(new.value()),
                };
                state.register(identifier(host), control, &data)
            }
            Self::Acquire {
                host,
                action,
                iekey,
                code,
                current,
                preempted,
            } => {
                let control = AcquireControl::new()
                    .with_action(AcquireAction(action))
                    .with_ignore_existing_key(iekey)
                    .with_rtype(ReservationType(code));
                let data = AcquireData {
                    crkey: U64::new(current.value()),
                    prkey: U64::new(preempted.value()),
                };
                state.acquire(identifier(host), control, &data)
            }
            Self::Release {
                host,
                action,
                iekey,
                code,
                current,
            } => {
                let control = ReleaseControl::new()
                    .with_action(ReleaseAction(action))
                    .with_ignore_existing_key(iekey)
                    .with_rtype(ReservationType(code));
                state.release(identifier(host), control, current.value())
            }
            Self::SetPersistence(persists) => state.set_persistence(persists),
            Self::PowerLoss => {
                state.apply_power_loss();
                Ok(Outcome::default())
            }
            Self::Evict(host) => Ok(state.evict(identifier(host))),
        }
    }

    pub(crate) fn apply_to_model(self, model: &mut Model) -> Result<Effects, Status> {
        match self {
            Self::Register {
                host,
                action,
                iekey,
                cptpl,
                current,
                new,
            } => {
                let keys = (current.value(), new.value());
                model.register(host, (action, iekey, cptpl), keys)
            }
            Self::Acquire {
                host,
                action,
                iekey,
                code,
                current,
                preempted,
            } => {
                let keys = (current.value(), preempted.value());
                model.acquire(host, (action, iekey, code), keys)
            }
            Self::Release {
                host,
                action,
                iekey,
                code,
                current,
            } => model.release(host, (action, iekey, code), current.value()),
            Self::SetPersistence(persists) => {
                model.persists = persists;
                Ok(Effects::default())
            }
            Self::PowerLoss => {
                model.lose_power();
                Ok(Effects::default())
            }
            Self::Evict(host) => Ok(model.evict(host)),
        }
    }
}
