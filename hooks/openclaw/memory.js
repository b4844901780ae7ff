// Conversations in the host's own database: reading the active branch, and moving the host's pointer to its newest
// entry. Nothing is ever removed; what a pointer was moved away from stays as a branch.
import fs from "node:fs";
import { agentOf } from "./mirror.js";

const agentSessions = import("openclaw/plugin-sdk/agent-sessions").catch(() => undefined); // see host.js
const transcripts = import("openclaw/plugin-sdk/session-transcript-runtime").catch(() => undefined);
const AGAIN_MS = 1000; // an open page that looks while the host sorts its history anew is told once more
const REBUILD_MS = 12000; // how long the host may take to sort a conversation anew after a move; 0.1 to 7 s were seen
const LOOK_MS = 100;
const WINDOW = 64; // entries that are looked at first: a task is mostly shorter
const PAGE = 1000; // entries told at once,
const PAGE_BYTES = 2 ** 18; // and characters: the engine takes a megabyte in one line
const SHOWN = 80; // characters of a text that the engine is told

export const canMove = async () => Boolean((await agentSessions)?.SessionManager?.open);

async function open(api, session, most = Infinity) {
  const manager = (await agentSessions)?.SessionManager;
  if (!manager?.open) throw new Error("this release has no SessionManager.open");
  const agentId = agentOf(session);
  const { getSessionEntry, resolveStorePath } = api.runtime.agent.session;
  const entry = getSessionEntry({ agentId, sessionKey: session });
  if (!entry?.sessionId) return undefined;
  const storePath = resolveStorePath(api.runtime.config.current().session?.store, { agentId });
  const target = { agentId, sessionKey: session, sessionId: entry.sessionId, storePath };
  const few = most < Infinity && manager.openBounded;
  const opened = await settled(() => (few ? manager.openBounded(target, { maxBytes: Number.MAX_SAFE_INTEGER, maxEvents: most }) : manager.open(target)));
  return Object.assign(opened, { target });
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
  const most = before ? Infinity : WINDOW;
  const branch = ((await open(api, session, most))?.getBranch() ?? []).toReversed();
  const begin = before ? branch.findIndex((entry) => entry.id === before) + 1 : 0;
  if (before && !begin) throw new Error(`${session} was written to meanwhile`);
  const entries = [];
  let left = PAGE_BYTES;
  for (const entry of branch.slice(begin, begin + PAGE).map(slim)) {
    left -= JSON.stringify(entry).length;
    if (left < 0 && entries.length) break;
    entries.push(entry);
  }
  return { entries, whole: begin + entries.length === branch.length && branch.length < most };
}

// The entries from `first` to the newest one, a line each. Gives the one before them: a window does not know it.
export async function dump(api, { session, first, leaf, file }) {
  const manager = await open(api, session);
  const branch = manager?.getBranch() ?? [];
  const begin = branch.findIndex((entry) => entry.id === first);
  if (begin < 0 || manager.getLeafId() !== leaf) throw new Error(`${session} was written to meanwhile`);
  fs.writeFileSync(file, branch.slice(begin).map((entry) => `${JSON.stringify(entry)}\n`).join(""), { flag: "w", mode: 0o600 });
  return { parent: branch[begin].parentId ?? null };
}

// Gives where the pointer is afterwards. Only from where it was expected: nobody's words are lost that came since.
export async function move(api, busy, { session, from, to }) {
  if (busy(session)) throw new Error(`${session} is at work`);
  const manager = await open(api, session);
  const leaf = manager?.getLeafId() ?? null;
  if (leaf !== to && leaf === from) {
    manager.appendLeafControl({ targetId: to, appendParentId: to });
    await forget(api, { session });
    await lookAgain(manager.target);
  }
  return { leaf: (await open(api, session))?.getLeafId() ?? null };
}

// Pages that show this conversation read it again; else their next message would be refused.
async function lookAgain(target) {
  const publish = async () => (await transcripts)?.publishSessionTranscriptUpdateByIdentity?.(target);
  await publish();
  setTimeout(() => publish().catch(() => undefined), AGAIN_MS).unref();
}

// Without a new `updatedAt` the host would begin the conversation anew; and it would tell the agent of an abort.
export async function forget(api, { session }) {
  const update = () => ({ updatedAt: Date.now(), abortedLastRun: false });
  await api.runtime.agent.session.patchSessionEntry({ agentId: agentOf(session), sessionKey: session, update });
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
