/**
 * Exponential backoff with full jitter: each delay is drawn evenly from zero to a ceiling that doubles.
 *
 * Full jitter, because a restarted gateway loses all its clients in the same millisecond and must not get them back in
 * the same millisecond.
 */
export class Backoff {
  /** Attempts since the last {@link reset}. */
  attempt = 0;

  constructor(
    private readonly base = 500,
    private readonly cap = 15_000,
    private readonly random: () => number = Math.random,
  ) {}

  /** The next delay in milliseconds, never shorter than `atLeast` (a server's `retry_after_s`). */
  next(atLeast = 0): number {
    const ceiling = Math.min(this.cap, this.base * 2 ** this.attempt);
    this.attempt += 1;
    return atLeast + this.random() * ceiling;
  }

  reset(): void {
    this.attempt = 0;
  }
}
