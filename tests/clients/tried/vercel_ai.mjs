// Vercel's AI SDK through openai() (responses by default, and chat), anthropic() and openai-compatible: a tool, streamed.

import { check, DESCRIPTION, KEY, load, MODEL, QUESTION, SCHEMA, URL, weather } from "./question.mjs";

const { jsonSchema, stepCountIs, streamText, tool } = await load("ai");
const { createOpenAI } = await load("@ai-sdk/openai");
const { createAnthropic } = await load("@ai-sdk/anthropic");
const { createOpenAICompatible } = await load("@ai-sdk/openai-compatible");

const openai = createOpenAI({ baseURL: `${URL}/v1`, apiKey: KEY });
const models = [
  openai(MODEL),
  openai.chat(MODEL),
  createAnthropic({ baseURL: `${URL}/v1`, apiKey: KEY })(MODEL),
  createOpenAICompatible({ name: "pensieve", baseURL: `${URL}/v1`, apiKey: KEY })(MODEL),
];
for (const model of models) {
  const tools = { get_weather: tool({ description: DESCRIPTION, inputSchema: jsonSchema(SCHEMA), execute: weather }) };
  const stopWhen = stepCountIs(4);
  const result = streamText({ model, prompt: QUESTION, tools, stopWhen, temperature: 0, onError: ({ error }) => console.error(error) });
  let pieces = 0;
  for await (const _ of result.fullStream) pieces += 1;
  check(await result.text, pieces);
}
