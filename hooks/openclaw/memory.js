// Conversations in the host's own database: reading the active branch, and moving the host's pointer to its newest
// entry. Nothing is ever removed; what a pointer was moved away from stays as a branch.
import fs from "node:fs";
import path from "node:path";
import { agentOf } from "./mirror.js";
import { configOf, probe } from "./sdk.js";
import { entryOf, patch } from "./sessions.js";

const agentSessions = probe("agent-sessions");
const transcripts = probe("session-transcript-runtime");
const AGAIN_MS = [1000, 2000, 4000, 8000]; // before an open page is told once more: who reads too early gets an error
const REBUILD_MS = 12000; // how long the host may take to sort a conversation anew after a move; 0.1 to 7 s were seen
const LOOK_MS = 100;
const WINDOW = 64; // entries that are looked at first: a task is mostly shorter, and all of them take long to read
const WINDOW_BYTES = 2 ** 26; // the most that the host allows
const PAGE = 1000; // entries told at once,
const PAGE_BYTES = 2 ** 18; // and characters: the engine takes a megabyte in one line
const SHOWN = 80; // characters of a text that the engine is told

// Who changes conversations: the "host", through us, or the engine by itself where they are "files". False where they are in
// the host's database, and it lets nobody at them.
export async function keeper(stateDir, agents) {
  if ((await agentSessions)?.SessionManager?.prototype?.appendLeafControl) return "host";
  for (const id of agents) if (await inDatabase(path.join(stateDir, "agents", id, "agent", "openclaw-agent.sqlite"))) return false;
  return "files";
}

// Whether the host writes a channel's message down before it hands it over, as 2026.8 and the first of 2026.9 do. Nothing tells
// that; those who do not have learnt to write around such rows.
export async function writesFirst() {
  const { appendLeafControl, prepareTranscriptRewrite } = (await agentSessions)?.SessionManager?.prototype ?? {};
  return Boolean(appendLeafControl) && !prepareTranscriptRewrite;
}

// 2026.6 and 2026.7 have such a database too, for keys and an index.
async function inDatabase(file) {
  if (!fs.existsSync(file)) return false;
  try {
    const { DatabaseSync } = await import("node:sqlite");
    const database = new DatabaseSync(file, { readOnly: true });
    try {
      return Boolean(database.prepare("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'session_nodes'").get());
    } finally {
      database.close();
    }
  } catch {
    return true; // what cannot be read is not for us to cut
  }
}

// The newest entries, at most so many. `whole` when that is all there is.
async function open(api, session, most = Infinity) {
  const manager = (await agentSessions)?.SessionManager;
  if (!manager?.open) throw new Error("this release has no SessionManager.open");
  const agentId = agentOf(session);
  const entry = entryOf(api, session);
  if (!entry?.sessionId) return undefined;
  const storePath = api.runtime.agent.session.resolveStorePath(configOf(api).session?.store, { agentId });
  const target = { agentId, sessionKey: session, sessionId: entry.sessionId, storePath };
  const few = most < Infinity && manager.openBounded;
  const opened = await settled(() => (few ? manager.openBounded(target, { maxBytes: WINDOW_BYTES, maxEvents: most }) : manager.open(target)));
  const branch = opened.getBranch();
  // A part's oldest entry is shown without a parent, as a whole's is: only a first message of few is believed.
  const whole = !few || (branch.length < most && JSON.stringify(branch).length < WINDOW_BYTES / 4);
  return { target, manager: opened, branch, whole };
}

// What the host gives once it has sorted the conversation anew.
async function settled(look) {
  for (const until = Date.now() + REBUILD_MS; ; await new Promise((resolve) => setTimeout(resolve, LOOK_MS))) {
    try {
      return look();
    } catch (error) {
      if (!/rebuilding/i.test(error.message) || Date.now() > until) throw error;
    }
  }
}

