//! The directory of the appliance's persistent state, with a directory for each kind of state.

use std::path::PathBuf;

use crate::embedded::data_directory;

/// Records of served contents.
const IDENTITIES: &str = "identities";
/// Reservations of devices.
const RESERVATIONS: &str = "reservations";

/// The state directory. Without a path, no state persists.
#[derive(Clone, Debug, Default)]
pub(crate) struct StateDirectory(Option<PathBuf>);

impl StateDirectory {
    /// The directory of this user: the service's state directory (systemd.exec(5): STATE_DIRECTORY
    /// has colons between several), or else the data directory.
    pub(crate) fn of_user() -> Self {
        let given = std::env::var("STATE_DIRECTORY").ok();
        let given = given.and_then(|text| text.split(':').next().map(PathBuf::from));
        let state = given.filter(|path| path.is_absolute());
        Self(state.or_else(data_directory))
    }

    /// The state directory at `path`.
    #[cfg(test)]
    pub(crate) fn at(path: PathBuf) -> Self {
        Self(Some(path))
    }

    /// The directory of the records of served contents.
    pub(crate) fn identities(&self) -> Option<PathBuf> {
        Some(self.0.as_ref()?.join(IDENTITIES))
    }

    /// The directory of the reservations of devices.
    pub(crate) fn reservations(&self) -> Option<PathBuf> {
        Some(self.0.as_ref()?.join(RESERVATIONS))
    }
}
