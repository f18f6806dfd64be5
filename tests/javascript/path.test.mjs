/** `ucall.js` with ucall's server at PORT, whose calls are at `/api/rpc`. */
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { env } from "node:process";
import { test } from "node:test";
import { pathToFileURL } from "node:url";

const { Client } = await import(pathToFileURL(env.UCALL_JS));
const WebSocket = globalThis.WebSocket ?? createRequire(import.meta.url)("ws");
const host = `127.0.0.1:${env.PORT}`;

test("the module is below the path", async () => {
  const response = await fetch(`http://${host}/api/rpc/ucall.js`);
  assert.equal(await response.text(), await readFile(env.UCALL_JS, "utf8"));
  assert.equal((await fetch(`http://${host}/ucall.js`)).status, 404);
});

for (const scheme of ["http", "ws"]) {
  test(`calls, batches and streams over ${scheme}`, async () => {
    const client = new Client(`${scheme}://${host}/api/rpc`, { WebSocket });
    try {
      assert.equal(await client.call("sum", [2, 3]), 5);
      const calls = [{ method: "sum", params: [1, 2] }, { method: "fail" }];
      const [three, failed] = await client.batch(calls);
      assert.deepEqual([three.value, failed.reason.code], [3, 7]);
      const items = [];
      for await (const item of client.stream("count", [3])) items.push(item);
      assert.deepEqual(items, [0, 1, 2]);
    } finally {
      client.close();
    }
  });

  test(`nothing is called at another path over ${scheme}`, async () => {
    const client = new Client(`${scheme}://${host}/`, { WebSocket });
    try {
      await assert.rejects(client.call("sum", [2, 3], { timeoutMs: 5000 }));
    } finally {
      client.close();
    }
  });
}
