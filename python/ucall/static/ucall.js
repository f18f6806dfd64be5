/**
 * A client for ucall's JSON-RPC over WebSocket and HTTP, for browsers and Node. No dependencies.
 *
 *     const client = new Client("ws://localhost:8545/ws");
 *     await client.call("sum", { a: 2, b: 3 });
 *     for await (const token of client.stream("generate", { prompt })) show(token);
 *
 * A `Client` keeps the calls in flight by their ids. A transport sends a document of one or more
 * calls and hands each message of the server back, or fails the calls of a document. A call runs at
 * most once: if its connection is lost, it fails, because it may have run. Only a call that a server
 * has not read in its drain is sent again.
 */

/** @import { CallOptions, ClientOptions, Notification, Params, State } from "./ucall.js" */
/** @template [T=any] @typedef {{ resolve(to: T): void, reject(reason: unknown): void }} Settler */
/** @typedef {Settler & { stream?: Stream<any> }} Call a call in flight */
/**
 * @typedef {object} Exchange a document, and the calls in it
 * @property {number[]} ids
 * @property {string} text
 * @property {Stream<any>} [stream]
 * @property {() => boolean} isOver
 * @property {Promise<unknown>} over resolves when no call of it is in flight
 * @property {() => void} sent called when the server has the document, as far as is known
 * @property {(error: unknown) => void} fail fails the calls that have no reply yet
 */
/**
 * @typedef {object} Source of a message of the server
 * @property {(error: RpcError) => void} refuse handles the error of a request without its id
 * @property {(params?: { read?: number }) => void} [drain] handles `$/drain`
 */
/**
 * @typedef {object} Owner the client, for its transport
 * @property {string} url
 * @property {ClientOptions} options
 * @property {(text: string, source: Source) => void} receive a message of the server
 * @property {(state: State) => void} setState
 */

/** A longer timer would expire at once. */
const TIMER_MS_MAX = 2 ** 31 - 1;

/** The server's reply is an error. */
export class RpcError extends Error {
  /** @param {{ code: number, message: string, data?: unknown }} error of the reply */
  constructor({ code, message, data }) {
    super(message);
    this.name = "RpcError";
    this.code = code;
    this.data = data;
  }
}

/** The server has not replied, and cannot any more. */
export class ConnectionError extends Error {
  /** @param {string} message @param {boolean} mayHaveRun @param {ErrorOptions} [options] */
  constructor(message, mayHaveRun, options) {
    super(message, options);
    this.name = "ConnectionError";
    this.mayHaveRun = mayHaveRun;
  }
}

/** An async iterator that holds items until they are read, up to `maxBytes`. @template T */
class Channel {
  /** @type {{ value: T, bytes: number }[]} */
  #items = [];
  /** @type {Settler<IteratorResult<T, undefined>>[]} */
  #readers = [];
  #bytes = 0;
  #maxBytes;
  #isEnded = false;
  /** @type {{ error: unknown } | undefined} */
  #failure;
  /** Called when a reader waits; set by a transport that reads only then. */
  pull = () => {};
  /** Called when the reader leaves. */
  leave = () => {};

  /** @param {number} maxBytes */
  constructor(maxBytes) {
    this.#maxBytes = maxBytes;
  }

