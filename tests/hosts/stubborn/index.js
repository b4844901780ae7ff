// Somebody else's plugin: a tool that hangs and ends with its signal, and one that does not listen.
const parameters = { type: "object", properties: { url: { type: "string" } }, required: ["url"] };
const told = (text) => ({ content: [{ type: "text", text }] });

export default {
  id: "stubborn",
  name: "stubborn",
  description: "Tools that hang.",
  register(api) {
    api.registerTool({ name: "hang_politely", label: "Hang", description: "Hangs.", parameters, execute: async (id, { url }, signal) => told(await (await fetch(url, { signal })).text()) });
    api.registerTool({ name: "hang_deaf", label: "Hang", description: "Hangs.", parameters, execute: async (id, { url }) => told(await (await fetch(url)).text()) });
  },
};
