/** Results: images as pictures, arrays by shape, dtype and head, and all else as a tree. */

import { useEffect, useMemo, useState } from "preact/hooks";
import { decode, isBase64, readNpy, mediaTypeOf } from "./binary";
import { kindOf, type Kind, type Resolver, type Schema } from "./schema";
import { isExactInteger } from "./values";

/** Items of a list or an object that are shown at first, and with each "more". */
const PAGE = 100;
const HEAD = 24;
/** The lists and objects of the first levels are open, unless they are long. */
const OPEN_LEVELS = 6;
const OPEN_ITEMS = 30;
const TEXT_LENGTH = 2_000;

interface ResultProps {
  value: unknown;
  schema?: Schema;
  resolver: Resolver;
  level?: number;
}

export function Result({ value, schema, resolver, level = 0 }: ResultProps) {
  const known = resolver.resolve(schema);
  if (typeof value === "string") return <Text text={value} kind={kindOf(known)} />;
  if (typeof value === "object" && value !== null && !isExactInteger(value)) {
    return <Tree value={value} schema={known} resolver={resolver} level={level} />;
  }
  return <code class={typeof value}>{JSON.stringify(value)}</code>;
}

function Text({ text, kind }: { text: string; kind: Kind }) {
  const type = mediaTypeOf(text);
  if (type === "npy") return <ArrayView base64={text} />;
  if (type) return <Picture base64={text} type={type} />;
  if (kind === "bytes" && isBase64(text)) return <Bytes base64={text} />;
  if (kind === "image" && isBase64(text)) return <Picture base64={text} type="image/*" />;
  return <LongText text={text} />;
}

function LongText({ text }: { text: string }) {
  const [isWhole, setIsWhole] = useState(false);
  if (text.length <= TEXT_LENGTH || isWhole) return <code class="string">{quote(text)}</code>;
  return (
    <>
      <code class="string">{quote(text.slice(0, TEXT_LENGTH))}…</code>{" "}
      <button type="button" class="quiet" onClick={() => setIsWhole(true)}>
        Show all {text.length.toLocaleString()} characters
      </button>
    </>
  );
}

/** Quoted, with the line breaks of the text. */
function quote(text: string): string {
  return JSON.stringify(text).replaceAll("\\n", "\n");
}

function Picture({ base64, type }: { base64: string; type: string }) {
  const [size, setSize] = useState("");
  const [isShown, setIsShown] = useState(true);
  const name = `${type === "image/*" ? "image" : type.slice(6).toUpperCase()} ${size}`;
  return (
    <figure>
      {isShown && (
        <img
          src={`data:${type};base64,${base64}`}
          alt={`Result: ${name}`}
          onLoad={({ currentTarget: { naturalWidth, naturalHeight } }) =>
            setSize(`${naturalWidth} × ${naturalHeight}`)
          }
          onError={() => setIsShown(false)}
        />
      )}
      <figcaption>
        {name}, {bytesText(base64)} <Download base64={base64} name={`result.${extension(type)}`} />
      </figcaption>
    </figure>
  );
}

function extension(type: string): string {
  return type === "image/*" ? "bin" : type.slice(6);
}

function ArrayView({ base64 }: { base64: string }) {
  const array = useMemo(() => readNpy(decode(base64), HEAD), [base64]);
  if (!array) return <Bytes base64={base64} />;
  const size = array.shape.reduce((product, it) => product * it, 1);
  return (
    <figure>
      <code>
        [{array.head.join(", ")}
        {size > array.head.length && ", …"}]
      </code>
      <figcaption>
        array of {array.dtype}, shape ({array.shape.join(", ")}), {size.toLocaleString()}{" "}
        {size === 1 ? "item" : "items"} <Download base64={base64} name="result.npy" />
      </figcaption>
    </figure>
  );
}

function Bytes({ base64 }: { base64: string }) {
  const bytes = useMemo(() => decode(base64), [base64]);
  const text = useMemo(() => printable(bytes), [bytes]);
  const hex = [...bytes.subarray(0, 2 * HEAD)].map((byte) => byte.toString(16).padStart(2, "0"));
  return (
    <figure>
      <code>{text === undefined ? hex.join(" ") : text.slice(0, TEXT_LENGTH)}</code>
      <figcaption>
        bytes, {bytesText(base64)} <Download base64={base64} name="result.bin" />
      </figcaption>
    </figure>
  );
}

/** The text of bytes that are UTF-8 without control characters. */
function printable(bytes: Uint8Array): string | undefined {
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    return /[\0-\x08\x0e-\x1f]/.test(text) ? undefined : text;
  } catch {
    return undefined;
  }
}

function bytesText(base64: string): string {
  const padding = base64.endsWith("==") ? 2 : base64.endsWith("=") ? 1 : 0;
  return `${((base64.length / 4) * 3 - padding).toLocaleString()} bytes`;
}

function Download({ base64, name }: { base64: string; name: string }) {
  const [url, setUrl] = useState<string>();
  useEffect(() => {
    const made = URL.createObjectURL(new Blob([decode(base64)]));
    setUrl(made);
    return () => URL.revokeObjectURL(made);
  }, [base64]);
  return (
    <a href={url} download={name}>
      Download
    </a>
  );
}

interface TreeProps extends ResultProps {
  value: object;
  schema: Schema;
  level: number;
}

function Tree({ value, schema, resolver, level }: TreeProps) {
  const [shown, setShown] = useState(PAGE);
  const isList = Array.isArray(value);
  const entries = Object.entries(value);
  const brackets = isList ? "[]" : "{}";
  if (!entries.length) return <code>{brackets}</code>;
  const [isOpen, setIsOpen] = useState(level < OPEN_LEVELS && entries.length <= OPEN_ITEMS);
  const unit = isList ? "item" : "member";
  return (
    <details open={isOpen} onToggle={({ currentTarget }) => setIsOpen(currentTarget.open)}>
      <summary>
        {isList ? "list" : "object"} of {entries.length.toLocaleString()} {unit}
        {entries.length > 1 && "s"}
      </summary>
      {isOpen && (
        <ul class="tree">
          {entries.slice(0, shown).map(([key, it]) => (
            <li>
              <span class="key">{key}:</span>{" "}
              <Result
                value={it}
                schema={memberSchema(schema, key, isList)}
                resolver={resolver}
                level={level + 1}
              />
            </li>
          ))}
          {shown < entries.length && (
            <li>
              <button type="button" class="quiet" onClick={() => setShown(shown + PAGE)}>
                Show more of {entries.length.toLocaleString()}
              </button>
            </li>
          )}
        </ul>
      )}
    </details>
  );
}

function memberSchema(schema: Schema, key: string, isList: boolean): Schema | undefined {
  const { properties, additionalProperties, items, prefixItems } = schema;
  const members = prefixItems ?? (Array.isArray(items) ? items : undefined);
  if (isList) return members?.[Number(key)] ?? (isSchema(items) ? items : undefined);
  return properties?.[key] ?? (isSchema(additionalProperties) ? additionalProperties : undefined);
}

function isSchema(value: Schema | Schema[] | boolean | undefined): value is Schema {
  return typeof value === "object" && !Array.isArray(value);
}
