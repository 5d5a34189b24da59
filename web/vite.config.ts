import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { brotliCompressSync, constants, gzipSync } from "node:zlib";
import { defineConfig, type Plugin } from "vite";

/** Files smaller than this fit into one network packet as they are. Bytes. */
const COMPRESS_BYTES_MIN = 1_000;

/** Write a `.gz` and a `.br` beside each text file: the server compresses nothing itself. */
function compress(): Plugin {
    return {
        name: "kedge-compress",
        apply: "build",
        writeBundle(options) {
            const root = options.dir ?? "";
            for (const name of readdirSync(root, { recursive: true, encoding: "utf8" })) {
                if (!/\.(css|html|js|json|svg|webmanifest)$/.test(name)) continue;
                const content = readFileSync(join(root, name));
                if (content.length < COMPRESS_BYTES_MIN) continue;
                writeFileSync(join(root, `${name}.gz`), gzipSync(content, { level: 9 }));
                const quality = { [constants.BROTLI_PARAM_QUALITY]: constants.BROTLI_MAX_QUALITY };
                writeFileSync(join(root, `${name}.br`), brotliCompressSync(content, { params: quality }));
            }
        },
    };
}

export default defineConfig({
    plugins: [compress()],
    build: {
        outDir: "../src/kedge/web_page",
        emptyOutDir: true,
        target: "es2022",
        // The Content-Security-Policy allows files of this origin only: no inline script, style or data URL.
        assetsInlineLimit: 0,
        modulePreload: { polyfill: false },
        reportCompressedSize: false,
    },
    server: {
        // `npm run dev` shows changes at once. KEDGE_SERVER is the address of a server that listens on TCP.
        proxy: { "/v1": { target: process.env.KEDGE_SERVER ?? "http://127.0.0.1:8080" } },
    },
});
