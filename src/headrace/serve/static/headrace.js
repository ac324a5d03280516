// A client of Headrace's endpoints for browsers and Node: one module, nothing to build.
//
//   import { Headrace } from "/headrace.js";
//   const films = new Headrace("", { token }).endpoint("films");
//   await films.get(7);
//   for await (const film of films.query({ year: { $gt: 1999 } }, { orderBy: { year: "desc" } })) …
//   const stop = films.watch({ snapshot: true }, (event) => …);

/** An error of the server: `code` is stable, for programs; `hint` says how to fix it. */
export class HeadraceError extends Error {
  constructor(status, problem) {
    super(problem.detail || problem.title || `the server answered ${status}`);
    this.name = "HeadraceError";
    this.status = status;
    this.code = problem.code || `http-${status}`;
    this.hint = problem.hint || null;
  }
}

const AGAIN = new Set([429, 502, 503, 504]);
const LONGEST_PAUSE = 10000;
// the server sends at least a heartbeat every 15 seconds
const QUIET = 45000;

const pause = (milliseconds, signal) =>
  new Promise((done) => {
    const timer = setTimeout(done, milliseconds);
    signal?.addEventListener("abort", () => { clearTimeout(timer); done(); }, { once: true });
  });

const problemOf = async (response) => {
  const text = await response.text();
  try {
    return new HeadraceError(response.status, JSON.parse(text) || {});
  } catch {
    return new HeadraceError(response.status, { detail: text.slice(0, 200) });
  }
};

/** A client of served endpoints. All requests only read, so they are retried when the server is busy. */
export class Headrace {
  constructor(url = "", { token = null, patience = 30000 } = {}) {
    this.url = url.replace(/\/$/, "");
    this.patience = patience;
    this.headers = token === null ? {} : { Authorization: `Bearer ${token}` };
  }

