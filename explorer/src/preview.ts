/** Values as short texts: JSON on one line, and arrays in rows. */

import { sizeOf, type NpyArray } from "./binary";
import { isExactNumber } from "./values";

const STRING_LENGTH = 40;

/** A value as JSON on one line of about `room` characters, with `…` for what is left out. */
export function oneLine(value: unknown, room = 160): string {
  if (typeof value === "string") return JSON.stringify(shortened(value));
  if (typeof value !== "object" || value === null || isExactNumber(value)) {
    return JSON.stringify(value);
  }
  const isList = Array.isArray(value);
  const parts: string[] = [];
  let left = room - 2;
  for (const key of isList ? value.keys() : Object.keys(value)) {
    if (left <= 0) {
      parts.push("…");
      break;
    }
    const name = isList ? "" : `${shortened(String(key))}: `;
    const part = name + oneLine((value as Record<PropertyKey, unknown>)[key], left - name.length);
    parts.push(part);
    left -= part.length + 2;
  }
  return isList ? `[${parts.join(", ")}]` : `{${parts.join(", ")}}`;
}

function shortened(text: string): string {
  return text.length > STRING_LENGTH ? `${text.slice(0, STRING_LENGTH)}…` : text;
}

/** Arrays up to this size are shown whole. */
const WHOLE = 64;
/** Of others the first and last items of each axis, and never more items than these. */
const EDGE = 3;
const EDGE_OF_ROW = 20;
const ITEMS = 150;

/** The items of an array as NumPy prints them: a row on a line, in columns. */
export function arrayText(array: NpyArray): string {
  const { shape } = array;
  if (shape.length < 2) return rows(array, 0);
  let width = 0;
  rows({ ...array, text: (place) => widest(array.text(place)) }, 0);
  return rows(array, width);

  function widest(text: string): string {
    width = Math.max(width, text.length);
    return text;
  }
}

function rows({ shape, strides, text }: NpyArray, width: number): string {
  const size = sizeOf(shape);
  // One without items may have any number of empty rows.
  const isWhole = size > 0 && size <= WHOLE;
  const head = shape.length === 1 ? EDGE_OF_ROW : EDGE;
  let left = ITEMS;
  const write = (axis: number, place: number): string => {
    const side = shape[axis];
    if (side === undefined) {
      left--;
      return text(place).padStart(width);
    }
    if (side === 0) left--;
    const parts: string[] = [];
    for (let at = 0; at < side; at++) {
      if (left <= 0 || (!isWhole && at === head && side > head + EDGE)) {
        parts.push("…");
        if (left <= 0) break;
        at = side - EDGE;
      }
      parts.push(write(axis + 1, place + at * (strides[axis] ?? 0)));
    }
    const below = shape.length - 1 - axis;
    return `[${parts.join(below ? `,${"\n".repeat(below)}${" ".repeat(axis + 1)}` : ", ")}]`;
  };
  return write(0, 0);
}
