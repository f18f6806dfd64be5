/**
 * Sends arrays by `ucall.js` to a server that returns them. Each line of the standard input is a URL
 * and a `.npy` in base64; the line that answers it is JSON, with what came back.
 */
import { createRequire } from "node:module";
import { env, stdin } from "node:process";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const { Client, decodeArray } = await import(pathToFileURL(env.UCALL_JS));
const WebSocket = globalThis.WebSocket ?? createRequire(import.meta.url)("ws");

const clients = new Map();
for await (const line of createInterface({ input: stdin })) {
  const [url, file] = line.split(" ");
  if (!clients.has(url)) clients.set(url, new Client(url, { WebSocket }));
  const { data, dtype, shape } = await clients.get(url).call("same", [decodeArray(file)]).array();
  const bytes = Buffer.from(data.buffer, data.byteOffset, data.byteLength).toString("base64");
  console.log(JSON.stringify({ bytes, dtype, shape }));
}
for (const client of clients.values()) client.close();
