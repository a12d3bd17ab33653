//! A process that may not lock memory gets a ring without fixed buffers, a notice, and correct
//! data. The only test in its file, because it lowers the limits of the whole process.

use std::fs::File;
use std::sync::Arc;

use arrayvec::ArrayVec;
use hugemem::{Arena, ArenaConfig, PagePolicy};
use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use uring::{Done, Notice, Operation, Ring, RingConfig};

#[test]
fn ring_without_locked_memory_works_with_a_notice() {
    let config = ArenaConfig {
        bytes: 4 << 20,
        pages: PagePolicy::Ordinary,
        max_transfer: 64 * 1024,
    };
    let arena = Arena::new(config).unwrap();
    let mut limited = capabilities(None).unwrap();
    limited.effective.remove(CapabilitySet::IPC_LOCK);
    set_capabilities(None, limited).unwrap();
    let limit = Rlimit {
        current: Some(1 << 20),
        maximum: Some(1 << 20),
    };
    setrlimit(Resource::Memlock, limit).unwrap();

    let mut ring = Ring::new(&RingConfig::new(4), Some(&arena)).unwrap();
    assert!(!ring.has_fixed_buffers());
    let [Notice::NoFixedBuffers { bytes, errno }] = *ring.notices() else {
        panic!("{:?}", ring.notices());
    };
    assert_eq!((bytes, errno), (4 << 20, rustix::io::Errno::NOMEM));
    let words = ring.notices()[0].to_string();
    assert!(
        words.contains("LimitMEMLOCK") && !words.contains('\n'),
        "{words}"
    );

    let file = File::open(std::env::current_exe().unwrap()).unwrap();
    let file = ring
        .add_file(Arc::new(std::os::fd::OwnedFd::from(file)))
        .unwrap();
    let lease = arena.pool(0).take(4096).unwrap();
    ring.submit(
        1,
        Operation::Read {
            file,
            offset: 0,
            lease,
        },
    )
    .unwrap();
    let mut done = ArrayVec::<Done, 1>::new();
    while done.is_empty() {
        ring.flush();
        ring.poll(&mut done);
        std::thread::yield_now();
    }
    assert_eq!(done[0].result, Ok(()));
    assert_eq!(done[0].lease.as_ref().unwrap()[..4], *b"\x7fELF");
}
