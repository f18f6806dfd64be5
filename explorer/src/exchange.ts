/**
 * The texts of the newest call as they were sent. The client keeps them to itself, so the page hands
 * it a `fetch`, a `WebSocket` and a `JSON.parse` that note what passes.
 */

import { parseJson } from "./values";

export interface Exchange {
  request?: string;
  /** Of a response over HTTP. The messages of a WebSocket have none. */
  status?: string;
  headers?: string;
  /** The reply that ended the call, without the items of a stream. */
  reply?: string;
}

interface Recording extends Exchange {
  id?: unknown;
}

let recording: Recording = {};

/** Begins the exchange of another call. */
export function record(): Exchange {
  recording = {};
  return recording;
}

/** The first text that is sent is the request; later ones cancel it. */
function noteRequest(text: unknown): Recording | undefined {
  if (typeof text !== "string") return undefined;
  if (recording.request === undefined) {
    recording.request = text;
    // The client writes the id behind the params.
    recording.id = Number(/"id":(\d+)(,"_meta":\{[^{}]*\})?\}$/.exec(text)?.[1]);
  }
  return recording;
}

export class RecordedSocket extends WebSocket {
  override send(text: string): void {
    noteRequest(text);
    super.send(text);
  }
}

/** Has the client of the page use the functions that record. */
export function install(): void {
  const send = globalThis.fetch;
  globalThis.fetch = async (input, init) => {
    const own = noteRequest(init?.body);
    const response = await send(input, init);
    if (own) {
      own.status = `${response.status} ${response.statusText}`.trim();
      own.headers = [...response.headers].map(([name, value]) => `${name}: ${value}`).join("\n");
    }
    return response;
  };
  JSON.parse = (text: string) => {
    const message = parseJson(text);
    if (message?.id !== undefined && message.id === recording.id) recording.reply = text;
    return message;
  };
}
