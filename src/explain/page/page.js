// Counts down and copies. The page says everything without it.
'use strict';

// As in the page: two units at most.
function age(seconds) {
  const two = (whole, unit, rest, restUnit) => whole + unit + (rest ? rest + restUnit : '');
  const cut = (big, small) => [Math.floor(seconds / big), Math.floor((seconds % big) / small)];
  if (seconds < 120) return seconds + 's';
  if (seconds < 600) { const [m, s] = cut(60, 1); return two(m, 'm', s, 's'); }
  if (seconds < 10800) return Math.floor(seconds / 60) + 'm';
  if (seconds < 28800) { const [h, m] = cut(3600, 60); return two(h, 'h', m, 'm'); }
  if (seconds < 172800) return Math.floor(seconds / 3600) + 'h';
  if (seconds < 691200) { const [d, h] = cut(86400, 3600); return two(d, 'd', h, 'h'); }
  return Math.floor(seconds / 86400) + 'd';
}

function countDown() {
  const now = Math.floor(Date.now() / 1000);
  for (const timer of document.querySelectorAll('.countdown[data-until]')) {
    const left = Number(timer.dataset.until) - now;
    timer.textContent = left > 0 ? 'in ' + age(left) : 'now';
  }
}

for (const button of document.querySelectorAll('button[data-copies]')) {
  button.parentElement.hidden = false;
  button.addEventListener('click', async () => {
    const told = button.nextElementSibling;
    try {
      await navigator.clipboard.writeText(document.getElementById(button.dataset.copies).textContent);
      told.textContent = 'Copied.';
    } catch {
      told.textContent = 'The browser does not allow it: mark the text and copy it.';
    }
  });
}

countDown();
setInterval(countDown, 1000);
