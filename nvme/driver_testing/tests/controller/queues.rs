//! Queues: creation and deletion, phases, heads, doorbells, interrupts (Base 2.1 §3.3, §5.2).

use nvme_driver::backing::DeviceBacking;
use nvme_driver_testing::{EmulatedOptions, Fault, FaultMatch, FaultRule, When};
use nvme_spec::Status;
use nvme_spec::command::LogPageSelect;
use nvme_spec::command::{AdminOpcode, Cns, Sqe};
use nvme_spec::event::AsyncEvent;
use nvme_spec::log::LogPageId;
use nvme_spec::registers::Register;
use reactors::Nanos;
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::harness::{Host, PAGE, create_cq, create_sq, delete, with_cq};

fn small() -> EmulatedOptions {
    EmulatedOptions {
        io_queues_max: 3,
        interrupt_vectors: 4,
        queue_entries_max: 16,
        ..EmulatedOptions::default()
    }
}

#[test]
fn invalid_completion_queues_are_refused() {
    let mut host = Host::new(small());
    let at = host.address(&host.buffer(PAGE));
    let not_contiguous = {
        let mut command = create_cq(1, 4, at, None).create_io_cq();
        command.control = command.control.with_pc(false);
        with_cq(command, at)
    };
    let cases = [
        (create_cq(0, 4, at, None), Status::INVALID_QUEUE_IDENTIFIER),
        (create_cq(4, 4, at, None), Status::INVALID_QUEUE_IDENTIFIER),
        (
            create_cq(u16::MAX, 4, at, None),
            Status::INVALID_QUEUE_IDENTIFIER,
        ),
        (create_cq(1, 1, at, None), Status::INVALID_QUEUE_SIZE),
        (create_cq(1, 17, at, None), Status::INVALID_QUEUE_SIZE),
        (create_cq(1, 65536, at, None), Status::INVALID_QUEUE_SIZE),
        (
            create_cq(1, 4, at, Some(4)),
            Status::INVALID_INTERRUPT_VECTOR,
        ),
        (create_cq(1, 4, at + 16, None), Status::PRP_OFFSET_INVALID),
        (not_contiguous, Status::INVALID_FIELD),
    ];
    for (number, (sqe, expected)) in cases.into_iter().enumerate() {
        assert_eq!(host.admin_status(sqe), expected, "case {number}");
    }
    assert_eq!(
        host.admin_status(create_cq(1, 4, at, Some(3))),
        Status::SUCCESS
    );
    let again = host.admin_status(create_cq(1, 4, at, None));
    assert_eq!(again, Status::INVALID_QUEUE_IDENTIFIER);
}

#[test]
fn invalid_submission_queues_are_refused() {
    let mut host = Host::new(small());
    let at = host.address(&host.buffer(PAGE));
    let status = host.admin_status(create_cq(2, 4, at, None));
    assert_eq!(status, Status::SUCCESS);
    let cases = [
        (create_sq(0, 4, at, 2), Status::INVALID_QUEUE_IDENTIFIER),
        (create_sq(4, 4, at, 2), Status::INVALID_QUEUE_IDENTIFIER),
        (create_sq(1, 4, at, 0), Status::INVALID_QUEUE_IDENTIFIER),
        (create_sq(1, 4, at, 4), Status::INVALID_QUEUE_IDENTIFIER),
        (create_sq(1, 4, at, 1), Status::COMPLETION_QUEUE_INVALID),
        (create_sq(1, 1, at, 2), Status::INVALID_QUEUE_SIZE),
        (create_sq(1, 17, at, 2), Status::INVALID_QUEUE_SIZE),
        (create_sq(1, 4, at + 64, 2), Status::PRP_OFFSET_INVALID),
    ];
    for (number, (sqe, expected)) in cases.into_iter().enumerate() {
        assert_eq!(host.admin_status(sqe), expected, "case {number}");
    }
    assert_eq!(host.control.io_queues(), 0);
}

#[test]
fn completion_queue_is_deleted_after_its_submission_queues() {
    let mut host = Host::new(small());
    host.pair(1, 4, 4);
    let cq = AdminOpcode::DELETE_IO_CQ;
    let sq = AdminOpcode::DELETE_IO_SQ;
    assert_eq!(
        host.admin_status(delete(cq, 1)),
        Status::INVALID_QUEUE_DELETION
    );
    for id in [0, 2, 4] {
        assert_eq!(
            host.admin_status(delete(sq, id)),
            Status::INVALID_QUEUE_IDENTIFIER
        );
        assert_eq!(
            host.admin_status(delete(cq, id)),
            Status::INVALID_QUEUE_IDENTIFIER
        );
    }
    assert_eq!(host.admin_status(delete(sq, 1)), Status::SUCCESS);
    assert_eq!(
        host.admin_status(delete(sq, 1)),
        Status::INVALID_QUEUE_IDENTIFIER
    );
    assert_eq!(host.admin_status(delete(cq, 1)), Status::SUCCESS);
    host.pair(1, 4, 4);
}

