// The last five minutes of every instance, in this page's own time (seconds since it was opened). No drawing.

export const WINDOW_S = 300;
const SPANS_S = [60, 120, WINDOW_S];

//: Two moments further apart than this have a hole between them: nothing is known of the time between.
const HOLE_S = 3.5;

export class Series {
  #byKey = new Map();

  /** Length of what there is to show: one of a few spans, so that pictures do not creep. */
  spanS(nowS) {
    const oldest = Math.min(...[...this.#byKey.values()].map(({ points }) => points[0].at));
    return SPANS_S.find((span) => nowS - oldest <= span) ?? WINDOW_S;
  }

  /** Instances that had a moment in the window, by key. */
  get keys() {
    return [...this.#byKey.keys()];
  }

  /** Moments of an instance, oldest first: {at, values, selected}; `values` is null where nothing was read. */
  of(key) {
    return this.#byKey.get(key)?.points ?? [];
  }

  identity(key) {
    return this.#byKey.get(key);
  }

  /** Begin anew with what the replica remembers. */
  load(page, nowS) {
    this.#byKey.clear();
    const place = Object.fromEntries(page.columns.map((name, index) => [name, index]));
    for (const { pool, id, rows } of page.instances) {
      rows.forEach((row, index) => {
        if (!row) return;
        const values = Object.fromEntries(page.columns.map((name) => [name, row[place[name]]]));
        this.#add(pool, id, nowS - page.ages_s[index], values);
      });
    }
    this.#forget(nowS);
  }

  /** One more look at all instances. */
  add(loads, nowS) {
    for (const instance of loads.instances) {
      const values = { in_transit_tokens: instance.in_transit_tokens, selected: instance.selected };
      for (const [name, signal] of Object.entries(instance.signals)) values[name] = signal.value;
      this.#add(instance.pool, instance.id, nowS, values);
    }
    this.#forget(nowS);
  }

  /** Stretches of known values of a measure: [[{at, value}, …], …]. */
  runs(key, name) {
    const found = [];
    let before = null;
    for (const { at, values } of this.of(key)) {
      const value = values[name] ?? null;
      const isNew = before === null || at - before > HOLE_S;
      if (value === null) before = null;
      else {
        if (isNew) found.push([]);
        found.at(-1).push({ at, value });
        before = at;
      }
    }
    return found;
  }

  /** Stretches, as [from, to], in which an instance was there and said nothing of a measure. */
  silences(key, name) {
    const found = [];
    let before = null;
    for (const { at, values } of this.of(key)) {
      if ((values[name] ?? null) === null) {
        const from = before !== null && at - before <= HOLE_S ? before : at;
        if (found.length && found.at(-1)[1] >= from) found.at(-1)[1] = at;
        else found.push([from, at]);
      }
      before = at;
    }
    return found;
  }

  /** When an instance last said something of itself; null: never in this window. */
  lastHeardAt(key) {
    return this.of(key).findLast(({ values }) => values.inflight !== null)?.at ?? null;
  }

  /** Requests that this replica sent to an instance since a moment. */
  selectedSince(key, sinceS) {
    const points = this.of(key);
    if (!points.length) return 0;
    const first = points.findLast(({ at }) => at <= sinceS) ?? points[0];
    return Math.max(0, points.at(-1).values.selected - first.values.selected);
  }

  #add(pool, id, at, values) {
    const key = `${pool}/${id}`;
    if (!this.#byKey.has(key)) this.#byKey.set(key, { pool, id, points: [] });
    this.#byKey.get(key).points.push({ at, values });
  }

  #forget(nowS) {
    for (const [key, { points }] of this.#byKey) {
      const young = points.findIndex(({ at }) => at >= nowS - WINDOW_S);
      if (young < 0) this.#byKey.delete(key);
      else if (young > 0) points.splice(0, young);
    }
  }
}
