// The same tokens as server-sent events through resumable-stream on Redis, as its README shows it.
//   node server.mjs PORT   (REDIS_URL in the environment)
// /new?id=&events=&hold=  starts a stream (hold: it stays open, so that it can be resumed);  /resume?id=  joins it.
import { createServer } from "node:http";
import { Readable } from "node:stream";
import { createResumableStreamContext } from "resumable-stream";

const context = createResumableStreamContext({ waitUntil: () => {} });
const EVENT = `data: ${JSON.stringify({ type: "text-delta", text: "token " })}\n\n`;
const FINISH = `data: {"type":"run-finish"}\n\n`;

function tokens(count, hold) {
  let sent = 0;
  return new ReadableStream({
    pull(controller) {
      if (sent++ < count) return controller.enqueue(EVENT);
      if (sent === count + 2) return hold ? new Promise(() => {}) : controller.close();
      controller.enqueue(FINISH);
    },
  });
}

const server = createServer(async (request, response) => {
  const url = new URL(request.url, "http://localhost");
  const id = url.searchParams.get("id");
  const stream =
    url.pathname === "/new"
      ? await context.createNewResumableStream(id, () =>
          tokens(Number(url.searchParams.get("events")), url.searchParams.has("hold")),
        )
      : await context.resumeExistingStream(id);
  response.writeHead(stream ? 200 : 422, { "content-type": "text/event-stream" });
  if (!stream) return response.end("\n");
  Readable.fromWeb(stream.pipeThrough(new TextEncoderStream()))
    .on("error", () => {})
    .pipe(response);
});
server.listen(Number(process.argv[2]), "127.0.0.1");