#[test]
fn phase_tag_toggles_with_every_pass() {
    for (entries, completions) in [(2, 2), (2, 5), (3, 2), (5, 3), (16, 16)] {
        let mut host = Host::new(small());
        let mut pair = host.pair(3, entries, completions);
        for _ in 0..40 {
            let cqe = host.run(&mut pair, Sqe::flush(1));
            assert!(cqe.status().is_success());
        }
        assert!(pair.pop().is_none());
    }
}

/// A full completion queue stops the submission queue; no completion is lost.
#[test]
fn full_completion_queue_stops_the_submission_queue() {
    let mut host = Host::new(small());
    let mut pair = host.pair(1, 8, 3);
    for _ in 0..7 {
        pair.push(&Sqe::flush(1));
    }
    host.ring_tail(&pair);
    let fetched = host.control.counters().commands;
    let mut ended = 0;
    while let Some(cqe) = pair.pop() {
        assert!(cqe.status().is_success());
        ended += 1;
        host.ring_head(&pair);
    }
    assert_eq!(ended, 7);
    assert_eq!(host.control.counters().commands, fetched + 5);
    // Delayed completions wait in the controller.
    let late = FaultRule::new(FaultMatch::io(), When::Always, Fault::Delay(Nanos(5)));
    host.control.inject(late);
    for _ in 0..7 {
        pair.push(&Sqe::flush(1));
    }
    host.ring_tail(&pair);
    assert!(pair.pop().is_none());
    host.tick(Nanos(5));
    assert_eq!(host.control.outstanding(), 5);
    for _ in 0..7 {
        assert!(pair.pop().expect("a completion").status().is_success());
        host.ring_head(&pair);
    }
    assert_eq!(host.control.outstanding(), 0);
}

fn read_log(host: &mut Host, page: LogPageId) {
    let buffer = host.buffer(PAGE);
    let select = LogPageSelect::new().with_lid(page).with_numd_z(127);
    let sqe = Sqe::log_page(u32::MAX, select, 0).with_prp(host.address(&buffer), 0);
    assert_eq!(host.admin_status(sqe), Status::SUCCESS);
}

/// Base 2.1 §5.1.2.1, PCIe 1.1 §3.1.2: invalid doorbells are reported once until the log is read.
#[test]
fn invalid_doorbell_values_are_reported() {
    let mut host = Host::new(small());
    let mut pair = host.pair(1, 4, 4);
    let request = host.push_admin(Sqe::async_event_request());
    assert!(host.pop_admin().is_none());
    host.drive.write_u32(0x1000 + 2 * 4, 4);
    let event = host.pop_admin().expect("an event");
    assert_eq!(event.cid.get(), request);
    assert_eq!(
        event.dw0.get(),
        AsyncEvent::INVALID_DOORBELL_VALUE.into_bits()
    );
    host.push_admin(Sqe::async_event_request());
    // Queue 2 does not exist. The event is masked until the error log is read.
    host.drive.write_u32(0x1000 + 4 * 4, 1);
    assert!(host.pop_admin().is_none());
    host.drive.write_u32(0x1000 + 3 * 4, 1);
    assert_eq!(host.control.counters().invalid_doorbells, 3);
    let buffer = host.buffer(PAGE);
    let select = LogPageSelect::new()
        .with_lid(LogPageId::ERROR_INFORMATION)
        .with_numd_z(15);
    let sqe = Sqe::log_page(u32::MAX, select, 0).with_prp(host.address(&buffer), 0);
    host.push_admin(sqe);
    let completions = [host.pop_admin().unwrap(), host.pop_admin().unwrap()];
    let found = completions.map(|cqe| cqe.dw0.get());
    assert!(
        found.contains(&AsyncEvent::INVALID_DOORBELL_REGISTER.into_bits()),
        "{found:?}"
    );
    // The queue still works.
    assert!(host.run(&mut pair, Sqe::flush(1)).status().is_success());
    assert_eq!(host.control.counters().illegal_accesses, 0);
}

