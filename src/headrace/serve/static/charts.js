"use strict";
// Converts rows to chart data: pure functions without access to the page.

const MOST_SERIES = 8;
const OTHERS = "others";
const DAY = 86400000;

// A value as a number; null if it is not one.
function numeric(value) {
  if (value === null || value === undefined || value === "" || typeof value === "boolean") return null;
  const found = Number(value);
  return Number.isFinite(found) ? found : null;
}

// The kind of an axis: times, numbers or names. Texts of digits are names.
function axisOf(values) {
  const there = values.filter((one) => one !== null && one !== undefined);
  if (there.length && there.every((one) => typeof one === "string" && /^\d{4}-\d\d-\d\d(T|$)/.test(one))) return "time";
  if (there.length && there.every((one) => typeof one === "number")) return "number";
  return "name";
}

const asText = (value) => value === null || value === undefined ? "none" : typeof value === "object" ? JSON.stringify(value) : String(value);

const COMBINED = {
  sum: (found) => found.reduce((sum, one) => sum + one, 0),
  average: (found) => found.reduce((sum, one) => sum + one, 0) / found.length,
  min: (found) => found.reduce((least, one) => Math.min(least, one)),
  max: (found) => found.reduce((most, one) => Math.max(most, one)),
};

// Combines values into one number; null without values.
function combined(how, values) {
  const found = values.map(numeric).filter((one) => one !== null);
  return found.length ? COMBINED[how](found) : null;
}

// The series to draw: the largest, and the others combined.
function largest(pairs, most) {
  const sizes = new Map();
  for (const [name, value] of pairs) sizes.set(name, (sizes.get(name) || 0) + Math.abs(numeric(value) || 0));
  if (sizes.size <= most) return [...sizes.keys()].sort();
  return [...sizes.entries()].sort((a, b) => b[1] - a[1]).slice(0, most - 1).map(([name]) => name).sort();
}

// Rows as points: `xs` in order, and for each name a value (or null) at every x.
function grouped(rows, chart) {
  const axis = axisOf(rows.map((row) => row[chart.x]));
  const place = (value) => axis === "time" ? Date.parse(value) : axis === "number" ? value : asText(value);
  const usable = rows.filter((row) => axis === "name" || (row[chart.x] !== null && row[chart.x] !== undefined));
  const pairs = chart.series ? usable.map((row) => [asText(row[chart.series]), row[chart.y[0]]]) : [];
  const kept = chart.series ? largest(pairs, MOST_SERIES) : chart.y;
  const cut = chart.series && new Set(pairs.map(([name]) => name)).size > kept.length;
  const names = cut ? [...kept, OTHERS] : kept;
  const cells = new Map();
  for (const row of usable) {
    const x = place(row[chart.x]);
    if (!cells.has(x)) cells.set(x, new Map(names.map((name) => [name, []])));
    if (!chart.series) for (const name of names) cells.get(x).get(name).push(row[name]);
    else cells.get(x).get(kept.includes(asText(row[chart.series])) ? asText(row[chart.series]) : OTHERS).push(row[chart.y[0]]);
  }
  const xs = [...cells.keys()];
  if (axis !== "name") xs.sort((a, b) => a - b);
  const series = names.map((name) => ({ name, values: xs.map((x) => combined(chart.combine, cells.get(x).get(name))) }));
  return { axis, xs, series, dates: axis === "time" && usable.every((row) => row[chart.x].length === 10) };
}

// Round numbers that cover the range from `low` to `high`.
function ticks(low, high, about) {
  if (low === high) [low, high] = low === 0 ? [0, 1] : [Math.min(0, low), Math.max(0, high)];
  const rough = (high - low) / Math.max(1, about);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((one) => one * power >= rough * 0.999999);
  const first = Math.floor(low / step + 1e-9), last = Math.ceil(high / step - 1e-9);
  return Array.from({ length: last - first + 1 }, (_, index) => Number(((first + index) * step).toPrecision(12)));
}

// A limited number of times within a range, taken from `xs` if there are few.
function timeTicks(xs, about) {
  if (xs.length <= about) return xs;
  const step = Math.ceil(xs.length / about);
  return xs.filter((_, index) => index % step === 0);
}

// Labels without repetition or overlap.
function spaced(labels, room) {
  const kept = [];
  for (const [x, text] of labels) {
    const last = kept.at(-1);
    if (!last || (last[1] !== text && x - last[0] >= room)) kept.push([x, text]);
  }
  return kept;
}

// The range of the values, always including zero. Bars are stacked.
function extent(series, stacked) {
  let low = 0, high = 0;
  for (let index = 0; index < (series[0] ? series[0].values.length : 0); index += 1) {
    const here = series.map((one) => one.values[index]).filter((one) => one !== null);
    const sum = (sign) => here.filter((one) => one * sign > 0).reduce((all, one) => all + one, 0);
    low = Math.min(low, stacked ? sum(-1) : Math.min(0, ...here));
    high = Math.max(high, stacked ? sum(1) : Math.max(0, ...here));
  }
  return [low, high];
}

// The slices of a pie as fractions, the largest first; small and negative ones are combined.
function shares(rows, chart) {
  const found = grouped(rows, { ...chart, series: null });
  const label = (x) => found.axis === "time" ? momentText(x, found.dates) : asText(x);
  const all = found.xs.map((x, index) => [label(x), found.series[0].values[index]]).filter(([, value]) => value > 0);
  const sum = all.reduce((total, [, value]) => total + value, 0);
  all.sort((a, b) => b[1] - a[1]);
  const kept = all.length > MOST_SERIES ? all.slice(0, MOST_SERIES - 1) : all;
  const rest = all.slice(kept.length).reduce((total, [, value]) => total + value, 0);
  if (rest > 0) kept.push([OTHERS, rest]);
  return kept.map(([name, value]) => ({ name, value, share: value / sum }));
}

function numberText(value, unit = "", compact = false) {
  if (value === null) return "–";
  const options = compact && Math.abs(value) >= 10000 ? { notation: "compact", maximumFractionDigits: 1 } : { maximumFractionDigits: Math.abs(value) < 1 ? 4 : 2 };
  // no thousands separator in 1999, which may be a year
  const text = new Intl.NumberFormat(undefined, { useGrouping: "min2", ...options }).format(value);
  return unit ? `${text}${/^[%°]/.test(unit) ? "" : "\u00a0"}${unit}` : text;
}

const percentText = (share) => numberText(Math.round(1000 * share) / 10, "%");

// A time in the reader's time zone; a date has none.
function momentText(at, dates, span = 0) {
  const options = dates ? { day: "numeric", month: "short", timeZone: "UTC" }
    : span > 3 * DAY ? { day: "numeric", month: "short" }
    : span > DAY ? { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" }
    : span > 0 ? { hour: "2-digit", minute: "2-digit" }
    : { dateStyle: "medium", timeStyle: "short" };
  if (dates && span === 0) options.year = "numeric";
  return new Intl.DateTimeFormat(undefined, options).format(at);
}
