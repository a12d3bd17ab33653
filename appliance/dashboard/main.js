// The page: requests the status once per second and shows it. Starts with the last hour, so that a
// page that has just been opened shows history.

import { Api, Refused, TokenNeeded } from "./api.js";
import { HeatChart, LineChart } from "./charts.js";
import { element, resize, setText } from "./dom.js";
import * as format from "./format.js";
import { Heat, History, STEPS } from "./history.js";
import { Events, showTroubles, Tables, Tiles, troubles } from "./panels.js";

const TURN_MS = 1000;
const RETRY_MS = 2000;
/** Steps requested in addition to those that have passed, because responses take time. */
const SPARE_STEPS = 3;
/** With more reactors than this the chart shows the maximum, the mean and the minimum load. */
const CORE_LINES_MAX = 6;

const $ = (id) => document.getElementById(id);
const TOTAL = { kind: "total", name: "" };
const KINDS = [
  ["export", "Exports"],
  ["host", "Hosts"],
  ["device", "Devices"],
  ["reactor", "Reactors"],
];

const api = new Api();
const tiles = new Tiles($("tiles"));
const tables = new Tables(choose);
const events = new Events();
let history = new History();
let heats = new Map();
let status = null;
let scope = TOTAL;
let range = 300;
let isPaused = false;
let seenAt = null;
let timer = null;

const PAIR = [
  { label: "read", colour: "c-read" },
  { label: "write", colour: "c-write", dash: [6, 3] },
];
const charts = {
  bytes: new LineChart("chart-bytes", "Throughput", "bytes per second", {
    format: format.bytesPerSecond,
    scale: "binary",
    series: PAIR,
  }),
  iops: new LineChart("chart-iops", "Requests", "per second", {
    format: format.count,
    series: PAIR,
  }),
  latency: new LineChart("chart-latency", "Latency", "share of requests that took at most", {
    format: format.nanoseconds,
    scale: "log",
    joined: ["highest", (values) => Math.max(...values)],
    series: [
      { label: "50 %", colour: "c-p50" },
      { label: "99 %", colour: "c-p99", dash: [6, 3] },
      { label: "99.9 %", colour: "c-p999", dash: [2, 3] },
    ],
  }),
  heat: new HeatChart("chart-heat", "Latency heat map", "commands by how long they took"),
  cores: new LineChart("chart-cores", "Core utilisation", "share of time with work", {
    format: format.permille,
    scale: "percent",
  }),
  depth: new LineChart(
    "chart-depth",
    "Commands under way",
    "mean over each second, by the exports' latencies",
    {
      format: format.count,
      series: [{ label: "commands", colour: "c-read" }],
    },
  ),
  pools: new LineChart("chart-pools", "Pool levels", "share of free buffers, by their size", {
    format: format.permille,
    scale: "percent",
    joined: ["lowest", (values) => Math.min(...values)],
  }),
};
$("work").append(charts.bytes.root, charts.iops.root, charts.latency.root, charts.heat.root);
$("machine").append(charts.cores.root, charts.pools.root, charts.depth.root);

// ---- requests

async function turn() {
  try {
    await ask();
    seenAt = Date.now();
    const isStopping = status.appliance.state === "stopping";
    say("live", isStopping ? "The appliance is stopping." : isPaused ? "Paused." : "Live.");
    draw();
    schedule(TURN_MS);
  } catch (error) {
    if (error instanceof TokenNeeded) wantToken(error.message);
    else if (error instanceof Refused) failed(`The appliance refuses: ${error.message}`);
    else failed(lost());
    if (!(error instanceof TokenNeeded)) schedule(RETRY_MS);
  }
}

function schedule(delay) {
  clearTimeout(timer);
  if (!isPaused && !document.hidden) timer = setTimeout(turn, delay);
}

async function ask() {
  const now = await api.get("status");
  if (status !== null && now.appliance.pid !== status.appliance.pid) {
    // The appliance restarted: its steps and events are numbered from the start.
    history = new History();
    heats = new Map();
    events.clear();
  }
  status = now;
  const missed =
    seenAt === null || history.step < 0
      ? STEPS
      : Math.ceil((Date.now() - seenAt) / 1000) + SPARE_STEPS;
  await Promise.all([
    askHistory(missed),
    askHeat(),
    api.get(`events?after=${events.last}`).then((later) => events.add(later)),
  ]);
}

/** Requests the last steps; many of them by kind, because the size of a response is limited. */
async function askHistory(steps) {
  if (steps <= 60) {
    history.absorb(await api.get(`history?seconds=${steps}`));
    return;
  }
  for (const kind of ["total", "reactor", "pool", ...KINDS.map(([kind]) => kind)]) {
    history.absorb(await asMuchAsFits(Math.min(steps, STEPS), kind));
  }
}

async function asMuchAsFits(steps, kind) {
  for (;;) {
    try {
      return await api.get(`history?seconds=${steps}&kind=${kind}`);
    } catch (error) {
      const isTooMuch = error instanceof Refused && error.status === 400 && steps > 60;
      if (!isTooMuch) throw error;
      steps = Math.floor(steps / 2);
    }
  }
}

