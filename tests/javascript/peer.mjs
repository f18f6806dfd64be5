/**
 * A server of streams that tests control: WebSocket by `ws`, and server-sent events.
 *
 *     NODE_PATH=… node peer.mjs    prints its port and serves until its input ends
 *
 * `count(to)` yields 0 to `to` and returns "done"; `fail()` yields 1 and fails; `endless()` yields
 * until it is cancelled; `flood(count, size)` yields without waiting; `hold()` never replies;
 * `tell(method, params, times)` sends notifications; `drop()` ends the connection; `same(value)`
 * returns a part, or a base64 string.
 */
import { once } from "node:events";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { argv, stdin } from "node:process";
import { setImmediate } from "node:timers/promises";
import { fileURLToPath } from "node:url";

import { makeFrame, parseMessage } from "./frames.mjs";

const { WebSocketServer } = createRequire(import.meta.url)("ws");

const GENERATORS = {
  *count({ to }) {
    for (let at = 0; at < to; at++) yield at;
    return "done";
  },
  *fail() {
    yield 1;
    throw { code: 7, message: "failed", data: { at: 1 } };
  },
  *endless() {
    for (let at = 0; ; at++) yield at;
  },
  *flood({ count, size }) {
    for (let at = 0; at < count; at++) yield "x".repeat(size);
  },
};

const FRAME_TYPE = "application/vnd.ucall.parts";

function unreadable(code) {
  return { jsonrpc: "2.0", id: null, error: { code, message: "Parse error" } };
}

function json(response, reply) {
  response.writeHead(200, { "Content-Type": "application/json" }).end(JSON.stringify(reply));
}

/** Sends the items of a generator, and then its reply. */
async function run(generator, { id }, token, send, isCancelled) {
  const reply = { jsonrpc: "2.0", id };
  try {
    for (;;) {
      const { value, done } = generator.next();
      if (done) return await send({ ...reply, result: value });
      if (isCancelled()) return await send({ ...reply, error: { code: -32800, message: "Cancelled" } });
      await send({ jsonrpc: "2.0", method: "$/progress", params: { token, value } });
      await setImmediate();
    }
  } catch (error) {
    await send({ ...reply, error });
  } finally {
    generator.return();
  }
}

class Peer {
  /** Every message and request that arrived, parsed. */
  received = [];
  /** The ids of calls that were cancelled. */
  cancelled = [];
  sockets = new Set();
  /** The headers of the upgrades and requests. */
  headers = [];
  /** The messages that were frames, as they arrived. */
  frames = [];
  /** What a frame gets: "reply", "close" (WebSocket), an HTTP status, or an error's code. */
  onFrame = "reply";
  /** What an HTTP request gets, if not its reply. */
  respond = undefined;

  constructor() {
    this.server = createServer((request, response) => this.#serveHttp(request, response));
    this.upgrades = new WebSocketServer({ server: this.server });
    this.upgrades.on("connection", (socket, { headers }) => this.#serveSocket(socket, headers));
  }

  async listen(port = 0) {
    this.server.listen(port, "127.0.0.1");
    await once(this.server, "listening");
    this.port = this.server.address().port;
    return this;
  }

  get ws() {
    return `ws://127.0.0.1:${this.port}/ws`;
  }

  get http() {
    return `http://127.0.0.1:${this.port}/`;
  }

  async close() {
    for (const socket of this.sockets) socket.terminate();
    this.server.closeAllConnections();
    await new Promise((resolve) => this.server.close(resolve));
  }

  #serveSocket(socket, headers) {
    this.headers.push(headers);
    this.sockets.add(socket);
    socket.on("close", () => this.sockets.delete(socket));
    const send = (message) => socket.send(JSON.stringify(message));
    socket.on("message", (data, isBinary) => {
      if (isBinary) this.frames.push(data);
      if (isBinary && this.onFrame === "close") return socket.close(1003);
      if (isBinary && this.onFrame < 0) return send(unreadable(this.onFrame));
      const message = parseMessage(data);
      this.received.push(message);
      if (message.method === "same" && isBinary) return socket.send(this.sameFrame(message));
      if (Array.isArray(message)) send(message.flatMap((call) => this.#reply(call) ?? []));
      else this.#serve(message, socket, send);
    });
  }

  #serve(call, socket, send) {
    const { method, params = {}, id, _meta } = call;
    if (method === "$/cancelRequest") this.cancelled.push(params.id);
    else if (method === "drop") socket.terminate();
    else if (method === "tell") {
      for (let at = 0; at < (params.times ?? 1); at++) {
        send({ jsonrpc: "2.0", method: params.method, params: params.params ?? [at] });
      }
      send({ jsonrpc: "2.0", id, result: null });
    } else if (GENERATORS[method]) {
      const isCancelled = () => this.cancelled.includes(id) || socket.readyState !== 1;
      run(GENERATORS[method](params), call, _meta?.progressToken, send, isCancelled);
    } else if (this.#reply(call)) send(this.#reply(call));
  }

  #reply({ method, params, id }) {
    if (method === "hold" || id === undefined) return undefined;
    if (method === "sum") return { jsonrpc: "2.0", id, result: params.a + params.b };
    if (method === "unreadable") return unreadable(-32700);
    if (method === "same") return { jsonrpc: "2.0", id, result: params.value };
    return { jsonrpc: "2.0", id, error: { code: -32601, message: "Method not found", data: method } };
  }

  async #serveHttp(request, response) {
    this.headers.push(request.headers);
    const chunks = [];
    for await (const chunk of request) chunks.push(chunk);
    const body = Buffer.concat(chunks);
    const isFrame = request.headers["content-type"] === FRAME_TYPE;
    if (isFrame) this.frames.push(body);
    if (isFrame && this.onFrame > 0) return response.writeHead(this.onFrame).end("no frames here");
    if (isFrame && this.onFrame < 0) return json(response, unreadable(this.onFrame));
    const message = parseMessage(body);
    this.received.push(message);
    if (this.respond) return this.respond(message, response);
    if (GENERATORS[message.method]) return this.#serveEvents(message, response);
    const reply = Array.isArray(message) ? message.map((call) => this.#reply(call)) : this.#reply(message);
    if (message.method === "hold") return response.on("close", () => this.cancelled.push(message.id));
    if (message.id === undefined && !Array.isArray(message)) return response.writeHead(204).end();
    if (isFrame && message.method === "same") {
      return response.writeHead(200, { "Content-Type": FRAME_TYPE }).end(this.sameFrame(message));
    }
    json(response, reply);
  }

  /** The reply to `same` with parts; replaced for replies that no server sends. */
  sameFrame({ id, params }) {
    const parts = [];
    const text = JSON.stringify({ jsonrpc: "2.0", id, result: params.value }, (_, value) => {
      return value?.type === "Buffer" ? { $part: parts.push(Buffer.from(value.data)) - 1 } : value;
    });
    return makeFrame(text, parts);
  }

  async #serveEvents(call, response) {
    response.writeHead(200, { "Content-Type": "text/event-stream" });
    response.on("close", () => this.cancelled.push(call.id));
    const send = async (message) => {
      if (response.write(`data: ${JSON.stringify(message)}\n\n`) || response.closed) return;
      await Promise.race([once(response, "drain"), once(response, "close")]);
    };
    await run(GENERATORS[call.method](call.params ?? {}), call, call.id, send, () => response.closed);
    response.end();
  }
}

export async function startPeer(port) {
  return new Peer().listen(port);
}

if (argv[1] === fileURLToPath(import.meta.url)) {
  const peer = await startPeer();
  console.log(peer.port);
  stdin.resume().on("end", () => peer.close());
}
