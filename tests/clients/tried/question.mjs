// What every program in this folder asks, and how it is seen that the model has called the tool and told what it said.

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

export const URL = process.env.PENSIEVE_URL;
export const KEY = "sk-of-another-service";
export const MODEL = "pensieve-starter";
export const QUESTION = "What is the weather like in Lisbon?";
export const DESCRIPTION = "Get the current weather in a city";
export const SCHEMA = {
  type: "object",
  properties: { city: { type: "string" } },
  required: ["city"],
  additionalProperties: false,
};

const require = createRequire(`${process.env.PENSIEVE_PACKAGES}/`);

/** A package, from the folder that this run was told. */
export const load = (name) => import(pathToFileURL(require.resolve(name)));

export const called = [];

export function weather({ city }) {
  called.push(city);
  return `21 degrees and sunny in ${city}`;
}

export function check(answer, pieces) {
  assert.deepEqual(called.splice(0), ["Lisbon"]);
  assert(answer.includes("21 degrees and sunny in Lisbon"), answer);
  assert(pieces > 1, `the stream has ${pieces} pieces`);
  console.log(`called, answered and streamed in ${pieces} pieces: ${answer.trim()}`);
}
