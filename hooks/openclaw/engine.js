// The connection to the engine: finds it, starts it when there is none, asks it with a deadline, and
// serves what it asks. One JSON object a line; see skill/clawstop/protocol.py.
import fs from "node:fs";
import net from "node:net";
import path from "node:path";
import { spawn } from "node:child_process";

const PROTOCOL = 1;
const OLDEST = 1; // the oldest we still speak: a skill is updated while its gateway runs on
const MAX_ANSWER = 1 << 24; // a mirror of 100,000 stopped sessions
const RETRY_MS = [50, 100, 200, 400, 800, 1600, 2000]; // below the 2 s that a tool call may be held
const START_EVERY_MS = [0, 1000, 2000, 5000, 15000, 30000]; // an engine that dies at once is not started in a loop

export class Engine {
  connected = false;
  #socket;
  #next = 1;
  #waiting = new Map();
  #arrivals = new Set();
  #failures = 0;
  #starts = 0;
  #lastStart = 0;
  #closed = false;

  // serve(method, params) answers the engine; hello() gives what to introduce ourselves with; welcome(answer)
  // is called with the engine's first answer.
  constructor({ folder, log, hello, welcome, serve }) {
    Object.assign(this, { folder, log, hello, welcome, serve });
  }

  start() {
    this.#connect();
  }

  close() {
    this.#closed = true;
    this.#socket?.destroy();
  }

  // -- connecting

