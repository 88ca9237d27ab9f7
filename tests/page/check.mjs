// The page in a real browser: WCAG by axe-core in light and dark, wide and narrow; keyboard; without script; nothing from elsewhere.
//
// In: the snapshots of tests/cases/page, served with the headers of src/explain/page/routes.rs; or addresses of a running page as
// arguments. Out: a line for each that is sound, and what is wrong with the others.
import { readFileSync, readdirSync } from 'node:fs';
import { createServer } from 'node:http';
import { createRequire } from 'node:module';
import { join } from 'node:path';

const require = createRequire(join(process.env.PAGE_TOOLS, 'package.json'));
const puppeteer = require('puppeteer-core');
const axe = readFileSync(require.resolve('axe-core/axe.min.js'), 'utf8');

const root = join(import.meta.dirname ?? new URL('.', import.meta.url).pathname, '../..');
const source = join(root, 'src/explain/page');
const cases = join(root, 'tests/cases/page');
// When the values of the cases were looked at, so that timers still run.
const AS_OF = Date.parse('2026-08-21T12:04:54Z');
const WCAG = ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice'];

const wrong = [];
const expect = (name, what, holds) => holds || wrong.push(`${name}: ${what}`);

/** A snapshot: what is its own, in the frame of all. */
function whole(name) {
  const [title, ...content] = readFileSync(join(cases, `${name}.html`), 'utf8').trimEnd().split('\n');
  const frame = readFileSync(join(cases, 'frame.html'), 'utf8');
  return frame.replace('{title}', () => title).replace('{content}', () => content.join('\n'));
}

/** Serves the snapshots as the program would. */
async function snapshots() {
  const policy = readFileSync(join(source, 'routes.rs'), 'utf8').match(/const POLICY: &str =\s*"([^"]+)"/)[1];
  const own = { '/explain/page.css': 'text/css', '/explain/page.js': 'text/javascript', '/explain/icon.svg': 'image/svg+xml' };
  const server = createServer((request, response) => {
    const path = request.url.split('?')[0];
    const name = path.match(/^\/explain\/case\/([a-z-]+)$/)?.[1];
    if (!own[path] && !name) return response.writeHead(404).end();
    response.writeHead(200, {
      'Content-Type': `${own[path] ?? 'text/html'}; charset=utf-8`,
      'Content-Security-Policy': policy,
      'X-Content-Type-Options': 'nosniff',
    });
    response.end(own[path] ? readFileSync(join(source, path.split('/').pop())) : whole(name));
  });
  await new Promise((ready) => server.listen(0, '127.0.0.1', ready));
  const names = readdirSync(cases).filter((file) => file.endsWith('.yaml')).map((file) => file.slice(0, -5));
  const base = `http://127.0.0.1:${server.address().port}/explain/case/`;
  return { server, pages: names.sort().map((name) => ({ name, url: base + name })) };
}

/** A new page that notes what it should not do. */
async function open(browser, { name, url }, { script = true } = {}) {
  const page = await browser.newPage();
  await page.setJavaScriptEnabled(script);
  // A clock that begins when the case was looked at.
  if (script && !given.length) await page.evaluateOnNewDocument((start) => { const begun = performance.now(); Date.now = () => start + performance.now() - begun; }, AS_OF);
  page.on('dialog', (dialog) => { wrong.push(`${name}: a dialog: ${dialog.message()}`); dialog.dismiss(); });
  page.on('pageerror', (error) => wrong.push(`${name}: ${error.message}`));
  page.on('console', (line) => line.type() === 'error' && wrong.push(`${name}: console: ${line.text()}`));
  page.on('request', (request) => expect(name, `asks ${request.url()}`, new URL(request.url()).origin === new URL(url).origin));
  const answer = await page.goto(url, { waitUntil: 'load' });
  expect(name, `is answered with ${answer.status()}`, answer.ok());
  return page;
}

/** No violation of WCAG A and AA, and nothing that is cut off. */
async function accessible(page, name) {
  for (const scheme of ['light', 'dark']) {
    await page.emulateMediaFeatures([{ name: 'prefers-color-scheme', value: scheme }]);
    for (const width of [1280, 360]) {
      await page.setViewport({ width, height: 800 });
      await page.evaluate(axe);
      const found = await page.evaluate((tags) => axe.run(document, { runOnly: tags }), WCAG);
      for (const violation of found.violations) {
        const where = violation.nodes.map((node) => `${node.target} (${node.failureSummary.split('\n').at(-1).trim()})`);
        wrong.push(`${name}, ${scheme}, ${width} px: ${violation.id}: ${where.join('; ')}`);
      }
      // Of a single sign, and of what a narrow window hides, the contrast is not told.
      const isUnclear = (node) => width > 1000 && !['nonBmp', 'shortTextContent'].includes(node.any[0]?.data?.messageKey);
      const contrast = found.incomplete.filter((one) => one.id === 'color-contrast').flatMap((one) => one.nodes).filter(isUnclear);
      expect(name, `${scheme}, ${width} px: contrast not known of ${contrast.map((node) => node.target)}`, contrast.length === 0);
      const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
      expect(name, `${width} px: ${wide} px too wide`, wide <= 0);
    }
  }
}

