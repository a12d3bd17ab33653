//! A host that copies across namespaces with NVMe Copy: run in the lab by
//! deploy/interop/nvme-copy-across.sh, beside the kernel's host, which does not let a user enable
//! descriptor format 2h.
//!
//!     copying_host ADDRESS:PORT NQN once FORMAT TO:LBA FROM:LBA:BLOCKS…
//!     copying_host ADDRESS:PORT NQN abort TO:LBA FROM:LBA:BLOCKS…
//!     copying_host ADDRESS:PORT NQN stream END BLOCKS TO:LBA FROM:LBA…
//!
//! TO and FROM are namespaces. `once` sends one Copy and prints its status and the lowest range that
//! was not copied. FORMAT is the descriptor format; `disabled` is format 2h without enabling it.
//! `abort` sends a Copy, then the same one several times, and aborts the last.
//! `stream` copies BLOCKS blocks again and again, until the file END exists or a Copy fails, and
//! prints how many copies succeeded and with what status others failed. If there are several FROM, a
//! part of each Copy is from each. It exits with 1 if a Copy has no response.
//!
//! Copy: NVM 1.1 §3.3.2.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use hugemem::{Arena, ArenaConfig, PagePolicy};
use nvme_host::{
    ConnectOptions, Controller, HostCompletion, HostCompletions, HostIdentity, IoQueue, Refused,
    Transfer,
};
use nvme_spec::Sqe;
use nvme_spec::command::{CopyFormat, CopyRange};
use nvme_spec::features::{CopyFormatsEnabled, HostBehavior};
use zerocopy::IntoBytes;

