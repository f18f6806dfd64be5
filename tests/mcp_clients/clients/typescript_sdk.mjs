// Calls tests/mcp_clients/server.py by the official TypeScript SDK, and prints what it got as JSON.
//
// node typescript_sdk.mjs legacy|auto FILE SERVER
//
// SERVER is a URL, or a command with its arguments: over stdio. Cancels a call unless FILE is empty.
import { existsSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { setTimeout as sleep } from "node:timers/promises";

// The packages are in the working directory, not beside this file.
const require = createRequire(`${process.cwd()}/`);
const { Client, StreamableHTTPClientTransport } = require("@modelcontextprotocol/client");
const { StdioClientTransport } = require("@modelcontextprotocol/client/stdio");

const [mode, file, ...server] = process.argv.slice(2);
const transport =
    server.length === 1
        ? new StreamableHTTPClientTransport(new URL(server[0]))
        : new StdioClientTransport({ command: server[0], args: server.slice(1) });
const client = new Client(
    { name: "tests", version: "1" },
    { capabilities: { elicitation: {} }, versionNegotiation: { mode } },
);
client.setRequestHandler("elicitation/create", async () => ({
    action: "accept",
    content: { name: "Ada" },
}));
await client.connect(transport);

const call = (name, args = {}, options = undefined) =>
    client.callTool({ name, arguments: args }, options);

// Cancels a call that has reported its progress. The function leaves a file at its end.
async function cancel() {
    const controller = new AbortController();
    const options = { signal: controller.signal, onprogress: () => controller.abort() };
    await call("wait", { path: file }, options).catch(() => {});
    while (!existsSync(file)) await sleep(10);
    return readFileSync(file, "utf8");
}

const progress = [];
const onprogress = ({ progress: done, total }) => progress.push([done, total]);
const added = await call("add", { a: 2, b: 3 });
const wrong = await call("add", { a: 2, b: "three" });
const text = await client.readResource({ uri: "test://static-text" });
const part = await client.readResource({ uri: "test://template/123/data" });
const name = "test_prompt_with_arguments";
const prompt = await client.getPrompt({ name, arguments: { arg1: "x", arg2: "y" } });
const completed = await client.complete({
    ref: { type: "ref/prompt", name },
    argument: { name: "arg1", value: "te" },
});
await call("test_tool_with_progress", {}, { onprogress });
const greeted = await call("test_input_required_result_elicitation");
console.log(
    JSON.stringify({
        version: client.getNegotiatedProtocolVersion(),
        tools: (await client.listTools()).tools.map((tool) => tool.name),
        added: added.structuredContent,
        "is wrong": wrong.isError,
        wrong: wrong.content[0].text,
        text: text.contents[0].text,
        part: JSON.parse(part.contents[0].text).id,
        prompt: prompt.messages[0].content.text,
        completed: completed.completion.values,
        progress,
        greeted: greeted.content[0].text,
        cancelled: file ? await cancel() : null,
    }),
);
await client.close();
