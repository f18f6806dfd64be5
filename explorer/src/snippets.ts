/** Calls as programs: for curl, Python, the command `ucall` and JavaScript. */

import { below } from "./address";
import type { Credential, Method, Params } from "./openrpc";
import { FileValue, isExactNumber } from "./values";

/** What a result is shown as. */
export type Shown = "json" | "array" | "bytes" | "image";

export interface Call {
  method: Method;
  params: Params;
  /** Where calls are sent. */
  url: string;
  credential?: Credential;
  shown: Shown;
}

export const SNIPPETS: Record<string, (call: Call) => string> = { curl, Python, ucall, JavaScript };

/** Keys are secrets, so programs read them from a variable of the environment. */
const VARIABLE = "UCALL_KEY";

function curl(call: Call): string {
  const { method, params } = call;
  const request = { jsonrpc: "2.0", method: method.name, params, id: 1 };
  // A file is encoded by the shell, between two quoted parts.
  const files: FileValue[] = [];
  const text = JSON.stringify(marked(request, files));
  const body = files.reduce(
    (quoted, file, at) =>
      quoted.replace(mark(at), () => `'"$(base64 -w0 ${shellWord(file.name)})"'`),
    shellQuoted(text),
  );
  const lines = [`curl ${shellWord(call.url)}`];
  const [name, value] = headerOf(call, `$${VARIABLE}`);
  if (name) lines.push(`-H "${name}: ${value}"`);
  if (method["x-stream"]) lines.push("-N -H 'Accept: application/x-ndjson'");
  // The arguments of a command are limited, its standard input is not.
  if (files.length) return `printf %s ${body} | ${[...lines, "-d @-"].join(" \\\n  ")}`;
  return [...lines, `-d ${body}`].join(" \\\n  ");
}

function Python(call: Call): string {
  const { method, params, url, shown } = call;
  const files: string[] = [];
  const given = Array.isArray(params)
    ? params.map((value) => pythonLiteral(value, files))
    : namedArguments(params, files);
  const simple = /^[A-Za-z]\w*$/.test(method.name) && !PYTHON_RESERVED.has(method.name);
  const owner = method["x-stream"] ? "client.stream" : "client";
  const called = simple
    ? `${owner}.${method.name}(${given.join(", ")})`
    : `${owner}.call(${[pythonLiteral(method.name, files), ...given].join(", ")})`;
  const [name, value] = headerOf(call, `{os.environ['${VARIABLE}']}`);
  const headers = name ? `, headers={"${name}": f"${value}"}` : "";
  const imports = [name && "import os", files.length && "from pathlib import Path"];
  return [
    ...imports.filter(Boolean),
    ...(imports.some(Boolean) ? [""] : []),
    "from ucall.client import Client",
    "",
    `client = Client(${JSON.stringify(url)}${headers})`,
    method["x-stream"] ? `for item in ${called}:\n    print(item)` : printed(called, method, shown),
  ].join("\n");
}

function printed(called: string, method: Method, shown: Shown): string {
  if (shown === "image") return `${called}.image.save(${JSON.stringify(pictureName(method))})`;
  const attribute = { json: "json", array: "numpy", bytes: "bytes" }[shown];
  return `print(${called}.${attribute})`;
}

/** The file of a picture, which a program cannot print. */
function pictureName({ name }: Method): string {
  return `${name.replace(/\W+/g, "_")}.png`;
}

// Attributes of the client, which are no methods of the server.
const PYTHON_RESERVED = new Set([
  ..."and as assert async await break class continue def del elif else except finally for".split(
    " ",
  ),
  ..."from global if import in is lambda None nonlocal not or pass raise return True".split(" "),
  ..."False try while with yield batch call close notify stream subscribe".split(" "),
]);

function namedArguments(params: Record<string, unknown>, files: string[]): string[] {
  const entries = Object.entries(params);
  const isNamed = ([key]: [string, unknown]) =>
    /^[A-Za-z_]\w*$/.test(key) && !PYTHON_RESERVED.has(key);
  const named = entries.filter(isNamed);
  const others = entries.filter((entry) => !isNamed(entry));
  return [
    ...named.map(([key, value]) => `${key}=${pythonLiteral(value, files)}`),
    ...(others.length ? [`**${pythonLiteral(Object.fromEntries(others), files)}`] : []),
  ];
}

