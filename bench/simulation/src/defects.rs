//! Planted defects of the appliance. The simulation has to find each of them, which proves that the
//! judge detects such defects.
//!
//! The code contains them where it calls [`planted`](reactors::sim::planted); they exist only in
//! builds with `--cfg planted`.

use std::fmt;

use crate::run::Failure;

/// A planted defect must be found within this number of seeds, beginning with seed 0.
pub const SEEDS_MAX: u64 = 200;

/// A planted defect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Defect {
    /// Its name in the code.
    pub name: &'static str,
    /// The wrong behaviour of the appliance.
    pub what: &'static str,
}

/// Declares the defects.
macro_rules! defects {
    ($($name:literal: $what:literal;)*) => {
        /// All defects that the simulation has to find.
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
    "drive-lease-at-timeout": "memory comes back when a command and its Abort timed out, before a reset";
    "drive-reset-as-success": "what a drive had when it was reset is answered as done";
    "neighbour-closed": "the end of one queue ends another";
    "device-leaves-early": "a device that goes is not waited for";
    "answers-overtake": "what is answered at once overtakes what the devices had finished in the turn before";
    "rdma-response-first": "a response is sent before its data";
    "rdma-lease-early": "memory comes back when its data is posted, not when it is sent";
    "rdma-memory-at-disconnect": "memory comes back when a connection ends, not when its reads have";
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
    "orphans-not-awaited": "a new controller is ready while devices have requests of its host's last association";
    "sync-error-forgotten": "a failed sync of a file is an error of one request only";
    "short-read-zeroes": "what lies past the end of a file reads as zeroes";
    "transfer-limit-ignored": "transfers longer than MDTS are carried out";
    "read-only-zeroed": "Write Zeroes changes a namespace that is read-only";
    "read-only-configured": "what only the configuration makes read-only is written";
    "longer-sgl-taken": "a data pointer longer than the range is taken";
    "opcode-ignored": "an I/O command with an unknown opcode succeeds";
    "later-ranges-unchecked": "Dataset Management checks its first range alone";
    "unused-ranges-taken": "Dataset Management obeys ranges behind those that count";
    "retry-not-forbidden": "a command that fails everywhere is refused without Do Not Retry";
    "served-after-disconnect": "commands behind a Disconnect are carried out";
    "host-id-ignored": "an I/O queue is made for another host identifier";
    "foreign-controller-joined": "an I/O queue is made for another host's controller";
    "ungranted-queue-made": "an I/O queue is made that was not granted";
    "data-of-another-taken": "H2CData with another command's identifier is taken";
    "data-offset-ignored": "H2CData is taken whatever its offset";
    "last-flag-ignored": "H2CData is taken whatever its LAST_PDU flag";
    "write-cache-stays-on": "Set Features switches the write cache off, and writes stay volatile";
    "cache-hidden": "Identify Controller tells of no volatile cache";
    "cache-denied": "namespaces say that they have no volatile cache";
    "shutdown-unflushed": "an orderly shutdown completes without a flush";
    "abort-inverted": "dword 0 of Abort says the opposite";
    "retained-event-cleared": "Retain Asynchronous Event is ignored";
    "refused-connect-reserves": "a Connect that is refused keeps the commands promised to it";
    "timer-kept": "the timer of a controller stays when the controller goes";
    "setup-never-ends": "a connection whose set-up stops stays for ever";
    "success-despite-flow-control": "reads end without a response although SQ flow control is on";
    "fua-zero-not-synced": "Write Zeroes with FUA does not sync the file";
    "short-write-acknowledged": "a file that took a part of a write is believed to have all of it";
    "rdma-receives-unbounded": "receives take memory of every size, more than the arena promised";
    "borrow-ends-early": "memory that a device lends can be written again when it is posted, not when it is sent";
    "borrow-copied-short": "the copy of what a slow host borrows is half a copy";
    "fill-before-digest": "data under a digest is received straight into the device";
    "fill-in-one-place": "all parts of a write that are received straight into the device go to its first blocks";
    "filled-rest-lost": "what is left of a write that was received straight into the device is not written";
    "at-once-digest-ignored": "data in a capsule is written at once whatever its digest says";
    "held-write-dropped": "a write to memory that is lent is answered and forgotten";
    "zeroes-stop-at-hold": "zeroing ends where memory is lent";
    "edge-of-growth-short": "an access over the edge of memory that was added ends there";
    "grown-memory-unregistered": "network cards do not know memory that was added";
    "durable-read-flush-error-ignored": "a durable read whose flush failed succeeds";
    "flush-error-hidden": "a Flush that failed is answered as success";
    "flush-of-all-error-forgotten": "a Flush of all namespaces succeeds although one device failed";
    "removal-not-flushed": "a device that goes is not flushed";
    "hosts-leave-late": "a change is reported as done before the hosts that it shuts out are gone";
    "hosts-never-cut-off": "hosts whose commands outlast the deadline of a change stay";
    "identity-change-unannounced": "hosts stay attached to a subsystem whose serial number changes";
    "listener-settings-stale": "hosts of a listener whose settings change get the old ones";
    "queue-limit-overlooked": "a change of max_io_queues alone is not served";
    "controller-limit-late": "a change of max_controllers waits for the next start";
    "listener-kept-in-vain": "a listener that was bound for a change that came to nothing stays bound";
    "growth-undone": "a change that comes to nothing makes what has grown smaller again";
    "growth-announced-early": "hosts hear of new blocks before all queues take them";
    "abort-becomes-reset": "a drive is reset for a command that Abort would end";
    "abort-of-another-command": "a command that is late has another one aborted";
    "abort-never-sent": "a command that is late is never aborted";
    "damaged-connect-retried": "a connection whose Connect was damaged may try again, as often as it likes";
    "largest-queue-assumed": "every connection has tables for the largest queue that there can be";
    "buffer-kept": "a connection keeps its receive buffer when all in it is taken";
    "overdue-never-ended": "a request that a device does not finish keeps its host's next controller waiting for ever";
    "stuck-undamaged": "a file that still has a write of an ended association acknowledges newer ones";
    "last-comes-first": "of the requests of a queue that wait for memory the newest is served first";
    "memory-keeps-identity": "memory that was taken anew has the identifiers of the memory before it";
    "exchange-keeps-identity": "a device in another file has the identifiers of the former one";
    "exchange-keeps-hosts": "hosts stay attached when a device is put into another file";
    "identifier-replaces": "a command ends another with its identifier, which is never answered";
    "data-by-identifier": "H2CData goes to the first command with its identifier, whatever its transfer tag";
    "event-request-replaced": "an admin command ends an event request with its identifier";
    "event-limit-low": "one event request less may wait than AERL says";
    "event-flood-drops-oldest": "an event request beyond the limit takes the place of the oldest one";
    "discovery-refused-when-full": "a discovery controller is refused where another would have to go for it";
    "eviction-of-newest": "the discovery controller that was idle shortest makes room";
    "eviction-ignores-waiters": "discovery controllers that wait for events make room as others do";
    "unlisted-take-all": "hosts that no export names leave nothing to those that are named";
    "swap-keeps-hosts": "hosts stay attached when two devices swap their namespace identifiers";
    "event-abort-unanswered": "an event request that is aborted is not answered";
}

/// A defect that a test detects instead of the simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tested {
    /// Its name in the code.
    pub name: &'static str,
    /// The wrong behaviour of the appliance.
    pub what: &'static str,
    /// The target's name of the program with the test: a crate for its unit tests, or one of the
    /// files in a crate's `tests`.
    pub program: &'static str,
    /// The name of the test.
    pub test: &'static str,
}

