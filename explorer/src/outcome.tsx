/** The outcome of a call: its state, its result or error, the items of a stream, and what was sent. */

import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import type { CallState } from "./call";
import { CopyButton } from "./copy";
import type { Exchange } from "./exchange";
import type { Method } from "./openrpc";
import { OPEN_LEVELS, Result } from "./result";
import type { Resolver } from "./schema";
import { counted, duration } from "./words";

interface OutcomeProps {
  state?: CallState;
  method: Method;
  resolver: Resolver;
}

export function Outcome({ state, method, resolver }: OutcomeProps) {
  const isStream = method["x-stream"] ?? false;
  const heading = useRef<HTMLDivElement>(null);
  const isShown = state && (state.isRunning || !state.error);
  // With an error the field at fault is what has to be seen.
  useEffect(() => {
    if (isShown) heading.current?.scrollIntoView({ block: "nearest" });
  }, [isShown]);
  return (
    <section class="outcome" aria-label="Result" aria-busy={state?.isRunning ?? false}>
      <div class="heading" ref={heading}>
        <p role="status" class="status">
          {state && statusOf(state, isStream)}
        </p>
        {state && ("result" in state || state.count > 0) && (
          <CopyButton name="result" text={() => copied(state, isStream)} />
        )}
      </div>
      {state && isStream && <Items state={state} method={method} resolver={resolver} />}
      {state?.error && <ErrorView error={state.error} resolver={resolver} />}
      {state && "result" in state && !(isStream && state.result === null) && (
        <div class="result">
          {isStream && <p class="hint">returned</p>}
          <Result
            value={state.result}
            schema={isStream ? method["x-returned"] : method.result?.schema}
            resolver={resolver}
          />
        </div>
      )}
      {state && <Raw exchange={state.exchange} />}
    </section>
  );
}

function statusOf(state: CallState, isStream: boolean): string {
  const verb = state.isRunning
    ? "Running"
    : state.isStopped
      ? "Stopped"
      : state.error
        ? "Failed"
        : "Done";
  const items = isStream ? `, ${counted(state.count, "item")}` : "";
  const time = state.isRunning && !isStream ? "" : `, ${duration(state.tookMs ?? 0)}`;
  return `${verb}${items}${time}`;
}

/** A result as JSON; the items of a stream one on a line. */
function copied({ items, result }: CallState, isStream: boolean): string {
  if (!isStream) return JSON.stringify(result, null, 2);
  return items.map((item) => JSON.stringify(item)).join("\n");
}

/** Text of a stream, such as tokens, as one text; other items one on a line. */
function Items({ state: { items, count }, method, resolver }: { state: CallState } & OutcomeProps) {
  const log = useFollowed(count);
  if (!items.length) return null;
  const isText = items.every((item) => typeof item === "string");
  const dropped = count - items.length;
  return (
    <div class="items" role="log" aria-label="Items" tabIndex={0} ref={log}>
      {dropped > 0 && <p class="hint">Not shown: {counted(dropped, "earlier item")}.</p>}
      {isText ? (
        <pre>{items.join("")}</pre>
      ) : (
        <ol start={dropped + 1}>
          {items.map((item, at) => (
            <li key={dropped + at}>
              <Result
                value={item}
                schema={method["x-item"]}
                resolver={resolver}
                level={OPEN_LEVELS}
              />
            </li>
          ))}
        </ol>
      )}
    </div>
  );
}

/** Keeps the newest items in view, unless the reader has scrolled up. */
function useFollowed(count: number) {
  const element = useRef<HTMLDivElement>(null);
  const isAtEnd = useRef(true);
  const { current } = element;
  if (current) {
    isAtEnd.current = current.scrollTop + current.clientHeight >= current.scrollHeight - 8;
  }
  useLayoutEffect(() => {
    if (isAtEnd.current) element.current?.scrollTo({ top: element.current.scrollHeight });
  }, [count]);
  return element;
}

function ErrorView({ error, resolver }: { error: CallState["error"] & {}; resolver: Resolver }) {
  return (
    <div class="error" role="alert">
      <p>
        <strong>{error.message}</strong> {error.code !== undefined && <code>{error.code}</code>}
      </p>
      {typeof error.data === "string" ? (
        <pre>{error.data}</pre>
      ) : (
        error.data !== undefined && <Result value={error.data} resolver={resolver} />
      )}
    </div>
  );
}

/** The texts that were sent and received. */
function Raw({ exchange: { request, status, headers, reply } }: { exchange: Exchange }) {
  const [isOpen, setIsOpen] = useState(false);
  return (
    <details class="raw" onToggle={({ currentTarget }) => setIsOpen(currentTarget.open)}>
      <summary>Request and reply as sent</summary>
      {isOpen && (
        <>
          <RawText name="Request" text={request} />
          {headers === undefined ? (
            <p class="hint">Replies over a WebSocket have no headers.</p>
          ) : (
            <RawText name="Headers" text={`${status}\n${headers}`} />
          )}
          <RawText name="Reply" text={reply} />
        </>
      )}
    </details>
  );
}

/** Longer texts are shown in part, and copied whole. */
const RAW_LENGTH = 10_000;

function RawText({ name, text }: { name: string; text?: string }) {
  if (!text) return null;
  return (
    <section aria-label={name}>
      <div class="heading">
        <h3>{name}</h3>
        <CopyButton name={name.toLowerCase()} text={() => text} />
      </div>
      <pre tabIndex={0}>{text.slice(0, RAW_LENGTH)}</pre>
      {text.length > RAW_LENGTH && (
        <p class="hint">
          The first {RAW_LENGTH.toLocaleString()} of {counted(text.length, "character")}.
        </p>
      )}
    </section>
  );
}
