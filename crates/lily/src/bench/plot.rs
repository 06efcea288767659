//! Runs as a picture: SVG with two panels, prefill and decode over the length of the prompt.

use std::fmt::Write;

use super::compare::{Named, contexts};
use super::report::{Report, Row, grouped};

pub(super) const WIDTH: f64 = 960.0;
pub(super) const MARGIN: f64 = 24.0;
/// Of a line of the legend.
pub(super) const LINE: f64 = 20.0;
/// Of a panel with its labels.
pub(super) const PANEL: f64 = 340.0;
/// For the numbers of the vertical axis.
pub(super) const LABELS: f64 = 52.0;
/// Above this span an axis from 0 would press the slower runs to the floor.
const LINEAR_SPAN: f64 = 15.0;

/// Colours for light and dark backgrounds that stay apart for colour-blind eyes (Okabe and Ito), and a form of marker each.
const SERIES: [(&str, &str, Marker); 6] = [
    ("#0072b2", "#56b4e9", Marker::Circle),
    ("#d55e00", "#ff8c42", Marker::Square),
    ("#009e73", "#2bd3a3", Marker::Triangle),
    ("#a8578a", "#e29ac6", Marker::Diamond),
    ("#9a7400", "#f0c644", Marker::Circle),
    ("#5f6b7a", "#a9b4c2", Marker::Square),
];

#[derive(Clone, Copy)]
enum Marker {
    Circle,
    Square,
    Triangle,
    Diamond,
}

/// A measured rate with its slowest and fastest round.
struct Rate {
    median: f64,
    range: Option<(f64, f64)>,
}

/// Draws the runs. Rates that a row does not have leave a gap.
pub fn svg(runs: &[Named]) -> String {
    let top = MARGIN + LINE * runs.len() as f64;
    let height = top + PANEL + MARGIN;
    let mut out = page(height, "Tokens a second over the length of the prompt", runs.len());
    for (i, run) in runs.iter().enumerate() {
        legend(&mut out, i, &run.name, &about(&run.report));
    }
    let prefill = |r: &Row| Some(Rate { median: r.prefill_tok_s?, range: r.prefill_min.zip(r.prefill_max) });
    let decode = |r: &Row| Some(Rate { median: r.decode_tok_s?, range: r.decode_min.zip(r.decode_max) });
    let width = (WIDTH - 3.0 * MARGIN) / 2.0;
    panel(&mut out, runs, "Prefill", [MARGIN, top], width, &prefill);
    panel(&mut out, runs, "Decode after the prompt", [2.0 * MARGIN + width, top], width, &decode);
    out + "</svg>\n"
}

/// The beginning of a picture with that many lines, for those who see it and those who hear it.
pub(super) fn page(height: f64, label: &str, series: usize) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" \
         role=\"img\" aria-label=\"{label}\">\n{}\n\
         <rect class=\"page\" width=\"{WIDTH}\" height=\"{height}\"/>\n",
        style(series)
    )
}

/// The style sheet for that many lines.
fn style(series: usize) -> String {
    let colours = |dark: bool| -> String {
        let used = SERIES.iter().enumerate().take(series);
        used.map(|(i, (light, night, _))| {
            let colour = if dark { night } else { light };
            format!(".s{i}{{stroke:{colour};fill:{colour}}}")
        })
        .collect()
    };
    format!(
        "<style>text{{font:12px system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif;fill:#24292f}}\
         .name{{font-weight:600}}.title{{font-size:14px;font-weight:600}}.quiet{{fill:#57606a}}.end{{text-anchor:end}}\
         .middle{{text-anchor:middle}}.page{{fill:#fff}}.grid{{stroke:#d8dee4}}.axis{{stroke:#8c959f}}\
         .line{{fill:none;stroke-width:2;stroke-linejoin:round}}.range{{stroke-width:1.5}}{}\
         @media(prefers-color-scheme:dark){{text{{fill:#e6edf3}}.quiet{{fill:#9198a1}}.page{{fill:#0d1117}}\
         .grid{{stroke:#2a313c}}.axis{{stroke:#656c76}}{}}}.line{{fill:none}}</style>",
        colours(false),
        colours(true)
    )
}

/// Marker, name, and what is known of the run.
pub(super) fn legend(out: &mut String, i: usize, name: &str, about: &str) {
    let y = MARGIN - 6.0 + LINE * i as f64 + LINE / 2.0;
    let _ = write!(out, "<path class=\"s{0} line\" d=\"M{MARGIN} {y}h28\"/>", colour(i));
    marker(out, i, MARGIN + 14.0, y);
    let _ = writeln!(
        out,
        "<text x=\"{}\" y=\"{}\"><tspan class=\"name\">{}</tspan><tspan class=\"quiet\" dx=\"8\">{}</tspan></text>",
        MARGIN + 38.0,
        y + 4.0,
        escape(name),
        escape(about)
    );
}

