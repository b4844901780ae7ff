// What the bridge knows of the engine's truth, so that it can say no by itself. Denials are added
// here at once; only the engine's own word takes one away.

// The same rule as scopes.py: a key without an agent in it is the main agent's.
export const agentOf = (session) => /^agent:([^:]*):/.exec(session)?.[1] ?? "main";
export const covers = (scope, session) =>
  scope === "*" || scope === session || (scope.split(":").length === 2 && scope === `agent:${agentOf(session)}`);

export class Mirror {
  latches = new Map(); // scope -> number of the latch
  sessions = new Map(); // session key -> [generation, number of the last release]
  brakes = new Map(); // session key stopped here -> its newest latch then; until the engine has a newer one
  freezes = []; // frozen scopes: what is in them waits
  first = 0; // the generation of a session that was never stopped

  brake(session) {
    this.brakes.set(session, this.latches.get(session) ?? 0);
  }

  take({ first, latches, sessions, frozen = [] }, whole = false) {
    this.first = first;
    this.freezes = frozen;
    this.latches = new Map(Object.entries(latches));
    if (whole) this.sessions.clear();
    for (const [key, value] of Object.entries(sessions)) this.sessions.set(key, value);
    for (const [key, number] of this.brakes) if ((this.latches.get(key) ?? 0) > number) this.brakes.delete(key);
  }

  latched(session) {
    if (this.brakes.has(session)) return true;
    const released = this.sessions.get(session)?.[1] ?? 0;
    for (const [scope, number] of this.latches) if (number > released && covers(scope, session)) return true;
    return false;
  }

  frozen(session) {
    return this.freezes.some((scope) => covers(scope, session));
  }

  everStopped(session) {
    const [generation, released] = this.sessions.get(session) ?? [this.first, 0];
    return this.latched(session) || generation > this.first || released > 0;
  }

  generation(session) {
    return this.sessions.get(session)?.[0] ?? this.first;
  }
}
