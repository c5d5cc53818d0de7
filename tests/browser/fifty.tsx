/** Fifty sessions on one page, each streaming; and what the page needs to measure itself. */
import { connect, type Message } from "@agent-gateway/sdk";
import { GatewayContext, useSession } from "@agent-gateway/sdk/react";
import { memo } from "react";
import { createRoot } from "react-dom/client";

const url = new URL(location.href).searchParams.get("gateway")!;
const gateway = connect(url);
const sessions = Array.from({ length: 50 }, (_, n) => gateway.session(`fifty-${n}`, { isNew: true }));
const renders: Record<string, number> = {};

const Said = memo(function Said({ message }: { message: Message }) {
  renders[message.id] = (renders[message.id] ?? 0) + 1;
  const text = message.parts.map((part) => (part.type === "text" ? part.text : "")).join("");
  return <p data-role={message.role}>{text.slice(-60)}</p>;
});

function Chat({ id }: { id: string }) {
  const { messages, status } = useSession(id);
  return (
    <section data-status={status}>
      {messages.map((message) => (
        <Said key={message.id} message={message} />
      ))}
    </section>
  );
}

const root = document.getElementById("root")!;
createRoot(root).render(
  <GatewayContext.Provider value={gateway}>
    {sessions.map(({ id }) => (
      <Chat key={id} id={id} />
    ))}
  </GatewayContext.Provider>,
);

/** Look on for so many milliseconds. */
async function measure(ms: number) {
  let commits = 0;
  const changes = new MutationObserver(() => (commits += 1)); // once for all that is done in one go
  changes.observe(root, { subtree: true, childList: true, characterData: true, attributes: true });
  const tasks = new PerformanceObserver((list) => (long += list.getEntries().length));
  let long = 0;
  tasks.observe({ type: "longtask" });
  const before = { ...renders };
  const seqs = sessions.map(({ state }) => state.seq);
  const end = performance.now() + ms;
  let frames = 0;
  while (performance.now() < end) {
    await new Promise(requestAnimationFrame);
    frames += 1;
  }
  changes.disconnect();
  tasks.disconnect();
  const rendered = Object.entries(renders).flatMap(([id, n]) => (n === before[id] ? [] : [[id, n - (before[id] ?? 0)]]));
  return { frames, long, commits, rendered, events: sessions.map(({ state }, n) => state.seq - seqs[n]!) };
}

Object.assign(window, {
  measure,
  prompt: (text: string) => Promise.all(sessions.map((session) => session.prompt(text))),
  abort: () => Promise.all(sessions.map((session) => session.abort())),
  live: () => sessions.map(({ state }) => state.messages.at(-1)!.id),
  states: () => sessions.map(({ state }) => ({ status: state.status, n: state.messages.length })),
});
