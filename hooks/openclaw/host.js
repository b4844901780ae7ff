// What this bridge uses of the host's insides to end runs and to speak. Everything is probed, so that a release without
// it still runs the rest.
import * as files from "./files.js";
import { agentOf } from "./mirror.js";
import { configOf, probe } from "./sdk.js";
import { entriesOf, entryOf, patch } from "./sessions.js";

const registry = () => globalThis[Symbol.for("openclaw.replyRunRegistry")]?.activeRunsByKey;

const gateway = probe("gateway-runtime");
const diagnostic = probe("diagnostic-runtime");
const telemetry = probe("diagnostics-otel"); // where older ones have the events
const SCOPES = ["admin", "read", "write"].map((scope) => `operator.${scope}`);
const RPC_MS = 3000; // with connecting it takes 15-50
const DONE_MS = 60000; // in an old gateway that is just up everything waits for 25 s
const QUEUE_MS = 10000; // the host reads the mode within a second of the hook, on a busy machine later
const SETTLE_MS = 1000; // a drained run settles in 60-220

const LEFT_MS = 60000; // a run that is at work for longer after its abort is not over
const LABEL = 100; // characters

let harness;
const probed = probe("agent-harness").then((module) => (harness = module));

export async function capabilities() {
  await probed;
  return { reply_registry: Boolean(registry()), harness_abort: Boolean(harness?.abortAgentHarnessRun ?? atWork()) };
}

// Session keys that have a reply under way, also before its run exists.
export const busySessions = () => [...(registry()?.keys() ?? [])];

// Whether the host says of an aborted run when it is really over (`executionSettled`): those that keep such claims do.
const embedded = () => globalThis[Symbol.for("openclaw.embeddedRunState")];
export const saysWhenOver = () => Boolean(embedded()?.completionClaims);

// The others only keep a list of those at work: true when this one has left it. Where it cannot be looked for it gets the
// time that it takes elsewhere.
const atWork = () => embedded()?.activeRuns;
export async function left(sessionId, wanted) {
  const blind = !sessionId || !atWork();
  const there = () => wanted() && (blind || atWork().has(sessionId));
  for (const end = Date.now() + (blind ? SETTLE_MS : LEFT_MS); there() && Date.now() < end; ) await new Promise((resolve) => setTimeout(resolve, 5));
  return blind || !there();
}

export const isListed = (session, sessionId) => Boolean(atWork()?.has(idOf(session, sessionId)));

// Of a run that is ended before it is at work such a host tells nothing at all: then it is in no list of its own.
export const isGone = (session, sessionId) => !saysWhenOver() && Boolean(atWork()) && !replyOf(session) && !atWork().has(idOf(session, sessionId));

// The host's id of what runs in a session: in 2026.6 its module says that of the reply, which is another one in a session
// that has just begun. How a run is ended where no module of the host does it.
function idOf(session, told) {
  const ids = [harness?.resolveActiveEmbeddedRunSessionId?.(session), embedded()?.sessionIdsByKey?.get(session), told];
  return ids.find((id) => atWork()?.has(id)) ?? ids.find(Boolean);
}
function abortAtWork(sessionId) {
  const run = atWork()?.get(sessionId);
  run?.abort();
  return Boolean(run);
}

// The rungs of the ladder, gentlest first. Each gives its name when it took hold, else undefined.

// The whole reply of a session, so that no notice of the host's is left behind. A subagent's session has none.
export const replyOf = (session) => registry()?.get(session);
export const endReply = (reply) => (reply.abortByUser?.() === false ? undefined : "reply");

// Only the embedded run: for subagents, and for what outlives the end of its reply. `spare` the reply where a message
// waits for it: up to 2026.7 the host aborts it too, in the same moment, and that would take the message along.
export async function endRun(session, sessionId, spare = false) {
  await probed;
  const live = idOf(session, sessionId);
  const reply = spare ? replyOf(session) : undefined;
  const { abortByUser } = reply ?? {};
  if (abortByUser) reply.abortByUser = () => false;
  try {
    return live && (harness?.abortAgentHarnessRun ?? abortAtWork)(live) ? "run" : undefined;
  } finally {
    if (abortByUser) reply.abortByUser = abortByUser;
  }
}

// Up to 2026.7 the host drops a message that has waited for a reply, unless that was completed: for who waited it is.
export function overFor(reply) {
  if (reply?.result && reply.result.kind !== "completed") Object.defineProperty(reply, "result", { value: { kind: "completed" }, configurable: true });
}

// The same, and what it holds is taken away: a run that hangs in somebody's hook.
export async function drainRun(session, sessionId) {
  const live = idOf(session, sessionId);
  const done = await harness?.abortAndDrainAgentHarnessRun?.({ sessionId: live, sessionKey: session, settleMs: SETTLE_MS, reason: "clawstop", forceClear: true });
  return done?.aborted || done?.drained || done?.forceCleared ? "drain" : undefined;
}

