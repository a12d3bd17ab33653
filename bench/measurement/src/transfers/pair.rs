//! The ceiling of a target over RDMA: the performance of bare verbs with the same bytes and without
//! NVMe.
//!
//! A request is a message with the size of a command capsule. The server writes the data to the
//! client's memory, or reads it from there, and sends a message with the size of a response, after
//! a write in the same post. Only the number of the slot is evaluated. One of several sends is
//! signalled, and all messages of a poll are handled in one post.
//!
//! Server and client first run on a thread each, then together on one thread, which leaves a core
//! to a software device, then on one thread that sleeps until there is a completion. The fastest
//! result is the ceiling.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rdma::{Payload, Provider, RemoteAddress, SendOperation, SendRequest};
use serde::{Deserialize, Serialize};

use super::ends::{End, Ends, READS_FROM, Room, SENDS_FROM};
use super::{REQUEST, RESPONSE, TransferError, message};
use bench::report::{Latency, Machine};
use bench::report::{histogram, nanos};
use bench::table::Table;
use bench::units::{format_count, format_nanos, format_size, per_second};

/// Memory for the usual parameters of a target measurement.
const ROOM: Room = Room {
    slots: 32,
    slot_bytes: 128 << 10,
};

/// Size of a command capsule in bytes (Base 2.1 §4.1.1).
const CAPSULE_BYTES: usize = 64;

/// One of this number of messages, each after a write, is signalled; its completion frees the send
/// queue entries of those before it.
const MESSAGES_PER_COMPLETION: u64 = 8;

/// Parameters of the pair.
#[derive(Debug, Clone, Copy)]
pub struct PairOptions {
    /// Whether the data is sent to the server.
    pub write: bool,
    /// Size of the data in bytes, at most 128 KiB.
    pub bytes: usize,
    /// Number of requests in flight, 1 to 32.
    pub depth: usize,
    /// Warm-up time, which is not counted.
    pub warm_up: Duration,
    /// Counted time.
    pub duration: Duration,
}

impl PairOptions {
    /// Checks the parameters.
    ///
    /// # Errors
    /// [`TransferError::Depth`], [`TransferError::Data`].
    pub fn check(&self) -> Result<(), TransferError> {
        if !(1..=ROOM.slots).contains(&self.depth) {
            return Err(TransferError::Depth(self.depth, ROOM.slots));
        }
        if !(1..=ROOM.slot_bytes).contains(&self.bytes) {
            return Err(TransferError::Data(self.bytes, ROOM.slot_bytes));
        }
        Ok(())
    }
}

/// The results of the pair.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PairReport {
    /// The machine of the measurement.
    pub machine: Machine,
    /// The RDMA device.
    pub device: String,
    /// Whether the data was sent to the server.
    pub write: bool,
    /// Size of a request's data in bytes.
    pub data_bytes: usize,
    /// Number of requests in flight.
    pub depth: usize,
    /// Requests completed per second in the fastest of the three variants.
    pub requests_per_second: f64,
    /// Server and client each on a polling thread.
    pub two_threads: PairRate,
    /// Server and client on one polling thread.
    pub one_thread: PairRate,
    /// Server and client on one thread that sleeps while there is nothing to do.
    pub asleep: PairRate,
}

/// The results of one variant.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct PairRate {
    /// Requests completed per second.
    pub requests_per_second: f64,
    /// Latency from a request to its response.
    pub latency: Latency,
}

impl fmt::Display for PairReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Bare verbs on {}, {}\n", self.device, self.machine)?;
        let operation = if self.write { "write" } else { "read" };
        let mut table = Table::new(&["", "ends", "in flight", "requests/s", "p50", "p99"]);
        for (ends, rate) in [
            ("a thread each", &self.two_threads),
            ("one thread", &self.one_thread),
            ("one that sleeps", &self.asleep),
        ] {
            table.row([
                format!("{operation} of {}", format_size(self.data_bytes as u64)),
                ends.to_owned(),
                self.depth.to_string(),
                format_count(rate.requests_per_second as u64),
                format_nanos(rate.latency.p50_ns),
                format_nanos(rate.latency.p99_ns),
            ]);
        }
        write!(f, "{table}")
    }
}

