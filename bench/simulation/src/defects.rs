//! Defects that are planted in the appliance one at a time, each of which the simulation must find:
//! the proof that the judge sees.
//!
//! They are at the places in the code that ask [`planted`](reactors::sim::planted), and only in
//! builds with `--cfg planted`.

use crate::run::Failure;

/// A planted defect must be found within so many seeds, beginning with seed 0.
pub const SEEDS_MAX: u64 = 200;

/// A defect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Defect {
    /// Its name at the place where it is planted.
    pub name: &'static str,
    /// What the appliance does wrong.
    pub what: &'static str,
}

/// Declares the defects.
macro_rules! defects {
    ($($name:literal: $what:literal;)*) => {
        /// All of them.
        pub const DEFECTS: &[Defect] = &[$(Defect { name: $name, what: $what },)*];
    };
}

defects! {
    "flush-skipped": "Flush is answered and nothing is flushed";
    "flush-of-all-short": "a Flush of all namespaces leaves the first device out";
    "fua-ignored": "Force Unit Access is ignored";
    "fua-read-not-flushed": "a read with Force Unit Access returns what is not durable";
    "stop-without-flush": "an orderly stop does not flush";
    "answer-before-device": "what changes data is answered before the device is done with it";
    "write-error-hidden": "a device's write error is answered as success";
    "read-error-hidden": "a device's read error is answered as success";
    "mismatch-hidden": "a comparison that failed is answered as success";
    "lba-off-by-one": "transfers of more than 8 blocks go to the block before";
    "zeroes-short": "Write Zeroes leaves the last block out";
    "last-range-forgotten": "Dataset Management leaves the last range out";
    "read-short": "a long read returns 512 bytes less";
    "part-taken-for-all": "a write goes to the device when the first part of its data is there";
    "data-digest-ignored": "data that was damaged on its way is taken";
    "header-digest-ignored": "headers that were damaged on their way are taken";
    "sent-forgotten": "after two partial sends the stream goes on at the wrong byte";
    "answer-twice": "a command is answered twice";
    "completion-lost": "a device's completion is lost";
    "deferred-lost": "a request that a device puts off twice is lost";
    "grant-lost": "memory comes to a request that waits for it, and the request is lost";
    "blocked-forgotten": "a stream that took nothing is not looked at again";
    "lease-leaked": "the memory of a command with damaged data is not given back";
    "queue-never-closed": "the queue of a broken connection stays";
    "queue-freed-early": "a queue is gone while devices have commands of it";
    "orphan-forgotten": "a queue whose last command comes from the device stays";
    "reset-does-not-wait": "CSTS.RDY is 0 while devices have commands of before the reset";
    "disconnect-overtakes": "Disconnect is answered before the commands in front of it";
    "abort-of-another": "Abort gives another command up";
    "head-beyond-queue": "SQHD does not go round at the queue's end";
    "silence-ignored": "the Keep Alive Timeout has no consequence";
    "traffic-ignored": "I/O does not count as a sign of life";
    "event-lost": "no event tells of a changed namespace";
    "revocation-ignored": "a host that lost its permission keeps its controller";
    "stranger-admitted": "a host without permission may connect";
    "drive-fua-ignored": "the driver ignores Force Unit Access";
    "drive-part-misplaced": "all parts of a long request use the first part's memory";
    "drive-generation-ignored": "the driver believes a completion for an earlier use of a slot";
    "drive-leases-early": "memory comes back while a drive that is being reset can still reach it";
    "drive-reset-as-success": "what a drive had when it was reset is answered as done";
    "neighbour-closed": "the end of one queue ends another";
    "device-leaves-early": "a device that goes is not waited for";
    "answers-overtake": "what is answered at once overtakes what another transport's turn had finished";
    "rdma-response-first": "a response is sent before its data";
    "rdma-lease-early": "memory comes back when its data is posted, not when it is sent";
    "rdma-other-key": "a response invalidates the key next to its own";
    "rdma-failure-ignored": "a work request that failed is taken for done";
    "rdma-part-taken-for-all": "a write goes to the device when the first part of its data was read";
    "rdma-request-unjudged": "a connection is made whose host has no room for answers";
    "subsystem-stays": "hosts of a removed subsystem keep their controllers";
    "growth-untold": "queues of a device that grew refuse its new blocks";
    "growth-unannounced": "no event tells of a namespace that grew";
    "one-reactor-told": "changes reach only the first reactor";
    "hosts-forgotten": "a subsystem that comes back lets nobody attach";
    "listener-stays": "a removed listener keeps its address";
    "rdma-listener-stays": "a removed listener over RDMA goes on accepting";
    "steps-backwards": "the steps of a change are carried out in the reverse order";
    "undone-not": "what was done of a change that failed is not undone";
    "shorter-tried": "a device whose file is to be shorter is closed before that is refused";
    "rdma-receive-lost": "receives that took data are not posted again";
    "rdma-removal-leaks": "receives of a device that is pulled out keep their memory";
    "rdma-receives-unbounded": "receives take memory of every size, more than the arena promised";
}

/// How a defect was found, or not.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The defect.
    pub defect: Defect,
    /// What the judge said, in the first seed in which it said anything.
    pub failure: Option<Failure>,
}

/// Characters of what the judge said that the table shows.
const SAID_MAX: usize = 140;

/// The findings as a page.
#[must_use]
pub fn page(findings: &[Finding]) -> String {
    let mut page = format!(
        "# Planted defects\n\
         \n\
         Each is compiled into the appliance for this alone (`--cfg planted`), one at a time, and \
         looked for by the\n\
         simulation from seed 0 on; it must be found within {SEEDS_MAX} seeds. `cargo xtask sim \
         --defects` looks for all of them\n\
         and writes this page.\n\
         \n\
         | defect | what is wrong | seeds needed | what the judge said |\n\
         |---|---|---:|---|\n"
    );
    for Finding { defect, failure } in findings {
        let (seeds, said) = match failure {
            Some(failure) => {
                let said = failure.violation.to_string().replace('|', "/");
                let short: String = said.chars().take(SAID_MAX).collect();
                let more = if short.len() < said.len() { " …" } else { "" };
                ((failure.seed + 1).to_string(), short + more)
            }
            None => ("**not found**".to_owned(), String::new()),
        };
        page += &format!("| {} | {} | {seeds} | {said} |\n", defect.name, defect.what);
    }
    page
}

/// Looks for a defect.
#[cfg(planted)]
#[must_use]
pub fn look_for(defect: Defect) -> Finding {
    use crate::swarm::Limits;
    reactors::sim::plant(defect.name);
    let limits = Limits::default();
    let failure = (0..SEEDS_MAX).find_map(|seed| crate::run::run(seed, &limits).failure);
    reactors::sim::plant("");
    Finding { defect, failure }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_apart() {
        for (index, defect) in DEFECTS.iter().enumerate() {
            assert!(DEFECTS[..index].iter().all(|it| it.name != defect.name));
        }
    }

    #[test]
    fn a_defect_that_is_not_found_stands_out() {
        let defect = DEFECTS[0];
        let finding = Finding {
            defect,
            failure: None,
        };
        assert!(page(&[finding]).contains(
            "| flush-skipped | Flush is answered and nothing is flushed | **not found** |  |"
        ));
    }
}
