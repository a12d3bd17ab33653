//! The history of one block: all writes whose content a read may still return.
//!
//! A write takes effect at some moment between its submission and its completion; so does a read. A
//! read may therefore return the value of any write, unless another value was certainly there after
//! the write had ended and before the read began (a register with concurrent access). What may be
//! there after a power cut follows in the same way, with "certainly durable" in place of "certainly
//! there": FUA, a completed Flush, or a read with FUA.

/// A point in the order of submissions and completions. Every event has its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(pub u64);

impl Moment {
    const NEVER: Moment = Moment(u64::MAX);
}

/// The version of a block's first content: zeroes.
pub const INITIAL: u64 = 0;

/// The result of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteEnd {
    /// The write succeeded.
    Done {
        /// It is on the medium: it had FUA, or there is no volatile cache.
        durable: bool,
    },
    /// It failed. Its blocks may or may not have changed.
    Undecided,
    /// It failed with a status that guarantees that nothing changed.
    Refused,
}

/// The reason why the result of a read is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// It was overwritten before the read began.
    Stale,
    /// It was overwritten durably before a power cut.
    Resurrected,
    /// It was never written here, or the write was refused.
    NeverWritten,
    /// Newer durable content is missing on the medium.
    Volatile,
}

#[derive(Clone, Debug)]
struct Candidate {
    version: u64,
    /// Its content is zeroes, which do not identify the write.
    zero: bool,
    /// The content of a copied block.
    copied: Option<Copied>,
    /// The latest moment of its effect; `NEVER` while that is open.
    ended: Moment,
    /// When it was submitted, if it has succeeded.
    done: Option<Moment>,
    /// Reads that begin at this moment or later must not return it.
    overwritten: Moment,
    /// A power cut cannot bring it back.
    durably_overwritten: bool,
    /// It is older than the last power cut, which left exactly one such version.
    survivor: bool,
}

/// The content that a Copy may have written to a block.
#[derive(Clone, Debug, Default)]
struct Copied {
    /// Versions, or `None` for zeroes.
    contents: Vec<Option<u64>>,
    /// It may be any other, too.
    is_any: bool,
}

impl Candidate {
    /// Whether its content may be that of `version`, or zeroes for `None`.
    fn may_be(&self, version: Option<u64>) -> bool {
        match (&self.copied, version) {
            (Some(copied), version) => copied.is_any || copied.contents.contains(&version),
            (None, Some(version)) => self.version == version && !self.zero,
            (None, None) => self.zero,
        }
    }

    /// Its content, if that is certain; `Some(None)` means zeroes.
    fn content(&self) -> Option<Option<u64>> {
        match &self.copied {
            None => Some((!self.zero).then_some(self.version)),
            Some(copied) => match copied.contents.as_slice() {
                [content] if !copied.is_any => Some(*content),
                _ => None,
            },
        }
    }

    /// The initial zeroes of a block.
    fn zeroes(since: Moment) -> Self {
        Self {
            version: INITIAL,
            zero: true,
            copied: None,
            ended: since,
            done: Some(since),
            overwritten: Moment::NEVER,
            durably_overwritten: false,
            survivor: false,
        }
    }
}

/// The writes of one block that a read may still return.
#[derive(Clone, Debug)]
pub struct BlockHistory {
    candidates: Vec<Candidate>,
    /// The newest few versions that no read may return any more; for messages only.
    gone: Vec<(u64, Mistake)>,
    /// The newest few versions that were replaced by Compare and Write.
    replaced: Vec<u64>,
}

/// Number of old versions remembered for messages.
const GONE_MAX: usize = 16;

impl Default for BlockHistory {
    fn default() -> Self {
        Self {
            candidates: vec![Candidate::zeroes(Moment(0))],
            gone: Vec::new(),
            replaced: Vec::new(),
        }
    }
}

impl BlockHistory {
    /// Begins a write of `version`; `zero` if it writes zeroes.
    pub fn begin(&mut self, version: u64, zero: bool) {
        self.candidates.push(Candidate {
            version,
            zero,
            copied: None,
            ended: Moment::NEVER,
            done: None,
            overwritten: Moment::NEVER,
            durably_overwritten: false,
            survivor: false,
        });
    }

