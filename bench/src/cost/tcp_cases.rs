//! What `bench cost tcp` counts: reads and writes of two sizes, at several depths, of each device.

/// What lies behind the namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backing {
    /// A RAM device.
    Ram,
    /// A file in the page cache, so that io_uring answers at once and each run counts the same.
    File,
    /// A device that does nothing.
    Null,
}

impl Backing {
    /// All of them, in the order of their namespaces.
    pub const ALL: [Self; 3] = [Self::Ram, Self::File, Self::Null];

    /// The namespace.
    #[must_use]
    pub fn nsid(self) -> u32 {
        match self {
            Self::Ram => 1,
            Self::File => 2,
            Self::Null => 3,
        }
    }

    /// What it is called in the names of cases.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ram => "ram",
            Self::File => "file",
            Self::Null => "null",
        }
    }
}

/// Size and depth that are counted, with the requests that the mean is taken of for each that is in
/// flight: few where a request moves much.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Shape {
    bytes: u32,
    depth: u16,
    batches: u64,
}

const SHAPES: [Shape; 4] = [
    Shape {
        bytes: 4096,
        depth: 1,
        batches: 1000,
    },
    Shape {
        bytes: 4096,
        depth: 32,
        batches: 100,
    },
    Shape {
        bytes: 4096,
        depth: 128,
        batches: 40,
    },
    Shape {
        bytes: 128 << 10,
        depth: 8,
        batches: 60,
    },
];

/// One thing that is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Case {
    /// What lies behind.
    pub backing: Backing,
    /// Whether the host writes.
    pub write: bool,
    /// Bytes of a request.
    pub bytes: u32,
    /// Requests in flight: a batch, which is answered before the next one is sent.
    pub depth: u16,
    /// Batches that are counted.
    pub batches: u64,
}

/// The case that the issue has an aim for.
pub const CHIEF: &str = "ram-read-4k-128";

/// The case of the host that is shown in detail: where the host sends the data, it does the most.
pub const HOST_CHIEF: &str = "ram-write-4k-128";

impl Case {
    /// Every case.
    pub fn all() -> impl Iterator<Item = Self> {
        Backing::ALL.into_iter().flat_map(|backing| {
            [false, true].into_iter().flat_map(move |write| {
                SHAPES.into_iter().map(move |shape| Self {
                    backing,
                    write,
                    bytes: shape.bytes,
                    depth: shape.depth,
                    batches: shape.batches,
                })
            })
        })
    }

    /// What it is called: `ram-read-4k-128`.
    #[must_use]
    pub fn name(&self) -> String {
        let operation = if self.write { "write" } else { "read" };
        let (backing, size) = (self.backing.name(), self.bytes >> 10);
        format!("{backing}-{operation}-{size}k-{}", self.depth)
    }

    /// The case of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::all().find(|case| case.name() == name)
    }

    /// Whether the same is counted wherever it runs. What a file takes depends on its file system,
    /// and on how often the kernel leaves a request to a worker.
    #[must_use]
    pub fn is_steady(&self) -> bool {
        self.backing != Backing::File
    }

    /// Requests that are counted.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.batches * u64::from(self.depth)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_case_has_a_name_of_its_own() {
        let names: HashSet<String> = Case::all().map(|case| case.name()).collect();
        assert_eq!(names.len(), 3 * 2 * 4);
        assert!(names.contains(CHIEF) && names.contains(HOST_CHIEF));
        for case in Case::all() {
            assert_eq!(Case::named(&case.name()), Some(case));
        }
        assert_eq!(Case::named("ram-read"), None);
    }
}
