/** Keeps the credential in this tab: it outlives a reload of the page, and ends with the tab. */

import type { Credential } from "./openrpc";

const KEY = "ucall.credential";

export function stored(): Credential | undefined {
  const text = sessionStorage.getItem(KEY);
  return text ? JSON.parse(text) : undefined;
}

export function store(credential?: Credential): void {
  if (credential) sessionStorage.setItem(KEY, JSON.stringify(credential));
  else sessionStorage.removeItem(KEY);
}
