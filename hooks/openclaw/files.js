// The files that a bridge leaves in clawstop's folder.
import fs from "node:fs";
import path from "node:path";

const presence = (folder) => path.join(folder, "bridges", `${process.pid}.json`);

// That a gateway runs here: a stop from a shell waits for it, and never kills it.
export function writePresence(folder) {
  fs.mkdirSync(path.join(folder, "bridges"), { recursive: true, mode: 0o700 });
  fs.writeFileSync(presence(folder), JSON.stringify({ pid: process.pid, start: startTime() }), { mode: 0o600 });
}

export const removePresence = (folder) => fs.rmSync(presence(folder), { force: true });

// A stop that the engine takes in when it comes back. Durable before it has its name.
export function writeTombstone(folder, id, stop) {
  const file = path.join(folder, "tombstones", `${id}.json`);
  fs.mkdirSync(path.dirname(file), { recursive: true, mode: 0o700 });
  const handle = fs.openSync(`${file}.new`, "w", 0o600);
  fs.writeSync(handle, JSON.stringify({ ...stop, at: Date.now() }));
  fs.fsyncSync(handle);
  fs.closeSync(handle);
  fs.renameSync(`${file}.new`, file);
  const parent = fs.openSync(path.dirname(file), "r");
  fs.fsyncSync(parent);
  fs.closeSync(parent);
}

// Sessions whose queue mode is chosen by us for a moment: what a crash would leave.
const queued = (folder) => path.join(folder, "queued.json");
export const writeQueued = (folder, modes) => fs.writeFileSync(queued(folder), JSON.stringify(modes), { mode: 0o600 });
export function readQueued(folder) {
  try {
    return JSON.parse(fs.readFileSync(queued(folder), "utf8"));
  } catch {
    return {};
  }
}

// Linux: start ticks, as in skill/clawstop/processes.py; elsewhere seconds, which only have to be a number.
function startTime() {
  try {
    return Number(fs.readFileSync("/proc/self/stat", "utf8").split(") ").pop().split(" ")[19]);
  } catch {
    return Date.now() / 1000 - process.uptime();
  }
}