/** Requests the heat map of the selected object, if the appliance has one. */
async function askHeat() {
  if (scope.kind !== "total" && scope.kind !== "export") return;
  const heat = heats.get(scope.name) ?? new Heat();
  heats.set(scope.name, heat);
  if (heat.isRefused) return;
  const missed = heat.step < 0 ? STEPS : Math.max(history.step - heat.step, 0) + SPARE_STEPS;
  const of = scope.kind === "export" ? `&export=${encodeURIComponent(scope.name)}` : "";
  try {
    heat.absorb(await api.get(`heatmap?seconds=${Math.min(missed, STEPS)}${of}`));
  } catch (error) {
    // 404: the appliance has no heat map of it, which does not change until a restart.
    if (!(error instanceof Refused)) throw error;
    heat.isRefused = error.status === 404;
  }
}

// ---- state of the connection

function say(state, text) {
  document.documentElement.dataset.state = state;
  setText($("state"), text);
  $("token").hidden = state !== "token";
  const hasFigures = status !== null && state !== "token";
  $("figures").hidden = !hasFigures;
  $("choices").hidden = !hasFigures;
  $("forget").hidden = !api.hasToken;
}

function lost() {
  const again = `It is asked again every ${RETRY_MS / 1000} seconds.`;
  if (seenAt === null)
    return `No answer from the appliance. ${again} On its machine, \`windlass status\` says more.`;
  return `Lost the appliance: what is below is of ${format.clock(seenAt)}. ${again}`;
}

function failed(text) {
  say("lost", text);
}

function wantToken(why) {
  const wasAsked = document.documentElement.dataset.state === "token";
  const isWrong = api.hasToken;
  api.forgetToken();
  say("token", "The appliance wants a token.");
  setText($("token-error"), isWrong ? `That was not it: ${why}` : "");
  if (!wasAsked || isWrong) $("token-text").focus();
}

// ---- drawing

function draw() {
  const { appliance } = status;
  setText($("name"), appliance.name);
  const about = [
    appliance.version,
    `up ${format.span(appliance.uptime_s)}`,
    appliance.config_path ?? "embedded default",
  ];
  setText($("about"), about.join(" · "));
  document.title = `${appliance.name} · Windlass`;
  offerScopes();
  $("tiles").dataset.step = history.step;
  tiles.show(history, scope, status);
  showTroubles($("attention"), troubles(status, history));
  drawWork();
  drawMachine();
  tables.show(status, history);
}

function drawWork() {
  const times = history.times(range);
  const of = (what) => history.values(scope, what, range);
  const nothing =
    history.step < 1
      ? "No data yet: the first second has not passed."
      : "No data yet in this time.";
  const why = (...whats) =>
    whats.some((what) => of(what) !== null)
      ? nothing
      : `${upper(format.UNKNOWN)} for ${label(scope)}.`;
  const bytes = ["read_bytes", "write_bytes"];
  charts.bytes.show(times, bytes.map(of), why(...bytes));
  const iops = ["read_iops", "write_iops"];
  charts.iops.show(times, iops.map(of), why(...iops));
  const latency = ["p50_ns", "p99_ns", "p999_ns"];
  charts.latency.show(times, latency.map(of), why(...latency));
  const isKept = scope.kind === "total" || scope.kind === "export";
  const heat = heats.get(scope.name);
  const isMeasured = isKept && heat !== undefined && heat.step >= 0;
  const columns = isMeasured ? heat.columns(history.step, range) : [];
  const isComing = isKept && !heat?.isRefused;
  const otherwise = !isKept
    ? "Kept for the whole appliance and for exports."
    : isComing
      ? "Asking the appliance …"
      : `${upper(format.UNKNOWN)} for ${label(scope)}.`;
  charts.heat.show(times, heat?.boundsNs ?? [], columns, isMeasured ? nothing : otherwise);
}

function drawMachine() {
  const times = history.times(range);
  const cores = status.reactors.map((one) => ({
    label: `core ${one.core}`,
    values: history.values({ kind: "reactor", name: String(one.index) }, "busy_permille", range),
  }));
  const lines = cores.length > CORE_LINES_MAX ? joinedCores(cores) : cores;
  const series = (all) =>
    all.map((one, place) => ({ label: one.label, ...STYLES[place % STYLES.length] }));
  const nothing = "No data yet.";
  charts.cores.show(
    times,
    lines.map((one) => one.values),
    nothing,
    series(lines),
  );
  const pools = status.memory.classes.map((one) => ({
    label: format.bytes(one.slice_bytes),
    values: history.values({ kind: "pool", name: String(one.slice_bytes) }, "free_permille", range),
  }));
  charts.pools.show(
    times,
    pools.map((one) => one.values),
    nothing,
    series(pools),
  );
  charts.depth.show(times, [underWay()], nothing);
}

