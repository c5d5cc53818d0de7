import { expect, it } from "vitest";
import { describeClose, shouldReconnect } from "../src/index.js";

it.each([1001, 1005, 1006, 1011, 1012, 1013, 4100, 4101, 4102, 4103, 4104, 4105, 4199])("comes back after %i", (code) => {
  expect(shouldReconnect(code)).toBe(true);
});

it.each([1000, 1002, 1003, 1007, 1009, 4400, 4401, 4403, 4408, 4409, 4499])("stays away after %i", (code) => {
  expect(shouldReconnect(code)).toBe(false);
});

it("has words for what people may see", () => {
  expect(describeClose(4100)).toBe("server is restarting");
  expect(describeClose(4242)).toBe("");
});
