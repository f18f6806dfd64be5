/** Docs as paragraphs, with code between backticks. */

export function Prose({ text, id }: { text: string; id?: string }) {
  return (
    <div class="prose" id={id}>
      {text.split(/\n\s*\n/).map((paragraph) => (
        <p>
          <Inline text={paragraph} />
        </p>
      ))}
    </div>
  );
}

export function Inline({ text }: { text: string }) {
  return text
    .split(/(`+[^`]+`+)/)
    .map((part) =>
      part.startsWith("`") ? <code>{part.replace(/^`+|`+$/g, "")}</code> : part,
    );
}
