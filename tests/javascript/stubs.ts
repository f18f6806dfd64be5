/** Compiled, never run: what the types of `ucall stub --typescript` allow. */
import { Client } from "./ucall.js";
import type { Base64, Reading, Tree, TypedClient } from "./stubs.js";

const client = new Client("ws://localhost:8545/ws") as TypedClient;
const five: number = await client.call("an_int", { value: 5 });
const six: number = await client.call("an_int", [6], { timeoutMs: 1000 });
const optional: number | null = await client.call("an_optional", { value: null });
const colour: "red" | "blue" = await client.call("an_enum", { value: "red" });
const bytes: Base64 = await client.call("some_bytes", { value: btoa("a") });
const reversed: Uint8Array = await client.call("some_bytes", { value: new Blob([]) }).bytes();
const pair: [number, string] = await client.call("a_tuple", [[1, "a"]]);
const reading: Reading = { at: "2026-01-31T12:00:00Z", values: [1, 2], next: null };
const returned: Reading = await client.call("a_reading", { value: reading });
const tree: Tree = await client.call("a_tree", { value: { name: "a", inner: [{ name: "b" }] } });
const nothing: null = await client.call("nothing");
const inner: number[] = await client.call("list.of.it", [[1]]);
await client.call("in_order", [1]);
await client.call("late", { b: 1 });
for await (const word of client.stream("words", { prompt: "a b" })) word.toUpperCase();
client.close();

// @ts-expect-error: no such method
client.call("absent");
// @ts-expect-error: a param of another type
client.call("an_int", { value: "5" });
// @ts-expect-error: a param is missing
client.call("an_int");
// @ts-expect-error: a param is missing
client.call("a_reading", { value: { at: "2026-01-31T12:00:00Z" } });
// @ts-expect-error: a param of another type
client.call("some_bytes", { value: 5 });
// @ts-expect-error: not one of the values
client.call("an_enum", { value: "green" });
// @ts-expect-error: params by position alone
client.call("in_order", { a: 1 });
// @ts-expect-error: an_int is no stream
client.stream("an_int", { value: 5 });
