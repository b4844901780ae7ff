// What this bridge uses of the host's insides to end runs and to speak. Everything is probed, nothing here is
// imported statically, so that a release without it still runs the rest.
import * as files from "./files.js";
import { agentOf } from "./mirror.js";

const registry = () => globalThis[Symbol.for("openclaw.replyRunRegistry")]?.activeRunsByKey;

// Asked for when this file is loaded: later, after the host has loaded the plugin again, they are not found any more.
const missing = () => undefined; // in this release
const gateway = import("openclaw/plugin-sdk/gateway-runtime").catch(missing);
const diagnostic = import("openclaw/plugin-sdk/diagnostic-runtime").catch(missing);
const SCOPES = ["admin", "read", "write"].map((scope) => `operator.${scope}`);
const RPC_MS = 3000; // with connecting it takes 15-50
const QUEUE_MS = 10000; // the host reads the mode within a second of the hook, on a busy machine later
const SETTLE_MS = 1000; // a drained run settles in 60-220

const LABEL = 100; // characters

let harness;
const probed = import("openclaw/plugin-sdk/agent-harness").then((module) => (harness = module), missing);

export async function capabilities() {
  await probed;
  return { reply_registry: Boolean(registry()), harness_abort: Boolean(harness?.abortAgentHarnessRun) };
}

// Session keys that have a reply under way, also before its run exists.
export const busySessions = () => [...(registry()?.keys() ?? [])];

// The rungs of the ladder, gentlest first. Each gives its name when it took hold, else undefined.

// The whole reply of a session, so that no notice of the host's is left behind. A subagent's session has none.
export const replyOf = (session) => registry()?.get(session);
export const endReply = (reply) => (reply.abortByUser?.() === false ? undefined : "reply");

// Only the embedded run: for subagents, and for what outlives the end of its reply.
export async function endRun(session, sessionId) {
  await probed;
  const live = harness?.resolveActiveEmbeddedRunSessionId?.(session) ?? sessionId;
  return live && harness?.abortAgentHarnessRun?.(live) ? "run" : undefined;
}

// The same, and what it holds is taken away: a run that hangs in somebody's hook.
export async function drainRun(session, sessionId) {
  const live = harness?.resolveActiveEmbeddedRunSessionId?.(session) ?? sessionId;
  const done = await harness?.abortAndDrainAgentHarnessRun?.({ sessionId: live, sessionKey: session, settleMs: SETTLE_MS, reason: "clawstop", forceClear: true });
  return done?.aborted || done?.drained || done?.forceCleared ? "drain" : undefined;
}

// From outside, as an operator would.
export async function abortOverRpc(api, session) {
  const answer = await rpc(api, "sessions.abort", { key: session, clearQueued: true }).catch(() => undefined);
  return answer ? "rpc" : undefined;
}

// Asked of the gateway over its own socket, with its own secrets: it lets a plugin do no more in process.
export async function rpc(api, method, params) {
  const runtime = await gateway;
  if (!runtime?.callGatewayFromCli) throw new Error("this host has no callGatewayFromCli");
  const options = { config: api.runtime.config.current(), json: true, timeout: String(RPC_MS) };
  return runtime.callGatewayFromCli(method, options, params, { clientName: "gateway-client", mode: "backend", progress: false, deviceIdentity: null, scopes: SCOPES });
}

// One line to the person, past any run: into the chat it came from, or onto the page.
export async function say(api, { session, channel, to, account, thread }, text) {
  if (!channel || channel === "webchat") return rpc(api, "chat.inject", { sessionKey: session, message: text });
  const adapter = await api.runtime.channel.outbound.loadAdapter(channel);
  return adapter.sendText({ cfg: api.runtime.config.current(), to, text, accountId: account, threadId: thread });
}

// How a session takes messages that come while a run is at work, where its person has chosen (`/queue`).
export function queueMode(api, session) {
  const mode = entryOf(api, session)?.queueMode;
  return mode === onces.get(session)?.mode ? undefined : mode;
}

