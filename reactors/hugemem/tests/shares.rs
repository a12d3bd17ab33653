//! Shares of hosts, their turns, and waits without cost.

use std::collections::VecDeque;
use std::sync::Arc;

use hugemem::{Account, Arena, ArenaConfig, Lease, PagePolicy, Pool, WaiterToken};
use proptest::prelude::*;

const MIB: usize = 1 << 20;
const SIZES: [usize; 5] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, MIB];
const GREEDY: Account = Account::io(1);
const MODEST: Account = Account::io(2);

fn arena(bytes: usize, max_transfer: usize) -> Arc<Arena> {
    let config = ArenaConfig {
        bytes,
        pages: PagePolicy::Ordinary,
        max_transfer,
    };
    Arena::new(config).expect("memory")
}

fn drain(pool: &Pool, account: Account, len: usize) -> Vec<Lease> {
    std::iter::from_fn(|| pool.take_for(account, len)).collect()
}

#[test]
fn greedy_host_leaves_slices_of_each_class_to_others() {
    let arena = arena(64 * MIB, MIB);
    let pool = arena.pool(100);
    // From the largest size, so that no request takes a larger slice.
    let mut held: Vec<Lease> = Vec::new();
    for len in SIZES.into_iter().rev() {
        held.extend(drain(&pool, GREEDY, len));
        for token in 0..10 {
            let waits = pool.take_or_wait(GREEDY, len, WaiterToken(token), 0);
            assert!(waits.is_none());
        }
    }
    assert!(pool.next_grant(0).is_none());
    for class in arena.counters().classes {
        assert!(
            class.taken * 4 <= class.total * 3 && class.taken * 2 >= class.total,
            "{class:?}"
        );
    }
    let mut modest = Vec::new();
    for len in SIZES.into_iter().flat_map(|len| [len; 2]) {
        modest.push(pool.take_for(MODEST, len).expect("within its share"));
    }
    assert_eq!(held.len() as u32, arena.held_by(GREEDY).iter().sum::<u32>());
    drop(held);
    assert_eq!(arena.held_by(GREEDY), [0; 5]);
}

#[test]
fn returned_slices_go_to_hosts_round_robin() {
    let arena = arena(MIB, 4096);
    let pool = arena.pool(300);
    let mut all = drain(&pool, Account::SYSTEM, 4096);
    for token in 0..200 {
        assert!(
            pool.take_or_wait(GREEDY, 512, WaiterToken(token), 0)
                .is_none()
        );
    }
    for token in 1000..1003 {
        assert!(
            pool.take_or_wait(MODEST, 512, WaiterToken(token), 0)
                .is_none()
        );
    }
    assert!(pool.next_grant(0).is_none());
    all.truncate(all.len() / 2);
    let grants = std::iter::from_fn(|| pool.next_grant(0)).take(7);
    let order: Vec<_> = grants
        .map(|(token, lease)| {
            let greedy = lease.account() == GREEDY;
            assert_eq!(greedy, token.0 < 1000);
            token.0
        })
        .collect();
    assert_eq!(order, [0, 1000, 1, 1001, 2, 1002, 3]);
}

/// A reactor that returns a slice polls before the others, so it could always have it back.
#[test]
fn hosts_of_all_reactors_without_slices_take_turns() {
    let arena = arena(4096, 4096);
    let pools = [arena.pool(100), arena.pool(100)];
    let only = pools[0].take(1).expect("free");
    let hosts = [(0, 1), (0, 2), (1, 3)];
    for token in 0..10 {
        for (reactor, host) in hosts {
            let pool: &Pool = &pools[reactor];
            let (account, now_ns) = (Account::io(host), token * 10 + u64::from(host));
            let waits = pool.take_or_wait(account, 1, WaiterToken(token), now_ns);
            assert!(waits.is_none());
        }
    }
    for pool in &pools {
        assert!(pool.next_grant(100).is_none());
    }
    drop(only);
    let mut served = Vec::new();
    let mut now_ns = 100;
    while served.len() < 30 {
        now_ns += 1;
        assert!(now_ns < 10_000, "{served:?}");
        for pool in &pools {
            // The lease is returned at once, and its reactor searches for the next request.
            while let Some((_, lease)) = pool.next_grant(now_ns) {
                served.push(lease.account().host().expect("a host"));
                now_ns += 1;
            }
        }
    }
    let expected: Vec<u16> = [1, 2, 3].into_iter().cycle().take(30).collect();
    assert_eq!(served, expected);
}

