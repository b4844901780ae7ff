// What people say to the gateway, as far as it concerns a stop: their messages on the way to a run, every way in
// which a stop shows itself in this host, and the line that a person gets for it.
import crypto from "node:crypto";
import { stopWord } from "./stopwords.js";

const HOLD_MS = 2000; // how long a message waits for an engine that is away
const ANSWER_MS = 8000; // how long the host's own "aborted" is held for our line; it gives a hook 15 s
const DOWN_MS = 4000; // how long a person waits for an engine that is coming back; it takes about a second
const LOOK_MS = 100;
const ASKED_MS = 20000; // a person waits for the answer
const SAME_MS = 1000; // one stop shows itself up to three times within this
const RESET_MS = 60000; // a typed /new shows itself again when the host carries it out
const SETTLE_MS = 5000; // a message that was steered into a run and not read becomes a run 0.5 s after its end
const LOCAL = /^zh/i.test(process.env.LC_ALL || process.env.LC_MESSAGES || process.env.LANG || "") ? "zh" : "en";
const BEGIN_MS = 10000; // a message that has not become a run by then never will
const JOURNAL = 4000; // characters of a message that the engine keeps until it is answered
const KEPT = 1000; // sessions remembered
const RESTORE = /^\/restore(?:@\S+)?(?:\s+(?![-—–])(\S{1,100}))?(\s+(?:--|[—–])force)?$/iu;
const CLAIM = { handled: true, queuedFinal: false, counts: { tool: 0, block: 0, final: 0 } };
const DOWN = {
  en: "Stopped. clawstop's engine is not running: processes are killed as soon as it is back (run `clawstop doctor`).",
  zh: "已停止。clawstop 引擎未运行:引擎恢复后会立即清理进程(请运行 clawstop doctor)。",
};

const FROZEN = {
  en: "This agent is frozen: its tools wait. On its machine, `clawstop release` lets it go on and `clawstop stop` ends it.",
  zh: "该智能体已冻结:工具调用等待中。请在其所在机器上运行 clawstop release 继续,或 clawstop stop 结束。",
};
const FROZEN_AGAIN_MS = 600000;
const QUEUED = {
  en: "Your message waits: what runs here could not be ended just now. Send /stop to end it.",
  zh: "你的消息正在等待:当前任务暂时无法结束。发送 /stop 可强制停止。",
};

export class Chat {
  #bridge;
  // What a newer instance of the plugin takes over. All by session.
  memory = {
    waiting: new Map(), // [{id, text, at, named, sender}]: person's messages that have not become a run yet
    dropped: new Map(), // the same, that a stop has discarded and no receipt has named yet
    heard: new Map(), // {id, text, sender, route}: the last thing that was said, to the agent or to the host
    spoke: new Map(), // when a person who may command said something that was no stop
    stops: new Map(), // {at}: the last stop
    answers: new Map(), // the line that takes the place of the host's own
    told: new Map(), // when the person was told that it is frozen
    resets: new Map(), // [when a /new was typed, and has not been carried out yet]
    tongues: new Map(), // the language that the person writes in
  };

  constructor(bridge) {
    this.#bridge = bridge;
  }

  // -- messages

  heard(session, said) {
    if (!session) return;
    remember(this.memory.heard, session, said);
    if (said.text && !isCommand(said.text) && !stopWord(said.text)) remember(this.memory.tongues, session, isChinese(said.text) ? "zh" : "en");
  }

