// Who may say what. The host's word on a message's sender counts; where its word is about one chat only, the lists in
// its config are looked at too.

// Whether the host lets this person command the agent. In a direct chat whoever got this far may: some channels work
// it out only for commands.
export const mayCommand = (ctx) => ctx.CommandAuthorized === true || (ctx.ChatType === "direct" && ctx.InboundAccessAuthorized === true);

// Whether they may name an agent: in a chat that is open to everybody only who is on a list. Operators at a page may.
export function mayCommandOthers(config, { channel, account, sender }) {
  if (!channel || channel === "webchat") return true;
  const { open, listed } = lists(config, channel, account);
  return !open || listed.has(String(sender));
}

// A command from a channel's own menu comes with the word of the direct chat also in a group: there the sender must
// be on a list by name.
export function mayUseMenu(config, { channel, account, sender, group, authorised }) {
  return authorised === true && (!group || lists(config, channel, account).listed.has(String(sender)));
}

// Who is named in any list of a channel, and whether any of them lets everybody in.
function lists(config, channel, account) {
  const { accounts, ...whole } = config?.channels?.[channel] ?? {};
  const found = { open: false, listed: new Set() };
  for (const part of [whole, accounts?.[account ?? "default"], { allowFrom: config?.commands?.ownerAllowFrom }]) gather(part, found);
  return found;
}

function gather(part, found) {
  for (const [key, value] of Object.entries(part ?? {})) {
    if (/^(?:dm)?policy$/i.test(key) && value === "open") found.open = true;
    if (/^(?:group)?allowFrom$|^allowedUserIds$/i.test(key) && Array.isArray(value)) {
      for (const name of value.map(String)) found.listed.add(name).add(name.replace(/^[a-z]+:/i, ""));
    } else if (value && typeof value === "object") gather(value, found);
  }
  if (found.listed.has("*")) found.open = true;
}
