//! The cases of `measure cost tcp`: reads and writes of two sizes, at several depths, of each device.

/// The device behind the namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backing {
    /// A RAM device.
    Ram,
    /// A file in the page cache, so that io_uring completes immediately and every run counts the
    /// same.
    File,
    /// A null device.
    Null,
}

impl Backing {
    /// All devices, in the order of their namespaces.
    pub const ALL: [Self; 3] = [Self::Ram, Self::File, Self::Null];

    /// Its namespace.
    #[must_use]
    pub fn nsid(self) -> u32 {
        match self {
            Self::Ram => 1,
            Self::File => 2,
            Self::Null => 3,
        }
    }

    /// Its name in the names of cases.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ram => "ram",
            Self::File => "file",
            Self::Null => "null",
        }
    }
}

/// A counted size and depth, with the number of batches over which the results are averaged: few if
/// a request transfers much data.
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

/// A counted case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Case {
    /// The device.
    pub backing: Backing,
    /// Whether the requests are writes.
    pub write: bool,
    /// Size of a request in bytes.
    pub bytes: u32,
    /// Requests in flight: a batch, which is completed before the next one is sent.
    pub depth: u16,
    /// Number of counted batches.
    pub batches: u64,
    /// Whether another host holds a reservation that permits reads.
    pub restricted: bool,
    /// Whether the device has limits of commands and of bytes, which delay nothing.
    pub limited: bool,
}

/// The case with a goal in the issue.
pub const MAIN_CASE: &str = "ram-read-4k-128";

/// The case of the host that is shown in detail: the host does most if it sends the data.
pub const HOST_MAIN_CASE: &str = "ram-write-4k-128";

impl Case {
    /// All cases. The restricted one is the last, as its reservation stays.
    pub fn all() -> impl Iterator<Item = Self> {
        let unrestricted = Self::unrestricted();
        let main = Self::unrestricted().find(|case| case.name() == MAIN_CASE);
        let limited = main.map(|case| Self {
            limited: true,
            ..case
        });
        let restricted = main.map(|case| Self {
            restricted: true,
            ..case
        });
        unrestricted.chain(limited).chain(restricted)
    }

    /// All cases without a reservation or a limit.
    pub fn unrestricted() -> impl Iterator<Item = Self> {
        Backing::ALL.into_iter().flat_map(|backing| {
            [false, true].into_iter().flat_map(move |write| {
                SHAPES.into_iter().map(move |shape| Self {
                    backing,
                    write,
                    bytes: shape.bytes,
                    depth: shape.depth,
                    batches: shape.batches,
                    restricted: false,
                    limited: false,
                })
            })
        })
    }

    /// Its name: `ram-read-4k-128`.
    #[must_use]
    pub fn name(&self) -> String {
        let operation = if self.write { "write" } else { "read" };
        let (backing, size) = (self.backing.name(), self.bytes >> 10);
        let restricted = if self.restricted { "-restricted" } else { "" };
        let limited = if self.limited { "-limited" } else { "" };
        format!(
            "{backing}-{operation}-{size}k-{}{limited}{restricted}",
            self.depth
        )
    }

    /// The case of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::all().find(|case| case.name() == name)
    }

    /// Whether the results are the same on every machine. Those of a file depend on its file
    /// system, and on how often the kernel passes a request to a worker thread.
    #[must_use]
    pub fn is_steady(&self) -> bool {
        self.backing != Backing::File
    }

    /// Number of counted requests.
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
    fn case_names_are_unique() {
        let names: HashSet<String> = Case::all().map(|case| case.name()).collect();
        assert_eq!(names.len(), 3 * 2 * 4 + 2);
        assert!(names.contains(MAIN_CASE) && names.contains(HOST_MAIN_CASE));
        for case in Case::all() {
            assert_eq!(Case::named(&case.name()), Some(case));
        }
        assert_eq!(Case::named("ram-read"), None);
    }
}
