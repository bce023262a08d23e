// Reads the data, from this page or from its server, and draws it.

const all = { data: null, space: null };
const view = { job: null, axis: "time", metric: null, tag: "", log: false };
let reads = 0;

function fail(message) {
  byId("error").hidden = false;
  byId("error").textContent = message;
}

function draw() {
  const { data } = all;
  const names = data.jobs.map((job) => job.job);
  if (!names.includes(view.job)) {
    let newest = data.jobs[0];
    for (const job of data.jobs) if ((job.newest_ns || 0) > (newest.newest_ns || 0)) newest = job;
    view.job = newest ? newest.job : null;
  }
  // What had the focus, to give it back: by its id, or by its label and place.
  const old = document.activeElement;
  const way = (node) => `${node.tagName}:${node.textContent.slice(0, 80)}`;
  const section = old?.closest?.("section")?.id;
  const wanted = section ? way(old) : null;
  document.title = `outlive: ${data.pool}`;
  byId("pool").textContent = data.pool;
  drawSummary(all);
  drawDamage(all);
  drawJobs(all, view.job, (name) => {
    view.job = name;
    draw();
  });
  drawJob(all, data.jobs.find((job) => job.job === view.job), view, draw);
  drawTargets(all);
  if (wanted) {
    const same = [...byId(section).querySelectorAll("button, select, summary, svg, .wide")];
    same.find((node) => way(node) === wanted)?.focus({ preventScroll: true });
  }
}

function show() {
  const { data } = all;
  byId("read-at").textContent =
    `Read at ${when(data.read_ns)}${all.space === null ? "; reading the space …" : "."}`;
  try {
    draw();
  } catch (error) {
    fail(`This page cannot draw the data: ${error.message}. Please report it: a fault of outlive.`);
    throw error;
  }
}

async function fetched(name) {
  let reply;
  try {
    reply = await fetch(name, { cache: "no-store" });
  } catch {
    throw new Error("The server is gone: start `outlive web` again, then load the page from its address.");
  }
  const text = await reply.text();
  let value;
  try {
    value = JSON.parse(text);
  } catch {
    throw new Error(`The server refused ${name}: ${text.trim()}`);
  }
  if (!reply.ok || value.error) throw new Error(`The pool cannot be read: ${value.error?.message ?? text}`);
  return value;
}

async function read() {
  reads += 1;
  const own = reads;
  byId("reload").disabled = true;
  byId("read-at").textContent = "Reading the pool …";
  try {
    const data = await fetched("data.json");
    if (own !== reads) return;
    byId("error").hidden = true;
    Object.assign(all, { data, space: null });
    show();
    const space = await fetched("space.json").catch((error) => ({ error: { message: error.message } }));
    if (own !== reads) return;
    all.space = space;
    show();
  } catch (error) {
    if (own !== reads) return;
    byId("read-at").textContent = all.data ? `Read at ${when(all.data.read_ns)}.` : "Not read.";
    fail(error.message);
  } finally {
    if (own === reads) {
      byId("reload").disabled = false;
      document.body.dataset.done = String(reads);
    }
  }
}

let width = window.innerWidth;
window.addEventListener("resize", () => {
  // Phones change the height whenever their bar goes.
  if (window.innerWidth !== width && all.data) {
    width = window.innerWidth;
    draw();
  }
});
const inside = JSON.parse(byId("data").textContent);
if (inside) {
  Object.assign(all, inside);
  show();
  document.body.dataset.done = "report";
} else {
  byId("reload").hidden = false;
  byId("reload").addEventListener("click", read);
  read();
}
