/** `ucall.js` with ucall's server at PORT, and at SECURE_PORT, which wants TOKEN. */
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { env } from "node:process";
import { afterEach, describe, test } from "node:test";
import { setImmediate } from "node:timers/promises";
import { pathToFileURL } from "node:url";

const { Client, ConnectionError, NDArray, decodeArray } = await import(pathToFileURL(env.UCALL_JS));
const WebSocket = globalThis.WebSocket ?? createRequire(import.meta.url)("ws");

const clients = [];

async function all(iterator) {
  const items = [];
  for await (const item of iterator) items.push(item);
  return items;
}

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

    test("arrays and bytes, as base64 and then as parts of frames", async (context) => {
      // How each message went, and how each reply came.
      const seen = [];
      class Spy extends WebSocket {
        send(data) {
          seen.push(typeof data);
          super.send(data);
        }
        set onmessage(callback) {
          super.onmessage = callback && ((event) => {
            seen.push(typeof event.data);
            callback(event);
          });
        }
      }
      const real = globalThis.fetch;
      context.mock.method(globalThis, "fetch", async (url, options) => {
        seen.push(typeof options.body);
        const response = await real(url, options);
        const type = response.headers.get("content-type");
        seen.push(type === "application/vnd.ucall.parts" ? "object" : "string");
        return response;
      });
      const client = connect(scheme, env.PORT, { WebSocket: Spy });
      const image = new NDArray(Float32Array.from({ length: 60 }, (_, at) => at), [3, 4, 5]);
      const transposed = image.data.map((_, at) => (at % 3) * 20 + ((at / 3) % 4 | 0) * 5 + (at / 12 | 0));
      const data = Uint8Array.from({ length: 1_000_000 }, (_, at) => at);
      while (seen.at(-1) !== "object") {
        const turned = await client.call("transpose", { image }).array();
        assert.deepEqual(turned, new NDArray(transposed, [5, 4, 3]));
      }
      seen.length = 0;
      assert.deepEqual(await client.call("reverse", [new Blob([data])]).bytes(), data.toReversed());
      assert.deepEqual(seen, ["object", "object"]);
      const ranges = (await client.call("ranges", [4])).map(decodeArray);
      assert.deepEqual(ranges.map(({ data }) => [...data]), [[], [0n], [0n, 1n], [0n, 1n, 2n]]);
      assert.equal(await client.call("sum", [1, 2]), 3);
      await assert.rejects(client.call("reverse", [image.data.subarray(1)]).array(), {
        name: "TypeError",
        message: /no \.npy that can be read/,
      });
      await assert.rejects(client.call("transpose", [data]), { code: -32602, data: /no \.npy that can be read/ });
      const [{ value }] = await client.batch([{ method: "reverse", params: [data.subarray(1, 4)] }]);
      assert.equal(value, "AwIB");
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

    for (const method of ["count", "acount"]) {
      test(`a stream: ${method}`, async () => {
        const stream = connect(scheme).stream(method, { to: 1000 });
        assert.deepEqual(await all(stream), Array.from({ length: 1000 }, (_, at) => at));
        assert.equal(await stream.result, method === "count" ? "done" : null);
      });
    }

    test("a stream that fails", async () => {
      const client = connect(scheme);
      const stream = client.stream("fail_later");
      assert.deepEqual(await stream.next(), { value: 1, done: false });
      await assert.rejects(stream.next(), { code: 7, message: "failed", data: { at: 1 } });
      await assert.rejects(() => all(client.stream("count", { to: "x" })), { code: -32602 });
      await assert.rejects(() => all(client.stream("nothing")), { code: -32601 });
    });

    test("leaving a loop, a signal and a time limit close what runs", async () => {
      const client = connect(scheme);
      const before = await client.call("endings");
      for await (const item of client.stream("endless")) if (item === 3) break;
      const signal = AbortSignal.timeout(20);
      await assert.rejects(() => all(client.stream("endless", {}, { signal })), { name: "TimeoutError" });
      await assert.rejects(client.call("hold", [], { timeoutMs: 20 }), { name: "TimeoutError" });
      while ((await client.call("endings")) < before + 3) await setImmediate();
    });

    test("many streams at once", async () => {
      const client = connect(scheme);
      const streams = Array.from({ length: 50 }, () => all(client.stream("acount", { to: 100 })));
      for (const items of await Promise.all(streams)) assert.equal(items.length, 100);
    });
  });
}

