//! Every file in `tests/wrong` is invalid; the expected text for people is beside it.
//!
//! `UPDATE_EXPECTED=1` rewrites the expected texts; review them before committing.

use std::fs;
use std::path::{Path, PathBuf};

use appliance_config::Config;

fn wrong_files() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/wrong");
    let mut files: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "toml")
        })
        .collect();
    files.sort();
    files
}

#[test]
fn wrong_files_give_the_expected_text() {
    let files = wrong_files();
    assert!(files.len() >= 13, "only {} wrong files", files.len());
    for path in files {
        let name = path.file_name().unwrap().to_str().unwrap();
        let problems = Config::parse_bytes(name, &fs::read(&path).unwrap()).unwrap_err();
        let text = problems.to_string();
        let expected_path = path.with_extension("txt");
        if std::env::var_os("UPDATE_EXPECTED").is_some() {
            fs::write(&expected_path, &text).unwrap();
        }
        let expected = fs::read_to_string(&expected_path).unwrap_or_default();
        assert!(
            text == expected,
            "{name} gives\n{text}\ninstead of\n{expected}"
        );
    }
}
