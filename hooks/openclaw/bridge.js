// The bridge's memory and its decisions. One object for all instances of this module that the host loads.
import { Chat } from "./chat.js";
import { Ending } from "./ending.js";
import { Engine } from "./engine.js";
import { Fence } from "./fence.js";
import { Mirror, covers } from "./mirror.js";
import { Spent } from "./spent.js";
import { configOf, hookRunner, knowsHook, letsHook } from "./sdk.js";
import { entryOf } from "./sessions.js";
import { Takeover } from "./takeover.js";
import { cageFor, restoreShell, useShell } from "./shell.js";
import { show, showAborted, watchFrames } from "./frames.js";
import * as drain from "./drain.js";
import * as files from "./files.js";
import * as host from "./host.js";
import * as memory from "./memory.js";
import path from "node:path";

const HOLD_MS = 2000; // I7: how long a tool call is held for an engine that is away
const BOOT_MS = 20000; // how long a gateway that has just started waits for its first engine; it starts in about 1 s
const JUST_MS = 1000; // a run that ended within this before a stop was ended by the host for it
const STOP_MS = 120000; // nobody waits for this answer; it only says when to stop listening
const SETTLED_MS = 5000; // a host that says when an aborted run is over does so within 0.1, a busy one later
const AGAIN_MS = 200; // before a stop that failed is asked for again
const FROZEN_LOOK_MS = 100;
const FROZEN_TELL_MS = 5000; // then the person is told why nothing happens
const BLOCK_MS = 500; // a turn goes on without the words about stops
const KEPT = 1000; // ended runs, children and traces remembered
const SAID = 200; // characters of a turn's words, to know it again
const UNNAMED = 20; // turns of a session that the host has not named; it never does those that it drops
const INPUT = 2000; // characters of a tool's input that the engine is told
const SETUP = "run `clawstop doctor` to see why";
const RESUME = "clawstop-resume-"; // runs that go on with what a crash cut off, by our own message
const NAMED = /^(?:announce:|clawstop-resume-|turn:)/; // runs that say what they are
const JOBS = new Set(["automations", "cron"]); // the tools that schedule
const EXEC = new Set(["exec", "bash"]); // the tools that start processes

export class Bridge {
  mirror = new Mirror();
  runs = new Map(); // runId -> {session, sessionId, cause, reports, sender, bound, live, listed, ending}
  ended = new Map(); // the last runs that ended, as above: what they still want to say comes later
  unnamed = new Map(); // session -> runs of it that were admitted before the host had a name for them
  names = new Map(); // what the host calls such a run -> what we do
  aliases = new Map(); // a key that only the host's policies use -> the session that is meant
  children = new Map(); // subagent session -> its parent's
  traces = new Map(); // what runs left behind that may start a run later: id -> {kind, id, session, run, about}
  chat = new Chat(this);
  ending = new Ending(this);
  fence = new Fence(this);
  takeover = new Takeover(this);
  spent = new Spent();
  questions = new Set(); // sessions in which a person was asked whether a task shall go on
  bare = new Set(); // sessions whose next process would carry no cookie
  pending = new Map(); // stop id -> a stop that no engine has answered yet
  #live = false;
  #born;
  #unwatch;

