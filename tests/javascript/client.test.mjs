/** `ucall.js` with a server that the tests control: what calls, streams and connections do. */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { env } from "node:process";
import { afterEach, beforeEach, describe, test } from "node:test";
import { setImmediate } from "node:timers/promises";
import { pathToFileURL } from "node:url";

import { startPeer } from "./peer.mjs";

const { Client, ConnectionError, RpcError, Stream } = await import(pathToFileURL(env.UCALL_JS));

// Node has a WebSocket of its own from version 22 on.
const WebSocket = globalThis.WebSocket ?? createRequire(import.meta.url)("ws");
const FAST = { WebSocket, minDelayMs: 1, maxDelayMs: 5 };

let peer;
let clients;

beforeEach(async () => {
  peer = await startPeer();
  clients = [];
});

afterEach(async () => {
  for (const client of clients) client.close();
  await peer.close();
});

function connect(kind, options = {}) {
  const client = new Client(peer[kind], { ...FAST, ...options });
  clients.push(client);
  return client;
}

async function eventually(condition) {
  while (!condition()) await setImmediate();
}

/** Resolves when the client's state is this one. */
async function reaches(client, state) {
  if (client.state === state) return;
  await new Promise((resolve) => {
    client.addEventListener("statechange", () => client.state === state && resolve());
  });
}

async function all(iterator) {
  const items = [];
  for await (const item of iterator) items.push(item);
  return items;
}