  /** @param {T} value @param {number} bytes of its JSON */
  push(value, bytes) {
    if (this.#isEnded) return;
    const reader = this.#readers.shift();
    if (reader) return reader.resolve({ value, done: false });
    this.#items.push({ value, bytes });
    this.#bytes += bytes;
    if (this.#bytes > this.#maxBytes && this.#items.length > 1) this.overflow();
  }

  /** Too much waits: drops the oldest. */
  overflow() {
    while (this.#bytes > this.#maxBytes && this.#items.length > 1) this.#take();
  }

  get isAwaited() {
    return this.#readers.length > 0;
  }

  #take() {
    const item = this.#items.shift();
    this.#bytes -= item?.bytes ?? 0;
    return item;
  }

  /** Ends the iterator after the items that wait. @param {{ error: unknown }} [failure] */
  end(failure) {
    if (this.#isEnded) return;
    this.#isEnded = true;
    if (!this.#readers.length) this.#failure = failure;
    for (const { resolve, reject } of this.#readers.splice(0)) {
      if (failure) reject(failure.error);
      else resolve({ value: undefined, done: true });
    }
  }

  /** @returns {Promise<IteratorResult<T, undefined>>} */
  async next() {
    const item = this.#take();
    if (item) return { value: item.value, done: false };
    const failure = this.#failure;
    this.#failure = undefined;
    if (failure) throw failure.error;
    if (this.#isEnded) return { value: undefined, done: true };
    return new Promise((resolve, reject) => {
      this.#readers.push({ resolve, reject });
      this.pull();
    });
  }

  /** @returns {Promise<IteratorResult<T, undefined>>} `break` in a loop calls it. */
  async return() {
    this.drop();
    this.end();
    this.#failure = undefined;
    this.leave();
    return { value: undefined, done: true };
  }

  /** Drops the items that wait. */
  drop() {
    this.#items = [];
    this.#bytes = 0;
  }

  [Symbol.asyncIterator]() {
    return this;
  }
}

/** The items of a streamed call. Leaving the loop cancels it. @template T @extends {Channel<T>} */
export class Stream extends Channel {
  /** @type {Promise<any>} The return value, once the items are read; rejects as the loop throws. */
  result = Promise.resolve();
  /** @type {(reason: unknown) => void} */
  cancel = () => {};

  leave = () => this.cancel(new DOMException("the stream was left", "AbortError"));

  /** Too much waits: cancels the call, because a WebSocket has no way to pause one stream. */
  overflow() {
    this.cancel(new RangeError("the stream is read too slowly: more than maxWaitingBytes wait"));
  }
}

/** A JSON-RPC client of one server. */
export class Client extends EventTarget {
  /** @type {Map<number, Call>} */
  #calls = new Map();
  /** @type {Map<string, Set<(params: any) => void>>} */
  #callbacks = new Map();
  /** @type {Set<Channel<Notification>>} */
  #channels = new Set();
  #lastId = 0;
  /** @type {State} */
  #state = "connecting";
  #maxWaitingBytes;
  #transport;

  /**
   * Connects at once, if the address is a WebSocket's.
   * @param {string | URL} url relative to the page @param {ClientOptions} [options]
   */
  constructor(url, options = {}) {
    super();
    this.#maxWaitingBytes = options.maxWaitingBytes ?? 1 << 20;
    const address = new URL(url, globalThis.location?.href);
    const [, kind] = /^(ws|http)s?:$/.exec(address.protocol) ?? [];
    if (!kind) throw new TypeError(`expected ws:, wss:, http: or https:, got ${address.protocol}`);
    const Transport = kind === "ws" ? SocketTransport : HttpTransport;
    this.#transport = new Transport({
      url: address.href,
      options,
      receive: (text, source) => this.#receive(text, source),
      setState: (state) => this.#setState(state),
    });
  }

  /** @returns {State} The event `statechange` reports changes. */
  get state() {
    return this.#state;
  }

  /**
   * Calls a function of the server, and returns its result.
   * @template [T=any]
   * @param {string} method @param {Params} [params] @param {CallOptions} [options]
   * @returns {Promise<T>}
   */
  async call(method, params, options) {
    return this.#begin([{ method, params }], options).replies[0];
  }

  /**
   * Calls several functions with one message. A failed call has an `RpcError` as its reason.
   * @param {{ method: string, params?: Params }[]} calls @param {CallOptions} [options]
   */
  async batch(calls, options) {
    if (!calls.length) return [];
    const { replies } = this.#begin(calls, options, { isBatch: true });
    const outcomes = await Promise.allSettled(replies);
    for (const outcome of outcomes) {
      const reason = outcome.status === "rejected" && outcome.reason;
      if (reason && !(reason instanceof RpcError)) throw reason;
    }
    return outcomes;
  }

  /**
   * Calls a generator of the server, and returns an async iterator over its items.
   * @template [T=any]
   * @param {string} method @param {Params} [params] @param {CallOptions} [options]
   * @returns {Stream<T>}
   */
  stream(method, params, options) {
    /** @type {Stream<T>} */
    const stream = new Stream(this.#maxWaitingBytes);
    const { replies, cancel } = this.#begin([{ method, params }], options, { stream });
    stream.cancel = cancel;
    stream.result = replies[0];
    // Ends the stream also when nothing awaits the result.
    stream.result.then(
      () => stream.end(),
      (error) => stream.end({ error }),
    );
    return stream;
  }

  /**
   * Sends a notification, which has no reply. Resolves once it is sent.
   * @param {string} method @param {Params} [params] @returns {Promise<void>}
   */
  notify(method, params) {
    return new Promise((resolve, reject) => {
      const text = JSON.stringify(request(method, params));
      const over = Promise.resolve();
      this.#send({ ids: [], text, isOver: () => false, over, sent: resolve, fail: reject });
    });
  }

  /**
   * Calls `callback` with the params of each notification of a method; returns what removes it.
   * @param {string} method @param {(params: any) => void} callback
   */
  on(method, callback) {
    const callbacks = this.#callbacks.get(method) ?? new Set();
    this.#callbacks.set(method, callbacks.add(callback));
    return () => void callbacks.delete(callback);
  }

  /**
   * An async iterator over the server's notifications, which drops the oldest of too many.
   * @returns {AsyncIterableIterator<Notification, undefined>}
   */
  notifications() {
    /** @type {Channel<Notification>} */
    const channel = new Channel(this.#maxWaitingBytes);
    if (this.#state === "closed") channel.end();
    else this.#channels.add(channel);
    channel.leave = () => void this.#channels.delete(channel);
    return channel;
  }

  /** Closes the connection and fails the calls in flight. */
  close() {
    if (this.#state === "closed") return;
    this.#transport.close();
    this.#setState("closed");
    const error = new ConnectionError("the client was closed", true);
    for (const id of [...this.#calls.keys()]) this.#take(id)?.reject(error);
  }

  /**
   * @param {{ method: string, params?: Params }[]} calls @param {CallOptions} [options]
   * @param {{ isBatch?: boolean, stream?: Stream<any> }} [form]
   */
  #begin(calls, options = {}, { isBatch = false, stream } = {}) {
    options.signal?.throwIfAborted();
    const requests = calls.map(({ method, params }) => {
      const id = ++this.#lastId;
      const meta = stream && this.#transport.needsToken ? { progressToken: id } : undefined;
      return { ...request(method, params), id, _meta: meta };
    });
    const text = JSON.stringify(isBatch ? requests : requests[0]);
    const ids = requests.map(({ id }) => id);
    const replies = ids.map(
      (id) => new Promise((resolve, reject) => this.#calls.set(id, { resolve, reject, stream })),
    );
    const isOver = () => !ids.some((id) => this.#calls.has(id));
    /** @param {unknown} error */
    const fail = (error) => ids.forEach((id) => this.#take(id)?.reject(error));
    const over = Promise.allSettled(replies);
    const exchange = { ids, text, stream, isOver, over, sent: () => {}, fail };
    /** @param {unknown} reason */
    const cancel = (reason) => {
      if (isOver()) return;
      this.#transport.cancel(exchange, ids.filter((id) => this.#calls.has(id)));
      stream?.drop();
      fail(reason);
    };
    over.then(watch(options, cancel));
    this.#send(exchange);
    return { replies, cancel };
  }

  /** @param {Exchange} exchange */
  #send(exchange) {
    if (this.#state === "closed") exchange.fail(new ConnectionError("the client is closed", false));
    else this.#transport.send(exchange);
  }

  /** @param {number} id */
  #take(id) {
    const call = this.#calls.get(id);
    this.#calls.delete(id);
    return call;
  }

  /** @param {string} text @param {Source} source */
  #receive(text, { refuse, drain }) {
    const document = JSON.parse(text);
    for (const message of Array.isArray(document) ? document : [document]) {
      const { method, params, id, result, error } = message;
      if (method === "$/progress") {
        this.#calls.get(params.token)?.stream?.push(params.value, text.length);
      } else if (method === "$/drain") {
        drain?.(params);
      } else if (method !== undefined) {
        this.#publish({ method, params }, text.length);
      } else if (id !== null && id !== undefined) {
        const call = this.#take(id);
        if (error) call?.reject(new RpcError(error));
        else call?.resolve(result);
      } else {
        refuse(new RpcError(error));
      }
    }
  }

  /** @param {Notification} notification @param {number} bytes */
  #publish(notification, bytes) {
    for (const channel of this.#channels) channel.push(notification, bytes);
    for (const callback of this.#callbacks.get(notification.method) ?? []) {
      try {
        callback(notification.params);
      } catch (error) {
        // Reported as an uncaught exception, so that it stops no other callback.
        queueMicrotask(() => {
          throw error;
        });
      }
    }
  }

  /** @param {State} state */
  #setState(state) {
    if (this.#state === state) return;
    this.#state = state;
    if (state === "closed") {
      for (const channel of this.#channels) channel.end();
      this.#channels.clear();
    }
    this.dispatchEvent(new Event("statechange"));
  }
}

/** @param {string} method @param {Params} [params] */
function request(method, params) {
  // The server's error for such a notification has no id, so it would fail other calls.
  const kind = params === null ? "null" : typeof params;
  if (!["object", "undefined"].includes(kind)) {
    throw new TypeError(`params: expected an array or an object, got ${kind}`);
  }
  return { jsonrpc: "2.0", method, params };
}

/**
 * Cancels when the signal aborts, or when the time is over. Returns a function that stops this.
 * @param {CallOptions} options @param {(reason: unknown) => void} cancel
 */
function watch({ signal, timeoutMs }, cancel) {
  const abort = () => cancel(signal?.reason);
  signal?.addEventListener("abort", abort);
  const expire = () => cancel(new DOMException(`no reply in ${timeoutMs} ms`, "TimeoutError"));
  const isLimited = timeoutMs != null && timeoutMs <= TIMER_MS_MAX;
  const timer = isLimited ? setTimeout(expire, timeoutMs) : undefined;
  return () => {
    signal?.removeEventListener("abort", abort);
    clearTimeout(timer);
  };
}

/** A WebSocket, and the documents with calls in flight on it. */
class Connection {
  /** @type {Map<Exchange, number>} each with the number of its message, from 1 */
  exchanges = new Map();
  /** How many messages the server has read at most. */
  read = Infinity;
  #sent = 0;

  /** @param {any} socket */
  constructor(socket) {
    this.socket = socket;
  }

  /** When it was opened. @type {number | undefined} */
  openedAtMs;

  get isOpen() {
    return this.socket.readyState === 1;
  }

  /** @param {Exchange} exchange */
  send(exchange) {
    this.#write(exchange.text);
    this.exchanges.set(exchange, this.#sent);
    exchange.sent();
  }

  /** @param {number[]} ids */
  cancel(ids) {
    if (!this.isOpen) return;
    for (const id of ids) {
      const cancel = { jsonrpc: "2.0", method: "$/cancelRequest", params: { id } };
      this.#write(JSON.stringify(cancel));
    }
  }

  /** Cancels the calls in flight: the error could be that of any. @param {RpcError} error */
  refuse(error) {
    const exchanges = [...this.exchanges.keys()].filter(({ isOver }) => !isOver());
    const message = `the server refused a request without naming its id: ${error.message}`;
    const unknown = new ConnectionError(message, true, { cause: error });
    for (const exchange of exchanges) {
      this.cancel(exchange.ids);
      exchange.fail(exchanges.length > 1 ? unknown : error);
    }
  }

  /** @param {string} text */
  #write(text) {
    this.socket.send(text);
    this.#sent += 1;
  }
}

/**
 * Messages over one WebSocket at a time. If its server drains, the calls in flight on it stay there,
 * and new ones wait for another connection.
 */
class SocketTransport {
  /** @type {Set<Exchange>} that waits for a connection */
  #queue = new Set();
  /** @type {Set<Connection>} that are not closed */
  #connections = new Set();
  /** @type {Connection | undefined} of new calls; the others drain */
  #current;
  #owner;
  #attempts = 0;
  #isClosed = false;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #timer;
  needsToken = true;

  /** @param {Owner} owner */
  constructor(owner) {
    this.#owner = owner;
    this.#connect();
  }

  #connect() {
    const { WebSocket = globalThis.WebSocket, token } = this.#owner.options;
    if (!WebSocket) throw new TypeError("no global WebSocket: pass { WebSocket } of package ws");
    this.#owner.setState("connecting");
    // A listener may have closed the client.
    if (this.#isClosed) return;
    // Browsers cannot set headers, so the token is sent as a subprotocol.
    const bearer = token === undefined ? [] : [`bearer.${base64url(token)}`];
    const connection = new Connection(new WebSocket(this.#owner.url, ["jsonrpc", ...bearer]));
    this.#current = connection;
    this.#connections.add(connection);
    this.#listen(connection);
  }

  /** @param {Connection} connection */
  #listen(connection) {
    const { socket } = connection;
    /** @type {Source} */
    const source = {
      refuse: (error) => connection.refuse(error),
      drain: (params) => this.#drain(connection, params),
    };
    socket.onopen = () => {
      connection.openedAtMs = performance.now();
      for (const exchange of this.#queue) this.send(exchange);
      this.#queue.clear();
      this.#owner.setState("open");
      this.#closeDrained();
    };
    socket.onmessage = (/** @type {{ data: string }} */ { data }) => {
      try {
        this.#owner.receive(data, source);
      } catch {
        socket.close(4002, "not JSON-RPC");
      }
    };
    // The event `close` follows, and says more. Node 22 omits it if it cannot connect.
    socket.onerror = () => socket.readyState || socket.onclose?.({ code: 1006, reason: "" });
    socket.onclose = (/** @type {{ code: number, reason: string }} */ { code, reason }) => {
      socket.onclose = null;
      const verb = connection.openedAtMs === undefined ? "could not open" : "lost";
      const why = `${code} ${reason}`.trimEnd();
      const message = `${verb} the connection to ${this.#owner.url}: ${why}`;
      this.#connections.delete(connection);
      this.#settle(connection, message);
      if (connection === this.#current) this.#handleLoss(connection, message);
    };
  }

  /** @param {Connection} connection @param {{ read?: number }} [params] */
  #drain(connection, { read = Infinity } = {}) {
    connection.read = read;
    if (connection !== this.#current || this.#owner.options.reconnect === false) return;
    this.#current = undefined;
    this.#reconnect(connection, true);
  }

  /** Closes connections that drain and have no calls, once there is another one. */
  #closeDrained() {
    if (!this.#current?.isOpen) return;
    for (const connection of this.#connections) {
      if (connection !== this.#current && !connection.exchanges.size) connection.socket.close(1000);
    }
  }

  /**
   * Sends the calls again that a server has not read in its drain, and fails the others.
   * @param {Connection} connection @param {string} message
   */
  #settle(connection, message) {
    for (const [exchange, number] of connection.exchanges) {
      const mayHaveRun = number <= connection.read;
      if (mayHaveRun || connection === this.#current) {
        exchange.fail(new ConnectionError(message, mayHaveRun));
      } else if (!exchange.isOver()) {
        this.send(exchange);
      }
    }
  }

  /** @param {Connection} connection @param {string} message */
  #handleLoss(connection, message) {
    const { reconnect = true } = this.#owner.options;
    // A call that was made while an open connection closed or drained waits for the next attempt.
    const isFailure = connection.openedAtMs === undefined && !this.#connections.size;
    if (!reconnect || isFailure) this.#failQueue(message);
    if (reconnect) this.#reconnect(connection, false);
    else this.#owner.setState("closed");
  }

  /**
   * Connects again, after a delay that doubles with each connection that does not outlast it: also a
   * server that drains or closes each one gets few.
   * @param {Connection} last @param {boolean} isDrained whether the last one takes no more calls, so
   * that new ones wait: the first attempt then needs no delay
   */
  #reconnect({ openedAtMs = Infinity }, isDrained) {
    const { minDelayMs = 200, maxDelayMs = 30_000 } = this.#owner.options;
    const limitMs = () => Math.min(maxDelayMs, TIMER_MS_MAX, minDelayMs * 2 ** this.#attempts);
    const hasLasted = performance.now() - openedAtMs > limitMs();
    if (hasLasted) this.#attempts = 0;
    if (hasLasted && isDrained) return this.#connect();
    const delayMs = limitMs() * (0.5 + Math.random() / 2);
    this.#attempts += 1;
    this.#timer = setTimeout(() => this.#connect(), delayMs);
    this.#owner.setState("waiting");
  }

  /** @param {string} message */
  #failQueue(message) {
    for (const exchange of this.#queue) exchange.fail(new ConnectionError(message, false));
    this.#queue.clear();
  }

  /** @param {Exchange} exchange */
  send(exchange) {
    const connection = this.#current;
    if (!connection?.isOpen) return void this.#queue.add(exchange);
    connection.send(exchange);
    exchange.over.then(() => {
      connection.exchanges.delete(exchange);
      this.#closeDrained();
    });
  }

  /** @param {Exchange} exchange @param {number[]} ids */
  cancel(exchange, ids) {
    this.#queue.delete(exchange);
    for (const connection of this.#connections) {
      if (connection.exchanges.has(exchange)) connection.cancel(ids);
    }
  }

  close() {
    this.#isClosed = true;
    clearTimeout(this.#timer);
    for (const { socket } of this.#connections) {
      socket.onopen = socket.onmessage = socket.onclose = null;
      socket.close(1000);
    }
    this.#failQueue("the client was closed");
  }
}

/** One request a document. A stream is read as its items are read, so that the server pauses it. */
class HttpTransport {
  /** @type {Map<Exchange, AbortController>} */
  #requests = new Map();
  #reading = new WeakSet();
  #owner;
  needsToken = false;

  /** @param {Owner} owner */
  constructor(owner) {
    this.#owner = owner;
    owner.setState("open");
  }

  /** @param {Exchange} exchange */
  send(exchange) {
    const controller = new AbortController();
    this.#requests.set(exchange, controller);
    const messages = this.#fetch(exchange, controller.signal);
    if (exchange.stream) exchange.stream.pull = () => void this.#read(exchange, messages);
    this.#read(exchange, messages);
  }

  /**
   * Reads to the end; of a stream one message, and more while its reader waits.
   * @param {Exchange} exchange @param {AsyncGenerator<string>} messages
   */
  async #read(exchange, messages) {
    if (this.#reading.has(exchange)) return;
    this.#reading.add(exchange);
    try {
      do {
        const { value, done } = await messages.next();
        if (done) return this.#end(exchange, "the response has no reply");
        this.#owner.receive(value, { refuse: exchange.fail });
      } while (!exchange.stream || exchange.stream.isAwaited || exchange.isOver());
      this.#reading.delete(exchange);
    } catch (error) {
      this.#end(exchange, error instanceof Error ? error.message : String(error), error);
    }
  }

  /** @param {Exchange} exchange @param {string} message @param {unknown} [cause] */
  #end(exchange, message, cause) {
    this.#requests.delete(exchange);
    if (!cause) exchange.sent();
    exchange.fail(new ConnectionError(`${this.#owner.url}: ${message}`, true, { cause }));
  }

  /** @param {Exchange} exchange @param {AbortSignal} signal */
  async *#fetch({ text, stream }, signal) {
    const { url, options } = this.#owner;
    const headers = new Headers(options.headers);
    headers.set("Content-Type", "application/json");
    if (stream) headers.set("Accept", "text/event-stream");
    if (options.token !== undefined) headers.set("Authorization", `Bearer ${options.token}`);
    const response = await fetch(url, { method: "POST", body: text, headers, signal });
    const [type] = (response.headers.get("Content-Type") ?? "").toLowerCase().split(/[ \t]*;/);
    if (type === "text/event-stream" && response.status === 200 && response.body) {
      return yield* events(response.body);
    }
    const body = await response.text();
    if (!response.ok && type !== "application/json") {
      throw new Error(`${response.status} ${response.statusText} ${body}`);
    }
    if (body) yield body;
  }

  /** @param {Exchange} exchange */
  cancel(exchange) {
    this.#requests.get(exchange)?.abort();
    this.#requests.delete(exchange);
  }

  close() {
    for (const controller of this.#requests.values()) controller.abort();
  }
}

/**
 * The data of each server-sent event that has some (WHATWG HTML, 9.2.6).
 * @param {ReadableStream<Uint8Array>} body
 */
async function* events(body) {
  // It drops a byte order mark.
  const decoder = new TextDecoder();
  const reader = body.getReader();
  /** @type {string[]} */
  let pieces = [];
  /** @type {string[]} */
  let data = [];
  let isAfterReturn = false;
  for (let chunk = await reader.read(); !chunk.done; chunk = await reader.read()) {
    let piece = decoder.decode(chunk.value, { stream: true });
    if (!piece) continue;
    // A line feed that follows a carriage return ends no other line.
    if (isAfterReturn && piece[0] === "\n") piece = piece.slice(1);
    isAfterReturn = piece.endsWith("\r");
    pieces.push(piece);
    // A long event is joined once, at its end.
    if (!/[\r\n]/.test(piece)) continue;
    const lines = pieces.join("").split(/\r\n?|\n/);
    pieces = [lines.pop() ?? ""];
    for (const line of lines) {
      if (line === "data" || line.startsWith("data:")) data.push(line.slice(line[5] === " " ? 6 : 5));
      if (line) continue;
      const text = data.join("\n");
      data = [];
      if (text.trim()) yield text;
    }
  }
}

/** @param {string} text */
function base64url(text) {
  const bytes = String.fromCharCode(...new TextEncoder().encode(text));
  return btoa(bytes).replace(/\+/g, "-").replace(/\//g, "_").replace(/=/g, "");
}
