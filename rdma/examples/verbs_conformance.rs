//! Runs the conformance suite on real verbs: on the devices of this machine, soft RoCE in the lab.
//! Prints a line for every case and exits with 1 if one failed.
//!
//!     verbs_conformance ADDRESS [CASE…]
//!
//! ADDRESS is that of a network interface with an RDMA device.

use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::Instant;

use rdma::{Device, Provider, Verbs};
use rdma_testing::conformance::{Subject, cases};

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let Some(address) = arguments
        .next()
        .and_then(|text| text.parse::<IpAddr>().ok())
    else {
        eprintln!("usage: verbs_conformance ADDRESS [CASE…]");
        return ExitCode::from(2);
    };
    let wanted: Vec<String> = arguments.collect();
    let verbs = match open() {
        Ok(verbs) => verbs,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let mut subject = Subject::of_one(verbs, address);
    let (mut passed, mut failed) = (0, 0);
    for case in cases() {
        if !wanted.is_empty() && !wanted.iter().any(|name| name == case.name) {
            continue;
        }
        let began = Instant::now();
        let outcome = catch_unwind(AssertUnwindSafe(|| case.run(&mut subject)));
        let (word, count) = match outcome {
            Ok(()) => ("ok", &mut passed),
            Err(_) => ("FAILED", &mut failed),
        };
        *count += 1;
        println!(
            "{} {word} {:.3} s",
            case.name,
            began.elapsed().as_secs_f64()
        );
    }
    println!("{passed} passed, {failed} failed");
    if failed == 0 && passed > 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Opens verbs and shows its devices.
fn open() -> Result<Verbs, rdma::Error> {
    let verbs = Verbs::open()?;
    for device in verbs.devices()? {
        println!("{}: {:?}", device.name(), device.limits());
        println!("{}: port 1 up: {}", device.name(), device.port_is_up(1)?);
    }
    Ok(verbs)
}
