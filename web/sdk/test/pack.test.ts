/** What `npm publish` would send: packed, unpacked in an empty folder, and used there as its users would. */
import { execFileSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { build, type Rolldown } from "vite";
import { afterAll, beforeAll, describe, expect, it } from "vitest";

const HERE = fileURLToPath(new URL("../", import.meta.url));
const TSC = fileURLToPath(new URL("../../node_modules/typescript/bin/tsc", import.meta.url));

let folder: string;
let installed: string;
let manifest: Record<string, any>;

beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), "gateway-pack-"));
  execFileSync("npm", ["pack", "--pack-destination", folder, "--loglevel=error"], { cwd: HERE, encoding: "utf8" });
  const [archive] = readdirSync(folder);
  installed = join(folder, "node_modules/@agent-gateway/sdk");
  mkdirSync(installed, { recursive: true });
  execFileSync("tar", ["-xzf", join(folder, archive!), "-C", installed, "--strip-components=1"]);
  writeFileSync(join(folder, "package.json"), '{"type":"module"}');
  manifest = JSON.parse(readFileSync(join(installed, "package.json"), "utf8"));
}, 60_000);

afterAll(() => rmSync(folder, { recursive: true, force: true }));

/** Run a program there, whose only package is ours. */
function node(program: string): string {
  writeFileSync(join(folder, "program.js"), program);
  return execFileSync(process.execPath, ["program.js"], { cwd: folder, encoding: "utf8" });
}

describe("the package", { timeout: 60_000 }, () => {
  it("has no runtime dependency, and its peers are optional", () => {
    expect(manifest).not.toHaveProperty("dependencies");
    expect(manifest["private"]).toBeUndefined();
    for (const peer of Object.keys(manifest["peerDependencies"])) {
      expect(manifest["peerDependenciesMeta"][peer]).toEqual({ optional: true });
    }
  });

  it("has, for every entry, an ES module, types, and a source map that holds its source", () => {
    const entries = Object.values<Record<string, string>>(manifest["exports"]).filter((entry) => entry["default"]);
    expect(entries.length).toBeGreaterThanOrEqual(3);
    for (const entry of entries) {
      const code = readFileSync(join(installed, entry["default"]!), "utf8");
      expect(code).toMatch(/^export /m);
      const name = /\/\/# sourceMappingURL=(.+\.map)\s*$/.exec(code)?.[1];
      const map = JSON.parse(readFileSync(join(installed, "dist", name!), "utf8"));
      expect(map.sourcesContent[0].length).toBeGreaterThan(100);
      expect(readFileSync(join(installed, entry["types"]!), "utf8")).toMatch(/^export /m);
    }
  });

  it("takes along no tests, and its README", () => {
    expect(readdirSync(installed).sort()).toEqual(["README.md", "dist", "package.json", "src"]);
    expect(readdirSync(join(installed, "dist")).filter((name) => name.includes("test"))).toEqual([]);
  });

  it("is imported by Node, and asks nothing of it until it connects", () => {
    expect(node('import * as sdk from "@agent-gateway/sdk"; console.log(typeof sdk.connect, sdk.shouldReconnect(4100));')).toBe(
      "function true\n",
    );
    expect(node('import * as ai from "@agent-gateway/sdk/ai"; console.log(typeof ai.GatewayChatTransport);')).toBe("function\n");
  });

  it("has types that a strict program with nothing skipped is content with", () => {
    writeFileSync(
      join(folder, "program.ts"),
      `import { connect, type SessionState } from "@agent-gateway/sdk";
       const session = connect("ws://127.0.0.1/ws", { token: async () => "t" }).session();
       const state: SessionState = session.state;
       export const running: boolean = state.status === "running";
       // @ts-expect-error: no such status
       export const wrong: boolean = state.status === "asleep";
       export async function read(): Promise<number> {
         for await (const event of session.events()) if (event.type === "text-delta") return event.text.length;
         return 0;
       }`,
    );
    const options = ["--noEmit", "--strict", "--target", "es2022", "--module", "nodenext", "--types", "", "program.ts"];
    try {
      execFileSync(process.execPath, [TSC, ...options], { cwd: folder, encoding: "utf8" });
    } catch (error) {
      throw new Error((error as { stdout: string }).stdout, { cause: error });
    }
  });

  it("is bundled by Vite, which leaves out what is not used", async () => {
    writeFileSync(join(folder, "page.js"), 'import { shouldReconnect } from "@agent-gateway/sdk"; console.log(shouldReconnect(4100));');
    writeFileSync(join(folder, "whole.js"), 'import { connect } from "@agent-gateway/sdk"; globalThis.gateway = connect("/ws");');
    const bundle = async (input: string): Promise<string> => {
      const { output } = (await build({
        root: folder,
        configFile: false,
        logLevel: "silent",
        build: { write: false, rollupOptions: { input: join(folder, input) } },
      })) as Rolldown.RolldownOutput;
      return output.map((chunk) => (chunk.type === "chunk" ? chunk.code : "")).join("");
    };
    const [page, whole] = [await bundle("page.js"), await bundle("whole.js")];
    expect(whole).toContain("agent-gateway.v1");
    expect(page).not.toContain("agent-gateway.v1");
    expect(page.length).toBeLessThan(2500);
  });
});
