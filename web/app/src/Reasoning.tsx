/** What the model thought: open while it thinks, folded away afterwards, as the person likes from then on. */
import type { TextPart } from "@agent-gateway/sdk";
import { useState } from "react";
import { Chevron } from "./icons.js";
import { useWords } from "./language.js";

export function Reasoning({ part }: { part: TextPart }) {
  const words = useWords();
  const thinking = part.state === "streaming";
  const [choice, setChoice] = useState<boolean | null>(null);
  const open = choice ?? thinking;
  return (
    <details className="reasoning" data-part-type="reasoning" data-state={part.state} open={open}>
      <summary
        onClick={(event) => {
          event.preventDefault();
          setChoice(!open);
        }}
      >
        <Chevron />
        <span className={thinking ? "shimmer" : undefined}>{thinking ? words.thinking : words.thoughts}</span>
      </summary>
      <div className="thoughts">{part.text}</div>
    </details>
  );
}
