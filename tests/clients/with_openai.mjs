// OpenAI's npm SDK against Pensieve: every feature that is served, streamed and not.

import assert from "node:assert/strict";
import { all, equal, KEY, load, MODEL, refused, run, URL } from "./calls.mjs";

const OpenAI = load("openai");
const client = new OpenAI({ baseURL: `${URL}/v1`, apiKey: KEY, maxRetries: 0, timeout: 60_000 });

const HELLO = "Hello there, blåbær friend 🫐.";
const OSLO = { city: "Oslo", degrees: 21 };
const SCHEMA = {
  type: "object",
  properties: { city: { type: "string" }, degrees: { type: "integer" } },
  required: ["city", "degrees"],
  additionalProperties: false,
};
const TOOLS = ["weather", "time"].map((name) => ({
  type: "function",
  function: {
    name,
    description: `Tells the ${name} of a city.`,
    parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
  },
}));

const user = (content) => ({ role: "user", content });
const body = (text, more) => ({ model: MODEL, messages: [user(text)], ...more });
const ask = (text, more) => client.chat.completions.create(body(text, more));
const stream = async (text, more) => all(await ask(text, { stream: true, ...more }));

/** The text and the reason of a choice that was streamed. */
function said(chunks, index = 0) {
  const choices = chunks.flatMap((chunk) => chunk.choices).filter((choice) => choice.index === index);
  equal(choices[0].delta.role, "assistant");
  const reasons = choices.map((choice) => choice.finish_reason);
  assert(reasons.slice(0, -1).every((reason) => reason === null), `${reasons}`);
  return [choices.map((choice) => choice.delta.content ?? "").join(""), reasons.at(-1)];
}

function addsUp(usage) {
  assert(usage.prompt_tokens > 0 && usage.completion_tokens > 0);
  equal(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens);
  assert(usage.prompt_tokens_details.cached_tokens <= usage.prompt_tokens);
}

const FLAT = TOOLS.map(({ type, function: tool }) => ({ type, ...tool, strict: false }));
const respond = (input, more) => client.responses.create({ model: MODEL, input, ...more });

