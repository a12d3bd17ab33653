//! Tests with directory trees as machines: one without findings, and the finding for each change of
//! it.

use std::os::unix::fs::symlink;

use tempfile::TempDir;

use super::*;

const CONFIG: &str = r#"
[appliance]
cores = "2,3"
memory = "1GiB"
[control]
group = "storage"
[[device]]
name = "vol0"
type = "file"
path = "/srv/vol0.img"
size = "64KiB"
[[listener]]
name = "san"
transport = "tcp"
address = "192.0.2.10:4420"
[[export]]
nqn = "nqn.2026-11.org.windlass:x"
devices = ["vol0"]
listeners = ["san"]
hosts = ["nqn.2014-08.org.example:host"]
"#;

/// A machine with two nodes of two cores each, without findings for [`CONFIG`].
struct Tree(TempDir);

impl Tree {
    fn new() -> Self {
        let tree = Self(TempDir::new().expect("a directory"));
        for (path, text) in [
            ("proc/sys/kernel/osrelease", "6.12.1-amd64\n"),
            ("proc/sys/kernel/io_uring_disabled", "0\n"),
            ("proc/sys/vm/memfd_noexec", "0\n"),
            ("proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t6291456\n"),
            ("proc/sys/net/ipv4/tcp_wmem", "4096\t16384\t4194304\n"),
            (
                "proc/sys/net/ipv4/tcp_available_congestion_control",
                "reno cubic\n",
            ),
            (
                "proc/meminfo",
                "MemTotal:  1 kB\nHugepagesize:       2048 kB\n",
            ),
            (
                "proc/self/status",
                "Name:\tx\nGid:\t7 7 7 7\nGroups:\t7 44\nVmLck:\t0 kB\n\
                 CapEff:\t0000000000000000\nCpus_allowed_list:\t0-3\n",
            ),
            (
                "proc/self/limits",
                "Limit Soft Hard Units\nMax open files  65536 65536 files\n\
                 Max locked memory  unlimited unlimited bytes\n",
            ),
            (
                "proc/self/mountinfo",
                "21 1 8:1 / / rw - ext4 /dev/sda1 rw\n22 21 8:2 / /srv rw - xfs /dev/sdb rw\n",
            ),
            (
                "proc/net/fib_trie",
                "Main:\n  +-- 192.0.2.0/24 2 0 2\n     |-- 192.0.2.10\n        /32 host LOCAL\n",
            ),
            (
                "proc/net/route",
                "Iface Destination Gateway Flags RefCnt Use Metric Mask\n\
                 eth0 00000000 010200C0 3 0 0 0 00000000\neth1 000200C0 00000000 1 0 0 0 00FFFFFF\n",
            ),
            ("sys/class/net/eth1/operstate", "up\n"),
            ("sys/class/net/eth1/speed", "100000\n"),
            ("sys/class/net/eth1/mtu", "9000\n"),
            ("sys/class/net/eth1/device/numa_node", "1\n"),
            ("sys/devices/system/cpu/online", "0-3\n"),
            ("sys/devices/system/cpu/isolated", "2-3\n"),
            ("sys/devices/system/node/node0/cpulist", "0-1\n"),
            ("sys/devices/system/node/node1/cpulist", "2-3\n"),
            ("etc/group", "root:x:0:\nstorage:x:44:alice\n"),
        ] {
            tree.write(path, text);
        }
        for core in 0..4 {
            let folder = format!("sys/devices/system/cpu/cpu{core}");
            tree.write(
                &format!("{folder}/cpufreq/scaling_governor"),
                "performance\n",
            );
            let siblings = format!("{folder}/topology/thread_siblings_list");
            tree.write(&siblings, &format!("{core}\n"));
        }
        tree.pages(1024, 1024);
        std::fs::create_dir_all(tree.0.path().join("srv")).expect("writable");
        tree
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.0.path().join(path);
        std::fs::create_dir_all(path.parent().expect("in the tree")).expect("writable");
        std::fs::write(path, text).expect("writable");
    }

    /// Sets the number of 2 MiB pages, all on the second node.
    fn pages(&self, total: u64, free: u64) {
        for (folder, total, free) in [
            ("sys/kernel/mm/hugepages/hugepages-2048kB", total, free),
            (
                "sys/devices/system/node/node0/hugepages/hugepages-2048kB",
                0,
                0,
            ),
            (
                "sys/devices/system/node/node1/hugepages/hugepages-2048kB",
                total,
                free,
            ),
        ] {
            self.write(&format!("{folder}/nr_hugepages"), &total.to_string());
            self.write(&format!("{folder}/free_hugepages"), &free.to_string());
        }
        self.write(
            "sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages",
            "0",
        );
    }

