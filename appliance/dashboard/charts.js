// Charts over time, drawn by uPlot. Each has a key with the values under the cursor or the latest
// ones, a text that describes it, and a table of the same values for screen readers.

import { element, resize, setData, setText } from "./dom.js";
import { clock, count, nanoseconds } from "./format.js";
import uPlot from "./vendor/uPlot.esm.js";

const HEIGHT = 190;
const TABLE_ROWS = 12;
const FONT = "12px system-ui, sans-serif";

/** The colour of an element in the current theme of the style sheet. */
const colourOf = (node, property) => getComputedStyle(node)[property];

/** The common parts of all charts: heading, key, plot, table. */
class Chart {
  plot = null;
  times = [];
  /** The index under the cursor; null: the latest value. */
  place = null;
  #wide;

  constructor(id, title, unit) {
    this.title = title;
    this.heading = element("h3", { id: `${id}-title`, text: title });
    this.unit = element("span", { class: "unit", text: unit });
    this.key = element("ul", { class: "key", "aria-label": `${title}: key` });
    this.area = element("div", { class: "plot", role: "img" });
    this.empty = element("p", { class: "empty", hidden: true });
    this.head = element("tr");
    this.body = element("tbody");
    this.details = element(
      "details",
      {},
      element("summary", { text: `${title} as a table` }),
      element(
        "div",
        { class: "scroll", tabindex: "0", role: "region", "aria-label": `${title}: table` },
        element(
          "table",
          { class: "values" },
          element("caption", { class: "hidden", text: `${title}, ${unit}, newest first` }),
          element("thead", {}, this.head),
          this.body,
        ),
      ),
    );
    this.root = element(
      "figure",
      { class: "chart", id, "aria-labelledby": `${id}-title` },
      element("figcaption", {}, this.heading, this.unit, this.key),
      this.area,
      this.empty,
      this.details,
    );
    this.#wide = new ResizeObserver(() => this.fit());
    this.#wide.observe(this.area);
    this.details.addEventListener("toggle", () => this.tabulate());
  }

  fit() {
    const width = this.area.clientWidth;
    if (this.plot !== null && width > 0 && width !== this.plot.width) {
      this.plot.setSize({ width, height: HEIGHT });
    }
  }

  /** Hides the chart and shows why it is empty; shows the chart if `why` is null. */
  blank(why) {
    this.area.hidden = why !== null;
    this.key.hidden = why !== null;
    this.details.hidden = why !== null;
    this.empty.hidden = why === null;
    setText(this.empty, why ?? "");
  }

  /** The common options of all plots; `y` is the value axis. */
  options(y, scale, format) {
    const stroke = () => colourOf(this.unit, "color");
    const grid = { stroke: () => colourOf(this.area, "borderTopColor"), width: 1 };
    const lines = scale.distr === 3 ? { ...grid, filter: decadesOnly } : grid;
    const times = (_, splits, __, ___, step) =>
      splits.map((time) => (step < 60 ? clock(time * 1000) : clock(time * 1000).slice(0, 5)));
    return {
      width: Math.max(this.area.clientWidth, 100),
      height: HEIGHT,
      // Space for half a label at the right.
      padding: [8, 30, 0, 0],
      legend: { show: false },
      cursor: {
        sync: { key: "windlass" },
        drag: { x: false, y: false },
        points: { size: 6 },
        y: false,
      },
      scales: { x: { time: true, range: () => this.span() }, y: scale },
      axes: [
        {
          stroke,
          grid,
          ticks: grid,
          font: FONT,
          size: 28,
          space: (_, __, ___, ____, width) => (width > 400 ? 70 : 56),
          values: times,
        },
        {
          stroke,
          grid: lines,
          ticks: lines,
          font: FONT,
          size: 76,
          space: 32,
          ...y,
          values: (_, splits) => splits.map((value) => (value === null ? null : format(value))),
        },
      ],
      hooks: {
        setCursor: [
          (plot) => {
            this.place = plot.cursor.idx ?? null;
            this.label();
          },
        ],
      },
    };
  }

  span() {
    const last = this.times.length - 1;
    return last < 1 ? [0, 1] : [this.times[0], this.times[last]];
  }

  /** Redraws the chart in the current theme. */
  repaint() {
    this.plot?.redraw(false);
  }

  label() {}

  tabulate() {}
}

/** The ranges of the table's rows: at most `TABLE_ROWS` parts of the visible time, latest first. */
function slots(length) {
  const size = Math.max(1, Math.floor(length / TABLE_ROWS));
  const slots = [];
  for (let end = length; end - size >= 0 && slots.length < TABLE_ROWS; end -= size) {
    slots.push([end - size, end]);
  }
  return slots;
}

const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
const known = (values) => values.filter((value) => value !== null);

/** A chart with a line for each series. */
export class LineChart extends Chart {
  #series;
  #format;
  #scale;
  #columns = [];
  #joined;

