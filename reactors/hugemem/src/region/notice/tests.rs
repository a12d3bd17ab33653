//! Each notice is one line that names the missing feature and the fix.

use rustix::io::Errno;

use super::{Notice, join_notices};
use crate::PageSize;

#[test]
fn every_notice_is_one_line_with_its_remedy() {
    let (one, two) = (PageSize::Huge1GiB, PageSize::Huge2MiB);
    let missing = |size, default_size| Notice::PagesMissing {
        size,
        wanted: 128,
        available: 3,
        reserve: 130,
        default_size,
    };
    let expected = [
        (
            missing(two, true),
            "128 2 MiB hugepages wanted, 3 free",
            "`sysctl vm.nr_hugepages=130`",
        ),
        (
            missing(one, false),
            "1 GiB",
            "echo 130 > /sys/kernel/mm/hugepages/hugepages-1048576kB/",
        ),
        (
            Notice::NoSuchPages { size: one },
            "no 1 GiB hugepages",
            "no setting fixes this",
        ),
        (
            Notice::PagesRefused {
                size: two,
                errno: Errno::NOMEM,
            },
            "2 MiB",
            "hugepages-2048kB",
        ),
        (
            Notice::UnevenLength {
                len: (3 << 30) - 4096,
                size: one,
            },
            "3221221376 bytes are not a multiple",
            "configuring 3221225472 bytes",
        ),
        (
            Notice::NoTransparentPages,
            "transparent hugepages are off",
            "`echo advise > /sys",
        ),
        (
            Notice::NotLocked {
                len: 4096,
                errno: Errno::PERM,
            },
            "4096 bytes",
            "`ulimit -l unlim",
        ),
    ];
    let mut notices = Vec::new();
    for (notice, what, remedy) in expected {
        let line = notice.to_string();
        assert!(line.contains(what) && line.contains(remedy), "{line}");
        assert!(!line.contains('\n') && !line.contains("  "), "{line}");
        notices.push(notice);
    }
    assert_eq!(join_notices(&[]), "");
    let all = join_notices(&notices);
    assert!(
        all.starts_with(": 128 2 MiB") && all.matches("; ").count() >= 6,
        "{all}"
    );
}
