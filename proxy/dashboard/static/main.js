// The loop: ask the replica about once a second, remember, show.

import { Choices } from "./choices.js";
import { byId, say, setClass } from "./dom.js";
import { prepareTable, showInstances } from "./instances.js";
import { Panels } from "./panels.js";
import { Series } from "./series.js";
import { showFacts, showSilence, showVerdict } from "./verdict.js";
import { showWhy } from "./why.js";
import { KeyNeeded, ask, askForKey } from "./wire.js";
import { duration, stateOf } from "./words.js";

const EVERY_S = 1;
const RECENT_S = 60;
const HOLE_S = 3; // after a longer silence of ours the replica's own memory fills the hole

const nowS = () => performance.now() / 1000;

const series = new Series();
const panels = new Panels(series);
const choices = new Choices((id) => explain(id));
const counts = []; // {at, answers, tiers} of the last minute
let lastAnswerS = null;
let picked = null; // {at, key} of the choice that is explained
let wallOffsetS = 0; // the replica's wall clock minus this page's

async function look() {
  const [loads, replica, page] = await Promise.all([
    ask("debug/instance_loads"), ask("debug/replica"), ask(`debug/selections?limit=${Choices.limit}`),
  ]);
  if (lastAnswerS === null || nowS() - lastAnswerS > HOLE_S) series.load(await ask("debug/history"), nowS());
  const now = nowS();
  lastAnswerS = now;
  wallOffsetS = replica.now - now;
  series.add(loads, now);
  show(loads, replica, page.selections, now);
}

function show(loads, replica, selections, now) {
  const instances = withHistory(loads, replica, now);
  const recent = recentCounts(replica, now);
  say(byId("replica"), replica.replica);
  document.title = `${replica.replica} · Forebay`;
  showVerdict(instances, replica, recent);
  showFacts(replica, loads, recent);
  panels.draw(forDrawing(instances), now, picked && { ...picked, at: picked.at - wallOffsetS });
  choices.show(selections);
  showInstances(instances, replica.pools);
}

/** The instances with what only the last minutes tell: their share, since when they are silent, and those that are gone. */
function withHistory(loads, replica, now) {
  const there = loads.instances.map((each) => ({ ...each, key: `${each.pool}/${each.id}` }));
  const keys = new Set(there.map(({ key }) => key));
  const registered = Object.values(replica.pools).reduce((sum, pool) => sum + pool.registered, 0);
  const isSampled = registered > there.length; // of a large pool: who was not read now is not gone
  const gone = isSampled ? [] : series.keys.filter((key) => !keys.has(key)).map((key) => ({
    ...series.identity(key), key, state: "gone", is_gone: true, signals: {}, in_transit_tokens: 0, in_transit_requests: 0,
  }));
  const sent = new Map(there.map(({ key }) => [key, series.selectedSince(key, now - RECENT_S)]));
  return [...there, ...gone].map((each) => ({
    ...each,
    silentS: silence(each, now),
    share: share(each, there, sent),
    has_imputed: Object.values(each.signals).some(({ source }) => source === "imputed"),
  })).sort((a, b) => (a.key < b.key ? -1 : 1));
}

function silence(instance, now) {
  if (instance.state !== "unknown" && !instance.is_gone) return null;
  const heardAt = series.lastHeardAt(instance.key);
  return heardAt === null ? null : now - heardAt;
}

function share(instance, there, sent) {
  const total = there.filter(({ pool }) => pool === instance.pool).reduce((sum, { key }) => sum + sent.get(key), 0);
  return total ? (sent.get(instance.key) ?? 0) / total : null;
}

const SEVERITY = ["unknown, ejected", "unknown", "ejected", "failing", "full", "draining"];

/** Where not all can be drawn: those in trouble first, then the busiest. Where all can they keep their places. */
function forDrawing(instances) {
  if (instances.length <= Panels.most) return instances;
  const rank = (each) => (SEVERITY.includes(stateOf(each)) ? SEVERITY.indexOf(stateOf(each)) : SEVERITY.length);
  const busy = (each) => each.signals.inflight?.value ?? 0;
  return [...instances].sort((a, b) => rank(a) - rank(b) || busy(b) - busy(a));
}

/** What the replica's counters have grown by within the last minute. */
function recentCounts(replica, now) {
  counts.push({ at: now, answers: replica.answers, tiers: replica.tiers, upS: replica.up_s });
  while (counts.length > 1 && (counts[0].at < now - RECENT_S || counts[0].upS > replica.up_s)) counts.shift();
  const grown = (name) => Object.fromEntries(
    Object.entries(replica[name]).map(([key, count]) => [key, count - (counts[0][name][key] ?? 0)]));
  return { spanS: now - counts[0].at, answers: grown("answers"), tiers: grown("tiers") };
}

async function explain(id) {
  try {
    const { selections } = await ask(`debug/selections?limit=64&request_id=${encodeURIComponent(id)}`);
    const [last] = selections;
    picked = last ? { at: last.at, key: `${last.pool}/${last.chosen}` } : null;
    choices.mark(id);
    showWhy(id, selections.reverse());
    byId("why").scrollIntoView({ behavior: "smooth", block: "nearest" });
    history.replaceState(null, "", `#${encodeURIComponent(id)}`);
  } catch (fault) {
    if (!(fault instanceof KeyNeeded)) showSilence(null, fault.message); // the loop asks for the key
  }
}

function live(className, words) {
  setClass(byId("live"), className);
  say(byId("live").lastChild, words);
}

async function run() {
  for (;;) {
    const beganS = nowS();
    try {
      await look();
      live("on", "live");
      document.body.classList.remove("old");
    } catch (fault) {
      if (fault instanceof KeyNeeded) {
        await askForKey();
        continue;
      }
      const silentS = lastAnswerS === null ? null : nowS() - lastAnswerS;
      document.body.classList.add("old");
      live("off", silentS === null ? "no answer" : `no answer for ${duration(silentS * 1000)}`);
      showSilence(silentS, fault.name === "TimeoutError" ? "no answer in time" : fault.message);
    }
    await pause(Math.max(0.2, EVERY_S - (nowS() - beganS)));
  }
}

/** Wait; a page that nobody sees asks nothing. */
async function pause(seconds) {
  await new Promise((resolve) => setTimeout(resolve, seconds * 1000));
  while (document.hidden) {
    await new Promise((resolve) => document.addEventListener("visibilitychange", resolve, { once: true }));
  }
}

prepareTable();
byId("find").addEventListener("submit", (event) => {
  event.preventDefault();
  const id = byId("request-id").value.trim();
  if (id) explain(id);
});
byId("why-close").addEventListener("click", () => {
  byId("why").hidden = true;
  picked = null;
  choices.mark(null);
  history.replaceState(null, "", location.pathname);
});
if (location.hash.length > 1) explain(decodeURIComponent(location.hash.slice(1)));
run();
