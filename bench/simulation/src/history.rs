//! What one block may hold: every write that may still be what a read returns.
//!
//! A write takes effect at some moment between its submission and its answer; so does a read. From
//! that alone follows what a read may return (a register with concurrent access): the value of any
//! write, unless something else is known to have been there after the write had ended and before
//! the read began. What may come back after a power cut is the same question with "known to be
//! durable" in place of "known to have been there": FUA, a completed Flush, or a read with FUA.

/// A point in the order of what hosts did and saw. No two events share one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(pub u64);

impl Moment {
    const NEVER: Moment = Moment(u64::MAX);
}

/// The write that a block's first content counts as: zeroes.
pub const INITIAL: u64 = 0;

/// How a write was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteEnd {
    /// It is done, and on the medium if `durable`.
    Done {
        /// It had FUA, or there is no volatile cache.
        durable: bool,
    },
    /// It failed: what it would have changed may be changed or not.
    Undecided,
    /// It failed in a way that promises that nothing was changed.
    Refused,
}

/// What a read must not have returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// It was overwritten before the read began.
    Stale,
    /// It was overwritten durably before a power cut.
    Resurrected,
    /// It was never written here, or the write was refused.
    NeverWritten,
    /// What is newer and durable is not on the medium.
    Volatile,
}

#[derive(Clone, Debug)]
struct Candidate {
    version: u64,
    /// Its content is zeroes, which do not tell which write they are of.
    zero: bool,
    /// When it had taken effect if ever; `NEVER` while that is open.
    ended: Moment,
    /// When it was submitted, once it is known to be done.
    done: Option<Moment>,
    /// Reads that begin at this moment or later must not return it.
    overwritten: Moment,
    /// A power cut cannot bring it back.
    durably_overwritten: bool,
    /// It is from before the last power cut, which left exactly one of those.
    survivor: bool,
}

impl Candidate {
    /// The zeroes that a block holds at first.
    fn zeroes(since: Moment) -> Self {
        Self {
            version: INITIAL,
            zero: true,
            ended: since,
            done: Some(since),
            overwritten: Moment::NEVER,
            durably_overwritten: false,
            survivor: false,
        }
    }
}

/// The writes of one block that matter still.
#[derive(Clone, Debug)]
pub struct BlockHistory {
    candidates: Vec<Candidate>,
    /// Versions that no read may return any more, the newest few: only to say what went wrong.
    gone: Vec<(u64, Mistake)>,
}

/// Versions remembered for the sake of a better message.
const GONE_MAX: usize = 16;

impl Default for BlockHistory {
    fn default() -> Self {
        Self {
            candidates: vec![Candidate::zeroes(Moment(0))],
            gone: Vec::new(),
        }
    }
}

impl BlockHistory {
    /// A write of `version` was submitted; `zero` when it leaves zeroes.
    pub fn begin(&mut self, version: u64, zero: bool) {
        self.candidates.push(Candidate {
            version,
            zero,
            ended: Moment::NEVER,
            done: None,
            overwritten: Moment::NEVER,
            durably_overwritten: false,
            survivor: false,
        });
    }

