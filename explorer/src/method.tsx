/** One method: its docs, its form, its calls and their results. */

import { useMemo, useRef, useState } from "preact/hooks";
import type { Client } from "../../python/ucall/static/ucall.js";
import { CALLS } from "./address";
import { useCall, type CallState } from "./call";
import { ErrorContext, type FieldError } from "./controls";
import { Field } from "./fields";
import { paramsOf, type Credential, type Method, type Parameter } from "./openrpc";
import { Prose } from "./prose";
import { Result } from "./result";
import { initialValue, typeName, type Resolver } from "./schema";
import { SNIPPETS } from "./snippets";
import { memberOf } from "./values";

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
  const params = useMemo(() => paramsOf(method, given), [method, given]);

  const change = (name: string, value: unknown) =>
    setGiven((before) => {
      const changed = { ...before, [name]: value };
      values.set(method.name, changed);
      return changed;
    });
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

  return (
    <article aria-labelledby="method">
      <Docs method={method} />
      <Returns method={method} resolver={resolver} />
      <form
        ref={form}
        aria-label={`Params of ${method.name}`}
        onSubmit={(event) => {
          event.preventDefault();
          void call();
        }}
        onKeyDown={(event) => {
          if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) void call();
        }}
      >
        <ErrorContext.Provider value={fieldError}>
          <Params method={method} given={given} onChange={change} />
        </ErrorContext.Provider>
        <div class="row">
          <button class="primary" title="Ctrl+Enter">
            Call
          </button>
          {state?.isRunning && (
            <button type="button" onClick={stop}>
              Stop
            </button>
          )}
        </div>
      </form>
      <Outcome state={state} method={method} resolver={resolver} />
      <Snippets method={method} params={params} credential={credential} />
    </article>
  );
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
    </>
  );
}

interface ParamsProps {
  method: Method;
  given: Record<string, unknown>;
  onChange(name: string, value: unknown): void;
}

function Params({ method, given, onChange }: ParamsProps) {
  return method.params.map((parameter) => (
    <Field
      key={parameter.name}
      schema={parameter.schema ?? {}}
      path={pathOf(parameter)}
      label={parameter.name}
      description={parameter.description ?? parameter.summary}
      isRequired={parameter.required ?? false}
      isDeprecated={parameter.deprecated}
      value={memberOf(given, parameter.name)}
      onChange={(value) => onChange(parameter.name, value)}
    />
  ));
}

function initialValues(method: Method, resolver: Resolver): Record<string, unknown> {
  const required = method.params.filter((parameter) => parameter.required);
  return Object.fromEntries(
    required.map(({ name, schema }) => [name, initialValue(resolver.resolve(schema), resolver)]),
  );
}

/** The path of a param in the server's errors. Those of `*args` have only a place there. */
function pathOf({ name, "x-rest": rest }: Parameter): string {
  if (rest === "named") return "params";
  return rest ? REST_PATH : `params.${name}`;
}

const REST_PATH = "params*";

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
  const schema = resolver.resolve(method["x-item"] ?? result?.schema);
  return (
    <dl>
      <dt>{method["x-stream"] ? "Items" : "Result"}</dt>
      <dd>
        <span class="type">{typeName(schema, resolver)}</span>
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

interface OutcomeProps {
  state?: CallState;
  method: Method;
  resolver: Resolver;
}

function Outcome({ state, method, resolver }: OutcomeProps) {
  const isStream = method["x-stream"] ?? false;
  return (
    <section class="outcome" aria-label="Result" aria-busy={state?.isRunning ?? false}>
      <p role="status" class="status">
        {state && statusOf(state, isStream)}
      </p>
      {state && isStream && <Items state={state} method={method} resolver={resolver} />}
      {state?.error && <ErrorView error={state.error} resolver={resolver} />}
      {state && "result" in state && !(isStream && state.result === null) && (
        <div class="result">
          {isStream && <p class="hint">returned</p>}
          <Result
            value={state.result}
            schema={isStream ? undefined : method.result?.schema}
            resolver={resolver}
          />
        </div>
      )}
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
  const items = isStream ? `, ${state.count.toLocaleString()} items` : "";
  const time = state.isRunning && !isStream ? "" : `, ${duration(state.tookMs ?? 0)}`;
  return `${verb}${items}${time}`;
}

function duration(ms: number): string {
  return ms < 1000 ? `${ms.toFixed(1)} ms` : `${(ms / 1000).toFixed(2)} s`;
}

/** Text of a stream, such as tokens, as one text; other items one by one. */
function Items({ state: { items, count }, method, resolver }: { state: CallState } & OutcomeProps) {
  if (!items.length) return null;
  const isText = items.every((item) => typeof item === "string");
  const dropped = count - items.length;
  return (
    <div class="items" role="log" aria-label="Items" tabIndex={0}>
      {dropped > 0 && <p class="hint">{dropped.toLocaleString()} earlier items are not shown.</p>}
      {isText ? (
        <pre>{items.join("")}</pre>
      ) : (
        <ol start={dropped + 1}>
          {items.map((item, at) => (
            <li key={dropped + at}>
              <Result value={item} schema={method["x-item"]} resolver={resolver} level={1} />
            </li>
          ))}
        </ol>
      )}
    </div>
  );
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

interface SnippetsProps {
  method: Method;
  params: unknown[] | Record<string, unknown>;
  credential?: Credential;
}

function Snippets(props: SnippetsProps) {
  const [copied, setCopied] = useState("");
  return (
    <details class="snippets">
      <summary>The call as a program</summary>
      {Object.entries(SNIPPETS).map(([name, write]) => (
        <Snippet
          key={name}
          name={name}
          text={write({ ...props, url: CALLS })}
          isCopied={copied === name}
          onCopy={() => setCopied(name)}
        />
      ))}
    </details>
  );
}

interface SnippetProps {
  name: string;
  text: string;
  isCopied: boolean;
  onCopy(): void;
}

function Snippet({ name, text, isCopied, onCopy }: SnippetProps) {
  return (
    <section aria-label={name}>
      <div class="heading">
        <h3>{name}</h3>
        <button
          type="button"
          class="quiet"
          aria-label={`Copy ${name}`}
          onClick={() => void navigator.clipboard.writeText(text).then(onCopy)}
        >
          {isCopied ? "Copied" : "Copy"}
        </button>
      </div>
      <pre tabIndex={0}>{text}</pre>
    </section>
  );
}
