/** The params of a call: a field for each, or all of them as a text of JSON. */

import { useEffect, useRef, useState } from "preact/hooks";
import { Field } from "./fields";
import { pathOf, type Method, type Params } from "./openrpc";
import { jsonProblem, memberOf, parseAny } from "./values";

interface FieldsProps {
  method: Method;
  given: Record<string, unknown>;
  onChange(name: string, value: unknown): void;
}

export function ParamFields({ method, given, onChange }: FieldsProps) {
  if (!method.params.length) return <p class="hint">No params.</p>;
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

interface TextProps {
  params: Params;
  /** @param params undefined for a text that is invalid */
  onChange(params: Params | undefined): void;
}

/** For params that are written already, and for long ones. */
export function ParamText({ params, onChange }: TextProps) {
  const [text, setText] = useState(() => JSON.stringify(params, null, 2));
  const element = useRef<HTMLTextAreaElement>(null);
  useEffect(() => element.current?.setCustomValidity(problemOf(text)), [text]);
  return (
    <div class="field">
      <label for="params" class="name">
        params
      </label>{" "}
      <span class="type">JSON</span>
      <textarea
        id="params"
        ref={element}
        rows={3}
        class="code"
        spellcheck={false}
        value={text}
        onInput={({ currentTarget: { value } }) => {
          setText(value);
          onChange(problemOf(value) ? undefined : (parseAny(value) as Params));
        }}
      />
    </div>
  );
}

function problemOf(text: string): string {
  return /^\s*[[{]/.test(text) ? jsonProblem(text) : "Params are an object or a list";
}
