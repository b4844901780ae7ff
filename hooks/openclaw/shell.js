// The shell that the host starts for exec is ours: it joins the cage (cgroup) of its run and then is the shell that was
// meant. Without touching the command, so that approvals, allowlists and `process list` see what they always saw.
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { execFile, spawnSync } from "node:child_process";
import { promisify } from "node:util";
import { probe } from "./sdk.js";

const nodeHost = probe("node-host");
const LOGIN_MS = 5000; // a login shell that takes longer is asked by nobody
const NO_SHELLS = new Set(["false", "nologin"]);
const PERSON = "person.json"; // what SHELL was: a gateway that restarts itself inherits ours
const NAME_BYTES = 255; // of a folder
const quote = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

// One that finds its cage taken away comes too late: its run was stopped. Where it merely cannot join, it goes on: it has
// its cookie.
const text = (person, shell, login) => `#!/bin/sh
# Made by clawstop: join the cgroup of this run, then be the shell that OpenClaw meant.
if [ -n "\${CLAWSTOP_CAGE-}" ]; then
  { echo 0 > "$CLAWSTOP_CAGE/cgroup.procs"; } 2>/dev/null || [ -d "$CLAWSTOP_CAGE" ] || { echo "clawstop: this run was stopped" >&2; exit 125; }
  unset CLAWSTOP_CAGE
fi
[ -z "\${SHELL+set}" ] || ${person ? `SHELL=${quote(person)}` : "unset SHELL"}
${login ? `PATH=${quote(login)}"\${PATH:+:$PATH}"\n` : ""}[ "$*" != -l ] || exec ${quote(person || "/bin/bash")} -l
exec ${quote(shell)} "$@"
`;

// The person's own SHELL, put back where it is ours.
export function restoreShell(folder) {
  let person = process.env.SHELL?.trim() || undefined;
  if (person?.startsWith(folder + path.sep)) {
    try {
      person = JSON.parse(fs.readFileSync(path.join(folder, PERSON), "utf8")).shell;
    } catch {
      person = os.userInfo().shell ?? undefined;
    }
    if (person) process.env.SHELL = person;
    else delete process.env.SHELL;
  }
  return person;
}

// Make our shell the host's, unless it is that already. False where it cannot be run.
export async function useShell(folder) {
  if (process.env.SHELL?.startsWith(folder + path.sep) && runnable(process.env.SHELL)) return true;
  const person = restoreShell(folder);
  const shell = hostShell(person);
  fs.mkdirSync(folder, { recursive: true, mode: 0o700 });
  put(path.join(folder, PERSON), JSON.stringify({ shell: person }), 0o600);
  const ours = path.join(folder, path.basename(shell));
  put(ours, text(person, shell, await loginPath(person)), 0o700);
  if (spawnSync(ours, ["-c", "exit 42"], { stdio: "ignore", timeout: 5000 }).status !== 42) return false; // noexec, SELinux
  process.env.SHELL = ours;
  return true;
}

// The host asks the login shell for its PATH once, and believes only what is in /etc/shells: so it asks before it sees
// ours. Where it cannot be made to, we ask, and our shell says it. Undefined where nothing has to be said.
async function loginPath(person) {
  const ask = (await nodeHost)?.resolveNodeHostExecutable;
  if (ask) return void ask("clawstop-no-such-command", { strategy: "fallback" });
  if (!person || !shells().includes(person)) return undefined;
  const { stdout } = await promisify(execFile)(person, ["-l", "-c", "env -0"], { timeout: LOGIN_MS }).catch(() => ({ stdout: "" }));
  return stdout.split("\0").find((one) => one.startsWith("PATH="))?.slice("PATH=".length) || undefined;
}

function shells() {
  try {
    return fs.readFileSync("/etc/shells", "utf8").split("\n").map((line) => line.trim());
  } catch {
    return [];
  }
}

// The cage of a cookie, made if need be; undefined where that cannot be.
export function cageFor(folder, cookie) {
  if (!folder || Buffer.byteLength(cookie) > NAME_BYTES) return undefined;
  try {
    const cage = path.join(folder, cookie);
    fs.mkdirSync(cage, { recursive: true });
    return cage;
  } catch {
    return undefined;
  }
}

// The shell that the host would start: it knows no fish, and takes sh for nobody's.
function hostShell(person) {
  const name = path.basename(person ?? "");
  if (name === "fish") return onPath("bash") ?? onPath("sh") ?? person;
  if (person && !NO_SHELLS.has(name)) return person;
  return onPath("sh") ?? onPath("bash") ?? "/bin/sh";
}

function onPath(name) {
  const files = (process.env.PATH ?? "").split(path.delimiter).filter(Boolean).map((folder) => path.join(folder, name));
  return files.find(runnable);
}

function runnable(file) {
  try {
    fs.accessSync(file, fs.constants.X_OK);
    return true;
  } catch {
    return false;
  }
}

function put(file, content, mode) {
  const next = `${file}.${process.pid}.new`;
  fs.writeFileSync(next, content, { mode });
  fs.chmodSync(next, mode);
  fs.renameSync(next, file);
}
