use super::*;
use crate::latency::{LATENCY_BUCKETS, latency_bucket_start};

/// Bytes in a second of the disk of the tests.
const SPEED: f64 = 1e9;

/// The bytes of a command, as a pace counts them.
const COMMAND: f64 = 8192.0;

const INTERVAL: Nanos = Nanos::from_millis(100);

/// Steps of an interval.
const STEPS: u32 = 1000;

/// A host of a subsystem that always has `depth` commands outstanding, but issues at most `wanted`
/// bytes in a second.
struct User {
    name: &'static str,
    weight: u32,
    depth: f64,
    wanted: f64,
    admitted: f64,
    throttled: u64,
    limit: Option<u64>,
    /// Bytes that the host would issue, and those in the disk.
    wish: f64,
    queue: f64,
    was_delayed: bool,
}

fn user(name: &'static str, weight: u32, depth: f64) -> User {
    User {
        name,
        weight,
        depth,
        wanted: f64::MAX,
        admitted: 0.0,
        throttled: 0,
        limit: None,
        wish: 0.0,
        queue: 0.0,
        was_delayed: false,
    }
}

/// A disk that serves what is in it in parts that are proportional to the commands of each user, as
/// a queue that does not know its users does.
struct Plant {
    control: Control,
    now: Nanos,
    users: Vec<User>,
    in_device: f64,
    in_flight: f64,
    /// A subsystem whose latency is the time that the disk takes, and its target.
    target: Option<(Nanos, LatencyCounts)>,
    /// The commands of that subsystem in an interval.
    values: u64,
}

impl Plant {
    fn new(users: Vec<User>) -> Self {
        Self {
            control: Control::default(),
            now: Nanos::from_secs(1),
            users,
            in_device: 0.0,
            in_flight: 0.0,
            target: None,
            values: 1000,
        }
    }

    fn interval(&mut self) {
        let mut in_disk = 0.0;
        for user in &mut self.users {
            user.was_delayed = false;
        }
        for _ in 0..STEPS {
            let seconds = INTERVAL.0 as f64 / 1e9 / f64::from(STEPS);
            for user in &mut self.users {
                // What the host may issue, and what the pace lets start.
                user.wish = (user.wish + user.wanted * seconds).min(user.depth * COMMAND);
                let room = (user.depth * COMMAND - user.queue).min(user.wish).max(0.0);
                let allowed = user.limit.map_or(f64::MAX, |limit| limit as f64 * seconds);
                user.was_delayed |= room > allowed;
                let start = room.min(allowed);
                user.wish -= start;
                user.queue += start;
                user.admitted += start;
            }
            let all: f64 = self.users.iter().map(|it| it.queue).sum();
            let part = (SPEED * seconds / all.max(1.0)).min(1.0);
            for user in &mut self.users {
                user.queue -= user.queue * part;
            }
            in_disk += all / COMMAND / f64::from(STEPS);
        }
        self.in_flight = in_disk;
        self.in_device += in_disk * INTERVAL.0 as f64;
        for user in &mut self.users {
            user.throttled += u64::from(user.was_delayed);
        }
        if let Some((_, counts)) = &mut self.target {
            let wait = self.in_flight * COMMAND / SPEED * 1e9;
            let bucket = (0..LATENCY_BUCKETS).rfind(|it| latency_bucket_start(*it) as f64 <= wait);
            counts.buckets[bucket.unwrap_or(0)] += self.values;
        }
        self.now += INTERVAL;
        let sample = self.sample();
        let limits = self.control.adjust(&sample);
        for (user, limit) in self.users.iter_mut().zip(limits) {
            user.limit = limit;
        }
    }

    fn sample(&self) -> Sample {
        let reason = match self.target {
            Some(_) => PaceReason::Latency,
            None => PaceReason::Share("disk".to_owned()),
        };
        let targets = self.target.iter().map(|(target, counts)| TargetSample {
            subsystem: "protected".to_owned(),
            target: *target,
            counts: counts.clone(),
        });
        Sample {
            at: self.now,
            targets: targets.collect(),
            disks: vec![DiskSample {
                disk: "disk".to_owned(),
                in_device: self.in_device as u64,
            }],
            paces: self
                .users
                .iter()
                .map(|it| PaceSample {
                    subsystem: it.name.to_owned(),
                    reason: reason.clone(),
                    weight: it.weight,
                    admitted: it.admitted as u64,
                    throttled: it.throttled,
                })
                .collect(),
        }
    }