/// Declares the defects that tests detect.
macro_rules! tested {
    ($($name:literal: $what:literal, by $program:literal $test:literal;)*) => {
        /// All defects that tests detect; `cargo xtask sim --defects` runs each test with its
        /// defect.
        pub const TESTED: &[Tested] = &[$(Tested {
            name: $name,
            what: $what,
            program: $program,
            test: $test,
        },)*];
    };
}

tested! {
    "share-ignored": "a host takes more than its share of the arena's slices of a size",
        by "fairness" "a_host_that_never_sends_holds_only_its_share_of_each_size";
    "fifo-over-hosts": "slices are given out in the order of requests, whoever has how many",
        by "fairness" "a_host_that_never_sends_holds_only_its_share_of_each_size";
    "lease-before-share": "a write takes its memory before its host's share permits",
        by "fairness" "a_host_that_never_sends_holds_only_its_share_of_each_size";
    "no-progress-deadline": "data that was asked for may stay away for ever while others wait",
        by "fairness" "a_host_without_progress_makes_room_for_one_that_waits";
    "borrow-never-copied": "what a slow host borrows is never copied, and keeps writers out",
        by "fairness" "a_lent_block_can_be_written_within_150_ms_whatever_its_reader_does";
    "account-leaked": "the account of a host stays when its last controller goes",
        by "nvme_target" "registry::tests::an_account_goes_with_its_hosts_last_controller";
    "shares-ignored": "one host may take all controllers, queues and commands",
        by "protocol" "connect::unnamed_hosts_leave_executions_to_named_ones";
    "discovery-in-shares": "discovery controllers are counted among those of exports",
        by "protocol" "connect::silent_discovery_controllers_lock_nobody_out";
    "queues-unbound": "an I/O queue may come from another address than its admin queue",
        by "protocol" "connect::an_io_queue_comes_from_the_address_of_its_admin_queue";
    "abort-limit-ignored": "Aborts beyond the Abort Command Limit are carried out",
        by "protocol" "admin::an_abort_flood_meets_the_limit";
    "give-up-forgotten": "requests of a queue that is gone are not given up",
        by "protocol" "orphans::a_write_that_waits_in_a_device_is_given_up";
    "fence-ignored": "a host's other controllers write while devices have requests of an association that is over",
        by "protocol" "orphans::another_path_waits_for_orphans";
    "more-never-set": "the More bit is never set",
        by "protocol" "logs::more_says_that_the_error_log_has_an_entry";
    "nn-counts-namespaces": "NN and MNAN are the present number of namespaces",
        by "protocol" "identify::a_namespace_that_joins_changes_nothing_that_hosts_rely_on";
    "rdma-borrow-unbounded": "over RDMA a block is lent for as long as its reader likes",
        by "stalls" "a_reader_without_receives_does_not_keep_a_writer_out";
    "rdma-stall-tolerated": "over RDMA what is posted may make no progress for ever",
        by "stalls" "a_host_that_takes_nothing_is_let_go_after_five_seconds";
    "rdma-deaf-forever": "silence is excused for as long as the transport cannot hear",
        by "memory" "exhausted_receives_prolong_a_silence_once";
    "rdma-destruction-ignored": "a queue pair that cannot be destroyed gives its memory back",
        by "wedged" "a_queue_pair_that_is_not_destroyed_keeps_its_memory_for_good";
    "compare-first-piece-only": "a long comparison of a file compares its first piece only",
        by "block" "file::queue::tests::compares_get_through_on_the_queues_own_lease_when_the_pool_is_empty";
    "lba-wraps": "a range that goes round at 2^64 is taken for one at the beginning",
        by "block" "bounds::tests::ranges_that_wrap_or_end_outside_are_refused";
    "write-cache-off-unflushed": "the write cache is switched off without a flush of what it holds",
        by "protocol" "features::a_cache_that_is_off_is_off";
    "feature-forgotten": "Set Features of power management changes nothing",
        by "protocol" "features::there_is_one_power_state";
    "keep-alive-change-ignored": "Set Features of the Keep Alive Timer changes nothing",
        by "protocol" "keep_alive::the_time_can_be_changed";
    "default-is-current": "Get Features tells the current value for the default",
        by "protocol" "features::what_can_be_selected";
    "features-survive-reset": "a controller level reset leaves features as they are",
        by "protocol" "features::a_cache_that_is_off_is_off";
    "error-entry-missing": "failed I/O commands leave no entry in the error log",
        by "protocol" "drives::a_drives_errors_are_taken_over_once";
    "error-entry-misplaced": "entries of the error log name the admin queue",
        by "protocol" "logs::errors_of_all_queues_are_in_one_log";
    "event-lost-without-request": "an event without a request for it is forgotten",
        by "protocol" "events::an_event_waits_for_a_request";
    "event-not-masked": "an event is reported again before its log page was read",
        by "protocol" "events::changed_namespaces_are_told_once";
    "changed-list-kept": "the changed-namespace list is not cleared by reading it",
        by "protocol" "events::changed_namespaces_are_told_once";
    "changed-list-short": "the changed-namespace list leaves its first entry out",
        by "protocol" "events::changed_namespaces_are_told_once";
    "reservation-kept": "the commands promised to an I/O queue stay promised when it goes",
        by "protocol" "connect::queues_and_executions_of_a_core_are_bounded";
    "generation-frozen": "the discovery log changes and its generation does not",
        by "protocol" "discovery::the_generation_tells_of_a_change";
    "discovery-change-untold": "no event tells of a changed discovery log",
        by "protocol" "events::discovery_changes_are_told_to_whom_they_concern";
    "cache-follows-namespaces": "hosts that attach before a namespace with a cache hear of none",
        by "protocol" "identify::a_namespace_that_joins_changes_nothing_that_hosts_rely_on";
    "shutdown-flush-error-hidden": "a shutdown whose flush failed reports success",
        by "protocol" "properties::a_failing_flush_does_not_stop_a_shutdown";
    "connections-doubled": "twice as many connections are served as configured",
        by "reactors" "placement::tests::the_limit_on_connections_is_exact";
}

