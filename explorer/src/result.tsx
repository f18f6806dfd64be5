/** Results: images as pictures, arrays by shape, dtype and head, and all else as a tree. */

import { useState } from "preact/hooks";
import { ArrayView } from "./array";
import { isBase64, mediaTypeOf } from "./binary";
import { Bytes, Download, sizeText } from "./bytes";
import { oneLine } from "./preview";
import { kindOf, type Kind, type Resolver, type Schema } from "./schema";
import { isExactNumber } from "./values";
import { counted } from "./words";

/** Items of a list or an object that are shown at first, and with each "more". */
const PAGE = 100;
/** The lists and objects of the first levels are open, unless they are long or fit on a line. */
export const OPEN_LEVELS = 6;
const OPEN_ITEMS = 30;
const TEXT_LENGTH = 2_000;

interface ResultProps {
  value: unknown;
  schema?: Schema;
  resolver: Resolver;
  level?: number;
  /** Of a member of an object, or the place of an item. */
  name?: string | number;
}

export function Result({ value, schema, resolver, level = 0, name }: ResultProps) {
  const known = resolver.resolve(schema);
  if (typeof value === "object" && value !== null && !isExactNumber(value)) {
    return <Tree value={value} schema={known} resolver={resolver} level={level} name={name} />;
  }
  return (
    <>
      <Key name={name} />
      {typeof value === "string" ? (
        <Text text={value} kind={kindOf(known)} />
      ) : (
        <code class={typeof value}>{JSON.stringify(value)}</code>
      )}
    </>
  );
}

function Key({ name }: { name?: string | number }) {
  return name === undefined ? null : <span class="key">{name}: </span>;
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
        Show all {counted(text.length, "character")}
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
        {name}, {sizeText(base64)} <Download base64={base64} name={`result.${extension(type)}`} />
      </figcaption>
    </figure>
  );
}

function extension(type: string): string {
  return type === "image/*" ? "bin" : type.slice(6);
}

interface TreeProps extends ResultProps {
  value: object;
  schema: Schema;
  level: number;
}

/** A closed list or object is one line of its JSON. */
function Tree({ value, schema, resolver, level, name }: TreeProps) {
  const [shown, setShown] = useState(PAGE);
  const isList = Array.isArray(value);
  const names = isList ? [] : Object.keys(value);
  const count = isList ? value.length : names.length;
  const keys = Array.from({ length: Math.min(shown, count) }, (_, at) => names[at] ?? at);
  const isLong = count > OPEN_ITEMS || (isList && isOfNumbers(value));
  const [isOpen, setIsOpen] = useState(level < OPEN_LEVELS && !isLong);
  if (!count) {
    return (
      <>
        <Key name={name} />
        <code>{isList ? "[]" : "{}"}</code>
      </>
    );
  }
  return (
    <details open={isOpen} onToggle={({ currentTarget }) => setIsOpen(currentTarget.open)}>
      <summary>
        <Key name={name} />
        <span class="count">
          {isList ? `list of ${counted(count, "item")}` : `object of ${counted(count, "member")}`}
        </span>
        {!isOpen && <code>{oneLine(value)}</code>}
      </summary>
      {isOpen && (
        <ul class="tree">
          {keys.map((key) => (
            <li key={key}>
              <Result
                name={key}
                value={(value as Record<PropertyKey, unknown>)[key]}
                schema={memberSchema(schema, String(key), isList)}
                resolver={resolver}
                level={level + 1}
              />
            </li>
          ))}
          {shown < count && (
            <li>
              <button type="button" class="quiet" onClick={() => setShown(shown + PAGE)}>
                Show more of {count.toLocaleString()}
              </button>
            </li>
          )}
        </ul>
      )}
    </details>
  );
}

function isOfNumbers(list: unknown[]): boolean {
  return list.every((item) => typeof item === "number" || isExactNumber(item));
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
