// The retention map: canvas, pointer, keys, and the chosen cell's weights.

function retentionMap(found) {
  const plane = new Uint16Array(decode(found.plane.data));
  const [height, width] = found.plane.shape;
  const weights = new Float32Array(decode(found.weights.data));
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
    const [name, low, high] = scale(kind);
    const shown = values(kind);
    const pen = canvas.getContext("2d");
    pen.clearRect(0, 0, canvas.width, canvas.height);
    for (let row = 0; row < height; row += 1) {
      for (let column = 0; column < width; column += 1) {
        const rgb = colour(name, shown[cellAt(row, column)], low, high);
        if (rgb === null) continue;
        pen.fillStyle = `rgb(${rgb.join()})`;
        pen.fillRect(column * across, row * down, across, down);
      }
    }
    outline(pen);
    ramp(name);
    const digits = high < 0.1 ? 1 : 0;
    $("map-low").textContent = percent(low, digits);
    $("map-high").textContent = (kind === "gain" ? "+" : "") + percent(high, digits);
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
    const [lead, channel] = chosen();
    const from = ((lead * found.channels.length + channel) * found.cells.length + number) * columns;
    const mine = weights.subarray(from, from + columns);
    map.dataset.cell = number;
    $("cell-title").textContent =
      `Cell ${number + 1} of ${found.cells.length}, channel ${found.channels[channel]}`;
    const turn = cell.angle[1] - cell.angle[0] >= 180
      ? "all orientations" : `orientation ${show(cell.angle[0])}° to ${show(cell.angle[1])}°`;
    $("cell-summary").textContent =
      `Radius ${show(cell.radius[0])} to ${show(cell.radius[1])} of Nyquist, ${turn}; ` +
      `${cell.size} coefficients. Holds ${percent(values("share")[number], 2)} of the source's ` +
      `squared error, of which the repair removes ${percent(values("gain")[number])}. The ` +
      `repair is ${percent(values("change")[number])} of the source in size.`;
    $("cell-weights").replaceChildren(...weightRows(mine));
  }

  /** A row per member, a column per depth, then the base column. */
  function weightRows(mine) {
    const most = Math.max(...mine.map(Math.abs)) || 1;
    const depths = found.depths.length;
    const digits = most < 0.3 ? 3 : most < 10 ? 2 : 1;
    const cell = (value) => {
      const text = value.toFixed(digits);
      const made = node("td", Number(text) === 0 ? "0" : text.replace("-", "−"));
      const ink = value < 0 ? "224, 130, 20" : "128, 115, 200";
      made.style.backgroundColor = `rgba(${ink}, ${(0.5 * Math.abs(value)) / most})`;
      return made;
    };
    const head = document.createElement("tr");
    head.append(node("th", "depth", { scope: "col" }),
      ...found.depths.map((depth) => node("th", depth, { scope: "col" })));
    if (found.base) head.append(node("th", "base", { scope: "col" }));
    const top = document.createElement("thead");
    top.append(head);
    const body = document.createElement("tbody");
    for (let member = 0; member < found.members; member += 1) {
      const row = document.createElement("tr");
      row.append(node("th", `member ${member + 1}`, { scope: "row" }));
      for (let at = 0; at < depths; at += 1) row.append(cell(mine[member * depths + at]));
      if (found.base) row.append(member === 0 ? cell(mine[columns - 1]) : node("td", ""));
      body.append(row);
    }
    return [top, body];
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
    const part = (at, start, size, number) =>
      Math.min(number - 1, Math.max(0, Math.floor(((at - start) / size) * number)));
    choose(part(event.clientY, box.top, box.height, height),
      part(event.clientX, box.left, box.width, width));
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
