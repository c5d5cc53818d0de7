/** Apart from the build's, which has to work where the tools of the tests are not installed. */
import { mergeConfig } from "vite";
import { defineConfig } from "vitest/config";
import base from "./vite.config.js";

export default mergeConfig(
  base,
  defineConfig({
    test: { include: ["test/**/*.test.{ts,tsx}"], environment: "jsdom", setupFiles: ["test/setup.ts"] },
  }),
);