  #readPrivate(name) {
    const file = path.join(this.folder, name);
    try {
      const info = fs.lstatSync(file);
      if (!info.isFile() || (process.getuid && info.uid !== process.getuid()) || info.mode & 0o022) return undefined;
      return JSON.parse(fs.readFileSync(file, "utf8"));
    } catch {
      return undefined;
    }
  }

  #connect() {
    if (this.#closed) return;
    const endpoint = this.#readPrivate("endpoint.json");
    if (!endpoint) return this.#lost("no engine is running");
    let socket;
    try {
      socket = endpoint.socket ? net.connect(String(endpoint.socket)) : net.connect(Number(endpoint.port), "127.0.0.1");
    } catch (error) {
      return this.#lost(`endpoint.json makes no sense: ${error.message}`);
    }
    this.#socket = socket;
    let buffer = "";
    socket.setEncoding("utf8");
    socket.unref(); // a CLI process that loaded the plugin may still leave
    socket.on("connect", () => this.#greet(socket, endpoint.token));
    socket.on("data", (chunk) => {
      buffer += chunk;
      const lines = buffer.split("\n");
      buffer = lines.pop();
      if (buffer.length > MAX_ANSWER) return socket.destroy();
      try {
        for (const line of lines) if (line) this.#take(socket, JSON.parse(line));
      } catch (error) {
        this.log.error(`clawstop: the engine makes no sense: ${error.message}`);
        socket.destroy(); // nothing that an engine says may take the gateway down
      }
    });
    socket.on("error", () => {}); // "close" always follows
    socket.on("close", () => this.#lost("the engine went away"));
  }

  async #greet(socket, token) {
    try {
      const hello = { protocol: PROTOCOL, oldest: OLDEST, role: "bridge", token, pid: process.pid, ...this.hello() };
      // At the very moment the answer is read: a newer mirror may stand in the next line.
      await this.#request("hello", hello, 2000, (answer) => {
        this.welcome(answer);
        this.connected = true;
        this.#failures = this.#starts = 0;
      });
      for (const arrived of this.#arrivals) arrived();
      this.#arrivals.clear();
    } catch (error) {
      this.log.error(`clawstop: the engine refused: ${error.message}`);
      socket.destroy();
    }
  }

  #lost(why) {
    this.connected = false;
    this.#socket = undefined;
    for (const { reject } of this.#waiting.values()) reject(new Error(why));
    this.#waiting.clear();
    if (this.#closed) return;
    this.#startEngine();
    const wait = RETRY_MS[Math.min(this.#failures++, RETRY_MS.length - 1)];
    setTimeout(() => this.#connect(), wait).unref();
  }

  // What `install` has set up; undefined where it has not.
  get #command() {
    const command = this.#readPrivate("command.json")?.command;
    const sound = Array.isArray(command) && command.every((word) => typeof word === "string") && path.isAbsolute(command[0] ?? "");
    return sound ? command : undefined;
  }

  // Whether there is an engine that could come.
  get expected() {
    return this.#command !== undefined;
  }

  // A live engine that only cut us off holds its lock: a second one leaves at once and changes nothing.
  #startEngine() {
    const pause = START_EVERY_MS[Math.min(this.#starts, START_EVERY_MS.length - 1)];
    if (Date.now() - this.#lastStart < pause) return;
    const command = this.#command;
    if (!command) {
      if (!this.#starts++) this.log.error("clawstop: not set up: run `clawstop install` once; tools are refused until then");
      return;
    }
    this.#starts++;
    this.#lastStart = Date.now();
    const { CLAWSTOP_COOKIE, ...env } = process.env;
    try {
      const log = fs.openSync(path.join(this.folder, "engine.log"), "a", 0o600);
      const child = spawn(command[0], command.slice(1), { detached: true, stdio: ["ignore", log, log], cwd: this.folder, env: { ...env, OPENCLAW_STATE_DIR: path.dirname(this.folder) } });
      child.on("error", (error) => this.log.error(`clawstop: the engine does not start: ${error.message}`));
      child.unref();
      fs.closeSync(log);
    } catch (error) {
      this.log.error(`clawstop: the engine does not start: ${error.message}`);
    }
  }

  // -- talking

  #take(socket, message) {
    if (message.method) return void this.#serve(socket, message);
    const waiting = this.#waiting.get(message.id);
    if (!waiting) return;
    this.#waiting.delete(message.id);
    if (message.error) waiting.reject(new Error(message.error.message));
    else waiting.resolve(message.result);
  }

  async #serve(socket, { id, method, params }) {
    let answer;
    try {
      answer = { id, result: (await this.serve(method, params)) ?? null };
    } catch (error) {
      answer = { id, error: { code: "failed", message: String(error?.message ?? error) } };
    }
    if (id !== undefined) socket.write(JSON.stringify(answer) + "\n");
  }

  #request(method, params, ms, take = () => {}) {
    return new Promise((resolve, reject) => {
      if (!this.#socket) return reject(new Error("no engine is running"));
      const id = this.#next++;
      const timer = setTimeout(() => {
        this.#waiting.delete(id);
        reject(new Error(`the engine did not answer within ${ms} ms`));
      }, ms);
      const settle = (how) => (value) => (clearTimeout(timer), how(value));
      this.#waiting.set(id, { resolve: settle((value) => (take(value), resolve(value))), reject: settle(reject) });
      this.#socket.write(JSON.stringify({ id, method, params }) + "\n");
    });
  }

  // Wait for a connection if there is none, then ask; `ms` is for both together. What is no longer `wanted` by
  // then is not asked.
  async ask(method, params, ms, wanted = () => true) {
    const end = Date.now() + ms;
    await this.ready(ms);
    if (!wanted()) throw new Error("overtaken by a stop");
    return this.#request(method, typeof params === "function" ? params() : params, Math.max(1, end - Date.now()));
  }

  // Until there is a connection; a rejection after `ms`.
  async ready(ms) {
    if (!this.connected) await this.#arrival(ms);
  }

  #arrival(ms) {
    return new Promise((resolve, reject) => {
      const arrived = () => (clearTimeout(timer), resolve());
      const timer = setTimeout(() => {
        this.#arrivals.delete(arrived);
        reject(new Error("the engine is not running"));
      }, ms);
      this.#arrivals.add(arrived);
    });
  }

  tell(method, params) {
    if (this.connected) this.#socket?.write(JSON.stringify({ method, params }) + "\n");
  }
}