    fn run(&mut self, intervals: u32) {
        for _ in 0..intervals {
            self.interval();
        }
    }

    /// The mean speed of each user over the next intervals.
    fn means(&mut self, intervals: u32) -> Vec<f64> {
        let before: Vec<f64> = self.users.iter().map(|it| it.admitted).collect();
        self.run(intervals);
        let seconds = f64::from(intervals) * INTERVAL.0 as f64 / 1e9;
        let after = self.users.iter().zip(before);
        after
            .map(|(it, before)| (it.admitted - before) / seconds)
            .collect()
    }
}

fn assert_near(value: f64, wanted: f64, part: f64) {
    let distance = (value - wanted).abs();
    assert!(distance <= wanted * part, "{value} is not near {wanted}");
}

#[test]
fn full_disk_is_shared_by_weights() {
    let mut plant = Plant::new(vec![user("a", 300, 128.0), user("b", 100, 128.0)]);
    plant.run(20);
    let means = plant.means(50);
    assert_near(means[0] / means[1], 3.0, 0.05);
    assert!(means[0] + means[1] > 0.9 * SPEED, "{means:?}");
}

#[test]
fn depth_of_a_host_does_not_give_it_more() {
    let mut plant = Plant::new(vec![user("a", 100, 64.0), user("b", 100, 1024.0)]);
    plant.run(30);
    let means = plant.means(50);
    assert_near(means[0] / means[1], 1.0, 0.1);
}

#[test]
fn unused_share_is_left_to_others() {
    let mut plant = Plant::new(vec![user("a", 900, 128.0), user("b", 100, 128.0)]);
    plant.users[0].wanted = 0.2 * SPEED;
    plant.run(50);
    let means = plant.means(50);
    assert_near(means[0], 0.2 * SPEED, 0.05);
    assert!(means[1] > 0.65 * SPEED, "{means:?}");
    // It gets its share as soon as it needs it.
    plant.users[0].wanted = f64::MAX;
    plant.run(30);
    let means = plant.means(50);
    assert_near(means[0] / means[1], 9.0, 0.1);
}

#[test]
fn single_user_of_a_disk_is_not_limited() {
    let mut plant = Plant::new(vec![user("a", 100, 256.0), user("b", 100, 256.0)]);
    plant.run(20);
    assert!(plant.users[0].limit.is_some());
    plant.users[1].wanted = 0.0;
    plant.run(5);
    assert_eq!(plant.users[0].limit, None);
}

#[test]
fn disk_with_room_is_not_shared() {
    let mut plant = Plant::new(vec![user("a", 900, 8.0), user("b", 100, 8.0)]);
    plant.run(50);
    assert!(plant.users.iter().all(|it| it.limit.is_none()));
}

#[test]
fn others_are_slowed_down_until_the_target_is_kept() {
    let mut plant = Plant::new(vec![user("a", 100, 512.0), user("b", 100, 512.0)]);
    // 100 commands of 8 KiB at a time take the disk 820 us.
    plant.target = Some((Nanos::from_micros(820), LatencyCounts::default()));
    plant.run(1);
    assert!(plant.in_flight > 1000.0);
    plant.run(20);
    assert!(plant.in_flight < 100.0, "{}", plant.in_flight);
    assert_eq!(plant.control.missed_by(), Some("protected"));
    assert!(plant.users.iter().all(|it| it.limit.is_some()));
    let means = plant.means(100);
    assert!(means.iter().sum::<f64>() > 0.5 * SPEED, "{means:?}");
}

/// The intervals, of the next ones, in which the disk took longer than the target.
fn missed(plant: &mut Plant, target: Nanos, intervals: u32) -> u32 {
    let mut missed = 0;
    for _ in 0..intervals {
        plant.interval();
        missed += u32::from(plant.in_flight * COMMAND / SPEED * 1e9 > target.0 as f64);
    }
    missed
}

