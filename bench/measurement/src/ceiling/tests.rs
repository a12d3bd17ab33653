use std::io::{IoSlice, Read, Write};

use super::ends::{Cycle, HostConnection, Progress, drop_sent, respond_from_memory};
use super::passes::Passes;
use super::*;

fn memory() -> DataLocation {
    DataLocation::Memory(DataMemory::take(1 << 20).expect("1 MiB of memory"))
}

fn short(window: usize, answers: DataLocation) -> CeilingOptions {
    CeilingOptions {
        exchange: Exchange::READ_4K,
        answers,
        sealed: false,
        connections: 1,
        window,
        server_core: None,
        client_core: None,
        responder_percent: None,
        warm_up: Duration::from_millis(5),
        duration: Duration::from_millis(50),
    }
}

#[test]
fn window_of_requests_is_completed_and_counted() {
    for (window, answers) in [
        (16, DataLocation::HotBuffer),
        (16, memory()),
        (WINDOW_MAX, memory()),
    ] {
        let measured = measure_tcp(&short(window, answers)).expect("loopback is there");
        assert!(measured.requests > 0);
        assert!(measured.elapsed >= Duration::from_millis(50));
        assert!(measured.latency.is_none());
    }
}

#[test]
fn window_of_one_measures_latencies() {
    for answers in [DataLocation::HotBuffer, memory()] {
        let measured = measure_tcp(&short(1, answers)).expect("loopback is there");
        let latency = measured.latency.expect("exact for a window of one");
        assert!(latency.p50_ns > 0 && latency.p50_ns <= latency.max_ns);
        // Only the request that is in flight at the end of counting has no latency.
        assert!(latency.count <= measured.requests && latency.count + 1 >= measured.requests);
    }
}

#[test]
fn invalid_windows_and_sizes_are_refused() {
    for window in [0, WINDOW_MAX + 1] {
        let error = measure_tcp(&short(window, DataLocation::HotBuffer)).expect_err("refused");
        assert!(matches!(error, CeilingError::Window(w) if w == window));
    }
    for data_bytes in [0, DATA_MAX_BYTES + 1] {
        let exchange = Exchange {
            write: true,
            data_bytes,
        };
        let options = CeilingOptions {
            exchange,
            ..short(1, DataLocation::HotBuffer)
        };
        let error = measure_tcp(&options).expect_err("refused");
        assert!(matches!(error, CeilingError::Data(it) if it == data_bytes));
    }
}

#[test]
fn invalid_memory_sizes_are_refused() {
    let error = DataMemory::take(4095).expect_err("refused");
    assert!(error.to_string().contains("4095 bytes"), "{error}");
    let error = DataMemory::take(u64::MAX).expect_err("refused");
    assert!(matches!(error, CeilingError::Memory(_)), "{error}");
    // An incomplete block at the end is never sent.
    assert_eq!(DataMemory::take(5000).expect("small").bytes(), 5000);
}

#[test]
fn responses_from_memory_survive_partial_sends() {
    const BLOCKS: usize = 16;
    const RESPONSE_BYTES: usize = HEADER_BYTES + DATA_BYTES;
    let memory = DataMemory::take((BLOCKS * DATA_BYTES) as u64).expect("64 KiB");
    for block in 0..BLOCKS {
        let bytes = [block as u8; DATA_BYTES];
        assert!(memory.0.handle().try_write(block * DATA_BYTES, &bytes));
    }
    let (mut client, server) = socket_pair().expect("loopback");
    // Small enough to split responses into pieces.
    rustix::net::sockopt::set_socket_send_buffer_size(&server, 4096).expect("a socket option");
    client.set_nonblocking(false).expect("a socket option");
    let stop = AtomicBool::new(false);
    let mut answers = vec![0; WINDOW_MAX * RESPONSE_BYTES];
    std::thread::scope(|scope| {
        let responding = scope.spawn(|| {
            let servers = std::slice::from_ref(&server);
            let cycle = Cycle::of(Exchange::READ_4K, WINDOW_MAX);
            let passes = Passes::begin(servers, true, &stop);
            respond_from_memory(servers, &cycle, &memory, passes)
        });
        let requests = [0; WINDOW_MAX * REQUEST_BYTES];
        client.write_all(&requests).expect("sent");
        client.read_exact(&mut answers).expect("answered");
        stop.store(true, Ordering::Relaxed);
        responding.join().expect("no panic").expect("no failure");
    });
    let mut seen = [false; BLOCKS];
    for answer in answers.chunks(RESPONSE_BYTES) {
        let (header, data) = answer.split_at(HEADER_BYTES);
        assert_eq!(header, [0x5a; HEADER_BYTES]);
        assert_eq!(data, [data[0]; DATA_BYTES]);
        seen[usize::from(data[0])] = true;
    }
    assert_eq!(seen, [true; BLOCKS]);
}

#[test]
fn sent_bytes_are_removed_from_the_front() {
    let (header, data) = ([1; HEADER_BYTES], [2; DATA_BYTES]);
    let parts = || {
        vec![
            IoSlice::new(&header),
            IoSlice::new(&data),
            IoSlice::new(&header),
        ]
    };
    for (sent, lengths) in [
        (0, &[24, 4096, 24][..]),
        (23, &[1, 4096, 24]),
        (24, &[4096, 24]),
        (25, &[4095, 24]),
        (4143, &[1]),
        (4144, &[]),
    ] {
        let mut parts = parts();
        drop_sent(&mut parts, sent);
        let left: Vec<usize> = parts.iter().map(|part| part.len()).collect();
        assert_eq!(left, lengths, "{sent} sent");
    }
}

