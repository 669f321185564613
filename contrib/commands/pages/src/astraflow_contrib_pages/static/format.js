// Numbers and times as people read them.
const NONE = "–";
const whole = new Intl.NumberFormat("en"); // to make one takes longer than to use it a hundred times

export function number(value, digits = 4) {
  if (value === null || value === undefined || Number.isNaN(value)) return NONE;
  if (typeof value !== "number") return String(value);
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-4) return value.toExponential(2);
  return Number.isInteger(value) ? whole.format(value) : String(Number(value.toPrecision(digits)));
}

export const count = (value) => {
  if (value === null || value === undefined) return NONE;
  for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (value >= size) return `${Number((value / (unit === "k" ? 1e3 : size)).toPrecision(3))} ${unit}`;
  }
  return number(value);
};

export const percent = (value) => (value === null || value === undefined ? NONE : `${(100 * value).toFixed(1)} %`);

export function seconds(value) {
  if (value === null || value === undefined) return NONE;
  if (value < 60) return `${value.toFixed(value < 10 ? 1 : 0)} s`;
  if (value < 3600) return `${Math.floor(value / 60)} min ${Math.floor(value % 60)} s`;
  return `${Math.floor(value / 3600)} h ${Math.floor((value % 3600) / 60)} min`;
}

export const bytes = (value) => (value >= 1e9 ? `${(value / 1e9).toFixed(2)} GB` : value >= 1e6 ? `${(value / 1e6).toFixed(1)} MB` : `${(value / 1e3).toFixed(1)} kB`);

export function when(time) {
  if (!time) return NONE;
  const date = new Date(time * 1000);
  const two = (n) => String(n).padStart(2, "0");
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${two(date.getHours())}:${two(date.getMinutes())}`;
}

export const shown = (value) => (typeof value === "string" ? value : JSON.stringify(value) ?? NONE);