for (const kind of ["ws", "http"]) {
  describe(kind, () => {
    test("a call returns the result", async () => {
      const client = connect(kind);
      assert.equal(await client.call("sum", { a: 2, b: 3 }), 5);
      assert.equal("_meta" in peer.received[0], false);
    });

    test("an error is an RpcError", async () => {
      const failed = connect(kind).call("nothing");
      await assert.rejects(failed, new RpcError({ code: -32601, message: "Method not found", data: "nothing" }));
      await assert.rejects(failed, { name: "RpcError", code: -32601, data: "nothing" });
    });

    test("calls at once get their own replies", async () => {
      const client = connect(kind);
      const calls = Array.from({ length: 100 }, (_, a) => client.call("sum", { a, b: a }));
      assert.deepEqual(await Promise.all(calls), calls.map((_, a) => 2 * a));
    });

    test("a batch is one message", async () => {
      const client = connect(kind);
      const outcomes = await client.batch([{ method: "sum", params: { a: 1, b: 2 } }, { method: "no" }]);
      assert.deepEqual(outcomes[0], { status: "fulfilled", value: 3 });
      assert.equal(outcomes[1].reason.code, -32601);
      assert.equal(peer.received.length, 1);
      assert.deepEqual(await client.batch([]), []);
    });

    test("a notification has no id", async () => {
      await connect(kind).notify("log", ["text"]);
      await eventually(() => peer.received.length);
      assert.deepEqual(peer.received, [{ jsonrpc: "2.0", method: "log", params: ["text"] }]);
    });

    test("params that are no array and no object are not sent", async () => {
      const client = connect(kind);
      for (const params of ["text", 3, null, true]) {
        const refused = { name: "TypeError", message: /^params: expected an array or an object, got / };
        await assert.rejects(client.call("sum", params), refused);
        await assert.rejects(client.batch([{ method: "sum" }, { method: "sum", params }]), refused);
        await assert.rejects(client.notify("sum", params), refused);
        assert.throws(() => client.stream("count", params), refused);
      }
      await client.call("sum", { a: 1, b: 2 });
      assert.equal(peer.received.length, 1);
    });

    test("a signal cancels a call on both sides", async () => {
      const controller = new AbortController();
      const call = connect(kind).call("hold", [], { signal: controller.signal });
      await eventually(() => peer.received.length);
      controller.abort(new Error("enough"));
      await assert.rejects(call, /enough/);
      await eventually(() => peer.cancelled.length);
      assert.deepEqual(peer.cancelled, [peer.received[0].id]);
    });

    test("an aborted signal sends nothing", async () => {
      const client = connect(kind);
      await assert.rejects(client.call("sum", [], { signal: AbortSignal.abort() }), { name: "AbortError" });
      await client.call("sum", { a: 1, b: 1 });
      assert.equal(peer.received.length, 1);
    });

    test("a call ends after its time", async () => {
      const call = connect(kind).call("hold", [], { timeoutMs: 1 });
      await assert.rejects(call, { name: "TimeoutError", message: "no reply in 1 ms" });
    });

    test("a time beyond what a timer can wait is no limit", async (context) => {
      const delays = [];
      const set = globalThis.setTimeout;
      context.mock.method(globalThis, "setTimeout", (callback, delay, ...rest) => {
        if (/no reply in/.test(callback)) delays.push(delay);
        return set(callback, delay, ...rest);
      });
      const client = connect(kind);
      for (const timeoutMs of [2 ** 31 - 1, 2 ** 31, Infinity]) {
        assert.equal(await client.call("sum", { a: 1, b: 2 }, { timeoutMs }), 3);
      }
      assert.deepEqual(delays, [2 ** 31 - 1]);
    });

    test("a stream yields its items, and then has a result", async () => {
      const stream = connect(kind).stream("count", { to: 1000 });
      assert.deepEqual(await all(stream), Array.from({ length: 1000 }, (_, at) => at));
      assert.equal(await stream.result, "done");
      assert.deepEqual(await stream.next(), { value: undefined, done: true });
      assert.ok(stream instanceof Stream);
    });

    test("the items of a stream may be awaited before they arrive", async () => {
      const stream = connect(kind).stream("count", { to: 2 });
      const steps = await Promise.all([stream.next(), stream.next(), stream.next(), stream.next()]);
      assert.deepEqual(steps.map(({ value }) => value), [0, 1, undefined, undefined]);
    });

    test("a stream throws the error after its items", async () => {
      const stream = connect(kind).stream("fail");
      const items = [];
      const read = async () => {
        for await (const item of stream) items.push(item);
      };
      await assert.rejects(read, { name: "RpcError", code: 7, data: { at: 1 } });
      assert.deepEqual(items, [1]);
      await assert.rejects(stream.result, { code: 7 });
    });

    test("a stream of a plain function has only a result", async () => {
      const stream = connect(kind).stream("sum", { a: 1, b: 2 });
      assert.deepEqual(await all(stream), []);
      assert.equal(await stream.result, 3);
    });

    test("leaving the loop cancels the stream", async () => {
      const client = connect(kind);
      const stream = client.stream("endless");
      for await (const item of stream) if (item === 3) break;
      await eventually(() => peer.cancelled.length);
      assert.deepEqual(peer.cancelled, [peer.received[0].id]);
      await assert.rejects(stream.result, { name: "AbortError" });
      assert.equal(await client.call("sum", { a: 2, b: 2 }), 4);
    });

    test("a signal ends a stream", async () => {
      const controller = new AbortController();
      const stream = connect(kind).stream("endless", {}, { signal: controller.signal });
      const read = async () => {
        for await (const item of stream) if (item === 3) controller.abort();
      };
      await assert.rejects(read, { name: "AbortError" });
      await eventually(() => peer.cancelled.length);
    });

    test("a closed client fails its calls, and later ones", async () => {
      const client = connect(kind);
      await reaches(client, "open");
      const call = client.call("hold");
      client.close();
      client.close();
      await assert.rejects(call, { name: "ConnectionError", mayHaveRun: true });
      await assert.rejects(client.call("sum"), { name: "ConnectionError", mayHaveRun: false });
      await assert.rejects(client.notify("log"), ConnectionError);
      assert.deepEqual(await all(client.notifications()), []);
      assert.equal(client.state, "closed");
    });

    test("the token is sent", async () => {
      const client = connect(kind, { token: "s3cret>>?é" });
      // The peer selects no bearer, as the server does not.
      await client.call("sum", { a: 1, b: 1 });
      const { authorization, "sec-websocket-protocol": protocols } = peer.headers[0];
      const sent = authorization?.slice(7) ?? protocols.split(",")[1].slice(7);
      const bytes = kind === "ws" ? Buffer.from(sent, "base64url") : Buffer.from(sent, "latin1");
      assert.equal(bytes.toString(kind === "ws" ? "utf8" : "latin1"), "s3cret>>?é");
    });
  });
}

