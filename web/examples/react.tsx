import { connect, uuid } from "@agent-gateway/sdk";
import { GatewayContext, useSession } from "@agent-gateway/sdk/react";
import { createRoot } from "react-dom/client";

location.hash ||= uuid(); // a reload comes back to the same session
const gateway = connect("ws://127.0.0.1:8000/ws");

function Chat({ id }: { id: string }) {
  const { messages, status, prompt, abort } = useSession(id);
  const send = (form: FormData) => void prompt(String(form.get("text")));
  return (
    <>
      {messages.map(({ id, role, parts }) => (
        <p key={id}>
          {role}: {parts.map((part) => (part.type === "text" ? part.text : ""))}
        </p>
      ))}
      <form action={send}>
        <input name="text" /> <button>Send</button>{" "}
        <button type="button" disabled={status === "idle"} onClick={() => void abort()}>
          Stop
        </button>
      </form>
    </>
  );
}

createRoot(document.getElementById("root")!).render(
  <GatewayContext.Provider value={gateway}>
    <Chat id={location.hash.slice(1)} />
  </GatewayContext.Provider>,
);
