'use strict';
const data = JSON.parse(document.getElementById('data').textContent);
const minus = text => text.replace('-', '−');
const short = value => value === null ? 'not finite'
  : minus(value !== 0 && Math.abs(value) < 0.001 ? value.toExponential(2) : String(Number(value.toPrecision(4))));
const element = (tag, className, text) => {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
};

// Curves: the values under the pointer.
document.querySelectorAll('svg.chart').forEach((svg, index) => {
  const chart = data.charts[index];
  const [left, right] = chart.area, [first, last] = chart.range;
  const figure = svg.parentElement, cursor = svg.querySelector('.cursor');
  const tip = figure.appendChild(element('div', 'tip'));
  tip.hidden = true;
  const text = value => chart.shares && value !== null ? `${short(100 * value)} %` : short(value);
  const nearest = (steps, wanted) => {
    let low = 0, high = steps.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (steps[middle] < wanted) low = middle + 1; else high = middle;
    }
    return low > 0 && wanted - steps[low - 1] < steps[low] - wanted ? low - 1 : low;
  };
  const hide = () => { tip.hidden = true; cursor.style.visibility = 'hidden'; };
  svg.addEventListener('pointerleave', hide);
  svg.addEventListener('pointermove', event => {
    const box = svg.getBoundingClientRect(), scale = svg.viewBox.baseVal.width / box.width;
    const x = (event.clientX - box.left) * scale;
    if (x < left - 8 || x > right + 8) return hide();
    const wanted = first + (x - left) / (right - left) * (last - first);
    const step = chart.lines[0].steps[nearest(chart.lines[0].steps, wanted)];
    const at = left + (step - first) / (last - first) * (right - left);
    cursor.setAttribute('x1', at);
    cursor.setAttribute('x2', at);
    cursor.style.visibility = 'visible';
    tip.replaceChildren(element('div', '', `step ${step}`));
    chart.lines.forEach((line, number) => {
      const point = nearest(line.steps, step);
      const row = tip.appendChild(element('div'));
      row.appendChild(element('i')).style.background = `var(--s${number})`;
      const smooth = line.smooth && line.smooth[point] !== null ? `, smoothed ${text(line.smooth[point])}` : '';
      row.append(`${line.name} ${text(line.values[point])}${smooth}`);
    });
    tip.hidden = false;
    const frame = figure.getBoundingClientRect();
    const over = at / scale + box.left - frame.left;
    tip.style.left = `${over + tip.offsetWidth + 16 < frame.width ? over + 12 : Math.max(4, over - tip.offsetWidth - 12)}px`;
    tip.style.top = `${box.top - frame.top + 12}px`;
  });
});

// Samples: tokens coloured by one of their numbers. Text nodes only: what a model wrote is never markup.
const list = document.getElementById('list');
if (list) {
  const select = document.getElementById('step');
  const earlier = document.getElementById('earlier'), later = document.getElementById('later');
  const switches = [...document.querySelectorAll('[data-colour]')];
  let colour = 2;
  data.samples.forEach((entry, index) => select.add(new Option(entry.step, index)));
  const show = () => {
    const { samples } = data.samples[select.selectedIndex];
    const sizes = samples.flatMap(sample => sample.tokens.map(token => Math.abs(token[colour] ?? 0)));
    const most = sizes.reduce((a, b) => Math.max(a, b), 0);
    document.getElementById('scale').textContent = most > 0 ? `±${short(most)}` : 'all zero';
    list.replaceChildren(...samples.map(sample => {
      const made = element('article', 'sample');
      made.append(element('div', 'prompt', sample.prompt));
      const meta = made.appendChild(element('div', 'meta'));
      meta.append(element('b', '', `score ${short(sample.score)}`));
      meta.append(` · ${sample.tokens.length} tokens · ${sample.finish}`);
      if (sample.label !== null) meta.append(` · label ${sample.label}`);
      const tokens = made.appendChild(element('div', 'tokens'));
      if (!sample.tokens.length) tokens.textContent = sample.response;
      for (const [text, reward, advantage, kl, logprob] of sample.tokens) {
        const value = [text, reward, advantage, kl][colour] ?? 0;
        const token = tokens.appendChild(element('span', '', text.replace(/\n/g, '⏎\n')));
        const strength = most > 0 ? 0.6 * Math.abs(value) / most : 0;
        token.style.background = `rgba(var(--${value < 0 ? 'minus' : 'plus'}), ${strength.toFixed(3)})`;
        token.title = `reward ${short(reward)}\nadvantage ${short(advantage)}\nKL ${short(kl)}\nlog-prob ${short(logprob)}`;
      }
      return made;
    }));
    earlier.disabled = select.selectedIndex === 0;
    later.disabled = select.selectedIndex === select.length - 1;
  };
  const move = by => { select.selectedIndex += by; show(); };
  select.addEventListener('change', show);
  earlier.addEventListener('click', () => move(-1));
  later.addEventListener('click', () => move(1));
  switches.forEach(button => button.addEventListener('click', () => {
    colour = Number(button.dataset.colour);
    switches.forEach(other => other.setAttribute('aria-pressed', other === button));
    show();
  }));
  select.selectedIndex = select.length - 1;
  show();
}
