/** A tool call as it happens: what was asked, how far it is, what came of it. */
import type { Session, ToolPart } from "@agent-gateway/sdk";
import { useState, type ReactNode } from "react";
import { brief, duration, fraction, show } from "./format.js";
import { Check, Chevron, Cross, Question } from "./icons.js";
import { useLanguage, useWords } from "./language.js";

function Field({ label, children, tone }: { label: string; children: ReactNode; tone?: "bad" }) {
  return (
    <div className="field" data-tone={tone}>
      <span className="label">{label}</span>
      <pre tabIndex={0}>{children}</pre>
    </div>
  );
}

function Progress({ data }: { data: unknown }) {
  const words = useWords();
  const share = fraction(data);
  const said =
    typeof data === "string" ? data : ((data as { message?: unknown } | null)?.message as string | undefined);
  return (
    <div className="progress" data-testid="tool-progress">
      {share !== null && <progress max={1} value={share} aria-label={words.progress} />}
      <span>{typeof said === "string" ? said : share !== null ? `${Math.round(share * 100)} %` : brief(data)}</span>
    </div>
  );
}

/** The question, where the call is: with the whole input above it, and until when it can be answered. */
function Approval({ part, session }: { part: ToolPart; session: Session }) {
  const words = useWords();
  const language = useLanguage();
  const [answered, setAnswered] = useState(false);
  const id = part.approval!.request_id;
  const expires = session.state.pending.find(({ request_id }) => request_id === id)?.expires_at;
  const answer = (decision: "allow" | "deny") => {
    setAnswered(true);
    session.respond(id, decision).catch(() => setAnswered(false));
  };
  return (
    <div className="approval" role="group" aria-label={words.allowOne(part.tool)} data-testid="approval">
      <p>
        <strong>{words.allowOne(part.tool)}</strong>
        {expires !== undefined && expires !== null && (
          <span className="muted"> {words.until(new Date(expires).toLocaleTimeString(language))}</span>
        )}
      </p>
      <button type="button" className="primary" data-testid="allow" disabled={answered} onClick={() => answer("allow")}>
        {answered ? <span className="spinner" /> : <Check />} {words.allow}
      </button>
      <button type="button" data-testid="deny" disabled={answered} onClick={() => answer("deny")}>
        <Cross /> {words.deny}
      </button>
    </div>
  );
}

export function Tool({ part, session, live }: { part: ToolPart; session: Session; live: boolean }) {
  const { state, outcome, approval } = part;
  const words = useWords();
  const busy = live && state !== "output-available" && state !== "output-error" && state !== "approval-requested";
  const failed = state === "output-error";
  return (
    <details className="tool" data-testid="tool" data-part-type="tool" data-state={state} data-outcome={outcome} open>
      <summary>
        <span className="glyph" data-tone={failed ? (outcome === "failed" ? "bad" : "muted") : state}>
          {busy ? (
            <span className="spinner" />
          ) : failed ? (
            <Cross />
          ) : state === "output-available" ? (
            <Check />
          ) : (
            <Question />
          )}
        </span>
        <span className="name">{part.tool}</span>
        <span className="preview">{brief(part.input)}</span>
        <span className="said">
          {failed ? words.outcome[outcome ?? "failed"] : words.tool[state]}
          {duration(part) && <span className="muted"> · {duration(part)}</span>}
        </span>
        <Chevron />
      </summary>
      <div className="body">
        {part.raw_input !== undefined && part.raw_input !== "" && <Field label={words.input}>{part.raw_input}</Field>}
        {"input" in part && brief(part.input) !== "" && <Field label={words.input}>{show(part.input)}</Field>}
        {"progress" in part && <Progress data={part.progress} />}
        {"output" in part && <Field label={words.output}>{show(part.output)}</Field>}
        {part.error !== undefined && (
          <Field label={words.error} tone="bad">
            {show(part.error)}
          </Field>
        )}
        {approval?.decision && (
          <p className="muted" data-testid="decision">
            {words.approval}: {words.decision[approval.decision]}
          </p>
        )}
        {part.truncated && <p className="muted">{words.shortened}</p>}
        {state === "approval-requested" && approval && <Approval key={approval.request_id} part={part} session={session} />}
      </div>
    </details>
  );
}
