//! The content of a file as the judge knows it: for each byte the writes that it may be from, and the
//! sizes that the file may have.
//!
//! Every write has a number, and its bytes follow from the number and the offset. So a byte that is
//! lost, stale, torn or misplaced is not the one that any allowed write has there.

use std::collections::BTreeMap;
use std::fmt;

/// Where a byte is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Source {
    /// The number of the write; 0 for zeroes.
    write: u32,
    /// How far the byte was moved by clones, in bytes.
    shift: i64,
}

impl Source {
    /// Never written, or deallocated.
    pub(super) const ZERO: Self = Self { write: 0, shift: 0 };

    /// A byte of a write where it was written.
    #[must_use]
    pub(super) const fn of(write: u32) -> Self {
        Self { write, shift: 0 }
    }

    /// Its byte at an offset.
    #[must_use]
    pub(super) fn byte(self, offset: u64) -> u8 {
        if self.write == 0 {
            return 0;
        }
        let at = offset.wrapping_add_signed(-self.shift) as u32;
        let word = (at ^ at >> 8).wrapping_mul(31) ^ self.write.wrapping_mul(0x9E37_79B9);
        (word ^ word >> 15 ^ word >> 23) as u8
    }

    fn moved(self, distance: i64) -> Self {
        match self.write {
            0 => self,
            _ => Self {
                shift: self.shift + distance,
                ..self
            },
        }
    }
}

/// The data of a write.
#[must_use]
pub(super) fn pattern(write: u32, offset: u64, length: usize) -> Vec<u8> {
    let source = Source::of(write);
    (0..length as u64)
        .map(|at| source.byte(offset + at))
        .collect()
}

/// A part of a file with the same sources.
pub(super) type Part = (u64, u64, Vec<Source>);

/// How an operation changes a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Effect {
    /// The ranges that get new bytes, as begin, end and sources.
    parts: Vec<Part>,
    size: Size,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Size {
    Stays,
    Becomes(u64),
    AtLeast(u64),
}

impl Size {
    fn of(self, before: u64) -> u64 {
        match self {
            Self::Stays => before,
            Self::Becomes(size) => size,
            Self::AtLeast(size) => size.max(before),
        }
    }
}

impl Effect {
    /// Of a write.
    #[must_use]
    pub(super) fn write(write: u32, offset: u64, length: u64) -> Self {
        Self {
            parts: vec![(offset, offset + length, vec![Source::of(write)])],
            size: Size::AtLeast(offset + length),
        }
    }

    /// Of a new size. Bytes behind the end are zeroes when the file grows again.
    #[must_use]
    pub(super) fn truncate(size: u64) -> Self {
        Self {
            parts: vec![(size, u64::MAX, vec![Source::ZERO])],
            size: Size::Becomes(size),
        }
    }

    /// Of ALLOCATE.
    #[must_use]
    pub(super) fn allocate(end: u64) -> Self {
        Self {
            parts: Vec::new(),
            size: Size::AtLeast(end),
        }
    }

    /// Of DEALLOCATE.
    #[must_use]
    pub(super) fn deallocate(offset: u64, length: u64) -> Self {
        Self {
            parts: vec![(offset, offset + length, vec![Source::ZERO])],
            size: Size::Stays,
        }
    }

    /// Of CLONE of a range of another content, which begins at `offset` in the target.
    #[must_use]
    pub(super) fn clone_of(from: &Content, (begin, length): (u64, u64), offset: u64) -> Self {
        let distance = offset as i64 - begin as i64;
        let parts = from.parts(begin, begin + length).into_iter();
        let parts = parts.map(|(first, end, sources)| {
            let to = |at: u64| at.wrapping_add_signed(distance);
            let sources = sources.iter().map(|it| it.moved(distance)).collect();
            (to(first), to(end), sources)
        });
        Self {
            parts: parts.collect(),
            size: Size::AtLeast(offset + length),
        }
    }

    /// The part of it within the ranges of another one.
    fn within(&self, other: &Self) -> Vec<Part> {
        let mut parts = Vec::new();
        for (begin, end, sources) in &self.parts {
            for (first, last, _) in &other.parts {
                let (begin, end) = (*begin.max(first), *end.min(last));
                if begin < end {
                    parts.push((begin, end, sources.clone()));
                }
            }
        }
        parts
    }
}

/// What a file may contain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Content {
    /// By first byte: the sources up to the next one.
    segments: BTreeMap<u64, Vec<Source>>,
    sizes: Vec<u64>,
}

impl Default for Content {
    fn default() -> Self {
        Self {
            segments: BTreeMap::from([(0, vec![Source::ZERO])]),
            sizes: vec![0],
        }
    }
}

