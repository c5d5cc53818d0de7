import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import { build, type Rolldown } from "vite";
import { expect, it } from "vitest";

const LIMIT = 10_000;

/** Everything an entry exports, as one minified module, the way a page would get it. */
async function weigh(entry: string, external: string[] = []): Promise<number> {
  const { output } = (await build({
    configFile: false,
    logLevel: "silent",
    resolve: { conditions: ["agent-gateway-source"] },
    build: {
      write: false,
      minify: true,
      rollupOptions: {
        input: fileURLToPath(new URL(`../src/${entry}`, import.meta.url)),
        external,
        preserveEntrySignatures: "strict",
        output: { format: "es" },
      },
    },
  })) as Rolldown.RolldownOutput;
  const code = output.map((chunk) => (chunk.type === "chunk" ? chunk.code : "")).join("");
  expect(code.trim().split("\n").length).toBeLessThan(20); // it really is minified
  return gzipSync(code).length;
}

it("weighs less than 10 kB, minified and gzipped", async () => {
  const bytes = await weigh("index.ts");
  console.info(`core: ${bytes} bytes`);
  expect(bytes).toBeGreaterThan(1000);
  expect(bytes).toBeLessThan(LIMIT);
});
