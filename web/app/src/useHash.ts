/** The session id in the address: a reload, a bookmark and the back button all come back to it. */
import { useSyncExternalStore } from "react";

const VALID = /^[A-Za-z0-9_.:-]{1,128}$/;

function read(): string {
  const raw = location.hash.replace(/^#\/?/, "");
  return VALID.test(raw) ? raw : "";
}

function subscribe(notify: () => void): () => void {
  addEventListener("hashchange", notify);
  return () => removeEventListener("hashchange", notify);
}

export function useHash(): string {
  return useSyncExternalStore(subscribe, read);
}

/** Go to a session (empty: to a new one). Replacing leaves no step for the back button. */
export function goTo(id: string, replace = false): void {
  const url = new URL(location.href);
  url.hash = id;
  const target = id ? url.href : url.href.replace(/#$/, "");
  if (replace) history.replaceState(null, "", target);
  else history.pushState(null, "", target);
  dispatchEvent(new HashChangeEvent("hashchange"));
}
