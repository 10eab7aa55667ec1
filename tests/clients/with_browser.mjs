// The page in a real browser: Chromium, driven by playwright-core, against the real server.
//
// PENSIEVE_URL and PENSIEVE_KEY are the server's; PENSIEVE_PACKAGES has the packages, PENSIEVE_BROWSER is the browser,
// PENSIEVE_DROP the plugin folder, PENSIEVE_GOOD a plugin to drop into it. With PENSIEVE_SCREENSHOTS, pictures of the page
// go to that folder. A browser that does not answer any more ends the script.

import { copyFileSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { basename, join } from "node:path";

const { PENSIEVE_URL, PENSIEVE_KEY, PENSIEVE_PACKAGES, PENSIEVE_BROWSER, PENSIEVE_DROP, PENSIEVE_GOOD, PENSIEVE_SCREENSHOTS, PENSIEVE_ODD_NAME, PENSIEVE_SUFFIX } = process.env;
const packages = createRequire(join(PENSIEVE_PACKAGES, "package.json"));
const { chromium } = packages("playwright-core");
const axe = readFileSync(packages.resolve("axe-core/axe.min.js"), "utf8");
const PATIENCE = 45_000;
// Longer than what any check waits for, as far as the driver gives up by itself; questions to a page have no limit.
const HANGS_AFTER = 100_000;
const BROKEN = `broken${PENSIEVE_SUFFIX}`;

let done = 0;
const failed = [];
const noise = [];

async function check(name, work) {
  const hung = setTimeout(() => {
    console.log(`the browser hangs: ${[name, ...failed].join("\n")}`);
    process.exit(1);
  }, HANGS_AFTER);
  try {
    await work();
    done += 1;
  } catch (error) {
    failed.push(`${name}: ${error.message}`);
  }
  clearTimeout(hung);
}

function expect(is, what) {
  if (!is) throw new Error(what);
}

// The page draws in a frame of its own, after what a click does; on a busy machine that is later than the next question.
async function eventually(read, is, what) {
  const until = Date.now() + PATIENCE;
  let last;
  do {
    last = await read();
    if (is(last)) return;
    await new Promise((later) => setTimeout(later, 50));
  } while (Date.now() < until);
  throw new Error(`${what}: ${last}`);
}

const browser = await chromium.launch({
  executablePath: PENSIEVE_BROWSER,
  args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
});

async function open(options) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(PATIENCE);
  page.on("console", (message) => {
    // A wrong key is refused with a status, which the browser itself writes down, as it does that of a server with too much to do.
    const isRefusal = message.type() === "error" && /401|529/.test(message.text());
    if (["error", "warning"].includes(message.type()) && !isRefusal) noise.push(message.text());
  });
  page.on("pageerror", (error) => noise.push(String(error)));
  page.on("request", (request) => {
    const url = request.url();
    if (!url.startsWith(`${PENSIEVE_URL}/`) && !url.startsWith("data:") && !url.startsWith("blob:")) noise.push(`asks for ${url}`);
  });
  page.on("dialog", (dialog) => {
    noise.push(`opens a dialog: ${dialog.message()}`);
    dialog.dismiss();
  });
  return page;
}

async function login(page) {
  await page.goto(`${PENSIEVE_URL}/`);
  await page.fill("#key", PENSIEVE_KEY);
  await page.keyboard.press("Enter");
  await page.waitForSelector(".live.on");
}

async function accessible(page, where) {
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() => globalThis.axe.run());
  const told = violations.map(({ id, nodes }) => `${id}: ${nodes.map(({ html }) => html.slice(0, 160)).join(" ")}`);
  expect(told.length === 0, `${where}: ${told.join("\n")}`);
}

async function picture(page, name) {
  if (!PENSIEVE_SCREENSHOTS) return;
  mkdirSync(PENSIEVE_SCREENSHOTS, { recursive: true });
  await page.screenshot({ path: join(PENSIEVE_SCREENSHOTS, `${name}.png`) });
}

