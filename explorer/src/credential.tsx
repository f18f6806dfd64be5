/** Asks for the header that identifies the caller. */

import { useState } from "preact/hooks";
import type { Credential } from "./openrpc";

interface CredentialFormProps {
  given: Credential;
  /** Whether the server has rejected the credential. */
  isRejected: boolean;
  onEnter(credential: Credential): void;
}

export function CredentialForm({ given, isRejected, onEnter }: CredentialFormProps) {
  const [header, setHeader] = useState(given.header);
  const [value, setValue] = useState("");
  return (
    <main class="notice">
      <h1>This server asks for a key</h1>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          onEnter({ header: header.trim(), value: complete(header, value.trim()) });
        }}
      >
        {isRejected && (
          <p role="alert" class="problem">
            The server rejected the key.
          </p>
        )}
        <div class="field">
          <label for="header">Header</label>
          <input
            id="header"
            list="headers"
            required
            pattern="[A-Za-z0-9_\-]+"
            title="The name of a header"
            autocomplete="off"
            value={header}
            onInput={({ currentTarget }) => setHeader(currentTarget.value)}
          />
          <datalist id="headers">
            <option value="Authorization" />
            <option value="X-API-Key" />
          </datalist>
        </div>
        <div class="field">
          <label for="key">Key</label>
          <input
            id="key"
            type="password"
            required
            autocomplete="off"
            aria-describedby="key-about"
            value={value}
            onInput={({ currentTarget }) => setValue(currentTarget.value)}
          />
          <p class="hint" id="key-about">
            This tab keeps the key until it is closed. For Authorization, the word Bearer may be
            left out.
          </p>
        </div>
        <button class="primary">Show the methods</button>
      </form>
    </main>
  );
}

/** A token without a scheme is a bearer token. */
function complete(header: string, value: string): string {
  const isToken = header.trim().toLowerCase() === "authorization" && !value.includes(" ");
  return isToken ? `Bearer ${value}` : value;
}