/** Everything that can be used is reached by the tabulator key, in order, and is seen to be. */
async function reachable(page, name) {
  await page.setViewport({ width: 1280, height: 800 });
  await page.evaluate(() => document.activeElement?.blur());
  const all = await page.evaluate(() => [...document.querySelectorAll('a[href], button, input, select, [tabindex="0"]')].filter((it) => it.checkVisibility()).length);
  await page.keyboard.press('Tab');
  expect(name, 'the first stop is not the way past the navigation', await page.evaluate(() => document.activeElement.matches('.skip')));
  await page.keyboard.press('Enter');
  await page.waitForFunction(() => document.activeElement.id === 'content').catch(() => wrong.push(`${name}: the way past the navigation leads nowhere`));
  await page.evaluate(() => { document.activeElement.blur(); getSelection().removeAllRanges(); scrollTo(0, 0); });
  await page.evaluate(() => { window.reached = new Set(); window.blind = []; });
  await page.focus('.skip');
  for (let stop = 0; stop <= all; stop += 1) {
    await page.evaluate(() => {
      const it = document.activeElement;
      if (it === document.body) return;
      window.reached.add(it);
      if (getComputedStyle(it).outlineStyle === 'none') window.blind.push(it.outerHTML.slice(0, 80));
    });
    await page.keyboard.press('Tab');
  }
  const { count, blind } = await page.evaluate(() => ({ count: window.reached.size, blind: window.blind }));
  expect(name, `${count} of ${all} stops are reached by keyboard`, count >= all);
  expect(name, `not seen to have the focus: ${blind}`, blind.length === 0);
}

/** Timers count down, and the text is copied. */
async function enhanced(page, name) {
  const timer = await page.evaluate(() => [...document.querySelectorAll('.countdown')].map((it) => it.textContent)[0]);
  if (timer?.startsWith('in ')) {
    const counts = page.waitForFunction((before) => document.querySelector('.countdown').textContent !== before, { timeout: 10_000 }, timer);
    await counts.catch(() => wrong.push(`${name}: the timer stands at ${timer}`));
  }
  const button = await page.$('button[data-copies]');
  if (!button) return;
  await button.click();
  await page.waitForFunction(() => document.querySelector('.copy [role=status]').textContent.trim() !== '');
  const said = await page.$eval('.copy [role=status]', (it) => it.textContent.trim());
  expect(name, `copying says ${said}`, said === 'Copied.');
}

/** The script tells ages as the program does: the rows of its unit test. */
async function alike(page) {
  const rows = [...readFileSync(join(root, 'src/explain/age.rs'), 'utf8').matchAll(/^\s+\(([\d_]+), "(\w+)"\),$/gm)];
  expect('ages', `only ${rows.length} rows of the unit test can be read`, rows.length > 8);
  for (const [, seconds, told] of rows) {
    const found = await page.evaluate((it) => age(it), Number(seconds.replaceAll('_', '')));
    expect('ages', `${seconds} s are ${found}, not ${told}`, found === told);
  }
}

/** What it says is there without script. */
async function plain(browser, one) {
  const text = async (script) => {
    const page = await open(browser, one, { script });
    const main = await page.$eval('main', (it) => it.textContent);
    const cookies = await page.cookies();
    expect(one.name, `cookies: ${cookies.map((cookie) => cookie.name)}`, cookies.length === 0);
    await page.close();
    return main.replace(/\b(in [0-9dhms]+|now)\b/g, '').replace(given.length ? /\b[0-9]+[dhms]\b/g : '', '').replace(/\s+/g, ' ');
  };
  // What is being served may change between two looks.
  for (let look = 1; ; look += 1) {
    const [withScript, without] = [await text(true), await text(false)];
    if (withScript === without) return;
    if (given.length && look < 5) continue;
    return expect(one.name, `says something else without script: ${without}, not ${withScript}`, false);
  }
}

const given = process.argv.slice(2).map((url) => ({ name: new URL(url).pathname.replace(/\/t\/[0-9a-f]+/, ''), url }));
const { server, pages } = given.length ? { pages: given } : await snapshots();
const args = ['--no-sandbox', '--disable-gpu'];
const browser = await puppeteer.launch({ executablePath: process.env.CHROMIUM, headless: true, args });
for (const one of pages) {
  const before = wrong.length;
  await browser.defaultBrowserContext().overridePermissions(new URL(one.url).origin, ['clipboard-read', 'clipboard-write', 'clipboard-sanitized-write']);
  const page = await open(browser, one);
  await accessible(page, one.name);
  await reachable(page, one.name);
  await enhanced(page, one.name);
  if (one === pages[0]) await alike(page);
  await page.close();
  await plain(browser, one);
  if (wrong.length === before) console.log(`ok ${one.name}`);
}
await browser.close();
server?.close();
for (const line of wrong) console.log(`WRONG ${line}`);
console.log(`${pages.length - new Set(wrong.map((line) => line.split(/[:,]/)[0])).size} passed, ${new Set(wrong.map((line) => line.split(/[:,]/)[0])).size} failed`);
process.exitCode = wrong.length ? 1 : 0;
