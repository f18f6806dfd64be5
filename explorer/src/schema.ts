/** JSON Schema, as far as a form needs it: which control a schema has, and its first value. */

import { isExactNumber } from "./values";

/** What the server says about binary data, beyond JSON Schema. */
export interface Binary {
  type: "bytes" | "array" | "image";
  dtype?: string | null;
  shape?: (number | null)[] | null;
}

export interface Schema {
  $ref?: string;
  title?: string;
  description?: string;
  type?: string | string[];
  format?: string;
  const?: unknown;
  enum?: unknown[];
  default?: unknown;
  examples?: unknown[];
  deprecated?: boolean;
  anyOf?: Schema[];
  oneOf?: Schema[];
  allOf?: Schema[];
  properties?: Record<string, Schema>;
  required?: string[];
  additionalProperties?: Schema | boolean;
  items?: Schema | Schema[] | boolean;
  prefixItems?: Schema[];
  minItems?: number;
  maxItems?: number;
  minLength?: number;
  maxLength?: number;
  minimum?: number;
  maximum?: number;
  exclusiveMinimum?: number;
  exclusiveMaximum?: number;
  multipleOf?: number;
  pattern?: string;
  contentEncoding?: string;
  contentMediaType?: string;
  "x-ucall"?: Binary;
}

export type Kind =
  | "any"
  | "array"
  | "boolean"
  | "bytes"
  | "const"
  | "enum"
  | "image"
  | "integer"
  | "list"
  | "map"
  | "null"
  | "number"
  | "object"
  | "string"
  | "tuple"
  | "union";

/** Follows references, which begin with `#/`, in the document of the methods. */
export class Resolver {
  constructor(private readonly document: unknown) {}

  resolve(schema: Schema | boolean | undefined): Schema {
    if (!schema || schema === true) return {};
    if (schema.$ref !== undefined) {
      const { $ref, ...others } = schema;
      return { title: nameOf($ref), ...this.resolve(this.find($ref)), ...others };
    }
    if (schema.allOf) {
      const { allOf, ...others } = schema;
      return allOf.map((part) => this.resolve(part)).reduce(merge, others);
    }
    if (Array.isArray(schema.type)) {
      const { type, ...others } = schema;
      // A format, such as `decimal`, is one of strings.
      if (schema.format && type.includes("string")) return { ...others, type: "string" };
      return { ...others, anyOf: type.map((name) => ({ ...others, type: name })) };
    }
    return schema;
  }

  private find(reference: string): Schema {
    let found: any = this.document;
    for (const part of reference.split("/").slice(1)) {
      found = found?.[decodeURIComponent(part).replace(/~1/g, "/").replace(/~0/g, "~")];
    }
    return found ?? {};
  }
}

function nameOf(reference: string): string {
  return decodeURIComponent(reference.slice(reference.lastIndexOf("/") + 1));
}

function merge(one: Schema, other: Schema): Schema {
  const merged = { ...other, ...one };
  if (!one.properties || !other.properties) return merged;
  return {
    ...merged,
    properties: { ...other.properties, ...one.properties },
    required: [...(other.required ?? []), ...(one.required ?? [])],
  };
}

/** The control of a resolved schema. */
export function kindOf(schema: Schema): Kind {
  if (schema["x-ucall"]) return schema["x-ucall"].type;
  if ("const" in schema) return "const";
  if (schema.enum) return "enum";
  if (variantsOf(schema).length) return "union";
  if (schema.contentEncoding === "base64") return "bytes";
  switch (schema.type) {
    case "boolean":
    case "integer":
    case "null":
    case "number":
    case "string":
      return schema.type;
    case "array":
      return prefixOf(schema).length ? "tuple" : "list";
    case "object":
      return schema.properties && Object.keys(schema.properties).length ? "object" : "map";
    default:
      return schema.properties ? "object" : "any";
  }
}

export function variantsOf(schema: Schema): Schema[] {
  return schema.anyOf ?? schema.oneOf ?? [];
}

/** The schemas of a tuple's places: `prefixItems`, or in draft 7 a list of `items`. */
export function prefixOf(schema: Schema): Schema[] {
  return schema.prefixItems ?? (Array.isArray(schema.items) ? schema.items : []);
}

/**
 * The value that a form begins with; undefined for none, which is not sent.
 *
 * @param within the references that lead to it: a type that contains itself ends at another one
 */
export function initialValue(
  given: Schema | boolean | undefined,
  resolver: Resolver,
  within: string[] = [],
): unknown {
  const reference = referenceOf(given);
  if (reference && within.includes(reference)) return undefined;
  const inner = reference ? [...within, reference] : within;
  const initial = (part: Schema | boolean | undefined) => initialValue(part, resolver, inner);
  const schema = resolver.resolve(given);
  if (schema.default !== undefined) return schema.default;
  switch (kindOf(schema)) {
    case "const":
      return schema.const;
    case "enum":
      return schema.enum?.[0];
    case "union": {
      const variants = variantsOf(schema);
      const isOptional = variants.some((it) => kindOf(resolver.resolve(it)) === "null");
      if (isOptional) return null;
      return initial(variants.find((it) => !inner.includes(referenceOf(it) ?? "")) ?? variants[0]);
    }
    case "boolean":
      return false;
    case "null":
      return null;
    case "string":
      return schema.format ? undefined : "";
    case "map":
      return {};
    case "list": {
      const item = schema.items as Schema;
      return Array.from({ length: schema.minItems ?? 0 }, () => initial(item));
    }
    case "tuple":
      return prefixOf(schema).map(initial);
    case "object": {
      const required = (schema.required ?? []).filter((name) => schema.properties?.[name]);
      return Object.fromEntries(
        required.map((name) => [name, initial(schema.properties?.[name])]),
      );
    }
    default:
      return undefined;
  }
}

