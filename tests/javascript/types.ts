/** Compiled, never run: what the types of `ucall.d.ts` allow, and that `ucall.js` has them. */
import { Client, ConnectionError, NDArray, Notification, RpcError, State, Stream } from "ucall";
import { Binary, decodeArray, decodeBytes } from "ucall";
import * as implemented from "implemented";
import * as declared from "ucall";

const client = new Client("ws://localhost:8545/ws", { token: "s3cret", reconnect: false });
const keyed = new Client("/", { headers: { "X-API-Key": "k3y" } });
const sum: number = await client.call<number>("sum", [2, 3], { timeoutMs: 1000 });
const stream: Stream<string> = client.stream<string>("generate", { prompt: "hi" });
for await (const token of stream) token.toUpperCase();
const returned: unknown = await stream.result;
const [outcome] = await client.batch([{ method: "sum", params: { a: 1, b: 2 } }]);
if (outcome.status === "rejected") outcome.reason;
for await (const { method, params } of client.notifications()) method.toUpperCase();
const remove: () => void = client.on("tick", (params) => params.at);
const state: State = client.state;
const sent: Promise<void> = client.notify("log");
client.addEventListener("statechange", () => client.close());
const notification: Notification = { method: "tick", params: [] };
const code: number = new RpcError({ code: 7, message: "failed" }).code;
const mayHaveRun: boolean = new ConnectionError("lost", true).mayHaveRun;
const pixels = new NDArray(new Uint8Array(6), [2, 3], "bool");
const values: Binary[] = [pixels, new Float32Array(2), new ArrayBuffer(1), new Blob([])];
const doubled: NDArray = await client.call("double", { values }).array();
const page: Blob = new Blob([await client.call<string>("page").bytes()]);
const mask: number[] = decodeArray(await client.call("segment")).shape;
const [first]: Uint8Array = decodeBytes("AQ==");

// @ts-expect-error: params are an array or an object
client.call("sum", 3);
// @ts-expect-error: no such option
new Client("ws://localhost", { retries: 3 });
// @ts-expect-error: no such dtype
new NDArray(new Uint8Array(6), [2, 3], "float");
// @ts-expect-error: only the client sets it
client.state = "open";

/** Without private fields, which make classes of one shape differ. */
type Public<T> = { [K in keyof T]: T[K] };
type Parameters<T> = T extends new (...parameters: infer P) => any ? P : never;

const asDeclared = (made: implemented.Client): Public<declared.Client> => made;
const noMore: keyof implemented.Client extends keyof declared.Client ? true : false = true;
const streamAsDeclared = (made: implemented.Stream<string>): Public<declared.Stream<string>> => made;
const replyAsDeclared = (made: implemented.Reply<string>): Public<declared.Reply<string>> => made;
const arrayAsDeclared = (made: implemented.NDArray): Public<declared.NDArray> => made;
const decode: typeof declared.decodeArray = implemented.decodeArray;
const decodeToBytes: typeof declared.decodeBytes = implemented.decodeBytes;
const rpcAsDeclared = (made: implemented.RpcError): declared.RpcError => made;
const lossAsDeclared = (made: implemented.ConnectionError): declared.ConnectionError => made;
const parameters = (made: Parameters<typeof declared.Client>): Parameters<typeof implemented.Client> =>
  made;
