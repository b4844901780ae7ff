// The bridge's memory and its decisions. One object for all instances of this module that the host loads.
import crypto from "node:crypto";
import { Engine } from "./engine.js";
import { Mirror, covers } from "./mirror.js";
import * as files from "./files.js";
import * as host from "./host.js";

const HOLD_MS = 2000; // I7: how long a tool call is held for an engine that is away
const BOOT_MS = 20000; // how long a run that no person asked for waits for the first engine; it starts in about 1 s
const END_MS = 3000; // the host's aborts settle in 1-75 ms; past this the run counts as alive
const STOP_MS = 120000; // nobody waits for this answer; it only says when to stop listening
const EMIT_MS = 500; // far below the host's 15 s
const KEPT = 1000; // ended runs and children remembered
const USED_UP_MS = 300; // how long a stop's message is waited for; it was seen at most 65 ms late
const DISPATCH_MS = 50; // a message for the agent is dispatched 1-3 ms after it was received
const RECENT_MS = 3000; // and one from before this is not what ended the run
const SETUP = "run `clawstop doctor` to see why";

export class Bridge {
  mirror = new Mirror();
  runs = new Map(); // runId -> {session, sessionId, cause, reports, bound, ending}
  ended = new Map(); // the last runs that ended, as above: what they still want to say comes later
  children = new Map(); // subagent session -> its parent's
  #messages = new Map(); // session -> person's messages that have not become a run yet
  #received = new Map(); // session -> the last message that has not been dispatched to an agent
  #live = false;

  constructor({ folder, log, config, agents, version }) {
    Object.assign(this, { folder, log, config, agents, version });
    this.engine = this.#newEngine();
  }