    /// Ends the write of `version`, submitted at `began` and completed at `now`.
    pub fn end(&mut self, version: u64, began: Moment, now: Moment, end: WriteEnd) {
        let Some(index) = self.position(version) else {
            return;
        };
        match end {
            WriteEnd::Refused => {
                self.candidates.remove(index);
                self.forget(version, Mistake::NeverWritten);
            }
            WriteEnd::Undecided => {
                let candidate = &mut self.candidates[index];
                candidate.ended = candidate.ended.min(now);
            }
            WriteEnd::Done { durable } => {
                let candidate = &mut self.candidates[index];
                candidate.ended = candidate.ended.min(now);
                candidate.done = Some(began);
                let zero = candidate.zero;
                self.seen(
                    |other| other.version == version || (zero && other.zero),
                    began,
                    now,
                );
                if durable {
                    self.made_durable(began, version);
                }
            }
        }
    }

    /// Whether `version` writes zeroes.
    #[must_use]
    pub fn is_zeroes(&self, version: u64) -> bool {
        self.position(version)
            .is_some_and(|index| self.candidates[index].zero)
    }

    /// Notes that a write that had ended without a result may take effect again.
    pub fn reopen(&mut self, version: u64, zero: bool) {
        if let Some(index) = self.position(version) {
            self.candidates.remove(index);
        }
        self.begin(version, zero);
    }

    /// Notes that the write of `version` is a Copy that writes one of these contents.
    pub fn copies(&mut self, version: u64, contents: Vec<Option<u64>>) {
        if let Some(index) = self.position(version) {
            self.candidates[index].copied = Some(Copied {
                contents,
                is_any: false,
            });
        }
    }

    /// Notes that the Copy of `version` may write this content, too; `None`: any content.
    pub fn may_copy(&mut self, version: u64, content: Option<Option<u64>>) {
        let Some(index) = self.position(version) else {
            return;
        };
        let copied = self.candidates[index].copied.get_or_insert_default();
        match content {
            Some(content) => copied.contents.push(content),
            None => copied.is_any = true,
        }
    }

    /// The contents that a read may return that begins at `began`; `None` if any.
    #[must_use]
    pub fn contents(&self, began: Moment) -> Option<Vec<Option<u64>>> {
        let alive = self.candidates.iter().filter(|it| it.overwritten > began);
        let mut contents = Vec::new();
        for candidate in alive {
            match &candidate.copied {
                None => contents.push((!candidate.zero).then_some(candidate.version)),
                Some(copied) if copied.is_any => return None,
                Some(copied) => contents.extend(&copied.contents),
            }
        }
        Some(contents)
    }

    /// The contents that a read has returned or may return, as far as they are remembered.
    #[must_use]
    pub fn former_contents(&self) -> Vec<Option<u64>> {
        let mut contents = Vec::new();
        for candidate in &self.candidates {
            match &candidate.copied {
                None => contents.push((!candidate.zero).then_some(candidate.version)),
                Some(copied) => contents.extend(&copied.contents),
            }
        }
        contents
    }

    /// Whether a read that began at `began` may return the content of `version`, or zeroes for
    /// `None`. Changes nothing.
    ///
    /// # Errors
    /// The reason why it may not.
    pub fn may_return(&self, version: Option<u64>, began: Moment) -> Result<(), Mistake> {
        let is_it = |candidate: &Candidate| candidate.may_be(version);
        let mut possible = self.candidates.iter().filter(|it| it.overwritten > began);
        if possible.any(is_it) {
            Ok(())
        } else {
            Err(Mistake::Stale)
        }
    }

