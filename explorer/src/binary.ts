/** Binary data in base64: which kind it is, and the contents of `.npy` files. */

export interface NpyArray {
  dtype: string;
  shape: number[];
  isFortran: boolean;
  /** The first items, in the order of C. */
  head: string[];
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

export function decode(base64: string): Uint8Array<ArrayBuffer> {
  return Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
}

/** Reads the head of a `.npy` (NumPy's NEP 1), and its first items. */
export function readNpy(bytes: Uint8Array, count: number): NpyArray | undefined {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const isLong = (bytes[6] ?? 1) > 1;
  const start = isLong ? 12 : 10;
  if (bytes.length < start) return undefined;
  const length = isLong ? view.getUint32(8, true) : view.getUint16(8, true);
  const head = new TextDecoder().decode(bytes.subarray(start, start + length));
  const [, dtype] = /'descr': '([^']+)'/.exec(head) ?? [];
  const [, sizes] = /'shape': \(([^)]*)\)/.exec(head) ?? [];
  if (!dtype || sizes === undefined) return undefined;
  const shape = sizes
    .split(",")
    .filter((size) => size.trim())
    .map(Number);
  const isFortran = /'fortran_order': True/.test(head);
  const read = readerOf(dtype, new DataView(bytes.buffer, bytes.byteOffset + start + length));
  const size = shape.reduce((product, it) => product * it, 1);
  const indices = Array.from({ length: Math.min(size, count) }, (_, index) => index);
  const items = indices.map((index) => read(isFortran ? fortranIndex(index, shape) : index));
  return { dtype: nameOf(dtype), shape, isFortran, head: items };
}

/** The index in Fortran's order of the item at an index in C's. */
function fortranIndex(index: number, shape: number[]): number {
  let rest = index;
  const places = shape.map(() => 0);
  for (let axis = shape.length - 1; axis >= 0; axis--) {
    const size = shape[axis] ?? 1;
    places[axis] = rest % size;
    rest = Math.floor(rest / size);
  }
  return places.reduceRight((sum, place, axis) => sum * (shape[axis] ?? 1) + place, 0);
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
