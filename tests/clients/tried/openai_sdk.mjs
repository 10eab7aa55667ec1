// OpenAI's SDK for npm: a tool through chat completions and through responses, streamed.

import { check, DESCRIPTION, KEY, load, MODEL, QUESTION, SCHEMA, URL, weather } from "./question.mjs";

const { default: OpenAI } = await load("openai");
const client = new OpenAI({ baseURL: `${URL}/v1`, apiKey: KEY });
const about = { name: "get_weather", description: DESCRIPTION, parameters: SCHEMA };

const tools = [{ type: "function", function: { ...about, function: weather, parse: JSON.parse } }];
const runner = client.chat.completions.runTools({
  model: MODEL,
  messages: [{ role: "user", content: QUESTION }],
  tools,
  stream: true,
  temperature: 0,
});
let pieces = 0;
runner.on("chunk", () => (pieces += 1));
check(await runner.finalContent(), pieces);

let [input, response] = [QUESTION, null];
pieces = 0;
for (let turn = 0; turn < 2; turn += 1) {
  const stream = client.responses.stream({
    model: MODEL,
    input,
    tools: [{ type: "function", strict: true, ...about }],
    temperature: 0,
    ...(response ? { previous_response_id: response.id } : {}),
  });
  for await (const _ of stream) pieces += 1;
  response = await stream.finalResponse();
  const calls = response.output.filter((item) => item.type === "function_call");
  const output = (call) => weather(JSON.parse(call.arguments));
  input = calls.map((call) => ({ type: "function_call_output", call_id: call.call_id, output: output(call) }));
}
check(response.output_text, pieces);
