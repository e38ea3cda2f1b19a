// Attention maps: weights [rows][columns], 0..1, over what the model saw, drawn as a veil
// over the photo that is transparent at large weights.

const DARKEST = 0.82;

/** Draws the veil over `image` on `canvas`; `contract` is `input` of the model card. */
export function drawMap(canvas, image, grid, contract) {
  canvas.width = image.naturalWidth;
  canvas.height = image.naturalHeight;
  const context = canvas.getContext("2d");
  const most = Math.max(...grid.flat(), Number.EPSILON);
  const seen = findSeenPart(image.naturalWidth, image.naturalHeight, contract);
  context.fillStyle = `rgb(8 12 24 / ${DARKEST})`;
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.clearRect(seen.x, seen.y, seen.width, seen.height);
  context.imageSmoothingQuality = "high";
  context.drawImage(
    makeVeil(padGrid(grid), most),
    // One cell of padding on each side, so that the smoothing does not fade out at the edges.
    seen.x - seen.width / grid[0].length,
    seen.y - seen.height / grid.length,
    (seen.width * (grid[0].length + 2)) / grid[0].length,
    (seen.height * (grid.length + 2)) / grid.length,
  );
  canvas.hidden = false;
}

/** Position of the largest weight in the photo in words, for screen readers. */
export function describePeak({ naturalWidth: width, naturalHeight: height }, grid, contract) {
  const flat = grid.flat();
  const peak = flat.indexOf(Math.max(...flat));
  const seen = findSeenPart(width, height, contract);
  const row = (seen.y + ((Math.floor(peak / grid[0].length) + 0.5) * seen.height) / grid.length) / height;
  const column = (seen.x + (((peak % grid[0].length) + 0.5) * seen.width) / grid[0].length) / width;
  const vertical = row < 1 / 3 ? "top" : row > 2 / 3 ? "bottom" : "middle";
  const horizontal = column < 1 / 3 ? "left" : column > 2 / 3 ? "right" : "centre";
  return `${vertical} ${horizontal}`;
}

/** What `service/images/decode.py` hands to the model, in a photo's pixels; padding is outside the photo. */
export function findSeenPart(width, height, contract) {
  if (contract.resize_mode === "squash") return { x: 0, y: 0, width, height };
  if (contract.resize_mode === "pad") {
    const side = Math.max(width, height);
    return { x: (width - side) / 2, y: (height - side) / 2, width: side, height: side };
  }
  const frameWidth = contract.width / contract.crop_pct;
  const frameHeight = contract.height / contract.crop_pct;
  const scale = Math.max(frameWidth / width, frameHeight / height);
  const seen = { width: contract.width / scale, height: contract.height / scale };
  return { x: (width - seen.width) / 2, y: (height - seen.height) / 2, ...seen };
}

function padGrid(grid) {
  const rows = grid.map((row) => [row[0], ...row, row.at(-1)]);
  return [rows[0], ...rows, rows.at(-1)];
}

function makeVeil(grid, most) {
  const veil = document.createElement("canvas");
  veil.width = grid[0].length;
  veil.height = grid.length;
  const context = veil.getContext("2d");
  grid.forEach((row, y) =>
    row.forEach((weight, x) => {
      context.fillStyle = `rgb(8 12 24 / ${DARKEST * (1 - weight / most)})`;
      context.fillRect(x, y, 1, 1);
    }),
  );
  return veil;
}
