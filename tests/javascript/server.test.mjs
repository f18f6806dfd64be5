/** `ucall.js` with ucall's server at PORT, and at SECURE_PORT, which wants TOKEN. */
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { env } from "node:process";
import { afterEach, describe, test } from "node:test";
import { pathToFileURL } from "node:url";

const { Client, ConnectionError } = await import(pathToFileURL(env.UCALL_JS));
const WebSocket = globalThis.WebSocket ?? createRequire(import.meta.url)("ws");

let clients = [];

function connect(scheme, port = env.PORT, options = {}) {
  const client = new Client(`${scheme}://127.0.0.1:${port}/`, { WebSocket, ...options });
  clients.push(client);
  return client;
}

afterEach(() => {
  for (const client of clients.splice(0)) client.close();
});

for (const scheme of ["ws", "http"]) {
  describe(scheme, () => {
    test("calls", async () => {
      const client = connect(scheme);
      assert.equal(await client.call("sum", [2, 3]), 5);
      assert.equal(await client.call("sum", { a: 2, b: 3 }), 5);
      for (const value of [null, "é€𝄞\u2028\ud800".slice(0, 5), [{ deep: [] }], "x".repeat(1_000_000)]) {
        assert.deepEqual(await client.call("echo", { value }), value);
      }
      const sums = Array.from({ length: 500 }, (_, at) => client.call("sum", [at, at]));
      assert.deepEqual(await Promise.all(sums), sums.map((_, at) => 2 * at));
    });

    test("errors", async () => {
      const client = connect(scheme);
      await assert.rejects(client.call("fail"), { code: 7, message: "failed", data: { at: 1 } });
      await assert.rejects(client.call("sum", [1, "2"]), { code: -32602, data: /expected int, got str/ });
      await assert.rejects(client.call("nothing"), { code: -32601 });
    });

    test("batches and notifications", async () => {
      const client = connect(scheme);
      await client.notify("sum", [1, 2]);
      const calls = [{ method: "sum", params: [1, 2] }, { method: "fail" }];
      const [three, failed] = await client.batch(calls);
      assert.deepEqual([three.value, failed.reason.code], [3, 7]);
      const many = Array.from({ length: 1001 }, () => calls[0]);
      const outcomes = await client.batch(many);
      assert.deepEqual(new Set(outcomes.map(({ reason }) => reason.code)), new Set([-32600]));
    });

    test("a stream of a plain function", async () => {
      const stream = connect(scheme).stream("sum", [1, 2]);
      for await (const item of stream) assert.fail(item);
      assert.equal(await stream.result, 3);
    });

    test("a token", async () => {
      const client = connect(scheme, env.SECURE_PORT, { token: env.TOKEN });
      assert.equal(await client.call("whoami"), "alice");
      const other = connect(scheme, env.SECURE_PORT, { token: "wrong" });
      await assert.rejects(other.call("whoami"), ConnectionError);
    });
  });
}
