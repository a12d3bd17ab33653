//! The checks of the page.

use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::site::{HOST, NQN, OTHER_NQN, Site, TOKEN};
use super::webdriver::{Browser, DESKTOP, PHONE, key};

/// Number of steps in the history before the page is opened.
const EARLIER_STEPS: usize = 8;
const LIMIT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Whether the page shows the current state of the appliance.
const IS_LIVE: &str = "document.documentElement.dataset.state === 'live'";

/// The state of the page: the number of its step and the values of its tiles.
const TILES: &str = "const tiles = {}; \
    for (const tile of document.querySelectorAll('#tiles data')) \
        tiles[tile.id.slice(4)] = tile.value === '' ? null : Number(tile.value); \
    return { step: Number(document.getElementById('tiles').dataset.step), tiles };";

fn ensure(holds: bool, otherwise: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(otherwise()) }
}

fn is_number(value: &Value) -> bool {
    value.is_number()
}

/// Checks that a page that is opened later shows earlier data.
pub(super) fn shows_earlier_history(site: &Site, browser: &Browser) -> Result<(), String> {
    let began = Instant::now();
    loop {
        let history = site.api("history?seconds=60&kind=export")?;
        let iops = &history["series"][format!("export/{NQN}/read_iops")];
        let busy = |value: &&Value| value.as_f64().is_some_and(|value| value > 0.0);
        let steps = iops
            .as_array()
            .map_or(0, |values| values.iter().filter(busy).count());
        if steps >= EARLIER_STEPS {
            break;
        }
        ensure(began.elapsed() < LIMIT, || {
            format!("{steps} busy steps in {LIMIT:?}")
        })?;
        thread::sleep(POLL_INTERVAL);
    }
    browser.emulate_screen(DESKTOP, "light")?;
    browser.open(&format!("{}/#range=60", site.origin))?;
    browser.wait("the page is live", IS_LIVE)?;
    // Read immediately, so that all data is from before the page was opened.
    let rows = browser.run(
        "document.querySelector('#chart-iops details').open = true; \
         return new Promise((done) => requestAnimationFrame(() => setTimeout(() => done( \
            [...document.querySelectorAll('#chart-iops tbody tr')] \
                .map((row) => [...row.children].map((cell) => cell.textContent))), 50)));",
    )?;
    let rows = rows.as_array().ok_or("no table")?;
    let known = rows.iter().filter(|row| row[1] != "–").count();
    ensure(known >= 2, || {
        format!("of the time before, the table shows {rows:?}")
    })?;
    let picture = browser.run("return document.querySelector('#chart-iops .plot').ariaLabel;")?;
    let told = picture.as_str().unwrap_or("");
    ensure(
        told.starts_with("Requests now: read ") && told.contains("at most"),
        || format!("the picture's name is {told:?}"),
    )
}

/// Selects a scope on the page: `kind/name`.
fn select_scope(browser: &Browser, thing: &str) -> Result<(), String> {
    let choice = format!(
        "const select = document.getElementById('scope'); select.value = '{thing}'; \
         select.dispatchEvent(new Event('change'));"
    );
    browser.run(&choice).map(drop)
}

