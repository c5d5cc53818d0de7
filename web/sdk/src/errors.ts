import type { ErrorCode, ErrorFrame } from "./types.js";

/** The server's codes, and what only a client can say: `closed` (the gateway object was), `cancelled` (never sent), `overflow` (unread). */
export type GatewayErrorCode = ErrorCode | "closed" | "cancelled" | "overflow" | "http";

export class GatewayError extends Error {
  override name = "GatewayError";

  constructor(
    readonly code: GatewayErrorCode,
    message: string,
    readonly retryable = false,
  ) {
    super(message);
  }

  static from({ code, message, retryable }: ErrorFrame): GatewayError {
    return new GatewayError(code, message, retryable);
  }
}

/** The failure is in the session's state too: nobody has to look twice, so an ignored promise is no accident. */
export function quiet<T>(promise: Promise<T>): Promise<T> {
  promise.catch(() => undefined);
  return promise;
}