function pythonLiteral(value: unknown, files: string[]): string {
  if (value instanceof FileValue) {
    files.push(value.name);
    return `Path(${JSON.stringify(value.name)}).read_bytes()`;
  }
  if (value === null || value === undefined) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map((it) => pythonLiteral(it, files)).join(", ")}]`;
  const text = JSON.stringify(value);
  if (typeof value !== "object" || !text.startsWith("{")) return text;
  // As JSON, without members that are not sent.
  const members = Object.entries(value)
    .filter(([, it]) => it !== undefined)
    .map(([key, it]) => `${JSON.stringify(key)}: ${pythonLiteral(it, files)}`);
  return `{${members.join(", ")}}`;
}

function ucall(call: Call): string {
  const { method, params, url, shown } = call;
  // The option is first, because a method may have the name of a command, such as health.
  const words = ["ucall", "--uri", shellWord(url.replace(/\/$/, "")), shellWord(method.name)];
  if (Array.isArray(params)) words.push(...positionalWords(params));
  else words.push(...Object.entries(params).map(([key, value]) => namedWord(key, value)));
  const [name, value] = headerOf(call, `$${VARIABLE}`);
  if (name) words.push(`-H "${name}: ${value}"`);
  if (method["x-stream"]) words.push("--stream");
  else if (shown === "image") words.push(`--format image -o ${pictureName(method)}`);
  else if (shown !== "json") words.push(`--format ${shown === "array" ? "numpy" : shown}`);
  return words.join(" ");
}

function positionalWords(params: unknown[]): string[] {
  const words: string[] = [];
  let option = "";
  for (const value of params) {
    const isFile = value instanceof FileValue;
    const needed = isFile ? "-f" : "--positional";
    if (needed !== option) words.push(needed);
    option = needed;
    words.push(shellWord(isFile ? value.name : text(value)));
  }
  // By its types a text stays text.
  if (params.some(isOtherValue)) words.push("--typed");
  return words;
}

/** `name=value`, with the type of a text that would be another value. */
function namedWord(key: string, value: unknown): string {
  if (value instanceof FileValue) return shellWord(`${key}=@${value.name}`);
  return shellWord(`${key}${isOtherValue(value) ? ":str" : ""}=${text(value)}`);
}

/** Whether the command takes a text for another value. */
function isOtherValue(value: unknown): boolean {
  return typeof value === "string" && (isJson(value) || value.startsWith("@"));
}

function text(value: unknown): string {
  return typeof value === "string" ? value : JSON.stringify(value);
}

function isJson(value: string): boolean {
  try {
    JSON.parse(value);
    return true;
  } catch {
    return false;
  }
}

/** For Node, which imports no module by an address of HTTP. Over HTTP nothing has to be closed. */
function JavaScript(call: Call): string {
  const { method, params, url, shown } = call;
  const files: FileValue[] = [];
  const marks = JSON.stringify(marked(params, files));
  const given = files.reduce(
    (json, file, at) =>
      json.replace(`"${mark(at)}"`, () => `await readFile(${JSON.stringify(file.name)})`),
    marks,
  );
  const [name, value] = headerOf(call, `\${process.env.${VARIABLE}}`);
  const options = name && `, { headers: { "${name}": \`${value}\` } }`;
  const called = `${JSON.stringify(method.name)}, ${given}`;
  const print = method["x-stream"]
    ? `for await (const item of client.stream(${called})) console.log(item);`
    : logged(`await client.call(${called})`, method, shown);
  const used = ["readFile", "writeFile"].filter((name) => print.includes(`await ${name}(`));
  return [
    ...(used.length ? [`const { ${used.join(", ")} } = await import("node:fs/promises");`] : []),
    `const module = await (await fetch(${JSON.stringify(below(url, "ucall.js"))})).text();`,
    "const { Client } = await import(`data:text/javascript,${encodeURIComponent(module)}`);",
    "",
    `const client = new Client(${JSON.stringify(url)}${options});`,
    print,
  ].join("\n");
}

function logged(called: string, method: Method, shown: Shown): string {
  switch (shown) {
    case "array":
      return `console.log(${called}.array());`;
    case "bytes":
      return `console.log(${called}.bytes());`;
    case "image":
      return `await writeFile(${JSON.stringify(pictureName(method))}, ${called}.bytes());`;
    case "json":
      // All levels, of which `log` prints two.
      return `console.dir(${called}, { depth: null });`;
  }
}

/** The name of the header of a credential, and its value with the key replaced. */
function headerOf({ credential }: Call, variable: string): [string, string] {
  if (!credential) return ["", ""];
  const [, scheme = ""] = /^(\w+ +)?/.exec(credential.value) ?? [];
  return [credential.header, `${scheme}${variable}`];
}

/** A text that no value has: it begins and ends with a character of private use. */
function mark(at: number): string {
  return `\ue000${at}\ue000`;
}

/** A copy of a value in which each file is a mark, for the program's own expression. */
function marked(value: unknown, files: FileValue[]): unknown {
  if (value instanceof FileValue) return mark(files.push(value) - 1);
  if (Array.isArray(value)) return value.map((it) => marked(it, files));
  if (typeof value !== "object" || value === null || isExactNumber(value)) return value;
  return Object.fromEntries(Object.entries(value).map(([key, it]) => [key, marked(it, files)]));
}

function shellQuoted(word: string): string {
  return `'${word.replaceAll("'", "'\\''")}'`;
}

function shellWord(word: string): string {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : shellQuoted(word);
}