  /**
   * `series`: [{label, colour, dash}], the colour a class of the style sheet; `scale`: "linear",
   * "binary", "percent" or "log"; `joined`: name and function that combine the values of a table
   * row.
   */
  constructor(id, title, unit, { format, scale = "linear", series = [], joined = ["mean", mean] }) {
    super(id, title, unit);
    this.#format = format;
    this.#scale = scale;
    this.#joined = joined;
    this.#define(series);
  }

  #define(series) {
    this.#series = series;
    resize(this.key, 0);
    for (const one of series) {
      const swatch = element("span", { class: `swatch ${one.colour} ${one.dash ? "dashed" : ""}` });
      this.key.append(
        element("li", {}, swatch, element("span", { text: one.label }), element("data")),
      );
    }
    this.plot?.destroy();
    this.plot = null;
  }

  #make() {
    const swatches = this.key.querySelectorAll(".swatch");
    const series = this.#series.map((one, place) => ({
      label: one.label,
      stroke: () => colourOf(swatches[place], "color"),
      width: 1.5,
      dash: one.dash,
      points: { show: false },
      spanGaps: false,
    }));
    const options = this.options(...axes(this.#scale), this.#format);
    options.series = [{}, ...series];
    this.plot = new uPlot(options, [this.times, ...this.#columns], this.area);
  }

  /** `columns`: the values of each series, null if the series is not measured. */
  show(times, columns, why, series = null) {
    const isOther =
      series !== null &&
      series.map((one) => one.label).join() !== this.#series.map((one) => one.label).join();
    if (isOther) this.#define(series);
    const hasValues = columns.some(
      (column) => column !== null && column.some((value) => value !== null),
    );
    this.blank(hasValues ? null : why);
    if (!hasValues) return;
    this.times = times;
    const nothing = times.map(() => null);
    this.#columns = columns.map((column) => column ?? nothing);
    if (this.#scale === "log") {
      this.#columns = this.#columns.map((column) =>
        column.map((value) => (value > 0 ? value : null)),
      );
    }
    if (this.plot === null) this.#make();
    else this.plot.setData([times, ...this.#columns]);
    this.label();
    this.tabulate();
  }

  label() {
    const place = this.place ?? this.times.length - 1;
    const said = [];
    this.#series.forEach((one, row) => {
      const value = this.#columns[row]?.[place] ?? null;
      const text = value === null ? "–" : this.#format(value);
      setData(this.key.children[row].lastElementChild, value, text);
      const most = Math.max(...known(this.#columns[row] ?? []));
      said.push(
        `${one.label} ${text}, at most ${Number.isFinite(most) ? this.#format(most) : "–"}`,
      );
    });
    // The label describes the latest values, so it is unchanged while the cursor selects others.
    if (this.place === null) {
      this.area.setAttribute(
        "aria-label",
        `${this.title} now: ${said.join("; ")}. The table below has the values.`,
      );
    }
  }

  tabulate() {
    if (!this.details.open) return;
    const [name, join] = this.#joined;
    const titles = ["from", ...this.#series.map((one) => `${one.label} (${name})`)];
    resize(this.head, titles.length, () => element("th", { scope: "col" }));
    titles.forEach((title, place) => setText(this.head.children[place], title));
    const rows = slots(this.times.length);
    resize(this.body, rows.length, () => element("tr", {}, element("th", { scope: "row" })));
    rows.forEach(([from, to], place) => {
      const row = this.body.children[place];
      resize(row, titles.length, () => element("td"));
      setText(row.firstElementChild, clock(this.times[from] * 1000));
      this.#columns.forEach((column, at) => {
        const values = known(column.slice(from, to));
        setText(row.children[at + 1], values.length === 0 ? "–" : this.#format(join(values)));
      });
    });
  }
}

/** The axis and the scale of the values. */
function axes(kind) {
  const upTo = (least) => (_, __, most) => [0, most === null || most < least ? least : most * 1.08];
  switch (kind) {
    case "percent":
      return [{}, { range: [0, 1000] }];
    case "binary":
      return [
        { incrs: Array.from({ length: 50 }, (_, power) => 2 ** power) },
        { range: upTo(1024) },
      ];
    case "log":
      return [{}, { distr: 3, range: (_, least, most) => decades(least ?? 1e3, most ?? 1e6) }];
    default:
      return [{}, { range: upTo(4) }];
  }
}

/** Grid lines only at integer powers of ten. */
const decadesOnly = (_, splits) =>
  splits.map((value) =>
    Number.isInteger(Math.round(Math.log10(value) * 1e6) / 1e6) ? value : null,
  );

/** The integer powers of ten that enclose two values. */
function decades(least, most) {
  const low = Math.floor(Math.log10(least));
  return [10 ** low, 10 ** Math.max(Math.ceil(Math.log10(most)), low + 1)];
}

/** A latency heat map: x axis time, y axis latency, colour the number of commands. */
export class HeatChart extends Chart {
  #bounds = [];
  #columns = [];
  #most = 0;

  constructor(id, title, unit) {
    super(id, title, unit);
    this.steps = Array.from({ length: 8 }, (_, place) =>
      element("span", { class: `heat heat-${place}` }),
    );
    this.legend = element("data");
    this.key.append(element("li", {}, element("span", { text: "1" }), ...this.steps, this.legend));
    this.pointed = element("data");
    this.key.append(element("li", {}, this.pointed));
  }

  /** `columns`: for each time the counts of the buckets that end at `bounds`, or null. */
  show(times, bounds, columns, why) {
    const hasCounts = columns.some(
      (column) => column !== null && column.some((value) => value > 0),
    );
    this.blank(hasCounts ? null : why);
    if (!hasCounts) return;
    this.times = times;
    this.#bounds = bounds;
    this.#columns = columns;
    this.#gather();
    const data = [times, times.map(() => null)];
    if (this.plot === null) {
      const options = this.options({}, { distr: 3, range: () => this.#range() }, nanoseconds);
      options.series = [{}, {}];
      options.hooks.draw = [(plot) => this.#paint(plot)];
      this.plot = new uPlot(options, data, this.area);
    } else {
      this.plot.setData(data);
    }
    this.label();
    this.tabulate();
  }

  /** Combines columns that would be narrower than two pixels. */
  #gather() {
    const width = Math.max(this.area.clientWidth - 80, 60);
    const size = Math.max(1, Math.ceil((2 * this.#columns.length) / width));
    this.cells = [];
    this.#most = 1;
    for (let from = 0; from < this.#columns.length; from += size) {
      const sums = new Map();
      for (const column of this.#columns.slice(from, from + size)) {
        column?.forEach((value, bucket) => {
          if (value > 0) sums.set(bucket, (sums.get(bucket) ?? 0) + value);
        });
      }
      for (const value of sums.values()) this.#most = Math.max(this.#most, value);
      this.cells.push({ from, to: Math.min(from + size, this.#columns.length), sums });
    }
  }

  #range() {
    let [low, high] = [Infinity, 0];
    for (const { sums } of this.cells) {
      for (const bucket of sums.keys()) {
        low = Math.min(low, this.#lower(bucket));
        high = Math.max(high, this.#bounds[bucket] ?? this.#lower(bucket) * 2);
      }
    }
    return high === 0 ? [1e3, 1e6] : decades(low, high);
  }

  #lower(bucket) {
    return bucket === 0 ? this.#bounds[0] / 2 : this.#bounds[bucket - 1];
  }

  #paint(plot) {
    const colours = this.steps.map((step) => colourOf(step, "backgroundColor"));
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    const last = Math.log(this.#most + 1);
    for (const { from, to, sums } of this.cells) {
      const left = Math.floor(plot.valToPos(this.times[from] - 0.5, "x", true));
      const right = Math.ceil(plot.valToPos(this.times[to - 1] + 0.5, "x", true));
      for (const [bucket, value] of sums) {
        const bottom = Math.ceil(plot.valToPos(this.#lower(bucket), "y", true));
        const top = Math.floor(
          plot.valToPos(this.#bounds[bucket] ?? this.#lower(bucket) * 2, "y", true),
        );
        const share = Math.log(value + 1) / last;
        ctx.fillStyle = colours[Math.min(colours.length - 1, Math.floor(share * colours.length))];
        ctx.fillRect(left, top, right - left, bottom - top);
      }
    }
    ctx.restore();
  }

  label() {
    setData(this.legend, this.#most, `${count(this.#most)} commands in a cell`);
    const column = this.place === null ? null : (this.#columns[this.place] ?? null);
    const total = column === null ? 0 : column.reduce((sum, value) => sum + value, 0);
    const text =
      column === null ? "" : `${clock(this.times[this.place] * 1000)}: ${count(total)} commands`;
    setData(this.pointed, column === null ? null : total, text);
    if (this.place === null) {
      const [low, high] = this.#range();
      const span = `between ${nanoseconds(low)} and ${nanoseconds(high)}`;
      const text = `${this.title}: latencies ${span}. The table below has the counts.`;
      this.area.setAttribute("aria-label", text);
    }
  }

  tabulate() {
    if (!this.details.open) return;
    const [low, high] = this.#range();
    const bands = [];
    for (let from = low; from < high; from *= 10) bands.push([from, from * 10]);
    const titles = ["from", ...bands.map(([, to]) => `below ${nanoseconds(to)}`)];
    resize(this.head, titles.length, () => element("th", { scope: "col" }));
    titles.forEach((title, place) => setText(this.head.children[place], title));
    const rows = slots(this.times.length);
    resize(this.body, rows.length, () => element("tr", {}, element("th", { scope: "row" })));
    rows.forEach(([from, to], place) => {
      const row = this.body.children[place];
      resize(row, titles.length, () => element("td", {}, element("data")));
      setText(row.firstElementChild, clock(this.times[from] * 1000));
      const sums = bands.map(() => 0);
      for (const column of this.#columns.slice(from, to)) {
        column?.forEach((value, bucket) => {
          const at = bands.findIndex(([, top]) => this.#lower(bucket) < top);
          if (at >= 0) sums[at] += value;
        });
      }
      sums.forEach((sum, at) => setData(row.children[at + 1].firstElementChild, sum, count(sum)));
    });
  }
}