const page = await open({ colorScheme: "light" });

await check("a wrong key is refused, and the right one opens the page", async () => {
  await page.goto(`${PENSIEVE_URL}/`);
  await page.fill("#key", "not the key");
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => document.getElementById("key-error").textContent.length > 0);
  await accessible(page, "the form");
  const wrong = await page.textContent("#key-error");
  await page.fill("#key", "a key that cannot stand in a header: ключ");
  await page.evaluate(() => { document.getElementById("key-error").textContent = ""; });
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => document.querySelector("#key[aria-invalid]"));
  expect((await page.textContent("#key-error")) === wrong, "a key with other characters is not told to be wrong");
  expect(await page.evaluate(() => sessionStorage.length === 0), "a wrong key is kept");
  await page.fill("#key", PENSIEVE_KEY);
  await page.keyboard.press("Enter");
  await page.waitForSelector(".live.on");
  expect(!(await page.evaluate(() => JSON.stringify(localStorage))).includes(PENSIEVE_KEY), "the key is in the local storage");
});

await check("a server with too much to do is waited for, and an address without a view leads to the overview", async () => {
  const other = await open();
  const busy = JSON.stringify({ error: { message: "There is too much to do." } });
  await other.addInitScript((key) => sessionStorage.setItem("pensieve-key", key), PENSIEVE_KEY);
  await other.route("**/v1/usage", (route) => route.fulfill({ status: 529, contentType: "application/json", body: busy }), { times: 2 });
  await other.goto(`${PENSIEVE_URL}/#/constructor`);
  await other.locator("main", { hasText: "There is too much to do." }).waitFor();
  await other.waitForSelector(".live.on");
  await other.waitForSelector(".chart");
  await other.context().close();
});

// No model's id may have such a name, but files, programs and questions may.
await check("names with markup in them stay text", async () => {
  await page.waitForSelector(".model");
  writeFileSync(join(PENSIEVE_DROP, `${PENSIEVE_ODD_NAME}${PENSIEVE_SUFFIX}`), PENSIEVE_ODD_NAME);
  const headers = { authorization: `Bearer ${PENSIEVE_KEY}`, "content-type": "application/json", "user-agent": PENSIEVE_ODD_NAME };
  const messages = [{ role: "user", content: "hello" }];
  const body = (model) => ({ method: "POST", headers, body: JSON.stringify({ model, messages, max_tokens: 4 }) });
  expect((await fetch(`${PENSIEVE_URL}/v1/chat/completions`, body(PENSIEVE_ODD_NAME))).status === 200, "it is refused");
  await page.locator(".ended", { hasText: PENSIEVE_ODD_NAME.split(" ")[0] }).waitFor();
  await page.locator(".ended summary").first().click();
  await page.locator(".ended dd", { hasText: PENSIEVE_ODD_NAME }).waitFor();
  await page.goto(`${PENSIEVE_URL}/#/plugins`);
  await page.locator(".plugin h3", { hasText: PENSIEVE_ODD_NAME }).waitFor();
  expect((await page.locator("main img").count()) === 0, "a name became an element");
  await page.goto(`${PENSIEVE_URL}/#/`);
});

await check("a model is loaded, pinned and unloaded", async () => {
  // Nothing has loaded this one before.
  const model = page.locator('[data-model="second"]');
  const button = (label) => model.getByRole("button", { name: `${label}: second`, exact: true });
  await button("Load").click();
  await model.locator(".badge", { hasText: "ready" }).waitFor();
  await button("Pin").click();
  await button("Unpin").waitFor();
  await button("Unload").click();
  await model.locator(".badge", { hasText: "not loaded" }).waitFor();
  await model.getByText("it was unloaded by request").waitFor();
});