/** The mean number of commands in flight: of the selected export, or of all together. */
function underWay() {
  const exports =
    scope.kind === "export" ? [scope] : history.keys.filter((key) => key.kind === "export");
  const depths = exports
    .map((key) => history.values(key, "depth", range))
    .filter((values) => values !== null);
  return Array.from({ length: range }, (_, place) => {
    const known = depths.map((values) => values[place]).filter((value) => value !== null);
    return known.length === 0 ? null : known.reduce((sum, value) => sum + value, 0);
  });
}

const STYLES = [
  { colour: "c-1" },
  { colour: "c-2", dash: [8, 3] },
  { colour: "c-3", dash: [2, 3] },
  { colour: "c-4", dash: [8, 3, 2, 3] },
  { colour: "c-5", dash: [4, 2] },
  { colour: "c-6", dash: [12, 3, 2, 3, 2, 3] },
];

function joinedCores(cores) {
  const join = (label, of) => ({
    label,
    values: Array.from({ length: range }, (_, place) => {
      const values = cores
        .map((one) => one.values?.[place] ?? null)
        .filter((value) => value !== null);
      return values.length === 0 ? null : of(values);
    }),
  });
  return [
    join("busiest", (values) => Math.max(...values)),
    join("mean", (values) => values.reduce((sum, value) => sum + value, 0) / values.length),
    join("idlest", (values) => Math.min(...values)),
  ];
}

// ---- selection

const upper = (text) => text[0].toUpperCase() + text.slice(1);

function label(key) {
  if (key.kind === "total") return "the whole appliance";
  return key.kind === "reactor" ? `reactor ${key.name}` : `${key.kind} ${key.name}`;
}

const optionValue = (key) => `${key.kind}/${key.name}`;

function offerScopes() {
  const select = $("scope");
  const wanted = [
    TOTAL,
    ...KINDS.flatMap(([kind]) => history.keys.filter((key) => key.kind === kind)),
  ];
  if (!wanted.some((key) => optionValue(key) === optionValue(scope))) wanted.push(scope);
  const isSame =
    select.options.length === wanted.length &&
    wanted.every((key, place) => select.options[place].value === optionValue(key));
  if (isSame) return;
  const option = (key) =>
    element("option", {
      value: optionValue(key),
      text: key.kind === "reactor" ? label(key) : key.name || upper(label(key)),
    });
  const groups = KINDS.map(([kind, title]) =>
    element("optgroup", { label: title }, ...wanted.filter((key) => key.kind === kind).map(option)),
  );
  select.replaceChildren(option(TOTAL), ...groups.filter((group) => group.children.length > 0));
  select.value = optionValue(scope);
}

/** Selects the object that the charts show, and records it in the page's address. */
function choose(key) {
  scope = key;
  offerScopes();
  $("scope").value = optionValue(key);
  remember();
  refresh();
}

function refresh() {
  if (status === null) return;
  draw();
  if (isPaused) askHeat().then(draw, () => {});
}

function remember() {
  const choice = new URLSearchParams({ of: optionValue(scope), range });
  window.history.replaceState(null, "", `#${choice}`);
}

function recall() {
  const choice = new URLSearchParams(location.hash.slice(1));
  const [, kind, name] = /^(\w+)\/(.*)$/s.exec(choice.get("of") ?? "") ?? [];
  if (KINDS.some(([known]) => known === kind)) scope = { kind, name };
  const radio = document.querySelector(`input[name=range][value="${Number(choice.get("range"))}"]`);
  if (radio !== null) {
    radio.checked = true;
    range = Number(radio.value);
  }
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  for (const chart of Object.values(charts)) chart.repaint();
}

$("scope").addEventListener("change", (event) => {
  const [, kind, name] = /^(\w+)\/(.*)$/s.exec(event.target.value);
  choose({ kind, name });
});
for (const radio of document.querySelectorAll("input[name=range]")) {
  radio.addEventListener("change", () => {
    range = Number(radio.value);
    remember();
    refresh();
  });
}
$("theme").addEventListener("change", (event) => {
  localStorage.setItem("windlass-theme", event.target.value);
  setTheme(event.target.value);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () =>
  setTheme($("theme").value),
);
$("pause").addEventListener("click", () => {
  isPaused = !isPaused;
  $("pause").setAttribute("aria-pressed", String(isPaused));
  clearTimeout(timer);
  if (isPaused) say("live", "Paused.");
  else turn();
});
$("forget").addEventListener("click", () => {
  api.forgetToken();
  clearTimeout(timer);
  turn();
});
$("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const input = $("token-text");
  api.setToken(input.value.trim());
  input.value = "";
  turn().then(() => {
    if (!$("figures").hidden) $("figures").focus();
  });
});
document.addEventListener("visibilitychange", () => {
  clearTimeout(timer);
  if (!document.hidden && document.documentElement.dataset.state !== "token" && !isPaused) turn();
});

$("theme").value = localStorage.getItem("windlass-theme") ?? "auto";
setTheme($("theme").value);
recall();
turn();
