/** The fields of a form: values with their names, docs and errors, which contain each other. */

import type { ComponentChildren } from "preact";
import { useContext, useState } from "preact/hooks";
import {
  ArrayControl,
  ChoiceControl,
  ErrorContext,
  FileControl,
  JsonControl,
  ResolverContext,
  StringControl,
  TextControl,
  type ControlProps,
} from "./controls";
import { Prose } from "./prose";
import * as schemas from "./schema";
import type { Resolver, Schema } from "./schema";
import * as values from "./values";

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
  const schema = resolver.resolve(props.schema);
  const isGroup = GROUPS.has(schemas.kindOf(schema));
  const { path, label, value, onChange } = props;
  // An emptied number of a union is no value, and must not hide the control.
  const [isOpen, setIsOpen] = useState(value !== undefined);
  const isIncluded = isGroup ? isOpen : value !== undefined;
  const include = (isChosen: boolean) => {
    setIsOpen(isChosen);
    onChange(isChosen ? included(schema, resolver) : undefined);
  };
  const text = description ?? schema.description;
  const hints = hintsOf(schema, resolver, isRequired, isDeprecated);
  return (
    <FieldFrame
      isGroup={isGroup}
      path={path}
      name={<span class="name">{label}</span>}
      type={<TypeHint path={path} hints={hints} />}
      choice={!isRequired && <Include label={label} isIncluded={isIncluded} onChange={include} />}
    >
      {text && <Prose id={`${path}:about`} text={text} />}
      {(isRequired || isIncluded || !isGroup) && <Control {...props} schema={schema} />}
      <Problem path={path} />
    </FieldFrame>
  );
}

/** Kinds with several controls. */
const GROUPS = new Set<schemas.Kind>(["object", "map", "list", "tuple", "union"]);

/** The type, the constraints and the default of a value in words. */
function hintsOf(
  schema: Schema,
  resolver: Resolver,
  isRequired: boolean,
  isDeprecated = schema.deprecated,
): string[] {
  const hasDefault = !isRequired && schema.default !== undefined;
  return [
    schemas.typeName(schema, resolver),
    ...schemas.constraints(schema),
    ...(hasDefault ? [`default ${JSON.stringify(schema.default)}`] : []),
    ...(isDeprecated ? ["deprecated"] : []),
  ];
}

interface FieldFrameProps {
  isGroup: boolean;
  path: string;
  name: ComponentChildren;
  type: ComponentChildren;
  choice: ComponentChildren;
  children: ComponentChildren;
}

function FieldFrame({ isGroup, path, name, type, choice, children }: FieldFrameProps) {
  if (isGroup) {
    return (
      <fieldset class="field" data-path={path} tabIndex={-1}>
        <legend>
          {name} {type}
        </legend>
        {choice}
        {children}
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
      {children}
    </div>
  );
}

function TypeHint({ path, hints }: { path: string; hints: string[] }) {
  return (
    <span class="type" id={`${path}:type`}>
      {hints.join(", ")}
    </span>
  );
}

interface IncludeProps {
  label: string;
  isIncluded: boolean;
  onChange(isIncluded: boolean): void;
}

function Include({ label, isIncluded, onChange }: IncludeProps) {
  return (
    <label class="include">
      <input
        type="checkbox"
        checked={isIncluded}
        aria-label={`Send ${label}`}
        onChange={({ currentTarget }) => onChange(currentTarget.checked)}
      />
      send
    </label>
  );
}

function Problem({ path }: { path: string }) {
  const error = useContext(ErrorContext);
  if (error?.path !== path) return null;
  return (
    <p class="problem" id={`${path}:problem`}>
      {error.text}
    </p>
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
          value={values.memberOf(members, name)}
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
