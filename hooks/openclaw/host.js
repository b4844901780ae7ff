// What this bridge uses of the host's insides, probed once at load; nothing here is imported statically, so
// that a release without it still runs the rest.
const registry = () => globalThis[Symbol.for("openclaw.replyRunRegistry")]?.activeRunsByKey;

let harness;
export const probed = import("openclaw/plugin-sdk/agent-harness").then(
  (module) => (harness = module),
  () => undefined,
);

export async function capabilities() {
  await probed;
  return { reply_registry: Boolean(registry()), harness_abort: Boolean(harness?.abortAgentHarnessRun) };
}

// Session keys that have a reply under way, also before its run exists.
export const busySessions = () => [...(registry()?.keys() ?? [])];

// End the whole reply of a session, so that no notice of the host's is left behind; a session without one
// (a subagent's) only has a run. Gives the means that took: none when there was nothing to end.
export async function endSession(session, sessionId) {
  const operation = registry()?.get(session);
  if (!operation?.abortByUser) return endRun(session, sessionId);
  operation.abortByUser();
  return ["reply"];
}

// End only the embedded run: for subagents, and for what outlives the end of its reply.
export async function endRun(session, sessionId) {
  await probed;
  const live = harness?.resolveActiveEmbeddedRunSessionId?.(session) ?? sessionId;
  return live && harness?.abortAgentHarnessRun?.(live) ? ["run"] : [];
}