impl fmt::Display for Tested {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.program, self.test)
    }
}

/// The result of the search for a defect.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The defect.
    pub defect: Defect,
    /// The failure of the first seed that detects it.
    pub failure: Option<Failure>,
}

/// Maximum length of a violation's text in the table, in characters.
const VIOLATION_LENGTH_MAX: usize = 140;

/// The findings as a Markdown page.
#[must_use]
pub fn markdown_page(findings: &[Finding]) -> String {
    let mut page = format!(
        "# Planted defects\n\
         \n\
         Each is compiled into the appliance for this alone (`--cfg planted`), one at a time, and \
         looked for by the\n\
         simulation from seed 0 on; it must be found within {SEEDS_MAX} seeds. `cargo xtask sim \
         --defects` looks for all of them\n\
         and writes this page.\n\
         \n\
         ## By simulation\n\
         \n\
         | defect | what is wrong | seeds needed | what the judge said |\n\
         |---|---|---:|---|\n"
    );
    for Finding { defect, failure } in findings {
        let (seeds, said) = match failure {
            Some(failure) => {
                let said = failure.violation.to_string().replace('|', "/");
                let short: String = said.chars().take(VIOLATION_LENGTH_MAX).collect();
                let more = if short.len() < said.len() { " …" } else { "" };
                ((failure.seed + 1).to_string(), short + more)
            }
            None => ("**not found**".to_owned(), String::new()),
        };
        page += &format!("| {} | {} | {seeds} | {said} |\n", defect.name, defect.what);
    }
    page += "\n\
        ## By tests\n\
        \n\
        Where simulation is the wrong tool, a crate's test must fail with the defect and succeed \
        without; the same\n\
        command runs each.\n\
        \n\
        | defect | what is wrong | test |\n\
        |---|---|---|\n";
    for tested in TESTED {
        let Tested { name, what, .. } = tested;
        page += &format!("| {name} | {what} | `{tested}` |\n");
    }
    page
}

/// Searches for a defect.
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
        let simulated = DEFECTS.iter().map(|it| it.name);
        let names: Vec<&str> = simulated.chain(TESTED.iter().map(|it| it.name)).collect();
        for (index, name) in names.iter().enumerate() {
            assert!(!names[..index].contains(name), "{name} is listed twice");
        }
    }

    #[test]
    fn a_defect_that_is_not_found_stands_out() {
        let defect = DEFECTS[0];
        let finding = Finding {
            defect,
            failure: None,
        };
        assert!(markdown_page(&[finding]).contains(
            "| flush-skipped | Flush is answered and nothing is flushed | **not found** |  |"
        ));
    }
}
