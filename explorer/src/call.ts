/** One call at a time: its state from the request to the result, with the items of a stream. */

import { useEffect, useRef, useState } from "preact/hooks";
import { type Client, RpcError } from "../../python/ucall/static/ucall.js";
import { record, type Exchange } from "./exchange";
import type { Method, Params } from "./openrpc";

/** The newest items of a stream that the page keeps. */
export const ITEMS_MAX = 1_000;

export interface CallState {
  isRunning: boolean;
  isStopped: boolean;
  /** The newest items of a stream, and how many have come. */
  items: unknown[];
  count: number;
  tookMs?: number;
  result?: unknown;
  error?: { code?: number; message: string; data?: unknown };
  exchange: Exchange;
}

const BEFORE = { isRunning: true, isStopped: false, count: 0 };

export function useCall(client: Client, method: Method) {
  const [state, setState] = useState<CallState>();
  const controller = useRef<AbortController>(null);
  const stop = () => controller.current?.abort();
  // Another client or method ends the call.
  useEffect(() => stop, [client, method.name]);

  async function run(params: Params): Promise<CallState> {
    stop();
    const own = new AbortController();
    controller.current = own;
    const current: CallState = { ...BEFORE, items: [], exchange: record() };
    const startMs = performance.now();
    const show = () => {
      current.tookMs = performance.now() - startMs;
      if (controller.current === own) setState({ ...current, items: [...current.items] });
    };
    show();
    try {
      current.result = await receive(client, method, params, own.signal, current, show);
    } catch (error) {
      current.isStopped = own.signal.aborted;
      if (!current.isStopped) current.error = described(error);
    }
    current.isRunning = false;
    show();
    return current;
  }
  return { state, run, stop };
}

async function receive(
  client: Client,
  method: Method,
  params: Params,
  signal: AbortSignal,
  current: CallState,
  show: () => void,
): Promise<unknown> {
  if (!method["x-stream"]) return client.call(method.name, params, { signal });
  const stream = client.stream(method.name, params, { signal });
  let frame = 0;
  // Shown once a frame, because a stream may be faster.
  const showSoon = () => {
    frame ||= requestAnimationFrame(() => {
      frame = 0;
      show();
    });
  };
  try {
    for await (const item of stream) {
      current.count++;
      current.items.push(item);
      if (current.items.length > ITEMS_MAX) current.items.shift();
      showSoon();
    }
    return await stream.result;
  } finally {
    cancelAnimationFrame(frame);
  }
}

function described(error: unknown): CallState["error"] {
  if (error instanceof RpcError) {
    return { code: error.code, message: error.message, data: error.data };
  }
  return { message: error instanceof Error ? error.message : String(error) };
}