  #newEngine() {
    return new Engine({
      folder: this.folder,
      log: this.log,
      hello: () => ({
        host: "openclaw",
        version: this.version,
        capabilities: this.abilities,
        agents: this.agents(),
        config: this.config,
        runs: [...this.runs].map(([run, { session, cause, reports }]) => ({ run, session, cause, reports })),
        children: [...this.children].map(([child, session]) => ({ child, session })),
      }),
      welcome: (answer) => this.#welcome(answer),
      serve: (method, params) => this.#serve(method, params),
    });
  }

  // Called at gateway_start, and at the first sign of a run elsewhere; never by a mere CLI command.
  async start() {
    if (this.#live) return;
    this.#live = true;
    this.abilities = await host.capabilities();
    try {
      files.writePresence(this.folder);
    } catch (error) {
      this.log.error(`clawstop: ${error.message}`); // a stop from a shell will not wait for this gateway
    }
    this.engine.start();
  }

  // The host may start again in the same process: everything known stays, the connection is made anew.
  stop() {
    if (!this.#live) return;
    this.#live = false;
    this.engine.close();
    this.engine = this.#newEngine();
    files.removePresence(this.folder);
  }

  // What an older instance of this plugin knew.
  inherit({ mirror, runs, ended, children }) {
    Object.assign(this, { runs, ended, children });
    this.mirror.first = mirror.first ?? 0;
    for (const part of ["latches", "sessions", "brakes"]) for (const [key, value] of mirror[part]) this.mirror[part].set(key, value);
  }

  // The person edited the plugin's settings: the host loads the module again with the new ones.
  configure(config) {
    this.config = config;
    this.engine.tell("configure", { config });
  }

  #welcome({ state, settings, mirror, runs = {}, ask_emit: askEmit }) {
    this.mirror.take(mirror, true);
    Object.assign(this, { state, settings, askEmit });
    for (const [run, bound] of Object.entries(runs)) if (this.runs.has(run)) this.runs.get(run).bound = bound;
  }

  // -- what the engine asks

  async #serve(method, params) {
    if (method === "mirror") return this.mirror.take(params);
    if (method === "settings") return void (this.settings = params);
    if (method === "end") return this.#end(params);
    throw new Error(`there is no method ${method}`);
  }

  // End what is latched or dead by our own mirror: a stop that is finished late must not end what a person has
  // started since, and a session's reply cannot be ended for one of its runs alone.
  #mayEnd(session) {
    const runs = [...this.runs].filter(([, run]) => run.session === session);
    return this.mirror.latched(session) || (runs.length > 0 && runs.every(([id]) => this.dead(id)));
  }

  async #end({ sessions, scopes }) {
    const covered = (key) => sessions.includes(key) || scopes.some((scope) => covers(scope, key));
    const inside = (key) => covered(key) && this.#mayEnd(key);
    const known = [...new Set([...this.runs.values()].map((run) => run.session).concat(host.busySessions()))].filter(inside);
    const order = [...sessions.filter((key) => known.includes(key)), ...known.filter((key) => !sessions.includes(key))];
    const begun = Date.now();
    const runs = [...this.runs].filter(([, run]) => order.includes(run.session));
    for (const [, run] of runs) run.ending = true;
    const sessionIdOf = (key) => runs.find(([, run]) => run.session === key)?.[1].sessionId;
    const used = {};
    for (const key of order) used[key] = await host.endSession(key, sessionIdOf(key));
    const busy = () => order.filter((key) => host.busySessions().includes(key));
    const left = () => runs.some(([id]) => this.runs.has(id)) || busy().length;
    while (left() && Date.now() - begun < END_MS / 2) await sleep(5);
    if (left()) for (const key of order) used[key].push(...(await host.endRun(key, sessionIdOf(key))));
    while (left() && Date.now() - begun < END_MS) await sleep(5);
    const told = ([id, run]) => ({ run: id, session: run.session, how: used[run.session], ms: (run.ended ?? Date.now()) - begun });
    // Dead, but in one session with what a person has started since: not ours to end, and not to be hidden.
    const beside = [...this.runs].filter(([id, run]) => covered(run.session) && !order.includes(run.session) && this.dead(id));
    const starting = busy().filter((key) => !runs.some(([, run]) => run.session === key));
    return {
      ended: runs.filter(([id]) => !this.runs.has(id)).map(told),
      alive: [...runs.filter(([id]) => this.runs.has(id)), ...beside].map(([id, run]) => ({ run: id, session: run.session })).concat(starting.map((session) => ({ run: "(starting)", session }))),
    };
  }

  // -- a person's message

  // Authority is the host's word for this very message. Nothing here keeps the message from the host.
  async message({ session, id, sender, authorised }) {
    if (!session || !id) return;
    const came = Date.now();
    if (this.#received.get(session)?.id === id) this.#received.delete(session);
    this.#messages.set(session, [...new Set(this.#messages.get(session)).add(id)].slice(-20));
    const wanted = () => this.#messages.get(session)?.includes(id); // a stop since then takes it away
    try {
      const told = () => ({ session, id, sender: sender ?? "", authorised, age_ms: Date.now() - came });
      await this.engine.ask("message", told, HOLD_MS, wanted);
    } catch (error) {
      if (this.mirror.latched(session)) this.log.error(`clawstop: ${session} stays stopped: ${error.message}; ${SETUP}`);
    }
  }

  // What a run reports. A run is a person's only when a message of theirs waits in its session.
  #cause(run, session, trigger) {
    if (run.startsWith("announce:")) return { cause: "announce", reports: childOf(run) };
    if (trigger && trigger !== "user") return { cause: trigger };
    const waiting = this.#messages.get(session);
    if (!waiting) return { cause: "unknown" };
    const named = waiting.indexOf(run); // webchat: the run has the message's id
    const rest = named < 0 ? [] : waiting.slice(named + 1);
    if (rest.length) this.#messages.set(session, rest);
    else this.#messages.delete(session);
    return { cause: "message" };
  }

  // -- a run

  // Bind a run as early as the host shows it. Gives the reason why it may not run, if there is one.
  admit(run, session, { sessionId, trigger } = {}) {
    if (!run || !session) return undefined;
    const known = this.runs.get(run);
    if (known) {
      known.sessionId ??= sessionId;
      return known.admission;
    }
    const record = { session, sessionId, ...this.#cause(run, session, trigger) };
    this.runs.set(run, record);
    return (record.admission = this.#bind(run, record));
  }

  async #bind(run, record) {
    const { session, cause, reports } = record;
    const mirrored = this.mirror.latched(session) || (reports && this.mirror.latched(reports));
    let refusal = mirrored ? `${session} is stopped` : undefined;
    // Before the engine's first word the mirror is empty, and a restarting host replays what was refused: only a
    // person's own run goes on without it.
    const blind = this.state === undefined && cause !== "message";
    try {
      const answer = await this.engine.ask("run_start", { run, session, cause, reports }, blind ? BOOT_MS : HOLD_MS);
      record.bound = answer.bound;
      refusal ??= answer.refusal ?? undefined;
    } catch (error) {
      this.log.warn(`clawstop: run ${run} is not recorded: ${error.message}`);
      if (blind) refusal ??= "clawstop is not up yet";
    }
    return refusal;
  }

  // Its first model call or tool is due: too late to be answered with silence, so it is ended.
  async started(run, session, sessionId) {
    const refusal = await this.admit(run, session, { sessionId });
    if (refusal) this.#refuse(run, refusal);
  }

  #refuse(run, why) {
    const known = this.runs.get(run);
    if (!known || known.ending || !this.#mayEnd(known.session)) return;
    known.ending = true;
    this.log.warn(`clawstop: ended run ${run} of ${known.session}: ${why}`);
    host.endSession(known.session, known.sessionId).catch((error) => this.log.error(`clawstop: ${run} was not ended: ${error.message}`));
  }

  runEnded(run) {
    const known = this.runs.get(run);
    if (!known) return;
    this.runs.delete(run);
    known.ended = Date.now();
    this.ended.set(run, known);
    forgetOldest(this.ended);
    this.engine.tell("run_end", { run, session: known.session });
  }

  // The host aborted a run because a person said so. Ours are marked `ending` before we abort them.
  runStopped(run, session) {
    const known = this.runs.get(run) ?? this.ended.get(run);
    if (known?.ending || (!known && this.mirror.brakes.has(session))) return; // every instance of the module tells us
    if (known) known.ending = true;
    if (session ?? known?.session) this.#personStopped(session ?? known.session);
  }

  // On a channel a stop, a new message that interrupts, and the host's own recovery end a run alike. A stop is a
  // message that was received and never dispatched: the host has used it up. It tells it up to 65 ms after the end.
  async replyAborted(run, session) {
    for (const end = Date.now() + USED_UP_MS; Date.now() < end; await sleep(10)) {
      const age = Date.now() - (this.#received.get(session)?.at ?? 0);
      if (age > DISPATCH_MS && age < RECENT_MS) return this.runStopped(run, session);
    }
  }

  received(session, id) {
    if (!session || !id) return;
    this.#received.set(session, { id, at: Date.now() });
    forgetOldest(this.#received);
  }

  dead(run) {
    const known = this.runs.get(run) ?? this.ended.get(run);
    return Boolean(known?.bound !== undefined && known.bound < this.mirror.generation(known.session));
  }

  // -- the gate

  // A reason, or undefined. "No" comes from the mirror; "yes" only ever from the engine. A tool that is asked
  // for outside any run (the host's HTTP API) stands and falls with its session.
  async gate({ id, run = "", session, tool }) {
    if (!session) return `clawstop cannot tell which session this ${tool} call belongs to, so it is refused`;
    if (run) void this.started(run, session);
    const stopped = () => this.mirror.latched(session) || this.dead(run);
    const mirrored = () => (stopped() ? `session ${session} was stopped; this run cannot act any more` : undefined);
    let refusal = mirrored();
    if (!refusal) {
      try {
        refusal = (await this.engine.ask("tool", { id, run, session, tool }, HOLD_MS)).refusal ?? mirrored();
      } catch (error) {
        refusal = mirrored() ?? this.#engineDown(session, error);
      }
    }
    if (refusal && stopped()) this.#refuse(run, "it asked for a tool after its stop");
    return refusal;
  }

  #engineDown(session, error) {
    const setting = this.settings?.engine_down ?? "refuse";
    if (setting === "allow_unstopped" && !this.mirror.everStopped(session)) return undefined;
    return `clawstop does not answer (${error.message}), so no tool may run; ${SETUP}`;
  }

  toolEnded({ id, session, ok }) {
    if (id && session) this.engine.tell("tool_end", { id, session, ok });
  }

  // What may be said: from the mirror, since the host lets everything through when we are late; then the plugins'
  // word, where there is one that wants to be asked.
  async emit({ run, session, kind }) {
    const known = this.runs.get(run) ?? this.ended.get(run);
    if (this.dead(run) || (known?.ending && this.mirror.latched(known.session))) return "the run was stopped";
    if (!this.askEmit || !session) return undefined;
    try {
      return (await this.engine.ask("emit", { run, session, kind }, EMIT_MS)).refusal ?? undefined;
    } catch {
      return this.mirror.latched(session) ? "the session is stopped" : undefined;
    }
  }

  // The cookie for a process of this session, so that it is known whose it is.
  cookie(session) {
    const bound = [...this.runs.values()].filter((run) => run.session === session && run.bound !== undefined).map((run) => run.bound);
    const generation = bound.length ? Math.min(...bound) : 0; // of a run that is not bound yet: any stop ends it
    return this.state && `1:${this.state}:${generation}:run:${encodeURIComponent(session)}`;
  }

  // -- a stop that the host has carried out already

  #personStopped(session) {
    const id = crypto.randomUUID();
    this.mirror.brake(session);
    this.#messages.delete(session);
    this.engine.ask("stop", { id, session, trigger: "/stop", sender: "" }, STOP_MS).then(
      (receipt) => this.log.info(`clawstop: stopped ${session}: ${receipt.processes.length} processes, converged: ${receipt.converged}`),
      (error) => this.#tombstone(id, session, error),
    );
    if (!this.engine.connected) this.#tombstone(id, session, new Error("the engine is not running"));
  }

  #tombstone(id, session, error) {
    try {
      files.writeTombstone(this.folder, id, session);
      this.log.warn(`clawstop: ${session} is stopped; the engine will finish it when it is back (${error.message})`);
    } catch (failure) {
      this.log.error(`clawstop: ${session} is stopped only while this gateway runs: ${failure.message}`);
    }
  }

  // The engine hears of every child again when it connects: one must not be missed while it is away.
  childSpawned({ child, parent }) {
    if (!child || !parent || this.children.has(child)) return;
    this.children.set(child, parent);
    forgetOldest(this.children);
    if (this.mirror.latched(parent)) this.mirror.brake(child);
    this.engine.tell("child", { child, session: parent });
  }
}

// announce:v1:<child's session key>:<child's run id>
const childOf = (run) => run.split(":").slice(2, -1).join(":");
const forgetOldest = (map) => map.size > KEPT && map.delete(map.keys().next().value);
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
