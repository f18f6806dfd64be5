/** `ucall.js` with a server at PORT that compresses: `fetch` and WebSocket agree on it, and decode. */
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { env } from "node:process";
import { test } from "node:test";
import { pathToFileURL } from "node:url";

const codings = [];
const { fetch } = globalThis;
globalThis.fetch = async (...request) => {
  const response = await fetch(...request);
  codings.push(response.headers.get("Content-Encoding"));
  return response;
};
const { Client } = await import(pathToFileURL(env.UCALL_JS));

test("compressed replies and streams", async () => {
  const client = new Client(`http://127.0.0.1:${env.PORT}/`);
  const value = "x".repeat(100_000);
  assert.equal(await client.call("echo", { value }), value);
  const items = [];
  for await (const item of client.stream("count", { to: 3 })) items.push(item);
  assert.deepEqual(items, [0, 1, 2]);
  assert.deepEqual(codings, ["gzip", "gzip"]);
});

test("compressed messages", async () => {
  let socket;
  class Kept extends createRequire(import.meta.url)("ws") {
    constructor(...address) {
      super(...address);
      socket = this;
    }
  }
  const client = new Client(`ws://127.0.0.1:${env.PORT}/`, { WebSocket: Kept });
  for (const length of [10, 100_000]) {
    const value = Array.from({ length }, (_, at) => at).join(" ");
    assert.equal(await client.call("echo", { value }), value);
  }
  assert.equal(socket.extensions, "permessage-deflate");
  client.close();
});