  // A person's message on its way to the agent, with the host's word on their authority. A claim keeps it from the
  // agent: an order to stop, or a question to us.
  async dispatched(event, hook) {
    const ctx = event.ctx ?? {};
    const session = event.sessionKey ?? ctx.SessionKey;
    const said = { session, id: ctx.MessageSid, sender: ctx.SenderId ?? "", text: ctx.RawBody ?? ctx.CommandBody ?? ctx.Body ?? "" };
    if (!session || !said.id || !isPerson(ctx)) return undefined;
    const authorised = mayCommand(ctx);
    const channel = event.originatingChannel ?? ctx.OriginatingChannel ?? ctx.Provider;
    const route = { session, channel, to: event.originatingTo ?? ctx.OriginatingTo, account: ctx.AccountId, thread: ctx.MessageThreadId };
    if (authorised && !ctx.media?.length) {
      const word = stopWord(said.text, { names: namesOf(ctx, said.text) });
      const about = { trigger: said.text, sender: said.sender, keep: word?.keep, message: said.id };
      if (word) return this.#claim(hook, route, this.stopped(session, about));
      if (said.text.trim() === "/stops") return this.#claim(hook, route, this.#asked("stops", {}));
      const restore = RESTORE.exec(said.text.trim());
      if (restore) return this.#claim(hook, route, this.#asked("restore", { session, sender: said.sender, receipt: restore[1] ?? "", force: Boolean(restore[2]), lang: this.#languageOf(session) }));
      if (said.text.trim() === "/suspects") return this.#claim(hook, route, this.#asked("suspects", { session, sender: said.sender, id: idOf(session, said.id), lang: this.#languageOf(session) }));
    }
    if (authorised) remember(this.memory.spoke, session, Date.now());
    await this.#message({ ...said, route, named: channel === "webchat" }, authorised);
    await this.#takeOver({ ...said, group: ctx.ChatType !== "direct" && channel !== "webchat" }, authorised, route);
    const turn = ctx.CommandTurn;
    if (authorised && turn?.authorized && ["new", "reset"].includes(turn.commandName)) {
      remember(this.memory.resets, session, [...this.#typed(session), Date.now()]);
      this.#beginAnew(session, `/${turn.commandName}`, said.sender);
    }
    return undefined;
  }

  // What a person says now goes before what runs, if that is what they want. What the host is told to do is nobody's
  // task, and where the person has chosen another way for this conversation (`/queue`), that holds.
  async #takeOver(message, authorised, route) {
    const bridge = this.#bridge;
    const way = bridge.settings?.takeover ?? "interrupt";
    if (!authorised || way === "off" || isCommand(message.text)) return;
    const chosen = bridge.queueMode(message.session);
    if (chosen && chosen !== "interrupt") return;
    if (way === "steer") return void (await bridge.steer(message.session));
    const went = await bridge.takeover.before({ ...message, lang: this.#languageOf(message.session) });
    if (went === "queued") bridge.say(route, QUEUED[this.#languageOf(message.session)]);
  }

  // Whether a message that came before this one is about to become a run.
  begins(session, id) {
    const waiting = this.memory.waiting.get(session) ?? [];
    const mine = waiting.findIndex((one) => one.id === id);
    return waiting.slice(0, mine < 0 ? undefined : mine).some((one) => !isCommand(one.text) && Date.now() - one.at < BEGIN_MS);
  }

  // Whether the host is about to begin this conversation anew: until then it loses what comes in.
  resetting(session) {
    return this.#typed(session).some((at) => Date.now() - at < BEGIN_MS);
  }

  // Nothing of it becomes part of the conversation; the line comes when it is true, past any run.
  #claim(hook, route, answer) {
    hook?.userTurnTranscriptRecorder?.markBlocked?.();
    void answer?.then((text) => text && this.#bridge.say(route, text));
    return CLAIM;
  }

  async #message({ session, id, sender, text, named, route }, authorised) {
    const { waiting } = this.memory;
    const came = Date.now();
    const others = waiting.get(session) ?? [];
    if (others.some((one) => one.id === id)) return; // the host tells a message twice
    remember(waiting, session, [...others, { id, text: text.slice(0, 200), at: came, named, sender }].slice(-20));
    const wanted = () => waiting.get(session)?.some((one) => one.id === id); // a stop since then takes it away
    try {
      await this.#bridge.engine.ask("message", () => ({ session, id, sender, authorised, age_ms: Date.now() - came, ...(isCommand(text) ? {} : { text: text.slice(0, JOURNAL).toWellFormed(), route }) }), HOLD_MS, wanted);
    } catch (error) {
      this.#bridge.notReleased(session, error);
    }
  }

  // The message of a person that a run of this session answers; none when it is nobody's. On a page the run has its
  // id; elsewhere the oldest one is meant.
  takeFor(run, session) {
    const waiting = this.memory.waiting.get(session) ?? [];
    const mine = waiting.find((one) => one.id === run) ?? waiting.find((one) => !one.named);
    if (mine) this.#keep(session, (one) => one !== mine);
    return mine;
  }

  #keep(session, wanted) {
    const rest = (this.memory.waiting.get(session) ?? []).filter(wanted);
    if (rest.length) this.memory.waiting.set(session, rest);
    else this.memory.waiting.delete(session);
  }

  // A run ended: what was steered into it and has not become a run of its own soon was read by it.
  settle(session) {
    const read = new Set(this.memory.waiting.get(session) ?? []);
    if (read.size) setTimeout(() => this.#keep(session, (one) => !read.has(one)), SETTLE_MS).unref();
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

  // Once for each freeze, and not again within a while.
  tellFrozen(session) {
    const { told } = this.memory;
    if (Date.now() - (told.get(session) ?? 0) < FROZEN_AGAIN_MS) return;
    remember(told, session, Date.now());
    this.#bridge.say(this.routeOf(session), FROZEN[this.#languageOf(session)]);
  }

  // -- a stop, however it shows itself

  // Gives the line for the person; none when it is a stop that has shown itself before. `at` is when it was said.
  stopped(session, { trigger, sender, keep, message, at = Date.now() } = {}) {
    const { stops, spoke } = this.memory;
    const last = stops.get(session)?.at ?? 0;
    const since = spoke.get(session) ?? 0; // what a person wants now
    const same = since > last ? at < since : at - last < SAME_MS;
    if (last && same) return undefined;
    const words = trigger ?? "/stop";
    const order = stopWord(words);
    const language = this.#languageOf(session, words);
    this.#discard(session, Infinity);
    const stop = { id: message ? idOf(session, message) : crypto.randomUUID(), session, trigger: words.slice(0, 200).toWellFormed(), sender: sender ?? "", lang: language, keep: keep ?? order?.keep };
    remember(stops, session, { at });
    const down = DOWN[language];
    const done = this.#bridge.carryOut(stop).then(
      ({ lines }) => lines.join("\n"),
      () => down,
    );
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
  channelStopped(session, message) {
    if (!session) return;
    const heard = this.memory.heard.get(session);
    const { text, sender, route } = heard?.id === message ? heard : {};
    const answer = this.stopped(session, { trigger: text, sender, message });
    if (!answer) return;
    this.#bridge.hostEnds(session);
    const slot = { answer, taken: false };
    remember(this.memory.answers, session, slot);
    const late = new Promise((resolve) => setTimeout(resolve, ANSWER_MS).unref());
    void Promise.all([answer, late]).then(([line]) => {
      if (slot.taken) return;
      this.memory.answers.delete(session);
      if (route) this.#bridge.say({ session, ...route }, line);
    });
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
    if (method !== "chat.send" || stopWord(text)) remember(this.memory.heard, session, { text: text ?? method, sender: "operator", at });
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
    if (session && !typed) this.#beginAnew(session, `/${how ?? "reset"}`, "operator");
  }

  #typed(session) {
    return (this.memory.resets.get(session) ?? []).filter((at) => Date.now() - at < RESET_MS);
  }

  #beginAnew(session, trigger, sender) {
    this.#bridge.hostEnds(session);
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
const isCommand = (text) => text.trimStart().startsWith("/");

// Not the host talking to itself: it continues what was cut off by a restart in a message's clothes.
function isPerson(ctx) {
  const outside = !ctx.InputProvenance || ctx.InputProvenance.kind === "external_user";
  return (ctx.InboundEventKind ?? "user_request") === "user_request" && ctx.InternalTurnSource === undefined && outside;
}

// Whether the host lets this person command the agent. In a direct chat whoever got this far may: some channels work
// it out only for commands.
const mayCommand = (ctx) => ctx.CommandAuthorized === true || (ctx.ChatType === "direct" && ctx.InboundAccessAuthorized === true);

// What the bot is called here. One mention in a text that mentions the bot is the bot's.
function namesOf(ctx, text) {
  const mentions = text.match(/@\S+/g) ?? [];
  return [ctx.BotUsername, ctx.WasMentioned === true && mentions.length === 1 ? mentions[0] : undefined];
}

// The same message is the same stop, also when it is told again.
const idOf = (session, message) => crypto.createHash("sha256").update(`${session} ${message}`).digest("hex").slice(0, 32);

function remember(map, key, value) {
  map.delete(key);
  map.set(key, value);
  if (map.size > KEPT) map.delete(map.keys().next().value);
}
