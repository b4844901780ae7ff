// What people say to the gateway, as far as it concerns a stop: their messages on the way to a run, every way in
// which a stop shows itself in this host, and the line that a person gets for it.
import crypto from "node:crypto";
import { mayCommand, mayCommandOthers, mayUseMenu } from "./authority.js";
import { agentOf } from "./mirror.js";
import { answerOf, choiceOf, orderOf } from "./orders.js";
import { knowsHook } from "./sdk.js";
import { stopWord } from "./stopwords.js";

const HOLD_MS = 2000; // how long a name waits for an engine that is away
const ANSWER_MS = 8000; // how long the host's own "aborted" is held for our line; it gives a hook 15 s
const DOWN_MS = 4000; // how long a person waits for an engine that is coming back; it takes about a second
const LOOK_MS = 100;
const ASKED_MS = 20000; // a person waits for the answer
const STOP_MS = 120000; // a stop of many agents takes longer
const SAME_MS = 1000; // one stop shows itself up to three times within this
const RESET_MS = 60000; // a typed /new shows itself again when the host carries it out
const SETTLE_MS = 5000; // a message that was steered into a run and not read becomes a run 0.5 s after its end
const CHOICE_MS = 120000; // a number that comes later is about something else
const LOCAL = /^zh/i.test(process.env.LC_ALL || process.env.LC_MESSAGES || process.env.LANG || "") ? "zh" : "en";
const STOPPING_MS = 3000; // a stop on a page is over within 0.5 s, mostly
const CLAIMED_MS = 5000; // what we have claimed is written down within this, or never
const BEGIN_MS = 15000; // a message that has not become a run by then never will
const QUOTES = ["ChannelStructuredContext", "UntrustedStructuredContext"]; // as it is called since 2026.8, and before
const SLASH = /^agent:[^:]+:[^:]+:slash:[^:]+$/;
const ANEW = /^\s*\/(new|reset)(?:\s|$)/i;
const ANEW_MS = 3000; // the host begins a conversation anew in 0.3-2 s,
const ANEW_SETTLE_MS = 300; // and takes messages again so long after it has said so
const OLD_MS = 600000; // and nobody waits for it any more
const JOURNAL = 4000; // characters of a message that the engine keeps until it is answered
const KEPT = 1000; // sessions remembered
const journal = (text) => (text.length > JOURNAL ? `${text.slice(0, JOURNAL - 1)}…` : text).toWellFormed();
const CLAIM = { handled: true, queuedFinal: false, counts: { tool: 0, block: 0, final: 0 } };
const DOWN = {
  en: "Stopped. clawstop's engine is not running: processes are killed as soon as it is back (run `clawstop doctor`).",
  zh: "已停止。clawstop 引擎未运行：引擎恢复后会立即清理进程（请运行 clawstop doctor）。",
};

const FROZEN = {
  en: "This agent is frozen: its tools wait. On its machine, `clawstop release` lets it go on and `clawstop stop` ends it.",
  zh: "该智能体已冻结：工具调用等待中。请在其所在机器上运行 clawstop release 继续，或 clawstop stop 结束。",
};
const SHUT = {
  en: "This agent is stopped, and this OpenClaw does not tell clawstop what you write. On its machine, `clawstop release` lets it go on.",
  zh: "该智能体已停止，而此版本的 OpenClaw 不会把你的消息告知 clawstop。请在其所在机器上运行 clawstop release 继续。",
};
const TELL_AGAIN_MS = 600000;
const AWAY = {
  en: "clawstop's engine is not running: no tool runs meanwhile, and what you named is stopped as soon as it is back (run `clawstop doctor`).",
  zh: "clawstop 引擎未运行：期间不会执行任何工具，引擎恢复后会立即停止你指定的对象（请运行 clawstop doctor）。",
};
const STRANGER = {
  en: "You may not do that here: this chat is open to everybody, and you are not on its lists.",
  zh: "无权执行：此对话对所有人开放，而你不在允许名单中。",
};
const EARLIER = {
  en: "You wrote this before you said stop, so it was not read. Send it again if you still want it.",
  zh: "这条消息是在停止之前发送的，因此没有处理。如仍需要，请重新发送。",
};
const QUEUED = {
  en: "Your message waits: what runs here could not be ended just now. Send /stop to end it.",
  zh: "你的消息正在等待：当前任务暂时无法结束。发送 /stop 可强制停止。",
};

