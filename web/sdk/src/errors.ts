import type { ErrorCode, ErrorFrame } from "./types.js";

/** The server's codes, and what only a client can say: `closed` (the gateway object was), `cancelled` (never sent). */
export type GatewayErrorCode = ErrorCode | "closed" | "cancelled" | "http";

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
