// A server of the Model Context Protocol with eight tools that are long to describe: `node mcp_server.mjs NAME`.

import { createInterface } from "node:readline";

const name = process.argv[2];
const words = "A record of the archive, by its number, with all fields that were entered for it. ".repeat(12);
const verbs = ["lookup", "insert", "remove", "search", "export", "import", "rename", "describe"];
const tools = verbs.map((verb) => ({
  name: verb,
  description: `${verb} in ${name}. ${words}`,
  inputSchema: { type: "object", properties: { id: { type: "string", description: words } }, required: ["id"] },
}));

function answer(method, params) {
  switch (method) {
    case "initialize":
      return {
        protocolVersion: params.protocolVersion,
        capabilities: { tools: {} },
        serverInfo: { name, version: "1" },
      };
    case "tools/list":
      return { tools };
    case "tools/call":
      return { content: [{ type: "text", text: `${params.name} in ${name}: tangerine-${params.arguments.id}` }] };
    default:
      return {};
  }
}

createInterface({ input: process.stdin }).on("line", (line) => {
  const { id, method, params } = JSON.parse(line);
  if (id !== undefined) {
    console.log(JSON.stringify({ jsonrpc: "2.0", id, result: answer(method, params) }));
  }
});
