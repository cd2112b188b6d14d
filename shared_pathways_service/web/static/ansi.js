// Texts of programs with the colours of a terminal. All other escapes are left out.

// CSI and OSC sequences, other escapes, and control characters but for line ends and tabs.
const ESCAPES = /\x1b\[([0-9;:]*)([A-Za-z@`])|\x1b\[[0-?]*[ -/]*[@-~]?|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[PX^_][^\x1b]*(?:\x1b\\)?|\x1b[ -/]*[0-~]?|[\x00-\x08\x0b-\x1f\x7f-\x9f]/g;
const STYLES = { 1: "bold", 2: "dim", 3: "italic", 4: "underline" };
const ENDS = { 22: ["bold", "dim"], 23: ["italic"], 24: ["underline"] };

/** Splits a text into [text, classes] pieces. What overwrote a line with "\r" is its last form. */
export function pieces(text) {
  const found = [];
  let ink = "";
  let styles = new Set();
  let at = 0;
  const add = (piece) => {
    if (!piece) return;
    const kind = [...styles, ...(ink ? [ink] : [])].join(" ");
    const last = found.at(-1);
    if (last && last[1] === kind) last[0] += piece;
    else found.push([piece, kind]);
  };
  for (const match of text.matchAll(ESCAPES)) {
    add(text.slice(at, match.index));
    at = match.index + match[0].length;
    if (match[2] !== "m") continue;
    const codes = match[1].split(/[;:]/).map(Number);
    for (let place = 0; place < codes.length; place += 1) {
      const code = codes[place];
      if (code === 38 || code === 48) {
        // An ink of 256, or of red, green and blue: the program's words are kept, not the shade.
        // (With colons they are one code, which ends at the next semicolon.)
        if (match[1].includes(":")) break;
        place += codes[place + 1] === 5 ? 2 : codes[place + 1] === 2 ? 4 : codes.length;
      } else if (code === 0) {
        [ink, styles] = ["", new Set()];
      } else if (code === 39) {
        ink = "";
      } else if ((code >= 30 && code <= 37) || (code >= 90 && code <= 97)) {
        ink = `ink-${code % 10}`;
      } else if (STYLES[code]) {
        styles.add(STYLES[code]);
      } else {
        for (const name of ENDS[code] ?? []) styles.delete(name);
      }
    }
  }
  add(text.slice(at));
  return found;
}

/** Returns lines as a terminal shows them: after "\r" a line begins again. */
export function settled(lines) {
  return lines.map((line) => line.replace(/\r+$/, "").replace(/^.*\r/s, ""));
}
