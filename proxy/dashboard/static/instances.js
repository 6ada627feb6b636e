// The table of instances; on a narrow screen its rows are cards.

import { byId, el, keyed, say, setClass } from "./dom.js";
import { UNKNOWN, duration, notes, percent, score, shown, signal, stateOf, whole } from "./words.js";

/** Heading, and the text of a cell. */
const COLUMNS = [
  ["instance", (each) => each.id],
  ["state", (each) => stateOf(each)],
  ["age", (each) => shown(each.age_ms, duration)],
  ["in flight", (each) => signal(each, "inflight")],
  ["slots", (each) => shown(each.slots)],
  ["prepare q+run", (each) => `${signal(each, "prepare_queue_depth")}+${signal(each, "active_prepare")}`],
  ["ready q+run", (each) => `${signal(each, "ready_queue_depth")}+${signal(each, "active_ready")}`],
  ["prefill", (each) => signal(each, "pending_prefill_count")],
  ["decode", (each) => signal(each, "active_decode_count")],
  ["wait", (each) => signal(each, "predicted_wait_ms", duration)],
  ["backlog", (each) => signal(each, "predicted_total_backlog_ms", duration)],
  ["kv", (each) => signal(each, "kv_usage", percent)],
  ["in transit", inTransit],
  ["score", (each) => (each.has_imputed ? "~" : "") + shown(each.total, score)],
  ["share 1 min", (each) => shown(each.share, percent)],
];

export function prepareTable() {
  byId("instance-head").append(...COLUMNS.map(([title]) => el("th", "", title)));
}

export function showInstances(instances, pools) {
  const many = Object.keys(pools).length > 1;
  keyed(byId("instance-rows"), instances, (each) => each.key, row, (element, each) => {
    setClass(element, `is-${stateOf(each).split(",")[0]}`);
    COLUMNS.forEach(([, text], place) => say(element.cells[place].firstChild, each.is_gone && place > 1 ? UNKNOWN : text(each)));
    const words = notes(each, each.silentS);
    say(element.noted, words);
    element.noted.hidden = !words;
    element.cells[0].title = many ? `pool ${each.pool}` : each.worker_url ?? "";
  });
  const registered = Object.values(pools).reduce((sum, pool) => sum + pool.registered, 0);
  const read = instances.filter((each) => !each.is_gone).length;
  say(byId("in-all"), registered > read ? `${read} of ${registered} were read just now: the pool is large, choices draw a sample` : "");
}

function row() {
  const made = el("tr");
  for (const [title] of COLUMNS) {
    const cell = el("td", "", el("span"));
    cell.dataset.label = title;
    made.append(cell);
  }
  made.noted = el("small", "noted");
  made.cells[1].append(made.noted);
  return made;
}

function inTransit(each) {
  return each.in_transit_requests ? `${each.in_transit_requests} (${whole(each.in_transit_tokens)} tok)` : "0";
}