#[test]
fn missing_core_ends_the_run_and_is_named() {
    let options = CeilingOptions {
        server_core: Some(1023),
        ..short(4, DataLocation::HotBuffer)
    };
    let error = measure_tcp(&options).expect_err("refused");
    assert!(error.to_string().contains("core 1023"), "{error}");
}

/// Whether a request is completed, which may take long on a busy machine.
fn is_completed(options: &CeilingOptions) -> bool {
    [50, 500, 5000, 20_000].into_iter().any(|milliseconds| {
        let measured = measure_tcp(&CeilingOptions {
            duration: Duration::from_millis(milliseconds),
            ..options.clone()
        });
        measured.expect("loopback is there").requests > 0
    })
}

#[test]
fn every_pattern_completes_over_one_and_several_connections() {
    for write in [false, true] {
        for data_bytes in [DATA_BYTES, 128 << 10] {
            for answers in [DataLocation::HotBuffer, memory()] {
                for connections in [1, 2] {
                    let exchange = Exchange { write, data_bytes };
                    let options = CeilingOptions {
                        exchange,
                        connections,
                        ..short(2, answers.clone())
                    };
                    assert!(is_completed(&options), "{exchange:?} over {connections}");
                }
            }
        }
    }
}

#[test]
fn sealed_pairs_complete_reads_and_refuse_writes() {
    for (window, data_bytes, answers) in [
        (1, DATA_BYTES, DataLocation::HotBuffer),
        (WINDOW_MAX, DATA_BYTES, memory()),
        (8, 128 << 10, memory()),
    ] {
        let options = CeilingOptions {
            exchange: Exchange {
                write: false,
                data_bytes,
            },
            sealed: true,
            connections: 2,
            ..short(window, answers)
        };
        assert!(is_completed(&options), "{window} of {data_bytes}");
    }
    let write = Exchange {
        write: true,
        ..Exchange::READ_4K
    };
    let options = CeilingOptions {
        exchange: write,
        sealed: true,
        ..short(1, DataLocation::HotBuffer)
    };
    let error = measure_tcp(&options).expect_err("refused");
    assert!(matches!(error, CeilingError::SealedWrite));
    let options = CeilingOptions {
        exchange: Exchange {
            write: false,
            data_bytes: DATA_MAX_BYTES,
        },
        sealed: true,
        ..short(
            1,
            DataLocation::Memory(DataMemory::take(4096).expect("one page")),
        )
    };
    let error = measure_tcp(&options).expect_err("too small");
    assert!(error.to_string().contains("4096 bytes"), "{error}");
}

#[test]
fn a_limited_cpu_share_is_not_exceeded() {
    let options = CeilingOptions {
        exchange: Exchange {
            write: true,
            data_bytes: DATA_BYTES,
        },
        responder_percent: Some(50),
        duration: Duration::from_millis(300),
        ..short(WINDOW_MAX, memory())
    };
    let measured = match measure_tcp(&options) {
        Err(CeilingError::Limit(error)) => {
            eprintln!("{error}");
            return;
        }
        measured => measured.expect("loopback is there"),
    };
    // It may be ahead by at most one period.
    let share = measured.responder_busy_share;
    assert!(share > 0.0 && share < 0.6, "{share}");
}

#[test]
fn solicited_data_follows_all_commands_in_flight() {
    let exchange = Exchange {
        write: true,
        data_bytes: 128 << 10,
    };
    let cycle = Cycle::of(exchange, 2);
    let bytes: Vec<usize> = cycle
        .host_messages
        .iter()
        .map(|one| one.header + one.data)
        .collect();
    let data = HEADER_BYTES + (128 << 10);
    assert_eq!(bytes, [REQUEST_BYTES, REQUEST_BYTES, data, data]);
    assert!(
        cycle
            .target_messages
            .iter()
            .all(|one| (one.header, one.data) == (HEADER_BYTES, 0))
    );
}

#[test]
fn copies_are_measured_in_both_directions() {
    let memory = DataMemory::take(1 << 20).expect("1 MiB of memory");
    let short = Duration::from_millis(2);
    for write in [false, true] {
        for data_bytes in [4096, 256 << 10] {
            let exchange = Exchange { write, data_bytes };
            let copies = measure_copies(exchange, &memory, None, short).expect("memory is there");
            assert!(copies > 0.0);
        }
    }
    // Writes copy the content of the buffer, and reads change nothing.
    let borrow = memory.0.handle().try_borrow_read(0, memory.0.len());
    let borrow = borrow.expect("nobody holds it");
    assert!(borrow.contains(&0x5a) && borrow.iter().all(|byte| [0, 0x5a].contains(byte)));
    for data_bytes in [0, 2 << 20] {
        let exchange = Exchange {
            write: false,
            data_bytes,
        };
        let refused = measure_copies(exchange, &memory, None, short).expect_err("no such block");
        assert!(
            refused.to_string().contains("not enough blocks"),
            "{refused}"
        );
    }
}

#[test]
fn requests_in_flight_are_sent_in_a_ring() {
    let (client, mut server) = socket_pair().expect("loopback is there");
    let ring: Vec<u8> = (0..100).collect();
    let mut connection = HostConnection {
        socket: &client,
        progress: Progress::default(),
        unsent: 250,
        at: Some(0),
        requests: Box::new(ring.clone()),
    };
    while connection.unsent > 0 {
        connection.send().expect("room for a few bytes");
    }
    assert_eq!(connection.at, Some(50));
    server.set_nonblocking(false).expect("a socket");
    let mut sent = vec![0; 250];
    server.read_exact(&mut sent).expect("it was sent");
    let expected: Vec<u8> = ring.iter().copied().cycle().take(250).collect();
    assert_eq!(sent, expected);
}
