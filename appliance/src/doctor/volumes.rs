//! Checks what is served as files: volumes that are nearly full, cannot be changed or have lost their
//! device, and shares that no client can reach.

use appliance_config::Config;

use super::Finding;
use crate::observe::model::{FilesStatus, VolumeStatus};
use crate::observe::observation::{lost_volume, read_only_volume};

/// A volume is nearly full from this part on, in percent.
const FULL_PERCENT: u64 = 90;

/// Whether shares are served anywhere.
pub(super) fn check(config: &Config) -> Vec<Finding> {
    let files = &config.files;
    if files.shares.is_empty() || !files.listeners.is_empty() {
        return Vec::new();
    }
    let names: Vec<&str> = files.shares.iter().map(|it| it.name.as_str()).collect();
    let text = format!("no client reaches share(s) {}", names.join(", "));
    let fix = "add a [[file_listener]] with a name and an address, usually of port 2049, and `windlass apply` it";
    vec![Finding::broken("configuration", text, fix)]
}

/// The findings about the volumes of a running appliance.
pub(super) fn of(files: &FilesStatus) -> Vec<Finding> {
    files.volumes.iter().flat_map(of_volume).collect()
}

fn of_volume(volume: &VolumeStatus) -> Vec<Finding> {
    let name = &volume.name;
    if volume.device_gone {
        let fix = "insert the drive again, and `windlass bind` it: the volume is opened by itself; \
                   `windlass devices` lists drives";
        return vec![Finding::broken("running", lost_volume(name), fix)];
    }
    if volume.read_only {
        let fix = "repair the device, restart, and `windlass volume check` before that";
        return vec![Finding::broken("running", read_only_volume(name), fix)];
    }
    if !volume.served {
        return Vec::new();
    }
    let used = volume.data_bytes.saturating_sub(volume.free_bytes);
    let all = [
        (
            "is",
            (used, volume.data_bytes),
            "remove files, or add a volume on a larger device: when it is full, writes fail (ENOSPC)",
        ),
        (
            "uses its metadata_memory and is",
            (volume.metadata_bytes, volume.metadata_bytes_max),
            "remove files, or make a volume with more `metadata_memory`: when it is full, nothing can \
             be created (ENOSPC)",
        ),
        (
            "has a log that is",
            (volume.log_bytes, volume.log_bytes_max),
            "changes wait until a checkpoint is written: use a faster device",
        ),
    ];
    let full = all.into_iter().filter_map(|(what, (used, most), fix)| {
        let percent = used.saturating_mul(100).checked_div(most)?;
        let text = format!("volume {name} {what} {percent} % full");
        (percent >= FULL_PERCENT).then(|| Finding::slow("running", text, fix))
    });
    full.collect()
}

#[cfg(test)]
mod tests {
    use appliance_config::Config;

    use super::*;
    use crate::doctor::Verdict;

    fn volume(change: impl FnOnce(&mut VolumeStatus)) -> Vec<(Verdict, String)> {
        let mut volume = VolumeStatus {
            name: "v".to_owned(),
            device: "d".to_owned(),
            served: true,
            durable: true,
            read_only: false,
            device_gone: false,
            data_bytes: 1000,
            free_bytes: 101,
            inodes: 1,
            metadata_bytes: 899,
            metadata_bytes_max: 1000,
            log_bytes: 0,
            log_bytes_max: 0,
        };
        change(&mut volume);
        let found = of_volume(&volume).into_iter();
        found.map(|it| (it.verdict, it.text)).collect()
    }

    #[test]
    fn volumes_that_need_attention_are_reported() {
        assert_eq!(
            volume(|_| ()),
            [],
            "an empty log without a size is not full"
        );
        let full = volume(|it| {
            (it.free_bytes, it.metadata_bytes) = (100, 1000);
            (it.log_bytes, it.log_bytes_max) = (95, 100);
        });
        let texts = [
            "volume v is 90 % full",
            "volume v uses its metadata_memory and is 100 % full",
            "volume v has a log that is 95 % full",
        ];
        let expected = texts.map(|text| (Verdict::Slow, text.to_owned()));
        assert_eq!(full, expected);
        let gone = volume(|it| it.device_gone = true);
        assert_eq!(gone, [(Verdict::Broken, lost_volume("v"))]);
        let failed = volume(|it| (it.read_only, it.free_bytes) = (true, 0));
        assert_eq!(failed, [(Verdict::Broken, read_only_volume("v"))]);
        assert_eq!(volume(|it| (it.served, it.free_bytes) = (false, 0)), []);
    }

    #[test]
    fn shares_without_a_listener_are_reported() {
        let text = r#"
            [[device]]
            name = "ram"
            type = "memory"
            size = "8MiB"
            [[device]]
            name = "disk"
            type = "memory"
            size = "8MiB"
            [[volume]]
            name = "v"
            device = "ram"
            [[share]]
            name = "s"
            volume = "v"
            allow_any_client = true
            [[listener]]
            name = "l"
            transport = "tcp"
            address = "192.0.2.1:4420"
            [[export]]
            nqn = "nqn.2026-11.org.example:a"
            devices = ["disk"]
            listeners = ["l"]
            allow_any_host = true
        "#;
        let config = Config::parse("test", text).expect("valid");
        let found = check(&config);
        assert_eq!(found.len(), 1);
        assert!(found[0].text.contains("no client reaches share(s) s"));
        let listener = "[[file_listener]]\nname = \"nfs\"\naddress = \"192.0.2.1:2049\"\n";
        let config = Config::parse("test", &(text.to_owned() + listener)).expect("valid");
        assert_eq!(check(&config).len(), 0);
    }
}
