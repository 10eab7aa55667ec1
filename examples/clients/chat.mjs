// OpenAI's package for npm: an answer, one that streams, and a tool that is called and whose result is told.

import OpenAI from "openai";

const client = new OpenAI({
  baseURL: `${process.env.PENSIEVE_URL ?? "http://127.0.0.1:8000"}/v1`,
  apiKey: "pensieve-local-key",
});
const ask = (messages, more) =>
  client.chat.completions.create({ model: "pensieve-starter", temperature: 0, messages, ...more });
const user = (content) => ({ role: "user", content });
const getWeather = ({ city }) => `21 degrees and sunny in ${city}`;

const answer = await ask([user("list all files in the current directory")]);
console.log(answer.choices[0].message.content);

for await (const chunk of await ask([user("What is Pensieve?")], { stream: true })) {
  process.stdout.write(chunk.choices[0].delta.content ?? "");
}
console.log();

const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const tools = [
  { type: "function", function: { name: "get_weather", description: "Get the current weather in a city", parameters } },
];
const turns = [user("What is the weather like in Lisbon?")];
const { message } = (await ask(turns, { tools })).choices[0];
turns.push(message);
for (const call of message.tool_calls) {
  const content = getWeather(JSON.parse(call.function.arguments));
  turns.push({ role: "tool", tool_call_id: call.id, content });
}
console.log((await ask(turns, { tools })).choices[0].message.content);
