"use strict";
// Brings the page to life: theme, sortable scores, retention map, fields over time. Everything it
// draws comes from the JSON in #payload; without it the page shows static pictures instead.
(() => {
  const $ = (id) => document.getElementById(id);
  const payload = JSON.parse($("payload").textContent);

  // -- numbers and colours ----------------------------------------------------------------------

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
    value === null ? "n/a" : `${(100 * value).toFixed(digits).replace("-", "−")} %`;
  const fill = (select, names) =>
    select.replaceChildren(...names.map((name, number) => new Option(name, number)));
  const node = (tag, text, attributes = {}) => {
    const made = document.createElement(tag);
    made.textContent = text;
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    return made;
  };

  // -- theme --------------------------------------------------------------------------------------

  function theme() {
    const button = $("theme");
    let dark = matchMedia("(prefers-color-scheme: dark)").matches;
    const label = () => {
      button.textContent = dark ? "Light theme" : "Dark theme";
      button.setAttribute("aria-pressed", String(dark));
    };
    button.addEventListener("click", () => {
      dark = !dark;
      document.documentElement.dataset.theme = dark ? "dark" : "light";
      label();
    });
    label();
  }

  // -- scores -------------------------------------------------------------------------------------

  function sortable(table) {
    const heads = [...table.tHead.rows[0].cells];
    const body = table.tBodies[0];
    const key = (row, column) => {
      const cell = row.cells[column];
      if (cell.dataset.value === undefined) return cell.textContent;
      return cell.dataset.value === "" ? Infinity : Number(cell.dataset.value);
    };
    heads.forEach((head, column) => {
      const button = node("button", head.textContent, { type: "button" });
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const up = head.getAttribute("aria-sort") !== "ascending";
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        const rows = [...body.rows].sort((one, two) => {
          const [a, b] = [key(one, column), key(two, column)];
          const order = typeof a === "string" ? a.localeCompare(b) : a - b;
          return up ? order : -order;
        });
        body.replaceChildren(...rows);
      });
    });
  }

  // -- retention map ------------------------------------------------------------------------------

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
      const cell = (value) => {
        const made = node("td", value.toFixed(Math.abs(value) >= 9.995 ? 1 : 2).replace("-", "−"));
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
    const all = () => { draw(); describe(); };
    for (const id of ["map-channel", "map-lead", "map-value"]) $(id).addEventListener("change", all);
    all();
  }

  // -- fields -------------------------------------------------------------------------------------

  function fields(example, scales) {
    const slider = $("frame");
    const [frames, height, width] = example.channels[0].fields.target.shape;
    const opened = new Map();
    let timer = null;
    fill($("field-channel"), example.channels.map((channel) => channel.name));

    const channel = () => Number($("field-channel").value);
    const values = (name) => {
      const key = `${channel()}/${name}`;
      if (!opened.has(key)) opened.set(key, unpack(example.channels[channel()].fields[name]));
      const size = height * width;
      return opened.get(key).subarray(Number(slider.value) * size, (Number(slider.value) + 1) * size);
    };

    const panes = [...document.querySelectorAll("[data-field], [data-error]")].map((figure) => {
      const canvas = document.createElement("canvas");
      const picture = figure.querySelector("img");
      canvas.width = width;
      canvas.height = height;
      canvas.setAttribute("role", "img");
      canvas.setAttribute("aria-label", picture.alt);
      canvas.style.aspectRatio = `${width * example.spacing[1]} / ${height * example.spacing[0]}`;
      picture.replaceWith(canvas);
      return { canvas, field: figure.dataset.field, error: figure.dataset.error };
    });

    const errorOf = (name) => {
      const target = values("target");
      return values(name).map((value, at) => value - target[at]);
    };
    const rms = (numbers) => {
      const known = numbers.filter((value) => !Number.isNaN(value));
      return Math.sqrt(known.reduce((sum, value) => sum + value * value, 0) / known.length);
    };

    function paint({ canvas, field, error }) {
      const { low, high, reach } = scales[channel()];
      const [name, from, to] = error ? ["signed", -reach, reach] : ["field", low, high];
      const pen = canvas.getContext("2d");
      const image = pen.createImageData(width, height);
      (error ? errorOf(error) : values(field)).forEach((value, at) => {
        const rgb = colour(name, value, from, to);
        if (rgb !== null) image.data.set([...rgb, 255], 4 * at);
      });
      pen.putImageData(image, 0, 0);
    }

    function draw() {
      const frame = Number(slider.value) + 1;
      const time = `lead time ${show(frame * example.time_step, 4)}`;
      const label = `frame ${frame} of ${frames}` + (example.time_step === 1 ? "" : `, ${time}`);
      const { low, high, reach } = scales[channel()];
      const { unit } = example.channels[channel()];
      $("frame-label").value = label;
      slider.setAttribute("aria-valuetext", label);
      $("field-low").textContent = show(low);
      $("field-high").textContent = show(high);
      $("error-low").textContent = show(-reach);
      $("error-high").textContent = `+${show(reach)}`;
      $("field-unit").textContent = unit ? ` (${unit})` : "";
      $("frame-errors").textContent =
        `RMSE of this frame: source ${show(rms(errorOf("source")))}, R2NO ${show(rms(errorOf("r2no")))}.`;
      panes.forEach(paint);
    }

    function play(on) {
      clearInterval(timer);
      timer = on ? setInterval(() => {
        slider.value = (Number(slider.value) + 1) % frames;
        draw();
      }, 350) : null;
      $("play").textContent = on ? "Pause" : "Play";
      $("play").setAttribute("aria-pressed", String(on));
    }

    $("play").addEventListener("click", () => play(timer === null));
    slider.addEventListener("input", () => { play(false); draw(); });
    $("field-channel").addEventListener("change", draw);
    draw();
  }

  document.querySelectorAll(".static").forEach((part) => part.remove());
  document.querySelectorAll(".live").forEach((part) => { part.hidden = false; });
  theme();
  document.querySelectorAll("table.sortable").forEach(sortable);
  retentionMap(payload.retention);
  if (payload.example !== null) fields(payload.example, payload.scales);
})();
