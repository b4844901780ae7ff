// What the host keeps about its sessions, an entry each. Older releases have only the whole store.
import { agentOf } from "./mirror.js";
import { configOf, probe } from "./sdk.js";

const config = probe("config-runtime");

const storePath = (api, agentId) => api.runtime.agent.session.resolveStorePath(configOf(api)?.session?.store, { agentId });
const whole = (api, agentId) => api.runtime.agent.session.loadSessionStore(storePath(api, agentId), { skipCache: true });

// Null when the session is new, undefined when the host cannot be asked.
export function entryOf(api, session) {
  const agentId = agentOf(session);
  try {
    const { getSessionEntry } = api.runtime.agent.session;
    return (getSessionEntry ? getSessionEntry({ agentId, sessionKey: session }) : whole(api, agentId)[session]) ?? null;
  } catch {
    return undefined;
  }
}

// [{sessionKey, entry}] of these agents.
export function entriesOf(api, agents) {
  const { listSessionEntries, loadSessionStore } = api.runtime?.agent?.session ?? {};
  const stored = (agentId) => Object.entries(whole(api, agentId)).map(([sessionKey, entry]) => ({ sessionKey, entry }));
  if (listSessionEntries) return agents.flatMap((agentId) => listSessionEntries({ agentId, readOnly: true }));
  return loadSessionStore ? agents.flatMap(stored) : [];
}

// What `change` gives of an entry becomes part of it.
export async function patch(api, session, change) {
  const agentId = agentOf(session);
  const { patchSessionEntry } = api.runtime.agent.session;
  if (patchSessionEntry) return patchSessionEntry({ agentId, sessionKey: session, update: change });
  const update = (await config)?.updateSessionStore;
  if (!update) throw new Error("this release lets nobody change a session's entry");
  return update(storePath(api, agentId), (store) => store[session] && Object.assign(store[session], change(store[session])));
}
