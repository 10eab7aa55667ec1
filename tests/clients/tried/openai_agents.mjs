// OpenAI's Agents SDK for npm, which speaks the Responses API unless it is told otherwise: a tool, streamed.

import { check, DESCRIPTION, KEY, load, MODEL, QUESTION, SCHEMA, URL, weather } from "./question.mjs";

const { Agent, run, setDefaultOpenAIClient, setOpenAIAPI, setTracingDisabled, tool } = await load("@openai/agents");
const { default: OpenAI } = await load("openai");

setDefaultOpenAIClient(new OpenAI({ baseURL: `${URL}/v1`, apiKey: KEY }));
setTracingDisabled(true);
const tools = [tool({ name: "get_weather", description: DESCRIPTION, parameters: SCHEMA, strict: true, execute: weather })];
for (const api of ["responses", "chat_completions"]) {
  setOpenAIAPI(api);
  const agent = new Agent({ name: "Weather", model: MODEL, tools });
  const result = await run(agent, QUESTION, { stream: true });
  let pieces = 0;
  for await (const event of result) pieces += event.type === "raw_model_stream_event" ? 1 : 0;
  await result.completed;
  check(result.finalOutput, pieces);
}