describe("WebSocket", () => {
  test("a stream that is read too slowly is cancelled", async () => {
    const client = connect("ws", env.PORT, { maxWaitingBytes: 10_000 });
    const stream = client.stream("flood", { count: 1_000_000, size: 1000 });
    await assert.rejects(stream.result, RangeError);
    assert.equal(await client.call("sum", [1, 2]), 3);
  });

  test("messages that the server starts", async () => {
    const [client, other] = [connect("ws"), connect("ws")];
    const seen = [];
    client.on("told", (params) => seen.push(params));
    const notifications = client.notifications();
    await client.call("tell", { method: "told", params: { at: 1 } });
    await client.call("subscribe", { topic: "news" });
    await other.call("publish", { topic: "news", method: "news", params: ["first"] });
    for (const expected of [{ at: 1 }, ["first"]]) {
      assert.deepEqual((await notifications.next()).value.params, expected);
    }
    assert.deepEqual(seen, [{ at: 1 }]);
  });
});

describe("HTTP", () => {
  test("pages of a named origin may send and get frames", async (context) => {
    const asked = { "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type" };
    const headers = { Origin: env.ORIGIN };
    const url = `http://127.0.0.1:${env.PORT}/`;
    const preflight = await fetch(url, { method: "OPTIONS", headers: { ...headers, ...asked } });
    assert.match(preflight.headers.get("access-control-allow-headers"), /\bcontent-type\b/i);
    const real = globalThis.fetch;
    const replies = [];
    context.mock.method(globalThis, "fetch", async (...asked) => {
      const response = await real(...asked);
      replies.push(["content-type", "access-control-allow-origin"].map((name) => response.headers.get(name)));
      return response;
    });
    const client = connect("http", env.PORT, { headers });
    assert.deepEqual(await client.call("reverse", [new Uint8Array([1, 2])]).bytes(), new Uint8Array([2, 1]));
    assert.deepEqual(replies, [["application/vnd.ucall.parts", env.ORIGIN]]);
    const foreign = connect("http", env.PORT, { headers: { Origin: "https://other.example" } });
    await assert.rejects(foreign.call("reverse", [new Uint8Array(1)]), ConnectionError);
  });

  test("a stream that is not read pauses the server", async () => {
    const stream = connect("http").stream("flood", { count: 20_000, size: 1000 });
    await stream.next();
    assert.equal(await connect("http").call("sum", [1, 2]), 3);
    assert.equal((await all(stream)).length, 19_999);
  });

  test("it has no notifications", async () => {
    await assert.rejects(connect("http").call("tell", { method: "told", params: [] }), { code: -32600 });
  });
});

describe("clients that others wrote", () => {
  const require = createRequire(import.meta.url);
  const call = { jsonrpc: "2.0", method: "count", params: { to: 100 }, id: "a" };
  const item = (value) => ({ jsonrpc: "2.0", method: "$/progress", params: { token: "a", value } });
  const messages = [...Array.from({ length: 100 }, (_, at) => item(at)), { jsonrpc: "2.0", id: "a", result: "done" }];

  test("eventsource-parser", async () => {
    const { EventSourceParserStream } = require("eventsource-parser/stream");
    const headers = { Accept: "text/event-stream", "Content-Type": "application/json" };
    const url = `http://127.0.0.1:${env.PORT}/`;
    const response = await fetch(url, { method: "POST", body: JSON.stringify(call), headers });
    assert.equal(response.headers.get("content-type"), "text/event-stream");
    assert.equal(response.headers.get("cache-control"), "no-store");
    const events = response.body.pipeThrough(new TextDecoderStream()).pipeThrough(new EventSourceParserStream());
    const seen = [];
    for await (const { data } of events) seen.push(JSON.parse(data));
    assert.deepEqual(seen, messages);
  });

  test("ws", async () => {
    const socket = new (require("ws"))(`ws://127.0.0.1:${env.PORT}/ws`, ["jsonrpc"]);
    await new Promise((resolve) => socket.on("open", resolve));
    const seen = [];
    const finished = new Promise((resolve) => {
      socket.on("message", (data) => {
        seen.push(JSON.parse(data));
        if (seen.length === messages.length) resolve();
      });
    });
    socket.send(JSON.stringify({ ...call, _meta: { progressToken: "a" } }));
    await finished;
    assert.deepEqual(seen, messages);
    const cancelled = new Promise((resolve) => {
      socket.on("message", (data) => "error" in JSON.parse(data) && resolve(JSON.parse(data)));
    });
    socket.send(JSON.stringify({ jsonrpc: "2.0", method: "hold", id: "b" }));
    socket.send(JSON.stringify({ jsonrpc: "2.0", method: "$/cancelRequest", params: { id: "b" } }));
    assert.equal((await cancelled).error.code, -32800);
    socket.close();
  });
});
