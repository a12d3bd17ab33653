//! Key files of every kind, valid and not.

use rustix::fs::Mode;
use tempfile::TempDir;

use super::*;
use crate::error::one_line;

const KEY: &str = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";

struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Self(TempDir::new().expect("a directory"))
    }

    /// A file that only its owner may read.
    fn file(&self, content: &[u8]) -> PathBuf {
        let path = self.0.path().join("key");
        fs::write(&path, content).expect("writable");
        fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("own file");
        path
    }
}

/// The message without the path.
#[track_caller]
fn problem(path: &Path) -> String {
    let error = read(path).expect_err("not a key");
    let line = one_line(&error);
    assert!(!line.contains("VRLb"), "{line}");
    let beginning = format!("windlass: key file {}: ", path.display());
    let rest = line.strip_prefix(&beginning);
    rest.unwrap_or_else(|| panic!("{line}")).to_owned()
}

#[test]
fn a_key_may_have_one_line_break() {
    let folder = Folder::new();
    for content in [KEY.to_owned(), format!("{KEY}\n")] {
        let secret = read(&folder.file(content.as_bytes())).expect("a key");
        assert_eq!(secret.expose_interchange().as_str(), KEY);
    }
}

#[test]
fn wrong_content_is_named() {
    let folder = Folder::new();
    let white_space = "the key contains white space: remove it";
    let not_text = "it is not text: name a file with only a key";
    let mut damaged = KEY.to_owned();
    damaged.replace_range(20..21, "z");
    let mut binary = KEY.as_bytes().to_vec();
    binary[30] = 0;
    let cases: [(Vec<u8>, &str); 13] = [
        (b"".to_vec(), "the key is empty"),
        (b"\n".to_vec(), "the key is empty"),
        (format!("{KEY}\n\n").into(), white_space),
        (format!("{KEY}\r\n").into(), white_space),
        (format!(" {KEY}").into(), white_space),
        (format!("{KEY} \n").into(), white_space),
        (
            format!("{}\n{}", &KEY[..40], &KEY[40..]).into(),
            white_space,
        ),
        (binary, not_text),
        (vec![0xff; 65], not_text),
        (damaged.into(), "the key's CRC-32 is wrong: copy it again"),
        (
            KEY.replace(":01:", ":02:").into(),
            "the key has 32 bytes, which does not fit SHA-384",
        ),
        (
            KEY.replace(":01:", ":07:").into(),
            "the key has an unknown hash after its prefix: 00, 01 and 02 are known",
        ),
        (
            b"secret".to_vec(),
            "the key begins with neither NVMeTLSkey-1: nor DHHC-1:",
        ),
    ];
    for (content, expected) in cases {
        assert_eq!(problem(&folder.file(&content)), expected);
    }
}

#[test]
fn a_long_file_is_read_up_to_the_limit() {
    let folder = Folder::new();
    let path = folder.file(KEY.as_bytes());
    // A sparse file: reading all of it would need as much memory.
    let file = OpenOptions::new()
        .write(true)
        .open(&path)
        .expect("writable");
    file.set_len(1 << 40).expect("a sparse file");
    assert!(problem(&path).starts_with("it has more than 129 bytes"));
    let at_limit = folder.file("k".repeat(FILE_LEN_MAX).as_bytes());
    assert!(problem(&at_limit).starts_with("the key has 129 characters"));
}

#[test]
fn what_is_not_a_file_is_named() {
    let folder = Folder::new();
    let directory = folder.0.path();
    assert_eq!(
        problem(directory),
        "it is a directory: name a file with a key"
    );
    let pipe = directory.join("pipe");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &pipe,
        rustix::fs::FileType::Fifo,
        Mode::RUSR | Mode::WUSR,
        0,
    )
    .expect("a pipe");
    assert_eq!(
        problem(&pipe),
        "it is not a regular file: name a file with a key"
    );
    let missing = directory.join("missing");
    assert!(problem(&missing).contains("No such file"));
}

#[test]
fn files_of_other_users_are_refused_with_the_fix() {
    let folder = Folder::new();
    let path = folder.file(KEY.as_bytes());
    for mode in [0o640, 0o604, 0o660, 0o644, 0o601] {
        fs::set_permissions(&path, Permissions::from_mode(mode)).expect("own file");
        let expected = format!(
            "other users may use it (mode {mode:04o}): run chmod 600 {}",
            path.display()
        );
        assert_eq!(problem(&path), expected);
    }
    fs::set_permissions(&path, Permissions::from_mode(0o400)).expect("own file");
    assert!(read(&path).is_ok());
}

#[test]
fn a_file_is_created_for_its_owner_and_never_overwritten() {
    let folder = Folder::new();
    let path = folder.0.path().join("new");
    create(&path, KEY).expect("created");
    let mode = fs::metadata(&path).expect("a file").permissions().mode();
    assert_eq!(mode & 0o7777, 0o600);
    assert_eq!(
        read(&path).expect("a key").expose_interchange().as_str(),
        KEY
    );

    let error = create(&path, "other").expect_err("it exists");
    assert!(error.to_string().contains("is not overwritten"), "{error}");
    assert!(read(&path).is_ok());
    let link = folder.0.path().join("link");
    std::os::unix::fs::symlink(folder.0.path().join("elsewhere"), &link).expect("a link");
    let error = create(&link, KEY).expect_err("a link");
    assert!(matches!(error, KeyFileError::Exists(_)), "{error}");
    let nowhere = folder.0.path().join("no/directory");
    assert!(matches!(create(&nowhere, KEY), Err(KeyFileError::Io(..))));
}