/// Checks that all figures match the API for every scope.
pub(super) fn figures_match_the_api(site: &Site, browser: &Browser) -> Result<(), String> {
    // Without a token, the host is shown by a pseudonym.
    let status = site.api("status")?;
    let host = status["hosts"][0]["nqn"].as_str().ok_or("no host")?;
    ensure((host == HOST) == site.has_token(), || {
        format!("the host is shown as {host}")
    })?;
    for (kind, name) in [
        ("total", ""),
        ("export", NQN),
        ("host", host),
        ("device", "scratch"),
        ("device", "vol0"),
        ("reactor", "0"),
    ] {
        let value = format!("{kind}/{name}");
        select_scope(browser, &value)?;
        let shown = browser.run(TILES)?;
        let step = shown["step"].as_u64().ok_or("the tiles have no step")?;
        let history = site.api("history?seconds=60")?;
        let last = history["step"].as_u64().ok_or("the history has no step")?;
        let age = last
            .checked_sub(step)
            .ok_or("the page is ahead of the appliance")? as usize;
        let at = |key: &str| {
            let values = history["series"][key].as_array()?;
            values.get(values.len().checked_sub(age + 1)?).cloned()
        };
        let same = |tile: &str, key: &str| {
            let (shown, told) = (&shown["tiles"][tile], at(key).unwrap_or(Value::Null));
            ensure(shown.as_f64() == told.as_f64(), || {
                format!("{value}: {tile} is {shown} on the page and {told} in {key}")
            })
        };
        for what in [
            "read_bytes",
            "write_bytes",
            "read_iops",
            "write_iops",
            "errors",
            "p99_ns",
        ] {
            same(what, &format!("{value}/{what}"))?;
        }
        same("busy", "reactor/0/busy_permille")?;
        ensure(is_number(&shown["tiles"]["read_iops"]), || {
            format!("{value}: {shown}")
        })?;
        ensure(shown["tiles"]["hosts"] == 1, || format!("hosts: {shown}"))?;
    }
    Ok(())
}

/// Checks that the table of the heat map matches the API's counts.
pub(super) fn heat_map_matches_the_api(site: &Site, browser: &Browser) -> Result<(), String> {
    /// Number of steps that a row of the table combines.
    const ROW_STEPS: usize = 5;
    select_scope(browser, "total/")?;
    browser.run("document.querySelector('#chart-heat details').open = true;")?;
    browser.wait(
        "the heat map's table has numbers",
        "document.querySelectorAll('#chart-heat tbody data').length > 0",
    )?;
    let shown = browser.run(
        "return { step: Number(document.getElementById('tiles').dataset.step), \
            rows: [...document.querySelectorAll('#chart-heat tbody tr')].map((row) => \
                [...row.querySelectorAll('data')].reduce( \
                    (sum, it) => sum + Number(it.value), 0)) };",
    )?;
    let heat = site.api("heatmap?seconds=120")?;
    let age = heat["step"].as_u64().zip(shown["step"].as_u64());
    let age = age.and_then(|(last, step)| last.checked_sub(step));
    let age = age.ok_or("the page is ahead of the appliance")? as usize;
    let columns = heat["counts"].as_array().ok_or("no counts")?;
    let count = |column: &Value| {
        let counts = column.as_array().into_iter().flatten();
        counts.filter_map(Value::as_u64).sum::<u64>()
    };
    let rows = shown["rows"].as_array().ok_or("no rows")?;
    let mut all = 0;
    // The newest row may lack a step that is not published yet.
    for (row, sum) in rows.iter().enumerate().skip(1) {
        let end = columns.len() - age - row * ROW_STEPS;
        let told: u64 = columns[end - ROW_STEPS..end].iter().map(count).sum();
        ensure(sum.as_u64() == Some(told), || {
            format!("row {row} has {sum} commands on the page, {told} in the API")
        })?;
        all += told;
    }
    ensure(rows.len() == 12 && all > 0, || format!("{rows:?}"))
}