// From outside, as an operator would.
export async function abortOverRpc(api, session) {
  const abort = (more) => rpc(api, "sessions.abort", { key: session, ...more });
  const answer = await abort({ clearQueued: true }).catch(() => abort()).catch(() => undefined); // 2026.7 knows no queue there
  return answer ? "rpc" : undefined;
}

// Asked of the gateway over its own socket, with its own secrets: it lets a plugin do no more in process.
export async function rpc(api, method, params) {
  const runtime = await gateway;
  if (!runtime?.callGatewayFromCli) return dial(api, runtime?.GatewayClient, method, params);
  const options = { config: configOf(api), json: true, timeout: String(RPC_MS) };
  return runtime.callGatewayFromCli(method, options, params, { clientName: "gateway-client", mode: "backend", progress: false, deviceIdentity: null, scopes: SCOPES });
}

// The same in older releases: a connection of its own for each call, as a device that the host pairs on this machine.
async function dial(api, Client, method, params) {
  if (!Client) throw new Error("this release lets nobody ask its gateway");
  const { port, auth, tls } = configOf(api)?.gateway ?? {};
  const address = `127.0.0.1:${dialled ?? port ?? 18789}`;
  let client;
  const answering = (ms, work) => new Promise((resolve, reject) => {
    const late = () => reject(new Error(`the gateway does not answer at ${address}`));
    setTimeout(late, ms).unref();
    work(resolve, reject, late);
  });
  try {
    await answering(RPC_MS, (resolve, reject, late) => {
      client = new Client({
        url: `${tls?.enabled ? "wss" : "ws"}://${address}`,
        token: process.env.OPENCLAW_GATEWAY_TOKEN ?? auth?.token,
        password: process.env.OPENCLAW_GATEWAY_PASSWORD ?? auth?.password,
        clientName: "gateway-client",
        mode: "backend",
        role: "operator",
        scopes: SCOPES,
        onHelloOk: resolve,
        onConnectError: reject,
        onClose: late,
      });
      client.start();
    });
    return await answering(DONE_MS, (resolve, reject) => client.request(method, params ?? {}).then(resolve, reject));
  } finally {
    client?.stop();
  }
}

let dialled; // the port that this gateway listens on, whatever its config says
export const listensOn = (port) => (dialled = port ?? dialled);

export const isPage = ({ channel }) => !channel || channel === "webchat";

// One line to the person, past any run: into the chat it came from, or onto the page.
export async function say(api, { session, channel, to, account, thread }, text) {
  if (isPage({ channel })) return rpc(api, "chat.inject", { sessionKey: session, message: text });
  const adapter = await api.runtime.channel.outbound.loadAdapter(channel);
  return adapter.sendText({ cfg: configOf(api), to, text, accountId: account, threadId: thread });
}

// How a session takes messages that come while a run is at work, where its person has chosen (`/queue`).
export function queueMode(api, session) {
  const mode = entryOf(api, session)?.queueMode;
  return mode === onces.get(session)?.mode ? undefined : mode;
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

// The session of this agent that was last answered there.
export function talkedTo(api, agent, { channel, to, account }) {
  const same = (entry) => entry?.lastChannel === channel && entry.lastTo === to && (!account || !entry.lastAccountId || entry.lastAccountId === account);
  const there = entriesOf(api, [agent]).filter(({ entry }) => same(entry));
  return there.sort((a, b) => (b.entry.updatedAt ?? 0) - (a.entry.updatedAt ?? 0))[0]?.sessionKey;
}

// What people call their conversations, by session.
export function labels(api, agents) {
  const found = entriesOf(api, agents);
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
  await patch(api, session, () => (entryOf(api, session)?.queueMode === from ? { queueMode: mode } : {}));
}

// How the host tells that somebody with the right to do so said stop on a channel, idle or busy. Gives a function
// that stops the watching, or undefined where a host cannot tell.
export async function watchChannelStops(api, stopped) {
  const { isDiagnosticsEnabled } = (await diagnostic) ?? {};
  const on = isDiagnosticsEnabled?.(configOf(api)) ?? configOf(api)?.diagnostics?.enabled !== false;
  const onDiagnosticEvent = (await diagnostic)?.onDiagnosticEvent ?? (await telemetry)?.onDiagnosticEvent;
  if (!on) return undefined; // the person turned them off, or up to 2026.4 has not turned them on
  return onDiagnosticEvent?.((event) => {
    if (event.type === "message.processed" && event.reason === "fast_abort") stopped(event.sessionKey, event.messageId);
  });
}