export class Chat {
  #bridge;
  // What a newer instance of the plugin takes over. All by session.
  memory = {
    waiting: new Map(), // [{id, text, at, named, sender}]: person's messages that have not become a run yet
    dropped: new Map(), // the same, that a stop has discarded and no receipt has named yet
    heard: new Map(), // {id, text, sender, route, said}: the last thing that was said, to the agent or to the host
    spoke: new Map(), // when a person who may command said something that was no stop
    stops: new Map(), // {at, said}: the last stop; when it was said, by the channel's own clock
    halts: new Map(), // when it was last carried out, whoever said it
    claimed: new Map(), // {text, at}: the last thing that was said to us
    answers: new Map(), // the line that takes the place of the host's own
    told: new Map(), // when the person was told why nothing happens
    resets: new Map(), // [when a /new was typed, and has not been carried out yet]
    tongues: new Map(), // the language that the person writes in
    choices: new Map(), // by session and sender, {at, names, keep}: of whom somebody may name the number
  };

  #told = new Map(); // message -> what became of it
  #late = false; // this host names runs late: they have not the id of their message
  #unsettled = new Map(); // session -> Pending: a page has stopped it, or begun it anew

  constructor(bridge) {
    this.#bridge = bridge;
  }

  // -- messages

  heard(key, said) {
    if (!key) return;
    const session = SLASH.test(key) ? this.#behind(key, said) : key;
    remember(this.memory.heard, session, said);
    const tongue = isChinese(said.text ?? "") ? "zh" : ENGLISH.test(said.text ?? "") ? "en" : undefined;
    if (tongue && !stopWord(said.text)) remember(this.memory.tongues, session, tongue);
  }

  // Up to 2026.7 a command of a channel's menu comes in a session of its own: meant is the one that was last talked to in
  // the same place.
  #behind(key, { route }) {
    const alike = (a, b) => a === undefined || b === undefined || String(a) === String(b);
    const there = (one) => one?.channel === route.channel && one.to === route.to && alike(one.account, route.account) && alike(one.thread, route.thread);
    const same = ([session, one]) => !SLASH.test(session) && agentOf(session) === agentOf(key) && there(one.route);
    const session = [...this.memory.heard].findLast(same)?.[0] ?? this.#bridge.talkedTo(agentOf(key), route) ?? key;
    if (session !== key) remember(this.#bridge.aliases, key, session);
    return session;
  }

