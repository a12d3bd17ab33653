//! The commands on directory trees that represent machines.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use super::*;

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// A machine with one drive of the kernel's driver, 0000:01:00.0, with one namespace.
fn machine() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    let pci = root.path().join("sys/bus/pci");
    let device = pci.join("devices/0000:01:00.0");
    write(&device.join("class"), "0x010802\n");
    write(&device.join("vendor"), "0x1b36\n");
    write(&device.join("device"), "0x0010\n");
    write(&device.join("numa_node"), "1\n");
    write(&device.join("nvme/nvme0/model"), "A drive  \n");
    write(&device.join("nvme/nvme0/serial"), "S1\n");
    write(&device.join("nvme/nvme0/nvme0n1/size"), "2097152\n");
    let block = root.path().join("sys/class/block/nvme0n1");
    write(&block.join("dev"), "259:0\n");
    write(&block.join("size"), "2097152\n");
    write(&block.join("nsid"), "3\n");
    write(&root.path().join("dev/nvme0n1"), "");
    fs::create_dir_all(pci.join("drivers/nvme")).unwrap();
    fs::create_dir_all(pci.join("drivers/vfio-pci")).unwrap();
    symlink("../../drivers/nvme", device.join("driver")).unwrap();
    let group = root.path().join("sys/kernel/iommu_groups/7/devices");
    fs::create_dir_all(&group).unwrap();
    symlink("x", group.join("0000:01:00.0")).unwrap();
    symlink(
        "../../../../kernel/iommu_groups/7",
        device.join("iommu_group"),
    )
    .unwrap();
    root
}

#[test]
fn machine_without_drives() {
    let root = tempfile::tempdir().unwrap();
    let drives = listing::list(&System::at(root.path()));
    assert_eq!(listing::table(&drives), "no NVMe drives\n");
    assert_eq!(listing::json(&drives).unwrap(), "[]\n");
}

#[test]
fn drive_in_use_is_listed_with_its_users() {
    let root = machine();
    let mounts = "36 1 259:0 / /srv/a\\040b rw - ext4 /dev/nvme0n1 rw\n";
    write(&root.path().join("proc/self/mountinfo"), mounts);
    let drives = listing::list(&System::at(root.path()));
    assert_eq!(
        listing::table(&drives),
        "ADDRESS       MODEL    SERIAL  DRIVER  GROUP  NUMA  SIZE\n\
         0000:01:00.0  A drive  S1      nvme    7      1     1 GiB\n    \
         0000:01:00.0 is in use: /dev/nvme0n1 is mounted on /srv/a b: umount it first\n"
    );
    let json: serde_json::Value = serde_json::from_str(&listing::json(&drives).unwrap()).unwrap();
    let drive = &json[0];
    assert_eq!(drive["address"], "0000:01:00.0");
    assert_eq!(drive["iommu_group"]["number"], 7);
    assert_eq!(drive["uses"][0]["kind"], "mounted");
    assert_eq!(drive["namespaces"][0]["bytes"], 1 << 30);
    assert_eq!(drive["namespaces"][0]["nsid"], 3);
    assert_eq!(drive["ready"], false);
}

#[test]
fn free_drive_is_listed_with_its_group_members() {
    let root = machine();
    let other = root.path().join("sys/bus/pci/devices/0000:00:1f.3");
    write(&other.join("class"), "0x040300\n");
    let group = root.path().join("sys/kernel/iommu_groups/7/devices");
    symlink("x", group.join("0000:00:1f.3")).unwrap();
    let system = System::at(root.path());
    let text = listing::table(&listing::list(&system));
    assert!(text.contains("7 shared"), "{text}");
    let offer = "`windlass bind 0000:01:00.0` moves it to vfio-pci";
    assert!(text.contains(offer), "{text}");
    let also = "IOMMU group 7 also has 0000:00:1f.3\n";
    assert!(text.contains(also), "{text}");

    symlink("../../drivers/snd_hda_intel", other.join("driver")).unwrap();
    let text = listing::table(&listing::list(&system));
    let shares = "0000:01:00.0 shares IOMMU group 7 with 0000:00:1f.3 (snd_hda_intel)";
    assert!(text.contains(shares) && !text.contains(offer), "{text}");
    assert_eq!(text.lines().count(), 3, "{text}");
}

#[test]
fn dry_run_reports_and_changes_nothing() {
    let root = machine();
    let addresses = ["0000:01:00.0".parse().unwrap()];
    let system = System::at(root.path());
    let plan = vfio::plan_bind(&system, &addresses).unwrap();
    let text = perform(plan, true).unwrap();
    assert_eq!(
        text,
        "would move 0000:01:00.0 from nvme to vfio-pci (IOMMU group 7)\n"
    );
    let device = root.path().join("sys/bus/pci/devices/0000:01:00.0");
    assert!(!device.join("driver_override").exists());
}

#[test]
fn each_bind_problem_is_one_line() {
    let root = machine();
    let system = System::at(root.path());
    let addresses = ["0000:09:00.0", "0000:01:00.0", "0000:08:00.0"];
    let addresses = addresses.map(|address| address.parse().unwrap());
    let problems = vfio::plan_bind(&system, &addresses).unwrap_err();
    let lines = all_of(&problems).to_string();
    assert_eq!(lines.lines().count(), 2, "{lines}");
    assert!(
        lines
            .lines()
            .all(|line| line.starts_with("windlass: 0000:0")),
        "{lines}"
    );
}

#[test]
fn sizes_are_printed_briefly() {
    for (bytes, text) in [
        (0, "0 KiB"),
        (512, "0.5 KiB"),
        (1 << 20, "1 MiB"),
        (3_840_755_982_336, "3.4 TiB"),
    ] {
        let root = machine();
        let size = root.path().join("sys/class/block/nvme0n1/size");
        write(&size, &(bytes / 512).to_string());
        let system = System::at(root.path());
        let address = "0000:01:00.0".parse().unwrap();
        let function = vfio::Function::inspect(&system, address).unwrap();
        let text_of = listing::table(&listing::list(&system));
        assert_eq!(function.disks[0].bytes, bytes / 512 * 512);
        assert!(text_of.contains(text), "{text_of}");
    }
}
