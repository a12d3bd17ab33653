//! Tests the dashboard in a real browser: `cargo xtask test --only browser` and `cargo xtask
//! screenshots`.

mod checks;
mod screenshots;
mod site;
mod webdriver;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use crate::log::Log;
use crate::{monitoring, process};
use site::{Site, TOKEN};
use webdriver::Browser;

pub(crate) use screenshots::{Options, take as take_screenshots};

/// Creates an empty directory.
fn fresh(name: &str) -> Result<PathBuf, String> {
    let directory = process::root().join("target").join(name);
    if directory.exists() {
        fs::remove_dir_all(&directory).map_err(|e| format!("{}: {e}", directory.display()))?;
    }
    fs::create_dir_all(&directory).map_err(|e| format!("{}: {e}", directory.display()))?;
    Ok(directory)
}

/// Checks the page of the appliance in `binaries`, which also contains `bench`.
pub(crate) fn test(binaries: &Path) -> Result<(), String> {
    let directory = fresh("browser")?;
    let log = Log::create(&directory.join("log"))?;
    let mut site = Site::start(binaries, &directory.join("open"), &log, None)?;
    site.load()?;
    let browser = Browser::start(&directory)?;
    let result = look(&mut site, &browser, binaries, &directory, &log);
    if result.is_err() {
        let path = directory.join("failure.png");
        if let Ok(picture) = browser.picture()
            && fs::write(&path, picture).is_ok()
        {
            println!("browser: what the page showed is in {}", path.display());
        }
    }
    result
}

fn look(
    site: &mut Site,
    browser: &Browser,
    binaries: &Path,
    directory: &Path,
    log: &Arc<Log>,
) -> Result<(), String> {
    let origin = site.origin.clone();
    check("history", || checks::shows_what_was_before(site, browser))?;
    check("figures", || checks::figures_are_the_apis(site, browser))?;
    check("heat map", || checks::heat_is_the_apis(site, browser))?;
    check("metrics", || monitoring::check(&site.get("/metrics")?))?;
    check("keys", || checks::keys_are_enough(site, browser))?;
    check("names", || checks::everything_has_a_name(site, browser))?;
    check("looks", || checks::reads_well_everywhere(site, browser))?;
    check("totals", || checks::totals_are_the_apis(site, browser))?;
    check("console", || checks::nothing_went_wrong(browser, &[]))?;
    let closed = Site::start(binaries, &directory.join("token"), log, Some(TOKEN))?;
    check("token", || checks::asks_for_the_token(&closed, browser))?;
    check("console", || {
        checks::nothing_went_wrong(browser, &["401 (Unauthorized)"])
    })?;
    check("loss", || checks::says_when_it_is_lost(site, browser))?;
    let expected = ["net::ERR_CONNECTION"];
    check("console", || checks::nothing_went_wrong(browser, &expected))?;
    check("network", || {
        checks::nothing_leaves(browser, &[&origin, &closed.origin])
    })
}

/// Runs one check and prints its duration.
fn check(name: &str, work: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    let began = Instant::now();
    work().map_err(|error| format!("{name}: {error}"))?;
    println!(
        "browser: {name} is well ({:.1} s)",
        began.elapsed().as_secs_f64()
    );
    Ok(())
}
