/** WebSocket close codes: the range is the verdict. */

/** Something has to be fixed first: coming back would only repeat it. */
const FINAL = new Set([1000, 1002, 1003, 1007, 1009]);

const MEANING: Record<number, string> = {
  1006: "connection lost",
  4100: "server is restarting",
  4101: "authentication expired",
  4102: "too slow",
  4103: "heartbeat lost",
  4104: "internal error",
  4105: "rate limited",
  4400: "too many bad frames",
  4401: "unauthenticated",
  4403: "forbidden",
  4408: "no hello in time",
  4409: "replaced",
};

/** May a client come back by itself (with jitter) after this code? */
export function shouldReconnect(code: number): boolean {
  return !FINAL.has(code) && !(code >= 4400 && code < 4500);
}

/** A few words for people; empty where there is nothing to say. */
export function describeClose(code: number): string {
  return MEANING[code] ?? "";
}
