use super::*;

const NOW: Nanos = Nanos(5);

fn register(host: u64) -> ReservationCommand {
    ReservationCommand::Register {
        action: 0,
        ignores_key: false,
        cptpl: 0,
        current: 0,
        new: host + 1,
    }
}

fn acquire(action: u8, host: u64, preempted: u64) -> ReservationCommand {
    ReservationCommand::Acquire {
        action,
        ignores_key: false,
        rtype: model::WRITE_EXCLUSIVE,
        current: host + 1,
        preempted: preempted + 1,
    }
}

fn run(judge: &mut ReservationJudge, host: usize, command: ReservationCommand) -> Effects {
    let id = judge.submit(NOW, 0, (host, 1), command);
    let completed = judge.complete(NOW, 0, id, &Answer::Done(None));
    completed.expect("it must succeed")
}

#[test]
fn outcome_of_a_race_is_one_of_both_orders() {
    let conflict = Answer::Failed(Status::RESERVATION_CONFLICT);
    for winner in 0..2 {
        let mut judge = ReservationJudge::new(1);
        run(&mut judge, 0, register(0));
        run(&mut judge, 1, register(1));
        let ids = [0, 1].map(|it| judge.submit(NOW, 0, (it, 1), acquire(0, it as u64, 0)));
        let possible = judge.possible_since(0, NOW);
        assert!(possible.allows(0, true) && possible.forbids(0, true));
        let won = judge.complete(NOW, 0, ids[winner], &Answer::Done(None));
        assert!(won.is_ok());
        let lost = ids[1 - winner];
        assert!(judge.complete(NOW, 0, lost, &Answer::Done(None)).is_err());
        assert!(judge.complete(NOW, 0, lost, &conflict).is_ok());
        let state = judge.certain(0).expect("both are completed");
        assert!(state.is_holder(winner));
    }
}

#[test]
fn lost_command_may_take_effect_until_a_later_one_is_completed() {
    let mut judge = ReservationJudge::new(1);
    run(&mut judge, 0, register(0));
    run(&mut judge, 1, register(1));
    let id = judge.submit(NOW, 0, (0, 7), acquire(0, 0, 0));
    judge.lose(0, id);
    run(&mut judge, 1, register(1));
    assert_eq!(judge.certain(0), None, "the target may still receive it");
    judge.noticed((0, 7));
    run(&mut judge, 1, register(1));
    assert_eq!(judge.disks[0].pending.len(), 0);
    let later = Nanos(6);
    let report = judge.submit(later, 0, (1, 1), ReservationCommand::Report);
    let seen = judge.state(0).cloned().map(Box::new);
    assert!(
        judge
            .complete(later, 0, report, &Answer::Done(seen))
            .is_ok()
    );
    assert!(judge.certain(0).is_some());
}

#[test]
fn preempt_and_abort_is_a_fence() {
    let mut judge = ReservationJudge::new(1);
    run(&mut judge, 0, register(0));
    run(&mut judge, 1, register(1));
    run(&mut judge, 0, acquire(0, 0, 0));
    run(&mut judge, 1, acquire(2, 1, 0));
    let (disk, fenced, by) = (0, 0, 1);
    assert_eq!(judge.take_fences(), [Fence { disk, fenced, by }]);
    assert!(!judge.may_be_written(0, 0));
}

#[test]
fn changes_of_the_configuration_keep_or_end_reservations() {
    for (is_closed, is_kept) in [(Some(false), true), (Some(true), false)] {
        let mut judge = ReservationJudge::new(1);
        run(&mut judge, 0, register(0));
        judge.change_begins(NOW, 0);
        assert_eq!(judge.sendable(0, true), Sendable::Nothing);
        judge.change_ends(NOW, 0, is_closed);
        let state = judge.certain(0).expect("the change succeeded");
        assert_eq!(state.keys.contains_key(&0), is_kept);
        judge.restart(NOW, &[false]);
        assert_eq!(judge.certain(0), Some(&Reservations::new(false)));
    }
}
