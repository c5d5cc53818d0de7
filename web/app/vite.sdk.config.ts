/** The SDK as one module for pages without a bundler: `/sdk.js`, and the same under its version. */
import { copyFileSync, readFileSync } from "node:fs";
import { defineConfig } from "vite";

const { version } = JSON.parse(readFileSync(new URL("../sdk/package.json", import.meta.url), "utf8")) as { version: string };
const outDir = "../../gateway/static";

export default defineConfig({
  publicDir: false,
  plugins: [
    {
      name: "under-its-version",
      closeBundle: () => copyFileSync(new URL(`${outDir}/sdk.js`, import.meta.url), new URL(`${outDir}/sdk-${version}.js`, import.meta.url)),
    },
  ],
  build: {
    outDir,
    emptyOutDir: false, // the page is there already
    target: "es2022",
    sourcemap: true,
    rolldownOptions: {
      input: new URL("../sdk/src/index.ts", import.meta.url).pathname,
      preserveEntrySignatures: "strict",
      output: { format: "es", entryFileNames: "sdk.js", postBanner: `/*! @agent-gateway/sdk ${version} */` },
    },
  },
});
