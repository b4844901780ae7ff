// The host's own modules and its config, as far as this release has them: probed, never imported statically.
//
// Asked for when a file of ours is loaded: later, after the host has loaded the plugin again, they are not found any more.
// Up to 2026.4.22 a linked plugin does not find them by name; the host's own program does.
import fs from "node:fs";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

export const own = () => createRequire(fs.realpathSync(process.argv[1]));

export async function sdk(name) {
  const module = `openclaw/plugin-sdk/${name}`;
  try {
    return await import(module);
  } catch {
    return import(pathToFileURL(own().resolve(module)).href);
  }
}

// The config that is in force; older releases change theirs only with a restart.
export const configOf = (api) => api.runtime?.config?.current?.() ?? api.runtime?.config?.loadConfig?.() ?? api.config;

// Whether this release knows a hook: of what we have registered it keeps only those. It may not say.
const RUNNER = Symbol.for("openclaw.plugins.hook-runner-global-state");
export const hookRunner = () => globalThis[RUNNER]?.hookRunner;
export const knowsHook = (name) => hookRunner()?.hasHooks?.(name);

// Whether it lets our own one be called: newer ones ask for a permission.
export const letsHook = (name) => globalThis[RUNNER]?.registry?.typedHooks?.some((hook) => hook.pluginId === "clawstop" && hook.hookName === name) === true;

export const probe = (name) => sdk(name).catch(() => undefined);
