// ollama's client for npm: a tool, streamed.

import { check, DESCRIPTION, load, MODEL, QUESTION, SCHEMA, URL, weather } from "./question.mjs";

const { Ollama } = await load("ollama");
const client = new Ollama({ host: URL });
const messages = [{ role: "user", content: QUESTION }];
const tools = [{ type: "function", function: { name: "get_weather", description: DESCRIPTION, parameters: SCHEMA } }];
let [pieces, content, calls] = [0, "", []];
for (let turn = 0; turn < 2; turn += 1) {
  [content, calls] = ["", []];
  for await (const part of await client.chat({ model: MODEL, messages, tools, stream: true, options: { temperature: 0 } })) {
    pieces += 1;
    content += part.message.content;
    calls.push(...(part.message.tool_calls ?? []));
  }
  messages.push({ role: "assistant", content, tool_calls: calls });
  for (const { function: tool } of calls) messages.push({ role: "tool", tool_name: tool.name, content: weather(tool.arguments) });
}
check(content, pieces);