/// Checks that without load no value changes and every total matches the API.
pub(super) fn totals_match_the_api(site: &mut Site, browser: &Browser) -> Result<(), String> {
    site.unload();
    browser.wait(
        "no host is connected",
        "document.querySelector('#hosts table').hidden && \
         document.getElementById('now-hosts').value === '0'",
    )?;
    // Waits for one more step with the last counts.
    let step = browser.run(TILES)?["step"].as_u64().unwrap_or(0);
    let later = format!("Number(document.getElementById('tiles').dataset.step) > {step}");
    browser.wait("a further step", &later)?;
    let status = site.api("status")?;
    let cells = |table: &str| {
        browser.run(&format!(
            "return [...document.querySelectorAll('#{table} tbody tr')].map((row) => \
                Object.fromEntries([...row.children].map((cell) => [cell.dataset.title, \
                    cell.firstElementChild.value || cell.textContent])));"
        ))
    };
    for (table, list, name) in [
        ("exports", "exports", "nqn"),
        ("devices", "devices", "name"),
    ] {
        let rows = cells(table)?;
        let told = status[list].as_array().ok_or("no list")?;
        ensure(rows.as_array().map(Vec::len) == Some(told.len()), || {
            format!("{rows}")
        })?;
        for (place, one) in told.iter().enumerate() {
            let row = &rows[place];
            ensure(row[list.trim_end_matches('s')] == one[name], || {
                format!("{row}")
            })?;
            for (column, counter) in [
                ("reads", "reads"),
                ("read", "bytes_read"),
                ("writes", "writes"),
                ("written", "bytes_written"),
                ("errors", "errors"),
            ] {
                let (shown, told) = (&row[column], one["totals"][counter].to_string());
                ensure(shown.as_str() == Some(&told), || {
                    format!("{table} {place}: {column} is {shown} on the page, {told} in the API")
                })?;
            }
        }
    }
    let pools = browser.run(
        "return [...document.querySelectorAll('#machine-tables > :last-child tbody tr')] \
            .map((row) => [...row.querySelectorAll('td.number data')] \
                .map((cell) => Number(cell.value)));",
    )?;
    let classes = status["memory"]["classes"].as_array().ok_or("no classes")?;
    let told: Vec<Value> = classes
        .iter()
        .map(|one| json!([one["free"], one["total"], one["waiting"], one["waits"]]))
        .collect();
    ensure(pools == Value::Array(told.clone()), || {
        format!("pools: {pools} is not {told:?}")
    })?;
    let events = site.api("events")?;
    let shown = browser.run("return document.querySelectorAll('#events li time').length;")?;
    ensure(
        shown.as_u64() == events.as_array().map(|all| all.len() as u64),
        || format!("{shown} events on the page, {events}"),
    )
}

/// The parts with limits, keys and files.
const LIMITS: &str = "document.getElementById('limits-part')";
const FILES: &str = "document.getElementById('files-part')";
const KEYS: &str = "document.getElementById('security-part')";

/// The element of the table of ANA states.
const ANA_TABLE: &str = "document.querySelector('#listeners > :last-child')";

/// Checks that the page has no table of ANA states while all paths are in their ordinary state.
pub(super) fn hides_ordinary_ana_states(site: &Site, browser: &Browser) -> Result<(), String> {
    let status = site.api("status")?;
    ensure(status["ana"][0]["state"] == "optimized", || {
        format!("ANA: {}", status["ana"])
    })?;
    let hidden = browser.run(&format!("return {ANA_TABLE}.hidden;"))?;
    ensure(hidden == true, || {
        "ordinary ANA states are shown".to_owned()
    })?;
    let hidden = browser.run(&format!(
        "return {LIMITS}.hidden && {KEYS}.hidden && {FILES}.hidden;"
    ))?;
    ensure(hidden == true, || {
        "limits, keys or files are shown where there are none".to_owned()
    })
}

/// The identifier or name of the element with the focus.
fn focused(browser: &Browser) -> Result<String, String> {
    let focused = browser.run(
        "const at = document.activeElement; \
         return at.id || at.name || at.className || at.tagName;",
    )?;
    Ok(focused.as_str().unwrap_or("").to_owned())
}

