// Formats numbers for people. An unknown value is "not measured", never zero.

export const UNKNOWN = "not measured";

const isKnown = (value) => typeof value === "number" && Number.isFinite(value);

/** Three significant digits: 0, 7, 12.3, 456. */
function digits(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 99.95 || Number.isInteger(value)) return value.toFixed(0);
  return value.toFixed(size >= 9.995 ? 1 : 2);
}

function scaled(value, base, units) {
  let unit = 0;
  // A value that rounds up to the next unit is shown in that unit.
  while (Math.abs(value) >= base - base / 2000 && unit + 1 < units.length) {
    value /= base;
    unit += 1;
  }
  const suffix = units[unit];
  return suffix === "" ? digits(value) : `${digits(value)} ${suffix}`;
}

/** A count or a rate: 12.3 k. */
export function count(value) {
  return isKnown(value) ? scaled(value, 1000, ["", "k", "M", "G", "T"]) : UNKNOWN;
}

/** A whole number, all digits. */
export function whole(value) {
  return isKnown(value)
    ? Math.round(value).toLocaleString("en").replaceAll(",", "\u202f")
    : UNKNOWN;
}

/** Bytes in binary units, as in the configuration: 64 MiB. */
export function bytes(value) {
  return isKnown(value) ? scaled(value, 1024, ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]) : UNKNOWN;
}

/** Bytes per second. */
export function bytesPerSecond(value) {
  return isKnown(value) ? `${bytes(value)}/s` : UNKNOWN;
}

/** A time in nanoseconds: 12.3 µs. */
export function nanoseconds(value) {
  return isKnown(value) ? scaled(value, 1000, ["ns", "µs", "ms", "s"]) : UNKNOWN;
}

/** Thousandths as a percentage. */
export function permille(value) {
  return isKnown(value) ? `${digits(Math.round(value) / 10)} %` : UNKNOWN;
}

/** Seconds as a duration: 3 d 4 h, 5 min 6 s. */
export function span(seconds) {
  if (!isKnown(seconds)) return UNKNOWN;
  const parts = [
    [Math.floor(seconds / 86400), "d"],
    [Math.floor(seconds / 3600) % 24, "h"],
    [Math.floor(seconds / 60) % 60, "min"],
    [Math.floor(seconds) % 60, "s"],
  ];
  const first = parts.findIndex(([value]) => value > 0);
  const shown = first < 0 ? parts.slice(3) : parts.slice(first, first + 2);
  return shown.map(([value, unit]) => `${value} ${unit}`).join(" ");
}

const two = (value) => String(value).padStart(2, "0");

/** The time of day of milliseconds since 1970, in this browser's time zone: 14:03:07. */
export function clock(unixMs) {
  const time = new Date(unixMs);
  return `${two(time.getHours())}:${two(time.getMinutes())}:${two(time.getSeconds())}`;
}

/** The date and time of milliseconds since 1970: 2026-11-21 14:03:07. */
export function moment(unixMs) {
  const time = new Date(unixMs);
  const day = `${time.getFullYear()}-${two(time.getMonth() + 1)}-${two(time.getDate())}`;
  return `${day} ${clock(unixMs)}`;
}
