import { render } from "@testing-library/react";
import { describe, expect, it } from "vitest";
import { blocksOf, isPlain, Markdown } from "../src/Markdown.js";

const show = (text: string, streaming = false) => render(<Markdown text={text} streaming={streaming} />).container;

describe("markdown", () => {
  it.each([
    '<script>window.pwned = 1</script> and <img src="x" onerror="window.pwned = 1">',
    "[click](javascript:window.pwned=1) <a href='javascript:window.pwned=1'>x</a>",
    "[click](JaVaScRiPt:window.pwned=1) [data](data:text/html,<script>window.pwned=1</script>)",
    "<iframe srcdoc='<script>parent.pwned=1</script>'></iframe> <svg onload='window.pwned=1'>",
    "![x](javascript:window.pwned=1) <javascript:window.pwned=1> [v](vbscript:x)",
    "| a |\n|---|\n| <img src=x onerror=window.pwned=1> |",
  ])("is inert: %s", (text) => {
    for (const streaming of [true, false]) {
      const shown = show(text, streaming);
      expect(shown.querySelector("script, img, iframe, svg:not(.icon), object, embed, style")).toBeNull();
      for (const element of shown.querySelectorAll("*")) {
        for (const { name, value } of element.attributes) {
          expect(name).not.toMatch(/^on|srcdoc/);
          expect(value).not.toMatch(/javascript:|vbscript:|data:text/i);
        }
      }
      expect((globalThis as { pwned?: unknown }).pwned).toBeUndefined();
    }
  });

  it("opens links elsewhere and tells them nothing", () => {
    const link = show("see [the notes](https://example.com/)").querySelector("a")!;
    expect([link.target, link.rel]).toEqual(["_blank", "noopener noreferrer"]);
  });

  it("leads to no other conversation: those are what this page's own addresses name", () => {
    const shown = show("[Tools](#tools) and a note[^1].\n\n[^1]: Said below.");
    expect(shown.querySelector("a")).toBeNull();
    expect(shown.textContent).toContain("Tools and a note");
    expect(shown.textContent).toContain("Said below.");
  });

  it("offers a picture as a link instead of fetching it", () => {
    const shown = show("![chart](https://example.com/c.png?secret)");
    expect(shown.querySelector("img")).toBeNull();
    expect(shown.querySelector("a")!.textContent).toBe("chart");
  });

  it("shows plain text exactly as it is", () => {
    for (const text of ["  One line,\nanother.\n\n\n1 2 3: done!  ", "a\n \nb\n\n", "", " ", "\n\n"]) {
      expect(isPlain(text)).toBe(true);
      expect(show(text).textContent).toBe(text);
    }
  });

  it("shows tables and code", () => {
    const shown = show("| a | b |\n|---|---|\n| 1 | 2 |\n\n```py\nprint(1)\n```");
    expect(shown.querySelectorAll("td")).toHaveLength(2);
    expect(shown.querySelector("code.language-py")!.textContent).toBe("print(1)\n");
  });
});

describe("blocks", () => {
  it("split at blank lines, never inside a fence, a list or an indented passage", () => {
    expect(blocksOf("a\n\nb")).toEqual(["a\n", "b"]);
    expect(blocksOf("```\nx\n\ny\n```\n\nz")).toEqual(["```\nx\n\ny\n```\n", "z"]);
    expect(blocksOf("1. a\n\n   more\n\n2. b\n\nc")).toEqual(["1. a\n\n   more\n\n2. b\n", "c"]);
    expect(blocksOf("~~~\n```\n\n~~~\n\nq")).toEqual(["~~~\n```\n\n~~~\n", "q"]);
  });

  it.each(["a\n\nb\n", "", "\n\n", "# t\n\n- a\n\n- b\n\n```\n\n", "x\n\n\n\ny"])("lose nothing: %j", (text) => {
    expect(blocksOf(text).join("\n")).toBe(text);
  });
});