// What the host keeps about a session: null when it is new, undefined when it cannot be asked.
export function entryOf(api, session) {
  try {
    return api.runtime.agent.session.getSessionEntry({ agentId: agentOf(session), sessionKey: session }) ?? null;
  } catch {
    return undefined;
  }
}

// Those of these sessions that the host means to go on with by itself after a restart, and has not given up on.
export const pending = (api, sessions) => sessions.filter((session) => {
  const entry = entryOf(api, session);
  return entry?.status === "running" && !entry.mainRestartRecovery?.tombstone;
});

// Whether the host goes on so with what a restart cut off.
export const isRecovery = (api, session, run) => entryOf(api, session)?.restartRecoveryDeliveryRunId === run;

// Begin a run with a message that is nobody's, answered where the person is.
export function resume(api, { session, run, message, route }) {
  const there = route?.channel && route.channel !== "webchat";
  const where = there ? { channel: route.channel, to: route.to, accountId: route.account, threadId: route.thread, bestEffortDeliver: true } : {};
  const told = Object.fromEntries(Object.entries(where).filter(([, value]) => value !== undefined && value !== null));
  return rpc(api, "agent", { agentId: agentOf(session), sessionKey: session, message, idempotencyKey: run, deliver: Boolean(there), ...told });
}

// What people call their conversations, by session.
export function labels(api, agents) {
  const list = api.runtime?.agent?.session?.listSessionEntries;
  const found = list ? agents.flatMap((agentId) => list({ agentId, readOnly: true })) : [];
  return Object.fromEntries(found.filter(({ entry }) => entry?.label).map(({ sessionKey, entry }) => [sessionKey, String(entry.label).slice(0, LABEL)]));
}

const onces = new Map(); // session -> {mode, timer}: chosen by us, for a moment

// Have the message at hand treated so ("interrupt", "steer", "followup"); afterwards the session is as it was, also after
// a crash: `folder` has a note until then. False where the host cannot, or the person has chosen otherwise.
export async function queueOnce(api, folder, session, mode) {
  const chosen = queueMode(api, session);
  if (chosen) return chosen === mode;
  if (!entryOf(api, session)) return false;
  const note = () => files.writeQueued(folder, Object.fromEntries([...onces].map(([key, once]) => [key, once.mode])));
  const back = async () => {
    await choose(api, session, undefined, mode);
    onces.delete(session);
    note();
  };
  clearTimeout(onces.get(session)?.timer);
  const before = onces.get(session)?.mode;
  onces.set(session, { mode, timer: setTimeout(() => back().catch(() => undefined), QUEUE_MS).unref() });
  try {
    note();
    await choose(api, session, mode, before);
    return true;
  } catch {
    return false;
  }
}

// What a gateway that crashed has left chosen.
export async function undoQueued(api, folder) {
  for (const [session, mode] of Object.entries(files.readQueued(folder))) if (!onces.has(session)) await choose(api, session, undefined, mode);
}

// Only from what we have chosen ourselves: the person may have said something else meanwhile.
async function choose(api, session, mode, from) {
  const update = () => (entryOf(api, session)?.queueMode === from ? { queueMode: mode } : {});
  await api.runtime.agent.session.patchSessionEntry({ agentId: agentOf(session), sessionKey: session, update });
}

// How the host tells that somebody with the right to do so said stop on a channel, idle or busy. Gives a function
// that stops the watching, or undefined where a host cannot tell.
export async function watchChannelStops(api, stopped) {
  const diagnostics = await diagnostic;
  if (api.runtime?.config?.current?.()?.diagnostics?.enabled === false) return undefined; // the person turned them off
  return diagnostics?.onDiagnosticEvent?.((event) => {
    if (event.type === "message.processed" && event.reason === "fast_abort") stopped(event.sessionKey, event.messageId);
  });
}
