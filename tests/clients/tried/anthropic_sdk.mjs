// Anthropic's SDK for npm: a tool, streamed.

import { check, DESCRIPTION, KEY, load, MODEL, QUESTION, SCHEMA, URL, weather } from "./question.mjs";

const { default: Anthropic } = await load("@anthropic-ai/sdk");
const client = new Anthropic({ baseURL: URL, apiKey: KEY });
const messages = [{ role: "user", content: QUESTION }];
const tools = [{ name: "get_weather", description: DESCRIPTION, input_schema: SCHEMA }];
let [pieces, message] = [0, null];
for (let turn = 0; turn < 2; turn += 1) {
  const stream = client.messages.stream({ model: MODEL, max_tokens: 500, messages, tools, temperature: 0 });
  for await (const _ of stream) pieces += 1;
  message = await stream.finalMessage();
  const calls = message.content.filter((block) => block.type === "tool_use");
  const result = (call) => ({ type: "tool_result", tool_use_id: call.id, content: weather(call.input) });
  messages.push({ role: "assistant", content: message.content }, { role: "user", content: calls.map(result) });
}
check(message.content[0].text, pieces);
