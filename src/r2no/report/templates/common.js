"use strict";
// What the other scripts share: numbers, colours, elements. Everything that is drawn comes from the
// JSON in #payload; without script the page shows static pictures instead.

const $ = (id) => document.getElementById(id);
const payload = JSON.parse($("payload").textContent);

const decode = (text) => Uint8Array.from(atob(text), (sign) => sign.charCodeAt(0)).buffer;

/** Values of a 16-bit array; code 0 is a missing value. */
const unpack = ({ low, high, data }) =>
  Float64Array.from(new Uint16Array(decode(data)), (code) =>
    code === 0 ? NaN : low + ((code - 1) * (high - low)) / 65534);

const tables = Object.fromEntries(
  Object.entries(payload.tables).map(([name, text]) => [
    name, Uint8Array.from(text.match(/../g), (pair) => parseInt(pair, 16))]));

/** Red, green and blue of a value, or null if it is missing. */
const colour = (name, value, low, high) => {
  if (value === null || Number.isNaN(value)) return null;
  const steps = tables[name].length / 3;
  const place = (value - low) / (high - low || 1);
  const step = 3 * Math.min(steps - 1, Math.max(0, Math.floor(place * steps)));
  return tables[name].subarray(step, step + 3);
};

/** Number with a real minus sign; "n/a" where there is none. */
const show = (value, digits = 3) =>
  value === null || value === undefined || Number.isNaN(value)
    ? "n/a" : Number(value.toPrecision(digits)).toString().replace("-", "−");
const percent = (value, digits = 1) =>
  value === null ? "n/a" : `${(100 * value).toFixed(digits).replace("-", "−")}\u00a0%`;
const fill = (select, names) =>
  select.replaceChildren(...names.map((name, number) => new Option(name, number)));
const node = (tag, text, attributes = {}) => {
  const made = document.createElement(tag);
  made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
};