await check("a plugin that is dropped in is accepted while the page is open, and a broken one is refused", async () => {
  await page.goto(`${PENSIEVE_URL}/#/plugins`);
  await page.waitForSelector('[data-state="ready"]');
  const name = basename(PENSIEVE_GOOD);
  expect((await page.locator(`[data-plugin="${name}"]`).count()) === 0, "it was there before");
  copyFileSync(PENSIEVE_GOOD, join(PENSIEVE_DROP, name));
  await page.waitForSelector(`[data-plugin="${name}"][data-state="ready"]`);
  writeFileSync(join(PENSIEVE_DROP, BROKEN), "hello <b>world</b>".repeat(100));
  await page.waitForSelector(`[data-plugin="${BROKEN}"][data-state="rejected"]`);
  expect((await page.locator(`[data-plugin="${BROKEN}"] .bad-text`).textContent()).length > 10, "it is refused without a reason");
  await page.locator(".notice.bad", { hasText: BROKEN }).waitFor();
  await accessible(page, "plugins");
});

await check("the chat streams, and shows how likely each token was under the pointer and the arrow keys", async () => {
  await page.goto(`${PENSIEVE_URL}/#/chat`);
  await page.selectOption("#model-0", "scripted");
  const isKeptOut = await page.evaluate(() => {
    const event = new ClipboardEvent("paste", { clipboardData: new DataTransfer(), bubbles: true, cancelable: true });
    return !document.getElementById("draft").dispatchEvent(event);
  });
  expect(!isKeptOut, "no text can be pasted for a model that reads no images");
  await page.fill("#draft", "Tell me a story");
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => document.querySelectorAll(".token").length > 3);
  const early = (await page.locator(".turn.assistant .text").textContent()).length;
  await page.waitForSelector('.turn.assistant[data-state="done"]');
  const text = await page.locator(".turn.assistant .text").textContent();
  expect(text.startsWith("Once upon a time") && early < text.length, `it said ${text} after ${early} characters`);
  await page.locator(".token").nth(2).hover();
  await page.locator(".detail b", { hasText: "%" }).waitFor();
  await eventually(() => page.locator(".detail .chip").count(), (count) => count > 1, "there are no alternatives");
  await page.locator(".tokens").focus();
  await page.keyboard.press("ArrowRight");
  const first = await page.locator(".detail b").textContent();
  await page.keyboard.press("ArrowRight");
  await eventually(() => page.locator(".detail b").textContent(), (word) => word !== first, "the arrow keys do not walk");
  await accessible(page, "chat");
});

await check("a message is edited, an answer regenerated from the cache, and the conversation kept", async () => {
  const turn = page.locator(".turn.user").first();
  await turn.hover();
  await turn.getByRole("button", { name: "Edit" }).click();
  await page.fill(".editor textarea", "Tell me a story about <i>cats</i>");
  await page.locator(".editor").getByRole("button", { name: "Send again" }).click();
  await page.locator(".turn.user .text", { hasText: "<i>cats</i>" }).waitFor();
  await page.waitForSelector('.turn.assistant[data-state="done"]');
  await page.locator(".turn.assistant").hover();
  await page.getByRole("button", { name: "Regenerate" }).click();
  await page.waitForSelector('.turn.assistant[aria-busy="true"]');
  await page.waitForSelector('.turn.assistant[data-state="done"]');
  const cached = Number((await page.locator(".turn.assistant .note").textContent()).match(/(\d+) of \d+ prompt tokens cached/)?.[1]);
  expect(cached > 0, "nothing was cached");
  await page.reload();
  await page.waitForSelector(".sidebar .open");
  await page.locator(".sidebar .open").first().click();
  await page.waitForSelector(".turn.assistant .token");
});

