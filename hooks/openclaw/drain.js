// What waits in the host to go on after a stop, and how it is taken away: background tasks, wake-ups, deliveries,
// scheduled jobs. All in process; each part gives the rows that a receipt lists.
import { agentOf } from "./mirror.js";
import { configOf, probe } from "./sdk.js";

const wakeQueues = () => globalThis[Symbol.for("openclaw.systemEvents.queues")];
const deliveries = probe("delivery-queue-runtime");
const EXEC = "exec:"; // how the host marks a wake-up that reports a background process
const WORDS = /^Exec (?:completed|failed|finished) \(([\w-]{4,})/;
const LIVE = new Set(["queued", "running"]);

const short = (text) => String(text ?? "").slice(0, 200);

// The background processes that a wake-up of this session would report. Up to 2026.4 only its words name one, by the
// beginning of its id: of these `known` it is one.
export function wakesOf(session, known) {
  const queue = wakeQueues()?.get(session)?.queue ?? [];
  return queue.map((event) => keyOf(event, known)).filter(Boolean);
}

function keyOf({ contextKey, text }, known) {
  if (contextKey?.startsWith(EXEC)) return contextKey;
  const [, begin] = WORDS.exec(text ?? "") ?? [];
  const id = begin && known.find((one) => one.startsWith(begin));
  return id && EXEC + id;
}

export function dropWakes(sessions, execs) {
  const dead = new Set(execs.map((id) => EXEC + id));
  for (const session of sessions) {
    const waiting = wakeQueues()?.get(session);
    if (!waiting) continue;
    waiting.queue = waiting.queue.filter((event) => !dead.has(keyOf(event, execs)));
    if (!waiting.queue.length) wakeQueues().delete(session);
  }
}

// A task that is cancelled before its process dies wakes nobody. Subagents are ended as runs: cancelling their task
// would wake the parent.
export async function cancelTasks(api, sessions, execs) {
  const rows = [];
  for (const session of sessions) {
    const tasks = api.runtime.tasks?.runs?.bindSession?.({ sessionKey: session, agentId: agentOf(session) });
    for (const task of tasks?.list() ?? []) {
      if (!LIVE.has(task.status) || !execs.includes(task.sourceId)) continue;
      const done = await tasks.cancel({ taskId: task.id, cfg: configOf(api) });
      rows.push({ id: task.id, session, about: short(task.title), outcome: done?.cancelled === false ? short(done.reason ?? "not cancelled") : "cancelled" });
    }
  }
  return rows;
}

export const dropsDeliveries = async () => Boolean((await deliveries)?.drainPendingDeliveries);

// Messages that were written and not yet delivered. "Delivering" nothing makes the host remove them.
export async function dropDeliveries(api, log, covered, before) {
  const queue = await deliveries;
  const rows = new Map(); // the host asks about an entry twice
  const stale = (entry) => covered(entry.session?.key) && (entry.enqueuedAt ?? 0) < before;
  await queue?.drainPendingDeliveries?.({
    drainKey: `clawstop:${crypto.randomUUID()}`, // the host lets only one of a name run at a time
    logLabel: "clawstop",
    log,
    cfg: configOf(api),
    deliver: async () => [],
    selectEntry: (entry) => {
      const match = stale(entry);
      const text = entry.renderedBatchPlan?.items?.map((item) => item.text).join(" ");
      if (match) rows.set(entry.id, { id: entry.id, session: entry.session.key, about: short(text) });
      return { match, bypassBackoff: true };
    },
  });
  return [...rows.values()];
}

// Turn scheduled jobs off or on; one that is gone by itself is no problem.
export async function switchJobs(cron, ids, enabled) {
  if (!ids.length) return [];
  if (!cron) throw new Error("the host's scheduler is not there");
  const rows = [];
  const known = new Set((await cron.list({ includeDisabled: true })).map((job) => job.id));
  for (const id of ids) {
    if (known.has(id)) await cron.update(id, { enabled });
    rows.push({ id, outcome: known.has(id) ? (enabled ? "on" : "off") : "gone" });
  }
  return rows;
}