  // `api` is the host's, of the newest instance that registered; `agents` are the ids of its agents, `owner` the one
  // that owns what names none.
  constructor({ folder, log, config, agents, owner, version, api }) {
    Object.assign(this, { folder, log, config, agents, owner, version, api });
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
        ...this.#aboutAgents(),
        config: this.config,
        born: this.#born,
        runs: [...this.runs].map(([run, { session, cause, reports, asked }]) => ({ run, session, cause, reports, asked })),
        children: [...this.children].map(([child, session]) => ({ child, session })),
        traces: [...this.traces.values()],
      }),
      welcome: (answer) => this.#welcome(answer),
      serve: (method, params) => this.#serve(method, params),
    });
  }

  // Called at gateway_start, and at the first sign of a run elsewhere; never by a mere CLI command.
  async start() {
    if (this.#live) return;
    this.#live = true;
    this.#born = Date.now(); // what came in before that was another gateway's
    this.#unwatch = await host.watchChannelStops(this.api, (session, message) => this.chat.channelStopped(session, message));
    const frames = watchFrames({
      asked: (told) => this.chat.operatorAsked(told),
      stopped: (told) => this.chat.operatorStopped(told),
      refused: (told) => this.chat.operatorRefused(told),
      waits: (told) => this.chat.operatorWaits(told),
      patient: () => this.chat.patient,
      stale: (run) => this.fence.stale(run),
    });
    const entry = this.hostConfig?.plugins?.entries?.clawstop;
    const permitted = entry?.hooks?.allowConversationAccess ?? letsHook("before_model_resolve"); // older ones ask for no permission
    this.abilities = {
      ...(await host.capabilities()),
      memory: await memory.keeper(path.dirname(this.folder), this.agents()),
      hooks_seen: Boolean(hookRunner()),
      gate: knowsHook("before_tool_call") !== false,
      messages: knowsHook("reply_dispatch") !== false,
      conversation: permitted,
      turns: !permitted || knowsHook("before_agent_reply") !== false,
      events: Boolean(this.api.runtime?.events?.onAgentEvent),
      outbound: Boolean(this.api.runtime?.channel?.outbound?.loadAdapter),
      previews: this.fence.keepPreviews(),
      deliveries: await drain.dropsDeliveries(),
      live_settings: Boolean(this.api.runtime?.config?.current),
      channel_stops: Boolean(this.#unwatch),
      page_stops: frames,
    };
    this.writesFirst = await memory.writesFirst();
    this.abilities.host_transcripts = this.abilities.memory !== "files"; // since then a host also asks us about previews
    try {
      files.writePresence(this.folder);
    } catch (error) {
      this.log.error(`clawstop: ${error.message}`); // a stop from a shell will not wait for this gateway
    }
    this.engine.start();
    host.undoQueued(this.api, this.folder).catch((error) => this.log.warn(`clawstop: a queue mode of ours is left: ${error.message}`));
  }

  // The host may start again in the same process: everything known stays, the connection is made anew.
  stop() {
    if (!this.#live) return;
    this.#live = false;
    this.#unwatch?.();
    this.engine.close();
    this.engine = this.#newEngine();
    restoreShell(this.#shells);
    files.removePresence(this.folder);
  }

  // What an older instance of this plugin knew.
  inherit({ mirror, runs, ended, unnamed = new Map(), names = new Map(), aliases = new Map(), children, traces = new Map(), cron, state, settings, cages, askEmit, chat, pending = new Map() }) {
    Object.assign(this, { runs, ended, unnamed, names, aliases, children, traces, cron, state, settings, cages, askEmit });
    this.chat.memory = { ...this.chat.memory, ...chat?.memory }; // an older one knew less
    this.mirror.first = mirror.first ?? 0;
    for (const part of ["latches", "sessions", "brakes"]) for (const [key, value] of mirror[part]) this.mirror[part].set(key, value);
    this.mirror.freezes = mirror.freezes ?? [];
    for (const stop of pending.values()) this.carryOut(stop).catch(() => undefined);
  }

  // The person edited the plugin's settings: the host loads the module again with the new ones.
  configure({ config, api }) {
    this.config = config;
    this.api = api;
    this.engine.tell("configure", { config });
  }

  #welcome({ state, settings, mirror, runs = {}, cages, ask_emit: askEmit, questions = [] }) {
    this.mirror.take(mirror, true);
    this.questions = new Set(questions);
    Object.assign(this, { state, settings, cages, askEmit });
    for (const [run, bound] of Object.entries(runs)) if (this.runs.has(run)) this.runs.get(run).bound = bound;
  }

  // -- what the engine asks

  async #serve(method, params) {
    if (method === "mirror") return this.mirror.take(params);
    if (method === "settings") return void (this.settings = params);
    if (method === "say") return this.say({ ...this.chat.routeOf(params.session), ...params.route }, params.text);
    if (method === "end") {
      this.chat.halted(params.sessions.filter((session) => this.mirror.latched(session)));
      return this.ending.report(params);
    }
    if (method === "drain") return this.#drain(params);
    if (method === "jobs_on") return drain.switchJobs(this.cron?.(), params.jobs, true);
    if (method === "agents") return this.#aboutAgents();
    if (method === "pending") return host.pending(this.api, params.sessions);
    if (method === "resume") return host.resume(this.api, params);
    if (method === "questions") return void (this.questions = new Set(params.sessions));
    if (method === "labels") return host.labels(this.api, this.agents());
    if (method === "canary") return host.rpc(this.api, "chat.send", { sessionKey: params.session, message: params.message, idempotencyKey: params.id });
    if (method === "canary_over") return host.rpc(this.api, "sessions.delete", { key: params.session });
    if (method === "spent") return this.spent.report();
    if (method === "memory_read") return memory.read(this.api, params);
    if (method === "memory_dump") return memory.dump(this.api, params);
    if (method === "memory_move") return memory.move(this.api, this.log, (session) => this.#atWork(session), params);
    if (method === "memory_forget") return memory.forget(this.api, params);
    throw new Error(`there is no method ${method}`);
  }

  // What is latched does not act, and its runs have been ended.
  #atWork(session) {
    if (this.mirror.latched(session)) return false;
    return Boolean(host.replyOf(session)) || [...this.runs.values()].some((run) => run.session === session);
  }

  // Only what was there when the stop began: `execs` and `jobs` are of dead generations, the rest is by time.
  async #drain({ sessions, scopes, jobs, execs, before }) {
    const covered = (key) => Boolean(key) && (sessions.includes(key) || scopes.some((scope) => covers(scope, key)));
    const problems = [];
    const attempt = async (what, work) => {
      try {
        return await work();
      } catch (error) {
        problems.push(`${what}: ${error.message}`);
        return [];
      }
    };
    drain.dropWakes(sessions, execs);
    return {
      queued: this.chat.discarded((key) => covered(key) && this.mirror.latched(key), before),
      tasks: await attempt("a background task was not cancelled", () => drain.cancelTasks(this.api, sessions, execs)),
      outbound: await attempt("an undelivered message may still be sent", () => drain.dropDeliveries(this.api, this.log, covered, before)),
      jobs: await attempt("a scheduled job was not turned off", () => drain.switchJobs(this.cron?.(), jobs, false)),
      problems,
    };
  }

  // -- for chat.js

  // Where transcripts are files, a line written into one would kill its run, and be read by the model.
  say(route, text) {
    if (host.isPage(route) && this.abilities?.memory === "files") return show(route.session, text);
    host.say(this.api, route, text).catch((error) => this.log.warn(`clawstop: this could not be said in ${route.session}: ${text} (${error.message})`));
  }

  notReleased(session, error) {
    if (this.mirror.latched(session)) this.log.error(`clawstop: ${session} stays stopped: ${error.message}; ${SETUP}`);
  }

  // Whom we know by this name while nobody can be asked: an agent's whole id, or all of them.
  named(name) {
    const wanted = name.toLowerCase();
    return ["all", "everything", ...this.agents()].find((one) => one.toLowerCase() === wanted);
  }

  stopLater(name, { id, trigger, sender, keep }) {
    this.#tombstone({ id, session: name, trigger, sender, keep, rule: "kill" }, new Error("the engine is not running"));
  }

  // A new message takes the place of what runs in its session. The person is told only what they have to know.
  async supersede({ session, sender, lang, route }) {
    const stop = { id: crypto.randomUUID(), session, trigger: "new message", sender, lang, latch: false, taken: true };
    const { lines } = await this.carryOut(stop).catch(() => ({ lines: [] })); // its tombstone is written
    if (lines.length) this.say(route, lines.join("\n"));
  }

  // How the person wants messages treated that come while a run is at work, if they have said so for this session.
  queueMode(session) {
    return host.queueMode(this.api, session);
  }

  isNew(session) {
    return entryOf(this.api, session) === null;
  }

  queueOnce(session, mode) {
    return host.queueOnce(this.api, this.folder, session, mode);
  }

  get hostConfig() {
    return configOf(this.api);
  }

  // The host's reply under way in this session.
  replyOf(session) {
    return host.replyOf(session);
  }

  // The session in which a person was last answered in this place.
  talkedTo(agent, route) {
    try {
      return host.talkedTo(this.api, agent, route);
    } catch {
      return undefined; // it tells nobody
    }
  }

  overFor(reply) {
    host.overFor(reply);
  }

  // A page may call a session of the agent that owns what names none by a short name.
  canonical(key) {
    const name = key.toLowerCase();
    return name.startsWith("agent:") || name === "global" ? name : `agent:${this.owner()}:${name}`;
  }

  // The host is ending these runs for a person, who has said so at `since`: they are not ours to report as a stop again.
  hostEnds(session, since = Date.now() - JUST_MS) {
    for (const run of [...this.runs.values(), ...this.ended.values()]) {
      if (run.session !== session || run.ending || run.finished || run.ended < since) continue;
      run.ending = true;
      run.how = ["host"];
    }
  }

  // A stop that was said here. It holds from now on. An engine that is away, or goes away, is asked again under the
  // same id: what it has done is not done twice, and only its word lifts our brake.
  async carryOut(stop) {
    const latch = stop.latch !== false;
    if (latch) this.mirror.brake(stop.session);
    this.pending.set(stop.id, stop);
    if (!this.engine.connected) {
      this.#tombstone(stop, new Error("the engine is not running"));
      if (latch) this.ending.end({ sessions: [stop.session], scopes: [] }).catch((error) => this.log.error(`clawstop: ${error.message}`));
    }
    for (;;) {
      try {
        const answer = await this.engine.ask("stop", stop, STOP_MS);
        this.pending.delete(stop.id);
        if (![...this.pending.values()].some((other) => other.session === stop.session)) this.mirror.brakes.delete(stop.session);
        this.log.info(`clawstop: ${stop.session}: ${answer.lines.join("; ") || stop.trigger}`);
        return answer;
      } catch (error) {
        this.#tombstone(stop, error);
        if (!this.#live || this.engine.connected) throw error; // a newer instance goes on with it; or the engine said no
        await sleep(AGAIN_MS);
      }
    }
  }

  #tombstone({ id, session, latch = true, keep, trigger, sender, rule }, error) {
    try {
      files.writeTombstone(this.folder, id, { target: session, latch, keep, trigger, sender, rule });
      this.log.warn(`clawstop: ${session} is stopped; the engine will finish it when it is back (${error.message})`);
    } catch (failure) {
      this.log.error(`clawstop: ${session} is stopped only while this gateway runs: ${failure.message}`);
    }
  }

  // -- a run

  // What a run reports. A run is a person's only when a message of theirs waits in its session.
  #cause(run, session, { trigger, jobId, prompt }) {
    if (run.startsWith("announce:")) return { cause: "announce", reports: [childOf(run)] };
    if (run.startsWith(RESUME)) return { cause: "resume", reports: [] };
    if (host.isRecovery(this.api, session, run)) return { cause: "recovery", reports: [] };
    if (jobId) return { cause: "cron", reports: [`job:${jobId}`] };
    if (trigger && trigger !== "user") return { cause: trigger, reports: drain.wakesOf(session, [...this.traces.values()].map((one) => one.id)) };
    const children = childrenIn(prompt ?? "");
    const message = this.chat.takeFor(run, session, prompt, children.length > 0);
    if (children.length && !message) return { cause: "announce", reports: children }; // one that has waited has no name of its own in older releases
    return { cause: message ? "message" : "unknown", reports: [], asked: message?.at, sender: message?.sender, page: message?.named, message: message?.id };
  }

  // The run and the session that a hook of the host means. Up to 2026.7 a run gets its name after it was admitted, and
  // its tools and events come under a key of the host's policies.
  place(run, session, about) {
    const fresh = run && about && !NAMED.test(run) && !this.runs.has(run) && !this.ended.has(run) && !this.names.has(run);
    const mine = fresh ? this.#takeUnnamed(session, about) : undefined;
    if (mine) {
      this.names.set(run, mine);
      forgetOldest(this.names);
    }
    const id = this.names.get(run) ?? run;
    const known = this.runs.get(id) ?? this.ended.get(id);
    if (known && session && known.session !== session) {
      this.aliases.set(session, known.session);
      forgetOldest(this.aliases);
    }
    return { run: id, session: known?.session ?? this.aliases.get(session) ?? session };
  }

  // Whose name that is: of who has said what the host tells, else of the oldest that is not over. A host has runs of its
  // own in between ("memory"): those are nobody's.
  #takeUnnamed(session, { prompt = "", trigger }) {
    const all = this.unnamed.get(session) ?? [];
    const known = (id) => this.about(id)?.[1] ?? {};
    const alike = all.filter((id) => !trigger || !known(id).trigger || known(id).trigger === trigger);
    const said = alike.filter((id) => known(id).said && prompt.includes(known(id).said));
    const other = !said.length && this.chat.isQueued(session, prompt); // one that has waited in the host
    const mine = said.find((id) => this.runs.has(id)) ?? said[0] ?? alike.find((id) => !other && this.runs.has(id));
    const rest = all.filter((id) => id !== mine);
    if (rest.length) this.unnamed.set(session, rest);
    else this.unnamed.delete(session);
    return mine;
  }

  // Bind a run as early as the host shows it. Gives the reason why it may not run, if there is one.
  admit(run, session, { sessionId, ...about } = {}) {
    if (!run || !session) return undefined;
    const known = this.runs.get(run);
    if (known) {
      known.sessionId ??= sessionId;
      return known.admission;
    }
    const past = this.ended.get(run); // it was slow to begin, and was taken for gone
    const record = past ? { ...past, sessionId: sessionId ?? past.sessionId, ending: false, ended: undefined } : { session, sessionId, at: Date.now(), said: about.prompt?.slice(0, SAID), trigger: about.trigger, ...this.#cause(run, session, about) };
    this.ended.delete(run);
    this.runs.set(run, record);
    return (record.admission = this.#bind(run, record));
  }

  async #bind(run, record) {
    const { session, sessionId, cause, reports, asked, message } = record;
    const mirrored = [session, ...reports.filter((key) => key.startsWith("agent:"))].some((key) => this.mirror.latched(key));
    let refusal = mirrored ? `${session} is stopped` : undefined;
    // Before the engine's first word the mirror is empty, and a restarting host replays what was refused: only a
    // person's own run goes on without it.
    // What goes on after a crash waits until the engine has cleaned up behind it.
    const blind = cause === "recovery" || cause === "resume" || (this.state === undefined && cause !== "message");
    try {
      const answer = await this.engine.ask("run_start", { run, session, session_id: sessionId ?? "", cause, reports, asked, message }, blind ? BOOT_MS : this.patience);
      record.bound = answer.bound;
      record.sender ??= answer.sender; // what goes on after a crash is still whose it was,
      record.page ??= answer.page; // and where it was asked for
      refusal ??= answer.refusal ?? undefined;
    } catch (error) {
      this.log.warn(`clawstop: run ${run} is not recorded: ${error.message}`);
      if (blind) refusal ??= "clawstop is not up yet";
    }
    return refusal;
  }

  // A turn is about to begin, in a session of that very name.
  async turn(run, session, about) {
    this.aliases.delete(session);
    // Such a host tells before it puts a message into its queue: there it is nobody's run yet.
    if (!run && this.chat.isQueued(session, about.prompt)) return this.mirror.latched(session) ? `${session} is stopped` : undefined;
    const id = run ? this.place(run, session).run : `turn:${crypto.randomUUID()}`;
    const refusal = await this.admit(id, session, about);
    if (refusal) this.#tellShut(session);
    if (refusal) this.runEnded(id); // the host says nothing more of it
    else if (!run) this.unnamed.set(session, [...(this.unnamed.get(session) ?? []), id].slice(-UNNAMED));
    return refusal;
  }

  // Its first model call or tool is due: too late to be answered with silence, so it is ended.
  async started(run, session, sessionId) {
    const refusal = await this.admit(run, session, { sessionId });
    const known = this.runs.get(run);
    if (known) known.live ??= Date.now();
    if (known) known.listed ||= host.isListed(session, known.sessionId);
    this.takeover.compacts(session, false); // also one that was cut off
    if (refusal) this.#refuse(run, refusal);
    if (refusal) this.#tellShut(session);
  }

  // Where what people write is not seen, they would wait for ever.
  #tellShut(session) {
    if (this.abilities?.messages === false && this.mirror.latched(session)) this.chat.tellShut(session);
  }

  #refuse(run, why) {
    const known = this.runs.get(run);
    if (!known || known.ending || !this.ending.may(known.session)) return;
    this.log.warn(`clawstop: ended run ${run} of ${known.session}: ${why}`);
    this.ending.end({ sessions: [known.session], scopes: [] }).catch((error) => this.log.error(`clawstop: ${error.message}`));
  }

  // `finished` by itself, and not cut off.
  runEnded(run, finished = false) {
    const known = this.runs.get(run);
    if (!known) return;
    this.runs.delete(run);
    known.ended = Date.now();
    known.finished = finished;
    this.ended.set(run, known);
    forgetOldest(this.ended);
    this.spent.close("turn", known.session);
    this.chat.settle(known.session);
    if (known.ending && known.page && !host.saysWhenOver()) showAborted(known.session, known.message);
    this.engine.tell("run_end", { run, session: known.session, ended: known.ended, finished });
  }

  // What does not go into a conversation.
  keepsOut(session, message) {
    return this.chat.isClaimed(session, message) || this.fence.isLate(session, message);
  }

  // Whether it came to its end, where the host's last event of it does not say so.
  runResult(run, success) {
    const known = this.runs.get(run);
    if (!known) return;
    known.success = success;
    if (!host.saysWhenOver()) void this.runGone(run); // up to 2026.4 that is the last word of a run that was aborted
  }

  // The same where the host says neither how it ended nor when it is over.
  async runGone(run) {
    const known = this.runs.get(run);
    if (!known || !(await host.left(known.sessionId, () => this.runs.has(run))) || !this.runs.has(run)) return;
    this.runEnded(run, !known.ending && known.success !== false);
  }

  // The host has told of its abort. When it is over, it says so too, or it is looked for.
  async runAborted(run, settled) {
    const known = this.runs.get(run);
    if (!known) return;
    if (!settled && host.saysWhenOver()) await sleep(SETTLED_MS);
    if (settled || (await host.left(known.sessionId, () => this.runs.has(run)))) this.runEnded(run);
  }

  // The host aborted a run because a person said so. Ours are marked `ending` before we abort them.
  runStopped(run, session) {
    const known = this.runs.get(run) ?? this.ended.get(run);
    const where = session ?? known?.session;
    if (!where || known?.ending || (!known && this.mirror.brakes.has(where)) || this.ending.isOurs(where)) return; // every instance tells us
    const answer = this.chat.runAborted(where);
    this.hostEnds(where);
    void answer?.then((line) => this.say({ session: where }, line));
  }

  // [id, what is known] of a run, alive or ended; of the one that answers a message.
  about(run) {
    const known = this.runs.get(run) ?? this.ended.get(run);
    return known && [run, known];
  }

  answering(message) {
    return [...this.runs, ...this.ended].find(([, run]) => message && run.message === message);
  }

  dead(run) {
    const known = this.runs.get(run) ?? this.ended.get(run);
    return Boolean(known?.bound !== undefined && known.bound < this.mirror.generation(known.session));
  }

  // -- the gate

  // A reason, or undefined. "No" comes from the mirror; "yes" only ever from the engine. A tool that is asked
  // for outside any run (the host's HTTP API) stands and falls with its session.
  async gate({ id, run = "", session, key = session, tool, params, signal }) {
    if (!session) return `clawstop cannot tell which session this ${tool} call belongs to, so it is refused`;
    if (run) void this.started(run, session);
    if (this.bare.delete(session)) return `clawstop was not ready when this ${tool} was prepared; try it again`;
    const stopped = () => this.mirror.latched(session) || this.mirror.latched(key) || this.dead(run); // `key` as the host says it
    const mirrored = () => (stopped() ? `session ${session} was stopped; this run cannot act any more` : undefined);
    let refusal;
    for (let frozen = true; frozen; ) {
      frozen = false;
      await this.#thawed(session, stopped, signal);
      refusal = mirrored();
      if (refusal) break;
      try {
        const answer = await this.engine.ask("tool", { id, run, session, tool, input: inputOf(params) }, this.patience);
        refusal = answer.refusal ?? mirrored();
        frozen = answer.frozen === true && !signal?.aborted; // it was frozen on the way: wait, and ask again
        if (frozen) await sleep(FROZEN_LOOK_MS);
      } catch (error) {
        refusal = mirrored() ?? this.#engineDown(session, error);
      }
    }
    if (refusal && stopped()) this.#refuse(run, "it asked for a tool after its stop");
    return refusal;
  }

  // A frozen session waits until a person stops or releases it, or its run is aborted.
  async #thawed(session, stopped, signal) {
    const since = Date.now();
    for (let told = false; this.mirror.frozen(session) && !stopped() && !signal?.aborted; await sleep(FROZEN_LOOK_MS)) {
      if (told || Date.now() - since < FROZEN_TELL_MS) continue;
      told = true;
      this.chat.tellFrozen(session);
    }
  }

  // How long a call or a message is held. A gateway that has just started has an engine that does so too.
  get patience() {
    const young = this.state === undefined && this.engine.expected ? this.#born + BOOT_MS - Date.now() : 0;
    return Math.max(HOLD_MS, young || 0);
  }

  #engineDown(session, error) {
    const setting = this.settings?.engine_down ?? "refuse";
    if (setting === "allow_unstopped" && !this.mirror.everStopped(session)) return undefined;
    return `clawstop does not answer (${error.message}), so no tool may run; ${SETUP}`;
  }

  // A call that was cut off by the end of its run has no known outcome, whatever the host calls it.
  toolEnded({ id, run = "", session, tool, params, result, error }) {
    if (!id || !session) return;
    const cut = error && (this.runs.get(run)?.ending || /abort/i.test(error));
    if (!cut) this.engine.tell("tool_end", { id, session, ok: !error });
    const details = result?.details ?? {};
    if (details.status === "running" && details.sessionId) this.#trace({ kind: "exec", id: String(details.sessionId), session, run, about: "" });
    if (JOBS.has(tool) && params?.action === "add" && details.id) this.#trace({ kind: "job", id: String(details.id), session, run, about: inputOf(params.job ?? params).slice(0, 200) });
  }

  // The engine hears of every trace again when it connects.
  #trace(trace) {
    this.traces.set(`${trace.kind}:${trace.id}`, trace);
    forgetOldest(this.traces);
    this.engine.tell("trace", trace);
  }

  // The cookie for a process of this session, so that it is known whose it is. Without the engine's first word there
  // is none, and then the process may not be: its gate comes next.
  async cookie(session) {
    if (!this.state) await this.engine.ready(this.patience).catch(() => this.bare.add(session));
    const mine = [...this.runs].filter(([, run]) => run.session === session && run.bound !== undefined);
    const current = mine.filter(([id]) => !this.dead(id));
    const bound = (current.length ? current : mine).map(([, run]) => run.bound);
    const generation = bound.length ? Math.min(...bound) : 0; // of a run that is not bound yet: any stop ends it
    return this.state && `1:${this.state}:${generation}:run:${encoded(session)}`;
  }

  // What exec gives its process: whose it is, where its engine is, and the cage that our shell puts it into. The latter
  // two on this machine only: a sandbox or a node has no use for them.
  async execEnv(session, where) {
    const cookie = await this.cookie(session);
    if (!cookie) return undefined;
    if (where && where !== "gateway") return { CLAWSTOP_COOKIE: cookie };
    const given = { CLAWSTOP_COOKIE: cookie, OPENCLAW_STATE_DIR: path.dirname(this.folder) };
    const cage = cageFor(this.cages, cookie);
    try {
      if (cage && (await useShell(this.#shells))) return { ...given, CLAWSTOP_CAGE: cage };
    } catch (error) {
      this.log.warn(`clawstop: processes are known by their cookie alone: ${error.message}`);
    }
    return given;
  }

  // The same for a host that does not ask for it: with the call itself. Undefined where nothing is to be changed.
  async execParams({ toolName, params }, session) {
    if (!EXEC.has(toolName) || knowsHook("resolve_exec_env")) return undefined;
    const given = await this.execEnv(session, params?.host);
    return given && { ...params, env: { ...params?.env, ...given } };
  }

  get #shells() {
    return path.join(this.folder, "shell");
  }

  // Who they are, where each works, and what they are called.
  #aboutAgents() {
    const agents = this.agents();
    const workspace = (id) => this.api.runtime?.agent?.resolveAgentWorkspaceDir?.(this.hostConfig, id);
    const { entries, list } = this.hostConfig?.agents ?? {};
    const names = (id) => {
      const entry = entries?.[id] ?? list?.find((one) => one.id === id);
      return [entry?.name ?? "", entry?.identity?.name ?? ""];
    };
    const each = (about) => Object.fromEntries(agents.map((id) => [id, about(id)]).filter(([, told]) => told));
    return { agents, workspaces: each(workspace), names: each(names) };
  }

  // What an agent is told about stops this turn, where its AGENTS.md does not say so. A turn waits for nothing.
  async block(agent, workspace) {
    if (this.settings?.protocol === "off" || !agent) return "";
    const answer = await this.engine.ask("block", { agent, workspace }, BLOCK_MS).catch(() => undefined);
    return answer?.text ?? "";
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

// Whose end the host tells of in its own words.
const childrenIn = (prompt) => [...prompt.matchAll(/\[Internal task completion event\][^]*?\nsession_key: (\S+)/g)].map(([, child]) => child);

// announce:v1:<child's session key>:<child's run id>
const childOf = (run) => run.split(":").slice(2, -1).join(":");
const forgetOldest = (map) => map.size > KEPT && map.delete(map.keys().next().value);

// The beginning of a tool's input, as text: a file that it writes may be long.
function inputOf(params) {
  try {
    return JSON.stringify(params ?? {}, (_, value) => (typeof value === "string" ? value.slice(0, INPUT / 4) : value)).slice(0, INPUT);
  } catch {
    return "";
  }
}

// A session as a cookie has it: these five are left bare by the language, and by nobody else.
const encoded = (session) => encodeURIComponent(session).replace(/[!'()*]/g, (c) => `%${c.charCodeAt(0).toString(16).toUpperCase()}`);

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
