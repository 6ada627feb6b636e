// The list of the latest choices; a click asks why.

import { byId, el, keyed, say, setClass } from "./dom.js";
import { UNKNOWN, clockTime, duration, reason, shown } from "./words.js";

const SHOWN = 30;
const HINT = "click one to see why · TTFT predicted → real";

export class Choices {
  #isPointedAt = false;
  #markedId = null;
  #onPick;

  constructor(onPick) {
    this.#onPick = onPick;
    say(byId("choices-hint"), HINT);
    const list = byId("choice-list");
    // a list that moves under the pointer makes people click what they did not mean
    list.addEventListener("pointerenter", (event) => this.#hold(event.pointerType === "mouse"));
    list.addEventListener("pointerleave", () => this.#hold(false));
  }

  static get limit() {
    return SHOWN;
  }

  show(selections) {
    const shown = this.#isPointedAt ? [] : selections;
    byId("no-choices").hidden = selections.length > 0;
    if (shown.length || !selections.length) {
      keyed(byId("choice-list"), shown.map((each) => ({ ...each, key: `${each.request_id} ${each.at}` })),
        (each) => each.key, (each) => this.#item(each), (element, each) => this.#update(element, each));
    }
    this.mark(this.#markedId);
  }

  /** Mark the choice that is explained. */
  mark(requestId) {
    this.#markedId = requestId;
    for (const item of byId("choice-list").children) {
      item.firstChild.setAttribute("aria-pressed", String(item.requestId === requestId));
    }
  }

  #item(choice) {
    const item = el("li");
    const parts = { at: el("time"), chosen: el("b"), why: el("span", "why"), ttft: el("span", "ttft"), id: el("code") };
    const button = el("button", "choice",
      el("span", "row", parts.at, parts.chosen, parts.ttft), el("span", "row", parts.why, parts.id));
    button.addEventListener("click", () => this.#onPick(choice.request_id));
    item.append(button);
    return Object.assign(item, { requestId: choice.request_id, parts });
  }

  #update(item, choice) {
    const isGuessed = choice.tier !== "measured" || Object.keys(choice.imputed).length > 0 || choice.decided_by !== "bus";
    setClass(item, isGuessed ? "guessed" : "");
    say(item.parts.at, clockTime(choice.at));
    say(item.parts.chosen, choice.chosen);
    say(item.parts.why, reason(choice));
    say(item.parts.ttft, ttft(choice));
    say(item.parts.id, choice.request_id);
  }

  #hold(isPointedAt) {
    this.#isPointedAt = isPointedAt;
    say(byId("choices-hint"), isPointedAt ? "held while you point at them" : HINT);
  }
}

const inMs = (seconds) => shown(seconds, (known) => duration(known * 1000));

/** Time to first token, predicted and real: short, for a list. */
function ttft(choice) {
  return choice.predicted_ttft_s === null && choice.real_ttft_s === null ? UNKNOWN
    : `${inMs(choice.predicted_ttft_s)} → ${inMs(choice.real_ttft_s)}`;
}
