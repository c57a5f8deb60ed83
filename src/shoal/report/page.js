"use strict";
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const make = (name, attributes) => {
    const node = document.createElementNS(SVG, name);
    for (const key in attributes) node.setAttribute(key, attributes[key]);
    return node;
  };
  const digits = (value, count) => {
    const magnitude = value ? Math.floor(Math.log10(Math.abs(value))) : 0;
    return value.toLocaleString("en-US", {
      minimumFractionDigits: Math.max(0, count - 1 - magnitude),
      maximumFractionDigits: Math.max(0, count - 1 - magnitude),
    });
  };
  const FORMATS = {
    number(value) {
      const size = Math.abs(value);
      if (size && (size < 1e-3 || size >= 1e6)) {
        return value.toExponential(2).replace("e+", "e").replace(/-/g, "\u2212");
      }
      return digits(value, 4).replace("-", "\u2212");
    },
    compact(value) {
      const scales = [[1e15, "Q"], [1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "k"]];
      for (const [scale, unit] of scales) {
        if (Math.abs(value) >= scale * 0.9995) return digits(value / scale, 3) + unit;
      }
      return digits(value, 3);
    },
    duration(value) {
      if (value < 60) return value.toFixed(value < 1 ? 2 : value < 10 ? 1 : 0) + " s";
      const whole = Math.round(value);
      const two = (part) => String(part).padStart(2, "0");
      if (whole < 3600) return `${Math.floor(whole / 60)} min ${two(whole % 60)} s`;
      if (whole < 172800) return `${Math.floor(whole / 3600)} h ${two(Math.floor((whole % 3600) / 60))} min`;
      return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
    },
  };
  const share = (value, [low, high, log]) =>
    log ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low);
  const valueAt = (place, [low, high, log]) =>
    log ? low * (high / low) ** place : low + place * (high - low);

  // The nearest point with a value; points ascend in x.
  const nearest = (series, x) => {
    let low = 0, high = series.x.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (series.x[middle] < x) low = middle; else high = middle;
    }
    const found = Math.abs(series.x[low] - x) <= Math.abs(series.x[high] - x) ? low : high;
    return series.y[found] === null || series.y[found] === undefined ? -1 : found;
  };

  const line = (figure, plot, data) => {
    const outputs = [...figure.querySelectorAll(".legend output")];
    const finals = outputs.map((output) => output.textContent);
    const where = figure.querySelector(".where");
    const writeX = FORMATS[data.x[3]], writeY = FORMATS[data.y[3]];
    const layer = make("g", {});
    plot.append(layer);
    const leave = () => {
      layer.replaceChildren();
      where.textContent = "";
      outputs.forEach((output, place) => { output.textContent = finals[place]; });
    };
    const show = (place) => {
      const target = valueAt(place, data.x);
      const found = data.series.map((series) => nearest(series, target));
      const first = data.series.findIndex((_, n) => found[n] >= 0);
      if (first < 0) return leave();
      const x = data.series[first].x[found[first]];
      const across = `${100 * share(x, data.x)}%`;
      layer.replaceChildren(make("line", { x1: across, x2: across, y1: 0, y2: "100%", class: "cursor" }));
      const values = [];
      data.series.forEach((series, n) => {
        if (found[n] < 0) {
          if (!data.family) outputs[n].textContent = "\u2013";
          return;
        }
        const y = series.y[found[n]];
        values.push(y);
        if (!data.family) outputs[n].textContent = writeY(y);
        const up = share(y, data.y);
        if (up < 0 || up > 1 || Number.isNaN(up)) return;
        layer.append(make("circle", {
          cx: `${100 * share(series.x[found[n]], data.x)}%`, cy: `${100 * (1 - up)}%`, r: 4,
          class: `probe ${series.style}`,
        }));
      });
      if (data.family) outputs[0].textContent = `${writeY(Math.min(...values))} to ${writeY(Math.max(...values))}`;
      where.textContent = `at ${writeX(x)} ${data.unit}`;
    };
    return { show, leave };
  };

  const heat = (figure, plot, data) => {
    const where = figure.querySelector(".where");
    const inner = plot.querySelector("svg");
    const rows = data.values.length, columns = data.values[0].length;
    const pick = make("rect", { width: 1, height: 1, class: "pick" });
    const leave = () => { pick.remove(); where.textContent = ""; };
    const show = (x, y) => {
      const column = Math.min(columns - 1, Math.max(0, Math.floor(x * columns)));
      const row = Math.min(rows - 1, Math.max(0, Math.floor(y * rows)));
      pick.setAttribute("x", column);
      pick.setAttribute("y", row);
      inner.append(pick);
      where.textContent = `layer ${row}, expert ${column}: ${FORMATS.number(data.values[row][column])}`;
    };
    return { show, leave };
  };

  for (const figure of document.querySelectorAll("figure.chart")) {
    const frame = figure.querySelector(".frame"), plot = figure.querySelector("svg.plot");
    let chart = null, x = 1, y = 0;
    // The numbers are only read when someone asks.
    const ready = () => {
      chart ??= { line, heat }[figure.dataset.kind](
        figure, plot, JSON.parse(figure.querySelector('script[type="application/json"]').textContent));
      return chart;
    };
    const clamp = (part) => Math.min(1, Math.max(0, part));
    const point = (event) => {
      const box = plot.getBoundingClientRect();
      x = clamp((event.clientX - box.left) / box.width);
      y = clamp((event.clientY - box.top) / box.height);
      ready().show(x, y);
    };
    frame.addEventListener("pointermove", point);
    frame.addEventListener("pointerdown", point);
    frame.addEventListener("pointerleave", () => chart?.leave());
    frame.addEventListener("blur", () => chart?.leave());
    frame.addEventListener("keydown", (event) => {
      const moves = { ArrowLeft: [-0.01, 0], ArrowRight: [0.01, 0], ArrowUp: [0, -0.1], ArrowDown: [0, 0.1] };
      if (event.key === "Escape") chart?.leave();
      const move = moves[event.key];
      if (!move || (move[1] && figure.dataset.kind === "line")) return;
      event.preventDefault();
      x = clamp(x + move[0]);
      y = clamp(y + move[1]);
      ready().show(x, y);
    });
  }

  // Which section is being read, for the list of sections.
  const nav = document.querySelector("nav");
  const links = new Map([...nav.querySelectorAll("a")].map((a) => [a.hash.slice(1), a]));
  const seen = new Set();
  const observer = new IntersectionObserver((entries) => {
    for (const entry of entries) seen[entry.isIntersecting ? "add" : "delete"](entry.target.id);
    const current = [...links.keys()].find((id) => seen.has(id));
    for (const [id, link] of links) {
      if (id !== current) {
        link.removeAttribute("aria-current");
      } else if (!link.hasAttribute("aria-current")) {
        link.setAttribute("aria-current", "true");
        nav.scrollTo({ left: link.offsetLeft - 20 });
      }
    }
  }, { rootMargin: "-15% 0px -70% 0px" });
  for (const id of links.keys()) observer.observe(document.getElementById(id));

  let closed = [];
  addEventListener("beforeprint", () => {
    closed = [...document.querySelectorAll("details:not([open])")];
    for (const one of closed) one.open = true;
  });
  addEventListener("afterprint", () => {
    for (const one of closed) one.open = false;
  });
})();
