// Folds a file of frames, one JSON object a line, with the SDK's own fold; prints the seconds it took.
import { readFileSync } from "node:fs";
import { EMPTY, fold } from "../../../web/sdk/src/transcript.js";

const frames = readFileSync(process.argv[2], "utf8").split("\n").map((line) => JSON.parse(line));
const start = process.hrtime.bigint();
let state = EMPTY;
for (const frame of frames) state = fold(state, frame);
const seconds = Number(process.hrtime.bigint() - start) / 1e9;
console.log(JSON.stringify({ seconds, seq: state.seq, length: JSON.stringify(state.messages).length }));
