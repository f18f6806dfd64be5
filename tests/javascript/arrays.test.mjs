/** Arrays and bytes of `ucall.js`: as frames, as base64, and what hostile servers send. */
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { env } from "node:process";
import { afterEach, beforeEach, describe, test } from "node:test";
import { setImmediate } from "node:timers/promises";
import { pathToFileURL } from "node:url";

import { makeFrame, parseFrame } from "./frames.mjs";
import { startPeer } from "./peer.mjs";

const { Client, NDArray, decodeArray, decodeBytes } = await import(pathToFileURL(env.UCALL_JS));
const WebSocket = globalThis.WebSocket ?? createRequire(import.meta.url)("ws");

const MATRIX = new NDArray(new Float32Array([1, 2, 3, 4, 5, 6]), [2, 3]);
const BYTES = new Uint8Array([0, 0xff, 0x80]);
const BASE64 = "AP+A";

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
  const client = new Client(peer[kind], { WebSocket, minDelayMs: 1, maxDelayMs: 5, ...options });
  clients.push(client);
  return client;
}

async function eventually(condition) {
  while (!condition()) await setImmediate();
}

/** A client that knows that the peer takes frames: over WebSocket the trial has been answered. */
async function connectKnowing(kind) {
  const client = connect(kind);
  await client.call("same", { value: BYTES }).bytes();
  await eventually(() => peer.frames.length === 1 && (kind === "http" || peer.sockets.size === 1));
  return client;
}

