// How long the host waits for us: the sum of a tool call, of everything else in a turn, and of its start.
const KEPT = 1000; // sums that are remembered

export class Spent {
  #open = { tool: new Map(), turn: new Map(), start: new Map() };
  #sums = { tool: [], turn: [], start: [] };

  // Runs `work` and adds its time to what `kind` and `key` have spent so far.
  async time(kind, key, work) {
    const begun = performance.now();
    try {
      return await work();
    } finally {
      this.add(kind, key, performance.now() - begun);
    }
  }

  add(kind, key, ms) {
    const open = this.#open[kind];
    open.set(key, (open.get(key) ?? 0) + ms);
    if (open.size > KEPT) open.delete(open.keys().next().value);
  }

  // The call or turn is over.
  close(kind, key) {
    const sum = this.#open[kind].get(key);
    if (sum === undefined) return;
    this.#open[kind].delete(key);
    this.#sums[kind].push(sum);
    if (this.#sums[kind].length > KEPT) this.#sums[kind].shift();
  }

  report() {
    return Object.fromEntries(Object.entries(this.#sums).map(([kind, sums]) => [kind, summary(sums)]));
  }
}

function summary(sums) {
  const sorted = sums.toSorted((a, b) => a - b);
  const at = (share) => Number((sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))] ?? 0).toFixed(2));
  return { count: sorted.length, p50_ms: at(0.5), p95_ms: at(0.95) };
}
