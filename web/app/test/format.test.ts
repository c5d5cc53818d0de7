import { expect, test } from "vitest";
import { show } from "../src/format.js";

test("what is small stands on one line", () => {
  expect(show([1, 2, 3])).toBe("[ 1, 2, 3 ]");
  expect(show({ path: "C:\\new", quoted: '"' })).toBe(String.raw`{ "path": "C:\\new", "quoted": "\"" }`);
});

test("lines in an object's texts are lines", () => {
  expect(show({ text: "one\n\ttwo" })).toBe('{\n  "text": "one\n\ttwo"\n}');
  expect(show("one\ntwo")).toBe("one\ntwo");
});

test("what has no JSON is shown all the same", () => {
  expect(show(undefined)).toBe("");
  expect(show(10n)).toBe("10");
});
