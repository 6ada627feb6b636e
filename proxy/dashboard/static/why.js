// Why one request went where it went: a sentence, a bar of costs for each candidate, and every term in numbers.

import { byId, el } from "./dom.js";
import { UNKNOWN, clockTime, duration, fourDigits, score, shown, termName, termTitle, tierName, ttft, whole } from "./words.js";

/** Show the choices made for a request, one for each try, oldest first. */
export function showWhy(requestId, choices) {
  byId("why").hidden = false;
  byId("why-body").replaceChildren(
    ...(choices.length ? choices.map((choice, index) => attempt(choice, index + 1, choices.length)) : [forgotten(requestId)]));
}

function forgotten(requestId) {
  return el("p", "sentence", "This replica does not remember ", el("code", "", requestId),
    ". It keeps its last 256 choices; another replica may know it: ", el("code", "", `forebay why ${requestId}`),
    " asks them.");
}

function attempt(choice, number, count) {
  return el("article", "try",
    el("p", "sentence", ...(count > 1 ? [`Try ${number} of ${count}: `] : []), ...sentence(choice)),
    ...difference(choice).map((text) => el("p", "difference", text)),
    table(choice), ...footnotes(choice).map((text) => el("p", "hint", text)));
}

function sentence(choice) {
  const against = choice.runner_up === null ? "the only candidate"
    : choice.margin === 0 ? `tied with ${choice.runner_up}, its turn`
    : `${score(choice.margin)} ahead of ${choice.runner_up}`;
  const where = choice.decided_by === "bus" ? "on the bus, in one step for all replicas" : "by this replica alone";
  return [
    el("code", "", choice.request_id), ` went to `, el("b", "", choice.chosen), ` at ${clockTime(choice.at)}: ${against}`,
    ` by ${choice.strategy} on ${tierName(choice.tier)}; chosen ${where}. `,
    `${whole(choice.prompt_tokens)} prompt tokens, model ${choice.model ?? UNKNOWN}. ${ttft(choice)}.`,
  ];
}

/** Which terms told the chosen one from the runner-up, the weightiest first. */
function difference(choice) {
  const chosen = choice.candidates.find(({ id }) => id === choice.chosen);
  const other = choice.candidates.find(({ id }) => id === choice.runner_up);
  if (!chosen || !other || choice.margin === 0) return [];
  const parts = Object.keys(chosen.terms).map((name) => [termName(name), chosen.terms[name].contribution - other.terms[name].contribution]);
  parts.push(["what was reserved meanwhile", chosen.score - chosen.total - (other.score - other.total)]);
  const most = Math.max(...parts.map(([, by]) => Math.abs(by)));
  const telling = parts.filter(([, by]) => Math.abs(by) > Math.max(1e-9, most / 20)).sort((a, b) => Math.abs(b[1]) - Math.abs(a[1]));
  if (!telling.length) return [];
  const words = ([name, by]) => `${fourDigits(Math.abs(Number(by.toFixed(4))))} ${by > 0 ? "more" : "less"} in ${name}`;
  return [`Against ${other.id} it costs ${telling.map(words).join(", ")}.`];
}

function table(choice) {
  const terms = Object.keys(choice.candidates[0]?.terms ?? {});
  const longest = Math.max(1e-9, ...choice.candidates.map((each) => Math.max(each.score, each.total)));
  const head = el("tr", "", ...["candidate", "cost", ...terms.map(termName), "score", "tokens in transit", "predicted TTFT"]
    .map((title) => el("th", "", title)));
  terms.forEach((name, index) => {
    head.cells[index + 2].title = termTitle(name);
    head.cells[index + 2].prepend(el("i", `key term-${index % 8}`));
  });
  const rows = choice.candidates.map((each) => candidate(each, terms, longest, each.id === choice.chosen));
  return el("table", "wide terms", el("thead", "", head), el("tbody", "", ...rows));
}

function candidate(each, terms, longest, isChosen) {
  const row = el("tr", isChosen ? "chosen" : "");
  row.dataset.candidate = each.id;
  cell(row, "candidate", each.id);
  cell(row, "cost", bar(each, terms, longest));
  for (const name of terms) cell(row, termName(name), term(each, name)).dataset.term = name;
  cell(row, "score", score(each.score)).dataset.term = "score";
  cell(row, "tokens in transit", inTransit(each));
  cell(row, "predicted TTFT", shown(each.predicted_ttft_s, (seconds) => duration(seconds * 1000)));
  return row;
}

function cell(row, label, content) {
  const made = el("td", "", content);
  made.dataset.label = label;
  row.append(made);
  return made;
}

/** Value times weight, as the total has it; `~` where it was made with values of another instance. */
function term(each, name) {
  const known = each.terms[name];
  if (!known) return UNKNOWN;
  const sign = name in each.imputed ? "~" : "";
  return `${sign}${fourDigits(known.value)}${known.weight === 1 ? "" : ` × ${fourDigits(known.weight)}`}`;
}

function bar(each, terms, longest) {
  const made = el("span", "bar");
  const add = (className, share) => {
    const part = el("i", className);
    part.style.width = `${(100 * Math.max(0, share)) / longest}%`;
    made.append(part);
  };
  terms.forEach((name, index) => add(`term-${index % 8}`, each.terms[name].contribution));
  if (each.score > each.total) add("since", each.score - each.total);
  return made;
}

/** Tokens in transit: as the replica saw them, and as they were when the choice was made. */
function inTransit({ in_transit_seen: seen, in_transit_when_chosen: then }) {
  return then && then.tokens !== seen.tokens ? `${whole(seen.tokens)} → ${whole(then.tokens)}` : whole(seen.tokens);
}

function footnotes(choice) {
  const found = [];
  for (const each of choice.candidates) {
    for (const donor of new Set(Object.values(each.imputed))) {
      const names = Object.keys(each.imputed).filter((name) => each.imputed[name] === donor);
      found.push(`~ ${each.id} was silent on ${names.join(", ")}: for this choice taken from ${donor}.`);
    }
    if (each.score > each.total) found.push(`${each.id}: more was in transit when the bus chose than this replica had seen; the score has it.`);
  }
  const left = choice.candidates_in_all - choice.candidates.length;
  if (left > 0) found.push(`${left} worse candidates were not kept.`);
  if (!Object.keys(choice.candidates[0]?.terms ?? {}).length) found.push("Nothing was compared: it was this instance's turn.");
  return found;
}
