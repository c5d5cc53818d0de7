/** Small pieces of text. */
import type { Message, ToolPart } from "@agent-gateway/sdk";
import type { Language } from "./language.js";

export function textOf(message: Message): string {
  return message.parts.flatMap((part) => (part.type === "text" ? [part.text] : [])).join("\n\n");
}

/** JSON for reading, not for copying: the lines of a text in it are lines. */
function readable(json: string): string {
  return json.replace(/\\(.)/g, (escape, letter) => (letter === "n" ? "\n" : letter === "t" ? "\t" : escape));
}

export function show(value: unknown): string {
  if (typeof value === "string") return value;
  try {
    // Small things on one line: a list of numbers needs no tower.
    const line = readable((JSON.stringify(value, null, 1) ?? "").replace(/\n */g, " "));
    return line.length <= 100 && !line.includes("\n") ? line : readable(JSON.stringify(value, null, 2));
  } catch {
    return String(value);
  }
}

/** The most telling bit of a tool's input, for one line. */
export function brief(input: unknown): string {
  if (input === null || input === undefined) return "";
  if (typeof input !== "object") return String(input);
  return Object.entries(input)
    .map(([key, value]) => `${key}: ${typeof value === "string" ? value : JSON.stringify(value)}`)
    .join(", ");
}

export function duration({ started_at, ended_at }: ToolPart): string {
  if (!started_at || !ended_at) return "";
  const ms = Math.max(0, ended_at - started_at);
  if (ms < 1000) return `${ms} ms`;
  return ms < 60_000 ? `${(ms / 1000).toFixed(1)} s` : `${Math.floor(ms / 60_000)} min ${Math.round((ms % 60_000) / 1000)} s`;
}

export function ago(time: number, language: Language, soon: string, now = Date.now()): string {
  const relative = new Intl.RelativeTimeFormat(language, { numeric: "auto", style: "narrow" });
  const minutes = Math.round((time - now) / 60_000);
  if (minutes > -1) return soon;
  if (minutes > -60) return relative.format(minutes, "minute");
  if (minutes > -60 * 24) return relative.format(Math.round(minutes / 60), "hour");
  return relative.format(Math.round(minutes / (60 * 24)), "day");
}

export function bytes(n: number): string {
  return n < 1000 ? `${Math.round(n)} B` : n < 1e6 ? `${(n / 1000).toFixed(1)} kB` : `${(n / 1e6).toFixed(1)} MB`;
}

/** How far a tool says it is, from 0 to 1; null where it does not say. */
export function fraction(progress: unknown): number | null {
  if (typeof progress === "number" && progress >= 0 && progress <= 1) return progress;
  if (typeof progress !== "object" || progress === null) return null;
  const held = progress as Record<string, unknown>;
  const total = held["total"] ?? held["of"];
  const done = held["done"] ?? held["current"] ?? held["completed"] ?? held["step"];
  if (typeof done === "number" && typeof total === "number" && total > 0) return Math.min(1, done / total);
  if (typeof held["fraction"] === "number") return Math.min(1, Math.max(0, held["fraction"]));
  if (typeof held["percent"] === "number") return Math.min(1, Math.max(0, held["percent"] / 100));
  return null;
}