#[test]
fn event_requests_are_limited_and_can_be_aborted() {
    let mut host = Host::new(EmulatedOptions {
        event_requests_max: 2,
        ..small()
    });
    let first = host.push_admin(Sqe::async_event_request());
    host.push_admin(Sqe::async_event_request());
    let refused = host.push_admin(Sqe::async_event_request());
    let cqe = host.pop_admin().expect("a refusal");
    assert_eq!(cqe.cid.get(), refused);
    let limit = Status::ASYNC_EVENT_REQUEST_LIMIT_EXCEEDED;
    assert!(cqe.status().is(limit));
    host.push_admin(Sqe::abort_command(0, first));
    let aborted = host.pop_admin().expect("the aborted request");
    assert_eq!(aborted.cid.get(), first);
    assert!(aborted.status().is(Status::ABORT_REQUESTED));
    assert_eq!(host.pop_admin().expect("the abort").dw0.get(), 0);
    assert_eq!(host.control.event_requests(), 1);
    read_log(&mut host, LogPageId::ERROR_INFORMATION);
}

fn is_readable(host: &Host, vector: u16) -> bool {
    let event = host.drive.interrupt(vector).expect("a vector");
    let mut polled = [PollFd::new(&event, PollFlags::IN)];
    let zero = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    rustix::event::poll(&mut polled, Some(&zero)).unwrap() == 1
}

#[test]
fn interrupts_are_raised_only_on_armed_vectors() {
    let mut host = Host::new(small());
    let mut pair = host.pair(2, 4, 4);
    assert!(host.drive.interrupt(4).is_none());
    assert!(host.drive.arm_interrupt(4, true).is_err());
    host.run(&mut pair, Sqe::flush(1));
    assert!(!is_readable(&host, 2), "not armed");
    host.drive.arm_interrupt(2, true).unwrap();
    assert!(!is_readable(&host, 2));
    host.run(&mut pair, Sqe::flush(1));
    assert!(is_readable(&host, 2) && !is_readable(&host, 0) && !is_readable(&host, 1));
    host.drive.clear_interrupt(2);
    host.drive.clear_interrupt(2);
    assert!(!is_readable(&host, 2));
    host.drive.arm_interrupt(2, false).unwrap();
    host.run(&mut pair, Sqe::flush(1));
    assert!(!is_readable(&host, 2));
    assert_eq!(host.control.counters().interrupts, 1);
}

#[test]
fn no_dma_without_bus_mastering() {
    let mut host = Host::new(small());
    let mut pair = host.pair(1, 4, 4);
    host.drive.set_bus_master(false).unwrap();
    pair.push(&Sqe::flush(1));
    host.ring_tail(&pair);
    host.tick(Nanos::from_secs(1));
    assert!(pair.pop().is_none());
    assert!(!host.csts().cfs());
    host.drive.set_bus_master(true).unwrap();
    assert!(pair.pop().is_some(), "it goes on where it stopped");
}

#[test]
fn queue_outside_memory_is_fatal() {
    let mut host = Host::new(small());
    let at = host.address(&host.buffer(PAGE));
    assert_eq!(
        host.admin_status(create_cq(1, 4, at, None)),
        Status::SUCCESS
    );
    assert_eq!(host.admin_status(create_sq(1, 4, 4096, 1)), Status::SUCCESS);
    host.drive.write_u32(0x1000 + 2 * 4, 1);
    assert!(host.csts().cfs());
    let commands = host.control.counters().commands;
    host.push_admin(Sqe::keep_alive());
    assert_eq!(host.control.counters().commands, commands);
    host.disable();
    host.enable();
    assert!(host.csts().rdy() && !host.csts().cfs());
}

#[test]
fn invalid_admin_commands_are_refused() {
    let mut host = Host::new(small());
    let opcode = Status::INVALID_OPCODE;
    for sqe in [
        Sqe::new(0x80, 1),
        Sqe::new(0xff, 0),
        Sqe::new(0x7c, 0),
        Sqe::keep_alive(),
    ] {
        assert_eq!(host.admin_status(sqe), opcode);
    }
    let fused =
        Sqe::identify_structure(Cns::CONTROLLER, 0).with_fuse(nvme_spec::command::Fuse::FIRST);
    assert_eq!(host.admin_status(fused), Status::INVALID_FIELD);
    let at = host.address(&host.buffer(PAGE));
    let sgl = nvme_spec::sgl::SglDescriptor::data_block(at, 4096);
    let by_sgl = Sqe::identify_structure(Cns::CONTROLLER, 0).with_sgl(sgl);
    assert_eq!(host.admin_status(by_sgl), Status::INVALID_FIELD);
    let unknown = host.run_admin(Sqe::abort_command(2, 7));
    assert!(unknown.status().is(Status::INVALID_FIELD));
    let missed = host.run_admin(Sqe::abort_command(0, 7));
    assert_eq!((missed.status(), missed.dw0.get()), (Status::SUCCESS, 1));
    assert_eq!(host.get(Register::CSTS), 1);
}
