// Numbers and states in words. What is unknown is a dash, never a zero.

export const UNKNOWN = "–";

const isKnown = (value) => value !== null && value !== undefined;

export function shown(value, form = plain) {
  return isKnown(value) ? form(value) : UNKNOWN;
}

export const plain = (value) => String(Number(value.toPrecision(6)));
export const percent = (value) => `${Math.round(value * 100)} %`;
export const whole = (value) => Math.round(value).toLocaleString("en");
export const fourDigits = (value) => String(Number(value.toPrecision(4)));
export const score = (value) => value.toFixed(4);

/** Milliseconds as people read them. */
export function duration(ms) {
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 10_000) return `${(ms / 1000).toFixed(1)} s`;
  if (ms < 120_000) return `${Math.round(ms / 1000)} s`;
  if (ms < 7_200_000) return `${Math.round(ms / 60_000)} min`;
  return ms < 172_800_000 ? `${Math.round(ms / 3_600_000)} h` : `${Math.round(ms / 86_400_000)} days`;
}

export const clockTime = (seconds) => new Date(seconds * 1000).toLocaleTimeString("en-GB");

/** What a signal of an instance is now: its text, and where it comes from. */
export function signal(instance, name, form = plain) {
  const known = instance.signals[name] ?? {};
  if (isKnown(known.value)) return form(known.value);
  if (!isKnown(known.used)) return UNKNOWN;
  return (known.source === "imputed" ? "~" : "own ") + form(known.used);
}

const TERMS = {
  wait_s: "wait until the instance is free, as its worker predicts",
  in_transit_s: "prefill that all replicas have reserved there and no record shows yet",
  prefill_s: "prefill of this very request at that instance's speed",
  kv_barrier_s: "barrier of a filling KV cache",
  decode_s: "this request's own decode there",
  others_s: "delay to the requests already there",
};

export const termTitle = (name) => TERMS[name] ?? `signal ${name}`;
export const termName = (name) => name.replace(/_s$/, "").replaceAll("_", " ");

const TIERS = {
  measured: "measured signals",
  in_flight: "this replica's own counts",
  round_robin: "turn",
};

export const tierName = (tier) => TIERS[tier] ?? tier ?? UNKNOWN;

/** Why the chosen one won, in a few words. */
export function reason(choice) {
  if (choice.tier === "round_robin" || choice.strategy === "round_robin") return "its turn";
  const silent = Object.keys(choice.imputed);
  const won = choice.runner_up === null ? "only candidate"
    : choice.margin === 0 ? `tied with ${choice.runner_up}`
    : `${fourDigits(choice.margin)} ahead of ${choice.runner_up}`;
  return [
    won,
    ...(choice.tier === "measured" ? [] : [`by ${tierName(choice.tier)}`]),
    ...(choice.decided_by === "bus" ? [] : ["decided alone"]),
    ...(silent.length ? [`~ ${silent.join(", ")}`] : []),
  ].join(" · ");
}

export function ttft(choice) {
  const times = [];
  if (choice.predicted_ttft_s !== null) times.push(`predicted ${duration(choice.predicted_ttft_s * 1000)}`);
  if (choice.real_ttft_s !== null) times.push(`real ${duration(choice.real_ttft_s * 1000)}`);
  return times.length ? `TTFT ${times.join(", ")}` : "TTFT –";
}

/** State of an instance as one word; the worst first. */
export function stateOf(instance) {
  if (instance.is_gone) return "gone";
  if (instance.state === "unknown") return instance.is_ejected ? "unknown, ejected" : "unknown";
  if (instance.is_ejected) return "ejected";
  if (instance.is_full) return "full";
  return instance.state;
}

/** What is wrong with an instance, or special; empty where nothing is. */
export function notes(instance, silentS = null) {
  const found = [];
  if (instance.is_gone) found.push("no longer registered");
  if (instance.reason) found.push(`record ${instance.reason}`);
  if (silentS !== null) found.push(`last heard of ${duration(silentS * 1000)} ago`);
  if (instance.held_against) found.push(instance.held_against);
  if (instance.is_full) found.push("its queue is full");
  if (instance.state === "failing") found.push("its engine fails: others are preferred until it answers its worker");
  if (instance.state === "draining") found.push("finishes what runs, takes nothing new");
  if (instance.unbelievable?.length) found.push(`cannot be true: ${instance.unbelievable.join(", ")}`);
  return found.join("; ");
}
