// Numbers and times as the command line shows them.

function bytes(count) {
  if (count === null || count === undefined) return "-";
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (count >= 1024 && unit < units.length - 1) {
    count /= 1024;
    unit += 1;
  }
  return `${unit ? count.toFixed(1) : Math.round(count)} ${units[unit]}`;
}

function counted(number, noun) {
  return `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
}

function plain(value) {
  if (value === null || value === undefined) return "-";
  if (Number.isInteger(value)) return value.toLocaleString("en");
  return String(Number(value.toPrecision(5)));
}

// A duration in seconds.
function span(seconds) {
  if (seconds === null || seconds === undefined) return "-";
  if (seconds < 0.0995e-3) return `${plain(Number((seconds * 1e6).toPrecision(3)))} µs`;
  if (seconds < 0.0995) return `${plain(Number((seconds * 1e3).toPrecision(3)))} ms`;
  if (seconds < 60) return `${plain(Number(seconds.toPrecision(3)))} s`;
  const whole = Math.round(seconds);
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

// A time in nanoseconds since 1970, in UTC.
function when(ns) {
  const date = new Date(ns / 1e6);
  if (Number.isNaN(date.getTime())) return "-";
  return `${date.toISOString().slice(0, 19).replace("T", " ")}Z`;
}

function age(ns, now) {
  return ns === null || ns === undefined ? "-" : span(Math.max(0, Math.round((now - ns) / 1e9)));
}

// The shortest form of a time that tells the ends of an axis apart; `length` is that of the axis.
function clock(seconds, length) {
  const text = when(seconds * 1e9);
  if (text === "-") return text;
  if (length > 5 * 86400) return text.slice(0, 10);
  return length > 600 ? text.slice(5, 16) : text.slice(11, 19);
}

