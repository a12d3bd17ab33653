//! Directories of files replace the kernel's hierarchies, except in the last test.

use super::*;

const VERSION_ONE: &str = "26 25 0:22 / /sys/fs/cgroup rw,nosuid - tmpfs tmpfs rw\n\
     27 26 0:23 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n\
     28 26 0:24 / /sys/fs/cgroup/cpu rw,relatime shared:9 - cgroup cgroup rw,cpu\n\
     29 26 0:25 / /sys/fs/cgroup/cpuacct rw,relatime - cgroup cgroup rw,cpuacct\n\
     nonsense\n";

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

/// Mounts of version 1 at these directories, and one of version 2.
fn mounts(unified: &Path, cpu: &Path, cpuacct: &Path) -> String {
    format!(
        "30 26 0:26 / {} rw - cgroup2 cgroup2 rw\n\
         28 26 0:24 /slice {} rw - cgroup cgroup rw,cpu\n\
         29 26 0:25 /slice {} rw - cgroup cgroup rw,cpuacct\n",
        unified.display(),
        cpu.display(),
        cpuacct.display()
    )
}

#[test]
fn cgroup_v1_is_found_with_this_processs_group() {
    let found = |own| find(VERSION_ONE, own).expect("there");
    let hierarchy = found("2:cpuacct:/\n1:cpu:/\n0::/\n");
    assert_eq!(hierarchy.version, Version::One);
    assert_eq!(hierarchy.limiting, Path::new("/sys/fs/cgroup/cpu"));
    let counting = hierarchy.counting.expect("another hierarchy");
    assert_eq!(counting, Path::new("/sys/fs/cgroup/cpuacct"));
    let hierarchy = found("2:cpuacct:/a\n1:cpu:/user/7\n");
    assert_eq!(hierarchy.limiting, Path::new("/sys/fs/cgroup/cpu/user/7"));
    let together = "28 26 0:24 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n";
    let hierarchy = find(together, "1:cpu,cpuacct:/\n").expect("there");
    assert_eq!(hierarchy.counting, None);
    assert_eq!(
        find("26 25 0:22 / /sys rw - sysfs sysfs rw\nnonsense\n", ""),
        None
    );
}

#[test]
fn group_outside_the_mount_is_ignored() {
    let mounts = VERSION_ONE.replace("0:24 / ", "0:24 /container ");
    let found = |own| find(&mounts, own).expect("there").limiting;
    let root = Path::new("/sys/fs/cgroup/cpu");
    assert_eq!(found("1:cpu:/container/a\n"), root.join("a"));
    assert_eq!(found("1:cpu:/elsewhere\n"), root);
    assert_eq!(found(""), root);
}

#[test]
fn cgroup_v2_is_used_if_it_has_the_cpu_controller() {
    let (unified, cpu, cpuacct) = (folder(), folder(), folder());
    let mounts = mounts(unified.path(), cpu.path(), cpuacct.path());
    let version = || find(&mounts, "").expect("there").version;
    assert_eq!(version(), Version::One, "it has no controllers");
    let controllers = unified.path().join("cgroup.controllers");
    std::fs::write(&controllers, "hugetlb\n").expect("written");
    assert_eq!(version(), Version::One);
    std::fs::write(&controllers, "cpuset cpu io\n").expect("written");
    assert_eq!(version(), Version::Two);
}

#[test]
fn cgroup_v2_group_has_its_limit_and_processes() {
    let root = folder();
    let hierarchy = Hierarchy {
        version: Version::Two,
        limiting: root.path().to_owned(),
        counting: None,
    };
    let limit = CpuLimit::within(&hierarchy, 40).expect("made");
    limit.add_process(17).expect("held");
    limit.add_this_thread().expect("held");
    let read = |name| limit.limiting.read(name).expect("there");
    assert_eq!(read("cpu.max"), "4000 10000");
    assert_eq!(read("cgroup.procs"), "17");
    assert_eq!(read("cgroup.type"), "threaded");
    assert_eq!(
        read("cgroup.threads"),
        gettid().as_raw_nonzero().to_string()
    );
    assert_eq!(limit.cpu_time(), None);
    let stat = "usage_usec 1500\nuser_usec 7\n";
    limit.limiting.write("cpu.stat", stat).expect("written");
    assert_eq!(limit.cpu_time(), Some(Duration::from_micros(1500)));
}

