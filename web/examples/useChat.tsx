import { uuid } from "@agent-gateway/sdk";
import { GatewayChatTransport } from "@agent-gateway/sdk/ai";
import { useChat } from "@ai-sdk/react";
import { createRoot } from "react-dom/client";

location.hash ||= uuid(); // a reload comes back to the same chat
const id = location.hash.slice(1);
const transport = new GatewayChatTransport({ url: "ws://127.0.0.1:8000/ws" });
const earlier = await transport.messages(id);

function Chat() {
  const { messages, status, sendMessage, stop } = useChat({ id, transport, messages: earlier, resume: true });
  const send = (form: FormData) => void sendMessage({ text: String(form.get("text")) });
  return (
    <>
      {messages.map(({ id, role, parts }) => (
        <p key={id}>
          {role}: {parts.map((part) => (part.type === "text" ? part.text : ""))}
        </p>
      ))}
      <form action={send}>
        <input name="text" /> <button>Send</button>{" "}
        <button type="button" disabled={status !== "streaming" && status !== "submitted"} onClick={() => void stop()}>
          Stop
        </button>
      </form>
    </>
  );
}

createRoot(document.getElementById("root")!).render(<Chat />);
