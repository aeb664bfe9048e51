/* Axes of the charts: ticks at 1, 2 and 5 times a power of ten, units of time and of memory, and the grid, as SVG. */
import { number } from "./page.js";

export const HEIGHT = 190;
export const [TOP, RIGHT, BOTTOM] = [8, 14, 22];
const SIZES = ["bytes", "KiB", "MiB", "GiB", "TiB"];
/** The time axis of trainings that ran for at least so many seconds: seconds of a unit, its name, and its symbol at the ticks. */
const TIMES = [[7200, 3600, "hour", " h"], [60, 60, "minute", " min"], [0, 1, "second", " s"]];

export function svg(name, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

/**
 * Lay out a plot of `HEIGHT`: `toX` and `toY` map values to pixels, and `grid` draws the ticks. `createX` is called with
 * the pixels between the margins, and returns the horizontal axis; `symbol` is the unit at its ticks.
 */
export function layOut(width, y, createX, symbol = "") {
  const left = 12 + 6.5 * Math.max(0, ...y.ticks.map(([, words]) => words.length));
  const inner = width - left - RIGHT;
  const x = createX(inner);
  const toX = (value) => left + inner * x.place(value);
  const toY = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - y.place(value));
  const grid = [
    ...y.ticks.flatMap(([value, words]) => [
      svg("path", { class: "grid", d: `M${left} ${toY(value)}H${width - RIGHT}` }),
      svg("text", { x: left - 6, y: toY(value) + 4, "text-anchor": "end" }, words)]),
    ...x.ticks.flatMap(([value, words]) => [
      svg("path", { class: "grid", d: `M${toX(value)} ${TOP}V${HEIGHT - BOTTOM}` }),
      svg("text", { x: toX(value), y: HEIGHT - 6, "text-anchor": "middle" }, words + symbol)])];
  return { toX, toY, grid };
}

/** Index of the number that is nearest to `wanted` in ascending numbers. */
export function nearest(numbers, wanted) {
  let [low, high] = [0, numbers.length - 1];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (numbers[middle] <= wanted) low = middle;
    else high = middle;
  }
  return wanted - numbers[low] <= numbers[high] - wanted ? low : high;
}

export function timeUnit(curves) {
  const longest = Math.max(...curves.map(({ points }) => points.at(-1)[0]));
  return TIMES.find(([least]) => longest >= least).slice(1);
}

const sizeExponent = (bytes) => Math.min(SIZES.length - 1, Math.max(0, Math.floor(Math.log2(bytes || 1) / 10)));
export function formatSize(bytes) {
  const exponent = sizeExponent(bytes);
  return `${number(bytes / 1024 ** exponent)} ${SIZES[exponent]}`;
}

/** Return an axis: `place` maps a value to a number between 0 and 1, `ticks` are about `most` [value, text] pairs without equal texts. */
export function createAxis(values, most, { isLog = false, isSize = false, isWhole = false, fromZero = false, margin }) {
  if (!values.length) return { place: () => 0, ticks: [] };
  const [toScale, fromScale] = isLog ? [Math.log10, (value) => 10 ** value] : [Number, Number];
  let [low, high] = [Math.min(...values), Math.max(...values)].map(toScale);
  if (fromZero && low > 0) low = 0;
  const range = high - low;
  // Values that differ in their last digits only are drawn as a constant.
  const extra = range > 1e-6 * Math.max(Math.abs(low), Math.abs(high)) ? margin * range : isLog ? 0.5 : Math.abs(high) / 10 || 1;
  if (!(fromZero && low === 0)) low -= margin ? extra : 0;
  high += extra;
  const place = (value) => (toScale(value) - low) / (high - low);
  const unit = isSize ? 1024 ** sizeExponent(fromScale(high)) : 1;
  const suffix = isSize ? ` ${SIZES[sizeExponent(fromScale(high))]}` : "";
  if (isLog && high - low >= 1) return { place, ticks: logTicks(low, high, most) };
  const [first, last] = [fromScale(low) / unit, fromScale(high) / unit];
  return { place, ticks: linearTicks(first, last, most, isWhole).map(([value, words]) => [value * unit, words + suffix]) };
}

/** Multiples of 1, 2 or 5 times a power of ten. */
function linearTicks(low, high, most, isWhole) {
  const least = (high - low) / most;
  const power = 10 ** Math.floor(Math.log10(least));
  const step = Math.max([1, 2, 5, 10].find((each) => each * power >= least) * power, isWhole ? 1 : 0);
  const first = Math.ceil(low / step - 1e-9);
  const count = Math.floor(high / step + 1e-9) - first + 1;
  const largest = Math.max(Math.abs(low), Math.abs(high));
  return Array.from({ length: count }, (_, at) => (first + at) * step + 0).map((value) => [value, formatTick(value, step, largest)]);
}

/** Powers of ten, between which there are 2 and 5 if there are few; `low` and `high` are exponents. */
function logTicks(low, high, most) {
  const every = Math.ceil((high - low) / most);
  const factors = high - low < 2 ? [1, 2, 5] : [1];
  const exponents = Array.from({ length: Math.floor(high) - Math.floor(low) + 1 }, (_, at) => Math.floor(low) + at).filter((each) => each % every === 0);
  const values = exponents.flatMap((exponent) => factors.map((factor) => [Number(`${factor}e${exponent}`), 10 ** exponent]));
  return values.filter(([value]) => Math.log10(value) >= low && Math.log10(value) <= high).map(([value, step]) => [value, formatTick(value, step, value)]);
}

/** A number with the digits that tell it from the next one, `step` away; `largest` is the largest of the axis. */
function formatTick(value, step, largest) {
  const digit = Math.floor(Math.log10(step) + 1e-9);
  if (largest >= 1e7 || largest < 1e-3) {
    if (value === 0) return "0";
    const digits = Math.max(0, Math.floor(Math.log10(Math.abs(value)) + 1e-9) - digit);
    return value.toExponential(digits).replace("e+", "e");
  }
  const digits = Math.max(0, -digit);
  return value.toLocaleString(undefined, { minimumFractionDigits: digits, maximumFractionDigits: digits });
}
