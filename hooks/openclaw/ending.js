// How runs are ended: one rung of the ladder after the other, until nothing of the stop is left.
import { covers } from "./mirror.js";
import * as host from "./host.js";

const RUNG_MS = 1000; // the host's aborts settle in 1-75 ms, the first one in 160; then the next rung is tried
const SPARED_MS = 3500; // an older host's aborts take up to 3 s
const OWN_MS = 5000; // how long the host may take to report what we aborted over RPC
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

export class Ending {
  #bridge;
  #aborting = new Map(); // session -> until when its aborts are ours

  constructor(bridge) {
    this.#bridge = bridge;
  }

  // An abort of ours over RPC is reported like an operator's.
  isOurs(session) {
    return (this.#aborting.get(session) ?? 0) > Date.now();
  }

  async #overRpc(session) {
    this.#aborting.set(session, Infinity);
    try {
      return await host.abortOverRpc(this.#bridge.api, session);
    } finally {
      this.#aborting.set(session, Date.now() + OWN_MS);
    }
  }

  // What is latched, or dead, by our own mirror: a stop that is finished late must not end what a person has started
  // since, and a session's reply cannot be ended for one of its runs alone.
  may(session) {
    const { mirror, runs } = this.#bridge;
    const own = [...runs].filter(([, run]) => run.session === session);
    return mirror.latched(session) || (own.length > 0 && own.every(([id]) => this.#bridge.dead(id)));
  }

  // For the engine, which puts each run into one receipt.
  async report(params) {
    const answer = await this.end(params);
    for (const { run } of answer.ended) Object.assign(this.#bridge.ended.get(run) ?? {}, { told: true });
    return answer;
  }

  // Descendants come first in `sessions`.
  async end({ sessions, scopes }) {
    const { mirror, runs: alive, ended: past, dead, takeover } = this.#bridge;
    const covered = (key) => sessions.includes(key) || scopes.some((scope) => covers(scope, key));
    const known = [...new Set([...alive.values()].map((run) => run.session).concat(host.busySessions()))].filter((key) => covered(key) && this.may(key));
    const order = [...sessions.filter((key) => known.includes(key)), ...known.filter((key) => !sessions.includes(key))];
    const begun = Date.now();
    const runs = [...alive].filter(([, run]) => order.includes(run.session));
    for (const [, run] of runs) run.ending = true;
    const sessionIdOf = (key) => runs.find(([, run]) => run.session === key)?.[1].sessionId;
    // The replies under way now, where they are ours to end. Where nothing is latched (/new) the host ends the run
    // itself, and the reply under way may be the new one's.
    const replies = new Map(order.filter((key) => mirror.latched(key)).map((key) => [key, host.replyOf(key)]));
    const busy = (key) => Boolean(replies.get(key)) && host.replyOf(key) === replies.get(key);
    const lives = (key) => busy(key) || runs.some(([id, run]) => run.session === key && alive.has(id));
    const left = () => order.filter((key) => lives(key) && this.may(key));
    const used = Object.fromEntries(order.map((key) => [key, []]));
    // Where a message waits for its end in an older host, only the first rung does not take it along: rather it waits on.
    const spared = (key) => takeover.holds(key) && !host.saysWhenOver();
    const rungs = [
      (key) => (replies.get(key) ? host.endReply(replies.get(key)) : (mirror.latched(key) || takeover.holds(key)) && host.endRun(key, sessionIdOf(key), takeover.holds(key))),
      (key) => host.endRun(key, sessionIdOf(key), takeover.holds(key)),
      (key) => !spared(key) && host.drainRun(key, sessionIdOf(key)),
      (key) => mirror.latched(key) && this.#overRpc(key), // it clears what waits, and that may be a person's next message
    ];
    for (const rung of rungs) {
      for (const key of left()) {
        try {
          used[key].push(await rung(key));
        } catch (error) {
          this.#bridge.log.warn(`clawstop: a way to end ${key} failed: ${error.message}`); // there is another
        }
      }
      const patience = rung === rungs[0] && order.some(spared) ? SPARED_MS : RUNG_MS;
      for (const until = Date.now() + patience; left().length && Date.now() < until; ) await sleep(5);
      // One that is still on its way to the model is in no list either: when it gets there it is over, and refused. One at
      // work that never was in any is of another kind.
      for (const [id, run] of runs) if ((!run.live || run.listed) && alive.has(id) && host.isGone(run.session, run.sessionId)) this.#bridge.runEnded(id);
      if (!left().length) break;
    }
    const how = (run) => [...(run.how ?? []), ...(used[run.session] ?? []).filter(Boolean)];
    const told = ([id, run]) => ({ run: id, session: run.session, how: how(run), ms: Math.max(0, (run.ended ?? Date.now()) - begun) });
    // What the host itself ended for this stop, before we were asked.
    const earlier = [...past].filter(([id, run]) => run.ending && !run.told && covered(run.session) && !runs.some(([other]) => other === id));
    const ended = [...earlier, ...runs.filter(([id]) => !alive.has(id))];
    // Dead, but in one session with what a person has started since: not ours to end, and not to be hidden.
    const beside = [...alive].filter(([id, run]) => covered(run.session) && !runs.some(([other]) => other === id) && dead.call(this.#bridge, id));
    const starting = order.filter((key) => busy(key) && !runs.some(([, run]) => run.session === key));
    return {
      ended: ended.map(told),
      alive: [...runs.filter(([id]) => alive.has(id)), ...beside].map(([id, run]) => ({ run: id, session: run.session, how: how(run) })).concat(starting.map((session) => ({ run: "(starting)", session, how: [] }))),
    };
  }
}
