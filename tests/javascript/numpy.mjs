/** Prints what `ucall.js` decodes the arrays of a file to: their bytes, and the `.npy` it sends. */
import { readFileSync } from "node:fs";
import { argv, env } from "node:process";
import { pathToFileURL } from "node:url";

const { Client, decodeArray } = await import(pathToFileURL(env.UCALL_JS));

// Returns the params in base64.
globalThis.fetch = async (url, { body }) => {
  if (typeof body !== "string") return new Response("", { status: 415 });
  const { id, params } = JSON.parse(body);
  return Response.json({ jsonrpc: "2.0", id, result: params });
};

const arrays = JSON.parse(readFileSync(argv[2])).map(decodeArray);
const sent = [];
for (const array of arrays) sent.push(...(await new Client("http://localhost/").call("same", [array])));
const bytes = arrays.map(({ data }) => {
  return Buffer.from(data.buffer, data.byteOffset, data.byteLength).toString("base64");
});
console.log(JSON.stringify(bytes.map((text, at) => [text, sent[at]])));
