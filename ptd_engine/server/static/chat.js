// A chat with the server that this page came from. Everything that a model or a user wrote goes
// into the page as text, never as markup.

const byId = (id) => document.getElementById(id);
const BARS = 60; // steps in the chart

let conversation = []; // {role, content}
let running = null; // AbortController of the answer that streams

// --- what a step shows ---------------------------------------------------------------------

class Meter {
  constructor() {
    this.tokens = 0;
    this.counts = []; // {tokens, accepted} of each step
    this.begin = 0;
    this.atFirst = 0;
  }

  add(step) {
    const now = performance.now();
    this.tokens += step.tokens.length;
    if (!this.counts.length) {
      this.begin = now;
      this.atFirst = this.tokens;
    }
    this.counts.push({ tokens: step.tokens.length, accepted: step.accepted });
    byId("tokens").textContent = this.tokens;
    byId("steps").textContent = this.counts.length;
    byId("rate").textContent = (this.tokens / this.counts.length).toFixed(2);
    const seconds = (now - this.begin) / 1000;
    if (seconds > 0) {
      byId("speed").textContent = ((this.tokens - this.atFirst) / seconds).toFixed(1);
    }
    drawChart(this.counts.slice(-BARS));
  }
}

function drawChart(counts) {
  const most = Math.max(4, ...counts.map((c) => c.tokens));
  const unit = 66 / most;
  const width = 300 / BARS;
  const bars = [];
  counts.forEach((count, index) => {
    const bar = (from, tokens, kind) => {
      const rect = document.createElementNS("http://www.w3.org/2000/svg", "rect");
      rect.setAttribute("x", index * width + 0.5);
      rect.setAttribute("width", width - 1);
      rect.setAttribute("y", 70 - (from + tokens) * unit);
      rect.setAttribute("height", tokens * unit);
      rect.setAttribute("class", kind);
      bars.push(rect);
    };
    bar(0, count.accepted, "bar");
    bar(count.accepted, count.tokens - count.accepted, "own");
  });
  byId("chart").replaceChildren(...bars);
}

// A token on one line: blanks and line ends have signs.
function visible(token) {
  const signs = { " ": "·", "\n": "↵", "\t": "→", "\r": "␍" };
  return token.replace(/[ \n\t\r]/g, (blank) => signs[blank]) || "∅";
}

function drawTree(tree) {
  const children = tree.tokens.map(() => []);
  tree.parents.forEach((parent, row) => parent >= 0 && children[parent].push(row));
  const accepted = new Set(tree.accepted_rows);
  const lines = [];
  const walk = (row, lead, branch) => {
    const kind = row === 0 ? "root"
      : accepted.has(row) ? "accepted"
      : row < tree.n_verify ? "candidate" : "draft";
    const line = document.createElement("div");
    line.className = `row ${kind}`;
    line.textContent = lead + branch + visible(tree.tokens[row]);
    lines.push(line);
    const below = branch === "" ? "" : lead + (branch === "└ " ? "  " : "│ ");
    children[row].forEach((child, index) =>
      walk(child, below, index === children[row].length - 1 ? "└ " : "├ "));
  };
  walk(0, "", "");
  byId("tree").replaceChildren(...lines);
}

// --- messages ------------------------------------------------------------------------------

function addMessage(kind, text = "") {
  const box = document.createElement("div");
  box.className = `message ${kind}`;
  box.textContent = text;
  byId("messages").append(box);
  box.scrollIntoView({ block: "end" });
  return box;
}

// The text of drafted tokens is tinted. `text` counts: what steps say beyond it was cut.
function appendStep(box, step, text) {
  let left = text;
  for (const token of step.tokens) {
    const piece = left.slice(0, token.text.length);
    left = left.slice(piece.length);
    if (piece) append(box, piece, token.drafted);
  }
  if (left) append(box, left, false);
}

function append(box, text, drafted) {
  const span = document.createElement("span");
  span.className = drafted ? "drafted" : "own";
  span.textContent = text;
  box.append(span);
}

// --- the server ----------------------------------------------------------------------------

function headers() {
  const key = byId("key").value;
  const found = { "Content-Type": "application/json" };
  if (key) found.Authorization = `Bearer ${key}`;
  return found;
}

async function failure(response) {
  if (response.status === 401) byId("key-form").hidden = false;
  try {
    return (await response.json()).error.message;
  } catch {
    return `${response.status} ${response.statusText}`;
  }
}

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (held + value).split("\n\n");
    held = parts.pop();
    for (const part of parts) {
      if (part.startsWith("data: ") && part !== "data: [DONE]") yield JSON.parse(part.slice(6));
    }
  }
}

async function answer(box, messages) {
  const body = {
    messages,
    stream: true,
    stream_options: { include_steps: true, include_usage: true },
    max_tokens: Number(byId("max-tokens").value),
    temperature: Number(byId("temperature").value),
    speculative: byId("drafting").checked ? "auto" : "none",
  };
  const response = await fetch("/v1/chat/completions", {
    method: "POST", headers: headers(), body: JSON.stringify(body), signal: running.signal,
  });
  if (!response.ok) throw new Error(await failure(response));
  const meter = new Meter();
  for await (const part of events(response)) {
    if (part.error) throw new Error(part.error.message);
    const choice = part.choices[0];
    if (!choice) continue;
    const text = choice.delta.content ?? "";
    if (part.step) {
      meter.add(part.step);
      appendStep(box, part.step, text);
      if (part.step.tree) drawTree(part.step.tree);
    } else if (text) {
      append(box, text, false);
    }
    box.scrollIntoView({ block: "end" });
    if (choice.finish_reason) box.dataset.finish = choice.finish_reason;
  }
  if (!box.dataset.finish) throw new Error("The connection ended before the answer did.");
}

async function ask(text) {
  const own = conversation; // "New chat" begins another one
  own.push({ role: "user", content: text });
  addMessage("user", text);
  const box = addMessage("assistant");
  running = new AbortController();
  busy(true);
  try {
    await answer(box, own);
  } catch (error) {
    if (error.name !== "AbortError") addMessage("error", error.message);
  }
  busy(false);
  running = null;
  if (box.textContent) {
    own.push({ role: "assistant", content: box.textContent });
  } else {
    own.pop(); // there was no answer: the question may be sent again
  }
}

function busy(now) {
  byId("send").disabled = now;
  byId("stop").disabled = !now;
  document.body.dataset.state = now ? "busy" : "idle";
}

async function showModel() {
  const response = await fetch("/v1/models", { headers: headers() });
  if (!response.ok) {
    await failure(response);
    return;
  }
  const model = (await response.json()).data[0];
  byId("model").textContent = model.id;
  byId("max-tokens").max = model.max_model_len;
  byId("max-tokens").value = Math.min(byId("max-tokens").value, model.max_model_len);
}

byId("form").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = byId("input").value.trim();
  if (!text || running) return;
  byId("input").value = "";
  ask(text);
});
byId("input").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    byId("form").requestSubmit();
  }
});
byId("stop").addEventListener("click", () => running?.abort());
byId("reset").addEventListener("click", () => {
  running?.abort();
  conversation = [];
  byId("messages").replaceChildren();
});
byId("key").addEventListener("change", showModel);
byId("key-form").addEventListener("submit", (event) => event.preventDefault());
busy(false);
showModel();
