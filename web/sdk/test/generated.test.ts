import { expect, it } from "vitest";
import { generate } from "../scripts/generate.js";

it("has the types that the protocol's schemas give (else: npm run generate)", async () => {
  await expect(generate()).toMatchFileSnapshot("../src/generated.ts");
});