/// Checks that everything is accessible by keyboard, in the order of the page.
pub(super) fn is_usable_by_keyboard(_: &Site, browser: &Browser) -> Result<(), String> {
    browser.run("document.activeElement.blur(); window.scrollTo(0, 0);")?;
    let mut order = Vec::new();
    for _ in 0..6 {
        browser.press_keys([key::TAB])?;
        order.push(focused(browser)?);
        let is_marked = browser.run(
            "const style = getComputedStyle(document.activeElement); \
             return style.outlineStyle !== 'none' && document.activeElement.checkVisibility();",
        )?;
        ensure(is_marked == true, || {
            format!("one does not see the focus on {order:?}")
        })?;
    }
    let expected = ["skip", "theme", "pause", "scope", "range", "choose"];
    // The tables of the charts are between the selection elements and the first table.
    ensure(order[..5] == expected[..5], || {
        format!("the order is {order:?}")
    })?;
    let reached = browser.run(
        "const tabbable = [...document.querySelectorAll( \
                'a[href], button, select, input, summary, [tabindex=\"0\"]')] \
            .filter((node) => node.checkVisibility() && !node.disabled); \
         return tabbable.filter((node) => node.tabIndex < 0).length;",
    )?;
    ensure(reached == 0, || {
        format!("{reached} controls are out of reach")
    })?;
    let focus = |id: &str| browser.run(&format!("document.getElementById('{id}').focus();"));
    focus("scope")?;
    select_scope(browser, "total/")?;
    browser.press_keys([key::DOWN])?;
    browser.wait(
        "an arrow chooses the next thing",
        "document.getElementById('scope').value.startsWith('export/') && \
         location.hash.includes('of=export')",
    )?;
    focus("pause")?;
    browser.press_keys([key::SPACE])?;
    browser.wait(
        "it pauses",
        "document.getElementById('state').textContent === 'Paused.'",
    )?;
    browser.press_keys([key::SPACE])?;
    browser.wait(
        "it goes on",
        "document.getElementById('state').textContent === 'Live.'",
    )?;
    browser.run("document.querySelector('.skip').focus();")?;
    browser.press_keys([key::ENTER])?;
    ensure(focused(browser)? == "figures", || {
        "the skip link leads nowhere".to_owned()
    })?;
    browser.run("document.querySelector('#chart-bytes summary').focus();")?;
    browser.press_keys([key::ENTER])?;
    browser.wait(
        "a table opens",
        "document.querySelector('#chart-bytes details').open",
    )?;
    browser.wait(
        "it has rows",
        "document.querySelectorAll('#chart-bytes tbody tr').length > 5",
    )?;
    Ok(())
}

/// Checks the accessible names that the browser computes for assistive technology.
pub(super) fn has_accessible_names(_: &Site, browser: &Browser) -> Result<(), String> {
    const NAMED: [&str; 13] = [
        "button",
        "checkbox",
        "combobox",
        "figure",
        "form",
        "image",
        "link",
        "navigation",
        "radio",
        "region",
        "table",
        "textbox",
        "DisclosureTriangle",
    ];
    browser.devtools_command("Accessibility.enable", &json!({}))?;
    let tree = browser.devtools_command("Accessibility.getFullAXTree", &json!({}))?;
    let nodes = tree["nodes"].as_array().ok_or("no tree")?;
    let mut roles = BTreeSet::new();
    for node in nodes.iter().filter(|node| node["ignored"] == false) {
        let role = node["role"]["value"].as_str().unwrap_or("");
        let name = node["name"]["value"].as_str().unwrap_or("").trim();
        ensure(!name.is_empty() || !NAMED.contains(&role), || {
            format!("a {role} has no name: {node}")
        })?;
        roles.insert(role);
    }
    for role in [
        "banner",
        "navigation",
        "main",
        "contentinfo",
        "status",
        "table",
        "columnheader",
        "image",
    ] {
        ensure(roles.contains(role), || {
            format!("no {role} among {roles:?}")
        })?;
    }
    let levels = browser.run(
        "return [...document.querySelectorAll('h1, h2, h3, h4')] \
            .filter((node) => node.checkVisibility()).map((node) => Number(node.tagName[1]));",
    )?;
    let levels: Vec<u64> = levels
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_u64)
        .collect();
    let steps = levels.windows(2).all(|pair| pair[1] <= pair[0] + 1);
    ensure(levels.first() == Some(&1) && steps, || {
        format!("headings: {levels:?}")
    })
}