fn about(r: &Report) -> String {
    let day = r.date.as_ref().map(|d| d.split('T').next().unwrap_or(d).to_owned());
    let parts = [r.version.clone(), r.device.clone(), r.weights.clone(), day];
    line(parts)
}

/// What is known, as far as it fits a line of the legend.
pub(super) fn line(parts: impl IntoIterator<Item = Option<String>>) -> String {
    let text = parts.into_iter().flatten().collect::<Vec<_>>().join(" · ");
    match text.char_indices().nth(120) {
        Some((cut, _)) => format!("{}…", &text[..cut]),
        None => text,
    }
}

fn panel(
    out: &mut String,
    runs: &[Named],
    title: &str,
    [left, top]: [f64; 2],
    width: f64,
    rate: &dyn Fn(&Row) -> Option<Rate>,
) {
    let rates: Vec<Vec<(u64, Rate)>> = runs
        .iter()
        .map(|run| run.report.rows.iter().filter_map(|row| Some((row.context, rate(row)?))).collect())
        .collect();
    let all = || {
        rates
            .iter()
            .flatten()
            .flat_map(|(_, r)| [r.median].into_iter().chain(r.range.map(|x| [x.0, x.1]).into_iter().flatten()))
    };
    let vertical = Axis::of(all());
    let [x0, x1] = [left + LABELS, left + width - 8.0];
    let [y0, y1] = [top + PANEL - 44.0, top + 44.0];
    let y = |v: f64| y0 + (y1 - y0) * vertical.place(v);
    let lengths = contexts(runs);
    let (first, last) =
        (lengths.first().map_or(1.0, |&c| c as f64).log2(), lengths.last().map_or(1.0, |&c| c as f64).log2());
    let span = if last > first { last - first } else { 1.0 };
    let x = |c: u64| match last > first {
        true => x0 + 12.0 + (x1 - x0 - 24.0) * ((c as f64).log2() - first) / span,
        false => (x0 + x1) / 2.0,
    };

    let note = if vertical.log { "tokens a second, logarithmic" } else { "tokens a second" };
    let _ = writeln!(
        out,
        "<text class=\"title\" x=\"{left}\" y=\"{:.1}\">{title}<tspan class=\"quiet\" dx=\"8\" font-size=\"12\" font-weight=\"400\">{note}</tspan></text>",
        top + 26.0
    );
    for tick in &vertical.ticks {
        let at = y(*tick);
        let class = if *tick == 0.0 { "axis" } else { "grid" };
        let _ = write!(out, "<path class=\"{class}\" d=\"M{x0:.1} {at:.1}H{x1:.1}\"/>");
        let label = if *tick >= 1.0 || *tick == 0.0 { grouped(*tick) } else { tick.to_string() };
        let _ = writeln!(out, "<text class=\"quiet end\" x=\"{:.1}\" y=\"{:.1}\">{label}</text>", x0 - 8.0, at + 4.0);
    }
    // Labels need room: of crowded lengths only the later ones have one.
    let mut free = f64::INFINITY;
    for &c in lengths.iter().rev() {
        let at = x(c);
        let _ = write!(out, "<path class=\"axis\" d=\"M{at:.1} {y0:.1}v4\"/>");
        if at < free {
            let _ =
                writeln!(out, "<text class=\"quiet middle\" x=\"{at:.1}\" y=\"{:.1}\">{}</text>", y0 + 18.0, tokens(c));
            free = at - 30.0;
        }
    }
    let _ = writeln!(
        out,
        "<text class=\"quiet middle\" x=\"{:.1}\" y=\"{:.1}\">tokens of the prompt</text>",
        (x0 + x1) / 2.0,
        y0 + 36.0
    );

    // The first run last, on top.
    for (i, points) in rates.iter().enumerate().rev() {
        let colour = colour(i);
        let places: Vec<String> = points.iter().map(|(c, r)| format!("{:.1} {:.1}", x(*c), y(r.median))).collect();
        if let Some((from, rest)) = places.split_first() {
            let _ = writeln!(
                out,
                "<path class=\"s{colour} line\" data-run=\"{}\" d=\"M{from}{}\"/>",
                escape(&runs[i].name),
                rest.iter().map(|p| format!("L{p}")).collect::<String>()
            );
        }
        for (c, r) in points {
            if let Some((low, high)) = r.range {
                let _ =
                    write!(out, "<path class=\"s{colour} range\" d=\"M{:.1} {:.1}V{:.1}\"/>", x(*c), y(low), y(high));
            }
            marker(out, i, x(*c), y(r.median));
            out.push('\n');
        }
    }
}

/// Of a line's classes: lines beyond the last colour begin anew.
pub(super) fn colour(i: usize) -> usize {
    i % SERIES.len()
}

