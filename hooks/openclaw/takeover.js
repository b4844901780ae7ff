// A new message while a run is at work takes over: the run is ended, and what it owns is killed, before the message
// goes on its way. It waits in the host's own hook meanwhile, so nothing of it is copied or sent again: pictures,
// quotes and the sender come along. Of quick messages each takes over from the one before; that one stays in the
// conversation, so the model reads them together.
import { saysWhenOver } from "./host.js";

const BEGUN_MS = 15000; // how long an earlier message may take to become a run; ending it before that may lose it
const IDLE_MS = 300; // the host is silent between two replies; longer: nobody is about to begin
const OVER_MS = 8000; // how long the old run may take to end; the ladder needs 6
const FORGET_MS = 5000; // and its task, where the person wants it forgotten
const YOUNG_MS = 500; // aborted 30-60 ms after its start a run of 2026.7 hung; after this it ended, 4 of 4
const LOOK_MS = 5;
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function until(isSo, ms) {
  for (const end = Date.now() + ms; !isSo(); await sleep(LOOK_MS)) if (Date.now() > end) return false;
  return true;
}

export class Takeover {
  #bridge;
  #owners = new WeakMap(); // the host's reply -> the message that it is for
  #compacting = new Set(); // sessions whose conversation the host makes shorter
  #held = new Map(); // sessions in which messages wait for the old run to end -> how many

  constructor(bridge) {
    this.#bridge = bridge;
  }

  // Whether a message waits for the runs of this session to end. Nothing else ends them.
  holds(session) {
    return this.#held.has(session);
  }

  compacts(session, now) {
    if (session && now) this.#compacting.add(session);
    else this.#compacting.delete(session);
  }

  // Resolves when the message may go on; "queued" when it has to wait in the host, and the person should know.
  async before(message) {
    if (this.#owns(message)) return undefined; // nothing ran when it came in, and nothing begins before it
    const reply = this.#bridge.replyOf(message.session);
    try {
      const went = await this.#take(message, reply);
      this.#bridge.overFor(reply);
      return went;
    } catch (error) {
      this.#bridge.log.error(`clawstop: ${message.session}: the new message did not take over: ${error.message}`);
      return "queued"; // as the host does it
    }
  }

  // Whether the reply under way is this message's own. The host tells nobody who it is for: whoever comes first after it
  // was made has it, unless something runs or is about to.
  #owns({ session, id }) {
    const reply = this.#bridge.replyOf(session);
    const others = this.#runs(session).length || this.#bridge.chat.before(session, id).length;
    if (reply && !this.#owners.has(reply)) this.#owners.set(reply, others ? "" : id);
    return Boolean(reply) && this.#owners.get(reply) === id;
  }

  // Whether a run is so far that it can be ended. Up to 2026.7 one that is aborted in the moment of its start hangs.
  #isSettled({ live }) {
    return Boolean(live) && (saysWhenOver() || Date.now() - live > YOUNG_MS);
  }

  // Messages of a session come one after the other: each waits until those before it are runs.
  async #take(message, met) {
    const { session } = message;
    const { chat, engine, settings } = this.#bridge;
    let quiet = Date.now();
    const idle = () => {
      if (this.#bridge.replyOf(session) || this.#runs(session).length) quiet = Date.now();
      return Date.now() - quiet > IDLE_MS;
    };
    const begun = () => idle() || (!chat.before(session, message.id).length && this.#rivals(session).every(([, run]) => this.#isSettled(run)));
    if (!(await until(() => begun() || this.#compacting.has(session), BEGUN_MS))) return this.#queue(message);
    const rivals = this.#rivals(session);
    if (begun() && !rivals.length) return (await this.#over(this.#runs(session), session, met)) ? undefined : this.#queue(message); // a stop ends them
    const theirs = [...rivals.map(([, run]) => run), ...chat.before(session, message.id)];
    if (theirs.some((one) => this.#belongs(one, message))) return this.#wait(message);
    if (!engine.connected) return this.#queue(message);
    const written = !message.page && this.#bridge.writesFirst; // then the old run's last words behind it make it fail
    if (!begun() || written || (message.previews && !settings?.rollback?.takeover)) return this.#leaveToHost(message);
    const reply = this.#bridge.replyOf(session);
    return this.#holding(session, async () => {
      const done = this.#bridge.supersede(message);
      const over = await this.#over(rivals, session, reply);
      this.#bridge.overFor(reply);
      if (!over) return engine.connected ? this.#wait(message) : this.#queue(message); // the engine says so itself
      if (settings?.rollback?.takeover) await Promise.race([done, sleep(FORGET_MS)]);
      return undefined;
    });
  }

  async #holding(session, work) {
    this.#held.set(session, (this.#held.get(session) ?? 0) + 1);
    try {
      return await work();
    } finally {
      const others = this.#held.get(session) - 1;
      if (others) this.#held.set(session, others);
      else this.#held.delete(session);
    }
  }

  // The conversation is begun anew, and what runs there is stopped: until it is over.
  clear(session) {
    return this.#holding(session, () => this.#over(this.#runs(session), session, this.#bridge.replyOf(session)));
  }

  // Whether these runs came to their end in time, and so did their reply.
  async #over(runs, session, reply) {
    const ended = await until(() => !runs.some(([id]) => this.#bridge.runs.has(id)), OVER_MS);
    return ended && until(() => !reply || this.#bridge.replyOf(session) !== reply, OVER_MS);
  }

  // Whether a task is somebody else's: in a group anybody's, in direct chats that share a session another person's on a
  // channel; an operator's at a page for who is on no list.
  #belongs({ sender, page }, message) {
    if (message.group && !message.authorised) return true;
    return sender !== undefined && sender !== message.sender && !message.page && (message.group || !page || !message.listed);
  }

  // While it compacts a conversation there is no run yet that we could end, and that may take long: the host can end
  // it. Only the host takes a live preview away, too.
  async #leaveToHost(message) {
    if (!(await this.#bridge.queueOnce(message.session, "interrupt"))) return this.#queue(message);
    this.#bridge.chat.forgetBefore(message.session, message.id);
    this.#bridge.hostEnds(message.session);
    void this.#bridge.supersede(message);
    return undefined;
  }

  // For its own turn. The host would put it into the run at work, and let nobody else through until that reads it.
  async #wait({ session, id }) {
    this.#bridge.chat.queued(session, id);
    await this.#bridge.queueOnce(session, "followup");
    return undefined;
  }

  // The same, where a run that should be over is not: it must not read the message.
  async #queue(message) {
    await this.#wait(message);
    return "queued";
  }

  // The runs of a session; one that another plugin has claimed before it began never will.
  #runs(session) {
    const mine = [...this.#bridge.runs].filter(([, run]) => run.session === session);
    for (const [id, run] of mine) if (!run.live && Date.now() - run.at > BEGUN_MS) this.#bridge.runEnded(id);
    return mine.filter(([id]) => this.#bridge.runs.has(id));
  }

  // Those at work that no stop has ended.
  #rivals(session) {
    return this.#runs(session).filter(([id, run]) => !run.ending && !this.#bridge.dead(id));
  }
}
