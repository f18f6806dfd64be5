/**
 * A client for ucall's JSON-RPC over WebSocket and HTTP, for browsers and Node. No dependencies.
 *
 *     const client = new Client("ws://localhost:8545/ws");
 *     await client.call("sum", { a: 2, b: 3 });
 *     await client.call("invert", { pixels: new NDArray(pixels, [height, width]) }).array();
 *     for await (const token of client.stream("generate", { prompt })) show(token);
 *
 * A `Client` keeps the calls in flight by their ids. A transport sends a document of one or more
 * calls and hands each message of the server back, or fails the calls of a document. A call runs at
 * most once: if its connection is lost, it fails, because it may have run. Only a call that a server
 * has not read in its drain is sent again.
 *
 * Arrays and bytes travel as the parts of a frame, which are the bytes of their base64 in JSON:
 *
 *     u8 0xB1, u8 version 1, u16 parts, u32 length of the JSON, u64 length of each part, the JSON;
 *     each part after zero bytes up to a multiple of 64. `{"$part": 0}` is the place of the first.
 *
 * Whether a server takes frames is `unknown` at first. Over HTTP the first frame is its own trial:
 * a server that cannot read it has run nothing, and gets the call again as JSON. A WebSocket might
 * be closed, and other calls with it, so the trial has a connection of its own.
 */

/** @import { CallOptions, ClientOptions, DType, Notification, Params } from "./ucall.js" */
/** @import { State, TypedArray } from "./ucall.js" */
/** @template [T=any] @typedef {{ resolve(to: T): void, reject(reason: unknown): void }} Settler */
/** @typedef {Settler & { stream?: Stream<any> }} Call a call in flight */
/**
 * @typedef {object} Exchange a document, and the calls in it
 * @property {number[]} ids
 * @property {Message} message
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
 * @typedef {object} Frames what is known of the server
 * @property {"unknown" | "yes" | "no"} state whether it takes them
 * @property {boolean} areAsked whether results are read as arrays or bytes, so that all calls ask
 * for parts by being frames
 */
/**
 * @typedef {object} Owner the client, for its transport
 * @property {string} url
 * @property {ClientOptions} options
 * @property {Frames} frames
 * @property {(data: string | ArrayBuffer, source: Source) => void} receive a message of the server
 * @property {(state: State) => void} setState
 */

/** A longer timer would expire at once. */
const TIMER_MS_MAX = 2 ** 31 - 1;
const FRAME_TYPE = "application/vnd.ucall.parts";
/** A server's default. A document with more parts is sent as JSON. */
const PARTS_MAX = 1024;

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

/**
 * The promise of a result: JSON, in which arrays, images and bytes are base64. `array` and `bytes`
 * read a result that is one of these. @template T @extends {Promise<T>}
 */
export class Reply extends Promise {
  #ask;

  /** What `then` returns. */
  static get [Symbol.species]() {
    return Promise;
  }

  /**
   * @param {(resolve: (to: any) => void, reject: (reason: unknown) => void) => void} executor
   * @param {() => void} ask called when the result is read as an array or bytes
   */
  constructor(executor, ask) {
    super(executor);
    this.#ask = ask;
  }

  /**
   * @template [R=T] @template [E=never]
   * @param {((result: T) => R | PromiseLike<R>) | null} [onResult]
   * @param {((reason: any) => E | PromiseLike<E>) | null} [onError]
   * @returns {Promise<R | E>}
   */
  then(onResult, onError) {
    return super.then(asJson).then(onResult, onError);
  }

  /** The array of a result. It rejects with a `TypeError` for another result. */
  array() {
    this.#ask();
    return super.then((/** @type {any} */ result) => decodeArray(unwrapped(result)));
  }

