/** `npm run size`: the core as one minified file, to see what it weighs. Not published. */
import { defineConfig } from "vite";

export default defineConfig({
  build: {
    outDir: "dist/size",
    lib: { entry: "src/index.ts", formats: ["es"], fileName: "sdk.min" },
    minify: true,
  },
});