for (const kind of ["ws", "http"]) {
  describe(kind, () => {
    test("an array is a part of a frame, both ways", async () => {
      const client = await connectKnowing(kind);
      const same = await client.call("same", { value: MATRIX }).array();
      assert.deepEqual(same, MATRIX);
      const { text, parts } = parseFrame(peer.frames[1]);
      const { id, ...request } = JSON.parse(text);
      assert.deepEqual(request, { jsonrpc: "2.0", method: "same", params: { value: { $part: 0 } } });
      assert.equal(parts.length, 1);
      assert.match(parts[0].toString("latin1"), /^\x93NUMPY\x01\0v\0\{'descr': '<f4', 'fortran_order': False, 'shape': \(2, 3\), \} *\n/);
      // The array uses the memory of the reply, in which it is aligned.
      assert.ok(same.data.byteOffset > 0 && same.data.byteOffset % 64 === 0);
    });

    test("a result that is not read as an array is base64, also from a part", async () => {
      const client = await connectKnowing(kind);
      const value = { bytes: BYTES, list: [BYTES], other: [1, null, { at: "x" }] };
      const result = await client.call("same", { value });
      assert.equal(peer.frames.length, 2);
      assert.deepEqual(result, { bytes: BASE64, list: [BASE64], other: value.other });
      assert.equal(await client.call("same", { value: BYTES }), BASE64);
      assert.deepEqual(decodeBytes(result.bytes), BYTES);
      const other = client.call("same", { value }).array();
      await assert.rejects(other, { name: "TypeError", message: "expected base64, got an object" });
    });

    test("once results are read as bytes, other calls ask for parts", async () => {
      const client = connect(kind);
      assert.equal(await client.call("sum", { a: 1, b: 2 }), 3);
      assert.equal(peer.frames.length, 0);
      assert.deepEqual(await client.call("same", { value: BASE64 }).bytes(), BYTES);
      await client.call("sum", { a: 1, b: 2 });
      await eventually(() => peer.frames.length === 1 && (kind === "http" || peer.sockets.size === 1));
      assert.equal(await client.call("sum", { a: 3, b: 4 }), 7);
      const { text, parts } = parseFrame(peer.frames.at(-1));
      assert.deepEqual([JSON.parse(text).params, parts], [{ a: 3, b: 4 }, []]);
      assert.ok(kind === "ws" || peer.headers.at(-1)["content-type"] === "application/vnd.ucall.parts");
      // Not if an object of the program would be taken for a part.
      const value = { $part: 0 };
      const before = peer.frames.length;
      assert.deepEqual(await client.call("same", { value }), value);
      assert.equal(peer.frames.length, before);
    });

    const REFUSALS = { ws: ["close", -32700], http: [400, 415, 422, -32700, -32600] };
    for (const refusal of REFUSALS[kind]) {
      test(`a server that does not take frames gets JSON, after ${refusal}`, async () => {
        peer.onFrame = refusal;
        const client = connect(kind);
        const held = client.call("hold").catch((error) => error.message);
        const value = { array: MATRIX, bytes: [BYTES.buffer, new Blob([BYTES])] };
        const result = await client.call("same", { value });
        assert.deepEqual(result.bytes, [BASE64, BASE64]);
        assert.deepEqual(decodeArray(result.array), MATRIX);
        await eventually(() => peer.frames.length === 1 && (kind === "http" || peer.sockets.size === 1));
        assert.deepEqual(await client.call("same", { value: MATRIX }).array(), MATRIX);
        assert.equal(await client.call("sum", { a: 1, b: 2 }), 3);
        // Another trial would have been made before this.
        assert.equal(await connect(kind).call("sum", { a: 1, b: 2 }), 3);
        assert.equal(peer.frames.length, 1);
        // The trial has closed no connection, and each call has run once.
        assert.deepEqual(peer.received.map(({ method }) => method), ["hold", "same", "same", "sum", "sum"]);
        client.close();
        assert.equal(await held, "the client was closed");
      });
    }

    test("any reply to a frame that was read is the reply", async () => {
      const client = await connectKnowing(kind);
      await assert.rejects(client.call("no", { value: BYTES }), { code: -32601 });
      assert.equal(peer.frames.length, 2);
      assert.equal(peer.received.filter(({ method }) => method === "no").length, 1);
    });

    test("all kinds of binary values, anywhere in the params", async () => {
      const client = await connectKnowing(kind);
      const view = new DataView(new Uint8Array([9, ...BYTES, 9]).buffer, 1, 3);
      const file = new File([BYTES], "name");
      const value = [BYTES, BYTES.buffer, view, Buffer.from(BYTES), [{ file }], new Int16Array([-2])];
      value.push({ ["__proto__"]: BYTES, plain: new Date(0), shared: new SharedArrayBuffer(3) });
      const result = await client.call("same", { value });
      assert.deepEqual(result.slice(0, 5), [BASE64, BASE64, BASE64, BASE64, [{ file: BASE64 }]]);
      assert.deepEqual(decodeArray(result[5]), new NDArray(new Int16Array([-2])));
      const last = { ["__proto__"]: BASE64, plain: "1970-01-01T00:00:00.000Z", shared: "AAAA" };
      assert.deepEqual(result[6], last);
      assert.equal(parseFrame(peer.frames[1]).parts.length, 8);
      // As without binary values: nothing of the caller's has changed.
      assert.deepEqual(value[4], [{ file }]);
    });

    test("params are those of the time of the call", async () => {
      const client = connect(kind);
      const bytes = BYTES.slice();
      const call = client.call("same", { value: [bytes, 1] });
      bytes.fill(7);
      assert.deepEqual(await call, [BASE64, 1]);
    });

    test("more parts than servers take are base64", async () => {
      const client = await connectKnowing(kind);
      for (const [count, frames] of [[1024, 2], [1025, 2]]) {
        const value = Array.from({ length: count }, () => BYTES);
        assert.deepEqual(new Set(await client.call("same", { value })), new Set([BASE64]));
        assert.equal(peer.frames.length, frames);
      }
    });

    test("params that cannot be sent", async () => {
      const client = connect(kind);
      const cycle = { bytes: BYTES };
      cycle.list = [cycle, cycle];
      for (const [params, message] of [
        [cycle, /circular/],
        [{ bytes: BYTES, other: { $part: 0 } }, /^params: \{"\$part": …\} beside binary data/],
        [BYTES, /^params: expected an array or an object, got binary data$/],
      ]) {
        await assert.rejects(client.call("same", params), { name: "TypeError", message });
        await assert.rejects(client.notify("same", params), { name: "TypeError", message });
      }
      const gone = new Blob([BYTES]);
      gone.arrayBuffer = () => Promise.reject(new Error("gone"));
      await assert.rejects(client.call("same", { gone }), /^Error: gone$/);
      assert.equal(await client.call("sum", { a: 1, b: 2 }), 3);
      assert.equal(peer.received.length, 1);
    });

    test("a call that is cancelled while its blob is read is not sent", async () => {
      const client = connect(kind);
      let read;
      const blob = new Blob([BYTES]);
      blob.arrayBuffer = () => new Promise((resolve) => (read = resolve));
      const controller = new AbortController();
      const call = client.call("same", { blob }, { signal: controller.signal });
      controller.abort(new Error("enough"));
      await assert.rejects(call, /enough/);
      read(BYTES.buffer);
      assert.equal(await client.call("sum", { a: 1, b: 2 }), 3);
      assert.deepEqual(peer.received.map(({ method }) => method), ["sum"]);
    });

    test("streams, batches and notifications take binary params", async () => {
      const client = await connectKnowing(kind);
      const stream = client.stream("count", { to: 2, value: BYTES });
      for await (const item of stream) assert.ok(item < 2);
      const calls = [{ method: "sum", params: { a: 1, b: 2, value: BYTES } }];
      assert.equal((await client.batch(calls))[0].value, 3);
      await client.notify("log", [BYTES]);
      await eventually(() => peer.received.length === (kind === "ws" ? 5 : 4));
      assert.equal(peer.frames.length, 4);
      assert.deepEqual(peer.received.at(-1).params, [Buffer.from(BYTES)]);
    });

    const PART = Buffer.from(BYTES);
    const HOSTILE = {
      "no frame": () => Buffer.from([1, 2, 3]),
      "only a first byte": () => Buffer.from([0xb1]),
      "another version": (text) => makeFrame(text, [PART]).fill(2, 1, 2),
      "JSON that is cut": (text) => makeFrame(text, []).subarray(0, 20),
      "a part that is cut": (text) => makeFrame(text, [PART]).subarray(0, -1),
      "a byte too many": (text) => Buffer.concat([makeFrame(text, [PART]), PART]),
      "a length of 2⁶³": (text) => makeFrame(text, [PART], [2n ** 63n]),
      "a length of 2⁶⁴ - 1": (text) => makeFrame(text, [PART], [2n ** 64n - 1n]),
      "65,535 parts": (text) => makeFrame(text, []).fill(0xff, 2, 4),
      "a part that is not there": (text) => makeFrame(text.replace(":0", ":1"), [PART]),
      "a negative part": (text) => makeFrame(text.replace(":0", ":-1"), [PART]),
      "a part twice": (text) => makeFrame(text.replace('{"$part":0}', '[{"$part":0},{"$part":0}]'), [PART]),
      "invalid UTF-8": (text) => makeFrame(text, [PART]).fill(0xff, 40, 41),
      "no JSON": () => makeFrame("{", [PART]),
    };
    for (const [what, frame] of Object.entries(HOSTILE)) {
      test(`a frame with ${what} fails its call`, async () => {
        const client = await connectKnowing(kind);
        peer.sameFrame = ({ id }) => {
          return frame(`{"jsonrpc":"2.0","id":${id},"result":{"$part":0}}`);
        };
        const call = client.call("same", { value: BYTES }).bytes();
        const message = kind === "ws" ? /lost the connection .* 4002/ : /^http.*: /;
        await assert.rejects(call, { name: "ConnectionError", mayHaveRun: true, message });
        assert.equal(await client.call("sum", { a: 1, b: 2 }), 3);
      });
    }
  });
}