/// Checks that no text is hard to read or cut off, in both themes, on desktop and mobile screens.
pub(super) fn is_readable_on_all_screens(_: &Site, browser: &Browser) -> Result<(), String> {
    let look = |what: &str| {
        let found = browser.run(include_str!("audit.js"))?;
        let found = found.as_array().cloned().unwrap_or_default();
        ensure(found.is_empty(), || {
            format!("{what}: {}", Value::Array(found))
        })
    };
    for (name, screen) in [("desktop", DESKTOP), ("phone", PHONE)] {
        for scheme in ["light", "dark"] {
            browser.emulate_screen(screen, scheme)?;
            browser.wait(
                "its size is the screen's",
                &format!("innerWidth === {}", screen.width),
            )?;
            let ground = browser.run("return getComputedStyle(document.body).backgroundColor;")?;
            let is_dark = ground.as_str().is_some_and(|it| it.starts_with("rgb(16,"));
            ensure(is_dark == (scheme == "dark"), || {
                format!("{scheme}: the ground is {ground}")
            })?;
            look(&format!("{name}, {scheme}"))?;
        }
    }
    // Checks that the audit detects a problem.
    browser.run(
        "const bad = document.createElement('p'); bad.id = 'bad'; bad.textContent = 'faint'; \
         bad.style.color = '#555'; bad.style.width = '3000px'; document.body.append(bad);",
    )?;
    let found = look("bad").err().unwrap_or_default();
    ensure(
        found.contains("contrast") && found.contains("reaches beyond"),
        || format!("what is bad is not found: {found}"),
    )?;
    browser.run("document.getElementById('bad').remove();")?;
    // The page's setting has priority over the system's.
    let choose = |theme: &str| {
        browser.run(&format!(
            "const theme = document.getElementById('theme'); theme.value = '{theme}'; \
             theme.dispatchEvent(new Event('change')); \
             return getComputedStyle(document.body).backgroundColor;"
        ))
    };
    let ground = choose("light")?;
    ensure(ground == "rgb(244, 246, 248)", || {
        format!("light: the ground is {ground}")
    })?;
    choose("auto")?;
    browser.emulate_screen(DESKTOP, "light")
}

/// Checks that the page asks for the token, reports a wrong one, and forgets it on request.
pub(super) fn requests_the_token(site: &Site, browser: &Browser) -> Result<(), String> {
    let wanted = "document.documentElement.dataset.state === 'token'";
    browser.open(&site.origin)?;
    browser.wait("the page wants a token", wanted)?;
    ensure(focused(browser)? == "token-text", || {
        "the token's field has no focus".to_owned()
    })?;
    let hidden = browser.run("return document.getElementById('figures').hidden;")?;
    ensure(hidden == true, || {
        "there are figures without a token".to_owned()
    })?;
    browser.press_keys("0123456789abcdef-wrong".chars().chain([key::ENTER]))?;
    browser.wait(
        "the wrong token is named so",
        "document.getElementById('token-error').textContent.startsWith('That was not it')",
    )?;
    browser.press_keys(TOKEN.chars().chain([key::ENTER]))?;
    browser.wait("the right token opens", IS_LIVE)?;
    browser.wait(
        "the configured ANA state is shown",
        &format!("!{ANA_TABLE}.hidden && {ANA_TABLE}.innerText.includes('non-optimized')"),
    )?;
    let cells = "(row) => [...row.children].map((cell) => cell.textContent)";
    let rows = |part: &str| {
        browser.run(&format!(
            "const rows = [...{part}.querySelectorAll('tbody tr')].map({cells}); \
             return {part}.hidden ? [] : rows;"
        ))
    };
    let told = json!([
        [
            "vol0",
            "a rate limit",
            "reads and writes",
            "5 k",
            "no limit",
            "0",
            "0 ns"
        ],
        [
            OTHER_NQN,
            "latency target of other exports",
            "reads and writes",
            "no limit",
            "no limit",
            "0",
            "0 ns"
        ]
    ]);
    let limits = rows(LIMITS)?;
    ensure(limits == told, || format!("limits: {limits}"))?;
    let keys = rows(KEYS)?;
    let told = json!([["db1", "file", "valid", "0", "not since the start"]]);
    ensure(keys == told, || format!("keys: {keys}"))?;
    let files = rows(FILES)?;
    let told = json!([
        "team",
        "home/team",
        "reads and writes",
        "0 B",
        "1 MiB",
        "0",
        "100",
        "0",
        "0 B",
        "0",
        "0 B"
    ]);
    ensure(files[0][3] == "ready" && files[1] == told, || {
        format!("files: {files}")
    })?;
    browser.run("location.reload();")?;
    browser.wait(
        "the tab stores it",
        &format!("document.readyState === 'complete' && {IS_LIVE}"),
    )?;
    browser.run("document.getElementById('forget').click();")?;
    browser.wait("it is forgotten", wanted).map(drop)
}

