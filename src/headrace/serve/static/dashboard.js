"use strict";
// The page: loads the dashboard, then the rows of each chart, and draws them.

const byId = (id) => document.getElementById(id);
const make = (tag, options = {}, ...children) => {
  const found = Object.assign(document.createElement(tag), options);
  found.append(...children);
  return found;
};
const draw = (tag, attributes = {}, ...children) => {
  const found = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) found.setAttribute(name, value);
  found.append(...children);
  return found;
};
const titled = (text) => draw("title", {}, text);
const clipped = (text, most) => text.length > most ? `${text.slice(0, most - 1)}…` : text;

async function ask(path, body) {
  const token = byId("token").value.trim();
  const headers = { Accept: "application/json", ...(token ? { Authorization: `Bearer ${token}` } : {}) };
  const asked = body === undefined ? { headers } : { method: "POST", headers: { ...headers, "Content-Type": "application/json" }, body: JSON.stringify(body) };
  let answer, found;
  try {
    answer = await fetch(path, asked);
    found = await answer.json();
  } catch {
    throw { detail: "The server cannot be reached.", hint: "It is asked again by itself." };
  }
  if (!answer.ok) throw found;
  return { rows: found, more: answer.headers.has("X-Next-Cursor") };
}

// ---- drawings: each returns an SVG of the given width ----

function framed(width, height, title, ...children) {
  return draw("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": `${title}. The numbers are in the table below.` }, ...children);
}

// The vertical axis: grid lines, labels and scale.
function upright(chart, series, stacked, width, height, below) {
  const [low, high] = extent(series, stacked);
  const marks = ticks(low, high, Math.max(2, height / 55));
  const texts = marks.map((one) => numberText(one, chart.unit, true));
  const left = 10 + 7 * Math.max(...texts.map((one) => one.length)), top = 8, right = 12;
  const at = (value) => top + (height - top - below) * (marks.at(-1) - value) / (marks.at(-1) - marks[0]);
  const lines = marks.map((one, index) => draw("g", {},
    draw("line", { x1: left, x2: width - right, y1: at(one), y2: at(one), class: one === 0 ? "zero" : "grid" }),
    draw("text", { x: left - 6, y: at(one) + 4, "text-anchor": "end" }, texts[index])));
  return { at, left, right, lines };
}

function labels(found, across, width, y) {
  const span = found.axis === "time" ? found.xs.at(-1) - found.xs[0] : 0;
  const text = (x) => found.axis === "time" ? momentText(x, found.dates, span || 1) : found.axis === "number" ? numberText(x, "", true) : clipped(x, 12);
  const room = Math.max(1, Math.floor(width / 85));
  const marks = found.axis === "number" && found.xs.length > room ? ticks(found.xs[0], found.xs.at(-1), room).filter((one) => one >= found.xs[0] && one <= found.xs.at(-1)) : timeTicks(found.xs, room);
  const told = spaced(marks.map((x) => [Math.min(Math.max(across(x), 24), width - 24), text(x)]), 60);
  return told.map(([x, one]) => draw("text", { x, y, "text-anchor": "middle" }, one));
}

const pointText = (found, x) => found.axis === "time" ? momentText(x, found.dates) : asText(x);

function lines(chart, found, width) {
  const height = 240, axis = upright(chart, found.series, false, width, height, 26);
  const wide = width - axis.left - axis.right, last = found.xs.length - 1;
  const share = (x) => found.axis === "name" ? found.xs.indexOf(x) / Math.max(1, last) : (x - found.xs[0]) / (found.xs[last] - found.xs[0] || 1);
  const across = (x) => axis.left + (last === 0 ? wide / 2 : wide * share(x));
  const drawn = found.series.map((one, number) => {
    const there = found.xs.map((x, index) => [x, one.values[index]]).filter(([, value]) => value !== null);
    const path = there.map(([x, value], index) => `${index ? "L" : "M"}${across(x).toFixed(1)},${axis.at(value).toFixed(1)}`).join("");
    const dots = there.map(([x, value]) => draw("circle", { cx: across(x), cy: axis.at(value), r: there.length > 60 ? 2 : 3 }, titled(`${one.name}, ${pointText(found, x)}: ${numberText(value, chart.unit)}`)));
    return draw("g", { class: `s${number}` }, draw("path", { d: path, class: "curve" }), ...dots);
  });
  return framed(width, height, chart.title, ...axis.lines, ...labels(found, across, width, height - 6), ...drawn);
}

function columns(chart, found, width) {
  const height = 240, axis = upright(chart, found.series, true, width, height, 26);
  const slot = (width - axis.left - axis.right) / found.xs.length, thick = Math.min(48, Math.max(1, slot * 0.7));
  const across = (x) => axis.left + slot * (found.xs.indexOf(x) + 0.5);
  const bars = stacked(found, (value) => axis.at(value), (index, number, from, to, text) =>
    draw("rect", { x: across(found.xs[index]) - thick / 2, width: thick, y: Math.min(from, to), height: Math.abs(to - from), class: `s${number}` }, titled(text)), chart);
  return framed(width, height, chart.title, ...axis.lines, ...bars, ...labels({ ...found, axis: found.axis === "number" ? "name" : found.axis, xs: found.axis === "number" ? found.xs.map(String) : found.xs }, (x) => across(found.axis === "number" ? Number(x) : x), width, height - 6));
}

