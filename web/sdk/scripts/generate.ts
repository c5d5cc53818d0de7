/**
 * TypeScript from the protocol's JSON schemas: `npm run generate` writes `src/generated.ts`, a test holds it to them.
 *
 * Of our own because the schemas use little (objects, enums, unions, references), and because commands have to be read
 * the other way round: there a default makes a field optional, and the null that stands for "not said" is no value to send.
 */
import { readFileSync } from "node:fs";

interface Schema {
  $ref?: string;
  $defs?: Record<string, Schema>;
  title?: string;
  description?: string;
  type?: string;
  const?: unknown;
  enum?: unknown[];
  anyOf?: Schema[];
  oneOf?: Schema[];
  items?: Schema;
  properties?: Record<string, Schema>;
  required?: string[];
  default?: unknown;
  additionalProperties?: unknown;
}

const FOLDER = new URL("../../../protocol/schema/", import.meta.url);

/** Where the schema's name would say too little among all the others, or is taken. */
const NAMES: Record<string, string> = {
  AttachTarget: "AttachRequest",
  HistoryPage: "History",
  InputMessage: "UserInput",
  LimitsInfo: "Limits",
  Pending: "PendingApproval",
};

/** The schemas say integer; there is only one. */
const NARROWER: Record<string, string> = { "Welcome.protocol": "1" };

const PRIMITIVE: Record<string, string> = {
  string: "string",
  integer: "number",
  number: "number",
  boolean: "boolean",
  null: "null",
};

export function generate(): string {
  const [messages, events, frames, commands] = ["messages", "events", "frames", "commands"].map(load) as [
    Schema,
    Schema,
    Schema,
    Schema,
  ];
  const written = new Map<string, string>();
  for (const schema of [messages, events, frames]) {
    for (const [name, body] of Object.entries(schema.$defs ?? {})) define(written, NAMES[name] ?? name, body, output);
  }
  const isCommand = new Set(members(commands));
  const named = (name: string) => (isCommand.has(name) ? `${name}Command` : (NAMES[name] ?? name));
  for (const [name, body] of Object.entries(commands.$defs ?? {})) define(written, named(name), body, input(named));

  return [
    "/** The wire contract's types, generated from protocol/schema by `npm run generate`. Not to be edited. */",
    ...written.values(),
    union("Message", messages, output.name),
    union("SessionEvent", events, output.name),
    union("ControlFrame", frames, output.name),
    union("Command", commands, named),
  ].join("\n\n") + "\n";
}

/** How one side's schemas are read. */
interface Reading {
  name(name: string): string;
  optional(name: string, field: Schema, owner: Schema): boolean;
  /** Is null a value that is sent? */
  nulls: boolean;
}

/** What a server sends: a field is there if it is required, and null means something. */
const output: Reading = {
  name: (name) => NAMES[name] ?? name,
  optional: (name, _, owner) => !owner.required?.includes(name),
  nulls: true,
};

/** What a client sends: whatever has a default may be left away, but the type says which command it is. */
const input = (name: (name: string) => string): Reading => ({
  name,
  optional: (field, body, owner) => body.const === undefined && !owner.required?.includes(field),
  nulls: false,
});

function load(name: string): Schema {
  return JSON.parse(readFileSync(new URL(`${name}.json`, FOLDER), "utf8")) as Schema;
}

function members(schema: Schema): string[] {
  return (schema.oneOf ?? schema.anyOf ?? []).map(({ $ref = "" }) => $ref.replace("#/$defs/", ""));
}

function union(name: string, schema: Schema, named: (name: string) => string): string {
  return `export type ${name} =\n${members(schema).map((member) => `  | ${named(member)}`).join("\n")};`;
}

function define(written: Map<string, string>, name: string, schema: Schema, reading: Reading): void {
  const fields = Object.entries(schema.properties ?? {}).map(([field, body]) => {
    const mark = reading.optional(field, body, schema) ? "?" : "";
    return `  ${field}${mark}: ${NARROWER[`${name}.${field}`] ?? typeOf(body, reading)};`;
  });
  const said = schema.description ? `/** ${schema.description.replace(/``/g, "`").replace(/\s*\n\s*/g, " ")} */\n` : "";
  const text = `${said}export interface ${name} {\n${fields.join("\n")}\n}`;
  if (written.has(name) && written.get(name) !== text) throw new Error(`Two schemas disagree about ${name}`);
  written.set(name, text);
}

function typeOf(schema: Schema, reading: Reading): string {
  if (schema.$ref) return reading.name(schema.$ref.replace("#/$defs/", ""));
  if ("const" in schema) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" | ");
  const several = schema.anyOf ?? schema.oneOf;
  if (several) {
    const kept = several.filter(({ type }) => reading.nulls || type !== "null");
    return kept.map((one) => typeOf(one, reading)).join(" | ");
  }
  if (schema.type === "array") {
    const item = typeOf(schema.items ?? {}, reading);
    return item.includes("|") ? `(${item})[]` : `${item}[]`;
  }
  if (schema.type === "object") return "Record<string, unknown>";
  return PRIMITIVE[schema.type ?? ""] ?? "unknown";
}
