// Numbers, sizes and times in few characters.

import { words } from "/page/words.js";

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

export function count(value) {
  if (value === null || value === undefined) return words.none;
  if (value < 10_000) return whole.format(value);
  if (value < 1_000_000) return `${(value / 1000).toFixed(value < 100_000 ? 1 : 0)}k`;
  return `${(value / 1_000_000).toFixed(1)}M`;
}

export function bytes(value) {
  if (value === null || value === undefined) return words.none;
  if (value < 1 << 20) return `${Math.round(value / 1024)} KiB`;
  if (value < 1 << 30) return `${Math.round(value / (1 << 20))} MiB`;
  return `${(value / (1 << 30)).toFixed(1)} GiB`;
}

export function rate(value) {
  if (value === null || value === undefined) return words.none;
  return value >= 100 || value === 0 ? whole.format(value) : value.toFixed(1);
}

export function percent(part, all) {
  return all > 0 ? Math.round((part / all) * 100) : 0;
}

// A duration in seconds.
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return words.none;
  if (seconds < 0.995) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return `${Math.round(seconds / 3600)} h`;
}

// A time in seconds since 1970, as the clock shows it.
export function clock(seconds) {
  const time = new Date(seconds * 1000);
  const two = (value) => String(value).padStart(2, "0");
  const text = `${two(time.getHours())}:${two(time.getMinutes())}:${two(time.getSeconds())}`;
  const isToday = time.toDateString() === new Date().toDateString();
  return isToday ? text : `${time.toISOString().slice(0, 10)} ${text}`;
}

// A program's name out of a User-Agent line.
export function program(agent) {
  const first = agent.split(" ")[0] ?? "";
  if (first.startsWith("Mozilla/")) return words.browser;
  return first.split("/").slice(0, 2).join(" ") || words.unknown;
}

// The last part of a path.
export function fileName(path) {
  return path.split("/").filter(Boolean).pop() ?? path;
}