// Bars of names are horizontal, each below its name, so that long names are readable on a phone.
function rowsOfBars(chart, found, width) {
  const step = 42, height = found.xs.length * step + 4;
  const [low, high] = extent(found.series, true), room = width - 90;
  const at = (value) => room * (value - low) / (high - low || 1);
  const bars = stacked(found, at, (index, number, from, to, text) =>
    draw("rect", { y: index * step + 19, height: 16, x: Math.min(from, to), width: Math.max(1, Math.abs(to - from)), class: `s${number}` }, titled(text)), chart);
  const names = found.xs.flatMap((name, index) => {
    const there = found.series.map((one) => one.values[index]).filter((one) => one !== null);
    const sum = there.length ? there.reduce((all, one) => all + one, 0) : null;
    const end = at(there.filter((one) => one > 0).reduce((all, one) => all + one, 0));
    return [draw("text", { x: 0, y: index * step + 13, class: "name" }, clipped(name, Math.floor(width / 7.5)), titled(name)),
      draw("text", { x: end + 6, y: index * step + 31 }, numberText(sum, chart.unit, true))];
  });
  return framed(width, height, chart.title, ...bars, ...names);
}

function stacked(found, at, bar, chart) {
  return found.xs.flatMap((x, index) => {
    let above = 0, below = 0;
    return found.series.flatMap((one, number) => {
      const value = one.values[index];
      if (!value) return [];
      const from = value > 0 ? above : below, to = from + value;
      if (value > 0) above = to; else below = to;
      return [bar(index, number, at(from), at(to), `${one.name}, ${pointText(found, x)}: ${numberText(value, chart.unit)}`)];
    });
  });
}

function pie(chart, pieces, width) {
  const size = Math.min(width, 220), middle = size / 2, outer = middle - 4, inner = outer * 0.58;
  const spot = (share, radius) => [middle + radius * Math.sin(share * 2 * Math.PI), middle - radius * Math.cos(share * 2 * Math.PI)].map((one) => one.toFixed(2)).join(",");
  let begun = 0;
  const drawn = pieces.map((one, number) => {
    const from = begun, to = begun += one.share, long = one.share > 0.5 ? 1 : 0;
    const told = titled(`${one.name}: ${numberText(one.value, chart.unit)} (${percentText(one.share)})`);
    // an arc that ends where it begins is not drawn
    if (one.share > 0.999) return draw("circle", { cx: middle, cy: middle, r: (outer + inner) / 2, "stroke-width": outer - inner, class: `s${number} ring` }, told);
    const path = `M${spot(from, outer)}A${outer},${outer},0,${long},1,${spot(to, outer)}L${spot(to, inner)}A${inner},${inner},0,${long},0,${spot(from, inner)}Z`;
    return draw("path", { d: path, class: `s${number} piece` }, told);
  });
  return framed(size, size, chart.title, ...drawn);
}

function legend(names) {
  return make("ul", { className: "legend" }, ...names.map((name, number) => make("li", {}, make("i", { className: `s${number}`, ariaHidden: "true" }), name)));
}

function table(names, rows, caption) {
  const head = make("thead", {}, make("tr", {}, ...names.map((name) => make("th", { scope: "col", textContent: name }))));
  const cell = (value) => make("td", { textContent: typeof value === "number" ? numberText(value) : value === null ? "–" : asText(value), className: typeof value === "number" ? "figure" : "" });
  return make("div", { className: "scroll", tabIndex: 0, role: "region", ariaLabel: caption },
    make("table", { ariaLabel: caption }, head, make("tbody", {}, ...rows.map((row) => make("tr", {}, ...names.map((name) => cell(row[name] ?? null)))))));
}

// ---- the cards ----

class Card {
  constructor(chart, number) {
    this.chart = chart;
    this.asked = { path: `/${encodeURIComponent(chart.endpoint)}/query`, body: chart.query };
    this.place = make("div", { className: "drawing" }, make("p", { className: "soft", textContent: "…" }));
    this.note = make("p", { className: "soft note", hidden: true });
    this.rowsPlace = make("div");
    this.details = make("details", { hidden: true }, make("summary", { textContent: "As a table" }), this.rowsPlace);
    const heading = make("h2", { id: `chart-${number}`, textContent: chart.title });
    this.element = make("section", { className: chart.width }, heading, this.place, this.note, this.details);
    this.element.setAttribute("aria-labelledby", heading.id);
    this.rows = null;
    new ResizeObserver(() => { if (this.rows && this.drawnFor !== this.place.clientWidth) this.show(); }).observe(this.place);
  }

  take({ rows, more }) {
    this.rows = rows;
    this.note.hidden = !more;
    this.note.textContent = `Made of the first ${rows.length} rows; there are more.`;
    this.show();
  }

