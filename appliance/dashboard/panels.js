// The panels: tiles, problems, tables, events.

import { element, resize, setData, setText, Table } from "./dom.js";
import * as format from "./format.js";

const EVENTS_SHOWN = 200;

/** The current figures. */
export class Tiles {
  #tiles = new Map();

  constructor(list) {
    for (const [name, title] of [
      ["read_bytes", "Read"],
      ["write_bytes", "Written"],
      ["read_iops", "Reads"],
      ["write_iops", "Writes"],
      ["p99_ns", "Latency, 99 %"],
      ["errors", "Errors"],
      ["busy", "Busiest core"],
      ["hosts", "Hosts"],
    ]) {
      const value = element("data", { id: `now-${name}` });
      list.append(element("div", {}, element("dt", { text: title }), element("dd", {}, value)));
      this.#tiles.set(name, value);
    }
  }

  show(history, scope, status) {
    const put = (name, value, text) => setData(this.#tiles.get(name), value, text);
    const latest = (what) => history.latest(scope, what);
    const rate = (value, told) => (value === null ? format.UNKNOWN : told(value));
    for (const what of ["read_bytes", "write_bytes"]) {
      put(what, latest(what), rate(latest(what), format.bytesPerSecond));
    }
    for (const what of ["read_iops", "write_iops", "errors"]) {
      put(
        what,
        latest(what),
        rate(latest(what), (value) => `${format.count(value)}/s`),
      );
    }
    put("p99_ns", latest("p99_ns"), rate(latest("p99_ns"), format.nanoseconds));
    const cores = status.reactors.map((one) =>
      history.latest({ kind: "reactor", name: String(one.index) }, "busy_permille"),
    );
    const busy = cores.includes(null) ? null : Math.max(...cores);
    put("busy", busy, rate(busy, format.permille));
    const hosts = new Set(status.hosts.filter((one) => one.kind === "io").map((one) => one.nqn))
      .size;
    put("hosts", hosts, String(hosts));
  }
}

/** The problems that need attention, in sentences. */
export function troubles(status, history) {
  const found = [];
  if (status.appliance.state === "stopping")
    found.push("The appliance is stopping: hosts cannot connect.");
  for (const one of status.reactors) {
    if (!one.running)
      found.push(`Reactor ${one.index} on core ${one.core} has ended unexpectedly: restart the appliance.`);
    else if (one.stuck) {
      const time = format.nanoseconds(one.stuck.ns);
      found.push(`Reactor ${one.index} has been in ${one.stuck.name} for ${time}.`);
    }
  }
  for (const one of status.devices) {
    if (one.state !== "ready" && one.state !== "read_only")
      found.push(
        one.damage === null
          ? `Device ${one.name} is ${words(one.state)}.`
          : `Device ${one.name} is damaged: ${one.damage.text}. Writes and flushes fail until ` +
              `windlass device reopen ${one.name}.`,
      );
    if (one.reservations_damaged)
      found.push(
        `Device ${one.name}: its stored reservations cannot be restored, and hosts are ` +
          `refused until windlass reservations ${one.name} --clear.`,
      );
    for (const warning of one.warnings) found.push(`Device ${one.name}: ${warning}.`);
    if (one.media_errors > 0)
      found.push(
        `Device ${one.name} has had ${format.whole(one.media_errors)} errors of its medium.`,
      );
  }
  for (const one of status.ana) {
    if (one.state === "change")
      found.push(
        `ANA group ${one.group} of ${one.export} at ${one.listener} is in change: hosts wait at ` +
          "most 10 s for another state.",
      );
  }
  for (const one of status.memory.classes) {
    if (one.waiting > 0) {
      const size = format.bytes(one.slice_bytes);
      const wait = `${format.whole(one.waiting)} requests wait for a buffer of ${size}`;
      found.push(`${wait}: a larger memory would help.`);
    }
  }
  found.push(...status.memory.notices, ...troublesOfFiles(status.files));
  if (history.leftOut > 0)
    found.push(`${history.leftOut} things are left out of the history: it has no room for more.`);
  return found;
}

/** From here on, of what can be used, a volume or a quota needs attention. */
const FULL_PERCENT = 90;

const percent = (used, whole) => Math.round((used / whole) * 100);

function troublesOfFiles(files) {
  if (files === null) return [];
  const found = [];
  const full = (what, used, whole, remedy) => {
    if (whole > 0 && percent(used, whole) >= FULL_PERCENT)
      found.push(`${what} is ${percent(used, whole)} % full: ${remedy}.`);
  };
  for (const one of files.volumes) {
    if (!one.served) found.push(`Volume ${one.name} is not served.`);
    if (one.read_only)
      found.push(
        `Volume ${one.name} is read-only: its device failed to store metadata. Repair it, then restart.`,
      );
    if (one.device_gone)
      found.push(
        `The device of volume ${one.name} is gone: clients wait until it is back.`,
      );
    const used = one.data_bytes - one.free_bytes;
    full(`Volume ${one.name}`, used, one.data_bytes, "remove files or use a larger device");
    full(
      `The metadata of volume ${one.name}`,
      one.metadata_bytes,
      one.metadata_bytes_max,
      "a larger metadata_memory would help",
    );
  }
  for (const one of files.shares) {
    const raise = (key) => `remove files or raise its ${key}`;
    full(`The quota of share ${one.name}`, one.bytes_used, one.bytes_used_max, raise("max_size"));
    full(
      `The quota of files of share ${one.name}`,
      one.files,
      one.files_max,
      raise("max_files"),
    );
  }
  return found;
}

export function showTroubles(list, found) {
  resize(list, Math.max(found.length, 1), () => element("li"));
  list.classList.toggle("fine", found.length === 0);
  if (found.length === 0) setText(list.firstElementChild, "Nothing.");
  found.forEach((text, place) => setText(list.children[place], text));
}

const words = (name) => name.replaceAll("_", " ");

const column = (title) => ({ title });
const numeric = (title) => ({ title, numeric: true });
const chosen = (title) => ({ title, button: true });

const number = (value, text) => ({ value, text });
const MOVED = [
  numeric("reads"),
  numeric("read"),
  numeric("writes"),
  numeric("written"),
  numeric("errors"),
];

/** The totals since the start. */
function moved(totals) {
  return [
    number(totals.reads, format.count(totals.reads)),
    number(totals.bytes_read, format.bytes(totals.bytes_read)),
    number(totals.writes, format.count(totals.writes)),
    number(totals.bytes_written, format.bytes(totals.bytes_written)),
    {
      ...number(totals.errors, format.whole(totals.errors)),
      tone: totals.errors > 0 ? "warning" : "",
    },
  ];
}

/** All tables. Choosing a name selects the object that the charts show. */
export class Tables {
  #choose;
  #cores = new Table(
    "Reactors",
    [
      chosen("reactor"),
      numeric("core"),
      numeric("busy"),
      column("state"),
      numeric("queues"),
      numeric("in execution"),
      numeric("stalls"),
      column("longest poll"),
    ],
    "No reactors.",
  );
  #pools = new Table(
    "Buffers by size",
    [
      column("buffers of"),
      numeric("free"),
      numeric("of"),
      numeric("waiting now"),
      numeric("waits so far"),
    ],
    "No buffers.",
  );
  #exports = new Table(
    "Exports",
    [chosen("export"), column("namespaces"), column("listeners"), numeric("controllers"), ...MOVED],
    "Nothing is exported.",
  );
  #stages = new Table(
    "Where the time of requests goes",
    [
      column("export"),
      column("stage"),
      ...["reads", "writes"].flatMap((of) => [
        numeric(of),
        numeric(`${of}, 50 %`),
        numeric(`${of}, 99 %`),
      ]),
    ],
    "Not measured.",
  );
  #hosts = new Table(
    "Connected hosts",
    [
      chosen("host"),
      column("attached to"),
      column("controller"),
      column("by"),
      numeric("queues"),
      ...MOVED,
    ],
    "No host is connected.",
  );
  #devices = new Table(
    "Devices",
    [
      chosen("device"),
      column("type"),
      column("state"),
      numeric("size"),
      column("health"),
      numeric("temperature"),
      numeric("wear"),
      numeric("spare"),
      ...MOVED,
    ],
    "No devices.",
  );
  #limits = new Table(
    "Limits",
    [
      column("of"),
      column("because of"),
      column("counts"),
      numeric("commands/s"),
      numeric("bytes/s"),
      numeric("delayed so far"),
      numeric("waited so far"),
    ],
    "Nothing is limited.",
  );
  #keys = new Table(
    "Keys",
    [column("key"), column("from"), column("state"), numeric("uses"), column("last used")],
    "No keys.",
  );
  #proven = new Table(
    "Hosts that have used a key",
    [
      column("host"),
      column("attached to"),
      column("by"),
      column("key"),
      column("queues"),
      column("since"),
    ],
    "No host has used a key.",
  );
  #volumes = new Table(
    "Volumes",
    [
      column("volume"),
      column("device"),
      column("kind"),
      column("state"),
      numeric("size"),
      numeric("used"),
      numeric("objects"),
      numeric("metadata"),
      numeric("log"),
    ],
    "No volumes.",
  );
  #shares = new Table(
    "Shares",
    [
      column("share"),
      column("of"),
      column("access"),
      numeric("used"),
      numeric("quota"),
      numeric("files"),
      numeric("quota of files"),
      numeric("reads"),
      numeric("read"),
      numeric("writes"),
      numeric("written"),
    ],
    "No shares.",
  );
  #fileClients = new Table(
    "Clients of files",
    [
      numeric("clients"),
      numeric("connections"),
      numeric("sessions"),
      numeric("opens"),
      numeric("locks"),
      numeric("requests under way"),
      column("after a restart"),
    ],
    "Nothing is served.",
  );
  #operations = new Table(
    "Operations of files",
    [column("operation"), numeric("executed"), numeric("failed")],
    "No operations yet.",
  );
  #listeners = new Table(
    "Listeners",
    [column("listener"), column("transport"), column("address"), numeric("connections")],
    "No listeners.",
  );
  #paths = new Table(
    "ANA states",
    [column("export"), column("listener"), numeric("group"), column("state"), column("namespaces")],
    "Nothing is exported.",
  );

  constructor(choose) {
    this.#choose = choose;
    const put = (id, ...tables) =>
      document.getElementById(id).append(...tables.map((table) => table.root));
    put("machine-tables", this.#cores, this.#pools);
    put("exports", this.#exports);
    put("stages", this.#stages);
    put("hosts", this.#hosts);
    put("limits", this.#limits);
    put("keys", this.#keys, this.#proven);
    put("devices", this.#devices);
    put("files", this.#volumes, this.#shares);
    put("files-use", this.#fileClients, this.#operations);
    put("listeners", this.#listeners, this.#paths);
  }

  show(status, history) {
    this.#cores.show(status.reactors.map((one) => this.#core(one, history)));
    this.#pools.show(status.memory.classes.map(pool));
    this.#exports.show(status.exports.map((one) => this.#export(one)));
    this.#stages.show(status.exports.flatMap(stages));
    this.#hosts.show(status.hosts.map((one) => this.#host(one)));
    const limits = [...status.rate_limits.map(limit), ...status.paces.map(pace)];
    this.#limits.show(limits);
    document.getElementById("limits-part").hidden = limits.length === 0;
    this.#keys.show(status.keys.map(key));
    this.#proven.show(status.hosts.flatMap(proofs));
    document.getElementById("security-part").hidden = status.keys.length === 0;
    this.#devices.show(status.devices.map((one) => this.#device(one)));
    this.#showFiles(status.files);
    const nfs = (status.files?.listeners ?? []).map(fileListener);
    this.#listeners.show([...status.listeners.map(listener), ...nfs]);
    this.#paths.show(status.ana.map(path));
    this.#paths.root.hidden = status.ana.every(isOrdinary);
  }

  #showFiles(files) {
    document.getElementById("files-part").hidden = files === null;
    if (files === null) return;
    this.#volumes.show(files.volumes.map(volume));
    this.#shares.show(files.shares.map(share));
    this.#fileClients.show([fileClients(files.service)]);
    this.#operations.show(files.operations.map(fileOperation));
  }

  #name(kind, name, text = name) {
    return { text, choose: () => this.#choose({ kind, name }) };
  }

  #core(one, history) {
    const busy = history.latest({ kind: "reactor", name: String(one.index) }, "busy_permille");
    const state = !one.running
      ? "died"
      : one.stuck
        ? `stuck in ${one.stuck.name}`
        : one.asleep
          ? "asleep"
          : "awake";
    const longest = one.longest_poll;
    return [
      this.#name("reactor", String(one.index)),
      number(one.core, String(one.core)),
      number(busy, format.permille(busy)),
      { text: state, tone: one.running && !one.stuck ? "" : "error" },
      number(one.queues, format.whole(one.queues)),
      number(one.depth, format.whole(one.depth)),
      { ...number(one.stalls, format.whole(one.stalls)), tone: one.stalls > 0 ? "warning" : "" },
      longest ? `${longest.name}, ${format.nanoseconds(longest.ns)}` : "none yet",
    ];
  }

  #export(one) {
    const namespaces = one.namespaces.map(
      (it) => `${it.nsid}: ${it.device}, ${format.bytes(it.bytes)}`,
    );
    return [
      this.#name("export", one.nqn),
      namespaces.join("; ") || "none",
      one.listeners.join(", "),
      number(one.controllers, format.whole(one.controllers)),
      ...moved(one.totals),
    ];
  }

  #host(one) {
    const by = [one.transport, one.address].filter((known) => known !== null).join(" ");
    return [
      this.#name("host", one.nqn),
      one.kind === "discovery" ? "discovery" : one.export,
      one.controller_id === null ? one.state : `${one.controller_id}, ${one.state}`,
      by || "not known",
      number(one.queues.length, format.whole(one.queues.length)),
      ...moved(one.totals),
    ];
  }

  #device(one) {
    const size =
      one.block_count === null || one.block_size === null ? null : one.block_count * one.block_size;
    const ailing = one.damage !== null || one.warnings.length > 0 || one.media_errors > 0;
    const health =
      (one.damage && one.damage.text) ||
      one.warnings.join("; ") ||
      (one.media_errors > 0
        ? `${format.whole(one.media_errors)} errors of the medium`
        : "no warning");
    const isUsable = one.state === "ready" || one.state === "read_only";
    const known = (value, unit) => number(value, value === null ? "none" : `${value} ${unit}`);
    return [
      this.#name("device", one.name),
      one.type,
      { text: words(one.state), tone: isUsable ? "good" : "error" },
      number(size, format.bytes(size)),
      { text: health, tone: ailing ? "warning" : "" },
      known(one.temperature_celsius, "°C"),
      known(one.used_percent, "%"),
      known(one.available_spare_percent, "%"),
      ...moved(one.totals),
    ];
  }
}

/** The stages in the order of a request. */
const STAGES = ["buffer", "fetch", "device", "send"];

/** A row for the total latency of an export's requests, and one for each stage. */
function stages(one) {
  const parts = one.stages ?? {};
  const names = Object.keys(parts).sort(
    (one, other) => STAGES.indexOf(one) - STAGES.indexOf(other),
  );
  const rows = [["all", one.latency], ...names.map((name) => [name, parts[name]])];
  const told = ({ count, p50_ns, p99_ns }) => [
    number(count, format.count(count)),
    ...[p50_ns, p99_ns].map((time) =>
      number(time, time === null ? "none" : format.nanoseconds(time)),
    ),
  ];
  return rows
    .filter(([, latency]) => latency !== null)
    .map(([stage, latency]) => [one.nqn, stage, ...told(latency.read), ...told(latency.write)]);
}

function pool(one) {
  return [
    format.bytes(one.slice_bytes),
    number(one.free, format.whole(one.free)),
    number(one.total, format.whole(one.total)),
    { ...number(one.waiting, format.whole(one.waiting)), tone: one.waiting > 0 ? "warning" : "" },
    number(one.waits, format.whole(one.waits)),
  ];
}

/** What commands have waited for a limit. */
function delayed(commands, waitedNs) {
  return [
    { ...number(commands, format.count(commands)), tone: commands > 0 ? "warning" : "" },
    number(waitedNs, format.nanoseconds(waitedNs)),
  ];
}

const unlimited = (value, told) => number(value, value === null ? "no limit" : told(value));

/** A rate limit of the configuration. */
function limit(one) {
  const of = one.device ?? one.host;
  return [
    one.export === null ? of : `${of} at ${one.export}`,
    "a rate limit",
    one.operations === "both" ? "reads and writes" : one.operations,
    unlimited(one.iops, format.count),
    unlimited(one.bandwidth, format.bytesPerSecond),
    ...delayed(one.throttled_by_iops + one.throttled_by_bandwidth, one.waited_ns),
  ];
}

/** An export that waits for others. */
function pace(one) {
  const target = `latency target of ${one.missed_by ?? "other exports"}`;
  return [
    one.export,
    one.reason === "share" ? `share of disk ${one.disk}` : target,
    "reads and writes",
    unlimited(null, format.count),
    unlimited(one.limit, format.bytesPerSecond),
    ...delayed(one.throttled, one.waited_ns),
  ];
}

const when = (unixMs) => (unixMs === null ? "not since the start" : format.moment(unixMs));

/** A key of the configuration. */
function key(one) {
  return [
    one.name,
    one.source,
    one.revoked ? { text: "revoked", tone: "warning" } : { text: "valid", tone: "good" },
    number(one.uses, format.whole(one.uses)),
    when(one.last_used_unix_ms),
  ];
}

/** The keys by which a host's controller is authenticated and protected. */
function proofs(one) {
  const row = (how, key, since, has) => {
    const queues = one.queues.filter((queue) => queue[has]).length;
    const covers = `admin queue and ${queues} of ${one.queues.length}`;
    return [one.nqn, one.export, how, key, covers, when(since)];
  };
  const rows = [];
  if (one.authentication !== null) {
    const { hash, group, bidirectional, key, since_unix_ms } = one.authentication;
    const both = bidirectional ? ", both ends" : "";
    const how = `DH-HMAC-CHAP, ${hash}, ${group}${both}`;
    rows.push(row(how, key, since_unix_ms, "authenticated"));
  }
  if (one.channel !== null) {
    const { cipher, group, generated, key, records, since_unix_ms } = one.channel;
    const by = records === "kernel" ? ", kTLS" : "";
    const how = `TLS, ${cipher}, ${group}${generated ? ", generated key" : ""}${by}`;
    rows.push(row(how, key, since_unix_ms, "protected"));
  }
  return rows;
}

/** Whether a path is as it is without ANA in the configuration and without an operator's change. */
function isOrdinary(one) {
  return one.group === 1 && one.state === "optimized" && one.configured === "optimized";
}

/** The state of an ANA group at a listener. */
function path(one) {
  const isAccessible = one.state === "optimized" || one.state === "non-optimized";
  const isSet = one.state !== one.configured;
  return [
    one.export,
    one.listener,
    number(one.group, String(one.group)),
    {
      text: isSet ? `${one.state}, set by an operator` : one.state,
      tone: isAccessible ? "good" : "warning",
    },
    one.namespaces.join(", ") || "none",
  ];
}

/** A level beside its limit. */
function filled(used, whole, told) {
  const isFull = whole > 0 && percent(used, whole) >= FULL_PERCENT;
  return { ...number(used, told(used)), tone: isFull ? "warning" : "" };
}

function volume(one) {
  const state = !one.served ? "not served" : one.read_only ? "read-only" : "ready";
  return [
    one.name,
    one.device,
    one.durable ? "durable" : "volatile",
    { text: state, tone: state === "ready" ? "good" : "error" },
    number(one.data_bytes, format.bytes(one.data_bytes)),
    filled(one.data_bytes - one.free_bytes, one.data_bytes, format.bytes),
    number(one.inodes, format.whole(one.inodes)),
    filled(one.metadata_bytes, one.metadata_bytes_max, format.bytes),
    one.log_bytes_max === 0
      ? number(null, "none")
      : number(one.log_bytes, `${percent(one.log_bytes, one.log_bytes_max)} %`),
  ];
}

function share(one) {
  const quota = (value, told) => number(value, value === 0 ? "none" : told(value));
  return [
    one.name,
    one.directory === null ? one.volume : `${one.volume}/${one.directory}`,
    one.read_only ? "reads" : "reads and writes",
    filled(one.bytes_used, one.bytes_used_max, format.bytes),
    quota(one.bytes_used_max, format.bytes),
    filled(one.files, one.files_max, format.whole),
    quota(one.files_max, format.whole),
    number(one.reads, format.count(one.reads)),
    number(one.bytes_read, format.bytes(one.bytes_read)),
    number(one.writes, format.count(one.writes)),
    number(one.bytes_written, format.bytes(one.bytes_written)),
  ];
}

function fileClients(one) {
  const counted = [
    one.clients,
    one.connections,
    one.sessions,
    one.opens,
    one.locks,
    one.requests_in_flight,
  ];
  return [
    ...counted.map((value) => number(value, format.whole(value))),
    one.in_grace
      ? { text: "clients reclaim, nothing new is opened", tone: "warning" }
      : { text: "everything is open", tone: "good" },
  ];
}

function fileOperation(one) {
  return [
    one.name,
    number(one.executed, format.whole(one.executed)),
    number(one.failed, format.whole(one.failed)),
  ];
}

/** A listener of files. Its connections are counted for all of them together. */
function fileListener(one) {
  return [one.name, `NFS over ${one.transport}`, one.address, number(null, "see above")];
}

function listener(one) {
  return [
    one.name,
    one.transport,
    one.address,
    number(one.connections, format.whole(one.connections)),
  ];
}

/** The events, newest first. */
export class Events {
  #list = document.getElementById("events");
  #onlyTrouble = document.getElementById("only-trouble");
  #events = [];

  constructor() {
    this.#onlyTrouble.addEventListener("change", () => this.#draw());
  }

  /** The number of the last event. */
  get last() {
    return this.#events.at(-1)?.id ?? 0;
  }

  clear() {
    this.#events = [];
    this.#draw();
  }

  add(events) {
    const later = events.filter((one) => one.id > this.last);
    if (later.length === 0) return;
    this.#events = [...this.#events, ...later].slice(-1024);
    this.#draw();
  }

  #draw() {
    const shown = this.#events.filter(
      (one) => !this.#onlyTrouble.checked || one.severity !== "info",
    );
    const newest = shown.slice(-EVENTS_SHOWN).reverse();
    resize(this.#list, Math.max(newest.length, 1), () => element("li"));
    if (newest.length === 0) this.#list.firstElementChild.replaceChildren("None.");
    newest.forEach((one, place) => {
      const item = this.#list.children[place];
      if (item.dataset.id === String(one.id)) return;
      item.dataset.id = one.id;
      item.value = one.id;
      item.replaceChildren(
        element("time", {
          datetime: new Date(one.unix_ms).toISOString(),
          text: format.moment(one.unix_ms),
        }),
        element("strong", { class: one.severity, text: one.severity }),
        element("span", { class: "what", text: [one.what, one.subject].filter(Boolean).join(" ") }),
        element("span", { text: one.text }),
      );
    });
  }
}