function referenceOf(schema: Schema | boolean | undefined): string | undefined {
  if (typeof schema !== "object") return undefined;
  return schema.$ref ?? schema.allOf?.map(referenceOf).find(Boolean);
}

/** The name of a schema's type, as a person writes it. */
export function typeName(schema: Schema, resolver: Resolver): string {
  const kind = kindOf(schema);
  switch (kind) {
    case "const":
      return JSON.stringify(schema.const);
    case "enum":
      return schema.title ?? "one of";
    case "union":
      return variantsOf(schema)
        .map((variant) => innerName(variant, resolver))
        .join(" | ");
    case "array":
      return ["array", schema["x-ucall"]?.dtype && `of ${schema["x-ucall"].dtype}`]
        .filter(Boolean)
        .join(" ");
    case "list":
      return `list of ${grouped(innerName(schema.items as Schema, resolver))}`;
    case "map":
      return typeof schema.additionalProperties === "object"
        ? `object of ${grouped(innerName(schema.additionalProperties, resolver))}`
        : "object of any names";
    case "object":
      return schema.title ?? "object";
    case "string":
      return schema.format ?? "string";
    default:
      return kind;
  }
}

/** Objects are called by their names, and so is a type that contains itself. */
function innerName(given: Schema | undefined, resolver: Resolver): string {
  const schema = resolver.resolve(given);
  const reference = referenceOf(given);
  const isNamed = kindOf(schema) === "object" || reachedFrom(schema, resolver).has(reference);
  if (reference && isNamed) return nameOf(reference);
  return choicesOf(schema) || typeName(schema, resolver);
}

/** The references in the name of a type, and in theirs. */
function reachedFrom(
  schema: Schema,
  resolver: Resolver,
  reached = new Set<string | undefined>(),
): Set<string | undefined> {
  for (const part of [...variantsOf(schema), schema.items, schema.additionalProperties]) {
    if (typeof part !== "object" || Array.isArray(part)) continue;
    const reference = referenceOf(part);
    if (reference && reached.has(reference)) continue;
    if (reference) reached.add(reference);
    reachedFrom(resolver.resolve(part), resolver, reached);
  }
  return reached;
}

function grouped(name: string): string {
  return name.includes(" | ") ? `(${name})` : name;
}

const CHOICES_MAX = 20;

/** The choices of an enum; empty for other types. */
export function choicesOf({ enum: choices = [] }: Schema): string {
  const shown = choices.slice(0, CHOICES_MAX).map((choice) => JSON.stringify(choice));
  return [...shown, ...(choices.length > CHOICES_MAX ? ["…"] : [])].join(" | ");
}

/** The constraints of a schema in words. */
export function constraints(schema: Schema): string[] {
  const { minLength, maxLength, minItems, maxItems, multipleOf, pattern } = schema;
  const shape = schema["x-ucall"]?.shape;
  return [
    schema.minimum !== undefined && `≥ ${schema.minimum}`,
    schema.exclusiveMinimum !== undefined && `> ${schema.exclusiveMinimum}`,
    schema.maximum !== undefined && `≤ ${schema.maximum}`,
    schema.exclusiveMaximum !== undefined && `< ${schema.exclusiveMaximum}`,
    multipleOf !== undefined && `a multiple of ${multipleOf}`,
    minLength !== undefined && `at least ${minLength} characters`,
    maxLength !== undefined && `at most ${maxLength} characters`,
    minItems !== undefined && `at least ${minItems} items`,
    maxItems !== undefined && `at most ${maxItems} items`,
    pattern !== undefined && `matches ${pattern}`,
    shape && `shape (${shape.map((length) => length ?? "any").join(", ")})`,
  ].filter((text): text is string => Boolean(text));
}

/** Whether a value is of the JSON type of a resolved schema, to find its variant of a union. */
export function fits(schema: Schema, given: unknown): boolean {
  const value = isExactNumber(given) ? Number(JSON.stringify(given)) : given;
  const kind = kindOf(schema);
  switch (kind) {
    case "const":
      return schema.const === value;
    case "enum":
      return schema.enum?.includes(value) ?? false;
    case "null":
      return value === null;
    case "integer":
      return Number.isInteger(value);
    case "list":
    case "tuple":
      return Array.isArray(value);
    case "map":
    case "object":
      return typeof value === "object" && value !== null && !Array.isArray(value) && hasTags(schema, value);
    case "boolean":
    case "number":
    case "string":
      return typeof value === kind;
    default:
      return value !== null;
  }
}

/** Whether the members of a value that have only certain values in a schema have them. */
function hasTags({ properties = {} }: Schema, value: object): boolean {
  return Object.entries(value).every(([name, member]) => {
    const property = Object.hasOwn(properties, name) ? properties[name] : undefined;
    return !property || !(property.enum || "const" in property) || fits(property, member);
  });
}