await run({
  async responses() {
    const response = await respond("Say hello", { instructions: "Be kind." });
    equal([response.output_text, response.status, response.object], [HELLO, "completed", "response"]);
    equal((await client.responses.retrieve(response.id)).output_text, HELLO);
    const next = await respond("Count", { previous_response_id: response.id, max_output_tokens: 3 });
    equal([next.status, next.incomplete_details.reason], ["incomplete", "max_output_tokens"]);
    await client.responses.delete(response.id);
    await refused(OpenAI.NotFoundError, () => client.responses.retrieve(response.id));
  },

  async responsesStreamed() {
    const events = await all(await respond("Say hello", { stream: true }));
    equal(events.map((event) => event.sequence_number), events.map((_, place) => place));
    const deltas = events.filter((event) => event.type === "response.output_text.delta");
    equal(deltas.map((event) => event.delta).join(""), HELLO);
    const helper = client.responses.stream({ model: MODEL, input: "Say hello" });
    equal((await helper.finalResponse()).output_text, HELLO);
  },

  async responsesFunction() {
    const first = await respond("Call for the weather", { tools: FLAT });
    const [call] = first.output;
    equal([call.type, call.name, JSON.parse(call.arguments)], ["function_call", "weather", { city: "Oslo" }]);
    const output = { type: "function_call_output", call_id: call.call_id, output: "21 degrees" };
    const answer = "It is 21 degrees in Oslo.";
    equal((await respond([output], { previous_response_id: first.id, tools: FLAT })).output_text, answer);
    equal((await respond([user("Call for the weather"), call, output], { tools: FLAT, store: false })).output_text, answer);
  },

  async responsesParsed() {
    const format = { type: "json_schema", name: "weather", schema: SCHEMA, strict: true };
    const response = await client.responses.parse({ model: MODEL, input: "Answer in JSON", text: { format } });
    equal(response.output_parsed, OSLO);
  },

  async chat() {
    const answer = await ask("Say hello");
    equal([answer.object, answer.model], ["chat.completion", MODEL]);
    assert(answer.id.startsWith("chatcmpl-") && answer.system_fingerprint.startsWith("fp_"));
    const [choice] = answer.choices;
    equal([choice.index, choice.finish_reason, choice.logprobs], [0, "stop", null]);
    equal(choice.message, { role: "assistant", content: HELLO, refusal: null });
    addsUp(answer.usage);
  },

  async chatStreamed() {
    const chunks = await stream("Say hello", { stream_options: { include_usage: true } });
    const last = chunks.pop();
    equal(said(chunks), [HELLO, "stop"]);
    assert(chunks.every((chunk) => chunk.usage === null && chunk.object === "chat.completion.chunk"));
    equal(last.choices, []);
    addsUp(last.usage);
  },

  async streamHelper() {
    const events = client.chat.completions.stream(body("Say hello"));
    let text = "";
    events.on("content", (delta) => (text += delta));
    const final = await events.finalChatCompletion();
    equal([text, final.choices[0].message.content], [HELLO, HELLO]);
  },

  async toolRoundTrip() {
    const first = await ask("Call for the weather", { tools: TOOLS });
    const [choice] = first.choices;
    equal([choice.finish_reason, choice.message.content], ["tool_calls", null]);
    const [call] = choice.message.tool_calls;
    assert(call.id.startsWith("call_"));
    equal([call.type, call.function.name, JSON.parse(call.function.arguments)], ["function", "weather", { city: "Oslo" }]);
    const result = { role: "tool", tool_call_id: call.id, content: "21 degrees" };
    const messages = [user("Call for the weather"), choice.message, result];
    const second = await client.chat.completions.create({ model: MODEL, messages, tools: TOOLS });
    equal(second.choices[0].message.content, "It is 21 degrees in Oslo.");
  },

  async toolRunner() {
    for (const stream of [false, true]) {
      const asked = [];
      const weather = ({ city }) => (asked.push(city), "21 degrees");
      const { parameters, description } = TOOLS[0].function;
      const tool = { name: "weather", description, parameters, function: weather, parse: JSON.parse };
      const tools = [{ type: "function", function: tool }];
      const runner = client.chat.completions.runTools(body("Call for the weather", { tools, stream }));
      equal(await runner.finalContent(), "It is 21 degrees in Oslo.");
      equal(asked, ["Oslo"]);
    }
  },

  async toolsStreamed() {
    const chunks = await stream("Call for both", { tools: TOOLS });
    equal(said(chunks), ["", "tool_calls"]);
    const events = client.chat.completions.stream(body("Call for both", { tools: TOOLS }));
    const final = await events.finalChatCompletion();
    const calls = final.choices[0].message.tool_calls.map((call) => [call.function.name, JSON.parse(call.function.arguments)]);
    equal(calls, [["weather", { city: "Oslo" }], ["time", { city: "Bergen" }]]);
  },

  async toolChoices() {
    const names = async (text, tool_choice, more) => {
      const answer = await ask(text, { tools: TOOLS, tool_choice, max_tokens: 200, ...more });
      return (answer.choices[0].message.tool_calls ?? []).map((call) => call.function.name);
    };
    equal(await names("Say hello", "none"), []);
    equal(await names("Call for the weather", "required"), ["weather"]);
    equal(await names("Call for the weather", { type: "function", function: { name: "time" } }), ["time"]);
    equal(await names("Call for both", "auto", { parallel_tool_calls: false }), ["weather"]);
  },

  async formats() {
    const json_schema = { name: "weather", schema: SCHEMA, strict: true };
    for (const response_format of [{ type: "json_object" }, { type: "json_schema", json_schema }]) {
      const answer = await ask("Answer in JSON", { response_format });
      equal(JSON.parse(answer.choices[0].message.content), OSLO);
      const [text, reason] = said(await stream("Answer in JSON", { response_format }));
      equal([JSON.parse(text), reason], [OSLO, "stop"]);
    }
    const response_format = { type: "json_schema", json_schema };
    const parsed = await client.chat.completions.parse(body("Answer in JSON", { response_format }));
    equal(parsed.choices[0].finish_reason, "stop");
  },

  async logProbabilities() {
    const choice = (await ask("Say hello", { logprobs: true, top_logprobs: 2 })).choices[0];
    const chunks = await stream("Say hello", { logprobs: true, top_logprobs: 2 });
    const streamed = chunks.flatMap((chunk) => chunk.choices[0].logprobs?.content ?? []);
    for (const tokens of [choice.logprobs.content, streamed]) {
      equal(Buffer.from(tokens.flatMap((token) => token.bytes)).toString(), HELLO);
      assert(tokens.every((token) => token.logprob <= 0 && token.top_logprobs.length === 2));
    }
  },

  async severalChoices() {
    const answer = await ask("Say hello", { n: 2, seed: 7 });
    equal(answer.choices.map((choice) => [choice.index, choice.message.content]), [[0, HELLO], [1, HELLO]]);
    const chunks = await stream("Say hello", { n: 2 });
    equal([said(chunks, 0), said(chunks, 1)], [[HELLO, "stop"], [HELLO, "stop"]]);
  },

  async sampling() {
    const more = {
      seed: -7, temperature: 0.5, top_p: 0.9, presence_penalty: 0.1, frequency_penalty: -0.1, logit_bias: { 5: -1 },
      user: "ada", metadata: { a: "b" }, store: false, reasoning_effort: "none",
    };
    equal((await ask("Say hello", more)).choices[0].message.content, HELLO);
  },

  async stopsAndLimits() {
    const stopped = await ask("Say hello", { stop: ["x", " there"] });
    equal([stopped.choices[0].message.content, stopped.choices[0].finish_reason], ["Hello", "stop"]);
    equal(said(await stream("Say hello", { stop: " there" })), ["Hello", "stop"]);
    const cut = await ask("Count", { max_completion_tokens: 3 });
    equal([cut.choices[0].finish_reason, cut.usage.completion_tokens], ["length", 3]);
  },

  async reasoning() {
    const { message } = (await ask("Think first")).choices[0];
    equal([message.content, message.reasoning_content.trim()], ["Forty-two.", "Let me see."]);
    const chunks = await stream("Think first");
    const thoughts = chunks.map((chunk) => chunk.choices[0].delta.reasoning_content ?? "").join("");
    equal([thoughts.trim(), ...said(chunks)], ["Let me see.", "Forty-two.", "stop"]);
  },

  async beyondTheApi() {
    const answer = await ask("Say hello", { pensieve: { grammar: { regex: "(yes|no)" } } });
    assert(["yes", "no"].includes(answer.choices[0].message.content));
  },

  async streamLeftEarly() {
    for await (const _ of await ask("Count", { stream: true })) break;
    equal((await ask("Say hello")).choices[0].finish_reason, "stop");
  },

  async completions() {
    const complete = (more) => client.completions.create({ model: MODEL, prompt: "Once upon", max_tokens: 50, ...more });
    const answer = await complete();
    equal([answer.object, answer.choices[0].text, answer.choices[0].finish_reason], ["text_completion", " a time.", "stop"]);
    addsUp(answer.usage);
    const chunks = await all(await complete({ stream: true }));
    equal(chunks.map((chunk) => chunk.choices[0].text).join(""), " a time.");
    equal((await complete({ echo: true })).choices[0].text, "Once upon a time.");
    const several = await complete({ prompt: ["Once upon", "Say hello"] });
    equal(several.choices.map((choice) => choice.text), [" a time.", HELLO]);
    equal((await complete({ prompt: [1, 2, 3], max_tokens: 2 })).usage.prompt_tokens, 3);
    const { text, logprobs } = (await complete({ logprobs: 1 })).choices[0];
    equal(logprobs.tokens.join(""), text);
    equal((await refused(OpenAI.BadRequestError, () => complete({ suffix: "x" }))).param, "suffix");
  },

  async models() {
    const models = await all(client.models.list());
    equal(models.map((model) => [model.id, model.object]), [[MODEL, "model"]]);
    equal((await client.models.retrieve(MODEL)).id, MODEL);
    const error = await refused(OpenAI.NotFoundError, () => client.models.retrieve("nobody"));
    equal(error.code, "model_not_found");
  },

  async refusals() {
    const table = {
      temperature: { temperature: -1 },
      n: { n: 0 },
      top_logprobs: { logprobs: true, top_logprobs: 21 },
      "response_format.type": { response_format: { type: "yaml" } },
    };
    for (const [field, more] of Object.entries(table)) {
      for (const stream of [false, true]) {
        const error = await refused(OpenAI.BadRequestError, () => ask("Say hello", { stream, ...more }));
        equal([error.param, error.type], [field, "invalid_request_error"]);
      }
    }
    const image = [{ type: "image_url", image_url: { url: "data:image/png;base64,AAAA" } }];
    equal((await ask(image)).object, "chat.completion");
    const long = await refused(OpenAI.BadRequestError, () => ask("word ".repeat(80_000)));
    equal(long.code, "context_length_exceeded");
    const other = new OpenAI({ baseURL: `${URL}/v1`, apiKey: "sk-proj-of-another-service", maxRetries: 0 });
    assert((await all(other.models.list())).length > 0);
  },

  async rawResponses() {
    const { data, response } = await ask("Say hello").withResponse();
    assert(response.headers.get("x-request-id"));
    equal(data.choices[0].finish_reason, "stop");
  },
});