/// A point of line `i`.
pub(super) fn marker(out: &mut String, i: usize, x: f64, y: f64) {
    let colour = colour(i);
    let d = match SERIES[colour].2 {
        Marker::Circle => format!("M{:.1} {y:.1}a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z", x - 4.0),
        Marker::Square => format!("M{:.1} {:.1}h7v7h-7z", x - 3.5, y - 3.5),
        Marker::Triangle => format!("M{x:.1} {:.1}l4.6 8h-9.2z", y - 5.0),
        Marker::Diamond => format!("M{x:.1} {:.1}l4.8 4.8l-4.8 4.8l-4.8 -4.8z", y - 4.8),
    };
    let _ = write!(out, "<path class=\"s{colour}\" stroke=\"none\" d=\"{d}\"/>");
}

/// A vertical axis: from 0, or logarithmic where the rates lie far apart.
pub(super) struct Axis {
    pub(super) log: bool,
    low: f64,
    high: f64,
    pub(super) ticks: Vec<f64>,
}

impl Axis {
    pub(super) fn of(values: impl Iterator<Item = f64>) -> Self {
        let (mut low, mut high) = (f64::INFINITY, 0.0_f64);
        for v in values {
            (low, high) = (low.min(v), high.max(v));
        }
        if high <= 0.0 {
            return Self { log: false, low: 0.0, high: 1.0, ticks: vec![0.0] };
        }
        if high / low > LINEAR_SPAN {
            let decades = low.log10().floor() as i32..=high.log10().ceil() as i32;
            let steps: Vec<f64> = decades.flat_map(|d| [1.0, 2.0, 5.0].map(|m| m * 10f64.powi(d))).collect();
            let below = steps.iter().rposition(|&s| s <= low).unwrap_or(0);
            let above = steps.iter().position(|&s| s >= high).unwrap_or(steps.len() - 1);
            let ticks = steps[below..=above].to_vec();
            return Self { log: true, low: ticks[0], high: ticks[ticks.len() - 1], ticks };
        }
        let rough = high / 5.0;
        let unit = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 2.5, 5.0, 10.0].map(|m| m * unit).into_iter().find(|&s| s >= rough).unwrap_or(rough);
        let count = (high / step).ceil() as usize;
        Self { log: false, low: 0.0, high: step * count as f64, ticks: (0..=count).map(|i| step * i as f64).collect() }
    }

    /// 0 at the bottom, 1 at the top.
    pub(super) fn place(&self, v: f64) -> f64 {
        match self.log {
            true => (v / self.low).ln() / (self.high / self.low).ln(),
            false => v / self.high,
        }
    }
}

/// 256, 1K, 128K.
fn tokens(n: u64) -> String {
    if n >= 1024 && n.is_multiple_of(1024) { format!("{}K", n / 1024) } else { n.to_string() }
}

/// For XML.
pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::super::compare::tests::run;
    use super::*;

    #[test]
    fn the_picture_is_xml_with_every_series_in_both_panels() {
        let mut runs = Named::all(vec![
            run("lily", &[(256, 3000.0), (512, 4000.0), (1024, 4500.0)]),
            run("a<b & \"c\"", &[(512, 30.0), (131_072, 20.0)]),
        ]);
        runs[0].report.rows[1].prefill_min = Some(3900.0);
        runs[0].report.rows[1].prefill_max = Some(4100.0);
        let text = svg(&runs);
        let xml = roxmltree::Document::parse(&text).unwrap();
        let lines = |name: &str| xml.descendants().filter(|n| n.attribute("data-run") == Some(name)).count();
        assert_eq!((lines("lily"), lines("a<b & \"c\"")), (2, 2));
        let has = |label: &str| xml.descendants().any(|n| n.text() == Some(label));
        for label in ["256", "1K", "128K", "Prefill", "a<b & \"c\""] {
            assert!(has(label), "{label}");
        }
        assert_eq!(text.matches("range\" d").count(), 1);
        // Rates 200 times apart.
        assert!(text.contains("logarithmic"));
        assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
    }

    #[test]
    fn one_point_and_none_are_drawn_too() {
        let one = svg(&Named::all(vec![run("lily", &[(64, 3.0)])]));
        let mut none = run("lily", &[(64, 3.0)]);
        none.1.rows[0].prefill_tok_s = None;
        for text in [one, svg(&Named::all(vec![none]))] {
            roxmltree::Document::parse(&text).unwrap();
            assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
        }
    }

    #[test]
    fn axes_end_on_round_numbers() {
        let axis = Axis::of([900.0, 1210.0].into_iter());
        assert_eq!((axis.log, axis.ticks), (false, vec![0.0, 250.0, 500.0, 750.0, 1000.0, 1250.0]));
        let axis = Axis::of([30.0, 4100.0].into_iter());
        assert!(axis.log);
        assert_eq!((axis.low, axis.high), (20.0, 5000.0));
        assert_eq!((axis.place(20.0), axis.place(5000.0)), (0.0, 1.0));
    }
}
