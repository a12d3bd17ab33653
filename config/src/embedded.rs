//! The default configuration of an appliance that is started without a file.

use std::path::Path;

use crate::model::Config;
use crate::print::quoted;
use crate::problem::Problems;

const EMBEDDED: &str = include_str!("embedded.toml");
const PATH_IN_EMBEDDED: &str = "\"/var/lib/windlass/demo.img\"";

impl Config {
    /// The name of [`Config::embedded_text`] in problems and messages.
    pub const EMBEDDED_NAME: &'static str = "embedded default";

    /// The text of the embedded default: one namespace in memory, one in the file at `path`,
    /// NVMe/TCP on 127.0.0.1:4420.
    ///
    /// The path should be absolute and UTF-8, because [`Config::parse`] accepts no other.
    pub fn embedded_text(path: &Path) -> String {
        EMBEDDED.replace(PATH_IN_EMBEDDED, &quoted(&path.to_string_lossy()))
    }

    /// The embedded default with its file at `path`.
    ///
    /// # Errors
    /// If a configuration may not have the path: not absolute, a directory, or not UTF-8.
    pub fn default_embedded(path: &Path) -> Result<Config, Problems> {
        // A byte that is not UTF-8 is kept, so that it is reported instead of opening another file.
        let text = match path.to_str() {
            Some(_) => Config::embedded_text(path).into_bytes(),
            None => {
                let (before, after) = EMBEDDED
                    .split_once(PATH_IN_EMBEDDED)
                    .unwrap_or((EMBEDDED, ""));
                let path = path.as_os_str().as_encoded_bytes();
                [before.as_bytes(), b"\"", path, b"\"", after.as_bytes()].concat()
            }
        };
        Config::parse_bytes(Config::EMBEDDED_NAME, &text)
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    use super::*;
    use crate::problem::ProblemKind;
    use crate::{Access, Backing, ByteSize};

    #[test]
    fn embedded_default_refuses_invalid_paths() {
        for (path, kind) in [
            (OsStr::new("demo.img"), ProblemKind::BadValue),
            (OsStr::new(""), ProblemKind::BadValue),
            (OsStr::new("/tmp/"), ProblemKind::BadValue),
            (OsStr::new("/tmp/a\nb"), ProblemKind::BadValue),
            (OsStr::from_bytes(b"/tmp/\xff"), ProblemKind::NotUtf8),
        ] {
            let problems = Config::default_embedded(Path::new(path)).unwrap_err();
            let kinds: Vec<_> = problems.iter().map(crate::Problem::kind).collect();
            assert_eq!(kinds, [kind], "{path:?}");
        }
    }

    #[test]
    fn embedded_default_exports_memory_and_a_file_on_loopback() {
        let path = Path::new("/tmp/a \"quoted\" \\ name");
        let config = Config::default_embedded(path).unwrap();
        assert_eq!(config.listeners[0].address.to_string(), "127.0.0.1:4420");
        assert_eq!(config.devices.len(), 2);
        assert!(matches!(config.devices[0].backing, Backing::Memory { .. }));
        let size = Some(ByteSize::from_gib(1));
        assert_eq!(
            config.devices[1].backing,
            Backing::File {
                path: path.to_owned(),
                size,
                block_size: crate::BlockSize::default(),
                shared: false,
            }
        );
        assert_eq!(config.exports.len(), 1);
        assert_eq!(config.exports[0].access, Access::AnyHost);
        let namespaces = &config.exports[0].namespaces;
        assert_eq!(
            namespaces
                .iter()
                .map(|namespace| namespace.nsid)
                .collect::<Vec<_>>(),
            [1, 2]
        );
        assert_eq!(config.notices(), []);
    }
}
