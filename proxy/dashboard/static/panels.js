// One small picture for each instance: its pressure as a line, the others' behind it, all on one scale.

import { byId, el, keyed, say, setClass, svg } from "./dom.js";
import { duration, percent, plain, shown, stateOf, whole } from "./words.js";

const WIDTH = 300;
const HEIGHT = 80;
const FLOOR = HEIGHT - 6; // below it the ticks
const MOST_PANELS = 24;
const MOST_BEHIND = 12; // more lines than this behind each other tell nothing, and cost

/** What can be drawn: signal, name, form of its numbers, least top of the scale. */
const MEASURES = [
  { name: "inflight", title: "in flight", form: plain, least: 4 },
  { name: "predicted_wait_ms", title: "predicted wait", form: duration, least: 100 },
  { name: "predicted_total_backlog_ms", title: "backlog", form: duration, least: 100 },
  { name: "kv_usage", title: "KV cache", form: percent, least: 0.1 },
  { name: "in_transit_tokens", title: "in transit", form: (tokens) => `${whole(tokens)} tokens`, least: 1000 },
];

export class Panels {
  #series;
  #measure = MEASURES[0];
  #pointed = null; // where in the pictures, from 0 (oldest) to 1 (now)
  #last = null;

  static get most() {
    return MOST_PANELS;
  }

