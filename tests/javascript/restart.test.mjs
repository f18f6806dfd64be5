/** `ucall.js` with ucall's server at PORT, whose supervisor is the process SUPERVISOR. */
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { env, kill } from "node:process";
import { test } from "node:test";
import { pathToFileURL } from "node:url";

const { Client } = await import(pathToFileURL(env.UCALL_JS));
const WebSocket = globalThis.WebSocket ?? createRequire(import.meta.url)("ws");

test("calls go on while a worker is replaced", async (context) => {
  const client = new Client(`ws://127.0.0.1:${env.PORT}/ws`, { WebSocket });
  context.after(() => client.close());
  const replaced = await client.call("pid");
  const callUntilReplaced = async () => {
    while ((await client.call("pid")) === replaced);
  };
  const callers = Array.from({ length: 16 }, callUntilReplaced);
  kill(Number(env.SUPERVISOR), "SIGHUP");
  await Promise.all(callers);
  assert.equal(client.state, "open");
});