  /** The bytes of a result, for example of an image. It rejects with a `TypeError` for another. */
  bytes() {
    this.#ask();
    return super.then((/** @type {any} */ result) => decodeBytes(unwrapped(result)));
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
  /** @type {Frames} */
  #frames = { state: "unknown", areAsked: false };

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
      frames: this.#frames,
      receive: (data, source) => this.#receive(data, source),
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
   * @returns {Reply<T>}
   */
  call(method, params, options) {
    const ask = () => void (this.#frames.areAsked = true);
    const begin = () => this.#begin([{ method, params }], options, { takesParts: true });
    return new Reply((resolve) => resolve(begin().replies[0]), ask);
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
      const over = Promise.resolve();
      const message = encode(request(method, params));
      this.#send(message, { ids: [], isOver: () => false, over, sent: resolve, fail: reject });
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
   * @param {{ isBatch?: boolean, stream?: Stream<any>, takesParts?: boolean }} [form]
   */
  #begin(calls, options = {}, { isBatch = false, stream, takesParts = false } = {}) {
    options.signal?.throwIfAborted();
    const requests = calls.map(({ method, params }) => {
      const id = ++this.#lastId;
      const meta = stream && this.#transport.needsToken ? { progressToken: id } : undefined;
      return { ...request(method, params), id, _meta: meta };
    });
    const message = encode(isBatch ? requests : requests[0]);
    const ids = requests.map(({ id }) => id);
    const replies = ids.map(
      (id) =>
        new Promise((settle, reject) => {
          const resolve = takesParts ? settle : (/** @type {any} */ to) => settle(asJson(to));
          this.#calls.set(id, { resolve, reject, stream });
        }),
    );
    const isOver = () => !ids.some((id) => this.#calls.has(id));
    /** @param {unknown} error */
    const fail = (error) => ids.forEach((id) => this.#take(id)?.reject(error));
    const over = Promise.allSettled(replies);
    const exchange = { ids, stream, isOver, over, sent: () => {}, fail };
    /** @param {unknown} reason */
    const cancel = (reason) => {
      if (isOver()) return;
      const inFlight = ids.filter((id) => this.#calls.has(id));
      this.#transport.cancel(/** @type {Exchange} */ (exchange), inFlight);
      stream?.drop();
      fail(reason);
    };
    over.then(watch(options, cancel));
    this.#send(message, exchange);
    return { replies, cancel };
  }

  /** @param {Message | Promise<Message>} message @param {Omit<Exchange, "message">} exchange */
  #send(message, exchange) {
    if (message instanceof Promise) {
      const send = (/** @type {Message} */ read) => exchange.isOver() || this.#send(read, exchange);
      return void message.then(send, exchange.fail);
    }
    if (this.#state === "closed") exchange.fail(new ConnectionError("the client is closed", false));
    else this.#transport.send(Object.assign(exchange, { message }));
  }

  /** @param {number} id */
  #take(id) {
    const call = this.#calls.get(id);
    this.#calls.delete(id);
    return call;
  }

  /** @param {string | ArrayBuffer} data @param {Source} source */
  #receive(data, { refuse, drain }) {
    const { text, document, hasParts } = decode(data);
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
        else call?.resolve(hasParts ? new PartedResult(result) : result);
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
  const kind = params === null ? "null" : piecesOf(params) ? "binary data" : typeof params;
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

  /** @param {Exchange} exchange @param {boolean} isFrame */
  send(exchange, isFrame) {
    const { message } = exchange;
    this.#write(isFrame ? message.frame : message.json);
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

  /** @param {string | Uint8Array} data */
  #write(data) {
    this.socket.send(data);
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
  /** Of the trial whether the server takes frames. @type {any} */
  #trial;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #timer;
  needsToken = true;

  /** @param {Owner} owner */
  constructor(owner) {
    this.#owner = owner;
    this.#connect();
  }

  #connect() {
    const { WebSocket = globalThis.WebSocket } = this.#owner.options;
    if (!WebSocket) throw new TypeError("no global WebSocket: pass { WebSocket } of package ws");
    this.#owner.setState("connecting");
    // A listener may have closed the client.
    if (this.#isClosed) return;
    const connection = new Connection(this.#open());
    this.#current = connection;
    this.#connections.add(connection);
    this.#listen(connection);
  }

  #open() {
    const { WebSocket = globalThis.WebSocket, token } = this.#owner.options;
    // Browsers cannot set headers, so the token is sent as a subprotocol.
    const bearer = token === undefined ? [] : [`bearer.${base64url(token)}`];
    const socket = new WebSocket(this.#owner.url, ["jsonrpc", ...bearer]);
    socket.binaryType = "arraybuffer";
    return socket;
  }

  /** Learns whether the server takes frames: it replies to one, if only with an error. */
  #try() {
    if (this.#trial) return;
    const { frames } = this.#owner;
    const socket = (this.#trial = this.#open());
    let isSent = false;
    socket.onopen = () => {
      socket.send(new Message(TRIAL).frame);
      isSent = true;
    };
    socket.onmessage = (/** @type {{ data: unknown }} */ { data }) => {
      // Notifications say nothing of frames. The error for a document that is not read has no id.
      const { id } = JSON.parse(String(data));
      if (id === undefined) return;
      frames.state = id === TRIAL_ID ? "yes" : "no";
      socket.close(1000);
    };
    socket.onerror = () => socket.readyState || socket.onclose?.();
    socket.onclose = () => {
      socket.onclose = null;
      this.#trial = undefined;
      if (isSent && frames.state === "unknown") frames.state = "no";
    };
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
    socket.onmessage = (/** @type {{ data: string | ArrayBuffer }} */ { data }) => {
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
    const { frames } = this.#owner;
    const isFrame = exchange.message.isFrame(frames);
    if (isFrame && frames.state === "unknown") this.#try();
    connection.send(exchange, isFrame && frames.state === "yes");
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
    this.#trial?.close(1000);
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
   * @param {Exchange} exchange @param {AsyncGenerator<string | ArrayBuffer>} messages
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

  /**
   * @param {Exchange} exchange @param {AbortSignal} signal
   * @returns {AsyncGenerator<string | ArrayBuffer>}
   */
  async *#fetch(exchange, signal) {
    const { message, stream } = exchange;
    const { url, options, frames } = this.#owner;
    const isFrame = message.isFrame(frames);
    const headers = new Headers(options.headers);
    headers.set("Content-Type", isFrame ? FRAME_TYPE : "application/json");
    if (stream) headers.set("Accept", "text/event-stream");
    if (options.token !== undefined) headers.set("Authorization", `Bearer ${options.token}`);
    const sent = isFrame ? message.frame : message.json;
    const response = await fetch(url, { method: "POST", body: sent, headers, signal });
    const [type] = (response.headers.get("Content-Type") ?? "").toLowerCase().split(/[ \t]*;/);
    if (type === "text/event-stream" && response.status === 200 && response.body) {
      return yield* events(response.body);
    }
    const body = type === FRAME_TYPE ? await response.arrayBuffer() : await response.text();
    if (isFrame && isUnreadable(response, type, body)) {
      frames.state = "no";
      return yield* this.#fetch(exchange, signal);
    }
    if (isFrame && response.ok) frames.state = "yes";
    if (!response.ok && type !== "application/json") {
      throw new Error(`${response.status} ${response.statusText} ${body}`);
    }
    if (typeof body !== "string" || body) yield body;
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
  const base64 = encodeBase64(new TextEncoder().encode(text));
  return base64.replace(/\+/g, "-").replace(/\//g, "_").replace(/=/g, "");
}

/**
 * Whether a server has read no request in a frame, and so has run nothing.
 * @param {Response} response @param {string} type @param {string | ArrayBuffer} body
 */
function isUnreadable({ status }, type, body) {
  if ([400, 415, 422].includes(status)) return true;
  if (type !== "application/json" || typeof body !== "string" || body.length > 65_536) return false;
  const { id = null, error } = JSON.parse(body || "{}");
  return id === null && [-32700, -32600].includes(error?.code);
}

const TRIAL_ID = "ucall.js: frame?";
const TRIAL = JSON.stringify({ jsonrpc: "2.0", method: "$/frame", id: TRIAL_ID });
/** The places of parts in the text of `JSON.stringify`. Within a string the quotes are escaped. */
const PLACES = /\{"\$part":(-?[\d.e+]+)\}/g;

/** A document, as JSON and as a frame. */
class Message {
  #text;
  #parts;
  /** @type {Uint8Array<ArrayBuffer> | undefined} */
  #frame;

  /** @param {string} text @param {Uint8Array[][]} parts each in pieces */
  constructor(text, parts = []) {
    this.#text = text;
    this.#parts = parts.map((pieces) => joined(pieces));
    const places = parts.length && text.match(PLACES)?.length;
    if (places !== parts.length) {
      throw new TypeError('params: {"$part": …} beside binary data stands for a part of it');
    }
  }

  /** Whether to send it as a frame. @param {Frames} frames */
  isFrame({ state, areAsked }) {
    if (state === "no" || this.#parts.length > PARTS_MAX) return false;
    // An object of the caller would be taken for the place of a part.
    return this.#parts.length > 0 || (areAsked && this.#text.search(PLACES) < 0);
  }

  get json() {
    if (!this.#parts.length) return this.#text;
    return this.#text.replace(PLACES, (_, index) => `"${encodeBase64(this.#parts[index])}"`);
  }

  get frame() {
    return (this.#frame ??= encodeFrame(this.#text, this.#parts));
  }
}

/**
 * The message of a document, or a promise of it while blobs are read.
 * @param {unknown} document
 */
function encode(document) {
  /** @type {Pieces[]} */
  const parts = [];
  const text = JSON.stringify(
    replaced(document, (value) => {
      const pieces = piecesOf(value);
      return pieces && { $part: parts.push(pieces) - 1 };
    }),
  );
  const isRead = parts.every((pieces) => pieces.every((piece) => !(piece instanceof Blob)));
  if (isRead) return new Message(text, /** @type {Uint8Array[][]} */ (parts));
  const reads = parts.map((pieces) => Promise.all(pieces.map(read)));
  return Promise.all(reads).then((arrived) => new Message(text, arrived));
}

/** @typedef {(Uint8Array | Blob)[]} Pieces of one binary value */

/** @param {Uint8Array | Blob} piece */
async function read(piece) {
  return piece instanceof Blob ? new Uint8Array(await piece.arrayBuffer()) : piece;
}

/**
 * The pieces of a binary value: of a `.npy`, or of bytes.
 * @param {any} value @returns {Pieces | undefined}
 */
function piecesOf(value) {
  if (value instanceof NDArray) return [npyHeader(value), bytesOf(value.data)];
  if (value instanceof Blob) return [value];
  const kind = value?.[Symbol.toStringTag];
  if (kind === "ArrayBuffer" || kind === "SharedArrayBuffer") return [new Uint8Array(value)];
  if (!ArrayBuffer.isView(value)) return undefined;
  const isArray = kind !== "Uint8Array" && kind !== "DataView";
  return isArray ? piecesOf(new NDArray(/** @type {any} */ (value))) : [bytesOf(value)];
}

/**
 * A JSON value with others in place of those for which `replace` returns one.
 * @param {any} value @param {(value: any) => unknown} replace @param {unknown[]} around
 * @returns {any}
 */
function replaced(value, replace, around = []) {
  if (typeof value !== "object" || value === null) return value;
  const other = replace(value);
  if (other !== undefined) return other;
  // `JSON.stringify` reports a cycle, and asks other objects for their JSON.
  if (typeof value.toJSON === "function" || around.includes(value)) return value;
  around.push(value);
  let copy = value;
  if (Array.isArray(value)) {
    for (let at = 0; at < value.length; at++) {
      const item = replaced(value[at], replace, around);
      if (Object.is(item, value[at])) continue;
      if (copy === value) copy = [...value];
      copy[at] = item;
    }
  } else {
    for (const key of Object.keys(value)) {
      const member = replaced(value[key], replace, around);
      if (Object.is(member, value[key])) continue;
      if (copy === value) copy = { ...value };
      const settings = { value: member, enumerable: true, configurable: true, writable: true };
      Object.defineProperty(copy, key, settings);
    }
  }
  around.pop();
  return copy;
}

/** A part of a frame in place of a base64 string. */
class Part {
  /** @param {Uint8Array<ArrayBuffer>} bytes */
  constructor(bytes) {
    this.bytes = bytes;
  }
}

/** A result with parts in it. */
class PartedResult {
  /** @param {unknown} value */
  constructor(value) {
    this.value = value;
  }
}

/** @param {any} result */
function unwrapped(result) {
  return result instanceof PartedResult ? result.value : result;
}

/** A result with base64 in place of parts. @param {any} result */
function asJson(result) {
  if (!(result instanceof PartedResult)) return result;
  return replaced(result.value, (it) => (it instanceof Part ? encodeBase64(it.bytes) : undefined));
}

/**
 * Parses a message of the server, which is text or a frame.
 * @param {string | ArrayBuffer} data @returns {{ text: string, document: any, hasParts: boolean }}
 */
function decode(data) {
  if (typeof data === "string") return { text: data, document: JSON.parse(data), hasParts: false };
  const { text, parts } = decodeFrame(data);
  if (!parts.length) return { text, document: JSON.parse(text), hasParts: false };
  const document = JSON.parse(text, (_, value) => {
    const index = value?.$part;
    if (!Number.isInteger(index) || Object.keys(value).length > 1) return value;
    const bytes = parts[index];
    if (!bytes) throw new TypeError(`the frame has no unused part ${index}`);
    delete parts[index];
    return new Part(bytes);
  });
  return { text, document, hasParts: true };
}

/** @param {number} offset */
function aligned(offset) {
  return Math.ceil(offset / 64) * 64;
}

/** @param {string} text @param {Uint8Array[]} parts */
function encodeFrame(text, parts) {
  const json = new TextEncoder().encode(text);
  const jsonStart = 8 + 8 * parts.length;
  /** @type {number[]} */
  const starts = [];
  let end = jsonStart + json.length;
  for (const { length } of parts) {
    starts.push(aligned(end));
    end = aligned(end) + length;
  }
  const frame = new Uint8Array(end);
  const view = new DataView(frame.buffer);
  view.setUint8(0, 0xb1);
  view.setUint8(1, 1);
  view.setUint16(2, parts.length, true);
  view.setUint32(4, json.length, true);
  frame.set(json, jsonStart);
  parts.forEach((part, at) => {
    view.setBigUint64(8 + 8 * at, BigInt(part.length), true);
    frame.set(part, starts[at]);
  });
  return frame;
}

/** The text of a frame, and views of its parts. @param {ArrayBuffer} frame */
function decodeFrame(frame) {
  const view = new DataView(frame);
  const isFrame = frame.byteLength >= 8 && view.getUint8(0) === 0xb1 && view.getUint8(1) === 1;
  if (!isFrame) throw new TypeError("expected a frame of version 1");
  const jsonStart = 8 + 8 * view.getUint16(2, true);
  let end = jsonStart + view.getUint32(4, true);
  if (end > frame.byteLength) throw new TypeError("the frame is shorter than its JSON");
  const json = new Uint8Array(frame, jsonStart, end - jsonStart);
  const parts = [];
  for (let at = 8; at < jsonStart; at += 8) {
    const start = aligned(end);
    const length = Number(view.getBigUint64(at, true));
    end = start + length;
    if (end > frame.byteLength) throw new TypeError("the frame is shorter than its parts");
    parts.push(new Uint8Array(frame, start, length));
  }
  if (end !== frame.byteLength) throw new TypeError("the frame is longer than its parts");
  return { text: new TextDecoder("utf-8", { fatal: true }).decode(json), parts };
}

/** @param {Uint8Array[]} pieces a copy of them */
function joined(pieces) {
  const bytes = new Uint8Array(pieces.reduce((length, piece) => length + piece.length, 0));
  let at = 0;
  for (const piece of pieces) {
    bytes.set(piece, at);
    at += piece.length;
  }
  return bytes;
}

/** @param {ArrayBufferView} view */
function bytesOf({ buffer, byteOffset, byteLength }) {
  return new Uint8Array(buffer, byteOffset, byteLength);
}

/** @param {Uint8Array} bytes @returns {string} */
function encodeBase64(bytes) {
  if ("toBase64" in bytes) return /** @type {any} */ (bytes).toBase64();
  const pieces = [];
  for (let at = 0; at < bytes.length; at += 8192) {
    pieces.push(String.fromCharCode(...bytes.subarray(at, at + 8192)));
  }
  return btoa(pieces.join(""));
}

/** @param {string} text @returns {Uint8Array<ArrayBuffer>} */
function decodeBase64(text) {
  if ("fromBase64" in Uint8Array) return /** @type {any} */ (Uint8Array).fromBase64(text);
  const characters = atob(text);
  const bytes = new Uint8Array(characters.length);
  for (let at = 0; at < bytes.length; at++) bytes[at] = characters.charCodeAt(at);
  return bytes;
}

/**
 * The bytes of a base64 string of a result.
 * @param {unknown} value
 */
export function decodeBytes(value) {
  if (value instanceof Part) return value.bytes;
  if (typeof value !== "string") throw new TypeError(`expected base64, got ${nameOf(value)}`);
  try {
    return decodeBase64(value);
  } catch (error) {
    throw new TypeError("expected base64, got another string", { cause: error });
  }
}

/**
 * The array of a base64 string of a result, which is that of a `.npy`.
 * @param {unknown} value
 */
export function decodeArray(value) {
  return decodeNpy(decodeBytes(value));
}

/** @param {any} value */
function nameOf(value) {
  if (typeof value !== "object") return typeof value;
  return value === null ? "null" : Array.isArray(value) ? "an array" : "an object";
}

/** Each dtype with its code in a `.npy`, and the class of its items. Complex numbers are pairs. */
const DTYPES = /** @type {[DType, string, string][]} */ ([
  ["uint8", "u1", "Uint8Array"],
  ["uint8", "u1", "Uint8ClampedArray"],
  ["uint16", "u2", "Uint16Array"],
  ["uint32", "u4", "Uint32Array"],
  ["uint64", "u8", "BigUint64Array"],
  ["int8", "i1", "Int8Array"],
  ["int16", "i2", "Int16Array"],
  ["int32", "i4", "Int32Array"],
  ["int64", "i8", "BigInt64Array"],
  ["float16", "f2", "Float16Array"],
  ["float32", "f4", "Float32Array"],
  ["float64", "f8", "Float64Array"],
  ["complex64", "c8", "Float32Array"],
  ["complex128", "c16", "Float64Array"],
  ["bool", "b1", "Uint8Array"],
  // Their bits.
  ["float16", "f2", "Uint16Array"],
]);
const IS_LITTLE_ENDIAN = new Uint8Array(new Uint16Array([1]).buffer)[0] === 1;
/** A limit of NumPy. */
const DIMENSIONS_MAX = 64;
const HEADER_BYTES_MAX = 10_000;

/** An array of numbers, in row-major order. */
export class NDArray {
  /**
   * @param {TypedArray} data @param {number[]} [shape] one dimension by default
   * @param {DType} [dtype] that of the data by default
   */
  constructor(data, shape, dtype) {
    const kind = /** @type {any} */ (data)?.[Symbol.toStringTag];
    const found = DTYPES.find(([name, , Items]) => Items === kind && name === (dtype ?? name));
    if (!found) {
      throw new TypeError(`expected a typed array${dtype ? ` of ${dtype}` : ""}, got ${kind}`);
    }
    const length = data.length / itemLength(found[0]);
    this.data = data;
    this.shape = shape ?? [length];
    this.dtype = found[0];
    const isShape = this.shape.every((side) => Number.isSafeInteger(side) && side >= 0);
    if (!isShape || product(this.shape) !== length) {
      throw new RangeError(`the shape [${this.shape}] is not that of ${length} items`);
    }
  }
}

/** @param {DType} dtype */
function itemLength(dtype) {
  return dtype.startsWith("complex") ? 2 : 1;
}

/** @param {number[]} shape */
function product(shape) {
  return shape.reduce((items, side) => items * side, 1);
}

/** @param {NDArray} array */
function npyHeader({ shape, dtype }) {
  const [, code] = DTYPES.find(([name]) => name === dtype) ?? [];
  const order = code?.endsWith("1") ? "|" : IS_LITTLE_ENDIAN ? "<" : ">";
  const sides = shape.length === 1 ? `${shape},` : shape.join(", ");
  const text = `{'descr': '${order}${code}', 'fortran_order': False, 'shape': (${sides}), }`;
  const length = aligned(10 + text.length + 1);
  const header = new TextEncoder().encode(`?NUMPY????${text.padEnd(length - 11)}\n`);
  header.set([0x93]);
  header.set([1, 0, (length - 10) & 255, (length - 10) >> 8], 6);
  return header;
}

/**
 * The array of a `.npy`, over the memory of `bytes` unless its order or place forbids that.
 * @param {Uint8Array<ArrayBuffer>} bytes
 */
function decodeNpy(bytes) {
  const { start, isBigEndian, code, isFortran, shape } = decodeNpyHeader(bytes);
  const row = DTYPES.find(([, known]) => known === code);
  if (!row) throw unreadable(`a dtype of code ${code}`);
  let [dtype, , kind] = row;
  const isHalf = dtype === "float16" && !(kind in globalThis);
  /** @type {any} */
  const Items = isHalf ? Uint16Array : /** @type {any} */ (globalThis)[kind];
  const itemBytes = Items.BYTES_PER_ELEMENT * itemLength(dtype);
  const items = product(shape);
  if (items * itemBytes !== bytes.length - start) {
    const claim = `${items} items of ${itemBytes} bytes, but has ${bytes.length - start} bytes`;
    throw unreadable(`it claims ${claim}`);
  }
  let memory = bytes.subarray(start);
  const isSwapped = isBigEndian === IS_LITTLE_ENDIAN && Items.BYTES_PER_ELEMENT > 1;
  if (isSwapped || memory.byteOffset % Items.BYTES_PER_ELEMENT) memory = memory.slice();
  if (isSwapped) swapBytes(memory, Items.BYTES_PER_ELEMENT);
  let data = new Items(memory.buffer, memory.byteOffset, items * itemLength(dtype));
  if (isHalf) {
    data = Float32Array.from(data, floatOfHalf);
    dtype = "float32";
  }
  if (isFortran && shape.length > 1) data = rowMajor(data, shape, itemLength(dtype));
  return new NDArray(data, shape, dtype);
}

/** @param {string} why */
function unreadable(why) {
  return new TypeError(`no .npy that can be read: ${why}`);
}

/** @param {Uint8Array} bytes */
function decodeNpyHeader(bytes) {
  const version = bytes[6];
  const isNpy = String.fromCharCode(...bytes.subarray(0, 6)) === "\x93NUMPY";
  if (!isNpy || bytes.length < 12) throw unreadable("it does not begin as one");
  if (version !== 1 && version !== 2) throw unreadable(`version ${version}`);
  const view = new DataView(bytes.buffer, bytes.byteOffset);
  const [from, length] =
    version === 1 ? [10, view.getUint16(8, true)] : [12, view.getUint32(8, true)];
  const start = from + length;
  if (length > HEADER_BYTES_MAX || start > bytes.length) throw unreadable("its header is too long");
  const members = headerMembers(String.fromCharCode(...bytes.subarray(from, start)));
  const [, order, code] = /^([<>=|]?)([a-z]\d+)$/.exec(members.get("descr") ?? "") ?? [];
  const fortran = members.get("fortran_order") ?? "";
  const sides = members.get("shape")?.split(",") ?? [""];
  // A tuple of one item ends with a comma.
  const isTuple = sides.length > 1 || !sides[0].trim();
  if (!sides[sides.length - 1].trim()) sides.pop();
  const isShape = isTuple && sides.every((side) => /^ *\d+ *$/.test(side));
  if (members.size !== 3 || !code || !/^(True|False)$/.test(fortran) || !isShape) {
    throw unreadable("its header is invalid, or of a dtype that is no number");
  }
  const shape = sides.map(Number);
  if (shape.length > DIMENSIONS_MAX || !shape.every(Number.isSafeInteger)) {
    throw unreadable("its shape is too large");
  }
  return { start, isBigEndian: order === ">", code, isFortran: fortran === "True", shape };
}

/** The members of the header of a `.npy`, a literal of Python. @param {string} text */
function headerMembers(text) {
  const member = /\s*['"](\w+)['"]\s*:\s*(?:['"]([^'"]*)['"]|(\w+)|\(([\d, ]*)\))\s*(?:,\s*)?/y;
  /** @type {Map<string, string>} */
  const members = new Map();
  let end = (member.lastIndex = 1);
  for (let found = member.exec(text); found; found = member.exec(text)) {
    members.set(found[1], found[2] ?? found[3] ?? found[4]);
    end = member.lastIndex;
  }
  if (text[0] !== "{" || text.slice(end).trim() !== "}") members.clear();
  return members;
}

/** @param {Uint8Array} bytes @param {number} width of an item */
function swapBytes(bytes, width) {
  for (let at = 0; at < bytes.length; at += width) {
    for (let low = at, high = at + width - 1; low < high; low++, high--) {
      const byte = bytes[low];
      bytes[low] = bytes[high];
      bytes[high] = byte;
    }
  }
}

/** @param {number} bits of a float16 */
function floatOfHalf(bits) {
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  const sign = bits >> 15 ? -1 : 1;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  if (!exponent) return sign * fraction * 2 ** -24;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}

/**
 * Items in row-major order, of which the first index changes fastest.
 * @param {any} items @param {number[]} shape @param {number} width of an item
 */
function rowMajor(items, shape, width) {
  const rows = new items.constructor(items.length);
  const strides = shape.map((_, axis) => product(shape.slice(0, axis)));
  const index = shape.map(() => 0);
  let from = 0;
  for (let to = 0; to < items.length; to += width) {
    for (let at = 0; at < width; at++) rows[to + at] = items[from * width + at];
    for (let axis = shape.length - 1; axis >= 0; axis--) {
      from += strides[axis];
      if (++index[axis] < shape[axis]) break;
      from -= strides[axis] * shape[axis];
      index[axis] = 0;
    }
  }
  return rows;
}
