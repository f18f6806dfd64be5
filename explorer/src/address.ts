/**
 * Addresses of the server, by that of the page. The page is at a path of calls, and a proxy may have
 * removed the beginning of the path.
 */

/** Where calls are sent. */
export const CALLS = new URL(location.pathname, location.href).href;

/** The address of what the server has below a path of calls. */
export function below(calls: string, name: string): string {
  return calls.replace(/\/?$/, "/") + name;
}

/** The address of a WebSocket for calls. */
export function socketOf(calls: string): string {
  return (calls.endsWith("/") ? `${calls}ws` : calls).replace(/^http/, "ws");
}