/// Memory of the lists of source ranges.
const MEMORY_BYTES: usize = 8 << 20;
/// Copies in flight of a stream.
const DEPTH: u16 = 4;
/// Blocks that a Copy of a stream writes.
const COPY_BLOCKS: u64 = 512;
/// Generous, because the guest is emulated.
const PATIENCE: Duration = Duration::from_secs(60);
/// Longest wait between two Keep Alives and looks at the file that ends a stream.
const PAUSE: Duration = Duration::from_millis(100);

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match words[..] {
        [at, nqn, "once", format, to, ref from @ ..] if !from.is_empty() => {
            once((at, nqn), format, to, from)
        }
        [at, nqn, "abort", to, ref from @ ..] if !from.is_empty() => abort((at, nqn), to, from),
        [at, nqn, "stream", end, blocks, to, ref from @ ..] if !from.is_empty() => {
            stream((at, nqn), Path::new(end), blocks, to, from)
        }
        _ => Err("usage: copying_host ADDRESS:PORT NQN once|abort|stream …".into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("copying_host: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The numbers of a word that are separated by colons.
fn numbers<const N: usize>(word: &str) -> Outcome<[u64; N]> {
    let numbers: Result<Vec<u64>, _> = word.split(':').map(str::parse).collect();
    let numbers = numbers.map_err(|error| format!("{word}: {error}"))?;
    let numbers = numbers.try_into();
    numbers.map_err(|_| format!("{word}: {N} numbers are expected").into())
}

/// Blocks of a namespace as a source range.
fn range(nsid: u64, lba: u64, blocks: u64) -> Outcome<CopyRange> {
    let nlb_z = u16::try_from(blocks.checked_sub(1).ok_or("a range without blocks")?)?;
    Ok(CopyRange::of_namespace(u32::try_from(nsid)?, lba, nlb_z))
}

/// A connected host. Its I/O queue ends before its controller.
struct Host {
    queue: IoQueue,
    controller: Controller,
}

impl Host {
    /// Connects to the subsystem, and enables descriptor formats.
    fn connect((at, nqn): (&str, &str), formats: CopyFormatsEnabled) -> Outcome<Self> {
        let arena = Arena::new(ArenaConfig {
            bytes: MEMORY_BYTES,
            pages: PagePolicy::Auto,
            max_transfer: 1 << 20,
        })?;
        let options = ConnectOptions {
            timeout: PATIENCE,
            ..ConnectOptions::new(at.parse()?, nqn, HostIdentity::random())
        };
        let mut controller = Controller::connect(options)?;
        let mut behavior = HostBehavior::default();
        behavior.cdfe = formats;
        controller.set_host_behavior(&behavior)?;
        controller.request_io_queues(1)?;
        let queue = controller.open_io_queue(1, DEPTH, arena.pool(0))?;
        Ok(Self { queue, controller })
    }

    /// Queues a Copy with these source ranges, in any descriptor format. Returns its identifier.
    fn submit(
        &mut self,
        format: CopyFormat,
        (nsid, lba): (u32, u64),
        ranges: &[CopyRange],
        token: u64,
    ) -> Outcome<u16> {
        let nr_z = u8::try_from(ranges.len() - 1)?;
        let sqe = Sqe::copy_ranges(nsid, lba, nr_z);
        let mut command = sqe.copy();
        command.control = command.control.with_format(format);
        let list = self.queue.pool().take(size_of_val(ranges));
        let mut list = list.ok_or("no memory for a list of ranges")?;
        list.copy_from_slice(ranges.as_bytes());
        let refused = |Refused { refusal, .. }| refusal;
        let submitted = (self.queue).submit(sqe.with_copy(command), Transfer::Write(list), token);
        Ok(submitted.map_err(refused)?)
    }
}

/// What the host sees of a Copy: its status, and of a failed one the lowest range that was not copied
/// (NVM 1.1 §3.3.2, Dword 0).
fn described(completion: &HostCompletion) -> String {
    let status = completion.status();
    match status.is_success() {
        true => status.to_string(),
        false => format!("{status}, lowest range {}", completion.cqe.dw0.get()),
    }
}

/// The destination and the source ranges of a Copy.
fn one_copy(to: &str, from: &[&str]) -> Outcome<((u32, u64), Vec<CopyRange>)> {
    let [nsid, lba] = numbers(to)?;
    let ranges = from.iter().map(|word| {
        let [nsid, lba, blocks] = numbers(word)?;
        range(nsid, lba, blocks)
    });
    Ok(((u32::try_from(nsid)?, lba), ranges.collect::<Outcome<_>>()?))
}

fn once(target: (&str, &str), format: &str, to: &str, from: &[&str]) -> Outcome<()> {
    let enabled = CopyFormatsEnabled::new();
    let (format, enabled) = match format {
        "disabled" => (CopyFormat::NAMESPACES, enabled),
        number => (CopyFormat(number.parse()?), enabled.with_format_2(true)),
    };
    let (to, ranges) = one_copy(to, from)?;
    let mut host = Host::connect(target, enabled)?;
    host.submit(format, to, &ranges, 0)?;
    let completion = host.queue.wait_completion(PATIENCE, "Copy")?;
    println!("{}", described(&completion));
    host.controller.shut_down()?;
    Ok(())
}

fn abort(target: (&str, &str), to: &str, from: &[&str]) -> Outcome<()> {
    let (to, ranges) = one_copy(to, from)?;
    let mut host = Host::connect(target, CopyFormatsEnabled::new().with_format_2(true))?;
    host.submit(CopyFormat::NAMESPACES, to, &ranges, 0)?;
    let mut completion = host.queue.wait_completion(PATIENCE, "the first Copy")?;
    println!("Copy {}: {}", completion.token, described(&completion));
    let mut last = 0;
    for token in 1..u64::from(DEPTH) {
        last = host.submit(CopyFormat::NAMESPACES, to, &ranges, token)?;
    }
    host.queue.flush()?;
    // The Abort has another connection, and must not be the first that arrives.
    std::thread::sleep(PAUSE);
    let is_aborted = host.controller.abort(host.queue.qid(), last)?;
    println!("{}", if is_aborted { "aborted" } else { "not aborted" });
    for _ in 1..DEPTH {
        completion = host.queue.wait_completion(PATIENCE, "a Copy")?;
        println!("Copy {}: {}", completion.token, described(&completion));
    }
    host.controller.shut_down()?;
    Ok(())
}

/// Blocks that are copied again and again.
struct Region {
    to: (u32, u64),
    /// Namespaces and first blocks.
    from: Vec<[u64; 2]>,
    copies: u64,
}

impl Region {
    fn of(blocks: &str, to: &str, from: &[&str]) -> Outcome<Self> {
        let [blocks] = numbers(blocks)?;
        let [nsid, lba] = numbers(to)?;
        let from: Outcome<Vec<_>> = from.iter().map(|word| numbers(word)).collect();
        let from = from?;
        let is_divisible = COPY_BLOCKS.is_multiple_of(from.len() as u64);
        if blocks == 0 || !blocks.is_multiple_of(COPY_BLOCKS) || !is_divisible {
            return Err(format!("{blocks}: copies of {COPY_BLOCKS} blocks do not fit").into());
        }
        Ok(Self {
            to: (u32::try_from(nsid)?, lba),
            from,
            copies: blocks / COPY_BLOCKS,
        })
    }

    /// The destination and the source ranges of a Copy of the stream.
    fn copy(&self, number: u64) -> Outcome<((u32, u64), Vec<CopyRange>)> {
        let offset = number % self.copies * COPY_BLOCKS;
        let part = COPY_BLOCKS / self.from.len() as u64;
        let ranges = self.from.iter().zip(0..).map(|([nsid, lba], index)| {
            let lba = lba + offset + index * part;
            range(*nsid, lba, part)
        });
        let (nsid, lba) = self.to;
        Ok(((nsid, lba + offset), ranges.collect::<Outcome<_>>()?))
    }
}

fn stream(target: (&str, &str), end: &Path, blocks: &str, to: &str, from: &[&str]) -> Outcome<()> {
    let region = Region::of(blocks, to, from)?;
    let mut host = Host::connect(target, CopyFormatsEnabled::new().with_format_2(true))?;
    let (mut sent, mut succeeded) = (0, 0);
    let mut failed: BTreeMap<String, u64> = BTreeMap::new();
    let mut completions = HostCompletions::new();
    let mut latest = Instant::now();
    loop {
        let is_over = !failed.is_empty() || end.exists();
        while !is_over && host.queue.in_flight() < usize::from(DEPTH) {
            let (to, ranges) = region.copy(sent)?;
            host.submit(CopyFormat::NAMESPACES, to, &ranges, sent)?;
            sent += 1;
        }
        if is_over && host.queue.in_flight() == 0 {
            break;
        }
        host.queue.flush()?;
        if host.queue.poll(&mut completions)? > 0 {
            latest = Instant::now();
        }
        for completion in completions.drain(..) {
            match completion.status().is_success() {
                true => succeeded += 1,
                false => *failed.entry(described(&completion)).or_default() += 1,
            }
        }
        if latest.elapsed() > PATIENCE {
            return Err(format!("{} copies have no response", host.queue.in_flight()).into());
        }
        host.controller.run_periodic()?;
        host.queue.wait(PAUSE);
    }
    println!("{succeeded} copies succeeded");
    for (status, count) in failed {
        println!("{count} failed: {status}");
    }
    host.controller.shut_down()?;
    Ok(())
}