    /// Records that a read that began at `began` returned, at `now`, the content of `version`, or
    /// zeroes for `None`. `durable`: that content is on the medium.
    ///
    /// # Errors
    /// The reason why it may not return that.
    pub fn read(
        &mut self,
        version: Option<u64>,
        began: Moment,
        now: Moment,
        durable: bool,
    ) -> Result<(), Mistake> {
        let is_it = |candidate: &Candidate| candidate.may_be(version);
        let possible = |candidate: &&Candidate| is_it(candidate) && candidate.overwritten > began;
        if !self.candidates.iter().any(|it| possible(&it)) {
            let known = self.candidates.iter().any(is_it);
            let violation = self
                .gone
                .iter()
                .find(|(gone, _)| Some(*gone) == version)
                .map(|(_, mistake)| *mistake);
            let default = if version.is_none() || known {
                Mistake::Stale
            } else {
                Mistake::NeverWritten
            };
            return Err(violation.unwrap_or(default));
        }
        self.seen(is_it, began, now);
        // The content is the version that survived the power cut, so the others never return.
        let survivors_only = self
            .candidates
            .iter()
            .filter(possible)
            .all(|candidate| candidate.survivor);
        if survivors_only {
            self.candidates
                .retain(|candidate| is_it(candidate) || !candidate.survivor);
        }
        if durable {
            for candidate in &mut self.candidates {
                if !is_it(candidate) && candidate.ended <= began {
                    candidate.durably_overwritten = true;
                }
            }
        }
        Ok(())
    }

    /// Records that a Flush that began at `began` succeeded: writes completed before it are on the
    /// medium.
    pub fn flushed(&mut self, began: Moment) {
        let done = self.candidates.iter().filter(|it| it.ended <= began);
        let newest = done.filter_map(|it| Some((it.done?, it.version))).max();
        if let Some((submitted, version)) = newest {
            self.made_durable(submitted, version);
        }
    }

    /// Records that the appliance stopped at `now` while its devices kept power: commands in flight
    /// take no effect any more.
    pub fn stopped(&mut self, now: Moment) {
        for candidate in &mut self.candidates {
            if candidate.ended == Moment::NEVER {
                candidate.ended = now;
            }
        }
    }

    /// Records that the devices lost power at `now`.
    pub fn power_cut(&mut self, now: Moment) {
        self.replaced.clear();
        let lost = |candidate: &Candidate| candidate.durably_overwritten;
        for gone in self.candidates.clone().iter().filter(|it| lost(it)) {
            self.forget(gone.version, Mistake::Resurrected);
        }
        self.candidates.retain(|candidate| !lost(candidate));
        for candidate in &mut self.candidates {
            candidate.ended = candidate.ended.min(now);
            candidate.done = None;
            candidate.overwritten = Moment::NEVER;
            candidate.survivor = true;
        }
    }

    /// Records that the content was replaced by zeroes at `now`; writes in flight may still take
    /// effect.
    pub fn replaced_by_zeroes(&mut self, now: Moment) {
        for gone in self.candidates.clone() {
            if gone.ended != Moment::NEVER {
                self.forget(gone.version, Mistake::Stale);
            }
        }
        self.candidates.retain(|it| it.ended == Moment::NEVER);
        self.candidates.push(Candidate::zeroes(now));
    }

    /// Records that new content is in place: zeroes, and the writes that `may_reach` it, each of
    /// which is newer than the zeroes.
    pub fn exchanged(&mut self, may_reach: impl Fn(u64) -> bool) {
        for gone in self.candidates.clone() {
            if !may_reach(gone.version) {
                self.forget(gone.version, Mistake::Stale);
            }
        }
        self.candidates.retain(|it| may_reach(it.version));
        self.candidates.push(Candidate::zeroes(Moment(0)));
    }

