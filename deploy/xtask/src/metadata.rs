//! What `cargo metadata` says about the workspace, as far as the checks look at it.

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
    /// Absent for what comes from a registry.
    pub(crate) path: Option<String>,
}

/// One thing that cargo builds of a package.
#[derive(Debug, Deserialize)]
pub(crate) struct Target {
    /// "lib", "bin", "test", "bench", "example", "custom-build", …
    pub(crate) kind: Vec<String>,
    pub(crate) src_path: String,
}

/// Asks cargo.
pub(crate) fn of_workspace() -> Result<Metadata, String> {
    let mut cargo = process::cargo();
    cargo.args(["metadata", "--format-version", "1", "--no-deps"]);
    let text = process::output(&mut cargo)?;
    serde_json::from_slice(&text).map_err(|error| format!("cargo metadata: {error}"))
}
