/** The page: lists the methods of its server, and calls them. */

import { render } from "preact";
import { useCallback, useEffect, useMemo, useRef, useState } from "preact/hooks";
import { Client, type State } from "../../python/ucall/static/ucall.js";
import { CALLS, below, socketOf } from "./address";
import { CredentialForm } from "./credential";
import { ResolverContext } from "./controls";
import { MethodView } from "./method";
import * as openrpc from "./openrpc";
import type { Credential, Description, Method } from "./openrpc";
import { RecordedSocket, install } from "./exchange";
import { Inline, Prose } from "./prose";
import { Resolver } from "./schema";
import { stored, store } from "./storage";
import { counted } from "./words";
import "./style.css";

install();

type Transport = "websocket" | "http";

function App() {
  const [credential, setCredential] = useState<Credential | undefined>(stored);
  const [description, setDescription] = useState<Description>();
  const [failure, setFailure] = useState<Error>();
  const load = useCallback(() => {
    openrpc.load(credential).then((loaded) => {
      setFailure(undefined);
      setDescription(loaded);
    }, setFailure);
  }, [credential]);
  useEffect(load, [load]);
  const enter = (entered?: Credential) => {
    store(entered);
    setDescription(undefined);
    setCredential(entered);
  };

  if (failure instanceof openrpc.Unauthorized) {
    const given = credential ?? { header: failure.header, value: "" };
    return <CredentialForm given={given} isRejected={Boolean(credential)} onEnter={enter} />;
  }
  if (!description) return <Waiting failure={failure} onRetry={load} />;
  return (
    <Page
      description={description}
      credential={credential}
      onReload={load}
      onForget={() => enter(undefined)}
    />
  );
}

function Waiting({ failure, onRetry }: { failure?: Error; onRetry(): void }) {
  if (!failure) return <p class="notice">Loading</p>;
  return (
    <main class="notice">
      <h1>The methods cannot be read</h1>
      <p role="alert">{failure.message}</p>
      <button onClick={onRetry}>Try again</button>
    </main>
  );
}

interface PageProps {
  description: Description;
  credential?: Credential;
  onReload(): void;
  onForget(): void;
}

function Page({ description, credential, onReload, onForget }: PageProps) {
  const canUpgrade = !credential || openrpc.tokenOf(credential) !== undefined;
  const [chosen, setTransport] = useState<Transport>("websocket");
  const transport = canUpgrade ? chosen : "http";
  const { client, state } = useClient(transport, credential, onReload);
  const resolver = useMemo(() => new Resolver(description), [description]);
  const values = useRef(new Map<string, Record<string, unknown>>()).current;
  const isOnly = description.methods.length === 1;
  const chosenMethod = useChosenMethod(description.methods);
  const method = isOnly ? description.methods[0] : chosenMethod;
  const { title, version } = description.info;
  useEffect(() => {
    document.title = method ? `${method.name} - ${title}` : title;
  }, [method, title]);

  return (
    <ResolverContext.Provider value={resolver}>
      <a class="skip" href="#content" onClick={focusContent}>
        Skip to the method
      </a>
      <header>
        <h1>
          {title} <small>{version}</small>
        </h1>
        <div class="row">
          <TransportChoice transport={transport} canUpgrade={canUpgrade} onChange={setTransport} />
          <span role="status" class="state">
            {transport === "http" ? "" : STATES[state]}
          </span>
          {credential && (
            <button class="quiet" onClick={onForget}>
              Forget the key
            </button>
          )}
        </div>
      </header>
      <div class={`columns ${method ? "has-method" : ""}`}>
        <MethodList methods={description.methods} current={method} />
        <main id="content" tabIndex={-1}>
          {method ? (
            <>
              {isOnly ? (
                <About description={description} />
              ) : (
                <a class="back" href="#">
                  All methods
                </a>
              )}
              <MethodView
                key={method.name}
                method={method}
                client={client}
                resolver={resolver}
                credential={credential}
                values={values}
              />
            </>
          ) : (
            <Welcome description={description} />
          )}
        </main>
      </div>
    </ResolverContext.Provider>
  );
}

interface TransportChoiceProps {
  transport: Transport;
  canUpgrade: boolean;
  onChange(transport: Transport): void;
}