  fail(error) {
    this.rows = null;
    this.note.hidden = this.details.hidden = true;
    if (error.code === "hydrating") return this.place.replaceChildren(make("p", { className: "empty", textContent: "Not ready yet." }));
    this.place.replaceChildren(make("div", { role: "status" }, make("p", { className: "bad", textContent: error.detail || String(error) }), make("p", { className: "soft", textContent: error.hint || "" })));
  }

  show() {
    const { chart, rows } = this;
    this.drawnFor = this.place.clientWidth;
    const names = [...new Set([chart.x, chart.series, ...chart.y].filter((one) => one))];
    const shown = names.length ? names : Object.keys(rows[0] || {});
    this.details.hidden = !rows.length || chart.type === "table";
    if (!rows.length) return this.place.replaceChildren(make("p", { className: "empty", textContent: "No rows yet." }));
    if (chart.type === "table") return this.place.replaceChildren(table(shown, rows, chart.title));
    this.rowsPlace.replaceChildren(table(shown, rows, chart.title));
    this.place.replaceChildren(...this.drawing(Math.max(220, this.drawnFor)));
  }

  drawing(width) {
    const { chart, rows } = this;
    if (chart.type === "number") return [make("p", { className: "number", textContent: numberText(combined(chart.combine, rows.map((row) => row[chart.y[0]])), chart.unit) })];
    if (chart.type === "pie") {
      const pieces = shares(rows, chart);
      if (!pieces.length) return [make("p", { className: "empty", textContent: "Nothing above zero." })];
      return [make("div", { className: "pie" }, pie(chart, pieces, width), legend(pieces.map((one) => `${one.name} ${percentText(one.share)}`)))];
    }
    const found = grouped(rows, chart);
    if (!found.xs.length) return [make("p", { className: "empty", textContent: `No row has a value in ${chart.x}.` })];
    const drawn = chart.type === "line" ? lines : found.axis === "name" ? rowsOfBars : columns;
    const many = found.series.length > 1 || chart.series;
    return [drawn(chart, found, width), ...(many ? [legend(found.series.map((one) => one.name))] : [])];
  }
}

// ---- the page ----

let cards = [], timer = 0, turn = 0;

async function refresh() {
  clearTimeout(timer);
  const mine = turn, asked = new Map();
  for (const { asked: one } of cards) {
    const key = JSON.stringify(one);
    if (!asked.has(key)) asked.set(key, ask(one.path, one.body).then((found) => ({ found }), (error) => ({ error })));
  }
  await Promise.all(cards.map(async (card) => {
    const { found, error } = await asked.get(JSON.stringify(card.asked));
    if (mine === turn) { if (error) card.fail(error); else card.take(found); }
  }));
  if (mine !== turn) return;
  byId("as-of").textContent = `as of ${new Date().toLocaleTimeString()}`;
  wait();
}

function wait() {
  clearTimeout(timer);
  if (cards.length && byId("refresh").checked && !document.hidden) timer = setTimeout(refresh, 1000 * byId("refresh").value);
}

function head(title, description) {
  document.title = title;
  byId("title").textContent = title;
  byId("description").textContent = description;
}

async function load() {
  turn += 1;
  cards = [];
  clearTimeout(timer);
  const name = location.pathname.split("/")[2] || "", main = byId("charts");
  byId("back").hidden = !name;
  byId("turning").hidden = true;
  const mine = turn;
  try {
    const { rows: found } = await ask(name ? `/dashboards/${name}` : "/dashboards");
    if (mine !== turn) return;
    if (!name) {
      head("Dashboards", found.length ? "" : "There are none that you may see.");
      return main.replaceChildren(...found.map((one) => make("section", { className: "half" }, make("h2", {}, make("a", { href: `/dashboards/${one.name}`, textContent: one.title })), make("p", { className: "soft", textContent: one.description }))));
    }
    head(found.title, found.description);
    byId("refresh").value = found.refresh;
    byId("turning").hidden = false;
    byId("every").textContent = found.refresh < 120 ? `${found.refresh} s` : `${Math.round(found.refresh / 60)} min`;
    cards = found.charts.map((chart, number) => new Card(chart, number));
    main.replaceChildren(...cards.map((card) => card.element));
    await refresh();
  } catch (error) {
    if (mine !== turn) return;
    head("Dashboards", "");
    main.replaceChildren(make("section", { className: "full", role: "status" }, make("h2", { className: "bad", textContent: error.detail || String(error) }), make("p", { className: "soft", textContent: error.hint || "" })));
  }
}

// switch dashboards within the page, so that the typed token stays
document.onclick = (event) => {
  const link = event.target.closest("a");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  history.pushState(null, "", link.href);
  load();
};
window.onpopstate = load;
byId("access").onsubmit = (event) => { event.preventDefault(); load(); };
byId("refresh").onchange = wait;
document.onvisibilitychange = () => { if (!document.hidden && cards.length && byId("refresh").checked) refresh(); else wait(); };
load();
