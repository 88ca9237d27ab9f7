//! A dashboard as SVG, drawn from what its queries returned: what Grafana would show, without Grafana.

use std::fmt::Write;

use serde_json::Value;

use crate::panels::Panel;

/// Name and points of each series of a panel.
pub type Data = Vec<(String, Vec<(f64, f64)>)>;

/// Pixels: Grafana's grid has 24 columns; margins are inside the cells.
const COLUMN: f64 = 60.0;
const ROW: f64 = 34.0;
const GAP: f64 = 4.0;
const HEADER: f64 = 56.0;
const MARGIN: f64 = 12.0;

/// Grafana's classic palette.
const PALETTE: [&str; 12] = [
    "#73bf69", "#f2cc0c", "#8ab8ff", "#ff780a", "#f2495c", "#5794f2", "#b877d9", "#96d98d", "#ffb357",
    "#fade2a", "#705da0", "#ff9830",
];
const STYLE: &str = "text{font-family:Inter,'Helvetica Neue',Arial,sans-serif;fill:#ccccdc;font-size:12px}\
.title{font-size:14px;font-weight:500}.dim{fill:#8e8e99;font-size:11px}.head{font-size:20px;font-weight:600}\
.row{font-size:15px;font-weight:500}.panel{fill:#181b1f;stroke:#2c3036}.grid{stroke:#2a2e34;stroke-width:1}\
.line{fill:none;stroke-width:1.5;stroke-linejoin:round}.big{font-weight:600;text-anchor:middle}\
.end{text-anchor:end}.mid{text-anchor:middle}";

/// Draws the panels at their places, over the time from `from` to `to` in seconds since 1970.
pub fn draw(title: &str, panels: &[(Panel, Data)], from: f64, to: f64) -> String {
    let width = 24.0 * COLUMN + 2.0 * MARGIN;
    let bottom = panels.iter().map(|(panel, _)| place(panel)).map(|(_, y, _, h)| y + h).fold(0.0, f64::max);
    let height = bottom + MARGIN;
    let mut svg = String::new();
    let _ = write!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\">\
         <style>{STYLE}</style><rect width=\"{width}\" height=\"{height}\" fill=\"#111217\"/>\
         <text class=\"head\" x=\"{MARGIN}\" y=\"34\">{}</text>\
         <text class=\"dim end\" x=\"{}\" y=\"34\">{:.0} minutes of mooring demo, scraped by Prometheus; drawn from the dashboard’s own queries</text>",
        escape(title),
        width - MARGIN,
        (to - from) / 60.0,
    );
    for (panel, data) in panels {
        svg.push('\n');
        match panel.kind() {
            "row" => {
                let (x, y, _, h) = place(panel);
                let _ = write!(
                    svg,
                    "<text class=\"row\" x=\"{}\" y=\"{}\">⌄ {}</text>",
                    x + 4.0,
                    y + h / 2.0 + 6.0,
                    escape(panel.title())
                );
            }
            "stat" => stat(&mut svg, panel, data),
            _ => lines(&mut svg, panel, data, from, to),
        }
    }
    svg.push_str("\n</svg>\n");
    svg
}

/// Left, top, width and height in pixels.
fn place(panel: &Panel) -> (f64, f64, f64, f64) {
    let of = |name: &str| panel.json["gridPos"][name].as_f64().unwrap_or_default();
    (MARGIN + of("x") * COLUMN, HEADER + of("y") * ROW, of("w") * COLUMN, of("h") * ROW)
}

/// Its frame and title. Returns the place of what is inside.
fn frame(svg: &mut String, panel: &Panel) -> (f64, f64, f64, f64) {
    let (x, y, w, h) = place(panel);
    let (x, y, w, h) = (x + GAP, y + GAP, w - 2.0 * GAP, h - 2.0 * GAP);
    let _ = write!(
        svg,
        "<rect class=\"panel\" x=\"{x}\" y=\"{y}\" width=\"{w}\" height=\"{h}\" rx=\"3\"/>\
         <text class=\"title\" x=\"{}\" y=\"{}\">{}</text>",
        x + 10.0,
        y + 21.0,
        escape(panel.title())
    );
    (x, y + 30.0, w, h - 30.0)
}