await check("samplers are offered with the parameters that they describe, and reasoning is folded", async () => {
  await page.getByRole("button", { name: "New conversation" }).first().click();
  await page.getByRole("button", { name: "Settings" }).first().click();
  await page.selectOption("#chain-0", "own");
  await page.selectOption("#add-0", "top_k");
  const k = page.locator(".stage-of", { hasText: "top_k" }).locator("input");
  expect((await k.getAttribute("placeholder")) === "40" && (await k.getAttribute("min")) === "0", "k has no default or range");
  const chain = () => page.locator(".stage-of b").allTextContents();
  await eventually(chain, (names) => names.join(" ") === "temperature top_p top_k seeded", "it is added behind the one that picks");
  await page.selectOption("#add-0", "greedy");
  await eventually(chain, (names) => names.join(" ") === "temperature top_p top_k greedy", "two pick");
  await page.selectOption("#add-0", "bias");
  const fields = { temperature: "1.05", top_p: "0.05", top_k: "10", bias: "7: -1.5, 9: 2" };
  const field = (name) => page.locator(".stage-of", { has: page.getByText(name, { exact: true }) }).locator("input").first();
  for (const [name, text] of Object.entries(fields)) {
    await field(name).pressSequentially(text, { delay: 20 });
    expect((await field(name).inputValue()) === text, `${name} is ${await field(name).inputValue()}`);
  }
  await page.getByRole("button", { name: "Move bias up" }).click();
  await page.getByRole("button", { name: "Settings" }).first().click();
  await page.getByRole("button", { name: "Settings" }).first().click();
  for (const [name, text] of Object.entries(fields)) {
    expect((await field(name).inputValue()) === text, `after reopening ${name} is ${await field(name).inputValue()}`);
  }
  await page.locator(".stage-of", { hasText: "bias" }).getByRole("button", { name: "Remove" }).click();
  await page.locator("fieldset", { hasText: "Tools" }).getByRole("button", { name: "Insert an example" }).click();
  await accessible(page, "settings");
  await page.locator(".stage-of", { hasText: "top_k" }).getByRole("button", { name: "Remove" }).click();
  await page.fill("#tools-0", "");
  await page.getByRole("button", { name: "Settings" }).first().click();
  await page.fill("#draft", "Think about it");
  await page.keyboard.press("Enter");
  await page.waitForSelector('.turn.assistant[data-state="done"]');
  expect(!(await page.locator(".reasoning").evaluate((node) => node.open)), "reasoning is unfolded");
  expect((await page.locator(".reasoning .text").textContent()).includes("Let me see"), "there is no reasoning");
});

await check("a tool is called, and its result goes back", async () => {
  await page.getByRole("button", { name: "New conversation" }).first().click();
  await page.getByRole("button", { name: "Settings" }).first().click();
  await page.locator("fieldset", { hasText: "Tools" }).getByRole("button", { name: "Insert an example" }).click();
  await page.getByRole("button", { name: "Settings" }).first().click();
  await page.fill("#draft", "Call for the weather");
  await page.keyboard.press("Enter");
  await page.fill(".call textarea", "21 degrees");
  await page.getByRole("button", { name: "Send the results" }).click();
  await page.locator(".turn.assistant", { hasText: "It is 21 degrees" }).waitFor();
});

await check("two models answer side by side", async () => {
  await page.getByRole("button", { name: "New conversation" }).first().click();
  await page.getByRole("button", { name: "Second model" }).click();
  await page.fill("#draft", "Tell me a story");
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => document.querySelectorAll('.turn.assistant[data-state="done"]').length === 2);
  await accessible(page, "two models");
  const again = page.getByRole("button", { name: "Regenerate" });
  await eventually(() => again.count(), (count) => count === 2, "not every answer can be regenerated");
  const untouched = await page.locator(".pane").first().locator(".turn.assistant .note").textContent();
  await again.nth(1).click();
  await page.locator(".pane").nth(1).locator('.turn.assistant[aria-busy="true"]').waitFor();
  await page.waitForFunction(() => document.querySelectorAll('.turn.assistant[data-state="done"]').length === 2);
  expect((await page.locator(".pane").first().locator(".turn.assistant .note").textContent()) === untouched, "the other answer changed");
});

