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
fn empty_directory(name: &str) -> Result<PathBuf, String> {
    let directory = process::root().join("target").join(name);
    if directory.exists() {
        fs::remove_dir_all(&directory).map_err(|e| format!("{}: {e}", directory.display()))?;
    }
    fs::create_dir_all(&directory).map_err(|e| format!("{}: {e}", directory.display()))?;
    Ok(directory)
}

/// Checks the page of the appliance in `binaries`, which also contains `bench`.
pub(crate) fn test(binaries: &Path) -> Result<(), String> {
    let directory = empty_directory("browser")?;
    let log = Log::create(&directory.join("log"))?;
    let mut site = Site::start(binaries, &directory.join("open"), &log, None)?;
    site.load()?;
    let browser = Browser::start(&directory)?;
    let result = run_checks(&mut site, &browser, binaries, &directory, &log);
    if result.is_err() {
        let path = directory.join("failure.png");
        if let Ok(picture) = browser.screenshot()
            && fs::write(&path, picture).is_ok()
        {
            println!("browser: what the page showed is in {}", path.display());
        }
    }
    result
}

fn run_checks(
    site: &mut Site,
    browser: &Browser,
    binaries: &Path,
    directory: &Path,
    log: &Arc<Log>,
) -> Result<(), String> {
    let origin = site.origin.clone();
    check("history", || checks::shows_earlier_history(site, browser))?;
    check("figures", || checks::figures_match_the_api(site, browser))?;
    check("heat map", || {
        checks::heat_map_matches_the_api(site, browser)
    })?;
    check("metrics", || monitoring::check(&site.get("/metrics")?))?;
    check("keys", || checks::is_usable_by_keyboard(site, browser))?;
    check("names", || checks::has_accessible_names(site, browser))?;
    check("looks", || {
        checks::is_readable_on_all_screens(site, browser)
    })?;
    check("totals", || checks::totals_match_the_api(site, browser))?;
    check("ANA", || checks::hides_ordinary_ana_states(site, browser))?;
    check("console", || checks::console_has_no_errors(browser, &[]))?;
    let closed = Site::start(binaries, &directory.join("token"), log, Some(TOKEN))?;
    check("token", || checks::requests_the_token(&closed, browser))?;
    check("console", || {
        checks::console_has_no_errors(browser, &["401 (Unauthorized)"])
    })?;
    check("loss", || checks::reports_a_lost_appliance(site, browser))?;
    let expected = ["net::ERR_CONNECTION"];
    check("console", || {
        checks::console_has_no_errors(browser, &expected)
    })?;
    check("network", || {
        checks::requests_stay_on_origins(browser, &[&origin, &closed.origin])
    })
}

/// Runs one check and prints its duration.
fn check(name: &str, work: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    let began = Instant::now();
    work().map_err(|error| format!("{name}: {error}"))?;
    println!(
        "browser: {name} passed ({:.1} s)",
        began.elapsed().as_secs_f64()
    );
    Ok(())
}