#[test]
fn cgroup_v1_groups_limit_and_count() {
    let (unified, cpu, cpuacct) = (folder(), folder(), folder());
    let mounts = mounts(unified.path(), cpu.path(), cpuacct.path());
    let hierarchy = find(&mounts, "1:cpu:/slice\n2:cpuacct:/slice\n").expect("there");
    let limit = CpuLimit::within(&hierarchy, 50).expect("made");
    limit.add_process(17).expect("held");
    limit.add_this_thread().expect("held");
    let counting = limit.counting.as_ref().expect("another hierarchy");
    assert!(counting.path.starts_with(cpuacct.path()));
    let read = |name| limit.limiting.read(name).expect("there");
    assert_eq!(
        (read("cpu.cfs_quota_us"), read("cpu.cfs_period_us")),
        ("5000".to_owned(), "10000".to_owned())
    );
    for group in [&limit.limiting, counting] {
        assert_eq!(group.read("cgroup.procs").as_deref(), Some("17"));
        let thread = gettid().as_raw_nonzero().to_string();
        assert_eq!(group.read("tasks"), Some(thread));
    }
    counting.write("cpuacct.usage", "1500\n").expect("written");
    assert_eq!(limit.cpu_time(), Some(Duration::from_nanos(1500)));
}

#[test]
fn missing_cgroup_folder_is_named() {
    let nowhere = folder().path().join("nowhere");
    for version in [Version::One, Version::Two] {
        let hierarchy = Hierarchy {
            version,
            limiting: nowhere.clone(),
            counting: None,
        };
        let error = CpuLimit::within(&hierarchy, 40).expect_err("no folder");
        assert!(error.to_string().contains("nowhere"), "{error}");
    }
}

#[test]
fn cgroups_hold_a_thread_and_are_removed() {
    let Ok(limit) = CpuLimit::new(100) else {
        eprintln!("no groups can be made here");
        return;
    };
    let places = [Some(&limit.limiting), limit.counting.as_ref()];
    let places: Vec<PathBuf> = places
        .into_iter()
        .flatten()
        .map(|it| it.path.clone())
        .collect();
    let name = places[0].file_name().and_then(|name| name.to_str());
    let name = name.expect("made of letters").to_owned();
    let held = std::thread::scope(|scope| {
        let held = scope.spawn(|| {
            limit.add_this_thread()?;
            let path = format!("/proc/self/task/{}/cgroup", gettid().as_raw_nonzero());
            let groups = std::fs::read_to_string(path).expect("its own");
            Ok::<_, CpuLimitError>(groups.matches(&name).count())
        });
        held.join().expect("it does not panic")
    });
    // With version 2, the threads of a process outside the root group cannot be divided.
    if let Ok(groups) = held {
        assert_eq!(groups, places.len());
        assert!(limit.cpu_time().is_some());
    }
    assert!(places.iter().all(|place| place.is_dir()));
    drop(limit);
    assert!(!places.iter().any(|place| place.exists()), "{places:?}");
}

#[test]
fn cgroup_with_a_running_thread_is_removed() {
    let Ok(limit) = CpuLimit::new(100) else {
        eprintln!("no groups can be made here");
        return;
    };
    let (tell, told) = std::sync::mpsc::channel();
    let (release, released) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let limit = &limit;
        scope.spawn(move || {
            // With version 2, the threads of a process outside the root group cannot be divided.
            let _ = limit.add_this_thread();
            tell.send(()).expect("it is waited for");
            let _ = released.recv();
        });
        told.recv().expect("it is held");
        for group in [Some(&limit.limiting), limit.counting.as_ref()] {
            let Some(group) = group else { continue };
            crate::leftovers::remove_group(&group.path);
            assert!(!group.path.exists(), "{}", group.path.display());
        }
        drop(release);
    });
}
