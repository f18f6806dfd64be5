/** The values of a form: JSON's, files, and numbers that are sent as they were written. */

/** The contents of a file, which is sent in base64. */
export class FileValue {
  constructor(
    readonly name: string,
    readonly base64: string,
  ) {}

  toJSON(): string {
    return this.base64;
  }

  static async read(file: File): Promise<FileValue> {
    const url = await new Promise<string>((resolve, reject) => {
      const reader = new FileReader();
      reader.onload = () => resolve(reader.result as string);
      reader.onerror = () => reject(reader.error);
      reader.readAsDataURL(file);
    });
    return new FileValue(file.name, url.slice(url.indexOf(",") + 1));
  }
}

/** A member of an object, but none that all objects have, such as `constructor`. */
export function memberOf(object: Record<string, unknown>, name: string): unknown {
  return Object.hasOwn(object, name) ? object[name] : undefined;
}

interface Source {
  source?: string;
}
type Reviver = (key: string, value: any, context: Source) => unknown;
/** Members of `JSON` that newer browsers have. */
interface NewerJson {
  parse(text: string, reviver?: Reviver): any;
  rawJSON?(text: string): object;
  isRawJSON?(value: unknown): boolean;
}
const json = JSON as unknown as NewerJson;
const parse = json.parse;

/** A number whose text is kept if it is written differently, where the browser can. */
function exact(text: string, value: number): unknown {
  return json.rawJSON && JSON.stringify(value) !== text ? json.rawJSON(text) : value;
}

/** Parses JSON; what is made of numbers is given by their texts. */
function parseNumbers(text: string, made: typeof exact): any {
  return parse(text, (_key, value, { source }) =>
    typeof value === "number" && source !== undefined ? made(source, value) : value,
  );
}

/** Parses JSON and keeps all digits of integers. */
export function parseJson(text: string): any {
  // Most texts have no such number, and a reviver costs much in long ones.
  if (!/(^|[\s[:,])-?\d{16}/.test(text)) return parse(text);
  return parseNumbers(text, (source, value) =>
    /^-?\d+$/.test(source) && !Number.isSafeInteger(value) ? exact(source, value) : value,
  );
}

/** Whether a value is a number whose text is kept. */
export function isExactNumber(value: unknown): boolean {
  return json.isRawJSON?.(value) ?? false;
}

/** Whether a value is, or contains, a file. */
export function hasFile(value: unknown): boolean {
  if (value instanceof FileValue) return true;
  return typeof value === "object" && value !== null && Object.values(value).some(hasFile);
}

/** What is typed into the control of a number. The server rejects other text, and says why. */
export function parseNumber(text: string): unknown {
  const trimmed = text.trim();
  if (!trimmed) return undefined;
  const isNumber = /^-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?$/.test(trimmed);
  return isNumber ? exact(trimmed, Number(trimmed)) : trimmed;
}

/** What is typed into the control of an integer: `1.0` is none. */
export function parseInteger(text: string): unknown {
  return /[.eE]/.test(text) ? text : parseNumber(text);
}

/**
 * What is typed into the control of any value: JSON, or else text, as the command `ucall` does.
 * Numbers keep their texts.
 */
export function parseAny(text: string): unknown {
  if (!text.trim()) return undefined;
  try {
    return parseNumbers(text, exact);
  } catch {
    return text;
  }
}

/** Why a text is no JSON, if it begins as a list, an object or a string does. */
export function jsonProblem(text: string): string {
  if (!/^\s*[[{"]/.test(text)) return "";
  try {
    parse(text);
    return "";
  } catch (error) {
    return `Not JSON: ${(error as Error).message}`;
  }
}

export function formatValue(value: unknown): string {
  if (value === undefined) return "";
  return typeof value === "string" ? value : JSON.stringify(value);
}
