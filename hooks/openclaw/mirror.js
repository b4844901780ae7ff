// What the bridge knows of the engine's truth, so that it can say no by itself. Denials are added
// here at once; only the engine's own word takes one away.

export const covers = (scope, session) =>
  scope === "*" || scope === session || (/^agent:[^:]+$/.test(scope) && session.startsWith(scope + ":"));

export class Mirror {
  latches = new Map(); // scope -> number of the latch
  sessions = new Map(); // session key -> [generation, number of the last release]
  brakes = new Set(); // session keys stopped here, until the engine has latched them

  take({ latches, sessions }, whole = false) {
    this.latches = new Map(Object.entries(latches));
    if (whole) this.sessions.clear();
    for (const [key, value] of Object.entries(sessions)) this.sessions.set(key, value);
    for (const key of this.brakes) if (this.latches.has(key)) this.brakes.delete(key);
  }

  latched(session) {
    if (this.brakes.has(session)) return true;
    const released = this.sessions.get(session)?.[1] ?? 0;
    for (const [scope, number] of this.latches) if (number > released && covers(scope, session)) return true;
    return false;
  }

  // The first release proves an earlier stop; so does any latch that was ever on the session.
  everStopped(session) {
    return this.latched(session) || (this.sessions.get(session)?.[1] ?? 0) > 0;
  }

  // 0 is older than every real generation: a process whose session is not known yet dies at any stop.
  generation(session) {
    return this.sessions.get(session)?.[0] ?? 0;
  }
}
