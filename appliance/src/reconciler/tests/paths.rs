//! Checks the permissions of control plane clients that apply their own configuration.

use std::os::unix::fs::symlink;
use std::path::Path;

use tempfile::TempDir;

use super::lab::{apply, base, file, started, steps_to, try_apply, with_export};
use crate::reconciler::{ApplyOptions, Origin};

const BY_REQUEST: ApplyOptions = ApplyOptions {
    dry_run: false,
    partial: false,
    origin: Origin::Request,
};

fn restricted(how: &str) -> String {
    base("10s").replace("[control]\n", &format!("[control]\n{how}\n"))
}

#[test]
fn requested_files_must_be_below_allowed_paths() {
    let directory = TempDir::new().expect("a directory");
    let (allowed, secret) = (
        directory.path().join("allowed"),
        directory.path().join("secret"),
    );
    std::fs::create_dir(&allowed).expect("made");
    std::fs::write(&secret, [7; 1 << 20]).expect("written");
    symlink("..", allowed.join("up")).expect("linked");
    symlink("../secret", allowed.join("link")).expect("linked");
    let now = restricted(&format!("allowed_paths = [\"{}\"]", allowed.display()));
    let with = |path: &Path, size: &str| now.clone() + &with_export("vol", &file(path, size));
    let mut appliance = started(&now);
    let beside = directory.path().join("allowed-not");
    for path in [
        secret.clone(),
        beside.clone(),
        allowed.join("link"),
        allowed.join("up/secret"),
        allowed.join("up/new"),
        allowed.join("../secret"),
        "/dev/null".into(),
    ] {
        let response = try_apply(&mut appliance, &with(&path, "1MiB"), BY_REQUEST);
        let failure_reason = response.failure_reason().expect("a refusal");
        assert!(
            failure_reason.contains("nothing was changed"),
            "{failure_reason}"
        );
        let named = path.file_name().expect("a name").to_str().expect("UTF-8");
        assert!(failure_reason.contains(named), "{failure_reason}");
        assert_eq!(steps_to(&appliance, &now), []);
    }
    assert!(!directory.path().join("new").exists() && !beside.exists());
    assert_eq!(std::fs::read(&secret).expect("there"), [7; 1 << 20]);
    let inside = with(&allowed.join("vol"), "1MiB");
    let response = try_apply(&mut appliance, &inside, BY_REQUEST);
    assert!(response.applied, "{response:#?}");
    // The owner of the file may place them anywhere; a request cannot change such a file.
    let outside = with(&secret, "1MiB");
    apply(&mut appliance, &outside);
    let response = try_apply(&mut appliance, &with(&secret, "2MiB"), BY_REQUEST);
    assert!(!response.applied, "{response:#?}");
    let response = try_apply(&mut appliance, &now, BY_REQUEST);
    assert!(response.applied, "removing is no access: {response:#?}");
    assert!(appliance.stop_quietly());
}

#[test]
fn apply_requests_are_refused_if_disabled() {
    let now = restricted("apply = false");
    let more = now.clone() + &with_export("more", "type = \"null\"\nsize = \"1MiB\"");
    let mut appliance = started(&now);
    let response = try_apply(&mut appliance, &more, BY_REQUEST);
    let failure_reason = response.failure_reason().expect("a refusal");
    assert!(
        failure_reason.contains("`apply = false`"),
        "{failure_reason}"
    );
    assert_eq!(steps_to(&appliance, &now), []);
    let dry_run = ApplyOptions {
        dry_run: true,
        ..BY_REQUEST
    };
    let response = try_apply(&mut appliance, &more, dry_run);
    assert!(response.refused.is_none() && !response.steps.is_empty());
    // The file with which it was started.
    apply(&mut appliance, &more);
    assert!(appliance.stop_quietly());
}

/// If a file cannot be flushed on removal of its device, acknowledged data may be lost, and the
/// response says so.
#[test]
fn device_removal_warns_if_the_flush_fails() {
    let directory = TempDir::new().expect("a directory");
    let path = directory.path().join("vol");
    let with = base("10s") + &with_export("vol", &file(&path, "1MiB"));
    let mut appliance = started(&base("10s"));
    for cut in [false, true] {
        apply(&mut appliance, &with);
        if cut {
            let file = std::fs::OpenOptions::new().write(true).open(&path);
            file.expect("it is there").set_len(512).expect("shorter");
        }
        let response = apply(&mut appliance, &base("10s"));
        let warnings: Vec<&String> = response.steps.iter().flat_map(|it| &it.warning).collect();
        assert_eq!(warnings.len(), usize::from(cut), "{response:#?}");
        for warning in warnings {
            assert!(warning.contains("may be lost"), "{warning}");
        }
    }
    assert!(appliance.stop_quietly());
}

/// A smaller size would lose the whole content of the memory.
#[test]
fn shrinking_a_memory_device_is_refused() {
    let memory = |size: &str| format!("type = \"memory\"\nsize = \"{size}\"");
    let now = base("10s") + &with_export("ram", &memory("2MiB"));
    let mut appliance = started(&now);
    let smaller = base("10s") + &with_export("ram", &memory("1MiB"));
    let response = try_apply(&mut appliance, &smaller, ApplyOptions::default());
    let failure_reason = response.failure_reason().expect("a refusal");
    for part in [
        "ram",
        "never made smaller",
        "another name",
        "nothing was changed",
    ] {
        assert!(failure_reason.contains(part), "{failure_reason}");
    }
    assert_eq!(steps_to(&appliance, &now), []);
    apply(
        &mut appliance,
        &(base("10s") + &with_export("ram2", &memory("1MiB"))),
    );
    assert!(appliance.stop_quietly());
}
