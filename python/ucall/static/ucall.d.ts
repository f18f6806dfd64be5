/** A client for ucall's JSON-RPC over WebSocket and HTTP, for browsers and Node. */

/** Params by position, or by name, with `Binary` values anywhere in them. */
export type Params = unknown[] | Record<string, unknown>;

/** Bytes, and arrays of numbers. A typed array other than `Uint8Array` has one dimension. */
export type Binary = ArrayBuffer | Uint8Array | DataView | Blob | TypedArray | NDArray;

/** `Float16Array`, where it exists, is also one. */
export type TypedArray =
  | Uint8Array
  | Uint8ClampedArray
  | Uint16Array
  | Uint32Array
  | BigUint64Array
  | Int8Array
  | Int16Array
  | Int32Array
  | BigInt64Array
  | Float32Array
  | Float64Array;

/** The names of NumPy. */
export type DType =
  | "bool"
  | "uint8"
  | "uint16"
  | "uint32"
  | "uint64"
  | "int8"
  | "int16"
  | "int32"
  | "int64"
  | "float16"
  | "float32"
  | "float64"
  | "complex64"
  | "complex128";

/** An array of numbers, in row-major order. */
export class NDArray {
  /**
   * The shape is one dimension and the dtype that of the data by default. A `Uint8Array` may also
   * be of `bool`, a `Uint16Array` of `float16`, and floats in pairs of a complex dtype. Throws
   * `RangeError` if the shape does not have the length of the data.
   */
  constructor(data: TypedArray, shape?: number[], dtype?: DType);
  /** `any`, because its class depends on the dtype: a `Float32Array` for "float32". */
  data: any;
  shape: number[];
  dtype: DType;
}

/**
 * The array of a base64 string in a result, an item of a stream or a notification. Throws
 * `TypeError` unless it is a `.npy` of numbers or bools.
 */
export function decodeArray(base64: unknown): NDArray;

/** The bytes of a base64 string. Throws `TypeError` for anything else. */
export function decodeBytes(base64: unknown): Uint8Array<ArrayBuffer>;

/**
 * The promise of a result: JSON, in which arrays, images and bytes are base64 strings.
 */
export interface Reply<T = any> extends Promise<T> {
  /** A result that is an array; rejects with a `TypeError` for another one. */
  array(): Promise<NDArray>;
  /** A result that is bytes or an image; rejects with a `TypeError` for another one. */
  bytes(): Promise<Uint8Array<ArrayBuffer>>;
}

export interface CallOptions {
  /** Cancels the call, also on the server. */
  signal?: AbortSignal;
  /** Cancels the call after this time, with a `TimeoutError`. Above 2³¹ - 1 there is no limit. */
  timeoutMs?: number;
}

export interface ClientOptions {
  /** The bearer token. */
  token?: string;
  /** More headers of each request over HTTP. A page cannot set headers of a WebSocket. */
  headers?: Record<string, string>;
  /** Opens another WebSocket after a lost one, and when the server drains; `true` by default. */
  reconnect?: boolean;
  /** The longest delay of the first attempt to reconnect; 200 by default. It doubles each time. */
  minDelayMs?: number;
  /** The longest delay of any attempt to reconnect; 30,000 by default. */
  maxDelayMs?: number;
  /**
   * How much one iterator holds until it is read, by the length of the JSON; 1 MiB by default. A
   * stream beyond it is cancelled; of notifications the oldest are dropped.
   */
  maxWaitingBytes?: number;
  /** The class to use; the global one by default, which Node has from version 22 on. */
  WebSocket?: new (url: string, protocols: string[]) => any;
}

/** `waiting` for the next attempt to reconnect. Over HTTP a client is `open` until it is closed. */
export type State = "connecting" | "open" | "waiting" | "closed";

/** A message of the server that belongs to no call. */
export interface Notification {
  method: string;
  params: any;
}

/** The server's reply is an error. */
export class RpcError extends Error {
  constructor(error: { code: number; message: string; data?: unknown });
  /** The code of JSON-RPC, such as -32602 for invalid params. */
  code: number;
  /** What the server says beyond the message. */
  data: any;
}

/** The server has not replied, and cannot any more. */
export class ConnectionError extends Error {
  constructor(message: string, mayHaveRun: boolean, options?: ErrorOptions);
  /** Whether the server may have read the call. If not, it is safe to repeat it. */
  mayHaveRun: boolean;
}

/** The items of a streamed call, in order. Leaving the loop cancels the call. */
export interface Stream<T = any, R = any> extends AsyncIterableIterator<T, undefined> {
  /** The function's return value, once the items have been read; rejects as the loop throws. */
  readonly result: Promise<R>;
  return(): Promise<IteratorResult<T, undefined>>;
}

/** A JSON-RPC client of one server. The event `statechange` reports changes of `state`. */
export class Client extends EventTarget {
  /** Connects at once to a `ws:` or `wss:` URL. A URL may be relative to the page. */
  constructor(url: string | URL, options?: ClientOptions);

  get state(): State;

  /** Calls a function of the server, and returns its result. */
  call<T = any>(method: string, params?: Params, options?: CallOptions): Reply<T>;

  /** Calls functions with one message. The reason of a rejected outcome is an `RpcError`. */
  batch(
    calls: { method: string; params?: Params }[],
    options?: CallOptions,
  ): Promise<PromiseSettledResult<any>[]>;

  /** Calls a generator of the server, and returns an async iterator over its items. */
  stream<T = any>(method: string, params?: Params, options?: CallOptions): Stream<T>;

  /** Sends a notification, which has no reply. Resolves once it is sent. */
  notify(method: string, params?: Params): Promise<void>;

  /** Calls `callback` with the params of a method's notifications; returns what removes it. */
  on(method: string, callback: (params: any) => void): () => void;

  /** An async iterator over the server's notifications, from now on and across reconnects. */
  notifications(): AsyncIterableIterator<Notification, undefined>;

  /** Closes the connection, ends the iterators and fails the calls in flight. */
  close(): void;
}
