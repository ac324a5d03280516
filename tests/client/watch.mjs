// Asks the scripted server everything that the browser client can, and prints what it found.
import { pathToFileURL } from "node:url";

const [, , module, url] = process.argv;
const { Headrace } = await import(pathToFileURL(module));
const server = new Headrace(url, { token: "t" });
const films = server.endpoint("films");
const found = {};

found.row = await films.get([1, "x/y,z"]);
found.missing = await films.get(2);
found.rows = [];
for await (const row of films.query({ id: { $gt: 0 } }, { orderBy: { id: "asc" }, limit: 3, page: 2 })) found.rows.push(row.id);
found.count = await films.count();
found.sql = await server.sql("SELECT 1 AS n", []);
found.refused = await films.count().catch((problem) => [problem.status, problem.code, problem.hint]);
found.events = [];
await new Promise((done) => {
  const stop = films.watch({ snapshot: true, filter: { id: 1 }, types: ["insert"] }, (event) => {
    found.events.push([event.type, event.id, event.row]);
    if (event.id === "v1-9") { stop(); done(); }
  });
});
found.ended = await new Promise((done) => films.watch({ after: "v1-9", onError: (problem) => done(problem.code) }, () => {}));
found.mistake = await new Promise((done) => films.watch({ onError: (problem) => done(problem.message) }, () => { throw new Error("oops"); }));
console.log(JSON.stringify(found));
