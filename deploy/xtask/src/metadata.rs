//! The parts of `cargo metadata` for the workspace that the checks use.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::process;

/// The workspace's packages, without their dependencies' packages.
#[derive(Debug, Deserialize)]
pub(crate) struct Metadata {
    pub(crate) packages: Vec<Package>,
}

/// One crate of the workspace.
#[derive(Debug, Deserialize)]
pub(crate) struct Package {
    pub(crate) name: String,
    /// Absolute path of its Cargo.toml.
    pub(crate) manifest_path: String,
    pub(crate) dependencies: Vec<Dependency>,
    pub(crate) targets: Vec<Target>,
}

/// One line of a crate's dependency tables.
#[derive(Debug, Deserialize)]
pub(crate) struct Dependency {
    pub(crate) name: String,
    /// "dev", "build", or absent for an ordinary dependency.
    pub(crate) kind: Option<String>,
    /// The platform or configuration it is for, as `cfg(…)`.
    pub(crate) target: Option<String>,
    /// `None` for dependencies from a registry.
    pub(crate) path: Option<String>,
}

/// A target that cargo builds from a package.
#[derive(Debug, Deserialize)]
pub(crate) struct Target {
    /// "lib", "bin", "test", "bench", "example", "custom-build", …
    pub(crate) kind: Vec<String>,
    pub(crate) src_path: String,
}

impl Package {
    /// The directory of its Cargo.toml.
    pub(crate) fn directory(&self) -> &Path {
        let manifest = Path::new(&self.manifest_path);
        manifest.parent().unwrap_or(Path::new("/"))
    }

    /// Every Rust file of the package, excluding other packages and build outputs in its directory.
    pub(crate) fn rust_files(&self) -> Result<Vec<PathBuf>, String> {
        let mut files = Vec::new();
        let mut pending = vec![self.directory().to_path_buf()];
        while let Some(folder) = pending.pop() {
            let entries =
                fs::read_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
            for entry in entries {
                let path = entry
                    .map_err(|e| format!("{}: {e}", folder.display()))?
                    .path();
                let is_package = path.join("Cargo.toml").is_file() || path.ends_with("target");
                if path.is_dir() && !path.is_symlink() && !is_package {
                    pending.push(path);
                } else if path.extension().is_some_and(|extension| extension == "rs") {
                    files.push(path);
                }
            }
        }
        files.sort();
        Ok(files)
    }
}

/// Runs `cargo metadata`.
pub(crate) fn of_workspace() -> Result<Metadata, String> {
    let mut cargo = process::cargo();
    cargo.args(["metadata", "--format-version", "1", "--no-deps"]);
    let text = process::output(&mut cargo)?;
    serde_json::from_slice(&text).map_err(|error| format!("cargo metadata: {error}"))
}