  // A person's message on its way to the agent, with the host's word on their authority. A claim keeps it from the
  // agent: an order to stop, or a question to us.
  async dispatched(event, hook) {
    const ctx = event.ctx ?? {};
    const session = event.sessionKey ?? ctx.SessionKey;
    const name = `${session} ${ctx.MessageSid}`;
    const known = this.#told.get(name); // every instance of this plugin is told
    if (known) return known.then(() => undefined);
    const verdict = this.#dispatched(event, hook, ctx, session);
    remember(this.#told, name, verdict);
    return verdict;
  }

  async #dispatched(event, hook, ctx, session) {
    const said = { session, id: ctx.MessageSid, sender: ctx.SenderId ?? "", text: ctx.RawBody ?? ctx.CommandBody ?? ctx.Body ?? "", group: false };
    if (!session || !said.id || !isPerson(ctx)) return undefined;
    unquote(ctx, this.memory.halts.get(session));
    this.#bridge.fence.around(hook?.dispatcher, said);
    const authorised = mayCommand(ctx);
    const channel = event.originatingChannel ?? ctx.OriginatingChannel ?? ctx.Provider;
    const route = { session, channel, to: event.originatingTo ?? ctx.OriginatingTo, account: ctx.AccountId, thread: ctx.MessageThreadId };
    said.group = ctx.ChatType !== "direct" && channel !== "webchat";
    if (authorised && !ctx.media?.length) {
      const order = this.#chosen(said) ?? this.#answered(said) ?? orderOf(said.text, namesOf(ctx, said.text));
      const answer = await this.#obey(order, said, route);
      if (answer) return this.#claim(hook, route, said, answer.line);
    }
    if (authorised) remember(this.memory.spoke, session, Date.now());
    if (ctx.Timestamp < this.memory.stops.get(session)?.said) return this.#claim(hook, route, said, EARLIER[this.#languageOf(session, said.text)]);
    const turn = ctx.CommandTurn;
    const command = turn ? turn.kind !== "normal" : said.text.trimStart().startsWith("/");
    const message = { ...said, command, page: channel === "webchat" };
    if (await this.#message({ ...message, media: Boolean(ctx.media?.length) }, route, authorised)) return this.#claim(hook, route, said);
    await this.#takeOver(message, route, authorised);
    const anew = turn ? turn.authorized && turn.commandName : ANEW.exec(said.text)?.[1].toLowerCase(); // older ones tell only the text
    if (authorised && ["new", "reset"].includes(anew)) {
      remember(this.memory.resets, session, [...this.#typed(session), Date.now()]);
      this.#beginAnew(session, `/${anew}`, said.sender);
      if (!turn) await this.#bridge.takeover.clear(session); // older ones leave the old run at work
    }
    return undefined;
  }

  // Gives {line}, the line for the person once it is true; undefined when it is no order of ours.
  async #obey(order, said, route) {
    const { session, sender, text } = said;
    const about = { session, sender, lang: this.#languageOf(session, text) };
    const id = idOf(session, said.id);
    if (order?.kind === "stop") return { line: this.stopped(session, { trigger: text, sender, keep: order.keep, message: said.id }) };
    const others = () => mayCommandOthers(this.#bridge.hostConfig, { ...route, sender });
    if (order?.kind === "stops") return { line: this.#asked("stops", { ...about, only: others() && !said.group ? "" : session }) };
    if (order?.kind === "restore") return { line: this.#asked("restore", { ...about, receipt: order.receipt, force: order.force, any: others() }) };
    if (order?.kind === "boot-resume") return { line: this.#asked("cuts", { ...about, only: others() && !said.group ? "" : session }) };
    if (order?.kind === "answer") return { line: this.#asked("answer", { ...about, yes: order.yes, group: said.group, listed: others(), page: route.channel === "webchat" }) };
    if (order?.kind === "suspects") return { line: this.#asked("suspects", { ...about, id }) };
    if (order?.kind === "kill") return this.#kill(order, { ...about, id, trigger: text.slice(0, 200).toWellFormed() }, route);
    return undefined;
  }

  // A yes or no to the question whether a task shall go on that a crash cut off.
  #answered({ session, text }) {
    const yes = this.#bridge.questions.has(session) ? answerOf(text) : undefined;
    return yes === undefined ? undefined : { kind: "answer", yes };
  }

  // The number of one of several that went by a name; whatever else is said, the question is over.
  #chosen({ session, sender, text }) {
    const { choices } = this.memory;
    const asked = choices.get(`${session} ${sender}`);
    choices.delete(`${session} ${sender}`);
    const known = Date.now() - (asked?.at ?? 0) < CHOICE_MS ? asked.names[choiceOf(text) - 1] : undefined;
    return known && { kind: "kill", known, keep: asked.keep };
  }

  // `kill dev1`. The engine knows who is called so; a sentence that names nobody is the agent's to read. While it is
  // away the stop is left for it, by a name that we know ourselves.
  async #kill({ name, bare, known: chosen, sure, keep }, about, route) {
    const bridge = this.#bridge;
    const may = mayCommandOthers(bridge.hostConfig, { ...route, sender: about.sender });
    const named = chosen ? { name: chosen } : await bridge.engine.ask("named", { name, bare, sure, lang: about.lang }, HOLD_MS).catch(() => undefined);
    const known = named?.name ?? (named ? undefined : (bridge.named(name) ?? bridge.named(bare)));
    if (!known && !sure && !named?.several) return undefined;
    if (!may) return { line: STRANGER[about.lang] };
    if (named?.several) remember(this.memory.choices, `${about.session} ${about.sender}`, { at: Date.now(), names: named.several, keep });
    if (!known) return { line: named?.lines.join("\n") ?? AWAY[about.lang] };
    const later = () => {
      bridge.stopLater(known, { ...about, keep });
      return AWAY[about.lang];
    };
    const stopped = async () => (await bridge.engine.ask("stop", { ...about, name: known, keep }, STOP_MS)).lines.join("\n");
    return { line: named ? stopped().catch(later) : later() };
  }

  // A command from the channel's own menu, which comes past all hooks: the line, at once.
  async menu(text, { session: key, sender, channel, to, account, thread, group, authorised }) {
    const session = SLASH.test(key ?? "") ? this.#behind(key, { route: { channel, to, account, thread } }) : key;
    const route = { session, channel, to, account, thread };
    if (!session || !mayUseMenu(this.#bridge.hostConfig, { ...route, sender, group, authorised })) return STRANGER[this.#languageOf(session)];
    const answer = await this.#obey(orderOf(text), { session, sender, text, group, id: crypto.randomUUID() }, route);
    const line = await answer?.line;
    if (line) this.#bridge.fence.ours(line);
    return line;
  }

  // What a person says now goes before what runs, if that is what they want. What the host is told to do is nobody's
  // task, and where the person has chosen another way for this conversation (`/queue`), that holds.
  async #takeOver(message, route, authorised) {
    const bridge = this.#bridge;
    const way = bridge.settings?.takeover ?? "interrupt";
    if (way === "off" || message.command || !(authorised || message.group)) return;
    const chosen = bridge.queueMode(message.session);
    if (chosen && chosen !== "interrupt") return;
    if (way === "steer") return void (await bridge.queueOnce(message.session, "steer"));
    const previews = bridge.settings?.fence === "previews" && route.channel !== "webchat";
    const listed = mayCommandOthers(bridge.hostConfig, { ...route, sender: message.sender });
    const went = await bridge.takeover.before({ ...message, route, authorised, listed, previews, lang: this.#languageOf(message.session) });
    for (const one of this.memory.waiting.get(message.session) ?? []) if (one.id === message.id) one.own = true; // no run reads it but its own
    if (went === "queued") bridge.say(route, QUEUED[this.#languageOf(message.session)]);
  }

  // The messages before this one that are about to become a run.
  before(session, id) {
    const waiting = this.memory.waiting.get(session) ?? [];
    const mine = waiting.findIndex((one) => one.id === id);
    return waiting.slice(0, mine < 0 ? undefined : mine).filter((one) => !one.queued && !one.command && Date.now() - one.at < BEGIN_MS);
  }

  // The host has it in its queue: it becomes a run when others are done.
  queued(session, id) {
    for (const one of this.memory.waiting.get(session) ?? []) if (one.id === id) one.queued = true;
  }

  // They never will: the host ends them.
  forgetBefore(session, id) {
    const gone = new Set(this.before(session, id));
    this.#keep(session, (one) => !gone.has(one));
  }

  // Nothing of it becomes part of the conversation; the line comes when it is true, past any run.
  async #claim(hook, route, said, line) {
    const recorder = hook?.userTurnTranscriptRecorder;
    if (recorder) recorder.markBlocked?.();
    else if (route.channel === "webchat") remember(this.memory.claimed, said.session, { text: said.text.trim(), at: Date.now() });
    if (route.channel !== "webchat" || !this.#bridge.isNew(route.session)) {
      void Promise.resolve(line).then((text) => text && this.#bridge.say(route, text));
      return CLAIM;
    }
    // There is no conversation yet into which a line could be put: it is the answer to the message.
    const text = await line;
    if (text) {
      this.#bridge.fence.ours(text);
      hook?.dispatcher?.sendFinalReply?.({ text });
    }
    return { ...CLAIM, queuedFinal: Boolean(text), counts: { ...CLAIM.counts, final: text ? 1 : 0 } };
  }

  // Whether this is what a person said to us, and not to the agent: up to 2026.7 the host writes it down all the same, and
  // a run at work there would fail.
  isClaimed(session, message) {
    const { claimed } = this.memory;
    const { text, at } = claimed.get(session) ?? {};
    if (message?.role !== "user" || !text || Date.now() - at > CLAIMED_MS) return false;
    const written = textOf(message).trim(); // behind what the host puts before it: "[Wed 2026-11-18 14:00 UTC] stop"
    const mine = written === text || (written.endsWith(text) && /[\]\n] ?$/.test(written.slice(0, -text.length)));
    return mine && claimed.delete(session);
  }

  // True for a message that the agent has already: a crash came, and it went on with it.
  async #message({ session, id, sender, text, command, page, media, group }, route, authorised) {
    const { waiting } = this.memory;
    const came = Date.now();
    const others = (waiting.get(session) ?? []).filter((one) => came - one.at < OLD_MS);
    remember(waiting, session, [...others, { id, text: text.slice(0, 200), at: came, named: page, sender, command }].slice(-20));
    const wanted = () => waiting.get(session)?.some((one) => one.id === id); // a stop since then takes it away
    try {
      const answer = await this.#bridge.engine.ask("message", () => ({ session, id, sender, authorised, group, listed: mayCommandOthers(this.#bridge.hostConfig, { ...route, sender }), age_ms: Date.now() - came, ...(command ? {} : { text: journal(text), route: { ...route, media } }) }), this.#bridge.patience, wanted);
      if (answer.continued) this.#keep(session, (one) => one.id !== id);
      return answer.continued === true;
    } catch (error) {
      this.#bridge.notReleased(session, error);
      return false;
    }
  }

  // The message of a person that a run of this session answers; none when it is nobody's. On a page the run has its
  // id; elsewhere its words are in the prompt, or the oldest one is meant.
  // Where others' words are told, `only` those count.
  takeFor(run, session, prompt = "", only = false) {
    const waiting = this.memory.waiting.get(session) ?? [];
    this.#late ||= run.startsWith("turn:");
    const unnamed = waiting.filter((one) => this.#late || !one.named);
    const mine = waiting.find((one) => one.id === run) ?? this.#saying(unnamed, prompt) ?? (only ? undefined : unnamed[0]);
    if (mine) this.#keep(session, (one) => one !== mine);
    return mine;
  }

  // The one whose words these are.
  #saying(messages, prompt) {
    const said = messages.filter((one) => one.text && prompt.includes(one.text)).sort((a, b) => b.text.length - a.text.length);
    return said.find((one) => !one.queued) ?? said[0];
  }

  // Whether these words wait in the host for the end of a run.
  isQueued(session, prompt = "") {
    return this.#saying(this.memory.waiting.get(session) ?? [], prompt)?.queued === true;
  }

  #keep(session, wanted) {
    const rest = (this.memory.waiting.get(session) ?? []).filter(wanted);
    if (rest.length) this.memory.waiting.set(session, rest);
    else this.memory.waiting.delete(session);
  }

  // A run ended: what was steered into it and has not become a run of its own soon was read by it.
  settle(session) {
    const read = (this.memory.waiting.get(session) ?? []).filter((one) => !one.queued && !one.own);
    if (!read.length) return;
    const settled = () => {
      const gone = (this.memory.waiting.get(session) ?? []).filter((one) => read.includes(one) && !one.queued && !one.own);
      this.#keep(session, (one) => !gone.includes(one));
      if (gone.length) this.#bridge.engine.tell("read", { session, ids: gone.map((one) => one.id) });
    };
    setTimeout(settled, SETTLE_MS).unref();
  }

  // The messages of these sessions that a stop has discarded, told once.
  discarded(covered, before) {
    const { waiting, dropped } = this.memory;
    for (const session of [...waiting.keys()]) if (covered(session)) this.#discard(session, before);
    const rows = [];
    for (const [session, messages] of dropped) {
      if (!covered(session)) continue;
      rows.push(...messages.map(({ id, text }) => ({ session, id, text })));
      dropped.delete(session);
    }
    return rows;
  }

  #discard(session, before) {
    const { waiting, dropped } = this.memory;
    const old = (waiting.get(session) ?? []).filter((one) => one.at < before);
    if (old.length) remember(dropped, session, [...(dropped.get(session) ?? []), ...old]);
    this.#keep(session, (one) => one.at >= before);
  }

  // How the person of a session is reached: where they last wrote from, else on the page.
  routeOf(session) {
    return { session, ...this.memory.heard.get(session)?.route };
  }

  // Why nothing happens, and not again within a while.
  tellFrozen(session) {
    this.#tellOnce(session, FROZEN);
  }

  // The same where no message of theirs can release it.
  tellShut(session) {
    this.#tellOnce(session, SHUT);
  }

  #tellOnce(session, words) {
    const { told } = this.memory;
    if (Date.now() - (told.get(session) ?? 0) < TELL_AGAIN_MS) return;
    remember(told, session, Date.now());
    this.#bridge.say(this.routeOf(session), words[this.#languageOf(session)]);
  }

  // -- a stop, however it shows itself

  // A stop of these sessions is carried out: what was said before is not quoted to the agent any more.
  halted(sessions) {
    for (const session of sessions) remember(this.memory.halts, session, Date.now());
  }

  // Gives the line for the person; none when it is a stop that has shown itself before. `at` is when it was said.
  stopped(session, { trigger, sender, keep, message, said, at = Date.now() } = {}) {
    const { stops, spoke } = this.memory;
    const last = stops.get(session)?.at ?? 0;
    const since = spoke.get(session) ?? 0; // what a person wants now
    const same = since > last ? at < since : at - last < SAME_MS;
    if (last && same) return undefined;
    const words = trigger ?? "/stop";
    const order = stopWord(words);
    const language = this.#languageOf(session, words);
    this.#discard(session, at + 1); // what came behind it is not meant
    const stop = { id: message ? idOf(session, message) : crypto.randomUUID(), session, trigger: words.slice(0, 200).toWellFormed(), sender: sender ?? "", lang: language, keep: keep ?? order?.keep };
    remember(stops, session, { at, said });
    const down = DOWN[language];
    const done = this.#bridge.carryOut(stop).then(
      ({ lines }) => lines.join("\n"),
      () => down,
    );
    const settled = this.#unsettled.get(session);
    void done.then(() => settled?.close());
    return Promise.race([done, this.#away(done).then(() => down)]);
  }

  // Until the engine has been away for a while, or the stop is done.
  async #away(done) {
    let over = false;
    void done.then(() => (over = true));
    for (let away = 0; !over && away < DOWN_MS; away = this.#bridge.engine.connected ? 0 : away + LOOK_MS) {
      await new Promise((resolve) => setTimeout(resolve, LOOK_MS));
    }
  }

  // Somebody with the right to do so said stop on a channel; the host has aborted what ran and says so itself: our
  // line goes out in its place, see `instead`, or behind it when it comes too late.
  channelStopped(key, message) {
    if (!key) return;
    const { session } = this.#bridge.place(undefined, key);
    const heard = this.memory.heard.get(session);
    const { text, sender, route, said } = heard?.id === message ? heard : {};
    if (SLASH.test(key) && !this.#mayStop({ ...route, sender })) return; // the host asks nobody there
    const answer = this.stopped(session, { trigger: text, sender, message, said });
    if (!answer) return;
    this.#bridge.hostEnds(session);
    const slot = { answer, taken: false };
    remember(this.memory.answers, session, slot);
    const wait = knowsHook("reply_payload_sending") === false ? 0 : ANSWER_MS; // where its line cannot be replaced, ours follows at once
    const late = new Promise((resolve) => setTimeout(resolve, wait).unref());
    void Promise.all([answer, late]).then(([line]) => {
      if (slot.taken) return;
      this.memory.answers.delete(session);
      if (route) this.#bridge.say({ session, ...route }, line);
    });
  }

  #mayStop({ channel, to, account, sender }) {
    const group = !String(to ?? "").endsWith(`:${sender}`);
    return mayUseMenu(this.#bridge.hostConfig, { channel, account, sender, group, authorised: true });
  }

  // What the host says of its own accord right after a stop: gives our line instead, once it is known.
  async instead(session) {
    const slot = this.memory.answers.get(session);
    if (!slot) return undefined;
    this.memory.answers.delete(session);
    const line = await Promise.race([slot.answer, new Promise((resolve) => setTimeout(resolve, ANSWER_MS - 500).unref())]);
    slot.taken = Boolean(line);
    return line;
  }

  // The same on a page: the host has nothing to say there, so we do.
  operatorStopped({ session: key, text, method, at }) {
    const session = this.#bridge.canonical(key);
    if (this.#bridge.ending.isOurs(session)) return;
    const answer = this.stopped(session, { trigger: text ?? method, sender: "operator", at });
    if (!answer) return;
    this.#bridge.hostEnds(session);
    void answer.then((line) => this.#bridge.say({ session }, line));
  }

  // It may be the stop that the host reports next: a lifecycle event knows neither the word nor who said it.
  operatorAsked({ session: key, text, method, at }) {
    const session = this.#bridge.canonical(key);
    if (this.#bridge.ending.isOurs(session)) return;
    const anew = method === "sessions.reset" || (method === "chat.send" && ANEW.test(text));
    const stop = !anew && (method !== "chat.send" || stopWord(text));
    if (stop) remember(this.memory.heard, session, { text: text ?? method, sender: "operator", at });
    if (anew || stop) remember(this.#unsettled, session, new Pending(anew ? ANEW_MS : STOPPING_MS));
  }

  // The host has said no to it.
  operatorRefused({ session: key }) {
    this.#unsettled.get(this.#bridge.canonical(key))?.close();
  }

  // Between a `/new` on a page and the fresh conversation the host loses what comes in, and so it does right behind a stop: it
  // waits outside.
  operatorWaits({ session: key, method, text }) {
    const waits = this.#unsettled.get(this.#bridge.canonical(key));
    if (!waits?.open) return undefined;
    if (method !== "chat.send" || stopWord(text)) waits.close(); // it comes behind what waits, and not later
    return waits.over;
  }

  get patient() {
    return [...this.#unsettled.values()].some((one) => one.open);
  }

  // The host aborted a run because somebody said so.
  runAborted(session) {
    const heard = this.memory.heard.get(session);
    const { text, sender } = Date.now() - (heard?.at ?? 0) < SAME_MS ? heard : {};
    return this.stopped(session, { trigger: text, sender });
  }

  // -- a conversation begun anew

  // The host resets a session: typed, which we have seen already, or over RPC, which only it has checked.
  reset(session, how) {
    const [typed, ...rest] = this.#typed(session);
    remember(this.memory.resets, session, rest);
    setTimeout(() => this.#unsettled.get(session)?.close(), ANEW_SETTLE_MS).unref();
    if (session && !typed) this.#beginAnew(session, `/${how ?? "reset"}`, "operator", this.#unsettled.get(session));
  }

  #typed(session) {
    return (this.memory.resets.get(session) ?? []).filter((at) => Date.now() - at < RESET_MS);
  }

  // An older host may take seconds from the word to the reset, and ends the run first.
  #beginAnew(session, trigger, sender, asked) {
    this.#bridge.hostEnds(session, Date.now() - asked?.since < RESET_MS ? asked.since : undefined);
    const stop = { id: crypto.randomUUID(), session, trigger, sender, latch: false };
    this.#bridge.carryOut(stop).catch(() => undefined); // its tombstone is written
  }

  async #asked(method, params) {
    const { lines } = await this.#bridge.engine.ask(method, params, ASKED_MS).catch((error) => ({ lines: [error.message] }));
    return lines.join("\n");
  }

  // The language to answer in: of these words, or else of what the person wrote here before.
  #languageOf(session, words = "") {
    const { tongues } = this.memory;
    const set = this.#bridge.settings?.language ?? "auto";
    return (isChinese(words) ? "zh" : tongues.get(session)) ?? (set === "auto" ? LOCAL : set);
  }
}

const isChinese = (text) => /\p{Script=Han}/u.test(text) && !/[\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Hangul}]/u.test(text);
const ENGLISH = /^[^/]*\p{Script=Latin}{2,}\s+\p{Script=Latin}{2,}/u; // "ok" or "1" tells no language

// Not the host talking to itself: it continues what was cut off by a restart in a message's clothes.
function isPerson(ctx) {
  const outside = !ctx.InputProvenance || ctx.InputProvenance.kind === "external_user";
  return (ctx.InboundEventKind ?? "user_request") === "user_request" && ctx.InternalTurnSource === undefined && outside;
}

const textOf = ({ content }) => (typeof content === "string" ? content : (content ?? []).map((part) => part.text ?? "").join(""));

// The host shows the model what was last said in the chat, also what a stop has made it forget: newer ones only to who
// answers a message or writes in a group. In a direct chat that is all in the conversation; of a group it keeps what was
// said since the stop, and not to us.
function unquote(ctx, before) {
  for (const key of QUOTES) if (before && Array.isArray(ctx[key])) ctx[key] = unquoted(ctx, ctx[key], before);
}

function unquoted(ctx, entries, before) {
  const kept = ({ timestamp_ms: at, body }) => ctx.ChatType !== "direct" && at > before && !orderOf(body ?? "");
  const quoted = entries.map((entry) => {
    const { messages } = (entry?.type === "chat_window" && entry.payload) || {};
    return Array.isArray(messages) ? { ...entry, payload: { ...entry.payload, messages: messages.filter(kept) } } : entry;
  });
  return quoted.filter((entry) => entry?.payload?.messages?.length !== 0);
}

// What the bot is called here. One mention in a text that mentions the bot is the bot's.
function namesOf(ctx, text) {
  const mentions = text.match(/@\S+/g) ?? [];
  return [ctx.BotUsername, ctx.WasMentioned === true && mentions.length === 1 ? mentions[0] : undefined];
}

// Something that will be over, at the latest after `ms`.
class Pending {
  open = true;
  since = Date.now();

  constructor(ms) {
    this.over = new Promise((resolve) => (this.resolve = resolve));
    setTimeout(() => this.close(), ms).unref();
  }

  close() {
    this.open = false;
    this.resolve();
  }
}

// The same message is the same stop, also when it is told again.
const idOf = (session, message) => crypto.createHash("sha256").update(`${session} ${message}`).digest("hex").slice(0, 32);

function remember(map, key, value) {
  map.delete(key);
  map.set(key, value);
  if (map.size > KEPT) map.delete(map.keys().next().value);
}
