// Runs a program for wasm32-wasi: node wasi.mjs PROGRAM ARGUMENT...
import { readFile } from "node:fs/promises";
import { argv, exit } from "node:process";
import { WASI } from "node:wasi";

const [program, ...given] = argv.slice(2);
const wasi = new WASI({ version: "preview1", args: [program, ...given] });
const module = await WebAssembly.compile(await readFile(program));
exit(wasi.start(await WebAssembly.instantiate(module, wasi.getImportObject())));
