/** Builds the page as one file without other requests: python/ucall/static/explorer.html. */

import { readFileSync } from "node:fs";
import { defineConfig } from "vite";

// Preact is a part of the file, so its licence is, too.
const LICENCE = readFileSync("node_modules/preact/LICENSE", "utf8").trim();

/** Puts the script and the style into the page, and names the page after its purpose. */
function inline() {
  return {
    name: "inline",
    enforce: "post",
    generateBundle(_options, bundle) {
      const page = bundle["index.html"];
      let style = "";
      let script = "";
      for (const [name, file] of Object.entries(bundle)) {
        if (name.endsWith(".css")) style += file.source;
        else if (name.endsWith(".js")) script += file.code;
        else continue;
        delete bundle[name];
      }
      // Functions, because `$` has a meaning in a replacement.
      page.source = page.source
        .replace(/\s*<script[^>]*><\/script>/, "")
        .replace(/\s*<link rel="stylesheet"[^>]*>/, "")
        .replace("</head>", () => `<style>${style.trim()}</style>\n  </head>`)
        .replace("</body>", () => `<script type="module">${escaped(script)}</script>\n  </body>`)
        .concat(`<!--\nThis page contains Preact.\n\n${LICENCE}\n-->\n`);
      page.fileName = "explorer.html";
    },
  };
}

/** The end tag of a script ends it, also within a string. */
function escaped(script) {
  return script.trim().replaceAll("</script", "<\\/script");
}

export default defineConfig({
  base: "./",
  plugins: [inline()],
  build: {
    target: "es2022",
    modulePreload: false,
    cssCodeSplit: false,
    assetsInlineLimit: 0,
    emptyOutDir: false,
    outDir: process.env.EXPLORER_FOLDER ?? "../python/ucall/static",
    reportCompressedSize: false,
  },
});
