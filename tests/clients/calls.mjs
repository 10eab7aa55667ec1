// A table of calls: each is a function that throws where an answer is not what it should be.
//
// The server is told by PENSIEVE_URL; what its model says, by tests/src/clients.rs. The packages are not beside these
// files, so they are loaded from the folder that PENSIEVE_PACKAGES names.

import assert from "node:assert/strict";
import { createRequire } from "node:module";

export const URL = process.env.PENSIEVE_URL;
export const KEY = "pensieve-local-key";
export const MODEL = "scripted";

/** A package, from the folder that this run was told. */
export const load = createRequire(`${process.env.PENSIEVE_PACKAGES}/`);

/** Equality in depth. */
export const equal = assert.deepEqual;

/** All that an iterator yields. */
export async function all(iterator) {
  const items = [];
  for await (const item of iterator) items.push(item);
  return items;
}

/** The error that a call ends with, which must be of this class. */
export async function refused(Kind, call) {
  try {
    await call();
  } catch (error) {
    assert.equal(error.constructor, Kind, `${error}`);
    return error;
  }
  assert.fail(`nothing was refused, but ${Kind.name} was expected`);
}

/** Runs a table. */
export async function run(table) {
  let failed = 0;
  for (const [name, call] of Object.entries(table)) {
    try {
      await call();
      console.log("ok", name);
    } catch (error) {
      failed += 1;
      console.log("FAILED", name);
      console.log(error?.stack ?? error);
    }
  }
  console.log(`${Object.keys(table).length} calls, ${failed} failed`);
  process.exitCode = failed ? 1 : 0;
}
