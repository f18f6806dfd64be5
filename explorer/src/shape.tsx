/** The shape of a result: the name of its type, and the members of the objects in it. */

import { useState } from "preact/hooks";
import { choicesOf, constraints, kindOf, prefixOf, typeName, variantsOf } from "./schema";
import type { Resolver, Schema } from "./schema";

interface ShapeProps {
  schema?: Schema;
  resolver: Resolver;
  isOpen?: boolean;
}

export function Shape({ schema: given, resolver, isOpen: isOpenAtFirst = false }: ShapeProps) {
  const [isOpen, setIsOpen] = useState(isOpenAtFirst);
  const schema = resolver.resolve(given);
  const parts = partsOf(schema, resolver);
  const name = [typeName(schema, resolver), ...constraints(schema), choicesOf(schema)]
    .filter(Boolean)
    .join(", ");
  if (!parts.length) return <span class="type">{name}</span>;
  return (
    <details
      class="shape"
      open={isOpen}
      onToggle={({ currentTarget }) => setIsOpen(currentTarget.open)}
    >
      <summary class="type">{name}</summary>
      {/* A type may contain itself, so its members are made when it opens. */}
      {isOpen && (
        <ul class="tree">
          {parts.map(([key, part], at) => (
            <li key={at}>
              <span class="key">{key}: </span>
              <Shape schema={part} resolver={resolver} />
              {part.description && <span class="hint"> {part.description}</span>}
            </li>
          ))}
        </ul>
      )}
    </details>
  );
}

/** Lists in lists, and unions in them, that are looked into for objects. */
const LEVELS_MAX = 4;

/** The members of an object, of the objects in a list or of the one in a union. */
function partsOf(schema: Schema, resolver: Resolver, level = 0): [string, Schema][] {
  const inner = (part: Schema | boolean | undefined) =>
    level < LEVELS_MAX ? partsOf(resolver.resolve(part), resolver, level + 1) : [];
  switch (kindOf(schema)) {
    case "object":
      return Object.entries(schema.properties ?? {});
    case "list":
      return inner(schema.items as Schema);
    case "map":
      return inner(schema.additionalProperties);
    case "tuple":
      return prefixOf(schema).map((part, at) => [String(at), part]);
    case "union": {
      const variants = variantsOf(schema).filter((variant) => inner(variant).length);
      return variants.length === 1
        ? inner(variants[0])
        : variants.map((it) => [typeName(resolver.resolve(it), resolver), it]);
    }
    default:
      return [];
  }
}