function TransportChoice({ transport, canUpgrade, onChange }: TransportChoiceProps) {
  return (
    <>
      <label for="transport">Calls over</label>
      <select
        id="transport"
        value={transport}
        disabled={!canUpgrade}
        title={canUpgrade ? undefined : "Pages can send this header only over HTTP"}
        onChange={({ currentTarget }) => onChange(currentTarget.value as Transport)}
      >
        <option value="websocket">WebSocket</option>
        <option value="http">HTTP</option>
      </select>
    </>
  );
}

const STATES: Record<State, string> = {
  connecting: "Connecting",
  open: "Connected",
  waiting: "Connection lost, trying again",
  closed: "Closed",
};

function focusContent(event: Event) {
  event.preventDefault();
  document.getElementById("content")?.focus();
}

/** A client, and its state. The methods are read again after a lost connection. */
function useClient(transport: Transport, credential: Credential | undefined, onReload: () => void) {
  const client = useMemo(() => connect(transport, credential), [transport, credential]);
  const [state, setState] = useState<State>(client.state);
  useEffect(() => {
    let wasLost = false;
    const update = () => {
      setState(client.state);
      if (client.state === "open" && wasLost) onReload();
      wasLost = client.state === "waiting" || (wasLost && client.state === "connecting");
    };
    update();
    client.addEventListener("statechange", update);
    return () => {
      client.removeEventListener("statechange", update);
      client.close();
    };
  }, [client]);
  return { client, state };
}

function connect(transport: Transport, credential?: Credential): Client {
  if (transport === "http") return new Client(CALLS, { headers: openrpc.headersOf(credential) });
  return new Client(socketOf(CALLS), {
    token: openrpc.tokenOf(credential),
    maxDelayMs: 2_000,
    WebSocket: RecordedSocket,
  });
}

/** The method that the address names after `#`. */
function useChosenMethod(methods: Method[]): Method | undefined {
  const [hash, setHash] = useState(location.hash);
  useEffect(() => {
    const update = () => {
      setHash(location.hash);
      // After the new method is shown.
      requestAnimationFrame(() => document.getElementById("method")?.focus());
    };
    addEventListener("hashchange", update);
    return () => removeEventListener("hashchange", update);
  }, []);
  const name = decoded(hash.slice(1));
  return methods.find((method) => method.name === name);
}

/** A part of an address, which may have been typed, as a text. */
function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

function MethodList({ methods, current }: { methods: Method[]; current?: Method }) {
  const [query, setQuery] = useState("");
  const input = useRef<HTMLInputElement>(null);
  useEffect(() => {
    const focus = (event: KeyboardEvent) => {
      if (event.key !== "/" || (event.target as Element).matches("input, textarea, select")) return;
      event.preventDefault();
      input.current?.focus();
    };
    addEventListener("keydown", focus);
    return () => removeEventListener("keydown", focus);
  }, []);
  const words = query.toLowerCase().split(/\s+/);
  const found = methods.filter((method) => words.every((word) => textOf(method).includes(word)));
  return (
    <nav aria-label="Methods">
      <input
        ref={input}
        type="search"
        aria-label="Search methods"
        placeholder="Search ( / )"
        value={query}
        onInput={({ currentTarget }) => setQuery(currentTarget.value)}
      />
      <p role="status" class="hint">
        {query && `${found.length} of `}
        {counted(methods.length, "method")}
      </p>
      <ul>
        {found.map((method) => (
          <li key={method.name}>
            <a
              href={`#${encodeURIComponent(method.name)}`}
              aria-current={method === current ? "page" : undefined}
            >
              <span class={method.deprecated ? "name deprecated" : "name"}>{method.name}</span>
              {method["x-stream"] && <span class="badge">stream</span>}
              {method.summary && (
                <span class="summary">
                  <Inline text={method.summary} />
                </span>
              )}
            </a>
          </li>
        ))}
      </ul>
    </nav>
  );
}

function textOf({ name, summary = "", description = "" }: Method): string {
  return `${name} ${summary} ${description}`.toLowerCase();
}

function About({ description: { info } }: { description: Description }) {
  return info.description ? <Prose text={info.description} /> : null;
}

function Welcome({ description }: { description: Description }) {
  return (
    <div class="welcome">
      <About description={description} />
      <p>
        Choose a method to call it. <a href={below(CALLS, "openrpc.json")}>openrpc.json</a> and{" "}
        <a href={below(CALLS, "openapi.json")}>openapi.json</a> describe all of them.
      </p>
    </div>
  );
}

const root = document.getElementById("app");
if (root) render(<App />, root);