/// What is wrong with data that were read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wrong(String);

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Content {
    /// The sizes that it may have.
    #[must_use]
    pub(super) fn sizes(&self) -> &[u64] {
        &self.sizes
    }

    /// The size, if only one is possible.
    #[must_use]
    pub(super) fn size(&self) -> Option<u64> {
        match self.sizes[..] {
            [size] => Some(size),
            _ => None,
        }
    }

    fn split(&mut self, at: u64) {
        if let Some((_, sources)) = self.segments.range(..=at).next_back() {
            let sources = sources.clone();
            self.segments.entry(at).or_insert(sources);
        }
    }

    /// The parts of a range.
    #[must_use]
    pub(super) fn parts(&self, begin: u64, end: u64) -> Vec<Part> {
        let mut parts: Vec<Part> = Vec::new();
        if begin >= end {
            return parts;
        }
        let first = self.segments.range(..=begin).next_back();
        let rest = self
            .segments
            .range(begin..end)
            .skip_while(|it| *it.0 == begin);
        for (at, sources) in first.into_iter().chain(rest) {
            let at = (*at).max(begin);
            if let Some(last) = parts.last_mut() {
                last.1 = at;
            }
            parts.push((at, end, sources.clone()));
        }
        parts
    }

    fn assign(&mut self, (begin, end, sources): &Part) {
        if begin >= end {
            return;
        }
        self.split(*begin);
        self.split(*end);
        let inner: Vec<u64> = self.segments.range(begin..end).map(|it| *it.0).collect();
        for at in inner {
            self.segments.remove(&at);
        }
        self.segments.insert(*begin, sources.clone());
    }

    fn add(&mut self, (begin, end, sources): &Part) {
        if begin >= end {
            return;
        }
        self.split(*begin);
        self.split(*end);
        for (_, known) in self.segments.range_mut(begin..end) {
            for source in sources {
                if !known.contains(source) {
                    known.push(*source);
                }
            }
        }
    }

    fn add_sizes(&mut self, sizes: Vec<u64>) {
        for size in sizes {
            if !self.sizes.contains(&size) {
                self.sizes.push(size);
            }
        }
    }

    /// The change took place, possibly before or after others that were executed at the same time.
    pub(super) fn change(&mut self, effect: &Effect, concurrent: &[Effect]) {
        effect.parts.iter().for_each(|it| self.assign(it));
        self.add_concurrent_sizes(concurrent);
        let sizes = self.sizes.iter().map(|it| effect.size.of(*it));
        let mut sizes: Vec<u64> = sizes.collect();
        sizes.sort_unstable();
        sizes.dedup();
        self.sizes = sizes;
        for other in concurrent {
            other.within(effect).iter().for_each(|it| self.add(it));
        }
        self.add_concurrent_sizes(concurrent);
    }

    /// Adds the sizes after any of these changes, in any order.
    fn add_concurrent_sizes(&mut self, concurrent: &[Effect]) {
        // A later size that is set, and then one that is at least reached.
        for other in concurrent.iter().chain(concurrent) {
            self.add_sizes(self.sizes.iter().map(|it| other.size.of(*it)).collect());
        }
    }

    /// The change may have taken place.
    pub(super) fn may_change(&mut self, effect: &Effect) {
        effect.parts.iter().for_each(|it| self.add(it));
        self.add_sizes(self.sizes.iter().map(|it| effect.size.of(*it)).collect());
    }

    /// It may be the other one.
    pub(super) fn may_be(&mut self, other: &Self) {
        other.parts(0, u64::MAX).iter().for_each(|it| self.add(it));
        self.add_sizes(other.sizes.clone());
    }

    /// The size is this one.
    ///
    /// # Errors
    /// It cannot be.
    pub(super) fn set_size(&mut self, size: u64) -> Result<(), Wrong> {
        if !self.sizes.contains(&size) {
            return Err(Wrong(format!("size {size}, may be {:?}", self.sizes)));
        }
        self.sizes = vec![size];
        Ok(())
    }

    /// Checks data that were read.
    ///
    /// # Errors
    /// No allowed content has them.
    pub(super) fn check_read(
        &self,
        (offset, count): (u64, u64),
        data: &[u8],
        eof: bool,
    ) -> Result<(), Wrong> {
        let length = data.len() as u64;
        let fits = |size: &u64| {
            let most = size.saturating_sub(offset).min(count);
            match length == most {
                true => eof == (offset + length >= *size),
                // A READ of many ranges is short.
                false => length > 0 && length < most && !eof,
            }
        };
        if !self.sizes.iter().any(fits) {
            return Err(Wrong(format!(
                "{length} bytes (end: {eof}) of {count} at {offset}, the size may be {:?}",
                self.sizes
            )));
        }
        for (begin, end, sources) in self.parts(offset, offset + length) {
            for at in begin..end {
                let found = data[(at - offset) as usize];
                if !sources.iter().any(|it| it.byte(at) == found) {
                    return Err(Wrong(format!(
                        "byte {at} is {found:#04x}, may be from {sources:?}; the part ends at {end}"
                    )));
                }
            }
        }
        Ok(())
    }

    /// Drops sources that data which were read, and which nothing changes now, are not from.
    pub(super) fn narrow(&mut self, offset: u64, data: &[u8]) {
        for (begin, end, sources) in self.parts(offset, offset + data.len() as u64) {
            if sources.len() < 2 {
                continue;
            }
            let found = |at: u64| data[(at - offset) as usize];
            let fits = |it: &Source| (begin..end).all(|at| it.byte(at) == found(at));
            let left: Vec<Source> = sources.iter().copied().filter(fits).collect();
            if !left.is_empty() && left.len() < sources.len() {
                self.assign(&(begin, end, left));
            }
        }
    }

    /// Checks what SEEK has found: data or a hole from `offset` on at `found`, or the end.
    ///
    /// # Errors
    /// No allowed content has it there.
    pub(super) fn check_seek(
        &self,
        offset: u64,
        is_data: bool,
        found: Option<u64>,
    ) -> Result<(), Wrong> {
        let end = found.or(self.sizes.iter().copied().max()).unwrap_or(offset);
        let between = self.parts(offset, end.max(offset));
        let may_be = |sources: &[Source], zero: bool| match zero {
            true => sources.contains(&Source::ZERO),
            false => sources.iter().any(|it| *it != Source::ZERO),
        };
        // Bytes before data are holes, and bytes before a hole are data.
        if self.sizes.len() == 1
            && let Some(part) = between.iter().find(|it| !may_be(&it.2, is_data))
        {
            return Err(Wrong(format!("{} at {part:?} was passed", word(!is_data))));
        }
        let Some(found) = found else {
            return Ok(());
        };
        if found < offset || !self.sizes.iter().any(|it| found < *it || !is_data) {
            return Err(Wrong(format!(
                "{} at {found}, size {:?}",
                word(is_data),
                self.sizes
            )));
        }
        let is_end = self.sizes.contains(&found);
        let there = self.parts(found, found + 1);
        match is_end || there.iter().all(|it| may_be(&it.2, !is_data)) {
            true => Ok(()),
            false => Err(Wrong(format!("no {} at {found}", word(is_data)))),
        }
    }
}