/// A limit that rises until the target is missed would miss it in every tenth interval.
#[test]
fn a_target_is_kept_once_the_speed_of_the_disk_is_known() {
    let target = Nanos::from_millis(2);
    let mut plant = Plant::new(vec![user("a", 100, 1024.0)]);
    plant.target = Some((target, LatencyCounts::default()));
    plant.run(50);
    let before = plant.users[0].admitted;
    assert!(missed(&mut plant, target, 600) <= 6);
    let speed = (plant.users[0].admitted - before) / 60.0;
    assert!(speed > 0.85 * SPEED, "{speed}");
}

/// With few values the target is compared rarely.
#[test]
fn a_target_of_few_commands_is_kept_too() {
    let target = Nanos::from_millis(20);
    let mut plant = Plant::new(vec![user("a", 100, 16384.0)]);
    plant.target = Some((target, LatencyCounts::default()));
    plant.values = 30;
    plant.run(300);
    let before = plant.users[0].admitted;
    assert!(missed(&mut plant, target, 600) <= 6);
    let speed = (plant.users[0].admitted - before) / 60.0;
    assert!(speed > 0.8 * SPEED, "{speed}");
}

/// The latency is that of the disk without others: waiting does not help.
#[test]
fn a_target_kept_with_little_distance_does_not_slow_others_down() {
    let mut plant = Plant::new(vec![user("a", 100, 100.0)]);
    // The disk takes 820 us.
    plant.target = Some((Nanos::from_micros(900), LatencyCounts::default()));
    plant.run(100);
    assert_eq!(plant.users[0].limit, None);
}

#[test]
fn no_limit_eases_below_the_slowest() {
    let mut pace = PaceState {
        limit: Some(SLOWEST),
        missed_at: Some(SLOWEST / 2),
        ..PaceState::default()
    };
    let done = Done {
        speed: SLOWEST,
        was_delayed: true,
    };
    pace.follow(Some(Verdict::Near), done);
    assert_eq!(pace.limit, Some(SLOWEST));
}

#[test]
fn limits_end_when_nothing_waits() {
    let mut plant = Plant::new(vec![user("a", 100, 512.0)]);
    plant.target = Some((Nanos::from_micros(820), LatencyCounts::default()));
    plant.run(20);
    assert!(plant.users[0].limit.is_some());
    plant.users[0].wanted = 0.05 * SPEED;
    plant.run(40);
    assert_eq!(plant.users[0].limit, None);
}

#[test]
fn target_that_cannot_be_kept_leaves_others_a_minimum() {
    let mut plant = Plant::new(vec![user("a", 100, 512.0)]);
    plant.target = Some((Nanos(1), LatencyCounts::default()));
    plant.run(200);
    assert_eq!(plant.users[0].limit, Some(SLOWEST));
}

#[test]
fn few_values_are_compared_after_a_second() {
    let mut control = Control::default();
    let sample = |at: u64, values: u64, admitted: u64| {
        let mut counts = LatencyCounts::default();
        // 1 to 1.1 ms.
        counts.buckets[128 + 8] = values;
        Sample {
            at: Nanos::from_millis(at),
            targets: vec![TargetSample {
                subsystem: "protected".to_owned(),
                target: Nanos::from_micros(1),
                counts,
            }],
            disks: Vec::new(),
            paces: vec![PaceSample {
                subsystem: "other".to_owned(),
                reason: PaceReason::Latency,
                weight: 100,
                admitted,
                throttled: 0,
            }],
        }
    };
    let mb = 1 << 28;
    assert_eq!(control.adjust(&sample(0, 0, 0)), [None]);
    assert_eq!(control.adjust(&sample(500, 3, mb)), [None]);
    let limits = control.adjust(&sample(1000, 3, 2 * mb));
    assert_eq!(limits, [Some(SLOWER.of(2 * mb))]);
}

#[test]
fn parts_are_by_weight_and_nobody_gets_more_than_it_wants() {
    assert_eq!(divide(400, &[(100, None), (300, None)]), [100, 300]);
    assert_eq!(divide(400, &[(100, Some(10)), (300, None)]), [10, 390]);
    assert_eq!(
        divide(100, &[(1, Some(80)), (1, Some(10)), (2, None)]),
        [30, 10, 60]
    );
    assert_eq!(divide(0, &[(1, None)]), [0]);
    assert_eq!(divide(100, &[]), Vec::<u64>::new());
}