fn stat(svg: &mut String, panel: &Panel, data: &Data) {
    let (x, y, w, h) = frame(svg, panel);
    let last = data.iter().find_map(|(name, points)| Some((name, points.last()?.1)));
    let Some((name, value)) = last else { return };
    let text =
        if panel.json["options"]["textMode"] == "name" { name.clone() } else { format(value, panel.unit()) };
    // As large as fits.
    let letters = u32::try_from(text.chars().count()).unwrap_or(u32::MAX);
    let size = (w * 0.82 / (f64::from(letters) * 0.58)).min(42.0);
    let colour = colour(&panel.json, value);
    let _ = write!(
        svg,
        "<text class=\"big\" x=\"{}\" y=\"{}\" style=\"font-size:{size:.0}px;fill:{colour}\">{}</text>",
        x + w / 2.0,
        y + h / 2.0 + size * 0.28,
        escape(&text)
    );
}

/// Colour of the highest threshold that is reached.
fn colour(panel: &Value, value: f64) -> &'static str {
    let steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"].as_array();
    let reached = |step: &&Value| step["value"].as_f64().is_none_or(|from| value >= from);
    let name = steps.into_iter().flatten().rfind(reached).and_then(|step| step["color"].as_str());
    shade(name.unwrap_or("text"))
}

fn shade(name: &str) -> &'static str {
    match name {
        "green" => "#73bf69",
        "orange" => "#ff9830",
        "red" => "#f2495c",
        _ => "#ccccdc",
    }
}

fn lines(svg: &mut String, panel: &Panel, data: &Data, from: f64, to: f64) {
    let (x, y, w, h) = frame(svg, panel);
    let custom = &panel.json["fieldConfig"]["defaults"]["custom"];
    let is_stacked = custom["stacking"]["mode"] == "normal";
    let mut data: Vec<_> = data.iter().filter(|(_, points)| !points.is_empty()).cloned().collect();
    let peak = |points: &[(f64, f64)]| points.iter().map(|(_, value)| *value).fold(0.0, f64::max);
    data.sort_by(|(_, one), (_, other)| peak(other).total_cmp(&peak(one)));
    // As many rows of the legend as leave most of the room to the lines.
    let rows = data.len().min(5);
    let legend = f64::from(u32::try_from(rows).unwrap_or(0)) * 16.0;
    let (left, right, top, bottom) = (x + 62.0, x + w - 26.0, y + 8.0, y + h - legend - 30.0);
    let drawn = if is_stacked { stacked(&data) } else { data.clone() };
    let highest = drawn.iter().map(|(_, points)| peak(points)).fold(0.0, f64::max);
    let (step, ceiling) = scale(highest, panel.unit());
    let at = |time: f64, value: f64| {
        let across = (time - from) / (to - from);
        (left + across * (right - left), bottom - (value / ceiling).min(1.0) * (bottom - top))
    };
    let mut tick = 0.0;
    while tick <= ceiling * 1.001 {
        let (_, y) = at(from, tick);
        let _ = write!(
            svg,
            "<path class=\"grid\" d=\"M{left:.1} {y:.1}H{right:.1}\"/><text class=\"dim end\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            left - 6.0,
            y + 4.0,
            format(tick, panel.unit())
        );
        tick += step;
    }
    let minutes = ((to - from) / 60.0).floor();
    let mut minute = 0.0;
    while minute <= minutes {
        let (x, _) = at(from + minute * 60.0, 0.0);
        let _ = write!(
            svg,
            "<text class=\"dim mid\" x=\"{x:.1}\" y=\"{:.1}\">{minute:.0} min</text>",
            bottom + 16.0
        );
        minute += (minutes / 6.0).ceil().max(1.0);
    }
    for threshold in
        panel.json["fieldConfig"]["defaults"]["thresholds"]["steps"].as_array().into_iter().flatten()
    {
        let Some(value) = threshold["value"].as_f64().filter(|value| *value <= ceiling) else { continue };
        let (_, y) = at(from, value);
        let colour = shade(threshold["color"].as_str().unwrap_or_default());
        let _ = write!(
            svg,
            "<path d=\"M{left:.1} {y:.1}H{right:.1}\" stroke=\"{colour}\" stroke-dasharray=\"6 5\" opacity=\".7\"/>"
        );
    }
    // The largest at the back.
    for (number, (_, points)) in drawn.iter().enumerate().rev() {
        let colour = PALETTE[number % PALETTE.len()];
        for piece in pieces(points) {
            let mut path = String::new();
            for (time, value) in piece {
                let (x, y) = at(*time, *value);
                let _ = write!(path, "{}{x:.1} {y:.1}", if path.is_empty() { 'M' } else { 'L' });
            }
            let (first, last) = (at(piece[0].0, 0.0).0, at(piece[piece.len() - 1].0, 0.0).0);
            let fill = if is_stacked { ".35" } else { ".08" };
            let _ = write!(
                svg,
                "<path d=\"{path}L{last:.1} {bottom:.1}L{first:.1} {bottom:.1}Z\" fill=\"{colour}\" opacity=\"{fill}\"/>\
                 <path class=\"line\" d=\"{path}\" stroke=\"{colour}\"/>"
            );
        }
    }
    for (number, (name, points)) in data.iter().take(rows).enumerate() {
        let row = bottom + 34.0 + 16.0 * f64::from(u32::try_from(number).unwrap_or(0));
        let more = data.len() - rows;
        let name =
            if number + 1 == rows && more > 0 { format!("{name}  (and {more} more)") } else { name.clone() };
        let _ = write!(
            svg,
            "<rect x=\"{}\" y=\"{}\" width=\"14\" height=\"4\" rx=\"2\" fill=\"{}\"/><text x=\"{}\" y=\"{row}\">{}</text>\
             <text class=\"dim end\" x=\"{right}\" y=\"{row}\">last {} · max {}</text>",
            x + 10.0,
            row - 6.0,
            PALETTE[number % PALETTE.len()],
            x + 30.0,
            escape(&name),
            format(points.last().map_or(0.0, |(_, value)| *value), panel.unit()),
            format(peak(points), panel.unit()),
        );
    }
}

