/** The hooks as an application of somebody else's uses them. */
import { connect, type Gateway } from "@agent-gateway/sdk";
import { GatewayContext, useGateway, useSession } from "@agent-gateway/sdk/react";
import { act, render, screen, waitFor } from "@testing-library/react";
import { StrictMode, type ReactNode } from "react";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { attached, FakeSocket, textRun } from "../../sdk/test/fakeServer.js";

let gateway: Gateway;

beforeEach(() => {
  FakeSocket.all = [];
  gateway = connect("ws://test/ws", { WebSocket: FakeSocket });
});

afterEach(() => act(() => gateway.close()));

const show = (children: ReactNode) =>
  render(
    <StrictMode>
      <GatewayContext.Provider value={gateway}>{children}</GatewayContext.Provider>
    </StrictMode>,
  );

describe("useSession", () => {
  it("follows a session by its id, and does what it is asked", async () => {
    let renders = 0;
    function Chat() {
      renders += 1;
      const { messages, status, prompt, abort } = useSession("s1");
      return (
        <>
          <output>{messages.map(({ parts }) => parts.map((part) => (part.type === "text" ? part.text : "")).join("")).join("|")}</output>
          <button onClick={() => void (status === "idle" ? prompt("hi") : abort())}>{status}</button>
        </>
      );
    }
    show(<Chat />);
    await act(async () => void FakeSocket.last.accept().say(attached(0)));
    act(() => screen.getByRole("button").click());
    const { id } = FakeSocket.last.of("prompt")[0]!;
    await act(async () => {
      FakeSocket.last.say({ type: "ack", id, command: "prompt", session_id: "s1", run_id: "r1" });
      FakeSocket.last.say(...textRun(1, "r1", ["a", "b"], id));
    });
    await waitFor(() => expect(screen.getByRole("status").textContent).toBe("hi|ab"));
    act(() => screen.getByRole("button").click());
    expect(FakeSocket.last.of("abort")).toMatchObject([{ session_id: "s1", run_id: "r1" }]);
    const before = renders;
    await act(async () => void FakeSocket.last.say({ type: "pong" }));
    expect(renders).toBe(before);
  });

  it("says what is missing where there is no provider", () => {
    const quiet = vi.spyOn(console, "error").mockReturnValue();
    const Lost = () => <>{useSession("s1").status}</>;
    const Alone = () => <>{useGateway().url}</>;
    expect(() => render(<Lost />)).toThrow("GatewayContext.Provider");
    expect(() => render(<Alone />)).toThrow("GatewayContext.Provider");
    quiet.mockRestore();
  });

  it("shares one socket between all that use it", async () => {
    const Url = () => <>{useGateway().url}</>;
    const One = ({ id }: { id: string }) => <>{useSession(id).id}</>;
    show([<Url key="u" />, <One key="a" id="s1" />, <One key="b" id="s2" />]);
    await act(async () => void FakeSocket.last.accept());
    expect(FakeSocket.all).toHaveLength(1);
    expect(FakeSocket.last.hello["attach"]).toMatchObject([{ session_id: "s1" }, { session_id: "s2" }]);
  });
});
