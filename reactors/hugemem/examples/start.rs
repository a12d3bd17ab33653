//! Measures how long an arena takes to start, by page policy: `cargo run --release -p hugemem
//! --example start -- [MiB] [rounds]`.

use std::time::Instant;

use hugemem::{Arena, ArenaConfig, PagePolicy};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let mebibytes: usize = arguments.next().map_or(Ok(256), |text| text.parse())?;
    let rounds: usize = arguments.next().map_or(Ok(5), |text| text.parse())?;
    for pages in [PagePolicy::Ordinary, PagePolicy::HugeOnly] {
        for _ in 0..rounds {
            let start = Instant::now();
            let config = ArenaConfig {
                bytes: mebibytes << 20,
                pages,
                max_transfer: 1 << 20,
            };
            match Arena::new(config) {
                Ok(arena) => {
                    let elapsed = start.elapsed();
                    println!(
                        "{mebibytes} MiB of {}: {elapsed:?}",
                        arena.region().page_size()
                    );
                    for notice in arena.region().notices() {
                        println!("  {notice}");
                    }
                }
                Err(error) => {
                    println!("{mebibytes} MiB, {pages:?}: {error}");
                    break;
                }
            }
        }
    }
    Ok(())
}