test("a status that says nothing of frames leaves them unknown", async () => {
  const client = connect("http");
  peer.onFrame = 503;
  await assert.rejects(client.call("same", { value: BYTES }), /503 Service Unavailable no frames here/);
  peer.onFrame = 415;
  assert.equal(await client.call("same", { value: BYTES }), BASE64);
});

describe("arrays", () => {
  /** A `.npy` of a header and items. */
  function npy(header, items = Buffer.alloc(0), { version = 1, padding = 1 } = {}) {
    const text = `${header.padEnd(header.length + padding - 1)}\n`;
    const head = Buffer.alloc(version === 1 ? 10 : 12);
    head.write("\x93NUMPY", "latin1");
    head[6] = version;
    head[version === 1 ? "writeUInt16LE" : "writeUInt32LE"](text.length, 8);
    return Buffer.concat([head, Buffer.from(text), items]).toString("base64");
  }
  const header = (descr, shape, fortran = "False") =>
    `{'descr': '${descr}', 'fortran_order': ${fortran}, 'shape': ${shape}, }`;

  test("headers that other programs write", () => {
    const items = Buffer.from([1, 0, 2, 0]);
    const expected = new NDArray(new Uint16Array([1, 2]));
    for (const text of [
      header("<u2", "(2,)"),
      `{"shape":(2,),"fortran_order":True,"descr":"<u2"}`,
      ` { 'shape' : ( 2 , ) , 'descr' : '=u2' , 'fortran_order' : False } `.slice(1),
    ]) {
      // At offsets that are not aligned, too.
      for (const padding of [1, 2]) assert.deepEqual(decodeArray(npy(text, items, { padding })), expected);
    }
    assert.deepEqual(decodeArray(npy(header("<u2", "(2,)"), items, { version: 2 })), expected);
    assert.deepEqual(decodeArray(npy(header(">u2", "(2,)"), items)).data, new Uint16Array([256, 512]));
  });

  test("hostile ones are refused", () => {
    const refused = (base64, message) =>
      assert.throws(() => decodeArray(base64), { name: "TypeError", message });
    const dtype = /its header is invalid, or of a dtype that is no number/;
    for (const descr of ["|O", "<U3", "|V4", "|S1", "<M8[s]", "", "f4,i4", "<f4 "]) {
      refused(npy(header(descr, "(0,)")), dtype);
    }
    for (const descr of ["<f16", "<c32", "<i3", "<u0", "<q8"]) {
      refused(npy(header(descr, "(0,)")), /no \.npy that can be read: a dtype of code/);
    }
    for (const shape of ["(-1,)", "(1)", "(1.0,)", "(,)", "(1,,)", "None", "()()", "(1,2", "((1,),)"]) {
      refused(npy(header("<f4", shape), Buffer.alloc(4)), dtype);
    }
    for (const shape of ["(2,)", "(1, 9007199254740991)", "(4294967296, 4294967296)", "()"]) {
      refused(npy(header("<f8", shape), Buffer.alloc(4)), /it claims \S+ items of 8 bytes, but has 4/);
    }
    for (const shape of ["(0, 9007199254740992)", `(${"1, ".repeat(65)})`, `(0, ${"9".repeat(500)})`]) {
      refused(npy(header("<f4", shape)), /its shape is too large/);
    }
    const whole = header("<f4", "(1,)");
    for (const text of ["{}", "", "[]", whole.slice(1), `${whole}x`, whole.replace("}", ""), `${whole}${whole}`]) {
      refused(npy(text, Buffer.alloc(4)), dtype);
    }
    refused(npy(`{'a': 'b', ${whole.slice(1)}`, Buffer.alloc(4)), dtype);
    refused(npy(header("<f4", "(1,)", "0"), Buffer.alloc(4)), dtype);
    refused(npy(whole, Buffer.alloc(4), { padding: 10_000 }), /its header is too long/);
    refused(npy(whole, Buffer.alloc(4), { version: 3 }), /version 3/);
    const bytes = Buffer.from(npy(whole, Buffer.alloc(4)), "base64");
    for (let length = 0; length < bytes.length; length++) {
      refused(bytes.toString("base64", 0, length), /no \.npy that can be read/);
    }
    for (const value of ["*", null, 3, {}, []]) refused(value, /^expected base64, got /);
  });

  test("are made of typed arrays", () => {
    const of = (...parts) => {
      const { dtype, shape } = new NDArray(...parts);
      return [dtype, shape];
    };
    assert.deepEqual(of(new Uint8Array(6)), ["uint8", [6]]);
    assert.deepEqual(of(new Uint8ClampedArray(24), [2, 3, 4]), ["uint8", [2, 3, 4]]);
    assert.deepEqual(of(new Uint8Array(6), [6], "bool"), ["bool", [6]]);
    assert.deepEqual(of(new BigInt64Array(1), []), ["int64", []]);
    assert.deepEqual(of(new Uint16Array(2), [2], "float16"), ["float16", [2]]);
    assert.deepEqual(of(new Float64Array(4), undefined, "complex128"), ["complex128", [2]]);
    const shape = { name: "RangeError", message: /^the shape \[.*\] is not that of \S+ items$/ };
    for (const sides of [[5], [], [-2, -3], [1.5, 4], [NaN], [2, 3, 2], ["6"]]) {
      assert.throws(() => new NDArray(new Uint8Array(6), sides), shape);
    }
    assert.throws(() => new NDArray(new Float32Array(3), [1], "complex64"), shape);
    for (const data of [[1, 2], new ArrayBuffer(2), "12", null, undefined, new Uint8Array(2)]) {
      assert.throws(() => new NDArray(data, [2], "float32"), { name: "TypeError", message: /^expected a typed array of float32, got/ });
    }
  });
});