/// Runs the pair between `server`, which listens on `address`, and `client`, which may be the same
/// provider.
///
/// # Errors
/// [`TransferError`]: for example for more requests in flight than slots.
pub fn measure_pair<P: Provider>(
    server: &P,
    client: &P,
    address: std::net::SocketAddr,
    options: &PairOptions,
) -> Result<PairReport, TransferError> {
    options.check()?;
    let connect = || -> Result<_, TransferError> {
        let mut ends = Ends::connect(server, client, address, ROOM)?;
        if ends.inline_room() < CAPSULE_BYTES {
            let small = "the device takes no capsule within a work request";
            return Err(TransferError::Work(small.to_owned()));
        }
        ends.prepare(options.bytes, options.depth);
        Ok((ends.device_name(), ends.into_ends()))
    };
    let (device, (mut server, mut client)) = connect()?;
    let two_threads = on_two_threads(&mut server, &mut client, options)?;
    drop((server, client));
    let on_one = |sleeps| {
        let (_, (mut server, mut client)) = connect()?;
        on_one_thread(&mut server, &mut client, options, sleeps)
    };
    let (one_thread, asleep) = (on_one(false)?, on_one(true)?);
    let rates = [two_threads, one_thread, asleep].map(|rate| rate.requests_per_second);
    Ok(PairReport {
        machine: Machine::here(),
        device,
        write: options.write,
        data_bytes: options.bytes,
        depth: options.depth,
        requests_per_second: rates.into_iter().fold(0.0, f64::max),
        two_threads,
        one_thread,
        asleep,
    })
}

fn remotes<P: Provider>(client: &End<P>, options: &PairOptions) -> Vec<RemoteAddress> {
    (0..options.depth).map(|slot| client.remote(slot)).collect()
}

fn on_two_threads<P: Provider>(
    server: &mut End<P>,
    client: &mut End<P>,
    options: &PairOptions,
) -> Result<PairRate, TransferError> {
    let remotes = remotes(client, options);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let server = scope.spawn(|| {
            let mut serve_all = || -> Result<(), TransferError> {
                while !stop.load(Ordering::Relaxed) {
                    if !serve(server, options, &remotes)? {
                        // A software device may need this core.
                        std::thread::yield_now();
                    }
                }
                Ok(())
            };
            let served = serve_all();
            // Otherwise the client would wait for responses forever.
            stop.store(true, Ordering::Relaxed);
            served
        });
        let measured = run_requester(client, options, |_, found| {
            if stop.load(Ordering::Relaxed) {
                return Err(TransferError::Apart("the server has ended".to_owned()));
            }
            if !found {
                std::thread::yield_now();
            }
            Ok(())
        });
        stop.store(true, Ordering::Relaxed);
        let served = server.join();
        served.map_err(|_| TransferError::Work("the server panicked".to_owned()))??;
        measured
    })
}

fn on_one_thread<P: Provider>(
    server: &mut End<P>,
    client: &mut End<P>,
    options: &PairOptions,
    sleeps: bool,
) -> Result<PairRate, TransferError> {
    let remotes = remotes(client, options);
    let mut armed = false;
    run_requester(client, options, |client, found| {
        if serve(server, options, &remotes)? || found {
            return Ok(());
        }
        if !sleeps {
            std::thread::yield_now();
        } else if armed {
            End::await_completion([server, client])?;
            armed = false;
        } else {
            // Earlier completions cause no notification: both ends are polled once more.
            server.arm()?;
            client.arm()?;
            armed = true;
        }
        Ok(())
    })
}

/// Queues a message; one of several is signalled.
fn send<P: Provider>(end: &mut End<P>, text: &[u8]) -> Result<(), TransferError> {
    let signalled = (end.work_requests / 2).is_multiple_of(MESSAGES_PER_COMPLETION);
    let payload = Payload::Inline(text);
    let request = SendRequest::new(SENDS_FROM, SendOperation::Send, payload);
    end.post(&request.signalled(signalled))
}

