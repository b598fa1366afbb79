// The retention map: canvas, pointer, keys, and the chosen cell's weights by group and by column.

function retentionMap(found) {
  const plane = new Uint16Array(decode(found.plane.data));
  const [height, width] = found.plane.shape;
  const weights = new Float32Array(decode(found.weights.data));
  const parts = unpack(found.parts);
  const columns = found.weights.shape[3];
  const map = $("map");
  const canvas = map.querySelector("canvas");
  const across = Math.max(1, Math.ceil(480 / width));
  const down = Math.max(1, Math.ceil(480 / height));
  const centre = { row: height - 1 - Math.floor(height / 2), column: Math.floor(width / 2) };
  let place = centre;
  canvas.width = width * across;
  canvas.height = height * down;
  fill($("map-channel"), found.channels);
  fill($("map-lead"), found.leads);
  $("map-lead-label").hidden = found.leads.length < 2;

  const chosen = () => [Number($("map-lead").value), Number($("map-channel").value)];
  const values = (kind) => found[kind][chosen()[0]][chosen()[1]];
  /** What an array over (lead, channel, cell, ...) holds of a cell. */
  const of = (array, number, size) => {
    const [lead, channel] = chosen();
    const from = ((lead * found.channels.length + channel) * found.cells.length + number) * size;
    return array.subarray(from, from + size);
  };
  const cellAt = (row, column) => plane[row * width + column];

  /** Colour table and range of what is shown. */
  const scale = (kind) => {
    if (kind === "gain") return ["signed", -found.reach, found.reach];
    const known = values(kind).filter((value) => value !== null).sort((a, b) => a - b);
    const high = known.length ? known[Math.floor(0.98 * (known.length - 1))] : 1;
    return ["amount", 0, high || 1];
  };

  function draw() {
    const kind = $("map-value").value;
    const shown = values(kind);
    const grouped = kind === "leading";
    $("map-groups").hidden = !grouped;
    $("map-scale").hidden = grouped;
    if (grouped) {
      paint((cell) => (shown[cell] === null ? null : found.colours[shown[cell]]));
      return;
    }
    const [name, low, high] = scale(kind);
    paint((cell) => {
      const rgb = colour(name, shown[cell], low, high);
      return rgb === null ? null : `rgb(${rgb.join()})`;
    });
    ramp(name);
    const digits = high < 0.1 ? 1 : 0;
    $("map-low").textContent = percent(low, digits);
    $("map-high").textContent = (kind === "gain" ? "+" : "") + percent(high, digits);
  }

  /** Fill the plane by a colour for each cell, or none, and mark the chosen cell. */
  function paint(ink) {
    const pen = canvas.getContext("2d");
    pen.clearRect(0, 0, canvas.width, canvas.height);
    for (let row = 0; row < height; row += 1) {
      for (let column = 0; column < width; column += 1) {
        const filled = ink(cellAt(row, column));
        if (filled === null) continue;
        pen.fillStyle = filled;
        pen.fillRect(column * across, row * down, across, down);
      }
    }
    outline(pen);
  }

  /** The border of the chosen cell, dark on light so that it shows on every colour. */
  function outline(pen) {
    const cell = cellAt(place.row, place.column);
    const other = (row, column) =>
      row < 0 || column < 0 || row >= height || column >= width || cellAt(row, column) !== cell;
    pen.beginPath();
    for (let row = 0; row < height; row += 1) {
      for (let column = 0; column < width; column += 1) {
        if (cellAt(row, column) !== cell) continue;
        const [x, y] = [column * across, row * down];
        const sides = [
          [other(row - 1, column), x, y, x + across, y],
          [other(row + 1, column), x, y + down, x + across, y + down],
          [other(row, column - 1), x, y, x, y + down],
          [other(row, column + 1), x + across, y, x + across, y + down]];
        for (const [border, x1, y1, x2, y2] of sides) {
          if (border) { pen.moveTo(x1, y1); pen.lineTo(x2, y2); }
        }
      }
    }
    for (const [ink, size] of [["#fff", 7], ["#000", 3]]) {
      pen.strokeStyle = ink;
      pen.lineWidth = size;
      pen.stroke();
    }
  }

  function ramp(name) {
    const pen = $("map-ramp").getContext("2d");
    for (let step = 0; step < 128; step += 1) {
      pen.fillStyle = `rgb(${colour(name, step + 0.5, 0, 128).join()})`;
      pen.fillRect(step, 0, 1, 1);
    }
  }

  function describe() {
    const number = cellAt(place.row, place.column);
    const cell = found.cells[number];
    const mine = of(weights, number, columns);
    map.dataset.cell = number;
    $("cell-title").textContent =
      `Cell ${number + 1} of ${found.cells.length}, channel ${found.channels[chosen()[1]]}`;
    const turn = cell.angle[1] - cell.angle[0] >= 180
      ? "all orientations" : `orientation ${show(cell.angle[0])}° to ${show(cell.angle[1])}°`;
    $("cell-summary").textContent =
      `Radius ${show(cell.radius[0])} to ${show(cell.radius[1])} of Nyquist, ${turn}; ` +
      `${cell.size} coefficient${cell.size === 1 ? "" : "s"}. ` +
      `Holds ${percent(values("share")[number], 2)} of the source's ` +
      `squared error, of which the model removes ${percent(values("gain")[number])}.` +
      (Number.isFinite(values("change")[number])  // the source may hold nothing there
        ? ` The change is ${percent(values("change")[number])} of the source in size.` : "");
    $("cell-groups").replaceChildren(...groupTable(mine, of(parts, number, found.groups.length)));
    $("cell-weights").replaceChildren(...found.tables.map((table) => weightTable(table, mine)));
  }

  const row = (name, cells, scope = "row") => {
    const made = document.createElement("tr");
    made.append(node("th", name, { scope }), ...cells);
    return made;
  };
  const part = (tag, rows) => {
    const made = document.createElement(tag);
    made.append(...rows);
    return made;
  };
  const heading = (first, heads) =>
    part("thead", [row(first, heads.map((head) => node("th", head, { scope: "col" })), "col")]);

  /** Weights as table cells, tinted by size. */
  function tinted(most) {
    const digits = most < 0.3 ? 3 : most < 10 ? 2 : 1;
    return (value) => {
      if (value === null) return node("td", "");
      const text = value.toFixed(digits);
      const made = node("td", Number(text) === 0 ? "0" : text.replace("-", "−"));
      const ink = value < 0 ? "224, 130, 20" : "128, 115, 200";
      made.style.backgroundColor = `rgba(${ink}, ${(0.5 * Math.abs(value)) / (most || 1)})`;
      return made;
    };
  }

  /** What is kept of the source, then a row per group: weights summed, share of the change. */
  function groupTable(mine, shares) {
    const sum = (places) => places.reduce((total, place) => total + mine[place], 0);
    const shifts = found.groups.some((group) => group.shifted.length > 0);
    const replacing = found.groups.filter((group) => group.replaces);
    const kept = 1 - replacing.reduce((total, group) => total + sum(group.own), 0);
    const all = found.groups.flatMap((group) => [sum(group.own), sum(group.shifted)]);
    const cell = tinted(Math.max(...[kept, ...all].map(Math.abs)));
    const rows = found.groups.map((group, number) => row(group.title, [
      cell(sum(group.own)),
      ...(shifts ? [cell(group.shifted.length ? sum(group.shifted) : null)] : []),
      node("td", Number.isNaN(shares[number]) ? "n/a" : percent(shares[number], 0))]));
    const source = row("Source, kept",
      [cell(kept), ...(shifts ? [node("td", "")] : []), node("td", "")]);
    const heads = ["weight", ...(shifts ? ["shifted ¼ wave"] : []), "share of the change"];
    return [heading("group", heads), part("tbody", [source, ...rows])];
  }

  /** The weights of a group's columns, laid out as its table says. */
  function weightTable(layout, mine) {
    const cell = tinted(Math.max(...mine.map(Math.abs)));
    const rows = layout.rows.map(({ name, places }) =>
      row(name, places.map((place) => cell(place === null ? null : mine[place]))));
    return part("table", [heading(layout.title, layout.heads), part("tbody", rows)]);
  }

  function choose(row, column) {
    const before = cellAt(place.row, place.column);
    place = { row, column };
    if (cellAt(row, column) !== before) { draw(); describe(); }
  }

  /** Go on in a direction until another cell is met. */
  function step(down_, right) {
    let { row, column } = place;
    const from = cellAt(row, column);
    while (cellAt(row, column) === from) {
      row += down_;
      column += right;
      if (row < 0 || column < 0 || row >= height || column >= width) return;
    }
    choose(row, column);
  }

  const keys = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
  map.addEventListener("keydown", (event) => {
    if (event.key === "Home") choose(centre.row, centre.column);
    else if (event.key in keys) step(...keys[event.key]);
    else return;
    event.preventDefault();
  });
  const pointed = (event) => {
    const box = canvas.getBoundingClientRect();
    const fraction = (at, start, size, number) =>
      Math.min(number - 1, Math.max(0, Math.floor(((at - start) / size) * number)));
    choose(fraction(event.clientY, box.top, box.height, height),
      fraction(event.clientX, box.left, box.width, width));
  };
  map.addEventListener("pointermove", pointed);
  map.addEventListener("pointerdown", pointed);
  /** Start at the cell with the largest share of the error. */
  function start() {
    const shares = values("share").map((value) => value ?? -1);
    const at = plane.indexOf(shares.indexOf(Math.max(...shares)));
    place = { row: Math.floor(at / width), column: at % width };
  }

  const all = () => { draw(); describe(); };
  for (const id of ["map-channel", "map-lead", "map-value"]) $(id).addEventListener("change", all);
  start();
  all();
}
