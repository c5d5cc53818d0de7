/** The gateway this page was served by, and the token for it, kept as long as the tab. */
import { connect, type Gateway } from "@agent-gateway/sdk";
import type { Tap } from "./tap.js";

const KEY = "agent-gateway-token";

export function openGateway(tap: Tap): Gateway {
  const url = new URL("ws", document.baseURI);
  url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
  url.hash = url.search = "";
  return connect(url, { client: "agent-gateway-console", token: readToken, WebSocket: tap.WebSocket });
}

export function readToken(): string | undefined {
  try {
    return sessionStorage.getItem(KEY) ?? undefined;
  } catch {
    return undefined; // storage forbidden: the token field will be shown again
  }
}

export function keepToken(token: string): void {
  try {
    sessionStorage.setItem(KEY, token);
  } catch {
    // then it lasts as long as the page
  }
}
