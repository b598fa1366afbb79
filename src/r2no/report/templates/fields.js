// Fields of one window over time.

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
    const unit_of_time = example.time_units ? ` ${example.time_units}` : "";
    const time = `lead time ${show(frame * example.time_step, 4)}${unit_of_time}`;
    const known = example.time_step !== 1 || unit_of_time;
    const label = `frame ${frame} of ${frames}` + (known ? `, ${time}` : "");
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
