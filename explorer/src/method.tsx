/** One method: its docs, its form, its calls and their results. */

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { Client } from "../../python/ucall/static/ucall.js";
import { CALLS } from "./address";
import { mediaTypeOf } from "./binary";
import { useCall } from "./call";
import { ErrorContext, type FieldError } from "./controls";
import { CopyButton } from "./copy";
import { REST_PATH, haveFields, paramsOf, pathOf, valuesOf } from "./openrpc";
import type { Credential, Method, Params } from "./openrpc";
import { Outcome } from "./outcome";
import { ParamFields, ParamText } from "./params";
import { Prose } from "./prose";
import { initialValue, kindOf, type Resolver } from "./schema";
import { Shape } from "./shape";
import { SNIPPETS, type Shown } from "./snippets";
import { hasFile } from "./values";

interface MethodProps {
  method: Method;
  client: Client;
  resolver: Resolver;
  credential?: Credential;
  /** The values of the form, which outlive it. */
  values: Map<string, Record<string, unknown>>;
}

export function MethodView({ method, client, resolver, credential, values }: MethodProps) {
  const [given, setGiven] = useState(
    () => values.get(method.name) ?? initialValues(method, resolver),
  );
  const [fieldError, setFieldError] = useState<FieldError>();
  const form = useRef<HTMLFormElement>(null);
  const { state, run, stop } = useCall(client, method);
  // Params that are typed as JSON are sent as they are.
  const [typed, setTyped] = useState<Params>();
  const [isTextValid, setIsTextValid] = useState(true);
  const params = useMemo(() => typed ?? paramsOf(method, given), [method, given, typed]);

  const change = (update: (before: Record<string, unknown>) => Record<string, unknown>) =>
    setGiven((before) => {
      const changed = update(before);
      values.set(method.name, changed);
      return changed;
    });
  const type = (changed: Params | undefined) => {
    setIsTextValid(changed !== undefined);
    if (!changed) return;
    setTyped(changed);
    change(() => valuesOf(method, changed));
  };
  const call = async () => {
    if (!form.current?.reportValidity()) return;
    setFieldError(undefined);
    const { error } = await run(params);
    const found = form.current && locate(error?.data, method, form.current);
    if (!found) return;
    setFieldError(found.error);
    // The control of the path, or of a group its fieldset.
    (document.getElementById(found.error.path) ?? found.element).focus();
  };

  useRunKeys(call);

  return (
    <article aria-labelledby="method">
      <Docs method={method} />
      <form
        ref={form}
        aria-label={`Params of ${method.name}`}
        onSubmit={(event) => {
          event.preventDefault();
          void call();
        }}
      >
        <ErrorContext.Provider value={fieldError}>
          {typed ? (
            <ParamText params={typed} onChange={type} />
          ) : (
            <ParamFields
              method={method}
              given={given}
              onChange={(name, value) => change((before) => ({ ...before, [name]: value }))}
            />
          )}
        </ErrorContext.Provider>
        <div class="row">
          <button class="primary" aria-keyshortcuts="Control+Enter">
            Call
          </button>
          {state?.isRunning && (
            <button type="button" onClick={stop}>
              Stop
            </button>
          )}
          <span class="hint keys">
            or <kbd>Ctrl</kbd>+<kbd>Enter</kbd>
          </span>
          {method.params.length > 0 && (
            <ModeButton
              name={`Params as ${typed ? "fields" : "JSON"}`}
              problem={typed ? textProblem(method, typed, isTextValid) : fileProblem(given)}
              onClick={() => setTyped(typed ? undefined : params)}
            />
          )}
        </div>
      </form>
      <Outcome state={state} method={method} resolver={resolver} />
      <Returns method={method} resolver={resolver} />
      <Snippets
        method={method}
        params={params}
        credential={credential}
        shown={shownAs(method, resolver, state?.result)}
      />
    </article>
  );
}

interface ModeButtonProps {
  name: string;
  /** Why the other mode cannot have these params; empty if it can. */
  problem: string;
  onClick(): void;
}

function ModeButton({ name, problem, onClick }: ModeButtonProps) {
  return (
    <button type="button" class="quiet" disabled={!!problem} title={problem} onClick={onClick}>
      {name}
    </button>
  );
}

function textProblem(method: Method, typed: Params, isTextValid: boolean): string {
  if (!isTextValid) return "The text is no JSON of params";
  return haveFields(method, typed) ? "" : "Some params have no field";
}

function fileProblem(given: Record<string, unknown>): string {
  return hasFile(given) ? "A chosen file is not shown as text" : "";
}

