/** Compiled, never run: what the types of `ucall.d.ts` allow, and that `ucall.js` has them. */
import { Client, ConnectionError, Notification, RpcError, State, Stream } from "ucall";
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

// @ts-expect-error: params are an array or an object
client.call("sum", 3);
// @ts-expect-error: no such option
new Client("ws://localhost", { retries: 3 });
// @ts-expect-error: only the client sets it
client.state = "open";

/** Without private fields, which make classes of one shape differ. */
type Public<T> = { [K in keyof T]: T[K] };
type Parameters<T> = T extends new (...parameters: infer P) => any ? P : never;

const asDeclared = (made: implemented.Client): Public<declared.Client> => made;
const noMore: keyof implemented.Client extends keyof declared.Client ? true : false = true;
const streamAsDeclared = (made: implemented.Stream<string>): Public<declared.Stream<string>> => made;
const rpcAsDeclared = (made: implemented.RpcError): declared.RpcError => made;
const lossAsDeclared = (made: implemented.ConnectionError): declared.ConnectionError => made;
const parameters = (made: Parameters<typeof declared.Client>): Parameters<typeof implemented.Client> =>
  made;
