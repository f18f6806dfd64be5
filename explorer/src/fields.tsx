/** The controls of a form: one for each kind of schema, which contain each other. */

import { createContext, type ComponentChildren } from "preact";
import { useContext, useEffect, useRef, useState } from "preact/hooks";
import { Prose } from "./prose";
import * as schemas from "./schema";
import type { Resolver, Schema } from "./schema";
import * as values from "./values";
import { FileValue } from "./values";

/** An error of the server at a value, by the path that its text begins with. */
export interface FieldError {
  path: string;
  text: string;
}

export const ResolverContext = createContext<Resolver>(new schemas.Resolver({}));
export const ErrorContext = createContext<FieldError | undefined>(undefined);

interface ControlProps {
  schema: Schema;
  path: string;
  label: string;
  value: unknown;
  onChange(value: unknown): void;
}

interface FieldProps extends ControlProps {
  isRequired: boolean;
  isDeprecated?: boolean;
  description?: string;
}

/** The path of a member, as the server writes it. */
export function join(path: string, key: string | number): string {
  if (typeof key === "number") return `${path}[${key}]`;
  return /^[A-Za-z_]\w*$/.test(key) ? `${path}.${key}` : `${path}[${JSON.stringify(key)}]`;
}

/** A named value with its docs, its control and its error. An optional one may be left out. */
export function Field({ isRequired, isDeprecated, description, ...props }: FieldProps) {
  const resolver = useContext(ResolverContext);
  const error = useContext(ErrorContext);
  const schema = resolver.resolve(props.schema);
  const kind = schemas.kindOf(schema);
  const { path, label, value, onChange } = props;
  const isGroup = ["object", "map", "list", "tuple", "union"].includes(kind);
  const problem = error?.path === path ? error.text : undefined;
  const text = description ?? schema.description;
  const hints = [schemas.typeName(schema, resolver), ...schemas.constraints(schema)];
  if (!isRequired && schema.default !== undefined) {
    hints.push(`default ${JSON.stringify(schema.default)}`);
  }
  if (isDeprecated ?? schema.deprecated) hints.push("deprecated");
  // An emptied number of a union is no value, and must not hide the control.
  const [isOpen, setIsOpen] = useState(value !== undefined);
  const isIncluded = isGroup ? isOpen : value !== undefined;
  const control = <Control {...props} schema={schema} />;
  const name = <span class="name">{label}</span>;
  const type = (
    <span class="type" id={`${path}:type`}>
      {hints.join(", ")}
    </span>
  );
  const choice = !isRequired && (
    <label class="include">
      <input
        type="checkbox"
        checked={isIncluded}
        aria-label={`Send ${label}`}
        onChange={({ currentTarget: { checked } }) => {
          setIsOpen(checked);
          onChange(checked ? included(schema, resolver) : undefined);
        }}
      />
      send
    </label>
  );
  const details = (
    <>
      {text && <Prose id={`${path}:about`} text={text} />}
      {(isRequired || isIncluded || !isGroup) && control}
      {problem && (
        <p class="problem" id={`${path}:problem`}>
          {problem}
        </p>
      )}
    </>
  );
  if (isGroup) {
    return (
      <fieldset class="field" data-path={path} tabIndex={-1}>
        <legend>
          {name} {type}
        </legend>
        {choice}
        {details}
      </fieldset>
    );
  }
  return (
    <div class="field" data-path={path}>
      <div class="heading">
        <span>
          <label for={path}>{name}</label> {type}
        </span>
        {choice}
      </div>
      {details}
    </div>
  );
}

/** The first value of an optional value that is to be sent. */
function included(schema: Schema, resolver: Resolver): unknown {
  return schemas.initialValue(schema, resolver) ?? (schemas.kindOf(schema) === "null" ? null : "");
}

