/** Binary data in base64: which kind it is, and the contents of `.npy` files. */

export interface NpyArray {
  dtype: string;
  shape: number[];
  /** The distances of neighbours along each axis, in items. */
  strides: number[];
  /** The text of the item at a place in memory. */
  text(place: number): string;
  /** The memory of the items. */
  memory: DataView;
}

/** The media type of an image that browsers show, or `npy`; by the first bytes. */
export function mediaTypeOf(base64: string): string | undefined {
  const found = BEGINNINGS.find(([beginning]) => base64.startsWith(beginning));
  return found && isBase64(base64) ? found[1] : undefined;
}

// In base64, and long enough that hardly any text begins so.
const BEGINNINGS = [
  ["iVBORw0KGgo", "image/png"],
  ["/9j/", "image/jpeg"],
  ["R0lGODlh", "image/gif"],
  ["R0lGODdh", "image/gif"],
  ["UklGR", "image/webp"],
  ["k05VTVBZ", "npy"],
] as const;

export function isBase64(text: string): boolean {
  return text.length % 4 === 0 && /^[A-Za-z0-9+/]*={0,2}$/.test(text);
}

/** A limit of NumPy. */
const DIMENSIONS_MAX = 64;

/** Reads the head of a `.npy` (NumPy's NEP 1); undefined for one that is cut off. */
export function readNpy(bytes: Uint8Array): NpyArray | undefined {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const isLong = (bytes[6] ?? 1) > 1;
  const from = isLong ? 12 : 10;
  if (bytes.length < from) return undefined;
  const start = from + (isLong ? view.getUint32(8, true) : view.getUint16(8, true));
  const head = new TextDecoder().decode(bytes.subarray(from, start));
  const [, dtype] = /'descr': '([<>|=][a-zA-Z]\d+)'/.exec(head) ?? [];
  const [, sides] = /'shape': \(([\d, ]*)\)/.exec(head) ?? [];
  if (!dtype || sides === undefined) return undefined;
  const shape = sides
    .split(",")
    .filter((side) => side.trim())
    .map(Number);
  const itemBytes = Number(/\d+/.exec(dtype)?.[0]);
  if (shape.length > DIMENSIONS_MAX || !(start + sizeOf(shape) * itemBytes <= bytes.length)) {
    return undefined;
  }
  const memory = new DataView(bytes.buffer, bytes.byteOffset + start, bytes.length - start);
  const strides = stridesOf(shape, head.includes("'fortran_order': True"));
  return { dtype: nameOf(dtype), shape, strides, text: readerOf(dtype, memory), memory };
}

/** The number of items of a shape. */
export function sizeOf(shape: number[]): number {
  return shape.reduce((product, side) => product * side, 1);
}

function stridesOf(shape: number[], isFortran: boolean): number[] {
  return shape.map((_, axis) =>
    sizeOf(isFortran ? shape.slice(0, axis) : shape.slice(axis + 1)),
  );
}

const KINDS: Record<string, string> = { f: "float", i: "int", u: "uint", c: "complex" };

/** `<f8` is float64. */
function nameOf(dtype: string): string {
  const [, order, kind = "", bytes] = /^([<>|=])(\w)(\d+)$/.exec(dtype) ?? [];
  if (kind === "b") return "bool";
  const name = KINDS[kind];
  if (!name) return dtype;
  return `${name}${8 * Number(bytes)}${order === ">" ? " (big-endian)" : ""}`;
}

function readerOf(dtype: string, view: DataView): (index: number) => string {
  const isLittle = !dtype.startsWith(">");
  const kind = dtype.slice(1);
  const size = Number(kind.slice(1));
  return (index) => {
    const at = index * size;
    switch (kind) {
      case "b1":
        return view.getUint8(at) ? "true" : "false";
      case "i1":
        return String(view.getInt8(at));
      case "u1":
        return String(view.getUint8(at));
      case "i2":
        return String(view.getInt16(at, isLittle));
      case "u2":
        return String(view.getUint16(at, isLittle));
      case "i4":
        return String(view.getInt32(at, isLittle));
      case "u4":
        return String(view.getUint32(at, isLittle));
      case "i8":
        return String(view.getBigInt64(at, isLittle));
      case "u8":
        return String(view.getBigUint64(at, isLittle));
      case "f2":
        return String(toFloat16(view.getUint16(at, isLittle)));
      case "f4":
        return String(Number(view.getFloat32(at, isLittle).toPrecision(7)));
      case "f8":
        return String(view.getFloat64(at, isLittle));
      case "c8":
        return complex(view.getFloat32(at, isLittle), view.getFloat32(at + 4, isLittle));
      case "c16":
        return complex(view.getFloat64(at, isLittle), view.getFloat64(at + 8, isLittle));
      default:
        return "?";
    }
  };
}

function complex(real: number, imaginary: number): string {
  return `${real}${imaginary < 0 ? "-" : "+"}${Math.abs(imaginary)}j`;
}

/** IEEE 754's binary16, which older browsers cannot read. */
function toFloat16(bits: number): number {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 0x1f;
  const fraction = bits & 0x3ff;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  if (exponent === 0x1f) return fraction ? NaN : sign * Infinity;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}
