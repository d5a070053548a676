// Numbers for people: always with a unit, always about as wide, "–" for what is not known.

export const NONE = "–";

const whole = new Intl.NumberFormat("en");
const clock = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium" });

// Three digits that mean something: 0.42, 4.21, 42.1, 421.
function threeDigits(value) {
  const size = Math.abs(value);
  if (size >= 99.95) return whole.format(Math.round(value));
  return value.toFixed(size >= 9.995 ? 1 : 2);
}

export function count(value) {
  return value == null ? NONE : whole.format(value);
}

// A number of things, short: 421, 12.3 k, 4.21 M.
export function short(value) {
  if (value == null) return NONE;
  if (value >= 999_500) return `${threeDigits(value / 1e6)} M`;
  if (value >= 9_999.5) return `${threeDigits(value / 1e3)} k`;
  return whole.format(Math.round(value));
}

export function rate(value) {
  if (value == null) return NONE;
  if (value >= 9_999.5) return short(value);
  if (value >= 99.95 || Number.isInteger(value)) return whole.format(Math.round(value));
  return value.toFixed(1);
}

export function perSecond(value) {
  return value == null ? NONE : `${rate(value)}/s`;
}

export function milliseconds(value) {
  if (value == null) return NONE;
  return value >= 999.5 ? `${threeDigits(value / 1e3)} s` : `${threeDigits(value)} ms`;
}

export function share(value) {
  if (value == null) return NONE;
  return value > 0 && value < 0.005 ? "<1 %" : `${Math.round(value * 100)} %`;
}

export function bytes(value) {
  if (value == null) return NONE;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit ? threeDigits(value) : value} ${units[unit]}`;
}

export function age(seconds) {
  if (seconds == null) return NONE;
  if (seconds < 60) return `${Math.max(0, seconds).toFixed(1)} s`;
  return duration(seconds);
}

export function duration(seconds) {
  if (seconds == null) return NONE;
  const s = Math.floor(seconds);
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

export function timeOfDay(unixSeconds) {
  return unixSeconds == null ? NONE : clock.format(unixSeconds * 1000);
}