function Control(props: ControlProps) {
  switch (schemas.kindOf(props.schema)) {
    case "union":
      return <UnionControl {...props} />;
    case "object":
      return <ObjectControl {...props} />;
    case "map":
      return <MapControl {...props} />;
    case "list":
      return <ListControl {...props} />;
    case "tuple":
      return <TupleControl {...props} />;
    case "enum":
      return <ChoiceControl {...props} choices={props.schema.enum ?? []} />;
    case "boolean":
      return <ChoiceControl {...props} choices={[false, true]} />;
    case "const":
    case "null":
      return <output id={props.path}>{JSON.stringify(props.value ?? null)}</output>;
    case "bytes":
      return <FileControl {...props} />;
    case "image":
      return <FileControl {...props} accept="image/*" />;
    case "array":
      return <ArrayControl {...props} />;
    case "integer":
      return <TextControl {...props} parse={values.parseInteger} inputMode="numeric" />;
    case "number":
      return <TextControl {...props} parse={values.parseNumber} inputMode="decimal" />;
    case "string":
      return <StringControl {...props} />;
    default:
      return <JsonControl {...props} />;
  }
}

/** Attributes that every control has: its label and its texts are found by its path. */
function useAttributes({ path }: ControlProps) {
  const hasProblem = useContext(ErrorContext)?.path === path;
  return {
    id: path,
    "aria-invalid": hasProblem || undefined,
    // Those that do not exist are ignored.
    "aria-describedby": `${path}:problem ${path}:type ${path}:about`,
  };
}

/** The text of a control, which is kept as it was typed while it means the same value. */
function useText(value: unknown, parse: (text: string) => unknown) {
  const [text, setText] = useState(values.formatValue(value));
  const isSame = JSON.stringify(parse(text)) === JSON.stringify(value);
  return [isSame ? text : values.formatValue(value), setText] as const;
}

interface TextControlProps extends ControlProps {
  parse(text: string): unknown;
  inputMode: "numeric" | "decimal" | "text";
  placeholder?: string;
}

function TextControl({ parse, inputMode, placeholder, ...props }: TextControlProps) {
  const [text, setText] = useText(props.value, parse);
  const { default: standard } = props.schema;
  return (
    <input
      {...useAttributes(props)}
      type="text"
      inputMode={inputMode}
      autocomplete="off"
      spellcheck={false}
      placeholder={values.formatValue(standard) || placeholder}
      value={text}
      onInput={({ currentTarget }) => {
        setText(currentTarget.value);
        props.onChange(parse(currentTarget.value));
      }}
    />
  );
}

const PLACEHOLDERS: Record<string, string> = {
  "date-time": "2026-11-21T12:00:00Z",
  duration: "P1DT2H30M",
  uuid: "123e4567-e89b-12d3-a456-426614174000",
  decimal: "1.25",
};

function StringControl(props: ControlProps) {
  const attributes = useAttributes(props);
  const { value, onChange, schema } = props;
  const { format = "" } = schema;
  if (format === "date" || format === "password") {
    return (
      <input
        {...attributes}
        type={format}
        autocomplete="off"
        value={values.formatValue(value)}
        onInput={({ currentTarget }) => onChange(currentTarget.value || undefined)}
      />
    );
  }
  if (format === "date-time") return <MomentControl {...props} />;
  if (format || schema.pattern) {
    const parse = (text: string) => text || undefined;
    return (
      <TextControl {...props} parse={parse} inputMode="text" placeholder={PLACEHOLDERS[format]} />
    );
  }
  return (
    <textarea
      {...attributes}
      rows={1}
      spellcheck={false}
      placeholder={values.formatValue(schema.default)}
      value={values.formatValue(value)}
      onInput={({ currentTarget }) => onChange(currentTarget.value)}
    />
  );
}

/** A date with a time: as text, with a picker that fills it in the browser's time zone. */
function MomentControl(props: ControlProps) {
  const parse = (text: string) => text || undefined;
  return (
    <div class="row">
      <TextControl
        {...props}
        parse={parse}
        inputMode="text"
        placeholder={PLACEHOLDERS["date-time"]}
      />
      <input
        class="picker"
        type="datetime-local"
        step="1"
        aria-label={`Pick ${props.label} in local time`}
        onInput={({ currentTarget: { value } }) => {
          if (value) props.onChange(new Date(value).toISOString());
        }}
      />
    </div>
  );
}

