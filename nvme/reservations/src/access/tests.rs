//! The specification's tables, written down as they are printed there.

use super::*;

/// Base 2.1 §8.1.22.1, command behavior in the presence of a reservation. The columns are Write
/// Exclusive, Exclusive Access, Write Exclusive for registrants and Exclusive Access for
/// registrants; each has a non-registrant and a registrant.
const PRINTED: [(CommandGroup, &str); 4] = [
    (CommandGroup::Read, "A A C C A A C A"),
    (CommandGroup::Write, "C C C C C A C A"),
    (CommandGroup::Acquire, "C C C C C C C C"),
    (CommandGroup::PreemptOrRelease, "C A C A C A C A"),
];

/// The types of each column.
const COLUMNS: [&[ReservationKind]; 4] = [
    &[ReservationKind::WriteExclusive],
    &[ReservationKind::ExclusiveAccess],
    &[
        ReservationKind::WriteExclusiveRegistrantsOnly,
        ReservationKind::WriteExclusiveAllRegistrants,
    ],
    &[
        ReservationKind::ExclusiveAccessRegistrantsOnly,
        ReservationKind::ExclusiveAccessAllRegistrants,
    ],
];

#[test]
fn each_row_is_the_specifications() {
    let mut checked = 0;
    for (group, row) in PRINTED {
        let cells: Vec<&str> = row.split(' ').collect();
        for (column, kinds) in COLUMNS.iter().enumerate() {
            for (offset, role) in [Role::NonRegistrant, Role::Registrant]
                .into_iter()
                .enumerate()
            {
                for &kind in *kinds {
                    let allowed = cells[2 * column + offset] == "A";
                    let command = Permissions::NONE.with(group);
                    let found = Permissions::of(Some(kind), role).contains(command);
                    assert_eq!(found, allowed, "{group:?} of {role:?}, {kind:?}");
                    checked += 1;
                }
            }
        }
    }
    assert_eq!(checked, 4 * 6 * 2);
}

/// Base 2.1 §8.1.22.1, the summary by type: read and write of the holder, of a registrant, and of
/// a host that is not registered.
#[test]
fn reads_and_writes_are_the_summary_of_the_types() {
    let printed = [
        (ReservationKind::WriteExclusive, "YY YN YN"),
        (ReservationKind::ExclusiveAccess, "YY NN NN"),
        (ReservationKind::WriteExclusiveRegistrantsOnly, "YY YY YN"),
        (ReservationKind::ExclusiveAccessRegistrantsOnly, "YY YY NN"),
        (ReservationKind::WriteExclusiveAllRegistrants, "YY YY YN"),
        (ReservationKind::ExclusiveAccessAllRegistrants, "YY YY NN"),
    ];
    for (kind, row) in printed {
        let roles = [Role::Holder, Role::Registrant, Role::NonRegistrant];
        let found: Vec<String> = roles
            .into_iter()
            .map(|role| {
                let permissions = Permissions::of(Some(kind), role);
                let letter = |allowed| if allowed { 'Y' } else { 'N' };
                let cell = [letter(permissions.read()), letter(permissions.write())];
                cell.iter().collect()
            })
            .collect();
        assert_eq!(found.join(" "), row, "{kind:?}");
    }
}

#[test]
fn nothing_conflicts_for_a_holder_or_without_a_reservation() {
    for role in [Role::Holder, Role::Registrant, Role::NonRegistrant] {
        assert_eq!(Permissions::of(None, role), Permissions::ALL);
    }
    for kind in ReservationKind::ALL {
        assert_eq!(Permissions::of(Some(kind), Role::Holder), Permissions::ALL);
    }
}

/// The groups of every opcode: Base 2.1 §8.1.22.1 and the commands of the NVM command set.
#[test]
fn commands_have_the_groups_of_the_specification() {
    let read = Permissions::new().with_read(true);
    let write = Permissions::new().with_write(true);
    let release = Permissions::new().with_preempt_or_release(true);
    for code in 0..=u8::MAX {
        let io = match code {
            0x02 | 0x05 | 0x0c => read,
            0x00 | 0x01 | 0x04 | 0x08 | 0x09 => write,
            0x19 => read.with_write(true),
            0x15 => release,
            _ => Permissions::NONE,
        };
        assert_eq!(Permissions::io_command(IoOpcode(code)), io, "{code:#x}");
        let admin = match code {
            0x82 => read,
            0x0d | 0x15 | 0x20 | 0x80 | 0x81 | 0x84 => write,
            _ => Permissions::NONE,
        };
        let found = Permissions::admin_command(AdminOpcode(code));
        assert_eq!(found, admin, "{code:#x}");
    }
    let acquire = Permissions::new().with_acquire(true);
    for (action, groups) in [(0, acquire), (1, release), (2, release)] {
        let action = AcquireAction(action);
        assert_eq!(Permissions::acquire_command(action), groups);
    }
    let reserved = AcquireAction(3);
    assert_eq!(Permissions::acquire_command(reserved), Permissions::NONE);
}

#[test]
fn a_command_executes_if_all_its_groups_are_allowed() {
    let copy = Permissions::io_command(IoOpcode::COPY);
    assert!(Permissions::ALL.contains(copy));
    assert!(!Permissions::ALL.with_read(false).contains(copy));
    assert!(!Permissions::ALL.with_write(false).contains(copy));
    let other = Permissions::io_command(IoOpcode::RESERVATION_REPORT);
    assert!(Permissions::NONE.contains(other));
    assert_eq!(size_of::<Permissions>(), 2);
}
