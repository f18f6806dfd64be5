/** Arrays: dtype, shape and first items, or the picture of an RGB or RGBA image. */

import { useLayoutEffect, useMemo, useRef } from "preact/hooks";
import { decodeBytes } from "../../python/ucall/static/ucall.js";
import { readNpy, sizeOf, type NpyArray } from "./binary";
import { Bytes, Download } from "./bytes";
import { arrayText } from "./preview";
import { counted } from "./words";

export function ArrayView({ base64 }: { base64: string }) {
  const array = useMemo(() => readNpy(decodeBytes(base64)), [base64]);
  if (!array) return <Bytes base64={base64} />;
  const { dtype, shape } = array;
  return (
    <figure>
      {isPicture(array) ? <Pixels array={array} /> : <pre tabIndex={0}>{arrayText(array)}</pre>}
      <figcaption>
        array of {dtype}, shape ({shape.join(", ")}
        {shape.length === 1 && ","}), {counted(sizeOf(shape), "item")}{" "}
        <Download base64={base64} name="result.npy" />
      </figcaption>
    </figure>
  );
}

/** Smaller ones are rather numbers than a picture. */
const SIDE_MIN = 8;
/** Of larger pictures each second, third… row and column is shown. */
const PIXELS_MAX = 1 << 20;
const SIDE_MAX = 4096;

function isPicture({ dtype, shape: [height = 0, width = 0, channels = 0, ...more] }: NpyArray) {
  const isColoured = channels === 3 || channels === 4;
  return dtype === "uint8" && isColoured && !more.length && Math.min(height, width) >= SIDE_MIN;
}

function Pixels({ array }: { array: NpyArray }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const [height = 0, width = 0] = array.shape;
  const step = Math.ceil(
    Math.max(Math.sqrt((height * width) / PIXELS_MAX), height / SIDE_MAX, width / SIDE_MAX),
  );
  const rows = Math.ceil(height / step);
  const columns = Math.ceil(width / step);
  useLayoutEffect(() => {
    const image = new ImageData(columns, rows);
    fill(image, array, step);
    canvas.current?.getContext("2d")?.putImageData(image, 0, 0);
  }, [array]);
  return (
    <canvas
      ref={canvas}
      width={columns}
      height={rows}
      role="img"
      aria-label={`Result: ${width} × ${height} pixels`}
    />
  );
}

function fill({ data, width }: ImageData, { memory, shape, strides }: NpyArray, step: number) {
  const [down = 0, right = 0, deep = 0] = strides;
  const channels = shape[2] ?? 0;
  data.fill(255);
  for (let at = 0; at < data.length / 4; at++) {
    const row = Math.floor(at / width) * step;
    const column = (at % width) * step;
    for (let channel = 0; channel < channels; channel++) {
      data[4 * at + channel] = memory.getUint8(row * down + column * right + channel * deep);
    }
  }
}
