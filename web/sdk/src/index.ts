export { Backoff } from "./backoff.js";
export { describeClose, shouldReconnect } from "./closeCodes.js";
export { GatewayError, type GatewayErrorCode } from "./errors.js";
export { connect, Gateway, type ConnectOptions, type SessionOptions, type Token } from "./gateway.js";
export { uuid } from "./id.js";
export { Session, type ConnectionState, type ConnectionStatus, type SessionState } from "./session.js";
export { SUBPROTOCOL, type WebSocketConstructor, type WebSocketLike } from "./socket.js";
export { EMPTY, fold, place, prepend, type Transcript } from "./transcript.js";
export type * from "./types.js";
