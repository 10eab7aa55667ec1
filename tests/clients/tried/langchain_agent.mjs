// LangChain for npm, chat and responses: a tool, streamed.

import { check, DESCRIPTION, KEY, load, MODEL, QUESTION, SCHEMA, URL, weather } from "./question.mjs";

const { ChatOpenAI } = await load("@langchain/openai");
const { HumanMessage, ToolMessage } = await load("@langchain/core/messages");

for (const useResponsesApi of [false, true]) {
  const configuration = { baseURL: `${URL}/v1` };
  const chat = new ChatOpenAI({ model: MODEL, apiKey: KEY, temperature: 0, useResponsesApi, configuration });
  const schema = { type: "function", function: { name: "get_weather", description: DESCRIPTION, parameters: SCHEMA } };
  const model = chat.bindTools([schema]);
  const messages = [new HumanMessage(QUESTION)];
  let [pieces, message] = [0, null];
  for (let turn = 0; turn < 2; turn += 1) {
    message = null;
    for await (const chunk of await model.stream(messages)) {
      message = message ? message.concat(chunk) : chunk;
      pieces += 1;
    }
    messages.push(message);
    for (const call of message.tool_calls) messages.push(new ToolMessage({ content: weather(call.args), tool_call_id: call.id }));
  }
  check(message.text, pieces);
}
