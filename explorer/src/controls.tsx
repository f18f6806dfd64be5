/** The controls of single values: numbers, texts, choices and files. */

import { createContext } from "preact";
import { useContext, useEffect, useRef, useState } from "preact/hooks";
import { Resolver, type Schema } from "./schema";
import * as values from "./values";
import { FileValue } from "./values";

/** An error of the server at a value, by the path that its text begins with. */
export interface FieldError {
  path: string;
  text: string;
}

export const ResolverContext = createContext<Resolver>(new Resolver({}));
export const ErrorContext = createContext<FieldError | undefined>(undefined);

export interface ControlProps {
  schema: Schema;
  path: string;
  label: string;
  value: unknown;
  onChange(value: unknown): void;
}

/** Attributes that every control has: its label and its texts are found by its path. */
function useAttributes({ path }: ControlProps) {
  const hasProblem = useContext(ErrorContext)?.path === path;
  return {
    id: path,
    "aria-invalid": hasProblem || undefined,
    // Those that do not exist are ignored.
    "aria-describedby": `${path}:problem ${path}:type ${path}:about`,
  };
}

/** The text of a control, which is kept as it was typed while it means the same value. */
function useText(value: unknown, parse: (text: string) => unknown) {
  const [text, setText] = useState(values.formatValue(value));
  const isSame = JSON.stringify(parse(text)) === JSON.stringify(value);
  return [isSame ? text : values.formatValue(value), setText] as const;
}

interface TextControlProps extends ControlProps {
  parse(text: string): unknown;
  inputMode: "numeric" | "decimal" | "text";
  placeholder?: string;
}

export function TextControl({ parse, inputMode, placeholder, ...props }: TextControlProps) {
  const [text, setText] = useText(props.value, parse);
  const { default: standard } = props.schema;
  return (
    <input
      {...useAttributes(props)}
      type="text"
      inputMode={inputMode}
      autocomplete="off"
      spellcheck={false}
      placeholder={values.formatValue(standard) || placeholder}
      value={text}
      onInput={({ currentTarget }) => {
        setText(currentTarget.value);
        props.onChange(parse(currentTarget.value));
      }}
    />
  );
}

const PLACEHOLDERS: Record<string, string> = {
  "date-time": "2026-11-21T12:00:00Z",
  duration: "P1DT2H30M",
  uuid: "123e4567-e89b-12d3-a456-426614174000",
  decimal: "1.25",
};

export function StringControl(props: ControlProps) {
  const attributes = useAttributes(props);
  const { value, onChange, schema } = props;
  const { format = "" } = schema;
  if (format === "date" || format === "password") {
    return (
      <input
        {...attributes}
        type={format}
        autocomplete="off"
        value={values.formatValue(value)}
        onInput={({ currentTarget }) => onChange(currentTarget.value || undefined)}
      />
    );
  }
  if (format === "date-time") return <MomentControl {...props} />;
  if (format || schema.pattern) {
    const parse = (text: string) => text || undefined;
    return (
      <TextControl {...props} parse={parse} inputMode="text" placeholder={PLACEHOLDERS[format]} />
    );
  }
  return (
    <textarea
      {...attributes}
      rows={1}
      spellcheck={false}
      placeholder={values.formatValue(schema.default)}
      value={values.formatValue(value)}
      onInput={({ currentTarget }) => onChange(currentTarget.value)}
    />
  );
}

/** A date with a time: as text, with a picker that fills it in the browser's time zone. */
function MomentControl(props: ControlProps) {
  const parse = (text: string) => text || undefined;
  return (
    <div class="row">
      <TextControl
        {...props}
        parse={parse}
        inputMode="text"
        placeholder={PLACEHOLDERS["date-time"]}
      />
      <input
        class="picker"
        type="datetime-local"
        step="1"
        aria-label={`Pick ${props.label} in local time`}
        onInput={({ currentTarget: { value } }) => {
          if (value) props.onChange(new Date(value).toISOString());
        }}
      />
    </div>
  );
}

export function ChoiceControl({ choices, ...props }: ControlProps & { choices: unknown[] }) {
  const index = choices.indexOf(props.value);
  return (
    <select
      {...useAttributes(props)}
      value={index}
      onChange={({ currentTarget }) => props.onChange(choices[Number(currentTarget.value)])}
    >
      {index < 0 && <option value={-1}>{values.formatValue(props.schema.default)}</option>}
      {choices.map((choice, at) => (
        <option value={at}>{values.formatValue(choice)}</option>
      ))}
    </select>
  );
}

export function JsonControl({
  placeholder = "JSON, or else text",
  ...props
}: ControlProps & { placeholder?: string }) {
  const [text, setText] = useText(props.value, values.parseAny);
  const element = useRef<HTMLTextAreaElement>(null);
  useEffect(() => element.current?.setCustomValidity(values.jsonProblem(text)), [text]);
  return (
    <textarea
      {...useAttributes(props)}
      ref={element}
      rows={2}
      class="code"
      spellcheck={false}
      placeholder={values.formatValue(props.schema.default) || placeholder}
      value={text}
      onInput={({ currentTarget }) => {
        setText(currentTarget.value);
        props.onChange(values.parseAny(currentTarget.value));
      }}
    />
  );
}

export function FileControl({ accept, ...props }: ControlProps & { accept?: string }) {
  const { value, onChange } = props;
  const given = value instanceof FileValue ? value : undefined;
  return (
    <>
      <input
        {...useAttributes(props)}
        type="file"
        accept={accept}
        onChange={async ({ currentTarget }) => {
          const file = currentTarget.files?.[0];
          onChange(file && (await FileValue.read(file)));
        }}
      />
      {given && accept && <img class="preview" src={dataUrl(given.base64)} alt={given.name} />}
      {given && <p class="hint">{given.name} is sent.</p>}
    </>
  );
}

/** Browsers recognise the formats of images by their contents. */
function dataUrl(base64: string): string {
  return `data:image/*;base64,${base64}`;
}

/** An array: nested lists as text, or a `.npy` file. */
export function ArrayControl(props: ControlProps) {
  const given = props.value instanceof FileValue;
  return (
    <>
      {!given && <JsonControl {...props} placeholder="[[1, 2], [3, 4]]" />}
      <label class="hint">
        or a .npy file{" "}
        <input
          id={given ? props.path : undefined}
          type="file"
          accept=".npy"
          onChange={async ({ currentTarget }) => {
            const file = currentTarget.files?.[0];
            props.onChange(file && (await FileValue.read(file)));
          }}
        />
      </label>
      {props.value instanceof FileValue && <p class="hint">{props.value.name} is sent.</p>}
    </>
  );
}
