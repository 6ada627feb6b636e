// Asking the replica, with the admin key where one is needed. The key stays in this tab.

const KEY = "forebay-admin-key";
const ANSWER_MS = 4000;

/** The replica wants a key, or another one. */
export class KeyNeeded extends Error {}

const base = new URL(".", document.baseURI);

/** JSON of one of the replica's pages. Throws KeyNeeded, or an error whose message says what is wrong. */
export async function ask(path) {
  const key = sessionStorage.getItem(KEY);
  const headers = key ? { Authorization: `Bearer ${key}` } : {};
  const answer = await fetch(new URL(path, base), { headers, cache: "no-store", signal: AbortSignal.timeout(ANSWER_MS) });
  if (answer.status === 401) throw new KeyNeeded();
  if (!answer.ok) throw new Error(`status ${answer.status}`);
  return answer.json();
}

/** Ask the person for the key, and keep it. */
export function askForKey() {
  const dialog = document.getElementById("key-dialog");
  const input = document.getElementById("key");
  document.getElementById("key-wrong").hidden = sessionStorage.getItem(KEY) === null;
  input.value = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      sessionStorage.setItem(KEY, input.value.trim().replace(/[^\x21-\x7e]/g, "?")); // a header takes nothing else
      resolve();
    }, { once: true });
  });
}