    /// The versions of writes that have not ended.
    pub fn open(&self) -> impl Iterator<Item = u64> + '_ {
        let open = self.candidates.iter();
        let open = open.filter(|it| it.ended == Moment::NEVER);
        open.map(|it| it.version)
    }

    /// Records that the device lost power while the appliance kept running: completed writes may be
    /// undone, and writes in flight may still take effect.
    pub fn lost_power(&mut self) {
        self.replaced.clear();
        let undone = |it: &&mut Candidate| !it.durably_overwritten;
        for candidate in self.candidates.iter_mut().filter(undone) {
            candidate.overwritten = Moment::NEVER;
            candidate.done = None;
        }
    }

    /// Drops versions that only reads from before `oldest` may return.
    pub fn prune(&mut self, oldest: Moment) {
        let over = |it: &Candidate| it.overwritten <= oldest && it.durably_overwritten;
        if self.candidates.len() < 2 || !self.candidates.iter().any(over) {
            return;
        }
        for gone in self.candidates.clone().iter().filter(|it| over(it)) {
            self.forget(gone.version, Mistake::Stale);
        }
        self.candidates.retain(|candidate| !over(candidate));
    }

    /// Whether a power cut may leave the content of `version`, or zeroes for `None`.
    #[must_use]
    pub fn may_survive(&self, version: Option<u64>) -> bool {
        let mut left = self.candidates.iter().filter(|it| !it.durably_overwritten);
        left.any(|it| it.may_be(version))
    }

    /// Whether a comparison with `version` (`None`: zeroes) that began at `began` must succeed. The
    /// write `own` follows it.
    #[must_use]
    pub fn must_equal(&self, version: Option<u64>, began: Moment, own: Option<u64>) -> bool {
        let alive = self.candidates.iter().filter(|it| it.overwritten > began);
        let mut alive = alive.filter(|it| Some(it.version) != own);
        alive.all(|candidate| candidate.content() == Some(version))
    }

    /// The only version that a read may return now, if there is one; `Some(None)` means zeroes.
    #[must_use]
    pub fn only(&self, now: Moment) -> Option<Option<u64>> {
        let mut alive = self.candidates.iter().filter(|it| it.overwritten > now);
        let first = alive.next()?.content()?;
        alive
            .all(|other| other.content() == Some(first))
            .then_some(first)
    }

    /// Records that a Compare and Write that began at `began`, when only the version `expected` could
    /// be there, replaced it by `version`: writes that were in progress meanwhile came later,
    /// because the comparison would have failed.
    ///
    /// # Errors
    /// That version was replaced before.
    pub fn replaced(
        &mut self,
        expected: u64,
        version: u64,
        began: Moment,
        now: Moment,
    ) -> Result<(), Mistake> {
        if self.replaced.contains(&expected) {
            return Err(Mistake::Stale);
        }
        if self.replaced.len() == GONE_MAX {
            self.replaced.remove(0);
        }
        self.replaced.push(expected);
        let is_later = |it: &Candidate| {
            let is_other = it.version != expected && it.version != version;
            is_other && it.done.is_some() && it.ended > began
        };
        if self.candidates.iter().any(is_later)
            && let Some(index) = self.position(version)
        {
            let overwritten = &mut self.candidates[index].overwritten;
            *overwritten = (*overwritten).min(now);
        }
        Ok(())
    }

    /// Versions that a read may still return, and whether they are zeroes; for messages.
    pub fn versions(&self) -> impl Iterator<Item = (u64, bool)> + '_ {
        self.candidates.iter().map(|it| (it.version, it.zero))
    }

    fn position(&self, version: u64) -> Option<usize> {
        self.candidates.iter().position(|it| it.version == version)
    }

    /// Notes that a version selected by `is_it` was there at some moment from `began` to `now`:
    /// other versions that ended before are overwritten.
    fn seen(&mut self, is_it: impl Fn(&Candidate) -> bool, began: Moment, now: Moment) {
        for candidate in &mut self.candidates {
            if candidate.ended <= began && !is_it(candidate) {
                candidate.overwritten = candidate.overwritten.min(now);
            }
        }
    }

    /// Notes that the completed write of `version`, submitted at `began`, is on the medium.
    fn made_durable(&mut self, began: Moment, version: u64) {
        for candidate in &mut self.candidates {
            if candidate.version != version && candidate.ended <= began {
                candidate.durably_overwritten = true;
            }
        }
    }

    fn forget(&mut self, version: u64, mistake: Mistake) {
        if self.gone.len() == GONE_MAX {
            self.gone.remove(0);
        }
        self.gone.push((version, mistake));
    }
}

#[cfg(test)]
mod tests;