  constructor(series) {
    this.#series = series;
    byId("measures").append(...MEASURES.map((measure) => this.#button(measure)));
    const panels = byId("panels");
    panels.addEventListener("pointermove", (event) => this.#point(event));
    panels.addEventListener("pointerleave", () => this.#pointAt(null));
  }

  /** Draw all; `marked` is the moment and instance of the choice that is explained, if any. */
  draw(instances, nowS, marked = null) {
    this.#last = { instances, nowS, marked };
    const scale = new Scale(nowS, this.#series.spanS(nowS));
    say(byId("span"), `Pressure, last ${scale.spanS === 60 ? "minute" : `${scale.spanS / 60} minutes`}`);
    const measured = instances.slice(0, MOST_PANELS);
    const lines = new Map(measured.map((each) => [each.key, this.#series.runs(each.key, this.#measure.name)]));
    const highest = Math.max(0, ...[...lines.values()].flat(2).map(({ value }) => value));
    scale.top = niceTop(Math.max(highest, this.#measure.least));
    const behind = measured.length <= MOST_BEHIND ? scale.lines([...lines.values()].flat()) : "";
    byId("panels").classList.toggle("few", measured.length <= 4);
    keyed(byId("panels"), measured, (each) => each.key, panel, (element, each) => {
      this.#update(element, each, { scale, behind, marked, runs: lines.get(each.key) });
    });
    const left = instances.length - measured.length;
    say(byId("moment"), this.#pointed !== null ? `${Math.round(nowS - scale.at(this.#pointed))} s ago`
      : "ticks: requests this replica sent there; dotted: unknown" +
        (left > 0 ? `; ${left} quieter instances are not drawn` : ""));
  }

  #button(measure) {
    const input = el("input");
    Object.assign(input, { type: "radio", name: "measure", value: measure.name, checked: measure === this.#measure });
    input.addEventListener("change", () => {
      this.#measure = measure;
      this.#again();
    });
    return el("label", "", input, el("span", "", measure.title));
  }

  #update(element, instance, { scale, behind, marked, runs }) {
    const { name, form } = this.#measure;
    const state = stateOf(instance);
    setClass(element, `panel is-${state.split(",")[0]}`);
    const parts = element.parts;
    say(parts.name, instance.id);
    say(parts.state, state);
    say(parts.top, form(scale.top));
    say(parts.value, this.#value(instance.key, name, scale, form));
    const draw = (part, path) => parts[part].setAttribute("d", path);
    draw("behind", behind);
    draw("line", scale.lines(runs));
    draw("area", scale.areas(runs));
    draw("silent", scale.columns(this.#series.silences(instance.key, name)));
    draw("ticks", scale.ticks(this.#series.of(instance.key)));
    draw("marker", marked ? scale.rule(marked.at) : "");
    parts.marker.classList.toggle("chosen", marked?.key === instance.key);
    draw("pointer", this.#pointed === null ? "" : scale.rule(scale.at(this.#pointed)));
  }

  /** The latest value, or that of the moment pointed at. */
  #value(key, name, scale, form) {
    const at = scale.at(this.#pointed ?? 1);
    const near = this.#series.of(key).findLast((point) => point.at <= at + 0.5);
    return near && at - near.at < 3.5 ? shown(near.values[name], form) : shown(null);
  }

  #point(event) {
    const picture = event.target.closest?.("svg");
    if (!picture) return this.#pointAt(null);
    const { left, width } = picture.getBoundingClientRect();
    this.#pointAt(Math.min(1, Math.max(0, (event.clientX - left) / width)));
  }

  #pointAt(share) {
    this.#pointed = share;
    this.#again();
  }

  #again() {
    if (this.#last) this.draw(this.#last.instances, this.#last.nowS, this.#last.marked);
  }
}

function panel() {
  const line = (className) => svg("path", { class: className, "vector-effect": "non-scaling-stroke" });
  const parts = {
    name: el("span", "name"), state: el("span", "state"), value: el("span", "value"), top: el("span", "top"),
    silent: line("silent"), behind: line("behind"), area: line("area"), line: line("line"), ticks: line("ticks"),
    marker: line("marker"), pointer: line("pointer"),
  };
  const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" },
    parts.silent, parts.behind, parts.area, parts.line, parts.ticks, parts.marker, parts.pointer);
  const made = el("article", "panel",
    el("div", "caption", parts.name, parts.state, parts.value), el("div", "frame", picture, parts.top));
  made.parts = parts;
  return made;
}

/** From moments and values to paths: the last `spanS` seconds before `nowS`, values from 0 to `top`. */
class Scale {
  top = 1;

  constructor(nowS, spanS) {
    this.nowS = nowS;
    this.spanS = spanS;
  }

  /** The moment at a share of the width. */
  at(share) {
    return this.nowS - this.spanS * (1 - share);
  }

  lines(runs) {
    return runs.map((run) => `M${this.#points(run.length > 1 ? run : [...run, { ...run[0], at: run[0].at + 1 }])}`).join("");
  }

  areas(runs) {
    return runs.map((run) =>
      `M${this.#x(run[0].at)} ${FLOOR}L${this.#points(run)}L${this.#x(run.at(-1).at)} ${FLOOR}Z`).join("");
  }

  /** Stretches without knowledge, as columns over the whole height: they must not look like a low value. */
  columns(spans) {
    return spans.map(([from, to]) => {
      const places = [];
      for (let x = 5 * Math.ceil(this.#x(from) / 5); x <= this.#x(to); x += 5) places.push(x);
      return (places.length ? places : [this.#x(to)]).map((x) => `M${x} ${FLOOR}V14`).join("");
    }).join("");
  }

  ticks(points) {
    const sent = (point, before) => before !== undefined && point.values.selected > before.values.selected;
    return points.filter((point, index) => sent(point, points[index - 1]))
      .map(({ at }) => `M${this.#x(at)} ${HEIGHT}v-4`).join("");
  }

  rule(at) {
    return `M${this.#x(at)} 0V${HEIGHT}`;
  }

  #points(run) {
    return run.map(({ at, value }) => `${this.#x(at)} ${this.#y(value)}`).join("L");
  }

  #x(at) {
    return Number((WIDTH * (1 - (this.nowS - at) / this.spanS)).toFixed(1));
  }

  #y(value) {
    return Number((FLOOR - (value / this.top) * (FLOOR - 3)).toFixed(1));
  }
}

/** The next of 1, 2, 5, 10, 20, … */
function niceTop(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value * 0.999) ?? 10 * power;
}