// A part of the active branch, newest first: the newest ones, or those before an entry that was told already.
export async function read(api, { session, before }) {
  const { branch, whole } = (await open(api, session, before ? Infinity : WINDOW)) ?? { branch: [], whole: true };
  const end = before ? branch.findIndex((entry) => entry.id === before) : branch.length;
  if (end < 0) throw new Error(`${session} was written to meanwhile`);
  const entries = [];
  let left = PAGE_BYTES;
  for (let at = end - 1; at >= 0 && entries.length < PAGE; at -= 1) {
    const entry = slim(branch[at]);
    left -= JSON.stringify(entry).length;
    if (left < 0 && entries.length) break;
    entries.push(entry);
  }
  return { entries, whole: whole && entries.length === end };
}

// The entries from `first` to the newest one, a line each. Gives the one before them.
export async function dump(api, { session, first, leaf, file, count = 0 }) {
  let found = await open(api, session, count + 2);
  let begin = found.branch.findIndex((entry) => entry.id === first);
  if (begin <= 0) {
    found = await open(api, session);
    begin = found.branch.findIndex((entry) => entry.id === first);
  }
  if (begin < 0 || found.manager.getLeafId() !== leaf) throw new Error(`${session} was written to meanwhile`);
  fs.writeFileSync(file, found.branch.slice(begin).map((entry) => `${JSON.stringify(entry)}\n`).join(""), { flag: "wx", mode: 0o600 });
  return { parent: found.branch[begin].parentId ?? null };
}

// Gives where the pointer is afterwards. Only from where it was expected: nobody's words are lost that came since.
// Once it is moved it is moved, whatever comes then.
export async function move(api, log, busy, { session, from, to }) {
  let found = await open(api, session, WINDOW);
  if (found && !found.branch.some((entry) => entry.id === to)) found = await open(api, session);
  const leaf = found?.manager.getLeafId() ?? null;
  if (leaf === to || leaf !== from) return { leaf };
  if (busy(session)) throw new Error(`${session} is at work`);
  if (!sinceReset(found, to)) throw new Error(`${session} was begun anew since; the entries are in the backup`);
  found.manager.appendLeafControl({ targetId: to, appendParentId: to });
  try {
    await patch(api, session, () => ({ updatedAt: Date.now(), abortedLastRun: false })); // else the host begins it anew
    await lookAgain(api, found.target);
  } catch (error) {
    log.warn(`clawstop: ${session} was moved, but: ${error.message}`);
  }
  return { leaf: to };
}

// The host does not go back to before a conversation was begun anew, and does not say so.
function sinceReset({ manager, branch, whole }, to) {
  const reset = branch.findLast((entry) => entry.type === "reset")?.id;
  if (!reset) return true;
  for (let id = to; id; id = manager.getEntry(id)?.parentId) if (id === reset) return true;
  return !whole && branch.some((entry) => entry.id === to);
}

// Pages that show this conversation read it again; else their next message would be refused. Once more when the host
// has sorted it anew: who reads it before gets an error.
async function lookAgain(api, target) {
  const publish = async () => (await transcripts)?.publishSessionTranscriptUpdateByIdentity?.(target);
  const later = async () => {
    for (const ms of AGAIN_MS) {
      await new Promise((resolve) => setTimeout(resolve, ms));
      await open(api, target.sessionKey, 1).then(publish).catch(() => {}); // a busy machine sorts for longer
    }
  };
  await publish();
  void later();
}

// The host would tell the agent of an abort.
export async function forget(api, { session }) {
  if (entryOf(api, session)?.abortedLastRun) await patch(api, session, () => ({ abortedLastRun: false }));
  return {};
}

// What the engine needs to find a task.
function slim({ type, id, parentId, timestamp, message }) {
  if (!message) return { type, id, parentId, timestamp };
  const { role, stopReason, model, content } = message;
  const parts = typeof content === "string" ? [{ type: "text", text: content }] : (content ?? []);
  const text = parts.filter((part) => part.type === "text").map((part) => part.text ?? "").join(" ").slice(0, SHOWN).toWellFormed();
  const calls = parts.filter((part) => part.type === "toolCall").slice(0, 1).map(({ type }) => ({ type }));
  return { type, id, parentId, timestamp, message: { role, stopReason, model, content: [{ type: "text", text }, ...calls] } };
}