test("headers are sent over HTTP", async () => {
  const client = connect("http", { headers: { "X-API-Key": "k3y" } });
  await client.call("sum", { a: 1, b: 1 });
  assert.equal(peer.headers[0]["x-api-key"], "k3y");
  assert.equal(peer.headers[0]["content-type"], "application/json");
});

describe("WebSocket", () => {
  test("a stream that is read too slowly is cancelled", async () => {
    const stream = connect("ws", { maxWaitingBytes: 10_000 }).stream("flood", { count: 10_000, size: 900 });
    await eventually(() => peer.cancelled.length);
    await assert.rejects(stream.result, RangeError);
    await assert.rejects(stream.next(), RangeError);
    assert.equal((await stream.next()).done, true);
  });

  test("one item may be longer than all that may wait", async () => {
    const client = connect("ws", { maxWaitingBytes: 100 });
    const stream = client.stream("flood", { count: 1, size: 9000 });
    await client.call("sum", { a: 1, b: 2 });
    assert.deepEqual((await all(stream)).map((item) => item.length), [9000]);
  });

  test("notifications reach iterators and callbacks", async () => {
    const client = connect("ws");
    const seen = [];
    const remove = client.on("tick", (params) => seen.push(params));
    const notifications = client.notifications();
    await client.call("tell", { method: "tick", params: { at: 1 } });
    remove();
    await client.call("tell", { method: "tick", params: { at: 2 } });
    await client.call("tell", { method: "other" });
    const expected = [{ at: 1 }, { at: 2 }].map((params) => ({ method: "tick", params }));
    for (const value of expected) assert.deepEqual(await notifications.next(), { value, done: false });
    assert.deepEqual(seen, [{ at: 1 }]);
    await notifications.return();
    assert.equal((await notifications.next()).done, true);
  });

  test("the oldest of too many notifications are dropped", async () => {
    const client = connect("ws", { maxWaitingBytes: 500 });
    const notifications = client.notifications();
    await client.call("tell", { method: "tick", times: 100 });
    client.close();
    const numbers = (await all(notifications)).map(({ params }) => params[0]);
    assert.equal(numbers.at(-1), 99);
    assert.ok(numbers.length > 5 && numbers.length < 15);
    assert.deepEqual(numbers, Array.from(numbers, (_, at) => 100 - numbers.length + at));
  });

  test("a callback that throws ends nothing", async (context) => {
    const client = connect("ws");
    const seen = [];
    const reports = [];
    const run = globalThis.queueMicrotask;
    context.mock.method(globalThis, "queueMicrotask", (task) => {
      if (/throw error/.test(task)) reports.push(task);
      else run(task);
    });
    client.on("tick", () => {
      throw new Error("of the page");
    });
    client.on("tick", (params) => seen.push(params));
    await client.call("tell", { method: "tick" });
    assert.throws(reports[0], /of the page/);
    assert.deepEqual(seen, [[0]]);
    assert.equal(client.state, "open");
  });

  test("a lost connection fails the calls in flight, and is opened again", async () => {
    const client = connect("ws");
    const states = [];
    client.addEventListener("statechange", () => states.push(client.state));
    const held = client.call("hold");
    const stream = client.stream("endless");
    await stream.next();
    client.notify("drop");
    await assert.rejects(held, { name: "ConnectionError", mayHaveRun: true, message: /^lost the connection/ });
    await assert.rejects(() => all(stream), ConnectionError);
    await reaches(client, "open");
    assert.deepEqual(states, ["open", "waiting", "connecting", "open"]);
    assert.equal(await client.call("sum", { a: 1, b: 2 }), 3);
    assert.equal(peer.received.filter(({ method }) => method === "hold").length, 1);
  });

  test("calls made without a connection wait for one attempt", async () => {
    const { port } = peer;
    await peer.close();
    const client = connect("ws");
    const refused = { name: "ConnectionError", mayHaveRun: false, message: /^could not open/ };
    await assert.rejects(client.call("sum", { a: 1, b: 2 }), refused);
    await assert.rejects(client.notify("log"), refused);
    peer = await startPeer(port);
    await reaches(client, "open");
    assert.equal(await client.call("sum", { a: 1, b: 2 }), 3);
  });

  test("an error without the event close ends an attempt", async () => {
    let attempts = 0;
    class Refused extends EventTarget {
      readyState = 0;
      close() {}
    }
    const client = connect("ws", {
      WebSocket: function (...parameters) {
        if (attempts++) return new WebSocket(...parameters);
        const refused = new Refused();
        queueMicrotask(() => refused.onerror());
        return refused;
      },
    });
    await assert.rejects(client.call("sum", { a: 1, b: 2 }), /could not open/);
    assert.equal(await client.call("sum", { a: 1, b: 2 }), 3);
  });

  /** A client with a held call, whose peer has begun to close the connection. */
  async function connectClosing(options) {
    const sockets = [];
    class Observed extends WebSocket {
      constructor(...parameters) {
        super(...parameters);
        sockets.push(this);
      }
    }
    const client = connect("ws", { WebSocket: Observed, ...options });
    const held = client.call("hold");
    await eventually(() => peer.received.length);
    const [served] = peer.sockets;
    served.close(1001);
    // The peer does not read the client's part of the closing handshake before `resume`.
    served.pause();
    await eventually(() => sockets[0].readyState === WebSocket.CLOSING);
    return { client, held, served };
  }

  test("calls made while the server closes the connection wait for the next one", async () => {
    const { client, held, served } = await connectClosing();
    const calls = [client.call("sum", { a: 1, b: 2 }), client.notify("log")];
    served.resume();
    await assert.rejects(held, { name: "ConnectionError", mayHaveRun: true });
    assert.deepEqual(await Promise.all(calls), [3, undefined]);
    assert.deepEqual(peer.received.map(({ method }) => method), ["hold", "sum", "log"]);
  });

  test("without reconnect calls made while the server closes the connection fail", async () => {
    const { client, held, served } = await connectClosing({ reconnect: false });
    const call = client.call("sum", { a: 1, b: 2 });
    served.resume();
    await assert.rejects(call, { name: "ConnectionError", mayHaveRun: false });
    await assert.rejects(held, { name: "ConnectionError", mayHaveRun: true });
  });

  test("a cancelled call that waits is never sent", async () => {
    const client = connect("ws");
    const controller = new AbortController();
    const call = client.call("hold", [], { signal: controller.signal });
    controller.abort();
    await assert.rejects(call, { name: "AbortError" });
    await client.call("sum", { a: 1, b: 2 });
    assert.deepEqual(peer.received.map(({ method }) => method), ["sum"]);
  });

  /** The delays before attempts, with a clock that stands still: none lasts longer than they do. */
  function mockDelays(context) {
    const delays = [];
    const clock = { nowMs: 0 };
    const set = globalThis.setTimeout;
    context.mock.method(Math, "random", () => 0.5);
    context.mock.method(performance, "now", () => clock.nowMs);
    context.mock.method(globalThis, "setTimeout", (callback, delay, ...rest) => {
      if (!/#connect/.test(callback)) return set(callback, delay, ...rest);
      delays.push(delay);
      return set(callback, 0);
    });
    return { delays, clock };
  }

  test("the delays double, with jitter, until a connection lasts longer", async (context) => {
    const { delays, clock } = mockDelays(context);
    const { port } = peer;
    await peer.close();
    const client = connect("ws", { minDelayMs: 100, maxDelayMs: 1000 });
    await eventually(() => delays.length === 6);
    peer = await startPeer(port);
    await reaches(client, "open");
    assert.deepEqual(delays.slice(0, 6), [75, 150, 300, 600, 750, 750]);
    const lose = async (afterMs) => {
      clock.nowMs += afterMs;
      await client.notify("drop");
      await reaches(client, "waiting");
      await reaches(client, "open");
      return delays.at(-1);
    };
    assert.equal(await lose(1000), 750);
    assert.equal(await lose(1001), 75);
    assert.equal(await lose(200), 150);
    assert.equal(await lose(401), 75);
  });

  const DRAIN = JSON.stringify({ jsonrpc: "2.0", method: "$/drain" });
  const ENDINGS = {
    "drains it": (socket) => socket.send(DRAIN),
    "drains and closes it": (socket) => socket.send(DRAIN, () => socket.close(1001)),
    "closes it": (socket) => socket.close(1008),
    "drops it": (socket) => socket.terminate(),
    "sends no JSON": (socket) => socket.send("{"),
    "drains it after a reply": (socket) => {
      socket.on("message", () => setImmediate().then(() => socket.send(DRAIN)));
    },
  };
  for (const [what, end] of Object.entries(ENDINGS)) {
    test(`a server that ${what}, each time, gets few connections`, async (context) => {
      const { delays } = mockDelays(context);
      let count = 0;
      peer.upgrades.on("connection", (socket) => {
        count += 1;
        end(socket);
      });
      const client = connect("ws", { minDelayMs: 100, maxDelayMs: 1000 });
      client.addEventListener("statechange", () => {
        if (client.state === "open") client.call("sum", { a: 1, b: 2 }).catch(() => {});
      });
      await eventually(() => delays.length >= 6 || count > 20);
      client.close();
      assert.deepEqual(delays.slice(0, 6), [75, 150, 300, 600, 750, 750]);
      assert.ok(count <= delays.length + 1, `${count} connections, ${delays.length} delays`);
    });
  }

  test("a server that refuses each upgrade gets few attempts", async (context) => {
    const { delays } = mockDelays(context);
    for (const status of [302, 401, 503]) {
      let count = 0;
      peer.server.removeAllListeners("upgrade");
      peer.server.on("upgrade", (_, socket) => {
        count += 1;
        socket.end(`HTTP/1.1 ${status} No\r\nLocation: /ws\r\nContent-Length: 0\r\n\r\n`);
      });
      delays.length = 0;
      const client = connect("ws", { minDelayMs: 100, maxDelayMs: 1000 });
      await eventually(() => delays.length >= 6 || count > 20);
      client.close();
      assert.deepEqual(delays.slice(0, 6), [75, 150, 300, 600, 750, 750]);
      assert.ok(count <= delays.length + 1);
    }
  });

  describe("a server that drains", () => {
    const drain = (socket, params) => {
      socket.send(JSON.stringify({ jsonrpc: "2.0", method: "$/drain", params }));
    };

    /** A client, the peer's socket of its first connection, and what arrives there from now on. */
    async function connectFirst(options) {
      // A connection outlasts no delay at once.
      const client = connect("ws", { minDelayMs: 0, ...options });
      await client.call("sum", { a: 1, b: 2 });
      const [first] = peer.sockets;
      const received = [];
      first.on("message", (data) => received.push(JSON.parse(data)));
      return { client, first, received };
    }

    test("gets no more calls, and answers those in flight", async () => {
      const { client, first, received } = await connectFirst();
      const states = [];
      client.addEventListener("statechange", () => states.push(client.state));
      const held = client.call("hold");
      await eventually(() => received.length);
      drain(first);
      await reaches(client, "connecting");
      assert.equal(await client.call("sum", { a: 2, b: 2 }), 4);
      assert.deepEqual(received.map(({ method }) => method), ["hold"]);
      assert.equal(peer.sockets.size, 2);
      first.send(JSON.stringify({ jsonrpc: "2.0", id: received[0].id, result: "at last" }));
      assert.equal(await held, "at last");
      await eventually(() => !peer.sockets.has(first));
      assert.equal(await client.call("sum", { a: 3, b: 3 }), 6);
      assert.deepEqual(states, ["connecting", "open"]);
    });

    test("loses its connection without calls once there is another one", async () => {
      const { client, first } = await connectFirst();
      peer.upgrades.shouldHandle = () => false;
      drain(first);
      await reaches(client, "waiting");
      assert.equal(first.readyState, WebSocket.OPEN);
      delete peer.upgrades.shouldHandle;
      await eventually(() => !peer.sockets.has(first));
      assert.equal(client.state, "open");
    });

    test("still cancels the calls in flight", async () => {
      const { client, first, received } = await connectFirst();
      const controller = new AbortController();
      const held = client.call("hold", [], { signal: controller.signal });
      await eventually(() => received.length);
      drain(first);
      await reaches(client, "connecting");
      await reaches(client, "open");
      controller.abort();
      await assert.rejects(held, { name: "AbortError" });
      await eventually(() => received.length === 2);
      assert.deepEqual(received[1].params, { id: received[0].id });
    });

    test("fails no call by attempts that fail meanwhile", async () => {
      const { client, first } = await connectFirst();
      const held = client.call("hold");
      peer.upgrades.shouldHandle = () => false;
      drain(first);
      await reaches(client, "connecting");
      const call = client.call("sum", { a: 1, b: 2 });
      await reaches(client, "waiting");
      delete peer.upgrades.shouldHandle;
      assert.equal(await call, 3);
      first.terminate();
      await assert.rejects(held, { name: "ConnectionError", mayHaveRun: true });
      assert.equal(client.state, "open");
    });

    test("gets calls again that it has not read", async () => {
      const { client, first, received } = await connectFirst();
      const held = client.call("hold");
      await eventually(() => received.length);
      first.removeAllListeners("message");
      const controller = new AbortController();
      const calls = [client.call("sum", { a: 2, b: 2 }), all(client.stream("count", { to: 3 }))];
      const left = client.call("sum", { a: 5, b: 5 }, { signal: controller.signal });
      drain(first, { read: 2 });
      await reaches(client, "connecting");
      controller.abort();
      await assert.rejects(left, { name: "AbortError" });
      await reaches(client, "open");
      first.terminate();
      await assert.rejects(held, { name: "ConnectionError", mayHaveRun: true });
      assert.deepEqual(await Promise.all(calls), [4, [0, 1, 2]]);
      assert.deepEqual(peer.received.map(({ method }) => method), ["sum", "hold", "sum", "count"]);
    });

    test("without reconnect says which calls have not run", async () => {
      const { client, first, received } = await connectFirst({ reconnect: false });
      const held = client.call("hold");
      await eventually(() => received.length);
      first.removeAllListeners("message");
      const call = client.call("sum", { a: 2, b: 2 });
      const notifications = client.notifications();
      drain(first, { read: 2 });
      first.send(JSON.stringify({ jsonrpc: "2.0", method: "last" }));
      await notifications.next();
      first.terminate();
      await assert.rejects(call, { name: "ConnectionError", mayHaveRun: false });
      await assert.rejects(held, { name: "ConnectionError", mayHaveRun: true });
      assert.equal(client.state, "closed");
    });

    test("loses both connections when the client is closed", async () => {
      const { client, first } = await connectFirst();
      const held = client.call("hold");
      drain(first);
      await reaches(client, "connecting");
      await reaches(client, "open");
      assert.equal(peer.sockets.size, 2);
      client.close();
      await assert.rejects(held, { name: "ConnectionError", mayHaveRun: true });
      await eventually(() => !peer.sockets.size);
    });
  });

  test("a client that is closed by a listener makes no more attempts", async () => {
    let attempts = 0;
    class Counted extends WebSocket {
      constructor(...parameters) {
        super(...parameters);
        attempts += 1;
      }
    }
    const client = connect("ws", { WebSocket: Counted });
    await client.call("sum", { a: 1, b: 2 });
    const states = [];
    client.addEventListener("statechange", () => {
      states.push(client.state);
      if (client.state === "connecting") client.close();
    });
    await client.notify("drop");
    await reaches(client, "closed");
    assert.deepEqual(states, ["waiting", "connecting", "closed"]);
    assert.equal(attempts, 1);
  });

  test("a delay is no longer than a timer can wait", async (context) => {
    const delays = [];
    const set = globalThis.setTimeout;
    context.mock.method(Math, "random", () => 1);
    context.mock.method(globalThis, "setTimeout", (callback, delay, ...rest) => {
      if (/#connect/.test(callback)) delays.push(delay);
      return set(callback, delay, ...rest);
    });
    const client = connect("ws", { minDelayMs: 2 ** 31, maxDelayMs: Infinity });
    await client.notify("drop");
    await reaches(client, "waiting");
    assert.deepEqual(delays, [2 ** 31 - 1]);
  });

  test("without reconnect a lost connection closes the client", async () => {
    const client = connect("ws", { reconnect: false });
    const notifications = client.notifications();
    client.notify("drop");
    await reaches(client, "closed");
    assert.deepEqual(await all(notifications), []);
    await assert.rejects(client.call("sum"), { name: "ConnectionError", mayHaveRun: false });
  });

  test("an error without an id cancels what is in flight", async () => {
    const client = connect("ws");
    const stream = client.stream("endless");
    await stream.next();
    const calls = [client.call("hold"), all(stream), client.call("unreadable")];
    for (const call of calls) {
      await assert.rejects(call, { name: "ConnectionError", mayHaveRun: true, message: /Parse error/ });
    }
    assert.equal(await client.call("sum", { a: 1, b: 2 }), 3);
    assert.deepEqual(peer.cancelled, peer.received.filter(({ id }) => id).slice(0, 3).map(({ id }) => id));
  });

  test("an error without an id is that of the only call", async () => {
    const client = connect("ws");
    await client.call("sum", { a: 1, b: 2 });
    await assert.rejects(client.call("unreadable"), { name: "RpcError", code: -32700 });
  });

  test("a message that is not JSON-RPC closes the connection", async () => {
    const client = connect("ws");
    for (const text of ["{", "3", "{}"]) {
      await reaches(client, "open");
      const call = client.call("hold");
      await eventually(() => peer.received.at(-1)?.method === "hold");
      for (const socket of peer.sockets) socket.send(text);
      await assert.rejects(call, { message: /4002 not JSON-RPC/ });
      peer.received.length = 0;
    }
  });
});

describe("HTTP", () => {
  /** Calls `use` while requests get these pieces of a body. */
  async function answering(type, pieces, use) {
    const { fetch } = globalThis;
    globalThis.fetch = async () => new Response(ReadableStream.from(pieces), { headers: { "Content-Type": type } });
    try {
      return await use(connect("http").stream("any"));
    } finally {
      globalThis.fetch = fetch;
    }
  }

  const TABLE = JSON.parse(readFileSync(new URL("../events.json", import.meta.url), "utf8"));
  const fill = (text) => text.replace(/<([A-Z]+)>/g, (_, name) => TABLE.documents[name]);

  for (const [name, [text, events]] of Object.entries(TABLE.bodies)) {
    test(`events: ${name}`, async () => {
      const body = new TextEncoder().encode(fill(text));
      const expected = events.filter((event) => event.trim()).map((event) => JSON.parse(fill(event)));
      const { result } = expected.pop();
      const values = expected.map(({ params }) => params.value);
      const cuts = Array.from(body, (_, at) => [body.subarray(0, at), body.subarray(at)]);
      for (const pieces of [...cuts, Array.from(body, (byte) => Uint8Array.of(byte))]) {
        await answering("text/event-stream", pieces, async (stream) => {
          assert.deepEqual(await all(stream), values);
          assert.deepEqual(await stream.result, result);
        });
      }
    });
  }

  for (const [type, hasEvents] of Object.entries(TABLE.types)) {
    test(`the media type ${type}`, async () => {
      const [text] = TABLE.bodies["line feeds"];
      await answering(type, [new TextEncoder().encode(fill(text))], async (stream) => {
        if (hasEvents) assert.equal((await all(stream)).length, 2);
        else await assert.rejects(all(stream), { name: "ConnectionError" });
      });
    });
  }

  test("the last event needs no further byte", async () => {
    const pieces = new ReadableStream({
      start: (controller) => controller.enqueue(new TextEncoder().encode(fill("data: <A>\r\r"))),
    });
    await answering("text/event-stream", pieces, async (stream) => {
      assert.equal((await stream.next()).value, JSON.parse(TABLE.documents.A).params.value);
    });
  });

  test("a stream that is not read pauses the server", async () => {
    let sent = 0;
    let isPaused = false;
    peer.respond = async ({ id }, response) => {
      response.writeHead(200, { "Content-Type": "text/event-stream" });
      const event = { method: "$/progress", params: { token: id, value: "x".repeat(10_000) } };
      const text = `data: ${JSON.stringify(event)}\n\n`;
      while (sent < 4_000) {
        sent += 1;
        isPaused = !response.write(text);
        if (isPaused) await new Promise((resolve) => response.once("drain", resolve));
      }
      response.end(`data: {"id":${id},"result":"all"}\n\n`);
    };
    const stream = connect("http").stream("any");
    await stream.next();
    let before;
    do {
      before = sent;
      for (let turn = 0; turn < 1000; turn++) await setImmediate();
    } while (sent !== before || !isPaused);
    assert.ok(sent < 2000, `${sent} events`);
    assert.equal((await all(stream)).length, 3999);
    assert.equal(await stream.result, "all");
  });

  test("readers at once read ahead by one item", async () => {
    const client = connect("http", { maxWaitingBytes: 100 });
    const stream = client.stream("flood", { count: 20, size: 90 });
    const steps = await Promise.all(Array.from({ length: 10 }, () => stream.next()));
    assert.deepEqual(new Set(steps.map(({ value }) => value.length)), new Set([90]));
    for (let turn = 0; turn < 100; turn++) await setImmediate();
    assert.equal((await all(stream)).length, 10);
  });

  test("a stream without its reply fails", async () => {
    peer.respond = ({ id }, response) => {
      response.writeHead(200, { "Content-Type": "text/event-stream" });
      response.end(`data: {"method":"$/progress","params":{"token":${id},"value":1}}\n\n`);
    };
    const stream = connect("http").stream("any");
    assert.equal((await stream.next()).value, 1);
    await assert.rejects(stream.next(), { name: "ConnectionError", message: /the response has no reply/ });
  });

  test("a response that is not JSON fails with its status", async () => {
    peer.respond = (_, response) => response.writeHead(401).end("who are you?");
    const client = connect("http");
    const refused = { name: "ConnectionError", message: /401 Unauthorized who are you\?/ };
    await assert.rejects(client.call("sum"), refused);
    await assert.rejects(client.notify("sum"), refused);
  });

  test("an error without an id fails its own call only", async () => {
    const client = connect("http");
    const held = client.call("hold", [], { timeoutMs: 100 });
    await assert.rejects(client.call("unreadable"), { code: -32700 });
    await assert.rejects(held, { name: "TimeoutError" });
  });

  test("a refused connection is a ConnectionError", async () => {
    await peer.close();
    await assert.rejects(connect("http").call("sum"), (error) => {
      return error instanceof ConnectionError && error.mayHaveRun && error.cause instanceof TypeError;
    });
    peer = await startPeer();
  });
});

test("other schemes and missing WebSockets are refused", () => {
  assert.throws(() => new Client("tcp://127.0.0.1"), /expected ws:, wss:, http: or https:, got tcp:/);
  const missing = { WebSocket: null };
  assert.throws(() => new Client("ws://127.0.0.1:1", missing), /pass \{ WebSocket \} of package ws/);
});
