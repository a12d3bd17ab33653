// The history of the last hour: one ring of numbers for each series, indexed by the number of the
// step, so that responses may overlap, arrive in any order or have gaps.

export const STEPS = 3600;

/** A ring with one value per step; a step without a value has `empty`. */
class Ring {
  #values;
  #empty;

  constructor(values, empty) {
    this.#values = values.fill(empty);
    this.#empty = empty;
  }

  put(step, value) {
    this.#values[step % STEPS] = value;
  }

  clear(step) {
    this.#values[step % STEPS] = this.#empty;
  }

  at(step) {
    return step < 0 ? this.#empty : this.#values[step % STEPS];
  }
}

export class History {
  /** The number of the last step; -1 if there is none. */
  step = -1;
  /** The time of the last step, milliseconds since 1970. */
  unixMs = 0;
  /** The objects with series, as {kind, name}. */
  keys = [];
  /** The number of objects beyond the appliance's limit of series. */
  leftOut = 0;
  #series = new Map();

  /** Adds a response of /api/v1/history. */
  absorb(answer) {
    this.#advance(answer.step, answer.now_unix_ms);
    this.leftOut = answer.left_out;
    for (const key of answer.keys) {
      if (!this.keys.some((known) => known.kind === key.kind && known.name === key.name)) {
        this.keys.push(key);
      }
    }
    for (const [name, values] of Object.entries(answer.series)) {
      let ring = this.#series.get(name);
      if (ring === undefined) {
        ring = new Ring(new Float64Array(STEPS), NaN);
        this.#series.set(name, ring);
      }
      const first = answer.step - values.length + 1;
      values.forEach((value, place) => {
        const step = first + place;
        if (step >= 0 && step > this.step - STEPS) ring.put(step, value ?? NaN);
      });
    }
  }

  #advance(step, unixMs) {
    if (step <= this.step) return;
    const passed = Math.min(step - this.step, STEPS);
    for (let age = 0; age < passed; age += 1) {
      for (const ring of this.#series.values()) ring.clear(step - age);
    }
    this.step = step;
    this.unixMs = unixMs;
  }

  /** The times of the last `length` steps, seconds since 1970. */
  times(length) {
    const last = Math.round(this.unixMs / 1000);
    return Array.from({ length }, (_, place) => last - (length - 1 - place));
  }

  /** The last `length` values of a series, null if unknown; null if there is no such series. */
  values(key, what, length) {
    const ring = this.#series.get(`${key.kind}/${key.name}/${what}`);
    if (ring === undefined) return null;
    const first = this.step - length + 1;
    return Array.from({ length }, (_, place) => {
      const value = ring.at(first + place);
      return Number.isNaN(value) ? null : value;
    });
  }

  /** The last value of a series; null if it is unknown. */
  latest(key, what) {
    return this.values(key, what, 1)?.[0] ?? null;
  }
}

/** The columns of a latency heat map. */
export class Heat {
  step = -1;
  boundsNs = [];
  /** Whether the appliance has no heat map of this object. */
  isRefused = false;
  #columns = new Ring(new Array(STEPS), null);

  /** Adds a response of /api/v1/heatmap. */
  absorb(answer) {
    const passed = Math.min(Math.max(answer.step - this.step, 0), STEPS);
    for (let age = 0; age < passed; age += 1) this.#columns.clear(answer.step - age);
    this.step = Math.max(this.step, answer.step);
    this.boundsNs = answer.bounds_ns;
    const first = answer.step - answer.counts.length + 1;
    answer.counts.forEach((column, place) => {
      if (first + place >= 0) this.#columns.put(first + place, column);
    });
  }

  /** The `length` columns up to `step`, null if unknown. */
  columns(step, length) {
    const isThere = (at) => at <= this.step && at > this.step - STEPS;
    const first = step - length + 1;
    return Array.from({ length }, (_, place) => {
      const at = first + place;
      return isThere(at) ? this.#columns.at(at) : null;
    });
  }
}