function ChoiceControl({ choices, ...props }: ControlProps & { choices: unknown[] }) {
  const index = choices.indexOf(props.value);
  return (
    <select
      {...useAttributes(props)}
      value={index}
      onChange={({ currentTarget }) => props.onChange(choices[Number(currentTarget.value)])}
    >
      {index < 0 && <option value={-1}>{values.formatValue(props.schema.default)}</option>}
      {choices.map((choice, at) => (
        <option value={at}>{values.formatValue(choice)}</option>
      ))}
    </select>
  );
}

function JsonControl(props: ControlProps) {
  const [text, setText] = useText(props.value, values.parseAny);
  const element = useRef<HTMLTextAreaElement>(null);
  useEffect(() => element.current?.setCustomValidity(values.jsonProblem(text)), [text]);
  return (
    <textarea
      {...useAttributes(props)}
      ref={element}
      rows={2}
      class="code"
      spellcheck={false}
      placeholder={values.formatValue(props.schema.default) || "JSON, or else text"}
      value={text}
      onInput={({ currentTarget }) => {
        setText(currentTarget.value);
        props.onChange(values.parseAny(currentTarget.value));
      }}
    />
  );
}

function FileControl({ accept, ...props }: ControlProps & { accept?: string }) {
  const { value, onChange } = props;
  const given = value instanceof FileValue ? value : undefined;
  return (
    <>
      <input
        {...useAttributes(props)}
        type="file"
        accept={accept}
        onChange={async ({ currentTarget }) => {
          const file = currentTarget.files?.[0];
          onChange(file && (await FileValue.read(file)));
        }}
      />
      {given && accept && <img class="preview" src={dataUrl(given.base64)} alt={given.name} />}
      {given && <p class="hint">{given.name} is sent.</p>}
    </>
  );
}

/** Browsers recognise the formats of images by their contents. */
function dataUrl(base64: string): string {
  return `data:image/*;base64,${base64}`;
}

/** An array: nested lists as text, or a `.npy` file. */
function ArrayControl(props: ControlProps) {
  const given = props.value instanceof FileValue;
  return (
    <>
      {!given && <JsonControl {...props} />}
      <label class="hint">
        or a .npy file{" "}
        <input
          id={given ? props.path : undefined}
          type="file"
          accept=".npy"
          onChange={async ({ currentTarget }) => {
            const file = currentTarget.files?.[0];
            props.onChange(file && (await FileValue.read(file)));
          }}
        />
      </label>
    </>
  );
}

function UnionControl({ schema, ...props }: ControlProps) {
  const resolver = useContext(ResolverContext);
  const variants = schemas.variantsOf(schema).map((variant) => resolver.resolve(variant));
  const find = () =>
    Math.max(
      0,
      variants.findIndex((it) => schemas.fits(it, props.value)),
    );
  const [index, setIndex] = useState(find);
  const variant = variants[index] ?? {};
  const kind = schemas.kindOf(variant);
  return (
    <>
      <select
        aria-label={`Type of ${props.label}`}
        value={index}
        onChange={({ currentTarget }) => {
          const chosen = Number(currentTarget.value);
          setIndex(chosen);
          props.onChange(included(variants[chosen] ?? {}, resolver));
        }}
      >
        {variants.map((it, at) => (
          <option value={at}>{schemas.typeName(it, resolver)}</option>
        ))}
      </select>
      {kind !== "null" && (
        <Named label={props.label} path={props.path}>
          <Control key={index} {...props} schema={variant} />
        </Named>
      )}
    </>
  );
}

/** Names a control whose visible label belongs to more than it. */
function Named({
  label,
  path,
  children,
}: {
  label: string;
  path: string;
  children: ComponentChildren;
}) {
  return (
    <div class="nested">
      <label class="hidden" for={path}>
        {label}
      </label>
      {children}
    </div>
  );
}