/** Ctrl+Enter calls, wherever the focus is. */
function useRunKeys(call: () => Promise<void>) {
  const current = useRef(call);
  current.current = call;
  useEffect(() => {
    const run = (event: KeyboardEvent) => {
      if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
      // A focused link or button is not pressed, too.
      event.preventDefault();
      if (!event.repeat) void current.current();
    };
    addEventListener("keydown", run);
    return () => removeEventListener("keydown", run);
  }, []);
}

/** What the page shows a result as: by its type, or for any type by the newest result. */
function shownAs(method: Method, resolver: Resolver, result: unknown): Shown {
  const kind = kindOf(resolver.resolve(method.result?.schema));
  const type = typeof result === "string" ? mediaTypeOf(result) : undefined;
  if (kind === "array" || type === "npy") return "array";
  if (kind === "image" || type) return "image";
  return kind === "bytes" ? "bytes" : "json";
}

function Docs({ method }: { method: Method }) {
  return (
    <>
      <h2 id="method" tabIndex={-1}>
        {method.name}
        {method["x-stream"] && <span class="badge">stream</span>}
        {method.deprecated && <span class="badge">deprecated</span>}
        {method["x-auth"] === false && <span class="badge">public</span>}
        {method["x-scopes"]?.map((scope) => (
          <span key={scope} class="badge">
            needs {scope}
          </span>
        ))}
      </h2>
      {method.summary && <Prose text={method.summary} />}
      {method.description && <Prose text={method.description} />}
      {!method.summary && !method.description && (
        <p class="hint">No description: the docstring of the function would be here.</p>
      )}
    </>
  );
}

function initialValues(method: Method, resolver: Resolver): Record<string, unknown> {
  const required = method.params.filter((parameter) => parameter.required);
  return Object.fromEntries(
    required.map(({ name, schema }) => [name, initialValue(resolver.resolve(schema), resolver)]),
  );
}

/** A path by place as the form has it: `params[0]` is the first param. */
function withName(text: string, { params }: Method): string {
  const named = params.filter((parameter) => !parameter["x-rest"]);
  return text.replace(/^params\[(\d+)\]/, (_found, place) => {
    const parameter = named[Number(place)];
    return parameter ? pathOf(parameter) : `${REST_PATH}[${Number(place) - named.length}]`;
  });
}

/** The innermost value of the form that the text of an error begins with. */
function locate(data: unknown, method: Method, form: HTMLFormElement) {
  if (typeof data !== "string") return undefined;
  const text = withName(data, method);
  const [element] = [...form.querySelectorAll<HTMLElement>("[data-path]")]
    .filter(
      ({ dataset: { path = "" } }) =>
        text.startsWith(path) && /^[:.[]/.test(text.slice(path.length)),
    )
    .sort((one, other) => lengthOf(other) - lengthOf(one));
  if (!element) return undefined;
  const path = element.dataset.path ?? "";
  return { element, error: { path, text: text.slice(path.length).replace(/^: /, "") } };
}

function lengthOf({ dataset: { path = "" } }: HTMLElement): number {
  return path.length;
}

function Returns({ method, resolver }: { method: Method; resolver: Resolver }) {
  const { result, errors = [] } = method;
  return (
    <dl>
      <dt>{method["x-stream"] ? "Yields" : "Returns"}</dt>
      <dd>
        <Shape schema={method["x-item"] ?? result?.schema} resolver={resolver} isOpen />
        {result?.description && <Prose text={result.description} />}
      </dd>
      {errors.map(({ code, message }) => (
        <>
          <dt>Error {code}</dt>
          <dd>{message}</dd>
        </>
      ))}
    </dl>
  );
}

interface SnippetsProps {
  method: Method;
  params: Params;
  credential?: Credential;
  shown: Shown;
}

function Snippets(props: SnippetsProps) {
  const [isOpen, setIsOpen] = useState(false);
  return (
    <details class="snippets" onToggle={({ currentTarget }) => setIsOpen(currentTarget.open)}>
      <summary>The call as a program</summary>
      {isOpen &&
        Object.entries(SNIPPETS).map(([name, write]) => (
          <Snippet key={name} name={name} text={write({ ...props, url: CALLS })} />
        ))}
    </details>
  );
}

function Snippet({ name, text }: { name: string; text: string }) {
  return (
    <section aria-label={name}>
      <div class="heading">
        <h3>{name}</h3>
        <CopyButton name={name} text={() => text} />
      </div>
      <pre tabIndex={0}>{text}</pre>
    </section>
  );
}