    fn examine(&self, config: &str) -> Report {
        let config = Config::parse("test", config).expect("a right configuration");
        examine(&Machine::at(self.0.path()), &config, None, Vec::new())
    }

    /// Expects a single finding that is not fine, with this area, text and remedy.
    #[track_caller]
    fn expect(&self, config: &str, verdict: Verdict, area: &str, text: &str, fix: &str) {
        let report = self.examine(config);
        assert_eq!(report.worst, verdict, "{report:#?}");
        let others = report.findings.iter();
        let others: Vec<&Finding> = others.filter(|it| it.verdict != Verdict::Fine).collect();
        let [found] = others[..] else {
            panic!("{others:#?}");
        };
        assert_eq!(found.area, area, "{found:?}");
        assert!(found.text.contains(text), "{found:?}");
        let given = found.fix.as_deref().unwrap_or_default();
        assert!(given.contains(fix), "{found:?}");
    }

    #[track_caller]
    fn slow(&self, area: &str, text: &str, fix: &str) {
        self.expect(CONFIG, Verdict::Slow, area, text, fix);
    }

    #[track_caller]
    fn broken(&self, area: &str, text: &str, fix: &str) {
        self.expect(CONFIG, Verdict::Broken, area, text, fix);
    }
}

#[test]
fn healthy_machine_has_no_findings_to_fix() {
    let report = Tree::new().examine(CONFIG);
    assert_eq!(report.worst, Verdict::Fine, "{report:#?}");
    assert!(report.findings.iter().all(|finding| finding.fix.is_none()));
    let text = text(&report);
    assert!(text.ends_with("\neverything is fine\n"), "{text}");
    for part in [
        "Linux 6.12.1",
        "isolated",
        "eth1, 100000 Mbit/s",
        "on xfs",
        "io_uring",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    let json = serde_json::to_value(&report).expect("JSON");
    assert_eq!(json["worst"], "fine");
    assert_eq!(json["memory"]["configured"], 1_u64 << 30);
}

#[test]
fn too_few_huge_pages() {
    let tree = Tree::new();
    tree.pages(100, 90);
    let report = tree.examine(CONFIG);
    let pages = |finding: &&Finding| finding.area == "pages" && finding.fix.is_some();
    let found: Vec<&Finding> = report.findings.iter().filter(pages).collect();
    // 512 wanted, 90 free: 422 more than the 100 reserved.
    let first = found[0].fix.as_deref().expect("a remedy");
    assert!(first.starts_with("sysctl vm.nr_hugepages=522"), "{first}");
    assert_eq!(report.worst, Verdict::Slow);
    let huge = CONFIG.replace("memory =", "pages = \"huge\"\nmemory =");
    assert_eq!(tree.examine(&huge).worst, Verdict::Broken);
    // With another default size, sysctl counts other pages.
    tree.write("proc/meminfo", "Hugepagesize:  1048576 kB\n");
    let report = tree.examine(CONFIG);
    let first = report.findings.iter().find(pages).expect("one");
    let fix = first.fix.as_deref().expect("a remedy");
    assert!(
        fix.starts_with("echo 522 > /sys/kernel/mm/hugepages"),
        "{fix}"
    );
}

#[test]
fn huge_pages_of_a_running_appliance_are_not_missing() {
    let tree = Tree::new();
    tree.pages(520, 8);
    let report = tree.examine(CONFIG);
    assert_eq!(report.worst, Verdict::Fine, "{report:#?}");
    assert!(text(&report).contains("a running appliance may hold the others"));
}

#[test]
fn huge_pages_on_another_node_than_the_reactors() {
    let tree = Tree::new();
    for (node, total) in [(0, "1024"), (1, "0")] {
        let folder = format!("sys/devices/system/node/node{node}/hugepages/hugepages-2048kB");
        tree.write(&format!("{folder}/nr_hugepages"), total);
    }
    tree.slow(
        "pages",
        "node 0: 1024",
        "echo 512 > /sys/devices/system/node/node1/",
    );
}

#[test]
fn a_kernel_without_huge_pages() {
    let tree = Tree::new();
    std::fs::remove_dir_all(tree.0.path().join("sys/kernel/mm")).expect("there");
    for node in 0..2 {
        let folder = format!("sys/devices/system/node/node{node}");
        tree.write(
            &format!("{folder}/hugepages/hugepages-2048kB/nr_hugepages"),
            "512",
        );
    }
    tree.slow("pages", "no pages of 2 MiB", "CONFIG_HUGETLBFS");
}

#[test]
fn low_resource_limits() {
    let tree = Tree::new();
    let limits = |files: &str, locked: &str| {
        let text = format!("Max open files {files} x files\nMax locked memory {locked} x bytes\n");
        tree.write("proc/self/limits", &text);
    };
    limits("1024", "unlimited");
    tree.broken("limits", "1024 descriptors", "ulimit -n 1280");
    limits("65536", "8388608");
    tree.slow("limits", "may lock 8 MiB", "ulimit -l unlimited");
    // CAP_IPC_LOCK.
    let status = "VmLck: 0 kB\nCapEff: 0000000000004000\nCpus_allowed_list: 0-3\n";
    tree.write("proc/self/status", status);
    assert_eq!(tree.examine(CONFIG).worst, Verdict::Fine);
    tree.write("etc/group", "root:x:0:\n");
    tree.broken(
        "limits",
        "group storage does not exist",
        "groupadd --system storage",
    );
}

#[test]
fn missing_shared_or_slow_cores() {
    let tree = Tree::new();
    tree.write("sys/devices/system/cpu/isolated", "3\n");
    tree.slow(
        "cores",
        "other programs run on 2 too",
        "isolcpus=managed_irq,domain,2,3",
    );
    let auto = CONFIG.replace("cores = \"2,3\"", "cores = \"auto\"");
    assert_eq!(tree.examine(&auto).worst, Verdict::Fine);
    tree.write("sys/devices/system/cpu/isolated", "2,3\n");
    let siblings = "sys/devices/system/cpu/cpu2/topology/thread_siblings_list";
    tree.write(siblings, "2-3\n");
    tree.slow("cores", "2,3 are threads of one", "cores = \"2\"");
    tree.write(siblings, "2\n");
    let governor = "sys/devices/system/cpu/cpu3/cpufreq/scaling_governor";
    tree.write(governor, "powersave\n");
    tree.slow(
        "cores",
        "of 3 is powersave",
        "cpupower -c 3 frequency-set -g performance",
    );
    tree.write(governor, "performance\n");
    let status = "VmLck: 0 kB\nCapEff: 0\nCpus_allowed_list: 0-2\n";
    tree.write("proc/self/status", status);
    tree.broken(
        "cores",
        "core 3 does not exist or is not allowed",
        "AllowedCPUs",
    );
}

#[test]
fn reactors_on_two_nodes() {
    let tree = Tree::new();
    tree.write("sys/devices/system/cpu/isolated", "0-3\n");
    let both = CONFIG.replace("\"2,3\"", "\"1,2\"");
    tree.expect(
        &both,
        Verdict::Slow,
        "cores",
        "nodes 0,1",
        "lscpu --extended",
    );
}

#[test]
fn old_kernel_or_disabled_io_uring() {
    let tree = Tree::new();
    tree.write("proc/sys/kernel/osrelease", "5.10.0-30-amd64");
    tree.broken("kernel", "cannot populate memory", "5.14");
    tree.write("proc/sys/kernel/osrelease", "6.1.0");
    tree.write("proc/sys/kernel/io_uring_disabled", "2");
    tree.broken("kernel", "disabled for all users", "io_uring_disabled=0");
    tree.write("proc/sys/kernel/io_uring_disabled", "1");
    tree.write("proc/sys/kernel/io_uring_group", "9");
    tree.broken(
        "kernel",
        "outside of kernel.io_uring_group",
        "io_uring_disabled=0",
    );
    tree.write("proc/sys/kernel/io_uring_group", "44");
    assert_eq!(tree.examine(CONFIG).worst, Verdict::Fine);
    tree.write("proc/sys/vm/memfd_noexec", "2");
    tree.broken("kernel", "not sealed", "vm.memfd_noexec=1");
}

#[test]
fn missing_down_or_slow_network_interfaces() {
    let tree = Tree::new();
    tree.write("sys/class/net/eth1/mtu", "1500\n");
    tree.slow(
        "network",
        "frames of 1500 bytes",
        "ip link set eth1 mtu 9000",
    );
    tree.write("sys/class/net/eth1/speed", "1000\n");
    tree.write("sys/class/net/eth1/device/numa_node", "0\n");
    tree.slow(
        "network",
        "eth1 is on memory node 0",
        "cores = \"…\" of node 0",
    );
    tree.write("sys/class/net/eth1/device/numa_node", "-1\n");
    tree.write("sys/class/net/eth1/operstate", "down\n");
    tree.broken("network", "eth1 is down", "ip link set eth1 up");
    tree.write("sys/class/net/eth1/operstate", "up\n");
    tree.write("proc/sys/net/ipv4/tcp_wmem", "4096 16384 65536\n");
    let fix = "sysctl net.ipv4.tcp_wmem=\"4096 16384 6291456\"";
    tree.slow("network", "grow to 65536 bytes", fix);
    tree.write("proc/sys/net/ipv4/tcp_wmem", "4096 16384 4194304\n");
    tree.write(
        "proc/net/fib_trie",
        "Main:\n  |-- 192.0.2.1\n    /32 host LOCAL\n",
    );
    tree.broken(
        "network",
        "no address 192.0.2.10",
        "ip address add 192.0.2.10/",
    );
}

#[test]
fn ipv6_addresses_and_congestion_control() {
    let tree = Tree::new();
    let six = CONFIG.replace("192.0.2.10:4420", "[2001:db8::1]:4420");
    tree.expect(
        &six,
        Verdict::Broken,
        "network",
        "no address 2001:db8::1",
        "ip address add",
    );
    let line = "20010db8000000000000000000000001 02 40 00 80     eth1\n";
    tree.write("proc/net/if_inet6", line);
    assert_eq!(tree.examine(&six).worst, Verdict::Fine);
    let bbr = CONFIG.replace("4420\"", "4420\"\ncongestion_control = \"bbr\"");
    let text = "has not loaded congestion control bbr";
    tree.expect(&bbr, Verdict::Broken, "network", text, "modprobe tcp_bbr");
    tree.write(
        "proc/sys/net/ipv4/tcp_available_congestion_control",
        "cubic bbr",
    );
    assert_eq!(tree.examine(&bbr).worst, Verdict::Fine);
}

#[test]
fn records_of_tls_are_named() {
    let tree = Tree::new();
    let tls = CONFIG.replace("4420\"", "4420\"\ntls = \"required\"");
    let report = tree.examine(&tls);
    assert_eq!(report.worst, Verdict::Fine);
    let is_named = |it: &Finding| {
        it.text
            .contains("TLS is required; records are sealed by Windlass")
    };
    assert!(report.findings.iter().any(is_named), "{report:#?}");
}

#[test]
fn rdma_devices_and_their_ports() {
    let tree = Tree::new();
    let rdma = CONFIG.replace("\"tcp\"", "\"rdma\"");
    tree.expect(
        &rdma,
        Verdict::Broken,
        "network",
        "no RDMA device",
        "rdma link add",
    );
    let state = "sys/class/infiniband/mlx5_0/ports/1/state";
    tree.write(state, "1: DOWN\n");
    let text = "mlx5_0 has no active port";
    tree.expect(&rdma, Verdict::Broken, "network", text, "rdma link show");
    tree.write(state, "4: ACTIVE\n");
    assert_eq!(tree.examine(&rdma).worst, Verdict::Fine);
}

#[test]
fn missing_or_slow_files() {
    let tree = Tree::new();
    let without = CONFIG.replace("size = \"64KiB\"", "");
    let text = "has no size";
    tree.expect(&without, Verdict::Broken, "files", text, "size = ");
    let elsewhere = CONFIG.replace("/srv/vol0", "/data/new/vol0");
    let fix = "install -d -o windlass -m 0750 /data/new";
    tree.expect(
        &elsewhere,
        Verdict::Broken,
        "files",
        "nor does /data/new",
        fix,
    );
    let uuid = "uuid = \"9f0c2b6e-54a1-4b53-9d0e-0d5a8a1c7f11\"";
    let shared = CONFIG
        .replace(
            "size = \"64KiB\"",
            &format!("size = \"64KiB\"\nshared = true\n{uuid}"),
        )
        .replace(
            "hosts = [",
            "serial = \"x\"\ncontroller_ids = [1, 9]\nhosts = [",
        );
    let text = "a shared file is not created";
    tree.expect(&shared, Verdict::Broken, "files", text, "truncate -s SIZE");
    let huge = CONFIG.replace("64KiB", "900TiB");
    let text = "writes will fail";
    tree.expect(&huge, Verdict::Broken, "files", text, "a smaller size");
    let mounts = "21 1 8:1 / / rw - ext4 /dev/sda1 rw\n22 21 0:9 / /srv rw - nfs4 a:/b rw\n";
    tree.write("proc/self/mountinfo", mounts);
    tree.slow("files", "is on nfs4", "a disk of this machine");
    std::fs::create_dir(tree.0.path().join("srv/vol0.img")).expect("writable");
    tree.broken("files", "is a directory", "path = ");
}

/// Adds the NVMe drive 0000:01:00.0 with this driver, in an IOMMU group of its own.
fn add_drive(tree: &Tree, driver: &str) -> String {
    let device = "sys/bus/pci/devices/0000:01:00.0";
    tree.write(&format!("{device}/class"), "0x010802\n");
    tree.write(&format!("{device}/vendor"), "0x144d\n");
    tree.write(&format!("{device}/device"), "0xa80a\n");
    tree.write(&format!("{device}/numa_node"), "1\n");
    let root = tree.0.path();
    let make = |path: &str| std::fs::create_dir_all(root.join(path)).expect("writable");
    make(&format!("sys/bus/pci/drivers/{driver}"));
    make("sys/kernel/iommu_groups/7/devices/0000:01:00.0");
    let link = |to: &str, at: String| symlink(to, root.join(at)).expect("writable");
    link(
        &format!("../../drivers/{driver}"),
        format!("{device}/driver"),
    );
    link(
        "../../../../kernel/iommu_groups/7",
        format!("{device}/iommu_group"),
    );
    CONFIG.replace(
        "type = \"file\"\npath = \"/srv/vol0.img\"\nsize = \"64KiB\"",
        "type = \"nvme\"\npci = \"0000:01:00.0\"",
    )
}

#[test]
fn drives_still_bound_to_the_kernel_driver() {
    let tree = Tree::new();
    let config = add_drive(&tree, "nvme");
    // The machine has one drive that this configuration does not name.
    let report = tree.examine(CONFIG);
    assert!(text(&report).contains("1 more NVMe drives"), "{report:#?}");
    let report = tree.examine(&config);
    let drives: Vec<&Finding> = report
        .findings
        .iter()
        .filter(|it| it.area == "drives")
        .collect();
    assert!(drives[0].text.contains("no IOMMU"), "{drives:#?}");
    tree.write("sys/class/iommu/dmar0/x", "");
    let fix = "windlass bind 0000:01:00.0";
    tree.expect(
        &config,
        Verdict::Broken,
        "drives",
        "vol0 not served: 0000:01:00.0",
        fix,
    );
}

#[test]
fn ready_drives_and_drives_on_another_node() {
    let tree = Tree::new();
    let config = add_drive(&tree, "vfio-pci");
    tree.write("sys/class/iommu/dmar0/x", "");
    tree.expect(
        &config,
        Verdict::Broken,
        "drives",
        "no driver vfio-pci yet",
        "modprobe vfio-pci",
    );
    tree.write("dev/vfio/vfio", "");
    tree.write("dev/vfio/7", "");
    assert_eq!(tree.examine(&config).worst, Verdict::Fine);
    tree.write("sys/bus/pci/devices/0000:01:00.0/numa_node", "0\n");
    tree.expect(
        &config,
        Verdict::Slow,
        "drives",
        "on memory node 0",
        "of node 0",
    );
}

#[test]
fn service_configuration_file_is_the_default() {
    let tree = Tree::new();
    let file = tree.0.path().join(SERVICE_FILE);
    std::fs::create_dir_all(file.parent().expect("in the tree")).expect("writable");
    std::fs::write(&file, CONFIG.replace("cores", "coers")).expect("writable");
    let (config, problems) = configuration(Some(&file)).expect("it can be read");
    assert_eq!(config.devices.len(), 1);
    assert_eq!(problems.len(), 1);
    assert!(
        problems[0].text.contains("did you mean `cores`?"),
        "{problems:?}"
    );
    assert_eq!(problems[0].verdict, Verdict::Broken);
    assert!(configuration(Some(Path::new("/nowhere.toml"))).is_err());
    let (_, problems) = configuration(None).expect("the embedded default");
    assert_eq!(problems, []);
}

#[test]
fn machine_without_proc_and_sys_is_examined() {
    let nothing = TempDir::new().expect("a directory");
    let config = Config::parse("test", CONFIG).expect("a right configuration");
    let report = examine(&Machine::at(nothing.path()), &config, None, Vec::new());
    assert_eq!(report.worst, Verdict::Broken);
    assert!(text(&report).contains("BROKEN"));
}

#[test]
fn configuration_notices_become_findings() {
    let tree = Tree::new();
    let polling = CONFIG.replace("cores =", "idle = \"poll\"\ncores =");
    let text = "keeps 2 core(s) at 100 %";
    tree.expect(
        &polling,
        Verdict::Slow,
        "configuration",
        text,
        "embedded default",
    );
}