/// Each series upon the sum of those after it: the largest is the outline of all.
fn stacked(data: &Data) -> Data {
    let mut sums = std::collections::BTreeMap::<u64, f64>::new();
    let mut stacked = Data::new();
    for (name, points) in data.iter().rev() {
        let mut upon = |(time, value): &(f64, f64)| {
            let sum = sums.entry(time.to_bits()).or_default();
            *sum += value;
            (*time, *sum)
        };
        stacked.push((name.clone(), points.iter().map(&mut upon).collect()));
    }
    stacked.reverse();
    stacked
}

/// Points without a gap between them.
fn pieces(points: &[(f64, f64)]) -> impl Iterator<Item = &[(f64, f64)]> {
    points.chunk_by(|(one, _), (other, _)| other - one < 8.0)
}

/// The distance of the grid's lines and the highest of them: about four, at round numbers.
fn scale(highest: f64, unit: &str) -> (f64, f64) {
    let highest = if highest > 0.0 { highest } else { 1.0 };
    let base: f64 = if unit == "bytes" { 1024.0 * 1024.0 } else { 1.0 };
    let rough = highest / 4.0 / base;
    let power = 10_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|factor| factor * power).find(|step| *step >= rough);
    let step = step.unwrap_or(rough) * base;
    (step, step * (highest / step).ceil().max(1.0))
}

/// A number as people read it.
fn format(value: f64, unit: &str) -> String {
    let short = |value: f64| {
        let text = if value.abs() >= 100.0 { format!("{value:.0}") } else { format!("{value:.2}") };
        if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
    };
    match unit {
        "percentunit" => format!("{} %", short(value * 100.0)),
        "bytes" => format!("{} MiB", short(value / 1024.0 / 1024.0)),
        "s" if value == 0.0 => "0 s".to_owned(),
        "s" if value.abs() < 1.0 => format!("{} ms", short(value * 1000.0)),
        "s" if value < 600.0 => format!("{} s", short(value)),
        "s" => format!("{} min", short(value / 60.0)),
        "ops" | "reqps" => format!("{}/s", short(value)),
        _ => short(value),
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