  /** The names of the endpoints that the token may read. */
  async endpoints() {
    const { body } = await this.ask("GET", "/");
    return body.map((path) => path.replace(/^\//, ""));
  }

  /** The endpoint of that name; `films@v2` is version 2 of it. */
  endpoint(name) {
    return new Endpoint(this, name);
  }

  /** The rows of an SQL query as objects, with the properties `columns` and `truncated`. */
  async sql(text, parameters = undefined) {
    const { body } = await this.ask("POST", "/sql", { sql: text, parameters });
    const names = body.columns.map((column) => column.name);
    const rows = body.rows.map((row) => Object.fromEntries(row.map((value, at) => [names[at], value])));
    return { columns: body.columns, rows, truncated: body.truncated };
  }

  async ask(method, path, document) {
    const request = { method, headers: { ...this.headers, Accept: "application/json" } };
    if (document !== undefined) {
      request.headers["Content-Type"] = "application/json";
      request.body = JSON.stringify(document);
    }
    const until = Date.now() + this.patience;
    for (let wait = 100; ; wait = Math.min(2 * wait, LONGEST_PAUSE)) {
      const response = await fetch(this.url + path, request);
      if (response.ok) return { body: await response.json(), headers: response.headers };
      const problem = await problemOf(response);
      const patience = Math.max(wait, 1000 * Number(response.headers.get("retry-after") || 0));
      if (!AGAIN.has(response.status) || Date.now() + patience > until) throw problem;
      await pause(patience);
    }
  }
}

class Endpoint {
  constructor(server, name) {
    this.server = server;
    this.path = "/" + encodeURIComponent(name).replace("%40", "@");
  }

  /** The row of a key; null if it does not exist. For several key columns pass an array. */
  async get(key) {
    const parts = Array.isArray(key) ? key : [key];
    const text = parts.map((part) => encodeURIComponent(part instanceof Date ? part.toISOString() : part)).join(",");
    try {
      return (await this.server.ask("GET", `${this.path}/${text}`)).body;
    } catch (problem) {
      if (problem.code === "no-row") return null;
      throw problem;
    }
  }

  /** All rows that match the filter, page by page: `for await (const row of films.query(…))`. */
  async *query(filter = undefined, { orderBy = undefined, limit = Infinity, page = 500 } = {}) {
    const document = { $filter: filter, $order_by: orderBy };
    for (let left = limit, size = page; left > 0; ) {
      document.$limit = Math.min(size, left);
      const answer = await this.server.ask("POST", `${this.path}/query`, document).catch((problem) => {
        if (problem.code !== "page-too-large" || size === 1) throw problem;
        size = Math.floor(size / 2);
      });
      if (!answer) continue;
      const { body, headers } = answer;
      yield* body;
      left -= body.length;
      document.$after = headers.get("x-next-cursor");
      if (!document.$after) return;
    }
  }

  /** The number of rows that match the filter. */
  async count(filter = undefined) {
    return (await this.server.ask("POST", `${this.path}/count`, { $filter: filter })).body;
  }

  /**
   * Calls back with { type, id, row, old, detail } for each change, and reconnects after a lost connection.
   * Types: insert, update, delete, snapshot, snapshot_end; gap (changes were missed: read the rows again), version (the
   * endpoint has a new version), restart (the snapshot begins again). Options: filter, types, snapshot, after, onError
   * (the server rejected the request, and the watch has ended). Returns a function that ends it.
   */
  watch(options, callback) {
    const ended = new AbortController();
    new Watch(this, options, callback, ended.signal).follow().catch((problem) => {
      if (ended.signal.aborted) return;
      if (options.onError) options.onError(problem);
      else console.error("headrace:", problem);
    });
    return () => ended.abort();
  }
}

class Watch {
  constructor(endpoint, options, callback, signal) {
    this.endpoint = endpoint;
    this.options = options;
    this.callback = callback;
    this.signal = signal;
    this.after = options.after || null;
    this.inSnapshot = Boolean(options.snapshot);
    this.wait = 100;
  }

  async follow() {
    while (!this.signal.aborted) {
      const connection = new AbortController();
      const end = () => connection.abort();
      this.signal.addEventListener("abort", end, { once: true });
      try {
        await this.connect(connection);
      } catch (problem) {
        // errors of the callback and rejections are for the page; a lost connection is not
        if (problem instanceof HeadraceError ? !AGAIN.has(problem.status) : problem.fatal) throw problem.fatal || problem;
      } finally {
        this.signal.removeEventListener("abort", end);
        connection.abort();
      }
      if (this.signal.aborted) return;
      await pause(this.wait * (0.5 + Math.random() / 2), this.signal);
      this.wait = Math.min(2 * this.wait, LONGEST_PAUSE);
      if (this.inSnapshot && !this.signal.aborted) this.tell({ type: "restart", id: null });
    }
  }

  async connect(connection) {
    const { server, path } = this.endpoint;
    const headers = { ...server.headers, Accept: "text/event-stream" };
    const response = await fetch(`${server.url}${path}/events?${this.question()}`, { headers, signal: connection.signal });
    if (!response.ok) throw await problemOf(response);
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const silence = setTimeout(() => connection.abort(), QUIET);
      const { value, done } = await reader.read().finally(() => clearTimeout(silence));
      if (done || this.signal.aborted) return;
      const blocks = (rest + value).split(/\r?\n\r?\n/);
      rest = blocks.pop();
      for (const block of blocks) this.take(block);
    }
  }

  question() {
    const { filter, types, snapshot } = this.options;
    const asked = new URLSearchParams();
    if (filter) asked.set("$filter", JSON.stringify(filter));
    if (types) asked.set("types", types.join(","));
    if (snapshot && this.inSnapshot) asked.set("snapshot", "true");
    else if (this.after) asked.set("after", this.after);
    return asked;
  }

  take(block) {
    const said = { data: [] };
    for (const line of block.split(/\r?\n/)) {
      const [, field, value] = /^([^:]*):? ?(.*)$/.exec(line);
      if (field === "data") said.data.push(value);
      else if (field) said[field] = value;
    }
    if (!said.event) return;
    this.wait = 100;
    const detail = said.data.length ? JSON.parse(said.data.join("\n")) : {};
    if (said.event === "error") throw new HeadraceError(detail.status, detail);
    if (said.event === "snapshot_end") this.inSnapshot = false;
    // a client cannot resume within a snapshot; a gap is reported once
    const place = said.event === "gap" ? detail.to : said.id;
    if (place && !this.inSnapshot) this.after = place;
    if (said.event === "heartbeat") return;
    this.tell({ type: said.event, id: said.id || this.after, row: detail.row ?? null, old: detail.old ?? null, detail });
  }

  tell(event) {
    if (this.signal.aborted) return;
    try {
      this.callback(event);
    } catch (problem) {
      throw { fatal: problem };
    }
  }
}
