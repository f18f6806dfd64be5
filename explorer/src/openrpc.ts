/** The document that describes a server's methods, and how the page gets it. */

import { CALLS, below } from "./address";
import type { Schema } from "./schema";
import { memberOf } from "./values";

export interface Parameter {
  name: string;
  summary?: string;
  description?: string;
  required?: boolean;
  deprecated?: boolean;
  schema?: Schema;
  /** Whether it takes all further params, as `*args` and `**kwargs` do. */
  "x-rest"?: "positional" | "named";
}

export interface DeclaredError {
  code: number;
  message: string;
  data?: unknown;
}

export interface Method {
  name: string;
  summary?: string;
  description?: string;
  params: Parameter[];
  result?: { name?: string; description?: string; schema?: Schema };
  errors?: DeclaredError[];
  deprecated?: boolean;
  paramStructure?: "by-name" | "by-position" | "either";
  /** The function does not say what it takes. */
  "x-params-unknown"?: boolean;
  /** Whether callers are authenticated; absent if the server authenticates nobody. */
  "x-auth"?: boolean;
  /** What the caller's token must allow. */
  "x-scopes"?: string[];
  "x-stream"?: boolean;
  "x-item"?: Schema;
  /** What a generator returns at its end. */
  "x-returned"?: Schema;
}

export interface Description {
  info: { title: string; version: string; description?: string };
  methods: Method[];
}

/** A header that identifies the caller. */
export interface Credential {
  header: string;
  value: string;
}

/** The server asks for a credential, or rejected one. */
export class Unauthorized extends Error {
  /** @param header which the server expects, as its challenge says */
  constructor(readonly header: string) {
    super("unauthorized");
  }
}

export async function load(credential?: Credential): Promise<Description> {
  const response = await fetch(below(CALLS, "openrpc.json"), { headers: headersOf(credential) });
  if (response.status === 401) {
    const challenge = response.headers.get("WWW-Authenticate") ?? "";
    throw new Unauthorized(/header="([^"]+)"/.exec(challenge)?.[1] ?? "Authorization");
  }
  if (!response.ok) {
    throw new Error(`GET openrpc.json: ${response.status} ${await response.text()}`);
  }
  const description: Description = await response.json();
  for (const method of description.methods) {
    if (method["x-params-unknown"]) method.params = [UNKNOWN_PARAMS];
  }
  return description;
}

const UNKNOWN_PARAMS: Parameter = {
  name: "params",
  description: "The params by position.",
  schema: { type: "array" },
  "x-rest": "positional",
};

export function headersOf(credential?: Credential): Record<string, string> {
  return credential ? { [credential.header]: credential.value } : {};
}

/** The bearer token of a credential. It is the only one that a page can send with a WebSocket. */
export function tokenOf(credential?: Credential): string | undefined {
  if (credential?.header.toLowerCase() !== "authorization") return undefined;
  return /^bearer +(.+)$/i.exec(credential.value)?.[1];
}

/** The path of a param in the server's errors. Those of `*args` have only a place there. */
export function pathOf({ name, "x-rest": rest }: Parameter): string {
  if (rest === "named") return "params";
  return rest ? REST_PATH : `params.${name}`;
}

export const REST_PATH = "params*";

export type Params = unknown[] | Record<string, unknown>;

/** The params of a call: by name if the method takes them so. */
export function paramsOf(method: Method, values: Record<string, unknown>): Params {
  const value = (name: string) => memberOf(values, name);
  const [named, positional] = restOf(method).map((name) => name !== undefined && value(name));
  const given = method.params.filter((parameter) => !parameter["x-rest"]);
  if (method.paramStructure !== "by-position") {
    const members = given.map(({ name }) => [name, value(name)] as const);
    const sent = members.filter(([, it]) => it !== undefined);
    return { ...Object.fromEntries(sent), ...(named || {}) };
  }
  const list = given.map(({ name }) => value(name));
  while (list.length && list.at(-1) === undefined) list.pop();
  return [...list, ...((positional || []) as unknown[])];
}

/** The values of a form that has these params. */
export function valuesOf(method: Method, params: Params): Record<string, unknown> {
  const [named, positional] = restOf(method);
  const names = namesOf(method);
  if (Array.isArray(params)) {
    const given = names.slice(0, params.length).map((name, at) => [name, params[at]] as const);
    const rest = positional && { [positional]: params.slice(names.length) };
    return { ...Object.fromEntries(given), ...rest };
  }
  const entries = Object.entries(params);
  const known = entries.filter(([name]) => names.includes(name));
  const others = entries.filter(([name]) => !names.includes(name));
  return { ...Object.fromEntries(known), ...(named && { [named]: Object.fromEntries(others) }) };
}

/** Whether a form has a place for each of these params. */
export function haveFields(method: Method, params: Params): boolean {
  const [named, positional] = restOf(method);
  const names = namesOf(method);
  if (Array.isArray(params)) return positional !== undefined || params.length <= names.length;
  return named !== undefined || Object.keys(params).every((name) => names.includes(name));
}

function namesOf({ params }: Method): string[] {
  return params.filter((it) => !it["x-rest"]).map(({ name }) => name);
}

/** The names of the parameters that take all further params, by name and by position. */
function restOf({ params }: Method): [named?: string, positional?: string] {
  const find = (kind: string) => params.find((parameter) => parameter["x-rest"] === kind)?.name;
  return [find("named"), find("positional")];
}
