// A client of Headrace's endpoints for browsers and Node: one module, nothing to build.
//
//   import { Headrace } from "/headrace.js";
//   const films = new Headrace("", { token }).endpoint("films");
//   await films.get(7);
//   for await (const film of films.query({ year: { $gt: 1999 } }, { orderBy: { year: "desc" } })) …
//   const stop = films.watch({ snapshot: true }, (event) => …);

/** What the server refused: `code` says why in a word that stays, `hint` what to do about it. */
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
// the server says something at least every 15 seconds
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

/** A server of endpoints. Everything asked here only reads, so a server that is busy is asked again. */
export class Headrace {
  constructor(url = "", { token = null, patience = 30000 } = {}) {
    this.url = url.replace(/\/$/, "");
    this.patience = patience;
    this.headers = token === null ? {} : { Authorization: `Bearer ${token}` };
  }

  /** The names of the endpoints that can be asked. */
  async endpoints() {
    const { body } = await this.ask("GET", "/");
    return body.map((path) => path.replace(/^\//, ""));
  }

  /** One of them; `films@v2` is that version of it. */
  endpoint(name) {
    return new Endpoint(this, name);
  }

  /** Rows of an answer in SQL as objects, with `columns` and `truncated` beside them. */
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

  /** The row of a key, null if there is none. Several key columns: an array of their values. */
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

  /** All rows that meet the filter, page by page: `for await (const row of films.query(…))`. */
  async *query(filter = undefined, { orderBy = undefined, limit = Infinity, page = 500 } = {}) {
    const document = { $filter: filter, $order_by: orderBy };
    for (let left = limit; left > 0; ) {
      document.$limit = Math.min(page, left);
      const { body, headers } = await this.server.ask("POST", `${this.path}/query`, document);
      yield* body;
      left -= body.length;
      document.$after = headers.get("x-next-cursor");
      if (!document.$after) return;
    }
  }

  /** How many rows meet the filter. */
  async count(filter = undefined) {
    return (await this.server.ask("POST", `${this.path}/count`, { $filter: filter })).body;
  }

  /**
   * Calls back with { type, id, row, old, detail } for each change, and goes on by itself after a lost connection.
   * Types: insert, update, delete, snapshot, snapshot_end; gap (changes were missed: read the rows anew), version (the
   * endpoint has a new version), restart (the snapshot begins again). Options: filter, types, snapshot, after, onError
   * (the server refused, and the watch is over). Returns a function that ends it.
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
        // a mistake in the callback and a refusal are the page's business; a lost connection is not
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
    if (said.event === "snapshot_end") this.inSnapshot = false;
    // the middle of a snapshot is no place to go on from
    if (said.id && !this.inSnapshot) this.after = said.id;
    if (said.event === "heartbeat") return;
    const detail = said.data.length ? JSON.parse(said.data.join("\n")) : {};
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