function ObjectControl({ schema, path, value, onChange }: ControlProps) {
  const members = (value ?? {}) as Record<string, unknown>;
  return (
    <div class="nested">
      {Object.entries(schema.properties ?? {}).map(([name, property]) => (
        <Field
          key={name}
          schema={property}
          path={join(path, name)}
          label={name}
          isRequired={schema.required?.includes(name) ?? false}
          value={members[name]}
          onChange={(member) => onChange({ ...members, [name]: member })}
        />
      ))}
    </div>
  );
}

function TupleControl({ schema, path, label, value, onChange }: ControlProps) {
  const items = (value ?? []) as unknown[];
  return (
    <div class="nested">
      {schemas.prefixOf(schema).map((item, at) => (
        <Field
          key={at}
          schema={item}
          path={join(path, at)}
          label={item.title ?? `${label}[${at}]`}
          isRequired={at < (schema.minItems ?? Infinity)}
          value={items[at]}
          onChange={(changed) => onChange(replaced(items, at, changed))}
        />
      ))}
    </div>
  );
}

function ListControl({ schema, path, label, value, onChange }: ControlProps) {
  const resolver = useContext(ResolverContext);
  const item = schema.items as Schema | undefined;
  const items = (value ?? []) as unknown[];
  return (
    <div class="nested">
      {items.map((it, at) => (
        <div class="item" key={at}>
          <Field
            schema={item ?? {}}
            path={join(path, at)}
            label={`${label}[${at}]`}
            isRequired
            value={it}
            onChange={(changed) => onChange(replaced(items, at, changed))}
          />
          <RemoveButton
            name={`${label}[${at}]`}
            onClick={() => onChange(items.filter((_, other) => other !== at))}
          />
        </div>
      ))}
      <button
        type="button"
        onClick={() => onChange([...items, schemas.initialValue(resolver.resolve(item), resolver)])}
      >
        Add to {label}
      </button>
    </div>
  );
}

function MapControl({ schema, path, label, value, onChange }: ControlProps) {
  const resolver = useContext(ResolverContext);
  const { additionalProperties: member } = schema;
  const entries = Object.entries((value ?? {}) as Record<string, unknown>);
  const change = (changed: [string, unknown][]) => onChange(Object.fromEntries(changed));
  const added = () => initialKey(entries.map(([key]) => key));
  return (
    <div class="nested">
      {entries.map(([key, it], at) => (
        <div class="item" key={at}>
          <label>
            name{" "}
            <input
              type="text"
              value={key}
              onChange={({ currentTarget }) =>
                change(replaced(entries, at, [currentTarget.value, it]))
              }
            />
          </label>
          <Field
            schema={typeof member === "object" ? member : {}}
            path={join(path, key)}
            label={key || '""'}
            isRequired
            value={it}
            onChange={(changed) => change(replaced(entries, at, [key, changed]))}
          />
          <RemoveButton
            name={key}
            onClick={() => change(entries.filter((_, other) => other !== at))}
          />
        </div>
      ))}
      <button
        type="button"
        onClick={() => {
          const first = schemas.initialValue(
            resolver.resolve(typeof member === "object" ? member : {}),
            resolver,
          );
          change([...entries, [added(), first]]);
        }}
      >
        Add to {label}
      </button>
    </div>
  );
}

/** A name that no member has yet. */
function initialKey(keys: string[]): string {
  let number = keys.length + 1;
  while (keys.includes(`name${number}`)) number++;
  return `name${number}`;
}

function RemoveButton({ name, onClick }: { name: string; onClick(): void }) {
  return (
    <button type="button" class="quiet" aria-label={`Remove ${name}`} onClick={onClick}>
      Remove
    </button>
  );
}

function replaced<T>(items: T[], at: number, item: T): T[] {
  const changed = [...items];
  changed[at] = item;
  return changed;
}
