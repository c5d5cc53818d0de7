import react from "@vitejs/plugin-react";
import { defaultClientConditions, defineConfig } from "vite";

const server = process.env["GATEWAY_URL"] ?? "http://127.0.0.1:8000";

export default defineConfig({
  // Relative, so that a gateway mounted below a path finds its own files.
  base: "./",
  plugins: [react()],
  // The SDK from its source: no build order, one source map.
  resolve: { conditions: ["agent-gateway-source", ...defaultClientConditions] },
  build: {
    outDir: "../../gateway/static",
    emptyOutDir: true,
    target: "es2022",
    // Everything inline would need a hole in a strict content security policy.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
  },
  server: {
    proxy: {
      "/ws": { target: server, ws: true },
      "/api": { target: server },
    },
  },
});