/// Checks that the page reports a killed appliance, keeps the last data, and reconnects to a new
/// one.
pub(super) fn reports_a_lost_appliance(site: &mut Site, browser: &Browser) -> Result<(), String> {
    browser.open(&site.origin)?;
    browser.wait("the page is live", IS_LIVE)?;
    let step = browser.run(TILES)?["step"].as_u64();
    site.kill()?;
    let told = browser.wait(
        "the loss is reported",
        "document.documentElement.dataset.state === 'lost' && \
         document.getElementById('state').textContent",
    )?;
    let told = told.as_str().unwrap_or("");
    ensure(
        told.starts_with("Lost the appliance: what is below is of "),
        || told.to_owned(),
    )?;
    let after = browser.run(TILES)?["step"].as_u64();
    ensure(after >= step && step.is_some(), || {
        format!("the figures are gone: {after:?}")
    })?;
    site.serve()?;
    browser.wait("the page finds it again", IS_LIVE)?;
    let pid = site.api("status")?["appliance"]["pid"].as_u64();
    let events = browser.wait(
        "its own events are shown",
        "document.querySelectorAll('#events li time').length === 1 && \
         document.getElementById('events').textContent",
    )?;
    let is_new = events
        .as_str()
        .is_some_and(|text| text.contains("the appliance has started"));
    ensure(is_new && pid.is_some(), || format!("events: {events}"))
}

/// Checks that no script failed and that the content security policy blocked nothing.
pub(super) fn console_has_no_errors(browser: &Browser, expected: &[&str]) -> Result<(), String> {
    for entry in browser.logged("browser")? {
        let message = entry["message"].as_str().unwrap_or("");
        let is_expected = expected.iter().any(|part| message.contains(part));
        ensure(entry["level"] != "SEVERE" || is_expected, || {
            format!("the console says {message}")
        })?;
    }
    Ok(())
}

/// Checks that every request was to one of these origins.
pub(super) fn requests_stay_on_origins(browser: &Browser, origins: &[&str]) -> Result<(), String> {
    let mut requests = 0;
    for entry in browser.logged("performance")? {
        let message = entry["message"].as_str().unwrap_or("");
        let event: Value =
            serde_json::from_str(message).map_err(|error| format!("{message}: {error}"))?;
        let event = &event["message"];
        if event["method"] != "Network.requestWillBeSent" {
            continue;
        }
        let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
        // Requests of the browser itself at its start.
        if text(&event["params"]["documentURL"]).starts_with("chrome:") {
            continue;
        }
        let url = text(&event["params"]["request"]["url"]);
        let is_ours = origins
            .iter()
            .any(|origin| url.starts_with(&format!("{origin}/")));
        ensure(is_ours || url.starts_with("data:"), || {
            format!("the page asked for {url}")
        })?;
        requests += 1;
    }
    ensure(requests > 20, || {
        format!("only {requests} requests were seen")
    })
}
