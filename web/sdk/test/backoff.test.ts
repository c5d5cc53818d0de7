import { describe, expect, it } from "vitest";
import { Backoff } from "../src/index.js";

describe("backoff", () => {
  it("draws from zero to a ceiling that doubles up to the cap", () => {
    const ceilings = new Backoff(500, 4000, () => 1);
    expect([1, 2, 3, 4, 5].map(() => ceilings.next())).toEqual([500, 1000, 2000, 4000, 4000]);
    const floors = new Backoff(500, 4000, () => 0);
    expect([floors.next(), floors.next()]).toEqual([0, 0]);
  });

  it("waits at least as long as the server asked", () => {
    expect(new Backoff(500, 4000, () => 0.5).next(3000)).toBe(3250);
  });

  it("starts over after a reset", () => {
    const backoff = new Backoff(500, 4000, () => 1);
    backoff.next();
    backoff.next();
    expect(backoff.attempt).toBe(2);
    backoff.reset();
    expect(backoff.next()).toBe(500);
  });
});