fn word(is_data: bool) -> &'static str {
    if is_data { "data" } else { "a hole" }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(content: &Content, offset: u64, data: &[u8], eof: bool) -> bool {
        content.check_read((offset, 64), data, eof).is_ok()
    }

    #[test]
    fn bytes_of_other_writes_are_wrong() {
        let mut content = Content::default();
        content.change(&Effect::write(1, 0, 10), &[]);
        content.change(&Effect::write(2, 4, 2), &[]);
        let mut expected = pattern(1, 0, 10);
        assert!(!read(&content, 0, &expected, true), "stale");
        expected[4..6].copy_from_slice(&pattern(2, 4, 2));
        assert!(read(&content, 0, &expected, true));
        assert!(!read(&content, 0, &expected, false), "the end");
        assert!(!read(&content, 0, &expected[..9], true), "too short");
        assert!(!read(&content, 0, &[0; 10], true), "lost");
    }

    #[test]
    fn a_truncated_part_is_zeroes() {
        let mut content = Content::default();
        content.change(&Effect::write(1, 0, 10), &[]);
        content.change(&Effect::truncate(3), &[]);
        content.change(&Effect::allocate(8), &[]);
        let mut expected = pattern(1, 0, 8);
        assert!(!read(&content, 0, &expected, true), "old bytes");
        expected[3..].fill(0);
        assert!(read(&content, 0, &expected, true));
    }

    #[test]
    fn concurrent_changes_have_any_order() {
        let mut content = Content::default();
        let (write, cut) = (Effect::write(1, 0, 10), Effect::truncate(4));
        content.change(&write, std::slice::from_ref(&cut));
        content.change(&cut, &[write]);
        let mut data = pattern(1, 0, 10);
        assert!(read(&content, 0, &data[..4], true));
        assert!(read(&content, 0, &data, true));
        data[4..].fill(0);
        assert!(!read(&content, 0, &data[..5], true), "no such size");
        content.set_size(4).expect("possible");
        assert!(!read(&content, 0, &pattern(1, 0, 10), true), "too long");
        assert!(content.set_size(10).is_err());
    }

    #[test]
    fn clones_move_bytes() {
        let mut content = Content::default();
        content.change(&Effect::write(1, 0, 8), &[]);
        let clone = Effect::clone_of(&content, (4, 4), 20);
        content.change(&clone, &[]);
        let mut expected = pattern(1, 0, 8);
        expected.extend([0; 12]);
        expected.extend_from_slice(&pattern(1, 4, 4));
        assert!(read(&content, 0, &expected, true));
    }

    #[test]
    fn holes_and_data_are_found_where_they_are() {
        let mut content = Content::default();
        content.change(&Effect::write(1, 8, 8), &[]);
        content.change(&Effect::allocate(32), &[]);
        assert!(content.check_seek(0, true, Some(8)).is_ok());
        assert!(content.check_seek(0, true, Some(12)).is_err(), "passed");
        assert!(content.check_seek(0, true, None).is_err(), "passed");
        assert!(content.check_seek(20, true, None).is_ok());
        assert!(content.check_seek(8, false, Some(16)).is_ok());
        assert!(content.check_seek(8, false, Some(32)).is_err(), "passed");
        assert!(content.check_seek(8, false, Some(12)).is_err(), "data");
    }
}
