// What to look at first: is anything wrong, and how does this replica fare?

import { byId, el, keyed, say, setClass } from "./dom.js";
import { UNKNOWN, duration, notes, shown, stateOf, tierName, whole } from "./words.js";

const BUS = {
  fresh: "read just now",
  stale: "does not answer: choices are made on the last view while it is young",
  blind: "does not answer: choices are made on this replica's own counts",
};

/** One line that says how the fleet is, and a line for each thing that is wrong. */
export function showVerdict(instances, replica, recent) {
  const problems = [...ofReplica(replica, recent), ...instances.flatMap(ofInstance)];
  const bad = problems.filter((each) => each.level === "bad").length;
  setClass(byId("headline"), bad ? "bad" : problems.length ? "warn" : "good");
  say(byId("headline"), headline(instances, problems));
  keyed(byId("problems"), problems, (each) => each.key, () => el("li", "", el("b"), el("span")), (item, each) => {
    setClass(item, each.level);
    say(item.firstChild, each.what);
    say(item.lastChild, each.words);
  });
}

/** The replica does not answer: what is shown is old. */
export function showSilence(sinceS, words) {
  setClass(byId("headline"), "bad");
  say(byId("headline"), `This replica does not answer (${words})`);
  keyed(byId("problems"), sinceS === null ? [] : [sinceS], () => "old", () => el("li", "bad", el("b"), el("span")), (item) => {
    say(item.firstChild, "old");
    say(item.lastChild, `what is shown below was true ${duration(sinceS * 1000)} ago`);
  });
}

function headline(instances, problems) {
  const there = instances.filter((each) => !each.is_gone);
  if (!there.length) return "No instance is registered";
  const counts = new Map();
  for (const each of instances) counts.set(stateOf(each), (counts.get(stateOf(each)) ?? 0) + 1);
  const ready = counts.get("ready") ?? 0;
  if (ready === instances.length) {
    const all = ready === 1 ? "The instance is ready" : `All ${ready} instances are ready`;
    return problems.length ? `${all}, but look:` : all;
  }
  const others = [...counts].filter(([state]) => state !== "ready").map(([state, count]) => `${count} ${state}`);
  return `${ready} of ${instances.length} instances ready · ${others.join(" · ")}`;
}

function ofInstance(instance) {
  const state = stateOf(instance);
  const words = notes(instance, instance.silentS);
  if (state === "ready" && !words) return [];
  const level = ["unknown", "ejected", "gone"].some((each) => state.startsWith(each)) ? "bad" : "warn";
  return [{ key: instance.key, level, what: instance.id, words: `${state}${words ? `: ${words}` : ""}` }];
}

function ofReplica(replica, recent) {
  const found = [];
  for (const [name, pool] of Object.entries(replica.pools)) {
    if (pool.bus.state !== "fresh") {
      found.push({ key: `bus ${name}`, level: "bad", what: `Redis (${name})`, words: `${pool.bus.state}: ${BUS[pool.bus.state]}` });
    }
  }
  if (replica.is_draining) found.push({ key: "drains", level: "warn", what: "replica", words: "it drains: running requests finish, then it ends" });
  const failed = sumOf(recent.answers, (status) => status >= 500);
  if (failed) found.push({ key: "5xx", level: "bad", what: "answers", words: `${failed} with a status of 5xx in the last minute` });
  const refused = recent.answers["429"] ?? 0;
  if (refused) found.push({ key: "429", level: "warn", what: "answers", words: `${refused} with 429 in the last minute: everything is full, or a key's limit is reached` });
  const guessed = sumOf(recent.tiers, (tier) => tier !== "measured");
  if (guessed && replica.strategy !== "round_robin") {
    found.push({ key: "tier", level: "warn", what: "choices", words: `${guessed} in the last minute without any measured signal` });
  }
  return found;
}

/** The four facts beside the verdict. */
export function showFacts(replica, loads, recent) {
  const pools = Object.entries(replica.pools);
  const many = pools.length > 1;
  const worst = ["blind", "stale", "fresh"].find((state) => pools.some(([, pool]) => pool.bus.state === state));
  const read = pools.map(([name, pool]) => `${many ? `${name}: ${pool.bus.state}, ` : ""}${shown(pool.bus.age_ms, duration)} old, ${whole(pool.read_failures)} of ${whole(pool.reads + pool.read_failures)} readings failed`);
  fact("bus", worst, `${replica.bus_servers.join(", ")} · ${read.join(" · ")}`, worst === "fresh" ? "good" : "bad");

  const tiers = Object.entries(loads.pools).map(([name, pool]) => (many ? `${name}: ` : "") + tierName(pool.tier));
  const isMeasured = Object.values(loads.pools).every((pool) => pool.tier === "measured");
  fact("tier", replica.strategy, `on ${tiers.join(" · ")}`, isMeasured ? "good" : "warn");

  const perS = recent.spanS > 0 ? `${(sumOf(recent.answers, () => true) / recent.spanS).toFixed(1)}/s` : UNKNOWN;
  const answers = Object.entries(replica.answers).map(([status, count]) => `${status} ×${whole(count)}`);
  fact("replica", `${replica.inflight} in flight, ${perS}`, `up ${duration(replica.up_s * 1000)} · ${answers.join(" ") || "no answers yet"}`,
    replica.is_draining ? "warn" : "");

  const made = pools.map(([, pool]) => pool.reservations).filter(Boolean);
  const total = (name) => whole(made.reduce((sum, each) => sum + each[name], 0));
  const transit = loads.instances.reduce((sum, each) => sum + each.in_transit_requests, 0);
  fact("reserved", `${transit} in transit`, `by all replicas · made here ${total("made")}, given back ${total("given_back")}, failed ${total("failed")}, too late ${total("too_late")}`);
}

function fact(name, value, more, level = "") {
  const [, main, small] = byId(`fact-${name}`).children;
  setClass(main, level);
  say(main, value ?? UNKNOWN);
  say(small, more);
}

function sumOf(counts, isWanted) {
  return Object.entries(counts).reduce((sum, [name, count]) => sum + (isWanted(name) ? count : 0), 0);
}
