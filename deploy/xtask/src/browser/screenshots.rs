//! `cargo xtask screenshots`: takes the README's pictures of an appliance under load.

use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use clap::Args;

use super::empty_directory;
use super::site::Site;
use super::webdriver::{Browser, DESKTOP, PHONE, Screen};
use crate::log::Log;
use crate::{packages, process};

/// The directory of the README's pictures.
const FOLDER: &str = "appliance/dashboard/screenshots";

/// What is pictured.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Where the pictures go.
    #[arg(long, value_name = "DIR", default_value = FOLDER)]
    out: PathBuf,
    /// Seconds of load before the pictures.
    #[arg(long, default_value_t = 75)]
    time: u64,
    /// Build and use release binaries.
    #[arg(long)]
    release: bool,
}

/// Builds the binaries, runs the load, and takes the pictures.
pub(crate) fn take(options: &Options) -> Result<(), String> {
    packages::ensure_browser_installed()?;
    let mut build = process::cargo();
    build.args(["build", "-p", "appliance", "-p", "bench"]);
    build.args(options.release.then_some("--release"));
    process::run(&mut build)?;
    let profile = if options.release { "release" } else { "debug" };
    let binaries = process::root().join("target").join(profile);
    let out = process::root().join(&options.out);
    fs::create_dir_all(&out).map_err(|e| format!("{}: {e}", out.display()))?;
    let directory = empty_directory("screenshots")?;
    let log = Log::create(&directory.join("log"))?;
    let mut site = Site::start(&binaries, &directory.join("site"), &log, None)?;
    site.load()?;
    println!("screenshots: {} s of load come first", options.time);
    thread::sleep(Duration::from_secs(options.time));
    let browser = Browser::start(&directory)?;
    let tall = |screen: Screen, height| Screen { height, ..screen };
    for (name, screen, scheme) in [
        ("desktop-light", tall(DESKTOP, 1080), "light"),
        ("desktop-dark", tall(DESKTOP, 1080), "dark"),
        ("phone", tall(PHONE, 760), "light"),
    ] {
        browser.emulate_screen(screen, scheme)?;
        browser.open(&format!("{}/#range=60", site.origin))?;
        browser.run("location.reload();")?;
        browser.wait(
            "the page is live",
            "document.readyState === 'complete' && \
             document.documentElement.dataset.state === 'live' && \
             document.querySelector('#chart-bytes canvas') !== null",
        )?;
        // Waits for one more step, after which everything is drawn in this size.
        thread::sleep(Duration::from_secs(2));
        let path = out.join(format!("{name}.png"));
        fs::write(&path, browser.screenshot()?).map_err(|e| format!("{}: {e}", path.display()))?;
        println!("screenshots: {}", path.display());
    }
    Ok(())
}
