/** `gateway serve`, as a process. The Python is `GATEWAY_PYTHON`, that of the repository's environments, or `python3`. */
import { spawn, type ChildProcess } from "node:child_process";
import { existsSync, mkdtempSync, rmSync } from "node:fs";
import { createServer, type AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

const ROOT = join(fileURLToPath(import.meta.url), "../../../..");
const VENVS = [".venv", ".venv-tests"].map((name) => join(ROOT, name, "bin/python"));

export interface RealServer {
  ws: string;
  http: string;
  port: number;
  close(): Promise<void>;
}

export async function serve(engine?: string, env: Record<string, string> = {}): Promise<RealServer> {
  const folder = mkdtempSync(join(tmpdir(), "gateway-web-"));
  const port = await freePort();
  const python = process.env["GATEWAY_PYTHON"] ?? VENVS.find(existsSync) ?? "python3";
  const args = ["-m", "gateway", "serve", ...(engine ? [engine] : []), "--port", String(port)];
  const said: string[] = [];
  const child: ChildProcess = spawn(python, args, {
    cwd: folder,
    env: { ...process.env, PYTHONPATH: `${ROOT}:${join(ROOT, "tests/e2e")}`, GATEWAY_SCRIPTED_PACE: "0.005", ...env },
    stdio: ["ignore", "pipe", "pipe"],
  });
  child.stdout!.on("data", (data: Buffer) => said.push(String(data)));
  child.stderr!.on("data", (data: Buffer) => said.push(String(data)));
  const gone = new Promise<void>((resolve) => {
    child.once("exit", () => resolve());
    child.once("error", (error) => {
      said.push(String(error));
      resolve();
    });
  });
  let ended = false;
  void gone.then(() => (ended = true));
  const origin = `http://127.0.0.1:${port}`;
  for (let left = 300; !(await ready(origin)); left -= 1) {
    if (ended || left === 0) throw new Error(`No server with ${python} (set GATEWAY_PYTHON):\n${said.join("")}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  return {
    ws: `ws://127.0.0.1:${port}/ws`,
    http: origin,
    port,
    async close() {
      child.kill("SIGKILL");
      await gone;
      rmSync(folder, { recursive: true, force: true });
    },
  };
}

async function ready(origin: string): Promise<boolean> {
  return fetch(`${origin}/readyz`).then(
    ({ ok }) => ok,
    () => false,
  );
}

function freePort(): Promise<number> {
  return new Promise((resolve) => {
    const server = createServer().listen(0, "127.0.0.1", () => {
      const { port } = server.address() as AddressInfo;
      server.close(() => resolve(port));
    });
  });
}