    /// The write of `version`, submitted at `began`, was answered at `now`.
    pub fn end(&mut self, version: u64, began: Moment, now: Moment, end: WriteEnd) {
        let Some(index) = self.position(version) else {
            return;
        };
        match end {
            WriteEnd::Refused => {
                self.candidates.remove(index);
                self.forget(version, Mistake::NeverWritten);
            }
            WriteEnd::Undecided => self.candidates[index].ended = now,
            WriteEnd::Done { durable } => {
                let candidate = &mut self.candidates[index];
                candidate.ended = now;
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

    /// Whether a read that began at `began` may return the content of `version`, or zeroes for
    /// `None`; nothing follows from it.
    ///
    /// # Errors
    /// Why it must not have.
    pub fn may_return(&self, version: Option<u64>, began: Moment) -> Result<(), Mistake> {
        let is_it = |candidate: &Candidate| match version {
            Some(version) => candidate.version == version && !candidate.zero,
            None => candidate.zero,
        };
        let mut possible = self.candidates.iter().filter(|it| it.overwritten > began);
        if possible.any(is_it) {
            Ok(())
        } else {
            Err(Mistake::Stale)
        }
    }

    /// A read that began at `began` returned, at `now`, the content of `version`, or zeroes for
    /// `None`. `durable`: and that is on the medium.
    ///
    /// # Errors
    /// Why it must not have.
    pub fn read(
        &mut self,
        version: Option<u64>,
        began: Moment,
        now: Moment,
        durable: bool,
    ) -> Result<(), Mistake> {
        let is_it = |candidate: &Candidate| match version {
            Some(version) => candidate.version == version && !candidate.zero,
            None => candidate.zero,
        };
        let possible = |candidate: &&Candidate| is_it(candidate) && candidate.overwritten > began;
        if !self.candidates.iter().any(|it| possible(&it)) {
            let known = self.candidates.iter().any(is_it);
            let told = self
                .gone
                .iter()
                .find(|(gone, _)| Some(*gone) == version)
                .map(|(_, mistake)| *mistake);
            let default = if version.is_none() || known {
                Mistake::Stale
            } else {
                Mistake::NeverWritten
            };
            return Err(told.unwrap_or(default));
        }
        self.seen(is_it, began, now);
        // The one survivor of a power cut is what is on the medium, so the others never come back.
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

    /// A Flush that began at `began` succeeded: what had been done by then is on the medium.
    pub fn flushed(&mut self, began: Moment) {
        let done = self.candidates.iter().filter(|it| it.ended <= began);
        let newest = done.filter_map(|it| Some((it.done?, it.version))).max();
        if let Some((submitted, version)) = newest {
            self.made_durable(submitted, version);
        }
    }

    /// The appliance went down at `now` without its devices losing power: nothing that it had in
    /// flight will take effect any more.
    pub fn settled(&mut self, now: Moment) {
        for candidate in &mut self.candidates {
            if candidate.ended == Moment::NEVER {
                candidate.ended = now;
            }
        }
    }

    /// The devices lost power at `now`.
    pub fn power_cut(&mut self, now: Moment) {
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

    /// The content is gone at `now` and zeroes are in its place; what is in flight may still come.
    pub fn emptied(&mut self, now: Moment) {
        for gone in self.candidates.clone() {
            if gone.ended != Moment::NEVER {
                self.forget(gone.version, Mistake::Stale);
            }
        }
        self.candidates.retain(|it| it.ended == Moment::NEVER);
        self.candidates.push(Candidate::zeroes(now));
    }

    /// Another content is there, zeroes save for writes that `may_reach` it, each of which is newer
    /// than the zeroes.
    pub fn exchanged(&mut self, may_reach: impl Fn(u64) -> bool) {
        for gone in self.candidates.clone() {
            if !may_reach(gone.version) {
                self.forget(gone.version, Mistake::Stale);
            }
        }
        self.candidates.retain(|it| may_reach(it.version));
        self.candidates.push(Candidate::zeroes(Moment(0)));
    }

    /// The writes that have not ended.
    pub fn open(&self) -> impl Iterator<Item = u64> + '_ {
        let open = self.candidates.iter();
        let open = open.filter(|it| it.ended == Moment::NEVER);
        open.map(|it| it.version)
    }

    /// The device lost power while the appliance went on: what was done may be undone, and what is
    /// in flight may still come.
    pub fn lost_power(&mut self) {
        let undone = |it: &&mut Candidate| !it.durably_overwritten;
        for candidate in self.candidates.iter_mut().filter(undone) {
            candidate.overwritten = Moment::NEVER;
            candidate.done = None;
        }
    }

    /// No read that began before `oldest` is in flight any more.
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

    /// Whether the content of `version`, or zeroes for `None`, may be what a power cut leaves.
    #[must_use]
    pub fn may_survive(&self, version: Option<u64>) -> bool {
        let left = self.candidates.iter().filter(|it| !it.durably_overwritten);
        let of = |candidate: &Candidate| (!candidate.zero).then_some(candidate.version);
        left.map(of).any(|it| it == version)
    }

    /// Whether a comparison with `version` (`None`: zeroes) that began at `began` had to succeed.
    #[must_use]
    pub fn is_certainly(&self, version: Option<u64>, began: Moment) -> bool {
        let mut alive = self.candidates.iter().filter(|it| it.overwritten > began);
        alive.all(|candidate| match version {
            Some(version) => candidate.version == version && !candidate.zero,
            None => candidate.zero,
        })
    }

    /// A version that a read may return now, if there is only one kind: `Some(None)` is zeroes.
    #[must_use]
    pub fn only(&self, now: Moment) -> Option<Option<u64>> {
        let mut alive = self.candidates.iter().filter(|it| it.overwritten > now);
        let first = alive.next()?;
        let of = |candidate: &Candidate| (!candidate.zero).then_some(candidate.version);
        alive
            .all(|other| of(other) == of(first))
            .then_some(of(first))
    }

    /// Versions that matter still, with whether they leave zeroes; for messages.
    pub fn versions(&self) -> impl Iterator<Item = (u64, bool)> + '_ {
        self.candidates.iter().map(|it| (it.version, it.zero))
    }

    fn position(&self, version: u64) -> Option<usize> {
        self.candidates.iter().position(|it| it.version == version)
    }

    /// What `is_it` names was there at some moment from `began` to `now`: what had ended before is
    /// overwritten.
    fn seen(&mut self, is_it: impl Fn(&Candidate) -> bool, began: Moment, now: Moment) {
        for candidate in &mut self.candidates {
            if candidate.ended <= began && !is_it(candidate) {
                candidate.overwritten = candidate.overwritten.min(now);
            }
        }
    }

    /// The done write of `version`, submitted at `began`, is on the medium.
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