await check("a conversation that is deleted while it is answered stays deleted", async () => {
  await page.getByRole("button", { name: "New conversation" }).first().click();
  await page.fill("#draft", "Tell me a story that is deleted");
  await page.keyboard.press("Enter");
  await page.waitForSelector('.turn.assistant[aria-busy="true"]');
  const listed = page.locator(".sidebar .open", { hasText: "that is deleted" });
  await page.getByRole("button", { name: "Delete Tell me a story that is deleted" }).click();
  await page.waitForTimeout(500);
  await page.reload();
  await page.waitForSelector(".sidebar .open");
  expect((await listed.count()) === 0, "it is back");
});

await check("requests are listed with what was cached and why the rest was not", async () => {
  await page.goto(`${PENSIEVE_URL}/#/requests`);
  await page.waitForSelector(".ended li");
  const missed = page.locator(".ended li", { has: page.locator(".miss") }).first();
  await missed.locator("summary").click();
  await missed.locator(".miss", { hasText: "the server has not seen a prompt that begins like this" }).waitFor();
  await accessible(page, "requests");
  await picture(page, "requests-light");
  await page.goto(`${PENSIEVE_URL}/#/`);
  // A line of nothing but zeros has no height, and so is not visible to the driver.
  await page.waitForSelector(".chart .line", { state: "attached" });
  await page.waitForTimeout(3000);
  await accessible(page, "overview");
  await picture(page, "overview-light");
});

await check("the switch changes the colours, and is remembered", async () => {
  const ground = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  const light = await ground();
  await page.getByRole("button", { name: "Colours" }).click();
  await page.getByRole("button", { name: "Colours" }).click();
  await eventually(ground, (colour) => colour !== light, "they stay");
  const dark = await ground();
  await page.reload();
  await page.waitForSelector(".live.on");
  expect((await ground()) === dark, "the choice is forgotten");
  await accessible(page, "dark");
  await page.goto(`${PENSIEVE_URL}/#/chat`);
  await page.locator(".sidebar .open").first().click();
  await page.waitForSelector(".turn.assistant .token");
  await accessible(page, "dark chat");
  await picture(page, "chat-dark");
});

await check("everything is reached by the keyboard, and fits a phone", async () => {
  const phone = await open({ viewport: { width: 390, height: 780 }, colorScheme: "dark" });
  await login(phone);
  await phone.waitForSelector(".model");
  for (const view of ["", "requests", "plugins", "chat"]) {
    await phone.goto(`${PENSIEVE_URL}/#/${view}`);
    await phone.waitForTimeout(300);
    const [wide, inner] = await phone.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
    expect(wide <= inner, `'${view}' is ${wide} pixels wide`);
    await accessible(phone, `phone ${view}`);
  }
  await phone.goto(`${PENSIEVE_URL}/#/plugins`);
  await phone.locator("header a").first().focus();
  const reached = new Set();
  for (let step = 0; step < 12; step += 1) {
    await phone.keyboard.press("Tab");
    reached.add(await phone.evaluate(() => document.activeElement.textContent || document.activeElement.getAttribute("aria-label")));
  }
  for (const name of ["Overview", "Requests", "Plugins", "Chat"]) expect(reached.has(name), `${name} is not reached: ${[...reached]}`);
  await phone.context().close();
});

await check("forgetting the key closes the page", async () => {
  const stopped = page.waitForEvent("requestfailed", (request) => request.url().endsWith("/v1/live"));
  await page.getByRole("button", { name: "Forget the key" }).click();
  await page.waitForSelector("#key");
  await stopped;
  expect(await page.evaluate(() => sessionStorage.length === 0), "the key stays");
});

await browser.close();
if (noise.length > 0) failed.push(`the browser complains: ${noise.join("\n")}`);
for (const line of failed) console.error(line);
console.log(`${done} checks, ${failed.length} failed`);
process.exit(failed.length > 0 ? 1 : 0);
