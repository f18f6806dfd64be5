/** Bytes, as text or in hexadecimal, with a link to all of them. */

import { useEffect, useMemo, useState } from "preact/hooks";
import { decodeBytes } from "../../python/ucall/static/ucall.js";
import { counted } from "./words";

const TEXT_LENGTH = 2_000;
const HEX_LENGTH = 48;

export function Bytes({ base64 }: { base64: string }) {
  const bytes = useMemo(() => decodeBytes(base64), [base64]);
  const text = useMemo(() => printable(bytes), [bytes]);
  const hex = [...bytes.subarray(0, HEX_LENGTH)].map((it) => it.toString(16).padStart(2, "0"));
  return (
    <figure>
      <code>{text === undefined ? hex.join(" ") : text.slice(0, TEXT_LENGTH)}</code>
      <figcaption>
        bytes, {sizeText(base64)} <Download base64={base64} name="result.bin" />
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

/** How many bytes a base64 string has. */
export function sizeText(base64: string): string {
  const padding = base64.endsWith("==") ? 2 : base64.endsWith("=") ? 1 : 0;
  return counted((base64.length / 4) * 3 - padding, "byte");
}

export function Download({ base64, name }: { base64: string; name: string }) {
  const [url, setUrl] = useState<string>();
  useEffect(() => {
    const made = URL.createObjectURL(new Blob([decodeBytes(base64)]));
    setUrl(made);
    return () => URL.revokeObjectURL(made);
  }, [base64]);
  return (
    <a href={url} download={name}>
      Download
    </a>
  );
}
