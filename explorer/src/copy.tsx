/** A button that copies a text. */

import { useState } from "preact/hooks";

interface CopyButtonProps {
  /** What is copied, as a screen reader names it. */
  name: string;
  /** Made when the button is pressed, because it may be long. */
  text(): string;
}

export function CopyButton({ name, text }: CopyButtonProps) {
  const [isCopied, setIsCopied] = useState(false);
  return (
    <button
      type="button"
      class="quiet"
      aria-label={isCopied ? `Copied ${name}` : `Copy ${name}`}
      onClick={async () => setIsCopied(await copy(text()))}
      onBlur={() => setIsCopied(false)}
    >
      {isCopied ? "Copied" : "Copy"}
    </button>
  );
}

/** Whether a text could be copied. Pages over plain HTTP have no `navigator.clipboard`. */
async function copy(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copySelected(text);
  }
}

function copySelected(text: string): boolean {
  const focused = document.activeElement;
  const area = document.createElement("textarea");
  area.value = text;
  document.body.append(area);
  area.select();
  const isCopied = document.execCommand("copy");
  area.remove();
  if (focused instanceof HTMLElement) focused.focus();
  return isCopied;
}