/// Responds to received messages. Returns whether there were any.
fn serve<P: Provider>(
    end: &mut End<P>,
    options: &PairOptions,
    remotes: &[RemoteAddress],
) -> Result<bool, TransferError> {
    let polled = end.poll_slots()?;
    if polled.is_empty() {
        return Ok(false);
    }
    for slot in polled.messages {
        let id = READS_FROM + slot as u64;
        let memory = end.gather(slot, options.bytes);
        let payload = Payload::Memory(memory.as_slice());
        if options.write {
            end.post(&SendRequest::new(
                id,
                SendOperation::Read(remotes[slot]),
                payload,
            ))?;
        } else {
            let write = SendRequest::new(id, SendOperation::Write(remotes[slot]), payload);
            // The completion of the following response covers it.
            end.post(&write.signalled(false))?;
            send(end, &message(RESPONSE, slot))?;
        }
    }
    for slot in polled.reads {
        send(end, &message(RESPONSE, slot))?;
    }
    end.flush()?;
    Ok(true)
}

/// Sends requests until the time is over. `between` is called before each check for responses, with
/// whether the previous check found any.
fn run_requester<P: Provider>(
    end: &mut End<P>,
    options: &PairOptions,
    mut between: impl FnMut(&mut End<P>, bool) -> Result<(), TransferError>,
) -> Result<PairRate, TransferError> {
    let capsule = |slot| {
        let mut bytes = [0; CAPSULE_BYTES];
        let text = message(REQUEST, slot);
        bytes[..text.len()].copy_from_slice(&text);
        bytes
    };
    let begun = Instant::now();
    let mut started = vec![begun; options.depth];
    for slot in 0..options.depth {
        send(end, &capsule(slot))?;
    }
    end.flush()?;
    let mut latencies = histogram();
    let (mut counted, mut counting_from, mut found) = (0_u64, None, true);
    loop {
        between(end, found)?;
        let polled = end.poll_slots()?;
        let now = Instant::now();
        match counting_from {
            None if now - begun >= options.warm_up => {
                counting_from = Some(now);
                counted = 0;
                latencies.reset();
            }
            Some(from) if now - from >= options.duration => {
                return Ok(PairRate {
                    requests_per_second: per_second(counted, now - from),
                    latency: Latency::from_histogram(&latencies),
                });
            }
            _ => {}
        }
        found = !polled.is_empty();
        for slot in polled.messages {
            counted += 1;
            latencies.saturating_record(nanos(now - started[slot]));
            started[slot] = now;
            send(end, &capsule(slot))?;
        }
        if found {
            end.flush()?;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use rdma_testing::fake::{DeviceConfig, Fabric, FabricConfig};

    use super::*;

    fn pair(write: bool, depth: usize, duration: Duration) -> Result<PairReport, TransferError> {
        let fabric = Fabric::new(FabricConfig::IMMEDIATE);
        let machine = |name, address: [u8; 4]| {
            let device = DeviceConfig::new(name, address.into());
            fabric.machine(&[device]).expect("a machine")
        };
        let (server, client) = (machine("a", [10, 0, 0, 1]), machine("b", [10, 0, 0, 2]));
        let options = PairOptions {
            write,
            bytes: 4096,
            depth,
            warm_up: Duration::from_millis(1),
            duration,
        };
        let address = SocketAddr::from(([10, 0, 0, 1], 0));
        measure_pair(&server, &client, address, &options)
    }

    /// On a busy machine a short time may end before both threads have run.
    fn measured(write: bool) -> PairReport {
        let times = [20, 200, 2000].map(Duration::from_millis);
        let mut reports = times
            .iter()
            .map(|time| pair(write, 32, *time).expect("measured"));
        let is_whole = |report: &PairReport| report.two_threads.requests_per_second > 0.0;
        reports.find(is_whole).expect("both threads have a turn")
    }

    #[test]
    fn pair_runs_in_both_directions_until_the_time_limit() {
        for write in [false, true] {
            let report = measured(write);
            for rate in [report.two_threads, report.one_thread, report.asleep] {
                assert!(rate.requests_per_second > 0.0, "{report:?}");
                assert!(rate.requests_per_second <= report.requests_per_second);
            }
            assert!(report.to_string().contains("4 KiB"), "{report}");
        }
    }

    #[test]
    fn a_depth_beyond_the_slots_is_refused() {
        let refused = |depth| pair(false, depth, Duration::from_millis(1)).is_err();
        assert!(refused(33) && refused(0));
    }
}
