// What may still be shown: nothing of a dead run, nothing in a stopped session but our own line. The hooks that say so
// make the host turn live previews off; with `fence: previews` they stay on, and what was on its way when a stop came
// is still shown for a moment.
import { saysWhenOver } from "./host.js";
import { hookRunner, knowsHook } from "./sdk.js";

const KEPT = Symbol.for("clawstop.previews");
const SENDS = ["sendToolResult", "sendBlockReply", "sendFinalReply"];
const SENDING = new Set(["reply_payload_sending", "message_sending"]);
const CHECK = "dispatchTelegramMessage"; // the host's function that asks whether it may show previews
const EMIT_MS = 500; // far below the host's 15 s
const TEXT = 2000; // characters that the engine is told
const LATE_MS = 10000; // what a run said last has been sent by then, or is in the host's queue, which a stop empties
const LINES = 100; // of ours that are remembered

export class Fence {
  #bridge;
  #lines = new Set(); // said in the host's place: they come by here once more

  constructor(bridge) {
    this.#bridge = bridge;
  }

  ours(line) {
    this.#lines.add(line);
    if (this.#lines.size > LINES) this.#lines.delete(this.#lines.values().next().value);
  }

  // What may be said: from the mirror, since the host lets everything through when we are late; then the plugins'
  // word, where there is one that wants to be asked. A reason, or undefined.
  async emit({ run, session, kind, text = "" }) {
    const { engine, mirror, runs, ended, askEmit } = this.#bridge;
    const known = runs.get(run) ?? ended.get(run);
    if (this.#bridge.dead(run) || (known?.ending && mirror.latched(known.session))) return this.#hold("the run was stopped", { run, session: known.session, kind, text });
    if (!askEmit || !session) return undefined;
    try {
      return (await engine.ask("emit", { run, session, kind }, EMIT_MS)).refusal ?? undefined;
    } catch {
      return mirror.latched(session) ? "the session is stopped" : undefined;
    }
  }

  // Whether nothing of a run is shown on a page any more: it was cut off. What had come to its end stays.
  stale(name) {
    const { run } = this.#bridge.place(name);
    const [id, known] = this.#bridge.about(run) ?? this.#bridge.answering(run) ?? [];
    return Boolean(known?.ending && !known.finished && (this.#bridge.dead(id) || this.#bridge.mirror.latched(known.session)));
  }

  // What a run says on a channel, where the host asks no hook: its finals go through the dispatcher of the message that it
  // answers.
  around(dispatcher, { session, id }) {
    if (!dispatcher || knowsHook("reply_payload_sending") !== false || dispatcher[KEPT]) return;
    Object.defineProperty(dispatcher, KEPT, { value: true });
    for (const name of SENDS) {
      const send = dispatcher[name]?.bind(dispatcher);
      if (send) dispatcher[name] = (payload, ...rest) => (this.#cut(session, id, name, payload) ? false : send(payload, ...rest));
    }
  }

  #cut(session, message, kind, payload) {
    const [run, known] = this.#bridge.answering(message) ?? [];
    if (!known || !(this.#bridge.dead(run) || (known.ending && this.#bridge.mirror.latched(session)))) return false;
    return Boolean(this.#hold("the run was stopped", { run, session, kind, text: payload?.text }));
  }

  #hold(why, { run = "", session, kind, text = "" }) {
    this.#bridge.engine.tell("held", { run, session, kind, text: text.slice(0, TEXT).toWellFormed() });
    return why;
  }

  // Of a message that is about to go out on a channel; the host tells no run with it. A reason, or undefined.
  holds(session, text) {
    if (!session || !this.#bridge.mirror.latched(session) || !this.#justStopped(session)) return undefined;
    const line = [...this.#lines].find((one) => text?.includes(one)); // another plugin may have added to it
    if (line) return void this.#lines.delete(line);
    return this.#hold("the session is stopped", { session, kind: "message", text });
  }

  // Whether a run that was stopped would write this down after its end, as older hosts do on a busy machine: its conversation
  // is rolled back by then, and the words would hang on what is no longer there.
  isLate(session, message) {
    const { mirror, runs } = this.#bridge;
    if (saysWhenOver() || message?.role === "user" || !mirror.latched(session) || !this.#justStopped(session)) return false;
    return ![...runs.values()].some((run) => run.session === session);
  }

  // What was on its way when a run was ended. The session may be the one that is written to, not the one that writes:
  // a reminder of another one goes through a moment later.
  #justStopped(session) {
    const { runs, ended } = this.#bridge;
    return [...runs.values(), ...ended.values()].some((run) => run.session === session && run.ending && Date.now() - (run.ended ?? Date.now()) < LATE_MS);
  }

  // Answers the host's question about previews as if we had no such hooks. Somebody else's hooks still count. False
  // where the host cannot be answered so: then there are none.
  keepPreviews() {
    const runner = hookRunner();
    const { hasHooks, getHookCount } = runner ?? {};
    if (typeof hasHooks !== "function" || typeof getHookCount !== "function" || !Object.isExtensible(runner) || Object.isFrozen(runner)) return false;
    const wanted = () => (this.#bridge.settings ?? this.#bridge.config)?.fence === "previews"; // also before the engine's first word
    if (runner[KEPT]) {
      runner[KEPT].wanted = wanted; // a newer instance of this plugin decides
      return true;
    }
    const kept = { wanted };
    Object.defineProperty(runner, KEPT, { value: kept });
    runner.hasHooks = (name, ...rest) => {
      const has = hasHooks.call(runner, name, ...rest);
      if (!has || !SENDING.has(name) || !kept.wanted() || getHookCount.call(runner, name) > 1) return has;
      return !new Error().stack?.split("\n")[2]?.includes(CHECK);
    };
    return true;
  }
}
