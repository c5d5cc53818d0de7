import { expect, it } from "vitest";
import { Meter, SLOTS, SLOT_MS } from "../src/meter.js";

it("counts by slots, tells those that are full, and forgets what is older than they reach", () => {
  const meter = new Meter();
  const start = 1_000 * SLOT_MS;
  meter.add(start, 3, 30);
  meter.add(start + SLOT_MS - 1, 2, 20);
  meter.add(start + SLOT_MS, 7, 70);
  const now = start + 2 * SLOT_MS;
  expect(meter.frames(now)).toHaveLength(SLOTS - 1);
  expect(meter.frames(now).slice(-3)).toEqual([0, 10, 14]);
  expect(meter.rate(now)).toEqual({ frames: 6, bytes: 60 });
  expect(meter.frames(now + SLOTS * SLOT_MS)).toEqual(Array(SLOTS - 1).fill(0));
  meter.add(now + SLOTS * SLOT_MS, 1, 1); // into a slot that was used before
  expect(meter.frames(now + (SLOTS + 1) * SLOT_MS).at(-1)).toBe(2);
});
