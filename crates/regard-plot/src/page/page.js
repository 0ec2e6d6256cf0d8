// The page's script: the theme switch, values under the pointer and by arrow keys, enlarged figures, sorted tables. Without it the
// page can still be read: titles of marks are then shown by the browser. COLOURS, defined before it, has the palettes of the maps.
(() => {
  const root = document.documentElement, tip = document.getElementById("tip"), zoom = document.getElementById("zoom");
  const stored = (() => { try { return localStorage.getItem("regard-theme"); } catch { return null; } })();
  if (stored === "light" || stored === "dark") root.dataset.theme = stored;
  document.getElementById("theme").addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    try { localStorage.setItem("regard-theme", root.dataset.theme); } catch { /* a page from a file may have no storage */ }
  });

  // Values: the titles of marks become our own hint, which is there at once and on touch as well.
  for (const title of document.querySelectorAll(".plot svg title")) {
    title.parentElement.dataset.tip = title.textContent;
    title.remove();
  }
  const show = (text, x, y) => {
    if (tip.textContent !== text) tip.textContent = text;
    const box = tip.getBoundingClientRect(), room = 14;
    const left = x + room + box.width > innerWidth ? x - room - box.width : x + room;
    const top = y + room + box.height > innerHeight ? y - room - box.height : y + room;
    tip.style.transform = `translate(${Math.max(4, left)}px,${Math.max(4, top)}px)`;
    tip.classList.add("on");
  };
  const hide = () => tip.classList.remove("on");
  const host = () => zoom.open ? zoom : document.body;
  document.addEventListener("pointermove", event => {
    const mark = event.target.closest && event.target.closest("[data-tip],image.rg-map");
    if (!mark) return hide();
    if (tip.parentElement !== host()) host().append(tip);
    const text = mark.dataset.tip || readMap(mark, event);
    if (text) show(text, event.clientX, event.clientY); else hide();
  });
  document.addEventListener("scroll", hide, true);

  // A large heat map is a picture: its pixel's colour is looked up in the palette.
  const pictures = new Map();
  const pixels = image => {
    const source = image.getAttribute("href");
    if (!pictures.has(source)) {
      pictures.set(source, null);
      const bitmap = new Image();
      bitmap.onload = () => {
        const canvas = document.createElement("canvas");
        canvas.width = bitmap.width; canvas.height = bitmap.height;
        const context = canvas.getContext("2d", { willReadFrequently: true });
        context.drawImage(bitmap, 0, 0);
        pictures.set(source, context.getImageData(0, 0, bitmap.width, bitmap.height));
      };
      bitmap.src = source;
    }
    return pictures.get(source);
  };
  const step = (map, r, g, b) => {
    const colours = COLOURS[map] || "";
    let best = 0, least = Infinity;
    for (let i = 0; i * 6 < colours.length; i++) {
      const at = k => parseInt(colours.slice(i * 6 + k, i * 6 + k + 2), 16);
      const d = (at(0) - r) ** 2 + (at(2) - g) ** 2 + (at(4) - b) ** 2;
      if (d < least) { least = d; best = i; }
    }
    return least > 300 ? null : best;
  };
  const readMap = (image, event) => {
    const data = pixels(image), d = image.dataset, box = image.getBoundingClientRect();
    if (!data) return "";
    const share = (v, low, size) => Math.min(0.999999, Math.max(0, (v - low) / size));
    const row = Math.floor(share(event.clientY, box.top, box.height) * d.rows), col = Math.floor(share(event.clientX, box.left, box.width) * d.cols);
    const name = (title, i, cells, span) => {
      if (span === cells) return `${title} ${i}`;
      const edge = k => Math.ceil(k * span / cells);
      return `${title} ${edge(i).toLocaleString("en")}\u2013${(edge(i + 1) - 1).toLocaleString("en")}`;
    };
    const place = `${name(d.rowTitle, row, +d.rows, +d.rowSpan)}, ${name(d.colTitle, col, +d.cols, +d.colSpan)}`;
    const at = (row * data.width + col) * 4, [r, g, b, a] = data.data.slice(at, at + 4);
    if (a === 0) return `${place}\nhidden by the mask`;
    const s = step(d.map, r, g, b);
    if (s === null) return `${place}\n${d.valueTitle}: NaN`;
    const t = s / (d.steps - 1), low = +d.low, high = +d.high;
    const value = d.log === "1" ? low * (high / low) ** t : low + t * (high - low);
    return `${place}\n${d.valueTitle}: about ${value.toPrecision(3)}`;
  };

  // Figures: click or Enter enlarges, arrow keys read the marks.
  const enlarge = figure => {
    const body = document.getElementById("zoom-body");
    body.replaceChildren(...["h3", ".panels", "figcaption"].map(s => figure.querySelector(s)).filter(Boolean).map(n => n.cloneNode(true)));
    zoom.showModal();
  };
  for (const figure of document.querySelectorAll("figure")) {
    const plot = figure.querySelector(".plot");
    let at = -1;
    const marks = () => [...plot.querySelectorAll("[data-tip]")];
    const leave = () => { plot.querySelectorAll(".on").forEach(m => m.classList.remove("on")); hide(); };
    figure.querySelector(".enlarge").addEventListener("click", () => enlarge(figure));
    plot.addEventListener("click", () => { if (!String(getSelection())) enlarge(figure); });
    plot.addEventListener("blur", () => { at = -1; leave(); });
    plot.addEventListener("keydown", event => {
      if (event.target !== plot) return;
      if (event.key === "Enter") { event.preventDefault(); leave(); return enlarge(figure); }
      const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key], all = marks();
      if (!by || !all.length) return;
      event.preventDefault();
      leave();
      at = (at + by + all.length) % all.length;
      const mark = all[at], box = mark.getBoundingClientRect();
      mark.classList.add("on");
      show(mark.dataset.tip, box.left + box.width / 2, box.top + box.height / 2);
    });
  }
  document.getElementById("zoom-close").addEventListener("click", () => zoom.close());
  zoom.addEventListener("click", event => { if (event.target === zoom) zoom.close(); });
  zoom.addEventListener("close", () => { hide(); document.body.append(tip); document.getElementById("zoom-body").replaceChildren(); });

  // Tables: a header sorts by its column, numbers as numbers.
  for (const button of document.querySelectorAll("th button")) {
    button.addEventListener("click", () => {
      const head = button.parentElement, table = head.closest("table"), column = [...head.parentElement.children].indexOf(head);
      const down = head.getAttribute("aria-sort") === "ascending";
      const key = row => { const cell = row.children[column]; return "v" in cell.dataset ? Number(cell.dataset.v) : cell.textContent; };
      const order = (a, b) => {
        const [x, y] = [key(a), key(b)];
        if (typeof x === "number" && typeof y === "number") return (Number.isNaN(x) - Number.isNaN(y)) || x - y;
        return String(x).localeCompare(String(y), "en", { numeric: true });
      };
      const rows = [...table.tBodies[0].rows].sort(order);
      if (down) rows.reverse();
      table.tBodies[0].append(...rows);
      for (const other of head.parentElement.children) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
    });
  }

  for (const button of document.querySelectorAll(".copy")) {
    button.addEventListener("click", async () => {
      const code = button.parentElement.querySelector("code");
      try { await navigator.clipboard.writeText(code.textContent); button.textContent = "Copied"; }
      catch { getSelection().selectAllChildren(code); button.textContent = "Selected"; }
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
  }

  // Claims by document and by verdict.
  const filter = document.querySelector(".filter");
  if (filter) {
    filter.hidden = false;
    const picks = { document: document.getElementById("by-document"), verdict: document.getElementById("by-verdict") };
    const claims = [...document.querySelectorAll(".verdicts tbody tr")];
    const apply = () => {
      const fits = claim => Object.entries(picks).every(([key, pick]) => !pick.value || claim.dataset[key] === pick.value);
      claims.forEach(claim => { claim.hidden = !fits(claim); });
      document.getElementById("shown").textContent = `${claims.filter(fits).length} of ${claims.length}`;
    };
    Object.values(picks).forEach(pick => pick.addEventListener("change", apply));
    apply();
  }

  // On a phone the contents are folded, and fold again when one has chosen.
  const contents = document.querySelector("nav.toc details"), narrow = matchMedia("(max-width:56rem)");
  const fold = () => { contents.open = !narrow.matches; };
  fold();
  narrow.addEventListener("change", fold);
  contents.addEventListener("click", event => { if (event.target.closest("a") && narrow.matches) contents.open = false; });

  // Which section is being read.
  const links = new Map([...document.querySelectorAll("nav.toc a")].map(a => [a.getAttribute("href").slice(1), a]));
  const seen = new IntersectionObserver(entries => {
    for (const entry of entries) if (entry.isIntersecting && links.has(entry.target.id)) {
      links.forEach(a => a.removeAttribute("aria-current"));
      const here = links.get(entry.target.id);
      here.setAttribute("aria-current", "true");
      const nav = here.closest("nav"), box = here.getBoundingClientRect(), frame = nav.getBoundingClientRect();
      if (box.top < frame.top || box.bottom > frame.bottom) nav.scrollTop += box.top - frame.top - frame.height / 3;
      const title = nav.querySelector("summary");
      title.textContent = `Contents: ${here.textContent}`;
    }
  }, { rootMargin: "-10% 0px -75% 0px" });
  document.querySelectorAll("main > section").forEach(s => seen.observe(s));
})();
