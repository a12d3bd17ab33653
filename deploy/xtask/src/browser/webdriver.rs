//! Controls headless Chromium over WebDriver (W3C WebDriver Level 1) with its chromedriver.
//!
//! The protocol is JSON over HTTP. Only eight commands are needed, two of which are specific to
//! Chromium (its log, its developer tools). A client library would add an asynchronous runtime and
//! not support these.

use std::path::Path;
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};

use crate::appliance::free_port;
use crate::process;

const START_TIMEOUT: Duration = Duration::from_secs(60);
/// Time-out of waiting for a page, sufficient for a busy machine.
const WAIT_TIMEOUT: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Keys by their code points (WebDriver 1 §17.4.2).
pub(super) mod key {
    pub(crate) const TAB: char = '\u{e004}';
    pub(crate) const ENTER: char = '\u{e007}';
    pub(crate) const DOWN: char = '\u{e015}';
    pub(crate) const SPACE: char = ' ';
}

/// A browser with one page, which is ended on drop.
pub(super) struct Browser {
    driver: Child,
    session: String,
}

impl Browser {
    /// Starts a browser with its profile in `directory`.
    pub(super) fn start(directory: &Path) -> Result<Self, String> {
        let port = free_port()?;
        let mut driver = process::program("chromedriver");
        driver.arg(format!("--port={port}"));
        let mut driver = process::killed_with_parent(&driver);
        driver
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let driver = driver
            .spawn()
            .map_err(|error| format!("cannot start chromedriver: {error}"))?;
        let mut browser = Self {
            driver,
            session: format!("http://127.0.0.1:{port}/session"),
        };
        let began = Instant::now();
        let asked = capabilities(directory);
        let session = loop {
            match exchange("POST", &browser.session, &asked) {
                Ok(value) => break value,
                Err(error) if began.elapsed() > START_TIMEOUT => return Err(error),
                Err(_) => thread::sleep(POLL_INTERVAL),
            }
        };
        let id = session["sessionId"]
            .as_str()
            .ok_or("a session without an identifier")?;
        browser.session = format!("{}/{id}", browser.session);
        Ok(browser)
    }

    fn command(&self, name: &str, body: &Value) -> Result<Value, String> {
        exchange("POST", &format!("{}/{name}", self.session), body)
    }

    pub(super) fn open(&self, url: &str) -> Result<(), String> {
        self.command("url", &json!({ "url": url })).map(drop)
    }

    /// Runs the body of a function in the page. Returns its result.
    pub(super) fn run(&self, script: &str) -> Result<Value, String> {
        self.command("execute/sync", &json!({ "script": script, "args": [] }))
    }

    /// Evaluates an expression until it is true. Returns its value.
    pub(super) fn wait(&self, what: &str, expression: &str) -> Result<Value, String> {
        let began = Instant::now();
        loop {
            let value = self.run(&format!("return {expression};"))?;
            if value.as_bool() != Some(false) && !value.is_null() {
                return Ok(value);
            }
            if began.elapsed() > WAIT_TIMEOUT {
                let state = self.run("return document.body.innerText.slice(0, 600);")?;
                return Err(format!("timed out: {what}; the page shows {state}"));
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Presses and releases each key.
    pub(super) fn press_keys(&self, keys: impl IntoIterator<Item = char>) -> Result<(), String> {
        let strokes: Vec<Value> = keys
            .into_iter()
            .flat_map(|key| {
                ["keyDown", "keyUp"].map(|kind| json!({ "type": kind, "value": key.to_string() }))
            })
            .collect();
        let actions = json!([{ "type": "key", "id": "keyboard", "actions": strokes }]);
        self.command("actions", &json!({ "actions": actions }))
            .map(drop)
    }

    /// A command of Chromium's developer tools.
    pub(super) fn devtools_command(
        &self,
        command: &str,
        parameters: &Value,
    ) -> Result<Value, String> {
        let body = json!({ "cmd": command, "params": parameters });
        self.command("goog/cdp/execute", &body)
    }

    /// Emulates a screen of that size, and a system with that colour scheme.
    pub(super) fn emulate_screen(&self, screen: Screen, scheme: &str) -> Result<(), String> {
        let metrics = json!({
            "width": screen.width,
            "height": screen.height,
            "deviceScaleFactor": screen.scale,
            "mobile": screen.is_mobile,
        });
        self.devtools_command("Emulation.setDeviceMetricsOverride", &metrics)?;
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.devtools_command(
            "Emulation.setEmulatedMedia",
            &json!({ "features": features }),
        )?;
        Ok(())
    }

    /// The log entries since the last call: `browser` or `performance`.
    pub(super) fn logged(&self, kind: &str) -> Result<Vec<Value>, String> {
        match self.command("se/log", &json!({ "type": kind }))? {
            Value::Array(entries) => Ok(entries),
            other => Err(format!("no list of log entries: {other}")),
        }
    }

    /// A screenshot as PNG.
    pub(super) fn screenshot(&self) -> Result<Vec<u8>, String> {
        let shot = self.devtools_command("Page.captureScreenshot", &json!({ "format": "png" }))?;
        let text = shot["data"].as_str().ok_or("no picture")?;
        BASE64
            .decode(text)
            .map_err(|error| format!("a picture: {error}"))
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Ends the browser, which would survive its driver.
        let _ = exchange("DELETE", &self.session, &Value::Null);
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}

/// A screen: sizes in CSS pixels.
#[derive(Clone, Copy)]
pub(super) struct Screen {
    pub(super) width: u32,
    pub(super) height: u32,
    pub(super) scale: u32,
    pub(super) is_mobile: bool,
}

pub(super) const DESKTOP: Screen = Screen {
    width: 1280,
    height: 900,
    scale: 1,
    is_mobile: false,
};

pub(super) const PHONE: Screen = Screen {
    width: 360,
    height: 740,
    scale: 2,
    is_mobile: true,
};

fn capabilities(directory: &Path) -> Value {
    let profile = format!("--user-data-dir={}", directory.join("profile").display());
    let mut arguments = vec![
        "--headless=new",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-first-run",
        "--hide-scrollbars",
        &profile,
    ];
    if rustix::process::geteuid().is_root() {
        arguments.push("--no-sandbox");
    }
    json!({ "capabilities": { "alwaysMatch": {
        "browserName": "chrome",
        "goog:chromeOptions": { "args": arguments },
        "goog:loggingPrefs": { "browser": "ALL", "performance": "ALL" },
    } } })
}

/// Sends one command. Returns its value (WebDriver 1 §6).
fn exchange(method: &str, url: &str, body: &Value) -> Result<Value, String> {
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .timeout_global(Some(START_TIMEOUT))
        .build()
        .into();
    let sent = if method == "DELETE" {
        agent.delete(url).call()
    } else {
        agent
            .post(url)
            .header("content-type", "application/json")
            .send(body.to_string())
    };
    let mut answer = sent.map_err(|error| format!("{url}: {error}"))?;
    let text = answer
        .body_mut()
        .with_config()
        .limit(64 << 20)
        .read_to_string();
    let text = text.map_err(|error| format!("{url}: {error}"))?;
    let mut answer: Value =
        serde_json::from_str(&text).map_err(|error| format!("{url}: {error}: {text}"))?;
    let value = answer["value"].take();
    match value["error"].as_str() {
        Some(error) => Err(format!("{error}: {}", value["message"])),
        None => Ok(value),
    }
}
