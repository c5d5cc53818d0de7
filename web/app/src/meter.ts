/** What passed in the last half minute, in slots of half a second: a bounded memory, however much it is. */
export const SLOT_MS = 500;
export const SLOTS = 60;

interface Slot {
  at: number;
  frames: number;
  bytes: number;
}

export class Meter {
  private readonly ring: Slot[] = Array.from({ length: SLOTS }, () => ({ at: -1, frames: 0, bytes: 0 }));

  add(now: number, frames: number, bytes: number): void {
    const at = Math.floor(now / SLOT_MS);
    let slot = this.ring[at % SLOTS]!;
    if (slot.at !== at) slot = this.ring[at % SLOTS] = { at, frames: 0, bytes: 0 };
    slot.frames += frames;
    slot.bytes += bytes;
  }

  /** Frames per second in each slot, the oldest first; the slot that is filling is not told yet. */
  frames(now: number): number[] {
    return this.slots(now).map((slot) => (slot.frames * 1000) / SLOT_MS);
  }

  /** Per second, over the last two seconds that are full. */
  rate(now: number): { frames: number; bytes: number } {
    const last = this.slots(now).slice(-4);
    const sum = (of: "frames" | "bytes") => (last.reduce((total, slot) => total + slot[of], 0) * 1000) / (4 * SLOT_MS);
    return { frames: sum("frames"), bytes: sum("bytes") };
  }

  private slots(now: number): Slot[] {
    const end = Math.floor(now / SLOT_MS);
    return Array.from({ length: SLOTS - 1 }, (_, n) => {
      const at = end - (SLOTS - 1) + n;
      const slot = this.ring[at % SLOTS]!;
      return slot.at === at ? slot : { at, frames: 0, bytes: 0 };
    });
  }
}