#[test]
fn free_slice_is_for_the_host_that_has_none_on_any_reactor() {
    let arena = arena(16 * 4096, 4096);
    let pools = [arena.pool(4), arena.pool(4)];
    let held = [(); 2].map(|()| pools[0].take_for(GREEDY, 1).expect("free"));
    let mut rest = drain(&pools[0], Account::SYSTEM, 1);
    assert!(
        pools[1]
            .take_or_wait(MODEST, 1, WaiterToken(0), 0)
            .is_none()
    );
    assert!(pools[1].next_grant(1).is_none());
    rest.pop();
    rest.pop();
    assert!(
        pools[0].take_for(GREEDY, 1).is_none(),
        "one is for the waiting host, and the other is the last"
    );
    let (_, lease) = pools[1].next_grant(2).expect("one came back");
    assert_eq!(lease.account(), MODEST);
    assert!(pools[0].take_for(GREEDY, 1).is_none(), "it is the last");
    rest.pop();
    assert!(pools[0].take_for(GREEDY, 1).is_some(), "none waits");
    drop(held);
}

/// The reserve is for admin commands, whichever hosts wait.
#[test]
fn admin_commands_do_not_wait_for_hosts_of_other_reactors() {
    let arena = arena(MIB, 4096);
    let pools = [arena.pool(4), arena.pool(4)];
    let mut all: Vec<Lease> = (1..=200)
        .flat_map(|host| drain(&pools[0], Account::io(host), 4096))
        .collect();
    all.extend(drain(&pools[0], Account::SYSTEM, 4096));
    let (waiting, now_ns) = (Account::io(300), 5);
    let waits = pools[1].take_or_wait(waiting, 512, WaiterToken(0), now_ns);
    assert!(waits.is_none() && pools[1].next_grant(6).is_none());
    all.pop();
    assert!(pools[0].take_for(Account::io(301), 512).is_none());
    assert!(pools[0].take_for(Account::admin(301), 512).is_some());
}

#[test]
fn host_beyond_its_share_does_not_delay_others() {
    let arena = arena(64 * MIB, MIB);
    let pool = arena.pool(300);
    let mut held = drain(&pool, GREEDY, MIB);
    for token in 0..100 {
        assert!(
            pool.take_or_wait(GREEDY, MIB, WaiterToken(token), 0)
                .is_none()
        );
    }
    assert!(pool.next_grant(0).is_none());
    let modest = pool.take_for(MODEST, MIB).expect("within its share");
    drop(modest);
    assert!(pool.next_grant(0).is_none());
    let free = drain(&pool, Account::SYSTEM, MIB);
    assert!(!free.is_empty());
    assert!(
        pool.take_or_wait(MODEST, MIB, WaiterToken(1000), 0)
            .is_none()
    );
    assert!(pool.next_grant(0).is_none());
    held.pop();
    let (token, lease) = pool.next_grant(0).expect("one came back");
    assert_eq!((token, lease.account()), (WaiterToken(1000), MODEST));
    assert!(pool.next_grant(0).is_none(), "the other has its share");
}

/// Base 2.1 §3.9: a Keep Alive, like every admin command, must get memory.
#[test]
fn admin_commands_have_a_reserve() {
    let arena = arena(64 * MIB, 4096);
    let pool = arena.pool(8);
    let hosts: Vec<_> = (1..=600)
        .map(|host| drain(&pool, Account::io(host), 4096))
        .collect();
    assert!(
        pool.take_for(Account::io(601), 4096).is_none(),
        "all is out"
    );
    assert!(pool.take_for(Account::admin(601), 512).is_some());
    let one = drain(&pool, Account::admin(1), 4096);
    assert!(!one.is_empty());
    assert!(
        pool.take_for(Account::admin(2), 4096).is_some(),
        "one host cannot take the reserve either"
    );
    drop(hosts);
}

#[test]
fn a_lease_can_be_charged_to_its_host_later() {
    let arena = arena(MIB, 4096);
    let pool = arena.pool(1);
    let mut lease = pool.take(1000).expect("free");
    lease.charge(MODEST);
    assert_eq!((lease.account(), lease.len()), (MODEST, 1000));
    assert_eq!(arena.held_by(MODEST)[0], 1);
    lease.resize(4096);
    assert_eq!((lease.account(), lease.len()), (MODEST, 4096));
    drop(lease);
    assert_eq!(arena.held_by(MODEST)[0], 0);
    assert_eq!(arena.held_by(Account::SYSTEM)[0], 0);
}

