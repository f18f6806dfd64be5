/** Frames of JSON and parts, as the server reads and writes them. Not the code under test. */
import assert from "node:assert/strict";

/** `{ text, parts }` of a frame, which must be exact. */
export function parseFrame(frame) {
  assert.deepEqual([...frame.subarray(0, 2)], [0xb1, 1]);
  const count = frame.readUInt16LE(2);
  let end = 8 + 8 * count + frame.readUInt32LE(4);
  const text = frame.toString("utf8", 8 + 8 * count, end);
  const parts = [];
  for (let at = 0; at < count; at++) {
    const start = end + (-end & 63);
    assert.ok(frame.subarray(end, start).every((byte) => byte === 0));
    end = start + Number(frame.readBigUInt64LE(8 + 8 * at));
    parts.push(frame.subarray(start, end));
  }
  assert.equal(frame.length, end);
  return { text, parts };
}

/** A frame. `lies` are its lengths, if they are not those of the parts. */
export function makeFrame(text, parts, lies = parts.map(({ length }) => length)) {
  const json = Buffer.from(text);
  const head = Buffer.alloc(8 + 8 * parts.length);
  head.set([0xb1, 1]);
  head.writeUInt16LE(parts.length, 2);
  head.writeUInt32LE(json.length, 4);
  lies.forEach((length, at) => head.writeBigUInt64LE(BigInt(length), 8 + 8 * at));
  const pieces = [head, json];
  let length = head.length + json.length;
  for (const part of parts) {
    pieces.push(Buffer.alloc(-length & 63), part);
    length += (-length & 63) + part.length;
  }
  return Buffer.concat(pieces);
}

/** A message in which each part is a `Buffer`. */
export function parseMessage(data) {
  if (data[0] !== 0xb1) return JSON.parse(data);
  const { text, parts } = parseFrame(data);
  return JSON.parse(text, (_, value) => (Number.isInteger(value?.$part) ? parts[value.$part] : value));
}
