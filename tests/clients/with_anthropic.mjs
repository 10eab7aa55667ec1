// Anthropic's npm SDK against Pensieve: every feature that is served, streamed and not.

import assert from "node:assert/strict";
import { all, equal, KEY, load, MODEL, refused, run, URL } from "./calls.mjs";

const Anthropic = load("@anthropic-ai/sdk");
const client = new Anthropic({ baseURL: URL, apiKey: KEY, maxRetries: 0, timeout: 60_000 });

const HELLO = "Hello there, blåbær friend 🫐.";
const TOOLS = ["weather", "time"].map((name) => ({
  name,
  description: `Tells the ${name} of a city.`,
  input_schema: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
}));

const user = (content) => ({ role: "user", content });
const body = (content, more) => ({ model: MODEL, max_tokens: 1000, messages: [user(content)], ...more });
const ask = (content, more) => client.messages.create(body(content, more));
const text = (message) => message.content.filter((block) => block.type === "text").map((block) => block.text).join("");
const used = (message) =>
  message.content.filter((block) => block.type === "tool_use").map((block) => [block.name, block.input]);
const total = (usage) => usage.input_tokens + (usage.cache_read_input_tokens ?? 0) + (usage.cache_creation_input_tokens ?? 0);

await run({
  async message() {
    const answer = await ask("Say hello");
    assert(answer.id.startsWith("msg_"));
    equal([answer.type, answer.role, answer.model], ["message", "assistant", MODEL]);
    equal([answer.content.length, text(answer)], [1, HELLO]);
    equal([answer.stop_reason, answer.stop_sequence], ["end_turn", null]);
    assert(total(answer.usage) > 0 && answer.usage.output_tokens > 0);
  },

  async messageStreamed() {
    const events = (await all(await ask("Say hello", { stream: true }))).filter((event) => event.type !== "ping");
    const kinds = events.map((event) => event.type);
    equal(kinds.slice(0, 2), ["message_start", "content_block_start"]);
    equal(kinds.slice(-3), ["content_block_stop", "message_delta", "message_stop"]);
    const pieces = events.filter((event) => event.type === "content_block_delta").map((event) => event.delta.text);
    equal(pieces.join(""), HELLO);
    assert(pieces.length > 4);
  },

  async streamHelper() {
    const stream = client.messages.stream(body("Say hello"));
    let heard = "";
    stream.on("text", (piece) => (heard += piece));
    const final = await stream.finalMessage();
    equal([heard, text(final), final.stop_reason], [HELLO, HELLO, "end_turn"]);
  },

  async tokensAreCounted() {
    const messages = [user("Say hello")];
    const { input_tokens } = await client.messages.countTokens({ model: MODEL, messages, tools: TOOLS });
    const answer = await client.messages.create({ model: MODEL, max_tokens: 10, messages, tools: TOOLS });
    equal(input_tokens, total(answer.usage));
  },

  async toolRoundTrip() {
    const first = await ask("Call for the weather", { tools: TOOLS });
    equal([first.stop_reason, used(first)], ["tool_use", [["weather", { city: "Oslo" }]]]);
    const result = { type: "tool_result", tool_use_id: first.content.at(-1).id, content: "21 degrees" };
    const messages = [user("Call for the weather"), { role: "assistant", content: first.content }, user([result])];
    const second = await client.messages.create({ model: MODEL, max_tokens: 100, messages, tools: TOOLS });
    equal([text(second), second.stop_reason], ["It is 21 degrees in Oslo.", "end_turn"]);
  },

  async toolRunner() {
    const asked = [];
    const weather = { ...TOOLS[0], run: ({ city }) => (asked.push(city), "21 degrees"), parse: (input) => input };
    for (const stream of [false, true]) {
      const runner = client.beta.messages.toolRunner(body("Call for the weather", { tools: [weather], stream }));
      equal(text(await runner.runUntilDone()), "It is 21 degrees in Oslo.");
    }
    equal(asked, ["Oslo", "Oslo"]);
  },

  async toolsStreamed() {
    const stream = client.messages.stream(body("Call for both", { tools: TOOLS }));
    let json = "";
    stream.on("inputJson", (piece) => (json += piece));
    const final = await stream.finalMessage();
    equal(used(final), [["weather", { city: "Oslo" }], ["time", { city: "Bergen" }]]);
    equal(json.replaceAll(/\s/g, ""), '{"city":"Oslo"}{"city":"Bergen"}');
  },

  async toolChoices() {
    const names = async (content, tool_choice) =>
      used(await ask(content, { tools: TOOLS, tool_choice, max_tokens: 200 })).map(([name]) => name);
    equal(await names("Say hello", { type: "none" }), []);
    equal(await names("Call for the weather", { type: "any" }), ["weather"]);
    equal(await names("Call for the weather", { type: "tool", name: "time" }), ["time"]);
    equal(await names("Call for both", { type: "auto", disable_parallel_tool_use: true }), ["weather"]);
  },

  async stopsAndLimits() {
    const stopped = await ask("Say hello", { stop_sequences: [" there"] });
    equal([text(stopped), stopped.stop_reason, stopped.stop_sequence], ["Hello", "stop_sequence", " there"]);
    const cut = await ask("Count", { max_tokens: 3 });
    equal([cut.stop_reason, cut.usage.output_tokens], ["max_tokens", 3]);
  },

  async thinking() {
    const more = { thinking: { type: "adaptive" }, output_config: { effort: "high" } };
    const answer = await ask("Think first", more);
    equal([answer.content[0].type, answer.content[0].thinking.trim(), text(answer)], ["thinking", "Let me see.", "Forty-two."]);
    const stream = client.messages.stream(body("Think first", more));
    let thought = "";
    stream.on("thinking", (piece) => (thought += piece));
    const final = await stream.finalMessage();
    equal(thought.trim(), "Let me see.");
    assert(final.content[0].signature);
    const messages = [user("Think first"), { role: "assistant", content: final.content }, user("Say hello")];
    equal(text(await client.messages.create({ ...body("", more), messages })), HELLO);
  },

  async formats() {
    const properties = { city: { type: "string" }, degrees: { type: "integer" } };
    const schema = { type: "object", properties, required: ["city", "degrees"], additionalProperties: false };
    const format = { type: "json_schema", schema, parse: JSON.parse };
    const parsed = await client.messages.parse(body("Answer in JSON", { output_config: { format } }));
    equal(parsed.parsed_output, { city: "Oslo", degrees: 21 });
  },

  async systems() {
    const cache_control = { type: "ephemeral" };
    const system = [{ type: "text", text: "Be brief." }, { type: "text", text: "Go.", cache_control }];
    equal(text(await ask([{ type: "text", text: "Say hello", cache_control }], { system })), HELLO);
  },

  async beyondTheApi() {
    const answer = await ask("Say hello", { temperature: 0.5, top_k: 5, pensieve: { grammar: { regex: "(yes|no)" } } });
    assert(["yes", "no"].includes(text(answer)));
  },

  async streamLeftEarly() {
    for await (const _ of await ask("Count", { stream: true })) break;
    equal((await ask("Say hello")).stop_reason, "end_turn");
  },

  async models() {
    const models = await all(client.models.list());
    equal(models.map((model) => model.id), [MODEL, `pensieve/claude-${MODEL}`]);
    equal((await client.models.retrieve(MODEL)).id, MODEL);
    equal(text(await ask("Say hello", { model: "claude-haiku-anything" })), HELLO);
  },

  async refusals() {
    const table = {
      max_tokens: { max_tokens: -1 },
      temperature: { temperature: 1.5 },
      tool_choice: { tool_choice: { type: "any" } },
      prompt: { messages: [user("word ".repeat(80_000))] },
    };
    for (const [field, more] of Object.entries(table)) {
      for (const stream of [false, true]) {
        const error = await refused(Anthropic.BadRequestError, () => ask("Say hello", { stream, ...more }));
        assert(error.error.error.message.startsWith(field), error.message);
        assert(error.requestID);
      }
    }
    const other = new Anthropic({ baseURL: URL, apiKey: "sk-ant-of-another-service", maxRetries: 0 });
    assert((await all(other.models.list())).length > 0);
  },
});
