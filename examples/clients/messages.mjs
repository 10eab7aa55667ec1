// Anthropic's package for npm: an answer, one that streams, and a tool that is called and whose result is told.

import Anthropic from "@anthropic-ai/sdk";

const client = new Anthropic({
  baseURL: process.env.PENSIEVE_URL ?? "http://127.0.0.1:8000",
  apiKey: "pensieve-local-key",
});
const common = { model: "pensieve-starter", max_tokens: 100 };
const user = (content) => ({ role: "user", content });
const getWeather = ({ city }) => `21 degrees and sunny in ${city}`;

const messages = [user("list all files in the current directory")];
const answer = await client.messages.create({ ...common, messages });
console.log(answer.content[0].text);

const stream = client.messages.stream({ ...common, messages: [user("What is Pensieve?")] });
stream.on("text", (piece) => process.stdout.write(piece));
await stream.finalMessage();
console.log();

const tools = [
  {
    name: "get_weather",
    description: "Get the current weather in a city",
    input_schema: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
  },
];
const turns = [user("What is the weather like in Lisbon?")];
const asked = await client.messages.create({ ...common, messages: turns, tools });
const calls = asked.content.filter((block) => block.type === "tool_use");
const results = calls.map((call) => ({ type: "tool_result", tool_use_id: call.id, content: getWeather(call.input) }));
turns.push({ role: "assistant", content: asked.content }, user(results));
const told = await client.messages.create({ ...common, messages: turns, tools });
console.log(told.content[0].text);