#[test]
fn waiting_requests_are_retried_after_a_return_or_1_ms() {
    let arena = arena(4096, 4096);
    let (pool, other) = (arena.pool(4), arena.pool(4));
    let only = other.take_for(GREEDY, 1).expect("free");
    assert_eq!(pool.retry_at_ns(), None);
    assert!(pool.take_or_wait(MODEST, 1, WaiterToken(1), 5).is_none());
    assert!(pool.may_grant(), "not tried since it waits");
    assert!(pool.next_grant(10).is_none());
    assert!(!pool.may_grant(), "its reactor may sleep");
    assert!(pool.is_scarce(&only), "a host that has none waits for it");
    let retry_at_ns = pool.retry_at_ns().expect("one waits");
    assert!((11..=2_000_000).contains(&retry_at_ns));
    drop(only);
    assert!(pool.may_grant());
    let (token, lease) = pool.next_grant(30).expect("it came back");
    assert_eq!(token, WaiterToken(1));
    assert!(!pool.is_scarce(&lease));
    assert_eq!((pool.retry_at_ns(), pool.may_grant()), (None, false));
}

#[test]
fn longest_and_oldest_wait_are_counted() {
    let arena = arena(4096, 4096);
    let pool = arena.pool(4);
    let only = pool.take(1).expect("free");
    let second = 1_000_000_000;
    assert!(
        pool.take_or_wait(GREEDY, 1, WaiterToken(1), second)
            .is_none()
    );
    assert!(
        pool.take_or_wait(MODEST, 1, WaiterToken(2), 2 * second)
            .is_none()
    );
    assert!(pool.next_grant(4 * second).is_none());
    let counters = arena.counters();
    assert_eq!(counters.oldest_wait_ns, 3 * second);
    drop(only);
    let (_, lease) = pool.next_grant(5 * second).expect("it came back");
    drop(lease);
    assert!(pool.next_grant(6 * second).is_some());
    let counters = arena.counters();
    assert_eq!(
        (counters.oldest_wait_ns, counters.longest_wait_ns),
        (0, 4 * second)
    );
}

#[derive(Debug, Clone)]
struct Request {
    host: u16,
    len: usize,
    reactor: usize,
    /// Turns for which it keeps its lease.
    turns: u32,
}

fn request() -> impl Strategy<Value = Request> {
    (1..4_u16, 0..5_usize, 0..2_usize, 0..6_u32).prop_map(|(host, size, reactor, turns)| Request {
        host,
        len: SIZES[size],
        reactor,
        turns,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// In an arena of any size, each request is served as long as leases are returned.
    #[test]
    fn every_request_is_served_in_arenas_of_any_size(
        bytes in prop::sample::select(vec![MIB, 2 * MIB, 3 * MIB, 16 * MIB]),
        requests in prop::collection::vec(request(), 1..150),
    ) {
        let arena = arena(bytes, MIB);
        let pools = [arena.pool(200), arena.pool(200)];
        let mut held: VecDeque<(u32, Lease)> = VecDeque::new();
        let (mut now_ns, mut served) = (0, 0);
        let mut turn = |held: &mut VecDeque<(u32, Lease)>, served: &mut usize| {
            now_ns += 400_000;
            for pool in &pools {
                while let Some((token, lease)) = pool.next_grant(now_ns) {
                    let request: &Request = &requests[token.0 as usize];
                    assert_eq!(lease.account(), Account::io(request.host));
                    *served += 1;
                    held.push_back((request.turns, lease));
                }
            }
            held.retain_mut(|(turns, _)| {
                let stays = *turns > 0;
                *turns = turns.saturating_sub(1);
                stays
            });
            now_ns
        };
        for (number, request) in (0u64..).zip(&requests) {
            let now_ns = turn(&mut held, &mut served);
            let account = Account::io(request.host);
            let pool = &pools[request.reactor];
            let lease = pool.take_or_wait(account, request.len, WaiterToken(number), now_ns);
            if let Some(lease) = lease {
                served += 1;
                held.push_back((request.turns, lease));
            }
        }
        let mut turns = 0;
        while served < requests.len() {
            turns += 1;
            prop_assert!(turns < 10 * requests.len() + 100, "{served} of {}", requests.len());
            turn(&mut held, &mut served);
        }
        drop(held);
        for host in 1..4 {
            prop_assert_eq!(arena.held_by(Account::io(host)), [0; 5]);
        }
    }
}

#[test]
fn permanent_leases_leave_slices_of_every_class() {
    let arena = arena(2 * MIB, 64 << 10);
    let pool = arena.pool(1);
    for len in SIZES.into_iter().take(3).rev() {
        let permanent: Vec<Lease> = std::iter::from_fn(|| pool.take_permanent(len)).collect();
        let rest: Vec<Lease> = std::iter::from_fn(|| pool.take(len)).collect();
        assert!(!permanent.is_empty(), "{len}");
        let all = permanent.len() + rest.len();
        assert!(rest.len() * 4 >= all, "{len}: {} of {all}", rest.len());
    }
}
